/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Llama family (Llama, SmolLM, Mistral): its metadata, its tensors, and its forward pass in
 * order. Called by model.c through the table at the end. Invariant: what a file asks for and this
 * graph does not do is refused when the file is opened, never ignored.
 */
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

/* Mistral: the window, where there is one, is that of every layer. */
static int llama_configure(struct fm_model *model)
{
	int error = fm_decoder_configure(model);

	return error ? error
		     : fm_key_optional_u32(model, "attention.sliding_window", 0, FM_CONTEXT_MAX,
					   &model->hyper.window);
}

static int llama_load(struct fm_model *model, struct fm_loader *loader)
{
	static const struct fm_layer_vector vectors[] = {
		FM_LAYER_VECTOR("attn_norm.weight", FM_SIZE_DIM, attention_norm),
		FM_LAYER_VECTOR("ffn_norm.weight", FM_SIZE_DIM, ffn_norm),
	};

	for (uint32_t i = 0; i < model->info.n_layers; i++)
		model->weights.layers[i].window = model->hyper.window;
	return fm_decoder_load(model, loader, vectors, sizeof(vectors) / sizeof(vectors[0]));
}

const struct fm_architecture fm_architecture_llama = {
	.name = "llama",
	.configure = llama_configure,
	.load = llama_load,
	.forward = llama_forward,
};
