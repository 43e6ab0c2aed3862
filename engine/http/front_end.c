// SPDX-License-Identifier: Apache-2.0
/*
 * The front end's thread: router core, worker links, pool look-ups and answers, in one poll(2)
 * loop. Calls the core for every decision and holds what the core does not know: tokens, text,
 * sockets. Invariant: choices[r] is set exactly while the core knows request r.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>
#include <fabricmgr_kill_point.h>

#include "http/answer.h"
#include "http/front_end.h"
#include "http/server.h"
#include "http/worker_link.h"
#include "model/gguf.h"
#include "worker/address.h"

#define POOL_ATTACH_NS	  (200ull * 1000000) /* a hung daemon delays this thread no longer */
#define POOL_RETRY_MIN_NS (100ull * 1000000)
#define POOL_RETRY_MAX_NS (5000ull * 1000000)
#define SECOND_NS	  1000000000ull

struct front_end {
	const struct fm_front_end_options *options;
	struct fm_answer_context answer;
	struct fm_chat_template *chat;
	char model_name[128];
	uint32_t model_context;
	struct fm_router_core *core;
	struct fm_choice **choices;  /* by the core's request number */
	struct fm_exchange **active; /* max_requests slots */
	uint32_t n_active;
	struct fm_worker_link *links;
	size_t n_links;
	struct pollfd *polls;
	struct fm_metrics metrics;
	bool was_ready;
	uint64_t drain_due; /* when what still runs is ended; 0: nobody asked for an end */

	struct fm_pool *pool;
	uint64_t pool_due, pool_backoff;
	bool pool_complained;

