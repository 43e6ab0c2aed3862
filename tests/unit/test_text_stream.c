// SPDX-License-Identifier: Apache-2.0
/*
 * What a client sees of an answer: the same text however its bytes are cut into tokens, whole
 * characters only, nothing from a stop string on, nothing lost at the end. Checked against a slow
 * description of the same over random bytes.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <text/text_stream.h>
#include <text/utf8.h>

#include "gguf_builder.h"

static struct fm_tokenizer *tokenizer;

static void set_up(void)
{
	struct gguf_builder built = {0};
	struct gguf *file;

	build_tokenizer_file(&built, "gpt-2", NULL);
	ck_assert_int_eq(gguf_open_memory(built.data, built.n, "tiny.gguf", &file), 0);
	ck_assert_int_eq(fm_tokenizer_create(file, &tokenizer), 0);
	gguf_close(file);
	build_free(&built);
}

static void tear_down(void)
{
	fm_tokenizer_destroy(tokenizer);
}

struct seen {
	char text[4096];
	size_t n;
	bool is_stopped;
};

static void see(struct seen *seen, const char *text, size_t len)
{
	/* Every part by itself is whole characters. */
	if (fm_utf8_valid_bytes(text, len) != len || seen->n + len >= sizeof(seen->text))
		ck_abort_msg("not whole characters, or more than a test expects");
	memcpy(seen->text + seen->n, text, len);
	seen->n += len;
	seen->text[seen->n] = '\0';
}

static struct seen stream_tokens(const uint32_t *ids, size_t n, const char *const *stops,
				 size_t n_stops)
{
	struct fm_text_stream *stream;
	struct seen seen = {.n = 0};
	const char *text;
	size_t len;
	int result;

	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, n_stops, &stream), 0);
	for (size_t i = 0; i < n; i++) {
		result = fm_text_stream_push(stream, ids[i], &text, &len);
		/* Once stopped, stopped, and silent. */
		if (result < 0 || (seen.is_stopped && (result != 1 || len != 0)))
			ck_abort_msg("push gives %d and %zu bytes", result, len);
		see(&seen, text, len);
		seen.is_stopped = result == 1;
	}
	result = fm_text_stream_finish(stream, &text, &len);
	ck_assert_int_eq(result, 0);
	ck_assert(!seen.is_stopped || len == 0);
	see(&seen, text, len);
	fm_text_stream_destroy(stream);
	return seen;
}

static struct seen stream_bytes(const char *bytes, size_t n, const char *const *stops,
				size_t n_stops)
{
	uint32_t ids[1024];

	for (size_t i = 0; i < n; i++)
		ids[i] = (uint8_t)bytes[i];
	return stream_tokens(ids, n, stops, n_stops);
}

START_TEST(characters_are_never_cut)
{
	const uint32_t ids[] = {0xf0, 0x9f, 0x98, 0x80, 'a', 0xe4, 0xbd, 0xa0};
	static const size_t lens[] = {0, 0, 0, 4, 1, 0, 0, 3};
	struct fm_text_stream *stream;
	const char *text;
	size_t len;

	ck_assert_int_eq(fm_text_stream_create(tokenizer, NULL, 0, &stream), 0);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		ck_assert_int_eq(fm_text_stream_push(stream, ids[i], &text, &len), 0);
		ck_assert_uint_eq(len, lens[i]);
	}
	ck_assert_mem_eq(text, "\u4f60", 3);
	fm_text_stream_destroy(stream);
}
END_TEST

