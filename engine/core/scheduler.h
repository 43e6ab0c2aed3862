/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tokens of which requests go into the next step: continuous batching with chunked prefill
 * under a token budget, decode first, then first come first served. Pure (architecture rule 1): no
 * I/O, clock, threads or memory beyond the table it is given at creation.
 * Invariant: a plan never exceeds the budget, and the oldest request is never starved.
 */
#ifndef FM_ENGINE_SCHEDULER_H
#define FM_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_SCHEDULER_REQUESTS_MAX 1024
#define FM_SCHEDULER_HOLD_STEPS	  64 /* then others may have given memory back to a shared pool */

struct fm_scheduler;

struct fm_schedule_item {
	uint32_t request;  /* number given by fm_scheduler_add() */
	uint32_t n_tokens; /* how many of its pending tokens to compute now */
};

struct fm_scheduler_counts {
	uint32_t running, waiting;
	uint64_t waiting_tokens; /* pending tokens of all requests */
	uint64_t preemptions;	 /* so far, to make room */
};

/* @max_running: requests that may hold KV at once; @token_budget: tokens of one step. */
int fm_scheduler_create(uint32_t max_running, uint32_t token_budget, struct fm_scheduler **out);
void fm_scheduler_destroy(struct fm_scheduler *scheduler);

/* A new request with @pending tokens to compute. Returns its number, or FM_ERR_LIMIT. */
int fm_scheduler_add(struct fm_scheduler *scheduler, uint32_t pending);
void fm_scheduler_remove(struct fm_scheduler *scheduler, uint32_t request);
/* Back to waiting, before everything younger, with all its tokens pending again. @for_room: the KV
 * was short, so nobody is admitted until a running request ends or FM_SCHEDULER_HOLD_STEPS pass. */
void fm_scheduler_preempt(struct fm_scheduler *scheduler, uint32_t request, uint32_t pending,
			  bool for_room);
/* The request's pending tokens, after a step or when a cache hit made some of them unnecessary. */
void fm_scheduler_set_pending(struct fm_scheduler *scheduler, uint32_t request, uint32_t pending);
bool fm_scheduler_is_running(const struct fm_scheduler *scheduler, uint32_t request);

/* Who gives way when KV is short: the youngest running request, whoever asks for the room, so that
 * the older ones always get on. FM_ERR_NOT_FOUND when not even two run. */
int fm_scheduler_victim(const struct fm_scheduler *scheduler);

/* Moves waiting requests to running where there is room: writes their numbers, oldest first. */
size_t fm_scheduler_admit(struct fm_scheduler *scheduler, uint32_t *requests, size_t max);
/* The next step's items, at most @max; 0 when nothing runs. */
size_t fm_scheduler_plan(struct fm_scheduler *scheduler, struct fm_schedule_item *items,
			 size_t max);
void fm_scheduler_counts(const struct fm_scheduler *scheduler, struct fm_scheduler_counts *out);

#endif
