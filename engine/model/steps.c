/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps that forward passes are written in: each cuts its work into units, one token, one KV
 * head of a piece of a run or one group of 16 rows, and runs a kernel on each. Called by the
 * architectures. Invariant: a unit writes what no other unit of the step writes, so the division
 * among threads leaves no trace in the bits.
 */
#include "model/state.h"

/* Columns of a row in integers of blocks, when a product takes them. */
static void quantise(const struct fm_model *model, const struct fm_tiles *tiles, size_t token,
		     size_t first_column, const float *x, size_t n)
{
	const size_t n_blocks = tiles->columns / FM_BLOCK_COLUMNS;

	if (tiles->data)
		model->kernels->quantise(tiles->data + token / FM_TILE_TOKENS * n_blocks +
						 first_column / FM_BLOCK_COLUMNS,
					 token % FM_TILE_TOKENS, x, n, tiles->is_fine);
}

/* A whole row in level integers, when a product takes them. */
static void quantise_level(const struct fm_model *model, const struct fm_tiles *tiles, size_t token,
			   const float *x)
{
	const size_t n_tiles = fm_level_tiles(tiles->columns);

	if (tiles->level)
		model->kernels->quantise_level(tiles->level + token / FM_TILE_TOKENS * n_tiles,
					       token % FM_TILE_TOKENS, x, tiles->columns,
					       tiles->level_scales + token);
}

/* ---- matrix products ---------------------------------------------------------------------- */

/* Up to three matrices with the same input, as if stacked. */
struct products {
	const struct fm_model *model;
	const struct fm_rows *in;
	const struct fm_tiles *tiles;
	size_t n_tokens;
	const struct fm_matrix *matrices[3];
	float *const *out[3];
};

static void product_units(void *argument, size_t first, size_t end)
{
	const struct products *job = argument;
	const struct fm_kernels *kernels = job->model->kernels;
	size_t base = 0;

	for (int i = 0; i < 3 && job->matrices[i]; i++) {
		const struct fm_matrix *matrix = job->matrices[i];
		size_t next = base + fm_matrix_groups(matrix);
		size_t start = first > base ? first : base, stop = end < next ? end : next;

		if (start >= stop)
			; /* no part of this one */
		else if (matrix->is_level)
			kernels->product_level(matrix, start - base, stop - base, job->tiles->level,
					       job->tiles->level_scales, job->n_tokens,
					       job->out[i]);
		else if (job->model->options.precision != FM_PRECISION_F32 &&
			 fm_format_is_quantised(matrix->format))
			kernels->product_integer(matrix, start - base, stop - base,
						 job->tiles->data, job->tiles->is_fine,
						 job->n_tokens, job->out[i]);
		else
			kernels->product_float(matrix, start - base, stop - base, job->in->data,
					       job->n_tokens, job->out[i]);
		base = next;
	}
}

static void run_products(struct fm_model *model, struct products *job)
{
	size_t n_groups = 0;

	job->model = model;
	for (int i = 0; i < 3 && job->matrices[i]; i++)
		n_groups += fm_matrix_groups(job->matrices[i]);
	if (job->n_tokens)
		fm_threads_run(model->threads, n_groups, 4, product_units, job);
}

void fm_step_qkv(struct fm_model *model, const struct fm_layer *layer)
{
	struct fm_buffers *buffers = &model->buffers;

	run_products(model, &(struct products){
				    .in = &buffers->normed,
				    .tiles = &buffers->normed_tiles,
				    .n_tokens = buffers->n,
				    .matrices = {&layer->q, &layer->k, &layer->v},
				    .out = {buffers->q.rows, buffers->k.rows, buffers->v.rows},
			    });
	fm_lap(model, FM_OPERATION_QKV);
}

void fm_step_attention_output(struct fm_model *model, const struct fm_layer *layer)
{
	struct fm_buffers *buffers = &model->buffers;

	run_products(model, &(struct products){
				    .in = &buffers->heads,
				    .tiles = &buffers->heads_tiles,
				    .n_tokens = buffers->n,
				    .matrices = {&layer->attention_output},
				    .out = {buffers->product.rows},
			    });
	fm_lap(model, FM_OPERATION_ATTENTION_OUTPUT);
}

