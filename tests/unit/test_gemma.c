/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3 270M, the real file: token ids against the sentencepiece library, logits against
 * Transformers, and the same bytes in other chunks. Needs it in $FABRICMGR_TEST_GEMMA (make
 * check-gemma) and says so when it is not there.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <text/tokenizer.h>

#include "reference.h"

enum { TOKENS = 560 }; /* beyond the window of 512 */

static const char *gemma(void)
{
	return reference_path("FABRICMGR_TEST_GEMMA", "gemma");
}

START_TEST(token_ids_are_those_of_sentencepiece)
{
	const char *path = gemma();
	struct fm_tokenizer *tokenizer;
	json_t *root, *texts, *entry;
	size_t i;

	if (!path)
		return;
	root = reference_load(REFERENCE_GEMMA3);
	texts = json_object_get(root, "texts");
	ck_assert_uint_ge(json_array_size(texts), 10);
	ck_assert_msg(!fm_tokenizer_open(path, &tokenizer), "%s", fm_error_detail());
	json_array_foreach(texts, i, entry)
	{
		json_t *text = json_object_get(entry, "text"), *ids = json_object_get(entry, "ids");
		struct fm_tokens tokens;

		ck_assert_int_eq(fm_tokenizer_encode(tokenizer, json_string_value(text),
						     json_string_length(text), false, false,
						     &tokens),
				 0);
		ck_assert_msg(tokens.n == json_array_size(ids), "text %zu: %zu tokens, not %zu", i,
			      tokens.n, json_array_size(ids));
		for (size_t j = 0; j < tokens.n; j++)
			ck_assert_msg(tokens.ids[j] == json_integer_value(json_array_get(ids, j)),
				      "text %zu: token %zu is %u", i, j, tokens.ids[j]);
		fm_tokens_free(&tokens);
	}
	fm_tokenizer_destroy(tokenizer);
	json_decref(root);
}
END_TEST

static void score(enum fm_precision precision, enum fm_element kv_element, double kl,
		  size_t others_allowed)
{
	struct fm_model_options options = {
		.precision = precision,
		.kv_element = kv_element,
		.tokens_per_block = 16,
	};
	const char *path = gemma();
	struct reference_score out;

	if (!path)
		return;
	ck_assert_msg(!reference_score(REFERENCE_GEMMA3, path, &options, &out), "%s",
		      fm_error_detail());
	ck_assert_uint_eq(out.positions, 153);
	fprintf(stderr,
		"gemma: precision %d, KV %d: mean KL %.3g, worst %.3g, same first candidate at %zu "
		"of %zu\n",
		(int)precision, (int)kv_element, out.mean_kl, out.worst_kl, out.same_first,
		out.positions);
	ck_assert_double_le(out.mean_kl, kl);
	ck_assert_uint_ge(out.same_first + others_allowed, out.positions);
}

START_TEST(float_precision_equals_the_reference)
{
	score(FM_PRECISION_F32, FM_ELEMENT_F32, 1e-6, 0);
}
END_TEST

START_TEST(integer_precisions_are_near_the_reference)
{
	score(FM_PRECISION_Q16, FM_ELEMENT_F16, 1e-5, 0);
	score(FM_PRECISION_Q8, FM_ELEMENT_F16, 0.008, 4);
}
END_TEST

/* The logits behind the last token. */
static float *run(const char *path, const char *isa, unsigned int threads, size_t chunk, size_t *n)
{
	struct fm_model_options options = {
		.precision = FM_PRECISION_Q16,
		.kv_element = FM_ELEMENT_F16,
		.threads = threads,
		.isa = isa,
		.tokens_per_block = 16,
	};
	static struct fm_token_in tokens[TOKENS];
	void *blocks[TOKENS / 16];
	struct fm_model *model;
	float *logits;

	ck_assert_msg(!fm_model_open(path, &options, &model), "%s", fm_error_detail());
	*n = fm_model_info(model)->vocab_size * sizeof(*logits);
	logits = malloc(*n);
	for (size_t i = 0; i < TOKENS / 16; i++)
		blocks[i] = malloc(fm_model_block_bytes(model));
	for (size_t i = 0; i < TOKENS; i++)
		tokens[i] = (struct fm_token_in){
			.token = (uint32_t)(i * i * 31 + i * 7 + 500) % 200000,
			.position = (uint32_t)i,
			.blocks = blocks,
			.logits = i + 1 == TOKENS ? logits : NULL,
		};
	for (size_t first = 0; first < TOKENS; first += chunk)
		ck_assert_int_eq(fm_model_forward(model, tokens + first,
						  TOKENS - first < chunk ? TOKENS - first : chunk),
				 0);
	for (size_t i = 0; i < TOKENS / 16; i++)
		free(blocks[i]);
	fm_model_close(model);
	return logits;
}

START_TEST(chunks_threads_and_instruction_sets_give_the_same_bytes)
{
	static const struct {
		const char *isa;
		unsigned int threads;
		size_t chunk;
	} cases[] = {{NULL, 2, 7}, {NULL, 1, 300}, {"avx2", 2, 100}};
	const char *path = gemma();
	float *first, *other;
	size_t n;

	if (!path)
		return;
	first = run(path, NULL, 2, TOKENS, &n);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		other = run(path, cases[i].isa, cases[i].threads, cases[i].chunk, &n);
		ck_assert_msg(!memcmp(first, other, n), "case %zu gives other logits", i);
		free(other);
	}
	free(first);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gemma");
	TCase *tests = tcase_create("gemma");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 600);
	tcase_add_test(tests, token_ids_are_those_of_sentencepiece);
	tcase_add_test(tests, float_precision_equals_the_reference);
	tcase_add_test(tests, integer_precisions_are_near_the_reference);
	tcase_add_test(tests, chunks_threads_and_instruction_sets_give_the_same_bytes);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
