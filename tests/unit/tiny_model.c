/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of small GGUF models, of types that the test chooses. Called by tests only. The same
 * shape gives the same bytes.
 */
#include "tiny_model.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cpu/formats.h>
#include <model/gguf.h>

struct writer {
	FILE *file;
	const struct tiny_model *shape;
	uint64_t offset, seed;
	uint32_t n_tensors, n_keys;
	int phase; /* 0: counts, 1: names, 2: data */
};

static void put(struct writer *out, const void *data, size_t n)
{
	fwrite(data, 1, n, out->file);
}

static void put_u32(struct writer *out, uint32_t value)
{
	put(out, &value, sizeof(value));
}

static void put_u64(struct writer *out, uint64_t value)
{
	put(out, &value, sizeof(value));
}

static void put_string(struct writer *out, const char *text)
{
	put_u64(out, strlen(text));
	put(out, text, strlen(text));
}

static const char *architecture(const struct tiny_model *shape)
{
	return shape->architecture ? shape->architecture : "llama";
}

/* The name of a key of the architecture and its type. False: only counting. */
static bool key_begins(struct writer *out, const char *key, enum gguf_type type)
{
	char name[128];

	out->n_keys++;
	if (out->phase != 1)
		return false;
	snprintf(name, sizeof(name), "%s.%s", architecture(out->shape), key);
	put_string(out, name);
	put_u32(out, type);
	return true;
}

static void key_u32(struct writer *out, const char *key, uint32_t value)
{
	if (key_begins(out, key, GGUF_U32))
		put_u32(out, value);
}

static void key_f32(struct writer *out, const char *key, float value)
{
	if (key_begins(out, key, GGUF_F32))
		put(out, &value, sizeof(value));
}

static void key_string(struct writer *out, const char *key, const char *value)
{
	if (key_begins(out, key, GGUF_STRING))
		put_string(out, value);
}

static uint8_t random_byte(struct writer *out)
{
	out->seed = out->seed * 6364136223846793005u + 1442695040888963407u;
	return (uint8_t)(out->seed >> 40);
}

/* The half floats that begin a block: weights become about 0.1. */
static uint16_t scale_of(uint32_t type)
{
	return type == GGML_Q8_0			? 0x1400
	       : type == GGML_Q5_0 || type == GGML_Q5_1 ? 0x2000
	       : type == GGML_Q4_K			? 0x1000
	       : type == GGML_Q5_K			? 0x0c00
	       : type == GGML_Q6_K			? 0x068e
	       : type == GGML_IQ4_NL			? 0x1400
							: 0x2400;
}

static void put_block(struct writer *out, uint32_t type, const struct fm_format_traits *traits)
{
	uint8_t block[256];
	uint16_t scale = scale_of(type), minimum = traits->factors ? 0x1b80 : 0xa8c0;

	for (size_t i = 0; i < sizeof(block); i++)
		block[i] = random_byte(out);
	for (int i = 0; type == GGML_F32 && i < 32; i++)
		memcpy(block + 4 * i, &(float){(float)block[i] / 256.0f + 0.5f}, 4);
	for (int i = 0; type == GGML_F16 && i < 32; i++)
		block[2 * i + 1] = (uint8_t)(0x2c | (block[2 * i + 1] & 0x83));
	for (int i = 0; type == GGML_BF16 && i < 32; i++)
		block[2 * i + 1] = (uint8_t)(0x3d | (block[2 * i + 1] & 0x80));
	if (traits->bits < 16)
		memcpy(block + (type == GGML_Q6_K ? 208 : 0), &scale, 2);
	if (traits->has_minimum)
		memcpy(block + 2, &minimum, 2);
	put(out, block, traits->file_bytes);
}

static const struct fm_format_traits *traits_of(uint32_t type)
{
	enum fm_format format;

	if (!fm_format_find(type, &format))
		abort();
	return &fm_formats[format];
}

/* @rows 0: a vector. */
static void tensor(struct writer *out, const char *name, uint32_t type, uint32_t columns,
		   uint32_t rows)
{
	const struct fm_format_traits *traits = traits_of(type);
	/* Rounded up: some tests want rows that are no multiple of a block. */
	uint64_t n = ((uint64_t)columns + traits->file_columns - 1) / traits->file_columns *
		     (rows ? rows : 1);

	if (out->shape->drop && !strcmp(out->shape->drop, name))
		return;
	out->n_tensors++;
	if (out->phase == 1) {
		put_string(out, name);
		put_u32(out, rows ? 2 : 1);
		put_u64(out, columns);
		if (rows)
			put_u64(out, rows);
		put_u32(out, type);
		put_u64(out, out->offset);
	}
	out->offset += (n * traits->file_bytes + 31) / 32 * 32;
	if (out->phase == 2) {
		for (uint64_t i = 0; i < n; i++)
			put_block(out, type, traits);
		while (ftell(out->file) % 32)
			fputc(0, out->file);
	}
}