void fm_step_gate_up(struct fm_model *model, const struct fm_layer *layer)
{
	struct fm_buffers *buffers = &model->buffers;

	run_products(model, &(struct products){
				    .in = &buffers->normed,
				    .tiles = &buffers->normed_tiles,
				    .n_tokens = buffers->n,
				    .matrices = {&layer->gate, &layer->up},
				    .out = {buffers->gate.rows, buffers->up.rows},
			    });
	fm_lap(model, FM_OPERATION_GATE_UP);
}

void fm_step_down(struct fm_model *model, const struct fm_layer *layer)
{
	struct fm_buffers *buffers = &model->buffers;

	run_products(model, &(struct products){
				    .in = &buffers->gate,
				    .tiles = &buffers->gate_tiles,
				    .n_tokens = buffers->n,
				    .matrices = {&layer->down},
				    .out = {buffers->product.rows},
			    });
	fm_lap(model, FM_OPERATION_DOWN);
}

/* ---- steps by token ----------------------------------------------------------------------- */

static void embed_units(void *argument, size_t first, size_t end)
{
	struct fm_model *model = argument;

	for (size_t i = first; i < end; i++)
		model->kernels->row(&model->weights.embedding, model->buffers.tokens[i]->token,
				    model->buffers.x.rows[i]);
}

void fm_step_embed(struct fm_model *model)
{
	fm_threads_run(model->threads, model->buffers.n, 4, embed_units, model);
	fm_lap(model, FM_OPERATION_EMBED);
}

struct scale_job {
	struct fm_model *model;
	float factor;
};

static void scale_units(void *argument, size_t first, size_t end)
{
	const struct scale_job *job = argument;
	struct fm_model *model = job->model;

	for (size_t i = first; i < end; i++)
		model->kernels->scale(model->buffers.x.rows[i], job->factor, model->info.dim);
}

void fm_step_scale(struct fm_model *model, float factor)
{
	struct scale_job job = {.model = model, .factor = factor};

	fm_threads_run(model->threads, model->buffers.n, 4, scale_units, &job);
	fm_lap(model, FM_OPERATION_EMBED);
}

struct norm_job {
	struct fm_model *model;
	const float *weight;
	bool add;
};

static void norm_units(void *argument, size_t first, size_t end)
{
	const struct norm_job *job = argument;
	struct fm_model *model = job->model;
	struct fm_buffers *buffers = &model->buffers;
	const uint32_t dim = model->info.dim;

	for (size_t i = first; i < end; i++) {
		float *x = buffers->x.rows[i], *normed = buffers->normed.rows[i];

		if (job->add)
			model->kernels->add(x, buffers->product.rows[i], dim);
		model->kernels->rms_norm(normed, x, job->weight, dim, model->hyper.rms_epsilon);
		quantise(model, &buffers->normed_tiles, i, 0, normed, dim);
		quantise_level(model, &buffers->normed_tiles, i, normed);
	}
}

void fm_step_norm(struct fm_model *model, const float *weight, bool add)
{
	struct norm_job job = {.model = model, .weight = weight, .add = add};

	fm_threads_run(model->threads, model->buffers.n, 2, norm_units, &job);
	fm_lap(model, FM_OPERATION_NORM);
}

static void post_norm_units(void *argument, size_t first, size_t end)
{
	const struct norm_job *job = argument;
	struct fm_model *model = job->model;

	for (size_t i = first; i < end; i++) {
		float *product = model->buffers.product.rows[i];

		model->kernels->rms_norm(product, product, job->weight, model->info.dim,
					 model->hyper.rms_epsilon);
	}
}

void fm_step_post_norm(struct fm_model *model, const float *weight)
{
	struct norm_job job = {.model = model, .weight = weight};

	fm_threads_run(model->threads, model->buffers.n, 2, post_norm_units, &job);
	fm_lap(model, FM_OPERATION_NORM);
}

/* ---- steps by token and layer -------------------------------------------------------------- */

struct weights_job {
	struct fm_model *model;
	const struct fm_layer *layer;
};

