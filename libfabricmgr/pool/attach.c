// SPDX-License-Identifier: Apache-2.0
/*
 * A client's attachment: hello, mapping, requests on the socket, the end. Any thread may call;
 * attach and detach alone must not race with other calls on the same handle. Invariant: a mapping
 * that was handed out stays until detach, also when the daemon is gone.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "pool/client.h"

/* ---- state ---- */

int fm_pool_gone(struct fm_pool *pool)
{
	atomic_store_explicit(&pool->is_gone, true, memory_order_relaxed);
	return fm_fail(FM_ERR_DISCONNECTED,
		       "the pool's daemon is gone; held blocks stay readable, attach again for new "
		       "ones");
}

int fm_pool_check(const struct fm_pool *pool, bool needs_daemon)
{
	if (!pool)
		return fm_fail(FM_ERR_INVALID, "no pool was given");
	if (!fm_fork_is_ours(pool->fork_value))
		return fm_fail(FM_ERR_FORKED, "this pool was attached by the parent process; a "
					      "child attaches for itself");
	if (needs_daemon && atomic_load_explicit(&pool->is_gone, memory_order_relaxed))
		return fm_pool_gone((struct fm_pool *)pool);
	return 0;
}

bool fm_pool_probe(struct fm_pool *pool)
{
	struct pollfd state = {.fd = pool->socket, .events = POLLIN};

	/* Between requests the daemon says nothing: readable means the end. */
	if (poll(&state, 1, 0) == 1 && state.revents & (POLLHUP | POLLERR | POLLNVAL))
		atomic_store_explicit(&pool->is_gone, true, memory_order_relaxed);
	return atomic_load_explicit(&pool->is_gone, memory_order_relaxed);
}

bool fm_pool_is_connected(const struct fm_pool *pool)
{
	return !fm_pool_check(pool, false) && !fm_pool_probe((struct fm_pool *)pool);
}

const char *fm_pool_tenant(const struct fm_pool *pool)
{
	return pool ? pool->tenant : "";
}

const char *fm_pool_salt(const struct fm_pool *pool)
{
	return pool ? pool->salt : "";
}

uint32_t fm_pool_client_id(const struct fm_pool *pool)
{
	return pool ? pool->client_id : 0;
}

/* ---- requests ---- */

static uint64_t remaining_ms(uint64_t deadline)
{
	uint64_t now = fm_clock_ns();

	return now >= deadline ? 0 : (deadline - now + FM_NS_PER_MS - 1) / FM_NS_PER_MS;
}

static void close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

/* socket_lock. FM_ERR_BUSY: none of the replies has come whose deadline had passed. */
static int skip_late_replies(struct fm_pool *pool)
{
	struct fm_wire_reply reply;
	int fds[FM_WIRE_FDS], room = FM_WIRE_FDS;
	int64_t got = fm_wire_receive(pool->socket, &reply, sizeof(reply), fds, &room);

	if (got <= 0)
		return got ? (int)got : fm_pool_gone(pool);
	close_all(fds, room);
	pool->unanswered--;
	return 0;
}

/* One request and its reply, with the descriptors that came. The caller holds socket_lock. */
static int exchange(struct fm_pool *pool, struct fm_wire_request *request,
		    struct fm_wire_reply *reply, int sent, int *fds, int *n_fds, uint64_t deadline)
{
	struct pollfd state = {.fd = pool->socket, .events = POLLIN};
	int most = *n_fds, err;
	int64_t got;

