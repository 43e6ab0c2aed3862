// SPDX-License-Identifier: Apache-2.0
/*
 * Request bodies to structs, every value checked and every refusal naming its parameter. Called by
 * the HTTP server and the fuzzer; calls jansson only.
 * Invariant: `null` means the same as absent, and an unsupported option is refused, never ignored.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/openai.h"
#include "json_memory.h"

int fm_openai_refuse(struct fm_openai_error *error, int status, const char *param, const char *code,
		     const char *format, ...)
{
	va_list args;

	memset(error, 0, sizeof(*error));
	error->status = status;
	error->type = status >= 500   ? "server_error"
		      : status == 429 ? "rate_limit_error"
				      : "invalid_request_error";
	error->code = code;
	snprintf(error->param, sizeof(error->param), "%s", param ? param : "");
	va_start(args, format);
	vsnprintf(error->message, sizeof(error->message), format, args);
	va_end(args);
	return FM_ERR_INVALID;
}

static int no_memory(struct fm_openai_error *error)
{
	fm_openai_refuse(error, 500, NULL, NULL, "the server is out of memory");
	return FM_ERR_NO_MEMORY;
}

/* ---- members ------------------------------------------------------------------------------ */

/* NULL when absent or null. */
static json_t *member(json_t *root, const char *name)
{
	json_t *value = json_object_get(root, name);

	return json_is_null(value) ? NULL : value;
}

static int get_bool(json_t *root, const char *name, bool *out, struct fm_openai_error *error)
{
	json_t *value = member(root, name);

	if (!value)
		return 0;
	if (!json_is_boolean(value))
		return fm_openai_refuse(error, 400, name, "invalid_type",
					"%s must be true or false", name);
	*out = json_is_true(value);
	return 0;
}

static int get_integer(json_t *root, const char *name, int64_t min, int64_t max, int64_t *out,
		       struct fm_openai_error *error)
{
	json_t *value = member(root, name);

	if (!value)
		return 0;
	if (!json_is_integer(value))
		return fm_openai_refuse(error, 400, name, "invalid_type", "%s must be an integer",
					name);
	if (json_integer_value(value) < min || json_integer_value(value) > max)
		return fm_openai_refuse(error, 400, name, "invalid_value",
					"%s is %lld; it must be from %lld to %lld", name,
					(long long)json_integer_value(value), (long long)min,
					(long long)max);
	*out = json_integer_value(value);
	return 0;
}

static int get_number(json_t *root, const char *name, double min, double max, bool open_min,
		      float *out, struct fm_openai_error *error)
{
	json_t *value = member(root, name);
	double number;

	if (!value)
		return 0;
	if (!json_is_number(value))
		return fm_openai_refuse(error, 400, name, "invalid_type", "%s must be a number",
					name);
	number = json_number_value(value);
	if (!isfinite(number) || number < min || number > max || (open_min && number <= min))
		return fm_openai_refuse(error, 400, name, "invalid_value",
					"%s is %g; it must be %s %g and at most %g", name, number,
					open_min ? "above" : "at least", min, max);
	*out = (float)number;
	return 0;
}

static char *copy_string(json_t *value, size_t *len)
{
	size_t n = json_string_length(value);
	char *copy = malloc(n + 1);

	if (copy) {
		memcpy(copy, json_string_value(value), n);
		copy[n] = '\0';
		if (len)
			*len = n;
	}
	return copy;
}

/* ---- parts of a request ------------------------------------------------------------------- */

