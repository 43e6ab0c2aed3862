/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hand-written AVX-512 kernels, for the table in avx512.c only. Each equals its function in
 * generic.h to the bit: it holds the same lanes in one register and does the same operations in the
 * same order.
 */
#ifndef FM_KERNELS_CPU_AVX512_H
#define FM_KERNELS_CPU_AVX512_H

#include <kernels.h>

#include "inline.h"

void fm_avx512_quantise(struct fm_tile *tiles, size_t token, const float *x, size_t n,
			bool is_fine);
void fm_avx512_product_integer(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			       const struct fm_tile *tiles, bool is_fine, size_t n_tokens,
			       float *const *out);
void fm_avx512_quantise_level(struct fm_level_tile *tiles, size_t token, const float *x, size_t n,
			      float *scale);
void fm_avx512_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			     const struct fm_level_tile *tiles, const float *scales,
			     size_t n_tokens, float *const *out);
void fm_avx512_product_float(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			     const float *x, size_t n_tokens, float *const *out);
uint64_t fm_avx512_integer_peak(size_t rounds);
/* False when there is no hand-written code for the head's size. */
bool fm_avx512_attention(const struct fm_attention *attention, const float *q, float *out);
bool fm_avx512_attention_part(const struct fm_attention *attention, size_t segment, const float *q,
			      float *parts);
/* For the sizes that fm_avx512_attention() knows; worth its set-up from so many queries on. */
#define FM_AVX512_PROMPT_QUERIES 8
void fm_avx512_attention_prompt(const struct fm_attention *attention, const float *q, float *out);

#endif
