// SPDX-License-Identifier: Apache-2.0
/* A pool server on a thread (see pool_rig.h). For tests only. */
#include <stdio.h>
#include <unistd.h>

#include <check.h>

#include "pool_rig.h"

#define POOL_BYTES (8ull << 20) /* the smallest; entries bound it further */

static void *serve(void *context)
{
	ck_assert_int_eq(fm_server_run(context), 0);
	return NULL;
}

void pool_rig_serve(struct pool_rig *rig)
{
	ck_assert_int_eq(pthread_create(&rig->thread, NULL, serve, rig->server), 0);
}

static void serve_start(struct pool_rig *rig)
{
	ck_assert_msg(!fm_server_create(&rig->options, &rig->server), "%s", fm_error_detail());
	pool_rig_serve(rig);
}

static void serve_stop(struct pool_rig *rig)
{
	fm_server_stop(rig->server);
	pthread_join(rig->thread, NULL);
	fm_server_destroy(rig->server);
}

void pool_rig_start(struct pool_rig *rig, const struct fm_server_options *options)
{
	struct fm_server_options *own = &rig->options;

	scratch_folder(rig->folder);
	snprintf(rig->socket, sizeof(rig->socket), "%s/pool", rig->folder);
	snprintf(rig->log, sizeof(rig->log), "%s/log", rig->folder);
	*own = *options;
	own->size = sizeof(*own);
	if (!own->pool_bytes)
		own->pool_bytes = POOL_BYTES;
	if (!own->memory)
		own->memory = "memfd";
	if (!own->socket)
		own->socket = rig->socket;
	if (!own->quarantine_ns)
		own->quarantine_ns = 1000000;
	if (own->nvme_bytes && !own->nvme_path)
		own->nvme_path = rig->log;
	serve_start(rig);
}

void pool_rig_start_small(struct pool_rig *rig, uint32_t entries)
{
	pool_rig_start(rig, &(struct fm_server_options){.entries_max = entries});
}

void pool_rig_restart(struct pool_rig *rig)
{
	serve_stop(rig);
	serve_start(rig);
}

void pool_rig_stop(struct pool_rig *rig)
{
	serve_stop(rig);
	unlink(rig->log);
	ck_assert_int_eq(rmdir(rig->folder), 0); /* the server leaves nothing there */
}

struct fm_pool *pool_rig_attach(struct pool_rig *rig, uint32_t flags, uint32_t leases)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .flags = flags, .leases = leases, .name = "test"};
	struct fm_pool *pool = NULL;
	int err = fm_server_connect(rig->server, &options.fd);

	if (!err)
		err = fm_pool_attach(&options, &pool);
	/* Not always through Check, which takes a lock and so orders what ThreadSanitizer sees. */
	if (err)
		ck_abort_msg("attach: %s", fm_error_detail());
	return pool;
}
