// SPDX-License-Identifier: Apache-2.0
/*
 * The tokenizer: merges, splitting, control tokens, refusals, round trips of random text, long
 * words; and the ids of the reference prompts with the real model's vocabulary.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include <fabricmgr.h>
#include <text/tokenizer.h>

#include "gguf_builder.h"

#define REFERENCE "tests/data/reference-smollm2-prompts.json"

static struct fm_tokenizer *tiny(const char *pre)
{
	struct gguf_builder built = {0};
	struct fm_tokenizer *tokenizer;
	struct gguf *file;

	build_tokenizer_file(&built, pre, NULL);
	ck_assert_int_eq(gguf_open_memory(built.data, built.n, "tiny.gguf", &file), 0);
	ck_assert_msg(fm_tokenizer_create(file, &tokenizer) == 0, "%s", fm_error_detail());
	gguf_close(file);
	build_free(&built); /* it copies what it needs */
	return tokenizer;
}

/* NULL, after saying so, without the real model. */
static struct fm_tokenizer *real(const char *test)
{
	const char *path = getenv("FABRICMGR_TEST_MODEL");
	struct fm_tokenizer *tokenizer;
	struct gguf *file;

	if (!path || !*path) {
		printf("SKIP: tokenizer/%s: FABRICMGR_TEST_MODEL is not set\n", test);
		return NULL;
	}
	ck_assert_msg(gguf_open(path, &file) == 0, "%s", fm_error_detail());
	ck_assert_msg(fm_tokenizer_create(file, &tokenizer) == 0, "%s", fm_error_detail());
	gguf_close(file);
	return tokenizer;
}

static void expect(const struct fm_tokenizer *tokenizer, const char *text, bool parse_special,
		   size_t n, const uint32_t *ids)
{
	struct fm_tokens tokens;

	ck_assert_msg(fm_tokenizer_encode(tokenizer, text, strlen(text), parse_special, false,
					  &tokens) == 0,
		      "%s", fm_error_detail());
	ck_assert_msg(tokens.n == n, "\"%s\" gives %zu tokens, not %zu", text, tokens.n, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(tokens.ids[i] == ids[i], "\"%s\": token %zu is %u, not %u", text, i,
			      tokens.ids[i], ids[i]);
	fm_tokens_free(&tokens);
}

#define EXPECT(tokenizer, text, special, ...)                                                      \
	expect(tokenizer, text, special, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),     \
	       (uint32_t[]){__VA_ARGS__})

static void expect_round_trip(const struct fm_tokenizer *tokenizer, const char *text, size_t n)
{
	struct fm_tokens tokens;
	size_t at = 0;

	ck_assert_msg(fm_tokenizer_encode(tokenizer, text, n, false, false, &tokens) == 0, "%s",
		      fm_error_detail());
	for (size_t i = 0; i < tokens.n; i++) {
		size_t len;
		const char *piece = fm_tokenizer_piece(tokenizer, tokens.ids[i], false, &len);

		/* Check's assertions write to a file each time: too slow for a million pieces. */
		if (at + len > n || memcmp(piece, text + at, len) != 0)
			ck_abort_msg("token %zu is not the text at byte %zu", i, at);
		at += len;
	}
	ck_assert_uint_eq(at, n);
	fm_tokens_free(&tokens);
}

