// SPDX-License-Identifier: Apache-2.0
/*
 * Text and JSON of answers; see answer.h. Called by the front end's thread; calls the text stream,
 * the OpenAI formatter and the exchange. Invariant: log probabilities leave with the chunk that
 * shows their text, so text that is held back never shows through them.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/answer.h"

static const char *piece_of(const struct fm_answer_context *context, uint32_t token, size_t *len)
{
	const char *piece = fm_tokenizer_piece(context->tokenizer, token, true, len);

	if (!piece)
		*len = 0;
	return piece ? piece : "";
}

static int add_logprobs(struct fm_choice *choice, const struct fm_answer_context *context,
			const struct fm_token_event *event)
{
	enum fm_openai_kind kind = choice->exchange->request.kind;
	struct fm_openai_piece token, top[FM_OPENAI_LOGPROBS_MAX];

	if (!choice->exchange->request.logprobs)
		return 0;
	if (!choice->logprobs)
		choice->logprobs = fm_openai_logprobs_create(kind);
	token.bytes = piece_of(context, event->token, &token.len);
	token.logprob = event->logprob;
	for (uint32_t i = 0; i < event->n_top; i++) {
		top[i].bytes = piece_of(context, event->top[i].token, &top[i].len);
		top[i].logprob = event->top[i].logprob;
	}
	return fm_openai_logprobs_add(choice->logprobs, kind, &token, top, event->n_top,
				      choice->text_offset);
}

static int send_event(struct fm_exchange *exchange, char *text)
{
	struct fm_bytes event = {0};
	int err;

	if (!text)
		return fm_fail(FM_ERR_NO_MEMORY, "the server is out of memory");
	err = fm_bytes_add(&event, "data: ", 6);
	if (!err)
		err = fm_bytes_add(&event, text, strlen(text));
	if (!err)
		err = fm_bytes_add(&event, "\n\n", 2);
	if (!err)
		err = fm_exchange_write(exchange, event.data, event.len);
	fm_bytes_free(&event);
	free(text);
	return err;
}

static struct fm_openai_identity identity_of(const struct fm_exchange *exchange,
					     const struct fm_answer_context *context)
{
	return (struct fm_openai_identity){.kind = exchange->request.kind,
					   .id = exchange->id,
					   .model = context->model_name,
					   .created = exchange->created};
}

static int send_chunk(struct fm_choice *choice, const struct fm_answer_context *context,
		      const char *text, size_t len, const char *finish)
{
	struct fm_exchange *exchange = choice->exchange;
	struct fm_openai_identity identity = identity_of(exchange, context);
	json_t *part = fm_openai_choice(identity.kind, true, choice->index, text, len,
					!choice->is_started, finish, choice->logprobs);

	choice->logprobs = NULL; /* taken over */
	choice->is_started = true;
	return send_event(exchange,
			  fm_openai_answer(&identity, true, json_pack("[o]", part), NULL));
}

static int show(struct fm_choice *choice, const struct fm_answer_context *context, const char *text,
		size_t len)
{
	choice->text_offset += len;
	if (!choice->exchange->request.stream)
		return fm_bytes_add(&choice->text, text, len);
	/* The first chunk goes out even without text: it tells the client that the answer began. */
	if (!len && choice->is_started)
		return 0;
	return send_chunk(choice, context, text, len, NULL);
}

int fm_choice_token(struct fm_choice *choice, const struct fm_answer_context *context,
		    const struct fm_token_event *event, uint64_t now)
{
	const char *text = "";
	size_t len = 0;
	int stop, err;

	if (choice->n_generated == choice->max_tokens)
		return fm_fail(FM_ERR_INVALID, "a worker sent more tokens than it was asked for");
	choice->tokens[choice->n_prompt + choice->n_generated++] = event->token;
	choice->last_ns = now;
	if (choice->n_generated == 1)
		choice->first_ns = now;
	err = add_logprobs(choice, context, event);
	if (err)
		return err;
	stop = fm_text_stream_push(choice->stream, event->token, &text, &len);
	if (stop < 0)
		return stop;
	err = show(choice, context, text, len);
	if (err)
		return err;
	choice->finish = stop					     ? "stop"
			 : choice->n_generated == choice->max_tokens ? "length"
								     : NULL;
	return choice->finish != NULL;
}

