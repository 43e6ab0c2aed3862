// SPDX-License-Identifier: Apache-2.0
/*
 * One client as the daemon sees it: its hello, its requests on the socket, its submissions on the
 * ring, its end. Called by server.c on the serving thread.
 * Invariant: a session that ended is gone from the store at once; its memory is freed when the loop
 * can no longer call for it.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_messages.h>
#include <fabricmgr_probes.h>

#include "base/clock.h"
#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"
#include "pool/server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define RING_BYTES ((sizeof(struct fm_ring_shared) + 4095) & ~4095ull)

/* ---- begin and end ---- */

static void on_socket(void *context);

static void on_submitted(void *context)
{
	struct fm_session *session = context;
	uint64_t count;

	/* Only resets the event; the rings are looked at after every wait. */
	if (read(session->submitted, &count, sizeof(count)) < 0 && errno != EAGAIN)
		fm_log(FM_LOG_WARNING, FM1105 "eventfd of client %u: %s", session->owner.id,
		       strerror(errno));
}

static void on_death(void *context)
{
	struct fm_session *session = context;

	FM_PROBE(client_death, session->owner.id, session->pid);
	fm_session_end(session);
}

static void reply_start(struct fm_wire_reply *reply, uint32_t type, int result)
{
	memset(reply, 0, sizeof(*reply));
	reply->head.magic = FM_WIRE_MAGIC;
	reply->head.version = FM_WIRE_VERSION;
	reply->head.type = type;
	reply->head.size = sizeof(*reply);
	reply->head.result = result;
	if (result)
		snprintf(reply->detail, sizeof(reply->detail), "%s", fm_error_detail());
}

static int check_places(const struct fm_server *server, uint32_t uid)
{
	uint32_t n = 0;

	if (server->session_count >= FM_CLIENTS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%u clients are attached already: detach some",
			       FM_CLIENTS_MAX);
	if (uid == 0 || uid == geteuid())
		return 0;
	if (server->session_count >= FM_CLIENTS_MAX - FM_CLIENTS_RESERVE)
		return fm_fail(FM_ERR_LIMIT,
			       "%u clients are attached already, and the last %u places are for "
			       "root and the daemon's user: detach some",
			       server->session_count, FM_CLIENTS_RESERVE);
	for (const struct fm_session *s = server->sessions; s; s = s->next)
		n += s->uid == uid;
	return n < FM_CLIENTS_OF_USER
		       ? 0
		       : fm_fail(FM_ERR_LIMIT,
				 "user %u has %u clients attached already, as many as one user may "
				 "have: detach some",
				 uid, n);
}

/* Answers a hello that may not have come yet, and closes. */
static int turn_away(int socket, int err)
{
	struct fm_wire_request unread;
	struct fm_wire_reply reply;

	reply_start(&reply, FM_WIRE_HELLO, err);
	/* An end with something unread is a reset, which a client sees before the answer. */
	fm_wire_receive(socket, &unread, sizeof(unread), NULL, NULL);
	fm_wire_send(socket, &reply, sizeof(reply), NULL, 0);
	close(socket);
	return fm_fail(err, "%s", reply.detail);
}

int fm_session_create(struct fm_server *server, int socket)
{
	struct fm_session *session = NULL;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int err = 0;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		err = fm_fail(FM_ERR_IO, "SO_PEERCRED: %s", strerror(errno));
	if (!err)
		err = check_places(server, peer.uid);
	if (!err)
		session = calloc(1, sizeof(*session));
	if (!err && !session)
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory for a client");
	if (err)
		return turn_away(socket, err);
	session->server = server;
	session->socket = socket;
	session->uid = peer.uid;
	session->pidfd = session->submitted = session->completed = -1;
	session->hello_by = fm_clock_ns() + FM_HELLO_NS;
	err = fm_loop_add(server->loop, socket, on_socket, session, &session->socket_watch);
	if (err) {
		free(session);
		return turn_away(socket, err);
	}
	session->next = server->sessions;
	if (session->next)
		session->next->prev = session;
	server->sessions = session;
	server->session_count++;
	return 0;
}