	*n_fds = 0; /* whatever happens, only what came is the caller's to close */
	err = pool->unanswered == FM_UNANSWERED_MAX ? skip_late_replies(pool) : 0;
	if (err)
		return err != FM_ERR_BUSY
			       ? err
			       : fm_fail(FM_ERR_DEADLINE,
					 "the pool's daemon has not answered the last %u requests: "
					 "it is "
					 "stopped; let it go on, or detach and do without the pool",
					 FM_UNANSWERED_MAX);
	request->head.magic = FM_WIRE_MAGIC;
	request->head.version = FM_WIRE_VERSION;
	request->head.size = sizeof(*request);
	FM_KILL_POINT("socket: before a request");
	err = fm_wire_send(pool->socket, request, sizeof(*request), &sent, sent >= 0);
	FM_KILL_POINT("socket: request sent");
	/* Whoever closed it may have said why. */
	if (err && err != FM_ERR_DISCONNECTED)
		return err;
	for (;;) {
		uint64_t wait = remaining_ms(deadline);
		int room = most;

		memset(reply, 0, sizeof(*reply));
		got = fm_wire_receive(pool->socket, reply, sizeof(*reply), fds, &room);
		if (got > 0 && pool->unanswered) {
			close_all(fds, room);
			pool->unanswered--;
			continue;
		}
		if (got != FM_ERR_BUSY) {
			*n_fds = got > 0 ? room : 0;
			break;
		}
		if (!wait) {
			/* The answer may still come, before that of the next request. To end the
			 * connection would end the leases. */
			pool->unanswered++;
			return fm_fail(FM_ERR_DEADLINE,
				       "the pool's daemon did not answer in time: it is stopped or "
				       "overloaded (its log says more); wait and try again, or do "
				       "without the pool");
		}
		poll(&state, 1, wait > 1000 ? 1000 : (int)wait);
	}
	if (!got)
		return fm_pool_gone(pool);
	if (got < 0)
		return (int)got;
	if ((size_t)got < sizeof(reply->head) || reply->head.magic != FM_WIRE_MAGIC)
		return fm_fail(FM_ERR_VERSION, "what listens there is not a fabricmgr daemon");
	if (reply->head.result) {
		reply->detail[sizeof(reply->detail) - 1] = '\0';
		return fm_fail(reply->head.result, "%s", reply->detail);
	}
	/* What a daemon of another version does not say is zero, what it says beyond is not read.
	 */
	if (reply->head.version != FM_WIRE_VERSION || (size_t)got < FM_WIRE_REPLY_MIN ||
	    reply->head.type != request->head.type)
		return fm_fail(FM_ERR_VERSION,
			       "the daemon speaks version %u of the protocol, this "
			       "library %u",
			       reply->head.version, FM_WIRE_VERSION);
	return 0;
}

int fm_pool_request(struct fm_pool *pool, struct fm_wire_request *request,
		    struct fm_wire_reply *reply, int sent, int *fds, int *n_fds)
{
	int err;

	pthread_mutex_lock(&pool->socket_lock);
	err = exchange(pool, request, reply, sent, fds, n_fds, fm_clock_ns() + FM_DEADLINE_NS);
	pthread_mutex_unlock(&pool->socket_lock);
	return err;
}

static int request_reply(struct fm_pool *pool, struct fm_wire_request *request,
			 struct fm_wire_reply *reply)
{
	int none = 0;

	return fm_pool_request(pool, request, reply, -1, NULL, &none);
}

int fm_pool_info(struct fm_pool *pool, struct fm_pool_info *out)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_INFO};
	struct fm_wire_reply reply;
	uint32_t size;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	/* Structures grow at their end only: an older caller gets what it knows. */
	size = out ? out->size : 0;
	if (size < offsetof(struct fm_pool_info, loop))
		return fm_fail(FM_ERR_INVALID, "fm_pool_info.size is not set");
	err = request_reply(pool, &request, &reply);
	if (err)
		return err;
	if (size > sizeof(reply.info))
		size = sizeof(reply.info);
	memcpy(out, &reply.info, size);
	out->size = size;
	return 0;
}

int64_t fm_pool_evict(struct fm_pool *pool, uint64_t bytes, uint64_t *freed)
{
	uint64_t blocks = 0, got = 0;
	int err = fm_pool_check(pool, true);

	/* In steps, between which the daemon serves the others. */
	while (!err && got < bytes) {
		struct fm_wire_request request = {.head.type = FM_WIRE_EVICT};
		struct fm_wire_reply reply;
		uint64_t slots = (bytes - got - 1) / FM_SLOT_GRAIN + 1;

		request.argument = slots > UINT32_MAX ? UINT32_MAX : (uint32_t)slots;
		err = request_reply(pool, &request, &reply);
		if (err || !reply.evicted.blocks)
			break;
		blocks += reply.evicted.blocks;
		got += reply.evicted.bytes;
	}
	if (freed)
		*freed = got;
	return err ? err : (int64_t)blocks;
}

