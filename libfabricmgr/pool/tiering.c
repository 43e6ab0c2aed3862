// SPDX-License-Identifier: Apache-2.0
/*
 * The traffic between the pool's memory and the NVMe tier (see tiering.h). It is an owner in the
 * store like any client: it leases what it writes, stages and seals what it fetched. One thread.
 * Invariant: fetches are answered in the order in which they were asked, so that a parent is sealed
 * before its child.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_probes.h>

#include "base/clock.h"
#include "core/adopted.h"
#include "core/lease.h"
#include "pool/server.h"
#include "pool/tiering.h"

struct fetch {
	struct fetch *next;
	struct fm_session *session; /* NULL: gone */
	uint64_t tag, call, deadline;
	struct fm_key key;
	struct fm_log_place place;
	struct fm_owner *owner; /* of @entry */
	uint32_t entry;		/* staged; FM_NO_ENTRY: none */
	bool is_reading, is_done;
	int result;
};

/* An answer that waits for the log. */
struct promise {
	struct promise *next;
	struct fm_session *session;
	struct fm_completion completion;
	uint64_t removal;
	bool is_removal;
};

struct queued {
	uint32_t entry, generation;
};

struct fm_tiering {
	struct fm_server *server;
	struct fm_nvme *nvme;
	struct fm_watch *watch;
	struct fm_owner owner;
	struct fm_owner fetchers[FM_TENANTS_MAX]; /* who stages for a tenant; region 0: not yet */
	char *memory[FM_ARENAS_MAX + 1];	  /* arenas as mapped here */
	uint32_t buffers;
	bool is_known[FM_NVME_BUFFERS]; /* the chunk's memory was named to the device */
	uint16_t marks[FM_TENANTS_MAX]; /* by tenant; what its blocks are known by in the log */
	struct fabricmgr_lease leases[FM_SPILLS_MAX];
	uint32_t free_leases[FM_SPILLS_MAX], free_lease_count;
	uint64_t leased[FM_SPILLS_MAX], leased_bytes; /* by each of them, and all */
	struct queued queue[FM_SPILL_QUEUE];	      /* sealed, to be written */
	uint64_t queue_head, queue_tail;
	struct fetch *fetches, **fetches_end;
	uint32_t fetch_count;
	struct promise *promises, **promises_end;
	uint64_t fetched, fetch_misses, skipped;
};

/* ---- memory ---- */

static char *arena_memory(struct fm_tiering *t, uint32_t region)
{
	if (!t->memory[region])
		t->memory[region] = fm_region_map(t->server->arenas[region - 1].fd,
						  t->server->pool_bytes, true);
	return t->memory[region];
}

void fm_tiering_chunk(struct fm_tiering *t, uint32_t region, uint32_t chunk, bool is_backed)
{
	char *base;

	if (!t || chunk >= t->buffers)
		return;
	base = is_backed ? arena_memory(t, region) : NULL;
	t->is_known[chunk] = base != NULL;
	fm_nvme_set_memory(t->nvme, chunk,
			   base ? base + (uint64_t)chunk * FABRICMGR_CHUNK_BYTES : NULL,
			   FABRICMGR_CHUNK_BYTES);
}

/* Where the block of an entry is, or NULL. */
static void *address_of(struct fm_tiering *t, uint32_t entry, uint32_t *buffer)
{
	const struct fm_entry *e = &t->server->store.index.entries[entry];
	char *base = arena_memory(t, FM_HIGH(e->place));
	uint64_t slot_bytes = (uint64_t)fm_slots_pages(FM_HIGH(e->extent)) * FM_SLOT_GRAIN;

	*buffer = FM_LOW(e->place);
	/* Of an earlier daemon's memory each chunk when it is needed: pinning all takes seconds. */
	if (*buffer < t->buffers && !t->is_known[*buffer])
		fm_tiering_chunk(t, FM_HIGH(e->place), *buffer, true);
	return base ? base + (uint64_t)FM_LOW(e->place) * FABRICMGR_CHUNK_BYTES +
			       FM_LOW(e->extent) * slot_bytes
		    : NULL;
}