static void drop_waiters(struct fm_session *session)
{
	struct fm_server *server = session->server;
	struct fm_waiter **link = &server->waiters;

	while (*link) {
		struct fm_waiter *waiter = *link;

		if (waiter->session != session) {
			link = &waiter->next;
			continue;
		}
		fm_server_unlink_waiter(server, link);
		free(waiter);
	}
	server->waiters_end = link;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void fm_session_end(struct fm_session *session)
{
	struct fm_server *server = session->server;

	fm_loop_remove(server->loop, session->socket_watch);
	fm_loop_remove(server->loop, session->pid_watch);
	fm_loop_remove(server->loop, session->submitted_watch);
	drop_waiters(session);
	fm_tiering_forget(server->tiering, session);
	if (session->is_attached && !server->is_leaving) {
		uint64_t expires = 0;

		FM_PROBE(detach, session->owner.id, session->pid, session->owner.staged);
		if (session->flags & FM_ATTACH_DEVICES && session->owner.staged)
			expires = fm_clock_ns() + server->quarantine_ns;
		fm_store_owner_remove(&server->store, &session->owner, expires);
		fm_keep_forget(session);
	}
	fm_session_adopted_end(session);
	FM_KILL_POINT("end of a client: blocks freed");
	fm_region_unmap(session->ring.shared, RING_BYTES);
	fm_region_unmap((void *)session->owner.leases, session->lease_bytes);
	close_fd(session->socket);
	close_fd(session->pidfd);
	close_fd(session->submitted);
	close_fd(session->completed);
	free(session->group);
	if (session->prev)
		session->prev->next = session->next;
	else
		server->sessions = session->next;
	if (session->next)
		session->next->prev = session->prev;
	server->session_count--;
	free(session);
}

/* ---- hello ---- */

static int read_credentials(struct fm_session *session)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(session->socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return fm_fail(FM_ERR_IO, "SO_PEERCRED: %s", strerror(errno));
	session->pid = (uint32_t)peer.pid;
	session->uid = peer.uid;
	/* The descriptor of the very process (Linux 6.5), else of whoever has its number now. */
	size = sizeof(session->pidfd);
	if (getsockopt(session->socket, SOL_SOCKET, SO_PEERPIDFD, &session->pidfd, &size))
		session->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	/* Without either (old kernel, other pid namespace) the socket's end tells alone. */
	return 0;
}

static int check_hello(const struct fm_wire_request *hello)
{
	if (memchr(hello->tenant, '\0', sizeof(hello->tenant)) == NULL)
		return fm_fail(FM_ERR_INVALID, "the name of the tenant does not end");
	if (hello->flags & ~FM_ATTACH_FLAGS)
		return fm_fail(FM_ERR_UNSUPPORTED, "attach flags 0x%x are not known to this daemon",
			       hello->flags);
	if (!hello->leases || hello->leases > FABRICMGR_LEASES_MAX)
		return fm_fail(FM_ERR_LIMIT, "a lease table has 1 to %u entries, not %u",
			       FABRICMGR_LEASES_MAX, hello->leases);
	return 0;
}

/* Shared memory and events of one client. @fds: the two new descriptors, closed by the caller. */
static int create_shared(struct fm_session *session, uint32_t leases, int fds[2])
{
	int read_only;

	session->lease_bytes = (leases * sizeof(struct fabricmgr_lease) + 4095) & ~4095ull;
	fds[0] = fm_region_create_table("fabricmgr-leases", session->lease_bytes);
	if (fds[0] < 0)
		return fds[0];
	fds[1] = fm_region_create(FM_RUNG_MEMFD, "fabricmgr-ring", RING_BYTES);
	if (fds[1] < 0)
		return fds[1];
	if (fm_region_populate(fds[0], 0, session->lease_bytes) ||
	    fm_region_populate(fds[1], 0, RING_BYTES))
		return FM_ERR_NO_MEMORY;
	/* So that the client's is the only mapping that fm_region_has_ended() can meet. */
	read_only = fm_region_reopen_read_only(fds[0]);
	if (read_only < 0)
		return read_only;
	session->owner.leases = fm_region_map(read_only, session->lease_bytes, false);
	close(read_only);
	session->owner.lease_count = leases;
	session->ring.shared = fm_region_map(fds[1], RING_BYTES, true);
	session->submitted = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	session->completed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!session->owner.leases || !session->ring.shared)
		return FM_ERR_IO;
	if (session->submitted < 0 || session->completed < 0)
		return fm_fail(FM_ERR_IO, "eventfd: %s", strerror(errno));
	return 0;
}

bool fm_session_may_operate(const struct fm_session *session)
{
	return session->uid == 0 || session->uid == geteuid();
}

static int check_operator(const struct fm_session *session)
{
	return fm_session_may_operate(session)
		       ? 0
		       : fm_fail(FM_ERR_PERMISSION,
				 "this is for root and the daemon's own user (uid %u), not for uid "
				 "%u",
				 geteuid(), session->uid);
}

