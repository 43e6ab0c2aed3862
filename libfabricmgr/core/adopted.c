// SPDX-License-Identifier: Apache-2.0
/*
 * Adopted regions (see adopted.h): a map from pages to blocks for each, and the rules by which a
 * block takes the place of others. Called by the daemon's thread only; pure. Invariant: what is
 * looked at before anything changes is enough to say that nothing fails afterwards.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_probes.h>

#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"
#include "core/life.h"

#define NONE FM_NO_ENTRY

/* ---- regions ---- */

/* Room for the maps of @chunks chunks; their pages come with the first block. */
static int make_room(struct fm_adopted *adopted, uint32_t chunks)
{
	uint32_t **pages;

	if (chunks <= adopted->chunks)
		return 0;
	pages = realloc(adopted->pages, chunks * sizeof(*pages));
	if (!pages)
		return fm_fail(FM_ERR_NO_MEMORY,
			       "no memory for the tables of a region of %u chunks", chunks);
	memset(pages + adopted->chunks, 0, (chunks - adopted->chunks) * sizeof(*pages));
	adopted->pages = pages;
	adopted->chunks = chunks;
	return 0;
}

static uint32_t *pages_of(struct fm_adopted *adopted, uint32_t chunk)
{
	if (!adopted->pages[chunk]) {
		adopted->pages[chunk] = malloc(FM_SLOTS_PER_CHUNK * sizeof(uint32_t));
		if (adopted->pages[chunk])
			memset(adopted->pages[chunk], 0xff, FM_SLOTS_PER_CHUNK * sizeof(uint32_t));
	}
	return adopted->pages[chunk];
}

static void region_free(struct fm_adopted *adopted)
{
	for (uint32_t i = 0; i < adopted->chunks; i++)
		free(adopted->pages[i]);
	free(adopted->pages);
	memset(adopted, 0, sizeof(*adopted));
}

int fm_adopted_begin(struct fm_store *store, struct fm_owner *owner, uint32_t tenant,
		     uint32_t chunks, uint32_t *region)
{
	uint32_t at = 0, n = 0;
	int err;

	for (uint32_t i = FM_ADOPTED_MAX; i-- > 0;) {
		n += store->adopted[i].owner == owner;
		if (!store->adopted[i].is_used)
			at = i;
	}
	if (n >= FM_ADOPTED_OF_CLIENT)
		return fm_fail(FM_ERR_LIMIT,
			       "this client has %u regions adopted already, as many as one may "
			       "have: release one, or adopt fewer and larger ones",
			       n);
	if (store->adopted[at].is_used)
		return fm_fail(FM_ERR_LIMIT,
			       "the pool has %u adopted regions already, those among them that "
			       "ended and whose blocks are still held: release one",
			       FM_ADOPTED_MAX);
	err = make_room(&store->adopted[at], chunks);
	if (err)
		return err;
	store->adopted[at].is_used = true;
	store->adopted[at].owner = owner;
	store->adopted[at].tenant = tenant;
	store->adopted_count++;
	*region = FM_ADOPTED_FIRST + at;
	return 0;
}

/* The next block of a region at or after *@at (counted in pages), or NONE. */
static uint32_t next_block(const struct fm_adopted *adopted, uint64_t *at)
{
	for (; *at / FM_SLOTS_PER_CHUNK < adopted->chunks; ++*at) {
		const uint32_t *pages = adopted->pages[*at / FM_SLOTS_PER_CHUNK];

		if (!pages)
			*at |= FM_SLOTS_PER_CHUNK - 1;
		else if (pages[*at % FM_SLOTS_PER_CHUNK] != NONE)
			return pages[*at % FM_SLOTS_PER_CHUNK];
	}
	return NONE;
}

void fm_adopted_end(struct fm_store *store, uint32_t region)
{
	struct fm_adopted *adopted = fm_adopted_of(store, region);
	uint64_t at = 0;
	uint32_t entry;

	while ((entry = next_block(adopted, &at)) != NONE) {
		uint32_t pages = store->nodes[entry].pages;

		FM_KILL_POINT("end of a region: a block");
		fm_life_drop(store, entry);
		/* Dropping one may free it, and others of its group: on to the next page. */
		at += pages;
	}
	adopted->owner = NULL;
	fm_store_free_removed(store);
}

