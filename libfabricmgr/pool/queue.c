// SPDX-License-Identifier: Apache-2.0
/*
 * Submission and completion: requests go in, threads of the queue work on them, completions come
 * out with an eventfd. Any thread may call; it may call the rest of pool/. Invariant: each accepted
 * request has exactly one completion, and after that nobody touches the caller's memory for it.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "pool/queue.h"

struct fm_queue {
	struct fm_pool *pool; /* NULL once the pool was detached; changes without threads */
	struct fm_queue *next;
	uint32_t fork_value;
	int event;

	pthread_mutex_t lock; /* all below */
	pthread_cond_t work_came, keeper_turn, touched, ended;
	struct fm_task *first, **last; /* waiting for a worker */
	struct fm_task *running;
	struct fm_queue_done *done; /* a ring of @depth: every request has its place */
	uint32_t depth, done_first, done_count;
	uint32_t outstanding; /* submitted and not collected */
	uint64_t next_id, keeper_until;
	bool is_stopping;
	uint32_t n_threads;
	pthread_t threads[FM_QUEUE_WORKERS_MAX + 1];
};

/* ---- completions ---- */

/* lock. */
static void post(struct fm_queue *queue, const struct fm_task *task, int64_t result)
{
	uint64_t one = 1;

	queue->done[(queue->done_first + queue->done_count++) % queue->depth] =
		(struct fm_queue_done){
			.id = task->id, .user_data = task->request.user_data, .result = result};
	/* It fails only where the counter is full, and then it is readable already. */
	if (write(queue->event, &one, sizeof(one)) < 0)
		errno = 0;
	pthread_cond_broadcast(&queue->ended);
}

/* lock. The first of a list that has @id, taken out of it; NULL: none. */
static struct fm_task *take(struct fm_task **list, uint64_t id)
{
	for (struct fm_task **link = list; *link; link = &(*link)->next)
		if ((*link)->id == id) {
			struct fm_task *task = *link;

			*link = task->next;
			return task;
		}
	return NULL;
}

/* lock. Out of those that wait. */
static struct fm_task *take_waiting(struct fm_queue *queue, uint64_t id)
{
	struct fm_task *task = take(&queue->first, id);

	queue->last = &queue->first;
	while (*queue->last)
		queue->last = &(*queue->last)->next;
	return task;
}

/* lock. Ends a request that a worker has; the worker finds out. */
static void cancel_running(struct fm_queue *queue, struct fm_task *task)
{
	task->is_cancelled = true;
	task->is_awaited = true;
	while (task->is_touching)
		pthread_cond_wait(&queue->touched, &queue->lock);
	task->is_awaited = false;
	pthread_cond_broadcast(&queue->touched);
	post(queue, task, FM_ERR_CANCELLED);
}

bool fm_task_enter(void *context)
{
	struct fm_task *task = context;

	pthread_mutex_lock(&task->queue->lock);
	task->is_touching = !task->is_cancelled;
	pthread_mutex_unlock(&task->queue->lock);
	return task->is_touching;
}

void fm_task_leave(void *context)
{
	struct fm_task *task = context;

	pthread_mutex_lock(&task->queue->lock);
	task->is_touching = false;
	if (task->is_awaited)
		pthread_cond_broadcast(&task->queue->touched);
	pthread_mutex_unlock(&task->queue->lock);
}

/* ---- threads ---- */

static void *work(void *context)
{
	struct fm_queue *queue = context;

	pthread_mutex_lock(&queue->lock);
	while (!queue->is_stopping) {
		struct fm_task *task = queue->first;
		int64_t result = FM_ERR_DEADLINE;
		bool is_begun;

		if (!task) {
			pthread_cond_wait(&queue->work_came, &queue->lock);
			continue;
		}
		take_waiting(queue, task->id);
		task->next = queue->running;
		queue->running = task;
		pthread_mutex_unlock(&queue->lock);
		is_begun = fm_clock_ns() < task->deadline;
		if (is_begun)
			result = fm_task_run(queue->pool, task);
		pthread_mutex_lock(&queue->lock);
		while (task->is_awaited)
			pthread_cond_wait(&queue->touched, &queue->lock);
		take(&queue->running, task->id);
		if (task->is_cancelled) {
			fm_task_undo(queue->pool, task, result);
		} else {
			if (is_begun)
				fm_task_deliver(task);
			post(queue, task, result);
		}
		free(task);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / FM_NS_PER_S),
				 .tv_nsec = (long)(ns % FM_NS_PER_S)};
}