static int check_draining(const struct fm_session *session, const struct fm_wire_request *hello)
{
	if (!session->server->is_draining ||
	    (hello->flags & FM_ATTACH_READ_ONLY && fm_session_may_operate(session)))
		return 0;
	return fm_fail(
		FM_ERR_DRAINING,
		"this daemon is being drained: it takes no new clients; use another node's, or "
		"end it with: fabricctl undrain");
}

static int attach(struct fm_session *session, const struct fm_wire_request *hello, int shared[2])
{
	struct fm_server *server = session->server;
	int64_t region = 0;
	int err = check_hello(hello);

	if (!err)
		err = read_credentials(session);
	if (!err)
		err = check_draining(session, hello);
	if (!err)
		err = fm_session_choose_tenant(session, hello->tenant);
	if (!err && !(hello->flags & FM_ATTACH_READ_ONLY)) {
		region = fm_server_arena(server, session->tenant, session->uid);
		err = region < 0 ? (int)region : 0;
	}
	if (!err)
		err = create_shared(session, hello->leases, shared);
	if (!err)
		err = fm_loop_add(server->loop, session->submitted, on_submitted, session,
				  &session->submitted_watch);
	if (!err && session->pidfd >= 0)
		err = fm_loop_add(server->loop, session->pidfd, on_death, session,
				  &session->pid_watch);
	if (err)
		return err;
	session->flags = hello->flags;
	session->owner.region = (uint32_t)region;
	session->owner.staging_max = server->client_staging_bytes;
	for (size_t i = 0; i + 1 < sizeof(session->name) && hello->name[i]; i++)
		session->name[i] = isprint((unsigned char)hello->name[i]) ? hello->name[i] : '?';
	session->owner.id = server->next_client_id++;
	err = fm_keep_client(session, shared[0]);
	if (err)
		return err;
	fm_store_owner_add(&server->store, &session->owner);
	session->is_attached = true;
	FM_PROBE(attach, session->owner.id, session->pid, session->uid, session->name);
	return 0;
}

static int on_hello(struct fm_session *session, const struct fm_wire_request *hello)
{
	struct fm_server *server = session->server;
	int shared[2] = {-1, -1}, fds[FM_WIRE_FDS], err, sent;
	struct fm_wire_reply reply;

	/* From whoever was handed the descriptor of an attached client: that one goes on. */
	if (session->is_attached) {
		err = fm_fail(FM_ERR_INVALID,
			      "this connection is another attachment's: connect for yourself, a "
			      "descriptor of an attached socket cannot be handed over");
		reply_start(&reply, FM_WIRE_HELLO, err);
		return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
	}
	err = attach(session, hello, shared);
	reply_start(&reply, FM_WIRE_HELLO, err);
	reply.hello = (struct fm_wire_hello){
		.client_id = session->owner.id,
		.daemon_pid = (uint32_t)getpid(),
		.region = session->owner.region,
		.leases = session->owner.lease_count,
		.ring_entries = FM_RING_ENTRIES,
		.entries_max = server->entries_max,
		.index_bytes = server->index_bytes,
		.header_bytes = server->header_bytes,
		.lease_bytes = session->lease_bytes,
		.ring_bytes = RING_BYTES,
		.region_bytes = server->pool_bytes,
		.incarnation = server->incarnation,
		.features = server->tiering ? FM_WIRE_HAS_NVME : 0,
	};
	if (!err) {
		const struct fm_server_tenant *tenant = &server->tenants[session->tenant];

		memcpy(reply.hello.tenant, tenant->name, sizeof(reply.hello.tenant));
		memcpy(reply.hello.salt, tenant->salt, sizeof(reply.hello.salt));
	}
	fds[FM_FD_INDEX] = server->index_fd;
	fds[FM_FD_HEADERS] = server->header_fd;
	fds[FM_FD_LEASES] = shared[0];
	fds[FM_FD_RING] = shared[1];
	fds[FM_FD_SUBMITTED] = session->submitted;
	fds[FM_FD_COMPLETED] = session->completed;
	FM_KILL_POINT("hello: before the answer");
	sent = fm_wire_send(session->socket, &reply, sizeof(reply), fds, err ? 0 : FM_WIRE_FDS);
	FM_KILL_POINT("hello: answered");
	close_fd(shared[0]);
	close_fd(shared[1]);
	return err ? err : sent;
}

/* ---- requests on the socket ---- */

/* Who has leased a block of it may read it, also when its owner has gone. */
static int send_adopted(struct fm_session *session, const struct fm_server_adopted *adopted,
			uint32_t region)
{
	struct fm_wire_reply reply;

	reply_start(&reply, FM_WIRE_REGION, 0);
	reply.region = (struct fm_wire_region){.region = region, .bytes = adopted->bytes};
	return fm_wire_send(session->socket, &reply, sizeof(reply), &adopted->fd, 1);
}