/* Options of the API that this server does not have: refused unless they ask for nothing. */
static int refuse_unsupported(json_t *root, struct fm_openai_error *error)
{
	static const struct {
		const char *name;
		double neutral;
	} numbers[] = {{"best_of", 1}};
	static const char *const lists[] = {"tools", "functions", "modalities", "bad_words"};
	static const char *const others[] = {"suffix",	"tool_choice",	  "function_call",
					     "audio",	"guided_json",	  "guided_regex",
					     "grammar", "prompt_logprobs"};
	static const char *const flags[] = {"echo", "include_stop_str_in_output"};
	const char *bad = NULL;
	json_t *value;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		value = member(root, numbers[i].name);
		if (value &&
		    (!json_is_number(value) || json_number_value(value) != numbers[i].neutral))
			bad = numbers[i].name;
	}
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		value = member(root, lists[i]);
		if (value &&
		    (json_array_size(value) || json_object_size(value) ||
		     !(json_is_array(value) || json_is_object(value))) &&
		    !(!strcmp(lists[i], "modalities") && json_array_size(value) == 1 &&
		      json_is_string(json_array_get(value, 0)) &&
		      !strcmp(json_string_value(json_array_get(value, 0)), "text")))
			bad = lists[i];
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		value = member(root, others[i]);
		if (value &&
		    !(json_is_string(value) &&
		      (!json_string_length(value) || !strcmp(json_string_value(value), "none") ||
		       !strcmp(json_string_value(value), "auto"))))
			bad = others[i];
	}
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		value = member(root, flags[i]);
		if (value && !json_is_false(value))
			bad = flags[i];
	}
	value = member(root, "response_format");
	if (value) {
		json_t *type = json_object_get(value, "type");

		if (!json_is_string(type) || strcmp(json_string_value(type), "text"))
			bad = "response_format";
	}
	if (bad)
		return fm_openai_refuse(error, 400, bad, "unsupported_parameter",
					"%s is not supported by this server", bad);
	return 0;
}

static int parse_sampling(json_t *root, struct fm_openai_request *out,
			  struct fm_openai_error *error)
{
	struct fm_sampling *sampling = &out->sampling;
	int64_t top_k = 0, seed = 0, min_tokens = 0;
	const struct {
		const char *name;
		double min, max;
		bool open_min;
		float *out;
	} numbers[] = {
		{"temperature", 0, FM_TEMPERATURE_MAX, false, &sampling->temperature},
		{"top_p", 0, 1, true, &sampling->top_p},
		{"min_p", 0, 1, false, &sampling->min_p},
		{"repetition_penalty", FM_REPETITION_PENALTY_MIN, FM_REPETITION_PENALTY_MAX, false,
		 &sampling->repetition_penalty},
		{"frequency_penalty", -FM_PENALTY_MAX, FM_PENALTY_MAX, false,
		 &sampling->frequency_penalty},
		{"presence_penalty", -FM_PENALTY_MAX, FM_PENALTY_MAX, false,
		 &sampling->presence_penalty},
	};
	int err = 0;

	*sampling = FM_SAMPLING_NEUTRAL;
	sampling->temperature = 1;
	for (size_t i = 0; !err && i < sizeof(numbers) / sizeof(*numbers); i++)
		err = get_number(root, numbers[i].name, numbers[i].min, numbers[i].max,
				 numbers[i].open_min, numbers[i].out, error);
	if (!err)
		err = get_integer(root, "top_k", -1, INT32_MAX, &top_k, error);
	if (!err)
		err = get_integer(root, "seed", INT64_MIN, INT64_MAX, &seed, error);
	if (!err)
		err = get_integer(root, "min_tokens", 0, INT32_MAX, &min_tokens, error);
	if (!err)
		err = get_bool(root, "ignore_eos", &out->ignore_end, error);
	if (err)
		return err;
	sampling->top_k = top_k > 0 ? (uint32_t)top_k : 0;
	sampling->min_tokens = (uint32_t)min_tokens;
	out->has_seed = member(root, "seed") != NULL;
	sampling->seed = (uint64_t)seed & INT64_MAX; /* workers read it as a JSON integer */
	return 0;
}

/* A token id as a member's name: digits alone, no leading zero, so that no id has two names. */
static bool parse_id(const char *text, uint32_t *out)
{
	uint64_t id = 0;
	const char *at = text;

	for (; *at >= '0' && *at <= '9' && id <= UINT32_MAX; at++)
		id = id * 10 + (uint64_t)(*at - '0');
	*out = (uint32_t)id;
	return at != text && !*at && id <= UINT32_MAX && (text[0] != '0' || !text[1]);
}