static void qkv_bias_units(void *argument, size_t first, size_t end)
{
	const struct weights_job *job = argument;
	const struct fm_buffers *buffers = &job->model->buffers;
	const struct fm_kernels *kernels = job->model->kernels;

	for (size_t i = first; i < end; i++) {
		kernels->add(buffers->q.rows[i], job->layer->q_bias, buffers->q.columns);
		kernels->add(buffers->k.rows[i], job->layer->k_bias, buffers->k.columns);
		kernels->add(buffers->v.rows[i], job->layer->v_bias, buffers->v.columns);
	}
}

void fm_step_qkv_bias(struct fm_model *model, const struct fm_layer *layer)
{
	struct weights_job job = {.model = model, .layer = layer};

	fm_threads_run(model->threads, model->buffers.n, 4, qkv_bias_units, &job);
	fm_lap(model, FM_OPERATION_QKV);
}

static void norm_heads(const struct fm_model *model, float *heads, uint32_t n, const float *weight)
{
	const uint32_t dim = model->info.head_dim;

	for (uint32_t i = 0; i < n; i++, heads += dim)
		model->kernels->rms_norm(heads, heads, weight, dim, model->hyper.rms_epsilon);
}

static void head_norms_units(void *argument, size_t first, size_t end)
{
	const struct weights_job *job = argument;
	const struct fm_model *model = job->model;

	for (size_t i = first; i < end; i++) {
		norm_heads(model, model->buffers.q.rows[i], model->info.n_heads,
			   job->layer->q_norm);
		norm_heads(model, model->buffers.k.rows[i], model->info.n_kv_heads,
			   job->layer->k_norm);
	}
}

void fm_step_head_norms(struct fm_model *model, const struct fm_layer *layer)
{
	struct weights_job job = {.model = model, .layer = layer};

	fm_threads_run(model->threads, model->buffers.n, 2, head_norms_units, &job);
	fm_lap(model, FM_OPERATION_NORM);
}

struct layer_job {
	struct fm_model *model;
	uint32_t layer;
};

/* Where one head's keys (@which 0) or values (1) of a layer stand in a KV block. */
static size_t kv_offset(const struct fm_model *model, uint32_t layer, unsigned int which,
			uint32_t head)
{
	const struct fm_model_info *info = &model->info;
	size_t element = model->options.kv_element == FM_ELEMENT_F16 ? 2 : 4;

	return (((size_t)layer * 2 + which) * info->n_kv_heads + head) * FM_ATTENTION_TOKENS *
	       info->head_dim * element;
}

static void store_head(const struct fm_model *model, const struct fm_token_in *token, size_t offset,
		       const float *from)
{
	const size_t dim = model->info.head_dim;
	const bool is_half = model->options.kv_element == FM_ELEMENT_F16;
	uint8_t *block = token->blocks[token->position / FM_ATTENTION_TOKENS];
	size_t row = token->position % FM_ATTENTION_TOKENS;

	model->kernels->store_kv(block + offset + row * dim * (is_half ? 2 : 4), from, dim,
				 is_half);
}

static void rope_store_units(void *argument, size_t first, size_t end)
{
	const struct layer_job *job = argument;
	const struct fm_model *model = job->model;
	const struct fm_model_info *info = &model->info;
	const struct fm_buffers *buffers = &model->buffers;
	const uint32_t rope_dim = model->hyper.rope_dim;
	const struct fm_rope *rope = &model->ropes[model->weights.layers[job->layer].rope];
	void (*turn)(float *, const float *, size_t, size_t, size_t) =
		model->hyper.turns_halves ? model->kernels->rope_halves : model->kernels->rope;

	for (size_t i = first; i < end; i++) {
		const struct fm_token_in *token = buffers->tokens[i];
		const float *table = rope->table + (size_t)token->position * rope_dim;

		turn(buffers->q.rows[i], table, info->n_heads, info->head_dim, rope_dim);
		turn(buffers->k.rows[i], table, info->n_kv_heads, info->head_dim, rope_dim);
		for (uint32_t head = 0; head < info->n_kv_heads; head++) {
			store_head(model, token, kv_offset(model, job->layer, 0, head),
				   buffers->k.rows[i] + head * info->head_dim);
			store_head(model, token, kv_offset(model, job->layer, 1, head),
				   buffers->v.rows[i] + head * info->head_dim);
		}
	}
}

