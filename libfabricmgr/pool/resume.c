// SPDX-License-Identifier: Apache-2.0
/*
 * Taking over the pool that an earlier daemon left with its keeper (see keep.h). Called by
 * server.c at its start, before anybody is served. Invariant: whatever is wrong ends in an empty
 * pool with a reason in the log, never in a block that could be a wrong one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr_messages.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "core/adopted.h"
#include "core/recover.h"
#include "mem/module.h"
#include "pool/keep.h"
#include "pool/server.h"

/* Where the descriptor stands that was given, or NULL. */
static int *find_given(struct fm_keep *keep, const char *kind, uint32_t number)
{
	char name[FM_SERVICE_NAME];

	fm_keep_name(keep, name, kind, number);
	for (uint32_t i = 0; i < keep->n_given; i++)
		if (keep->given[i].fd >= 0 && !strcmp(keep->given[i].name, name))
			return &keep->given[i].fd;
	return NULL;
}

static int take_given(struct fm_keep *keep, const char *kind, uint32_t number)
{
	int *at = find_given(keep, kind, number), fd = at ? *at : -1;

	if (at)
		*at = -1;
	return fd;
}

static void start_cold(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;

	snprintf(keep->cold_reason, sizeof(keep->cold_reason), "%s", fm_error_detail());
	fm_log(FM_LOG_WARNING, FM1502 "the pool of before is not taken over: %s",
	       keep->cold_reason);
	fm_kept_free(keep);
	fm_service_give_back(keep->given, keep->n_given);
	/* What could not be opened stands in the way of a new one's names. */
	if (keep->module >= 0)
		fm_module_drop_all(keep->module, keep->prefix, true);
	/* By their names, the ones that were taken among them. */
	for (uint32_t i = 0; i < keep->n_given; i++) {
		if (keep->module < 0)
			fm_service_drop(keep->given[i].name);
		if (keep->given[i].fd >= 0)
			close(keep->given[i].fd);
	}
	keep->n_given = 0;
	fm_region_unmap(keep->state, sizeof(*keep->state));
	keep->state = NULL;
	keep->is_candidate = false;
}

/* ---- does it fit ---- */

/* What is in the head of a state, of whatever version. */
static int check_version(int fd)
{
	struct fm_state state = {.magic = 0};
	ssize_t length = offsetof(struct fm_state, is_incomplete);

	if (pread(fd, &state, (size_t)length, 0) != length || state.magic != FM_STATE_MAGIC)
		return fm_fail(FM_ERR_CORRUPT, "its state is not one of ours");
	if (state.version != FM_STATE_VERSION || state.index_version != FM_INDEX_VERSION ||
	    state.header_version != FM_HEADER_VERSION || state.bytes != sizeof(state))
		return fm_fail(FM_ERR_VERSION,
			       "fabricmgrd %.31s left version %u (index %u, headers %u, %u bytes); "
			       "this one, %s, reads version %u (index %u, headers %u, %zu bytes)",
			       state.program, state.version, state.index_version,
			       state.header_version, state.bytes, fm_version(), FM_STATE_VERSION,
			       FM_INDEX_VERSION, FM_HEADER_VERSION, sizeof(state));
	return 0;
}

static int check_state(struct fm_server *server, const struct fm_server_options *options)
{
	const struct fm_state *state = server->keep->state;
	enum fm_rung rung = (enum fm_rung)state->rung;

	if (state->checksum != fm_state_checksum(state) ||
	    strncmp(state->group, server->keep->group, sizeof(state->group)))
		return fm_fail(FM_ERR_CORRUPT, "its state fails its checksum");
	if (state->is_incomplete)
		return fm_fail(FM_ERR_NOT_FOUND,
			       "a part of it could not be handed over when it was made");
	if (state->pool_bytes != server->pool_bytes || state->entries_max != server->entries_max)
		return fm_fail(FM_ERR_INVALID,
			       "it has %llu MiB and %u entries, this one shall have %llu MiB and "
			       "%u",
			       (unsigned long long)state->pool_bytes >> 20, state->entries_max,
			       (unsigned long long)server->pool_bytes >> 20, server->entries_max);
	if (state->index_bytes != server->index_bytes ||
	    state->header_bytes != server->header_bytes ||
	    (rung != FM_RUNG_HUGETLB && rung != FM_RUNG_MEMFD))
		return fm_fail(FM_ERR_CORRUPT, "its state contradicts itself");
	if (options->memory && strcmp(options->memory, "best") &&
	    !strcmp(options->memory, "hugetlb") != (rung == FM_RUNG_HUGETLB))
		return fm_fail(FM_ERR_INVALID, "it stands on %s, and %s is asked for",
			       fm_rung_name(rung), options->memory);
	return 0;
}

