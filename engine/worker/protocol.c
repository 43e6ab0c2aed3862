// SPDX-License-Identifier: Apache-2.0
/*
 * JSON of the worker protocol (see protocol.h and Documentation/worker-protocol.md). Calls jansson.
 * Invariant: fm_worker_message_free() frees what a line left, whether it was taken or refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_memory.h"
#include "worker/protocol.h"

#define TOKENS_MAX (1u << 21)

bool fm_request_id_is_valid(const char *text)
{
	size_t length =
		strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
			     "._:/+=@-");

	return length && length <= FM_REQUEST_ID_MAX && !text[length];
}

static bool is_id(const json_t *value)
{
	return json_is_integer(value) && json_integer_value(value) >= 0 &&
	       json_integer_value(value) <= UINT32_MAX;
}

/* An array of @min to @max token ids; *@out: malloc()ed. */
static int parse_ids(const json_t *array, const char *name, size_t min, size_t max, uint32_t **out,
		     uint32_t *n_out)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array) || n < min || n > max)
		return fm_fail(FM_ERR_INVALID, "%s: give an array of %zu to %zu token ids", name,
			       min, max);
	*out = malloc((n + 1) * sizeof(uint32_t));
	if (!*out)
		return fm_fail(FM_ERR_NO_MEMORY, "request: out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(array, i);

		if (!is_id(id))
			return fm_fail(FM_ERR_INVALID, "%s[%zu] is not a token id", name, i);
		(*out)[i] = (uint32_t)json_integer_value(id);
	}
	*n_out = (uint32_t)n;
	return 0;
}

static int parse_tokens(const json_t *root, struct fm_worker_message *message)
{
	const json_t *n_prompt = json_object_get(root, "n_prompt");
	struct fm_request *request = &message->request;
	int err = parse_ids(json_object_get(root, "tokens"), "tokens", 1, TOKENS_MAX,
			    &message->tokens, &request->n_tokens);

	if (err)
		return err;
	request->tokens = message->tokens;
	request->n_prompt = request->n_tokens;
	if (!n_prompt)
		return 0;
	if (!json_is_integer(n_prompt) || json_integer_value(n_prompt) < 1 ||
	    json_integer_value(n_prompt) > request->n_tokens)
		return fm_fail(FM_ERR_INVALID,
			       "n_prompt: give a number from 1 to that of tokens (%u)",
			       request->n_tokens);
	request->n_prompt = (uint32_t)json_integer_value(n_prompt);
	return 0;
}

/* An absent member leaves *@out as it is. */
static int parse_number(const json_t *object, const char *name, float *out)
{
	const json_t *value = json_object_get(object, name);

	if (!value)
		return 0;
	if (!json_is_number(value))
		return fm_fail(FM_ERR_INVALID, "sampling.%s: give a number", name);
	*out = (float)json_number_value(value);
	return 0;
}

static int parse_integer(const json_t *object, const char *name, json_int_t max, json_int_t *out)
{
	const json_t *value = json_object_get(object, name);

	*out = 0;
	if (!value)
		return 0;
	if (!json_is_integer(value) ||
	    (max && (json_integer_value(value) < 0 || json_integer_value(value) > max)))
		return fm_fail(FM_ERR_INVALID, "sampling.%s: give a whole number in its range",
			       name);
	*out = json_integer_value(value);
	return 0;
}

