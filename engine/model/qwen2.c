/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen 2 and 2.5, dense: Llama's layers with biases on queries, keys and values, and rotary pairs
 * half a head apart. Called by model.c through the table at the end. Invariant: what a file asks
 * for and this graph does not do is refused when the file is opened, never ignored.
 */
#include "model/state.h"

static void qwen2_forward(struct fm_model *model)
{
	const struct fm_layer *layer = model->weights.layers;

	fm_step_embed(model);
	for (uint32_t i = 0; i < model->info.n_layers; i++, layer++) {
		fm_step_norm(model, layer->attention_norm, i > 0);
		fm_step_qkv(model, layer);
		fm_step_qkv_bias(model, layer);
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

static int qwen2_configure(struct fm_model *model)
{
	int error = fm_decoder_configure(model);

	model->hyper.turns_halves = true;
	return error ? error
		     : fm_decoder_refuse(model, "attention.sliding_window", "sliding windows");
}

static int qwen2_load(struct fm_model *model, struct fm_loader *loader)
{
	static const struct fm_layer_vector vectors[] = {
		FM_LAYER_VECTOR("attn_norm.weight", FM_SIZE_DIM, attention_norm),
		FM_LAYER_VECTOR("attn_q.bias", FM_SIZE_Q, q_bias),
		FM_LAYER_VECTOR("attn_k.bias", FM_SIZE_KV, k_bias),
		FM_LAYER_VECTOR("attn_v.bias", FM_SIZE_KV, v_bias),
		FM_LAYER_VECTOR("ffn_norm.weight", FM_SIZE_DIM, ffn_norm),
	};

	return fm_decoder_load(model, loader, vectors, sizeof(vectors) / sizeof(vectors[0]));
}

const struct fm_architecture fm_architecture_qwen2 = {
	.name = "qwen2",
	.configure = qwen2_configure,
	.load = qwen2_load,
	.forward = qwen2_forward,
};
