/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of prompts in AVX-512 for heads of 64, 128 and 256 dimensions: the tokens of one KV
 * block and their query heads share each pass over a tile, 16 queries in the lanes of a vector.
 * Called by attention_avx512.c. Invariant: each query's arithmetic is that of generic.h; lanes
 * never meet, so every tree over keys or dimensions is written out over whole vectors.
 */
#include <string.h>

#include "attention_avx512.h"
#include "avx512.h"

enum {
	GROUPS = 4,  /* of 16 queries at a time: their state stays in the L1 cache (heads of 64) */
	KEYS = 4,    /* scored at a time: five vectors of each are alive in the tree */
	QUERIES = 4, /* whose values are summed at a time, */
	VECTORS = 4, /* so many vectors of them */
	TILE = FM_ATTENTION_TOKENS * FM_ATTENTION_HEAD_MAX,
};

/* The first floats of each array are in use, as many as heads of dim dimensions have. */
struct prompt {
	_Alignas(64) float q[GROUPS * FM_LANES * FM_ATTENTION_HEAD_MAX]; /* [group][dim][query] */
	float values[GROUPS * FM_LANES * FM_ATTENTION_HEAD_MAX]; /* of a segment: [query][dim] */
	float totals[GROUPS * FM_LANES * FM_ATTENTION_HEAD_MAX]; /* of all segments before */
	float weights[FM_ATTENTION_TOKENS][FM_LANES];		 /* of one group */
	float keys[TILE], tile_values[TILE];			 /* [token][dim] */
	__m512 largest[GROUPS], sum[GROUPS];			 /* of a segment */
	__m512 total_largest[GROUPS], total_sum[GROUPS];
	__m512i ends[GROUPS]; /* keys of the last tile that a query attends to */
	size_t n_queries, n_groups;
};

/* ---- scores ------------------------------------------------------------------------------- */

struct sums { /* of KEYS keys; members, because an array would live in memory */
	__m512 a, b, c, d;
};

/* Partial sum @lane. */
INLINE struct sums partial(size_t dim, const float *q, const float *keys, size_t lane)
{
	struct sums sums = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
			    _mm512_setzero_ps()};

	/* Loads stay behind what was summed before: else the compiler begins many sums at once, for
	 * which there are not registers enough. */
	__asm__ volatile("" : : : "memory");
	UNROLL
	for (size_t i = lane; i < dim; i += FM_LANES) {
		__m512 query = _mm512_load_ps(q + i * FM_LANES);

		sums.a = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[i]), sums.a);
		sums.b = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[dim + i]), sums.b);
		sums.c = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[2 * dim + i]), sums.c);
		sums.d = _mm512_fmadd_ps(query, _mm512_set1_ps(keys[3 * dim + i]), sums.d);
	}
	return sums;
}

INLINE struct sums add(struct sums x, struct sums y)
{
	return (struct sums){_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b),
			     _mm512_add_ps(x.c, y.c), _mm512_add_ps(x.d, y.d)};
}

/* fm_lanes_sum() above lane @lane: it and lane + 8; then + 4, + 2, + 1. */
INLINE struct sums tree8(size_t dim, const float *q, const float *keys, size_t lane)
{
	struct sums low = partial(dim, q, keys, lane);

	return add(low, partial(dim, q, keys, lane + 8));
}

INLINE struct sums tree4(size_t dim, const float *q, const float *keys, size_t lane)
{
	struct sums low = tree8(dim, q, keys, lane);

	return add(low, tree8(dim, q, keys, lane + 4));
}

INLINE struct sums tree2(size_t dim, const float *q, const float *keys, size_t lane)
{
	struct sums low = tree4(dim, q, keys, lane);

	return add(low, tree4(dim, q, keys, lane + 2));
}

