// SPDX-License-Identifier: Apache-2.0
/*
 * Runs an fm_server on a thread (see embedded_pool.h). Calls fabricmgr.h and pthreads only.
 * Invariant: the thread blocks all signals; they are the program's main loop's.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "embedded_pool.h"

struct fm_embedded_pool {
	struct fm_server *server;
	pthread_t thread;
};

static void *serve(void *argument)
{
	struct fm_embedded_pool *pool = argument;

	if (fm_server_run(pool->server))
		fm_log(FM_LOG_ERROR, FM2001 "the embedded pool stopped: %s", fm_error_detail());
	return NULL;
}

int fm_embedded_pool_start(uint64_t bytes, struct fm_embedded_pool **out)
{
	struct fm_server_options options = {.size = sizeof(options), .pool_bytes = bytes};
	struct fm_embedded_pool *pool = calloc(1, sizeof(*pool));
	sigset_t all, old;
	int err;

	if (!pool)
		return fm_fail(FM_ERR_NO_MEMORY, "embedded pool: out of memory");
	err = fm_server_create(&options, &pool->server);
	if (err) {
		free(pool);
		return err;
	}
	/* Signals are the main thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&pool->thread, NULL, serve, pool);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err) {
		fm_server_destroy(pool->server);
		free(pool);
		return fm_fail(FM_ERR_IO, "embedded pool: no thread: %s", strerror(err));
	}
	*out = pool;
	return 0;
}

int fm_embedded_pool_connect(struct fm_embedded_pool *pool, int *fd)
{
	return fm_server_connect(pool->server, fd);
}

void fm_embedded_pool_stop(struct fm_embedded_pool *pool)
{
	if (!pool)
		return;
	fm_server_stop(pool->server);
	pthread_join(pool->thread, NULL);
	fm_server_destroy(pool->server);
	free(pool);
}
