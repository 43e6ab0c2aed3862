// SPDX-License-Identifier: Apache-2.0
/*
 * Lines of the worker protocol: what is taken, and what is refused by the name of its member.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/protocol.h"

static int parse(const char *line, struct fm_worker_message *message)
{
	return fm_worker_parse(line, strlen(line), message);
}

START_TEST(a_request_is_taken_whole)
{
	struct fm_worker_message message;

	ck_assert_int_eq(
		parse("{\"op\":\"generate\",\"id\":7,\"tokens\":[1,2,3],\"max_tokens\":9,\"ends\":"
		      "true,"
		      "\"tail\":\"000102030405060708090a0b0c0d0e0f\",\"top_logprobs\":2,"
		      "\"sampling\":"
		      "{\"temperature\":0.5,\"top_p\":0.9,\"min_p\":0.1,\"top_k\":40,\"seed\":-1,"
		      "\"choice\":3}}",
		      &message),
		0);
	ck_assert_int_eq(message.op, FM_WORKER_OP_REQUEST);
	ck_assert_int_eq(message.request.kind, FM_REQUEST_GENERATE);
	ck_assert_uint_eq(message.request.id, 7);
	ck_assert_uint_eq(message.request.n_tokens, 3);
	ck_assert_uint_eq(message.request.tokens[2], 3);
	ck_assert_uint_eq(message.request.max_tokens, 9);
	ck_assert(message.request.ends);
	ck_assert_uint_eq(message.request.tail->bytes[15], 15);
	ck_assert_uint_eq(message.request.sampling.top_k, 40);
	ck_assert_uint_eq(message.request.sampling.seed, UINT64_MAX);
	ck_assert_uint_eq(message.request.sampling.choice, 3);
	fm_worker_message_free(&message);
}
END_TEST

START_TEST(what_is_wrong_is_refused_by_name)
{
	static const struct {
		const char *line, *name;
	} wrong[] = {
		{"", "JSON"},
		{"[1]", "op"},
		{"{\"op\":\"fly\",\"id\":1}", "fly"},
		{"{\"op\":\"cancel\"}", "id"},
		{"{\"op\":\"prefill\",\"id\":1}", "tokens"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[]}", "tokens"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1,-2]}", "tokens[1]"},
		{"{\"op\":\"generate\",\"id\":1,\"tokens\":[1]}", "max_tokens"},
		{"{\"op\":\"generate\",\"id\":1,\"tokens\":[1],\"max_tokens\":0}", "max_tokens"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"top_logprobs\":65}",
		 "top_logprobs"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"tail\":\"00\"}", "tail"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"sampling\":3}", "sampling"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"sampling\":{\"top_p\":\"x\"}}",
		 "top_p"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"sampling\":{\"top_k\":-1}}",
		 "top_k"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"sampling\":{\"seed\":1.5}}",
		 "seed"},
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct fm_worker_message message;

		ck_assert_int_eq(parse(wrong[i].line, &message), FM_ERR_INVALID);
		ck_assert_msg(strstr(fm_error_detail(), wrong[i].name), "%s: %s", wrong[i].line,
			      fm_error_detail());
		fm_worker_message_free(&message);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker_protocol");
	TCase *tests = tcase_create("lines");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_test(tests, a_request_is_taken_whole);
	tcase_add_test(tests, what_is_wrong_is_refused_by_name);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
