/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's worker threads: one job at a time, cut into chunks that whoever is free takes. Called
 * by the model's steps only. Invariant: a unit of work writes memory of its own and is done whole
 * by one thread, so results never depend on how many threads there are or who took what.
 */
#ifndef FM_ENGINE_MODEL_THREADS_H
#define FM_ENGINE_MODEL_THREADS_H

#include <stddef.h>

struct fm_threads;

/* Units first..end of a job. */
typedef void fm_threads_work(void *argument, size_t first, size_t end);

/* @n threads in all, the caller's own included; 0: as many as CPUs that this process may use. */
int fm_threads_create(unsigned int n, struct fm_threads **out);
void fm_threads_destroy(struct fm_threads *threads);
unsigned int fm_threads_count(const struct fm_threads *threads);

/* Runs @work over units 0..n_units and returns when all are done. Chunks hold at least @grain
 * units. */
void fm_threads_run(struct fm_threads *threads, size_t n_units, size_t grain, fm_threads_work *work,
		    void *argument);

#endif