/* Scores of a group against a tile; key after key, a query a lane. */
INLINE void score(size_t dim, const float *q, const float *keys, float scale, __m512 *scores)
{
	for (size_t key = 0; key < FM_ATTENTION_TOKENS; key += KEYS) {
		struct sums sums = tree2(dim, q, keys + key * dim, 0);

		sums = add(sums, tree2(dim, q, keys + key * dim, 1));
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

/* Values from dimension @first on of @queries queries from lane @lane of the group on, times their
 * weights of @n keys. */
INLINE void add_some(struct prompt *prompt, size_t dim, float *values, const float *tile_values,
		     size_t lane, const size_t queries, size_t n, const float *rescale)
{
	__m512 sums[QUERIES][VECTORS];

	UNROLL
	for (size_t query = 0; query < queries; query++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			sums[query][i] =
				_mm512_mul_ps(_mm512_load_ps(values + query * dim + i * FM_LANES),
					      _mm512_set1_ps(rescale[lane + query]));
	}
	for (size_t key = 0; key < n; key++) {
		__m512 value[VECTORS];

		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			value[i] = _mm512_load_ps(tile_values + key * dim + i * FM_LANES);
		UNROLL
		for (size_t query = 0; query < queries; query++) {
			__m512 weight = _mm512_set1_ps(prompt->weights[key][lane + query]);

			UNROLL
			for (size_t i = 0; i < VECTORS; i++)
				sums[query][i] = _mm512_fmadd_ps(weight, value[i], sums[query][i]);
		}
	}
	UNROLL
	for (size_t query = 0; query < queries; query++) {
		UNROLL
		for (size_t i = 0; i < VECTORS; i++)
			_mm512_store_ps(values + query * dim + i * FM_LANES, sums[query][i]);
	}
}

INLINE void add_values(struct prompt *prompt, size_t dim, size_t group, size_t lane,
		       const size_t queries, size_t n, const float *rescale)
{
	float *values = prompt->values + (group * FM_LANES + lane) * dim;

	for (size_t i = 0; i < dim; i += VECTORS * FM_LANES)
		add_some(prompt, dim, values + i, prompt->tile_values + i, lane, queries, n,
			 rescale);
}

/* ---- segments ------------------------------------------------------------------------------ */

static void clear_segment(struct prompt *prompt, size_t dim)
{
	memset(prompt->values, 0, prompt->n_groups * FM_LANES * dim * sizeof(float));
	for (size_t group = 0; group < prompt->n_groups; group++) {
		prompt->largest[group] = _mm512_set1_ps(-INFINITY);
		prompt->sum[group] = _mm512_setzero_ps();
	}
}

/* Adds the segment to the totals, as fm_generic_merge() does. */
static void merge_segment(struct prompt *prompt, size_t dim)
{
	for (size_t group = 0; group < prompt->n_groups; group++) {
		__m512 most = _mm512_max_ps(prompt->largest[group], prompt->total_largest[group]);
		__m512 before = exp16(_mm512_sub_ps(prompt->total_largest[group], most));
		__m512 after = exp16(_mm512_sub_ps(prompt->largest[group], most));
		float *total = prompt->totals + group * FM_LANES * dim;
		const float *values = prompt->values + group * FM_LANES * dim;
		float factors[2][FM_LANES];

		_mm512_storeu_ps(factors[0], before);
		_mm512_storeu_ps(factors[1], after);
		prompt->total_largest[group] = most;
		prompt->total_sum[group] = _mm512_fmadd_ps(
			prompt->total_sum[group], before, _mm512_mul_ps(prompt->sum[group], after));
		for (size_t i = 0; i < FM_LANES * dim; i += FM_LANES) {
			__m512 later = _mm512_mul_ps(_mm512_load_ps(values + i),
						     _mm512_set1_ps(factors[1][i / dim]));

			_mm512_store_ps(total + i,
					_mm512_fmadd_ps(_mm512_load_ps(total + i),
							_mm512_set1_ps(factors[0][i / dim]),
							later));
		}
	}
}

/* ---- tiles --------------------------------------------------------------------------------- */

INLINE void load_tile(struct prompt *prompt, size_t dim, bool is_half,
		      const struct fm_attention *attention, size_t tile)
{
	const uint8_t *block = attention->blocks[tile];

	for (size_t i = 0; i < FM_ATTENTION_TOKENS * dim; i += FM_LANES) {
		_mm512_store_ps(prompt->keys + i, load(block + attention->key_offset, is_half, i));
		_mm512_store_ps(prompt->tile_values + i,
				load(block + attention->value_offset, is_half, i));
	}
}

INLINE void take_full_tile(struct prompt *prompt, size_t dim, float scale)
{
	for (size_t group = 0; group < prompt->n_groups; group++) {
		_Alignas(64) float rescale[FM_LANES];
		__m512 scores[FM_ATTENTION_TOKENS];

		score(dim, prompt->q + group * dim * FM_LANES, prompt->keys, scale, scores);
		_mm512_store_ps(rescale, weigh(prompt, group, scores));
		for (size_t lane = 0; lane < FM_LANES; lane += QUERIES)
			add_values(prompt, dim, group, lane, QUERIES, FM_ATTENTION_TOKENS, rescale);
	}
}

/* The tile that the tokens themselves stand in: each attends to the keys up to its own. What stands
 * beyond may be anything, so it is neither weighed nor multiplied. */
INLINE void take_last_tile(struct prompt *prompt, size_t dim, float scale)
{
	for (size_t group = 0; group < prompt->n_groups; group++) {
		_Alignas(64) float rescale[FM_LANES];
		_Alignas(64) int32_t ends[FM_LANES];
		__m512 scores[FM_ATTENTION_TOKENS];

		score(dim, prompt->q + group * dim * FM_LANES, prompt->keys, scale, scores);
		UNROLL
		for (int key = 0; key < FM_ATTENTION_TOKENS; key++)
			scores[key] =
				_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY),
						   _mm512_cmpgt_epi32_mask(prompt->ends[group],
									   _mm512_set1_epi32(key)),
						   scores[key]);
		_mm512_store_ps(rescale, weigh(prompt, group, scores));
		_mm512_store_si512(ends, prompt->ends[group]);
		for (size_t lane = 0; lane < FM_LANES; lane++)
			add_values(prompt, dim, group, lane, 1, (size_t)ends[lane], rescale);
	}
}

