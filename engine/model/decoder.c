/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the architectures have in common: sizes, heads and rotary angles out of the metadata, and
 * the tensors of a decoder with gated feed-forward layers. Called by their files only. Invariant: a
 * key that an architecture knows is used or refused; one of another type than it should have is an
 * error.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/state.h"

/* ---- metadata ----------------------------------------------------------------------------- */

static int check_heads(const struct fm_model *model)
{
	const struct fm_model_info *info = &model->info;
	const char *path = gguf_path(model->file), *name = model->architecture;

	if (info->n_heads % info->n_kv_heads || info->n_heads / info->n_kv_heads > FM_GROUP_MAX)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: %s.attention.head_count %u is not 1 to %d times "
			       "%s.attention.head_count_kv %u",
			       path, name, info->n_heads, FM_GROUP_MAX, name, info->n_kv_heads);
	if (info->dim % FM_BLOCK_COLUMNS || info->ffn_dim % FM_BLOCK_COLUMNS)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: %s.embedding_length %u and %s.feed_forward_length %u must "
			       "be multiples of %d",
			       path, name, info->dim, name, info->ffn_dim, FM_BLOCK_COLUMNS);
	if (info->head_dim == 0 || info->head_dim % FM_BLOCK_COLUMNS ||
	    info->head_dim > FM_ATTENTION_HEAD_MAX)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: a head of %u dimensions (%s.embedding_length / "
			       "%s.attention.head_count or %s.attention.key_length) must be a "
			       "multiple of %d, at most %d",
			       path, info->head_dim, name, name, name, FM_BLOCK_COLUMNS,
			       FM_ATTENTION_HEAD_MAX);
	if (model->hyper.rope_dim % 2 || model->hyper.rope_dim > info->head_dim)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: %s.rope.dimension_count %u must be even and at most the head's "
			       "%u dimensions",
			       path, name, model->hyper.rope_dim, info->head_dim);
	return 0;
}

static int read_heads(struct fm_model *model)
{
	struct fm_model_info *info = &model->info;
	uint32_t value_dim;
	int error;

	if ((error = fm_key_u32(model, "attention.head_count", 1, FM_HEADS_MAX, &info->n_heads)))
		return error;
	info->n_kv_heads = info->n_heads;
	info->head_dim = info->dim / info->n_heads;
	if ((error = fm_key_optional_u32(model, "attention.head_count_kv", 1, info->n_heads,
					 &info->n_kv_heads)) ||
	    (error = fm_key_optional_u32(model, "attention.key_length", 1, FM_DIM_MAX,
					 &info->head_dim)))
		return error;
	value_dim = model->hyper.rope_dim = info->head_dim;
	if ((error = fm_key_optional_u32(model, "attention.value_length", 1, FM_DIM_MAX,
					 &value_dim)) ||
	    (error = fm_key_optional_u32(model, "rope.dimension_count", 1, FM_DIM_MAX,
					 &model->hyper.rope_dim)) ||
	    (error = check_heads(model)))
		return error;
	if (value_dim != info->head_dim)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: %s.attention.value_length %u differs from the keys' %u",
			       gguf_path(model->file), model->architecture, value_dim,
			       info->head_dim);
	model->hyper.group = info->n_heads / info->n_kv_heads;
	model->hyper.attention_scale = 1.0f / sqrtf((float)info->head_dim);
	return 0;
}

static int read_rope(struct fm_model *model)
{
	struct fm_rope *rope = &model->ropes[FM_ROPE_GLOBAL];
	struct gguf_string scaling = {.data = "none", .len = 4};
	char name[128];
	int error;

	*rope = (struct fm_rope){.theta = 10000.0f, .factor = 1.0f};
	model->n_ropes = 1;
	if ((error = fm_key_optional_f32(model, "rope.freq_base", &rope->theta)))
		return error;
	snprintf(name, sizeof(name), "%s.rope.scaling.type", model->architecture);
	if (gguf_has(model->file, name) && !gguf_get_string(model->file, name, &scaling))
		return fm_fail(FM_ERR_INVALID, "%s: key %s is no text", gguf_path(model->file),
			       name);
	if (scaling.len == 6 && !memcmp(scaling.data, "linear", 6))
		return fm_key_f32(model, "rope.scaling.factor", &rope->factor);
	if (scaling.len == 4 && !memcmp(scaling.data, "none", 4))
		return 0;
	return fm_fail(FM_ERR_UNSUPPORTED, "%s: %s is neither \"none\" nor \"linear\"",
		       gguf_path(model->file), name);
}