/* {"id": bias, …} */
static int parse_bias(json_t *root, struct fm_openai_request *out, struct fm_openai_error *error)
{
	json_t *object = member(root, "logit_bias"), *value;
	const char *name;

	if (!object)
		return 0;
	if (!json_is_object(object))
		return fm_openai_refuse(error, 400, "logit_bias", "invalid_type",
					"logit_bias must be an object of token ids and numbers");
	if (json_object_size(object) > FM_LOGIT_BIASES_MAX)
		return fm_openai_refuse(error, 400, "logit_bias", "invalid_value",
					"logit_bias has %zu entries; it may have at most %d",
					json_object_size(object), FM_LOGIT_BIASES_MAX);
	out->bias = malloc((json_object_size(object) + 1) * sizeof(*out->bias));
	if (!out->bias)
		return no_memory(error);
	out->sampling.bias = out->bias;
	json_object_foreach(object, name, value)
	{
		struct fm_logit_bias *bias = &out->bias[out->sampling.n_bias++];
		double number = json_number_value(value);

		if (!parse_id(name, &bias->id))
			return fm_openai_refuse(error, 400, "logit_bias", "invalid_value",
						"logit_bias: \"%.32s\" is not a token id; give its "
						"number as a string, such as \"504\" (POST "
						"/tokenize tells numbers)",
						name);
		if (!json_is_number(value))
			return fm_openai_refuse(error, 400, "logit_bias", "invalid_type",
						"logit_bias of token %u must be a number",
						bias->id);
		if (!(fabs(number) <= (double)FM_LOGIT_BIAS_MAX))
			return fm_openai_refuse(
				error, 400, "logit_bias", "invalid_value",
				"logit_bias of token %u is %g; it must be from %g to %g", bias->id,
				number, -(double)FM_LOGIT_BIAS_MAX, (double)FM_LOGIT_BIAS_MAX);
		bias->bias = (float)number;
	}
	return 0;
}

static int add_stop(json_t *value, struct fm_openai_request *out, struct fm_openai_error *error)
{
	if (!json_is_string(value))
		return fm_openai_refuse(error, 400, "stop", "invalid_type",
					"stop must be a string or an array of strings");
	if (!json_string_length(value))
		return fm_openai_refuse(error, 400, "stop", "invalid_value",
					"stop must not hold an empty string");
	if (json_string_length(value) > FM_STOP_STRING_BYTES_MAX)
		return fm_openai_refuse(error, 400, "stop", "invalid_value",
					"a stop string may have at most %d bytes",
					FM_STOP_STRING_BYTES_MAX);
	out->stops[out->n_stops] = copy_string(value, NULL);
	if (!out->stops[out->n_stops])
		return no_memory(error);
	out->n_stops++;
	return 0;
}

static int parse_stops(json_t *root, struct fm_openai_request *out, struct fm_openai_error *error)
{
	json_t *stop = member(root, "stop"), *value;
	size_t i;
	int err;

	if (!stop)
		return 0;
	if (!json_is_array(stop))
		return add_stop(stop, out, error);
	if (json_array_size(stop) > FM_STOP_STRINGS_MAX)
		return fm_openai_refuse(error, 400, "stop", "invalid_value",
					"stop may hold at most %d strings", FM_STOP_STRINGS_MAX);
	json_array_foreach(stop, i, value)
	{
		err = add_stop(value, out, error);
		if (err)
			return err;
	}
	return 0;
}

static int parse_lengths(json_t *root, struct fm_openai_request *out, struct fm_openai_error *error)
{
	int64_t max_tokens = out->kind == FM_OPENAI_CHAT ? 0 : FM_OPENAI_DEFAULT_TOKENS, n = 1;
	int err = get_integer(root, "max_tokens", 1, INT32_MAX, &max_tokens, error);

	if (!err && out->kind == FM_OPENAI_CHAT) /* the newer name wins, as at OpenAI */
		err = get_integer(root, "max_completion_tokens", 1, INT32_MAX, &max_tokens, error);
	if (!err)
		err = get_integer(root, "n", 1, FM_OPENAI_CHOICES_MAX, &n, error);
	out->max_tokens = (uint32_t)max_tokens;
	out->n = (uint32_t)n;
	if (!err && max_tokens && out->sampling.min_tokens > max_tokens)
		err = fm_openai_refuse(error, 400, "min_tokens", "invalid_value",
				       "min_tokens is %u; it must be at most max_tokens, %lld",
				       out->sampling.min_tokens, (long long)max_tokens);
	return err;
}

static int parse_logprobs(json_t *root, struct fm_openai_request *out,
			  struct fm_openai_error *error)
{
	int64_t n_top = 0;
	int err;