/* ---- writing behind ---- */

static void on_written(void *context, void *tag, int result)
{
	struct fm_tiering *t = context;
	struct fabricmgr_lease *lease = tag;

	(void)result; /* counted by the tier; the block stays in memory as it is */
	fm_lease_drop(lease);
	t->leased_bytes -= t->leased[lease - t->leases];
	t->free_leases[t->free_lease_count++] = (uint32_t)(lease - t->leases);
}

static void enqueue(struct fm_tiering *t, uint32_t entry)
{
	if (t->queue_tail - t->queue_head == FM_SPILL_QUEUE) {
		t->skipped++;
		return;
	}
	t->queue[t->queue_tail++ % FM_SPILL_QUEUE] = (struct queued){
		.entry = entry,
		.generation = FABRICMGR_WORD_GENERATION(t->server->store.index.entries[entry].word),
	};
}

static void describe(const struct fm_tiering *t, uint32_t entry, struct fm_log_block *block)
{
	const struct fm_store *store = &t->server->store;
	const struct fm_entry *e = &store->index.entries[entry];

	*block = (struct fm_log_block){.length = FM_HIGH(e->extent), .crc32c = FM_HIGH(e->check)};
	fm_key_load(e->key, &block->key);
	fm_key_load(e->parent, &block->parent);
	memcpy(block->ns, store->headers[entry].ns, sizeof(block->ns));
}

/* Whether the block has room in its tenant's share of the log: the oldest there go for it. */
static bool has_share(struct fm_tiering *t, uint32_t tenant, const struct fm_log_block *block)
{
	struct fm_log *log = fm_nvme_log(t->nvme);
	uint64_t max = t->server->tenants[tenant].quotas.nvme_bytes;
	uint64_t bytes = (uint64_t)fm_log_pages(block->length) * FM_LOG_PAGE;
	uint32_t length, crc32c;

	if (!max || fm_log_has(log, &block->key, &length, &crc32c))
		return true;
	while (bytes <= max && fm_log_marked_bytes(log, t->marks[tenant]) + bytes > max)
		if (!fm_log_give_up(log, t->marks[tenant]))
			return false;
	return bytes <= max;
}

/* False: the tier takes no more for now. */
static bool spill(struct fm_tiering *t, const struct queued *queued)
{
	const struct fm_entry *e = &t->server->store.index.entries[queued->entry];
	uint64_t word = FABRICMGR_WORD(queued->generation, FABRICMGR_BLOCK_SEALED);
	struct fabricmgr_lease *lease;
	struct fm_log_block block;
	uint64_t bytes;
	uint32_t buffer, tenant;
	void *memory;
	int err;

	if (e->word != word) {
		t->skipped++; /* evicted or removed before its turn */
		return true;
	}
	/* A device that stands still may keep half of the memory from being evicted, no more. */
	bytes = (uint64_t)fm_slots_pages(FM_HIGH(e->extent)) * FM_SLOT_GRAIN;
	if (!t->free_lease_count || t->leased_bytes + bytes > t->server->pool_bytes / 2)
		return false;
	lease = &t->leases[t->free_leases[t->free_lease_count - 1]];
	memory = address_of(t, queued->entry, &buffer);
	if (!memory || !fm_lease_take(lease, e, word)) {
		t->skipped++;
		return true;
	}
	describe(t, queued->entry, &block);
	tenant = fm_store_tenant(&t->server->store, queued->entry);
	err = has_share(t, tenant, &block)
		      ? fm_nvme_write(t->nvme, &block, t->marks[tenant], memory, buffer, lease)
		      : FM_ERR_LIMIT;
	if (!err) {
		t->free_lease_count--;
		t->leased[lease - t->leases] = bytes;
		t->leased_bytes += bytes;
		return true;
	}
	fm_lease_drop(lease);
	if (err != FM_ERR_BUSY && err != FM_ERR_EXISTS)
		t->skipped++;
	return err != FM_ERR_BUSY;
}

