/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of prompts in AVX-512 for heads of 64 dimensions: the tokens of one KV block and their
 * query heads share each pass over a tile, 16 queries in the lanes of a vector. Called by
 * attention_avx512.c. Invariant: each query's arithmetic is that of generic.h; lanes never meet, so
 * every tree over keys or dimensions is written out over whole vectors.
 */
#include "attention_avx512.h"
#include "avx512.h"

enum {
	GROUPS = 4, /* of 16 queries at a time: their state stays in the L1 cache */
	KEYS = 4,   /* scored at a time: five vectors of each are alive in the tree */
	QUERIES = 4, /* whose values are summed at a time */
};

struct prompt {
	_Alignas(64) float q[GROUPS][HEAD_DIM][FM_LANES]; /* lane i: query 16 * group + i */
	float values[GROUPS * FM_LANES][HEAD_DIM];
	float weights[FM_ATTENTION_TOKENS][FM_LANES]; /* of one group */
	float keys[FM_ATTENTION_TOKENS][HEAD_DIM], tile_values[FM_ATTENTION_TOKENS][HEAD_DIM];
	__m512 largest[GROUPS], sum[GROUPS];
	__m512i ends[GROUPS]; /* keys of the last tile that a query attends to */
	size_t n_queries;
};

/* ---- scores ------------------------------------------------------------------------------- */

struct sums { /* of KEYS keys; members, because an array would live in memory */
	__m512 a, b, c, d;
};

/* Partial sum @lane. */
INLINE struct sums partial(const float (*q)[FM_LANES], const float (*keys)[HEAD_DIM], size_t lane)
{
	struct sums sums = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
			    _mm512_setzero_ps()};

	UNROLL
	for (size_t i = lane; i < HEAD_DIM; i += FM_LANES) {
		__m512 query = _mm512_load_ps(q[i]);

		sums.a = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[0][i]), sums.a);
		sums.b = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[1][i]), sums.b);
		sums.c = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[2][i]), sums.c);
		sums.d = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[3][i]), sums.d);
	}
	return sums;
}

INLINE struct sums add(struct sums x, struct sums y)
{
	return (struct sums){_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b),
			     _mm512_add_ps(x.c, y.c), _mm512_add_ps(x.d, y.d)};
}

/* fm_lanes_sum() above lane @lane: it and lane + 8; then + 4, + 2, + 1. */
INLINE struct sums tree8(const float (*q)[FM_LANES], const float (*keys)[HEAD_DIM], size_t lane)
{
	struct sums low = partial(q, keys, lane);

	return add(low, partial(q, keys, lane + 8));
}

INLINE struct sums tree4(const float (*q)[FM_LANES], const float (*keys)[HEAD_DIM], size_t lane)
{
	struct sums low = tree8(q, keys, lane);

	return add(low, tree8(q, keys, lane + 4));
}

INLINE struct sums tree2(const float (*q)[FM_LANES], const float (*keys)[HEAD_DIM], size_t lane)
{
	struct sums low = tree4(q, keys, lane);

	return add(low, tree4(q, keys, lane + 2));
}

/* Scores of a group against a tile; key after key, a query a lane. */
INLINE void score(const float (*q)[FM_LANES], const float (*keys)[HEAD_DIM], float scale,
		  __m512 *scores)
{
	for (size_t key = 0; key < FM_ATTENTION_TOKENS; key += KEYS) {
		struct sums sums = tree2(q, keys + key, 0);

		sums = add(sums, tree2(q, keys + key, 1));
		scores[key] = _mm512_mul_ps(sums.a, _mm512_set1_ps(scale));
		scores[key + 1] = _mm512_mul_ps(sums.b, _mm512_set1_ps(scale));
		scores[key + 2] = _mm512_mul_ps(sums.c, _mm512_set1_ps(scale));
		scores[key + 3] = _mm512_mul_ps(sums.d, _mm512_set1_ps(scale));
	}
}

/* ---- softmax and values -------------------------------------------------------------------- */

