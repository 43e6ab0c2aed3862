/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a model, asking it things, and cutting a step into sub-batches. The implementation of
 * model.h; what a forward pass does is in the architecture's file. Invariant: everything that can
 * fail has been checked before an architecture's forward function runs.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/state.h"

static const struct fm_architecture *const architectures[] = {
	&fm_architecture_llama,
	&fm_architecture_qwen2,
	&fm_architecture_qwen3,
	&fm_architecture_gemma3,
};

/* ---- metadata ----------------------------------------------------------------------------- */

int fm_key_u32(const struct fm_model *model, const char *key, uint32_t low, uint32_t high,
	       uint32_t *out)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", model->architecture, key);
	if (!gguf_get_u32(model->file, name, out))
		return fm_fail(FM_ERR_INVALID, "%s: key %s is missing or no integer",
			       gguf_path(model->file), name);
	if (*out < low || *out > high)
		return fm_fail(FM_ERR_LIMIT, "%s: key %s is %u: allowed are %u to %u",
			       gguf_path(model->file), name, *out, low, high);
	return 0;
}

int fm_key_f32(const struct fm_model *model, const char *key, float *out)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", model->architecture, key);
	if (!gguf_get_f32(model->file, name, out))
		return fm_fail(FM_ERR_INVALID, "%s: key %s is missing or no number",
			       gguf_path(model->file), name);
	if (!isfinite(*out) || *out <= 0.0f)
		return fm_fail(FM_ERR_INVALID, "%s: key %s is %g: it must be above 0",
			       gguf_path(model->file), name, (double)*out);
	return 0;
}

static bool has_key(const struct fm_model *model, const char *key)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", model->architecture, key);
	return gguf_has(model->file, name);
}

int fm_key_optional_u32(const struct fm_model *model, const char *key, uint32_t low, uint32_t high,
			uint32_t *out)
{
	return has_key(model, key) ? fm_key_u32(model, key, low, high, out) : 0;
}

int fm_key_optional_f32(const struct fm_model *model, const char *key, float *out)
{
	return has_key(model, key) ? fm_key_f32(model, key, out) : 0;
}

/* ---- opening ------------------------------------------------------------------------------ */

static int check_options(const struct fm_model_options *options)
{
	if (options->precision != FM_PRECISION_Q8 && options->precision != FM_PRECISION_Q16 &&
	    options->precision != FM_PRECISION_F32)
		return fm_fail(FM_ERR_INVALID, "precision %d is not known", options->precision);
	if (options->kv_element != FM_ELEMENT_F16 && options->kv_element != FM_ELEMENT_F32)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "KV element type %d: this engine computes with f16 and f32 only",
			       options->kv_element);
	if (options->tokens_per_block != FM_ATTENTION_TOKENS)
		return fm_fail(FM_ERR_UNSUPPORTED, "KV blocks of %u tokens: only %d is supported",
			       options->tokens_per_block, FM_ATTENTION_TOKENS);
	return 0;
}

static int find_architecture(struct fm_model *model, const struct fm_architecture **out)
{
	const char *path = gguf_path(model->file);
	struct gguf_string name;

	if (!gguf_get_string(model->file, "general.architecture", &name))
		return fm_fail(FM_ERR_INVALID, "%s: key general.architecture is missing", path);
	model->architecture = strndup(name.data, name.len < 64 ? name.len : 64);
	if (!gguf_get_string(model->file, "general.name", &name))
		name = (struct gguf_string){.data = "", .len = 0};
	model->name = strndup(name.data, name.len < 256 ? name.len : 256);
	if (!model->architecture || !model->name)
		return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory for its name", path);
	model->info.architecture = model->architecture;
	model->info.name = model->name;
	for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++) {
		*out = architectures[i];
		if (!strcmp((*out)->name, model->architecture))
			return 0;
	}
	return fm_fail(FM_ERR_UNSUPPORTED,
		       "%s: general.architecture is \"%s\": supported are llama, qwen2, qwen3 and "
		       "gemma3",
		       path, model->architecture);
}

/* A tensor that no step reads would be a feature left out in silence. */
static int check_all_used(const struct fm_model *model, const struct fm_loader *loader)
{
	if (loader->n_tensors != gguf_n_tensors(model->file))
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: it has %zu tensors and the %s graph uses %zu: other biases, "
			       "rotary factors and experts are not supported",
			       gguf_path(model->file), gguf_n_tensors(model->file),
			       model->architecture, loader->n_tensors);
	return 0;
}