uint32_t fm_adopted_over(struct fm_store *store)
{
	for (uint32_t i = 0; store->adopted_count && i < FM_ADOPTED_MAX; i++) {
		struct fm_adopted *adopted = &store->adopted[i];

		if (!adopted->is_used || adopted->owner || adopted->blocks)
			continue;
		region_free(adopted);
		store->adopted_count--;
		return FM_ADOPTED_FIRST + i;
	}
	return 0;
}

void fm_adopted_destroy(struct fm_store *store)
{
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		region_free(&store->adopted[i]);
}

/* ---- pages ---- */

uint32_t fm_adopted_entry(const struct fm_store *store, uint32_t region, uint32_t chunk,
			  uint32_t slot)
{
	const struct fm_adopted *adopted = &store->adopted[region - FM_ADOPTED_FIRST];
	uint32_t entry;

	if (chunk >= adopted->chunks || slot >= FM_SLOTS_PER_CHUNK || !adopted->pages[chunk])
		return NONE;
	entry = adopted->pages[chunk][slot];
	/* Only at its first page. */
	return entry != NONE && FM_LOW(store->index.entries[entry].extent) == slot ? entry : NONE;
}

static void set_pages(uint32_t *pages, uint32_t slot, uint32_t n, uint32_t entry)
{
	for (uint32_t i = slot; i < slot + n; i++)
		pages[i] = entry;
}

static void count(struct fm_store *store, struct fm_adopted *adopted, uint32_t pages, int sign)
{
	uint64_t bytes = (uint64_t)pages * FM_SLOT_GRAIN;

	adopted->blocks += (uint32_t)sign;
	store->counters.adopted_blocks += (uint32_t)sign;
	store->counters.adopted_bytes += sign > 0 ? bytes : -bytes;
	fm_tenants_count_entry(&store->slots.tenants, adopted->tenant, sign);
}

void fm_adopted_give(struct fm_store *store, uint32_t entry)
{
	const struct fm_entry *e = &store->index.entries[entry];
	struct fm_adopted *adopted = fm_adopted_of(store, FM_HIGH(e->place));

	set_pages(adopted->pages[FM_LOW(e->place)], FM_LOW(e->extent), store->nodes[entry].pages,
		  NONE);
	count(store, adopted, store->nodes[entry].pages, -1);
}

int fm_adopted_claim(struct fm_store *store, uint32_t entry)
{
	const struct fm_entry *e = &store->index.entries[entry];
	uint32_t chunk = FM_LOW(e->place), slot = FM_LOW(e->extent), *map;
	uint32_t pages = fm_slots_pages(FM_HIGH(e->extent));
	struct fm_adopted *adopted = fm_adopted_of(store, FM_HIGH(e->place));
	int err;

	if (chunk >= FM_CHUNKS_MAX || !pages || slot >= FM_SLOTS_PER_CHUNK ||
	    pages > FM_SLOTS_PER_CHUNK - slot)
		return FM_ERR_INVALID;
	err = make_room(adopted, chunk + 1);
	map = err ? NULL : pages_of(adopted, chunk);
	if (!map)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the pages of a chunk");
	for (uint32_t i = slot; i < slot + pages; i++)
		if (map[i] != NONE)
			return FM_ERR_EXISTS;
	if (!adopted->is_used) {
		adopted->is_used = true;
		store->adopted_count++;
	}
	set_pages(map, slot, pages, entry);
	count(store, adopted, pages, 1);
	return 0;
}

/* ---- staging ---- */

/* What lies in the way: 0, FM_ERR_EXISTS, or FM_ERR_BUSY; sealed blocks into store->victims, each
 * with its group. */
static int find_victims(struct fm_store *store, const uint32_t *map, uint32_t slot, uint32_t pages,
			uint32_t *n)
{
	*n = 0;
	store->round++;
	for (uint32_t i = slot; i < slot + pages; i++) {
		uint32_t entry = map[i], member = entry, state;

		if (entry == NONE || store->nodes[entry].picked == store->round)
			continue;
		state = FABRICMGR_WORD_STATE(store->index.entries[entry].word);
		if (state == FABRICMGR_BLOCK_STAGING)
			return FM_ERR_EXISTS;
		if (state != FABRICMGR_BLOCK_SEALED)
			return FM_ERR_BUSY; /* removed, and still held */
		do {
			store->nodes[member].picked = store->round;
			store->victims[(*n)++] = member;
			member = fm_group_next(store, member);
		} while (member != entry);
		if (*n > FM_EVICT_MAX - FM_GROUP_MAX)
			return fm_fail(FM_ERR_LIMIT,
				       "more than %u blocks would go for one: remove some first",
				       FM_EVICT_MAX - FM_GROUP_MAX);
	}
	return 0;
}

