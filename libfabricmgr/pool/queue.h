/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue's requests, between queue.c (submission, threads, completion, cancel) and queue_work.c
 * (what each request does). Invariant: what is not const in a task, and every pointer of the
 * caller's, is used by the task's worker alone, and the caller's memory only behind
 * fm_task_enter().
 */
#ifndef FM_POOL_QUEUE_H
#define FM_POOL_QUEUE_H

#include "pool/client.h"

/* One request, with private copies of its arrays behind it in the same allocation. */
struct fm_task {
	struct fm_task *next;
	struct fm_queue *queue;
	uint64_t id, deadline; /* absolute */
	struct fm_queue_request
		request; /* with the caller's pointers: for the results at its end */
	struct fm_digest ns;
	struct fm_key *keys; /* of all but PUT */
	struct fm_key *parents;
	struct fm_block *blocks;
	struct fm_get_parts *gets;
	struct fm_put_parts *puts;
	int *results;
	/* The queue's lock. */
	bool is_cancelled; /* its completion is there already */
	bool is_touching;  /* the worker is in the caller's memory */
	bool is_awaited;   /* somebody who cancels waits for the end of that */
};

/* The worker may touch the caller's memory until fm_task_leave(); false: it was cancelled. */
bool fm_task_enter(void *task);
void fm_task_leave(void *task);

/* Checks a request and copies it. */
int fm_task_create(const struct fm_queue_request *request, struct fm_task **out);
/* Does what it asks for; the result, and those of its keys in the task's own arrays. */
int64_t fm_task_run(struct fm_pool *pool, struct fm_task *task);
/* Hands the results of the keys to the caller. */
void fm_task_deliver(const struct fm_task *task);
/* Gives back what it brought, for nobody wants it. */
void fm_task_undo(struct fm_pool *pool, struct fm_task *task, int64_t result);

#endif
