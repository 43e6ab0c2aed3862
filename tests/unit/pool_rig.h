/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool server on a thread of the test, on a socket in a folder of its own, that can be made small
 * and be restarted. For tests. Failures end the test.
 */
#ifndef FM_TESTS_POOL_RIG_H
#define FM_TESTS_POOL_RIG_H

#include <pthread.h>
#include <stdint.h>

#include <fabricmgr.h>

#include "scratch.h"

struct pool_rig {
	struct fm_server *server;
	pthread_t thread;
	char folder[SCRATCH_MAX], socket[SCRATCH_MAX + 8], log[SCRATCH_MAX + 8];
	struct fm_server_options options;
};

/* What @options leaves out: 8 MiB of plain memory, a socket and, with nvme_bytes, a log in @folder,
 * a quarantine of a millisecond. What it points to lives as long as @rig. */
void pool_rig_start(struct pool_rig *rig, const struct fm_server_options *options);
/* The same, of @entries blocks at most. */
void pool_rig_start_small(struct pool_rig *rig, uint32_t entries);
/* A new pool on the same socket: its clients lose theirs. */
void pool_rig_restart(struct pool_rig *rig);
/* Serves on after fm_server_stop() and the end of the thread. */
void pool_rig_serve(struct pool_rig *rig);
void pool_rig_stop(struct pool_rig *rig);

/* A client that needs no socket; its lease table has @leases places, 0: as many as usual. */
struct fm_pool *pool_rig_attach(struct pool_rig *rig, uint32_t flags, uint32_t leases);

#endif
