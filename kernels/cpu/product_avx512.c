/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products in AVX-512: a register is one column (or four, in bytes) of a group's 16 rows.
 * Called through the table in avx512.c. Invariant: a row's sum takes its blocks in order, whatever
 * number of tokens and groups is computed together; that number only decides how often a block is
 * unpacked and how many sums overlap.
 */
#include <immintrin.h>
#include <string.h>

#include "avx512.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

struct block {
	__m512i u[8]; /* quads of columns, unsigned bytes */
	__m512 d, m;
};

INLINE __m512 halves(const uint16_t *from)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

INLINE void load_nibbles(struct block *block, const uint8_t (*q)[FM_LANES][4])
{
	const __m512i low = _mm512_set1_epi8(15);

	UNROLL
	for (int quad = 0; quad < 4; quad++) {
		__m512i both = _mm512_loadu_si512(q[quad]);

		block->u[quad] = _mm512_and_si512(both, low);
		block->u[quad + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
	}
}

INLINE void load_block(enum fm_format format, const uint8_t *group, size_t index,
		       struct block *block)
{
	block->m = _mm512_setzero_ps();
	if (format == FM_FORMAT_Q4_1) {
		const struct fm_block_q4_1 *packed = (const struct fm_block_q4_1 *)group + index;

		block->d = halves(packed->d);
		block->m = halves(packed->m);
		load_nibbles(block, packed->q);
	} else if (format == FM_FORMAT_Q4_0) {
		const struct fm_block_q4_0 *packed = (const struct fm_block_q4_0 *)group + index;

		block->d = halves(packed->d);
		load_nibbles(block, packed->q);
	} else {
		const struct fm_block_q8_0 *packed = (const struct fm_block_q8_0 *)group + index;

		block->d = halves(packed->d);
		UNROLL
		for (int quad = 0; quad < 8; quad++)
			block->u[quad] = _mm512_loadu_si512(packed->q[quad]);
	}
}

INLINE __m512i dot(const struct block *block, const int8_t *q)
{
	__m512i sum = _mm512_setzero_si512();

	UNROLL
	for (int quad = 0; quad < 8; quad++) {
		int32_t four;

		memcpy(&four, q + 4 * quad, sizeof(four));
		sum = _mm512_dpbusd_epi32(sum, block->u[quad], _mm512_set1_epi32(four));
	}
	return sum;
}

INLINE __m512 accumulate(enum fm_format format, bool is_fine, const struct block *block,
			 const struct fm_tile *tile, size_t token, __m512 sum)
{
	__m512i total = dot(block, tile->q[0][token]);
	__m512 scale = _mm512_mul_ps(block->d, _mm512_set1_ps(tile->scale[token]));

	if (is_fine)
		total = _mm512_add_epi32(_mm512_slli_epi32(total, 8),
					 dot(block, tile->q[1][token]));
	if (format == FM_FORMAT_Q8_0)
		total = _mm512_sub_epi32(total,
					 _mm512_slli_epi32(_mm512_set1_epi32(tile->sum[token]), 7));
	if (format == FM_FORMAT_Q4_0)
		total = _mm512_sub_epi32(total,
					 _mm512_slli_epi32(_mm512_set1_epi32(tile->sum[token]), 3));
	sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(total), sum);
	if (format == FM_FORMAT_Q4_1)
		sum = _mm512_fmadd_ps(block->m, _mm512_set1_ps(tile->scaled_sum[token]), sum);
	return sum;
}

INLINE void store(const struct fm_matrix *matrix, size_t group, __m512 sums, float *out)
{
	size_t row = group * FM_LANES, left = matrix->rows - row;
	__mmask16 mask = left < FM_LANES ? (__mmask16)((1u << left) - 1) : 0xffff;

	_mm512_mask_storeu_ps(out + row, mask, sums);
}

/* @groups groups by @tokens tokens of one tile row; of those tokens @n are there. All but the
 * pointers and @n are constants where this is called. */
INLINE void integer_tile(enum fm_format format, bool is_fine, size_t groups, size_t tokens,
			 const struct fm_matrix *matrix, size_t group, const struct fm_tile *tile,
			 size_t n, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	__m512 sums[4][FM_TILE_TOKENS];

	UNROLL
	for (size_t g = 0; g < groups; g++)
		UNROLL
	for (size_t t = 0; t < tokens; t++)
		sums[g][t] = _mm512_setzero_ps();
	for (size_t index = 0; index < n_blocks; index++, tile++) {
		UNROLL
		for (size_t g = 0; g < groups; g++) {
			struct block block;

			load_block(format, data + g * matrix->group_bytes, index, &block);
			UNROLL
			for (size_t t = 0; t < tokens; t++)
				sums[g][t] =
					accumulate(format, is_fine, &block, tile, t, sums[g][t]);
		}
	}
	UNROLL
	for (size_t g = 0; g < groups; g++)
		UNROLL
	for (size_t t = 0; t < tokens; t++)
		if (t < n)
			store(matrix, group + g, sums[g][t], out[t]);
}

INLINE void integer_groups(enum fm_format format, bool is_fine, const struct fm_matrix *matrix,
			   size_t group, size_t end, const struct fm_tile *tile, size_t n,
			   float *const *out)
{
	if (n == 1) {
		for (; group + 4 <= end; group += 4)
			integer_tile(format, is_fine, 4, 1, matrix, group, tile, n, out);
		for (; group < end; group++)
			integer_tile(format, is_fine, 1, 1, matrix, group, tile, n, out);
	} else if (n <= 4) {
		for (; group + 2 <= end; group += 2)
			integer_tile(format, is_fine, 2, 4, matrix, group, tile, n, out);
		for (; group < end; group++)
			integer_tile(format, is_fine, 1, 4, matrix, group, tile, n, out);
	} else if (n <= 8) {
		for (; group < end; group++)
			integer_tile(format, is_fine, 1, 8, matrix, group, tile, n, out);
	} else {
		for (; group < end; group++)
			integer_tile(format, is_fine, 1, 16, matrix, group, tile, n, out);
	}
}

