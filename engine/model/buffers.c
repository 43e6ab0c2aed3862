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

/* Zeroed: rows of tokens that are not there are computed with, and their results thrown away. */
static bool tiles_create(struct fm_tiles *tiles, size_t n_tokens, uint32_t columns, bool is_fine)
{
	size_t bytes =
		n_tokens / FM_TILE_TOKENS * (columns / FM_BLOCK_COLUMNS) * sizeof(struct fm_tile);

	tiles->columns = columns;
	tiles->is_fine = is_fine;
	tiles->data = aligned_alloc(64, bytes);
	if (tiles->data)
		memset(tiles->data, 0, bytes);
	return tiles->data;
}

int fm_buffers_reserve(struct fm_model *model, size_t n_tokens)
{
	const struct fm_model_info *info = &model->info;
	const uint32_t q = info->n_heads * info->head_dim, kv = info->n_kv_heads * info->head_dim;
	struct fm_buffers *buffers = &model->buffers;
	size_t n = FM_TILE_TOKENS;
	bool is_fine;

	if (n_tokens <= buffers->capacity)
		return 0;
	while (n < n_tokens)
		n *= 2;
	fm_buffers_destroy(buffers);
	is_fine = model->options.precision == FM_PRECISION_Q16;
	buffers->tokens = calloc(n, sizeof(*buffers->tokens));
	buffers->runs = calloc(n, sizeof(*buffers->runs));
	buffers->logits = calloc(n, sizeof(*buffers->logits));
	buffers->logits_token = calloc(n, sizeof(*buffers->logits_token));
	if (!rows_create(&buffers->x, n, info->dim) ||
	    !rows_create(&buffers->normed, n, info->dim) || !rows_create(&buffers->q, n, q) ||
	    !rows_create(&buffers->k, n, kv) || !rows_create(&buffers->v, n, kv) ||
	    !rows_create(&buffers->heads, n, q) || !rows_create(&buffers->gate, n, info->ffn_dim) ||
	    !rows_create(&buffers->up, n, info->ffn_dim) ||
	    !rows_create(&buffers->product, n, info->dim) ||
	    !tiles_create(&buffers->normed_tiles, n, info->dim, is_fine || FM_FINE_NORMED) ||
	    !tiles_create(&buffers->heads_tiles, n, q, is_fine || FM_FINE_HEADS) ||
	    !tiles_create(&buffers->gate_tiles, n, info->ffn_dim, is_fine || FM_FINE_GATE) ||
	    !tiles_create(&buffers->output_tiles, n, info->dim, is_fine || FM_FINE_OUTPUT) ||
	    !buffers->tokens || !buffers->runs || !buffers->logits || !buffers->logits_token) {
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
	free(buffers->normed_tiles.data);
	free(buffers->heads_tiles.data);
	free(buffers->gate_tiles.data);
	free(buffers->output_tiles.data);
	free(buffers->tokens);
	free(buffers->runs);
	free(buffers->logits);
	free(buffers->logits_token);
	memset(buffers, 0, sizeof(*buffers));
}

int fm_rope_reserve(struct fm_model *model, uint32_t position)
{
	const uint32_t dim = model->hyper.rope_dim;
	uint64_t n = model->rope_positions ? model->rope_positions : 256;
	float *table;

	if (position < model->rope_positions)
		return 0;
	while (n <= position)
		n *= 2;
	if (n > model->info.context_length)
		n = model->info.context_length;
	table = realloc(model->rope_table, n * dim * sizeof(*table));
	if (!table)
		return fm_fail(FM_ERR_NO_MEMORY,
			       "no memory for the rotary angles of %llu positions",
			       (unsigned long long)n);
	for (uint64_t i = model->rope_positions; i < n; i++) {
		for (uint32_t j = 0; j < dim; j += 2) {
			double angle =
				(double)i * pow((double)model->hyper.rope_theta, -(double)j / dim);

			table[i * dim + j] = (float)cos(angle);
			table[i * dim + j + 1] = (float)sin(angle);
		}
	}
	model->rope_table = table;
	model->rope_positions = (uint32_t)n;
	return 0;
}
