/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level products in AVX-512: VPDPBUSD on the stored integers, whose sums over 32 columns are
 * multiplied by d; and a row of activations in integers. Called through the table in avx512.c.
 * Invariant: integers are exact, so no order shows; floats are rounded as in generic_level.h.
 */
#include <immintrin.h>
#include <string.h>

#include "avx512.h"
#include "block_avx512.h"
#include "generic.h"
#include "level_avx512.h"

/* ---- activations ------------------------------------------------------------------------------
 */

INLINE float largest_of(const float *x, size_t n)
{
	__m512 most = _mm512_setzero_ps();

	/* The second operand is taken where one is no number. */
	for (size_t i = 0; i < n; i += FM_LANES)
		most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + i)), most);
	return _mm512_reduce_max_ps(most);
}

void fm_avx512_quantise_level(struct fm_level_tile *tiles, size_t token, const float *x, size_t n,
			      float *scale)
{
	const __m512 magic = _mm512_set1_ps(FM_ROUND_MAGIC);
	const float largest = largest_of(x, n);
	const __m512 inverse =
		_mm512_set1_ps(largest >= FM_LEVEL_LEAST ? FM_LEVEL_RANGE / largest : 0.0f);

	*scale = largest / FM_LEVEL_RANGE;
	for (size_t i = 0; i < n; i += FM_BLOCK_COLUMNS) {
		struct fm_level_tile *tile = tiles + i / FM_LEVEL_COLUMNS;
		const size_t half = i / FM_BLOCK_COLUMNS % 2;
		__m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};

		UNROLL
		for (size_t j = 0; j < FM_BLOCK_COLUMNS; j += FM_LANES) {
			__m512 shifted =
				_mm512_fmadd_ps(_mm512_loadu_ps(x + i + j), inverse, magic);
			__m512i value = _mm512_sub_epi32(_mm512_castps_si512(shifted),
							 _mm512_castps_si512(magic));
			__m512i high = _mm512_srai_epi32(
				_mm512_add_epi32(value, _mm512_set1_epi32(128)), 8);
			__m128i bytes[2] = {_mm512_cvtepi32_epi8(high),
					    _mm512_cvtepi32_epi8(value)};

			UNROLL
			for (int byte = 0; byte < 2; byte++) {
				int8_t *to = tile->q[byte][token] + half * FM_BLOCK_COLUMNS + j;

				_mm_storeu_si128((__m128i *)to, bytes[byte]);
				sums[byte] = _mm512_add_epi32(sums[byte],
							      _mm512_cvtepi8_epi32(bytes[byte]));
			}
		}
		for (int byte = 0; byte < 2; byte++)
			tile->sum[byte][half][token][0] =
				(int16_t)_mm512_reduce_add_epi32(sums[byte]);
	}
}

enum { TOKENS = 8 }; /* at once: two sums each, beside a block's registers */

/* ---- products ---------------------------------------------------------------------------------
 */

struct level_block {
	__m512i u[8];  /* quads of columns, unsigned bytes */
	__m512i d;     /* 32 bits */
	__m512i pairs; /* m and d in 16 bits each, of formats with a minimum */
};

INLINE void load_level(enum fm_format format, const uint8_t *at, struct level_block *block)
{
	struct block integers;

	if (fm_formats[format].has_minimum) {
		block->pairs = _mm512_loadu_si512(at);
		block->d = _mm512_srai_epi32(block->pairs, 16);
	} else {
		block->d = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)at));
	}
	load_integers(fm_formats[format].bits, &integers, at + fm_level_head_bytes(format));
	UNROLL
	for (int quad = 0; quad < 8; quad++)
		block->u[quad] = integers.u[quad];
}

