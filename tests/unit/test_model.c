/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass gives the same bytes in any chunk, batch, number of threads and instruction set,
 * and files that the graph cannot do are refused by name. Small models with random weights; the
 * real one as well when $FABRICMGR_TEST_MODEL is set.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <model/gguf.h>

#include "reference.h"
#include "scratch.h"
#include "tiny_model.h"

enum { SEQUENCES = 3, TOKENS = 53 };

/* Every weight format and every architecture stands in one of them. */
static const struct tiny_model shapes[] = {
	{.n_layers = 2,
	 .dim = 192,
	 .n_heads = 3,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 101,
	 .context = 64,
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_Q4_1,
	 .value_type = GGML_Q8_0,
	 .ffn_type = GGML_Q4_1,
	 .norm_type = GGML_F32},
	{.n_layers = 2,
	 .dim = 192,
	 .n_heads = 6,
	 .n_kv_heads = 2,
	 .ffn_dim = 224,
	 .vocab = 64,
	 .context = 64,
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_F16,
	 .value_type = GGML_Q8_0,
	 .ffn_type = GGML_Q4_1,
	 .norm_type = GGML_F16},
	{.n_layers = 1,
	 .dim = 256,
	 .n_heads = 4,
	 .n_kv_heads = 2,
	 .ffn_dim = 64,
	 .vocab = 33,
	 .context = 64,
	 .embedding_type = GGML_F32,
	 .matrix_type = GGML_Q4_0,
	 .value_type = GGML_Q5_1,
	 .ffn_type = GGML_Q5_0,
	 .norm_type = GGML_BF16},
	{.n_layers = 1,
	 .dim = 256,
	 .n_heads = 8,
	 .n_kv_heads = 2,
	 .ffn_dim = 512,
	 .vocab = 50,
	 .context = 64,
	 .embedding_type = GGML_Q6_K,
	 .matrix_type = GGML_Q4_K,
	 .value_type = GGML_Q6_K,
	 .ffn_type = GGML_Q5_K,
	 .norm_type = GGML_F32},
	{.n_layers = 1,
	 .dim = 256,
	 .n_heads = 4,
	 .n_kv_heads = 4,
	 .ffn_dim = 256,
	 .vocab = 40,
	 .context = 64,
	 .embedding_type = GGML_BF16,
	 .matrix_type = GGML_Q6_K,
	 .value_type = GGML_BF16,
	 .ffn_type = GGML_Q4_K,
	 .norm_type = GGML_F32},
	{.n_layers = 1,
	 .dim = 128,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 50,
	 .context = 64,
	 .window = 19, /* Mistral */
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_Q4_1,
	 .value_type = GGML_Q4_1,
	 .ffn_type = GGML_Q4_1,
	 .norm_type = GGML_F32},
	{.architecture = "qwen2",
	 .n_layers = 1,
	 .dim = 128,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 50,
	 .context = 64,
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_Q5_0,
	 .value_type = GGML_Q8_0,
	 .ffn_type = GGML_Q4_0,
	 .norm_type = GGML_F32},
	{.architecture = "qwen3",
	 .n_layers = 1,
	 .dim = 96,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .head_dim = 64,
	 .ffn_dim = 96,
	 .vocab = 50,
	 .context = 64,
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_Q5_1,
	 .value_type = GGML_IQ4_NL,
	 .ffn_type = GGML_Q4_0,
	 .norm_type = GGML_F32},
	{.architecture = "gemma3",
	 .n_layers = 4,
	 .dim = 96,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .head_dim = 64,
	 .ffn_dim = 96,
	 .vocab = 50,
	 .context = 64,
	 .window = 19,
	 .extra_key = "attention.sliding_window_pattern",
	 .embedding_type = GGML_Q8_0,
	 .matrix_type = GGML_Q5_0,
	 .value_type = GGML_Q8_0,
	 .ffn_type = GGML_Q5_0,
	 .norm_type = GGML_F32},
};

/* What a run leaves: logits of every token, and the KV blocks. */
struct outcome {
	float *logits; /* [sequence][token][vocab] */
	uint8_t *kv;   /* [sequence][block] */
	size_t logits_bytes, kv_bytes;
	void *blocks[SEQUENCES][TOKENS / 16 + 1];
};