static int on_region(struct fm_session *session, uint32_t region)
{
	struct fm_server *server = session->server;
	struct fm_wire_reply reply;
	struct fm_arena *arena;
	bool is_writable;
	int err;

	if (fm_region_is_adopted(region) && server->adopted[region - FM_ADOPTED_FIRST].bytes)
		return send_adopted(session, &server->adopted[region - FM_ADOPTED_FIRST], region);
	if (!region || region > server->arena_count) {
		err = fm_fail(FM_ERR_NOT_FOUND, "there is no region %u", region);
		reply_start(&reply, FM_WIRE_REGION, err);
		return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
	}
	arena = &server->arenas[region - 1];
	is_writable = ((arena->uid == session->uid && arena->tenant == session->tenant) ||
		       fm_session_may_operate(session)) &&
		      !(session->flags & FM_ATTACH_READ_ONLY);
	reply_start(&reply, FM_WIRE_REGION, 0);
	reply.region = (struct fm_wire_region){
		.region = region,
		.is_writable = is_writable,
		.bytes = server->pool_bytes,
	};
	return fm_wire_send(session->socket, &reply, sizeof(reply),
			    is_writable ? &arena->fd : &arena->read_only_fd, 1);
}

static int on_clients(struct fm_session *session, uint32_t after)
{
	struct fm_server *server = session->server;
	struct fm_wire_reply reply;
	uint32_t last = after;
	bool sees_all = fm_session_may_operate(session);

	reply_start(&reply, FM_WIRE_CLIENTS_AFTER, 0);
	/* In the order of their numbers, so that the next request knows where to go on. */
	while (reply.clients.n < FM_WIRE_CLIENTS) {
		struct fm_session *best = NULL;

		for (struct fm_session *s = server->sessions; s; s = s->next)
			if (s->is_attached && s->owner.id > last &&
			    (sees_all || s->tenant == session->tenant) &&
			    (!best || s->owner.id < best->owner.id))
				best = s;
		if (!best)
			break;
		last = best->owner.id;
		struct fm_client_info *info = &reply.clients.clients[reply.clients.n++];

		info->id = best->owner.id;
		info->pid = best->pid;
		info->uid = best->uid;
		info->flags = best->flags | best->tenant << 16;
		info->leases = fm_store_leases(&server->store, &best->owner);
		info->staged = best->owner.staged;
		memcpy(info->name, best->name, sizeof(info->name));
	}
	for (struct fm_session *s = server->sessions; s; s = s->next)
		reply.clients.total += sees_all || s->tenant == session->tenant;
	return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
}

static int on_tenants(struct fm_session *session, uint32_t first)
{
	struct fm_server *server = session->server;
	struct fm_wire_reply reply;

	reply_start(&reply, FM_WIRE_TENANTS_AFTER, 0);
	for (uint32_t i = first; i < server->tenant_count && reply.tenants.n < FM_WIRE_TENANTS; i++)
		if (i == session->tenant || fm_session_may_operate(session))
			fm_server_tenant_info(server, i, &reply.tenants.tenants[reply.tenants.n++]);
	return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
}

static struct fm_session *find_client(struct fm_server *server, uint32_t id)
{
	struct fm_session *session = server->sessions;

	while (session && !(session->is_attached && session->owner.id == id))
		session = session->next;
	return session;
}

static int on_leases(struct fm_session *session, const struct fm_wire_request *request)
{
	struct fm_server *server = session->server;
	const struct fm_session *holder = find_client(server, request->argument);
	struct fm_wire_reply reply;
	uint32_t entry, i = request->leases;
	int err = check_operator(session);

	if (!err && !holder)
		err = fm_fail(FM_ERR_NOT_FOUND, "there is no client %u", request->argument);
	reply_start(&reply, FM_WIRE_LEASES, err);
	for (; !err && i < holder->owner.lease_count; i++) {
		if (reply.leases.n == FM_WIRE_LEASES_MAX) {
			reply.leases.next = i;
			break;
		}
		entry = fm_store_leased(&server->store, &holder->owner, i);
		if (entry != FM_NO_ENTRY)
			reply.leases.leases[reply.leases.n++] = (struct fm_lease_info){
				.entry = entry,
				.generation = FABRICMGR_WORD_GENERATION(
					server->store.index.entries[entry].word),
			};
	}
	return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
}