int fm_pool_drain(struct fm_pool *pool, bool is_draining)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_DRAIN, .argument = is_draining};
	struct fm_wire_reply reply;
	int err = fm_pool_check(pool, true);

	return err ? err : request_reply(pool, &request, &reply);
}

int64_t fm_pool_tenants(struct fm_pool *pool, struct fm_tenant_info *out, size_t max)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_TENANTS_AFTER};
	struct fm_wire_reply reply;
	uint32_t size = out && max ? out->size : sizeof(*out);
	int64_t total = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (size < offsetof(struct fm_tenant_info, reserved))
		return fm_fail(FM_ERR_INVALID, "fm_tenant_info.size is not set");
	do {
		err = request_reply(pool, &request, &reply);
		if (err)
			return err;
		for (uint32_t i = 0; i < reply.tenants.n && i < FM_WIRE_TENANTS; i++, total++) {
			struct fm_tenant_info *info = &reply.tenants.tenants[i];
			char *to = (char *)out + (uint64_t)total * size;

			request.argument = info->number + 1;
			info->size = size;
			if ((size_t)total < max)
				memcpy(to, info, size < sizeof(*info) ? size : sizeof(*info));
		}
	} while (reply.tenants.n == FM_WIRE_TENANTS);
	return total;
}

int fm_pool_set_quotas(struct fm_pool *pool, const char *tenant,
		       const struct fm_tenant_quotas *quotas)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_QUOTAS};
	struct fm_wire_reply reply;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!tenant || !quotas || strlen(tenant) >= sizeof(request.tenant))
		return fm_fail(FM_ERR_INVALID, "give the name of a tenant and its quotas");
	strcpy(request.tenant, tenant);
	request.values[0] = quotas->guaranteed_bytes;
	request.values[1] = quotas->max_bytes;
	request.values[2] = quotas->staging_bytes;
	request.values[3] = quotas->requests;
	request.values[4] = quotas->nvme_bytes;
	return request_reply(pool, &request, &reply);
}

int64_t fm_pool_clients(struct fm_pool *pool, struct fm_client_info *out, size_t max)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_CLIENTS_AFTER};
	struct fm_wire_reply reply;
	int64_t total = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	do {
		err = request_reply(pool, &request, &reply);
		if (err)
			return err;
		for (uint32_t i = 0; i < reply.clients.n && i < FM_WIRE_CLIENTS; i++, total++) {
			request.argument = reply.clients.clients[i].id;
			if ((size_t)total < max)
				out[total] = reply.clients.clients[i];
		}
	} while (reply.clients.n == FM_WIRE_CLIENTS);
	return total;
}

int64_t fm_pool_leases(struct fm_pool *pool, uint32_t client_id, struct fm_lease_info *out,
		       size_t max)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_LEASES, .argument = client_id};
	struct fm_wire_reply reply;
	int64_t total = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (max && !out)
		return fm_fail(FM_ERR_INVALID, "no room for leases was given");
	do {
		err = request_reply(pool, &request, &reply);
		if (err)
			return err;
		for (uint32_t i = 0; i < reply.leases.n && i < FM_WIRE_LEASES_MAX; i++, total++)
			if ((size_t)total < max)
				out[total] = reply.leases.leases[i];
		if (reply.leases.next && reply.leases.next <= request.leases)
			return fm_fail(FM_ERR_CORRUPT, "the daemon tells of leases in no order");
		request.leases = reply.leases.next;
	} while (request.leases);
	return total;
}

/* ---- memory ---- */

