// SPDX-License-Identifier: Apache-2.0
/*
 * The pool of a node: its memory, its socket and the loop that serves the clients. Called by
 * fabricmgrd and by programs that embed a pool. Everything but fm_server_stop() and
 * fm_server_connect() runs on one thread.
 * Invariant: the loop sleeps only after every ring was seen empty with its sleep flag set.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr_messages.h>

#include "base/clock.h"
#include "base/fork.h"
#include "mem/cgroup.h"
#include "pool/lock_file.h"
#include "pool/server.h"

/* ---- memory ---- */

static int chunk_populate(void *context, uint32_t region, uint32_t chunk)
{
	struct fm_server *server = context;
	int err =
		fm_region_populate(server->arenas[region - 1].fd,
				   (uint64_t)chunk * FABRICMGR_CHUNK_BYTES, FABRICMGR_CHUNK_BYTES);

	if (!err)
		fm_tiering_chunk(server->tiering, region, chunk, true);
	return err;
}

static void chunk_punch(void *context, uint32_t region, uint32_t chunk)
{
	struct fm_server *server = context;

	fm_tiering_chunk(server->tiering, region, chunk, false);
	fm_region_punch(server->arenas[region - 1].fd, (uint64_t)chunk * FABRICMGR_CHUNK_BYTES,
			FABRICMGR_CHUNK_BYTES);
}

static const struct fm_chunk_ops chunk_ops = {.populate = chunk_populate, .punch = chunk_punch};

int64_t fm_server_arena(struct fm_server *server, uint32_t tenant, uint32_t uid)
{
	struct fm_arena *arena;

	for (uint32_t i = 0; i < server->arena_count; i++)
		if (server->arenas[i].tenant == tenant && server->arenas[i].uid == uid)
			return i + 1;
	if (server->arena_count == FM_ARENAS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%u uids of tenants write to this pool already",
			       FM_ARENAS_MAX);
	arena = &server->arenas[server->arena_count];
	arena->tenant = tenant;
	arena->uid = uid;
	arena->fd = fm_region_create(server->memory.rung, "fabricmgr-arena", server->pool_bytes);
	if (arena->fd < 0)
		return arena->fd;
	arena->read_only_fd = fm_region_reopen_read_only(arena->fd);
	if (arena->read_only_fd < 0) {
		close(arena->fd);
		return arena->read_only_fd;
	}
	fm_tenants_set_region(&server->store.slots.tenants, ++server->arena_count, tenant);
	fm_keep_arena(server, server->arena_count);
	return server->arena_count;
}

/* A table that the daemon writes and everybody else reads: mapped here, @fd for them. */
static void *table_create(struct fm_keep *keep, const char *kind, const char *name, uint64_t bytes,
			  int *fd)
{
	int writable = fm_region_create(FM_RUNG_MEMFD, name, bytes);
	void *memory = NULL;

	*fd = -1;
	if (writable < 0)
		return NULL;
	if (!fm_region_populate(writable, 0, bytes))
		memory = fm_region_map(writable, bytes, true);
	if (memory) {
		*fd = fm_region_reopen_read_only(writable);
		if (*fd < 0) {
			fm_region_unmap(memory, bytes);
			memory = NULL;
		}
	}
	if (memory)
		fm_keep_fd(keep, kind, 0, writable);
	close(writable);
	return memory;
}

static int refuse_policy(const char *name, const struct fm_policy_ops *const *policies, size_t n)
{
	char list[128] = "";
	size_t used = 0;

	for (size_t i = 0; i < n && used < sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
					 policies[i]->name);
	return fm_fail(FM_ERR_INVALID, "there is no eviction policy \"%.64s\"; there are %s", name,
		       list);
}

int fm_server_links_create(struct fm_server *server)
{
	uint64_t bytes = server->entries_max * (uint64_t)sizeof(*server->links);
	int fd;

	if (!server->keep)
		return 0;
	fd = fm_region_create(FM_RUNG_MEMFD, "fabricmgr-links", bytes);
	if (fd < 0)
		return fd;
	if (!fm_region_populate(fd, 0, bytes))
		server->links = fm_region_map(fd, bytes, true);
	if (server->links)
		fm_keep_fd(server->keep, "links", 0, fd);
	close(fd);
	return server->links ? 0 : FM_ERR_NO_MEMORY;
}

