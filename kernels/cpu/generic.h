/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel in plain C over 16 lanes: the arithmetic contract. A file per instruction set
 * includes this one and is compiled with its own flags, so that the compiler may use wider
 * registers; hand-written paths replace single entries of the table. Invariant: no operation is
 * reordered or fused here that the source does not reorder or fuse; sums run in the order that
 * Documentation/design/arithmetic.md gives.
 */
#ifndef FM_KERNELS_CPU_GENERIC_H
#define FM_KERNELS_CPU_GENERIC_H

#include <math.h>
#include <string.h>

#include <kernels.h>

#include "formats.h"
#include "half.h"

/* A file that replaces some of them leaves them unused. */
#define FM_GENERIC static __attribute__((unused))

/* Adding and subtracting it rounds a float below 2^22 to an integer, to nearest even. */
#define FM_ROUND_MAGIC	12582912.0f

#define FM_EXP_LOW	(-87.0f)
#define FM_EXP_HIGH	88.0f
#define FM_EXP_LOG2E	1.44269504f
#define FM_EXP_LN2_HIGH 0.693359375f
#define FM_EXP_LN2_LOW	(-2.12194440e-4f)

/* 2 sqrt(2 / pi), and that times 0.044715. */
#define FM_GELU_LINEAR 1.59576912f
#define FM_GELU_CUBE   0.0713548163f

/* exp(x), within 2 ulp; 0 below FM_EXP_LOW, exp(FM_EXP_HIGH) above it. exp(0) is exactly 1. */
static inline float fm_exp(float x)
{
	float clamped = x > FM_EXP_HIGH ? FM_EXP_HIGH : x < FM_EXP_LOW ? FM_EXP_LOW : x;
	float shifted = fmaf(clamped, FM_EXP_LOG2E, FM_ROUND_MAGIC);
	float n = shifted - FM_ROUND_MAGIC;
	float r = fmaf(n, -FM_EXP_LN2_HIGH, clamped);
	float p = 1.9875691500e-4f;

	r = fmaf(n, -FM_EXP_LN2_LOW, r);
	p = fmaf(p, r, 1.3981999507e-3f);
	p = fmaf(p, r, 8.3334519073e-3f);
	p = fmaf(p, r, 4.1665795894e-2f);
	p = fmaf(p, r, 1.6666665459e-1f);
	p = fmaf(p, r, 5.0000001201e-1f);
	p = fmaf(p, r * r, r) + 1.0f;
	p = fm_bits_float(fm_float_bits(p) + (fm_float_bits(shifted) << 23));
	return x < FM_EXP_LOW ? 0.0f : p;
}

/* The one reduction tree: lanes i and i + 8, then i + 4, i + 2, i + 1. */
static inline float fm_lanes_sum(const float *lanes)
{
	float sum[FM_LANES / 2];

	for (int i = 0; i < 8; i++)
		sum[i] = lanes[i] + lanes[i + 8];
	for (int width = 4; width > 0; width /= 2)
		for (int i = 0; i < width; i++)
			sum[i] = sum[i] + sum[i + width];
	return sum[0];
}

/* ---- vectors ------------------------------------------------------------------------------ */

FM_GENERIC void fm_generic_rms_norm(float *out, const float *x, const float *weight, size_t n,
				    float epsilon)
{
	float lanes[FM_LANES] = {0};
	float scale;

	for (size_t i = 0; i < n; i += FM_LANES)
		for (int lane = 0; lane < FM_LANES; lane++)
			lanes[lane] = fmaf(x[i + lane], x[i + lane], lanes[lane]);
	scale = 1.0f / sqrtf(fm_lanes_sum(lanes) / (float)n + epsilon);
	for (size_t i = 0; i < n; i++)
		out[i] = x[i] * scale * weight[i];
}

FM_GENERIC void fm_generic_add(float *x, const float *y, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = x[i] + y[i];
}

FM_GENERIC void fm_generic_scale(float *x, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = x[i] * factor;
}

FM_GENERIC void fm_generic_rope(float *x, const float *table, size_t n_heads, size_t head_dim,
				size_t rope_dim)
{
	for (size_t head = 0; head < n_heads; head++, x += head_dim) {
		for (size_t i = 0; i < rope_dim; i += 2) {
			float a = x[i], b = x[i + 1], cosine = table[i], sine = table[i + 1];

			x[i] = fmaf(a, cosine, -(b * sine));
			x[i + 1] = fmaf(b, cosine, a * sine);
		}
	}
}

