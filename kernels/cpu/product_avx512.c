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
#include "block_avx512.h"
#include "formats.h"

INLINE __m512i dot(const struct block *block, const int8_t *q, int first, int end)
{
	__m512i sum = _mm512_setzero_si512();

	UNROLL
	for (int quad = first; quad < end; quad++) {
		int32_t four;

		memcpy(&four, q + 4 * quad, sizeof(four));
		sum = _mm512_dpbusd_epi32(sum, block->u[quad], _mm512_set1_epi32(four));
	}
	return sum;
}

/* Takes quads first..end, whose activations add up to @part_sum, into the sums. */
INLINE __m512 accumulate_part(enum fm_format format, bool is_fine, const struct block *block,
			      const struct fm_tile *tile, size_t token, int first, int end,
			      uint32_t part_sum, __m512 sum)
{
	const uint32_t raised = fm_formats[format].offset * part_sum;
	__m512i total = dot(block, tile->q[0][token], first, end);
	__m512 scale = _mm512_mul_ps(block->d[first ? 1 : 0], _mm512_set1_ps(tile->scale[token]));

	if (is_fine)
		total = _mm512_add_epi32(_mm512_slli_epi32(total, 8),
					 dot(block, tile->q[1][token], first, end));
	if (fm_formats[format].offset)
		total = _mm512_sub_epi32(total, _mm512_set1_epi32((int)raised));
	return _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(total), sum);
}

INLINE __m512 accumulate(enum fm_format format, bool is_fine, const struct block *block,
			 const struct fm_tile *tile, size_t token, __m512 sum)
{
	uint32_t part = (uint32_t)tile->sum[token], half = (uint32_t)tile->half_sum[token];

	if (fm_formats[format].factors == 2) {
		sum = accumulate_part(format, is_fine, block, tile, token, 0, 4, half, sum);
		sum = accumulate_part(format, is_fine, block, tile, token, 4, 8, part - half, sum);
	} else {
		sum = accumulate_part(format, is_fine, block, tile, token, 0, 8, part, sum);
	}
	if (fm_formats[format].has_minimum)
		sum = _mm512_fmadd_ps(block->m, _mm512_set1_ps(tile->scaled_sum[token]), sum);
	return sum;
}

/* @groups groups by @tokens tokens of one tile row; of those tokens @n are there. All but the
 * pointers and @n are constants where this is called. */
