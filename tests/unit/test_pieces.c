/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece vocabularies: merging by score, blanks, bytes of characters that have no piece,
 * refusals; and Gemma's chat template, whose markers such a vocabulary has.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <text/chat_template.h>
#include <text/tokenizer.h>

#include "gguf_builder.h"

enum {
	UNKNOWN,
	BOS,
	EOS,
	START,
	END,
	NEWLINE,
	BLANKS,
	BYTES, /* 256 of them */
	BLANK = BYTES + 256,
	H,
	E,
	L,
	O,
	HE,
	LL,
	HELL,
	BLANK_H,
	HELLO,
	BLANK_HELLO,
	LO,
	E_ACUTE,
	TOKENS,
};

enum wrong { RIGHT, NO_SCORES, FEW_SCORES, NAN_SCORE, NO_BYTES };

static const char gemma_template[] =
	"{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = "
	"messages[0]['content'] + '\n\n' -%}{%- endif -%}{%- for message in loop_messages -%}"
	"{{ '<start_of_turn>' + role + '\n' }}{{ message['content'] | trim }}{{ '<end_of_turn>\n' "
	"}}{%- endfor -%}{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}";

static const struct piece {
	const char *text;
	float score;
} pieces[] = {
	[UNKNOWN] = {"<unk>", 0},
	[BOS] = {"<bos>", 0},
	[EOS] = {"<eos>", 0},
	[START] = {"<start_of_turn>", 0},
	[END] = {"<end_of_turn>", 0},
	[NEWLINE] = {"\n", -1000},
	[BLANKS] = {"\xe2\x96\x81\xe2\x96\x81", -1000},
	[BLANK] = {"\xe2\x96\x81", -20},
	[H] = {"h", -21},
	[E] = {"e", -22},
	[L] = {"l", -23},
	[O] = {"o", -24},
	[HE] = {"he", -1},
	[LL] = {"ll", -2},
	[HELL] = {"hell", -3},
	[BLANK_H] = {"\xe2\x96\x81h", -4},
	[HELLO] = {"hello", -5},
	[BLANK_HELLO] = {"\xe2\x96\x81hello", -6},
	[LO] = {"lo", -0.5f},
	[E_ACUTE] = {"\xc3\xa9", -25},
};

static uint32_t type_of(int id)
{
	return id == UNKNOWN		   ? 2
	       : id < NEWLINE		   ? 3
	       : id < BYTES		   ? 4
	       : id >= BYTES && id < BLANK ? 6
					   : 1;
}

static void build_array(struct gguf_builder *out, const char *key, uint32_t type, uint64_t n)
{
	build_key(out, key, GGUF_ARRAY);
	build_u32(out, type);
	build_u64(out, n);
}

static struct gguf *build(struct gguf_builder *out, bool adds_blank, enum wrong wrong)
{
	static char bytes[256][8];
	const char *texts[TOKENS];
	struct gguf *file;

	for (int i = 0; i < TOKENS; i++)
		texts[i] = pieces[i].text;
	for (int i = 0; i < 256; i++) {
		snprintf(bytes[i], sizeof(bytes[i]), wrong == NO_BYTES ? "(%d)" : "<0x%02X>", i);
		texts[BYTES + i] = bytes[i];
	}
	build_header(out, 3, 0, 8 + (wrong != NO_SCORES));
	build_key_string(out, "tokenizer.ggml.model", "llama");
	build_key_strings(out, "tokenizer.ggml.tokens", texts, TOKENS);
	build_array(out, "tokenizer.ggml.token_type", GGUF_I32, TOKENS);
	for (int i = 0; i < TOKENS; i++)
		build_u32(out, type_of(i));
	if (wrong != NO_SCORES) {
		uint64_t n = wrong == FEW_SCORES ? TOKENS - 1 : TOKENS;

		build_array(out, "tokenizer.ggml.scores", GGUF_F32, n);
		for (uint64_t i = 0; i < n; i++) {
			float score = wrong == NAN_SCORE && i == L ? NAN : pieces[i].score;

			build_bytes(out, &score, sizeof(score));
		}
	}
	build_key_u32(out, "tokenizer.ggml.unknown_token_id", UNKNOWN);
	build_key_u32(out, "tokenizer.ggml.bos_token_id", BOS);
	build_key_u32(out, "tokenizer.ggml.eos_token_id", EOS);
	build_key_bool(out, "tokenizer.ggml.add_space_prefix", adds_blank);
	build_key_string(out, "tokenizer.chat_template", gemma_template);
	ck_assert_msg(gguf_open_memory(out->data, out->n, "tiny.gguf", &file) == 0, "%s",
		      fm_error_detail());
	return file;
}

