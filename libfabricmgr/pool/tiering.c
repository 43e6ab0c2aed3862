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
#include "core/groups.h"
#include "core/lease.h"
#include "pool/server.h"
#include "pool/tiering.h"

/* One block of what is fetched: the one that was asked for, or of its group. */
struct part {
	struct fetch *fetch;
	struct fm_log_place place;
	uint32_t entry; /* staged; FM_NO_ENTRY: not */
};

struct fetch {
	struct fetch *next;
	struct fm_session *session; /* NULL: gone */
	uint64_t tag, call, deadline;
	struct fm_key key;
	struct part *parts;	/* NULL: not begun */
	struct fm_owner *owner; /* who stages them */
	uint32_t n_parts, n_started, n_reading;
	bool is_done;
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

/* Whether blocks have room in their tenant's share of the log: the oldest there go for it. @key: of
 * the first. */
static bool has_share(struct fm_tiering *t, uint32_t tenant, const struct fm_key *key,
		      uint64_t bytes)
{
	struct fm_log *log = fm_nvme_log(t->nvme);
	uint64_t max = t->server->tenants[tenant].quotas.nvme_bytes;
	uint32_t length, crc32c;

	if (!max || fm_log_has(log, key, &length, &crc32c))
		return true;
	while (bytes <= max && fm_log_marked_bytes(log, t->marks[tenant]) + bytes > max)
		if (!fm_log_give_up(log, t->marks[tenant]))
			return false;
	return bytes <= max;
}

static uint64_t slot_bytes_of(const struct fm_tiering *t, uint32_t entry)
{
	return (uint64_t)t->server->store.nodes[entry].pages * FM_SLOT_GRAIN;
}

/* What is written is held. */
static void take_leases(struct fm_tiering *t, const uint32_t *entries, uint32_t n)
{
	while (n--) {
		uint32_t at = t->free_leases[--t->free_lease_count];

		t->leased[at] = slot_bytes_of(t, entries[n]);
		t->leased_bytes += t->leased[at];
	}
}

/* The leases of the next @n are written, the last one of them first; or none, and why. */
static int lease_members(struct fm_tiering *t, const uint32_t *entries, uint32_t n, void **memory,
			 uint32_t *buffers, void **tags)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = t->free_leases[t->free_lease_count - n + i];
		const struct fm_entry *e = &t->server->store.index.entries[entries[i]];

		tags[i] = &t->leases[at];
		memory[i] = address_of(t, entries[i], &buffers[i]);
		if (memory[i] && FABRICMGR_WORD_STATE(e->word) == FABRICMGR_BLOCK_SEALED &&
		    fm_lease_take(tags[i], e, e->word))
			continue;
		while (i--)
			fm_lease_drop(tags[i]);
		return FM_ERR_IO;
	}
	return 0;
}

/* All that belong to the group of @entry; 0: they cannot be stored as one. */
static uint32_t members_of(struct fm_tiering *t, uint32_t entry, uint32_t *entries,
			   struct fm_log_block *blocks, uint64_t *bytes, uint64_t *log_bytes)
{
	uint32_t n = 0, member = entry;

	*bytes = *log_bytes = 0;
	do {
		if (n == FM_LOG_GROUP_MAX)
			return 0;
		entries[n] = member;
		describe(t, member, &blocks[n]);
		if (memcmp(blocks[n].ns, blocks[0].ns, sizeof(blocks[0].ns)))
			return 0; /* an invalidation would take a part */
		*bytes += slot_bytes_of(t, member);
		*log_bytes += (uint64_t)fm_log_pages(blocks[n].length) * FM_LOG_PAGE;
		member = fm_group_next(&t->server->store, member);
		n++;
	} while (member != entry);
	return *bytes <= t->server->pool_bytes / 2 ? n : 0;
}