	int wake_fd;
	pthread_mutex_t lock; /* guards the rest, shared with the HTTP thread */
	struct fm_exchange *queue, **queue_end;
	uint32_t in_flight; /* choices queued or active */
	bool is_stopping;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

void fm_front_end_options_init(struct fm_front_end_options *options)
{
	*options = (struct fm_front_end_options){
		.listen = "127.0.0.1:8080",
		.bypass_tokens = 256,
		.bypass_ratio = 0.3,
		.deadline_s = 120,
		.max_requests = 256,
		.stop_fd = -1,
		.drain_s = 30,
	};
}

int fm_front_end_options_check(const struct fm_front_end_options *options)
{
	struct sockaddr_storage address;
	socklen_t len;
	int err = fm_http_listen_check(options->listen, options->tls_by_proxy);

	for (size_t i = 0; !err && i < options->n_workers; i++)
		err = fm_worker_address_parse("--worker", options->workers[i], &address, &len);
	return err;
}

/* ---- the HTTP thread's side --------------------------------------------------------------- */

static void wake(struct front_end *front)
{
	uint64_t one = 1;

	/* A full counter means that it is awake already. */
	if (write(front->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		fm_log(FM_LOG_ERROR, FM2101 "front end: eventfd: %s", strerror(errno));
}

static int submit(void *arg, struct fm_exchange *exchange)
{
	struct front_end *front = arg;
	int err = 0;

	pthread_mutex_lock(&front->lock);
	if (front->is_stopping) {
		err = FM_ERR_CANCELLED;
	} else if (front->in_flight + exchange->n_choices > front->options->max_requests) {
		err = FM_ERR_LIMIT;
	} else {
		front->in_flight += exchange->n_choices;
		exchange->arrival_ns = now_ns();
		exchange->next = NULL;
		*front->queue_end = exchange;
		front->queue_end = &exchange->next;
	}
	pthread_mutex_unlock(&front->lock);
	if (!err)
		wake(front);
	return err;
}

static void left(void *arg)
{
	wake(arg);
}

/* ---- the pool: only asked, never needed --------------------------------------------------- */

static void check_pool(struct front_end *front, uint64_t now)
{
	struct fm_attach_options attach = {
		.size = sizeof(attach),
		.flags = FM_ATTACH_READ_ONLY,
		.socket = front->options->pool_socket,
		.fd = -1,
		.leases = 64,
		.name = "router",
		.deadline_ns = POOL_ATTACH_NS,
	};

	if (!front->options->pool_socket)
		return;
	if (front->pool && !fm_pool_is_connected(front->pool)) {
		fm_pool_detach(front->pool);
		front->pool = NULL;
		front->pool_due = now;
		front->pool_backoff = POOL_RETRY_MIN_NS;
	}
	if (front->pool || now < front->pool_due)
		return;
	if (!fm_pool_attach(&attach, &front->pool)) {
		front->pool_complained = false;
		fm_log(FM_LOG_INFO, FM2102 "router: attached to the pool at %s", attach.socket);
		return;
	}
	front->pool = NULL;
	if (!front->pool_complained)
		fm_log(FM_LOG_WARNING,
		       FM2103 "router: no pool yet, every prompt counts as uncached: %s",
		       fm_error_detail());
	front->pool_complained = true;
	if (!front->pool_backoff)
		front->pool_backoff = POOL_RETRY_MIN_NS;
	front->pool_due = now_ns() + front->pool_backoff;
	front->pool_backoff = front->pool_backoff * 2 < POOL_RETRY_MAX_NS ? front->pool_backoff * 2
									  : POOL_RETRY_MAX_NS;
}

static const struct fm_hello *any_hello(const struct front_end *front)
{
	for (size_t i = 0; i < front->n_links; i++)
		if (front->links[i].state == FM_LINK_UP)
			return &front->links[i].hello;
	return NULL;
}

static uint32_t count_cached(struct front_end *front, const struct fm_choice *choice)
{
	const struct fm_hello *hello = any_hello(front);
	uint32_t n = hello ? choice->n_prompt / hello->tokens_per_block : 0;
	struct fm_key *keys;
	int64_t found = 0;

	if (!front->pool || !n)
		return 0;
	keys = malloc(n * sizeof(*keys));
	if (keys && !fm_chain_keys(&hello->ns, choice->tokens, n, hello->tokens_per_block, NULL, 0,
				   keys, NULL))
		found = fm_pool_match(front->pool, keys, n);
	free(keys);
	return found > 0 ? (uint32_t)found * hello->tokens_per_block : 0;
}

/* ---- exchanges ---------------------------------------------------------------------------- */

static const char *worker_address(void *arg, int worker)
{
	struct front_end *front = arg;

	return worker < 0 ? NULL : front->links[worker].address;
}

static void drop_choice(struct front_end *front, struct fm_choice *choice, bool cancel)
{
	if (choice->request < 0)
		return;
	fm_router_core_info(front->core, (uint32_t)choice->request, &choice->route);
	fm_router_core_remove(front->core, (uint32_t)choice->request, cancel);
	front->choices[choice->request] = NULL;
	choice->request = -1;
}

/* Its end has been written, one way or another. */
static void retire(struct front_end *front, struct fm_exchange *exchange)
{
	uint64_t prompt = 0, cached = 0, generated = 0;

	for (uint32_t i = 0; i < exchange->n_choices; i++) {
		struct fm_choice *choice = &exchange->choices[i];

		drop_choice(front, choice, true);
		prompt += choice->n_prompt;
		cached += fm_choice_cached(choice);
		generated += choice->n_generated;
	}
	fm_log(FM_LOG_DEBUG,
	       FM2114
	       "request %s: over after %.1f ms: %llu prompt tokens, %llu cached, %llu generated",
	       exchange->request_id, (double)(now_ns() - exchange->arrival_ns) / 1e6,
	       (unsigned long long)prompt, (unsigned long long)cached,
	       (unsigned long long)generated);
	fm_metrics_count_tokens(&front->metrics, prompt, cached, generated);
	for (uint32_t i = 0; i < front->n_active; i++)
		if (front->active[i] == exchange) {
			front->active[i] = front->active[--front->n_active];
			break;
		}
	pthread_mutex_lock(&front->lock);
	front->in_flight -= exchange->n_choices;
	pthread_mutex_unlock(&front->lock);
	fm_exchange_unref(exchange);
}

static void fail(struct front_end *front, struct fm_exchange *exchange, int status,
		 const char *code, const char *message)
{
	struct fm_openai_error error;

	fm_openai_refuse(&error, status, NULL, code, "%s", message);
	fm_exchange_fail(exchange, &error);
	retire(front, exchange);
}

/* The client left, reads too slowly, or we cannot format its answer. */
static void give_up(struct front_end *front, struct fm_exchange *exchange, int err)
{
	if (err == FM_ERR_LIMIT) {
		fm_log(FM_LOG_INFO, FM2104 "router: dropped request %s: %s", exchange->request_id,
		       fm_error_detail());
		fm_exchange_abort(exchange);
		retire(front, exchange);
	} else if (err) {
		fail(front, exchange, 500, NULL, fm_error_detail());
	} else {
		fm_exchange_abort(exchange);
		retire(front, exchange);
	}
}

/* Ends a choice, and with the last one the exchange. The core must not be asked for it again. */
static void finish_choice(struct front_end *front, struct fm_choice *choice, const char *finish,
			  bool cancel)
{
	struct fm_exchange *exchange = choice->exchange;
	int err;

	drop_choice(front, choice, cancel);
	FM_KILL_POINT("front end: choice finished, not told");
	err = fm_choice_finish(choice, &front->answer, finish);
	if (!err && --exchange->n_open == 0) {
		err = fm_exchange_answer(exchange, &front->answer, worker_address, front);
		if (!err) {
			retire(front, exchange);
			FM_KILL_POINT("front end: answered");
			return;
		}
	}
	if (err)
		give_up(front, exchange, err);
}

static void take_submissions(struct front_end *front)
{
	struct fm_exchange *queue, *exchange;
	uint64_t now = now_ns();

	pthread_mutex_lock(&front->lock);
	queue = front->queue;
	front->queue = NULL;
	front->queue_end = &front->queue;
	pthread_mutex_unlock(&front->lock);
	while ((exchange = queue)) {
		queue = exchange->next;
		front->active[front->n_active++] = exchange; /* with the queue's reference */
		exchange->n_open = exchange->n_choices;
		fm_log(FM_LOG_DEBUG, FM2112 "request %s: taken, %u choices", exchange->request_id,
		       exchange->n_choices);
		for (uint32_t i = 0; i < exchange->n_choices; i++) {
			struct fm_choice *choice = &exchange->choices[i];

			choice->request = fm_router_core_add(front->core, choice->n_prompt,
							     count_cached(front, choice), now);
			if (choice->request < 0) { /* submit() counts: cannot be */
				choice->request = -1;
				fail(front, exchange, 503, NULL, fm_error_detail());
				break;
			}
			front->choices[choice->request] = choice;
			FM_KILL_POINT("front end: request taken");
		}
	}
}

/* ---- to the workers ----------------------------------------------------------------------- */

static void worker_down(struct front_end *front, size_t number, uint64_t pause_ns)
{
	struct fm_worker_link *link = &front->links[number];

	if (link->state == FM_LINK_UP)
		fm_router_core_worker_down(front->core, (uint32_t)number);
	fm_worker_link_close(link, now_ns(), pause_ns, "%s", fm_error_detail());
}

static void send_cancel(struct front_end *front, const struct fm_router_action *action)
{
	struct fm_worker_link *link = &front->links[action->worker];

	if (link->state != FM_LINK_UP)
		return;
	FM_KILL_POINT("front end: before a message");
	if (fm_worker_link_cancel(link, action->wire_id))
		worker_down(front, action->worker, FM_WORKER_RETRY_NS);
	FM_KILL_POINT("front end: message sent");
}

static json_t *ids_json(const uint32_t *ids, uint32_t n)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(array, json_integer(ids[i]));
	return array;
}

/* What is off is left out: lines stay short, and an option costs those who use it. */
static json_t *sampling_json(const struct fm_sampling *sampling)
{
	json_t *out =
		json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "temperature",
			  (double)sampling->temperature, "top_p", (double)sampling->top_p, "min_p",
			  (double)sampling->min_p, "top_k", (json_int_t)sampling->top_k, "seed",
			  (json_int_t)sampling->seed, "choice", (json_int_t)sampling->choice);

	if (sampling->repetition_penalty != 1)
		json_object_set_new(out, "repetition_penalty",
				    json_real((double)sampling->repetition_penalty));
	if (sampling->frequency_penalty != 0)
		json_object_set_new(out, "frequency_penalty",
				    json_real((double)sampling->frequency_penalty));
	if (sampling->presence_penalty != 0)
		json_object_set_new(out, "presence_penalty",
				    json_real((double)sampling->presence_penalty));
	if (sampling->min_tokens)
		json_object_set_new(out, "min_tokens", json_integer(sampling->min_tokens));
	if (sampling->n_ends)
		json_object_set_new(out, "stop_token_ids",
				    ids_json(sampling->ends, sampling->n_ends));
	if (sampling->n_bias) {
		json_t *bias = json_array();

		for (uint32_t i = 0; i < sampling->n_bias; i++)
			json_array_append_new(bias,
					      json_pack("[I, f]", (json_int_t)sampling->bias[i].id,
							(double)sampling->bias[i].bias));
		json_object_set_new(out, "logit_bias", bias);
	}
	return out;
}

static json_t *request_message(const struct fm_choice *choice,
			       const struct fm_router_action *action)
{
	uint32_t n = choice->n_prompt + choice->n_generated -
		     (choice->n_generated > 1 && FM_FAULT("resume-short"));
	json_t *message = json_pack(
		"{s:s, s:I, s:s, s:o, s:I, s:b, s:i, s:o}", "op",
		action->kind == FM_ROUTER_PREFILL ? "prefill" : "generate", "id",
		(json_int_t)action->wire_id, "request", choice->exchange->request_id, "tokens",
		ids_json(choice->tokens, n), "n_prompt", (json_int_t)choice->n_prompt, "ends",
		!choice->exchange->request.ignore_end, "top_logprobs",
		(int)choice->exchange->request.n_top, "sampling", sampling_json(&choice->sampling));

	if (!message || action->kind == FM_ROUTER_PREFILL)
		return message;
	json_object_set_new(message, "max_tokens",
			    json_integer(choice->max_tokens - choice->n_generated));
	if (action->with_tail && choice->tail[0])
		json_object_set_new(message, "tail", json_string(choice->tail));
	return message;
}

/* A worker that cannot be written to is lost; a message that finds no memory loses its request. */
static void send_request(struct front_end *front, struct fm_choice *choice,
			 const struct fm_router_action *action)
{
	struct fm_worker_link *link = &front->links[action->worker];
	int err;

	if (link->state != FM_LINK_UP)
		return;
	FM_KILL_POINT("front end: before a message");
	fm_log(FM_LOG_DEBUG, FM2113 "request %s: choice %u to worker %s as %llu: %s",
	       choice->exchange->request_id, choice->index, link->address,
	       (unsigned long long)action->wire_id,
	       action->kind == FM_ROUTER_PREFILL ? "prefill" : "generate");
	err = fm_worker_link_send(link, request_message(choice, action));
	if (err == FM_ERR_NO_MEMORY)
		give_up(front, choice->exchange, err);
	else if (err)
		worker_down(front, action->worker, FM_WORKER_RETRY_NS);
	FM_KILL_POINT("front end: message sent");
}

static const char *why_expired(const struct front_end *front)
{
	return fm_router_core_is_ready(front->core)
		       ? "no worker made progress on this request within the deadline (--deadline "
			 "of the router)"
		       : "no worker that can decode has been connected within the deadline "
			 "(--deadline of the router); GET /ready names each worker and what became "
			 "of it";
}

/* Does what the core decided, until it has nothing more to say. */
static void drive(struct front_end *front)
{
	struct fm_router_action action;

	while (fm_router_core_next(front->core, now_ns(), &action)) {
		struct fm_choice *choice =
			action.kind == FM_ROUTER_CANCEL ? NULL : front->choices[action.request];

		switch (action.kind) {
		case FM_ROUTER_CANCEL:
			send_cancel(front, &action);
			break;
		case FM_ROUTER_EXPIRED:
			front->choices[action.request] = NULL;
			choice->request = -1;
			fail(front, choice->exchange, 503, "deadline", why_expired(front));
			break;
		case FM_ROUTER_PREFILL:
		case FM_ROUTER_GENERATE:
			/* A worker that died after the last token, before it said so. */
			if (choice->n_generated == choice->max_tokens)
				finish_choice(front, choice, "length", false);
			else
				send_request(front, choice, &action);
			break;
		}
	}
}

/* ---- from the workers --------------------------------------------------------------------- */

static int64_t integer(json_t *message, const char *name, int64_t absent)
{
	json_t *value = json_object_get(message, name);

	return json_is_integer(value) ? json_integer_value(value) : absent;
}

static int parse_token(const struct front_end *front, json_t *message, struct fm_token_event *out)
{
	uint32_t vocab = fm_tokenizer_vocab_size(front->answer.tokenizer);
	int64_t token = integer(message, "token", -1);
	json_t *top = json_object_get(message, "top"), *pair;
	size_t i;

	if (token < 0 || token >= vocab)
		return fm_fail(FM_ERR_INVALID, "sent token %lld, which is not in the vocabulary",
			       (long long)token);
	*out = (struct fm_token_event){
		.token = (uint32_t)token,
		.logprob = json_number_value(json_object_get(message, "logprob")),
	};
	json_array_foreach(top, i, pair)
	{
		int64_t id = json_integer_value(json_array_get(pair, 0));

		if (i == FM_OPENAI_LOGPROBS_MAX || id < 0 || id >= vocab)
			break;
		out->top[out->n_top].token = (uint32_t)id;
		out->top[out->n_top++].logprob = json_number_value(json_array_get(pair, 1));
	}
	return 0;
}

static void observe_first(struct front_end *front, const struct fm_choice *choice, uint64_t now)
{
	if (!choice->n_generated)
		fm_metrics_observe_ttft(&front->metrics,
					(double)(now - choice->exchange->arrival_ns) / 1e9);
}

/* As the worker that generates decides it: such a token is not part of the answer. */
static bool is_end(const struct front_end *front, const struct fm_choice *choice, uint32_t token)
{
	for (uint32_t i = 0; i < choice->sampling.n_ends; i++)
		if (choice->sampling.ends[i] == token)
			return true;
	return !choice->exchange->request.ignore_end &&
	       fm_tokenizer_is_end(front->answer.tokenizer, token);
}

/* What a prefill says besides its token. */
static void take_prefill(struct front_end *front, struct fm_choice *choice, json_t *message,
			 uint64_t now)
{
	const char *tail = json_string_value(json_object_get(message, "tail"));

	choice->report.computed_prefill = integer(message, "computed", -1);
	choice->report.cached = integer(message, "cached", -1);
	snprintf(choice->tail, sizeof(choice->tail), "%s", tail ? tail : "");
	FM_KILL_POINT("front end: prefilled");
	fm_router_core_prefilled(front->core, (uint32_t)choice->request, tail != NULL, now);
}

/* The one token of a prefill, or one of those that a worker generates. */
static int on_token(struct front_end *front, struct fm_choice *choice, json_t *message,
		    bool is_prefill)
{
	struct fm_exchange *exchange = choice->exchange;
	struct fm_token_event event;
	uint64_t now = now_ns();
	int err = parse_token(front, message, &event);

	if (err)
		return err;
	if (choice->n_generated == choice->max_tokens)
		return fm_fail(FM_ERR_INVALID, "sent more tokens than it was asked for");
	observe_first(front, choice, now);
	FM_KILL_POINT("front end: token received");
	if (is_prefill)
		take_prefill(front, choice, message, now);
	else
		fm_router_core_token(front->core, (uint32_t)choice->request, now);
	if (is_prefill && is_end(front, choice, event.token)) {
		if (!choice->n_generated)
			choice->first_ns = choice->last_ns = now;
		finish_choice(front, choice, "stop", false);
		return 0;
	}
	err = fm_choice_token(choice, &front->answer, &event, now);
	if (err < 0)
		give_up(front, exchange, err);
	else if (err > 0 && (is_prefill || !strcmp(choice->finish, "stop")))
		/* A prefill is over with its token (its tail expires by itself); who generates goes
		 * on after a stop string, and after the last token its own report follows. */
		finish_choice(front, choice, choice->finish, !is_prefill);
	return 0;
}

static void on_done(struct front_end *front, struct fm_choice *choice, json_t *message)
{
	const char *finish = json_string_value(json_object_get(message, "finish"));

	if (!finish || (strcmp(finish, "stop") && strcmp(finish, "length"))) {
		fm_router_core_retry(front->core, (uint32_t)choice->request, now_ns());
		return;
	}
	choice->report.computed_decode = integer(message, "computed", -1);
	choice->report.mapped = integer(message, "mapped", -1);
	if (choice->report.cached < 0)
		choice->report.cached = integer(message, "cached", -1);
	if (!choice->n_generated)
		choice->first_ns = choice->last_ns = now_ns();
	finish_choice(front, choice, strcmp(finish, "stop") ? "length" : "stop", false);
}

static void on_error(struct front_end *front, size_t worker, struct fm_choice *choice,
		     json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "message"));
	const char *code = json_string_value(json_object_get(message, "code"));
	bool is_clients =
		code && (!strcmp(code, "FM_ERR_INVALID") || !strcmp(code, "FM_ERR_LIMIT"));

	text = text ? text : "the worker failed";
	if (json_is_true(json_object_get(message, "retry"))) {
		fm_log(FM_LOG_INFO, FM2105 "worker %s: gave request %s back: %s",
		       front->links[worker].address, choice->exchange->request_id, text);
		fm_router_core_retry(front->core, (uint32_t)choice->request, now_ns());
		return;
	}
	fm_log(FM_LOG_WARNING, FM2106 "worker %s: refused request %s: %s",
	       front->links[worker].address, choice->exchange->request_id, text);
	drop_choice(front, choice, false);
	fail(front, choice->exchange, is_clients ? 400 : 500, NULL, text);
}