FM_GENERIC void fm_generic_rope_halves(float *x, const float *table, size_t n_heads,
				       size_t head_dim, size_t rope_dim)
{
	for (size_t head = 0; head < n_heads; head++, x += head_dim) {
		float *low = x, *high = x + rope_dim / 2;

		for (size_t i = 0; i < rope_dim / 2; i++) {
			float a = low[i], b = high[i];
			float cosine = table[2 * i], sine = table[2 * i + 1];

			low[i] = fmaf(a, cosine, -(b * sine));
			high[i] = fmaf(b, cosine, a * sine);
		}
	}
}

FM_GENERIC void fm_generic_silu_multiply(float *gate, const float *up, size_t n)
{
	for (size_t i = 0; i < n; i++)
		gate[i] = gate[i] / (1.0f + fm_exp(-gate[i])) * up[i];
}

/* x (1 + tanh(u)) / 2 is x / (1 + exp(-2u)), and u = sqrt(2 / pi) (x + 0.044715 x^3). */
FM_GENERIC void fm_generic_gelu_multiply(float *gate, const float *up, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float x = gate[i];
		float twice_u = x * fmaf(x * x, FM_GELU_CUBE, FM_GELU_LINEAR);

		gate[i] = x / (1.0f + fm_exp(-twice_u)) * up[i];
	}
}

FM_GENERIC void fm_generic_quantise(struct fm_tile *tiles, size_t token, const float *x, size_t n,
				    bool is_fine)
{
	const float range = is_fine ? 32512.0f : 127.0f; /* 127 * 256: both halves fit 8 bits */

	for (struct fm_tile *tile = tiles; n > 0; tile++, x += FM_BLOCK_COLUMNS) {
		float largest = 0.0f, inverse;
		uint32_t sum = 0, half_sum = 0; /* unsigned: what NaNs make may wrap */

		for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
			largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
		inverse = largest > 0.0f ? range / largest : 0.0f;
		for (int i = 0; i < FM_BLOCK_COLUMNS; i++) {
			float shifted = fmaf(x[i], inverse, FM_ROUND_MAGIC);
			uint32_t value = fm_float_bits(shifted) - fm_float_bits(FM_ROUND_MAGIC);
			uint32_t high = is_fine ? (uint32_t)((int32_t)(value + 128) >> 8) : value;

			sum += value;
			half_sum += i < FM_BLOCK_COLUMNS / 2 ? value : 0;
			tile->q[0][token][i] = (int8_t)high;
			tile->q[1][token][i] = (int8_t)(value - high * 256);
		}
		tile->scale[token] = largest / range;
		tile->sum[token] = (int32_t)sum;
		tile->half_sum[token] = (int32_t)half_sum;
		tile->scaled_sum[token] = tile->scale[token] * (float)(int32_t)sum;
		n -= FM_BLOCK_COLUMNS;
	}
}

FM_GENERIC void fm_generic_store_kv(void *to, const float *from, size_t n, bool is_half)
{
	if (!is_half) {
		memcpy(to, from, n * sizeof(*from));
		return;
	}
	for (size_t i = 0; i < n; i++)
		((uint16_t *)to)[i] = fm_float_to_half(from[i]);
}

/* ---- attention ---------------------------------------------------------------------------- */

/* Row @token of a KV block's [token][dim] array in float32. */
static inline const float *fm_generic_kv_row(const struct fm_attention *attention, const void *base,
					     size_t token, float *buffer)
{
	const size_t dim = attention->head_dim;

	if (!attention->is_half)
		return (const float *)base + token * dim;
	for (size_t i = 0; i < dim; i++)
		buffer[i] = fm_half_to_float(((const uint16_t *)base)[token * dim + i]);
	return buffer;
}

/* Scores of one head against tokens @start..@n of a tile. */
static inline void fm_generic_scores(const struct fm_attention *attention, const float *q,
				     const void *keys, size_t start, size_t n, float *scores)
{
	float buffer[FM_ATTENTION_HEAD_MAX];

	for (size_t token = start; token < n; token++) {
		const float *key = fm_generic_kv_row(attention, keys, token, buffer);
		float lanes[FM_LANES] = {0};

		for (size_t i = 0; i < attention->head_dim; i += FM_LANES)
			for (int lane = 0; lane < FM_LANES; lane++)
				lanes[lane] = fmaf(q[i + lane], key[i + lane], lanes[lane]);
		scores[token] = fm_lanes_sum(lanes) * attention->scale;
	}
}