static uint64_t table_bytes(const struct fm_server *server, const struct fm_policy_ops *policy)
{
	uint64_t entry_bytes = sizeof(struct fm_node) + (policy ? policy->entry_bytes : 0) +
			       (server->keep ? sizeof(*server->links) : 0);

	return server->index_bytes + server->header_bytes + server->nvme_table_bytes +
	       (uint64_t)server->entries_max * entry_bytes;
}

static int check_memory(struct fm_server *server, const struct fm_server_options *options,
			const struct fm_policy_ops **policy)
{
	const struct fm_policy_ops *const *policies;
	size_t n = fm_policy_list(&policies);
	struct fm_cgroup_memory group;
	bool is_limited = fm_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup", &group);
	int err;

	*policy = options->policy ? fm_policy_find(options->policy) : policies[0];
	if (!*policy)
		return refuse_policy(options->policy, policies, n);
	/* What is taken over stays on its rung. */
	err = server->keep && server->keep->is_candidate
		      ? 0
		      : fm_memory_choose(options->memory,
					 server->pool_bytes + options->other_huge_bytes,
					 &server->memory);
	return err ? err
		   : fm_memory_check(&server->memory, is_limited ? &group : NULL,
				     server->pool_bytes, table_bytes(server, *policy),
				     options->other_bytes);
}

static int create_memory(struct fm_server *server, const struct fm_server_options *options)
{
	const struct fm_policy_ops *policy;
	uint64_t random[2];
	int err = fm_keep_open(server, options);

	if (!err)
		err = check_memory(server, options, &policy);
	if (err)
		return err;
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return fm_fail(FM_ERR_IO, "getrandom: %s", strerror(errno));
	server->incarnation = random[0] ? random[0] : 1;
	if (server->keep && server->keep->is_candidate) {
		if (fm_keep_resume(server, policy, &chunk_ops))
			return 0;
		err = check_memory(server, options, &policy);
		if (err)
			return err;
	}
	server->index = table_create(server->keep, "index", "fabricmgr-index", server->index_bytes,
				     &server->index_fd);
	server->headers = table_create(server->keep, "headers", "fabricmgr-headers",
				       server->header_bytes, &server->header_fd);
	if (!server->index || !server->headers)
		return FM_ERR_IO;
	fm_index_format(server->index, server->entries_max, server->incarnation, random[1]);
	err = fm_server_links_create(server);
	if (!err)
		err = fm_keep_begin(server, random[1]);
	if (!err)
		err = fm_store_create(&server->store, server->index, server->index_bytes,
				      server->headers, server->chunks, policy, &chunk_ops, server);
	server->store.links = server->links;
	return err;
}

/* ---- the socket ---- */

/*
 * Whether somebody lives behind a connected probe. A connection alone proves nothing: the ring of a
 * killed daemon keeps its listening socket open until the kernel has torn the ring down.
 */
static bool has_living_peer(int probe)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return getsockopt(probe, SOL_SOCKET, SO_PEERCRED, &peer, &length) || !peer.pid ||
	       !kill(peer.pid, 0) || errno != ESRCH;
}

/* A dead daemon's socket is replaced, a live one's is refused. */
static int clear_socket(const char *path, const struct sockaddr_un *address)
{
	struct stat status;
	int probe, result;

	if (lstat(path, &status))
		return errno == ENOENT ? 0 : fm_fail(FM_ERR_IO, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(status.st_mode))
		return fm_fail(FM_ERR_EXISTS, "%s exists and is not a socket; choose another path",
			       path);
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return fm_fail(FM_ERR_IO, "socket: %s", strerror(errno));
	result = connect(probe, (const struct sockaddr *)address, sizeof(*address)) ? errno : 0;
	if (!result && !has_living_peer(probe))
		result = ECONNREFUSED;
	close(probe);
	if (result != ECONNREFUSED)
		return fm_fail(FM_ERR_EXISTS,
			       "another program serves %s; stop it or choose another socket", path);
	if (unlink(path))
		return fm_fail(FM_ERR_IO, "removing the stale socket %s: %s", path,
			       strerror(errno));
	return 0;
}