static int on_hello(struct front_end *front, size_t worker, json_t *message)
{
	struct fm_worker_link *link = &front->links[worker];
	const struct fm_hello *other = any_hello(front);
	uint32_t vocab = fm_tokenizer_vocab_size(front->answer.tokenizer);
	int err = fm_worker_link_take_hello(link, message);

	if (err)
		return err;
	if (link->hello.vocab < vocab)
		return fm_fail(FM_ERR_VERSION,
			       "refused: its vocabulary has %u tokens, this model's has %u",
			       link->hello.vocab, vocab);
	if (other && (memcmp(&other->ns, &link->hello.ns, sizeof(other->ns)) ||
		      other->tokens_per_block != link->hello.tokens_per_block))
		return fm_fail(
			FM_ERR_VERSION,
			"refused: its namespace is not that of the other workers (it has model "
			"%s with %s): give all the same model and precision",
			link->hello.model, link->hello.numerics);
	FM_KILL_POINT("front end: worker's hello");
	link->state = FM_LINK_UP;
	snprintf(link->reason, sizeof(link->reason), "up");
	fm_log(FM_LOG_INFO, FM2107 "worker %s: up, %s, pid %u", link->address,
	       link->hello.role == FM_ROLE_BOTH	     ? "prefill and decode"
	       : link->hello.role == FM_ROLE_PREFILL ? "prefill"
						     : "decode",
	       link->hello.pid);
	fm_router_core_worker_up(front->core, (uint32_t)worker, link->hello.role);
	return 0;
}

