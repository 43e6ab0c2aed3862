// SPDX-License-Identifier: Apache-2.0
/*
 * See replay.h: the store, index, eviction and policy of the daemon, one client that stages and
 * seals, and the trace's clock. Called by main.c and by tests. Invariant: at most @room blocks are
 * sealed when a request has ended; what it brings has room of its own until then.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "core/evict.h"
#include "fabric-sim/replay.h"

#define BLOCK_BYTES FM_SLOT_GRAIN /* of a simulated slot; nothing is written there */
#define REGION	    1u

struct replay {
	struct fm_store store;
	struct fm_owner owner;
	struct fm_header *headers;
	void *index;
	uint32_t room;
	struct fm_replay_result *result;
};

static int populate(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
	return 0;
}

static void punch(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
}

static const struct fm_chunk_ops chunk_ops = {populate, punch};

/* As a digest would be: spread over all bits. */
static struct fm_key key_of(uint32_t block)
{
	uint64_t words[2] = {block + 1ull, block};
	struct fm_key key;

	words[0] *= 0x9e3779b97f4a7c15ull;
	words[0] ^= words[0] >> 32;
	words[0] *= 0xd6e8feb86659fd93ull;
	words[0] ^= words[0] >> 32;
	memcpy(&key, words, sizeof(key));
	return key;
}

static uint32_t find(const struct replay *replay, uint32_t block)
{
	struct fm_key key = key_of(block);
	uint64_t word;

	return fm_index_find(&replay->store.index, &key, &word);
}

static uint32_t generation_of(const struct replay *replay, uint32_t entry)
{
	return FABRICMGR_WORD_GENERATION(replay->store.index.entries[entry].word);
}

static void destroy(struct replay *replay)
{
	fm_store_destroy(&replay->store);
	free(replay->index);
	free(replay->headers);
}

static size_t round_up(size_t bytes)
{
	return (bytes + FM_INDEX_HEADER_BYTES - 1) / FM_INDEX_HEADER_BYTES * FM_INDEX_HEADER_BYTES;
}

/* Entries for @room blocks at rest and for what the longest request brings. */
static int create(struct replay *replay, const struct fm_trace *trace,
		  const struct fm_policy_ops *policy, uint32_t room)
{
	uint32_t entries = room;
	uint32_t longest = 0;
	size_t bytes;
	int err;

	for (uint32_t i = 0; i < trace->request_count; i++)
		if (trace->requests[i].blocks > longest)
			longest = trace->requests[i].blocks;
	entries += longest;
	bytes = fm_index_bytes(entries);
	replay->index = aligned_alloc(FM_INDEX_HEADER_BYTES, round_up(bytes));
	replay->headers = calloc(entries, sizeof(*replay->headers));
	if (!replay->index || !replay->headers) {
		free(replay->index);
		free(replay->headers);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a pool of %u blocks", room);
	}
	memset(replay->index, 0, bytes);
	fm_index_format(replay->index, entries, 1, 1);
	err = fm_store_create(&replay->store, replay->index, bytes, replay->headers,
			      entries / FM_SLOTS_PER_CHUNK + 1, policy, &chunk_ops, NULL);
	if (err) {
		free(replay->index);
		free(replay->headers);
		return err;
	}
	replay->room = room;
	replay->owner = (struct fm_owner){.id = 1, .region = REGION};
	fm_store_owner_add(&replay->store, &replay->owner);
	return 0;
}

/* 1: the block is sealed, 0: it cannot be, or a negative error. */
static int take_in(struct replay *replay, uint32_t block, uint32_t parent)
{
	struct fm_key key = key_of(block), above = key_of(parent);
	struct fm_store_seal seal = {
		.key = key,
		.parent = parent == FM_TRACE_NONE ? NULL : &above,
		.ns = (const uint8_t[16]){0},
	};
	struct fm_store *store = &replay->store;
	int err = fm_store_stage(store, &replay->owner, BLOCK_BYTES, &seal.entry);

	if (err)
		return err;
	seal.generation = generation_of(replay, seal.entry);
	err = fm_store_seal(store, &replay->owner, &seal);
	if (err) {
		fm_store_discard(store, &replay->owner, seal.entry, seal.generation);
		return err == FM_ERR_LIMIT ? 0 : err; /* its buckets are full: not cached */
	}
	replay->result->written++;
	return 1;
}

static int make_room(struct replay *replay)
{
	struct fm_store *store = &replay->store;

	while (store->counters.sealed > replay->room) {
		uint32_t excess = store->counters.sealed - replay->room;

		store->batch = excess < FM_EVICT_BATCH ? excess : FM_EVICT_BATCH;
		if (!fm_store_evict(store, REGION, fm_slots_pages(BLOCK_BYTES)))
			return fm_fail(FM_ERR_POOL_FULL, "policy %s gave nothing up",
				       store->policy->name);
	}
	return 0;
}

static int request_run(struct replay *replay, const struct fm_trace *trace,
		       const struct fm_trace_request *request)
{
	const uint32_t *chain = trace->chain + request->first;
	uint32_t hits = 0;
	int is_in = 1;

	fm_store_expire(&replay->store, request->time_ns);
	while (hits < request->blocks && find(replay, chain[hits]) != FM_NO_ENTRY)
		hits++;
	if (hits + 1 < request->blocks && find(replay, chain[hits + 1]) != FM_NO_ENTRY)
		return fm_fail(FM_ERR_CORRUPT, "block %u is resident without the one before it",
			       chain[hits + 1]);
	fm_replay_count(replay->result, trace, request, hits);
	/* As fm_pool_acquire() does: the last block of each piece that one touch refreshes. */
	for (uint32_t i = hits; i > 0; i -= i < FM_TOUCH_STEPS ? i : FM_TOUCH_STEPS) {
		uint32_t entry = find(replay, chain[i - 1]);

		fm_store_touch(&replay->store, entry, generation_of(replay, entry));
	}
	for (uint32_t i = hits; i < request->blocks && is_in > 0; i++)
		is_in = take_in(replay, chain[i], trace->parents[chain[i]]);
	return is_in < 0 ? is_in : make_room(replay);
}

int fm_replay_run(const struct fm_trace *trace, const struct fm_policy_ops *policy, uint32_t room,
		  fm_replay_progress *progress, void *context, struct fm_replay_result *result)
{
	struct replay replay = {.result = result};
	int err;

	memset(result, 0, sizeof(*result));
	err = create(&replay, trace, policy, room);
	for (uint32_t r = 0; !err && r < trace->request_count; r++) {
		if (progress && r % 256 == 0)
			progress(context, (double)r / trace->request_count);
		err = request_run(&replay, trace, &trace->requests[r]);
	}
	result->evicted = replay.store.counters.evictions;
	if (replay.store.policy)
		destroy(&replay);
	return err;
}