	if (out->kind == FM_OPENAI_COMPLETION) {
		err = get_integer(root, "logprobs", 0, FM_OPENAI_LOGPROBS_MAX, &n_top, error);
		out->logprobs = member(root, "logprobs") != NULL;
	} else {
		err = get_bool(root, "logprobs", &out->logprobs, error);
		if (!err)
			err = get_integer(root, "top_logprobs", 0, FM_OPENAI_LOGPROBS_MAX, &n_top,
					  error);
		if (!err && n_top && !out->logprobs)
			err = fm_openai_refuse(error, 400, "top_logprobs", "invalid_value",
					       "top_logprobs needs logprobs: true");
	}
	out->n_top = (uint32_t)n_top;
	return err;
}

static int parse_stream(json_t *root, struct fm_openai_request *out, struct fm_openai_error *error)
{
	json_t *options = member(root, "stream_options");
	int err = get_bool(root, "stream", &out->stream, error);

	if (err || !options)
		return err;
	if (!json_is_object(options))
		return fm_openai_refuse(error, 400, "stream_options", "invalid_type",
					"stream_options must be an object");
	if (!out->stream)
		return fm_openai_refuse(error, 400, "stream_options", "invalid_value",
					"stream_options needs stream: true");
	err = get_bool(options, "include_usage", &out->include_usage, error);
	if (err)
		snprintf(error->param, sizeof(error->param), "stream_options.include_usage");
	return err;
}

/* ---- prompts ------------------------------------------------------------------------------ */

static int token_ids(json_t *list, const char *param, uint32_t **out, size_t *n,
		     struct fm_openai_error *error)
{
	size_t i, count = json_array_size(list);
	json_t *value;

	*out = malloc((count ? count : 1) * sizeof(**out));
	if (!*out)
		return no_memory(error);
	json_array_foreach(list, i, value)
	{
		if (!json_is_integer(value) || json_integer_value(value) < 0 ||
		    json_integer_value(value) > UINT32_MAX)
			return fm_openai_refuse(error, 400, param, "invalid_type",
						"%s[%zu] is not a token id", param, i);
		(*out)[i] = (uint32_t)json_integer_value(value);
	}
	*n = count;
	return 0;
}

static int parse_stop_tokens(json_t *root, struct fm_openai_request *out,
			     struct fm_openai_error *error)
{
	json_t *list = member(root, "stop_token_ids");
	size_t n = 0;
	int err;

	if (!list)
		return 0;
	if (!json_is_array(list))
		return fm_openai_refuse(error, 400, "stop_token_ids", "invalid_type",
					"stop_token_ids must be an array of token ids");
	if (json_array_size(list) > FM_STOP_TOKENS_MAX)
		return fm_openai_refuse(error, 400, "stop_token_ids", "invalid_value",
					"stop_token_ids has %zu ids; it may have at most %d",
					json_array_size(list), FM_STOP_TOKENS_MAX);
	err = token_ids(list, "stop_token_ids", &out->stop_tokens, &n, error);
	out->sampling.ends = out->stop_tokens;
	out->sampling.n_ends = (uint32_t)n;
	return err;
}

static int add_prompt(json_t *value, struct fm_openai_request *out, struct fm_openai_error *error)
{
	struct fm_openai_prompt *prompt = &out->prompts[out->n_prompts++];

	if (json_is_string(value)) {
		prompt->text = copy_string(value, &prompt->len);
		return prompt->text ? 0 : no_memory(error);
	}
	if (json_is_array(value)) {
		if (!json_array_size(value))
			return fm_openai_refuse(error, 400, "prompt", "invalid_value",
						"prompt must not be empty");
		return token_ids(value, "prompt", &prompt->tokens, &prompt->n_tokens, error);
	}
	return fm_openai_refuse(error, 400, "prompt", "invalid_type",
				"prompt must be a string, an array of strings, of token ids, or of "
				"arrays of token ids");
}

static int parse_prompts(json_t *root, struct fm_openai_request *out, struct fm_openai_error *error)
{
	json_t *prompt = member(root, "prompt"), *value;
	bool is_list = json_is_array(prompt) && json_array_size(prompt) &&
		       !json_is_integer(json_array_get(prompt, 0));
	size_t i, n = is_list ? json_array_size(prompt) : 1;
	int err;

	if (!prompt)
		return fm_openai_refuse(error, 400, "prompt", "missing_required_parameter",
					"prompt is missing");
	if (n * out->n > FM_OPENAI_CHOICES_MAX)
		return fm_openai_refuse(error, 400, n > 1 ? "prompt" : "n", "invalid_value",
					"prompts times n may be at most %d", FM_OPENAI_CHOICES_MAX);
	out->prompts = calloc(n, sizeof(*out->prompts));
	if (!out->prompts)
		return no_memory(error);
	if (!is_list)
		return add_prompt(prompt, out, error);
	json_array_foreach(prompt, i, value)
	{
		err = add_prompt(value, out, error);
		if (err)
			return err;
	}
	return 0;
}