static void on_stats(struct front_end *front, size_t worker, json_t *message)
{
	struct fm_worker_link *link = &front->links[worker];

	link->running = (uint32_t)integer(message, "running", 0);
	link->waiting = (uint32_t)integer(message, "waiting", 0);
	fm_router_core_worker_stats(front->core, (uint32_t)worker, link->running, link->waiting,
				    (uint64_t)integer(message, "waiting_tokens", 0));
}

/* Negative: the connection is not to be trusted any more. */
static int on_message(struct front_end *front, size_t worker, json_t *message)
{
	const char *event = json_string_value(json_object_get(message, "event"));
	int request;

	if (front->links[worker].state == FM_LINK_HELLO)
		return on_hello(front, worker, message);
	if (!event)
		return fm_fail(FM_ERR_INVALID, "sent a message without an event");
	if (!strcmp(event, "stats")) {
		on_stats(front, worker, message);
		return 0;
	}
	request = fm_router_core_find(front->core, (uint32_t)worker,
				      (uint64_t)integer(message, "id", 0));
	if (request < 0)
		return 0; /* to an assignment that is over */
	if (!strcmp(event, "prefilled"))
		return on_token(front, front->choices[request], message, true);
	if (!strcmp(event, "token"))
		return on_token(front, front->choices[request], message, false);
	if (!strcmp(event, "done"))
		on_done(front, front->choices[request], message);
	else if (!strcmp(event, "error"))
		on_error(front, worker, front->choices[request], message);
	return 0; /* an event of a later version says nothing to us */
}