bool fm_tiering_sealed(struct fm_tiering *t, uint32_t entry, bool replaces)
{
	struct fm_log_block block;
	uint32_t length, crc32c;
	bool is_other;

	if (!t)
		return false;
	describe(t, entry, &block);
	/* What another tenant wrote is not this one's to take; see session.c. */
	if (fm_tiering_is_others(t, &block.key, fm_store_tenant(&t->server->store, entry)))
		return false;
	is_other = fm_log_has(fm_nvme_log(t->nvme), &block.key, &length, &crc32c) &&
		   (replaces || length != block.length || crc32c != block.crc32c);
	if (is_other)
		fm_log_remove(fm_nvme_log(t->nvme), &block.key);
	/* The device is given no memory that a client may take away meanwhile. */
	if (!fm_entry_is_adopted(&t->server->store, entry))
		enqueue(t, entry);
	return is_other;
}

/* ---- removing ---- */

bool fm_tiering_remove(struct fm_tiering *t, const struct fm_key *key)
{
	return t && !fm_log_remove(fm_nvme_log(t->nvme), key);
}

bool fm_tiering_is_others(const struct fm_tiering *t, const struct fm_key *key, uint32_t tenant)
{
	return t && fm_log_is_others(fm_nvme_log(t->nvme), key, t->marks[tenant]);
}

uint32_t fm_tiering_invalidate(struct fm_tiering *t, const uint8_t *ns, uint32_t tenant)
{
	struct fm_log *log = t ? fm_nvme_log(t->nvme) : NULL;
	uint32_t only_here = 0;
	uint64_t word;

	if (!t)
		return 0;
	for (uint32_t i = 0; i < log->options.entries_max; i++) {
		struct fm_log_place place;
		const struct fm_log_block *block = &log->entries[i].block;

		if (!memcmp(block->ns, ns, sizeof(block->ns)) &&
		    fm_log_find(log, &block->key, &place) && place.entry == i &&
		    (tenant == FM_NO_ENTRY || fm_log_is_one(log, place.mark, t->marks[tenant])) &&
		    fm_index_find(&t->server->store.index, &block->key, &word) == FM_NO_ENTRY)
			only_here++;
	}
	fm_log_invalidate(log, ns, tenant == FM_NO_ENTRY ? FM_LOG_ANY : t->marks[tenant]);
	return only_here;
}

void fm_tiering_answer(struct fm_tiering *t, struct fm_session *session,
		       const struct fm_completion *completion, bool is_removal)
{
	struct fm_log *log = t ? fm_nvme_log(t->nvme) : NULL;
	struct promise *promise;

	if (!t || fm_log_removals_stored(log) == log->removals) {
		fm_session_complete(session, completion);
		return;
	}
	promise = calloc(1, sizeof(*promise));
	if (!promise) {
		struct fm_completion failed = *completion;

		failed.result = FM_ERR_NO_MEMORY;
		fm_session_complete(session, &failed);
		return;
	}
	promise->session = session;
	promise->completion = *completion;
	promise->removal = log->removals;
	promise->is_removal = is_removal;
	session->waiting++;
	*t->promises_end = promise;
	t->promises_end = &promise->next;
}

static bool keep_promises(struct fm_tiering *t)
{
	struct fm_log *log = fm_nvme_log(t->nvme);
	uint64_t stored = t->promises ? fm_log_removals_stored(log) : 0;
	struct promise *promise;
	bool did_work = false;

	while ((promise = t->promises) && (promise->removal <= stored || log->is_dead)) {
		t->promises = promise->next;
		if (!t->promises)
			t->promises_end = &t->promises;
		FM_KILL_POINT("removal: stored, not answered");
		if (promise->removal > stored && promise->is_removal)
			promise->completion.result = FM_ERR_IO;
		if (promise->session) {
			promise->session->waiting--;
			fm_session_complete(promise->session, &promise->completion);
		}
		free(promise);
		did_work = true;
	}
	return did_work;
}