static inline void fm_generic_clear_part(float *part, size_t head_dim)
{
	memset(part, 0, (FM_PART_VALUES + head_dim) * sizeof(*part));
	part[0] = -INFINITY;
}

/* Takes tokens @start..@n of one tile into the online softmax of one head. */
static inline void fm_generic_tile(const struct fm_attention *attention, const float *q,
				   size_t tile, size_t start, size_t n, float *part)
{
	const uint8_t *block = attention->blocks[tile];
	float scores[FM_ATTENTION_TOKENS], weights[FM_ATTENTION_TOKENS] = {0};
	float buffer[FM_ATTENTION_HEAD_MAX], *values = part + FM_PART_VALUES;
	float largest = part[0], rescale;

	fm_generic_scores(attention, q, block + attention->key_offset, start, n, scores);
	for (size_t token = start; token < n; token++)
		largest = scores[token] > largest ? scores[token] : largest;
	rescale = fm_exp(part[0] - largest);
	for (size_t token = start; token < n; token++)
		weights[token] = fm_exp(scores[token] - largest);
	part[0] = largest;
	part[1] = fmaf(part[1], rescale, fm_lanes_sum(weights));
	for (size_t i = 0; i < attention->head_dim; i++)
		values[i] = values[i] * rescale;
	for (size_t token = start; token < n; token++) {
		const float *value = fm_generic_kv_row(attention, block + attention->value_offset,
						       token, buffer);

		for (size_t i = 0; i < attention->head_dim; i++)
			values[i] = fmaf(weights[token], value[i], values[i]);
	}
}

/* One head's part of a segment, for the token at @position. */
static inline void fm_generic_part(const struct fm_attention *attention, size_t position,
				   size_t segment, const float *q, float *part)
{
	const size_t start = fm_attention_start(attention, position);
	size_t at = segment * FM_ATTENTION_SEGMENT, end = at + FM_ATTENTION_SEGMENT;

	at = at < start ? start - start % FM_ATTENTION_TOKENS : at;
	end = end < position + 1 ? end : position + 1;
	fm_generic_clear_part(part, attention->head_dim);
	for (; at < end; at += FM_ATTENTION_TOKENS)
		fm_generic_tile(attention, q, at / FM_ATTENTION_TOKENS, at < start ? start - at : 0,
				end - at < FM_ATTENTION_TOKENS ? end - at : FM_ATTENTION_TOKENS,
				part);
}

/* @total becomes what it and a later segment give together. */
static inline void fm_generic_merge(float *total, const float *later, size_t head_dim)
{
	float largest = later[0] > total[0] ? later[0] : total[0];
	float before = fm_exp(total[0] - largest), after = fm_exp(later[0] - largest);

	total[0] = largest;
	total[1] = fmaf(total[1], before, later[1] * after);
	for (size_t i = FM_PART_VALUES; i < FM_PART_VALUES + head_dim; i++)
		total[i] = fmaf(total[i], before, later[i] * after);
}

static inline void fm_generic_finish(const float *total, size_t head_dim, float *out)
{
	for (size_t i = 0; i < head_dim; i++)
		out[i] = total[FM_PART_VALUES + i] / total[1];
}

FM_GENERIC void fm_generic_attention(const struct fm_attention *attention, const float *q,
				     float *out)
{
	const size_t dim = attention->head_dim;
	float total[FM_PART_VALUES + FM_ATTENTION_HEAD_MAX];
	float part[FM_PART_VALUES + FM_ATTENTION_HEAD_MAX];

	for (size_t token = 0; token < attention->n_tokens; token++)
		for (size_t head = 0; head < attention->n_heads; head++) {
			uint32_t position = attention->position + (uint32_t)token;
			size_t at = token * attention->stride + head * dim;

			fm_generic_clear_part(total, dim);
			for (size_t i = fm_attention_first_segment(attention, position);
			     i < fm_attention_segments(position); i++) {
				fm_generic_part(attention, position, i, q + at, part);
				fm_generic_merge(total, part, dim);
			}
			fm_generic_finish(total, dim, out + at);
		}
}