/* [[id, bias], …] */
static int parse_bias(const json_t *sampling, struct fm_worker_message *message)
{
	const json_t *array = json_object_get(sampling, "logit_bias");
	size_t n = json_array_size(array);

	if (!array)
		return 0;
	if (!json_is_array(array) || n > FM_LOGIT_BIASES_MAX)
		return fm_fail(FM_ERR_INVALID,
			       "sampling.logit_bias: give an array of at most %d [id, bias] pairs",
			       FM_LOGIT_BIASES_MAX);
	message->bias = malloc((n + 1) * sizeof(*message->bias));
	if (!message->bias)
		return fm_fail(FM_ERR_NO_MEMORY, "request: out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *pair = json_array_get(array, i);

		if (json_array_size(pair) != 2 || !is_id(json_array_get(pair, 0)) ||
		    !json_is_number(json_array_get(pair, 1)))
			return fm_fail(FM_ERR_INVALID,
				       "sampling.logit_bias[%zu] is not an [id, bias] pair", i);
		message->bias[i] = (struct fm_logit_bias){
			(uint32_t)json_integer_value(json_array_get(pair, 0)),
			(float)json_number_value(json_array_get(pair, 1))};
	}
	message->request.sampling.bias = message->bias;
	message->request.sampling.n_bias = (uint32_t)n;
	return 0;
}

static int parse_stop_tokens(const json_t *sampling, struct fm_worker_message *message)
{
	const json_t *array = json_object_get(sampling, "stop_token_ids");
	int err;

	if (!array)
		return 0;
	err = parse_ids(array, "sampling.stop_token_ids", 0, FM_STOP_TOKENS_MAX,
			&message->stop_tokens, &message->request.sampling.n_ends);
	message->request.sampling.ends = message->stop_tokens;
	return err;
}

/* What this version does not know would change the answer: refused, not ignored. */
static int refuse_unknown(json_t *sampling)
{
	static const char *const known[] = {
		"temperature",
		"top_p",
		"min_p",
		"top_k",
		"seed",
		"choice",
		"repetition_penalty",
		"frequency_penalty",
		"presence_penalty",
		"min_tokens",
		"logit_bias",
		"stop_token_ids",
	};
	const char *name;
	json_t *value;

	json_object_foreach(sampling, name, value)
	{
		size_t i = 0;

		while (i < sizeof(known) / sizeof(*known) && strcmp(known[i], name))
			i++;
		if (i == sizeof(known) / sizeof(*known))
			return fm_fail(FM_ERR_INVALID, "sampling.%.64s is not known", name);
	}
	return 0;
}

static int parse_sampling(json_t *sampling, struct fm_worker_message *message)
{
	struct fm_sampling *out = &message->request.sampling;
	json_int_t top_k = 0, seed = 0, choice = 0, min_tokens = 0;
	int err;

	*out = FM_SAMPLING_NEUTRAL;
	if (!sampling)
		return 0;
	if (!json_is_object(sampling))
		return fm_fail(FM_ERR_INVALID, "sampling: give an object");
	if ((err = refuse_unknown(sampling)) ||
	    (err = parse_number(sampling, "temperature", &out->temperature)) ||
	    (err = parse_number(sampling, "top_p", &out->top_p)) ||
	    (err = parse_number(sampling, "min_p", &out->min_p)) ||
	    (err = parse_integer(sampling, "top_k", UINT32_MAX, &top_k)) ||
	    (err = parse_integer(sampling, "seed", 0, &seed)) ||
	    (err = parse_integer(sampling, "choice", UINT32_MAX, &choice)) ||
	    (err = parse_number(sampling, "repetition_penalty", &out->repetition_penalty)) ||
	    (err = parse_number(sampling, "frequency_penalty", &out->frequency_penalty)) ||
	    (err = parse_number(sampling, "presence_penalty", &out->presence_penalty)) ||
	    (err = parse_integer(sampling, "min_tokens", UINT32_MAX, &min_tokens)) ||
	    (err = parse_bias(sampling, message)) || (err = parse_stop_tokens(sampling, message)))
		return err;
	out->top_k = (uint32_t)top_k;
	out->seed = (uint64_t)seed; /* all 64 bits: a negative number is a seed too */
	out->choice = (uint32_t)choice;
	out->min_tokens = (uint32_t)min_tokens;
	return 0;
}

static int parse_tail(const json_t *tail, struct fm_key *out)
{
	const char *hex = json_string_value(tail);

	if (!hex || strlen(hex) != 2 * sizeof(out->bytes) || strspn(hex, "0123456789abcdef") != 32)
		return fm_fail(FM_ERR_INVALID, "tail: give 32 lower-case hex digits");
	for (size_t i = 0; i < sizeof(out->bytes); i++) {
		unsigned int byte;

		sscanf(hex + 2 * i, "%2x", &byte);
		out->bytes[i] = (uint8_t)byte;
	}
	return 0;
}

