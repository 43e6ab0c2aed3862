/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX2 path: the generic C compiled for AVX2, FMA and F16C, so that 16 lanes are two registers,
 * with the level products replaced by hand-written code. Only the dispatcher may call into it. The
 * compiler may not reorder float operations, so its bits are the contract's.
 */
#include "avx2.h"
#include "generic.h"
#include "paths.h"

const struct fm_kernels fm_kernels_avx2 = {
	.isa = "avx2", FM_GENERIC_KERNELS, .product_level = fm_avx2_product_level};
