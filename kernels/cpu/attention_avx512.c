/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in AVX-512 for heads of 64 dimensions: up to three query heads share one pass over their
 * KV head. Called through the table in avx512.c. Invariant: scores are 16 partial sums and the one
 * tree, tiles are taken in order, and values are added token after token, as in generic.h.
 */
#include <immintrin.h>

#include "avx512.h"
#include "generic.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { VECTORS = 4, HEADS_MAX = 3, HEAD_DIM = VECTORS * FM_LANES };

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

struct state {
	__m512 values[HEADS_MAX][VECTORS];
	float largest[HEADS_MAX], sum[HEADS_MAX];
};

/* The scores of @heads heads against the first @n tokens of a tile; the rest are 0. */
INLINE void scores(size_t heads, bool is_half, const void *keys, size_t n, const float *q,
		   float scale, __m512 *out)
{
	_Alignas(64) float partial[HEADS_MAX][FM_ATTENTION_TOKENS][FM_LANES];

	for (size_t token = 0; token < FM_ATTENTION_TOKENS; token++) {
		__m512 sums[HEADS_MAX];

		UNROLL
		for (size_t head = 0; head < heads; head++)
			sums[head] = _mm512_setzero_ps();
		if (token < n) {
			UNROLL
			for (size_t i = 0; i < VECTORS; i++) {
				__m512 key = load(keys, is_half, token * HEAD_DIM + i * FM_LANES);

				UNROLL
				for (size_t head = 0; head < heads; head++)
					sums[head] = _mm512_fmadd_ps(
						_mm512_loadu_ps(q + head * HEAD_DIM + i * FM_LANES),
						key, sums[head]);
			}
		}
		UNROLL
		for (size_t head = 0; head < heads; head++)
			_mm512_store_ps(partial[head][token], sums[head]);
	}
	UNROLL
	for (size_t head = 0; head < heads; head++)
		out[head] = _mm512_mul_ps(lanes_sums(partial[head]), _mm512_set1_ps(scale));
}

INLINE void take_tile(size_t heads, bool is_half, const struct fm_attention *attention, size_t tile,
		      size_t n, const float *q, struct state *state)
{
	const __mmask16 mask = (__mmask16)((1u << n) - 1);
	const uint8_t *block = attention->blocks[tile];
	const void *values = block + attention->value_offset;
	_Alignas(64) float weights[HEADS_MAX][FM_ATTENTION_TOKENS];
	__m512 score[HEADS_MAX];

	scores(heads, is_half, block + attention->key_offset, n, q, attention->scale, score);
	UNROLL
	for (size_t head = 0; head < heads; head++) {
		float largest = _mm512_mask_reduce_max_ps(mask, score[head]);
		__m512 weight;

		largest = largest > state->largest[head] ? largest : state->largest[head];
		weight = exp16(_mm512_sub_ps(score[head], _mm512_set1_ps(largest)));
		weight = _mm512_maskz_mov_ps(mask, weight);
		_mm512_store_ps(weights[head], weight);
		if (largest == state->largest[head]) { /* the factor is exactly 1 */
			state->sum[head] = state->sum[head] + lanes_sum(weight);
		} else {
			float rescale = fm_exp(state->largest[head] - largest);

			state->sum[head] = fmaf(state->sum[head], rescale, lanes_sum(weight));
			UNROLL
			for (size_t i = 0; i < VECTORS; i++)
				state->values[head][i] = _mm512_mul_ps(state->values[head][i],
								       _mm512_set1_ps(rescale));
		}
		state->largest[head] = largest;
	}
	for (size_t token = 0; token < n; token++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++) {
			__m512 value = load(values, is_half, token * HEAD_DIM + i * FM_LANES);

			UNROLL
			for (size_t head = 0; head < heads; head++)
				state->values[head][i] =
					_mm512_fmadd_ps(_mm512_set1_ps(weights[head][token]), value,
							state->values[head][i]);
		}
	}
}

INLINE void attend(size_t heads, bool is_half, const struct fm_attention *attention, const float *q,
		   float *out)
{
	const size_t n_tokens = (size_t)attention->position + 1;
	struct state state;

	UNROLL
	for (size_t head = 0; head < heads; head++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			state.values[head][i] = _mm512_setzero_ps();
		state.largest[head] = -INFINITY;
		state.sum[head] = 0.0f;
	}
	for (size_t first = 0; first < n_tokens; first += FM_ATTENTION_TOKENS) {
		size_t n = n_tokens - first;

		take_tile(heads, is_half, attention, first / FM_ATTENTION_TOKENS,
			  n < FM_ATTENTION_TOKENS ? n : FM_ATTENTION_TOKENS, q, &state);
	}
	UNROLL
	for (size_t head = 0; head < heads; head++) {
		__m512 sum = _mm512_set1_ps(state.sum[head]);

		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			_mm512_storeu_ps(out + head * HEAD_DIM + i * FM_LANES,
					 _mm512_div_ps(state.values[head][i], sum));
	}
}

INLINE void attend_heads(bool is_half, const struct fm_attention *attention, const float *q,
			 float *out)
{
	uint32_t left = attention->n_heads;

	for (; left >= 3; left -= 3, q += 3 * HEAD_DIM, out += 3 * HEAD_DIM)
		attend(3, is_half, attention, q, out);
	if (left == 2)
		attend(2, is_half, attention, q, out);
	else if (left == 1)
		attend(1, is_half, attention, q, out);
}

bool fm_avx512_attention(const struct fm_attention *attention, const float *q, float *out)
{
	if (attention->head_dim != HEAD_DIM)
		return false;
	if (attention->is_half)
		attend_heads(true, attention, q, out);
	else
		attend_heads(false, attention, q, out);
	return true;
}