START_TEST(bytes_that_are_no_character_become_the_replacement)
{
	static const struct {
		const char *bytes, *text;
	} cases[] = {
		{"a\xff"
		 "b",
		 "a\ufffd"
		 "b"},
		{"\xc3", "\ufffd"},
		{"\xe4\xbd", "\ufffd"}, /* one for the longest beginning of a character */
		{"\xe4\xbd"
		 "x",
		 "\ufffd"
		 "x"},
		{"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		{"\xc0\x80", "\ufffd\ufffd"},
		{"\x80\x80", "\ufffd\ufffd"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct seen seen = stream_bytes(cases[i].bytes, strlen(cases[i].bytes), NULL, 0);

		ck_assert_str_eq(seen.text, cases[i].text);
	}
}
END_TEST

START_TEST(stop_strings_end_the_text)
{
	static const struct {
		const char *bytes, *stops[3], *text;
		bool is_stopped;
	} cases[] = {
		{"one\ntwo", {"\n"}, "one", true},
		{"User: x", {"User:"}, "", true},
		{"abab", {"abc"}, "abab", false}, /* held back, then released */
		{"ababc", {"abc"}, "ab", true},
		{"aab", {"ab"}, "a", true},
		{"aaab", {"aab"}, "a", true},
		{"xabcdefy", {"abcdef", "cd"}, "xab", true}, /* the one that ends first */
		{"xabcd", {"cd", "bcd", "d"}, "xa", true},   /* of those the longest */
		{"caf\u00e9!", {"\u00e9"}, "caf", true},
		{"a\xc3", {"\ufffd"}, "a", true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n_stops = 0;
		struct seen seen;

		while (n_stops < 3 && cases[i].stops[n_stops])
			n_stops++;
		seen = stream_bytes(cases[i].bytes, strlen(cases[i].bytes), cases[i].stops,
				    n_stops);
		ck_assert_str_eq(seen.text, cases[i].text);
		/* At the very end a stop is not reported any more, only cut. */
		ck_assert(seen.is_stopped == cases[i].is_stopped || i == 9);
	}
}
END_TEST

START_TEST(control_tokens_are_not_text)
{
	const uint32_t ids[] = {TINY_HE, TINY_END_OF_TEXT, TINY_LL,   TINY_TOOL,
				'o',	 TINY_END,	   UINT32_MAX};
	const char *const stops[] = {"<|im_end|>"};

	ck_assert_str_eq(stream_tokens(ids, 7, stops, 1).text, "hell<tool>o");
}
END_TEST

/* The same by definition: all bytes to text, then the first end of any stop string. */
static struct seen describe(const char *bytes, size_t n, const char *const *stops, size_t n_stops)
{
	struct seen whole = {.n = 0}, out = {.n = 0};

	for (size_t at = 0; at < n;) {
		int step = fm_utf8_step(bytes + at, n - at);

		if (step > 0)
			see(&whole, bytes + at, step);
		else
			see(&whole, FM_UTF8_REPLACEMENT, 3);
		at += step > 0 ? (size_t)step : step < 0 ? (size_t)-step : n - at;
	}
	for (size_t end = 1; end <= whole.n; end++) {
		size_t cut = 0;

		for (size_t i = 0; i < n_stops; i++) {
			size_t len = strlen(stops[i]);

			if (len <= end && len > cut &&
			    memcmp(whole.text + end - len, stops[i], len) == 0)
				cut = len;
		}
		if (cut) {
			see(&out, whole.text, end - cut);
			out.is_stopped = true;
			return out;
		}
	}
	return whole;
}

START_TEST(any_cut_into_tokens_gives_the_same_text)
{
	static const char *const all_stops[] = {"hello",	"lo",  "\n\n",	"\u00e9l",
						"\u4f60\u597d", "ell", "llllh", "\ufffd"};
	static const char *const pieces[] = {
		"hello", " hell",  "he",     "ll",     "h",    "l",    "o",    " ",
		"\n",	 "\u00e9", "\u4f60", "\u597d", "\xe4", "\xbd", "\xff", "\xf0\x9f"};
	unsigned int seed = 3;

	for (int round = 0; round < 4000; round++) {
		const char *stops[4];
		size_t n_stops = rand_r(&seed) % 4, n = 0, n_merged = 0;
		uint32_t merged[256];
		char bytes[256];
		struct seen want, by_byte, by_token;

		for (size_t i = 0; i < n_stops; i++)
			stops[i] = all_stops[rand_r(&seed) % 8];
		for (int i = rand_r(&seed) % 24; i > 0; i--) {
			const char *piece = pieces[rand_r(&seed) % 16];

			memcpy(bytes + n, piece, strlen(piece));
			n += strlen(piece);
		}
		/* Another cut: longer tokens wherever they fit and a coin says so. */
		for (size_t at = 0; at < n;) {
			uint32_t id = (uint8_t)bytes[at];
			size_t len = 1;

			for (uint32_t longer = TINY_HE; longer <= TINY_BLANK_HELL; longer++) {
				size_t have;
				const char *text =
					fm_tokenizer_piece(tokenizer, longer, false, &have);

				if (have <= n - at && memcmp(text, bytes + at, have) == 0 &&
				    rand_r(&seed) % 2) {
					id = longer;
					len = have;
				}
			}
			merged[n_merged++] = id;
			at += len;
		}
		want = describe(bytes, n, stops, n_stops);
		by_byte = stream_bytes(bytes, n, stops, n_stops);
		by_token = stream_tokens(merged, n_merged, stops, n_stops);
		ck_assert_str_eq(by_byte.text, want.text);
		ck_assert_str_eq(by_token.text, want.text);
	}
}
END_TEST

START_TEST(what_can_be_a_stop_string_is_held_back)
{
	const char *const stops[] = {"hello"};
	struct fm_text_stream *stream;
	const char *text;
	size_t len;

	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, 1, &stream), 0);
	ck_assert_int_eq(fm_text_stream_push(stream, TINY_HELL, &text, &len), 0);
	ck_assert_uint_eq(len, 0);
	ck_assert_int_eq(fm_text_stream_push(stream, 'x', &text, &len), 0);
	ck_assert_uint_eq(len, 5);
	ck_assert_mem_eq(text, "hellx", 5);
	ck_assert_int_eq(fm_text_stream_push(stream, TINY_BLANK_HELL, &text, &len), 0);
	ck_assert_uint_eq(len, 1);
	ck_assert_int_eq(fm_text_stream_finish(stream, &text, &len), 0);
	ck_assert_uint_eq(len, 4);
	ck_assert_mem_eq(text, "hell", 4);
	fm_text_stream_destroy(stream);
}
END_TEST

START_TEST(bad_stop_strings_are_refused)
{
	static char long_stop[FM_STOP_STRING_BYTES_MAX + 2];
	const char *stops[FM_STOP_STRINGS_MAX + 1];
	struct fm_text_stream *stream;

	for (size_t i = 0; i <= FM_STOP_STRINGS_MAX; i++)
		stops[i] = "x";
	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, FM_STOP_STRINGS_MAX + 1, &stream),
			 FM_ERR_LIMIT);
	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, FM_STOP_STRINGS_MAX, &stream), 0);
	fm_text_stream_destroy(stream);
	stops[0] = "";
	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, 1, &stream), FM_ERR_INVALID);
	stops[0] = "\xff";
	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, 1, &stream), FM_ERR_INVALID);
	memset(long_stop, 'x', sizeof(long_stop) - 1);
	stops[0] = long_stop;
	ck_assert_int_eq(fm_text_stream_create(tokenizer, stops, 1, &stream), FM_ERR_LIMIT);
	ck_assert_ptr_null(stream);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("text_stream");
	TCase *tests = tcase_create("text_stream");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 60);
	tcase_add_checked_fixture(tests, set_up, tear_down);
	tcase_add_test(tests, characters_are_never_cut);
	tcase_add_test(tests, bytes_that_are_no_character_become_the_replacement);
	tcase_add_test(tests, stop_strings_end_the_text);
	tcase_add_test(tests, control_tokens_are_not_text);
	tcase_add_test(tests, any_cut_into_tokens_gives_the_same_text);
	tcase_add_test(tests, what_can_be_a_stop_string_is_held_back);
	tcase_add_test(tests, bad_stop_strings_are_refused);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
