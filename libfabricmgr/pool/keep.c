// SPDX-License-Identifier: Apache-2.0
/*
 * Handing the pool's memory over to its keeper, the kernel module or the service manager, and what
 * is left of earlier daemons' clients (see keep.h). Called by server.c and session.c. Invariant:
 * the record of a client is whole only while the keeper has its lease table.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_messages.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "mem/module.h"
#include "pool/keep.h"
#include "pool/server.h"

/* ---- the state ---- */

uint32_t fm_state_checksum(const struct fm_state *state)
{
	return fm_crc32c(state, offsetof(struct fm_state, checksum));
}

uint32_t fm_state_arena_checksum(const struct fm_state_arena *arena)
{
	return fm_crc32c(arena, offsetof(struct fm_state_arena, checksum));
}

uint32_t fm_state_client_checksum(const struct fm_state_client *client)
{
	return fm_crc32c(client, offsetof(struct fm_state_client, checksum));
}

void fm_keep_name(const struct fm_keep *keep, char name[FM_SERVICE_NAME], const char *kind,
		  uint32_t number)
{
	if (number)
		snprintf(name, FM_SERVICE_NAME, "%s%.7s-%u", keep->prefix, kind, number);
	else
		snprintf(name, FM_SERVICE_NAME, "%s%.7s", keep->prefix, kind);
}

/* A group's name as it is, where a keeper takes it for part of a name. */
static void prefix_of(const struct fm_keep *keep, const char *before, char out[FM_KEEP_PREFIX])
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_-";

	if (strspn(keep->group, plain) == strlen(keep->group))
		snprintf(out, FM_KEEP_PREFIX, "%.12s%s.", before, keep->group);
	else
		snprintf(out, FM_KEEP_PREFIX, "%.12s~%08x.", before,
			 fm_crc32c(keep->group, strlen(keep->group)));
}

/* ---- the keeper ---- */

/* What names in the module begin with: all users' programs share them. */
static void instance_prefix(const struct fm_server_options *options, char out[16])
{
	const char *name = options->instance ? options->instance : options->socket;
	char text[4096 + 128], folder[4096] = "";

	if (!name || (*name != '/' && !getcwd(folder, sizeof(folder))))
		name = "";
	snprintf(text, sizeof(text), "%u %s/%.108s", geteuid(), folder, name);
	snprintf(out, 16, "fm.%08x.", fm_crc32c(text, strlen(text)));
}

static bool is_asked_for(const struct fm_server_options *options, const char *keeper)
{
	return options->keeper && !strcmp(options->keeper, keeper);
}

static int check_keeper(const struct fm_server_options *options)
{
	if (!options->keeper || !strcmp(options->keeper, "best") ||
	    is_asked_for(options, "module") || is_asked_for(options, "manager"))
		return 0;
	return fm_fail(FM_ERR_INVALID, "keeper \"%s\" is not known: best, module or manager",
		       options->keeper);
}

/* Whether the service manager gave a pool; sets its names. */
static bool has_managers_pool(struct fm_keep *keep)
{
	char name[FM_SERVICE_NAME];

	prefix_of(keep, "fm.", keep->prefix);
	fm_keep_name(keep, name, "state", 0);
	return fm_service_has(name);
}

/* Opens the kernel module, and takes its lock if @locks; -1 without an error: by_reason says why.
 */
static int open_module(struct fm_keep *keep, const struct fm_server_options *options, bool locks)
{
	char before[16];
	int err;

	snprintf(keep->group, sizeof(keep->group), "%s",
		 options->group ? options->group : FM_TENANT_DEFAULT);
	keep->module = -1;
	keep->is_managers = has_managers_pool(keep);
	if (is_asked_for(options, "manager"))
		return 0;
	keep->module = fm_module_open();
	err = keep->module < 0 ? keep->module : 0;
	if (!err && keep->is_managers && !is_asked_for(options, "module"))
		err = fm_fail(FM_ERR_EXISTS, "the service manager has the pool of before, and goes "
					     "on with it until it is stopped");
	instance_prefix(options, before);
	if (!err)
		prefix_of(keep, before, keep->prefix);
	if (!err && locks)
		err = fm_module_lock(keep->module, keep->prefix);
	if (!err)
		return 0;
	if (keep->module >= 0)
		close(keep->module);
	keep->module = -1;
	if (is_asked_for(options, "module"))
		return err;
	/* Where there is no module at all, nobody misses it. */
	if (err != FM_ERR_NOT_FOUND)
		snprintf(keep->by_reason, sizeof(keep->by_reason), "%s", fm_error_detail());
	prefix_of(keep, "fm.", keep->prefix);
	return 0;
}