int fm_decoder_refuse(const struct fm_model *model, const char *key, const char *feature)
{
	char name[128];
	uint32_t number;
	float real;
	bool flag;

	snprintf(name, sizeof(name), "%s.%s", model->architecture, key);
	if (!gguf_has(model->file, name) ||
	    (gguf_get_u32(model->file, name, &number) && number == 0) ||
	    (gguf_get_f32(model->file, name, &real) && real == 0.0f) ||
	    (gguf_get_bool(model->file, name, &flag) && !flag))
		return 0;
	return fm_fail(FM_ERR_UNSUPPORTED, "%s: it has key %s: %s are not supported",
		       gguf_path(model->file), name, feature);
}

int fm_decoder_configure(struct fm_model *model)
{
	struct fm_model_info *info = &model->info;
	int error;

	if ((error = fm_key_u32(model, "block_count", 1, FM_LAYERS_MAX, &info->n_layers)) ||
	    (error = fm_key_u32(model, "embedding_length", 1, FM_DIM_MAX, &info->dim)) ||
	    (error = fm_key_u32(model, "feed_forward_length", 1, FM_DIM_MAX, &info->ffn_dim)) ||
	    (error = fm_key_u32(model, "context_length", 1, FM_CONTEXT_MAX,
				&info->context_length)) ||
	    (error = fm_key_f32(model, "attention.layer_norm_rms_epsilon",
				&model->hyper.rms_epsilon)) ||
	    (error = read_heads(model)) || (error = read_rope(model)))
		return error;
	return fm_decoder_refuse(model, "expert_count", "mixtures of experts");
}

/* ---- tensors ------------------------------------------------------------------------------ */

static int load_vectors(struct fm_model *model, struct fm_loader *loader, uint32_t i,
			const struct fm_layer_vector *vectors, size_t n)
{
	const struct fm_model_info *info = &model->info;
	const uint32_t sizes[] = {
		[FM_SIZE_DIM] = info->dim,
		[FM_SIZE_HEAD] = info->head_dim,
		[FM_SIZE_Q] = info->n_heads * info->head_dim,
		[FM_SIZE_KV] = info->n_kv_heads * info->head_dim,
	};
	uint8_t *layer = (uint8_t *)&model->weights.layers[i];
	char name[64];
	int error = 0;

	for (size_t j = 0; j < n && !error; j++) {
		snprintf(name, sizeof(name), "blk.%u.%s", i, vectors[j].name);
		error = fm_load_vector(loader, name, sizes[vectors[j].size],
				       (float **)(layer + vectors[j].offset));
	}
	return error;
}

static int load_matrices(struct fm_model *model, struct fm_loader *loader, uint32_t i)
{
	const struct fm_model_info *info = &model->info;
	const uint32_t q = info->n_heads * info->head_dim, kv = info->n_kv_heads * info->head_dim;
	struct fm_layer *layer = &model->weights.layers[i];
	const struct {
		const char *name;
		uint32_t rows, columns;
		struct fm_matrix *matrix;
	} matrices[] = {
		{"attn_q", q, info->dim, &layer->q},
		{"attn_k", kv, info->dim, &layer->k},
		{"attn_v", kv, info->dim, &layer->v},
		{"attn_output", info->dim, q, &layer->attention_output},
		{"ffn_gate", info->ffn_dim, info->dim, &layer->gate},
		{"ffn_up", info->ffn_dim, info->dim, &layer->up},
		{"ffn_down", info->dim, info->ffn_dim, &layer->down},
	};
	char name[64];
	int error = 0;

	for (size_t j = 0; j < sizeof(matrices) / sizeof(matrices[0]) && !error; j++) {
		snprintf(name, sizeof(name), "blk.%u.%s.weight", i, matrices[j].name);
		error = fm_load_level_matrix(loader, name, matrices[j].rows, matrices[j].columns,
					     matrices[j].matrix);
	}
	return error;
}

int fm_decoder_load(struct fm_model *model, struct fm_loader *loader,
		    const struct fm_layer_vector *vectors, size_t n_vectors)
{
	struct fm_model_info *info = &model->info;
	struct fm_weights *weights = &model->weights;
	const struct gguf_tensor *embedding = gguf_tensor(model->file, "token_embd.weight");
	int error;

	if (embedding && embedding->n_dims == 2 && embedding->dims[1] <= FM_VOCAB_MAX)
		info->vocab_size = (uint32_t)embedding->dims[1];
	error = fm_load_matrix(loader, "token_embd.weight", info->vocab_size, info->dim,
			       &weights->embedding);
	if (error)
		return error;
	weights->output = weights->embedding;
	if (gguf_tensor(model->file, "output.weight") &&
	    (error = fm_load_matrix(loader, "output.weight", info->vocab_size, info->dim,
				    &weights->output)))
		return error;
	if ((error = fm_load_vector(loader, "output_norm.weight", info->dim,
				    &weights->output_norm)))
		return error;
	for (uint32_t i = 0; i < info->n_layers; i++)
		if ((error = load_vectors(model, loader, i, vectors, n_vectors)) ||
		    (error = load_matrices(model, loader, i)))
			return error;
	return 0;
}
