/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How hand-written kernels are compiled, for those of kernels/cpu only. Invariant: with sanitizers
 * the same source compiles to one copy of each function.
 */
#ifndef FM_KERNELS_CPU_INLINE_H
#define FM_KERNELS_CPU_INLINE_H

/* Each format and each size gets code of its own by inlining, except with sanitizers: their checks
 * in all those copies take minutes to compile and find no more than in one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE static __attribute__((unused))
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
