/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each architecture against the logits that Transformers gives for the same small random model
 * (tests/data/README.md), and what of its metadata is refused.
 *
 * FAMILIES_WRITE=FOLDER writes the models there as NAME.gguf and checks nothing: for
 * tests/data/make_family_reference.py.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <model/gguf.h>
#include <model/model.h>

#include "reference.h"
#include "scratch.h"
#include "tiny_model.h"

#define REFERENCE "families-reference.json.gz"

enum { TOKENS = 48, VOCAB = 37 };

#define FLOATS                                                                                     \
	.vocab = VOCAB, .context = 64, .embedding_type = GGML_F16, .matrix_type = GGML_F16,        \
	.value_type = GGML_F16, .ffn_type = GGML_F16, .norm_type = GGML_F32

/* Longer than their windows; heads that are no share of the embedding where the family has them. */
static const struct family {
	const char *name;
	struct tiny_model shape;
} families[] = {
	{"llama", {.n_layers = 2, .dim = 64, .n_heads = 2, .n_kv_heads = 1, .ffn_dim = 96, FLOATS}},
	{"mistral",
	 {.n_layers = 2,
	  .dim = 64,
	  .n_heads = 4,
	  .n_kv_heads = 2,
	  .head_dim = 32,
	  .ffn_dim = 96,
	  .window = 21,
	  FLOATS}},
	{"qwen2",
	 {.architecture = "qwen2",
	  .n_layers = 2,
	  .dim = 128,
	  .n_heads = 4,
	  .n_kv_heads = 2,
	  .ffn_dim = 96,
	  .rope_theta = 1000000.0f,
	  FLOATS}},
	{"qwen3",
	 {.architecture = "qwen3",
	  .n_layers = 2,
	  .dim = 64,
	  .n_heads = 4,
	  .n_kv_heads = 2,
	  .head_dim = 64,
	  .ffn_dim = 96,
	  .rope_theta = 1000000.0f,
	  FLOATS}},
	{"gemma3",
	 {.architecture = "gemma3",
	  .n_layers = 7, /* the sixth is global */
	  .dim = 64,
	  .n_heads = 4,
	  .n_kv_heads = 1,
	  .head_dim = 32,
	  .ffn_dim = 96,
	  .window = 13,
	  FLOATS}},
	{"gemma3-linear",
	 {.architecture = "gemma3",
	  .n_layers = 4, /* the last is global */
	  .dim = 64,
	  .n_heads = 2,
	  .n_kv_heads = 1,
	  .head_dim = 64,
	  .ffn_dim = 96,
	  .window = 20,
	  .rope_theta = 500000.0f,
	  .rope_factor = 8.0f,
	  .extra_key = "attention.sliding_window_pattern",
	  FLOATS}},
};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

/* The logits of every token of the reference's prompt. */
static void run(const struct family *family, json_t *prompt, float logits[TOKENS][VOCAB])
{
	struct fm_model_options options = {
		.precision = FM_PRECISION_F32,
		.kv_element = FM_ELEMENT_F32,
		.threads = 1,
		.tokens_per_block = 16,
	};
	struct fm_token_in tokens[TOKENS];
	void *blocks[TOKENS / 16];
	char path[SCRATCH_MAX];
	struct fm_model *model;

	ck_assert_uint_eq(json_array_size(prompt), TOKENS);
	ck_assert_int_eq(tiny_model_write(&family->shape, path), 0);
	ck_assert_msg(!fm_model_open(path, &options, &model), "%s", fm_error_detail());
	unlink(path);
	for (int i = 0; i < TOKENS / 16; i++)
		blocks[i] = calloc(1, fm_model_block_bytes(model));
	for (size_t i = 0; i < TOKENS; i++)
		tokens[i] = (struct fm_token_in){
			.token = (uint32_t)json_integer_value(json_array_get(prompt, i)),
			.position = (uint32_t)i,
			.blocks = blocks,
			.logits = logits[i],
		};
	ck_assert_msg(!fm_model_forward(model, tokens, TOKENS), "%s", fm_error_detail());
	for (int i = 0; i < TOKENS / 16; i++)
		free(blocks[i]);
	fm_model_close(model);
}