/* ---- queries ------------------------------------------------------------------------------- */

/* Query token * n_heads + head of the part of @n_heads heads at @q. */
static void take_queries(struct prompt *prompt, const struct fm_attention *attention,
			 size_t n_heads, const float *q)
{
	const size_t n = attention->n_tokens * n_heads, dim = attention->head_dim;
	int32_t ends[GROUPS * FM_LANES];

	prompt->n_queries = n;
	prompt->n_groups = (n + FM_LANES - 1) / FM_LANES;
	for (size_t query = 0; query < prompt->n_groups * FM_LANES; query++) {
		/* Lanes without a query repeat the last one. */
		size_t other = query < n ? query : n - 1;
		size_t token = other / n_heads, group = query / FM_LANES;
		const float *from = q + token * attention->stride + other % n_heads * dim;
		float *to = prompt->q + group * dim * FM_LANES + query % FM_LANES;

		for (size_t i = 0; i < dim; i++)
			to[i * FM_LANES] = from[i];
		ends[query] = (int32_t)(attention->position % FM_ATTENTION_TOKENS + token + 1);
	}
	memset(prompt->totals, 0, prompt->n_groups * FM_LANES * dim * sizeof(float));
	for (size_t group = 0; group < prompt->n_groups; group++) {
		prompt->total_largest[group] = _mm512_set1_ps(-INFINITY);
		prompt->total_sum[group] = _mm512_setzero_ps();
		prompt->ends[group] = _mm512_loadu_si512(ends + group * FM_LANES);
	}
}

static void give_values(const struct prompt *prompt, const struct fm_attention *attention,
			size_t n_heads, float *out)
{
	const size_t dim = attention->head_dim;

	for (size_t query = 0; query < prompt->n_queries; query++) {
		float *to = out + query / n_heads * attention->stride + query % n_heads * dim;
		float sums[FM_LANES];

		_mm512_storeu_ps(sums, prompt->total_sum[query / FM_LANES]);
		for (size_t i = 0; i < dim; i += FM_LANES)
			_mm512_storeu_ps(
				to + i,
				_mm512_div_ps(_mm512_load_ps(prompt->totals + query * dim + i),
					      _mm512_set1_ps(sums[query % FM_LANES])));
	}
}

INLINE void attend(size_t dim, bool is_half, const struct fm_attention *attention, const float *q,
		   float *out)
{
	const size_t tiles = FM_ATTENTION_SEGMENT / FM_ATTENTION_TOKENS;
	const size_t last = attention->position / FM_ATTENTION_TOKENS;
	const size_t heads_max = GROUPS * FM_LANES / attention->n_tokens;
	struct prompt prompt;

	for (size_t head = 0, n; head < attention->n_heads; head += n) {
		n = attention->n_heads - head < heads_max ? attention->n_heads - head : heads_max;
		take_queries(&prompt, attention, n, q + head * dim);
		for (size_t tile = 0; tile <= last; tile++) {
			if (tile % tiles == 0)
				clear_segment(&prompt, dim);
			load_tile(&prompt, dim, is_half, attention, tile);
			if (tile < last)
				take_full_tile(&prompt, dim, attention->scale);
			else
				take_last_tile(&prompt, dim, attention->scale);
			if (tile % tiles == tiles - 1 || tile == last)
				merge_segment(&prompt, dim);
		}
		give_values(&prompt, attention, n, out + head * dim);
	}
}

#define ATTEND(dim)                                                                                \
	static __attribute__((noinline)) void attend_##dim(const struct fm_attention *attention,   \
							   const float *q, float *out)             \
	{                                                                                          \
		if (attention->is_half)                                                            \
			attend(dim, true, attention, q, out);                                      \
		else                                                                               \
			attend(dim, false, attention, q, out);                                     \
	}
ATTEND(64)
ATTEND(128)
ATTEND(256)

void fm_avx512_attention_prompt(const struct fm_attention *attention, const float *q, float *out)
{
	if (attention->head_dim == 64)
		attend_64(attention, q, out);
	else if (attention->head_dim == 128)
		attend_128(attention, q, out);
	else
		attend_256(attention, q, out);
}