/* Scores to weights; returns the factor for what was summed so far. */
INLINE __m512 weigh(struct prompt *prompt, size_t group, const __m512 *scores)
{
	__m512 old = prompt->largest[group], largest = old, rescale;
	__m512 weights[FM_ATTENTION_TOKENS];

	UNROLL
	for (int key = 0; key < FM_ATTENTION_TOKENS; key++)
		largest = _mm512_max_ps(scores[key], largest);
	rescale = exp16(_mm512_sub_ps(old, largest));
	UNROLL
	for (int key = 0; key < FM_ATTENTION_TOKENS; key++) {
		weights[key] = exp16(_mm512_sub_ps(scores[key], largest));
		_mm512_store_ps(prompt->weights[key], weights[key]);
	}
	UNROLL
	for (int width = FM_ATTENTION_TOKENS / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++)
			weights[i] = _mm512_add_ps(weights[i], weights[i + width]);
	prompt->largest[group] = largest;
	prompt->sum[group] = _mm512_fmadd_ps(prompt->sum[group], rescale, weights[0]);
	return rescale;
}

/* Values of @queries queries from lane @lane of the group on, times their weights of @n keys. */
INLINE void add_values(struct prompt *prompt, size_t group, size_t lane, const size_t queries,
		       size_t n, const float *rescale)
{
	float(*values)[HEAD_DIM] = prompt->values + group * FM_LANES + lane;
	__m512 sums[QUERIES][VECTORS];

	UNROLL
	for (size_t query = 0; query < queries; query++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			sums[query][i] =
				_mm512_mul_ps(_mm512_load_ps(values[query] + i * FM_LANES),
					      _mm512_set1_ps(rescale[lane + query]));
	}
	for (size_t key = 0; key < n; key++) {
		__m512 value[VECTORS];

		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			value[i] = _mm512_load_ps(prompt->tile_values[key] + i * FM_LANES);
		UNROLL
		for (size_t query = 0; query < queries; query++) {
			__m512 weight = _mm512_set1_ps(prompt->weights[key][lane + query]);

			UNROLL
			for (size_t i = 0; i < VECTORS; i++)
				sums[query][i] =
					_mm512_fmadd_ps(weight, value[i], sums[query][i]);
		}
	}
	UNROLL
	for (size_t query = 0; query < queries; query++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			_mm512_store_ps(values[query] + i * FM_LANES, sums[query][i]);
	}
}

/* ---- tiles --------------------------------------------------------------------------------- */

INLINE void load_tile(struct prompt *prompt, bool is_half, const struct fm_attention *attention,
		      size_t tile)
{
	const uint8_t *block = attention->blocks[tile];

	for (size_t i = 0; i < FM_ATTENTION_TOKENS * HEAD_DIM; i += FM_LANES) {
		_mm512_store_ps(prompt->keys[0] + i,
				load(block + attention->key_offset, is_half, i));
		_mm512_store_ps(prompt->tile_values[0] + i,
				load(block + attention->value_offset, is_half, i));
	}
}

INLINE void take_full_tile(struct prompt *prompt, float scale)
{
	for (size_t group = 0; group * FM_LANES < prompt->n_queries; group++) {
		_Alignas(64) float rescale[FM_LANES];
		__m512 scores[FM_ATTENTION_TOKENS];

		score(prompt->q[group], prompt->keys, scale, scores);
		_mm512_store_ps(rescale, weigh(prompt, group, scores));
		for (size_t lane = 0; lane < FM_LANES; lane += QUERIES)
			add_values(prompt, group, lane, QUERIES, FM_ATTENTION_TOKENS, rescale);
	}
}

/* The tile that the tokens themselves stand in: each attends to the keys up to its own. What stands
 * beyond may be anything, so it is neither weighed nor multiplied. */