/* ---- fetching ---- */

static bool is_in_memory(const struct fm_tiering *t, const struct fm_key *key)
{
	uint64_t word;

	return fm_index_find(&t->server->store.index, key, &word) != FM_NO_ENTRY;
}

void fm_tiering_fetch(struct fm_tiering *t, struct fm_session *session,
		      const struct fm_submission *s)
{
	struct fm_completion completion = {.tag = s->tag};
	struct fetch *fetch;

	if (!t)
		completion.result = FM_ERR_NOT_FOUND;
	else if (t->fetch_count == FM_FETCHES_MAX || !fm_session_may_wait(session))
		completion = (struct fm_completion){
			.tag = s->tag, .result = FM_ERR_LIMIT, .quota = session->owner.over};
	fetch = completion.result ? NULL : calloc(1, sizeof(*fetch));
	if (!fetch) {
		if (!completion.result)
			completion.result = FM_ERR_NO_MEMORY;
		fm_session_complete(session, &completion);
		return;
	}
	fetch->session = session;
	fetch->tag = s->tag;
	fetch->call = s->length;
	fetch->key = s->key;
	fetch->entry = FM_NO_ENTRY;
	if (__builtin_add_overflow(fm_clock_ns(), s->deadline_ns, &fetch->deadline))
		fetch->deadline = UINT64_MAX;
	session->waiting++;
	t->fetch_count++;
	*t->fetches_end = fetch;
	t->fetches_end = &fetch->next;
}

static void on_read(void *context, void *tag, const struct fm_log_place *place, int result)
{
	struct fetch *fetch = tag;

	(void)context;
	fetch->place = *place;
	fetch->result = result;
	fetch->is_reading = false;
	fetch->is_done = true;
}

static void fetch_is_over(struct fetch *fetch, int result)
{
	fetch->result = result;
	fetch->is_done = true;
	/* What follows in the same call would be no use without it. */
	if (result && fetch->session)
		fetch->session->broken_fetch = fetch->call;
}

static bool is_being_read(const struct fm_tiering *t, const struct fetch *until)
{
	for (const struct fetch *fetch = t->fetches; fetch != until; fetch = fetch->next)
		if (!memcmp(&fetch->key, &until->key, sizeof(fetch->key)))
			return true;
	return false;
}

/* Whose a block of the log is: the first's, where its tenant is there no more. */
static uint32_t tenant_of(const struct fm_tiering *t, uint16_t mark)
{
	for (uint32_t i = 1; i < t->server->tenant_count; i++)
		if (t->marks[i] == mark)
			return i;
	return 0;
}

/* A block stays its tenant's, whoever asked for it, in an arena that this user alone may change. */
static int64_t fetcher_of(struct fm_tiering *t, uint32_t tenant, struct fm_owner **out)
{
	struct fm_owner *owner = &t->fetchers[tenant];
	int64_t region = owner->region;

	*out = owner;
	if (region)
		return region;
	region = fm_server_arena(t->server, tenant, geteuid());
	if (region < 0)
		return region;
	owner->region = (uint32_t)region;
	owner->id = t->owner.id;
	fm_store_owner_add(&t->server->store, owner);
	return region;
}