/* lock. Ends what has waited too long for a worker; when the next one will have. */
static uint64_t expire(struct fm_queue *queue)
{
	uint64_t now = fm_clock_ns(), next = UINT64_MAX;
	struct fm_task *task, *after;

	for (task = queue->first; task; task = after) {
		after = task->next;
		if (task->deadline <= now) {
			take_waiting(queue, task->id);
			post(queue, task, FM_ERR_DEADLINE);
			free(task);
		} else if (task->deadline < next) {
			next = task->deadline;
		}
	}
	return next;
}

/* Sees to the deadlines while every worker may be waiting for the daemon. */
static void *keep_deadlines(void *context)
{
	struct fm_queue *queue = context;

	pthread_mutex_lock(&queue->lock);
	while (!queue->is_stopping) {
		struct timespec until;

		queue->keeper_until = expire(queue);
		until = time_of(queue->keeper_until);
		if (queue->keeper_until == UINT64_MAX)
			pthread_cond_wait(&queue->keeper_turn, &queue->lock);
		else
			pthread_cond_timedwait(&queue->keeper_turn, &queue->lock, &until);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

/* Threads of a library take no signals of the program's. */
static int start_threads(struct fm_queue *queue, uint32_t workers)
{
	sigset_t all, before;
	int err = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!err && queue->n_threads <= workers) {
		err = pthread_create(&queue->threads[queue->n_threads], NULL,
				     queue->n_threads ? work : keep_deadlines, queue);
		queue->n_threads += !err;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err ? fm_fail(FM_ERR_NO_MEMORY, "a thread for a queue: %s", strerror(err)) : 0;
}

/* ---- create, stop, destroy ---- */

static void cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t clock;

	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &clock);
	pthread_condattr_destroy(&clock);
}

/* lock. A running request that nobody has cancelled. */
static struct fm_task *wanted(const struct fm_queue *queue)
{
	struct fm_task *task = queue->running;

	while (task && task->is_cancelled)
		task = task->next;
	return task;
}

/* Cancels all and ends the threads. */
static void stop(struct fm_queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->is_stopping = true;
	while (queue->first) {
		struct fm_task *task = take_waiting(queue, queue->first->id);

		post(queue, task, FM_ERR_CANCELLED);
		free(task);
	}
	/* From the start each time: the lock is given up. */
	for (struct fm_task *task = wanted(queue); task; task = wanted(queue))
		cancel_running(queue, task);
	pthread_cond_broadcast(&queue->work_came);
	pthread_cond_broadcast(&queue->keeper_turn);
	pthread_mutex_unlock(&queue->lock);
	for (uint32_t i = 0; i < queue->n_threads; i++)
		pthread_join(queue->threads[i], NULL);
	queue->n_threads = 0;
	queue->pool = NULL;
}

static void queue_free(struct fm_queue *queue)
{
	if (queue->event >= 0)
		close(queue->event);
	pthread_mutex_destroy(&queue->lock);
	pthread_cond_destroy(&queue->work_came);
	pthread_cond_destroy(&queue->keeper_turn);
	pthread_cond_destroy(&queue->touched);
	pthread_cond_destroy(&queue->ended);
	free(queue->done);
	free(queue);
}