FM_GENERIC void fm_generic_attention_part(const struct fm_attention *attention, size_t segment,
					  const float *q, float *parts)
{
	for (size_t head = 0; head < attention->n_heads; head++)
		fm_generic_part(attention, attention->position, segment,
				q + head * attention->head_dim,
				parts + head * fm_attention_part_floats(attention->head_dim));
}

FM_GENERIC void fm_generic_attention_merge(const struct fm_attention *attention, const float *parts,
					   float *out)
{
	const size_t floats = fm_attention_part_floats(attention->head_dim);
	const size_t dim = attention->head_dim;
	const size_t first = fm_attention_first_segment(attention, attention->position);
	const size_t n_segments = fm_attention_segments(attention->position);
	float total[FM_PART_VALUES + FM_ATTENTION_HEAD_MAX];

	for (size_t head = 0; head < attention->n_heads; head++) {
		fm_generic_clear_part(total, dim);
		for (size_t i = first; i < n_segments; i++)
			fm_generic_merge(total, parts + (i * attention->n_heads + head) * floats,
					 dim);
		fm_generic_finish(total, dim, out + head * dim);
	}
}

/* ---- weights ------------------------------------------------------------------------------ */

/* 16 rows by 32 columns, unpacked: w = d * (u - offset) [+ m], d for each half of the columns. */
struct fm_block {
	uint8_t u[FM_BLOCK_COLUMNS / 4][FM_LANES][4];
	float d[2][FM_LANES], m[FM_LANES];
	int32_t offset;
	bool has_m, has_halves; /* !has_halves: d[1] is d[0] */
};

static inline void fm_generic_halves(float *out, const uint8_t *halves)
{
	for (int lane = 0; lane < FM_LANES; lane++) {
		uint16_t half;

		memcpy(&half, halves + 2 * lane, sizeof(half));
		out[lane] = fm_half_to_float(half);
	}
}

static inline void fm_generic_integers(enum fm_format format, const uint8_t *body,
				       struct fm_block *block)
{
	enum { HALF = 4 * FM_LANES * 4 }; /* bytes of 16 columns */
	const uint8_t *high = body + HALF;
	uint8_t *u = block->u[0][0];

	if (fm_formats[format].bits == 8) {
		memcpy(u, body, sizeof(block->u));
		return;
	}
	for (int i = 0; i < HALF; i++) {
		u[i] = body[i] & 15;
		u[i + HALF] = body[i] >> 4;
	}
	for (int i = 0; fm_format_has_values(format) && i < 2 * HALF; i++)
		u[i] = fm_format_values[u[i]];
	if (fm_formats[format].bits == 5)
		for (int i = 0; i < 2 * HALF; i++)
			u[i] |= (uint8_t)((high[i / 8] >> i % 8 & 1) << 4);
	if (fm_formats[format].bits == 6)
		for (int i = 0; i < 2 * HALF; i++)
			u[i] |= (uint8_t)((high[i % (HALF / 2)] >> i / (HALF / 2) * 2 & 3) << 4);
}

/* out[lane] *= factor, rounded: the scale that the format means. */
static inline void fm_generic_factors(float *out, const float *in, const uint8_t *factors)
{
	for (int lane = 0; lane < FM_LANES; lane++)
		out[lane] = in[lane] * (float)(int8_t)factors[lane];
}

static inline void fm_generic_block(enum fm_format format, const uint8_t *group, size_t index,
				    struct fm_block *block)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	const uint8_t *packed = fm_packed_block(format, group, &index);
	const uint8_t *factors = packed + fm_packed_factors_at(format, index);

	block->offset = traits->offset;
	block->has_m = traits->has_minimum;
	block->has_halves = traits->factors == 2;
	fm_generic_halves(block->d[0], packed);
	memset(block->m, 0, sizeof(block->m));
	if (traits->has_minimum)
		fm_generic_halves(block->m, packed + FM_PACKED_MINIMUM_AT);
	if (traits->factors == 2)
		fm_generic_factors(block->d[1], block->d[0], factors + FM_LANES);
	if (traits->factors)
		fm_generic_factors(block->d[0], block->d[0], factors);
	if (traits->factors != 2)
		memcpy(block->d[1], block->d[0], sizeof(block->d[0]));
	if (traits->factors && traits->has_minimum) {
		fm_generic_factors(block->m, block->m, factors + FM_LANES);
		for (int lane = 0; lane < FM_LANES; lane++)
			block->m[lane] = -block->m[lane]; /* stored to be subtracted */
	}
	fm_generic_integers(format, packed + fm_packed_body_at(format, index), block);
}

