// SPDX-License-Identifier: Apache-2.0
/*
 * What the requests of a queue do, each in the thread that took it, on copies of its arrays.
 * queue.c calls it. Invariant: the caller's arrays are read in fm_task_create() and written in
 * fm_task_deliver() only; its buffers are touched between fm_task_enter() and fm_task_leave().
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "pool/copy.h"
#include "pool/queue.h"

/* Gets that are fetched with the first one that is not in memory: as many as are read at once. */
#define GETS_AHEAD 64u

/* ---- taking a request ---- */

static int check_parts(const struct iovec *parts, uint32_t n_parts, const char *what, size_t i)
{
	if (!parts || fm_parts_bytes(parts, n_parts) == UINT64_MAX)
		return fm_fail(FM_ERR_INVALID, "%s %zu of a request has no memory", what, i);
	return 0;
}

/* What of a request has to be there, by its kind; and how many parts there are in all. */
static int check_request(const struct fm_queue_request *r, size_t *n_parts)
{
	int err = 0;

	*n_parts = 0;
	if (!r || r->size < sizeof(*r) || r->op < FM_QUEUE_MATCH || r->op > FM_QUEUE_REMOVE)
		return fm_fail(FM_ERR_INVALID,
			       "fm_queue_request: size or op are not of this version");
	if (!r->n || r->n > FM_QUEUE_KEYS_MAX)
		return fm_fail(FM_ERR_LIMIT, "a request has 1 to %u keys, not %zu",
			       FM_QUEUE_KEYS_MAX, r->n);
	if (r->op == FM_QUEUE_GET ? !r->gets
				  : (r->op == FM_QUEUE_PUT ? !r->puts || !r->ns : !r->keys))
		return fm_fail(FM_ERR_INVALID, "the request lacks its keys, gets, puts or ns");
	if ((r->op == FM_QUEUE_EXISTS && !r->results) || (r->op == FM_QUEUE_ACQUIRE && !r->blocks))
		return fm_fail(FM_ERR_INVALID, "the request has no room for its results");
	for (size_t i = 0; !err && i < r->n && r->op == FM_QUEUE_GET; i++) {
		err = check_parts(r->gets[i].parts, r->gets[i].n_parts, "get", i);
		if (!err && r->gets[i].flags & ~FM_GET_VERIFY)
			err = fm_fail(FM_ERR_INVALID, "get %zu of a request has unknown flags", i);
		*n_parts += r->gets[i].n_parts;
	}
	for (size_t i = 0; !err && i < r->n && r->op == FM_QUEUE_PUT; i++) {
		err = check_parts(r->puts[i].parts, r->puts[i].n_parts, "put", i);
		*n_parts += r->puts[i].n_parts;
	}
	if (!err && *n_parts > FM_QUEUE_PARTS_MAX)
		err = fm_fail(FM_ERR_LIMIT,
			      "the puts or gets of a request have %zu parts, at most "
			      "%u",
			      *n_parts, FM_QUEUE_PARTS_MAX);
	return err;
}

/* The next @bytes of the task's allocation. */
static void *carve(char **at, size_t bytes)
{
	void *here = *at;

	*at += (bytes + 15) & ~(size_t)15;
	return here;
}

static const struct iovec *copy_parts(struct iovec **at, const struct iovec *parts, uint32_t n)
{
	struct iovec *here = *at;

	memcpy(here, parts, n * sizeof(*parts));
	*at += n;
	return here;
}

static void copy_puts(struct fm_task *task, struct iovec *parts)
{
	for (size_t i = 0; i < task->request.n; i++) {
		struct fm_put_parts *put = &task->puts[i];

		*put = task->request.puts[i];
		put->parts = copy_parts(&parts, put->parts, put->n_parts);
		if (put->parent) {
			task->parents[i] = *put->parent;
			put->parent = &task->parents[i];
		}
		put->result = FM_ERR_CANCELLED;
	}
}

static void copy_gets(struct fm_task *task, struct iovec *parts)
{
	for (size_t i = 0; i < task->request.n; i++) {
		struct fm_get_parts *get = &task->gets[i];

		*get = task->request.gets[i];
		get->parts = copy_parts(&parts, get->parts, get->n_parts);
		get->result = FM_ERR_CANCELLED;
		task->keys[i] = get->key;
	}
}

int fm_task_create(const struct fm_queue_request *request, struct fm_task **out)
{
	size_t n_parts, n, bytes;
	struct fm_task *task;
	struct iovec *parts;
	char *at;
	int err = check_request(request, &n_parts);

	if (err)
		return err;
	n = request->n;
	/* Some of each array is not needed by every kind; 16 for the rounding of each. */
	bytes = sizeof(*task) + n * (2 * sizeof(struct fm_key) + sizeof(int)) +
		n_parts * sizeof(struct iovec) + 8 * 16;
	if (request->op == FM_QUEUE_GET)
		bytes += n * sizeof(*task->gets);
	else if (request->op == FM_QUEUE_PUT)
		bytes += n * sizeof(*task->puts);
	else if (request->op == FM_QUEUE_ACQUIRE)
		bytes += n * sizeof(*task->blocks);
	at = calloc(1, bytes);
	if (!at)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a request of %zu keys", n);
	task = carve(&at, sizeof(*task));
	task->request = *request;
	task->keys = carve(&at, n * sizeof(*task->keys));
	task->parents = carve(&at, n * sizeof(*task->parents));
	task->results = carve(&at, n * sizeof(*task->results));
	parts = carve(&at, n_parts * sizeof(*parts));
	if (request->op == FM_QUEUE_PUT) {
		task->ns = *request->ns;
		task->puts = carve(&at, n * sizeof(*task->puts));
		copy_puts(task, parts);
	} else if (request->op == FM_QUEUE_GET) {
		task->gets = carve(&at, n * sizeof(*task->gets));
		copy_gets(task, parts);
	} else {
		memcpy(task->keys, request->keys, n * sizeof(*task->keys));
		if (request->op == FM_QUEUE_ACQUIRE)
			task->blocks = carve(&at, n * sizeof(*task->blocks));
	}
	*out = task;
	return 0;
}

