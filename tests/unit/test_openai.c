// SPDX-License-Identifier: Apache-2.0
/*
 * OpenAI bodies in, JSON out: defaults, limits, refusals that name their parameter, and bytes that
 * are not UTF-8.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/openai.h"

static struct fm_openai_request request;
static struct fm_openai_error error;

static int parse(enum fm_openai_kind kind, const char *body)
{
	return fm_openai_parse(kind, body, strlen(body), &request, &error);
}

static void refuses(enum fm_openai_kind kind, const char *body, const char *param)
{
	ck_assert_msg(parse(kind, body) == FM_ERR_INVALID, "%s was taken", body);
	ck_assert_int_eq(error.status, 400);
	ck_assert_str_eq(error.type, "invalid_request_error");
	ck_assert_str_eq(error.param, param);
	ck_assert(error.message[0]);
	fm_openai_request_free(&request);
}

START_TEST(defaults_are_openais)
{
	ck_assert_int_eq(parse(FM_OPENAI_COMPLETION, "{\"prompt\":\"hi\",\"seed\":null}"), 0);
	ck_assert_uint_eq(request.max_tokens, 16);
	ck_assert(request.sampling.temperature == 1.0f && request.sampling.top_p == 1.0f);
	ck_assert(!request.has_seed && !request.stream && request.n == 1 && !request.logprobs);
	ck_assert_uint_eq(request.n_prompts, 1);
	ck_assert_str_eq(request.prompts[0].text, "hi");
	fm_openai_request_free(&request);
	ck_assert_int_eq(parse(FM_OPENAI_CHAT,
			       "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":"
			       "\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],"
			       "\"max_tokens\":5,\"max_completion_tokens\":7,\"seed\":-1}"),
			 0);
	ck_assert_str_eq(request.messages[0].role, "system");
	ck_assert_str_eq(request.messages[0].content, "ab");
	ck_assert_uint_eq(request.max_tokens, 7);
	ck_assert(request.has_seed && request.sampling.seed == INT64_MAX);
	fm_openai_request_free(&request);
}
END_TEST

START_TEST(every_form_of_prompt)
{
	ck_assert_int_eq(parse(FM_OPENAI_COMPLETION, "{\"prompt\":[1,2,3]}"), 0);
	ck_assert_uint_eq(request.n_prompts, 1);
	ck_assert_uint_eq(request.prompts[0].n_tokens, 3);
	fm_openai_request_free(&request);
	ck_assert_int_eq(parse(FM_OPENAI_COMPLETION, "{\"prompt\":[\"a\",[1]],\"n\":8}"), 0);
	ck_assert_uint_eq(request.n_prompts, 2);
	ck_assert_uint_eq(request.prompts[1].tokens[0], 1);
	fm_openai_request_free(&request);
	refuses(FM_OPENAI_COMPLETION, "{\"prompt\":[\"a\",[1]],\"n\":9}", "prompt");
	refuses(FM_OPENAI_COMPLETION, "{\"prompt\":[1,-2]}", "prompt");
	refuses(FM_OPENAI_COMPLETION, "{\"prompt\":[1,4294967296]}", "prompt");
	refuses(FM_OPENAI_COMPLETION, "{\"prompt\":[[],[1]]}", "prompt");
	refuses(FM_OPENAI_COMPLETION, "{}", "prompt");
}
END_TEST

START_TEST(refusals_name_their_parameter)
{
	static const struct {
		const char *body, *param;
	} wrong[] = {
		{"{\"temperature\":-0.1}", "temperature"},
		{"{\"temperature\":2.1}", "temperature"},
		{"{\"temperature\":\"1\"}", "temperature"},
		{"{\"top_p\":0}", "top_p"},
		{"{\"top_p\":1.1}", "top_p"},
		{"{\"min_p\":1.1}", "min_p"},
		{"{\"top_k\":-2}", "top_k"},
		{"{\"top_k\":1.5}", "top_k"},
		{"{\"seed\":1.5}", "seed"},
		{"{\"n\":0}", "n"},
		{"{\"max_tokens\":0}", "max_tokens"},
		{"{\"max_tokens\":\"x\"}", "max_tokens"},
		{"{\"stop\":\"\"}", "stop"},
		{"{\"stop\":[\"a\",1]}", "stop"},
		{"{\"stop\":{}}", "stop"},
		{"{\"logprobs\":21}", "logprobs"},
		{"{\"logprobs\":true}", "logprobs"},
		{"{\"stream\":\"yes\"}", "stream"},
		{"{\"stream_options\":{\"include_usage\":true}}", "stream_options"},
		{"{\"stream\":true,\"stream_options\":1}", "stream_options"},
		{"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
		 "stream_options.include_usage"},
		{"{\"echo\":true}", "echo"},
		{"{\"best_of\":2}", "best_of"},
		{"{\"suffix\":\"x\"}", "suffix"},
		{"{\"logit_bias\":{\"5\":101}}", "logit_bias"},
		{"{\"logit_bias\":{\"5\":\"1\"}}", "logit_bias"},
		{"{\"logit_bias\":{\"x\":1}}", "logit_bias"},
		{"{\"logit_bias\":{\"05\":1}}", "logit_bias"},
		{"{\"logit_bias\":{\"-5\":1}}", "logit_bias"},
		{"{\"logit_bias\":{\"4294967296\":1}}", "logit_bias"},
		{"{\"logit_bias\":{\"\":1}}", "logit_bias"},
		{"{\"logit_bias\":[5]}", "logit_bias"},
		{"{\"presence_penalty\":2.5}", "presence_penalty"},
		{"{\"presence_penalty\":\"0\"}", "presence_penalty"},
		{"{\"frequency_penalty\":-2.1}", "frequency_penalty"},
		{"{\"repetition_penalty\":0}", "repetition_penalty"},
		{"{\"repetition_penalty\":101}", "repetition_penalty"},
		{"{\"min_tokens\":-1}", "min_tokens"},
		{"{\"min_tokens\":17}", "min_tokens"},
		{"{\"min_tokens\":6,\"max_tokens\":5}", "min_tokens"},
		{"{\"ignore_eos\":1}", "ignore_eos"},
		{"{\"stop_token_ids\":5}", "stop_token_ids"},
		{"{\"stop_token_ids\":[5,-1]}", "stop_token_ids"},
		{"{\"bad_words\":[\"x\"]}", "bad_words"},
		{"{\"response_format\":{\"type\":\"json_schema\"}}", "response_format"},
		{"{\"tools\":[{}]}", "tools"},
		{"{\"model\":5}", "model"},
		{"[]", ""},
		{"{", ""},
		{"", ""},
		{"{\"prompt\":\"\xff\"}", ""},
	};
	static const char *const neutral =
		"{\"prompt\":\"x\",\"echo\":false,\"best_of\":1,\"suffix\":null,\"logit_bias\":{},"
		"\"presence_penalty\":0,\"frequency_penalty\":0.0,\"tools\":[],\"tool_choice\":"
		"\"none\","
		"\"response_format\":{\"type\":\"text\"},\"user\":\"me\",\"top_k\":-1}";

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		refuses(FM_OPENAI_COMPLETION, wrong[i].body, wrong[i].param);
	ck_assert_int_eq(parse(FM_OPENAI_COMPLETION, neutral), 0);
	ck_assert_uint_eq(request.sampling.top_k, 0);
	fm_openai_request_free(&request);
	refuses(FM_OPENAI_CHAT, "{\"messages\":[]}", "messages");
	refuses(FM_OPENAI_CHAT, "{\"messages\":[{\"role\":\"x\",\"content\":\"\"}]}",
		"messages[0].role");
	refuses(FM_OPENAI_CHAT, "{\"messages\":[{\"content\":\"\"}]}", "messages[0].role");
	refuses(FM_OPENAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
		"messages[0].content");
	refuses(FM_OPENAI_CHAT, "{\"messages\":[5]}", "messages[0]");
	refuses(FM_OPENAI_CHAT, "{\"top_logprobs\":2}", "top_logprobs");
	refuses(FM_OPENAI_CHAT, "{}", "messages");
}
END_TEST

START_TEST(sampling_is_taken_whole)
{
	static const char body[] =
		"{\"prompt\":\"x\",\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":4,"
		"\"repetition_penalty\":1.5,\"frequency_penalty\":-2,\"presence_penalty\":2,"
		"\"min_tokens\":3,\"ignore_eos\":true,\"stop_token_ids\":[7,8],"
		"\"logit_bias\":{\"0\":-100,\"4294967295\":2.5}}";
	static char many[1025 * 16 + 64];
	size_t used;

	ck_assert_msg(!parse(FM_OPENAI_COMPLETION, body), "%s", error.message);
	ck_assert(request.sampling.repetition_penalty == 1.5f);
	ck_assert(request.sampling.frequency_penalty == -2 &&
		  request.sampling.presence_penalty == 2);
	ck_assert(request.sampling.min_tokens == 3 && request.ignore_end);
	ck_assert_uint_eq(request.sampling.n_ends, 2);
	ck_assert_uint_eq(request.sampling.ends[1], 8);
	ck_assert_uint_eq(request.sampling.n_bias, 2);
	ck_assert(request.sampling.bias[0].id == 0 && request.sampling.bias[0].bias == -100);
	ck_assert(request.sampling.bias[1].id == UINT32_MAX &&
		  request.sampling.bias[1].bias == 2.5f);
	fm_openai_request_free(&request);
	ck_assert(request.sampling.n_bias == 0);
	/* The limit of logit_bias, and one more. */
	for (int n = 1024; n <= 1025; n++) {
		used = (size_t)sprintf(many, "{\"prompt\":\"x\",\"logit_bias\":{");
		for (int i = 0; i < n; i++)
			used += (size_t)sprintf(many + used, "%s\"%d\":1", i ? "," : "", i);
		strcpy(many + used, "}}");
		if (n == 1024) {
			ck_assert_int_eq(parse(FM_OPENAI_COMPLETION, many), 0);
			fm_openai_request_free(&request);
		} else {
			refuses(FM_OPENAI_COMPLETION, many, "logit_bias");
			ck_assert_ptr_nonnull(strstr(error.message, "1024"));
		}
	}
}
END_TEST