/* The same in float32, column after column: two roundings, d * q and + m, as GGUF readers do. */
static inline void fm_generic_block_float(enum fm_format format, const uint8_t *group, size_t index,
					  float (*w)[FM_LANES])
{
	const uint8_t *body = group + index * fm_packed_body_bytes(format);
	struct fm_block block;

	if (format == FM_FORMAT_F32) {
		memcpy(w, body, FM_BLOCK_COLUMNS * sizeof(*w));
		return;
	}
	if (format == FM_FORMAT_F16 || format == FM_FORMAT_BF16) {
		for (int column = 0; column < FM_BLOCK_COLUMNS; column++, body += 2 * FM_LANES) {
			if (format == FM_FORMAT_F16)
				fm_generic_halves(w[column], body);
			else
				for (int lane = 0; lane < FM_LANES; lane++)
					w[column][lane] = fm_bits_float(
						(uint32_t)body[2 * lane] << 16 |
						(uint32_t)body[2 * lane + 1] << 24);
		}
		return;
	}
	fm_generic_block(format, group, index, &block);
	for (int column = 0; column < FM_BLOCK_COLUMNS; column++) {
		const float *d = block.d[column / (FM_BLOCK_COLUMNS / 2)];

		for (int lane = 0; lane < FM_LANES; lane++) {
			int q = block.u[column / 4][lane][column % 4] - block.offset;
			float product = d[lane] * (float)q;

			w[column][lane] = block.has_m ? product + block.m[lane] : product;
		}
	}
}

FM_GENERIC void fm_generic_row(const struct fm_matrix *matrix, uint32_t row, float *out)
{
	const uint8_t *group = matrix->data + row / FM_LANES * matrix->group_bytes;
	float w[FM_BLOCK_COLUMNS][FM_LANES];

	for (size_t block = 0; block < matrix->columns / FM_BLOCK_COLUMNS; block++) {
		fm_generic_block_float(matrix->format, group, block, w);
		for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
			*out++ = w[i][row % FM_LANES];
	}
}

/* ---- matrix products ---------------------------------------------------------------------- */

static inline void fm_generic_store(const struct fm_matrix *matrix, size_t group, const float *sums,
				    float *out)
{
	size_t row = group * FM_LANES;
	size_t n = matrix->rows - row < FM_LANES ? matrix->rows - row : FM_LANES;

	memcpy(out + row, sums, n * sizeof(*out));
}

/* The exact integer dot of one row's quads first..end with one token of the tile. */
static inline int32_t fm_generic_dot(const struct fm_block *block, int lane,
				     const struct fm_tile *tile, bool is_fine, size_t token,
				     int first, int end)
{
	const int8_t *high = tile->q[0][token], *low = tile->q[1][token];
	int32_t dot = 0, low_dot = 0;

	for (int quad = first; quad < end; quad++)
		for (int i = 0; i < 4; i++)
			dot += block->u[quad][lane][i] * high[quad * 4 + i];
	if (!is_fine)
		return dot;
	for (int quad = first; quad < end; quad++)
		for (int i = 0; i < 4; i++)
			low_dot += block->u[quad][lane][i] * low[quad * 4 + i];
	return dot * 256 + low_dot;
}

static inline void fm_generic_accumulate(const struct fm_block *block, const struct fm_tile *tile,
					 bool is_fine, size_t token, float *sums)
{
	const int quads = FM_BLOCK_COLUMNS / 4, parts = block->has_halves ? 2 : 1;
	const uint32_t sum = (uint32_t)tile->sum[token], half_sum = (uint32_t)tile->half_sum[token];
	const uint32_t part_sums[2] = {block->has_halves ? half_sum : sum, sum - half_sum};

	for (int lane = 0; lane < FM_LANES; lane++) {
		for (int part = 0; part < parts; part++) {
			int32_t dot = fm_generic_dot(block, lane, tile, is_fine, token,
						     part * quads / parts,
						     (part + 1) * quads / parts);
			uint32_t raised = (uint32_t)block->offset * part_sums[part];

			dot = (int32_t)((uint32_t)dot - raised);
			sums[lane] = fmaf(block->d[part][lane] * tile->scale[token], (float)dot,
					  sums[lane]);
		}
		if (block->has_m)
			sums[lane] = fmaf(block->m[lane], tile->scaled_sum[token], sums[lane]);
	}
}

