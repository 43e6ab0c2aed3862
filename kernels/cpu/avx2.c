/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX2 path: the generic C compiled for AVX2, FMA and F16C, so that 16 lanes are two registers.
 * Only the dispatcher may call into it. The compiler may not reorder float operations, so its bits
 * are the contract's.
 */
#include "generic.h"
#include "paths.h"

const struct fm_kernels fm_kernels_avx2 = {.isa = "avx2", FM_GENERIC_KERNELS};
