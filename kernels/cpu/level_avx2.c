/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level products in AVX2: two registers hold the 16 rows of a group. VPMADDUBSW adds up pairs of
 * columns, sixteen columns fit its 16 bits, and VPMADDWD multiplies them by d. Called through the
 * table in avx2.c. Invariant: integers are exact, so no order shows; floats are rounded as in
 * generic_level.h.
 */
#include <immintrin.h>
#include <string.h>

#include "avx2.h"
#include "formats.h"

enum { HALVES = 2, ROWS = FM_LANES / HALVES, QUADS = FM_BLOCK_COLUMNS / 4, TOKENS = 4 };

/* 32 columns of 8 of a group's rows. */
struct level_block {
	__m256i u[QUADS]; /* unsigned bytes, [row][i] */
	__m256i d;	  /* twice in the 32 bits of a row */
	__m256i pairs;	  /* m and d, of formats with a minimum */
};

/* Bit 4 of the integers of quad @quad. */
INLINE __m256i high_bits(const uint8_t *high, int quad, int half)
{
	const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2,
						2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
	const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201ull);
	int32_t four;
	__m256i mask;

	memcpy(&four, high + 8 * quad + 4 * half, sizeof(four));
	mask = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
	mask = _mm256_cmpeq_epi8(_mm256_and_si256(mask, bits), bits);
	return _mm256_and_si256(mask, _mm256_set1_epi8(16));
}

INLINE void load_level(enum fm_format format, const uint8_t *at, int half,
		       struct level_block *block)
{
	const uint8_t *body = at + fm_level_head_bytes(format) + 32 * half;
	const __m256i low = _mm256_set1_epi8(15);

	if (fm_formats[format].has_minimum) {
		block->pairs = _mm256_loadu_si256((const __m256i *)(at + 32 * half));
		block->d = _mm256_srai_epi32(block->pairs, 16);
	} else {
		block->d =
			_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(at + 16 * half)));
	}
	block->d = _mm256_blend_epi16(block->d, _mm256_slli_epi32(block->d, 16), 0xaa);
	UNROLL
	for (int quad = 0; quad < QUADS / 2; quad++) {
		__m256i both = _mm256_loadu_si256((const __m256i *)(body + 64 * quad));

		block->u[quad] = _mm256_and_si256(both, low);
		block->u[quad + QUADS / 2] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
	}
	if (fm_formats[format].bits == 5) {
		UNROLL
		for (int quad = 0; quad < QUADS; quad++)
			block->u[quad] = _mm256_or_si256(
				block->u[quad],
				high_bits(at + fm_level_head_bytes(format) + 256, quad, half));
	}
}

/* 16 columns, in two 16-bit sums a row: at most 31 * 128 * 8 each. */
INLINE __m256i dots(const __m256i *u, const int8_t *q)
{
	__m256i sums = _mm256_setzero_si256();
	int32_t four;

	UNROLL
	for (int quad = 0; quad < QUADS / 2; quad++) {
		memcpy(&four, q + 4 * quad, sizeof(four));
		sums = _mm256_add_epi16(sums,
					_mm256_maddubs_epi16(u[quad], _mm256_set1_epi32(four)));
	}
	return sums;
}

/* Adds what 32 columns give with the high (@byte 0) or low bytes of a token. */
INLINE __m256i add_block(enum fm_format format, const struct level_block *block,
			 const struct fm_level_tile *tile, int byte, size_t half, size_t token,
			 __m256i sums)
{
	const int8_t *q = tile->q[byte][token] + half * FM_BLOCK_COLUMNS;
	const int16_t *sum = tile->sum[byte][half][token];
	__m256i corrections;
	int32_t pair;

	sums = _mm256_add_epi32(sums, _mm256_madd_epi16(dots(block->u, q), block->d));
	sums = _mm256_add_epi32(sums,
				_mm256_madd_epi16(dots(block->u + QUADS / 2, q + 16), block->d));
	if (fm_formats[format].has_minimum) { /* the second of the pair is 0 */
		memcpy(&pair, sum, sizeof(pair));
		return _mm256_add_epi32(sums,
					_mm256_madd_epi16(block->pairs, _mm256_set1_epi32(pair)));
	}
	/* d is there twice, and 4 times a sum fits 16 bits: 8 times d times it. */
	corrections = _mm256_madd_epi16(block->d, _mm256_set1_epi16((int16_t)(-4 * sum[0])));
	return _mm256_add_epi32(sums,
				_mm256_slli_epi32(corrections, fm_formats[format].offset / 16));
}