/* A string, or text parts joined as they stand. */
static char *content_text(json_t *content, size_t number, struct fm_openai_error *error)
{
	char param[64], *text;
	size_t i, len = 0;
	json_t *part, *type, *value;

	snprintf(param, sizeof(param), "messages[%zu].content", number);
	if (json_is_string(content)) {
		text = copy_string(content, NULL);
		if (!text)
			no_memory(error);
		return text;
	}
	if (!json_is_array(content)) {
		fm_openai_refuse(error, 400, param, "invalid_type",
				 "%s must be a string or an array of text parts", param);
		return NULL;
	}
	json_array_foreach(content, i, part)
	{
		type = json_object_get(part, "type");
		value = json_object_get(part, "text");
		if (!json_is_string(type) || strcmp(json_string_value(type), "text") ||
		    !json_is_string(value)) {
			fm_openai_refuse(error, 400, param, "invalid_value",
					 "%s[%zu] must be {\"type\":\"text\",\"text\":\"…\"}: this "
					 "model reads text only",
					 param, i);
			return NULL;
		}
		len += json_string_length(value);
	}
	text = malloc(len + 1);
	if (!text) {
		no_memory(error);
		return NULL;
	}
	len = 0;
	json_array_foreach(content, i, part)
	{
		value = json_object_get(part, "text");
		memcpy(text + len, json_string_value(value), json_string_length(value));
		len += json_string_length(value);
	}
	text[len] = '\0';
	return text;
}

static int add_message(json_t *message, size_t number, struct fm_openai_request *out,
		       struct fm_openai_error *error)
{
	struct fm_chat_message *slot = &out->messages[out->n_messages];
	json_t *role = json_object_get(message, "role");
	json_t *content = json_object_get(message, "content");
	const char *name = json_is_string(role) ? json_string_value(role) : "";
	char param[64];

	snprintf(param, sizeof(param), "messages[%zu]", number);
	if (!json_is_object(message))
		return fm_openai_refuse(error, 400, param, "invalid_type", "%s must be an object",
					param);
	if (!strcmp(name, "developer")) /* OpenAI's newer word for the same thing */
		name = "system";
	snprintf(param, sizeof(param), "messages[%zu].role", number);
	if (strcmp(name, "system") && strcmp(name, "user") && strcmp(name, "assistant"))
		return fm_openai_refuse(error, 400, param, "invalid_value",
					"%s is %s%.32s%s; it must be system, developer, user or "
					"assistant",
					param, json_is_string(role) ? "\"" : "",
					json_is_string(role) ? name
					: role		     ? "not a string"
							     : "missing",
					json_is_string(role) ? "\"" : "");
	out->n_messages++;
	slot->role = strdup(name);
	slot->content = content_text(content, number, error);
	if (!slot->content)
		return error->status == 500 ? FM_ERR_NO_MEMORY : FM_ERR_INVALID;
	return slot->role ? 0 : no_memory(error);
}

static int parse_messages(json_t *root, struct fm_openai_request *out,
			  struct fm_openai_error *error)
{
	json_t *messages = member(root, "messages"), *message;
	size_t i;
	int err;

	if (!messages)
		return fm_openai_refuse(error, 400, "messages", "missing_required_parameter",
					"messages is missing");
	if (!json_is_array(messages))
		return fm_openai_refuse(error, 400, "messages", "invalid_type",
					"messages must be an array");
	if (!json_array_size(messages) || json_array_size(messages) > FM_OPENAI_MESSAGES_MAX)
		return fm_openai_refuse(error, 400, "messages", "invalid_value",
					"messages must hold from 1 to %d messages",
					FM_OPENAI_MESSAGES_MAX);
	out->messages = calloc(json_array_size(messages), sizeof(*out->messages));
	if (!out->messages)
		return no_memory(error);
	json_array_foreach(messages, i, message)
	{
		err = add_message(message, i, out, error);
		if (err)
			return err;
	}
	return 0;
}

