/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of single tokens in AVX-512 for heads of 64, 128 and 256 dimensions: up to three query
 * heads share one pass over their KV head (prompts: attention_prompt_avx512.c). Called through the
 * table in avx512.c. Invariant: scores are 16 partial sums and the one tree, tiles are taken in
 * order, and values are added token after token, as in generic.h.
 */
#include "attention_avx512.h"
#include "avx512.h"

enum {
	HEADS_MAX = 3,
	VECTORS_MAX = FM_ATTENTION_HEAD_MAX / FM_LANES,
	TILES_AHEAD = 2, /* fetched before they are wanted: blocks lie far apart in memory */
};

/* Constants where this is called: of one pass over keys and values. */
struct shape {
	size_t heads, vectors; /* of 16 dimensions */
	bool is_half;
};

struct state {
	__m512 values[HEADS_MAX][VECTORS_MAX];
	float largest[HEADS_MAX], sum[HEADS_MAX];
};

/* Row @token of the keys and values of a tile to come. */
INLINE void fetch_row(struct shape shape, const struct fm_attention *attention, size_t tile,
		      size_t token)
{
	const size_t bytes = shape.vectors * FM_LANES * (shape.is_half ? 2 : 4);
	const uint8_t *block = (const uint8_t *)attention->blocks[tile] + token * bytes;

	UNROLL
	for (size_t i = 0; i < bytes; i += 64) {
		_mm_prefetch((const char *)(block + attention->key_offset + i), _MM_HINT_T0);
		_mm_prefetch((const char *)(block + attention->value_offset + i), _MM_HINT_T0);
	}
}

/* The scores of the heads against the first @n tokens of a tile; the rest are 0. Meanwhile tile
 * @ahead is fetched. */
INLINE void scores(struct shape shape, const struct fm_attention *attention, size_t tile,
		   size_t ahead, size_t n, const float *q, __m512 *out)
{
	const size_t dim = shape.vectors * FM_LANES;
	const void *keys = (const uint8_t *)attention->blocks[tile] + attention->key_offset;
	_Alignas(64) float partial[HEADS_MAX][FM_ATTENTION_TOKENS][FM_LANES];

	for (size_t token = 0; token < FM_ATTENTION_TOKENS; token++) {
		__m512 sums[HEADS_MAX];

		UNROLL
		for (size_t head = 0; head < shape.heads; head++)
			sums[head] = _mm512_setzero_ps();
		fetch_row(shape, attention, ahead, token);
		if (token < n) {
			UNROLL
			for (size_t i = 0; i < dim; i += FM_LANES) {
				__m512 key = load(keys, shape.is_half, token * dim + i);

				UNROLL
				for (size_t head = 0; head < shape.heads; head++)
					sums[head] =
						_mm512_fmadd_ps(_mm512_loadu_ps(q + head * dim + i),
								key, sums[head]);
			}
		}
		UNROLL
		for (size_t head = 0; head < shape.heads; head++)
			_mm512_store_ps(partial[head][token], sums[head]);
	}
	UNROLL
	for (size_t head = 0; head < shape.heads; head++)
		out[head] =
			_mm512_mul_ps(lanes_sums(partial[head]), _mm512_set1_ps(attention->scale));
}

/* Scores to weights of the tokens in @mask; what was summed so far is made relative to the new
 * largest. */
INLINE void weigh(struct shape shape, __mmask16 mask, const __m512 *score,
		  float (*weights)[FM_ATTENTION_TOKENS], struct state *state)
{
	UNROLL
	for (size_t head = 0; head < shape.heads; head++) {
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
			for (size_t i = 0; i < shape.vectors; i++)
				state->values[head][i] = _mm512_mul_ps(state->values[head][i],
								       _mm512_set1_ps(rescale));
		}
		state->largest[head] = largest;
	}
}

/* Tokens @start..@n of a tile. */
INLINE void take_tile(struct shape shape, const struct fm_attention *attention, size_t tile,
		      size_t ahead, size_t start, size_t n, const float *q, struct state *state)
{
	const void *values = (const uint8_t *)attention->blocks[tile] + attention->value_offset;
	_Alignas(64) float weights[HEADS_MAX][FM_ATTENTION_TOKENS];
	__m512 score[HEADS_MAX];

	scores(shape, attention, tile, ahead, n, q, score);
	weigh(shape, (__mmask16)((1u << n) - (1u << start)), score, weights, state);
	for (size_t token = start; token < n; token++) {
		UNROLL
		for (size_t i = 0; i < shape.vectors; i++) {
			__m512 value =
				load(values, shape.is_half, (token * shape.vectors + i) * FM_LANES);

			UNROLL
			for (size_t head = 0; head < shape.heads; head++)
				state->values[head][i] =
					_mm512_fmadd_ps(_mm512_set1_ps(weights[head][token]), value,
							state->values[head][i]);
		}
	}
}

