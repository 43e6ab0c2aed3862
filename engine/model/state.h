/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a loaded model share: its weights, the buffers of a step, and the steps that a
 * forward pass is written in. For engine/model only. Invariant: buffers hold one sub-batch of at
 * most FM_BATCH_TOKENS tokens, and nothing in them outlives the call that filled them.
 */
#ifndef FM_ENGINE_MODEL_STATE_H
#define FM_ENGINE_MODEL_STATE_H

#include <kernels.h>

#include "model/gguf.h"
#include "model/model.h"
#include "model/threads.h"

enum {
	FM_BATCH_TOKENS = 256, /* tokens computed at once: their activations stay in the L2 cache */
	FM_LAYERS_MAX = 1024,
	FM_DIM_MAX = 65536,
	FM_VOCAB_MAX = 1 << 22,
	FM_CONTEXT_MAX = 1 << 24,
	FM_HEADS_MAX = 1024,
	FM_GROUP_MAX = 64,   /* query heads for a KV head */
	FM_PARTS_MAX = 1024, /* of attention that wait to be merged: segments of all KV heads */
};

/* ---- weights ------------------------------------------------------------------------------ */

/* What an architecture does not have is NULL or 0. */
struct fm_layer {
	float *attention_norm, *ffn_norm;
	float *attention_post_norm, *ffn_post_norm; /* of what attention and gates give */
	float *q_norm, *k_norm;			    /* of each head */
	float *q_bias, *k_bias, *v_bias;
	struct fm_matrix q, k, v, attention_output;
	struct fm_matrix gate, up, down;
	uint32_t window; /* positions that a token attends to; 0: all */
	uint32_t rope;	 /* which of the model's angles */
};

struct fm_weights {
	struct fm_matrix embedding;
	struct fm_matrix output; /* the embedding's data when the two are tied */
	float *output_norm;
	struct fm_layer *layers;
};

/* One arena holds all packed weights; filled in two passes, the first of which only adds up. */
struct fm_loader {
	const struct gguf *file;
	struct fm_threads *threads;
	bool may_be_level;
	uint8_t *arena;	  /* NULL in the first pass */
	size_t used;	  /* bytes so far */
	size_t n_tensors; /* asked for so far */
	uint64_t parameters, file_bytes;
};

/* A tensor that must be in the file with exactly this shape, packed. */
int fm_load_matrix(struct fm_loader *loader, const char *name, uint32_t rows, uint32_t columns,
		   struct fm_matrix *out);
/* The same, level where the model's precision and the format allow it: not for rows. */
int fm_load_level_matrix(struct fm_loader *loader, const char *name, uint32_t rows,
			 uint32_t columns, struct fm_matrix *out);
/* A vector of F32, F16 or BF16 that must be in the file, in float32; @n is a multiple of 32. */
int fm_load_vector(struct fm_loader *loader, const char *name, uint32_t n, float **out);
int fm_arena_create(size_t bytes, uint8_t **out);
void fm_arena_destroy(uint8_t *arena, size_t bytes);

/* ---- the model ---------------------------------------------------------------------------- */

struct fm_hyperparameters {
	float rms_epsilon, attention_scale;
	uint32_t rope_dim;
	bool turns_halves; /* rotary pairs stand half of rope_dim apart; else next to each other */
	uint32_t group;	   /* query heads for a KV head */
	uint32_t window;   /* of the layers that have one; 0: none has */
};

/* Rotary angles: position / factor * theta^(-2 pair / dims). */
struct fm_rope {
	float theta, factor;
	float *table; /* [position][pair][cosine, sine] */
};

enum {
	FM_ROPE_GLOBAL, /* of layers that attend to all */
	FM_ROPE_LOCAL,	/* of others, where they have angles of their own */
	FM_ROPES,
};

/* Rows of floats, one for each token of the sub-batch. */
struct fm_rows {
	float *data;
	float **rows;
	uint32_t columns;
};

/* Integer activations of the rows of a matrix product: [token / 16][column / 32], and those for
 * level matrices: [token / 16][column / 64]. NULL when no matrix takes them. */
struct fm_tiles {
	struct fm_tile *data;
	struct fm_level_tile *level;
	float *level_scales; /* of each token */
	uint32_t columns;
	bool is_fine;
};

/* Whose activations take 16 bits instead of 8 in precision q8 (Documentation/design/arithmetic.md
 * has the figures). */
enum {
	FM_FINE_NORMED = 0,
	FM_FINE_HEADS = 0,
	FM_FINE_GATE = 1,
	FM_FINE_OUTPUT = 1,
};

/* Tokens first..first + n of the sub-batch stand next to each other in one KV block. Attention
 * computes the n_segments of a lone token each by itself, into parts from first_part on, [KV
 * head][segment]; or, with n_segments 0, all of a run at once. */
struct fm_run {
	uint32_t first, n;
	uint32_t n_segments, first_part;
};

/* What one KV head of a run is cut into. */
struct fm_piece {
	uint32_t run, segment;
};

struct fm_buffers {
	size_t capacity; /* tokens */
	struct fm_rows x, normed, q, k, v, heads, gate, up, product;
	struct fm_tiles normed_tiles, heads_tiles, gate_tiles, output_tiles;
	const struct fm_token_in **tokens; /* of the sub-batch */
	float **logits;			   /* of the tokens that asked for them */
	uint32_t *logits_token;
	struct fm_run *runs; /* of the sub-batch: attention goes by them */
	struct fm_piece *pieces; /* of the runs, by which work is shared */
	float *parts;		 /* [part][query head of the KV head] */
	size_t n, n_logits, n_runs, n_pieces;
};

