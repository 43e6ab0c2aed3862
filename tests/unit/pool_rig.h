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

struct pool_rig {
	struct fm_server *server;
	pthread_t thread;
	char folder[40], socket[64];
	uint32_t entries;
};

/* @entries: blocks that it holds at most. */
void pool_rig_start(struct pool_rig *rig, uint32_t entries);
/* A new pool on the same socket: its clients lose theirs. */
void pool_rig_restart(struct pool_rig *rig);
void pool_rig_stop(struct pool_rig *rig);

#endif