static int on_operation(struct fm_session *session, const struct fm_wire_request *request)
{
	struct fm_server *server = session->server;
	uint64_t before = server->store.slots.used_bytes;
	struct fm_wire_reply reply;
	uint32_t blocks = 0;
	int err = check_operator(session);

	if (!err && request->head.type == FM_WIRE_DRAIN)
		server->is_draining = request->argument;
	else if (!err && request->head.type == FM_WIRE_QUOTAS)
		err = memchr(request->tenant, '\0', sizeof(request->tenant))
			      ? fm_server_set_quotas(server, request->tenant, request->values)
			      : fm_fail(FM_ERR_INVALID, "the name of the tenant does not end");
	else if (!err)
		blocks = fm_store_evict_bytes(&server->store,
					      (uint64_t)request->argument * FM_SLOT_GRAIN);
	reply_start(&reply, request->head.type, err);
	reply.evicted.blocks = blocks;
	reply.evicted.bytes = before - server->store.slots.used_bytes;
	return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
}

/* Memory of the client's own; @fd: -1, none came. */
static int on_adoption(struct fm_session *session, const struct fm_wire_request *request, int fd)
{
	struct fm_wire_region region = {.region = 0};
	struct fm_wire_reply reply;
	int err = request->head.type == FM_WIRE_ADOPT
			  ? fm_session_adopt(session, fd, &region)
			  : fm_session_release_region(session, request->argument, request->leases,
						      &region);

	reply_start(&reply, request->head.type, err);
	reply.region = region;
	return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
}

/* @fd: what came with it; only of an adoption, which takes it over. */
static int on_request(struct fm_session *session, const struct fm_wire_request *request,
		      size_t length, int fd)
{
	struct fm_wire_reply reply;
	int err = 0;

	if (length < sizeof(request->head) || request->head.magic != FM_WIRE_MAGIC)
		return fm_fail(FM_ERR_INVALID, "a packet that is not of this protocol");
	if (request->head.version != FM_WIRE_VERSION)
		err = fm_fail(FM_ERR_VERSION,
			      "the client speaks version %u of the protocol, the daemon %u",
			      request->head.version, FM_WIRE_VERSION);
	else if (length < FM_WIRE_REQUEST_MIN || request->head.size != length ||
		 request->head.reserved || request->reserved)
		err = fm_fail(FM_ERR_INVALID, "a request of wrong size, or a reserved field is not "
					      "zero");
	else if (!session->is_attached && request->head.type != FM_WIRE_HELLO)
		err = fm_fail(FM_ERR_INVALID, "a request before the hello");
	if (err) {
		reply_start(&reply, request->head.type, err);
		fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
		close_fd(fd);
		return err;
	}
	switch (request->head.type) {
	case FM_WIRE_ADOPT:
	case FM_WIRE_RELEASE:
		return on_adoption(session, request, fd);
	case FM_WIRE_HELLO:
		return on_hello(session, request);
	case FM_WIRE_REGION:
		return on_region(session, request->argument);
	case FM_WIRE_CLIENTS_AFTER:
		return on_clients(session, request->argument);
	case FM_WIRE_LEASES:
		return on_leases(session, request);
	case FM_WIRE_EVICT:
	case FM_WIRE_DRAIN:
	case FM_WIRE_QUOTAS:
		return on_operation(session, request);
	case FM_WIRE_TENANTS_AFTER:
		return on_tenants(session, request->argument);
	case FM_WIRE_INFO:
		reply_start(&reply, FM_WIRE_INFO, 0);
		fm_server_info(session->server, &reply.info);
		return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
	default:
		err = fm_fail(FM_ERR_UNSUPPORTED, "request %u is not known", request->head.type);
		reply_start(&reply, request->head.type, err);
		return fm_wire_send(session->socket, &reply, sizeof(reply), NULL, 0);
	}
}

/* Whether memory comes with the next request: then, and only then, a descriptor is taken. */
static bool brings_memory(const struct fm_session *session)
{
	struct fm_wire_head head;

	return fm_session_may_send_memory(session) &&
	       recv(session->socket, &head, sizeof(head), MSG_PEEK | MSG_DONTWAIT) ==
		       sizeof(head) &&
	       head.type == FM_WIRE_ADOPT;
}