static void serve_link(struct front_end *front, size_t number, short events)
{
	struct fm_worker_link *link = &front->links[number];
	int io = fm_worker_link_io(link, events, now_ns()), err = 1;
	bool was_up = link->state == FM_LINK_UP;
	json_t *message;

	/* What came before a hang-up still counts. */
	while (link->state >= FM_LINK_HELLO && (err = fm_worker_link_next(link, &message)) > 0) {
		err = on_message(front, number, message);
		json_decref(message);
		if (err)
			break;
	}
	if (link->state == FM_LINK_DOWN)
		return;
	if (err < 0 || (io < 0 && !was_up && link->state != FM_LINK_UP))
		worker_down(front, number,
			    err < 0 ? FM_WORKER_REFUSED_RETRY_NS : FM_WORKER_RETRY_NS);
	else if (io < 0) {
		fm_fail(io, "%s",
			io == FM_ERR_LIMIT
				? fm_error_detail()
				: "hung up; its requests go on with others, or wait for one");
		worker_down(front, number, FM_WORKER_RETRY_NS);
	}
}

/* ---- the loop ----------------------------------------------------------------------------- */

/* At the start, workers that are there get the time to say so: the first prompt shall find them. */
static bool is_ready_now(const struct front_end *front)
{
	if (front->drain_due)
		return false;
	for (size_t i = 0; i < front->n_links && !front->was_ready; i++)
		if (front->links[i].state == FM_LINK_CONNECTING ||
		    front->links[i].state == FM_LINK_HELLO)
			return false;
	return fm_router_core_is_ready(front->core);
}