START_TEST(any_bytes_become_utf8)
{
	static const struct {
		const char *bytes, *text;
	} cases[] = {
		{"plain \"\n", "plain \"\n"},
		{"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
		{"\xff", "\xef\xbf\xbd"},
		{"a\xc3", "a\xef\xbf\xbd"},
		{"\xf0\x9f\x99", "\xef\xbf\xbd"},
		{"\xed\xa0\x80x", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},
		{"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		json_t *text = fm_json_text(cases[i].bytes, strlen(cases[i].bytes));

		ck_assert_str_eq(json_string_value(text), cases[i].text);
		json_decref(text);
	}
	fm_openai_refuse(&error, 400, "x", NULL, "you sent \xff%s", "");
	char *text = fm_openai_error_text(&error);
	json_t *root = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(root);
	ck_assert(json_is_null(json_object_get(json_object_get(root, "error"), "code")));
	json_decref(root);
	free(text);
}
END_TEST

START_TEST(answers_have_openais_shape)
{
	struct fm_openai_identity identity = {FM_OPENAI_CHAT, "chatcmpl-1", "m", 5};
	struct fm_openai_usage usage = {
		.prompt_tokens = 10, .completion_tokens = 2, .cached_tokens = 8};
	struct fm_openai_piece token = {"\xe2\x82", 2, -INFINITY};
	json_t *logprobs = fm_openai_logprobs_create(FM_OPENAI_CHAT), *root, *entry;
	char *text;

	ck_assert_int_eq(fm_openai_logprobs_add(logprobs, FM_OPENAI_CHAT, &token, &token, 1, 0), 0);
	text = fm_openai_answer(&identity, true,
				json_pack("[o]", fm_openai_choice(FM_OPENAI_CHAT, true, 0, "hi", 2,
								  true, NULL, logprobs)),
				&usage);
	root = json_loads(text, 0, NULL);
	ck_assert_str_eq(json_string_value(json_object_get(root, "object")),
			 "chat.completion.chunk");
	entry = json_array_get(json_object_get(root, "choices"), 0);
	ck_assert(json_is_null(json_object_get(entry, "finish_reason")));
	ck_assert_str_eq(
		json_string_value(json_object_get(json_object_get(entry, "delta"), "role")),
		"assistant");
	entry = json_array_get(json_object_get(json_object_get(entry, "logprobs"), "content"), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(entry, "bytes")), 2);
	ck_assert(json_real_value(json_object_get(entry, "logprob")) == -9999.0);
	entry = json_object_get(root, "usage");
	ck_assert_int_eq(json_integer_value(json_object_get(entry, "total_tokens")), 12);
	json_decref(root);
	free(text);
}
END_TEST

START_TEST(tokenize_and_detokenize)
{
	struct fm_openai_tokenize wanted;
	uint32_t *tokens;
	size_t n;
	static const char good[] = "{\"content\":\"a\",\"parse_special\":true}";

	ck_assert_int_eq(fm_openai_parse_tokenize(good, strlen(good), &wanted, &error), 0);
	ck_assert(wanted.parse_special && !wanted.add_special && wanted.len == 1);
	free(wanted.content);
	ck_assert_int_eq(fm_openai_parse_tokenize("{}", 2, &wanted, &error), FM_ERR_INVALID);
	ck_assert_str_eq(error.param, "content");
	ck_assert_int_eq(fm_openai_parse_detokenize("{\"tokens\":[7]}", 14, &tokens, &n, &error),
			 0);
	ck_assert(n == 1 && tokens[0] == 7);
	free(tokens);
	ck_assert_int_eq(fm_openai_parse_detokenize("{\"tokens\":[-7]}", 15, &tokens, &n, &error),
			 FM_ERR_INVALID);
	ck_assert_str_eq(error.param, "tokens");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("openai");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_test(all, defaults_are_openais);
	tcase_add_test(all, every_form_of_prompt);
	tcase_add_test(all, refusals_name_their_parameter);
	tcase_add_test(all, sampling_is_taken_whole);
	tcase_add_test(all, any_bytes_become_utf8);
	tcase_add_test(all, answers_have_openais_shape);
	tcase_add_test(all, tokenize_and_detokenize);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