static void on_socket(void *context)
{
	struct fm_session *session = context;
	struct fm_wire_request request = {0}; /* it may end early */
	int fd = -1, n_fds = brings_memory(session);
	int64_t got = fm_wire_receive(session->socket, &request, sizeof(request), &fd, &n_fds);

	if (got == FM_ERR_BUSY)
		return;
	FM_KILL_POINT("socket: request received");
	/* A reply that finds no room (BUSY) means a client that asks and does not read. */
	if (got <= 0 || on_request(session, &request, (size_t)got, n_fds ? fd : -1)) {
		if (got)
			fm_log(FM_LOG_WARNING, FM1106 "client %u (pid %u) is turned away: %s",
			       session->owner.id, session->pid, fm_error_detail());
		fm_session_end(session);
	}
}

/* ---- submissions ---- */

void fm_session_complete(struct fm_session *session, const struct fm_completion *completion)
{
	uint64_t one = 1;

	/* Here, since a request that waits is tried many times and answered once. */
	if (completion->result == FM_ERR_LIMIT && completion->quota)
		session->server->store.slots.tenants.list[session->tenant].refused++;
	FM_KILL_POINT("ring: done, not answered");
	fm_ring_complete(&session->ring, completion);
	FM_KILL_POINT("ring: answered, client not woken");
	if (fm_ring_must_wake_client(&session->ring) &&
	    write(session->completed, &one, sizeof(one)) < 0 && errno != EAGAIN)
		fm_log(FM_LOG_WARNING, FM1105 "eventfd of client %u: %s", session->owner.id,
		       strerror(errno));
}

static struct fm_completion fill_answer(struct fm_session *session, uint64_t tag, int result,
					uint32_t entry)
{
	struct fm_completion completion = {.tag = tag, .result = result};

	if (result == FM_ERR_LIMIT)
		completion.quota = session->owner.over;
	if (!result) {
		const struct fm_entry *e = &session->server->store.index.entries[entry];

		completion.entry = entry;
		completion.generation = FABRICMGR_WORD_GENERATION(e->word);
		completion.region = FM_HIGH(e->place);
		completion.chunk = FM_LOW(e->place);
		completion.slot = FM_LOW(e->extent);
		completion.length = FM_HIGH(e->extent);
		completion.origin = FM_LOW(e->check);
	}
	return completion;
}

void fm_session_answer(struct fm_session *session, uint64_t tag, int result, uint32_t entry)
{
	struct fm_completion completion = fill_answer(session, tag, result, entry);

	fm_session_complete(session, &completion);
}

static void on_stage(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_server *server = session->server;
	int err = FM_ERR_POOL_FULL;
	uint32_t entry = 0;

	/* Those who wait already come first. */
	if (server->is_draining)
		err = FM_ERR_DRAINING;
	else if (!server->tenant_waiters[session->tenant])
		err = fm_store_stage(&server->store, &session->owner, s->length, &entry);
	else if (!s->length || s->length > FABRICMGR_CHUNK_BYTES)
		err = FM_ERR_LIMIT;
	else if (!session->owner.region)
		err = FM_ERR_PERMISSION;
	if (err == FM_ERR_POOL_FULL ||
	    (err == FM_ERR_LIMIT && session->owner.over == FM_QUOTA_MEMORY)) {
		uint64_t deadline;

		if (__builtin_add_overflow(fm_clock_ns(), s->deadline_ns, &deadline))
			deadline = UINT64_MAX;
		err = fm_server_wait_for_room(session, s->tag, s->length, deadline);
		if (!err)
			return;
	}
	fm_session_answer(session, s->tag, err, entry);
}

/* @entry: the region; reserved[0]: the offset of the block in it. */
static void on_stage_at(struct fm_session *session, const struct fm_submission *s)
{
	uint64_t offset = s->reserved[0];
	uint32_t entry = 0;
	int err = FM_ERR_INVALID;

	if (session->server->is_draining)
		err = FM_ERR_DRAINING;
	else if (!(offset % FM_SLOT_GRAIN) && offset / FABRICMGR_CHUNK_BYTES < FM_CHUNKS_MAX)
		err = fm_adopted_stage(&session->server->store, &session->owner, s->entry,
				       (uint32_t)(offset / FABRICMGR_CHUNK_BYTES),
				       (uint32_t)(offset % FABRICMGR_CHUNK_BYTES / FM_SLOT_GRAIN),
				       s->length, &entry);
	fm_session_answer(session, s->tag, err, entry);
}

static void on_offer(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_completion completion = {.tag = s->tag};

	if (getrandom(&completion.key, sizeof(completion.key), 0) != sizeof(completion.key))
		completion.result = FM_ERR_IO;
	else
		completion.result =
			fm_store_offer(&session->server->store, &session->owner, s->entry,
				       s->generation, &completion.key, fm_clock_ns() + FM_OFFER_NS);
	if (completion.result)
		memset(&completion.key, 0, sizeof(completion.key));
	if (completion.result == FM_ERR_LIMIT)
		completion.quota = session->owner.over;
	fm_session_complete(session, &completion);
}