/* 256 * high + low of four rows: exact in float64, then rounded once. */
INLINE __m128 level_sums(__m128i high, __m128i low)
{
	return _mm256_cvtpd_ps(_mm256_fmadd_pd(_mm256_cvtepi32_pd(high), _mm256_set1_pd(256.0),
					       _mm256_cvtepi32_pd(low)));
}

INLINE __m256 finish_level(__m256i high, __m256i low, const float *row_scale, float scale)
{
	__m128 first = level_sums(_mm256_castsi256_si128(high), _mm256_castsi256_si128(low));
	__m128 second =
		level_sums(_mm256_extracti128_si256(high, 1), _mm256_extracti128_si256(low, 1));

	return _mm256_mul_ps(_mm256_set_m128(second, first),
			     _mm256_mul_ps(_mm256_loadu_ps(row_scale), _mm256_set1_ps(scale)));
}

/* Half a group by @tokens tokens of one tile row, from token @at on, of which @n are there; format
 * and tokens are constants where this is called. */
INLINE void level_tile(enum fm_format format, size_t tokens, const struct fm_matrix *matrix,
		       size_t group, int half, const struct fm_level_tile *tile, size_t at,
		       const float *scales, size_t n, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const size_t row = group * FM_LANES + (size_t)half * ROWS;
	const size_t rows = row < matrix->rows ? matrix->rows - row : 0;
	const uint8_t *data = matrix->data + group * matrix->group_bytes;
	__m256i sums[TOKENS][2];

	UNROLL
	for (size_t t = 0; t < tokens; t++)
		sums[t][0] = sums[t][1] = _mm256_setzero_si256();
	for (size_t index = 0; index < n_blocks; index++, data += fm_level_block_bytes(format)) {
		struct level_block block;

		load_level(format, data, half, &block);
		UNROLL
		for (size_t t = 0; t < tokens; t++) {
			UNROLL
			for (int byte = 0; byte < 2; byte++)
				sums[t][byte] = add_block(format, &block, tile + index / 2, byte,
							  index % 2, at + t, sums[t][byte]);
		}
	}
	for (size_t t = 0; t < tokens && t < n; t++) {
		float results[ROWS], row_scale[ROWS];

		memcpy(row_scale, data + sizeof(row_scale) * (size_t)half, sizeof(row_scale));
		_mm256_storeu_ps(results,
				 finish_level(sums[t][0], sums[t][1], row_scale, scales[t]));
		memcpy(out[t] + row, results, sizeof(float) * (rows < ROWS ? rows : ROWS));
	}
}

INLINE void level_groups(enum fm_format format, const struct fm_matrix *matrix, size_t group,
			 size_t end, const struct fm_level_tile *tile, size_t at,
			 const float *scales, size_t n, float *const *out)
{
	for (; group < end; group++) {
		for (int half = 0; half < HALVES; half++) {
			if (n == 1)
				level_tile(format, 1, matrix, group, half, tile, at, scales, n,
					   out);
			else
				level_tile(format, TOKENS, matrix, group, half, tile, at, scales, n,
					   out);
		}
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

void fm_avx2_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			   const struct fm_level_tile *tiles, const float *scales, size_t n_tokens,
			   float *const *out)
{
	const size_t n_tiles = fm_level_tiles(matrix->columns);

	for (size_t first = 0; first < n_tokens; first += TOKENS) {
		size_t n = n_tokens - first < TOKENS ? n_tokens - first : TOKENS;

		products[matrix->format](matrix, first_group, end_group,
					 tiles + first / FM_TILE_TOKENS * n_tiles,
					 first % FM_TILE_TOKENS, scales + first, n, out + first);
	}
}