static struct fm_model *open_model(const char *path, enum fm_precision precision, bool is_half,
				   const char *isa, unsigned int threads)
{
	struct fm_model_options options = {
		.precision = precision,
		.kv_element = is_half ? FM_ELEMENT_F16 : FM_ELEMENT_F32,
		.threads = threads,
		.isa = isa,
		.tokens_per_block = 16,
	};
	struct fm_model *model = NULL;
	int error = fm_model_open(path, &options, &model);

	if (error == FM_ERR_UNSUPPORTED && isa) {
		fprintf(stderr, "SKIP: model: %s\n", fm_error_detail());
		return NULL;
	}
	ck_assert_msg(error == 0, "%s", fm_error_detail());
	return model;
}

static void outcome_create(const struct fm_model *model, struct outcome *out)
{
	const size_t n_blocks = TOKENS / 16 + 1, bytes = fm_model_block_bytes(model);

	out->logits_bytes =
		(size_t)SEQUENCES * TOKENS * fm_model_info(model)->vocab_size * sizeof(float);
	out->kv_bytes = SEQUENCES * n_blocks * bytes;
	out->logits = calloc(1, out->logits_bytes);
	out->kv = calloc(1, out->kv_bytes);
	for (size_t i = 0; i < SEQUENCES; i++)
		for (size_t j = 0; j < n_blocks; j++)
			out->blocks[i][j] = out->kv + (i * n_blocks + j) * bytes;
}

static void outcome_destroy(struct outcome *outcome)
{
	free(outcome->logits);
	free(outcome->kv);
}

static struct fm_token_in token_in(const struct fm_model *model, struct outcome *out,
				   size_t sequence, size_t i)
{
	const size_t vocab = fm_model_info(model)->vocab_size;

	return (struct fm_token_in){
		.token = (uint32_t)((sequence * 977 + i * i * 31 + 5) % vocab),
		.position = (uint32_t)i,
		.blocks = out->blocks[sequence],
		.logits = out->logits + (sequence * TOKENS + i) * vocab,
	};
}

/* All sequences together, @chunk tokens of each at a time. */
static void run_batch(struct fm_model *model, size_t chunk, struct outcome *out)
{
	struct fm_token_in tokens[SEQUENCES * TOKENS];

	outcome_create(model, out);
	for (size_t first = 0; first < TOKENS; first += chunk) {
		size_t n = 0;

		for (size_t sequence = 0; sequence < SEQUENCES; sequence++)
			for (size_t i = first; i < TOKENS && i < first + chunk; i++)
				tokens[n++] = token_in(model, out, sequence, i);
		ck_assert_int_eq(fm_model_forward(model, tokens, n), 0);
	}
}

/* One sequence after the other, in chunks. */
static void run_alone(struct fm_model *model, size_t chunk, struct outcome *out)
{
	struct fm_token_in tokens[TOKENS];

	outcome_create(model, out);
	for (size_t sequence = 0; sequence < SEQUENCES; sequence++) {
		for (size_t first = 0; first < TOKENS; first += chunk) {
			size_t n = 0;

			for (size_t i = first; i < TOKENS && i < first + chunk; i++)
				tokens[n++] = token_in(model, out, sequence, i);
			ck_assert_int_eq(fm_model_forward(model, tokens, n), 0);
		}
	}
}

static void assert_same(const struct outcome *a, struct outcome *b, const char *what, size_t chunk)
{
	ck_assert_msg(!memcmp(a->logits, b->logits, a->logits_bytes),
		      "logits differ: %s, chunk %zu", what, chunk);
	ck_assert_msg(!memcmp(a->kv, b->kv, a->kv_bytes), "KV differs: %s, chunk %zu", what, chunk);
	outcome_destroy(b);
}

static void check_chunks(const char *path, enum fm_precision precision, bool is_half,
			 size_t last_chunk)
{
	struct fm_model *model = open_model(path, precision, is_half, NULL, 1);
	struct outcome whole, other;

	run_alone(model, TOKENS, &whole);
	for (size_t i = 0; i < whole.logits_bytes / sizeof(float); i++)
		ck_assert(isfinite(whole.logits[i]));
	for (size_t chunk = 1; chunk <= last_chunk; chunk++) {
		run_alone(model, chunk, &other);
		assert_same(&whole, &other, "alone", chunk);
		run_batch(model, chunk, &other);
		assert_same(&whole, &other, "batch", chunk);
	}
	run_batch(model, TOKENS, &other);
	assert_same(&whole, &other, "batch", TOKENS);
	fm_model_close(model);
	for (unsigned int threads = 2; threads <= 4; threads += 2) {
		model = open_model(path, precision, is_half, NULL, threads);
		for (size_t chunk = 1; chunk <= 17; chunk += 8) {
			run_batch(model, chunk, &other);
			assert_same(&whole, &other, "threads", chunk);
		}
		fm_model_close(model);
	}
	outcome_destroy(&whole);
}

