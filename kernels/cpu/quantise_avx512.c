/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations to integers in AVX-512, two registers a block. Called through the table in avx512.c.
 * Invariant: every integer and every scale is that of fm_generic_quantise(); sums of integers and
 * the largest of 32 floats do not depend on the order.
 */
#include <immintrin.h>

#include "avx512.h"
#include "generic.h"

/* The integers of 16 columns, and their high and low bytes where they have two. */
INLINE __m512i integers(bool is_fine, __m512 x, __m512 inverse, int8_t *high, int8_t *low)
{
	const __m512 magic = _mm512_set1_ps(FM_ROUND_MAGIC);
	__m512i value = _mm512_sub_epi32(_mm512_castps_si512(_mm512_fmadd_ps(x, inverse, magic)),
					 _mm512_castps_si512(magic));
	__m512i upper = value;

	if (is_fine)
		upper = _mm512_srai_epi32(_mm512_add_epi32(value, _mm512_set1_epi32(128)), 8);
	_mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(upper));
	_mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(_mm512_sub_epi32(
						 value, _mm512_slli_epi32(upper, 8))));
	return value;
}

INLINE void quantise(struct fm_tile *tiles, size_t token, const float *x, size_t n, bool is_fine)
{
	const float range = is_fine ? 32512.0f : 127.0f;

	for (struct fm_tile *tile = tiles; n > 0; tile++, n -= FM_BLOCK_COLUMNS) {
		__m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + FM_LANES);
		/* The second of the two is taken where one is no number. */
		__m512 most = _mm512_max_ps(_mm512_abs_ps(first), _mm512_setzero_ps());
		float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(second), most));
		float scale = largest / range;
		__m512 inverse = _mm512_set1_ps(largest > 0.0f ? range / largest : 0.0f);
		int8_t *high = tile->q[0][token], *low = tile->q[1][token];
		__m512i a = integers(is_fine, first, inverse, high, low);
		__m512i b = integers(is_fine, second, inverse, high + FM_LANES, low + FM_LANES);
		int32_t half = _mm512_reduce_add_epi32(a);
		int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));

		tile->scale[token] = scale;
		tile->sum[token] = sum;
		tile->half_sum[token] = half;
		tile->scaled_sum[token] = scale * (float)sum;
		x += FM_BLOCK_COLUMNS;
	}
}

void fm_avx512_quantise(struct fm_tile *tiles, size_t token, const float *x, size_t n, bool is_fine)
{
	if (is_fine)
		quantise(tiles, token, x, n, true);
	else
		quantise(tiles, token, x, n, false);
}
