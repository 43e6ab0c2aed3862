/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a small GGUF model with random weights, for tests that need a model but not a good one.
 * The same shape gives the same file. */
#ifndef FM_TESTS_TINY_MODEL_H
#define FM_TESTS_TINY_MODEL_H

#include <stdint.h>

#include "scratch.h"

struct tiny_model {
	const char *architecture; /* NULL: "llama" */
	uint32_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, vocab, context;
	uint32_t head_dim;     /* 0: dim / n_heads, and no key says so */
	uint32_t window;       /* 0: no key says so */
	float rope_theta;      /* 0: no key says so */
	float rope_factor;     /* 0: no scaling; else linear scaling */
	const char *extra_key; /* NULL, or a u32 key of value 4 more */
	const char *drop;      /* NULL, or the name of a tensor that is left out */
	/* Of the embedding, of attn_q, attn_k and attn_output, of attn_v, of the feed-forward
	 * matrices, and of the norms: each an enum ggml_type. */
	uint32_t embedding_type, matrix_type, value_type, ffn_type, norm_type;
};

/* Creates a file and writes its name to @path. Returns 0, or -1 with errno. */
int tiny_model_write(const struct tiny_model *shape, char path[SCRATCH_MAX]);

#endif