/* Adds what 32 columns give with the high (@byte 0) or low bytes of a token. */
INLINE __m512i add_block(enum fm_format format, const struct level_block *block,
			 const struct fm_level_tile *tile, int byte, size_t half, size_t token,
			 __m512i sums)
{
	const int8_t *q = tile->q[byte][token] + half * FM_BLOCK_COLUMNS;
	const int16_t *sum = tile->sum[byte][half][token];
	__m512i dots = _mm512_setzero_si512();
	int32_t four;

	if (!fm_formats[format].has_minimum)
		dots = _mm512_set1_epi32(-fm_formats[format].offset * sum[0]);
	UNROLL
	for (int quad = 0; quad < 8; quad++) {
		memcpy(&four, q + 4 * quad, sizeof(four));
		dots = _mm512_dpbusd_epi32(dots, block->u[quad], _mm512_set1_epi32(four));
	}
	sums = _mm512_add_epi32(sums, _mm512_mullo_epi32(dots, block->d));
	if (fm_formats[format].has_minimum) { /* the second of the pair is 0 */
		memcpy(&four, sum, sizeof(four));
		sums = _mm512_dpwssd_epi32(sums, block->pairs, _mm512_set1_epi32(four));
	}
	return sums;
}

/* A group by @tokens tokens of one tile row, from token @at on, of which @n are there; format and
 * tokens are constants where this is called. */
INLINE void level_tile(enum fm_format format, size_t tokens, const struct fm_matrix *matrix,
		       size_t group, const struct fm_level_tile *tile, size_t at,
		       const float *scales, size_t n, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	__m512i sums[TOKENS][2];
	__m512 row_scale;

	UNROLL
	for (size_t t = 0; t < tokens; t++)
		sums[t][0] = sums[t][1] = _mm512_setzero_si512();
	for (size_t index = 0; index < n_blocks; index++, data += fm_level_block_bytes(format)) {
		struct level_block block;

		fetch_ahead(data, fm_level_block_bytes(format));
		load_level(format, data, &block);
		UNROLL
		for (size_t t = 0; t < tokens; t++) {
			UNROLL
			for (int byte = 0; byte < 2; byte++)
				sums[t][byte] = add_block(format, &block, tile + index / 2, byte,
							  index % 2, at + t, sums[t][byte]);
		}
	}
	row_scale = _mm512_loadu_ps(data);
	UNROLL
	for (size_t t = 0; t < tokens; t++)
		if (t < n)
			store(matrix, group,
			      finish_level(sums[t][0], sums[t][1], row_scale, scales[t]), out[t]);
}

INLINE void level_groups(enum fm_format format, const struct fm_matrix *matrix, size_t group,
			 size_t end, const struct fm_level_tile *tile, size_t at,
			 const float *scales, size_t n, float *const *out)
{
	for (; group < end; group++) {
		if (n == 1)
			level_tile(format, 1, matrix, group, tile, at, scales, n, out);
		else if (n == 2)
			level_tile(format, 2, matrix, group, tile, at, scales, n, out);
		else if (n <= 4)
			level_tile(format, 4, matrix, group, tile, at, scales, n, out);
		else
			level_tile(format, TOKENS, matrix, group, tile, at, scales, n, out);
	}
}

typedef void level_product(const struct fm_matrix *matrix, size_t group, size_t end,
			   const struct fm_level_tile *tile, size_t at, const float *scales,
			   size_t n, float *const *out);

#define LEVEL_PRODUCT(name)                                                                        \
	static void level_##name(const struct fm_matrix *matrix, size_t group, size_t end,         \
				 const struct fm_level_tile *tile, size_t at, const float *scales, \
				 size_t n, float *const *out)                                      \
	{                                                                                          \
		level_groups(FM_FORMAT_##name, matrix, group, end, tile, at, scales, n, out);      \
	}
FM_LEVEL_FORMATS(LEVEL_PRODUCT)

#define ROW(name) [FM_FORMAT_##name] = level_##name,
static level_product *const products[FM_FORMAT_COUNT] = {FM_LEVEL_FORMATS(ROW)};
#undef ROW

void fm_avx512_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			     const struct fm_level_tile *tiles, const float *scales,
			     size_t n_tokens, float *const *out)
{
	const size_t n_tiles = fm_level_tiles(matrix->columns);

	for (size_t first = 0; first < n_tokens; first += TOKENS) {
		size_t n = n_tokens - first < TOKENS ? n_tokens - first : TOKENS;

		products[matrix->format](matrix, first_group, end_group,
					 tiles + first / FM_TILE_TOKENS * n_tiles,
					 first % FM_TILE_TOKENS, scales + first, n, out + first);
	}
}
