/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the front end counts, and its Prometheus text. Written by both threads of the front end,
 * each through these functions; read by the HTTP thread. Invariant: every field is under `lock`.
 */
#ifndef FM_ENGINE_METRICS_H
#define FM_ENGINE_METRICS_H

#include <pthread.h>

#include "core/router_core.h"
#include "http/front_end.h"

#define FM_METRICS_CODES   16
#define FM_METRICS_BUCKETS 12

struct fm_worker_state {
	char address[128];
	char state[200]; /* "up", or why not */
	bool is_up;
	enum fm_role role;
	uint32_t pid, running, waiting;
};

struct fm_metrics {
	pthread_mutex_t lock;
	struct {
		int code;
		uint64_t count;
	} codes[FM_METRICS_CODES];
	uint64_t prompt_tokens, cached_tokens, generated_tokens;
	uint64_t buckets[FM_METRICS_BUCKETS + 1], ttft_count;
	double ttft_sum;
	struct fm_router_counts counts;
	struct fm_worker_state workers[FM_FRONT_END_WORKERS_MAX];
	size_t n_workers;
	bool is_ready, is_stopping, pool_attached, pool_wanted;
	uint32_t context; /* least of the connected workers'; 0: none seen yet */
};

void fm_metrics_init(struct fm_metrics *metrics);
void fm_metrics_destroy(struct fm_metrics *metrics);
void fm_metrics_count_code(struct fm_metrics *metrics, int code);
void fm_metrics_count_tokens(struct fm_metrics *metrics, uint64_t prompt, uint64_t cached,
			     uint64_t generated);
void fm_metrics_observe_ttft(struct fm_metrics *metrics, double seconds);
/* Prometheus text; owned by the caller, free(); NULL: out of memory. */
char *fm_metrics_text(struct fm_metrics *metrics, size_t *len);

#endif