static int load(struct fm_model *model, const struct fm_architecture *architecture)
{
	struct fm_loader loader = {
		.file = model->file,
		.threads = model->threads,
		.may_be_level = model->options.precision == FM_PRECISION_Q16,
	};
	int error;

	model->weights.layers = calloc(model->info.n_layers, sizeof(*model->weights.layers));
	if (!model->weights.layers)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for %u layers", model->info.n_layers);
	if ((error = architecture->load(model, &loader)) ||
	    (error = check_all_used(model, &loader)) ||
	    (error = fm_arena_create(loader.used, &model->arena)))
		return error;
	model->arena_bytes = loader.used;
	model->info.weight_bytes = loader.file_bytes;
	model->info.parameters = loader.parameters;
	loader.arena = model->arena;
	loader.used = 0;
	return architecture->load(model, &loader);
}

/* All that decides what a key at a position is, beside its weights. */
static void name_position_encoding(struct fm_model *model)
{
	const struct fm_rope *ropes = model->ropes;
	char *out = model->position_encoding;
	const size_t size = sizeof(model->position_encoding);
	size_t n;

	n = (size_t)snprintf(out, size, "rope/theta=%.9g/dims=%u/%s", (double)ropes[0].theta,
			     model->hyper.rope_dim, model->hyper.turns_halves ? "neox" : "norm");
	if (ropes[0].factor != 1.0f)
		n += (size_t)snprintf(out + n, size - n, "/linear=%.9g", (double)ropes[0].factor);
	if (model->n_ropes > 1)
		n += (size_t)snprintf(out + n, size - n, "/local-theta=%.9g",
				      (double)ropes[FM_ROPE_LOCAL].theta);
	if (model->hyper.window)
		snprintf(out + n, size - n, "/window=%u", model->hyper.window);
}

static void name_things(struct fm_model *model)
{
	snprintf(model->numerics_id, sizeof(model->numerics_id), "fm-cpu-3/%s/kv-%s",
		 model->options.precision == FM_PRECISION_Q8	? "q8"
		 : model->options.precision == FM_PRECISION_Q16 ? "q16"
								: "f32",
		 model->options.kv_element == FM_ELEMENT_F16 ? "f16" : "f32");
	name_position_encoding(model);
	model->info.numerics_id = model->numerics_id;
	model->info.tokens_per_block = model->options.tokens_per_block;
	model->info.isa = model->kernels->isa;
}

int fm_model_open(const char *path, const struct fm_model_options *options, struct fm_model **out)
{
	const struct fm_architecture *architecture = NULL;
	struct fm_model *model = calloc(1, sizeof(*model));
	int error;

	*out = NULL;
	if (!model)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a model");
	model->options = *options;
	model->options.isa = NULL; /* the caller's string; info.isa says what was chosen */
	if ((error = check_options(options)) ||
	    (error = fm_kernels_select(options->isa, &model->kernels)) ||
	    (error = gguf_open(path, &model->file)) ||
	    (error = find_architecture(model, &architecture)) ||
	    (error = architecture->configure(model)) ||
	    (error = fm_threads_create(options->threads, &model->threads)) ||
	    (error = load(model, architecture)) || (error = fm_rope_reserve(model, 0))) {
		fm_model_close(model);
		return error;
	}
	model->forward = architecture->forward;
	model->options.threads = fm_threads_count(model->threads);
	model->info.threads = model->options.threads;
	name_things(model);
	*out = model;
	return 0;
}

void fm_model_close(struct fm_model *model)
{
	if (!model)
		return;
	fm_threads_destroy(model->threads);
	fm_buffers_destroy(&model->buffers);
	fm_arena_destroy(model->arena, model->arena_bytes);
	free(model->weights.layers);
	for (int i = 0; i < FM_ROPES; i++)
		free(model->ropes[i].table);
	free(model->architecture);
	free(model->name);
	if (model->file)
		gguf_close(model->file);
	free(model);
}

/* ---- asking ------------------------------------------------------------------------------- */

const struct fm_model_info *fm_model_info(const struct fm_model *model)
{
	return &model->info;
}

const struct gguf *fm_model_gguf(const struct fm_model *model)
{
	return model->file;
}

const struct fm_kernels *fm_model_kernels(const struct fm_model *model)
{
	return model->kernels;
}

static struct fm_layout layout(const struct fm_model *model)
{
	return (struct fm_layout){
		.layers = model->info.n_layers,
		.kv_heads = model->info.n_kv_heads,
		.head_dim = model->info.head_dim,
		.tokens_per_block = FM_ATTENTION_TOKENS,
		.element = model->options.kv_element,
	};
}

