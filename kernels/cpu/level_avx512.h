/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a level product in AVX-512, for level_avx512.c and level_amx.c only. Invariant: the
 * roundings of fm_generic_level_finish().
 */
#ifndef FM_KERNELS_CPU_LEVEL_AVX512_H
#define FM_KERNELS_CPU_LEVEL_AVX512_H

#include <immintrin.h>

#include "avx512.h"

/* 256 * high + low of eight rows: exact in float64, then rounded once. */
INLINE __m256 level_sums(__m256i high, __m256i low)
{
	return _mm512_cvtpd_ps(_mm512_fmadd_pd(_mm512_cvtepi32_pd(high), _mm512_set1_pd(256.0),
					       _mm512_cvtepi32_pd(low)));
}

INLINE __m512 finish_level(__m512i high, __m512i low, __m512 row_scale, float scale)
{
	__m256 first = level_sums(_mm512_castsi512_si256(high), _mm512_castsi512_si256(low));
	__m256 second =
		level_sums(_mm512_extracti64x4_epi64(high, 1), _mm512_extracti64x4_epi64(low, 1));
	__m512 sums = _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);

	return _mm512_mul_ps(sums, _mm512_mul_ps(row_scale, _mm512_set1_ps(scale)));
}

#endif