/* What to do where something that a whole pool has is not among what was given. */
static const char *remedy(const struct fm_keep *keep)
{
	return keep->module >= 0 ? "let the daemon open more files (LimitNOFILE=)"
				 : "give its unit a larger FileDescriptorStoreMax=";
}

static int check_memory_of(struct fm_keep *keep, const char *kind, uint32_t number, uint64_t bytes)
{
	const int *fd = find_given(keep, kind, number);
	char name[FM_SERVICE_NAME];

	fm_keep_name(keep, name, kind, number);
	if (!fd)
		return fm_fail(FM_ERR_NOT_FOUND, "%s was not kept: %s", name, remedy(keep));
	if (!fm_region_is_ours(*fd, bytes))
		return fm_fail(FM_ERR_CORRUPT, "%s is no file of %llu bytes of ours", name,
			       (unsigned long long)bytes);
	return 0;
}

static int check_given(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;
	int err = check_memory_of(keep, "index", 0, server->index_bytes);

	if (!err)
		err = check_memory_of(keep, "headers", 0, server->header_bytes);
	for (uint32_t region = 1; !err && region <= FM_ARENAS_MAX; region++) {
		const struct fm_state_arena *arena = &keep->state->arenas[region - 1];

		/* A record half written is of an arena that nobody was told of: the last one. */
		if (arena->checksum == fm_state_arena_checksum(arena) && arena->region == region)
			err = check_memory_of(keep, "arena", region, server->pool_bytes);
		else if (region < FM_ARENAS_MAX && arena[1].region)
			err = fm_fail(FM_ERR_CORRUPT, "the record of arena %u is spoilt", region);
	}
	return err;
}

static int map_state(struct fm_keep *keep)
{
	const int *fd = find_given(keep, "state", 0);
	int err = fd ? check_version(*fd)
		     : fm_fail(FM_ERR_NOT_FOUND, "its state was not kept: %s", remedy(keep));

	if (!err && !fm_region_is_ours(*fd, sizeof(*keep->state)))
		err = fm_fail(FM_ERR_CORRUPT, "its state has another length");
	if (err)
		return err;
	keep->state = fm_region_map(*fd, sizeof(*keep->state), true);
	return keep->state ? 0 : FM_ERR_IO;
}

void fm_keep_find(struct fm_server *server, const struct fm_server_options *options)
{
	struct fm_keep *keep = server->keep;
	int err;

	keep->n_given =
		keep->module >= 0
			? fm_module_given(keep->module, keep->prefix, keep->given, FM_GIVEN_MAX)
			: fm_service_given(keep->prefix, keep->given, FM_GIVEN_MAX);
	if (!keep->n_given) {
		if (fm_keep_is_elsewhere(keep, options))
			start_cold(server);
		return;
	}
	err = map_state(keep);
	if (!err)
		err = check_state(server, options);
	if (!err)
		err = check_given(server);
	if (err) {
		start_cold(server);
		return;
	}
	keep->is_candidate = true;
	server->memory.rung = (enum fm_rung)keep->state->rung;
	if (server->memory.rung == FM_RUNG_MEMFD)
		snprintf(server->memory.reason, sizeof(server->memory.reason),
			 "the pool that was taken over stands on it");
}

/* ---- memory ---- */

static void *map_table(struct fm_keep *keep, const char *kind, uint64_t bytes, int *read_only)
{
	int fd = take_given(keep, kind, 0);
	void *memory = fm_region_map(fd, bytes, true);

	*read_only = memory ? fm_region_reopen_read_only(fd) : -1;
	close(fd);
	if (*read_only < 0) {
		fm_region_unmap(memory, bytes);
		return NULL;
	}
	return memory;
}

/* The number of a tenant of that name, or FM_TENANTS_MAX. */
static uint32_t find_tenant(const struct fm_server *server, const char name[32])
{
	for (uint32_t i = 0; i < server->keep->n_tenants; i++)
		if (!strncmp(server->tenants[i].name, name, 32))
			return i;
	return FM_TENANTS_MAX;
}

