/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of one process: a model, its KV in the pool, and requests that are batched step by
 * step. `run`, `serve` and `worker` all drive it through this file. One thread uses it. Invariant:
 * every submitted request ends in exactly one final event (prefilled, done or error).
 */
#ifndef FM_ENGINE_ENGINE_H
#define FM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fabricmgr.h>

#include "core/scheduler.h"
#include "model/model.h"
#include "text/sampler.h"

struct fm_engine;
struct fm_tokenizer;

struct fm_engine_options {
	struct fm_model *model;		      /* used, not owned */
	const struct fm_tokenizer *tokenizer; /* used, not owned; NULL: no end tokens */
	struct fm_attach_options attach;      /* the pool */
	const char *tenant_salt;	      /* NULL: that of the pool's tenant */
	uint32_t max_batch;		      /* requests that run at once */
	uint32_t token_budget;		      /* tokens of one step: the chunk of a prefill */
	const char *logits_log;		      /* a file for digests of logits, or NULL */
};

#define FM_REQUEST_ID_MAX 64 /* characters */

enum fm_request_kind { FM_REQUEST_PREFILL, FM_REQUEST_GENERATE };

enum fm_engine_event_kind {
	FM_EVENT_PREFILLED, /* final, of a prefill */
	FM_EVENT_TOKEN,
	FM_EVENT_DONE,	/* final */
	FM_EVENT_ERROR, /* final */
};

struct fm_request_counts {
	uint32_t computed, cached, mapped, sealed, generated;
	double prefill_ms, decode_ms;
};

struct fm_engine_event {
	enum fm_engine_event_kind kind;
	uint64_t id;
	const struct fm_sample *sample; /* PREFILLED, TOKEN */
	const float *logits;		/* what it was chosen from: vocab_size of them */
	uint32_t position;		/* of the chosen token */
	const char *finish;		/* DONE: "stop", "length" or "cancelled" */
	bool has_tail;			/* PREFILLED */
	struct fm_key tail;
	struct fm_request_counts counts; /* PREFILLED, DONE */
	int error;			 /* ERROR: what, and fm_error_detail()'s text */
	const char *message;
	bool retry;
};

struct fm_request {
	enum fm_request_kind kind;
	uint64_t id;		/* the caller's */
	void *owner;		/* handed back with every event */
	const char *request_id; /* the client's, for logs and probes: copied; NULL: none */
	const uint32_t *tokens; /* copied */
	uint32_t n_prompt;	/* of them; the others were generated before (taken over) */
	uint32_t n_tokens, max_tokens;
	bool ends; /* the model's own end tokens finish it */
	const struct fm_key *tail;
	struct fm_sampling sampling; /* its lists are copied */
	uint32_t n_top;
	const uint32_t *teacher; /* copied: these tokens instead of sampled ones; NULL: sample */
	uint32_t n_teacher;
};

/* Called from within fm_engine_step() and fm_engine_cancel(); what it points to is gone afterwards.
 */
/* Negative: the listener could not pass a token on; the request ends without another event. */
typedef int fm_engine_listener(void *context, void *owner, const struct fm_engine_event *event);

int fm_engine_create(const struct fm_engine_options *options, fm_engine_listener *listener,
		     void *context, struct fm_engine **out);
void fm_engine_destroy(struct fm_engine *engine); /* requests that still run get no event */
int fm_engine_submit(struct fm_engine *engine, const struct fm_request *request);
void fm_engine_cancel(struct fm_engine *engine, void *owner, uint64_t id);
/* Drops every request of an owner without an event. */
void fm_engine_forget(struct fm_engine *engine, void *owner);
/* Ends every request with a retryable error. */
void fm_engine_refuse_all(struct fm_engine *engine, const char *why);
/* One step; true while there is more to do. */
bool fm_engine_step(struct fm_engine *engine);

struct fm_engine_stats {
	struct fm_scheduler_counts schedule;
	uint64_t computed_tokens, generated_tokens;
};
void fm_engine_stats(const struct fm_engine *engine, struct fm_engine_stats *out);
const struct fm_digest *fm_engine_namespace(const struct fm_engine *engine);
struct fm_pool *fm_engine_pool(struct fm_engine *engine);

#endif