void fm_step_rope_store(struct fm_model *model, uint32_t layer)
{
	struct layer_job job = {.model = model, .layer = layer};

	fm_threads_run(model->threads, model->buffers.n, 2, rope_store_units, &job);
	fm_lap(model, FM_OPERATION_ROPE_STORE);
}

/* One KV head of a run, in the layer. */
static struct fm_attention attention_of(const struct layer_job *job, const struct fm_run *run,
					uint32_t head)
{
	const struct fm_model *model = job->model;
	const struct fm_token_in *token = model->buffers.tokens[run->first];

	return (struct fm_attention){
		.n_heads = model->hyper.group,
		.head_dim = model->info.head_dim,
		.position = token->position,
		.n_tokens = run->n,
		.window = model->weights.layers[job->layer].window,
		.stride = model->buffers.heads.columns,
		.is_half = model->options.kv_element == FM_ELEMENT_F16,
		.scale = model->hyper.attention_scale,
		.blocks = token->blocks,
		.key_offset = kv_offset(model, job->layer, 0, head),
		.value_offset = kv_offset(model, job->layer, 1, head),
	};
}

/* Where the part of a run's KV head and segment stands. */
static float *part_of(const struct fm_model *model, const struct fm_run *run, uint32_t head,
		      uint32_t segment)
{
	size_t part = run->first_part + (size_t)head * run->n_segments + segment;

	return model->buffers.parts +
	       part * model->hyper.group * fm_attention_part_floats(model->info.head_dim);
}

/* Units: KV heads, piece after piece. */
static void attention_units(void *argument, size_t first, size_t end)
{
	const struct layer_job *job = argument;
	const struct fm_model *model = job->model;
	const struct fm_buffers *buffers = &model->buffers;
	const uint32_t n_heads = model->info.n_kv_heads;
	const uint32_t span = model->hyper.group * model->info.head_dim;

	for (size_t unit = first; unit < end; unit++) {
		const struct fm_piece *piece = &buffers->pieces[unit / n_heads];
		const struct fm_run *run = &buffers->runs[piece->run];
		uint32_t head = (uint32_t)(unit % n_heads);
		struct fm_attention attention = attention_of(job, run, head);
		const float *q = buffers->q.rows[run->first] + head * span;

		if (run->n_segments &&
		    piece->segment < fm_attention_first_segment(&attention, attention.position))
			continue; /* before the layer's window */
		if (run->n_segments)
			model->kernels->attention_part(&attention, piece->segment, q,
						       part_of(model, run, head, piece->segment));
		else
			model->kernels->attention(&attention, q,
						  buffers->heads.rows[run->first] + head * span);
	}
}

/* Units: runs. Their heads are all there only now, of which a token's level integers have one
 * scale. */
static void heads_units(void *argument, size_t first, size_t end)
{
	const struct layer_job *job = argument;
	const struct fm_model *model = job->model;
	const struct fm_buffers *buffers = &model->buffers;
	const uint32_t span = model->hyper.group * model->info.head_dim;

	for (const struct fm_run *run = buffers->runs + first; run < buffers->runs + end; run++) {
		for (uint32_t head = 0; run->n_segments && head < model->info.n_kv_heads; head++) {
			struct fm_attention attention = attention_of(job, run, head);

			model->kernels->attention_merge(&attention, part_of(model, run, head, 0),
							buffers->heads.rows[run->first] +
								head * span);
		}
		for (uint32_t i = run->first; i < run->first + run->n; i++) {
			quantise(model, &buffers->heads_tiles, i, 0, buffers->heads.rows[i],
				 buffers->heads.columns);
			quantise_level(model, &buffers->heads_tiles, i, buffers->heads.rows[i]);
		}
	}
}