/* False: the tier takes no more reads for now. */
static bool start_fetch(struct fm_tiering *t, struct fetch *fetch, uint64_t now)
{
	struct fm_store *store = &t->server->store;
	struct fm_log_place place;
	uint32_t buffer;
	bool is_wanted = fetch->session && fetch->session->broken_fetch != fetch->call;
	void *memory;
	int err;

	if (is_wanted && is_in_memory(t, &fetch->key)) {
		fetch_is_over(fetch, 0);
	} else if (is_wanted && now >= fetch->deadline) {
		fetch_is_over(fetch, FM_ERR_DEADLINE);
	} else if (is_wanted && is_being_read(t, fetch)) {
		return true; /* in memory when its turn comes */
	} else if (!is_wanted || !fm_log_find(fm_nvme_log(t->nvme), &fetch->key, &place)) {
		fetch_is_over(fetch, FM_ERR_NOT_FOUND);
	} else if (!fm_nvme_may_read(t->nvme, place.block.length)) {
		return false;
	} else {
		int64_t region = fetcher_of(t, tenant_of(t, place.mark), &fetch->owner);

		err = region < 0 ? (int)region
				 : fm_store_stage(store, fetch->owner, place.block.length,
						  &fetch->entry);
		if (err) {
			fetch->entry = FM_NO_ENTRY;
			/* What is being written keeps its memory that long, and is then free. */
			if (err != FM_ERR_POOL_FULL || t->free_lease_count == FM_SPILLS_MAX)
				fetch_is_over(fetch, err);
			return true;
		}
		FM_KILL_POINT("fetch: staged, not read");
		memory = address_of(t, fetch->entry, &buffer);
		err = memory ? fm_nvme_read(t->nvme, &place, memory, buffer, fetch) : FM_ERR_IO;
		if (err)
			fetch_is_over(fetch, err);
		else
			fetch->is_reading = true;
	}
	return true;
}

/* Its turn has come: what was read is sealed. */
static void finish_fetch(struct fm_tiering *t, struct fetch *fetch)
{
	static const struct fm_key none;
	struct fm_store *store = &t->server->store;
	const struct fm_log_block *block = &fetch->place.block;

	if (fetch->entry != FM_NO_ENTRY) {
		uint32_t generation =
			FABRICMGR_WORD_GENERATION(store->index.entries[fetch->entry].word);

		if (!fetch->result && !fm_log_is_current(fm_nvme_log(t->nvme), &fetch->place))
			fetch->result = FM_ERR_NOT_FOUND; /* removed since it was read */
		if (!fetch->result) {
			struct fm_store_seal seal = {
				.entry = fetch->entry,
				.generation = generation,
				.crc32c = block->crc32c,
				.key = block->key,
				.parent = memcmp(&block->parent, &none, sizeof(none))
						  ? &block->parent
						  : NULL,
				.ns = block->ns,
			};

			fetch->result = fm_store_seal(store, fetch->owner, &seal);
			t->fetched += !fetch->result;
			FM_KILL_POINT("fetch: sealed, not answered");
		}
		if (fetch->result)
			fm_store_discard(store, fetch->owner, fetch->entry, generation);
		else if (fm_log_is_old(fm_nvme_log(t->nvme), &fetch->place))
			enqueue(t, fetch->entry); /* its second chance */
		if (fetch->result == FM_ERR_EXISTS)
			fetch->result = 0;
		if (fetch->result)
			fetch_is_over(fetch, fetch->result);
	}
	t->fetch_misses += fetch->result != 0;
	if (fetch->session) {
		FM_PROBE(fetch, fetch->session->owner.id, fetch->key.bytes, fetch->result);
		struct fm_completion completion = {.tag = fetch->tag, .result = fetch->result};

		fetch->session->waiting--;
		fm_session_complete(fetch->session, &completion);
	}
}

static bool run_fetches(struct fm_tiering *t, uint64_t now)
{
	bool did_work = false;

	for (struct fetch *fetch = t->fetches; fetch; fetch = fetch->next)
		if (!fetch->is_reading && !fetch->is_done && !start_fetch(t, fetch, now))
			break;
	while (t->fetches && t->fetches->is_done) {
		struct fetch *fetch = t->fetches;

		finish_fetch(t, fetch);
		t->fetches = fetch->next;
		if (!t->fetches)
			t->fetches_end = &t->fetches;
		t->fetch_count--;
		free(fetch);
		did_work = true;
	}
	return did_work;
}