void fm_avx512_product_integer(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			       const struct fm_tile *tiles, bool is_fine, size_t n_tokens,
			       float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;

	for (size_t first = 0; first < n_tokens; first += FM_TILE_TOKENS, tiles += n_blocks) {
		size_t n = n_tokens - first < FM_TILE_TOKENS ? n_tokens - first : FM_TILE_TOKENS;

#define GROUPS(format, fine)                                                                       \
	integer_groups(format, fine, matrix, first_group, end_group, tiles, n, out + first)
		if (matrix->format == FM_FORMAT_Q4_1 && !is_fine)
			GROUPS(FM_FORMAT_Q4_1, false);
		else if (matrix->format == FM_FORMAT_Q4_1)
			GROUPS(FM_FORMAT_Q4_1, true);
		else if (matrix->format == FM_FORMAT_Q4_0 && !is_fine)
			GROUPS(FM_FORMAT_Q4_0, false);
		else if (matrix->format == FM_FORMAT_Q4_0)
			GROUPS(FM_FORMAT_Q4_0, true);
		else if (!is_fine)
			GROUPS(FM_FORMAT_Q8_0, false);
		else
			GROUPS(FM_FORMAT_Q8_0, true);
#undef GROUPS
	}
}

/* ---- float32 activations ------------------------------------------------------------------ */

INLINE void unpack_quantised(enum fm_format format, const uint8_t *group, size_t index,
			     float (*w)[FM_LANES])
{
	const __m512i offset = _mm512_set1_epi32(format == FM_FORMAT_Q8_0   ? 128
						 : format == FM_FORMAT_Q4_0 ? 8
									    : 0);
	struct block block;

	load_block(format, group, index, &block);
	UNROLL
	for (int quad = 0; quad < 8; quad++) {
		UNROLL
		for (int i = 0; i < 4; i++) {
			__m512i q = _mm512_and_si512(_mm512_srli_epi32(block.u[quad], 8 * i),
						     _mm512_set1_epi32(255));
			__m512 value = _mm512_mul_ps(
				block.d, _mm512_cvtepi32_ps(_mm512_sub_epi32(q, offset)));

			if (format == FM_FORMAT_Q4_1)
				value = _mm512_add_ps(value, block.m);
			_mm512_store_ps(w[4 * quad + i], value);
		}
	}
}

static void unpack(enum fm_format format, const uint8_t *group, size_t index, float (*w)[FM_LANES])
{
	const size_t first = index * FM_BLOCK_COLUMNS * FM_LANES;

	switch (format) {
	case FM_FORMAT_F32:
		memcpy(w, (const float *)group + first, FM_BLOCK_COLUMNS * sizeof(*w));
		break;
	case FM_FORMAT_F16:
		for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
			_mm512_store_ps(w[i],
					halves((const uint16_t *)group + first + i * FM_LANES));
		break;
	case FM_FORMAT_Q8_0:
		unpack_quantised(FM_FORMAT_Q8_0, group, index, w);
		break;
	case FM_FORMAT_Q4_0:
		unpack_quantised(FM_FORMAT_Q4_0, group, index, w);
		break;
	default:
		unpack_quantised(FM_FORMAT_Q4_1, group, index, w);
		break;
	}
}

INLINE void float_tile(size_t groups, size_t tokens, const struct fm_matrix *matrix, size_t group,
		       const float *x, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	_Alignas(64) float w[4][FM_BLOCK_COLUMNS][FM_LANES];
	__m512 sums[4][FM_TILE_TOKENS];

	UNROLL
	for (size_t g = 0; g < groups; g++)
		UNROLL
	for (size_t t = 0; t < tokens; t++)
		sums[g][t] = _mm512_setzero_ps();
	for (size_t index = 0; index < n_blocks; index++) {
		for (size_t g = 0; g < groups; g++)
			unpack(matrix->format, data + g * matrix->group_bytes, index, w[g]);
		for (size_t i = 0; i < FM_BLOCK_COLUMNS; i++, x++) {
			UNROLL
			for (size_t g = 0; g < groups; g++) {
				__m512 column = _mm512_load_ps(w[g][i]);

				UNROLL
				for (size_t t = 0; t < tokens; t++)
					sums[g][t] = _mm512_fmadd_ps(
						column, _mm512_set1_ps(x[t * matrix->columns]),
						sums[g][t]);
			}
		}
	}
	UNROLL
	for (size_t g = 0; g < groups; g++)
		UNROLL
	for (size_t t = 0; t < tokens; t++)
		store(matrix, group + g, sums[g][t], out[t]);
}

void fm_avx512_product_float(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			     const float *x, size_t n_tokens, float *const *out)
{
	const size_t columns = matrix->columns;
	size_t token = 0, group;

	for (; token + 16 <= n_tokens; token += 16)
		for (group = first_group; group < end_group; group++)
			float_tile(1, 16, matrix, group, x + token * columns, out + token);
	for (; token + 4 <= n_tokens; token += 4)
		for (group = first_group; group < end_group; group++)
			float_tile(1, 4, matrix, group, x + token * columns, out + token);
	for (; token < n_tokens; token++) {
		for (group = first_group; group + 4 <= end_group; group += 4)
			float_tile(4, 1, matrix, group, x + token * columns, out + token);
		for (; group < end_group; group++)
			float_tile(1, 1, matrix, group, x + token * columns, out + token);
	}
}
