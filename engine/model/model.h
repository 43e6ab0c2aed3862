/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loaded model and its forward pass. The rest of the engine sees weights only through this file.
 * The model never allocates KV memory: callers hand in block base addresses (pool blocks), the
 * model writes K and V of new tokens into them and attention reads them where they lie.
 * Invariant: the bits written and the logits returned for a token depend only on the model, the
 * precision, and the tokens before it; never on batch, chunk, thread count or instruction set.
 */
#ifndef FM_ENGINE_MODEL_H
#define FM_ENGINE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fabricmgr.h>

struct fm_kernels;
struct fm_model;
struct gguf;

enum fm_precision {
	FM_PRECISION_Q8,  /* activations in 8 bits with a scale for each 32, exact integer dots, and
			   * in 16 bits where that costs little */
	FM_PRECISION_Q16, /* activations in 16 bits everywhere, level products where formats allow:
			   * near float32, the programs' default */
	FM_PRECISION_F32, /* activations in float32 throughout */
};

struct fm_model_options {
	enum fm_precision precision;
	enum fm_element kv_element; /* FM_ELEMENT_F16 or FM_ELEMENT_F32 */
	unsigned int threads;	    /* 0: every CPU this process may use, at most 64 */
	const char *isa;	    /* NULL: the best; else a name of --isa */
	unsigned int tokens_per_block; /* 16 */
	bool is_timed;		       /* fm_model_times() is wanted */
};

/* What a forward pass spends its time on. */
enum fm_operation {
	FM_OPERATION_EMBED,
	FM_OPERATION_NORM,
	FM_OPERATION_QKV,
	FM_OPERATION_ROPE_STORE,
	FM_OPERATION_ATTENTION,
	FM_OPERATION_ATTENTION_OUTPUT,
	FM_OPERATION_GATE_UP,
	FM_OPERATION_GATE,
	FM_OPERATION_DOWN,
	FM_OPERATION_LOGITS,
	FM_OPERATION_COUNT,
};

struct fm_model_info {
	const char *architecture; /* owned by the model */
	const char *name;
	uint32_t tokens_per_block;
	uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, context_length;
	uint64_t weight_bytes;	  /* of all tensors, as stored in the file */
	uint64_t parameters;
	const char *isa;	  /* the path in use */
	const char *numerics_id;  /* e.g. "fm-cpu-3/q16/kv-f16": part of the namespace */
	unsigned int threads;	  /* that compute */
};

/*
 * Opens @path (a GGUF file), checks every tensor, and prepares its weights. Returns 0 or a negative
 * fm_err with fm_error_detail() naming file, cause and offset. The model is used by one thread at a
 * time; it owns its worker threads.
 */
int fm_model_open(const char *path, const struct fm_model_options *options, struct fm_model **out);
void fm_model_close(struct fm_model *model);

const struct fm_model_info *fm_model_info(const struct fm_model *model);
const struct gguf *fm_model_gguf(const struct fm_model *model); /* metadata: tokenizer, template */

/*
 * The namespace of the KV that this model writes: weights digest, layout, numerics id, position
 * encoding, @tenant_salt (may be NULL). See abi.md, "Names of what is cached".
 */
int fm_model_namespace(const struct fm_model *model, const char *tenant_salt,
		       struct fm_digest *out);

const char *fm_operation_name(enum fm_operation operation);
/* Whether it is one of the layers' matrix products. */
bool fm_operation_is_product(enum fm_operation operation);
/* Nanoseconds that each operation has taken since the model was opened, where options asked for
 * them: @out has FM_OPERATION_COUNT. */
void fm_model_times(const struct fm_model *model, uint64_t *out);
/* Which kernels compute: a benchmark asks them what they could do. */
const struct fm_kernels *fm_model_kernels(const struct fm_model *model);

/* Bytes of one KV block of tokens_per_block tokens: [layer][k|v][head][token][dim]. */
size_t fm_model_block_bytes(const struct fm_model *model);

/* One token of one sequence in a step. */
struct fm_token_in {
	uint32_t token;
	uint32_t position;	/* absolute, from 0 */
	void *const *blocks;	/* block base addresses; blocks[position / tokens_per_block] is
				 * writable, all before it are readable and full */
	float *logits;		/* NULL, or where vocab_size floats go */
};

/*
 * Runs the tokens of a step. Tokens of one sequence stand in order of position without gaps; a
 * token's KV is written before a later token of the same call attends to it. Any number of
 * sequences may be mixed. Returns 0, or FM_ERR_INVALID (token or position out of range).
 */
int fm_model_forward(struct fm_model *model, const struct fm_token_in *tokens, size_t n);

#endif
