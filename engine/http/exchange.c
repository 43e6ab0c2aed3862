// SPDX-License-Identifier: Apache-2.0
/*
 * Life of an exchange, and the bounded buffer between the front end's thread and the HTTP thread.
 * Lock order: exchange->lock, then MHD's own. Invariant: a suspended connection is resumed whenever
 * there is something for it to do, exactly once.
 */
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "http/exchange.h"
#include "http/front_end.h"

int fm_bytes_reserve(struct fm_bytes *bytes, size_t len)
{
	size_t size = bytes->size ? bytes->size * 2 : 1024;
	char *grown;

	if (len <= bytes->size - bytes->len)
		return 0;
	while (size < bytes->len + len)
		size *= 2;
	grown = realloc(bytes->data, size);
	if (!grown)
		return fm_fail(FM_ERR_NO_MEMORY, "the server is out of memory");
	bytes->data = grown;
	bytes->size = size;
	return 0;
}

int fm_bytes_add(struct fm_bytes *bytes, const void *data, size_t len)
{
	int err = fm_bytes_reserve(bytes, len);

	if (err)
		return err;
	if (len)
		memcpy(bytes->data + bytes->len, data, len);
	bytes->len += len;
	return 0;
}

void fm_bytes_free(struct fm_bytes *bytes)
{
	free(bytes->data);
	memset(bytes, 0, sizeof(*bytes));
}

int fm_exchange_create(struct fm_openai_request *request, struct fm_exchange **out)
{
	struct fm_exchange *exchange = calloc(1, sizeof(*exchange));

	if (!exchange)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a request");
	exchange->choices = calloc(FM_OPENAI_CHOICES_MAX, sizeof(*exchange->choices));
	if (!exchange->choices) {
		free(exchange);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a request's choices");
	}
	pthread_mutex_init(&exchange->lock, NULL);
	atomic_init(&exchange->references, 1);
	exchange->fd = -1;
	exchange->request = *request;
	memset(request, 0, sizeof(*request));
	*out = exchange;
	return 0;
}

void fm_exchange_ref(struct fm_exchange *exchange)
{
	/* relaxed: who takes one more holds one already */
	atomic_fetch_add_explicit(&exchange->references, 1, memory_order_relaxed);
}

void fm_exchange_unref(struct fm_exchange *exchange)
{
	/* acq_rel: what the other holders wrote is seen before it is freed */
	if (atomic_fetch_sub_explicit(&exchange->references, 1, memory_order_acq_rel) != 1)
		return;
	for (uint32_t i = 0; i < exchange->n_choices; i++) {
		struct fm_choice *choice = &exchange->choices[i];

		free(choice->tokens);
		fm_text_stream_destroy(choice->stream);
		fm_bytes_free(&choice->text);
		json_decref(choice->logprobs);
	}
	free(exchange->choices);
	fm_openai_request_free(&exchange->request);
	fm_bytes_free(&exchange->out);
	pthread_mutex_destroy(&exchange->lock);
	free(exchange);
}

int fm_exchange_add_prompt(struct fm_exchange *exchange, const struct fm_tokenizer *tokenizer,
			   const struct fm_tokens *prompt, uint32_t max_tokens)
{
	const struct fm_openai_request *request = &exchange->request;

	for (uint32_t i = 0; i < request->n; i++) {
		struct fm_choice *choice = &exchange->choices[exchange->n_choices];
		int err;

		choice->exchange = exchange;
		choice->index = exchange->n_choices;
		choice->request = -1;
		choice->report = (struct fm_choice_report){-1, -1, -1, -1};
		choice->route =
			(struct fm_router_request_info){.prefill_worker = -1, .decode_worker = -1};
		choice->sampling = request->sampling;
		choice->sampling.choice = i;
		choice->n_prompt = (uint32_t)prompt->n;
		choice->max_tokens = max_tokens;
		choice->tokens = malloc((prompt->n + max_tokens) * sizeof(*choice->tokens));
		if (!choice->tokens)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for a prompt");
		memcpy(choice->tokens, prompt->ids, prompt->n * sizeof(*choice->tokens));
		exchange->n_choices++; /* from here on, unref cleans it up */
		err = fm_text_stream_create(tokenizer, (const char *const *)request->stops,
					    request->n_stops, &choice->stream);
		if (err)
			return err;
	}
	return 0;
}

static void wake_locked(struct fm_exchange *exchange)
{
	if (!exchange->is_suspended || !exchange->connection)
		return;
	exchange->is_suspended = false;
	MHD_resume_connection(exchange->connection);
}

int fm_exchange_write(struct fm_exchange *exchange, const char *data, size_t len)
{
	int err = 0;

	pthread_mutex_lock(&exchange->lock);
	if (exchange->request.stream &&
	    exchange->out.len - exchange->sent + len > FM_FRONT_END_UNSENT_MAX) {
		err = fm_fail(FM_ERR_LIMIT, "a client left %u bytes of its stream unread",
			      FM_FRONT_END_UNSENT_MAX);
	} else {
		if (exchange->sent == exchange->out.len)
			exchange->sent = exchange->out.len = 0;
		err = fm_bytes_add(&exchange->out, data, len);
		if (!err && !exchange->status)
			exchange->status = 200;
		if (exchange->request.stream)
			wake_locked(exchange);
	}
	pthread_mutex_unlock(&exchange->lock);
	return err;
}

static void finish_locked(struct fm_exchange *exchange)
{
	exchange->is_finished = true;
	wake_locked(exchange);
}

void fm_exchange_finish(struct fm_exchange *exchange)
{
	pthread_mutex_lock(&exchange->lock);
	finish_locked(exchange);
	pthread_mutex_unlock(&exchange->lock);
}

void fm_exchange_fail(struct fm_exchange *exchange, const struct fm_openai_error *error)
{
	char *text = fm_openai_error_text(error);
	int err = text ? 0 : FM_ERR_NO_MEMORY;

	pthread_mutex_lock(&exchange->lock);
	if (!exchange->status) {
		exchange->status = error->status;
		exchange->out.len = 0;
		if (!err)
			err = fm_bytes_add(&exchange->out, text, strlen(text));
		if (err) { /* no body: the HTTP thread has one that needs no memory */
			fm_bytes_free(&exchange->out);
			err = 0;
		}
	} else if (!err) {
		err = fm_bytes_add(&exchange->out, "data: ", 6);
		if (!err)
			err = fm_bytes_add(&exchange->out, text, strlen(text));
		if (!err)
			err = fm_bytes_add(&exchange->out, "\n\n", 2);
	}
	exchange->is_aborted = err != 0;
	finish_locked(exchange);
	pthread_mutex_unlock(&exchange->lock);
	free(text);
}

void fm_exchange_abort(struct fm_exchange *exchange)
{
	pthread_mutex_lock(&exchange->lock);
	exchange->is_aborted = true;
	finish_locked(exchange);
	pthread_mutex_unlock(&exchange->lock);
}

bool fm_exchange_is_gone(struct fm_exchange *exchange)
{
	bool is_gone;

	pthread_mutex_lock(&exchange->lock);
	is_gone = !exchange->connection;
	pthread_mutex_unlock(&exchange->lock);
	return is_gone;
}