static char *map_region(struct fm_pool *pool, uint32_t region, bool is_writable)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_REGION, .argument = region};
	struct fm_mapping *mapping = &pool->mappings[region];
	struct fm_wire_reply reply;
	int fd = -1, n_fds = 1, err;
	char *memory;

	err = fm_pool_request(pool, &request, &reply, -1, &fd, &n_fds);
	if (err || n_fds != 1) {
		if (n_fds == 1)
			close(fd);
		if (!err)
			fm_fail(FM_ERR_IO, "the daemon sent no descriptor for region %u", region);
		return NULL;
	}
	if (is_writable && !reply.region.is_writable) {
		close(fd);
		fm_fail(FM_ERR_PERMISSION, "region %u is not this client's to write", region);
		return NULL;
	}
	memory = fm_region_map(fd, pool->region_bytes, is_writable);
	close(fd);
	/* Release: pairs with the acquire in fm_pool_map(). */
	if (memory)
		atomic_store_explicit(is_writable ? &mapping->writable : &mapping->readable, memory,
				      memory_order_release);
	return memory;
}

char *fm_pool_map(struct fm_pool *pool, uint32_t region, bool is_writable)
{
	struct fm_mapping *mapping = &pool->mappings[region];
	_Atomic(char *) *where = is_writable ? &mapping->writable : &mapping->readable;
	/* Acquire: pairs with the release in map_region(). */
	char *memory = atomic_load_explicit(where, memory_order_acquire);

	if (memory)
		return memory;
	pthread_mutex_lock(&pool->region_lock);
	memory = atomic_load_explicit(where, memory_order_acquire);
	if (!memory)
		memory = map_region(pool, region, is_writable);
	pthread_mutex_unlock(&pool->region_lock);
	return memory;
}

/* ---- attach and detach ---- */

static int connect_socket(const char *path, uint64_t deadline)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, err;

	if (strlen(path) >= sizeof(address.sun_path))
		return fm_fail(FM_ERR_LIMIT, "socket path %s is too long", path);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fm_fail(fm_error_of(errno), "socket: %s", strerror(errno));
	while (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
		if ((errno == EAGAIN || errno == EINTR) && remaining_ms(deadline)) {
			usleep(1000); /* the backlog is full: the daemon is busy */
			continue;
		}
		if (errno == ECONNREFUSED || errno == ENOENT)
			err = fm_fail(FM_ERR_DISCONNECTED,
				      "cannot reach the pool at %s: no daemon is listening there; "
				      "start fabricmgrd or name another socket",
				      path);
		else if (errno == EACCES || errno == EPERM)
			err = fm_fail(FM_ERR_PERMISSION,
				      "cannot reach the pool at %s: this user may not; ask for a "
				      "wider socket mode",
				      path);
		else
			err = fm_fail(errno == EAGAIN ? FM_ERR_DEADLINE : FM_ERR_IO,
				      "cannot reach the pool at %s: %s", path, strerror(errno));
		close(fd);
		return err;
	}
	return fd;
}

static int map_shared(struct fm_pool *pool, const struct fm_wire_hello *hello, const int *fds)
{
	if (hello->ring_entries != FM_RING_ENTRIES ||
	    hello->ring_bytes < sizeof(struct fm_ring_shared))
		return fm_fail(FM_ERR_VERSION, "the daemon's rings have another size");
	pool->client_id = hello->client_id;
	pool->has_nvme = hello->features & FM_WIRE_HAS_NVME;
	pool->region = hello->region;
	snprintf(pool->tenant, sizeof(pool->tenant), "%.31s", hello->tenant);
	snprintf(pool->salt, sizeof(pool->salt), "%.63s", hello->salt);
	pool->index_bytes = hello->index_bytes;
	pool->header_bytes = hello->header_bytes;
	pool->lease_bytes = hello->lease_bytes;
	pool->ring_bytes = hello->ring_bytes;
	pool->region_bytes = hello->region_bytes;
	pool->index_memory = fm_region_map(fds[FM_FD_INDEX], pool->index_bytes, false);
	pool->headers = fm_region_map(fds[FM_FD_HEADERS], pool->header_bytes, false);
	pool->leases = fm_region_map(fds[FM_FD_LEASES], pool->lease_bytes, true);
	pool->ring.shared = fm_region_map(fds[FM_FD_RING], pool->ring_bytes, true);
	if (!pool->index_memory || !pool->headers || !pool->leases || !pool->ring.shared)
		return fm_error_last();
	pool->free_leases = malloc(hello->leases * sizeof(uint32_t));
	pool->lease_uses = calloc(hello->leases, sizeof(*pool->lease_uses));
	if (!pool->free_leases || !pool->lease_uses)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a lease table");
	pool->lease_count = pool->free_lease_count = hello->leases;
	for (uint32_t i = 0; i < hello->leases; i++)
		pool->free_leases[i] = hello->leases - 1 - i;
	return fm_index_open(&pool->index, pool->index_memory, pool->index_bytes);
}