static void publish(struct front_end *front)
{
	struct fm_metrics *metrics = &front->metrics;
	bool is_ready = is_ready_now(front);

	pthread_mutex_lock(&metrics->lock);
	metrics->is_ready = is_ready;
	metrics->is_stopping = front->drain_due != 0;
	metrics->pool_attached = front->pool != NULL;
	metrics->n_workers = front->n_links;
	fm_router_core_counts(front->core, &metrics->counts);
	for (size_t i = 0; i < front->n_links; i++) {
		const struct fm_worker_link *link = &front->links[i];
		struct fm_worker_state *state = &metrics->workers[i];

		memcpy(state->address, link->address, sizeof(state->address));
		memcpy(state->state, link->reason, sizeof(state->state));
		state->is_up = link->state == FM_LINK_UP;
		state->role = link->hello.role;
		state->pid = link->hello.pid;
		state->running = link->running;
		state->waiting = link->waiting;
	}
	if (any_hello(front)) {
		metrics->context = front->model_context;
		for (size_t i = 0; i < front->n_links; i++)
			if (front->links[i].state == FM_LINK_UP &&
			    (front->links[i].hello.context < metrics->context || !metrics->context))
				metrics->context = front->links[i].hello.context;
	}
	pthread_mutex_unlock(&metrics->lock);
	if (is_ready && !front->was_ready) {
		printf("ready\n");
		fflush(stdout);
		front->was_ready = true;
	}
}

static uint64_t next_wake(const struct front_end *front, uint64_t now)
{
	uint64_t due = fm_router_core_wake(front->core, now);

	if (front->drain_due && front->drain_due < due)
		due = front->drain_due;
	for (size_t i = 0; i < front->n_links; i++)
		if (front->links[i].short_tries && now + FM_WORKER_SHORT_NS < due)
			due = now + FM_WORKER_SHORT_NS;
		else if (front->links[i].state != FM_LINK_UP && front->links[i].due < due)
			due = front->links[i].due;
	if (front->options->pool_socket) {
		uint64_t pool = front->pool ? now + SECOND_NS : front->pool_due;

		due = pool < due ? pool : due;
	}
	return due;
}

static void check_links(struct front_end *front, uint64_t now)
{
	for (size_t i = 0; i < front->n_links; i++) {
		struct fm_worker_link *link = &front->links[i];

		fm_worker_link_connect(link, now);
		if ((link->state == FM_LINK_CONNECTING || link->state == FM_LINK_HELLO) &&
		    link->due <= now)
			fm_worker_link_close(link, now, FM_WORKER_RETRY_NS,
					     "did not say hello within %u s",
					     (unsigned int)(FM_WORKER_HELLO_NS / SECOND_NS));
	}
}