/* Which block a product takes next: always in the order of the columns. FM_PLANT_… is a fault that
 * the tests of the same bits must find (tests/suites/plants.py). */
static inline size_t fm_generic_next(size_t index, size_t n_blocks, size_t n_tokens)
{
#ifdef FM_PLANT_CHUNK_DEPENDENT_SUM
	return n_tokens > 1 ? n_blocks - 1 - index : index;
#endif
	(void)n_blocks;
	(void)n_tokens;
	return index;
}

FM_GENERIC void fm_generic_product_integer(const struct fm_matrix *matrix, size_t first_group,
					   size_t end_group, const struct fm_tile *tiles,
					   bool is_fine, size_t n_tokens, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;

	for (size_t group = first_group; group < end_group; group++) {
		for (size_t first = 0; first < n_tokens; first += FM_TILE_TOKENS) {
			const struct fm_tile *tile = tiles + first / FM_TILE_TOKENS * n_blocks;
			size_t n = n_tokens - first;
			float sums[FM_TILE_TOKENS][FM_LANES] = {{0}};

			n = n < FM_TILE_TOKENS ? n : FM_TILE_TOKENS;
			for (size_t step = 0; step < n_blocks; step++) {
				size_t index = fm_generic_next(step, n_blocks, n_tokens);
				struct fm_block block;

				fm_generic_block(matrix->format,
						 matrix->data + group * matrix->group_bytes, index,
						 &block);
				for (size_t token = 0; token < n; token++)
					fm_generic_accumulate(&block, tile + index, is_fine, token,
							      sums[token]);
			}
			for (size_t token = 0; token < n; token++)
				fm_generic_store(matrix, group, sums[token], out[first + token]);
		}
	}
}

FM_GENERIC void fm_generic_product_float(const struct fm_matrix *matrix, size_t first_group,
					 size_t end_group, const float *x, size_t n_tokens,
					 float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;

	for (size_t group = first_group; group < end_group; group++) {
		const uint8_t *data = matrix->data + group * matrix->group_bytes;

		for (size_t first = 0; first < n_tokens; first += FM_TILE_TOKENS) {
			size_t n = n_tokens - first;
			float sums[FM_TILE_TOKENS][FM_LANES] = {{0}};
			float w[FM_BLOCK_COLUMNS][FM_LANES];

			n = n < FM_TILE_TOKENS ? n : FM_TILE_TOKENS;
			for (size_t step = 0; step < n_blocks; step++) {
				size_t index = fm_generic_next(step, n_blocks, n_tokens);

				fm_generic_block_float(matrix->format, data, index, w);
				for (size_t token = 0; token < n; token++) {
					const float *column = x +
							      (first + token) * matrix->columns +
							      index * FM_BLOCK_COLUMNS;

					for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
						for (int lane = 0; lane < FM_LANES; lane++)
							sums[token][lane] =
								fmaf(w[i][lane], column[i],
								     sums[token][lane]);
				}
			}
			for (size_t token = 0; token < n; token++)
				fm_generic_store(matrix, group, sums[token], out[first + token]);
		}
	}
}

#include "generic_level.h"

/* All of the table but the level products, which each path but the portable one has its own of. */
#define FM_GENERIC_KERNELS                                                                         \
	.rms_norm = fm_generic_rms_norm, .add = fm_generic_add, .scale = fm_generic_scale,         \
	.rope = fm_generic_rope, .rope_halves = fm_generic_rope_halves,                            \
	.silu_multiply = fm_generic_silu_multiply, .gelu_multiply = fm_generic_gelu_multiply,      \
	.quantise = fm_generic_quantise, .store_kv = fm_generic_store_kv,                          \
	.attention = fm_generic_attention, .attention_part = fm_generic_attention_part,            \
	.attention_merge = fm_generic_attention_merge,                                             \
	.product_integer = fm_generic_product_integer,                                             \
	.quantise_level = fm_generic_quantise_level, .product_float = fm_generic_product_float,    \
	.row = fm_generic_row

#endif
