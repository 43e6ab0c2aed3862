// SPDX-License-Identifier: Apache-2.0
/* A pool server on a thread (see pool_rig.h). For tests only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "pool_rig.h"

#define POOL_BYTES (8ull << 20) /* the smallest; entries bound it further */

static void *serve(void *context)
{
	ck_assert_int_eq(fm_server_run(context), 0);
	return NULL;
}

static void serve_start(struct pool_rig *rig)
{
	struct fm_server_options options = {
		.size = sizeof(options),
		.pool_bytes = POOL_BYTES,
		.entries_max = rig->entries,
		.socket = rig->socket,
		.memory = "memfd",
		.quarantine_ns = 1000000,
	};

	ck_assert_msg(!fm_server_create(&options, &rig->server), "%s", fm_error_detail());
	ck_assert_int_eq(pthread_create(&rig->thread, NULL, serve, rig->server), 0);
}

static void serve_stop(struct pool_rig *rig)
{
	fm_server_stop(rig->server);
	pthread_join(rig->thread, NULL);
	fm_server_destroy(rig->server);
}

void pool_rig_start(struct pool_rig *rig, uint32_t entries)
{
	strcpy(rig->folder, "/tmp/fabricmgr-rig-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(rig->folder));
	snprintf(rig->socket, sizeof(rig->socket), "%s/pool", rig->folder);
	rig->entries = entries;
	serve_start(rig);
}

void pool_rig_restart(struct pool_rig *rig)
{
	serve_stop(rig);
	serve_start(rig);
}

void pool_rig_stop(struct pool_rig *rig)
{
	serve_stop(rig);
	ck_assert_int_eq(rmdir(rig->folder), 0);
}