/* A suspended connection is nobody's business in MHD: we notice here that a client left. */
static void check_clients(struct front_end *front, const struct pollfd *polls, uint32_t n)
{
	struct fm_exchange *gone[64]; /* more of them have their turn in the next round */
	uint32_t n_gone = 0, n_events = 0;

	for (uint32_t p = 0; p < n; p++)
		n_events += polls[p].revents != 0;
	for (uint32_t i = 0; i < front->n_active && n_gone < 64; i++) {
		struct fm_exchange *exchange = front->active[i];
		bool is_gone;

		pthread_mutex_lock(&exchange->lock);
		is_gone = !exchange->connection;
		for (uint32_t p = 0; n_events && p < n && !is_gone; p++)
			is_gone = polls[p].fd == exchange->fd && polls[p].revents;
		pthread_mutex_unlock(&exchange->lock);
		if (is_gone)
			gone[n_gone++] = exchange;
	}
	for (uint32_t i = 0; i < n_gone; i++)
		give_up(front, gone[i], 0);
}

static bool all_gone(const struct front_end *front)
{
	for (size_t i = 0; i < front->n_links; i++)
		if (!front->links[i].is_fixed || front->links[i].state != FM_LINK_DOWN)
			return false;
	return true;
}

static void refuse_submissions(struct front_end *front)
{
	pthread_mutex_lock(&front->lock);
	front->is_stopping = true; /* from here on, submit() refuses */
	pthread_mutex_unlock(&front->lock);
}

/* stop_fd is readable. False: this is the end; true: what runs may go on for a while. */
static bool begin_drain(struct front_end *front, uint64_t now)
{
	uint64_t wishes = 0;

	if (read(front->options->stop_fd, &wishes, sizeof(wishes)) != sizeof(wishes))
		return true; /* nothing there after all */
	if (front->drain_due || wishes > 1 || !front->options->drain_s)
		return false;
	refuse_submissions(front);
	front->drain_due = now + front->options->drain_s * SECOND_NS;
	take_submissions(front);
	if (front->n_active)
		fm_log(FM_LOG_INFO,
		       FM2108 "stopping: %u requests may go on for %u s; a second signal ends them",
		       front->n_active, front->options->drain_s);
	return true;
}

static int loop(struct front_end *front)
{
	struct pollfd *polls = front->polls;

	for (;;) {
		uint64_t now = now_ns(), due, counter;
		uint32_t n = 2 + (uint32_t)front->n_links, n_clients = front->n_active;

		check_pool(front, now);
		check_links(front, now);
		take_submissions(front);
		drive(front);
		publish(front);
		if (all_gone(front))
			return fm_fail(FM_ERR_DISCONNECTED, "the worker is gone");
		if (front->drain_due && (!front->n_active || now >= front->drain_due))
			return 0;
		n_clients = front->n_active;
		polls[0] = (struct pollfd){.fd = front->options->stop_fd, .events = POLLIN};
		polls[1] = (struct pollfd){.fd = front->wake_fd, .events = POLLIN};
		for (size_t i = 0; i < front->n_links; i++)
			polls[2 + i] = (struct pollfd){
				.fd = front->links[i].fd,
				.events = fm_worker_link_events(&front->links[i]),
			};
		for (uint32_t i = 0; i < n_clients; i++) {
			pthread_mutex_lock(&front->active[i]->lock);
			polls[n + i] =
				(struct pollfd){.fd = front->active[i]->fd, .events = POLLRDHUP};
			pthread_mutex_unlock(&front->active[i]->lock);
		}
		now = now_ns();
		due = next_wake(front, now);
		due = due == UINT64_MAX ? 60000 : due <= now ? 0 : (due - now) / 1000000 + 1;
		if (poll(polls, n + n_clients, due < 60000 ? (int)due : 60000) < 0 &&
		    errno != EINTR)
			return fm_fail(FM_ERR_IO, "poll: %s", strerror(errno));
		if (polls[0].revents && !begin_drain(front, now_ns()))
			return 0;
		if (polls[1].revents && read(front->wake_fd, &counter, sizeof(counter)) < 0 &&
		    errno != EAGAIN)
			return fm_fail(FM_ERR_IO, "eventfd: %s", strerror(errno));
		for (size_t i = 0; i < front->n_links; i++)
			if ((polls[2 + i].revents || front->links[i].short_tries) &&
			    front->links[i].fd == polls[2 + i].fd)
				serve_link(front, i, polls[2 + i].revents);
		check_clients(front, polls + n, n_clients);
	}
}

static void end_all(struct front_end *front)
{
	refuse_submissions(front);
	take_submissions(front);
	while (front->n_active)
		fail(front, front->active[0], 503, "shutting_down", "the server is shutting down");
	drive(front); /* the cancels */
}

/* ---- start and stop ----------------------------------------------------------------------- */

