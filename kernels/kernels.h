/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of operations that a forward pass is made of, and their exact arithmetic. The engine's
 * model files call them through one table that fm_kernels_select() hands out; nothing else may.
 * Kernels do no I/O, allocate nothing and keep no state. Invariant: every table gives the same bits
 * for the same input; the portable C in cpu/generic.h is the specification
 * (Documentation/design/arithmetic.md says it in words).
 */
#ifndef FM_KERNELS_H
#define FM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FM_LANES = 16,		  /* rows of a weight group; partial sums of a reduction */
	FM_BLOCK_COLUMNS = 32,	  /* columns that share a scale, in weights and activations */
	FM_TILE_TOKENS = 16,	  /* tokens of an activation tile */
	FM_LEVEL_COLUMNS = 64,	  /* columns of a level tile */
	FM_ATTENTION_TOKENS = 16, /* tokens of a KV block: the step of the online softmax */
	FM_ATTENTION_HEAD_MAX = 256,
	FM_ATTENTION_SEGMENT = 256, /* positions that are summed by themselves, then merged */
	FM_PART_VALUES = FM_LANES,  /* where a part's values begin */
};

/* ---- weights ------------------------------------------------------------------------------ */

/* As GGUF names them; kernels/cpu/formats.h says how each is stored and packed. */
enum fm_format {
	FM_FORMAT_F32,
	FM_FORMAT_F16,
	FM_FORMAT_BF16,
	FM_FORMAT_Q8_0, /* w = d * q,     q in -128..127 */
	FM_FORMAT_Q4_0, /* w = d * (q-8), q in 0..15 */
	FM_FORMAT_Q4_1, /* w = d * q + m, q in 0..15 */
	FM_FORMAT_Q5_0, /* w = d * (q-16), q in 0..31 */
	FM_FORMAT_Q5_1, /* w = d * q + m, q in 0..31 */
	FM_FORMAT_Q4_K, /* w = (d * s) * q - m * t, q in 0..15; s, t in 0..63 for 32 columns */
	FM_FORMAT_Q5_K, /* the same, q in 0..31 */
	FM_FORMAT_Q6_K, /* w = (d * s) * (q-32), q in 0..63; s in -128..127 for 16 columns */
	FM_FORMAT_IQ4_NL, /* w = d * v[q], one of 16 values in -127..113 */
	FM_FORMAT_COUNT,
};

/*
 * A matrix of @rows outputs and @columns inputs, repacked so that one vector holds 16 rows: group
 * after group of 16 rows, each group block after block of the format's columns. The last group is
 * filled up with zeros. A level one has integers for the scales of its blocks and one float for
 * each row, w ~ scale * (d * (q - offset) + m) in 16 bits: a row's sum is one of integers, then.
 */
struct fm_matrix {
	enum fm_format format;
	bool is_level;		/* for product_level; else for the other products and rows */
	uint32_t rows, columns; /* columns: a multiple of 32; of 256 for Q4_K, Q5_K, Q6_K */
	size_t group_bytes;
	uint8_t *data; /* aligned to 64; groups * group_bytes */
};

static inline size_t fm_matrix_groups(const struct fm_matrix *matrix)
{
	return (matrix->rows + FM_LANES - 1) / FM_LANES;
}

/* Bytes of a packed group of 16 rows, and of one row as GGUF stores it. */
size_t fm_format_group_bytes(enum fm_format format, uint32_t columns);
size_t fm_format_row_bytes(enum fm_format format, uint32_t columns);
/* The former for a level matrix, and which formats may be level. */
size_t fm_format_level_group_bytes(enum fm_format format, uint32_t columns);
bool fm_format_may_be_level(enum fm_format format);
const char *fm_format_name(enum fm_format format);
/* The format with this number in GGUF files; false when there is none. */
bool fm_format_find(uint32_t gguf_type, enum fm_format *out);
/* True when the format's products may take 8-bit activations; else float32 activations are used. */
bool fm_format_is_quantised(enum fm_format format);
/* Packs groups first_group..end_group of @matrix, whose data is zero there, from rows as GGUF
 * stores them (all of the tensor). */
void fm_matrix_pack(const struct fm_matrix *matrix, const void *tensor, size_t first_group,
		    size_t end_group);
/* A vector of a format of floats (F32, F16, BF16) in float32; exact. */
void fm_vector_unpack(enum fm_format format, const void *tensor, size_t n, float *out);

/* ---- activations -------------------------------------------------------------------------- */

/*
 * 32 columns of up to 16 tokens in integers: x ~ scale * (256 * q[0] + q[1]) when fine, else
 * scale * q[0]. A matrix product takes tiles in the order [token / 16][column / 32].
 */
struct fm_tile {
	int8_t q[2][FM_TILE_TOKENS][FM_BLOCK_COLUMNS];
	float scale[FM_TILE_TOKENS];
	float scaled_sum[FM_TILE_TOKENS]; /* scale * (float)sum */
	int32_t sum[FM_TILE_TOKENS];	  /* of the integers, exact */
	int32_t half_sum[FM_TILE_TOKENS]; /* of those of the first 16 columns */
} __attribute__((aligned(64)));

/*
 * The same for level matrices, 64 columns of up to 16 tokens: x ~ scale * (256 * q[0] + q[1]), with
 * one scale for all of a token's columns. Columns beyond the last are zeros. Tiles stand in the
 * order [token / 16][column / 64].
 */
struct fm_level_tile {
	int8_t q[2][FM_TILE_TOKENS][FM_LEVEL_COLUMNS];
	/* Of q[0] and q[1], of the first and the last 32 columns; the second number stays 0. */
	int16_t sum[2][2][FM_TILE_TOKENS][2];
} __attribute__((aligned(64)));