int fm_queue_create(struct fm_pool *pool, const struct fm_queue_options *options,
		    struct fm_queue **out)
{
	uint32_t depth = options && options->depth ? options->depth : FM_QUEUE_DEPTH;
	uint32_t workers = options && options->workers ? options->workers : FM_QUEUE_WORKERS;
	struct fm_queue *queue;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!out || (options && (options->size < sizeof(*options) || options->flags)))
		return fm_fail(FM_ERR_INVALID, "fm_queue_options: size or flags are not of this "
					       "version");
	if (depth > FM_QUEUE_DEPTH_MAX || workers > FM_QUEUE_WORKERS_MAX)
		return fm_fail(FM_ERR_LIMIT, "a queue has at most %u requests and %u threads",
			       FM_QUEUE_DEPTH_MAX, FM_QUEUE_WORKERS_MAX);
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a queue");
	queue->pool = pool;
	queue->fork_value = pool->fork_value;
	queue->last = &queue->first;
	queue->depth = depth;
	queue->keeper_until = UINT64_MAX;
	queue->next_id = 1;
	pthread_mutex_init(&queue->lock, NULL);
	cond_init(&queue->work_came);
	cond_init(&queue->keeper_turn);
	cond_init(&queue->touched);
	cond_init(&queue->ended);
	queue->done = calloc(depth, sizeof(*queue->done));
	queue->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!queue->done)
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory for %u completions", depth);
	else if (queue->event < 0)
		err = fm_fail(fm_error_of(errno), "eventfd: %s", strerror(errno));
	else
		err = start_threads(queue, workers);
	if (err) {
		stop(queue);
		queue_free(queue);
		return err;
	}
	pthread_mutex_lock(&pool->queue_lock);
	queue->next = pool->queues;
	pool->queues = queue;
	pthread_mutex_unlock(&pool->queue_lock);
	*out = queue;
	return 0;
}

void fm_queues_stop(struct fm_pool *pool)
{
	bool is_ours = !fm_pool_check(pool, false);

	/* In a child there are no threads, and the lock may be held by one of them. */
	if (is_ours)
		pthread_mutex_lock(&pool->queue_lock);
	for (struct fm_queue *queue = pool->queues; queue; queue = queue->next) {
		if (is_ours)
			stop(queue);
		queue->pool = NULL;
	}
	if (is_ours)
		pthread_mutex_unlock(&pool->queue_lock);
}

static void unlink_queue(struct fm_queue *queue)
{
	struct fm_queue **link = &queue->pool->queues;

	while (*link != queue)
		link = &(*link)->next;
	*link = queue->next;
}

void fm_queue_destroy(struct fm_queue *queue)
{
	if (!queue)
		return;
	if (!fm_fork_is_ours(queue->fork_value)) {
		/* No threads are here, and they may hold its locks and the pool's. */
		if (queue->pool)
			unlink_queue(queue);
		close(queue->event);
		free(queue->done);
		free(queue);
		return;
	}
	if (queue->pool) {
		struct fm_pool *pool = queue->pool;

		pthread_mutex_lock(&pool->queue_lock);
		unlink_queue(queue);
		pthread_mutex_unlock(&pool->queue_lock);
		stop(queue);
	}
	queue_free(queue);
}

int fm_queue_fd(const struct fm_queue *queue)
{
	return queue ? queue->event : fm_fail(FM_ERR_INVALID, "no queue was given");
}

/* ---- the calls ---- */

static int check(const struct fm_queue *queue)
{
	if (!queue)
		return fm_fail(FM_ERR_INVALID, "no queue was given");
	if (!fm_fork_is_ours(queue->fork_value))
		return fm_fail(FM_ERR_FORKED, "this queue belongs to the parent process");
	return 0;
}

