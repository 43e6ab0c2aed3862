/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's driver around the store: memory, socket, clients. server.c owns the life of the pool
 * and the loop, session.c one client's messages and submissions. Only the serving thread is in
 * here, but for fm_server_stop() and fm_server_connect(). Invariant: nothing that a client wrote
 * (packet, ring, lease table) is used before it is checked.
 */
#ifndef FM_POOL_SERVER_H
#define FM_POOL_SERVER_H

#include <stdatomic.h>

#include "base/loop.h"
#include "core/ring.h"
#include "core/store.h"
#include "mem/region.h"
#include "pool/keep.h"
#include "pool/tiering.h"
#include "pool/wire.h"

/* The memory that one uid's clients of one tenant write; region id = place in the table + 1. */
struct fm_arena {
	uint32_t tenant, uid;
	int fd, read_only_fd;
};

/* tenants.c; the accounts stand in the store. */
struct fm_server_tenant {
	char name[32], salt[64];
	uint32_t uids[FM_ALLOWED_MAX], gids[FM_ALLOWED_MAX], n_uids, n_gids;
	bool is_open; /* to whoever can open the socket */
	struct fm_tenant_quotas quotas;
	uint64_t adopted_max_bytes; /* 0: none */
};

/* adopt.c: memory of a client's own; its number is its place in the table + FM_ADOPTED_FIRST. */
struct fm_server_adopted {
	int fd;		/* read-only, as it came */
	uint64_t bytes; /* 0: there is none, or one of an earlier daemon's that nobody kept */
	uint64_t device, inode;
	uint32_t tenant, serial;
	struct fm_session *session; /* whose it is; NULL: it ended */
};

struct fm_session {
	struct fm_server *server;
	struct fm_session *prev, *next;
	struct fm_owner owner;
	struct fm_ring ring;
	struct fm_watch *socket_watch, *pid_watch, *submitted_watch;
	int socket, pidfd, submitted, completed;
	uint64_t lease_bytes, hello_by;
	bool is_attached;
	bool is_blocked; /* has submissions, but no room for their completions */
	uint32_t pid, uid, flags, tenant;
	uint32_t waiting;      /* answers that are due: stage requests, fetches, removals */
	uint64_t broken_fetch; /* the call whose chain has ended */
	uint32_t record;       /* + 1, of fm_state.clients; 0: none */
	/* Members of a group that has not come as a whole; each is one of @waiting. */
	struct fm_submission *group; /* FM_GROUP_MAX of them, once there was one */
	uint32_t group_size;
	char name[48];
};

/* A stage request that waits for room. */
struct fm_waiter {
	struct fm_waiter *next;
	struct fm_session *session;
	uint64_t tag, length, deadline;
};

struct fm_server {
	struct fm_store store;
	struct fm_loop *loop;
	struct fm_tiering *tiering; /* NULL: without NVMe */
	struct fm_keep *keep;	    /* NULL: the pool ends with this process */
	struct fm_memory memory;
	struct fm_arena arenas[FM_ARENAS_MAX];
	uint32_t arena_count;
	struct fm_server_adopted adopted[FM_ADOPTED_MAX];
	uint32_t adopted_serial; /* of the last one */
	uint32_t chunks, entries_max;
	uint64_t pool_bytes, index_bytes, header_bytes;
	uint64_t nvme_table_bytes; /* as they are counted before there is a tier */
	int index_fd, header_fd; /* read-only, as handed out */
	void *index;
	struct fm_header *headers;
	uint64_t *links; /* of groups; NULL: the pool ends with this process */
	uint64_t incarnation, quarantine_ns;
	uint64_t client_staging_bytes;
	char group[32];
	struct fm_server_tenant tenants[FM_TENANTS_MAX];
	uint32_t tenant_count;
	/* Exchanged, acquire and release: from fm_server_set_tenants() to the serving thread. */
	_Atomic(struct fm_server_tenant *) next_tenants;
	uint32_t tenant_waiters[FM_TENANTS_MAX]; /* of @waiters */
	struct fm_session *sessions;
	uint32_t session_count, next_client_id;
	struct fm_waiter *waiters, **waiters_end;
	uint64_t retry_at, expire_at;
	uint64_t turned_away_at; /* when the log may say so again */
	uint32_t turned_away;	 /* since it did */
	uint64_t listen_at, listen_said_at; /* listen_at: again; UINT64_MAX: it does */
	int listener, stop_event, handover[2];
	int lock; /* of the socket's path, held while it is ours; -1: none */
	char lock_path[128];
	struct fm_watch *listen_watch, *stop_watch, *handover_watch;
	char *socket_path;
	bool is_stopping, is_draining;
	bool is_leaving; /* another process goes on with the memory */
	uint32_t fork_value; /* see base/fork.h */
};

