/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of single tokens in AVX-512 for heads of 64 dimensions: up to three query heads share
 * one pass over their KV head (prompts: attention_prompt_avx512.c). Called through the table in
 * avx512.c. Invariant: scores are 16 partial sums and the one tree, tiles are taken in order, and
 * values are added token after token, as in generic.h.
 */
#include "attention_avx512.h"
#include "avx512.h"

enum {
	HEADS_MAX = 3,
	TILES_AHEAD = 2, /* fetched before they are wanted: blocks lie far apart in memory */
};

struct state {
	__m512 values[HEADS_MAX][VECTORS];
	float largest[HEADS_MAX], sum[HEADS_MAX];
};

/* Row @token of the keys and values of a tile to come. */
INLINE void fetch_row(bool is_half, const struct fm_attention *attention, size_t tile, size_t token)
{
	const size_t bytes = HEAD_DIM * (is_half ? 2 : 4);
	const uint8_t *block = (const uint8_t *)attention->blocks[tile] + token * bytes;

	UNROLL
	for (size_t i = 0; i < bytes; i += 64) {
		_mm_prefetch((const char *)(block + attention->key_offset + i), _MM_HINT_T0);
		_mm_prefetch((const char *)(block + attention->value_offset + i), _MM_HINT_T0);
	}
}

/* The scores of @heads heads against the first @n tokens of a tile; the rest are 0. Meanwhile tile
 * @ahead is fetched. */
INLINE void scores(size_t heads, bool is_half, const struct fm_attention *attention, size_t tile,
		   size_t ahead, size_t n, const float *q, __m512 *out)
{
	const void *keys = (const uint8_t *)attention->blocks[tile] + attention->key_offset;
	_Alignas(64) float partial[HEADS_MAX][FM_ATTENTION_TOKENS][FM_LANES];

	for (size_t token = 0; token < FM_ATTENTION_TOKENS; token++) {
		__m512 sums[HEADS_MAX];

		UNROLL
		for (size_t head = 0; head < heads; head++)
			sums[head] = _mm512_setzero_ps();
		fetch_row(is_half, attention, ahead, token);
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
		out[head] =
			_mm512_mul_ps(lanes_sums(partial[head]), _mm512_set1_ps(attention->scale));
}

INLINE void take_tile(size_t heads, bool is_half, const struct fm_attention *attention, size_t tile,
		      size_t ahead, size_t n, const float *q, struct state *state)
{
	const __mmask16 mask = (__mmask16)((1u << n) - 1);
	const void *values = (const uint8_t *)attention->blocks[tile] + attention->value_offset;
	_Alignas(64) float weights[HEADS_MAX][FM_ATTENTION_TOKENS];
	__m512 score[HEADS_MAX];

	scores(heads, is_half, attention, tile, ahead, n, q, score);
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

INLINE void attend(size_t heads, bool is_half, const struct fm_attention *attention,
		   size_t position, const float *q, float *out)
{
	const size_t n_tokens = position + 1, last = position / FM_ATTENTION_TOKENS;
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
		size_t n = n_tokens - first, tile = first / FM_ATTENTION_TOKENS;
		size_t ahead = tile + TILES_AHEAD < last ? tile + TILES_AHEAD : last;

		take_tile(heads, is_half, attention, tile, ahead,
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

INLINE void attend_heads(bool is_half, const struct fm_attention *attention, size_t token,
			 const float *q, float *out)
{
	const size_t position = attention->position + token;
	uint32_t left = attention->n_heads;

	for (; left >= 3; left -= 3, q += 3 * HEAD_DIM, out += 3 * HEAD_DIM)
		attend(3, is_half, attention, position, q, out);
	if (left == 2)
		attend(2, is_half, attention, position, q, out);
	else if (left == 1)
		attend(1, is_half, attention, position, q, out);
}

bool fm_avx512_attention(const struct fm_attention *attention, const float *q, float *out)
{
	const size_t last = attention->position + attention->n_tokens - 1;

	/* Where a window cuts, the generic code has no such path beside it. */
	if (attention->head_dim != HEAD_DIM || fm_attention_start(attention, last))
		return false;
	if (attention->n_tokens * attention->n_heads >= FM_AVX512_PROMPT_QUERIES) {
		fm_avx512_attention_prompt(attention, q, out);
		return true;
	}
	for (size_t token = 0; token < attention->n_tokens; token++) {
		if (attention->is_half)
			attend_heads(true, attention, token, q, out);
		else
			attend_heads(false, attention, token, q, out);
		q += attention->stride;
		out += attention->stride;
	}
	return true;
}