/* As spill(), of all members at once. */
static bool spill_group(struct fm_tiering *t, uint32_t entry)
{
	struct fm_log_block blocks[FM_LOG_GROUP_MAX];
	uint32_t entries[FM_LOG_GROUP_MAX], buffers[FM_LOG_GROUP_MAX], tenant, n;
	void *memory[FM_LOG_GROUP_MAX], *tags[FM_LOG_GROUP_MAX];
	uint64_t bytes, log_bytes;
	int err;

	n = members_of(t, entry, entries, blocks, &bytes, &log_bytes);
	if (n && (t->free_lease_count < n || t->leased_bytes + bytes > t->server->pool_bytes / 2))
		return false;
	if (!n || lease_members(t, entries, n, memory, buffers, tags)) {
		t->skipped++;
		return true;
	}
	tenant = fm_store_tenant(&t->server->store, entry);
	err = has_share(t, tenant, &blocks[0].key, log_bytes)
		      ? fm_nvme_write_group(t->nvme, blocks, n, t->marks[tenant], memory, buffers,
					    tags)
		      : FM_ERR_LIMIT;
	if (!err) {
		take_leases(t, entries, n);
		return true;
	}
	for (uint32_t i = 0; i < n; i++)
		fm_lease_drop(tags[i]);
	if (err != FM_ERR_BUSY && err != FM_ERR_EXISTS)
		t->skipped++;
	return err != FM_ERR_BUSY;
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
	if (t->server->store.nodes[queued->entry].group_next)
		return spill_group(t, queued->entry);
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
	err = has_share(t, tenant, &block.key, (uint64_t)fm_log_pages(block.length) * FM_LOG_PAGE)
		      ? fm_nvme_write(t->nvme, &block, t->marks[tenant], memory, buffer, lease)
		      : FM_ERR_LIMIT;
	if (!err) {
		take_leases(t, &queued->entry, 1);
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

void fm_tiering_group_sealed(struct fm_tiering *t, uint32_t entry)
{
	if (t && !fm_entry_is_adopted(&t->server->store, entry))
		enqueue(t, entry);
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
	if (__builtin_add_overflow(fm_clock_ns(), s->deadline_ns, &fetch->deadline))
		fetch->deadline = UINT64_MAX;
	session->waiting++;
	t->fetch_count++;
	*t->fetches_end = fetch;
	t->fetches_end = &fetch->next;
}

static void on_read(void *context, void *tag, const struct fm_log_place *place, int result)
{
	struct part *part = tag;
	struct fetch *fetch = part->fetch;

	(void)context;
	part->place = *place;
	if (result && !fetch->result)
		fetch->result = result;
	fetch->n_reading--;
	fetch->is_done = fetch->n_started == fetch->n_parts && !fetch->n_reading;
}

static void fetch_is_over(struct fetch *fetch, int result)
{
	fetch->result = result;
	fetch->is_done = true;
	/* What follows in the same call would be no use without it. */
	if (result && fetch->session)
		fetch->session->broken_fetch = fetch->call;
}

static bool is_same(const struct fm_key *a, const struct fm_key *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* By a fetch before it, of this key or of another of its group. */
static bool is_being_read(const struct fm_tiering *t, const struct fetch *until)
{
	for (const struct fetch *fetch = t->fetches; fetch != until; fetch = fetch->next) {
		if (is_same(&fetch->key, &until->key))
			return true;
		for (uint32_t i = 0; i < fetch->n_parts; i++)
			if (is_same(&fetch->parts[i].place.block.key, &until->key))
				return true;
	}
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

static bool is_wanted(const struct fetch *fetch)
{
	return fetch->session && fetch->session->broken_fetch != fetch->call;
}

/* What is to be read for it: the block, or all of its group. */
static int make_parts(struct fm_tiering *t, struct fetch *fetch, const struct fm_log_place *place)
{
	struct fm_log_place members[FM_LOG_GROUP_MAX];
	uint32_t n = fm_log_group(fm_nvme_log(t->nvme), place, members);
	int64_t region = fetcher_of(t, tenant_of(t, place->mark), &fetch->owner);

	if (region < 0)
		return (int)region;
	fetch->parts = calloc(n, sizeof(*fetch->parts));
	if (!fetch->parts)
		return FM_ERR_NO_MEMORY;
	fetch->n_parts = n;
	for (uint32_t i = 0; i < n; i++)
		fetch->parts[i] =
			(struct part){.fetch = fetch, .place = members[i], .entry = FM_NO_ENTRY};
	return 0;
}

/* True: it has parts now. Else it is over, or another one brings it. */
static bool begin_fetch(struct fm_tiering *t, struct fetch *fetch, uint64_t now)
{
	struct fm_log_place place;
	int err;

	if (is_wanted(fetch) && is_in_memory(t, &fetch->key)) {
		fetch_is_over(fetch, 0);
	} else if (is_wanted(fetch) && now >= fetch->deadline) {
		fetch_is_over(fetch, FM_ERR_DEADLINE);
	} else if (is_wanted(fetch) && is_being_read(t, fetch)) {
		return false; /* in memory when its turn comes */
	} else if (!is_wanted(fetch) || !fm_log_find(fm_nvme_log(t->nvme), &fetch->key, &place)) {
		fetch_is_over(fetch, FM_ERR_NOT_FOUND);
	} else {
		err = make_parts(t, fetch, &place);
		if (err)
			fetch_is_over(fetch, err);
	}
	return !fetch->is_done;
}

/* FM_ERR_BUSY: there will be room for it. */
static int start_part(struct fm_tiering *t, struct part *part)
{
	struct fm_store *store = &t->server->store;
	uint32_t buffer;
	void *memory;
	int err = fm_store_stage(store, part->fetch->owner, part->place.block.length, &part->entry);

	if (err) {
		part->entry = FM_NO_ENTRY;
		/* What is being written keeps its memory that long, and is then free. */
		return err == FM_ERR_POOL_FULL && t->free_lease_count < FM_SPILLS_MAX ? FM_ERR_BUSY
										      : err;
	}
	FM_KILL_POINT("fetch: staged, not read");
	memory = address_of(t, part->entry, &buffer);
	err = memory ? fm_nvme_read(t->nvme, &part->place, memory, buffer, part) : FM_ERR_IO;
	part->fetch->n_reading += !err;
	return err;
}

/* False: the tier takes no more reads for now. */
static bool start_fetch(struct fm_tiering *t, struct fetch *fetch, uint64_t now)
{
	int err = 0;

	if (!fetch->parts && !begin_fetch(t, fetch, now))
		return true;
	while (!err && fetch->n_started < fetch->n_parts) {
		struct part *part = &fetch->parts[fetch->n_started];

		if (!fm_nvme_may_read(t->nvme, part->place.block.length))
			return false;
		/* Of a group that is read nobody may want the rest any more. */
		err = fetch->n_started && !is_wanted(fetch) ? FM_ERR_NOT_FOUND
							    : start_part(t, part);
		if (err == FM_ERR_BUSY)
			return true;
		fetch->n_started++;
	}
	if (!err)
		return true;
	/* None of the others, but those that are on their way come. */
	fetch->n_started = fetch->n_parts;
	if (fetch->n_reading)
		fetch->result = err;
	else
		fetch_is_over(fetch, err);
	return true;
}

static int seal_parts(struct fm_tiering *t, struct fetch *fetch)
{
	static const struct fm_key none;
	struct fm_store *store = &t->server->store;
	struct fm_store_seal seals[FM_LOG_GROUP_MAX];
	int results[FM_LOG_GROUP_MAX];

	for (uint32_t i = 0; i < fetch->n_parts; i++) {
		const struct part *part = &fetch->parts[i];
		const struct fm_log_block *block = &part->place.block;

		/* Removed since it was read. */
		if (!fm_log_is_current(fm_nvme_log(t->nvme), &part->place))
			return FM_ERR_NOT_FOUND;
		seals[i] = (struct fm_store_seal){
			.entry = part->entry,
			.generation =
				FABRICMGR_WORD_GENERATION(store->index.entries[part->entry].word),
			.crc32c = block->crc32c,
			.key = block->key,
			.parent = is_same(&block->parent, &none) ? NULL : &block->parent,
			.ns = block->ns,
		};
	}
	return fetch->n_parts == 1
		       ? fm_store_seal(store, fetch->owner, &seals[0])
		       : fm_store_seal_group(store, fetch->owner, seals, fetch->n_parts, results);
}

/* What was read is sealed, all of it, or given back. */
static void finish_parts(struct fm_tiering *t, struct fetch *fetch)
{
	struct fm_store *store = &t->server->store;

	if (!fetch->result)
		fetch->result = seal_parts(t, fetch);
	FM_KILL_POINT("fetch: sealed, not answered");
	for (uint32_t i = 0; i < fetch->n_parts; i++) {
		const struct part *part = &fetch->parts[i];

		if (fetch->result && part->entry != FM_NO_ENTRY)
			fm_store_discard(
				store, fetch->owner, part->entry,
				FABRICMGR_WORD_GENERATION(store->index.entries[part->entry].word));
		else if (!fetch->result && fetch->n_parts == 1 &&
			 fm_log_is_old(fm_nvme_log(t->nvme), &part->place))
			enqueue(t, part->entry); /* its second chance */
	}
	t->fetched += fetch->result ? 0 : fetch->n_parts;
	/* Of a group, perhaps of another member's key. */
	if (fetch->result == FM_ERR_EXISTS)
		fetch->result = is_in_memory(t, &fetch->key) ? 0 : FM_ERR_NOT_FOUND;
	if (fetch->result)
		fetch_is_over(fetch, fetch->result);
}

/* Its turn has come. */
static void finish_fetch(struct fm_tiering *t, struct fetch *fetch)
{
	if (fetch->parts)
		finish_parts(t, fetch);
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
		if (!fetch->is_done && (!fetch->parts || fetch->n_started < fetch->n_parts) &&
		    !start_fetch(t, fetch, now))
			break;
	while (t->fetches && t->fetches->is_done) {
		struct fetch *fetch = t->fetches;

		finish_fetch(t, fetch);
		t->fetches = fetch->next;
		if (!t->fetches)
			t->fetches_end = &t->fetches;
		t->fetch_count--;
		free(fetch->parts);
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
	bool did_work, has_come;

	if (!t)
		return false;
	while (t->queue_head < t->queue_tail && spill(t, &t->queue[t->queue_head % FM_SPILL_QUEUE]))
		t->queue_head++;
	has_come = fm_nvme_pump(t->nvme, false);
	did_work = run_fetches(t, now);
	if (did_work || t->fetches)
		has_come |= fm_nvme_pump(t->nvme, false);
	/* What came has taken its event along: whoever sleeps now may sleep for good. */
	return keep_promises(t) || did_work || has_come;
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

/* Once for each group: at its first entry. What the log has of it is all of it, or another's. */
static void resume_group(struct fm_tiering *t, uint32_t entry)
{
	struct fm_log *log = fm_nvme_log(t->nvme);
	struct fm_log_block block;
	uint32_t member = entry, length, crc32c;
	bool is_there = true;

	do {
		if (member < entry)
			return;
		describe(t, member, &block);
		is_there = is_there && fm_log_has(log, &block.key, &length, &crc32c) &&
			   length == block.length && crc32c == block.crc32c;
		member = fm_group_next(&t->server->store, member);
	} while (member != entry);
	if (is_there)
		return;
	do {
		describe(t, member, &block);
		fm_log_remove(log, &block.key);
		member = fm_group_next(&t->server->store, member);
	} while (member != entry);
	enqueue(t, entry);
}

void fm_tiering_resume(struct fm_tiering *t)
{
	const struct fm_store *store = t ? &t->server->store : NULL;
	struct fm_log_block block;
	uint32_t length, crc32c;

	if (!t)
		return;
	for (uint32_t i = 0; i < store->index.entries_max; i++) {
		if (FABRICMGR_WORD_STATE(store->index.entries[i].word) != FABRICMGR_BLOCK_SEALED)
			continue;
		if (store->nodes[i].group_next) {
			resume_group(t, i);
			continue;
		}
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
		free(fetch->parts);
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
