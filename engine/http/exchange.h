/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP request on its way through the front end: made by the HTTP thread, answered by the front
 * end's thread, sent by the HTTP thread. Invariant: fields under `lock` are touched with it held;
 * all others belong to the HTTP thread until fm_exchange_submit hands it over, then to the front
 * end's.
 */
#ifndef FM_ENGINE_EXCHANGE_H
#define FM_ENGINE_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/router_core.h"
#include "http/openai.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "worker/protocol.h"

struct MHD_Connection;
struct fm_exchange;

struct fm_bytes { /* a growing run of bytes */
	char *data;
	size_t len, size;
};
/* Room for @len more: then fm_bytes_add() of them cannot fail. */
int fm_bytes_reserve(struct fm_bytes *bytes, size_t len);
int fm_bytes_add(struct fm_bytes *bytes, const void *data, size_t len);
void fm_bytes_free(struct fm_bytes *bytes);

/* What a worker reported about one choice; -1: not known. */
struct fm_choice_report {
	int64_t cached, computed_prefill, computed_decode, mapped;
};

struct fm_choice {
	struct fm_exchange *exchange;
	uint32_t index; /* in the answer */
	int request;	/* in the router core; -1: not there */
	bool is_done;
	struct fm_sampling sampling;
	uint32_t *tokens; /* prompt, then what was generated: n_prompt + max_tokens have room */
	uint32_t n_prompt, n_generated, max_tokens;
	char tail[33]; /* offered by the prefill worker; "" without */
	struct fm_text_stream *stream;
	struct fm_bytes text; /* of an answer that is not streamed */
	size_t text_offset;
	json_t *logprobs; /* not sent yet */
	bool is_started;  /* its first chunk has gone out */
	const char *finish;
	struct fm_choice_report report;
	struct fm_router_request_info route; /* as it was when the choice was done */
	uint64_t first_ns, last_ns;
};

struct fm_exchange {
	_Atomic int references;
	struct fm_openai_request request;
	char id[40]; /* of the answer's body */
	char request_id[FM_REQUEST_ID_MAX + 1];
	int64_t created;
	uint64_t arrival_ns;
	struct fm_choice *choices;
	uint32_t n_choices, n_open;

	pthread_mutex_t lock;
	struct MHD_Connection *connection; /* NULL: the client is gone, or was answered */
	int fd;				   /* of the connection; -1 with it */
	bool is_suspended;		   /* MHD waits until fm_exchange_wake() */
	bool is_finished;		   /* nothing will be added */
	bool is_aborted;		   /* close without an end */
	int status;			   /* 0: not decided */
	struct fm_bytes out;
	size_t sent;
	struct fm_exchange *next; /* in the hand-over queue, under its lock */
};

/* Takes over @request. Choices are made from @prompts (one for each prompt; copied). */
int fm_exchange_create(struct fm_openai_request *request, struct fm_exchange **out);
void fm_exchange_ref(struct fm_exchange *exchange);
void fm_exchange_unref(struct fm_exchange *exchange);
/* Adds n choices of a prompt. @max_tokens is the room after it. */
int fm_exchange_add_prompt(struct fm_exchange *exchange, const struct fm_tokenizer *tokenizer,
			   const struct fm_tokens *prompt, uint32_t max_tokens);

/* ---- the front end's thread: */
/* Adds bytes of a 200 answer. FM_ERR_LIMIT: the client reads too slowly and is dropped. */
int fm_exchange_write(struct fm_exchange *exchange, const char *data, size_t len);
void fm_exchange_finish(struct fm_exchange *exchange);
/* An error object with its status, or, when the answer has begun, as the last event of the stream.
 */
void fm_exchange_fail(struct fm_exchange *exchange, const struct fm_openai_error *error);
void fm_exchange_abort(struct fm_exchange *exchange);
bool fm_exchange_is_gone(struct fm_exchange *exchange);

#endif