static int say_hello(struct fm_pool *pool, const struct fm_attach_options *options,
		     uint64_t deadline)
{
	struct fm_wire_request request = {
		.head.type = FM_WIRE_HELLO,
		.flags = options->flags,
		.leases = options->leases ? options->leases : FM_LEASES_DEFAULT,
	};
	int fds[FM_WIRE_FDS], n_fds = FM_WIRE_FDS, err;
	struct fm_wire_reply reply;
	const char *tenant;

	tenant = options->tenant ? options->tenant : getenv("FABRICMGR_TENANT");
	if (tenant && strlen(tenant) >= sizeof(request.tenant))
		return fm_fail(FM_ERR_LIMIT, "tenant %.64s: a name has at most %zu bytes", tenant,
			       sizeof(request.tenant) - 1);
	snprintf(request.tenant, sizeof(request.tenant), "%s", tenant ? tenant : "");
	snprintf(request.name, sizeof(request.name), "%s",
		 options->name ? options->name : program_invocation_short_name);
	err = exchange(pool, &request, &reply, -1, fds, &n_fds, deadline);
	FM_KILL_POINT("attach: descriptors received");
	if (!err && n_fds != FM_WIRE_FDS)
		err = fm_fail(FM_ERR_IO, "the daemon sent %d descriptors instead of %d", n_fds,
			      FM_WIRE_FDS);
	if (!err)
		err = map_shared(pool, &reply.hello, fds);
	if (!err) {
		pool->submitted = fds[FM_FD_SUBMITTED];
		pool->completed = fds[FM_FD_COMPLETED];
		n_fds = FM_FD_SUBMITTED; /* mapped: the mapping keeps the memory */
	}
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
	return err;
}

static void unmap(struct fm_pool *pool)
{
	fm_region_unmap(pool->index_memory, pool->index_bytes);
	fm_region_unmap((void *)pool->headers, pool->header_bytes);
	fm_region_unmap(pool->leases, pool->lease_bytes);
	fm_region_unmap(pool->ring.shared, pool->ring_bytes);
	for (uint32_t i = 0; i <= FM_ARENAS_MAX; i++) {
		fm_region_unmap(pool->mappings[i].readable, pool->region_bytes);
		fm_region_unmap(pool->mappings[i].writable, pool->region_bytes);
	}
	fm_regions_unmap(pool);
}

static void destroy_locks(struct fm_pool *pool)
{
	pthread_mutex_destroy(&pool->socket_lock);
	pthread_mutex_destroy(&pool->region_lock);
	pthread_mutex_destroy(&pool->lease_lock);
	pthread_mutex_destroy(&pool->ring_lock);
	pthread_mutex_destroy(&pool->queue_lock);
	pthread_cond_destroy(&pool->ring_changed);
}

static void pool_free(struct fm_pool *pool)
{
	/* A child has inherited none of the memory, and may have something else at those addresses;
	 * and it would wait for ever for the parent's threads to leave ring_changed. */
	if (fm_fork_is_ours(pool->fork_value)) {
		unmap(pool);
		destroy_locks(pool);
	}
	if (pool->socket >= 0)
		close(pool->socket);
	if (pool->submitted >= 0)
		close(pool->submitted);
	if (pool->completed >= 0)
		close(pool->completed);
	free(pool->free_leases);
	free((void *)pool->lease_uses);
	free(pool->prefaulted);
	free(pool);
}

static struct fm_pool *pool_new(void)
{
	struct fm_pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t clock;