static int parse_request_id(const json_t *value, struct fm_worker_message *message)
{
	const char *text = json_string_value(value);

	if (!value)
		return 0;
	if (!text || !fm_request_id_is_valid(text))
		return fm_fail(FM_ERR_INVALID, "request: give 1 to %d letters, digits or ._:/+=@-",
			       FM_REQUEST_ID_MAX);
	snprintf(message->request_id, sizeof(message->request_id), "%s", text);
	message->request.request_id = message->request_id;
	return 0;
}

static int parse_request(const json_t *root, const char *op, struct fm_worker_message *message)
{
	struct fm_request *request = &message->request;
	const json_t *tail = json_object_get(root, "tail");
	const json_t *max = json_object_get(root, "max_tokens");
	const json_t *n_top = json_object_get(root, "top_logprobs");
	const json_t *ends = json_object_get(root, "ends");
	int err;

	message->op = FM_WORKER_OP_REQUEST;
	request->kind = strcmp(op, "prefill") ? FM_REQUEST_GENERATE : FM_REQUEST_PREFILL;
	if (ends && !json_is_boolean(ends))
		return fm_fail(FM_ERR_INVALID, "ends: give true or false");
	request->ends = json_is_true(ends);
	request->max_tokens = 1;
	if (request->kind == FM_REQUEST_GENERATE) {
		if (!json_is_integer(max) || json_integer_value(max) < 1 ||
		    json_integer_value(max) > UINT32_MAX)
			return fm_fail(FM_ERR_INVALID, "max_tokens: give a number of at least 1");
		request->max_tokens = (uint32_t)json_integer_value(max);
	}
	if (n_top) {
		if (!json_is_integer(n_top) || json_integer_value(n_top) < 0 ||
		    json_integer_value(n_top) > FM_TOP_LOGPROBS_MAX)
			return fm_fail(FM_ERR_INVALID, "top_logprobs: give a number from 0 to %d",
				       FM_TOP_LOGPROBS_MAX);
		request->n_top = (uint32_t)json_integer_value(n_top);
	}
	if (tail) {
		err = parse_tail(tail, &message->tail);
		if (err)
			return err;
		request->tail = &message->tail;
	}
	err = parse_request_id(json_object_get(root, "request"), message);
	if (!err)
		err = parse_sampling(json_object_get(root, "sampling"), message);
	return err ? err : parse_tokens(root, message);
}

static int parse_hello(const json_t *root, struct fm_worker_message *message)
{
	json_int_t version = json_integer_value(json_object_get(root, "version"));

	message->op = FM_WORKER_OP_HELLO;
	if (version != FM_WORKER_PROTOCOL_VERSION)
		return fm_fail(FM_ERR_VERSION,
			       "version: this worker speaks %d of the worker protocol, not %lld: "
			       "run the same release everywhere",
			       FM_WORKER_PROTOCOL_VERSION, (long long)version);
	return 0;
}

int fm_worker_parse(const char *line, size_t len, struct fm_worker_message *message)
{
	json_error_t error;
	json_t *root = fm_json_load(line, len, JSON_REJECT_DUPLICATES, &error);
	const char *op = json_string_value(json_object_get(root, "op"));
	const json_t *id = json_object_get(root, "id");
	int err = 0;

	*message = (struct fm_worker_message){0};
	if (fm_json_was_short())
		return fm_fail(FM_ERR_BUSY, "no memory to read a message: try it again");
	if (!root)
		return fm_fail(FM_ERR_INVALID, "not a JSON object: %s at byte %d", error.text,
			       error.position);
	message->request.id = (uint64_t)json_integer_value(id);
	if (!op)
		err = fm_fail(FM_ERR_INVALID,
			      "op is missing: hello, prefill, generate, cancel or stats");
	else if (!strcmp(op, "hello"))
		err = parse_hello(root, message);
	else if (!strcmp(op, "stats"))
		message->op = FM_WORKER_OP_STATS;
	else if (!json_is_integer(id))
		err = fm_fail(FM_ERR_INVALID, "id is missing: give a number");
	else if (!strcmp(op, "cancel"))
		message->op = FM_WORKER_OP_CANCEL;
	else if (!strcmp(op, "prefill") || !strcmp(op, "generate"))
		err = parse_request(root, op, message);
	else
		err = fm_fail(FM_ERR_INVALID,
			      "op \"%.32s\" is not known: hello, prefill, generate, cancel "
			      "or stats",
			      op);
	json_decref(root);
	return err;
}