bool fm_keep_is_elsewhere(const struct fm_keep *keep, const struct fm_server_options *options)
{
	char before[16], prefix[FM_KEEP_PREFIX];
	bool is_modules;
	int device;

	if (keep->module >= 0)
		return keep->is_managers &&
		       fm_fail(FM_ERR_INVALID, "it lies with the service manager, and the kernel "
					       "module is asked for: that one is let go");
	device = is_asked_for(options, "manager") ? fm_module_open() : -1;
	if (device < 0)
		return false;
	instance_prefix(options, before);
	prefix_of(keep, before, prefix);
	is_modules = fm_module_has(device, prefix);
	close(device);
	return is_modules &&
	       fm_fail(FM_ERR_INVALID, "it lies in the kernel module, and the service manager is "
				       "asked for: fabricmgrd --forget gives its memory back");
}

/* The kernel module, if it takes us, or else whoever started this program. */
static int choose_keeper(struct fm_keep *keep, const struct fm_server_options *options)
{
	int err = check_keeper(options);

	if (!err)
		err = open_module(keep, options, true);
	if (!err && *keep->by_reason)
		fm_log(FM_LOG_WARNING, FM1508 "the kernel module does not keep the pool: %s",
		       keep->by_reason);
	return err;
}

static bool has_keeper(const struct fm_keep *keep)
{
	return keep->module >= 0 || fm_service_is_there();
}

static void say_who_keeps(struct fm_keep *keep)
{
	const char *by = "nothing", *reason = "neither systemd nor fabricmgr-holder started it";

	if (keep->module >= 0) {
		by = "kernel module";
		reason = "";
	} else if (fm_service_is_there() && getenv("FABRICMGR_HOLDER")) {
		by = "holder";
		reason = "";
	} else if (fm_service_is_there()) {
		by = "service manager";
		reason = getenv("FDSTORE") ? ""
					   : "it does not tell, but does if its unit has "
					     "FileDescriptorStoreMax=";
	}
	snprintf(keep->by, sizeof(keep->by), "%s", by);
	if (!*keep->by_reason)
		snprintf(keep->by_reason, sizeof(keep->by_reason), "%s", reason);
}

static int keeper_keep(const struct fm_keep *keep, const char *name, int fd)
{
	return keep->module >= 0 ? fm_module_keep(keep->module, name, fd)
				 : fm_service_keep(name, fd);
}

int fm_keeper_drop(const struct fm_keep *keep, const char *name)
{
	return keep->module >= 0 ? fm_module_drop(keep->module, name) : fm_service_drop(name);
}

static void give_up(struct fm_keep *keep)
{
	keep->is_given_up = true;
	snprintf(keep->by, sizeof(keep->by), "nothing");
	snprintf(keep->by_reason, sizeof(keep->by_reason), "%s", fm_error_detail());
	if (keep->state)
		/* Relaxed: for a later process. */
		fm_store_relaxed(&keep->state->is_incomplete, 1);
	fm_log(FM_LOG_WARNING, FM1503 "the pool will not outlive this daemon: %s",
	       fm_error_detail());
	/* Or it would stay there without anybody who could use it. */
	if (keep->module >= 0)
		fm_module_drop_all(keep->module, keep->prefix, true);
}

bool fm_keep_is_complete(const struct fm_keep *keep)
{
	return keep && keep->state && has_keeper(keep) && !keep->state->is_incomplete;
}

