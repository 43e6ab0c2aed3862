/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker: the worker protocol (Documentation/worker-protocol.md) on one side, an engine on the
 * other. Used by `fabric-engine worker` and, over a socket pair, by `serve`.
 */
#ifndef FM_ENGINE_WORKER_H
#define FM_ENGINE_WORKER_H

#include "worker/engine.h"

struct fm_worker_options {
	struct fm_engine_options engine;
	const char *role;   /* "prefill", "decode" or "both" */
	const char *listen; /* "unix:/path" or "host:port" (loopback); NULL: only @fd */
	int fd;		    /* a connected front end, or -1 */
	int stop_fd;	    /* readable: answer what runs with a retryable error and return */
	bool say_ready;	    /* print "ready" on standard output once it serves */
};

/* Serves until stop_fd becomes readable, or (without listen) the front end hangs up. */
int fm_worker_run(const struct fm_worker_options *options);

#endif