void fm_worker_message_free(struct fm_worker_message *message)
{
	free(message->tokens);
	free(message->stop_tokens);
	free(message->bias);
	*message = (struct fm_worker_message){0};
}

static void add_counts(json_t *out, const struct fm_request_counts *counts)
{
	json_object_set_new(out, "computed", json_integer(counts->computed));
	json_object_set_new(out, "cached", json_integer(counts->cached));
	json_object_set_new(out, "mapped", json_integer(counts->mapped));
	json_object_set_new(out, "sealed", json_integer(counts->sealed));
	json_object_set_new(out, "generated", json_integer(counts->generated));
	json_object_set_new(out, "prefill_ms", json_real(counts->prefill_ms));
	json_object_set_new(out, "decode_ms", json_real(counts->decode_ms));
}

static void add_sample(json_t *out, const struct fm_sample *sample, uint32_t n_top)
{
	json_object_set_new(out, "token", json_integer(sample->token));
	json_object_set_new(out, "logprob", json_real(sample->logprob));
	if (n_top) {
		json_t *top = json_array();

		for (uint32_t i = 0; i < sample->n_top; i++)
			json_array_append_new(top, json_pack("[i,f]", (int)sample->top[i].id,
							     (double)sample->top[i].logprob));
		json_object_set_new(out, "top", top);
	}
}

json_t *fm_worker_event_json(const struct fm_engine_event *event, uint32_t n_top)
{
	json_t *out = json_pack("{s:I}", "id", (json_int_t)event->id);
	char hex[33];

	switch (event->kind) {
	case FM_EVENT_TOKEN:
		json_object_set_new(out, "event", json_string("token"));
		add_sample(out, event->sample, n_top);
		break;
	case FM_EVENT_PREFILLED:
		json_object_set_new(out, "event", json_string("prefilled"));
		add_sample(out, event->sample, n_top);
		add_counts(out, &event->counts);
		json_object_set_new(out, "ms", json_real(event->counts.prefill_ms));
		if (event->has_tail) {
			for (int i = 0; i < 16; i++)
				snprintf(hex + 2 * i, 3, "%02x", event->tail.bytes[i]);
			json_object_set_new(out, "tail", json_string(hex));
		}
		break;
	case FM_EVENT_DONE:
		json_object_set_new(out, "event", json_string("done"));
		json_object_set_new(out, "finish", json_string(event->finish));
		add_counts(out, &event->counts);
		break;
	case FM_EVENT_ERROR:
		json_object_set_new(out, "event", json_string("error"));
		json_object_set_new(out, "code", json_string(fm_error_name(event->error)));
		json_object_set_new(out, "message", json_string(event->message));
		json_object_set_new(out, "retry", json_boolean(event->retry));
		break;
	}
	return out;
}

json_t *fm_worker_stats_json(const struct fm_engine_stats *stats)
{
	return json_pack("{s:s,s:I,s:I,s:I,s:I,s:I}", "event", "stats", "running",
			 (json_int_t)stats->schedule.running, "waiting",
			 (json_int_t)stats->schedule.waiting, "waiting_tokens",
			 (json_int_t)stats->schedule.waiting_tokens, "computed_tokens",
			 (json_int_t)stats->computed_tokens, "generated_tokens",
			 (json_int_t)stats->generated_tokens);
}
