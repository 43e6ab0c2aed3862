// SPDX-License-Identifier: Apache-2.0
/*
 * The parser of Redis commands: every split of the bytes gives the same commands, long values are
 * handed over, limits and nonsense have names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "core/resp.h"

/* All that was understood of a stream, as text: "GET|key;" and "<n>" for a long value. */
struct heard {
	char text[65536];
	size_t length;
};

static void add(struct heard *heard, const char *text, size_t length)
{
	ck_assert_uint_lt(heard->length + length, sizeof(heard->text));
	memcpy(heard->text + heard->length, text, length);
	heard->length += length;
	heard->text[heard->length] = '\0';
}

static void hear(const struct fm_resp_parser *parser, const char *data, struct heard *heard)
{
	char number[32];

	for (uint32_t i = 0; i < parser->n_args; i++) {
		const struct fm_resp_arg *arg = &parser->args[i];

		if (i)
			add(heard, "|", 1);
		if (arg->is_long)
			add(heard, number,
			    (size_t)snprintf(number, sizeof(number), "<%llu>",
					     (unsigned long long)arg->length));
		else
			add(heard, data + arg->at, arg->length);
	}
	add(heard, ";", 1);
}

/* Feeds @stream in pieces of @step bytes, as a driver does. */
static enum fm_resp_state feed(const char *stream, size_t length, size_t step, struct heard *heard)
{
	struct fm_resp_parser parser;
	enum fm_resp_state state = FM_RESP_MORE;
	char *buffer = malloc(length + 1);
	size_t used = 0, skip = 0;

	ck_assert_int_eq(fm_resp_parser_create(&parser), 0);
	heard->length = 0;
	heard->text[0] = '\0';
	for (size_t at = 0; at < length && state != FM_RESP_BROKEN; at += step) {
		size_t n = length - at < step ? length - at : step;

		memcpy(buffer + used, stream + at, n);
		used += n;
		for (;;) {
			size_t taken = 0;

			if (skip) {
				/* The rest of a long value stands behind what was scanned. */
				size_t here = used - parser.scanned;

				taken = here < skip ? here : skip;
				memmove(buffer + parser.scanned, buffer + parser.scanned + taken,
					here - taken);
				used -= taken;
				skip -= taken;
				if (skip)
					break;
				fm_resp_long_taken(&parser);
			}
			state = fm_resp_parse(&parser, buffer, used);
			if (state == FM_RESP_LONG) {
				skip = parser.long_length + 2;
				continue;
			}
			if (state != FM_RESP_COMMAND)
				break;
			hear(&parser, buffer, heard);
			taken = fm_resp_command_taken(&parser);
			memmove(buffer, buffer + taken, used - taken);
			used -= taken;
		}
	}
	if (state == FM_RESP_BROKEN)
		add(heard, parser.error, strlen(parser.error));
	fm_resp_parser_destroy(&parser);
	free(buffer);
	return state;
}

static void check(const char *stream, size_t length, const char *expected)
{
	static struct heard heard;
	static const size_t steps[] = {1, 2, 3, 7, 100, 1 << 20};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		feed(stream, length, steps[i], &heard);
		ck_assert_str_eq(heard.text, expected);
	}
}

static void check_text(const char *stream, const char *expected)
{
	check(stream, strlen(stream), expected);
}

START_TEST(commands_are_the_same_however_they_are_cut)
{
	check_text("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", "GET|key;");
	check_text("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n", "GET|;PING;");
	check_text("PING\r\nset  a\tb \r\n\r\n*0\r\n*-1\r\nPING\n", "PING;set|a|b;;;;PING;");
	/* Any byte may stand in an argument. */
	check_text("*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n", "GET|a\r\nb;");
}
END_TEST

START_TEST(long_values_are_left_to_the_caller)
{
	static char stream[3 * FM_RESP_LONG_MIN];
	size_t n = 0;

	for (int i = 0; i < 2; i++) {
		n += (size_t)sprintf(stream + n, "*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$%u\r\n",
				     FM_RESP_LONG_MIN);
		memset(stream + n, '*', FM_RESP_LONG_MIN); /* looks like a command */
		n += FM_RESP_LONG_MIN;
		n += (size_t)sprintf(stream + n, "\r\n$2\r\nNX\r\n");
	}
	check(stream, n, "SET|k|<16384>|NX;SET|k|<16384>|NX;");
}
END_TEST

