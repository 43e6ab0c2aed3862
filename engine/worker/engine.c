// SPDX-License-Identifier: Apache-2.0
/*
 * The step loop: admit, reserve KV, compute, sample, report (see engine.h). Calls the scheduler
 * core, the KV cache, the model and the sampler; knows no sockets. Invariant: a running request has
 * a sequence, a waiting one has none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_messages.h>
#include <fabricmgr_probes.h>

#include "text/tokenizer.h"
#include "worker/engine.h"
#include "worker/kv_cache.h"
#include "worker/logits_log.h"

#define RESERVE_DEADLINE_NS 20000000ull	 /* before somebody is preempted to make room */
#define REATTACH_PAUSE_NS   100000000ull /* between looks for a lost pool */
#define REATTACH_TRIES_MAX  300		 /* then requests are refused, to be retried elsewhere */
#define FULL_TRIES_MAX	    250		 /* steps that a request alone waits for a full pool */

struct running {
	bool is_used;
	enum fm_request_kind kind;
	uint64_t id;
	void *owner;
	char request_id[FM_REQUEST_ID_MAX + 1]; /* for logs and probes */
	uint32_t told_blocks;			/* of its blocks, by note_blocks() */
	uint32_t *tokens;			/* all so far; a copy that survives preemption */
	uint32_t n_prompt, n_tokens, max_tokens;
	bool has_tail;
	struct fm_key tail;
	struct fm_sampling sampling; /* its lists are the two below */
	struct fm_logit_bias *bias;
	uint32_t *ends; /* what finishes it: the client's, and the model's when asked for */
	uint32_t n_top;
	uint32_t *teacher;
	uint32_t n_teacher;
	struct fm_kv_sequence *sequence;
	struct fm_request_counts counts;
	uint64_t started_ns, first_token_ns;
	uint32_t full_tries;
	float *logits;
};