static void on_show(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_completion completion = {.tag = s->tag};

	if (getrandom(&completion.key, sizeof(completion.key), 0) != sizeof(completion.key))
		completion.result = FM_ERR_IO;
	else
		completion.result = fm_store_show(&session->server->store, &session->owner,
						  s->entry, s->generation, &completion.key);
	if (completion.result)
		memset(&completion.key, 0, sizeof(completion.key));
	fm_session_complete(session, &completion);
}

static void on_invalidate(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_tiering *tiering = session->server->tiering;
	struct fm_completion completion = {.tag = s->tag};
	uint32_t tenant = fm_session_may_operate(session) ? FM_NO_ENTRY : session->tenant;

	if (!session->owner.region) {
		completion.result = FM_ERR_PERMISSION;
	} else {
		/* First the log: it counts what is not in memory. */
		completion.origin = fm_tiering_invalidate(tiering, s->ns, tenant);
		completion.origin += fm_store_invalidate(&session->server->store, s->ns, tenant);
	}
	fm_tiering_answer(tiering, session, &completion, true);
}

static void on_remove(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_tiering *tiering = session->server->tiering;
	struct fm_completion completion = {.tag = s->tag, .result = FM_ERR_PERMISSION};

	if (session->owner.region && fm_session_may_change(session, &s->key)) {
		completion.result = fm_store_remove(&session->server->store, &s->key);
		if (fm_tiering_remove(tiering, &s->key) && completion.result == FM_ERR_NOT_FOUND)
			completion.result = 0;
	}
	fm_tiering_answer(tiering, session, &completion, true);
}

/* As fm_store_seal() of a key that stands in memory; for root, too: it acts for its tenant. */
static int check_log(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_server *server = session->server;

	if (!fm_tiering_is_others(server->tiering, &s->key, session->tenant))
		return 0;
	if (s->flags & FM_SEAL_REPLACE)
		return fm_fail(FM_ERR_PERMISSION, "the block of this key is another tenant's");
	server->store.counters.duplicates++;
	return FM_ERR_EXISTS;
}

static void on_seal(struct fm_session *session, const struct fm_submission *s,
		    const struct fm_store_seal *seal)
{
	struct fm_tiering *tiering = session->server->tiering;
	struct fm_completion completion;
	int err = check_log(session, s);

	if (!err)
		err = fm_store_seal(&session->server->store, &session->owner, seal);
	completion = fill_answer(session, s->tag, err, s->entry);
	/* What it takes the place of must not come back: the answer waits for that. */
	if (!err && fm_tiering_sealed(tiering, s->entry, seal->replaces))
		fm_tiering_answer(tiering, session, &completion, false);
	else
		fm_session_complete(session, &completion);
}

static struct fm_store_seal seal_of(const struct fm_submission *s)
{
	return (struct fm_store_seal){
		.entry = s->entry,
		.generation = s->generation,
		.crc32c = s->crc32c,
		.key = s->key,
		.parent = s->has_parent ? &s->parent : NULL,
		.ns = s->ns,
		.replaces = s->flags & FM_SEAL_REPLACE,
	};
}

/* Answers every member that has come. */
static void end_group(struct fm_session *session, const int *results)
{
	struct fm_tiering *tiering = session->server->tiering;
	uint32_t n = session->group_size;

	session->waiting -= n;
	session->group_size = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct fm_submission *s = &session->group[i];
		struct fm_completion completion =
			fill_answer(session, s->tag, results[i], s->entry);

		/* What the log has of that key is not of this group. */
		if (!results[i])
			fm_tiering_remove(tiering, &s->key);
		fm_tiering_answer(tiering, session, &completion, false);
	}
	if (n && !results[0])
		fm_tiering_group_sealed(tiering, session->group[0].entry);
}

static void fail_group(struct fm_session *session, int err)
{
	int results[FM_GROUP_MAX];

	for (uint32_t i = 0; i < session->group_size; i++)
		results[i] = err;
	end_group(session, results);
}

