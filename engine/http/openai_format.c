// SPDX-License-Identifier: Apache-2.0
/*
 * Results as the OpenAI API writes them. Called by the HTTP server and the front end's thread;
 * calls jansson only. Invariant: whatever bytes come in, what goes out is valid JSON in valid
 * UTF-8.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/openai.h"
#include "json_memory.h"
#include "text/utf8.h"

json_t *fm_json_text(const char *text, size_t len)
{
	json_t *plain = json_stringn(text, len), *result;
	char *clean;
	size_t used = 0;

	if (plain) /* jansson takes valid UTF-8 only */
		return plain;
	clean = malloc(3 * len + 1);
	if (!clean) {
		fm_json_be_short();
		return NULL;
	}
	for (size_t i = 0; i < len;) {
		int step = fm_utf8_step(text + i, len - i);
		size_t n = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : len - i;

		memcpy(clean + used, step > 0 ? text + i : FM_UTF8_REPLACEMENT, step > 0 ? n : 3);
		used += step > 0 ? n : 3;
		i += n;
	}
	result = json_stringn(clean, used);
	free(clean);
	return result;
}

/* NULL as well when anything that @root should hold did not find memory. */
static char *dump(json_t *root)
{
	/* Nine digits hold a float32 exactly; seventeen would show its binary noise. */
	char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

	json_decref(root);
	if (fm_json_was_short()) {
		free(text);
		return NULL;
	}
	return text;
}

char *fm_openai_error_text(const struct fm_openai_error *error)
{
	fm_json_was_short(); /* what failed before is why this is written */
	return dump(json_pack("{s:{s:o*, s:s, s:s?, s:s?}}", "error", "message",
			      fm_json_text(error->message, strlen(error->message)), "type",
			      error->type, "param", error->param[0] ? error->param : NULL, "code",
			      error->code));
}

json_t *fm_openai_choice(enum fm_openai_kind kind, bool is_chunk, uint32_t index, const char *text,
			 size_t len, bool is_first, const char *finish, json_t *logprobs)
{
	json_t *content = fm_json_text(text, len), *body;

	if (!logprobs)
		logprobs = json_null();
	if (kind == FM_OPENAI_COMPLETION)
		return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)index, "text", content,
				 "logprobs", logprobs, "finish_reason", finish);
	if (!is_chunk) {
		body = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
	} else {
		body = json_object();
		if (is_first)
			json_object_set_new(body, "role", json_string("assistant"));
		if (len || is_first)
			json_object_set_new(body, "content", content);
		else
			json_decref(content);
	}
	return json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)index,
			 is_chunk ? "delta" : "message", body, "logprobs", logprobs,
			 "finish_reason", finish);
}

char *fm_openai_answer(const struct fm_openai_identity *identity, bool is_chunk, json_t *choices,
		       const struct fm_openai_usage *usage)
{
	const char *object = identity->kind == FM_OPENAI_COMPLETION ? "text_completion"
			     : is_chunk				    ? "chat.completion.chunk"
								    : "chat.completion";
	json_t *root = json_pack("{s:s, s:s, s:I, s:o, s:o}", "id", identity->id, "object", object,
				 "created", (json_int_t)identity->created, "model",
				 fm_json_text(identity->model, strlen(identity->model)), "choices",
				 choices);

	if (root && usage) {
		json_object_set_new(
			root, "usage",
			json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens",
				  (int)usage->prompt_tokens, "completion_tokens",
				  (int)usage->completion_tokens, "total_tokens",
				  (int)(usage->prompt_tokens + usage->completion_tokens),
				  "prompt_tokens_details", "cached_tokens",
				  (int)usage->cached_tokens));
		if (usage->fabricmgr)
			json_object_set(root, "fabricmgr", usage->fabricmgr);
	}
	return dump(root);
}

/* ---- log probabilities -------------------------------------------------------------------- */

json_t *fm_openai_logprobs_create(enum fm_openai_kind kind)
{
	if (kind == FM_OPENAI_CHAT)
		return json_pack("{s:[]}", "content");
	return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs",
			 "text_offset");
}

/* JSON has no infinities: the least probable is a very small number, as OpenAI writes it. */
static json_t *logprob_value(double logprob)
{
	return json_real(isfinite(logprob) && logprob > -9999.0 ? logprob : -9999.0);
}

static json_t *chat_piece(const struct fm_openai_piece *piece)
{
	json_t *bytes = json_array();

	for (size_t i = 0; i < piece->len; i++)
		json_array_append_new(bytes, json_integer((unsigned char)piece->bytes[i]));
	return json_pack("{s:o, s:o, s:o}", "token", fm_json_text(piece->bytes, piece->len),
			 "logprob", logprob_value(piece->logprob), "bytes", bytes);
}

static int short_of_memory(void)
{
	return fm_json_was_short()
		       ? fm_fail(FM_ERR_NO_MEMORY, "the server is out of memory")
		       : 0;
}

int fm_openai_logprobs_add(json_t *logprobs, enum fm_openai_kind kind,
			   const struct fm_openai_piece *token, const struct fm_openai_piece *top,
			   size_t n_top, size_t text_offset)
{
	json_t *entry, *list;

	if (kind == FM_OPENAI_CHAT) {
		entry = chat_piece(token);
		list = json_array();
		for (size_t i = 0; i < n_top; i++)
			json_array_append_new(list, chat_piece(&top[i]));
		json_object_set_new(entry, "top_logprobs", list);
		json_array_append_new(json_object_get(logprobs, "content"), entry);
		return short_of_memory();
	}
	list = json_object();
	for (size_t i = 0; i < n_top; i++) {
		json_t *name = fm_json_text(top[i].bytes, top[i].len);

		/* Two tokens may read the same (parts of characters): the more probable stays. */
		if (name && !json_object_get(list, json_string_value(name)))
			json_object_set_new(list, json_string_value(name),
						   logprob_value(top[i].logprob));
		json_decref(name);
	}
	json_array_append_new(json_object_get(logprobs, "tokens"),
				     fm_json_text(token->bytes, token->len));
	json_array_append_new(json_object_get(logprobs, "token_logprobs"),
				     logprob_value(token->logprob));
	json_array_append_new(json_object_get(logprobs, "top_logprobs"), list);
	json_array_append_new(json_object_get(logprobs, "text_offset"),
				     json_integer((json_int_t)text_offset));
	return short_of_memory();
}