void fm_tiering_forget(struct fm_tiering *t, const struct fm_session *session)
{
	if (!t)
		return;
	for (struct fetch *fetch = t->fetches; fetch; fetch = fetch->next)
		if (fetch->session == session)
			fetch->session = NULL;
	for (struct promise *promise = t->promises; promise; promise = promise->next)
		if (promise->session == session)
			promise->session = NULL;
}

/* ---- life ---- */

bool fm_tiering_run(struct fm_tiering *t, uint64_t now)
{
	bool did_work;

	if (!t)
		return false;
	while (t->queue_head < t->queue_tail && spill(t, &t->queue[t->queue_head % FM_SPILL_QUEUE]))
		t->queue_head++;
	fm_nvme_pump(t->nvme, false);
	did_work = run_fetches(t, now);
	if (did_work || t->fetches)
		fm_nvme_pump(t->nvme, false);
	return keep_promises(t) || did_work;
}

uint64_t fm_tiering_next(const struct fm_tiering *t, uint64_t now)
{
	/* A deadline that passes while the device does nothing; and twins of what was answered. */
	return t && t->fetches ? now + FM_FETCH_RETRY_NS : UINT64_MAX;
}

static void on_event(void *context)
{
	struct fm_tiering *t = context;

	fm_nvme_pump(t->nvme, false);
}

/* A mark for each name that stays the same when the daemon starts again; 0 is the first's. */
static void mark_tenants(struct fm_tiering *t)
{
	for (uint32_t i = 1; i < t->server->tenant_count; i++) {
		uint32_t hash = 2166136261u, before = 0;

		for (const char *name = t->server->tenants[i].name; *name; name++)
			hash = (hash ^ (unsigned char)*name) * 16777619u;
		t->marks[i] = (uint16_t)(hash ^ hash >> 16);
		/* Not that of another. */
		while (before < i) {
			if (t->marks[before] == t->marks[i]) {
				t->marks[i]++;
				before = 0;
			} else {
				before++;
			}
		}
	}
}

int fm_tiering_check(const struct fm_server_options *options, uint64_t *memory_bytes)
{
	const struct fm_nvme_options nvme = {
		.path = options->nvme_path,
		.bytes = options->nvme_bytes,
	};

	return fm_nvme_check(&nvme, memory_bytes);
}

int fm_tiering_create(struct fm_server *server, const struct fm_server_options *options,
		      struct fm_tiering **out)
{
	struct fm_tiering *t = calloc(1, sizeof(*t));
	struct fm_nvme_options nvme = {
		.path = options->nvme_path,
		.bytes = options->nvme_bytes,
		.is_durable = !(options->nvme_flags & FM_NVME_NOT_DURABLE),
		.context = t,
		.written = on_written,
		.read = on_read,
	};
	int err;

	if (!t)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the NVMe tier");
	t->server = server;
	t->fetches_end = &t->fetches;
	t->promises_end = &t->promises;
	t->buffers = server->chunks < FM_NVME_BUFFERS ? server->chunks : FM_NVME_BUFFERS;
	nvme.buffers = t->buffers;
	mark_tenants(t);
	nvme.marks = &t->marks[1];
	for (uint32_t i = 0; i < FM_SPILLS_MAX; i++)
		t->free_leases[t->free_lease_count++] = i;
	err = fm_nvme_open(&nvme, &t->nvme);
	if (!err)
		err = fm_loop_add(server->loop, fm_nvme_event(t->nvme), on_event, t, &t->watch);
	if (err) {
		fm_nvme_close(t->nvme);
		free(t);
		return err;
	}
	t->owner.id = server->next_client_id++;
	t->owner.leases = t->leases;
	t->owner.lease_count = FM_SPILLS_MAX;
	fm_store_owner_add(&server->store, &t->owner);
	*out = t;
	return 0;
}

