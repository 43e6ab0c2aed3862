// SPDX-License-Identifier: Apache-2.0
/*
 * The batch scheduler's table and its three decisions: admit, plan, and whom to preempt. Called by
 * the engine driver and the simulator; calls nothing but the allocator at creation.
 * Invariant: arrival numbers are unique and never change, so age is a total order, and no request
 * gives way to a younger one.
 */
#include <stdlib.h>

#include <fabricmgr.h>

#include "core/scheduler.h"

enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_RUNNING };

struct request {
	enum request_state state;
	uint32_t pending;
	uint64_t arrival;
};

struct fm_scheduler {
	uint32_t max_running;
	uint32_t token_budget;
	uint32_t hold_steps; /* so many calls of admit let nobody in */
	uint64_t next_arrival;
	struct fm_scheduler_counts counts;
	struct request requests[FM_SCHEDULER_REQUESTS_MAX];
};

int fm_scheduler_create(uint32_t max_running, uint32_t token_budget, struct fm_scheduler **out)
{
	struct fm_scheduler *scheduler;

	if (!max_running || max_running > FM_SCHEDULER_REQUESTS_MAX || token_budget < max_running)
		return fm_fail(
			FM_ERR_INVALID,
			"scheduler: %u requests with a budget of %u tokens a step: give 1 to %u "
			"requests and at least one token for each",
			max_running, token_budget, FM_SCHEDULER_REQUESTS_MAX);
	scheduler = calloc(1, sizeof(*scheduler));
	if (!scheduler)
		return fm_fail(FM_ERR_NO_MEMORY, "scheduler: out of memory");
	scheduler->max_running = max_running;
	scheduler->token_budget = token_budget;
	*out = scheduler;
	return 0;
}

void fm_scheduler_destroy(struct fm_scheduler *scheduler)
{
	free(scheduler);
}

int fm_scheduler_add(struct fm_scheduler *scheduler, uint32_t pending)
{
	for (int i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++) {
		struct request *request = &scheduler->requests[i];

		if (request->state != REQUEST_FREE)
			continue;
		request->state = REQUEST_WAITING;
		request->pending = pending;
		request->arrival = scheduler->next_arrival++;
		scheduler->counts.waiting++;
		scheduler->counts.waiting_tokens += pending;
		return i;
	}
	return fm_fail(FM_ERR_LIMIT, "the engine already has %u requests: try again later",
		       FM_SCHEDULER_REQUESTS_MAX);
}

void fm_scheduler_remove(struct fm_scheduler *scheduler, uint32_t number)
{
	struct request *request = &scheduler->requests[number];

	if (request->state == REQUEST_RUNNING) {
		scheduler->counts.running--;
		scheduler->hold_steps = 0; /* it leaves room */
	} else if (request->state == REQUEST_WAITING) {
		scheduler->counts.waiting--;
	}
	scheduler->counts.waiting_tokens -= request->pending;
	request->state = REQUEST_FREE;
	request->pending = 0;
}

void fm_scheduler_set_pending(struct fm_scheduler *scheduler, uint32_t number, uint32_t pending)
{
	struct request *request = &scheduler->requests[number];

	scheduler->counts.waiting_tokens += (uint64_t)pending - request->pending;
	request->pending = pending;
}

void fm_scheduler_preempt(struct fm_scheduler *scheduler, uint32_t number, uint32_t pending,
			  bool for_room)
{
	struct request *request = &scheduler->requests[number];

	if (request->state == REQUEST_RUNNING) {
		scheduler->counts.running--;
		scheduler->counts.waiting++;
		request->state = REQUEST_WAITING;
	}
	if (for_room) {
		scheduler->hold_steps = FM_SCHEDULER_HOLD_STEPS;
		scheduler->counts.preemptions++;
	}
	fm_scheduler_set_pending(scheduler, number, pending);
}

bool fm_scheduler_is_running(const struct fm_scheduler *scheduler, uint32_t number)
{
	return scheduler->requests[number].state == REQUEST_RUNNING;
}

int fm_scheduler_victim(const struct fm_scheduler *scheduler)
{
	int youngest = FM_ERR_NOT_FOUND;

	for (int i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++) {
		const struct request *request = &scheduler->requests[i];

		if (request->state != REQUEST_RUNNING)
			continue;
		if (youngest < 0 || request->arrival > scheduler->requests[youngest].arrival)
			youngest = i;
	}
	return scheduler->counts.running > 1 ? youngest : FM_ERR_NOT_FOUND;
}

/* The oldest request of @state that arrived at or after @from; FM_ERR_NOT_FOUND at the end. */
static int oldest(const struct fm_scheduler *scheduler, enum request_state state, uint64_t from)
{
	int found = FM_ERR_NOT_FOUND;

	for (int i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++) {
		const struct request *request = &scheduler->requests[i];

		if (request->state != state || request->arrival < from)
			continue;
		if (found < 0 || request->arrival < scheduler->requests[found].arrival)
			found = i;
	}
	return found;
}

size_t fm_scheduler_admit(struct fm_scheduler *scheduler, uint32_t *requests, size_t max)
{
	size_t n = 0;

	if (scheduler->hold_steps && scheduler->counts.running) {
		scheduler->hold_steps--;
		return 0;
	}
	while (n < max && scheduler->counts.running < scheduler->max_running) {
		int number = oldest(scheduler, REQUEST_WAITING, 0);

		if (number < 0)
			break;
		scheduler->requests[number].state = REQUEST_RUNNING;
		scheduler->counts.waiting--;
		scheduler->counts.running++;
		requests[n++] = (uint32_t)number;
	}
	return n;
}

size_t fm_scheduler_plan(struct fm_scheduler *scheduler, struct fm_schedule_item *items, size_t max)
{
	uint32_t budget = scheduler->token_budget;
	size_t n = 0;

	/* Two passes by age: requests that decode (one token pending), then prefill in chunks. The
	 * budget is at least max_running, so the first pass always fits. */
	for (int pass = 0; pass < 2; pass++) {
		uint64_t from = 0;
		int number;

		while (n < max && budget &&
		       (number = oldest(scheduler, REQUEST_RUNNING, from)) >= 0) {
			struct request *request = &scheduler->requests[number];
			uint32_t take = request->pending < budget ? request->pending : budget;

			from = request->arrival + 1;
			if (!take || (request->pending == 1) != (pass == 0))
				continue;
			items[n].request = (uint32_t)number;
			items[n++].n_tokens = take;
			budget -= take;
		}
	}
	return n;
}

void fm_scheduler_counts(const struct fm_scheduler *scheduler, struct fm_scheduler_counts *out)
{
	*out = scheduler->counts;
}