static int take_arenas(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;

	for (uint32_t region = 1; region <= FM_ARENAS_MAX; region++) {
		const struct fm_state_arena *record = &keep->state->arenas[region - 1];
		struct fm_arena *arena = &server->arenas[region - 1];

		if (record->region != region || record->checksum != fm_state_arena_checksum(record))
			break;
		arena->tenant = find_tenant(server, record->tenant);
		arena->uid = record->uid;
		if (arena->tenant == FM_TENANTS_MAX) {
			/* Nobody writes there any more; its blocks age in the first one's account.
			 */
			arena->tenant = 0;
			arena->uid = UINT32_MAX;
		}
		arena->fd = take_given(keep, "arena", region);
		arena->read_only_fd = fm_region_reopen_read_only(arena->fd);
		if (arena->read_only_fd < 0) {
			close(arena->fd);
			return arena->read_only_fd;
		}
		server->arena_count = region;
	}
	return 0;
}

/* Undoes what was taken, so that an empty pool can be made. */
static void give_memory_back(struct fm_server *server)
{
	fm_store_destroy(&server->store);
	fm_region_unmap(server->index, server->index_bytes);
	fm_region_unmap(server->headers, server->header_bytes);
	fm_region_unmap(server->links, server->entries_max * sizeof(*server->links));
	server->index = NULL;
	server->headers = NULL;
	server->links = NULL;
	if (server->index_fd >= 0)
		close(server->index_fd);
	if (server->header_fd >= 0)
		close(server->header_fd);
	server->index_fd = server->header_fd = -1;
	for (uint32_t i = 0; i < server->arena_count; i++) {
		fm_service_give_back(&(struct fm_service_fd){.fd = server->arenas[i].fd}, 1);
		close(server->arenas[i].fd);
		close(server->arenas[i].read_only_fd);
	}
	server->arena_count = 0;
	fm_server_adopted_close(server);
}

/* An arena has memory where its blocks are, and nowhere else. */
static void punch_the_rest(struct fm_server *server)
{
	const struct fm_slots *slots = &server->store.slots;

	for (uint32_t region = 1; region <= server->arena_count; region++)
		for (uint32_t at = 0, end; at < slots->count; at = end) {
			bool is_used = slots->chunks[at].region == region;

			for (end = at + 1; end < slots->count &&
					   (slots->chunks[end].region == region) == is_used;)
				end++;
			if (!is_used)
				fm_region_punch(server->arenas[region - 1].fd,
						(uint64_t)at * FABRICMGR_CHUNK_BYTES,
						(uint64_t)(end - at) * FABRICMGR_CHUNK_BYTES);
		}
}

/* ---- clients of before ---- */

static int take_client(struct fm_keep *keep, uint32_t record)
{
	const struct fm_state_client *client = &keep->state->clients[record];
	struct fm_kept *kept;
	int fd, read_only;

	if (!client->leases || client->leases > FABRICMGR_LEASES_MAX)
		return fm_fail(FM_ERR_CORRUPT, "the record of client %u is spoilt", client->id);
	fd = take_given(keep, "lease", client->id);
	if (fd < 0)
		return fm_fail(FM_ERR_NOT_FOUND,
			       "the leases of client %u (%.47s, pid %u) were not kept: %s",
			       client->id, client->name, client->pid, remedy(keep));
	kept = calloc(1, sizeof(*kept));
	read_only = kept ? fm_region_reopen_read_only(fd) : -1;
	if (read_only >= 0) {
		kept->bytes = (client->leases * sizeof(struct fabricmgr_lease) + 4095) & ~4095ull;
		if (fm_region_is_ours(fd, kept->bytes))
			kept->owner.leases = fm_region_map(read_only, kept->bytes, false);
		close(read_only);
	}
	if (!kept || !kept->owner.leases) {
		close(fd);
		free(kept);
		return fm_fail(FM_ERR_IO, "the lease table of client %u cannot be mapped",
			       client->id);
	}
	kept->fd = fd;
	kept->record = record;
	kept->flags = client->flags;
	kept->owner.id = client->id;
	kept->owner.lease_count = client->leases;
	kept->next = keep->kept;
	keep->kept = kept;
	keep->n_kept++;
	return 0;
}

