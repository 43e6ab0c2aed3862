/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which worker does what for which request: workers, their loads, requests and their phases. Pure
 * (architecture rule 1): events and the time come in, actions come out of fm_router_core_next(); no
 * I/O, clock, threads, or memory beyond what creation took.
 * Invariants: a request is with at most one worker at a time; each assignment has a wire id of its
 * own, so an answer to an older assignment can never be taken for one to the present.
 */
#ifndef FM_ENGINE_ROUTER_CORE_H
#define FM_ENGINE_ROUTER_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_ROUTER_WORKERS_MAX	 64
#define FM_ROUTER_BYPASS_CEILING 2048 /* the ratio rule holds below this many tokens */
#define FM_ROUTER_RUNNING_COST	 16 /* a running request weighs as much as so many prompt tokens */
#define FM_ROUTER_RETRY_NS	 (100ull * 1000000) /* pause after a worker said "retry" */

enum fm_role {
	FM_ROLE_PREFILL = 1,
	FM_ROLE_DECODE = 2,
	FM_ROLE_BOTH = 3, /* the two bits together */
};

enum fm_route {
	FM_ROUTE_NONE,
	FM_ROUTE_MONOLITHIC,	/* one worker, because no other could take the prompt */
	FM_ROUTE_BYPASS,	/* one worker, because little of the prompt was uncached */
	FM_ROUTE_DISAGGREGATED, /* prompt on one worker, answer on another */
};

const char *fm_route_name(enum fm_route route);

struct fm_router_options {
	uint32_t max_requests;
	uint32_t bypass_tokens;
	double bypass_ratio;
	uint64_t deadline_ns; /* longest time without progress */
};

enum fm_router_action_kind {
	FM_ROUTER_PREFILL,  /* send op prefill */
	FM_ROUTER_GENERATE, /* send op generate; with_tail: name the tail that the prefill offered
			     */
	FM_ROUTER_CANCEL,   /* send op cancel (the request itself may be gone already) */
	FM_ROUTER_EXPIRED,  /* no progress within the deadline; the request is removed */
};

struct fm_router_action {
	enum fm_router_action_kind kind;
	uint32_t request;
	uint32_t worker;
	uint64_t wire_id;
	bool with_tail;
};

struct fm_router_request_info {
	enum fm_route route;
	int prefill_worker, decode_worker; /* -1: none yet */
	uint32_t retries;		   /* assignments beyond the first of each phase */
};

struct fm_router_counts {
	uint32_t running, waiting; /* with a worker; with none */
	uint64_t routes[4];	   /* by enum fm_route, counted at the first assignment */
	uint64_t retries;
};

struct fm_router_core;

int fm_router_core_create(const struct fm_router_options *options, struct fm_router_core **out);
void fm_router_core_destroy(struct fm_router_core *core);

/* ---- workers: numbered by the driver, 0 … FM_ROUTER_WORKERS_MAX-1 */
void fm_router_core_worker_up(struct fm_router_core *core, uint32_t worker, enum fm_role role);
/* Its requests wait for another worker, or for this one to come back. */
void fm_router_core_worker_down(struct fm_router_core *core, uint32_t worker);
void fm_router_core_worker_stats(struct fm_router_core *core, uint32_t worker, uint32_t running,
				 uint32_t waiting, uint64_t waiting_tokens);
/* True when workers that are up cover prompt and answer. */
bool fm_router_core_is_ready(const struct fm_router_core *core);

/* ---- requests. Returns the number of the request (0 … max_requests-1) or FM_ERR_LIMIT. */
int fm_router_core_add(struct fm_router_core *core, uint32_t n_prompt, uint32_t cached,
		       uint64_t now);
/* The request that the answer @wire_id of @worker belongs to, or FM_ERR_NOT_FOUND (an old one). */
int fm_router_core_find(const struct fm_router_core *core, uint32_t worker, uint64_t wire_id);
/* The prompt is computed and one token chosen; @has_tail: the worker offered a tail block. */
void fm_router_core_prefilled(struct fm_router_core *core, uint32_t request, bool has_tail,
			      uint64_t now);
void fm_router_core_token(struct fm_router_core *core, uint32_t request, uint64_t now);
/* The worker refused it for now; it goes elsewhere after a pause. */
void fm_router_core_retry(struct fm_router_core *core, uint32_t request, uint64_t now);
/* It is over. If its worker may still be at it (@cancel), a FM_ROUTER_CANCEL follows. */
void fm_router_core_remove(struct fm_router_core *core, uint32_t request, bool cancel);
void fm_router_core_info(const struct fm_router_core *core, uint32_t request,
			 struct fm_router_request_info *out);

/* ---- decisions: call until false after each event, then sleep until fm_router_core_wake(). */
bool fm_router_core_next(struct fm_router_core *core, uint64_t now, struct fm_router_action *out);
/* When something becomes due by time alone; UINT64_MAX: never. */
uint64_t fm_router_core_wake(const struct fm_router_core *core, uint64_t now);
void fm_router_core_counts(const struct fm_router_core *core, struct fm_router_counts *out);

#endif
