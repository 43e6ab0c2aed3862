// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes as an OpenAI body: parsed or refused with an error object, and what was taken keeps the
 * limits that the rest of the front end relies on. The first byte chooses the endpoint.
 * FUZZ_SOURCES: engine/json_memory.c engine/http/openai_parse.c engine/http/openai_format.c libfabricmgr/base/error.c
 * FUZZ_LIBS: -ljansson -lm
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int is_true)
{
	if (!is_true)
		abort();
}

static void check_error(const struct fm_openai_error *error)
{
	char *text = fm_openai_error_text(error);
	json_t *root;

	require(text != NULL && error->status >= 400 && error->message[0]);
	root = json_loads(text, 0, NULL);
	require(json_is_object(json_object_get(root, "error")));
	json_decref(root);
	free(text);
}

static void check_request(const struct fm_openai_request *request)
{
	size_t n = request->kind == FM_OPENAI_CHAT ? 1 : request->n_prompts;

	require(request->n >= 1 && n * request->n <= FM_OPENAI_CHOICES_MAX);
	require(request->n_stops <= FM_STOP_STRINGS_MAX &&
		request->n_top <= FM_OPENAI_LOGPROBS_MAX);
	require(request->sampling.temperature >= 0 && request->sampling.top_p > 0);
	for (size_t i = 0; i < request->n_stops; i++)
		require(request->stops[i][0] != '\0');
	for (size_t i = 0; i < request->n_messages; i++)
		require(request->messages[i].role && request->messages[i].content);
	for (size_t i = 0; i < request->n_prompts; i++)
		require(request->prompts[i].text || request->prompts[i].n_tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *body = (const char *)data + 1;
	struct fm_openai_request request;
	struct fm_openai_tokenize wanted;
	struct fm_openai_error error;
	uint32_t *tokens;
	size_t n;

	if (!size)
		return 0;
	switch (data[0] % 4) {
	case 2:
		if (fm_openai_parse_tokenize(body, size - 1, &wanted, &error))
			check_error(&error);
		else
			free(wanted.content);
		break;
	case 3:
		if (fm_openai_parse_detokenize(body, size - 1, &tokens, &n, &error))
			check_error(&error);
		else
			free(tokens);
		break;
	default:
		if (fm_openai_parse(data[0] % 4, body, size - 1, &request, &error))
			check_error(&error);
		else
			check_request(&request);
		fm_openai_request_free(&request);
	}
	json_decref(fm_json_text(body, size - 1));
	return 0;
}