struct fm_engine {
	struct fm_engine_options options;
	fm_engine_listener *listener;
	void *context;
	struct fm_digest ns;
	struct fm_kv_cache *cache;
	struct fm_scheduler *scheduler;
	struct fm_logits_log *logits_log; /* or NULL */
	uint32_t vocab, max_tokens;
	uint64_t computed_tokens, generated_tokens;
	uint32_t reattach_tries;
	struct running requests[FM_SCHEDULER_REQUESTS_MAX];
	struct fm_token_in *batch; /* token_budget */
	float *logits;		   /* max_batch rows of vocab */
	void *scratch;		   /* of the sampler */
	uint32_t *model_ends;	   /* the vocabulary's end tokens */
	uint32_t n_model_ends;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static int find_ends(struct fm_engine *engine)
{
	const struct fm_tokenizer *tokenizer = engine->options.tokenizer;
	uint32_t vocab = tokenizer ? engine->vocab : 0, n = 0;

	for (uint32_t id = 0; id < vocab; id++)
		n += fm_tokenizer_is_end(tokenizer, id);
	engine->model_ends = malloc((n + 1) * sizeof(uint32_t));
	if (!engine->model_ends)
		return fm_fail(FM_ERR_NO_MEMORY, "engine: out of memory");
	for (uint32_t id = 0; id < vocab; id++)
		if (fm_tokenizer_is_end(tokenizer, id))
			engine->model_ends[engine->n_model_ends++] = id;
	return 0;
}

/* With the salt of the tenant that the pool took this process for, unless another one is given. */
static int take_namespace(struct fm_engine *engine)
{
	const char *salt = engine->options.tenant_salt;
	int err = fm_model_namespace(engine->options.model,
				     salt ? salt : fm_pool_salt(fm_kv_cache_pool(engine->cache)),
				     &engine->ns);

	if (!err)
		fm_kv_cache_set_namespace(engine->cache, &engine->ns);
	return err;
}

static void warn_of_a_small_pool(const struct fm_engine *engine)
{
	uint64_t most = fm_kv_cache_tokens_max(engine->cache);

	if (most < engine->max_tokens)
		fm_log(FM_LOG_WARNING,
		       FM2209 "the pool has room for the KV of %llu tokens, the model's context "
			      "is %u: what needs more is refused or ends early; enlarge the pool",
		       (unsigned long long)most, engine->max_tokens);
}

int fm_engine_create(const struct fm_engine_options *options, fm_engine_listener *listener,
		     void *context, struct fm_engine **out)
{
	const struct fm_model_info *info = fm_model_info(options->model);
	struct fm_kv_cache_options kv = {
		.attach = options->attach,
		.block_bytes = fm_model_block_bytes(options->model),
		.tokens_per_block = info->tokens_per_block,
		.max_tokens = info->context_length,
	};
	struct fm_engine *engine = calloc(1, sizeof(*engine));
	int err;

	if (!engine)
		return fm_fail(FM_ERR_NO_MEMORY, "engine: out of memory");
	engine->options = *options;
	engine->listener = listener;
	engine->context = context;
	engine->vocab = info->vocab_size;
	engine->max_tokens = info->context_length;
	err = fm_scheduler_create(options->max_batch, options->token_budget, &engine->scheduler);
	if (err)
		goto fail;
	engine->batch = calloc(options->token_budget, sizeof(*engine->batch));
	engine->logits = malloc((size_t)options->max_batch * engine->vocab * sizeof(float));
	engine->scratch = malloc(fm_sampler_scratch_bytes(engine->vocab));
	if (!engine->batch || !engine->logits || !engine->scratch) {
		err = fm_fail(FM_ERR_NO_MEMORY, "engine: out of memory");
		goto fail;
	}
	err = find_ends(engine);
	if (!err && options->logits_log)
		err = fm_logits_log_open(options->logits_log, &engine->logits_log);
	if (!err)
		err = fm_kv_cache_open(&kv, &engine->cache);
	if (!err)
		err = take_namespace(engine);
	if (err)
		goto fail;
	warn_of_a_small_pool(engine);
	*out = engine;
	return 0;
fail:
	fm_engine_destroy(engine);
	return err;
}

/* Blocks that have come to a request since it was last looked at: read in place, or filled here. */
static void note_blocks(struct running *request, bool is_read)
{
	uint32_t n, first = is_read ? 0 : request->told_blocks;
	const struct fm_key *keys = fm_kv_sequence_keys(request->sequence, &n);
	bool is_debug = first < n && fm_log_is_on(FM_LOG_DEBUG);

	for (uint32_t i = first; i < n; i++) {
		const uint8_t *b = keys[i].bytes;

		FM_PROBE(request_block, request->request_id, b, i, is_read);
		if (is_debug)
			fm_log(FM_LOG_DEBUG,
			       FM2211 "request %s: block %u, %s: "
				      "%02x%02x%02x%02x%02x%02x%02x%02x"
				      "%02x%02x%02x%02x%02x%02x%02x%02x",
			       request->request_id, i, is_read ? "read" : "sealed", b[0], b[1],
			       b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
			       b[13], b[14], b[15]);
	}
	request->told_blocks = n;
}

/* Takes a request out of every table. Its sequence goes back to the pool. */
static void drop(struct fm_engine *engine, uint32_t number)
{
	struct running *request = &engine->requests[number];

	FM_PROBE(request_end, request->request_id, request->counts.computed, request->counts.cached,
		 request->counts.generated);
	fm_log(FM_LOG_DEBUG, FM2212 "request %s: over: %u tokens computed, %u cached, %u generated",
	       request->request_id, request->counts.computed, request->counts.cached,
	       request->counts.generated);
	fm_kv_sequence_close(request->sequence);
	fm_scheduler_remove(engine->scheduler, number);
	free(request->tokens);
	free(request->bias);
	free(request->ends);
	free(request->teacher);
	*request = (struct running){0};
}

void fm_engine_destroy(struct fm_engine *engine)
{
	if (!engine)
		return;
	for (uint32_t i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++)
		if (engine->requests[i].is_used)
			drop(engine, i);
	fm_kv_cache_close(engine->cache);
	fm_scheduler_destroy(engine->scheduler);
	fm_logits_log_close(engine->logits_log);
	free(engine->batch);
	free(engine->logits);
	free(engine->scratch);
	free(engine->model_ends);
	free(engine);
}

static int check_request(const struct fm_engine *engine, const struct fm_request *request)
{
	int err;

	if (!request->n_tokens)
		return fm_fail(FM_ERR_INVALID, "the request has no tokens: give at least one");
	if (!request->n_prompt || request->n_prompt > request->n_tokens)
		return fm_fail(FM_ERR_INVALID, "n_prompt is %u, it must be from 1 to %u (tokens)",
			       request->n_prompt, request->n_tokens);
	if (request->n_tokens >= engine->max_tokens)
		return fm_fail(FM_ERR_LIMIT,
			       "%u tokens: the model's context holds %u and an answer needs at "
			       "least one of them",
			       request->n_tokens, engine->max_tokens);
	if (request->n_tokens >= fm_kv_cache_tokens_max(engine->cache))
		return fm_fail(
			FM_ERR_LIMIT,
			"%u tokens: the whole pool has room for the KV of %llu, and an answer "
			"needs at least one; enlarge the pool",
			request->n_tokens,
			(unsigned long long)fm_kv_cache_tokens_max(engine->cache));
	for (uint32_t i = 0; i < request->n_tokens; i++)
		if (request->tokens[i] >= engine->vocab)
			return fm_fail(FM_ERR_INVALID, "token %u at %u: the vocabulary has %u",
				       request->tokens[i], i, engine->vocab);
	for (uint32_t i = 0; i < request->n_teacher; i++)
		if (request->teacher[i] >= engine->vocab)
			return fm_fail(FM_ERR_INVALID,
				       "teacher token %u at %u: the vocabulary has %u",
				       request->teacher[i], i, engine->vocab);
	if (request->n_top > FM_TOP_LOGPROBS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%u log probabilities a token: at most %d",
			       request->n_top, FM_TOP_LOGPROBS_MAX);
	err = fm_sampling_check(&request->sampling);
	return err ? err : fm_sampling_check_ids(&request->sampling, engine->vocab);
}

/* Copies what a request points to. */
static int copy_lists(const struct fm_engine *engine, const struct fm_request *request,
		      struct running *running)
{
	const struct fm_sampling *given = &request->sampling;
	struct fm_sampling *sampling = &running->sampling;
	uint32_t n_own = request->ends ? engine->n_model_ends : 0;