/* ---- bodies ------------------------------------------------------------------------------- */

static int load(const char *body, size_t len, json_t **root, struct fm_openai_error *error)
{
	json_error_t where;

	*root = fm_json_load(body, len, 0, &where);
	if (fm_json_was_short())
		return no_memory(error);
	if (!*root)
		return fm_openai_refuse(error, 400, NULL, "invalid_json",
					"the body is not valid JSON: %s (line %d, column %d)",
					where.text, where.line, where.column);
	if (!json_is_object(*root)) {
		json_decref(*root);
		*root = NULL;
		return fm_openai_refuse(error, 400, NULL, "invalid_json",
					"the body must be a JSON object");
	}
	return 0;
}

int fm_openai_parse(enum fm_openai_kind kind, const char *body, size_t len,
		    struct fm_openai_request *out, struct fm_openai_error *error)
{
	json_t *root, *model;
	int err;

	memset(out, 0, sizeof(*out));
	memset(error, 0, sizeof(*error));
	out->kind = kind;
	err = load(body, len, &root, error);
	if (err)
		return err;
	model = member(root, "model");
	if (model && !json_is_string(model))
		err = fm_openai_refuse(error, 400, "model", "invalid_type",
				       "model must be a string");
	else if (model && !(out->model = copy_string(model, NULL)))
		err = no_memory(error);
	if (!err)
		err = refuse_unsupported(root, error);
	if (!err)
		err = parse_sampling(root, out, error);
	if (!err)
		err = parse_bias(root, out, error);
	if (!err)
		err = parse_stops(root, out, error);
	if (!err)
		err = parse_stop_tokens(root, out, error);
	if (!err)
		err = parse_lengths(root, out, error);
	if (!err)
		err = parse_logprobs(root, out, error);
	if (!err)
		err = parse_stream(root, out, error);
	if (!err)
		err = kind == FM_OPENAI_CHAT ? parse_messages(root, out, error)
					     : parse_prompts(root, out, error);
	json_decref(root);
	return err;
}

void fm_openai_request_free(struct fm_openai_request *request)
{
	free(request->model);
	for (size_t i = 0; i < request->n_prompts; i++) {
		free(request->prompts[i].text);
		free(request->prompts[i].tokens);
	}
	free(request->prompts);
	for (size_t i = 0; i < request->n_messages; i++) {
		free((char *)request->messages[i].role);
		free((char *)request->messages[i].content);
	}
	free(request->messages);
	for (size_t i = 0; i < request->n_stops; i++)
		free(request->stops[i]);
	free(request->bias);
	free(request->stop_tokens);
	memset(request, 0, sizeof(*request));
}

int fm_openai_parse_tokenize(const char *body, size_t len, struct fm_openai_tokenize *out,
			     struct fm_openai_error *error)
{
	json_t *root, *content;
	int err;

	memset(out, 0, sizeof(*out));
	err = load(body, len, &root, error);
	if (err)
		return err;
	content = member(root, "content");
	if (!json_is_string(content))
		err = fm_openai_refuse(error, 400, "content",
				       content ? "invalid_type" : "missing_required_parameter",
				       content ? "content must be a string"
					       : "content is missing: give the text as a string");
	if (!err)
		err = get_bool(root, "add_special", &out->add_special, error);
	if (!err)
		err = get_bool(root, "parse_special", &out->parse_special, error);
	if (!err && !(out->content = copy_string(content, &out->len)))
		err = no_memory(error);
	json_decref(root);
	return err;
}

int fm_openai_parse_detokenize(const char *body, size_t len, uint32_t **tokens, size_t *n,
			       struct fm_openai_error *error)
{
	json_t *root, *list;
	int err;

	*tokens = NULL;
	*n = 0;
	err = load(body, len, &root, error);
	if (err)
		return err;
	list = member(root, "tokens");
	if (!json_is_array(list))
		err = fm_openai_refuse(error, 400, "tokens",
				       list ? "invalid_type" : "missing_required_parameter",
				       list ? "tokens must be an array of token ids"
					    : "tokens is missing: give an array of token ids");
	else
		err = token_ids(list, "tokens", tokens, n, error);
	if (err) {
		free(*tokens);
		*tokens = NULL;
	}
	json_decref(root);
	return err;
}
