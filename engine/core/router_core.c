// SPDX-License-Identifier: Apache-2.0
/*
 * The router's decisions; see router_core.h. Tables are small (64 workers, at most a few thousand
 * requests) and walked in order: first come, first served, and nothing depends on hash order.
 * Invariant: `worker` of a request is >= 0 exactly while its phase is PREFILLING or GENERATING.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "core/router_core.h"

enum phase { PHASE_FREE, PHASE_WAITING, PHASE_PREFILLING, PHASE_GENERATING };

struct worker {
	bool is_up;
	enum fm_role role;
	uint32_t running, waiting; /* as it last said, other front ends' requests included */
	uint64_t waiting_tokens;
	uint64_t last_assigned; /* number of the assignment, to spread equal loads */
};

struct request {
	enum phase phase;
	uint64_t arrival; /* number: the order of service */
	uint32_t n_prompt, n_generated, cached;
	bool has_tail, is_computing; /* computing: its prompt is not done yet, as far as we know */
	int worker, avoid;
	uint64_t wire_id, not_before, deadline;
	enum fm_route route;
	int prefill_worker, decode_worker;
	uint32_t retries;
};

struct cancel {
	uint32_t worker;
	uint64_t wire_id;
};

struct fm_router_core {
	struct fm_router_options options;
	struct worker workers[FM_ROUTER_WORKERS_MAX];
	struct request *requests;
	struct cancel
		*cancels; /* ring; at most one for each request between two rounds of next() */
	uint32_t n_cancels;
	uint64_t next_arrival, next_wire_id, next_assignment;
	uint64_t routes[4], retries;
};

const char *fm_route_name(enum fm_route route)
{
	static const char *const names[] = {"none", "monolithic", "bypass", "disaggregated"};

	return names[route];
}

int fm_router_core_create(const struct fm_router_options *options, struct fm_router_core **out)
{
	struct fm_router_core *core;

	if (!options->max_requests || options->deadline_ns == 0)
		return fm_fail(FM_ERR_INVALID, "router: max_requests and deadline must not be 0");
	core = calloc(1, sizeof(*core));
	if (!core)
		return fm_fail(FM_ERR_NO_MEMORY, "router: no memory for the core");
	core->options = *options;
	core->requests = calloc(options->max_requests, sizeof(*core->requests));
	core->cancels = calloc(options->max_requests, sizeof(*core->cancels));
	if (!core->requests || !core->cancels) {
		fm_router_core_destroy(core);
		return fm_fail(FM_ERR_NO_MEMORY, "router: no memory for %u requests",
			       options->max_requests);
	}
	core->next_wire_id = 1;
	*out = core;
	return 0;
}

void fm_router_core_destroy(struct fm_router_core *core)
{
	if (!core)
		return;
	free(core->requests);
	free(core->cancels);
	free(core);
}

/* ---- workers ------------------------------------------------------------------------------ */

void fm_router_core_worker_up(struct fm_router_core *core, uint32_t worker, enum fm_role role)
{
	struct worker *w = &core->workers[worker];

	memset(w, 0, sizeof(*w));
	w->is_up = true;
	w->role = role;
}

static void unassign(struct fm_router_core *core, struct request *request)
{
	request->avoid = request->worker;
	request->worker = -1;
	request->phase = PHASE_WAITING;
	request->retries++;
	core->retries++;
}

void fm_router_core_worker_down(struct fm_router_core *core, uint32_t worker)
{
	core->workers[worker].is_up = false;
	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		struct request *request = &core->requests[i];

		if (request->phase == PHASE_FREE || request->worker != (int)worker)
			continue;
		unassign(core, request);
		/* The tail may have been adopted by the dead; it is recomputed (under a block). */
		request->has_tail = false;
	}
	/* Nobody is left to be told. */
	for (uint32_t i = 0; i < core->n_cancels;) {
		if (core->cancels[i].worker == worker)
			core->cancels[i] = core->cancels[--core->n_cancels];
		else
			i++;
	}
}

void fm_router_core_worker_stats(struct fm_router_core *core, uint32_t worker, uint32_t running,
				 uint32_t waiting, uint64_t waiting_tokens)
{
	struct worker *w = &core->workers[worker];

	w->running = running;
	w->waiting = waiting;
	w->waiting_tokens = waiting_tokens;
}

bool fm_router_core_is_ready(const struct fm_router_core *core)
{
	/* A decode worker can compute prompts, too: prefill workers make it faster, not possible.
	 */
	for (uint32_t i = 0; i < FM_ROUTER_WORKERS_MAX; i++)
		if (core->workers[i].is_up && (core->workers[i].role & FM_ROLE_DECODE))
			return true;
	return false;
}

/*
 * What the worker said, or what we gave it and have not seen done, whichever is more: its word
 * counts other front ends' requests, ours counts what it has not read yet.
 */