/* ---- the work ---- */

static bool is_wanted(struct fm_task *task)
{
	if (!fm_task_enter(task))
		return false;
	fm_task_leave(task);
	return true;
}

static uint64_t time_left(const struct fm_task *task)
{
	uint64_t now = fm_clock_ns();

	return now < task->deadline ? task->deadline - now : 0;
}

/* fm_pool_fetch() of @n keys in slices, so that a cancelled request does not keep its worker. */
static int64_t fetch(struct fm_pool *pool, struct fm_task *task, size_t first, size_t n)
{
	for (;;) {
		uint64_t left = time_left(task), start = fm_clock_ns();
		uint64_t slice = left < FM_CANCEL_NS ? left : FM_CANCEL_NS;
		/* One nanosecond: what is there is found without waiting. */
		int64_t got = fm_pool_fetch(pool, task->keys + first, n, slice ? slice : 1);

		if (got < 0 || (size_t)got == n || left == slice || fm_clock_ns() - start < slice)
			return got;
		if (!is_wanted(task))
			return FM_ERR_CANCELLED;
	}
}

static int64_t look_at_each(struct fm_pool *pool, struct fm_task *task)
{
	int64_t found = 0;

	for (size_t i = 0; i < task->request.n; i++) {
		int64_t got = fm_pool_match(pool, &task->keys[i], 1);

		if (got < 0)
			return got;
		task->results[i] = got ? 0 : FM_ERR_NOT_FOUND;
		found += got;
	}
	return found;
}

static int64_t acquire(struct fm_pool *pool, struct fm_task *task)
{
	int64_t got = fetch(pool, task, 0, task->request.n);

	return got < 0 ? got : fm_pool_acquire(pool, task->keys, task->request.n, task->blocks);
}

static int64_t get(struct fm_pool *pool, struct fm_task *task)
{
	const struct fm_gate gate = {fm_task_enter, fm_task_leave, task};
	int64_t found = 0;
	size_t ahead = GETS_AHEAD;

	for (size_t i = 0; i < task->request.n; i++) {
		struct fm_get_parts *one = &task->gets[i];
		size_t left = task->request.n - i;

		if (fm_parts_get(pool, one, &gate) == FM_ERR_NOT_FOUND && pool->has_nvme) {
			int64_t got = fetch(pool, task, i, left < ahead ? left : ahead);

			/* What is nowhere is asked for alone: the others with it were for nothing.
			 */
			ahead = got > 0 ? GETS_AHEAD : 1;
			if (got > 0)
				fm_parts_get(pool, one, &gate);
			else if (got < 0)
				one->result = (int)got;
		}
		if (one->result == FM_ERR_CANCELLED || one->result == FM_ERR_DISCONNECTED)
			return one->result;
		found += !one->result;
	}
	return found;
}

static int64_t put(struct fm_pool *pool, struct fm_task *task)
{
	const struct fm_gate gate = {fm_task_enter, fm_task_leave, task};
	uint64_t left = time_left(task);

	return fm_parts_put(pool, &task->ns, task->puts, task->request.n, left ? left : 1, &gate);
}

int64_t fm_task_run(struct fm_pool *pool, struct fm_task *task)
{
	int64_t got;

	switch (task->request.op) {
	case FM_QUEUE_MATCH:
		return fm_pool_match(pool, task->keys, task->request.n);
	case FM_QUEUE_FETCH:
		got = fetch(pool, task, 0, task->request.n);
		if (got >= 0 && task->request.results)
			look_at_each(pool, task);
		return got;
	case FM_QUEUE_EXISTS:
		return look_at_each(pool, task);
	case FM_QUEUE_ACQUIRE:
		return acquire(pool, task);
	case FM_QUEUE_GET:
		return get(pool, task);
	case FM_QUEUE_PUT:
		return put(pool, task);
	default:
		return fm_pool_remove_within(pool, task->keys, task->request.n,
					     fm_answer_wait(time_left(task)));
	}
}

void fm_task_deliver(const struct fm_task *task)
{
	const struct fm_queue_request *to = &task->request;

	for (size_t i = 0; i < to->n; i++) {
		if (to->op == FM_QUEUE_GET) {
			to->gets[i].length = task->gets[i].length;
			to->gets[i].copied = task->gets[i].copied;
			to->gets[i].is_verified = task->gets[i].is_verified;
			to->gets[i].result = task->gets[i].result;
		} else if (to->op == FM_QUEUE_PUT) {
			to->puts[i].result = task->puts[i].result;
		} else if (to->op == FM_QUEUE_ACQUIRE) {
			to->blocks[i] = task->blocks[i];
		} else if (to->results) {
			to->results[i] = task->results[i];
		}
	}
}

void fm_task_undo(struct fm_pool *pool, struct fm_task *task, int64_t result)
{
	if (task->request.op == FM_QUEUE_ACQUIRE && result > 0)
		fm_block_release(pool, task->blocks, (size_t)result);
}
