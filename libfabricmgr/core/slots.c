// SPDX-License-Identifier: Apache-2.0
/*
 * Chunks, their size classes and their order of use. Called by store.c only; pure but for
 * fm_chunk_ops. Invariant: a chunk is on exactly one of: a free list, a partial list, no list
 * (full); and, with a slot in use, in its tenant's order of use.
 */
#include <stdlib.h>
#include <string.h>

#include "core/slots.h"

#define NONE FM_NO_ENTRY

int fm_slots_create(struct fm_slots *slots, uint32_t chunks, uint32_t entries_max,
		    const struct fm_chunk_ops *ops, void *context)
{
	size_t classes = (FM_ARENAS_MAX + 1) * (size_t)FM_SLOTS_PER_CHUNK;

	memset(slots, 0, sizeof(*slots));
	slots->chunks = calloc(chunks, sizeof(*slots->chunks));
	slots->partial_heads = malloc(classes * sizeof(uint32_t));
	if (!slots->chunks || !slots->partial_heads) {
		fm_slots_destroy(slots);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the tables of %u chunks", chunks);
	}
	memset(slots->partial_heads, 0xff, classes * sizeof(uint32_t));
	memset(slots->free_heads, 0xff, sizeof(slots->free_heads));
	slots->count = chunks;
	fm_tenants_init(&slots->tenants, chunks, entries_max);
	slots->ops = ops;
	slots->context = context;
	for (uint32_t i = chunks; i-- > 0;) {
		slots->chunks[i].prev = NONE;
		slots->chunks[i].next = slots->free_heads[0];
		if (slots->free_heads[0] != NONE)
			slots->chunks[slots->free_heads[0]].prev = i;
		slots->free_heads[0] = i;
	}
	return 0;
}

void fm_slots_destroy(struct fm_slots *slots)
{
	for (uint32_t i = 0; slots->chunks && i < slots->count; i++)
		free(slots->chunks[i].entries);
	free(slots->chunks);
	free(slots->partial_heads);
	slots->chunks = NULL;
	slots->partial_heads = NULL;
}

static void list_push(struct fm_slots *slots, uint32_t *head, uint32_t at)
{
	slots->chunks[at].prev = NONE;
	slots->chunks[at].next = *head;
	if (*head != NONE)
		slots->chunks[*head].prev = at;
	*head = at;
}

static void list_remove(struct fm_slots *slots, uint32_t *head, uint32_t at)
{
	struct fm_chunk *chunk = &slots->chunks[at];

	if (chunk->prev == NONE)
		*head = chunk->next;
	else
		slots->chunks[chunk->prev].next = chunk->next;
	if (chunk->next != NONE)
		slots->chunks[chunk->next].prev = chunk->prev;
}

static void order_append(struct fm_slots *slots, uint32_t at)
{
	struct fm_tenant *tenant = fm_tenant_of(&slots->tenants, slots->chunks[at].region);

	slots->chunks[at].older = tenant->newest;
	slots->chunks[at].newer = NONE;
	if (tenant->newest == NONE)
		tenant->oldest = at;
	else
		slots->chunks[tenant->newest].newer = at;
	tenant->newest = at;
}

static void order_remove(struct fm_slots *slots, uint32_t at)
{
	struct fm_chunk *chunk = &slots->chunks[at];
	struct fm_tenant *tenant = fm_tenant_of(&slots->tenants, chunk->region);

	if (chunk->older == NONE)
		tenant->oldest = chunk->newer;
	else
		slots->chunks[chunk->older].newer = chunk->newer;
	if (chunk->newer == NONE)
		tenant->newest = chunk->older;
	else
		slots->chunks[chunk->newer].older = chunk->older;
}

static uint32_t *partial_head(struct fm_slots *slots, const struct fm_chunk *chunk)
{
	return &slots->partial_heads[fm_slots_class(chunk->region, chunk->pages)];
}

/* @chunk, which is on no list, begins to serve a class. @entries: one a slot. */
static void chunk_cut(struct fm_slots *slots, uint32_t at, uint32_t pages, uint32_t *entries)
{
	struct fm_chunk *chunk = &slots->chunks[at];

	chunk->pages = pages;
	chunk->slots = FM_SLOTS_PER_CHUNK / pages;
	chunk->used = 0;
	chunk->hint = 0;
	chunk->entries = entries;
	memset(entries, 0xff, chunk->slots * sizeof(*entries));
	chunk->is_partial = true;
	list_push(slots, partial_head(slots, chunk), at);
	order_append(slots, at);
	fm_tenant_of(&slots->tenants, chunk->region)->chunks++;
}

static void slot_use(struct fm_slots *slots, uint32_t at, uint32_t slot, uint32_t entry)
{
	struct fm_chunk *chunk = &slots->chunks[at];

	chunk->entries[slot] = entry;
	if (++chunk->used == chunk->slots) {
		list_remove(slots, partial_head(slots, chunk), at);
		chunk->is_partial = false;
	}
	slots->used_bytes += (uint64_t)chunk->pages * FM_SLOT_GRAIN;
	fm_tenants_count_block(&slots->tenants, chunk->region,
			       (uint64_t)chunk->pages * FM_SLOT_GRAIN, 1);
}

/* A free chunk for @region, backed there: its own first (memory stays), unbacked, then another's.
 */
