/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffers of a step and the table of rotary angles. They grow to the largest sub-batch and the
 * furthest position met, and never beyond FM_BATCH_TOKENS and the model's context. Called by
 * model.c before a forward pass, so that the pass itself cannot fail.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/state.h"

static bool rows_create(struct fm_rows *rows, size_t n_tokens, uint32_t columns)
{
	rows->columns = columns;
	rows->data = aligned_alloc(64, n_tokens * columns * sizeof(float));
	rows->rows = calloc(n_tokens, sizeof(*rows->rows));
	if (!rows->data || !rows->rows)
		return false;
	for (size_t i = 0; i < n_tokens; i++)
		rows->rows[i] = rows->data + i * columns;
	return true;
}

static void rows_destroy(struct fm_rows *rows)
{
	free(rows->data);
	free(rows->rows);
}

static void *zeroed(size_t bytes)
{
	void *out = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (out)
		memset(out, 0, bytes);
	return out;
}

/* The kinds of activations that matrices take. */
struct wanted {
	bool blocks, level;
};

static struct wanted want(const struct fm_matrix *const *matrices, size_t n)
{
	struct wanted wanted = {0};

	for (size_t i = 0; i < n; i++) {
		wanted.level |= matrices[i]->is_level;
		wanted.blocks |=
			!matrices[i]->is_level && fm_format_is_quantised(matrices[i]->format);
	}
	return wanted;
}

/* Zeroed: rows of tokens that are not there are computed with, and their results thrown away. */
static bool tiles_create(struct fm_tiles *tiles, struct wanted wanted, size_t n_tokens,
			 uint32_t columns, bool is_fine)
{
	const size_t n_rows = n_tokens / FM_TILE_TOKENS;

	tiles->columns = columns;
	tiles->is_fine = is_fine;
	if (wanted.blocks)
		tiles->data = zeroed(n_rows * (columns / FM_BLOCK_COLUMNS) * sizeof(*tiles->data));
	if (wanted.level) {
		tiles->level = zeroed(n_rows * fm_level_tiles(columns) * sizeof(*tiles->level));
		tiles->level_scales = zeroed(n_tokens * sizeof(*tiles->level_scales));
	}
	return (tiles->data || !wanted.blocks) &&
	       ((tiles->level && tiles->level_scales) || !wanted.level);
}

static void tiles_destroy(struct fm_tiles *tiles)
{
	free(tiles->data);
	free(tiles->level);
	free(tiles->level_scales);
}

/* In integers, what the layers' matrices take: each kind of activation that one of them wants. */
static bool all_tiles_create(const struct fm_model *model, struct fm_buffers *buffers, size_t n)
{
	const struct fm_model_info *info = &model->info;
	const bool is_fine = model->options.precision == FM_PRECISION_Q16;
	const struct fm_matrix *output = &model->weights.output;
	struct wanted normed = {0}, heads = {0}, gate = {0};

	if (model->options.precision == FM_PRECISION_F32)
		return true;
	for (uint32_t i = 0; i < info->n_layers; i++) {
		const struct fm_layer *layer = &model->weights.layers[i];
		const struct fm_matrix *after_norm[] = {&layer->q, &layer->k, &layer->v,
							&layer->gate, &layer->up};
		const struct fm_matrix *after_heads = &layer->attention_output;
		const struct fm_matrix *after_gate = &layer->down;
		struct wanted more[3] = {want(after_norm, 5), want(&after_heads, 1),
					 want(&after_gate, 1)};

		normed.blocks |= more[0].blocks;
		normed.level |= more[0].level;
		heads.blocks |= more[1].blocks;
		heads.level |= more[1].level;
		gate.blocks |= more[2].blocks;
		gate.level |= more[2].level;
	}
	return tiles_create(&buffers->normed_tiles, normed, n, info->dim,
			    is_fine || FM_FINE_NORMED) &&
	       tiles_create(&buffers->heads_tiles, heads, n, info->n_heads * info->head_dim,
			    is_fine || FM_FINE_HEADS) &&
	       tiles_create(&buffers->gate_tiles, gate, n, info->ffn_dim,
			    is_fine || FM_FINE_GATE) &&
	       tiles_create(&buffers->output_tiles, want(&output, 1), n, info->dim,
			    is_fine || FM_FINE_OUTPUT);
}

