// SPDX-License-Identifier: Apache-2.0
/*
 * A page that the kernel wipes in a child, with the number of the process that wrote it. Any thread
 * may call. Invariant: the page holds 0 from fork() until the child asks for its own number.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "base/fork.h"

/* Relaxed, all of them, and without pairs: changed by fork(), before the child's only thread runs,
 * and by whoever asks first in a process. */
static _Atomic uint32_t *fork_page;
static _Atomic uint32_t fork_fallback; /* where the kernel wipes no pages */
static _Atomic uint32_t fork_values;   /* the highest given; a child goes on from there */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void on_fork(void)
{
	atomic_store_explicit(&fork_fallback, 0, memory_order_relaxed);
}

static void fork_setup(void)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page != MAP_FAILED && !madvise(page, 4096, MADV_WIPEONFORK)) {
		fork_page = page;
	} else {
		if (page != MAP_FAILED)
			munmap(page, 4096);
		pthread_atfork(NULL, NULL, on_fork);
		fork_page = &fork_fallback;
	}
}

uint32_t fm_fork_value(void)
{
	uint32_t none = 0, fresh;

	pthread_once(&fork_once, fork_setup);
	fresh = 1 + atomic_fetch_add_explicit(&fork_values, 1, memory_order_relaxed);
	if (atomic_compare_exchange_strong_explicit(fork_page, &none, fresh, memory_order_relaxed,
						    memory_order_relaxed))
		return fresh;
	return none;
}

bool fm_fork_is_ours(uint32_t value)
{
	return atomic_load_explicit(fork_page, memory_order_relaxed) == value;
}