static uint64_t load_of(const struct fm_router_core *core, uint32_t worker)
{
	const struct worker *w = &core->workers[worker];
	uint64_t tokens = 0, running = 0;

	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		const struct request *request = &core->requests[i];

		if (request->phase == PHASE_FREE || request->worker != (int)worker)
			continue;
		running++;
		if (request->is_computing)
			tokens += request->n_prompt - request->cached;
	}
	if (w->waiting_tokens > tokens)
		tokens = w->waiting_tokens;
	if ((uint64_t)w->running + w->waiting > running)
		running = (uint64_t)w->running + w->waiting;
	return tokens + running * FM_ROUTER_RUNNING_COST;
}

/* The least loaded worker that has the role, or -1. The one that just refused comes last. */
static int choose_worker(const struct fm_router_core *core, enum fm_role role, int avoid)
{
	uint64_t best_load = 0;
	int best = -1;

	for (uint32_t i = 0; i < FM_ROUTER_WORKERS_MAX; i++) {
		const struct worker *w = &core->workers[i];
		uint64_t load;

		if (!w->is_up || !(w->role & role))
			continue;
		load = load_of(core, i);
		if (best < 0 || best == avoid ||
		    ((int)i != avoid && (load < best_load ||
					 (load == best_load &&
					  w->last_assigned < core->workers[best].last_assigned)))) {
			best = (int)i;
			best_load = load;
		}
	}
	return best;
}

/* ---- requests ----------------------------------------------------------------------------- */

int fm_router_core_add(struct fm_router_core *core, uint32_t n_prompt, uint32_t cached,
		       uint64_t now)
{
	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		struct request *request = &core->requests[i];

		if (request->phase != PHASE_FREE)
			continue;
		*request = (struct request){
			.phase = PHASE_WAITING,
			.arrival = core->next_arrival++,
			.n_prompt = n_prompt,
			.cached = cached < n_prompt ? cached : n_prompt,
			.is_computing = true,
			.worker = -1,
			.avoid = -1,
			.deadline = now + core->options.deadline_ns,
			.prefill_worker = -1,
			.decode_worker = -1,
		};
		return (int)i;
	}
	return fm_fail(FM_ERR_LIMIT, "router: %u requests are in flight already",
		       core->options.max_requests);
}

int fm_router_core_find(const struct fm_router_core *core, uint32_t worker, uint64_t wire_id)
{
	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		const struct request *request = &core->requests[i];

		if (request->phase != PHASE_FREE && request->worker == (int)worker &&
		    request->wire_id == wire_id)
			return (int)i;
	}
	return FM_ERR_NOT_FOUND; /* an everyday event: no detail is set */
}

static void progress(struct fm_router_core *core, struct request *request, uint64_t now)
{
	request->deadline = now + core->options.deadline_ns;
	request->is_computing = false;
	request->n_generated++;
	request->avoid = -1;
}

void fm_router_core_prefilled(struct fm_router_core *core, uint32_t request, bool has_tail,
			      uint64_t now)
{
	struct request *r = &core->requests[request];

	if (r->phase != PHASE_PREFILLING)
		return;
	progress(core, r, now);
	r->has_tail = has_tail;
	r->phase = PHASE_WAITING;
	r->worker = -1;
}

void fm_router_core_token(struct fm_router_core *core, uint32_t request, uint64_t now)
{
	struct request *r = &core->requests[request];

	if (r->phase == PHASE_GENERATING)
		progress(core, r, now);
}

void fm_router_core_retry(struct fm_router_core *core, uint32_t request, uint64_t now)
{
	struct request *r = &core->requests[request];

	if (r->phase != PHASE_PREFILLING && r->phase != PHASE_GENERATING)
		return;
	unassign(core, r);
	r->has_tail = false;
	r->not_before = now + FM_ROUTER_RETRY_NS;
}

static void push_cancel(struct fm_router_core *core, uint32_t worker, uint64_t wire_id)
{
	/* A driver that drains next() after each event never gets here with a full table. */
	if (core->n_cancels < core->options.max_requests)
		core->cancels[core->n_cancels++] = (struct cancel){worker, wire_id};
}

void fm_router_core_remove(struct fm_router_core *core, uint32_t request, bool cancel)
{
	struct request *r = &core->requests[request];

	if (cancel && r->worker >= 0)
		push_cancel(core, (uint32_t)r->worker, r->wire_id);
	r->phase = PHASE_FREE;
	r->worker = -1;
}

void fm_router_core_info(const struct fm_router_core *core, uint32_t request,
			 struct fm_router_request_info *out)
{
	const struct request *r = &core->requests[request];

	out->route = r->route;
	out->prefill_worker = r->prefill_worker;
	out->decode_worker = r->decode_worker;
	out->retries = r->retries;
}

/* ---- decisions ---------------------------------------------------------------------------- */

