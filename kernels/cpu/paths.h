/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the instruction-set paths, one file each; only the dispatcher may look at them,
 * since a path's code must not run where its instructions lack.
 */
#ifndef FM_KERNELS_CPU_PATHS_H
#define FM_KERNELS_CPU_PATHS_H

#include <kernels.h>

extern const struct fm_kernels fm_kernels_portable;
extern const struct fm_kernels fm_kernels_avx2;
extern const struct fm_kernels fm_kernels_avx512;
extern const struct fm_kernels fm_kernels_amx;

#endif