int fm_choice_finish(struct fm_choice *choice, const struct fm_answer_context *context,
		     const char *finish)
{
	const char *text = "";
	size_t len = 0;
	int err;

	choice->finish = finish;
	choice->is_done = true;
	err = fm_text_stream_finish(choice->stream, &text, &len);
	if (err < 0)
		return err;
	if (len || choice->logprobs) {
		choice->text_offset += len;
		if (!choice->exchange->request.stream)
			return fm_bytes_add(&choice->text, text, len);
		err = send_chunk(choice, context, text, len, NULL);
		if (err)
			return err;
	}
	return choice->exchange->request.stream ? send_chunk(choice, context, "", 0, finish) : 0;
}

/* ---- the end ------------------------------------------------------------------------------ */

uint32_t fm_choice_cached(const struct fm_choice *choice)
{
	int64_t cached = choice->report.cached < 0 ? 0 : choice->report.cached;

	return cached < choice->n_prompt ? (uint32_t)cached : choice->n_prompt;
}

static json_t *number_or_null(int64_t value)
{
	return value < 0 ? json_null() : json_integer(value);
}

static double milliseconds(uint64_t from, uint64_t to)
{
	uint64_t microseconds = to > from ? (to - from) / 1000 : 0;

	return (double)microseconds / 1000.0;
}

static json_t *describe_route(const struct fm_choice *choice,
			      const char *(*address)(void *arg, int worker), void *arg)
{
	const struct fm_choice_report *report = &choice->report;

	return json_pack(
		"{s:s, s:s?, s:s?, s:i, s:o, s:o, s:o, s:i, s:f, s:f}", "route",
		fm_route_name(choice->route.route), "prefill_worker",
		address(arg, choice->route.prefill_worker), "decode_worker",
		address(arg, choice->route.decode_worker), "cached_tokens",
		(int)fm_choice_cached(choice), "computed_prefill",
		number_or_null(report->computed_prefill), "computed_decode",
		number_or_null(report->computed_decode), "mapped_blocks",
		number_or_null(report->mapped), "retries", (int)choice->route.retries, "ttft_ms",
		choice->first_ns ? milliseconds(choice->exchange->arrival_ns, choice->first_ns)
				 : 0.0,
		"decode_ms", milliseconds(choice->first_ns, choice->last_ns));
}

static int end_stream(struct fm_exchange *exchange)
{
	int err = fm_exchange_write(exchange, "data: [DONE]\n\n", 14);

	if (!err)
		fm_exchange_finish(exchange);
	return err;
}

int fm_exchange_answer(struct fm_exchange *exchange, const struct fm_answer_context *context,
		       const char *(*address)(void *arg, int worker), void *arg)
{
	struct fm_openai_identity identity = identity_of(exchange, context);
	struct fm_openai_usage usage = {0};
	bool is_whole = !exchange->request.stream;
	json_t *choices;
	char *text;
	int err;

	if (!is_whole && !exchange->request.include_usage)
		return end_stream(exchange);
	choices = json_array();
	for (uint32_t i = 0; i < exchange->n_choices; i++) {
		struct fm_choice *choice = &exchange->choices[i];

		/* n choices of one prompt: the prompt counts once, as OpenAI counts it. */
		if (i % exchange->request.n == 0) {
			usage.prompt_tokens += choice->n_prompt;
			usage.cached_tokens += fm_choice_cached(choice);
		}
		usage.completion_tokens += choice->n_generated;
		if (!is_whole)
			continue;
		json_array_append_new(choices,
				      fm_openai_choice(identity.kind, false, choice->index,
						       choice->text.len ? choice->text.data : "",
						       choice->text.len, false, choice->finish,
						       choice->logprobs));
		choice->logprobs = NULL;
	}
	usage.fabricmgr = describe_route(&exchange->choices[0], address, arg);
	text = fm_openai_answer(&identity, !is_whole, choices, &usage);
	json_decref(usage.fabricmgr);
	if (!is_whole) {
		err = send_event(exchange, text);
		return err ? err : end_stream(exchange);
	}
	err = text ? fm_exchange_write(exchange, text, strlen(text))
		   : fm_fail(FM_ERR_NO_MEMORY, "the server is out of memory");
	free(text);
	if (!err)
		fm_exchange_finish(exchange);
	return err;
}