/* The evictor's half of the lease protocol, for all of them or none. */
static int sacrifice(struct fm_store *store, const struct fm_adopted *adopted, uint32_t n)
{
	bool is_held = false;

	store->actor = adopted->tenant;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t *word = &store->index.entries[store->victims[i]].word;

		/* Relaxed: the one fence below orders all of them before the scan. */
		fm_store_relaxed(word, FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(*word),
						      FABRICMGR_BLOCK_EVICTING));
	}
	FM_KILL_POINT("stage at: marked, not scanned");
	/* Pairs with the fence in fm_lease_take(): a lease that the scan misses saw EVICTING. */
	fm_fence();
	fm_store_scan_leases(store);
	for (uint32_t i = 0; i < n; i++)
		is_held |= store->nodes[store->victims[i]].leased == store->scan;
	for (uint32_t i = 0; i < n; i++)
		if (is_held) /* the same word again: nothing has changed */
			fm_life_set_state(store, store->victims[i], FABRICMGR_BLOCK_SEALED);
		else
			fm_store_free_sealed(store, store->victims[i]);
	return is_held ? FM_ERR_BUSY : 0;
}

/* An entry of the index for it. Half of them may be adopted blocks', which nobody evicts. */
static int find_entry(struct fm_store *store, struct fm_owner *owner, uint32_t tenant)
{
	if (store->counters.adopted_blocks >= store->index.entries_max / 2)
		fm_store_free_removed(store);
	if (store->counters.adopted_blocks >= store->index.entries_max / 2) {
		owner->over = FM_QUOTA_ADOPTED;
		return fm_fail(FM_ERR_LIMIT,
			       "blocks in adopted memory have taken half of the index, %u entries",
			       store->counters.adopted_blocks);
	}
	while (!fm_tenants_may_take_entry(&store->slots.tenants, tenant, store->free_count))
		if (!fm_store_free_removed(store) && !fm_store_evict(store, owner->region, 1))
			return FM_ERR_POOL_FULL;
	return 0;
}

int fm_adopted_stage(struct fm_store *store, struct fm_owner *owner, uint32_t region,
		     uint32_t chunk, uint32_t slot, uint64_t length, uint32_t *entry)
{
	struct fm_adopted *adopted =
		fm_region_is_adopted(region) ? fm_adopted_of(store, region) : NULL;
	uint32_t pages = length > FABRICMGR_CHUNK_BYTES ? 0 : fm_slots_pages(length), n;
	uint32_t *map;
	int err;

	owner->over = FM_QUOTA_NONE;
	if (!adopted || adopted->owner != owner)
		return fm_fail(FM_ERR_NOT_FOUND, "region %u is not one that this client adopted",
			       region);
	if (!pages || chunk >= adopted->chunks || slot >= FM_SLOTS_PER_CHUNK ||
	    pages > FM_SLOTS_PER_CHUNK - slot)
		return fm_fail(FM_ERR_INVALID,
			       "%llu bytes at page %u of chunk %u: a block lies within one chunk "
			       "of its region, which has %u",
			       (unsigned long long)length, slot, chunk, adopted->chunks);
	map = pages_of(adopted, chunk);
	if (!map)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the pages of a chunk");
	err = find_victims(store, map, slot, pages, &n);
	/* What goes leaves an entry. */
	if (!err)
		err = n ? sacrifice(store, adopted, n) : find_entry(store, owner, adopted->tenant);
	if (err)
		return err;
	*entry = fm_life_stage(store, owner, FM_PAIR(region, chunk), FM_PAIR(length, slot));
	set_pages(map, slot, pages, *entry);
	count(store, adopted, pages, 1);
	FM_PROBE(stage, owner->id, *entry, length);
	return 0;
}