int fm_buffers_reserve(struct fm_model *model, size_t n_tokens)
{
	const struct fm_model_info *info = &model->info;
	const uint32_t q = info->n_heads * info->head_dim, kv = info->n_kv_heads * info->head_dim;
	struct fm_buffers *buffers = &model->buffers;
	size_t n = FM_TILE_TOKENS;

	if (n_tokens <= buffers->capacity)
		return 0;
	while (n < n_tokens)
		n *= 2;
	fm_buffers_destroy(buffers);
	buffers->tokens = calloc(n, sizeof(*buffers->tokens));
	buffers->runs = calloc(n, sizeof(*buffers->runs));
	buffers->pieces = calloc(n + FM_PARTS_MAX, sizeof(*buffers->pieces));
	buffers->parts = aligned_alloc(64, (size_t)FM_PARTS_MAX * model->hyper.group *
						   fm_attention_part_floats(info->head_dim) *
						   sizeof(*buffers->parts));
	buffers->logits = calloc(n, sizeof(*buffers->logits));
	buffers->logits_token = calloc(n, sizeof(*buffers->logits_token));
	if (!rows_create(&buffers->x, n, info->dim) ||
	    !rows_create(&buffers->normed, n, info->dim) || !rows_create(&buffers->q, n, q) ||
	    !rows_create(&buffers->k, n, kv) || !rows_create(&buffers->v, n, kv) ||
	    !rows_create(&buffers->heads, n, q) || !rows_create(&buffers->gate, n, info->ffn_dim) ||
	    !rows_create(&buffers->up, n, info->ffn_dim) ||
	    !rows_create(&buffers->product, n, info->dim) || !all_tiles_create(model, buffers, n) ||
	    !buffers->tokens || !buffers->runs || !buffers->pieces || !buffers->parts ||
	    !buffers->logits || !buffers->logits_token) {
		fm_buffers_destroy(buffers);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the activations of %zu tokens", n);
	}
	buffers->capacity = n;
	return 0;
}

void fm_buffers_destroy(struct fm_buffers *buffers)
{
	rows_destroy(&buffers->x);
	rows_destroy(&buffers->normed);
	rows_destroy(&buffers->q);
	rows_destroy(&buffers->k);
	rows_destroy(&buffers->v);
	rows_destroy(&buffers->heads);
	rows_destroy(&buffers->gate);
	rows_destroy(&buffers->up);
	rows_destroy(&buffers->product);
	tiles_destroy(&buffers->normed_tiles);
	tiles_destroy(&buffers->heads_tiles);
	tiles_destroy(&buffers->gate_tiles);
	tiles_destroy(&buffers->output_tiles);
	free(buffers->tokens);
	free(buffers->runs);
	free(buffers->pieces);
	free(buffers->parts);
	free(buffers->logits);
	free(buffers->logits_token);
	memset(buffers, 0, sizeof(*buffers));
}

static void fill_angles(const struct fm_rope *rope, uint32_t dim, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++) {
		for (uint32_t j = 0; j < dim; j += 2) {
			double angle = (double)i / (double)rope->factor *
				       pow((double)rope->theta, -(double)j / dim);

			rope->table[i * dim + j] = (float)cos(angle);
			rope->table[i * dim + j + 1] = (float)sin(angle);
		}
	}
}

int fm_rope_reserve(struct fm_model *model, uint32_t position)
{
	const uint32_t dim = model->hyper.rope_dim;
	uint64_t n = model->rope_positions ? model->rope_positions : 256;

	if (position < model->rope_positions)
		return 0;
	while (n <= position)
		n *= 2;
	if (n > model->info.context_length)
		n = model->info.context_length;
	for (uint32_t i = 0; i < model->n_ropes; i++) {
		struct fm_rope *rope = &model->ropes[i];
		float *table = realloc(rope->table, n * dim * sizeof(*table));

		if (!table)
			return fm_fail(FM_ERR_NO_MEMORY,
				       "no memory for the rotary angles of %llu positions",
				       (unsigned long long)n);
		rope->table = table;
		fill_angles(rope, dim, model->rope_positions, n);
	}
	model->rope_positions = (uint32_t)n;
	return 0;
}
