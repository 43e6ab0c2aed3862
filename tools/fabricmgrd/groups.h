/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pools that the daemon runs: one for each sharing group, with a thread, a socket and a Redis
 * front end of its own. Called by main.c, control.c and metrics.c. Invariant: nothing of one pool,
 * neither memory nor descriptors, is another's; when one ends, all end.
 */
#ifndef FABRICMGRD_GROUPS_H
#define FABRICMGRD_GROUPS_H

#include <pthread.h>

#include "settings.h"

struct groups;

struct pool_run {
	const char *name; /* of the group */
	struct groups *groups;
	struct settings *settings; /* of the group */
	struct fm_server *server;
	struct redis *redis; /* NULL: none */
	pthread_t thread;    /* of all but the first */
	bool has_thread;
	int err;
};

struct groups {
	struct pool_run list[SHARING_GROUPS_MAX]; /* the first one is that of [pool] */
	uint32_t n;
};

/* Whether the machine has what all of them need together, and says to @out (may be NULL) what. */
int groups_check(struct settings *settings, FILE *out);
/* Creates the pools and their front ends. What groups_finish() frees is valid after a failure. */
int groups_start(struct groups *groups, struct settings *settings);
/* Serves on this thread and on others, until one of them ends. */
int groups_run(struct groups *groups);
/* Asks all of them to end, from any thread. */
void groups_stop(struct groups *groups);
/* How the front ends ended. */
int groups_finish(struct groups *groups);

#endif