/* 2,000 pairs of 1 KiB: names stay text, the values that are too much do not. */
START_TEST(many_values_are_more_than_text)
{
	static char stream[4 << 20];
	size_t n = (size_t)sprintf(stream, "*4001\r\n$4\r\nMSET\r\n");
	uint32_t n_long = 0;
	struct fm_resp_parser parser;
	enum fm_resp_state state;

	for (int i = 0; i < 2000; i++) {
		n += (size_t)sprintf(stream + n, "$5\r\nk%04d\r\n$1024\r\n", i);
		memset(stream + n, 'v', 1024);
		n += 1024;
		n += (size_t)sprintf(stream + n, "\r\n");
	}
	ck_assert_int_eq(fm_resp_parser_create(&parser), 0);
	while ((state = fm_resp_parse(&parser, stream, n)) == FM_RESP_LONG) {
		ck_assert_uint_eq(parser.n_args % 2, 0);
		memmove(stream + parser.scanned, stream + parser.scanned + 1026,
			n - parser.scanned - 1026);
		n -= 1026;
		fm_resp_long_taken(&parser);
		n_long++;
	}
	ck_assert_int_eq(state, FM_RESP_COMMAND);
	ck_assert_uint_eq(parser.n_args, 4001);
	ck_assert_uint_gt(n_long, 1000);
	for (uint32_t i = 1; i < 4001; i += 2) {
		char name[8];

		snprintf(name, sizeof(name), "k%04u", i / 2);
		ck_assert(!parser.args[i].is_long);
		ck_assert_int_eq(memcmp(stream + parser.args[i].at, name, 5), 0);
	}
	fm_resp_parser_destroy(&parser);
}
END_TEST

START_TEST(nonsense_has_a_name)
{
	check_text("*x\r\n", "invalid multibulk length");
	check_text("*5000\r\n", "more than 4096 arguments");
	check_text("*1\r\n:3\r\n", "expected '$'");
	check_text("*1\r\n$-1\r\n", "invalid bulk length");
	check_text("*1\r\n$99999999999\r\n", "invalid bulk length");
	check_text("*1\r\n$2\r\nabcd\r\n", "expected CR LF after an argument");
	check_text("*1\r\n$2000000\r\n", "a command of more than 1 MiB besides its values");
	check_text("*1\r\n$11111111111111111111111111111111111111", "invalid bulk length");
}
END_TEST

START_TEST(a_command_without_end_is_bounded)
{
	static struct heard heard;
	size_t length = 4u << 20;
	char *stream = malloc(length);

	memset(stream, 'a', length);
	ck_assert_int_eq(feed(stream, length, 65536, &heard), FM_RESP_BROKEN);
	ck_assert_str_eq(heard.text, "too big inline request");
	free(stream);
}
END_TEST

START_TEST(globs_are_those_of_redis)
{
	static const struct {
		const char *pattern, *text;
		bool fits;
	} cases[] = {
		{"*", "", true},
		{"", "", true},
		{"", "a", false},
		{"a*c", "abbbc", true},
		{"a*c", "abbb", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"[a-c]x", "bx", true},
		{"[^a-c]x", "bx", false},
		{"[^a-c]x", "dx", true},
		{"\\*", "*", true},
		{"\\*", "x", false},
		{"a*b*c", "a1b2c", true},
		{"*a*a*a*b", "aaaaaa", false},
		{"[ab", "a", true},
		{"h[c-a]llo", "hbllo", true},
		{"model@*", "model@00", true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		ck_assert_msg(fm_resp_glob(cases[i].pattern, strlen(cases[i].pattern),
					   cases[i].text, strlen(cases[i].text)) == cases[i].fits,
			      "%s %s", cases[i].pattern, cases[i].text);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("resp");
	TCase *cases = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_test(cases, commands_are_the_same_however_they_are_cut);
	tcase_add_test(cases, long_values_are_left_to_the_caller);
	tcase_add_test(cases, many_values_are_more_than_text);
	tcase_add_test(cases, nonsense_has_a_name);
	tcase_add_test(cases, a_command_without_end_is_bounded);
	tcase_add_test(cases, globs_are_those_of_redis);
	suite_add_tcase(suite, cases);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