static inline size_t fm_level_tiles(uint32_t columns)
{
	return (columns + FM_LEVEL_COLUMNS - 1) / FM_LEVEL_COLUMNS;
}

/* ---- attention ---------------------------------------------------------------------------- */

/* The query heads that share a KV head, of tokens next to each other in one sequence and one KV
 * block. A block's bytes at key_offset hold that head's keys of one layer, [token][dim], elements
 * of half or float; likewise its values. */
struct fm_attention {
	uint32_t n_heads, head_dim; /* head_dim: a multiple of 32, at most FM_ATTENTION_HEAD_MAX */
	uint32_t position;	    /* of the first token, which attends to all up to its own */
	uint32_t n_tokens;	    /* all in one block: of FM_ATTENTION_TOKENS positions */
	uint32_t window; /* 0, or how many positions a token attends to: its own and those before */
	size_t stride;	 /* floats from one token's q, or out, to the next one's */
	bool is_half;
	float scale;
	void *const *blocks;
	size_t key_offset, value_offset;
};

/* The first position that the token at @position attends to. */
static inline size_t fm_attention_start(const struct fm_attention *attention, size_t position)
{
	size_t n = position + 1;

	return attention->window && n > attention->window ? n - attention->window : 0;
}

/*
 * What one segment gives a query head, before it is merged with the others: the largest score, the
 * sum of the weights relative to it, unused floats up to FM_PART_VALUES, and head_dim sums of
 * weighted values. Parts of a KV head stand in the order [segment][query head].
 */
static inline size_t fm_attention_part_floats(uint32_t head_dim)
{
	return FM_PART_VALUES + head_dim;
}

/* Segments up to that of a token at @position; and the first of them that it attends to. */
static inline size_t fm_attention_segments(size_t position)
{
	return position / FM_ATTENTION_SEGMENT + 1;
}

static inline size_t fm_attention_first_segment(const struct fm_attention *attention,
						size_t position)
{
	return fm_attention_start(attention, position) / FM_ATTENTION_SEGMENT;
}

/* ---- the table ---------------------------------------------------------------------------- */

struct fm_kernels {
	const char *isa;

	/* out[i] = x[i] * (1 / sqrt(mean of squares + epsilon)) * weight[i]; n is a multiple of
	 * 16; out may be x */
	void (*rms_norm)(float *out, const float *x, const float *weight, size_t n, float epsilon);
	/* x[i] += y[i] */
	void (*add)(float *x, const float *y, size_t n);
	/* x[i] *= factor */
	void (*scale)(float *x, float factor, size_t n);
	/* Turns adjacent pairs of each head by the angles in @table: cosine, sine for each pair. */
	void (*rope)(float *x, const float *table, size_t n_heads, size_t head_dim,
		     size_t rope_dim);
	/* The same for pairs half of rope_dim apart. */
	void (*rope_halves)(float *x, const float *table, size_t n_heads, size_t head_dim,
			    size_t rope_dim);
	/* gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i] */
	void (*silu_multiply)(float *gate, const float *up, size_t n);
	/* gate[i] = gelu(gate[i]) * up[i], gelu by its tanh formula */
	void (*gelu_multiply)(float *gate, const float *up, size_t n);
	/* Writes row @token of the tiles of one tile row: tiles[0..n / 32). */
	void (*quantise)(struct fm_tile *tiles, size_t token, const float *x, size_t n,
			 bool is_fine);
	void (*store_kv)(void *to, const float *from, size_t n, bool is_half);
	/* q and out of a token: [n_heads][head_dim] */
	void (*attention)(const struct fm_attention *attention, const float *q, float *out);
	/* The same for one token in pieces, which may be computed anywhere: a part of each query
	 * head, of the segments from the first one on that it attends to; then all of them, merged
	 * in order. */
	void (*attention_part)(const struct fm_attention *attention, size_t segment, const float *q,
			       float *parts);
	void (*attention_merge)(const struct fm_attention *attention, const float *parts,
				float *out);
	/* out[token][row] for the rows of the groups; each row's sum in block order. */
	void (*product_integer)(const struct fm_matrix *matrix, size_t first_group,
				size_t end_group, const struct fm_tile *tiles, bool is_fine,
				size_t n_tokens, float *const *out);
	/* Writes row @token of the level tiles of one tile row, and the row's scale. */
	void (*quantise_level)(struct fm_level_tile *tiles, size_t token, const float *x, size_t n,
			       float *scale);
	/* out[token][row] of a level matrix: integers, exact, then the two scales. */
	void (*product_level)(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			      const struct fm_level_tile *tiles, const float *scales,
			      size_t n_tokens, float *const *out);
	/* The same with float32 activations x[token][columns]; each row's sum in column order. */
	void (*product_float)(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			      const float *x, size_t n_tokens, float *const *out);
	/* One row of the matrix in float32: the embedding of a token. */
	void (*row)(const struct fm_matrix *matrix, uint32_t row, float *out);
	/* What the machine could do: @rounds of the path's integer dot instructions (VPDPBUSD) on
	 * registers alone. Returns how many multiply-adds that were; NULL where a path has none. */
	uint64_t (*integer_peak)(size_t rounds);
};

/* @isa: NULL for the best, or "portable", "avx2", "avx512", "amx". FM_ERR_UNSUPPORTED names what
 * lacks. Choosing AMX asks Linux for it, once for the whole process. */
int fm_kernels_select(const char *isa, const struct fm_kernels **out);

#endif
