// SPDX-License-Identifier: Apache-2.0
/*
 * What this machine could do at most: the implementation of machine_limits.h. Called by the
 * benchmark. Invariant: a limit is measured on the same threads as what is compared with it, and
 * the best of some runs counts, since other work can only make one slower.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fabricmgr.h>
#include <kernels.h>

#include "machine_limits.h"
#include "model/threads.h"

enum { RUNS = 5, ROUNDS = 200000, PAGE = 4096 };

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

struct reading {
	const uint64_t *words;
	_Atomic uint64_t sum;
};

static void read_words(void *argument, size_t first, size_t end)
{
	struct reading *job = argument;
	const size_t words = PAGE / sizeof(uint64_t);
	uint64_t sums[32] = {0};

	for (size_t i = first * words; i < end * words; i += 32)
		for (size_t j = 0; j < 32; j++)
			sums[j] += job->words[i + j];
	for (size_t j = 0; j < 32; j++)
		job->sum += sums[j];
}

static int measure_reads(struct fm_threads *threads, uint64_t bytes, double *out)
{
	size_t n_pages = bytes / PAGE;
	struct reading job = {.words = aligned_alloc(PAGE, n_pages * PAGE)};

	if (!job.words)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to measure reads of %zu pages",
			       n_pages);
	memset((void *)job.words, 1, n_pages * PAGE);
	for (int i = 0; i < RUNS; i++) {
		double start = now_s(), rate;

		fm_threads_run(threads, n_pages, 64, read_words, &job);
		rate = (double)n_pages * PAGE / (now_s() - start);
		*out = rate > *out ? rate : *out;
	}
	free((void *)job.words);
	return 0;
}

struct multiplying {
	const struct fm_kernels *kernels;
	_Atomic uint64_t macs;
};

static void multiply(void *argument, size_t first, size_t end)
{
	struct multiplying *job = argument;

	job->macs += job->kernels->integer_peak((end - first) * ROUNDS);
}

static void measure_products(struct fm_threads *threads, const struct fm_kernels *kernels,
			     double *out)
{
	for (int i = 0; kernels->integer_peak && i < RUNS; i++) {
		struct multiplying job = {.kernels = kernels};
		double start = now_s(), rate;

		fm_threads_run(threads, 8 * (size_t)fm_threads_count(threads), 1, multiply, &job);
		rate = (double)job.macs / (now_s() - start);
		*out = rate > *out ? rate : *out;
	}
}

int fm_machine_limits_measure(unsigned int threads, const struct fm_kernels *kernels,
			      uint64_t bytes, struct fm_machine_limits *out)
{
	struct fm_threads *pool = NULL;
	int err = fm_threads_create(threads, &pool);

	*out = (struct fm_machine_limits){0};
	if (!err && bytes >= PAGE)
		err = measure_reads(pool, bytes, &out->bytes_per_s);
	if (!err)
		measure_products(pool, kernels, &out->macs_per_s);
	fm_threads_destroy(pool);
	return err;
}