	if (!pool)
		return NULL;
	pool->socket = pool->submitted = pool->completed = -1;
	pool->fork_value = fm_fork_value();
	pthread_mutex_init(&pool->socket_lock, NULL);
	pthread_mutex_init(&pool->region_lock, NULL);
	pthread_mutex_init(&pool->lease_lock, NULL);
	pthread_mutex_init(&pool->ring_lock, NULL);
	pthread_mutex_init(&pool->queue_lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->ring_changed, &clock);
	pthread_condattr_destroy(&clock);
	for (uint32_t i = 0; i < FM_RING_ENTRIES; i++)
		pool->free_flights[i] = FM_RING_ENTRIES - 1 - i;
	pool->free_flight_count = FM_RING_ENTRIES;
	return pool;
}

static int attach(const struct fm_attach_options *options, struct fm_pool *pool)
{
	const char *path = options->socket;
	uint64_t deadline;
	int err = 0;

	pool->flags = options->flags;
	deadline = fm_clock_ns() + (options->deadline_ns ? options->deadline_ns : FM_DEADLINE_NS);
	if (!path)
		path = getenv("FABRICMGR_SOCKET");
	if (!path || !*path)
		path = "/run/fabricmgr/pool.sock";
	pool->socket = options->fd >= 0 ? options->fd : connect_socket(path, deadline);
	if (pool->socket < 0) {
		err = pool->socket;
		pool->socket = -1;
	}
	if (!err)
		err = say_hello(pool, options, deadline);
	/* The own arena now, so that no system call is met on the way later. */
	if (!err && pool->region &&
	    (!fm_pool_map(pool, pool->region, true) || !fm_pool_map(pool, pool->region, false)))
		err = fm_error_last();
	if (!err)
		fm_prefault_init(pool);
	if (!err && options->flags & FM_ATTACH_PREFAULT)
		err = fm_prefault_sealed(pool);
	return err;
}

/* Options that are zero but for their size name standard input, which is not ours to take over. */
static int check_descriptor(int fd)
{
	int domain = 0, type = 0;
	socklen_t domain_bytes = sizeof(domain), type_bytes = sizeof(type);

	if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) &&
	    !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) && domain == AF_UNIX &&
	    type == SOCK_SEQPACKET)
		return 0;
	return fm_fail(FM_ERR_INVALID,
		       "fm_attach_options.fd %d is no SOCK_SEQPACKET Unix socket: set fd to -1 to "
		       "connect by path, or to what fm_server_connect() gave",
		       fd);
}

int fm_pool_attach(const struct fm_attach_options *given, struct fm_pool **out)
{
	struct fm_attach_options options = {.fd = -1};
	struct fm_pool *pool = NULL;
	int err = 0;

	/* A caller of an earlier version knows no tenants. */
	if (given && given->size >= offsetof(struct fm_attach_options, tenant))
		memcpy(&options, given,
		       given->size < sizeof(options) ? given->size : sizeof(options));
	if (options.fd >= 0) {
		err = check_descriptor(options.fd);
		if (err)
			return err; /* and it stays open */
	}
	if (!out || !options.size || options.flags & ~FM_ATTACH_FLAGS)
		err = fm_fail(FM_ERR_INVALID, "fm_attach_options: size or flags are not of this "
					      "version");
	else if (options.leases > FABRICMGR_LEASES_MAX)
		err = fm_fail(FM_ERR_LIMIT, "a lease table has at most %u entries",
			      FABRICMGR_LEASES_MAX);
	else if (!(pool = pool_new()))
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory to attach");
	else
		err = attach(&options, pool);
	if (!err) {
		FM_KILL_POINT("attach: mapped");
		*out = pool;
		return 0;
	}
	/* The descriptor was handed over with the call. */
	if (pool)
		pool_free(pool);
	else if (options.fd >= 0)
		close(options.fd);
	return err;
}

void fm_pool_detach(struct fm_pool *pool)
{
	/* The daemon frees leases and staged blocks at the end of the connection, as it does for a
	 * client that dies: one way for both. A child closes its copies only. */
	FM_KILL_POINT("detach: before");
	if (!pool)
		return;
	fm_queues_stop(pool);
	pool_free(pool);
}