/* The module takes from those alone who may write, hence no client's own memory: that is not known
 * again after a restart. */
static bool takes(const struct fm_keep *keep, const char *kind)
{
	return keep && !keep->is_given_up && has_keeper(keep) &&
	       (keep->module < 0 || strcmp(kind, "adopt"));
}

void fm_keep_fd(struct fm_keep *keep, const char *kind, uint32_t number, int fd)
{
	char name[FM_SERVICE_NAME];

	if (!takes(keep, kind))
		return;
	fm_keep_name(keep, name, kind, number);
	if (keeper_keep(keep, name, fd))
		give_up(keep);
}

/* ---- life ---- */

/* What the module holds of earlier processes counts as ours to fill, from now on. */
static void count_module(const struct fm_keep *keep, const struct fm_server_options *options)
{
	static struct fm_service_fd given[FM_GIVEN_MAX];
	static bool is_counted;
	char before[16];
	uint32_t n;

	if (is_counted || keep->module < 0)
		return;
	is_counted = true;
	instance_prefix(options, before);
	n = fm_module_given(keep->module, before, given, FM_GIVEN_MAX);
	fm_service_count(given, n);
	while (n)
		close(given[--n].fd);
}

int fm_keep_open(struct fm_server *server, const struct fm_server_options *options)
{
	struct fm_keep *keep;
	int err;

	if (!(options->flags & FM_SERVER_KEEP))
		return 0;
	keep = calloc(1, sizeof(*keep));
	if (!keep)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for what outlives the daemon");
	keep->server = server;
	keep->module = -1;
	keep->n_tenants = options->n_tenants + 1;
	server->keep = keep;
	err = choose_keeper(keep, options);
	if (err)
		return err;
	say_who_keeps(keep);
	count_module(keep, options);
	fm_keep_find(server, options);
	return 0;
}

int fm_keep_begin(struct fm_server *server, uint64_t seed)
{
	struct fm_keep *keep = server->keep;
	struct fm_state *state;
	int fd;

	if (!keep || !has_keeper(keep))
		return 0;
	fd = fm_region_create(FM_RUNG_MEMFD, "fabricmgr-state", sizeof(*state));
	if (fd < 0)
		return fd;
	state = fm_region_populate(fd, 0, sizeof(*state)) ? NULL
							  : fm_region_map(fd, sizeof(*state), true);
	if (!state) {
		close(fd);
		return FM_ERR_NO_MEMORY;
	}
	*state = (struct fm_state){
		.magic = FM_STATE_MAGIC,
		.version = FM_STATE_VERSION,
		.bytes = sizeof(*state),
		.index_version = FM_INDEX_VERSION,
		.header_version = FM_HEADER_VERSION,
		.entries_max = server->entries_max,
		.rung = server->memory.rung,
		.records = FM_RECORDS_MAX,
		.pool_bytes = server->pool_bytes,
		.index_bytes = server->index_bytes,
		.header_bytes = server->header_bytes,
		.seed = seed,
		.incarnation = server->incarnation,
		.is_incomplete = !strcmp(keep->by, "nothing"),
	};
	snprintf(state->program, sizeof(state->program), "%s", fm_version());
	memcpy(state->group, keep->group, sizeof(state->group));
	state->checksum = fm_state_checksum(state);
	keep->state = state;
	/* The last: without it the others are nothing. */
	fm_keep_fd(keep, "state", 0, fd);
	close(fd);
	return 0;
}

void fm_kept_free(struct fm_keep *keep)
{
	while (keep->kept) {
		struct fm_kept *kept = keep->kept;

		keep->kept = kept->next;
		fm_region_unmap((void *)kept->owner.leases, kept->bytes);
		close(kept->fd);
		free(kept);
	}
	keep->n_kept = 0;
}