static bool is_bypass(const struct fm_router_core *core, const struct request *request)
{
	uint32_t uncached = request->n_prompt - request->cached;

	return uncached <= core->options.bypass_tokens ||
	       (uncached < FM_ROUTER_BYPASS_CEILING &&
		(double)uncached <= core->options.bypass_ratio * request->n_prompt);
}

static void assign(struct fm_router_core *core, uint32_t number, int worker, bool is_prefill,
		   struct fm_router_action *out)
{
	struct request *request = &core->requests[number];

	request->phase = is_prefill ? PHASE_PREFILLING : PHASE_GENERATING;
	request->worker = worker;
	request->wire_id = core->next_wire_id++;
	core->workers[worker].last_assigned = ++core->next_assignment;
	if (is_prefill)
		request->prefill_worker = worker;
	else
		request->decode_worker = worker;
	*out = (struct fm_router_action){
		.kind = is_prefill ? FM_ROUTER_PREFILL : FM_ROUTER_GENERATE,
		.request = number,
		.worker = (uint32_t)worker,
		.wire_id = request->wire_id,
		.with_tail = !is_prefill && request->has_tail,
	};
	request->has_tail = false; /* an offer is taken once */
}

static void take_route(struct fm_router_core *core, struct request *request, enum fm_route route)
{
	if (request->route == FM_ROUTE_NONE)
		core->routes[route]++;
	request->route = route;
}

static bool dispatch(struct fm_router_core *core, uint32_t number, struct fm_router_action *out)
{
	struct request *request = &core->requests[number];
	int decode = choose_worker(core, FM_ROLE_DECODE, request->avoid);
	int prefill;

	/* Without anybody to go on with, a first token would only start an answer that stalls. */
	if (decode < 0)
		return false;
	if (request->n_generated) {
		assign(core, number, decode, false, out);
		return true;
	}
	prefill = choose_worker(core, FM_ROLE_PREFILL, request->avoid);
	if (prefill >= 0 && core->workers[prefill].role == FM_ROLE_BOTH)
		decode = prefill; /* it can do all of it: a hand-over would gain nothing */
	if (prefill >= 0 && is_bypass(core, request)) {
		take_route(core, request,
			   decode == prefill ? FM_ROUTE_MONOLITHIC : FM_ROUTE_BYPASS);
	} else if (prefill < 0 || prefill == decode) {
		take_route(core, request, FM_ROUTE_MONOLITHIC);
	} else {
		take_route(core, request, FM_ROUTE_DISAGGREGATED);
		assign(core, number, prefill, true, out);
		return true;
	}
	assign(core, number, decode, false, out);
	return true;
}

bool fm_router_core_next(struct fm_router_core *core, uint64_t now, struct fm_router_action *out)
{
	uint64_t after = 0;

	if (core->n_cancels) {
		struct cancel cancel = core->cancels[--core->n_cancels];

		*out = (struct fm_router_action){.kind = FM_ROUTER_CANCEL,
						 .worker = cancel.worker,
						 .wire_id = cancel.wire_id};
		return true;
	}
	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		struct request *request = &core->requests[i];

		if (request->phase == PHASE_FREE || request->deadline > now)
			continue;
		fm_router_core_remove(core, i, true);
		*out = (struct fm_router_action){.kind = FM_ROUTER_EXPIRED, .request = i};
		return true;
	}
	for (;;) { /* oldest first */
		uint32_t oldest = UINT32_MAX;

		for (uint32_t i = 0; i < core->options.max_requests; i++) {
			const struct request *request = &core->requests[i];

			if (request->phase == PHASE_WAITING && request->not_before <= now &&
			    request->arrival >= after &&
			    (oldest == UINT32_MAX ||
			     request->arrival < core->requests[oldest].arrival))
				oldest = i;
		}
		if (oldest == UINT32_MAX)
			return false;
		if (dispatch(core, oldest, out))
			return true;
		after = core->requests[oldest].arrival + 1;
		if (!fm_router_core_is_ready(core))
			return false; /* nobody can be served: do not try each of them */
	}
}

uint64_t fm_router_core_wake(const struct fm_router_core *core, uint64_t now)
{
	uint64_t wake = UINT64_MAX;

	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		const struct request *request = &core->requests[i];

		if (request->phase == PHASE_FREE)
			continue;
		if (request->deadline < wake)
			wake = request->deadline;
		if (request->phase == PHASE_WAITING && request->not_before > now &&
		    request->not_before < wake)
			wake = request->not_before;
	}
	return wake;
}

void fm_router_core_counts(const struct fm_router_core *core, struct fm_router_counts *out)
{
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < core->options.max_requests; i++) {
		if (core->requests[i].phase == PHASE_WAITING)
			out->waiting++;
		else if (core->requests[i].phase != PHASE_FREE)
			out->running++;
	}
	memcpy(out->routes, core->routes, sizeof(out->routes));
	out->retries = core->retries;
}