static void keys(struct writer *out)
{
	const struct tiny_model *shape = out->shape;

	out->n_keys++;
	if (out->phase == 1) {
		put_string(out, "general.architecture");
		put_u32(out, GGUF_STRING);
		put_string(out, architecture(shape));
	}
	key_f32(out, "attention.layer_norm_rms_epsilon", 1e-5f);
	key_u32(out, "block_count", shape->n_layers);
	key_u32(out, "embedding_length", shape->dim);
	key_u32(out, "feed_forward_length", shape->ffn_dim);
	key_u32(out, "attention.head_count", shape->n_heads);
	key_u32(out, "attention.head_count_kv", shape->n_kv_heads);
	key_u32(out, "context_length", shape->context);
	if (shape->head_dim)
		key_u32(out, "attention.key_length", shape->head_dim);
	if (shape->window)
		key_u32(out, "attention.sliding_window", shape->window);
	if (shape->rope_theta != 0.0f)
		key_f32(out, "rope.freq_base", shape->rope_theta);
	if (shape->rope_factor != 0.0f) {
		key_string(out, "rope.scaling.type", "linear");
		key_f32(out, "rope.scaling.factor", shape->rope_factor);
	}
	if (shape->extra_key)
		key_u32(out, shape->extra_key, 4);
}

static void layer_tensor(struct writer *out, uint32_t layer, const char *name, uint32_t type,
			 uint32_t columns, uint32_t rows)
{
	char full[64];

	snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
	tensor(out, full, type, columns, rows);
}

/* What one architecture has and another has not. Biases: small halves of either sign. */
static void own_tensors(struct writer *out, uint32_t i, uint32_t q, uint32_t kv, uint32_t head)
{
	const struct tiny_model *shape = out->shape;
	const char *name = architecture(shape);

	if (!strcmp(name, "qwen2")) {
		layer_tensor(out, i, "attn_q.bias", GGML_F16, q, 0);
		layer_tensor(out, i, "attn_k.bias", GGML_F16, kv, 0);
		layer_tensor(out, i, "attn_v.bias", GGML_F16, kv, 0);
	}
	if (!strcmp(name, "qwen3") || !strcmp(name, "gemma3")) {
		layer_tensor(out, i, "attn_q_norm.weight", shape->norm_type, head, 0);
		layer_tensor(out, i, "attn_k_norm.weight", shape->norm_type, head, 0);
	}
	if (!strcmp(name, "gemma3")) {
		layer_tensor(out, i, "post_attention_norm.weight", shape->norm_type, shape->dim, 0);
		layer_tensor(out, i, "post_ffw_norm.weight", shape->norm_type, shape->dim, 0);
	}
}

static void tensors(struct writer *out)
{
	const struct tiny_model *shape = out->shape;
	const uint32_t dim = shape->dim, type = shape->matrix_type;
	const uint32_t head = shape->head_dim ? shape->head_dim : dim / shape->n_heads;
	const uint32_t q = head * shape->n_heads, kv = head * shape->n_kv_heads;

	tensor(out, "token_embd.weight", shape->embedding_type, dim, shape->vocab);
	tensor(out, "output_norm.weight", shape->norm_type, dim, 0);
	for (uint32_t i = 0; i < shape->n_layers; i++) {
		layer_tensor(out, i, "attn_norm.weight", shape->norm_type, dim, 0);
		layer_tensor(out, i, "ffn_norm.weight", shape->norm_type, dim, 0);
		own_tensors(out, i, q, kv, head);
		layer_tensor(out, i, "attn_q.weight", type, dim, q);
		layer_tensor(out, i, "attn_k.weight", type, dim, kv);
		layer_tensor(out, i, "attn_v.weight", shape->value_type, dim, kv);
		layer_tensor(out, i, "attn_output.weight", type, q, dim);
		layer_tensor(out, i, "ffn_gate.weight", shape->ffn_type, dim, shape->ffn_dim);
		layer_tensor(out, i, "ffn_up.weight", shape->ffn_type, dim, shape->ffn_dim);
		layer_tensor(out, i, "ffn_down.weight", shape->ffn_type, shape->ffn_dim, dim);
	}
}

int tiny_model_write(const struct tiny_model *shape, char path[SCRATCH_MAX])
{
	struct writer out = {.shape = shape};
	int fd;

	keys(&out);
	tensors(&out);
	fd = scratch_file(path);
	out.file = fdopen(fd, "w");
	if (!out.file)
		return -1;
	put(&out, "GGUF", 4);
	put_u32(&out, 3);
	put_u64(&out, out.n_tensors);
	put_u64(&out, out.n_keys);
	out.phase = 1;
	out.offset = 0;
	keys(&out);
	tensors(&out);
	while (ftell(out.file) % 32)
		fputc(0, out.file);
	out.phase = 2;
	tensors(&out);
	return fclose(out.file);
}