/* A lease table without a record is of nobody who was told of it, if nobody has it. */
static int drop_strangers(struct fm_keep *keep)
{
	size_t prefix = strlen(keep->prefix);

	for (uint32_t i = 0; i < keep->n_given; i++) {
		if (keep->given[i].fd < 0)
			continue;
		if (!strncmp(keep->given[i].name + prefix, "lease-", 6) &&
		    !fm_region_has_ended(keep->given[i].fd))
			return fm_fail(FM_ERR_CORRUPT,
				       "%s is in use, and there is no record of its client",
				       keep->given[i].name);
		close(keep->given[i].fd);
		keep->given[i].fd = -1;
		if (strcmp(keep->given[i].name + prefix, "state"))
			fm_keeper_drop(keep, keep->given[i].name);
	}
	return 0;
}

static int take_clients(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;
	uint64_t next = keep->state->next_id;
	int err = 0;

	if (FM_HIGH(next) == ~FM_LOW(next) && FM_LOW(next) > server->next_client_id)
		server->next_client_id = FM_LOW(next);
	for (uint32_t i = 0; i < FM_RECORDS_MAX && !err; i++) {
		struct fm_state_client *client = &keep->state->clients[i];

		if (!client->id)
			continue;
		/* Half written: its client was told nothing. Spoilt: drop_strangers() sees it. */
		if (client->checksum != fm_state_client_checksum(client)) {
			client->id = 0;
			continue;
		}
		err = take_client(keep, i);
		if (client->id >= server->next_client_id)
			server->next_client_id = client->id + 1;
	}
	return err ? err : drop_strangers(keep);
}

/* ---- blocks ---- */

struct checker {
	struct fm_server *server;
	void *buffer; /* of one chunk */
};

static bool is_whole(void *context, const struct fm_header *header)
{
	struct checker *checker = context;
	uint64_t slot_bytes = (uint64_t)fm_slots_pages(header->length) * FM_SLOT_GRAIN;

	if (!header->length || header->length > FABRICMGR_CHUNK_BYTES || !header->region ||
	    header->region > checker->server->arena_count ||
	    header->chunk >= checker->server->chunks ||
	    (header->slot + 1) * slot_bytes > FABRICMGR_CHUNK_BYTES)
		return false;
	/* Not by mapping it: where there is no memory, none shall be taken. */
	return pread(checker->server->arenas[header->region - 1].fd, checker->buffer,
		     header->length,
		     (off_t)((uint64_t)header->chunk * FABRICMGR_CHUNK_BYTES +
			     header->slot * slot_bytes)) == (ssize_t)header->length &&
	       fm_crc32c(checker->buffer, header->length) == header->crc32c;
}

static int create_store(struct fm_server *server, const struct fm_policy_ops *policy,
			const struct fm_chunk_ops *ops, struct fm_recovery *recovery)
{
	int err = fm_store_create(&server->store, server->index, server->index_bytes,
				  server->headers, server->chunks, policy, ops, server);

	if (err)
		return err;
	if (server->store.index.entries_max != server->entries_max)
		return fm_fail(FM_ERR_CORRUPT, "the index has another size than its state says");
	server->store.links = server->links;
	server->store.now = fm_clock_ns();
	for (uint32_t region = 1; region <= server->arena_count; region++)
		fm_tenants_set_region(&server->store.slots.tenants, region,
				      server->arenas[region - 1].tenant);
	for (struct fm_kept *kept = server->keep->kept; kept; kept = kept->next)
		fm_store_owner_add(&server->store, &kept->owner);
	*recovery = (struct fm_recovery){
		.regions = server->arena_count,
		.expires = server->store.now + server->quarantine_ns,
	};
	return fm_store_recover(&server->store, recovery);
}

/* The index is written anew from the headers, each of whose blocks is read and compared. Nobody may
 * have the old one: that is what it would lease by. */
