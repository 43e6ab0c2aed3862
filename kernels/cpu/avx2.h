/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hand-written AVX2 kernels, for the table in avx2.c only. Each equals its function in
 * generic.h to the bit.
 */
#ifndef FM_KERNELS_CPU_AVX2_H
#define FM_KERNELS_CPU_AVX2_H

#include <kernels.h>

#include "inline.h"

void fm_avx2_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			   const struct fm_level_tile *tiles, const float *scales, size_t n_tokens,
			   float *const *out);

#endif
