/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front door: OpenAI-compatible HTTP on one side, workers (Documentation/worker-protocol.md) on
 * the other. Used by `router` (workers by address) and by `serve` (one worker of role "both" over a
 * socket pair). Invariant: every request that was accepted gets exactly one end: its answer, an
 * OpenAI error object, or the client's own departure.
 */
#ifndef FM_ENGINE_FRONT_END_H
#define FM_ENGINE_FRONT_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_FRONT_END_WORKERS_MAX     64	  /* a node's worth; each costs one socket in poll(2) */
#define FM_FRONT_END_REQUESTS_MAX    4096 /* ceiling of --max-requests */
#define FM_FRONT_END_BODY_MAX	     (8u << 20) /* bytes of a request body; beyond: 413 */
#define FM_FRONT_END_UNSENT_MAX	     (1u << 20) /* bytes that a slow reader may leave unread */
#define FM_FRONT_END_CONNECTIONS_MAX 1024	/* open client connections */

struct fm_front_end_options {
	const char *model_path; /* GGUF: tokenizer and chat template are read from it */
	const char
		*model_name; /* what /v1/models shows; NULL: the file's name without its suffix */
	const char *listen;  /* "127.0.0.1:8080", "[::1]:0", "8080"; port 0: any free one */
	bool tls_by_proxy;   /* --tls terminated-by-proxy: may listen off loopback */

	const char *const
		*workers; /* addresses: "unix:/path" or "host:port"; reconnected for ever */
	size_t n_workers;
	const int *worker_fds; /* connected sockets (owned by the callee); not reconnected */
	size_t n_worker_fds;

	const char *pool_socket; /* to ask how much of a prompt is cached; NULL: never ask */
	uint32_t bypass_tokens;	 /* uncached tokens that the decode worker prefills itself */
	double bypass_ratio;	 /* or this share of the prompt (and below 2048 tokens) */
	uint32_t deadline_s;	 /* longest time without progress before a request fails */
	uint32_t max_requests;	 /* choices in flight; beyond: 429 */
	/* An eventfd that counts the wishes to stop; -1: none. The first refuses what comes (503)
	 * and gives what runs drain_s; the second, or the time, ends what runs with 503. */
	int stop_fd;
	uint32_t drain_s;
};

void fm_front_end_options_init(struct fm_front_end_options *options);
/* Whether the addresses can be used at all: 0, or negative with the detail naming the flag. */
int fm_front_end_options_check(const struct fm_front_end_options *options);

/*
 * Serves until it was stopped by stop_fd, or (with worker_fds only) the last worker hung up. Prints
 * "listening on http://HOST:PORT", and "ready" once the workers cover a full path. Returns 0 or a
 * negative fm_err with its detail set. Blocks SIGPIPE for the process.
 */
int fm_front_end_run(const struct fm_front_end_options *options);

#endif
