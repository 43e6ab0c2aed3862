// SPDX-License-Identifier: Apache-2.0
/*
 * The event loop on io_uring (one-shot polls, armed again and waited for in one system call), with
 * poll(2) as the rung below. Drivers call it from one thread.
 * Invariant: a removed watch is freed only when no completion can name it any more.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <liburing.h>

#include <fabricmgr.h>

#include "base/loop.h"

struct fm_watch {
	struct fm_watch *prev, *next;
	fm_watch_fn ready;
	void *context;
	int fd;
	bool is_armed; /* io_uring: a poll is in flight */
	bool is_dead;
};

struct fm_loop {
	struct io_uring ring;
	bool has_ring;
	struct fm_watch *watches;
	uint32_t count;
	struct pollfd *polls; /* poll(2): rebuilt at each wait */
	struct fm_watch **polled;
	uint32_t capacity;
	char reason[128];
};

int fm_loop_create(struct fm_loop **out)
{
	struct fm_loop *loop = calloc(1, sizeof(*loop));
	const char *forced = getenv("FABRICMGR_LOOP");
	int err;

	if (!loop)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for an event loop");
	if (forced && !strcmp(forced, "poll")) {
		snprintf(loop->reason, sizeof(loop->reason), "FABRICMGR_LOOP=poll asks for it");
	} else {
		err = io_uring_queue_init(256, &loop->ring, IORING_SETUP_CLAMP);
		loop->has_ring = !err;
		if (err)
			snprintf(loop->reason, sizeof(loop->reason),
				 "io_uring_setup: %s (is it allowed here? "
				 "kernel.io_uring_disabled, seccomp)",
				 strerror(-err));
	}
	*out = loop;
	return 0;
}

const char *fm_loop_rung(const struct fm_loop *loop, const char **reason)
{
	if (reason)
		*reason = loop->reason;
	return loop->has_ring ? "io_uring" : "poll";
}

static void watch_free(struct fm_loop *loop, struct fm_watch *watch)
{
	if (watch->prev)
		watch->prev->next = watch->next;
	else
		loop->watches = watch->next;
	if (watch->next)
		watch->next->prev = watch->prev;
	loop->count--;
	free(watch);
}

void fm_loop_destroy(struct fm_loop *loop)
{
	if (!loop)
		return;
	if (loop->has_ring)
		io_uring_queue_exit(&loop->ring);
	while (loop->watches)
		watch_free(loop, loop->watches);
	free(loop->polls);
	free(loop->polled);
	free(loop);
}

static struct io_uring_sqe *take_sqe(struct fm_loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (!sqe) {
		io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	return sqe;
}

static void watch_arm(struct fm_loop *loop, struct fm_watch *watch)
{
	struct io_uring_sqe *sqe = take_sqe(loop);

	if (!sqe)
		return; /* tried again at the next wait */
	io_uring_prep_poll_add(sqe, watch->fd, POLLIN);
	io_uring_sqe_set_data(sqe, watch);
	watch->is_armed = true;
}

int fm_loop_add(struct fm_loop *loop, int fd, fm_watch_fn ready, void *context,
		struct fm_watch **out)
{
	struct fm_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to watch a descriptor");
	watch->fd = fd;
	watch->ready = ready;
	watch->context = context;
	watch->next = loop->watches;
	if (watch->next)
		watch->next->prev = watch;
	loop->watches = watch;
	loop->count++;
	*out = watch;
	return 0;
}

void fm_loop_remove(struct fm_loop *loop, struct fm_watch *watch)
{
	struct io_uring_sqe *sqe;

	if (!watch)
		return;
	watch->is_dead = true;
	if (!watch->is_armed)
		return; /* freed by the next wait */
	sqe = take_sqe(loop);
	if (sqe) {
		io_uring_prep_poll_remove(sqe, (uint64_t)(uintptr_t)watch);
		io_uring_sqe_set_data(sqe, NULL);
		/* At once: the caller closes the descriptor next, and the poll holds its file. */
		io_uring_submit(&loop->ring);
	}
}

static void sweep(struct fm_loop *loop)
{
	struct fm_watch *watch, *next;

	for (watch = loop->watches; watch; watch = next) {
		next = watch->next;
		if (watch->is_dead && !watch->is_armed)
			watch_free(loop, watch);
		else if (loop->has_ring && !watch->is_armed)
			watch_arm(loop, watch);
	}
}

static int wait_ring(struct fm_loop *loop, uint64_t timeout_ns)
{
	struct __kernel_timespec timeout = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000ull),
		.tv_nsec = (int64_t)(timeout_ns % 1000000000ull),
	};
	struct io_uring_cqe *cqe;
	int err;

	err = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1,
					       timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
	if (err < 0 && err != -ETIME && err != -EINTR && err != -EAGAIN && err != -EBUSY)
		return fm_fail(FM_ERR_IO, "waiting on io_uring: %s", strerror(-err));
	while (!io_uring_peek_cqe(&loop->ring, &cqe)) {
		struct fm_watch *watch = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&loop->ring, cqe);
		if (!watch)
			continue;
		watch->is_armed = false;
		if (!watch->is_dead && result != -ECANCELED)
			watch->ready(watch->context);
	}
	return 0;
}

static int wait_poll(struct fm_loop *loop, uint64_t timeout_ns)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(timeout_ns / 1000000000ull),
		.tv_nsec = (long)(timeout_ns % 1000000000ull),
	};
	uint32_t n = 0;

	if (loop->count > loop->capacity) {
		uint32_t capacity = loop->count * 2;
		void *polls = realloc(loop->polls, capacity * sizeof(*loop->polls));
		void *polled;

		if (polls)
			loop->polls = polls;
		polled = realloc(loop->polled, capacity * sizeof(*loop->polled));
		if (polled)
			loop->polled = polled;
		if (!polls || !polled)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory to poll %u descriptors",
				       capacity);
		loop->capacity = capacity;
	}
	for (struct fm_watch *watch = loop->watches; watch; watch = watch->next) {
		loop->polls[n] = (struct pollfd){.fd = watch->fd, .events = POLLIN};
		loop->polled[n++] = watch;
	}
	if (ppoll(loop->polls, n, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL) < 0) {
		if (errno == EINTR)
			return 0;
		return fm_fail(FM_ERR_IO, "poll: %s", strerror(errno));
	}
	/* Dead ones are freed by the next sweep only, so the pointers stay good. */
	for (uint32_t i = 0; i < n; i++)
		if (loop->polls[i].revents && !loop->polled[i]->is_dead)
			loop->polled[i]->ready(loop->polled[i]->context);
	return 0;
}

int fm_loop_wait(struct fm_loop *loop, uint64_t timeout_ns)
{
	sweep(loop);
	return loop->has_ring ? wait_ring(loop, timeout_ns) : wait_poll(loop, timeout_ns);
}