void fm_keep_close(struct fm_server *server)
{
	struct fm_keep *keep = server->keep;

	if (!keep)
		return;
	fm_kept_free(keep);
	/* What begins to be kept without its state is nothing: a start that failed. */
	if (keep->module >= 0 && !keep->state)
		fm_module_drop_all(keep->module, keep->prefix, false);
	else if (keep->module >= 0 && fm_keep_is_complete(keep))
		fm_log(FM_LOG_INFO,
		       FM1507 "the kernel module keeps the pool, %llu MiB at most, as "
			      "%s*: fabricmgrd --forget gives its memory back",
		       (unsigned long long)server->pool_bytes >> 20, keep->prefix);
	if (keep->module >= 0)
		close(keep->module);
	fm_region_unmap(keep->state, sizeof(*keep->state));
	free(keep);
	server->keep = NULL;
}

/* ---- what is handed over while it runs ---- */

void fm_keep_arena(struct fm_server *server, uint32_t region)
{
	const struct fm_arena *arena = &server->arenas[region - 1];
	struct fm_state_arena record = {.region = region, .uid = arena->uid};
	struct fm_keep *keep = server->keep;

	if (!keep || !keep->state)
		return;
	memcpy(record.tenant, server->tenants[arena->tenant].name, sizeof(record.tenant));
	record.checksum = fm_state_arena_checksum(&record);
	fm_keep_fd(keep, "arena", region, arena->fd);
	keep->state->arenas[region - 1] = record;
}

int fm_keep_client(struct fm_session *session, int fd)
{
	struct fm_keep *keep = session->server->keep;
	struct fm_state_client client = {
		.id = session->owner.id,
		.pid = session->pid,
		.uid = session->uid,
		.flags = session->flags,
		.leases = session->owner.lease_count,
	};
	uint32_t next = session->server->next_client_id, at = 0;

	if (!keep || !keep->state)
		return 0;
	while (at < FM_RECORDS_MAX && keep->state->clients[at].id)
		at++;
	if (at == FM_RECORDS_MAX)
		return fm_fail(FM_ERR_LIMIT,
			       "%u clients are attached, those of earlier daemons among them: end "
			       "programs that hold on to what they served",
			       FM_RECORDS_MAX);
	/* Relaxed: for a later process, as is the record. */
	fm_store_relaxed(&keep->state->next_id, FM_PAIR(~next, next));
	memcpy(client.name, session->name, sizeof(client.name));
	client.checksum = fm_state_client_checksum(&client);
	fm_keep_fd(keep, "lease", client.id, fd);
	FM_KILL_POINT("keep: handed over, no record");
	keep->state->clients[at] = client;
	session->record = at + 1;
	FM_KILL_POINT("keep: recorded");
	return 0;
}

void fm_keep_drop(struct fm_keep *keep, const char *kind, uint32_t number)
{
	char name[FM_SERVICE_NAME];
	int err;

	if (!takes(keep, kind))
		return;
	fm_keep_name(keep, name, kind, number);
	err = fm_keeper_drop(keep, name);
	if (err == FM_ERR_DEADLINE)
		give_up(keep);
	else if (err)
		fm_log(FM_LOG_DEBUG, FM1504 "%s", fm_error_detail());
}

static void forget(struct fm_keep *keep, uint32_t record)
{
	uint32_t id = keep->state->clients[record].id;

	/* Release, without a pair in this process: what it held was freed before. */
	fm_store_release(&keep->state->clients[record].id, 0);
	FM_KILL_POINT("keep: no record, still there");
	fm_keep_drop(keep, "lease", id);
}

void fm_keep_forget(struct fm_session *session)
{
	if (session->record)
		forget(session->server->keep, session->record - 1);
	session->record = 0;
}

/* ---- clients of earlier daemons ---- */

static void kept_end(struct fm_keep *keep, struct fm_kept *kept)
{
	struct fm_server *server = keep->server;
	struct fm_kept **link = &keep->kept;
	uint64_t expires = 0;

	if (kept->flags & FM_ATTACH_DEVICES && kept->owner.staged)
		expires = fm_clock_ns() + server->quarantine_ns;
	fm_store_owner_remove(&server->store, &kept->owner, expires);
	while (*link != kept)
		link = &(*link)->next;
	*link = kept->next;
	keep->n_kept--;
	forget(keep, kept->record);
	fm_region_unmap((void *)kept->owner.leases, kept->bytes);
	close(kept->fd);
	free(kept);
}