static int chunk_open(struct fm_slots *slots, uint32_t region, uint32_t pages, uint32_t *out)
{
	uint32_t from = region, at;
	struct fm_chunk *chunk;
	uint32_t *entries;
	int err;

	if (slots->free_heads[from] == NONE)
		for (from = 0; from <= FM_ARENAS_MAX; from++)
			if (slots->free_heads[from] != NONE)
				break;
	if (from > FM_ARENAS_MAX)
		return FM_ERR_POOL_FULL;
	at = slots->free_heads[from];
	chunk = &slots->chunks[at];
	entries = malloc(FM_SLOTS_PER_CHUNK / pages * sizeof(*entries));
	if (!entries)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the slots of a chunk");
	list_remove(slots, &slots->free_heads[from], at);
	if (chunk->region && chunk->region != region) {
		slots->ops->punch(slots->context, chunk->region, at);
		chunk->region = 0;
	}
	if (!chunk->region) {
		err = slots->ops->populate(slots->context, region, at);
		if (err) {
			list_push(slots, &slots->free_heads[0], at);
			free(entries);
			return err;
		}
		chunk->region = region;
	}
	chunk_cut(slots, at, pages, entries);
	*out = at;
	return 0;
}

int fm_slots_take(struct fm_slots *slots, uint32_t region, uint32_t pages, uint32_t entry,
		  uint64_t stamp, uint32_t *chunk_out, uint32_t *slot_out)
{
	uint32_t at = slots->partial_heads[fm_slots_class(region, pages)];
	struct fm_chunk *chunk;
	uint32_t slot;
	int err;

	if (at == NONE) {
		if (!fm_tenant_may_grow(fm_tenant_of(&slots->tenants, region)))
			return FM_ERR_LIMIT;
		err = chunk_open(slots, region, pages, &at);
		if (err)
			return err;
	}
	chunk = &slots->chunks[at];
	for (slot = chunk->hint; chunk->entries[slot] != NONE;)
		slot++;
	chunk->hint = slot + 1;
	slot_use(slots, at, slot, entry);
	fm_slots_touch(slots, at, stamp);
	*chunk_out = at;
	*slot_out = slot;
	return 0;
}

void fm_slots_give(struct fm_slots *slots, uint32_t at, uint32_t slot)
{
	struct fm_chunk *chunk = &slots->chunks[at];

	chunk->entries[slot] = NONE;
	if (slot < chunk->hint)
		chunk->hint = slot;
	slots->used_bytes -= (uint64_t)chunk->pages * FM_SLOT_GRAIN;
	fm_tenants_count_block(&slots->tenants, chunk->region,
			       (uint64_t)chunk->pages * FM_SLOT_GRAIN, -1);
	if (!chunk->is_partial) {
		chunk->is_partial = true;
		list_push(slots, partial_head(slots, chunk), at);
	}
	if (--chunk->used)
		return;
	list_remove(slots, partial_head(slots, chunk), at);
	order_remove(slots, at);
	fm_tenant_of(&slots->tenants, chunk->region)->chunks--;
	free(chunk->entries);
	chunk->entries = NULL;
	chunk->pages = 0;
	chunk->slots = 0;
	chunk->is_partial = false;
	list_push(slots, &slots->free_heads[chunk->region], at);
}

int fm_slots_claim(struct fm_slots *slots, uint32_t region, uint32_t pages, uint32_t entry,
		   uint32_t at, uint32_t slot)
{
	struct fm_chunk *chunk;
	uint32_t *entries;

	if (at >= slots->count || !region || region > FM_ARENAS_MAX || !pages ||
	    pages > FM_SLOTS_PER_CHUNK || slot >= FM_SLOTS_PER_CHUNK / pages)
		return FM_ERR_INVALID;
	chunk = &slots->chunks[at];
	if (!chunk->pages) {
		entries = malloc(FM_SLOTS_PER_CHUNK / pages * sizeof(*entries));
		if (!entries)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for the slots of a chunk");
		list_remove(slots, &slots->free_heads[chunk->region], at);
		chunk->region = region;
		chunk_cut(slots, at, pages, entries);
	} else if (chunk->region != region || chunk->pages != pages ||
		   chunk->entries[slot] != NONE) {
		return FM_ERR_EXISTS;
	}
	slot_use(slots, at, slot, entry);
	return 0;
}

void fm_slots_forget(struct fm_slots *slots, uint32_t at)
{
	struct fm_chunk *chunk = &slots->chunks[at];

	if (!chunk->pages)
		return;
	for (uint32_t slot = 0, left = chunk->used; left; slot++)
		if (chunk->entries[slot] != NONE) {
			fm_slots_give(slots, at, slot);
			left--;
		}
	list_remove(slots, &slots->free_heads[chunk->region], at);
	chunk->region = 0;
	list_push(slots, &slots->free_heads[0], at);
}

void fm_slots_touch(struct fm_slots *slots, uint32_t at, uint64_t stamp)
{
	slots->chunks[at].stamp = stamp;
	if (fm_tenant_of(&slots->tenants, slots->chunks[at].region)->newest == at)
		return;
	order_remove(slots, at);
	order_append(slots, at);
}

uint32_t fm_slots_entry(const struct fm_slots *slots, uint32_t region, uint32_t chunk,
			uint32_t slot)
{
	const struct fm_chunk *c;

	if (chunk >= slots->count)
		return NONE;
	c = &slots->chunks[chunk];
	if (c->region != region || slot >= c->slots)
		return NONE;
	return c->entries[slot];
}