static int listen_on(struct fm_server *server, const char *path, uint32_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int err;

	if (strlen(path) >= sizeof(address.sun_path))
		return fm_fail(FM_ERR_LIMIT, "socket path %s is longer than %zu bytes", path,
			       sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	snprintf(server->lock_path, sizeof(server->lock_path), "%s.lock", path);
	server->lock = fm_lock_file_take(server->lock_path);
	err = server->lock < 0 ? server->lock : clear_socket(path, &address);
	if (err)
		return err;
	server->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (server->listener < 0)
		return fm_fail(FM_ERR_IO, "socket: %s", strerror(errno));
	/* Before bind, so that the file never has a wider mode; after it, against the umask. */
	if (fchmod(server->listener, mode) ||
	    bind(server->listener, (const struct sockaddr *)&address, sizeof(address)))
		return fm_fail(FM_ERR_IO, "binding %s: %s", path, strerror(errno));
	server->socket_path = strdup(path);
	if (!server->socket_path)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a path");
	if (chmod(path, mode) || listen(server->listener, FM_BACKLOG))
		return fm_fail(FM_ERR_IO, "listening on %s: %s", path, strerror(errno));
	return 0;
}

static void log_turned_away(struct fm_server *server)
{
	uint64_t now = fm_clock_ns();

	server->turned_away++;
	if (now < server->turned_away_at)
		return;
	server->turned_away_at = now + FM_TURNED_AWAY_NS;
	fm_log(FM_LOG_WARNING, FM1103 "connections not taken: %u; the last one: %s",
	       server->turned_away, fm_error_detail());
	server->turned_away = 0;
}

/* Connections wait: to look again at once would only keep this thread busy. */
static void pause_listening(struct fm_server *server, int error)
{
	uint64_t now = fm_clock_ns();

	if (now >= server->listen_said_at) {
		fm_log(FM_LOG_WARNING, FM1103 "clients wait, since none can be accepted: %s",
		       strerror(error));
		server->listen_said_at = now + FM_ACCEPT_SAID_NS;
	}
	fm_loop_remove(server->loop, server->listen_watch);
	server->listen_watch = NULL;
	server->listen_at = now + FM_ACCEPT_PAUSE_NS;
}

static void on_listener(void *context)
{
	struct fm_server *server = context;
	int fd = 0;

	/* Who connects without end does not keep it from the rings. */
	for (uint32_t i = 0; i < FM_BACKLOG; i++) {
		fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			break;
		if (fm_session_create(server, fd))
			log_turned_away(server);
	}
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
		pause_listening(server, errno);
}

static void listen_again(struct fm_server *server, uint64_t now)
{
	if (now < server->listen_at)
		return;
	server->listen_at = UINT64_MAX;
	if (fm_loop_add(server->loop, server->listener, on_listener, server, &server->listen_watch))
		server->listen_at = now + FM_ACCEPT_PAUSE_NS;
}

static void on_handover(void *context)
{
	struct fm_server *server = context;
	int fd;

	while (read(server->handover[0], &fd, sizeof(fd)) == sizeof(fd))
		if (fd == FM_HANDOVER_TENANTS)
			fm_server_tenants_changed(server);
		else if (fm_session_create(server, fd))
			log_turned_away(server);
}

static void on_stop(void *context)
{
	struct fm_server *server = context;
	uint64_t count;

	if (read(server->stop_event, &count, sizeof(count)) == sizeof(count))
		server->is_stopping = true;
}

/* ---- create and destroy ---- */

static int check_options(struct fm_server *server, const struct fm_server_options *options)
{
	uint64_t entries;

	if (!options || options->size < sizeof(*options) || options->flags & ~FM_SERVER_KEEP)
		return fm_fail(FM_ERR_INVALID, "fm_server_options: size or flags are not of this "
					       "version");
	if (options->pool_bytes < FM_POOL_BYTES_MIN)
		return fm_fail(FM_ERR_INVALID, "a pool of %llu bytes: it needs two chunks of %u",
			       (unsigned long long)options->pool_bytes, FABRICMGR_CHUNK_BYTES);
	if (options->pool_bytes / FABRICMGR_CHUNK_BYTES > FM_CHUNKS_MAX)
		return fm_fail(FM_ERR_LIMIT,
			       "a pool of %llu bytes: the largest has %llu TiB: choose a smaller "
			       "size",
			       (unsigned long long)options->pool_bytes,
			       (unsigned long long)FM_CHUNKS_MAX * FABRICMGR_CHUNK_BYTES >> 40);
	server->chunks = (uint32_t)(options->pool_bytes / FABRICMGR_CHUNK_BYTES);
	server->pool_bytes = (uint64_t)server->chunks * FABRICMGR_CHUNK_BYTES;
	entries = options->entries_max;
	if (!entries)
		entries = server->pool_bytes >> 16;
	if (entries > FM_ENTRIES_MAX)
		return fm_fail(FM_ERR_LIMIT, "an index has at most %u entries", FM_ENTRIES_MAX);
	/* A chunk in use has a block at least: with fewer entries some would stay empty. */
	if (entries < server->chunks)
		return fm_fail(
			FM_ERR_INVALID,
			"an index of %llu entries: a pool of %u chunks needs one for each at "
			"least: give %u or more, or none for one for each 64 KiB",
			(unsigned long long)entries, server->chunks, server->chunks);
	server->entries_max = (uint32_t)entries;
	server->index_bytes = fm_index_bytes(server->entries_max);
	server->header_bytes = (uint64_t)server->entries_max * sizeof(struct fm_header);
	server->client_staging_bytes = options->client_staging_bytes;
	server->quarantine_ns = options->quarantine_ns ? options->quarantine_ns : FM_QUARANTINE_NS;
	if (options->nvme_path) {
		int err = fm_tiering_check(options, &server->nvme_table_bytes);

		if (err)
			return err;
	}
	return fm_server_tenants_take(options, server->chunks, server->tenants);
}

int fm_server_check(const struct fm_server_options *options, struct fm_server_needs *needs)
{
	const struct fm_policy_ops *policy = NULL;
	struct fm_server *server;
	int err;

	if (!needs || needs->size < sizeof(*needs))
		return fm_fail(FM_ERR_INVALID, "fm_server_needs: size is not of this version");
	server = calloc(1, sizeof(*server));
	if (!server)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a server");
	err = check_options(server, options);
	*needs = (struct fm_server_needs){.size = sizeof(*needs)};
	if (!err)
		err = fm_keep_check(options, needs);
	if (!err)
		err = check_memory(server, options, &policy);
	needs->entries_max = server->entries_max;
	needs->pool_bytes = server->pool_bytes;
	needs->table_bytes = table_bytes(server, policy);
	snprintf(needs->rung, sizeof(needs->rung), "%s", fm_rung_name(server->memory.rung));
	snprintf(needs->rung_reason, sizeof(needs->rung_reason), "%s", server->memory.reason);
	free(server);
	return err;
}

int fm_server_create(const struct fm_server_options *options, struct fm_server **out)
{
	struct fm_server *server = calloc(1, sizeof(*server));
	int err;

	if (!server)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a server");
	server->index_fd = server->header_fd = server->listener = server->stop_event = -1;
	server->lock = -1;
	server->handover[0] = server->handover[1] = -1;
	server->waiters_end = &server->waiters;
	server->next_client_id = 1;
	server->fork_value = fm_fork_value();
	err = check_options(server, options);
	if (!err)
		err = create_memory(server, options);
	if (!err)
		fm_server_tenants_start(server, options);
	if (!err)
		err = fm_loop_create(&server->loop);
	if (err)
		goto failed;
	server->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (server->stop_event < 0 || pipe2(server->handover, O_CLOEXEC | O_NONBLOCK)) {
		err = fm_fail(FM_ERR_IO, "eventfd or pipe: %s", strerror(errno));
		goto failed;
	}
	err = fm_loop_add(server->loop, server->stop_event, on_stop, server, &server->stop_watch);
	if (!err)
		err = fm_loop_add(server->loop, server->handover[0], on_handover, server,
				  &server->handover_watch);
	if (!err && options->nvme_path)
		err = fm_tiering_create(server, options, &server->tiering);
	if (!err)
		fm_tiering_resume(server->tiering);
	if (!err && options->socket) {
		err = listen_on(server, options->socket,
				options->socket_mode ? options->socket_mode : 0600);
		if (!err)
			err = fm_loop_add(server->loop, server->listener, on_listener, server,
					  &server->listen_watch);
	}
	if (err)
		goto failed;
	*out = server;
	return 0;
failed:
	fm_server_destroy(server);
	return err;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void fm_server_destroy(struct fm_server *server)
{
	int fd;

	if (!server)
		return;
	if (server->socket_path)
		unlink(server->socket_path);
	free(server->socket_path);
	fm_lock_file_release(server->lock_path, server->lock);
	server->is_leaving = fm_keep_is_complete(server->keep);
	if (server->is_leaving) {
		/* While the clients' leases are still known. */
		fm_tiering_destroy(server->tiering);
		server->tiering = NULL;
	}
	while (server->sessions)
		fm_session_end(server->sessions);
	/* Connections that were handed over and never served. */
	while (server->handover[0] >= 0 && read(server->handover[0], &fd, sizeof(fd)) == sizeof(fd))
		close_fd(fd);
	/* Relaxed: nobody else has the server any more. */
	free(atomic_load_explicit(&server->next_tenants, memory_order_relaxed));
	fm_tiering_destroy(server->tiering);
	server->tiering = NULL;
	fm_loop_destroy(server->loop);
	close_fd(server->listener);
	close_fd(server->stop_event);
	close_fd(server->handover[0]);
	close_fd(server->handover[1]);
	fm_store_destroy(&server->store);
	fm_region_unmap(server->index, server->index_bytes);
	fm_region_unmap(server->headers, server->header_bytes);
	fm_region_unmap(server->links, server->entries_max * sizeof(*server->links));
	close_fd(server->index_fd);
	close_fd(server->header_fd);
	for (uint32_t i = 0; i < server->arena_count; i++) {
		close(server->arenas[i].fd);
		close(server->arenas[i].read_only_fd);
	}
	fm_server_adopted_close(server);
	fm_keep_close(server);
	free(server);
}

void fm_server_stop(struct fm_server *server)
{
	uint64_t one = 1;

	/* eventfd: the one way that is allowed in a signal handler. It cannot be full. */
	if (write(server->stop_event, &one, sizeof(one)) < 0)
		return;
}

int fm_server_connect(struct fm_server *server, int *fd)
{
	int ends[2], err;

	if (!fm_fork_is_ours(server->fork_value))
		return fm_fail(FM_ERR_FORKED, "this pool is in the parent process; a child "
					      "attaches by its socket");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		return fm_fail(FM_ERR_IO, "socketpair: %s", strerror(errno));
	if (write(server->handover[1], &ends[1], sizeof(int)) != sizeof(int)) {
		err = fm_fail(FM_ERR_BUSY, "handing a connection to the server: %s",
			      strerror(errno));
		close(ends[0]);
		close(ends[1]);
		return err;
	}
	*fd = ends[0];
	return 0;
}

const char *fm_server_rung(const struct fm_server *server, const char **reason)
{
	if (reason)
		*reason = server->memory.reason;
	return fm_rung_name(server->memory.rung);
}

void fm_server_info(struct fm_server *server, struct fm_pool_info *info)
{
	const struct fm_store_counters *counters = &server->store.counters;
	const char *reason, *loop = fm_loop_rung(server->loop, &reason);

	*info = (struct fm_pool_info){
		.size = sizeof(*info),
		.protocol = FM_WIRE_VERSION,
		.total_bytes = server->pool_bytes,
		.used_bytes = server->store.slots.used_bytes,
		.blocks_sealed = counters->sealed,
		.blocks_staging = counters->staging,
		.blocks_quarantine = counters->quarantine,
		.blocks_offered = server->store.offers,
		.blocks_removed = counters->removed,
		.entries_max = server->entries_max,
		.evictions = counters->evictions,
		.seals = counters->seals,
		.stages = counters->stages,
		.discards = counters->discards,
		.duplicates = counters->duplicates,
		.clients = server->session_count,
		.daemon_pid = (uint32_t)getpid(),
		.incarnation = server->incarnation,
		.is_draining = server->is_draining,
		.adopted_regions = server->store.adopted_count,
		.adopted_region_bytes = fm_server_adopted_bytes(server, FM_NO_ENTRY),
		.adopted_blocks = counters->adopted_blocks,
		.adopted_bytes = counters->adopted_bytes,
	};
	snprintf(info->rung, sizeof(info->rung), "%s", fm_rung_name(server->memory.rung));
	snprintf(info->rung_reason, sizeof(info->rung_reason), "%s", server->memory.reason);
	snprintf(info->policy, sizeof(info->policy), "%s", server->store.policy->name);
	snprintf(info->loop, sizeof(info->loop), "%s", loop);
	snprintf(info->loop_reason, sizeof(info->loop_reason), "%s", reason);
	fm_tiering_info(server->tiering, info);
	fm_keep_info(server->keep, info);
}

/* ---- stage requests that wait for room ---- */

int fm_server_wait_for_room(struct fm_session *session, uint64_t tag, uint64_t length,
			    uint64_t deadline)
{
	struct fm_server *server = session->server;
	struct fm_waiter *waiter;

	session->owner.over = FM_QUOTA_NONE; /* FM_WAITERS_MAX is no tenant's quota */
	if (session->waiting >= FM_WAITERS_MAX || !fm_session_may_wait(session))
		return FM_ERR_LIMIT;
	waiter = calloc(1, sizeof(*waiter));
	if (!waiter)
		return FM_ERR_NO_MEMORY;
	waiter->session = session;
	waiter->tag = tag;
	waiter->length = length;
	waiter->deadline = deadline;
	session->waiting++;
	server->tenant_waiters[session->tenant]++;
	*server->waiters_end = waiter;
	server->waiters_end = &waiter->next;
	return 0;
}

void fm_server_unlink_waiter(struct fm_server *server, struct fm_waiter **link)
{
	struct fm_waiter *waiter = *link;

	*link = waiter->next;
	server->tenant_waiters[waiter->session->tenant]--;
}

void fm_server_forget_waiter(struct fm_session *session, uint64_t tag)
{
	struct fm_server *server = session->server;
	struct fm_waiter **link = &server->waiters;

	while (*link && ((*link)->session != session || (*link)->tag != tag))
		link = &(*link)->next;
	if (*link) {
		struct fm_waiter *waiter = *link;

		fm_server_unlink_waiter(server, link);
		if (!*link)
			server->waiters_end = link;
		session->waiting--;
		fm_session_answer(session, tag, FM_ERR_CANCELLED, 0);
		free(waiter);
	}
}

/* Tries the waiting requests in the order in which they came. */
static void retry_waiters(struct fm_server *server, uint64_t now)
{
	uint32_t full_region = 0, full_pages = 0;
	int full_err = FM_ERR_POOL_FULL;
	struct fm_waiter **link = &server->waiters;

	if (!*link)
		return;
	while (*link) {
		struct fm_waiter *waiter = *link;
		struct fm_session *session = waiter->session;
		uint32_t pages = fm_slots_pages(waiter->length), entry = 0;
		int err = full_err;

		/* What had no room a moment ago for one has none for the next. */
		session->owner.over = err == FM_ERR_LIMIT ? FM_QUOTA_MEMORY : FM_QUOTA_NONE;
		if (session->owner.region != full_region || pages != full_pages)
			err = fm_store_stage(&server->store, &session->owner, waiter->length,
					     &entry);
		/* At its maximum, a tenant waits for its own blocks as others do for any. */
		if (err == FM_ERR_POOL_FULL ||
		    (err == FM_ERR_LIMIT && session->owner.over == FM_QUOTA_MEMORY)) {
			full_region = session->owner.region;
			full_pages = pages;
			full_err = err;
			if (waiter->deadline > now) {
				link = &waiter->next;
				continue;
			}
		}
		fm_server_unlink_waiter(server, link);
		session->waiting--;
		fm_session_answer(session, waiter->tag, err, entry);
		free(waiter);
	}
	server->waiters_end = link;
	server->retry_at = now + FM_RETRY_NS;
}

/* ---- the loop ---- */

/* Serves every ring once. True: something was done. */
static bool serve_rings(struct fm_server *server)
{
	struct fm_session *session, *next;
	bool did_work = false;

	for (session = server->sessions; session; session = next) {
		int n;

		next = session->next;
		if (!session->is_attached)
			continue;
		n = fm_session_serve(session);
		if (n < 0) {
			fm_log(FM_LOG_WARNING, FM1104 "client %u (%s, pid %u) is disconnected: %s",
			       session->owner.id, session->name, session->pid, fm_error_detail());
			fm_session_end(session);
		}
		did_work |= n != 0;
	}
	return did_work;
}

/* Sets every sleep flag; false, and all flags cleared again, when a ring has work after all. */
static bool fall_asleep(struct fm_server *server)
{
	bool may_sleep = true;

	for (struct fm_session *s = server->sessions; s; s = s->next)
		if (s->is_attached && !(s->is_blocked ? fm_ring_daemon_block(&s->ring, s->waiting)
						      : fm_ring_daemon_sleep(&s->ring)))
			may_sleep = false;
	return may_sleep;
}

static void wake_up(struct fm_server *server)
{
	for (struct fm_session *s = server->sessions; s; s = s->next)
		if (s->is_attached)
			fm_ring_daemon_awake(&s->ring);
}

static uint64_t next_event(struct fm_server *server, uint64_t now)
{
	uint64_t at = server->expire_at;

	if (fm_tiering_next(server->tiering, now) < at)
		at = fm_tiering_next(server->tiering, now);
	if (fm_keep_next(server->keep) < at)
		at = fm_keep_next(server->keep);
	if (server->waiters && server->retry_at < at)
		at = server->retry_at;
	if (server->listen_at < at)
		at = server->listen_at;
	for (struct fm_session *s = server->sessions; s; s = s->next)
		if (!s->is_attached && s->hello_by < at)
			at = s->hello_by;
	return at == UINT64_MAX ? UINT64_MAX : at > now ? at - now : 0;
}

static void expire(struct fm_server *server, uint64_t now)
{
	struct fm_session *session, *next;

	server->expire_at = fm_store_expire(&server->store, now);
	fm_server_adopted_run(server);
	fm_keep_run(server->keep, now);
	listen_again(server, now);
	for (session = server->sessions; session; session = next) {
		next = session->next;
		if (!session->is_attached && session->hello_by <= now)
			fm_session_end(session);
	}
}

int fm_server_run(struct fm_server *server)
{
	uint64_t last_work = 0, last_poll = 0, now;
	int err = 0;

	fm_keep_all_are_there(server->keep);
	server->is_stopping = false;
	server->expire_at = UINT64_MAX;
	server->listen_at = server->listener >= 0 && !server->listen_watch ? 0 : UINT64_MAX;
	while (!err && !server->is_stopping) {
		bool did_work = serve_rings(server);

		now = fm_clock_ns();
		if (server->waiters && (did_work || now >= server->retry_at))
			retry_waiters(server, now);
		expire(server, now);
		did_work |= fm_tiering_run(server->tiering, now);
		if (did_work)
			last_work = now;
		if (now - last_work < FM_SPIN_NS) {
			/* Awake: clients need no system call. Sockets have their turn, too. */
			if (now - last_poll > FM_NS_PER_MS) {
				err = fm_loop_wait(server->loop, 0);
				last_poll = now;
			}
			fm_pause();
			continue;
		}
		if (fall_asleep(server))
			err = fm_loop_wait(server->loop, next_event(server, now));
		wake_up(server);
		last_poll = now;
	}
	return err;
}