INLINE void integer_tile(enum fm_format format, bool is_fine, size_t groups, size_t tokens,
			 const struct fm_matrix *matrix, size_t group, const struct fm_tile *tile,
			 size_t n, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	const size_t parts = fm_formats[format].file_columns / FM_BLOCK_COLUMNS;
	const size_t block_bytes = fm_packed_bytes(format) / parts; /* of 32 columns, about */
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
			if (tokens <= 4) /* with more, memory is fast enough */
				fetch_ahead(data + g * matrix->group_bytes + index * block_bytes,
					    block_bytes);
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

typedef void integer_product(const struct fm_matrix *matrix, size_t group, size_t end,
			     const struct fm_tile *tile, size_t n, float *const *out);

#define INTEGER_PRODUCTS(name)                                                                     \
	static void coarse_##name(const struct fm_matrix *matrix, size_t group, size_t end,        \
				  const struct fm_tile *tile, size_t n, float *const *out)         \
	{                                                                                          \
		integer_groups(FM_FORMAT_##name, false, matrix, group, end, tile, n, out);         \
	}                                                                                          \
	static void fine_##name(const struct fm_matrix *matrix, size_t group, size_t end,          \
				const struct fm_tile *tile, size_t n, float *const *out)           \
	{                                                                                          \
		integer_groups(FM_FORMAT_##name, true, matrix, group, end, tile, n, out);          \
	}
FM_INTEGER_FORMATS(INTEGER_PRODUCTS)

void fm_avx512_product_integer(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			       const struct fm_tile *tiles, bool is_fine, size_t n_tokens,
			       float *const *out)
{
#define ROW(name) [FM_FORMAT_##name] = {coarse_##name, fine_##name},
	static integer_product *const products[FM_FORMAT_COUNT][2] = {FM_INTEGER_FORMATS(ROW)};
#undef ROW
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;

	for (size_t first = 0; first < n_tokens; first += FM_TILE_TOKENS, tiles += n_blocks) {
		size_t n = n_tokens - first < FM_TILE_TOKENS ? n_tokens - first : FM_TILE_TOKENS;

		products[matrix->format][is_fine](matrix, first_group, end_group, tiles, n,
						  out + first);
	}
}

/* ---- float32 activations ------------------------------------------------------------------ */

typedef void block_unpack(const uint8_t *group, size_t index, float (*w)[FM_LANES]);

INLINE void unpack_integers(enum fm_format format, const uint8_t *group, size_t index,
			    float (*w)[FM_LANES])
{
	const __m512i offset = _mm512_set1_epi32(fm_formats[format].offset);
	struct block block;

	load_block(format, group, index, &block);
	UNROLL
	for (int quad = 0; quad < 8; quad++) {
		UNROLL
		for (int i = 0; i < 4; i++) {
			__m512i q = _mm512_and_si512(_mm512_srli_epi32(block.u[quad], 8 * i),
						     _mm512_set1_epi32(255));
			__m512 value = _mm512_mul_ps(
				block.d[quad / 4], _mm512_cvtepi32_ps(_mm512_sub_epi32(q, offset)));

			if (fm_formats[format].has_minimum)
				value = _mm512_add_ps(value, block.m);
			_mm512_store_ps(w[4 * quad + i], value);
		}
	}
}

#define UNPACK(name)                                                                               \
	static void unpack_##name(const uint8_t *group, size_t index, float(*w)[FM_LANES])         \
	{                                                                                          \
		unpack_integers(FM_FORMAT_##name, group, index, w);                                \
	}
FM_INTEGER_FORMATS(UNPACK)

static void unpack_F32(const uint8_t *group, size_t index, float (*w)[FM_LANES])
{
	memcpy(w, group + index * FM_BLOCK_COLUMNS * sizeof(*w), FM_BLOCK_COLUMNS * sizeof(*w));
}

static void unpack_F16(const uint8_t *group, size_t index, float (*w)[FM_LANES])
{
	group += index * FM_BLOCK_COLUMNS * FM_LANES * 2;
	for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
		_mm512_store_ps(w[i], halves(group + i * FM_LANES * 2));
}

static void unpack_BF16(const uint8_t *group, size_t index, float (*w)[FM_LANES])
{
	group += index * FM_BLOCK_COLUMNS * FM_LANES * 2;
	for (int i = 0; i < FM_BLOCK_COLUMNS; i++) {
		__m512i bits = _mm512_cvtepu16_epi32(
			_mm256_loadu_si256((const __m256i *)(group + i * FM_LANES * 2)));

		_mm512_store_si512(w[i], _mm512_slli_epi32(bits, 16));
	}
}

#define ROW(name) [FM_FORMAT_##name] = unpack_##name,
static block_unpack *const unpacks[FM_FORMAT_COUNT] = {ROW(F32) ROW(F16) ROW(BF16)
							       FM_INTEGER_FORMATS(ROW)};
#undef ROW

INLINE void float_tile(size_t groups, size_t tokens, const struct fm_matrix *matrix, size_t group,
		       const float *x, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	block_unpack *const unpack = unpacks[matrix->format];
	_Alignas(64) float w[4][FM_BLOCK_COLUMNS][FM_LANES];
	__m512 sums[4][FM_TILE_TOKENS];

	UNROLL
	for (size_t g = 0; g < groups; g++)
		UNROLL
	for (size_t t = 0; t < tokens; t++)
		sums[g][t] = _mm512_setzero_ps();
	for (size_t index = 0; index < n_blocks; index++) {
		for (size_t g = 0; g < groups; g++)
			unpack(data + g * matrix->group_bytes, index, w[g]);
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
