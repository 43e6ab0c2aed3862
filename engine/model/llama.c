/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Llama family (Llama, SmolLM, Mistral): its metadata, its tensors, and its forward pass in
 * order. Called by model.c through the table at the end. Invariant: what a file asks for and this
 * graph does not do is refused when the file is opened, never ignored.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/state.h"

static void llama_forward(struct fm_model *model)
{
	const struct fm_layer *layer = model->weights.layers;

	fm_step_embed(model);
	for (uint32_t i = 0; i < model->info.n_layers; i++, layer++) {
		fm_step_norm(model, layer->attention_norm, i > 0);
		fm_step_qkv(model, layer);
		fm_step_rope_store(model, i);
		fm_step_attention(model, i);
		fm_step_attention_output(model, layer);
		fm_step_norm(model, layer->ffn_norm, true);
		fm_step_gate_up(model, layer);
		fm_step_silu(model);
		fm_step_down(model, layer);
	}
	fm_step_logits(model);
}

static int check_heads(const struct fm_model *model)
{
	const struct fm_model_info *info = &model->info;
	const char *path = gguf_path(model->file);

	if (info->n_heads % info->n_kv_heads || info->n_heads / info->n_kv_heads > FM_GROUP_MAX)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: llama.attention.head_count %u is not 1 to %d times "
			       "llama.attention.head_count_kv %u",
			       path, info->n_heads, FM_GROUP_MAX, info->n_kv_heads);
	if (info->dim % FM_BLOCK_COLUMNS || info->ffn_dim % FM_BLOCK_COLUMNS)
		return fm_fail(
			FM_ERR_UNSUPPORTED,
			"%s: llama.embedding_length %u and llama.feed_forward_length %u must "
			"be multiples of %d",
			path, info->dim, info->ffn_dim, FM_BLOCK_COLUMNS);
	if (info->head_dim % FM_BLOCK_COLUMNS || info->head_dim > FM_ATTENTION_HEAD_MAX)
		return fm_fail(
			FM_ERR_UNSUPPORTED,
			"%s: a head of %u dimensions (llama.embedding_length / "
			"llama.attention.head_count or llama.attention.key_length) must be a "
			"multiple of %d, at most %d",
			path, info->head_dim, FM_BLOCK_COLUMNS, FM_ATTENTION_HEAD_MAX);
	if (model->hyper.rope_dim % 2 || model->hyper.rope_dim > info->head_dim)
		return fm_fail(
			FM_ERR_UNSUPPORTED,
			"%s: llama.rope.dimension_count %u must be even and at most the head's "
			"%u dimensions",
			path, model->hyper.rope_dim, info->head_dim);
	return 0;
}

/* Features of the family that this graph does not have. */
static int check_absent(const struct fm_model *model)
{
	struct gguf_string scaling;
	uint32_t value;

	if (gguf_get_string(model->file, "llama.rope.scaling.type", &scaling) &&
	    !(scaling.len == 4 && !memcmp(scaling.data, "none", 4)))
		return fm_fail(
			FM_ERR_UNSUPPORTED,
			"%s: llama.rope.scaling.type is \"%.*s\": only \"none\" is supported",
			gguf_path(model->file), (int)(scaling.len < 64 ? scaling.len : 64),
			scaling.data);
	if (gguf_get_u32(model->file, "llama.expert_count", &value) && value > 0)
		return fm_fail(
			FM_ERR_UNSUPPORTED,
			"%s: llama.expert_count is %u: mixtures of experts are not supported",
			gguf_path(model->file), value);
	if (gguf_get_u32(model->file, "llama.attention.sliding_window", &value) && value > 0)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: llama.attention.sliding_window is %u: sliding windows are not "
			       "supported",
			       gguf_path(model->file), value);
	if (gguf_get_u32(model->file, "llama.attention.value_length", &value) &&
	    value != model->info.head_dim)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: llama.attention.value_length %u differs from the keys' %u",
			       gguf_path(model->file), value, model->info.head_dim);
	return 0;
}

static int llama_configure(struct fm_model *model)
{
	struct fm_model_info *info = &model->info;
	int error;

	if ((error = fm_key_u32(model, "block_count", 1, FM_LAYERS_MAX, &info->n_layers)) ||
	    (error = fm_key_u32(model, "embedding_length", 1, FM_DIM_MAX, &info->dim)) ||
	    (error = fm_key_u32(model, "feed_forward_length", 1, FM_DIM_MAX, &info->ffn_dim)) ||
	    (error = fm_key_u32(model, "attention.head_count", 1, FM_HEADS_MAX, &info->n_heads)) ||
	    (error = fm_key_u32(model, "context_length", 1, FM_CONTEXT_MAX,
				&info->context_length)) ||
	    (error = fm_key_f32(model, "attention.layer_norm_rms_epsilon",
				&model->hyper.rms_epsilon)))
		return error;
	info->n_kv_heads = info->n_heads;
	if (gguf_get_u32(model->file, "llama.attention.head_count_kv", &info->n_kv_heads) &&
	    (error = fm_key_u32(model, "attention.head_count_kv", 1, info->n_heads,
				&info->n_kv_heads)))
		return error;
	info->head_dim = info->dim / info->n_heads;
	gguf_get_u32(model->file, "llama.attention.key_length", &info->head_dim);
	if (info->head_dim == 0 || info->head_dim > FM_ATTENTION_HEAD_MAX)
		return fm_fail(FM_ERR_UNSUPPORTED, "%s: heads of %u dimensions: at most %d",
			       gguf_path(model->file), info->head_dim, FM_ATTENTION_HEAD_MAX);
	model->hyper.rope_dim = info->head_dim;
	gguf_get_u32(model->file, "llama.rope.dimension_count", &model->hyper.rope_dim);
	model->hyper.rope_theta = 10000.0f;
	if (gguf_get_f32(model->file, "llama.rope.freq_base", &model->hyper.rope_theta) &&
	    (error = fm_key_f32(model, "rope.freq_base", &model->hyper.rope_theta)))
		return error;
	model->hyper.group = info->n_heads / info->n_kv_heads;
	model->hyper.attention_scale = 1.0f / sqrtf((float)info->head_dim);
	if ((error = check_heads(model)))
		return error;
	return check_absent(model);
}

static int load_layer(struct fm_model *model, struct fm_loader *loader, uint32_t i)
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
	int error;

	snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", i);
	if ((error = fm_load_vector(loader, name, info->dim, &layer->attention_norm)))
		return error;
	snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", i);
	if ((error = fm_load_vector(loader, name, info->dim, &layer->ffn_norm)))
		return error;
	for (size_t j = 0; j < sizeof(matrices) / sizeof(matrices[0]); j++) {
		snprintf(name, sizeof(name), "blk.%u.%s.weight", i, matrices[j].name);
		if ((error = fm_load_level_matrix(loader, name, matrices[j].rows,
						  matrices[j].columns, matrices[j].matrix)))
			return error;
	}
	return 0;
}

static int llama_load(struct fm_model *model, struct fm_loader *loader)
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
		if ((error = load_layer(model, loader, i)))
			return error;
	return 0;
}

const struct fm_architecture fm_architecture_llama = {
	.name = "llama",
	.configure = llama_configure,
	.load = llama_load,
	.forward = llama_forward,
};