static void check_isas(const char *path, enum fm_precision precision, bool is_half)
{
	static const char *const isas[] = {"avx2", "avx512", "amx", NULL};
	struct fm_model *model = open_model(path, precision, is_half, "portable", 2);
	struct outcome portable, other;

	run_alone(model, TOKENS, &portable);
	fm_model_close(model);
	for (int i = 0; i < 4; i++) {
		model = open_model(path, precision, is_half, isas[i], 2);
		if (!model)
			continue;
		run_alone(model, TOKENS, &other);
		assert_same(&portable, &other, isas[i] ? isas[i] : "best", TOKENS);
		run_batch(model, 5, &other);
		assert_same(&portable, &other, isas[i] ? isas[i] : "best", 5);
		fm_model_close(model);
	}
	outcome_destroy(&portable);
}

START_TEST(small_models_give_the_same_bytes)
{
	char path[SCRATCH_MAX];

	ck_assert_int_eq(tiny_model_write(&shapes[_i], path), 0);
	check_chunks(path, FM_PRECISION_Q8, true, 17);
	check_chunks(path, FM_PRECISION_F32, false, 17);
	check_isas(path, FM_PRECISION_Q8, true);
	check_isas(path, FM_PRECISION_F32, false);
	unlink(path);
}
END_TEST

START_TEST(the_real_model_gives_the_same_bytes)
{
	const char *path = reference_model_path("model");

#ifdef __SANITIZE_ADDRESS__
	if (!getenv("MODEL_ALL")) {
		fprintf(stderr, "SKIP: model: the real model in many chunks takes minutes with "
				"sanitizers: make check-long\n");
		path = NULL;
	}
#endif
	if (path)
		check_chunks(path, FM_PRECISION_Q8, true, 1);
}
END_TEST

/* Opening must fail with @error and a sentence that holds @text. */
static void refused(const struct tiny_model *shape, int error, const char *text)
{
	struct fm_model_options options = {.kv_element = FM_ELEMENT_F16, .tokens_per_block = 16};
	struct fm_model *model = NULL;
	char path[SCRATCH_MAX];

	ck_assert_int_eq(tiny_model_write(shape, path), 0);
	ck_assert_int_eq(fm_model_open(path, &options, &model), error);
	ck_assert_ptr_null(model);
	ck_assert_msg(strstr(fm_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      fm_error_detail(), text);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), path));
	unlink(path);
}

START_TEST(what_cannot_be_done_is_refused)
{
	struct tiny_model shape = shapes[0];

	shape.extra_key = "expert_count";
	refused(&shape, FM_ERR_UNSUPPORTED, "llama.expert_count");
	shape = shapes[0];
	shape.drop = "blk.1.ffn_up.weight";
	refused(&shape, FM_ERR_INVALID, "blk.1.ffn_up.weight is missing");
	shape = shapes[0];
	shape.matrix_type = GGML_Q4_K; /* rows of 192 */
	refused(&shape, FM_ERR_CORRUPT, "not a multiple of Q4_K's block of 256");
	shape = shapes[0];
	shape.norm_type = GGML_Q8_0;
	refused(&shape, FM_ERR_UNSUPPORTED, "a vector must be F32, F16 or BF16");
	shape = shapes[0];
	shape.n_heads = 12; /* of 16 dimensions */
	refused(&shape, FM_ERR_UNSUPPORTED, "16 dimensions");
	shape = shapes[0];
	shape.n_kv_heads = 2;
	refused(&shape, FM_ERR_UNSUPPORTED, "head_count_kv");
}
END_TEST

