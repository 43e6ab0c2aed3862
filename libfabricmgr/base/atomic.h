/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few atomic operations that shared memory needs, on plain fields of structures whose layout
 * others fix (UAPI, index). Any layer may include this.
 * Invariant: fm_fence() is a sequentially consistent fence in every build, also under
 * ThreadSanitizer, which does not know fences and gets a read-modify-write instead.
 */
#ifndef FM_BASE_ATOMIC_H
#define FM_BASE_ATOMIC_H

#include <stdint.h>

#define fm_load_relaxed(p)     __atomic_load_n((p), __ATOMIC_RELAXED)
#define fm_load_acquire(p)     __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define fm_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define fm_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

#ifdef __SANITIZE_THREAD__
extern uint32_t fm_fence_dummy;
static inline void fm_fence(void)
{
	__atomic_fetch_add(&fm_fence_dummy, 0, __ATOMIC_SEQ_CST);
}
#else
static inline void fm_fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif

static inline void fm_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
