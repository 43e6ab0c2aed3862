/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads with a cheap barrier: a forward pass has hundreds of short jobs, and several
 * engines may share the CPUs, so a thread without work spins for some microseconds and then sleeps,
 * and a job never waits for a thread that has not taken a part of it. Invariant: the job's
 * description is read only by holders of a chunk.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "threads.h"

enum {
	THREADS_MAX = 64,
	CHUNKS_PER_THREAD = 4, /* enough to even out a thread that lost its CPU for a while */
	SPINS = 400,	       /* of some 60 ns: longer than the gaps between the jobs of a pass */
};

struct fm_threads {
	/* Job number (high 32 bits), next chunk (16), number of chunks (16). A chunk is taken by
	 * compare and swap; release by the publisher pairs with the taker's acquire, so that taking
	 * one makes the description below visible. */
	_Alignas(64) _Atomic uint64_t ticket;
	/* Chunks done: release by the worker pairs with the acquire of fm_threads_run(). */
	_Alignas(64) _Atomic uint32_t done;
	/* Sleeping workers wait here; changed with every job. Ordered (seq_cst) against sleepers:
	 * either the sleeper sees the new number, or the publisher sees the sleeper. */
	_Alignas(64) _Atomic uint32_t bell;
	_Atomic uint32_t sleepers;
	/* fm_threads_run() sleeps on done. Ordered (seq_cst) against done: either the last worker
	 * sees it set, or the sleeper sees the last number. */
	_Atomic bool is_waiting;
	_Atomic bool is_closing; /* seq_cst, before the bell rings; a worker looks after it slept */

	/* The job. */
	fm_threads_work *work;
	void *argument;
	size_t n_units;

	unsigned int n;
	pthread_t threads[THREADS_MAX];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Takes and does chunks until none is left. Returns whether there was one. */
static bool do_chunks(struct fm_threads *threads)
{
	uint64_t ticket = atomic_load_explicit(&threads->ticket, memory_order_acquire);
	bool found = false;

	for (;;) {
		uint32_t next = ticket >> 16 & 0xffff, n = ticket & 0xffff;

		if (next >= n)
			return found;
		if (!atomic_compare_exchange_weak_explicit(
			    &threads->ticket, &ticket, ticket + (1u << 16), memory_order_acquire,
			    memory_order_acquire))
			continue;
		threads->work(threads->argument, threads->n_units * next / n,
			      threads->n_units * (next + 1) / n);
		found = true;
		/* The last one: the caller may be asleep (seq_cst with is_waiting). */
		if (atomic_fetch_add(&threads->done, 1) + 1 == n &&
		    atomic_load(&threads->is_waiting))
			futex_wake(&threads->done, 1);
		ticket = atomic_load_explicit(&threads->ticket, memory_order_acquire);
	}
}

static bool has_work(struct fm_threads *threads)
{
	/* Relaxed: do_chunks() acquires. A job that this misses has rung the bell. */
	uint64_t ticket = atomic_load_explicit(&threads->ticket, memory_order_relaxed);

	return (ticket >> 16 & 0xffff) < (ticket & 0xffff);
}

static void *worker_main(void *argument)
{
	struct fm_threads *threads = argument;

	for (int spins = 0; !atomic_load(&threads->is_closing);) {
		uint32_t bell = atomic_load(&threads->bell);

		if (do_chunks(threads)) {
			spins = 0;
		} else if (spins++ < SPINS) {
			pause_briefly();
		} else {
			atomic_fetch_add(&threads->sleepers, 1);
			if (!has_work(threads) && !atomic_load(&threads->is_closing))
				futex_wait(&threads->bell, bell);
			atomic_fetch_sub(&threads->sleepers, 1);
			spins = 0;
		}
	}
	return NULL;
}

static void ring(struct fm_threads *threads)
{
	atomic_fetch_add(&threads->bell, 1);
	if (atomic_load(&threads->sleepers))
		futex_wake(&threads->bell, THREADS_MAX);
}

static unsigned int usable_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return (unsigned int)CPU_COUNT(&set);
}

int fm_threads_create(unsigned int n, struct fm_threads **out)
{
	struct fm_threads *threads;
	int error;

	*out = NULL;
	if (n > THREADS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%u threads asked for: the limit is %d", n,
			       THREADS_MAX);
	if (n == 0)
		n = usable_cpus();
	if (n > THREADS_MAX)
		n = THREADS_MAX;
	threads = aligned_alloc(64, (sizeof(*threads) + 63) / 64 * 64);
	if (!threads)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the thread pool");
	memset(threads, 0, sizeof(*threads));
	for (threads->n = 1; threads->n < n; threads->n++) {
		error = pthread_create(&threads->threads[threads->n], NULL, worker_main, threads);
		if (error) {
			fm_threads_destroy(threads);
			return fm_fail(FM_ERR_IO, "could not start thread %u of %u: %s", n, n,
				       strerror(error));
		}
	}
	*out = threads;
	return 0;
}

void fm_threads_destroy(struct fm_threads *threads)
{
	if (!threads)
		return;
	atomic_store(&threads->is_closing, true);
	ring(threads);
	for (unsigned int i = 1; i < threads->n; i++)
		pthread_join(threads->threads[i], NULL);
	free(threads);
}

unsigned int fm_threads_count(const struct fm_threads *threads)
{
	return threads->n;
}

/* Waits until @n chunks are done. */
static void wait_done(struct fm_threads *threads, uint32_t n)
{
	uint32_t done;

	for (int spins = 0; spins < SPINS; spins++) {
		if (atomic_load_explicit(&threads->done, memory_order_acquire) == n)
			return;
		pause_briefly();
	}
	atomic_store(&threads->is_waiting, true);
	while ((done = atomic_load(&threads->done)) != n)
		futex_wait(&threads->done, done);
	atomic_store(&threads->is_waiting, false);
}

void fm_threads_run(struct fm_threads *threads, size_t n_units, size_t grain, fm_threads_work *work,
		    void *argument)
{
	size_t n_chunks = n_units / (grain ? grain : 1);
	uint64_t ticket;

	if (n_chunks > threads->n * CHUNKS_PER_THREAD)
		n_chunks = threads->n * CHUNKS_PER_THREAD;
	if (n_chunks <= 1 || threads->n == 1) {
		if (n_units)
			work(argument, 0, n_units);
		return;
	}
	/* No chunk of the job before is held, so nobody reads the description. */
	threads->work = work;
	threads->argument = argument;
	threads->n_units = n_units;
	atomic_store_explicit(&threads->done, 0, memory_order_relaxed);
	ticket = atomic_load_explicit(&threads->ticket, memory_order_relaxed);
	atomic_store_explicit(&threads->ticket, ((ticket >> 32) + 1) << 32 | n_chunks,
			      memory_order_release);
	ring(threads);
	do_chunks(threads);
	wait_done(threads, (uint32_t)n_chunks);
}
