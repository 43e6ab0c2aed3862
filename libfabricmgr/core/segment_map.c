// SPDX-License-Identifier: Apache-2.0
/*
 * The log's entries (see segment_map.h). Pure.
 * Invariant: buckets are chains through hash_next, a segment's entries a list through its head.
 */
#include <stdlib.h>
#include <string.h>

#include "core/segment_map.h"

#define NONE FM_NO_ENTRY

int fm_log_map_create(struct fm_log *log)
{
	uint32_t n = log->options.entries_max, buckets = 16;

	while (buckets < n)
		buckets *= 2;
	log->bucket_mask = buckets - 1;
	log->entries = calloc(n, sizeof(*log->entries));
	log->buckets = malloc(buckets * sizeof(*log->buckets));
	if (!log->entries || !log->buckets)
		return FM_ERR_NO_MEMORY;
	memset(log->buckets, 0xff, buckets * sizeof(*log->buckets));
	log->free_entries = NONE;
	while (n)
		fm_log_map_free(log, --n);
	return 0;
}

void fm_log_map_destroy(struct fm_log *log)
{
	free(log->entries);
	free(log->buckets);
	log->entries = NULL;
	log->buckets = NULL;
}

/* Mixed with a number that clients do not know: keys come from them. */
static uint32_t *bucket_of(const struct fm_log *log, const struct fm_key *key)
{
	uint64_t words[2], mixed;

	memcpy(words, key, sizeof(words));
	mixed = (words[0] ^ log->options.run) * 0x9e3779b97f4a7c15ull;
	mixed = (mixed ^ mixed >> 32 ^ words[1]) * 0xd6e8feb86659fd93ull;
	return &log->buckets[mixed >> 32 & log->bucket_mask];
}

uint32_t fm_log_map_find(const struct fm_log *log, const struct fm_key *key)
{
	uint32_t entry = *bucket_of(log, key);

	while (entry != NONE && memcmp(&log->entries[entry].block.key, key, sizeof(*key)))
		entry = log->entries[entry].hash_next;
	return entry;
}

/* Into the list of a segment, as found at @page of it. */
static void list_add(struct fm_log *log, uint32_t at, uint32_t segment, uint32_t page)
{
	struct fm_log_segment *where = &log->segments[segment];
	struct fm_log_entry *entry = &log->entries[at];

	entry->segment = segment;
	entry->page = page;
	entry->twin_segment = NONE;
	entry->number = ++log->placements;
	entry->segment_prev = NONE;
	entry->segment_next = where->head;
	if (where->head != NONE)
		log->entries[where->head].segment_prev = at;
	where->head = at;
}

static void list_remove(struct fm_log *log, const struct fm_log_entry *entry)
{
	if (entry->segment_prev == NONE)
		log->segments[entry->segment].head = entry->segment_next;
	else
		log->entries[entry->segment_prev].segment_next = entry->segment_next;
	if (entry->segment_next != NONE)
		log->entries[entry->segment_next].segment_prev = entry->segment_prev;
}

struct fm_log_account *fm_log_map_account(struct fm_log *log, uint16_t mark)
{
	for (uint32_t i = 1; mark && i < FM_TENANTS_MAX && log->accounts[i].mark; i++)
		if (log->accounts[i].mark == mark)
			return &log->accounts[i];
	return &log->accounts[0];
}

static uint64_t rounded(const struct fm_log_entry *entry)
{
	return (uint64_t)fm_log_pages(entry->block.length) * FM_LOG_PAGE;
}

uint32_t fm_log_map_add(struct fm_log *log, const struct fm_log_block *block, uint16_t mark,
			uint32_t segment, uint32_t page, enum fm_log_entry_state state)
{
	uint32_t at = log->free_entries, *bucket = bucket_of(log, &block->key);
	struct fm_log_entry *entry;

	if (at == NONE)
		return NONE;
	entry = &log->entries[at];
	log->free_entries = entry->segment_next;
	*entry = (struct fm_log_entry){
		.block = *block,
		.hash_next = *bucket,
		.state = FM_LOG_PENDING,
		.mark = mark,
	};
	fm_log_map_account(log, mark)->bytes += rounded(entry);
	list_add(log, at, segment, page);
	*bucket = at;
	if (state == FM_LOG_LIVE)
		fm_log_map_settle(log, at);
	return at;
}

void fm_log_map_settle(struct fm_log *log, uint32_t entry)
{
	log->entries[entry].state = FM_LOG_LIVE;
	log->counters.blocks++;
	log->counters.block_bytes += rounded(&log->entries[entry]);
}

void fm_log_map_join(struct fm_log *log, uint32_t entry, uint32_t of)
{
	uint32_t after = log->entries[of].group_next;

	log->entries[entry].group_next = after ? after : of + 1;
	log->entries[of].group_next = entry + 1;
}

uint32_t fm_log_map_companion(const struct fm_log *log, uint32_t entry)
{
	uint32_t next = log->entries[entry].group_next;

	return next ? next - 1 : NONE;
}

static void leave_group(struct fm_log *log, uint32_t at)
{
	uint32_t after = log->entries[at].group_next, before = at;

	if (!after)
		return;
	while (log->entries[before].group_next != at + 1)
		before = log->entries[before].group_next - 1;
	log->entries[before].group_next = after == before + 1 ? 0 : after;
	log->entries[at].group_next = 0;
}

void fm_log_map_unlink(struct fm_log *log, uint32_t at)
{
	struct fm_log_entry *entry = &log->entries[at];
	uint32_t *link = bucket_of(log, &entry->block.key);

	leave_group(log, at);

	while (*link != at)
		link = &log->entries[*link].hash_next;
	*link = entry->hash_next;
	list_remove(log, entry);
	fm_log_map_account(log, entry->mark)->bytes -= rounded(entry);
	if (entry->state == FM_LOG_LIVE) {
		log->counters.blocks--;
		log->counters.block_bytes -= rounded(entry);
	}
	entry->state = FM_LOG_FREE;
}

bool fm_log_map_to_twin(struct fm_log *log, uint32_t at)
{
	struct fm_log_entry *entry = &log->entries[at];

	if (entry->twin_segment == NONE)
		return false;
	list_remove(log, entry);
	list_add(log, at, entry->twin_segment, entry->twin_page);
	return true;
}

void fm_log_map_twin(struct fm_log *log, uint32_t at, uint32_t segment, uint32_t page)
{
	struct fm_log_entry *entry = &log->entries[at];

	/* The one before is whole: a segment was begun since. */
	fm_log_map_to_twin(log, at);
	entry->twin_segment = segment;
	entry->twin_page = page;
}

void fm_log_map_free(struct fm_log *log, uint32_t entry)
{
	log->entries[entry] = (struct fm_log_entry){.segment_next = log->free_entries};
	log->free_entries = entry;
}

uint32_t fm_log_map_drop(struct fm_log *log, uint32_t segment)
{
	uint32_t n = 0, entry;

	while ((entry = log->segments[segment].head) != NONE) {
		uint32_t twin = log->entries[entry].twin_segment;

		if (twin != segment && fm_log_map_to_twin(log, entry))
			continue;
		fm_log_map_unlink(log, entry);
		fm_log_map_free(log, entry);
		n++;
	}
	return n;
}