static int open_model(struct front_end *front)
{
	const struct fm_front_end_options *options = front->options;
	const char *base = strrchr(options->model_path, '/');
	struct fm_tokenizer *tokenizer;
	struct gguf_string architecture;
	struct gguf *file;
	char key[128];
	int err = gguf_open(options->model_path, &file);

	if (err)
		return err;
	err = fm_tokenizer_create(file, &tokenizer);
	if (!err) {
		front->answer.tokenizer = tokenizer;
		if (fm_chat_template_create(file, &front->chat)) {
			fm_log(FM_LOG_WARNING, FM2109 "no /v1/chat/completions: %s",
			       fm_error_detail());
			front->chat = NULL;
		}
		if (gguf_get_string(file, "general.architecture", &architecture)) {
			snprintf(key, sizeof(key), "%.*s.context_length",
				 (int)(architecture.len < 64 ? architecture.len : 64),
				 architecture.data);
			gguf_get_u32(file, key, &front->model_context);
		}
	}
	gguf_close(file);
	base = base ? base + 1 : options->model_path;
	snprintf(front->model_name, sizeof(front->model_name), "%s",
		 options->model_name ? options->model_name : base);
	if (!options->model_name && strlen(front->model_name) > 5 &&
	    !strcmp(front->model_name + strlen(front->model_name) - 5, ".gguf"))
		front->model_name[strlen(front->model_name) - 5] = '\0';
	front->answer.model_name = front->model_name;
	if (!front->model_context)
		front->model_context = 2048;
	return err;
}

static int open_links(struct front_end *front)
{
	const struct fm_front_end_options *options = front->options;
	size_t n = options->n_workers + options->n_worker_fds;
	int err = 0;

	if (!n || n > FM_FRONT_END_WORKERS_MAX)
		err = fm_fail(FM_ERR_INVALID, "%zu workers were given; from 1 to %d may be", n,
			      FM_FRONT_END_WORKERS_MAX);
	for (size_t i = 0; i < options->n_worker_fds; i++) {
		if (err)
			close(options->worker_fds[i]); /* ours in any case */
		else
			fm_worker_link_init_fd(&front->links[front->n_links++],
					       options->worker_fds[i], i);
	}
	for (size_t i = 0; !err && i < options->n_workers; i++)
		err = fm_worker_link_init(&front->links[front->n_links++], options->workers[i]);
	return err;
}

static int set_up(struct front_end *front)
{
	const struct fm_front_end_options *options = front->options;
	struct fm_router_options core = {
		.max_requests = options->max_requests,
		.bypass_tokens = options->bypass_tokens,
		.bypass_ratio = options->bypass_ratio,
		.deadline_ns = options->deadline_s * SECOND_NS,
	};
	int err;

	front->links = calloc(FM_FRONT_END_WORKERS_MAX, sizeof(*front->links));
	front->choices = calloc(options->max_requests, sizeof(struct fm_choice *));
	front->active = calloc(options->max_requests, sizeof(struct fm_exchange *));
	front->polls =
		calloc(2 + FM_FRONT_END_WORKERS_MAX + options->max_requests, sizeof(*front->polls));
	front->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!front->links || !front->choices || !front->active || !front->polls)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the front end");
	if (front->wake_fd < 0)
		return fm_fail(FM_ERR_IO, "eventfd: %s", strerror(errno));
	err = open_links(front);
	if (!err)
		err = open_model(front);
	if (!err)
		err = fm_router_core_create(&core, &front->core);
	return err;
}

static void tear_down(struct front_end *front)
{
	for (size_t i = 0; i < front->n_links; i++)
		fm_worker_link_destroy(&front->links[i]);
	if (front->pool)
		fm_pool_detach(front->pool);
	if (front->wake_fd >= 0)
		close(front->wake_fd);
	fm_router_core_destroy(front->core);
	fm_chat_template_destroy(front->chat);
	fm_tokenizer_destroy((struct fm_tokenizer *)front->answer.tokenizer);
	fm_metrics_destroy(&front->metrics);
	pthread_mutex_destroy(&front->lock);
	free(front->links);
	free(front->choices);
	free(front->active);
	free(front->polls);
}

int fm_front_end_run(const struct fm_front_end_options *options)
{
	struct front_end front = {.options = options, .wake_fd = -1};
	struct fm_http_server *server = NULL;
	char origin[128];
	int err;

	signal(SIGPIPE,
	       SIG_IGN); /* a client or worker that hangs up is an error code, not an end */
	front.queue_end = &front.queue;
	pthread_mutex_init(&front.lock, NULL);
	fm_metrics_init(&front.metrics);
	err = set_up(&front);
	if (!err) {
		struct fm_http_options http = {
			.listen = options->listen,
			.tls_by_proxy = options->tls_by_proxy,
			.model_name = front.model_name,
			.tokenizer = front.answer.tokenizer,
			.chat = front.chat,
			.model_context = front.model_context,
			.metrics = &front.metrics,
			.submit = submit,
			.left = left,
			.arg = &front,
		};

		publish(&front);
		err = fm_http_server_start(&http, origin, sizeof(origin), &server);
	}
	if (!err) {
		printf("listening on %s\n", origin);
		fflush(stdout);
		err = loop(&front);
		end_all(&front);
		fm_http_server_stop(server);
	}
	tear_down(&front);
	return err;
}
