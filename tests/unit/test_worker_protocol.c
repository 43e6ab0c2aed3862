// SPDX-License-Identifier: Apache-2.0
/*
 * Lines of the worker protocol: what is taken, and what is refused by the name of its member.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/protocol.h"

#define FORTY "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

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
		      "\"choice\":3,\"repetition_penalty\":1.5,\"frequency_penalty\":-0.5,"
		      "\"presence_penalty\":0.25,\"min_tokens\":4,\"stop_token_ids\":[8,9],"
		      "\"logit_bias\":[[5,-100],[6,2.5]]},\"n_prompt\":2,\"request\":\"a:b/1\"}",
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
	ck_assert(message.request.sampling.repetition_penalty == 1.5f);
	ck_assert(message.request.sampling.frequency_penalty == -0.5f);
	ck_assert(message.request.sampling.presence_penalty == 0.25f);
	ck_assert_uint_eq(message.request.sampling.min_tokens, 4);
	ck_assert_uint_eq(message.request.sampling.n_ends, 2);
	ck_assert_uint_eq(message.request.sampling.ends[1], 9);
	ck_assert_uint_eq(message.request.sampling.n_bias, 2);
	ck_assert_uint_eq(message.request.sampling.bias[1].id, 6);
	ck_assert(message.request.sampling.bias[1].bias == 2.5f);
	ck_assert_uint_eq(message.request.n_prompt, 2);
	ck_assert_str_eq(message.request.request_id, "a:b/1");
	fm_worker_message_free(&message);
}
END_TEST

START_TEST(what_is_absent_is_off)
{
	struct fm_worker_message message;

	ck_assert_int_eq(parse("{\"op\":\"prefill\",\"id\":7,\"tokens\":[1,2,3]}", &message), 0);
	ck_assert_uint_eq(message.request.n_prompt, 3);
	ck_assert_ptr_null(message.request.request_id);
	ck_assert(!message.request.ends && !message.request.sampling.n_ends);
	ck_assert(message.request.sampling.top_p == 1 && message.request.sampling.temperature == 0);
	ck_assert_int_eq(fm_sampling_check(&message.request.sampling), 0);
	ck_assert(message.request.sampling.repetition_penalty == 1);
	fm_worker_message_free(&message);
}
END_TEST

START_TEST(a_greeting_names_its_version)
{
	struct fm_worker_message message;

	ck_assert_int_eq(parse("{\"op\":\"hello\",\"version\":2}", &message), 0);
	ck_assert_int_eq(message.op, FM_WORKER_OP_HELLO);
	fm_worker_message_free(&message);
	ck_assert_int_eq(parse("{\"op\":\"hello\",\"version\":3}", &message), FM_ERR_VERSION);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "speaks 2"));
	ck_assert_int_eq(parse("{\"op\":\"hello\"}", &message), FM_ERR_VERSION);
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
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"n_prompt\":2}", "n_prompt"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"n_prompt\":0}", "n_prompt"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"n_prompt\":\"1\"}", "n_prompt"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"ends\":1}", "ends"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"request\":7}", "request"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"request\":\"\"}", "request"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"request\":\"a\\nFM1009\"}",
		 "request"},
		{"{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"request\":\"" FORTY FORTY "\"}",
		 "request"},
#define SAMPLING(member) "{\"op\":\"prefill\",\"id\":1,\"tokens\":[1],\"sampling\":{\"" member "}}"
		{SAMPLING("repetition_penalty\":\"1\""), "repetition_penalty"},
		{SAMPLING("frequency_penalty\":[]"), "frequency_penalty"},
		{SAMPLING("presence_penalty\":true"), "presence_penalty"},
		{SAMPLING("min_tokens\":-1"), "min_tokens"},
		{SAMPLING("min_tokens\":1.5"), "min_tokens"},
		{SAMPLING("stop_token_ids\":3"), "stop_token_ids"},
		{SAMPLING("stop_token_ids\":[3,\"x\"]"), "stop_token_ids[1]"},
		{SAMPLING("logit_bias\":{\"3\":1}"), "logit_bias"},
		{SAMPLING("logit_bias\":[[3]]"), "logit_bias[0]"},
		{SAMPLING("logit_bias\":[[3,1],[\"x\",1]]"), "logit_bias[1]"},
		{SAMPLING("logit_bias\":[[3,\"x\"]]"), "logit_bias[0]"},
		{SAMPLING("dry_multiplier\":1"), "dry_multiplier"},
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
	tcase_add_test(tests, what_is_absent_is_off);
	tcase_add_test(tests, a_greeting_names_its_version);
	tcase_add_test(tests, what_is_wrong_is_refused_by_name);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