START_TEST(bad_tokens_are_refused)
{
	struct fm_model *model;
	struct outcome out;
	struct fm_token_in token;
	struct fm_digest a, b;
	char path[SCRATCH_MAX];

	ck_assert_int_eq(tiny_model_write(&shapes[0], path), 0);
	model = open_model(path, FM_PRECISION_Q8, true, NULL, 2);
	outcome_create(model, &out);
	token = token_in(model, &out, 0, 0);
	token.token = 101;
	ck_assert_int_eq(fm_model_forward(model, &token, 1), FM_ERR_INVALID);
	token = token_in(model, &out, 0, 0);
	token.position = 64;
	ck_assert_int_eq(fm_model_forward(model, &token, 1), FM_ERR_INVALID);
	ck_assert_int_eq(fm_model_forward(model, NULL, 0), 0);
	ck_assert_str_eq(fm_model_info(model)->numerics_id, "fm-cpu-3/q8/kv-f16");
	ck_assert_uint_eq(fm_model_block_bytes(model), 2 * 2 * 16 * 64 * 2);
	ck_assert_int_eq(fm_model_namespace(model, NULL, &a), 0);
	ck_assert_int_eq(fm_model_namespace(model, "salt", &b), 0);
	ck_assert(memcmp(&a, &b, sizeof(a)) != 0);
	outcome_destroy(&out);
	fm_model_close(model);
	unlink(path);
}
END_TEST

enum { LONG = 530, LONG_CHUNK = 250 }; /* ends in the third segment of attention */

/* KV and the last logits of a sequence whose tokens from @alone on are computed one by one. */
static void run_long(const char *path, const char *isa, unsigned int threads, size_t alone,
		     float *logits, uint8_t *kv)
{
	struct fm_model *model = open_model(path, FM_PRECISION_Q16, true, isa, threads);
	void *blocks[LONG / 16 + 1];
	struct fm_token_in tokens[LONG_CHUNK];

	for (size_t i = 0; i < LONG / 16 + 1; i++)
		blocks[i] = kv + i * fm_model_block_bytes(model);
	for (size_t first = 0, n; first < LONG; first += n) {
		n = first < alone ? alone - first : 1;
		n = n < LONG_CHUNK ? n : LONG_CHUNK;
		for (size_t i = 0; i < n; i++)
			tokens[i] = (struct fm_token_in){
				.token = (uint32_t)((first + i) * (first + i) % 101),
				.position = (uint32_t)(first + i),
				.blocks = blocks,
				.logits = first + i == LONG - 1 ? logits : NULL,
			};
		ck_assert_int_eq(fm_model_forward(model, tokens, n), 0);
	}
	fm_model_close(model);
}

START_TEST(segments_of_attention_leave_no_trace)
{
	static const size_t alone[] = {0, 100, 512, LONG - 1};
	struct tiny_model shape = shapes[0];
	char path[SCRATCH_MAX];
	float logits[2][101];
	uint8_t *kv[2];
	size_t bytes;

	shape.context = LONG + 1;
	tiny_model_write(&shape, path);
	bytes = (LONG / 16 + 1) * 2 * 2 * 16 * 64 * 2;
	for (int i = 0; i < 2; i++)
		kv[i] = calloc(1, bytes);
	run_long(path, NULL, 1, LONG, logits[0], kv[0]);
	for (unsigned int i = 0; i < 4; i++) {
		memset(kv[1], 0, bytes);
		run_long(path, i == 2 ? "portable" : NULL, 1 + i, alone[i], logits[1], kv[1]);
		ck_assert_msg(!memcmp(logits[0], logits[1], sizeof(logits[0])) &&
				      !memcmp(kv[0], kv[1], bytes),
			      "one by one from token %zu on", alone[i]);
	}
	for (int i = 0; i < 2; i++)
		free(kv[i]);
	unlink(path);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("model");
	TCase *tests = tcase_create("model");
	SRunner *runner;
	char cache[SCRATCH_MAX];
	int failed;

	scratch_folder(cache);
	setenv("XDG_CACHE_HOME", cache, 1);
	runner = srunner_create(suite);
	tcase_set_timeout(tests, 300);
	tcase_add_loop_test(tests, small_models_give_the_same_bytes, 0,
			    sizeof(shapes) / sizeof(shapes[0]));
	tcase_add_test(tests, the_real_model_gives_the_same_bytes);
	tcase_add_test(tests, what_cannot_be_done_is_refused);
	tcase_add_test(tests, bad_tokens_are_refused);
	tcase_add_test(tests, segments_of_attention_leave_no_trace);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	scratch_remove(cache);
	return failed ? 1 : 0;
}
