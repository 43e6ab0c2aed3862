/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the AVX-512 attention files share: loads, the reduction tree, and exp in 16 lanes. Included
 * by them only. Invariant: the same operations in the same order as in generic.h.
 */
#ifndef FM_KERNELS_CPU_ATTENTION_AVX512_H
#define FM_KERNELS_CPU_ATTENTION_AVX512_H

#include <immintrin.h>

#include "avx512.h"
#include "generic.h"

INLINE __m512 load(const void *base, bool is_half, size_t i)
{
	if (is_half)
		return _mm512_cvtph_ps(
			_mm256_loadu_si256((const __m256i *)((const uint16_t *)base + i)));
	return _mm512_loadu_ps((const float *)base + i);
}

/* A macro: clang wants the choice of lanes as a literal. */
#define ADD_SHUFFLED(a, b, low, high)                                                              \
	_mm512_add_ps(_mm512_shuffle_f32x4(a, b, low), _mm512_shuffle_f32x4(a, b, high))

INLINE __m512 add_pairs(__m512 a, __m512 b)
{
	__m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);

	return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
			     _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

/* The tree of fm_lanes_sum() over 16 vectors at once: lane i of the result is the sum of
 * @partial[i]. */
INLINE __m512 lanes_sums(const float (*partial)[FM_LANES])
{
	__m512 four[4], two[2];

	UNROLL
	for (int j = 0; j < 4; j++) {
		__m512 v[4];

		/* Lane 4 * c + j of the result comes from v[c] here: token 4 * c + j. */
		UNROLL
		for (int c = 0; c < 4; c++)
			v[c] = _mm512_load_ps(partial[4 * c + j]);
		v[0] = ADD_SHUFFLED(v[0], v[1], 0x44, 0xee); /* i and i + 8 */
		v[2] = ADD_SHUFFLED(v[2], v[3], 0x44, 0xee);
		four[j] = ADD_SHUFFLED(v[0], v[2], 0x88, 0xdd); /* i + 4 */
	}
	two[0] = add_pairs(four[0], four[1]); /* i + 2 */
	two[1] = add_pairs(four[2], four[3]);
	return _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), /* i + 1 */
			     _mm512_shuffle_ps(two[0], two[1], 0xdd));
}

INLINE float lanes_sum(__m512 v)
{
	__m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* fm_exp() in 16 lanes. */
INLINE __m512 exp16(__m512 x)
{
	const __m512 magic = _mm512_set1_ps(FM_ROUND_MAGIC);
	const __m512 one = _mm512_set1_ps(1.0f);
	__mmask16 is_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(FM_EXP_LOW), _CMP_LT_OQ);
	__m512 clamped = _mm512_mask_blend_ps(is_low, x, _mm512_set1_ps(FM_EXP_LOW));
	__m512 shifted, n, r, p;

	clamped =
		_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(FM_EXP_HIGH), _CMP_GT_OQ),
				     clamped, _mm512_set1_ps(FM_EXP_HIGH));
	shifted = _mm512_fmadd_ps(clamped, _mm512_set1_ps(FM_EXP_LOG2E), magic);
	n = _mm512_sub_ps(shifted, magic);
	r = _mm512_fmadd_ps(n, _mm512_set1_ps(-FM_EXP_LN2_HIGH), clamped);
	r = _mm512_fmadd_ps(n, _mm512_set1_ps(-FM_EXP_LN2_LOW), r);
	p = _mm512_fmadd_ps(_mm512_set1_ps(1.9875691500e-4f), r, _mm512_set1_ps(1.3981999507e-3f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
	p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
	p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), one);
	p = _mm512_castsi512_ps(_mm512_add_epi32(
		_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
	return _mm512_maskz_mov_ps((__mmask16)~is_low, p);
}

#endif
