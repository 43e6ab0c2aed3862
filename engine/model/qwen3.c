/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen 3, dense: Llama's layers with a norm of each query and key head before it is turned, and
 * rotary pairs half a head apart. Called by model.c through the table at the end. Invariant: what a
 * file asks for and this graph does not do is refused when the file is opened, never ignored.
 */
#include "model/state.h"

static void qwen3_forward(struct fm_model *model)
{
	const struct fm_layer *layer = model->weights.layers;

	fm_step_embed(model);
	for (uint32_t i = 0; i < model->info.n_layers; i++, layer++) {
		fm_step_norm(model, layer->attention_norm, i > 0);
		fm_step_qkv(model, layer);
		fm_step_head_norms(model, layer);
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

static int qwen3_configure(struct fm_model *model)
{
	int error = fm_decoder_configure(model);

	model->hyper.turns_halves = true;
	return error ? error
		     : fm_decoder_refuse(model, "attention.sliding_window", "sliding windows");
}

static int qwen3_load(struct fm_model *model, struct fm_loader *loader)
{
	static const struct fm_layer_vector vectors[] = {
		FM_LAYER_VECTOR("attn_norm.weight", FM_SIZE_DIM, attention_norm),
		FM_LAYER_VECTOR("attn_q_norm.weight", FM_SIZE_HEAD, q_norm),
		FM_LAYER_VECTOR("attn_k_norm.weight", FM_SIZE_HEAD, k_norm),
		FM_LAYER_VECTOR("ffn_norm.weight", FM_SIZE_DIM, ffn_norm),
	};

	return fm_decoder_load(model, loader, vectors, sizeof(vectors) / sizeof(vectors[0]));
}

const struct fm_architecture fm_architecture_qwen3 = {
	.name = "qwen3",
	.configure = qwen3_configure,
	.load = qwen3_load,
	.forward = qwen3_forward,
};