int fm_model_namespace(const struct fm_model *model, const char *tenant_salt, struct fm_digest *out)
{
	struct fm_model *memory = (struct fm_model *)model; /* remembers the digest; one thread */
	struct fm_namespace name = {
		.layout = layout(model),
		.numerics_id = model->numerics_id,
		.position_encoding = model->position_encoding,
		.quantisation = "",
		.adapter = "",
		.tenant_salt = tenant_salt,
	};
	int error = 0;

	if (!model->has_digest)
		error = fm_file_digest(gguf_path(model->file), &memory->digest);
	if (error)
		return error;
	memory->has_digest = true;
	name.weights = model->digest;
	return fm_namespace_digest(&name, out);
}

size_t fm_model_block_bytes(const struct fm_model *model)
{
	const struct fm_model_info *info = &model->info;
	size_t element = model->options.kv_element == FM_ELEMENT_F16 ? 2 : 4;

	return (size_t)info->n_layers * 2 * info->n_kv_heads * FM_ATTENTION_TOKENS *
	       info->head_dim * element;
}

/* ---- running ------------------------------------------------------------------------------ */

static int check_token(const struct fm_model *model, const struct fm_token_in *token)
{
	if (token->token >= model->info.vocab_size)
		return fm_fail(FM_ERR_INVALID, "token %u: the vocabulary has %u", token->token,
			       model->info.vocab_size);
	if (token->position >= model->info.context_length)
		return fm_fail(FM_ERR_INVALID, "position %u: the model's context ends at %u",
			       token->position, model->info.context_length);
	if (!token->blocks)
		return fm_fail(FM_ERR_INVALID, "token %u at position %u has no KV blocks",
			       token->token, token->position);
	return 0;
}

static void fill_runs(struct fm_buffers *buffers, const struct fm_token_in *tokens, size_t n)
{
	buffers->n_runs = 0;
	for (size_t i = 0; i < n; i++) {
		bool goes_on = i && tokens[i].blocks == tokens[i - 1].blocks &&
			       tokens[i].position == tokens[i - 1].position + 1 &&
			       tokens[i].position % FM_ATTENTION_TOKENS;

		if (!goes_on)
			buffers->runs[buffers->n_runs++] = (struct fm_run){.first = (uint32_t)i};
		buffers->runs[buffers->n_runs - 1].n++;
	}
}

/* A lone token far into its sequence is cut at the segments' ends, so that threads share it evenly
 * whatever the number of KV heads; which are cut has no influence on the bits. */
static void fill_pieces(struct fm_buffers *buffers, uint32_t n_kv_heads,
			const struct fm_token_in *tokens)
{
	size_t n_parts = 0;

	buffers->n_pieces = 0;
	for (size_t i = 0; i < buffers->n_runs; i++) {
		struct fm_run *run = &buffers->runs[i];
		size_t n = fm_attention_segments(tokens[run->first].position);

		if (run->n > 1 || n == 1 || n_parts + n * n_kv_heads > FM_PARTS_MAX)
			n = 0;
		run->n_segments = (uint32_t)n;
		run->first_part = (uint32_t)n_parts;
		n_parts += n * n_kv_heads;
		for (uint32_t segment = 0; segment < (n ? n : 1); segment++)
			buffers->pieces[buffers->n_pieces++] =
				(struct fm_piece){.run = (uint32_t)i, .segment = segment};
	}
}

static void fill_batch(struct fm_model *model, const struct fm_token_in *tokens, size_t n)
{
	struct fm_buffers *buffers = &model->buffers;

	fill_runs(buffers, tokens, n);
	fill_pieces(buffers, model->info.n_kv_heads, tokens);
	buffers->n = n;
	buffers->n_logits = 0;
	for (size_t i = 0; i < n; i++) {
		buffers->tokens[i] = &tokens[i];
		if (!tokens[i].logits)
			continue;
		buffers->logits[buffers->n_logits] = tokens[i].logits;
		buffers->logits_token[buffers->n_logits++] = (uint32_t)i;
	}
}

int fm_model_forward(struct fm_model *model, const struct fm_token_in *tokens, size_t n)
{
	uint32_t furthest = 0;
	int error;

	for (size_t i = 0; i < n; i++) {
		if ((error = check_token(model, &tokens[i])))
			return error;
		furthest = tokens[i].position > furthest ? tokens[i].position : furthest;
	}
	if ((error = fm_rope_reserve(model, furthest)) ||
	    (error = fm_buffers_reserve(model, n < FM_BATCH_TOKENS ? n : FM_BATCH_TOKENS)))
		return error;
	for (size_t done = 0; done < n; done += model->buffers.n) {
		fill_batch(model, tokens + done,
			   n - done < FM_BATCH_TOKENS ? n - done : FM_BATCH_TOKENS);
		fm_lap_start(model);
		model->forward(model);
	}
	return 0;
}