static void on_group_seal(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_store_seal seals[FM_GROUP_MAX];
	int results[FM_GROUP_MAX], others = 0;

	if (!session->group)
		session->group = calloc(FM_GROUP_MAX, sizeof(*session->group));
	if (!session->group || session->group_size == FM_GROUP_MAX) {
		int err = session->group ? FM_ERR_LIMIT : FM_ERR_NO_MEMORY;

		fail_group(session, err);
		fm_session_answer(session, s->tag, err, 0);
		return;
	}
	session->group[session->group_size++] = *s;
	session->waiting++;
	if (s->flags & FM_SUBMIT_MORE)
		return;
	for (uint32_t i = 0; i < session->group_size; i++) {
		seals[i] = seal_of(&session->group[i]);
		results[i] = check_log(session, &session->group[i]);
		others += results[i] != 0;
		if (!results[i])
			results[i] = FM_ERR_CANCELLED;
	}
	if (!others)
		fm_store_seal_group(&session->server->store, &session->owner, seals,
				    session->group_size, results);
	end_group(session, results);
}

static uint64_t after(uint64_t now, uint64_t ns)
{
	return !ns ? 0 : ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
}

static int on_hint(struct fm_session *session, const struct fm_submission *s)
{
	uint64_t now = fm_clock_ns();
	struct fm_store_hint hint = {
		.pinned_until = after(now, s->deadline_ns),
		.expected_at = after(now, s->length),
		.priority = (int32_t)(int64_t)s->reserved[0],
	};

	if (!session->owner.region)
		return FM_ERR_PERMISSION;
	if (s->entry >= session->server->store.index.entries_max)
		return FM_ERR_NOT_FOUND;
	if (session->server->store.index.entries[s->entry].word ==
		    FABRICMGR_WORD(s->generation, FABRICMGR_BLOCK_SEALED) &&
	    fm_store_tenant(&session->server->store, s->entry) != session->tenant &&
	    !fm_session_may_operate(session))
		return FM_ERR_PERMISSION;
	return fm_store_hint(&session->server->store, s->entry, s->generation, &hint);
}

static void on_submission(struct fm_session *session, const struct fm_submission *s)
{
	struct fm_store *store = &session->server->store;
	struct fm_store_seal seal;
	uint32_t entry = 0;
	int err;

	session->owner.over = FM_QUOTA_NONE; /* of this request, not of one before */
	/* Only a broken client lets anything come between the members of a group. */
	if (session->group_size && s->op != FM_OP_SEAL)
		fail_group(session, FM_ERR_INVALID);
	switch (s->op) {
	case FM_OP_STAGE:
		on_stage(session, s);
		return;
	case FM_OP_STAGE_AT:
		on_stage_at(session, s);
		return;
	case FM_OP_SEAL:
		if (s->flags & FM_SUBMIT_MORE || session->group_size) {
			on_group_seal(session, s);
			return;
		}
		seal = seal_of(s);
		on_seal(session, s, &seal);
		return;
	case FM_OP_DISCARD:
		fm_store_discard(store, &session->owner, s->entry, s->generation);
		return;
	case FM_OP_FORGET:
		fm_server_forget_waiter(session, s->length);
		return;
	case FM_OP_OFFER:
		on_offer(session, s);
		return;
	case FM_OP_ADOPT:
		err = session->owner.region
			      ? fm_store_adopt(store, &session->owner, &s->key, &entry)
			      : FM_ERR_PERMISSION;
		fm_session_answer(session, s->tag, err, entry);
		return;
	case FM_OP_SHOW:
		on_show(session, s);
		return;
	case FM_OP_JOIN:
		err = fm_store_join(store, &s->key, &entry);
		fm_session_answer(session, s->tag, err, entry);
		return;
	case FM_OP_REMOVE:
		on_remove(session, s);
		return;
	case FM_OP_FETCH:
		fm_tiering_fetch(session->server->tiering, session, s);
		return;
	case FM_OP_INVALIDATE:
		on_invalidate(session, s);
		return;
	case FM_OP_HINT:
		fm_session_answer(session, s->tag, on_hint(session, s), s->entry);
		return;
	case FM_OP_TOUCH:
		fm_store_touch(store, s->entry, s->generation);
		return;
	default:
		fm_session_answer(session, s->tag, FM_ERR_UNSUPPORTED, 0);
	}
}

int fm_session_serve(struct fm_session *session)
{
	struct fm_submission submission;
	uint32_t n = 0;

	session->is_blocked = false;
	while (n < FM_RING_BURST) {
		int room = fm_ring_completion_room(&session->ring), taken;

		if (room < 0)
			return room;
		/* Every answer that is still due has its place: a completion is never lost. */
		if ((uint32_t)room <= session->waiting) {
			session->is_blocked = true;
			break;
		}
		taken = fm_ring_take(&session->ring, &submission);
		if (taken < 0)
			return taken;
		if (!taken)
			break;
		FM_KILL_POINT("ring: submission taken");
		on_submission(session, &submission);
		n++;
	}
	return (int)n;
}