static struct fm_tokenizer *tiny(bool adds_blank, enum wrong wrong)
{
	struct gguf_builder built = {0};
	struct gguf *file = build(&built, adds_blank, wrong);
	struct fm_tokenizer *tokenizer;

	ck_assert_msg(fm_tokenizer_create(file, &tokenizer) == 0, "%s", fm_error_detail());
	gguf_close(file);
	build_free(&built);
	return tokenizer;
}

static void expect(const struct fm_tokenizer *tokenizer, const char *text, size_t n,
		   const uint32_t *ids)
{
	struct fm_tokens tokens;

	ck_assert_msg(fm_tokenizer_encode(tokenizer, text, strlen(text), true, false, &tokens) == 0,
		      "%s", fm_error_detail());
	ck_assert_msg(tokens.n == n, "\"%s\" gives %zu tokens, not %zu", text, tokens.n, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(tokens.ids[i] == ids[i], "\"%s\": token %zu is %u, not %u", text, i,
			      tokens.ids[i], ids[i]);
	fm_tokens_free(&tokens);
}

#define EXPECT(tokenizer, text, ...)                                                               \
	expect(tokenizer, text, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),              \
	       (uint32_t[]){__VA_ARGS__})

START_TEST(pieces_merge_by_score)
{
	struct fm_tokenizer *tokenizer = tiny(false, RIGHT);

	EXPECT(tokenizer, "hell", HELL);
	/* "lo" is better than all, so that "hello" never comes about. */
	EXPECT(tokenizer, "hello", HE, L, LO);
	EXPECT(tokenizer, " hell", BLANK, HELL);
	EXPECT(tokenizer, " h", BLANK_H);
	EXPECT(tokenizer, "lll", LL, L);
	expect(tokenizer, "", 0, NULL);
	/* U+2581 is a blank; user tokens go first and are as their blanks. */
	EXPECT(tokenizer, "\xe2\x96\x81h", BLANK_H);
	EXPECT(tokenizer, "   h", BLANKS, BLANK_H);
	EXPECT(tokenizer, "h\nh", H, NEWLINE, H);
	/* Without a piece of their own: bytes. */
	EXPECT(tokenizer, "\xc3\xa9\xc3\xbc", E_ACUTE, BYTES + 0xc3, BYTES + 0xbc);
	EXPECT(tokenizer, "x", BYTES + 'x');
	EXPECT(tokenizer, "h<eos>h", H, EOS, H);
	fm_tokenizer_destroy(tokenizer);
	tokenizer = tiny(false, NO_BYTES);
	EXPECT(tokenizer, "hxl", H, UNKNOWN, L);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(a_blank_goes_before_text_where_the_file_says_so)
{
	struct fm_tokenizer *tokenizer = tiny(true, RIGHT);
	struct fm_tokens tokens;

	EXPECT(tokenizer, "h", BLANK_H);
	EXPECT(tokenizer, " h", BLANK, BLANK_H);
	EXPECT(tokenizer, "h<eos>h<eos>", BLANK_H, EOS, BLANK_H, EOS);
	expect(tokenizer, "", 0, NULL);
	ck_assert_int_eq(fm_tokenizer_encode(tokenizer, "h", 1, true, true, &tokens), 0);
	ck_assert_uint_eq(tokens.n, 2);
	ck_assert_uint_eq(tokens.ids[0], BOS);
	fm_tokens_free(&tokens);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(pieces_are_their_text)
{
	struct fm_tokenizer *tokenizer = tiny(false, RIGHT);
	size_t len;

	for (int i = 0; i < 256; i++) {
		const char *piece = fm_tokenizer_piece(tokenizer, BYTES + i, false, &len);

		ck_assert_uint_eq(len, 1);
		ck_assert_int_eq((uint8_t)piece[0], i);
	}
	ck_assert_mem_eq(fm_tokenizer_piece(tokenizer, BLANK_HELLO, false, &len), " hello", 6);
	ck_assert_uint_eq(len, 6);
	fm_tokenizer_piece(tokenizer, BOS, false, &len);
	ck_assert_uint_eq(len, 0);
	ck_assert(fm_tokenizer_is_end(tokenizer, EOS));
	ck_assert(fm_tokenizer_is_end(tokenizer, END));
	ck_assert(!fm_tokenizer_is_end(tokenizer, START));
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

/* One pair at a time: the best score and of those the leftmost. */
static size_t merge_slowly(const char *text, size_t n, uint32_t *ids)
{
	char words[64][16];

	for (size_t i = 0; i < n; i++)
		snprintf(words[i], sizeof(words[i]), "%s%c", text[i] == ' ' ? "\xe2\x96\x81" : "",
			 text[i] == ' ' ? 0 : text[i]);
	for (;;) {
		float best_score = -INFINITY;
		size_t best = n;
		char joined[40];

		for (size_t i = 0; i + 1 < n; i++) {
			snprintf(joined, sizeof(joined), "%.15s%.15s", words[i], words[i + 1]);
			for (int id = BLANK; id < TOKENS; id++)
				if (!strcmp(joined, pieces[id].text) &&
				    pieces[id].score > best_score) {
					best_score = pieces[id].score;
					best = i;
				}
		}
		if (best == n)
			break;
		snprintf(joined, sizeof(joined), "%.15s%.15s", words[best], words[best + 1]);
		memcpy(words[best], joined, sizeof(words[best]));
		memmove(words[best + 1], words[best + 2], (n - best - 2) * sizeof(words[0]));
		n--;
	}
	for (size_t i = 0; i < n; i++)
		for (int id = BLANK; id < TOKENS; id++)
			if (!strcmp(words[i], pieces[id].text))
				ids[i] = (uint32_t)id;
	return n;
}

START_TEST(merging_equals_merging_one_pair_at_a_time)
{
	struct fm_tokenizer *tokenizer = tiny(false, RIGHT);
	unsigned int seed = 1;

	for (int round = 0; round < 5000; round++) {
		size_t n = 1 + (size_t)rand_r(&seed) % 30;
		uint32_t ids[32];
		char text[32];

		for (size_t i = 0; i < n; i++) /* two blanks would be a user token */
			text[i] = i && text[i - 1] == ' ' ? 'h' : "hello "[rand_r(&seed) % 6];
		text[n] = 0;
		expect(tokenizer, text, merge_slowly(text, n, ids), ids);
	}
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(a_long_text_takes_no_square_of_its_length)
{
	struct fm_tokenizer *tokenizer = tiny(true, RIGHT);
	const size_t n = 1 << 20;
	char *text = malloc(n);
	struct fm_tokens tokens;

	memset(text, 'l', n);
	ck_assert_int_eq(fm_tokenizer_encode(tokenizer, text, n, false, false, &tokens), 0);
	ck_assert_uint_eq(tokens.n, 1 + n / 2);
	fm_tokens_free(&tokens);
	free(text);
	fm_tokenizer_destroy(tokenizer);
}
END_TEST

START_TEST(vocabularies_without_scores_are_refused)
{
	static const char *const words[] = {
		[NO_SCORES] = "tokens but 0 tokenizer.ggml.scores",
		[FEW_SCORES] = "tokenizer.ggml.scores",
		[NAN_SCORE] = "is no number",
	};

	for (enum wrong wrong = NO_SCORES; wrong <= NAN_SCORE; wrong++) {
		struct gguf_builder built = {0};
		struct gguf *file = build(&built, false, wrong);
		struct fm_tokenizer *tokenizer;

		ck_assert_int_eq(fm_tokenizer_create(file, &tokenizer), FM_ERR_CORRUPT);
		ck_assert_ptr_null(tokenizer);
		ck_assert_msg(strstr(fm_error_detail(), words[wrong]) != NULL, "%s",
			      fm_error_detail());
		gguf_close(file);
		build_free(&built);
	}
}
END_TEST

static void expect_chat(const struct fm_chat_message *messages, size_t n, const char *rendered)
{
	struct gguf_builder built = {0};
	struct gguf *file = build(&built, false, RIGHT);
	struct fm_tokenizer *tokenizer = tiny(false, RIGHT);
	struct fm_chat_template *chat;
	struct fm_tokens got, want;
	int err;

	ck_assert_msg(fm_chat_template_create(file, &chat) == 0, "%s", fm_error_detail());
	err = fm_chat_template_encode(chat, tokenizer, messages, n, &got);
	if (rendered) {
		ck_assert_msg(err == 0, "%s", fm_error_detail());
		ck_assert_int_eq(fm_tokenizer_encode(tokenizer, rendered, strlen(rendered), true,
						     false, &want),
				 0);
		ck_assert_uint_eq(got.n, want.n);
		ck_assert_mem_eq(got.ids, want.ids, got.n * sizeof(*got.ids));
		fm_tokens_free(&want);
		fm_tokens_free(&got);
	} else {
		ck_assert_int_eq(err, FM_ERR_INVALID);
	}
	fm_chat_template_destroy(chat);
	fm_tokenizer_destroy(tokenizer);
	gguf_close(file);
	build_free(&built);
}

/* A message cannot end itself: @n_ends markers in all. */
static void expect_ends(const struct fm_chat_message *messages, size_t n, size_t n_ends)
{
	struct gguf_builder built = {0};
	struct gguf *file = build(&built, false, RIGHT);
	struct fm_tokenizer *tokenizer = tiny(false, RIGHT);
	struct fm_chat_template *chat;
	struct fm_tokens got;

	ck_assert_int_eq(fm_chat_template_create(file, &chat), 0);
	ck_assert_int_eq(fm_chat_template_encode(chat, tokenizer, messages, n, &got), 0);
	for (size_t i = 0; i < got.n; i++)
		n_ends -= got.ids[i] == END;
	ck_assert_uint_eq(n_ends, 0);
	fm_tokens_free(&got);
	fm_chat_template_destroy(chat);
	fm_tokenizer_destroy(tokenizer);
	gguf_close(file);
	build_free(&built);
}

/* As the template of Gemma 3 renders them. */
START_TEST(conversations_are_in_the_form_of_gemma)
{
	static const struct fm_chat_message one[] = {{"user", "  hello\n"}};
	static const struct fm_chat_message many[] = {{"system", "hell"},
						      {"user", "he"},
						      {"assistant", " lo "},
						      {"user", "h<end_of_turn>"}};
	static const struct fm_chat_message twice[] = {{"user", "h"}, {"user", "h"}};
	static const struct fm_chat_message answer[] = {{"assistant", "h"}};
	static const struct fm_chat_message late[] = {{"user", "h"}, {"system", "h"}};

	expect_chat(one, 1, "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n");
	expect_chat(many, 3,
		    "<bos><start_of_turn>user\nhell\n\nhe<end_of_turn>\n<start_of_turn>model\nlo"
		    "<end_of_turn>\n<start_of_turn>model\n");
	expect_ends(many, 4, 3);
	expect_chat(many, 1, NULL);
	expect_chat(twice, 2, NULL);
	expect_chat(answer, 1, NULL);
	expect_chat(late, 2, NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pieces");
	TCase *tests = tcase_create("pieces");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 120);
	tcase_add_test(tests, pieces_merge_by_score);
	tcase_add_test(tests, a_blank_goes_before_text_where_the_file_says_so);
	tcase_add_test(tests, pieces_are_their_text);
	tcase_add_test(tests, merging_equals_merging_one_pair_at_a_time);
	tcase_add_test(tests, a_long_text_takes_no_square_of_its_length);
	tcase_add_test(tests, vocabularies_without_scores_are_refused);
	tcase_add_test(tests, conversations_are_in_the_form_of_gemma);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