START_TEST(logits_are_those_of_transformers)
{
	const struct family *family = &families[_i];
	json_t *root = reference_load(REFERENCE), *theirs = json_object_get(root, family->name);
	json_t *positions = json_object_get(theirs, "positions");
	json_t *rows = json_object_get(theirs, "logits");
	static float logits[TOKENS][VOCAB];
	double largest = 0.0, worst = 0.0;

	ck_assert_msg(root != NULL, "%s: run this from the top of the tree", REFERENCE);
	ck_assert_msg(json_array_size(positions) > 0, "%s has no reference", family->name);
	run(family, json_object_get(theirs, "tokens"), logits);
	for (size_t i = 0; i < json_array_size(positions); i++) {
		json_t *row = json_array_get(rows, i);
		size_t at = (size_t)json_integer_value(json_array_get(positions, i));

		ck_assert_uint_eq(json_array_size(row), VOCAB);
		for (size_t j = 0; j < VOCAB; j++) {
			double right = json_number_value(json_array_get(row, j));

			largest = fmax(largest, fabs(right));
			worst = fmax(worst, fabs((double)logits[at][j] - right));
		}
	}
	fprintf(stderr, "families: %s: off by at most %.2g, logits up to %.3g\n", family->name,
		worst, largest);
	ck_assert_double_le(worst, 2e-5 * largest);
	json_decref(root);
}
END_TEST

static void refused(const struct tiny_model *shape, int error, const char *text)
{
	struct fm_model_options options = {.kv_element = FM_ELEMENT_F16, .tokens_per_block = 16};
	struct fm_model *model;
	char path[SCRATCH_MAX];

	ck_assert_int_eq(tiny_model_write(shape, path), 0);
	ck_assert_int_eq(fm_model_open(path, &options, &model), error);
	ck_assert_msg(strstr(fm_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      fm_error_detail(), text);
	unlink(path);
}

START_TEST(what_a_graph_lacks_is_refused)
{
	struct tiny_model shape;

	for (int i = 0; i < FAMILIES; i++) {
		shape = families[i].shape;
		shape.extra_key = "expert_count";
		refused(&shape, FM_ERR_UNSUPPORTED, "expert_count");
		shape.extra_key = "attention.value_length";
		refused(&shape, FM_ERR_UNSUPPORTED, "attention.value_length 4 differs");
		shape.extra_key = "rope.scaling.type"; /* a number, or there twice */
		refused(&shape, shape.rope_factor != 0.0f ? FM_ERR_CORRUPT : FM_ERR_INVALID,
			"rope.scaling.type");
	}
	shape = families[2].shape;
	shape.window = 8;
	refused(&shape, FM_ERR_UNSUPPORTED, "qwen2.attention.sliding_window");
	shape = families[2].shape;
	shape.drop = "blk.1.attn_k.bias";
	refused(&shape, FM_ERR_INVALID, "blk.1.attn_k.bias is missing");
	shape = families[3].shape;
	shape.window = 8;
	refused(&shape, FM_ERR_UNSUPPORTED, "qwen3.attention.sliding_window");
	shape = families[4].shape;
	shape.extra_key = "final_logit_softcapping";
	refused(&shape, FM_ERR_UNSUPPORTED, "gemma3.final_logit_softcapping");
	shape.extra_key = "attn_logit_softcapping";
	refused(&shape, FM_ERR_UNSUPPORTED, "gemma3.attn_logit_softcapping");
	shape = families[4].shape;
	shape.drop = "blk.6.post_ffw_norm.weight";
	refused(&shape, FM_ERR_INVALID, "blk.6.post_ffw_norm.weight is missing");
}
END_TEST

static int write_models(const char *folder)
{
	char path[SCRATCH_MAX], name[512];

	for (int i = 0; i < FAMILIES; i++) {
		if (tiny_model_write(&families[i].shape, path))
			return 1;
		snprintf(name, sizeof(name), "%s/%s.gguf", folder, families[i].name);
		if (rename(path, name)) {
			perror(name);
			return 1;
		}
	}
	return 0;
}

int main(void)
{
	Suite *suite = suite_create("families");
	TCase *tests = tcase_create("families");
	SRunner *runner = srunner_create(suite);
	const char *folder = getenv("FAMILIES_WRITE");
	int failed;

	if (folder && *folder)
		return write_models(folder);
	tcase_add_loop_test(tests, logits_are_those_of_transformers, 0, FAMILIES);
	tcase_add_test(tests, what_a_graph_lacks_is_refused);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