INLINE void take_last_tile(struct prompt *prompt, float scale)
{
	for (size_t group = 0; group * FM_LANES < prompt->n_queries; group++) {
		_Alignas(64) float rescale[FM_LANES];
		_Alignas(64) int32_t ends[FM_LANES];
		__m512 scores[FM_ATTENTION_TOKENS];

		score(prompt->q[group], prompt->keys, scale, scores);
		UNROLL
		for (int key = 0; key < FM_ATTENTION_TOKENS; key++)
			scores[key] = _mm512_mask_mov_ps(
				_mm512_set1_ps(-INFINITY),
				_mm512_cmpgt_epi32_mask(prompt->ends[group],
							_mm512_set1_epi32(key)),
				scores[key]);
		_mm512_store_ps(rescale, weigh(prompt, group, scores));
		_mm512_store_si512(ends, prompt->ends[group]);
		for (size_t lane = 0; lane < FM_LANES; lane++)
			add_values(prompt, group, lane, 1, (size_t)ends[lane], rescale);
	}
}

/* ---- queries ------------------------------------------------------------------------------- */

/* Query token * n_heads + head of the part of @n_heads heads at @q. */
static void take_queries(struct prompt *prompt, const struct fm_attention *attention,
			 size_t n_heads, const float *q)
{
	size_t n = attention->n_tokens * n_heads;
	int32_t ends[GROUPS * FM_LANES];

	prompt->n_queries = n;
	for (size_t query = 0; query < GROUPS * FM_LANES; query++) {
		/* Lanes without a query repeat the last one. */
		size_t other = query < n ? query : n - 1;
		size_t token = other / n_heads;
		const float *from = q + token * attention->stride + other % n_heads * HEAD_DIM;

		if (query >= (n + FM_LANES - 1) / FM_LANES * FM_LANES)
			break;
		for (size_t i = 0; i < HEAD_DIM; i++)
			prompt->q[query / FM_LANES][i][query % FM_LANES] = from[i];
		for (size_t i = 0; i < HEAD_DIM; i++)
			prompt->values[query][i] = 0.0f;
		ends[query] = (int32_t)(attention->position % FM_ATTENTION_TOKENS + token + 1);
	}
	for (size_t group = 0; group * FM_LANES < n; group++) {
		prompt->largest[group] = _mm512_set1_ps(-INFINITY);
		prompt->sum[group] = _mm512_setzero_ps();
		prompt->ends[group] = _mm512_loadu_si512(ends + group * FM_LANES);
	}
}

static void give_values(const struct prompt *prompt, const struct fm_attention *attention,
			size_t n_heads, float *out)
{
	for (size_t query = 0; query < prompt->n_queries; query++) {
		float *to = out + query / n_heads * attention->stride + query % n_heads * HEAD_DIM;
		float sums[FM_LANES];

		_mm512_storeu_ps(sums, prompt->sum[query / FM_LANES]);
		for (size_t i = 0; i < HEAD_DIM; i += FM_LANES)
			_mm512_storeu_ps(to + i,
					 _mm512_div_ps(_mm512_load_ps(prompt->values[query] + i),
						       _mm512_set1_ps(sums[query % FM_LANES])));
	}
}

INLINE void attend(bool is_half, const struct fm_attention *attention, const float *q, float *out)
{
	const size_t last = attention->position / FM_ATTENTION_TOKENS;
	const size_t heads_max = GROUPS * FM_LANES / attention->n_tokens;
	struct prompt prompt;

	for (size_t head = 0, n; head < attention->n_heads; head += n) {
		n = attention->n_heads - head < heads_max ? attention->n_heads - head : heads_max;
		take_queries(&prompt, attention, n, q + head * HEAD_DIM);
		for (size_t tile = 0; tile < last; tile++) {
			load_tile(&prompt, is_half, attention, tile);
			take_full_tile(&prompt, attention->scale);
		}
		load_tile(&prompt, is_half, attention, last);
		take_last_tile(&prompt, attention->scale);
		give_values(&prompt, attention, n, out + head * HEAD_DIM);
	}
}

void fm_avx512_attention_prompt(const struct fm_attention *attention, const float *q, float *out)
{
	if (attention->is_half)
		attend(true, attention, q, out);
	else
		attend(false, attention, q, out);
}
