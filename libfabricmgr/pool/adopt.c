// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon's side of adopted regions: which memory of a client's is taken, what its tenant may
 * bring, and when it is let go. Called by session.c, server.c and resume.c on the serving thread.
 * Invariant: that memory is never touched here; others get the descriptor that came, which cannot
 * write, as long as a block of the region is left or its owner is attached.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>

#include "core/adopted.h"
#include "pool/server.h"

/* Relaxed: only a bound. */
static _Atomic uint32_t closing;

static void *close_there(void *fd)
{
	close((int)(intptr_t)fd);
	atomic_fetch_sub_explicit(&closing, 1, memory_order_relaxed);
	return NULL;
}

/* What is no memory may be a file of a program that makes whoever closes it wait. */
static void close_foreign(int fd)
{
	pthread_t thread;

	atomic_fetch_add_explicit(&closing, 1, memory_order_relaxed);
	if (pthread_create(&thread, NULL, close_there, (void *)(intptr_t)fd))
		close_there((void *)(intptr_t)fd);
	else
		pthread_detach(thread);
}

bool fm_session_may_send_memory(const struct fm_session *session)
{
	return session->is_attached &&
	       session->server->tenants[session->tenant].adopted_max_bytes &&
	       atomic_load_explicit(&closing, memory_order_relaxed) < FM_CLOSING_MAX;
}

uint64_t fm_server_adopted_bytes(const struct fm_server *server, uint32_t tenant)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		if (tenant == FM_NO_ENTRY || server->adopted[i].tenant == tenant)
			bytes += server->adopted[i].bytes;
	return bytes;
}

static int check_quota(struct fm_session *session, uint64_t bytes)
{
	struct fm_server *server = session->server;
	const struct fm_server_tenant *tenant = &server->tenants[session->tenant];
	uint64_t used = fm_server_adopted_bytes(server, session->tenant);

	if (used <= tenant->adopted_max_bytes && bytes <= tenant->adopted_max_bytes - used)
		return 0;
	server->store.slots.tenants.list[session->tenant].refused++;
	return fm_fail(FM_ERR_LIMIT,
		       "%llu MiB of memory, and tenant %s may have %llu MiB adopted, of which %llu "
		       "MiB are in use: raise that quota (adopted), or adopt less",
		       (unsigned long long)bytes >> 20, tenant->name,
		       (unsigned long long)tenant->adopted_max_bytes >> 20,
		       (unsigned long long)used >> 20);
}

static int check_writer(const struct fm_session *session)
{
	const struct fm_server_tenant *tenant = &session->server->tenants[session->tenant];

	if (!session->owner.region)
		return fm_fail(FM_ERR_PERMISSION, "this client attached read-only");
	if (session->server->is_draining)
		return fm_fail(FM_ERR_DRAINING, "the daemon is being drained and takes no memory");
	if (!tenant->adopted_max_bytes)
		return fm_fail(FM_ERR_PERMISSION,
			       "tenant %s may not have memory of its own adopted: give it a quota "
			       "(adopted = 8G in its section of the configuration)",
			       tenant->name);
	return 0;
}

/* Somebody may still read what an earlier owner, or this one, sealed in the same memory. */
static int check_readers(const struct fm_server *server, const struct stat *status)
{
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++) {
		const struct fm_server_adopted *adopted = &server->adopted[i];

		if (!server->store.adopted[i].is_used)
			continue;
		/* Of an earlier daemon, and nobody kept a descriptor of it. */
		if (!adopted->bytes)
			return fm_fail(FM_ERR_BUSY,
				       "clients of an earlier daemon still read memory that was "
				       "adopted there, and which is not known: try again when they "
				       "have released it");
		if (adopted->device != status->st_dev || adopted->inode != status->st_ino)
			continue;
		return server->store.adopted[i].owner
			       ? fm_fail(FM_ERR_EXISTS, "this memory is adopted already")
			       : fm_fail(FM_ERR_BUSY,
					 "%u blocks that were sealed in this memory before are "
					 "still held: try again when their readers have released "
					 "them",
					 server->store.adopted[i].blocks);
	}
	return 0;
}