void fm_step_attention(struct fm_model *model, uint32_t layer)
{
	struct layer_job job = {.model = model, .layer = layer};

	fm_threads_run(model->threads, model->buffers.n_pieces * model->info.n_kv_heads, 1,
		       attention_units, &job);
	fm_threads_run(model->threads, model->buffers.n_runs, 1, heads_units, &job);
	fm_lap(model, FM_OPERATION_ATTENTION);
}

struct gate_job {
	struct fm_model *model;
	void (*multiply)(float *gate, const float *up, size_t n);
};

/* Units: slices of 32 columns, token after token. */
static void gate_units(void *argument, size_t first, size_t end)
{
	const struct gate_job *job = argument;
	struct fm_model *model = job->model;
	const struct fm_buffers *buffers = &model->buffers;
	const size_t n_slices = model->info.ffn_dim / FM_BLOCK_COLUMNS;

	while (first < end) {
		size_t token = first / n_slices, slice = first % n_slices;
		size_t n = n_slices - slice < end - first ? n_slices - slice : end - first;
		float *gate = buffers->gate.rows[token] + slice * FM_BLOCK_COLUMNS;

		job->multiply(gate, buffers->up.rows[token] + slice * FM_BLOCK_COLUMNS,
			      n * FM_BLOCK_COLUMNS);
		quantise(model, &buffers->gate_tiles, token, slice * FM_BLOCK_COLUMNS, gate,
			 n * FM_BLOCK_COLUMNS);
		first += n;
	}
}

/* Units: tokens, when all of a token's columns have one scale. */
static void gate_rows(void *argument, size_t first, size_t end)
{
	const struct gate_job *job = argument;
	const struct fm_buffers *buffers = &job->model->buffers;
	const size_t n_slices = job->model->info.ffn_dim / FM_BLOCK_COLUMNS;

	gate_units(argument, first * n_slices, end * n_slices);
	for (size_t i = first; i < end; i++)
		quantise_level(job->model, &buffers->gate_tiles, i, buffers->gate.rows[i]);
}

static void run_gate(struct fm_model *model,
		     void (*multiply)(float *gate, const float *up, size_t n))
{
	const size_t n_slices = model->info.ffn_dim / FM_BLOCK_COLUMNS;
	struct gate_job job = {.model = model, .multiply = multiply};

	if (model->buffers.gate_tiles.level)
		fm_threads_run(model->threads, model->buffers.n, 1, gate_rows, &job);
	else
		fm_threads_run(model->threads, model->buffers.n * n_slices, 24, gate_units, &job);
	fm_lap(model, FM_OPERATION_GATE);
}

void fm_step_silu(struct fm_model *model)
{
	run_gate(model, model->kernels->silu_multiply);
}

void fm_step_gelu(struct fm_model *model)
{
	run_gate(model, model->kernels->gelu_multiply);
}

/* ---- logits ------------------------------------------------------------------------------- */

/* The tokens that ask for logits move together: row i of normed is the i-th of them. */
static void output_norm_units(void *argument, size_t first, size_t end)
{
	struct fm_model *model = argument;
	struct fm_buffers *buffers = &model->buffers;
	const uint32_t dim = model->info.dim;

	for (size_t i = first; i < end; i++) {
		size_t token = buffers->logits_token[i];
		float *x = buffers->x.rows[token], *normed = buffers->normed.rows[i];

		model->kernels->add(x, buffers->product.rows[token], dim);
		model->kernels->rms_norm(normed, x, model->weights.output_norm, dim,
					 model->hyper.rms_epsilon);
		quantise(model, &buffers->output_tiles, i, 0, normed, dim);
		quantise_level(model, &buffers->output_tiles, i, normed);
	}
}

void fm_step_logits(struct fm_model *model)
{
	struct fm_buffers *buffers = &model->buffers;

	fm_threads_run(model->threads, buffers->n_logits, 2, output_norm_units, model);
	run_products(model, &(struct products){
				    .in = &buffers->normed,
				    .tiles = &buffers->output_tiles,
				    .n_tokens = buffers->n_logits,
				    .matrices = {&model->weights.output},
				    .out = {buffers->logits},
			    });
	fm_lap(model, FM_OPERATION_LOGITS);
}