void fm_kept_probe(struct fm_keep *keep, uint64_t now)
{
	uint64_t end = now;

	/* Each one, the first of the list last. */
	for (uint32_t n = keep->n_kept; n && end - now < FM_KEPT_PROBE_MAX_NS; n--) {
		struct fm_kept *kept = keep->kept, **last = &keep->kept;

		if (fm_region_has_ended(kept->fd)) {
			kept_end(keep, kept);
		} else {
			keep->kept = kept->next;
			while (*last)
				last = &(*last)->next;
			*last = kept;
			kept->next = NULL;
		}
		end = fm_clock_ns();
	}
	/* The kernel waits for memory that is pinned: who pins it shall not stop the others. */
	keep->probe_at = end + FM_KEPT_PROBE_NS + 20 * (end - now);
}

void fm_keep_all_are_there(const struct fm_keep *keep)
{
	static _Atomic bool is_done, is_forgotten;

	/* Relaxed: one of the threads that come does it. */
	if (keep && !atomic_exchange_explicit(&is_done, true, memory_order_relaxed))
		fm_service_drop_rest("fm.");
	/* In the module, what groups of before have left: their locks are free. */
	if (keep && keep->module >= 0 &&
	    !atomic_exchange_explicit(&is_forgotten, true, memory_order_relaxed)) {
		char before[16];

		snprintf(before, sizeof(before), "%.12s", keep->prefix);
		fm_module_forget(keep->module, before);
	}
}

/* ---- without a server ---- */

int fm_keep_check(const struct fm_server_options *options, struct fm_server_needs *needs)
{
	struct fm_keep *keep;
	int err = check_keeper(options);

	if (err || !(options->flags & FM_SERVER_KEEP))
		return err;
	keep = calloc(1, sizeof(*keep));
	if (!keep)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for what outlives the daemon");
	err = open_module(keep, options, false);
	count_module(keep, options);
	say_who_keeps(keep);
	memcpy(needs->kept_by, keep->by, sizeof(needs->kept_by));
	memcpy(needs->kept_reason, keep->by_reason, sizeof(needs->kept_reason));
	if (keep->module >= 0)
		close(keep->module);
	free(keep);
	return err;
}

int fm_server_forget(const struct fm_server_options *options)
{
	int device, dropped;
	char before[16];

	if (!options || options->size < sizeof(*options))
		return fm_fail(FM_ERR_INVALID, "fm_server_options: size is not of this version");
	device = fm_module_open();
	if (device < 0)
		return device;
	instance_prefix(options, before);
	dropped = fm_module_forget(device, before);
	close(device);
	return dropped;
}

void fm_keep_run(struct fm_keep *keep, uint64_t now)
{
	if (!keep)
		return;
	if (keep->kept && now >= keep->probe_at)
		fm_kept_probe(keep, fm_clock_ns());
}

uint64_t fm_keep_next(const struct fm_keep *keep)
{
	return keep && keep->kept ? keep->probe_at : UINT64_MAX;
}

void fm_keep_info(const struct fm_keep *keep, struct fm_pool_info *info)
{
	snprintf(info->kept_by, sizeof(info->kept_by), "%s", keep ? keep->by : "nothing");
	snprintf(info->kept_reason, sizeof(info->kept_reason), "%s",
		 keep ? keep->by_reason : "it lives in the process that made it");
	if (!keep)
		return;
	info->resumed_blocks = keep->resumed;
	info->resume_dropped = keep->dropped;
	info->resume_ns = keep->took_ns;
	info->kept_clients = keep->n_kept;
	for (const struct fm_kept *kept = keep->kept; kept; kept = kept->next)
		info->kept_leases += fm_store_leases(&keep->server->store, &kept->owner);
	snprintf(info->cold_reason, sizeof(info->cold_reason), "%s", keep->cold_reason);
}