static int take(struct fm_session *session, int fd, uint32_t *region)
{
	struct fm_server *server = session->server;
	struct stat status;
	int err = check_writer(session);

	if (!err)
		err = fm_region_check_adopted(fd, session->uid, &status);
	if (!err)
		err = check_readers(server, &status);
	if (!err)
		err = check_quota(session, (uint64_t)status.st_size);
	if (!err)
		err = fm_adopted_begin(&server->store, &session->owner, session->tenant,
				       (uint32_t)(status.st_size / FABRICMGR_CHUNK_BYTES), region);
	if (err)
		return err;
	FM_KILL_POINT("region: taken, not answered");
	server->adopted[*region - FM_ADOPTED_FIRST] = (struct fm_server_adopted){
		.fd = fd,
		.bytes = (uint64_t)status.st_size,
		.device = status.st_dev,
		.inode = status.st_ino,
		.tenant = session->tenant,
		.serial = ++server->adopted_serial,
		.session = session,
	};
	fm_keep_fd(server->keep, "adopt", *region, fd);
	return 0;
}

int fm_session_adopt(struct fm_session *session, int fd, struct fm_wire_region *out)
{
	uint32_t region;
	int err;

	if (fd < 0) {
		err = check_writer(session);
		return err ? err
			   : fm_fail(FM_ERR_INVALID, "no descriptor came with the request to adopt "
						     "memory");
	}
	err = take(session, fd, &region);
	if (err && fm_region_is_memory(fd))
		close(fd);
	else if (err)
		close_foreign(fd);
	if (err)
		return err;
	*out = (struct fm_wire_region){
		.region = region,
		.is_writable = true,
		.bytes = session->server->adopted[region - FM_ADOPTED_FIRST].bytes,
		.serial = session->server->adopted[region - FM_ADOPTED_FIRST].serial,
	};
	return 0;
}

int fm_session_release_region(struct fm_session *session, uint32_t region, uint32_t serial,
			      struct fm_wire_region *out)
{
	struct fm_server *server = session->server;
	struct fm_server_adopted *adopted =
		fm_region_is_adopted(region) ? &server->adopted[region - FM_ADOPTED_FIRST] : NULL;

	if (!adopted || adopted->session != session || adopted->serial != serial)
		return fm_fail(FM_ERR_NOT_FOUND, "region %u is not one that this client adopted",
			       region);
	if (fm_adopted_of(&server->store, region)->owner)
		fm_adopted_end(&server->store, region);
	else
		fm_store_free_removed(&server->store);
	*out = (struct fm_wire_region){
		.region = region,
		.serial = serial,
		.held = fm_adopted_of(&server->store, region)->blocks,
	};
	fm_server_adopted_run(server);
	return 0;
}

void fm_session_adopted_end(struct fm_session *session)
{
	struct fm_server *server = session->server;

	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++) {
		if (server->adopted[i].session != session)
			continue;
		server->adopted[i].session = NULL;
		if (server->is_leaving)
			continue; /* the next daemon sees who holds what */
		if (server->store.adopted[i].owner)
			fm_adopted_end(&server->store, FM_ADOPTED_FIRST + i);
	}
	if (!server->is_leaving)
		fm_server_adopted_run(server);
}

static void forget(struct fm_server *server, uint32_t region)
{
	struct fm_server_adopted *adopted = &server->adopted[region - FM_ADOPTED_FIRST];

	if (adopted->bytes) {
		close(adopted->fd);
		fm_keep_drop(server->keep, "adopt", region);
	}
	*adopted = (struct fm_server_adopted){.bytes = 0};
}

void fm_server_adopted_run(struct fm_server *server)
{
	uint32_t region;

	while ((region = fm_adopted_over(&server->store)))
		forget(server, region);
}

void fm_server_adopted_resume(struct fm_server *server, uint32_t region, int fd)
{
	struct fm_server_adopted *adopted = &server->adopted[region - FM_ADOPTED_FIRST];
	struct stat status;

	if (!fm_region_is_memory(fd) || fstat(fd, &status)) {
		close(fd);
		return;
	}
	*adopted = (struct fm_server_adopted){
		.fd = fd,
		.bytes = (uint64_t)status.st_size,
		.device = status.st_dev,
		.inode = status.st_ino,
	};
}

void fm_server_adopted_resumed(struct fm_server *server)
{
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		if (!server->store.adopted[i].is_used)
			forget(server, FM_ADOPTED_FIRST + i);
	fm_server_adopted_run(server);
}

void fm_server_adopted_close(struct fm_server *server)
{
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		if (server->adopted[i].bytes)
			close(server->adopted[i].fd);
	memset(server->adopted, 0, sizeof(server->adopted));
}