void fm_tiering_resume(struct fm_tiering *t)
{
	const struct fm_store *store = t ? &t->server->store : NULL;
	struct fm_log_block block;
	uint32_t length, crc32c;

	if (!t)
		return;
	for (uint32_t i = 0; i < store->index.entries_max; i++) {
		/* One of a group must not come back alone. */
		if (FABRICMGR_WORD_STATE(store->index.entries[i].word) != FABRICMGR_BLOCK_SEALED ||
		    store->headers[i].flags & FM_HEADER_IN_GROUP)
			continue;
		describe(t, i, &block);
		if (!fm_log_has(fm_nvme_log(t->nvme), &block.key, &length, &crc32c) ||
		    length != block.length || crc32c != block.crc32c)
			fm_tiering_sealed(t, i, false);
	}
}

void fm_tiering_destroy(struct fm_tiering *t)
{
	uint64_t until = fm_clock_ns() + FM_SPILL_END_NS;

	if (!t)
		return;
	while (t->queue_head < t->queue_tail && fm_clock_ns() < until) {
		fm_tiering_run(t, fm_clock_ns());
		if (t->queue_head < t->queue_tail)
			fm_nvme_pump(t->nvme, true);
	}
	fm_loop_remove(t->server->loop, t->watch);
	fm_nvme_close(t->nvme);
	fm_store_owner_remove(&t->server->store, &t->owner, 0);
	for (uint32_t i = 0; i < FM_TENANTS_MAX; i++)
		if (t->fetchers[i].region)
			fm_store_owner_remove(&t->server->store, &t->fetchers[i], 0);
	while (t->fetches) {
		struct fetch *fetch = t->fetches;

		t->fetches = fetch->next;
		free(fetch);
	}
	while (t->promises) {
		struct promise *promise = t->promises;

		t->promises = promise->next;
		free(promise);
	}
	for (uint32_t i = 0; i <= FM_ARENAS_MAX; i++)
		fm_region_unmap(t->memory[i], t->server->pool_bytes);
	free(t);
}

void fm_tiering_info(const struct fm_tiering *t, struct fm_pool_info *info)
{
	struct fm_nvme_info nvme;
	const struct fm_log *log;

	if (!t)
		return;
	log = fm_nvme_log(t->nvme);
	fm_nvme_info(t->nvme, &nvme);
	info->nvme_bytes = nvme.bytes;
	info->nvme_segments = nvme.segments;
	info->nvme_segments_bad = log->counters.segments_bad;
	info->nvme_blocks = log->counters.blocks;
	info->nvme_block_bytes = log->counters.block_bytes;
	info->nvme_memory_bytes = nvme.memory_bytes;
	info->nvme_reading_bytes = nvme.reading_bytes;
	info->nvme_writing_bytes = nvme.writing_bytes;
	info->nvme_stored = log->counters.appended;
	info->nvme_stored_bytes = log->counters.appended_bytes;
	info->nvme_fetched = t->fetched;
	info->nvme_fetch_misses = t->fetch_misses;
	info->nvme_reclaimed = log->counters.reclaimed;
	info->nvme_skipped = t->skipped;
	info->nvme_recovered = log->counters.recovered;
	info->nvme_read_errors = nvme.read_errors;
	info->nvme_write_errors = nvme.write_errors;
	info->nvme_flush_errors = nvme.flush_errors;
	info->nvme_checksum_errors = nvme.checksum_errors;
	info->nvme_is_durable = nvme.is_durable;
	info->nvme_is_dead = nvme.is_dead;
	snprintf(info->nvme_path, sizeof(info->nvme_path), "%s", nvme.name);
	snprintf(info->nvme_rung, sizeof(info->nvme_rung), "%s", nvme.rung);
	snprintf(info->nvme_rung_reason, sizeof(info->nvme_rung_reason), "%s", nvme.reason);
}

uint64_t fm_tiering_tenant_bytes(const struct fm_tiering *t, uint32_t tenant)
{
	return t ? fm_log_marked_bytes(fm_nvme_log(t->nvme), t->marks[tenant]) : 0;
}