	running->tokens = malloc(engine->max_tokens * sizeof(uint32_t));
	running->teacher = malloc((request->n_teacher + 1) * sizeof(uint32_t));
	running->bias = malloc((given->n_bias + 1) * sizeof(*running->bias));
	running->ends = malloc((given->n_ends + n_own + 1) * sizeof(uint32_t));
	if (!running->tokens || !running->teacher || !running->bias || !running->ends)
		return fm_fail(FM_ERR_NO_MEMORY, "request: out of memory");
	memcpy(running->tokens, request->tokens, request->n_tokens * sizeof(uint32_t));
	if (request->n_teacher)
		memcpy(running->teacher, request->teacher, request->n_teacher * sizeof(uint32_t));
	if (given->n_bias)
		memcpy(running->bias, given->bias, given->n_bias * sizeof(*running->bias));
	if (given->n_ends)
		memcpy(running->ends, given->ends, given->n_ends * sizeof(uint32_t));
	memcpy(running->ends + given->n_ends, engine->model_ends, n_own * sizeof(uint32_t));
	*sampling = *given;
	sampling->bias = running->bias;
	sampling->ends = running->ends;
	sampling->n_ends += n_own;
	return 0;
}

int fm_engine_submit(struct fm_engine *engine, const struct fm_request *request)
{
	struct running *running;
	int number, err;

	err = check_request(engine, request);
	if (err)
		return err;
	number = fm_scheduler_add(engine->scheduler, request->n_tokens);
	if (number < 0)
		return number;
	running = &engine->requests[number];
	*running = (struct running){
		.is_used = true,
		.kind = request->kind,
		.id = request->id,
		.owner = request->owner,
		.n_prompt = request->n_prompt,
		.n_tokens = request->n_tokens,
		.max_tokens = request->max_tokens,
		.n_top = request->n_top,
		.n_teacher = request->n_teacher,
		.started_ns = now_ns(),
	};
	snprintf(running->request_id, sizeof(running->request_id), "%s",
		 request->request_id ? request->request_id : "-");
	if (request->tail) {
		running->has_tail = true;
		running->tail = *request->tail;
	}
	FM_PROBE(request_begin, running->request_id, running->kind, running->n_tokens);
	fm_log(FM_LOG_DEBUG, FM2210 "request %s: taken as %llu: %s, %u tokens", running->request_id,
	       (unsigned long long)running->id,
	       running->kind == FM_REQUEST_PREFILL ? "prefill" : "generate", running->n_tokens);
	err = copy_lists(engine, request, running);
	if (err)
		drop(engine, (uint32_t)number);
	return err;
}

static int tell(struct fm_engine *engine, const struct running *request,
		struct fm_engine_event *event)
{
	event->id = request->id;
	return engine->listener(engine->context, request->owner, event);
}

static void finish(struct fm_engine *engine, uint32_t number, const char *how)
{
	struct running *request = &engine->requests[number];
	struct fm_engine_event event = {.kind = FM_EVENT_DONE, .finish = how};
	uint64_t now = now_ns();

	if (!request->first_token_ns)
		request->first_token_ns = now;
	request->counts.prefill_ms = (double)(request->first_token_ns - request->started_ns) / 1e6;
	request->counts.decode_ms = (double)(now - request->first_token_ns) / 1e6;
	event.counts = request->counts;
	FM_KILL_POINT("engine: finished, not told");
	tell(engine, request, &event);
	drop(engine, number);
}

static void fail_request(struct fm_engine *engine, uint32_t number, int err, const char *why)
{
	struct fm_engine_event event = {
		.kind = FM_EVENT_ERROR,
		.error = err,
		.message = why,
		.retry = err == FM_ERR_POOL_FULL || err == FM_ERR_DISCONNECTED ||
			 err == FM_ERR_BUSY || err == FM_ERR_DEADLINE,
	};

	tell(engine, &engine->requests[number], &event);
	drop(engine, number);
}

void fm_engine_cancel(struct fm_engine *engine, void *owner, uint64_t id)
{
	for (uint32_t i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++) {
		struct running *request = &engine->requests[i];

		if (request->is_used && request->owner == owner && request->id == id)
			finish(engine, i, "cancelled");
	}
}

void fm_engine_forget(struct fm_engine *engine, void *owner)
{
	for (uint32_t i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++)
		if (engine->requests[i].is_used && engine->requests[i].owner == owner)
			drop(engine, i);
}

void fm_engine_refuse_all(struct fm_engine *engine, const char *why)
{
	for (uint32_t i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++)
		if (engine->requests[i].is_used)
			fail_request(engine, i, FM_ERR_BUSY, why);
}

/* Its KV goes back to the pool; what was sealed of it is found again when it resumes. */
static void preempt(struct fm_engine *engine, uint32_t number, bool for_room)
{
	struct running *request = &engine->requests[number];

	FM_KILL_POINT("engine: preempting");
	fm_kv_sequence_close(request->sequence);
	request->sequence = NULL;
	request->has_tail = false;
	fm_scheduler_preempt(engine->scheduler, number, request->n_tokens, for_room);
}

/* The pool died: every hold is void. Requests wait for it to come back and are computed again. */
static void lose_pool(struct fm_engine *engine)
{
	for (uint32_t i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++)
		if (engine->requests[i].is_used && engine->requests[i].sequence)
			preempt(engine, i, false);
}

static bool have_pool(struct fm_engine *engine)
{
	struct timespec pause = {.tv_nsec = REATTACH_PAUSE_NS};
	struct fm_pool *pool = fm_kv_cache_pool(engine->cache);
	char why[256];
	int err;

	if (pool && fm_pool_is_connected(pool)) {
		engine->reattach_tries = 0;
		return true;
	}
	if (!engine->reattach_tries)
		fm_log(FM_LOG_WARNING,
		       FM2201 "the pool's daemon is gone; waiting for it to come back");
	lose_pool(engine);
	err = fm_kv_cache_reattach(engine->cache);
	if (!err) {
		fm_log(FM_LOG_INFO, FM2202 "attached to the pool again");
		warn_of_a_small_pool(engine);
		engine->reattach_tries = 0;
		return true;
	}
	/* Time does not change what is not permitted. */
	if (++engine->reattach_tries >= REATTACH_TRIES_MAX || err == FM_ERR_PERMISSION) {
		strncpy(why, fm_error_detail(), sizeof(why) - 1);
		why[sizeof(why) - 1] = 0;
		fm_engine_refuse_all(engine, why);
		engine->reattach_tries = 1;
	}
	nanosleep(&pause, NULL);
	return false;
}

static void admit(struct fm_engine *engine)
{
	uint32_t numbers[FM_SCHEDULER_REQUESTS_MAX];
	size_t n = fm_scheduler_admit(engine->scheduler, numbers, FM_SCHEDULER_REQUESTS_MAX);

	for (size_t i = 0; i < n; i++) {
		struct running *request = &engine->requests[numbers[i]];
		int err = fm_kv_sequence_open(engine->cache, request->tokens, request->n_tokens,
					      request->has_tail ? &request->tail : NULL,
					      &request->sequence);

		request->has_tail = false;
		if (err == FM_ERR_DISCONNECTED) {
			fm_scheduler_preempt(engine->scheduler, numbers[i], request->n_tokens,
					     false);
			continue;
		}
		if (err) {
			fail_request(engine, numbers[i], err, fm_error_detail());
			continue;
		}
		note_blocks(request, true);
		/* A request that was preempted finds its own blocks again: they were counted once.
		 */
		if (!request->counts.computed)
			request->counts.cached = fm_kv_sequence_cached(request->sequence);
		if (request->counts.mapped < fm_kv_sequence_mapped(request->sequence))
			request->counts.mapped = fm_kv_sequence_mapped(request->sequence);
		fm_scheduler_set_pending(engine->scheduler, numbers[i],
					 fm_kv_sequence_length(request->sequence) -
						 fm_kv_sequence_computed(request->sequence));
	}
}

/* Room for an item's KV; false when the item cannot be computed in this step. */
static bool reserve(struct fm_engine *engine, const struct fm_schedule_item *item)
{
	struct running *request = &engine->requests[item->request];
	int err;

	if (!request->is_used || !request->sequence)
		return false; /* preempted for an earlier item of this plan */
	while (request->sequence) {
		int victim;

		err = fm_kv_sequence_reserve(request->sequence, item->n_tokens,
					     RESERVE_DEADLINE_NS);
		if (!err) {
			request->full_tries = 0;
			return true;
		}
		if (err != FM_ERR_POOL_FULL && err != FM_ERR_DEADLINE)
			goto failed;
		victim = fm_scheduler_victim(engine->scheduler);
		if (victim < 0) { /* alone: others hold the pool, and may give some of it back */
			if (++request->full_tries < FULL_TRIES_MAX)
				return false;
			goto failed;
		}
		preempt(engine, (uint32_t)victim, true);
	}
	return false; /* it was the youngest itself */
failed:
	if (err != FM_ERR_DISCONNECTED)
		fail_request(engine, item->request, err, fm_error_detail());
	return false;
}

/* Chooses (or is taught) the next token. False when a teacher has no more. */
static bool choose(struct fm_engine *engine, struct running *request, struct fm_sample *sample)
{
	struct fm_history history = {request->tokens, request->n_prompt, request->n_tokens};

	if (request->n_teacher) {
		if (request->counts.generated >= request->n_teacher)
			return false;
		fm_sampler_score(request->logits, engine->vocab,
				 request->teacher[request->counts.generated], request->n_top,
				 sample);
		return true;
	}
	fm_sampler_choose(request->logits, engine->vocab, &request->sampling, &history,
			  request->n_top, engine->scratch, sample);
	return true;
}

static bool is_end(const struct running *request, uint32_t token)
{
	for (uint32_t i = 0; i < request->sampling.n_ends; i++)
		if (request->ends[i] == token)
			return true;
	return false;
}

/* Final event of a prefill: the first token and the tail that has no key. */
static void finish_prefill(struct fm_engine *engine, uint32_t number,
			   const struct fm_sample *sample)
{
	struct running *request = &engine->requests[number];
	struct fm_engine_event event = {
		.kind = FM_EVENT_PREFILLED,
		.sample = sample,
		.logits = request->logits,
		.position = request->n_tokens,
	};
	int offered = fm_kv_sequence_offer_tail(request->sequence, &event.tail);

	FM_KILL_POINT("engine: tail offered, not told");
	event.has_tail = offered == 1; /* a tail that cannot be offered is computed again */
	request->counts.prefill_ms = (double)(now_ns() - request->started_ns) / 1e6;
	event.counts = request->counts;
	tell(engine, request, &event);
	FM_KILL_POINT("engine: prefill told, not dropped");
	drop(engine, number);
}

/* After a step that reached the end of a request's known tokens. */
static void next_token(struct fm_engine *engine, uint32_t number)
{
	struct running *request = &engine->requests[number];
	struct fm_engine_event event = {
		.kind = FM_EVENT_TOKEN,
		.logits = request->logits,
		.position = request->n_tokens,
	};
	struct fm_sample sample;

	if (!request->first_token_ns) {
		request->first_token_ns = now_ns();
		FM_PROBE(first_token, request->request_id, request->n_tokens);
	}
	if (!choose(engine, request, &sample)) {
		finish(engine, number, "length");
		return;
	}
	if (engine->logits_log &&
	    fm_logits_log_add(engine->logits_log, request->id, request->n_tokens, request->logits,
			      engine->vocab, sample.token)) {
		fail_request(engine, number, FM_ERR_IO, fm_error_detail());
		return;
	}
	if (request->kind == FM_REQUEST_PREFILL) {
		finish_prefill(engine, number, &sample);
		return;
	}
	if (!request->n_teacher && is_end(request, sample.token)) {
		finish(engine, number, "stop");
		return;
	}
	request->counts.generated++;
	engine->generated_tokens++;
	request->tokens[request->n_tokens++] = sample.token;
	event.sample = &sample;
	FM_KILL_POINT("engine: token chosen, not told");
	if (tell(engine, request, &event)) {
		drop(engine, number);
		return;
	}
	if (request->counts.generated >= request->max_tokens ||
	    request->n_tokens >= engine->max_tokens ||
	    request->n_tokens >= fm_kv_cache_tokens_max(engine->cache) ||
	    (request->n_teacher && request->counts.generated >= request->n_teacher)) {
		finish(engine, number, "length");
		return;
	}
	if (fm_kv_sequence_append(request->sequence, sample.token))
		fail_request(engine, number, FM_ERR_LIMIT, fm_error_detail());
	else
		fm_scheduler_set_pending(engine->scheduler, number, 1);
}

/* Lays the reserved items out as one batch; returns its length. */
static size_t fill_batch(struct fm_engine *engine, const struct fm_schedule_item *items, size_t n)
{
	size_t n_batch = 0, n_logits = 0;

	for (size_t i = 0; i < n; i++) {
		struct running *request = &engine->requests[items[i].request];
		uint32_t first = fm_kv_sequence_computed(request->sequence);
		const uint32_t *tokens = fm_kv_sequence_tokens(request->sequence);

		request->logits = NULL;
		if (first + items[i].n_tokens == request->n_tokens)
			request->logits = engine->logits + engine->vocab * n_logits++;
		for (uint32_t j = 0; j < items[i].n_tokens; j++)
			engine->batch[n_batch++] = (struct fm_token_in){
				.token = tokens[first + j],
				.position = first + j,
				.blocks = fm_kv_sequence_blocks(request->sequence),
				.logits =
					first + j + 1 == request->n_tokens ? request->logits : NULL,
			};
	}
	return n_batch;
}

/* Books a computed item: seals, counts, and goes on to the next token when the end was reached. */
static void complete(struct fm_engine *engine, const struct fm_schedule_item *item)
{
	struct running *request = &engine->requests[item->request];
	int err = fm_kv_sequence_advance(request->sequence, item->n_tokens);

	note_blocks(request, false);
	engine->computed_tokens += item->n_tokens;
	if (err == FM_ERR_DISCONNECTED)
		err = 0; /* the KV is in memory that we still map: this step's result stands */
	if (err) {
		fail_request(engine, item->request, err, fm_error_detail());
		return;
	}
	if (!request->counts.generated)
		request->counts.computed += item->n_tokens;
	request->counts.sealed = fm_kv_sequence_sealed(request->sequence);
	fm_scheduler_set_pending(engine->scheduler, item->request,
				 request->n_tokens - fm_kv_sequence_computed(request->sequence));
	if (request->logits)
		next_token(engine, item->request);
}

bool fm_engine_step(struct fm_engine *engine)
{
	struct fm_schedule_item items[FM_SCHEDULER_REQUESTS_MAX];
	struct fm_scheduler_counts counts;
	size_t n, n_reserved = 0;
	int err;

	fm_scheduler_counts(engine->scheduler, &counts);
	if (!counts.running && !counts.waiting)
		return false;
	if (!have_pool(engine))
		return true;
	admit(engine);
	FM_KILL_POINT("engine: admitted");
	n = fm_scheduler_plan(engine->scheduler, items, FM_SCHEDULER_REQUESTS_MAX);
	for (size_t i = 0; i < n; i++)
		if (reserve(engine, &items[i]))
			items[n_reserved++] = items[i];
	/* Reserving for one item may have preempted another that was reserved before it. */
	n = n_reserved;
	n_reserved = 0;
	for (size_t i = 0; i < n; i++)
		if (engine->requests[items[i].request].sequence)
			items[n_reserved++] = items[i];
	n = fill_batch(engine, items, n_reserved);
	FM_KILL_POINT("engine: reserved, not computed");
	if (!n)
		return true;
	err = fm_model_forward(engine->options.model, engine->batch, n);
	FM_KILL_POINT("engine: computed, not sealed");
	for (size_t i = 0; i < n_reserved; i++) {
		if (err)
			fail_request(engine, items[i].request, err, fm_error_detail());
		else
			complete(engine, &items[i]);
	}
	return true;
}

void fm_engine_stats(const struct fm_engine *engine, struct fm_engine_stats *out)
{
	fm_scheduler_counts(engine->scheduler, &out->schedule);
	out->computed_tokens = engine->computed_tokens;
	out->generated_tokens = engine->generated_tokens;
}

const struct fm_digest *fm_engine_namespace(const struct fm_engine *engine)
{
	return &engine->ns;
}

struct fm_pool *fm_engine_pool(struct fm_engine *engine)
{
	return fm_kv_cache_pool(engine->cache);
}
