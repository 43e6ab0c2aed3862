/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix products on AMX tiles, for the table in avx512.c only. They equal their functions in
 * generic.h to the bit. Invariant: a call leaves the tiles released, so that nothing else pays for
 * them.
 */
#ifndef FM_KERNELS_CPU_AMX_H
#define FM_KERNELS_CPU_AMX_H

#include <kernels.h>

/* The process must have been permitted to use tiles (dispatch.c asks). */
void fm_amx_product_integer(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			    const struct fm_tile *tiles, bool is_fine, size_t n_tokens,
			    float *const *out);
void fm_amx_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			  const struct fm_level_tile *tiles, const float *scales, size_t n_tokens,
			  float *const *out);

#endif