struct fm_model {
	struct gguf *file;
	struct fm_model_options options;
	struct fm_model_info info;
	struct fm_hyperparameters hyper;
	const struct fm_kernels *kernels;
	struct fm_threads *threads;
	struct fm_weights weights;
	void (*forward)(struct fm_model *model); /* the architecture's */
	uint8_t *arena;
	size_t arena_bytes;
	struct fm_buffers buffers;
	struct fm_rope ropes[FM_ROPES];
	uint32_t n_ropes, rope_positions;
	char *architecture, *name;
	char numerics_id[32];
	char position_encoding[128];
	uint64_t times[FM_OPERATION_COUNT], lap; /* nanoseconds; when the last operation ended */
	struct fm_digest digest; /* of the weights, once asked for */
	bool has_digest;
};

/* ---- buffers ------------------------------------------------------------------------------ */

int fm_buffers_reserve(struct fm_model *model, size_t n_tokens);
void fm_buffers_destroy(struct fm_buffers *buffers);
/* Makes the tables of angles reach @position. */
int fm_rope_reserve(struct fm_model *model, uint32_t position);

/* ---- steps: each works on the whole sub-batch, on all threads ------------------------------ */

/* What went by since the last lap was spent on @operation; every step ends with it. */
void fm_lap(struct fm_model *model, enum fm_operation operation);
/* Begins to measure. */
void fm_lap_start(struct fm_model *model);

/* x = the tokens' embeddings */
void fm_step_embed(struct fm_model *model);
/* x *= factor */
void fm_step_scale(struct fm_model *model, float factor);
/* x += product when @add; normed = rms_norm(x), also in integers */
void fm_step_norm(struct fm_model *model, const float *weight, bool add);
/* q, k, v = normed */
void fm_step_qkv(struct fm_model *model, const struct fm_layer *layer);
/* q, k, v += the layer's biases */
void fm_step_qkv_bias(struct fm_model *model, const struct fm_layer *layer);
/* Each head of q and k = rms_norm of it */
void fm_step_head_norms(struct fm_model *model, const struct fm_layer *layer);
/* Turns q and k by position, and writes k and v into the tokens' KV blocks. */
void fm_step_rope_store(struct fm_model *model, uint32_t layer);
/* heads = attention over the KV blocks, also in integers: pieces, then what merges them */
void fm_step_attention(struct fm_model *model, uint32_t layer);
/* product = matrix * heads */
void fm_step_attention_output(struct fm_model *model, const struct fm_layer *layer);
/* product = rms_norm(product) */
void fm_step_post_norm(struct fm_model *model, const float *weight);
/* gate, up = normed */
void fm_step_gate_up(struct fm_model *model, const struct fm_layer *layer);
/* gate = silu(gate) * up, also in integers */
void fm_step_silu(struct fm_model *model);
/* gate = gelu(gate) * up, also in integers */
void fm_step_gelu(struct fm_model *model);
/* product = down * gate */
void fm_step_down(struct fm_model *model, const struct fm_layer *layer);
/* x += product, the last norm, and logits, for the tokens that ask for them */
void fm_step_logits(struct fm_model *model);

/* ---- architectures: one file each ---------------------------------------------------------- */

struct fm_architecture {
	const char *name; /* general.architecture */
	/* Reads and checks the metadata into info and hyper. */
	int (*configure)(struct fm_model *model);
	int (*load)(struct fm_model *model, struct fm_loader *loader);
	/* The sub-batch that stands in the buffers. */
	void (*forward)(struct fm_model *model);
};

extern const struct fm_architecture fm_architecture_llama, fm_architecture_qwen2,
	fm_architecture_qwen3, fm_architecture_gemma3;

/* ---- what they share (decoder.c) ------------------------------------------------------------ */

/* How long a vector of a layer is. */
enum fm_vector_size { FM_SIZE_DIM, FM_SIZE_HEAD, FM_SIZE_Q, FM_SIZE_KV };

/* A vector of each layer: tensor blk.N.@name, to the float * at @offset of struct fm_layer. */
struct fm_layer_vector {
	const char *name;
	enum fm_vector_size size;
	size_t offset;
};

#define FM_LAYER_VECTOR(name, size, member)                                                        \
	{                                                                                          \
		name, size, offsetof(struct fm_layer, member)                                      \
	}

/* Sizes, heads and rotary angles from the metadata; all layers attend to everything. */
int fm_decoder_configure(struct fm_model *model);
/* Embedding, output and all layers: the seven matrices of each, and its @vectors. */
int fm_decoder_load(struct fm_model *model, struct fm_loader *loader,
		    const struct fm_layer_vector *vectors, size_t n_vectors);
/* Fails when the key is there and neither 0 nor false: a feature that the graph does not have. */
int fm_decoder_refuse(const struct fm_model *model, const char *key, const char *feature);

/* The SHA-256 of the model's file, from the cache of digests where that is current. */
int fm_file_digest(const char *path, struct fm_digest *out);

/* Metadata of the architecture: "<architecture>.<key>", named in the error when absent. */
int fm_key_u32(const struct fm_model *model, const char *key, uint32_t low, uint32_t high,
	       uint32_t *out);
int fm_key_f32(const struct fm_model *model, const char *key, float *out);
/* The same for keys that may be absent, when *@out stays. */
int fm_key_optional_u32(const struct fm_model *model, const char *key, uint32_t low, uint32_t high,
			uint32_t *out);
int fm_key_optional_f32(const struct fm_model *model, const char *key, float *out);

#endif