int fm_queue_submit(struct fm_queue *queue, const struct fm_queue_request *request, uint64_t *id)
{
	uint64_t now = fm_clock_ns(), wait;
	struct fm_task *task;
	int err = check(queue);

	if (!err)
		err = fm_task_create(request, &task);
	if (err)
		return err;
	wait = request->deadline_ns ? request->deadline_ns : FM_DEADLINE_NS;
	task->deadline = wait > UINT64_MAX - now ? UINT64_MAX : now + wait;
	task->queue = queue;
	pthread_mutex_lock(&queue->lock);
	if (queue->is_stopping || queue->outstanding == queue->depth) {
		bool is_full = !queue->is_stopping;

		pthread_mutex_unlock(&queue->lock);
		free(task);
		return is_full ? fm_fail(FM_ERR_BUSY,
					 "%u requests are not collected yet: collect some, or "
					 "create the queue with more depth",
					 queue->depth)
			       : fm_fail(FM_ERR_DISCONNECTED,
					 "the pool of this queue was detached");
	}
	queue->outstanding++;
	task->id = queue->next_id++;
	if (id)
		*id = task->id;
	*queue->last = task;
	queue->last = &task->next;
	if (task->deadline < queue->keeper_until)
		pthread_cond_signal(&queue->keeper_turn);
	pthread_cond_signal(&queue->work_came);
	pthread_mutex_unlock(&queue->lock);
	return 0;
}

/* lock. */
static int64_t collect(struct fm_queue *queue, struct fm_queue_done *out, size_t max)
{
	uint64_t count;
	size_t n = 0;

	/* Nothing to read is as good: somebody else read it. */
	if (read(queue->event, &count, sizeof(count)) < 0)
		count = 1;
	for (; n < max && queue->done_count; n++, queue->done_count--, queue->outstanding--) {
		out[n] = queue->done[queue->done_first];
		queue->done_first = (queue->done_first + 1) % queue->depth;
	}
	count = 1;
	if (queue->done_count && write(queue->event, &count, sizeof(count)) < 0)
		return fm_fail(FM_ERR_IO, "the eventfd of a queue: %s", strerror(errno));
	return (int64_t)n;
}

int64_t fm_queue_complete(struct fm_queue *queue, struct fm_queue_done *out, size_t max)
{
	int64_t n = check(queue);

	if (n)
		return n;
	if (max && !out)
		return fm_fail(FM_ERR_INVALID, "no room for completions was given");
	pthread_mutex_lock(&queue->lock);
	n = collect(queue, out, max);
	pthread_mutex_unlock(&queue->lock);
	return n;
}

int64_t fm_queue_wait(struct fm_queue *queue, struct fm_queue_done *out, size_t max,
		      uint64_t deadline_ns)
{
	uint64_t now = fm_clock_ns(), wait = deadline_ns ? deadline_ns : FM_DEADLINE_NS;
	struct timespec until = time_of(wait > UINT64_MAX - now ? UINT64_MAX : now + wait);
	int64_t n = check(queue);
	int timed_out = 0;

	if (n)
		return n;
	if (!max || !out)
		return fm_fail(FM_ERR_INVALID, "no room for completions was given");
	pthread_mutex_lock(&queue->lock);
	while (queue->outstanding && !queue->done_count && !timed_out)
		timed_out = pthread_cond_timedwait(&queue->ended, &queue->lock, &until);
	n = collect(queue, out, max);
	if (!n && queue->outstanding)
		n = fm_fail(FM_ERR_DEADLINE, "no request has ended in that time");
	pthread_mutex_unlock(&queue->lock);
	return n;
}

int fm_queue_cancel(struct fm_queue *queue, uint64_t id)
{
	struct fm_task *task;
	int err = check(queue);

	if (err)
		return err;
	pthread_mutex_lock(&queue->lock);
	task = take_waiting(queue, id);
	if (task) {
		post(queue, task, FM_ERR_CANCELLED);
		free(task);
	} else {
		for (task = queue->running; task && task->id != id; task = task->next)
			;
		if (task && !task->is_cancelled)
			cancel_running(queue, task);
		else
			err = FM_ERR_NOT_FOUND;
	}
	pthread_mutex_unlock(&queue->lock);
	return err ? fm_fail(err, "request %llu has ended already, or never was",
			     (unsigned long long)id)
		   : 0;
}