int fm_session_create(struct fm_server *server, int socket);
/* Unlinks and frees; the store forgets its leases and staged blocks. */
void fm_session_end(struct fm_session *session);
/* Takes up to FM_RING_BURST submissions: how many, or an error when the client must go. */
int fm_session_serve(struct fm_session *session);
void fm_session_complete(struct fm_session *session, const struct fm_completion *completion);
/* Completes a stage request with @result and, when that is 0, the place of @entry. */
void fm_session_answer(struct fm_session *session, uint64_t tag, int result, uint32_t entry);

/* The region that @tenant's clients of @uid write, created when it is not there yet: its id or an
 * error. */
int64_t fm_server_arena(struct fm_server *server, uint32_t tenant, uint32_t uid);
/* Takes a waiting request out of the list; @link: where it hangs. */
void fm_server_unlink_waiter(struct fm_server *server, struct fm_waiter **link);
/* A request that waits for room is not wanted any more; it is answered FM_ERR_CANCELLED. */
void fm_server_forget_waiter(struct fm_session *session, uint64_t tag);
/* Which blocks are a group, in memory that is handed over: server->links. */
int fm_server_links_create(struct fm_server *server);
void fm_server_info(struct fm_server *server, struct fm_pool_info *info);
int fm_server_wait_for_room(struct fm_session *session, uint64_t tag, uint64_t length,
			    uint64_t deadline);

/* ---- adopt.c ---- */

/* Whether descriptors that come from it are looked at at all. */
bool fm_session_may_send_memory(const struct fm_session *session);
/* Takes @fd over, whatever becomes of it; -1: none came. */
int fm_session_adopt(struct fm_session *session, int fd, struct fm_wire_region *out);
/* Ends a region of the session's, once; out->held: how many of its blocks somebody holds.
 * FM_ERR_NOT_FOUND: it is over. */
int fm_session_release_region(struct fm_session *session, uint32_t region, uint32_t serial,
			      struct fm_wire_region *out);
/* The session ends, and with it its regions. */
void fm_session_adopted_end(struct fm_session *session);
/* Lets go of those of which no block is left. */
void fm_server_adopted_run(struct fm_server *server);
/* Of all regions of @tenant, or of all tenants (FM_NO_ENTRY). */
uint64_t fm_server_adopted_bytes(const struct fm_server *server, uint32_t tenant);
/* A region of an earlier daemon, before recovery; and those that nobody reads, after it. */
void fm_server_adopted_resume(struct fm_server *server, uint32_t region, int fd);
void fm_server_adopted_resumed(struct fm_server *server);
void fm_server_adopted_close(struct fm_server *server);

/* ---- tenants.c ---- */

/* What stands in the handover pipe instead of a descriptor: fm_server_tenants_changed() is due. */
#define FM_HANDOVER_TENANTS (-1)

/* Fills FM_TENANTS_MAX of @tenants; refuses guarantees above a pool of @chunks. */
int fm_server_tenants_take(const struct fm_server_options *options, uint32_t chunks,
			   struct fm_server_tenant *tenants);
/* Once the store is there. */
void fm_server_tenants_start(struct fm_server *server, const struct fm_server_options *options);
void fm_server_tenants_changed(struct fm_server *server);
/* @values as in struct fm_tenant_quotas. */
int fm_server_set_quotas(struct fm_server *server, const char *name, const uint64_t *values);
void fm_server_tenant_info(const struct fm_server *server, uint32_t number,
			   struct fm_tenant_info *info);
/* Whom the peer may act for: session->tenant. @name "": the first that it may. */
int fm_session_choose_tenant(struct fm_session *session, const char *name);
/* Root and the daemon's user. */
bool fm_session_may_operate(const struct fm_session *session);
/* Whether it may remove what is sealed under @key, in memory or in the log. */
bool fm_session_may_change(const struct fm_session *session, const struct fm_key *key);
/* Whether its tenant may have one more request in flight; false: owner.over says so. */
bool fm_session_may_wait(struct fm_session *session);

#endif