/* The parts that a segment gives the heads. */
INLINE void take_segment(struct shape shape, const struct fm_attention *attention, size_t position,
			 size_t segment, const float *q, float *parts)
{
	const size_t start = fm_attention_start(attention, position);
	size_t at = segment * FM_ATTENTION_SEGMENT, end = at + FM_ATTENTION_SEGMENT, last;
	struct state state;

	UNROLL
	for (size_t head = 0; head < shape.heads; head++) {
		UNROLL
		for (size_t i = 0; i < shape.vectors; i++)
			state.values[head][i] = _mm512_setzero_ps();
		state.largest[head] = -INFINITY;
		state.sum[head] = 0.0f;
	}
	at = at < start ? start - start % FM_ATTENTION_TOKENS : at;
	end = end < position + 1 ? end : position + 1;
	last = (end - 1) / FM_ATTENTION_TOKENS;
	for (; at < end; at += FM_ATTENTION_TOKENS) {
		size_t tile = at / FM_ATTENTION_TOKENS;
		size_t ahead = tile + TILES_AHEAD < last ? tile + TILES_AHEAD : last;

		take_tile(shape, attention, tile, ahead, at < start ? start - at : 0,
			  end - at < FM_ATTENTION_TOKENS ? end - at : FM_ATTENTION_TOKENS, q,
			  &state);
	}
	UNROLL
	for (size_t head = 0; head < shape.heads; head++) {
		parts[0] = state.largest[head];
		parts[1] = state.sum[head];
		UNROLL
		for (size_t i = 0; i < shape.vectors; i++)
			_mm512_storeu_ps(parts + FM_PART_VALUES + i * FM_LANES,
					 state.values[head][i]);
		parts += FM_PART_VALUES + shape.vectors * FM_LANES;
	}
}

/* As many heads at once as there are registers for their values. */
INLINE void take_heads(size_t vectors, bool is_half, const struct fm_attention *attention,
		       size_t position, size_t segment, const float *q, float *parts)
{
	const size_t heads = vectors == 4 ? 3 : vectors == 8 ? 2 : 1;
	const size_t dim = vectors * FM_LANES;
	uint32_t left = attention->n_heads;

	for (; left >= heads; left -= heads) {
		take_segment((struct shape){heads, vectors, is_half}, attention, position, segment,
			     q, parts);
		q += heads * dim;
		parts += heads * (FM_PART_VALUES + dim);
	}
	if (heads > 2 && left == 2)
		take_segment((struct shape){2, vectors, is_half}, attention, position, segment, q,
			     parts);
	else if (heads > 1 && left == 1)
		take_segment((struct shape){1, vectors, is_half}, attention, position, segment, q,
			     parts);
}

typedef void segment_work(const struct fm_attention *attention, size_t position, size_t segment,
			  const float *q, float *parts);

#define SEGMENT_WORK(name, vectors, is_half)                                                       \
	static void name(const struct fm_attention *attention, size_t position, size_t segment,    \
			 const float *q, float *parts)                                             \
	{                                                                                          \
		take_heads(vectors, is_half, attention, position, segment, q, parts);              \
	}
SEGMENT_WORK(segment_64_half, 4, true)
SEGMENT_WORK(segment_64_float, 4, false)
SEGMENT_WORK(segment_128_half, 8, true)
SEGMENT_WORK(segment_128_float, 8, false)
SEGMENT_WORK(segment_256_half, 16, true)
SEGMENT_WORK(segment_256_float, 16, false)

static segment_work *find_work(const struct fm_attention *attention)
{
	switch (attention->head_dim) {
	case 64:
		return attention->is_half ? segment_64_half : segment_64_float;
	case 128:
		return attention->is_half ? segment_128_half : segment_128_float;
	case 256:
		return attention->is_half ? segment_256_half : segment_256_float;
	}
	return NULL;
}

bool fm_avx512_attention_part(const struct fm_attention *attention, size_t segment, const float *q,
			      float *parts)
{
	segment_work *work = find_work(attention);

	if (work)
		work(attention, attention->position, segment, q, parts);
	return work;
}

/* One token; some heads at a time, whose parts stand on the stack. */
static void attend(segment_work *work, const struct fm_attention *attention, size_t position,
		   const float *q, float *out)
{
	enum { HEADS = 3, FLOATS = FM_PART_VALUES + FM_ATTENTION_HEAD_MAX };
	_Alignas(64) float totals[HEADS * FLOATS], parts[HEADS * FLOATS];
	const size_t floats = fm_attention_part_floats(attention->head_dim);
	const size_t dim = attention->head_dim;
	struct fm_attention some = *attention;

	for (size_t head = 0; head < attention->n_heads; head += HEADS) {
		some.n_heads = attention->n_heads - (uint32_t)head;
		some.n_heads = some.n_heads < HEADS ? some.n_heads : HEADS;
		for (size_t i = 0; i < some.n_heads; i++)
			fm_generic_clear_part(totals + i * floats, dim);
		for (size_t s = fm_attention_first_segment(attention, position);
		     s < fm_attention_segments(position); s++) {
			work(&some, position, s, q + head * dim, parts);
			for (size_t i = 0; i < some.n_heads; i++)
				fm_generic_merge(totals + i * floats, parts + i * floats, dim);
		}
		for (size_t i = 0; i < some.n_heads; i++)
			fm_generic_finish(totals + i * floats, dim, out + (head + i) * dim);
	}
}

bool fm_avx512_attention(const struct fm_attention *attention, const float *q, float *out)
{
	segment_work *work = find_work(attention);
	const size_t last = attention->position + attention->n_tokens - 1;

	if (!work)
		return false;
	/* Where a window cuts, each token begins elsewhere: one after the other. */
	if (attention->n_tokens > 1 && !fm_attention_start(attention, last) &&
	    attention->n_tokens * attention->n_heads >= FM_AVX512_PROMPT_QUERIES) {
		fm_avx512_attention_prompt(attention, q, out);
		return true;
	}
	for (size_t token = 0; token < attention->n_tokens; token++) {
		attend(work, attention, attention->position + token, q, out);
		q += attention->stride;
		out += attention->stride;
	}
	return true;
}