START_TEST(merges_are_applied_by_rank)
{
	struct fm_tokenizer *tokenizer = tiny("gpt-2");

	EXPECT(tokenizer, "hello", false, TINY_HELLO);
	/* "hell" first of all; " h" has no part in it, so the blank joins at the end. */
	EXPECT(tokenizer, " hello", false, ' ', TINY_HELLO);
	EXPECT(tokenizer, " hell", false, TINY_BLANK_HELL);
	EXPECT(tokenizer, " h", false, TINY_BLANK_H);
	/* Of two equal pairs the left one merges first: "ll" then "l". */
	EXPECT(tokenizer, "lll", false, TINY_LL, 'l');
	EXPECT(tokenizer, "xhellx", false, 'x', TINY_HELL, 'x');
	EXPECT(tokenizer, "\xc3\xa9", false, 0xc3, 0xa9);
	expect(tokenizer, "", false, 0, NULL);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(digits_and_blanks_split_by_the_rules)
{
	struct fm_tokenizer *tokenizer = tiny("smollm");

	/* The rules cut words; within them these letters have no merges, so only "he" shows it. */
	EXPECT(tokenizer, "h1e", false, 'h', '1', 'e');
	EXPECT(tokenizer, "h e", false, 'h', ' ', 'e');
	EXPECT(tokenizer, "  h", false, ' ', TINY_BLANK_H);
	EXPECT(tokenizer, "\n h", false, '\n', TINY_BLANK_H);
	fm_tokenizer_destroy(tokenizer);
	/* With "ignore merges" a word of the vocabulary needs no rule. */
	tokenizer = tiny("llama-bpe");
	EXPECT(tokenizer, " hell", false, TINY_BLANK_HELL);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(control_tokens_are_found_only_when_asked)
{
	struct fm_tokenizer *tokenizer = tiny("qwen2");

	EXPECT(tokenizer, "h<|im_start|>h", true, 'h', TINY_START, 'h');
	EXPECT(tokenizer, "<|im_end|><|im_start|>", true, TINY_END, TINY_START);
	EXPECT(tokenizer, "<|im_", true, '<', '|', 'i', 'm', '_');
	EXPECT(tokenizer, "<|im_end|>", false, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
	EXPECT(tokenizer, "<<tool>", false, '<', TINY_TOOL); /* a user token always */
	ck_assert(fm_tokenizer_is_control(tokenizer, TINY_START));
	ck_assert(!fm_tokenizer_is_control(tokenizer, TINY_TOOL));
	ck_assert(!fm_tokenizer_is_control(tokenizer, TINY_TOKENS));
	ck_assert(fm_tokenizer_is_end(tokenizer, TINY_END));
	ck_assert(fm_tokenizer_is_end(tokenizer, TINY_END_OF_TEXT));
	ck_assert(!fm_tokenizer_is_end(tokenizer, TINY_START));
	ck_assert(!fm_tokenizer_is_end(tokenizer, UINT32_MAX));
	ck_assert_uint_eq(fm_tokenizer_vocab_size(tokenizer), TINY_TOKENS);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(pieces_are_bytes)
{
	struct fm_tokenizer *tokenizer = tiny("gpt-2");
	size_t len;

	for (int byte = 0; byte < 256; byte++) {
		const char *piece = fm_tokenizer_piece(tokenizer, byte, false, &len);

		ck_assert_uint_eq(len, 1);
		ck_assert_int_eq((uint8_t)piece[0], byte);
	}
	ck_assert_mem_eq(fm_tokenizer_piece(tokenizer, TINY_BLANK_H, false, &len), " h", 2);
	fm_tokenizer_piece(tokenizer, TINY_START, false, &len);
	ck_assert_uint_eq(len, 0);
	ck_assert_mem_eq(fm_tokenizer_piece(tokenizer, TINY_START, true, &len), "<|im_start|>", 12);
	ck_assert_uint_eq(len, 12);
	ck_assert_ptr_nonnull(fm_tokenizer_piece(tokenizer, UINT32_MAX, true, &len));
	ck_assert_uint_eq(len, 0);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(the_beginning_token_is_as_the_file_says)
{
	struct fm_tokenizer *tokenizer = tiny("gpt-2");
	struct fm_tokens tokens;

	ck_assert_int_eq(fm_tokenizer_encode(tokenizer, "h", 1, false, true, &tokens), 0);
	ck_assert_uint_eq(tokens.n, 1);
	fm_tokens_free(&tokens);
	fm_tokenizer_destroy(tokenizer);
	tokenizer = tiny("llama-bpe"); /* which adds it unless the file says no */
	ck_assert_int_eq(fm_tokenizer_encode(tokenizer, "h", 1, false, true, &tokens), 0);
	ck_assert_uint_eq(tokens.n, 2);
	ck_assert_uint_eq(tokens.ids[0], TINY_END_OF_TEXT);
	fm_tokens_free(&tokens);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(bad_text_is_named_by_its_offset)
{
	static const struct {
		const char *text;
		const char *words;
	} bad[] = {
		{"abc\xff", "byte 3 (0xff)"},	    {"\xc3", "byte 0 (0xc3)"},
		{"a\xed\xa0\x80", "byte 1 (0xed)"}, {"\xc0\x80", "byte 0 (0xc0)"},
		{"\xf4\x90\x80\x80", "byte 0"},	    {"\xe4\xbd", "byte 0"},
	};
	struct fm_tokenizer *tokenizer = tiny("gpt-2");
	struct fm_tokens tokens;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_eq(fm_tokenizer_encode(tokenizer, bad[i].text, strlen(bad[i].text),
						     true, true, &tokens),
				 FM_ERR_INVALID);
		ck_assert_ptr_null(tokens.ids);
		ck_assert_msg(strstr(fm_error_detail(), bad[i].words) != NULL, "%s",
			      fm_error_detail());
	}
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

static void refuse(struct gguf_builder *built, int err, const char *words)
{
	struct fm_tokenizer *tokenizer;
	struct gguf *file;

	ck_assert_msg(gguf_open_memory(built->data, built->n, "tiny.gguf", &file) == 0, "%s",
		      fm_error_detail());
	ck_assert_int_eq(fm_tokenizer_create(file, &tokenizer), err);
	ck_assert_ptr_null(tokenizer);
	ck_assert_msg(strstr(fm_error_detail(), words) != NULL, "\"%s\" lacks \"%s\"",
		      fm_error_detail(), words);
	gguf_close(file);
	build_free(built);
}

START_TEST(unknown_tokenizers_are_refused_by_name)
{
	static const char *const tokens[] = {"a", "b", "ab"};
	static const char *const merges[] = {"a b", "a c"};
	struct gguf_builder built = {0};

	build_header(&built, 3, 0, 0);
	refuse(&built, FM_ERR_UNSUPPORTED, "tokenizer.ggml.model");
	build_header(&built, 3, 0, 1);
	build_key_string(&built, "tokenizer.ggml.model", "bert");
	refuse(&built, FM_ERR_UNSUPPORTED, "tokenizer model \"bert\"");
	build_header(&built, 3, 0, 1);
	build_key_string(&built, "tokenizer.ggml.model", "gpt2");
	refuse(&built, FM_ERR_UNSUPPORTED, "does not name its pre-tokenizer");
	build_tokenizer_file(&built, "tekken", NULL);
	refuse(&built, FM_ERR_UNSUPPORTED, "pre-tokenizer \"tekken\"");
	for (int wrong = 0; wrong < 3; wrong++) {
		build_header(&built, 3, 0, 5);
		build_key_string(&built, "tokenizer.ggml.model", "gpt2");
		build_key_string(&built, "tokenizer.ggml.pre", "gpt-2");
		build_key_strings(&built, "tokenizer.ggml.tokens", tokens, 3);
		build_key_strings(&built, "tokenizer.ggml.merges", merges, wrong == 0 ? 2 : 1);
		if (wrong < 2) {
			build_key_u32(&built, "tokenizer.ggml.eos_token_id", 3);
		} else {
			build_key(&built, "tokenizer.ggml.token_type", GGUF_ARRAY);
			build_u32(&built, GGUF_I32);
			build_u64(&built, 1);
			build_u32(&built, 1);
		}
		refuse(&built, FM_ERR_CORRUPT,
		       wrong == 0   ? "merge 1 "
		       : wrong == 1 ? "eos_token_id is 3 but there are 3 tokens"
				    : "3 tokens but 1 token types");
	}
}
END_TEST

static size_t random_text(unsigned int *seed, char *out, size_t n_characters)
{
	static const char *const common[] = {
		" ",  "  ", "\n",  "h",	 "he",		 "hello", " hell", "1",
		"12", "'s", "'LL", "!?", "<|im_start|>", "\t",	  "\r\n"};
	size_t n = 0;

	for (size_t i = 0; i < n_characters; i++) {
		uint32_t character = (uint32_t)rand_r(seed);

		if (character % 4) {
			const char *text = common[(uint32_t)rand_r(seed) %
						  (sizeof(common) / sizeof(common[0]))];

			memcpy(out + n, text, strlen(text));
			n += strlen(text);
			continue;
		}
		character = (character >> 3) % (1u << (7 + rand_r(seed) % 14));
		if (character > 0x10ffff || (character >= 0xd800 && character < 0xe000))
			character = 0x3042;
		if (character < 0x80) {
			out[n++] = (char)character;
		} else if (character < 0x800) {
			out[n++] = (char)(0xc0 | character >> 6);
		} else if (character < 0x10000) {
			out[n++] = (char)(0xe0 | character >> 12);
			out[n++] = (char)(0x80 | (character >> 6 & 0x3f));
		} else {
			out[n++] = (char)(0xf0 | character >> 18);
			out[n++] = (char)(0x80 | (character >> 12 & 0x3f));
			out[n++] = (char)(0x80 | (character >> 6 & 0x3f));
		}
		if (character >= 0x80)
			out[n++] = (char)(0x80 | (character & 0x3f));
	}
	return n;
}

START_TEST(pieces_joined_are_the_text)
{
	static const char *const pres[] = {"smollm", "llama-bpe", "qwen2", "gpt-2", "default"};
	static char text[16 * 256];

	for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++) {
		struct fm_tokenizer *tokenizer = tiny(pres[i]);
		unsigned int seed = 1;

		for (int round = 0; round < 300; round++)
			expect_round_trip(tokenizer, text,
					  random_text(&seed, text, rand_r(&seed) % 256));
		fm_tokenizer_destroy(tokenizer);
	}
}
END_TEST

/* The same as merging one pair at a time, the lowest rank and of those the leftmost first. */
static size_t merge_slowly(const char *word, size_t n, uint32_t *ids)
{
	static const uint32_t merges[][3] = {
		{'h', 'e', TINY_HE},	       {'l', 'l', TINY_LL},
		{TINY_HE, TINY_LL, TINY_HELL}, {TINY_HELL, 'o', TINY_HELLO},
		{' ', 'h', TINY_BLANK_H},      {' ', TINY_HELL, TINY_BLANK_HELL},
	};
	bool found = true;

	for (size_t i = 0; i < n; i++)
		ids[i] = (uint8_t)word[i];
	while (found) {
		found = false;
		for (size_t rank = 0; rank < 6 && !found; rank++) {
			for (size_t i = 0; i + 1 < n && !found; i++) {
				if (ids[i] != merges[rank][0] || ids[i + 1] != merges[rank][1])
					continue;
				ids[i] = merges[rank][2];
				memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof(*ids));
				n--;
				found = true;
			}
		}
	}
	return n;
}

START_TEST(the_queue_merges_as_one_by_one)
{
	struct fm_tokenizer *tokenizer = tiny("gpt-2");
	unsigned int seed = 7;

	for (int round = 0; round < 3000; round++) {
		uint32_t ids[64];
		char word[64];
		size_t n = 1 + rand_r(&seed) % 30;

		for (size_t i = 0; i < n; i++)
			word[i] = "hhellloz"[rand_r(&seed) % 8];
		word[n] = '\0';
		expect(tokenizer, word, false, merge_slowly(word, n, ids), ids);
	}
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(a_long_word_takes_no_quadratic_time)
{
	struct fm_tokenizer *tokenizer = tiny("smollm");
	const size_t n = 1 << 20;
	char *text = malloc(n);
	struct timespec start, end;
	double seconds;

	ck_assert_ptr_nonnull(text);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
	for (int kind = 0; kind < 4; kind++) {
		static const char *const patterns[] = {"ll", "  ", "hl", "<<"};

		for (size_t i = 0; i < n; i++)
			text[i] = patterns[kind][i % 2];
		expect_round_trip(tokenizer, text, n);
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
	seconds =
		(double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
	/* About 1 s; quadratic time would be hours. */
	ck_assert_double_lt(seconds, 120);
	free(text);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(too_long_a_text_is_refused)
{
	struct fm_tokenizer *tokenizer = tiny("gpt-2");
	struct fm_tokens tokens;

	ck_assert_int_eq(fm_tokenizer_encode(tokenizer, "", (16u << 20) + 1, false, false, &tokens),
			 FM_ERR_LIMIT);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

static void *encode_in_thread(void *argument)
{
	const char *text = "hello  hell 12 <|im_start|>hello";

	for (int i = 0; i < 500; i++) {
		struct fm_tokens tokens;

		if (fm_tokenizer_encode(argument, text, strlen(text), true, false, &tokens) ||
		    tokens.n != 9)
			return argument;
		fm_tokens_free(&tokens);
	}
	return NULL;
}

START_TEST(threads_share_a_tokenizer)
{
	struct fm_tokenizer *tokenizer = tiny("smollm");
	pthread_t threads[4];
	void *failed;

	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_in_thread, tokenizer), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &failed);
		ck_assert_ptr_null(failed);
	}
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(reference_prompts_give_the_reference_ids)
{
	struct fm_tokenizer *tokenizer = real("reference_prompts_give_the_reference_ids");
	json_t *root, *prompt;
	size_t i;

	if (!tokenizer)
		return;
	root = json_load_file(REFERENCE, 0, NULL);
	ck_assert_msg(root != NULL, "%s does not load: run from the top folder", REFERENCE);
	ck_assert_uint_eq(json_array_size(json_object_get(root, "prompts")), 5);
	json_array_foreach(json_object_get(root, "prompts"), i, prompt)
	{
		json_t *want = json_object_get(prompt, "prompt_tokens");
		const char *text = json_string_value(json_object_get(prompt, "prompt"));
		size_t n = json_array_size(want);
		uint32_t *ids = calloc(n, sizeof(*ids));

		for (size_t j = 0; j < n; j++)
			ids[j] = (uint32_t)json_integer_value(json_array_get(want, j));
		expect(tokenizer, text, true, n, ids);
		free(ids);
	}
	json_decref(root);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(the_real_vocabulary_round_trips)
{
	struct fm_tokenizer *tokenizer = real("the_real_vocabulary_round_trips");
	static const char text[] = "The quick brown fox;\n\n\tjumps over 12,345 lazy dogs' tails. "
				   "Caf\u00e9 na\u00efve \u2014 \u4f60\u597d! \U0001f600 "
				   "<|im_start|>user don't   DON'T\u00a0x\u3000y\r\n";
	char edge[5];

	if (!tokenizer)
		return;
	expect_round_trip(tokenizer, text, sizeof(text) - 1);
	for (uint32_t character = 0x20; character < 0x7f; character++) {
		int n = snprintf(edge, sizeof(edge), " %c%c", (int)character, (int)character);

		expect_round_trip(tokenizer, edge, n);
	}
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tokenizer");
	TCase *tests = tcase_create("tokenizer");
	SRunner *runner = srunner_create(suite);
	int failed;

	setvbuf(stdout, NULL, _IOLBF, 0);
	tcase_set_timeout(tests, 300);
	tcase_add_test(tests, merges_are_applied_by_rank);
	tcase_add_test(tests, digits_and_blanks_split_by_the_rules);
	tcase_add_test(tests, control_tokens_are_found_only_when_asked);
	tcase_add_test(tests, pieces_are_bytes);
	tcase_add_test(tests, the_beginning_token_is_as_the_file_says);
	tcase_add_test(tests, bad_text_is_named_by_its_offset);
	tcase_add_test(tests, unknown_tokenizers_are_refused_by_name);
	tcase_add_test(tests, pieces_joined_are_the_text);
	tcase_add_test(tests, the_queue_merges_as_one_by_one);
	tcase_add_test(tests, a_long_word_takes_no_quadratic_time);
	tcase_add_test(tests, too_long_a_text_is_refused);
	tcase_add_test(tests, threads_share_a_tokenizer);
	tcase_add_test(tests, reference_prompts_give_the_reference_ids);
	tcase_add_test(tests, the_real_vocabulary_round_trips);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
