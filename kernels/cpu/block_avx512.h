/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 32 columns of a group's 16 rows in AVX-512 registers, for the matrix products that are written by
 * hand. Included by product_avx512.c and product_amx.c only. Invariant: the scales come out with
 * the roundings of generic.h, the integers as they were packed.
 */
#ifndef FM_KERNELS_CPU_BLOCK_AVX512_H
#define FM_KERNELS_CPU_BLOCK_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "avx512.h"
#include "formats.h"

enum { FETCH_AHEAD = 4096 }; /* bytes */

struct block {
	__m512i u[8];	/* quads of columns, unsigned bytes */
	__m512 d[2], m; /* d of the halves of the columns; the second only with two factors */
};

INLINE __m512 halves(const uint8_t *from)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

INLINE __m512 factors(const uint8_t *from)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

/* Bits 4.. of the integers, to those of their low halves. */
INLINE void load_high_bits(unsigned int bits, struct block *block, const uint8_t *high)
{
	UNROLL
	for (int quad = 0; quad < 8; quad++) {
		if (bits == 5) {
			__mmask64 mask;

			memcpy(&mask, high + 8 * quad, sizeof(mask));
			block->u[quad] = _mm512_mask_add_epi8(block->u[quad], mask, block->u[quad],
							      _mm512_set1_epi8(16));
		} else {
			__m512i plane = _mm512_loadu_si512(high + quad % 2 * 64);

			plane = quad < 2   ? _mm512_slli_epi16(plane, 4)
				: quad < 4 ? _mm512_slli_epi16(plane, 2)
				: quad < 6 ? plane
					   : _mm512_srli_epi16(plane, 2);
			plane = _mm512_and_si512(plane, _mm512_set1_epi8(0x30));
			block->u[quad] = _mm512_or_si512(block->u[quad], plane);
		}
	}
}

INLINE void load_integers(unsigned int bits, struct block *block, const uint8_t *body)
{
	const __m512i low = _mm512_set1_epi8(15);

	if (bits == 8) {
		UNROLL
		for (int quad = 0; quad < 8; quad++)
			block->u[quad] = _mm512_loadu_si512(body + 64 * quad);
		return;
	}
	UNROLL
	for (int quad = 0; quad < 4; quad++) {
		__m512i both = _mm512_loadu_si512(body + 64 * quad);

		block->u[quad] = _mm512_and_si512(both, low);
		block->u[quad + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
	}
	if (bits == 5 || bits == 6)
		load_high_bits(bits, block, body + 256);
}

/* Their numbers become the values. */
INLINE void load_values(struct block *block)
{
	const __m512i values =
		_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)fm_format_values));

	UNROLL
	for (int quad = 0; quad < 8; quad++)
		block->u[quad] = _mm512_shuffle_epi8(values, block->u[quad]);
}

/* @format is a constant wherever this and what follows is called, so the table folds away. */
INLINE void load_block(enum fm_format format, const uint8_t *group, size_t index,
		       struct block *block)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	const uint8_t *packed = fm_packed_block(format, group, &index);
	const uint8_t *at = packed + fm_packed_factors_at(format, index);

	block->d[0] = halves(packed);
	block->m = _mm512_setzero_ps();
	if (traits->has_minimum)
		block->m = halves(packed + FM_PACKED_MINIMUM_AT);
	if (traits->factors == 2)
		block->d[1] = _mm512_mul_ps(block->d[0], factors(at + FM_LANES));
	if (traits->factors)
		block->d[0] = _mm512_mul_ps(block->d[0], factors(at));
	if (traits->factors != 2)
		block->d[1] = block->d[0];
	if (traits->factors && traits->has_minimum)
		block->m = _mm512_xor_ps(_mm512_mul_ps(block->m, factors(at + FM_LANES)),
					 _mm512_set1_ps(-0.0f));
	load_integers(traits->bits, block, packed + fm_packed_body_at(format, index));
	if (fm_format_has_values(format))
		load_values(block);
}

/* Weights come from memory one after the other, faster than the processor itself would ask for
 * them: as far ahead as it takes them to arrive. */
INLINE void fetch_ahead(const uint8_t *at, size_t bytes)
{
	UNROLL
	for (size_t i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)at + FETCH_AHEAD + i, _MM_HINT_T0);
}

/* The rows of a group that the matrix has. */
INLINE __mmask16 row_mask(const struct fm_matrix *matrix, size_t group)
{
	size_t left = matrix->rows - group * FM_LANES;

	return left < FM_LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
}

INLINE void store(const struct fm_matrix *matrix, size_t group, __m512 sums, float *out)
{
	_mm512_mask_storeu_ps(out + group * FM_LANES, row_mask(matrix, group), sums);
}

#endif