static int rebuild(struct fm_server *server, const struct fm_policy_ops *policy,
		   const struct fm_chunk_ops *ops, struct fm_recovery *recovery)
{
	struct checker checker = {.server = server};
	struct fm_keep *keep = server->keep;
	struct timespec quarantine = {
		.tv_sec = (time_t)(server->quarantine_ns / FM_NS_PER_S),
		.tv_nsec = (long)(server->quarantine_ns % FM_NS_PER_S),
	};
	struct fm_index index;
	uint32_t bad;
	int err;

	fm_log(FM_LOG_WARNING, FM1505 "the index is rebuilt from the headers: %s",
	       fm_error_detail());
	for (const struct fm_kept *kept = keep->kept; kept; kept = kept->next)
		if (!fm_region_has_ended(kept->fd))
			return fm_fail(FM_ERR_CORRUPT,
				       "its index cannot be trusted, and client %u reads by it",
				       kept->owner.id);
	checker.buffer = malloc(FABRICMGR_CHUNK_BYTES);
	if (!checker.buffer)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to read a block");
	/* Where a device may still write stood in the index alone. */
	while (nanosleep(&quarantine, &quarantine) && errno == EINTR)
		; /* a signal does not end it */
	fm_store_destroy(&server->store);
	fm_index_reformat(server->index, server->entries_max, keep->state->incarnation,
			  keep->state->seed);
	err = fm_index_open(&index, server->index, server->index_bytes);
	bad = err ? 0 : fm_index_rebuild(&index, server->headers, is_whole, &checker);
	free(checker.buffer);
	if (!err)
		err = create_store(server, policy, ops, recovery);
	recovery->dropped += bad;
	return err;
}

/* A daemon of before groups were kept left none: those that it had are let go. */
static int take_links(struct fm_server *server)
{
	uint64_t bytes = server->entries_max * (uint64_t)sizeof(*server->links);
	int fd = take_given(server->keep, "links", 0);

	if (fd >= 0 && fm_region_is_ours(fd, bytes))
		server->links = fm_region_map(fd, bytes, true);
	if (fd >= 0)
		close(fd);
	return server->links ? 0 : fm_server_links_create(server);
}

static int take_memory(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;
	int err;

	server->index = map_table(keep, "index", server->index_bytes, &server->index_fd);
	server->headers = map_table(keep, "headers", server->header_bytes, &server->header_fd);
	if (!server->index || !server->headers)
		return FM_ERR_IO;
	err = take_links(server);
	if (!err)
		err = take_arenas(server);
	for (uint32_t i = FM_ADOPTED_FIRST; i < FM_ADOPTED_FIRST + FM_ADOPTED_MAX; i++) {
		int fd = take_given(keep, "adopt", i);

		if (fd >= 0)
			fm_server_adopted_resume(server, i, fd);
	}
	return err ? err : take_clients(server);
}

static void report(struct fm_server *server, const struct fm_recovery *recovery)
{
	const struct fm_keep *keep = server->keep;

	fm_log(FM_LOG_INFO,
	       FM1501 "%u blocks of before taken over in %.1f ms, from version %.31s; %u were on "
		      "their way out, %u staged, %u clients of before still hold on",
	       recovery->sealed, (double)keep->took_ns / FM_NS_PER_MS, keep->state->program,
	       recovery->removed, recovery->staged + recovery->quarantined, keep->n_kept);
	if (recovery->dropped)
		fm_log(FM_LOG_WARNING, FM1506 "%u blocks of before were not believed, and dropped",
		       recovery->dropped);
}

int fm_keep_resume(struct fm_server *server, const struct fm_policy_ops *policy,
		   const struct fm_chunk_ops *ops)
{
	struct fm_keep *keep = server->keep;
	struct fm_recovery recovery = {.sealed = 0};
	uint64_t start = fm_clock_ns();
	int err = take_memory(server);

	if (!err) {
		err = create_store(server, policy, ops, &recovery);
		if (err == FM_ERR_CORRUPT)
			err = rebuild(server, policy, ops, &recovery);
	}
	if (err) {
		give_memory_back(server);
		start_cold(server);
		return 0;
	}
	if (recovery.highest_id >= server->next_client_id)
		server->next_client_id = recovery.highest_id + 1;
	fm_kept_probe(keep, fm_clock_ns());
	fm_server_adopted_resumed(server);
	punch_the_rest(server);
	snprintf(keep->state->program, sizeof(keep->state->program), "%s", fm_version());
	keep->state->checksum = fm_state_checksum(keep->state);
	keep->resumed = recovery.sealed;
	keep->dropped = recovery.dropped;
	keep->took_ns = fm_clock_ns() - start;
	report(server, &recovery);
	return 1;
}
