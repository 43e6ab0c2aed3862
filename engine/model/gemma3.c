/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3, text: local layers that see a window, with rotary angles of their own, between global
 * ones; norms before and after attention and gates, and of each query and key head. Called by
 * model.c through the table at the end. Invariant: what a file asks for and this graph does not do
 * is refused when the file is opened, never ignored.
 */
#include <math.h>

#include "model/state.h"

enum {
	WINDOW = 512, /* where the file does not say */
	PERIOD = 6,   /* of layers, the last of which is global */
	LAYERS_OF_27B =
		62 /* whose scores are scaled by the embedding's share, not the head's size */
};

static void gemma3_forward(struct fm_model *model)
{
	const struct fm_layer *layer = model->weights.layers;

	fm_step_embed(model);
	fm_step_scale(model, sqrtf((float)model->info.dim));
	for (uint32_t i = 0; i < model->info.n_layers; i++, layer++) {
		fm_step_norm(model, layer->attention_norm, i > 0);
		fm_step_qkv(model, layer);
		fm_step_head_norms(model, layer);
		fm_step_rope_store(model, i);
		fm_step_attention(model, i);
		fm_step_attention_output(model, layer);
		fm_step_post_norm(model, layer->attention_post_norm);
		fm_step_norm(model, layer->ffn_norm, true);
		fm_step_gate_up(model, layer);
		fm_step_gelu(model);
		fm_step_down(model, layer);
		fm_step_post_norm(model, layer->ffn_post_norm);
	}
	fm_step_logits(model);
}

static int gemma3_configure(struct fm_model *model)
{
	struct fm_hyperparameters *hyper = &model->hyper;
	struct fm_rope *local = &model->ropes[FM_ROPE_LOCAL];
	int error = fm_decoder_configure(model);

	if (error)
		return error;
	hyper->turns_halves = true;
	hyper->window = WINDOW;
	*local = (struct fm_rope){.theta = 10000.0f, .factor = 1.0f};
	model->n_ropes = 2;
	if (!gguf_has(model->file, "gemma3.rope.freq_base"))
		model->ropes[FM_ROPE_GLOBAL].theta = 1000000.0f;
	if (model->info.n_layers == LAYERS_OF_27B)
		hyper->attention_scale =
			1.0f / sqrtf((float)model->info.dim / (float)model->info.n_heads);
	if ((error = fm_key_optional_u32(model, "attention.sliding_window", 1, FM_CONTEXT_MAX,
					 &hyper->window)) ||
	    (error = fm_key_optional_f32(model, "rope.freq_base_swa", &local->theta)) ||
	    (error = fm_decoder_refuse(model, "attn_logit_softcapping", "capped scores")) ||
	    (error = fm_decoder_refuse(model, "final_logit_softcapping", "capped logits")))
		return error;
	return 0;
}

/* The file names the period, or for each layer whether it is local, or neither. */
static int set_local_layers(struct fm_model *model)
{
	static const char key[] = "gemma3.attention.sliding_window_pattern";
	const uint32_t n_layers = model->info.n_layers;
	uint32_t period = PERIOD;
	enum gguf_type type;
	size_t n = 0;
	int error = 0;

	if (gguf_get_array(model->file, key, &type, &n)) {
		if (n < n_layers || (type != GGUF_BOOL && type != GGUF_U32 && type != GGUF_I32))
			return fm_fail(FM_ERR_INVALID,
				       "%s: key %s has %zu elements of type %d: it must have a "
				       "boolean for each of %u layers",
				       gguf_path(model->file), key, n, (int)type, n_layers);
	} else {
		error = fm_key_optional_u32(model, "attention.sliding_window_pattern", 1,
					    FM_LAYERS_MAX, &period);
	}
	for (uint32_t i = 0; i < n_layers && !error; i++) {
		struct fm_layer *layer = &model->weights.layers[i];
		int64_t is_local = (i + 1) % period != 0;

		gguf_array_i64(model->file, key, i, &is_local);
		layer->window = is_local ? model->hyper.window : 0;
		layer->rope = is_local ? FM_ROPE_LOCAL : FM_ROPE_GLOBAL;
	}
	return error;
}

static int gemma3_load(struct fm_model *model, struct fm_loader *loader)
{
	static const struct fm_layer_vector vectors[] = {
		FM_LAYER_VECTOR("attn_norm.weight", FM_SIZE_DIM, attention_norm),
		FM_LAYER_VECTOR("attn_q_norm.weight", FM_SIZE_HEAD, q_norm),
		FM_LAYER_VECTOR("attn_k_norm.weight", FM_SIZE_HEAD, k_norm),
		FM_LAYER_VECTOR("post_attention_norm.weight", FM_SIZE_DIM, attention_post_norm),
		FM_LAYER_VECTOR("ffn_norm.weight", FM_SIZE_DIM, ffn_norm),
		FM_LAYER_VECTOR("post_ffw_norm.weight", FM_SIZE_DIM, ffn_post_norm),
	};
	int error = set_local_layers(model);

	return error ? error
		     : fm_decoder_load(model, loader, vectors,
				       sizeof(vectors) / sizeof(vectors[0]));
}

const struct fm_architecture fm_architecture_gemma3 = {
	.name = "gemma3",
	.configure = gemma3_configure,
	.load = gemma3_load,
	.forward = gemma3_forward,
};
