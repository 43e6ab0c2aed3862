// SPDX-License-Identifier: Apache-2.0
/*
 * Reading: match, acquire, release, verify and the walk, all on mapped memory. Any thread may call.
 * Invariant: no system call but the one that maps a region met for the first time.
 */
#include <string.h>

#include <fabricmgr_kill_point.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "core/adopted.h"
#include "pool/client.h"

bool fm_leases_reserve(struct fm_pool *pool, uint32_t *leases, size_t n)
{
	bool is_enough;

	pthread_mutex_lock(&pool->lease_lock);
	is_enough = pool->free_lease_count >= n;
	if (is_enough) {
		pool->free_lease_count -= (uint32_t)n;
		memcpy(leases, pool->free_leases + pool->free_lease_count, n * sizeof(*leases));
	}
	pthread_mutex_unlock(&pool->lease_lock);
	return is_enough;
}

void fm_leases_return(struct fm_pool *pool, const uint32_t *leases, size_t n)
{
	if (!n)
		return;
	pthread_mutex_lock(&pool->lease_lock);
	memcpy(pool->free_leases + pool->free_lease_count, leases, n * sizeof(*leases));
	pool->free_lease_count += (uint32_t)n;
	pthread_mutex_unlock(&pool->lease_lock);
}

/* lease_lock */
static void lease_free(struct fm_pool *pool, uint32_t place)
{
	if (!FM_FAULT("keep-leases"))
		fm_lease_drop(&pool->leases[place]);
	FM_KILL_POINT("release: dropped");
	pool->free_leases[pool->free_lease_count++] = place;
}

/* Ends a hold and gives its place back, unless another release of it has. */
static void hold_end(struct fm_pool *pool, uint32_t hold)
{
	uint32_t place = fm_hold_place(hold), region = 0;

	pthread_mutex_lock(&pool->lease_lock);
	if (fm_hold_is_current(pool, hold)) {
		uint32_t uses = ((hold >> 16) + 1) % UINT16_MAX; /* so that none is FM_NO_LEASE */

		atomic_store_explicit(&pool->lease_uses[place], (uint16_t)uses,
				      memory_order_relaxed);
		/* Relaxed: our own. */
		region = fm_load_relaxed(&pool->leases[place].region);
		if (!fm_region_is_adopted(region))
			lease_free(pool, place);
	}
	pthread_mutex_unlock(&pool->lease_lock);
	if (!fm_region_is_adopted(region))
		return;
	/* Its mapping goes first: see region.c. */
	fm_place_let_go(pool, region);
	pthread_mutex_lock(&pool->lease_lock);
	lease_free(pool, place);
	pthread_mutex_unlock(&pool->lease_lock);
}

int64_t fm_pool_match(struct fm_pool *pool, const struct fm_key *keys, size_t n)
{
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (n && !keys)
		return fm_fail(FM_ERR_INVALID, "no keys were given");
	return (int64_t)fm_index_match(&pool->index, keys, n);
}

int64_t fm_pool_match_tokens(struct fm_pool *pool, const struct fm_digest *parent,
			     const uint32_t *tokens, size_t n_tokens, uint32_t tokens_per_block,
			     const void *extras, size_t extras_len)
{
	struct fm_key keys[32]; /* hashed before they are looked up: a miss wastes a few us */
	struct fm_digest digest;
	size_t blocks, done = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!parent || !tokens_per_block || (n_tokens && !tokens))
		return fm_fail(FM_ERR_INVALID, "a match of tokens needs a parent, tokens and their "
					       "number in a block");
	digest = *parent;
	blocks = n_tokens / tokens_per_block;
	while (done < blocks) {
		size_t piece = blocks - done < 32 ? blocks - done : 32, found;

		err = fm_chain_keys(&digest, tokens + done * tokens_per_block, piece,
				    tokens_per_block, extras, extras_len, keys, &digest);
		if (err)
			return err;
		found = fm_index_match(&pool->index, keys, piece);
		done += found;
		if (found < piece)
			break;
	}
	return (int64_t)done;
}

/* True: leased into @lease, and @block filled but for its data. */
static bool acquire_one(struct fm_pool *pool, const struct fm_key *key, uint32_t lease,
			struct fm_block *block, uint64_t *place, uint64_t *extent)
{
	for (uint32_t tries = 0; tries < FM_ACQUIRE_RETRIES; tries++) {
		const struct fm_entry *e;
		uint64_t word;
		uint32_t entry = fm_index_find(&pool->index, key, &word);

		if (entry == FM_NO_ENTRY)
			return false;
		e = &pool->index.entries[entry];
		/* GROUPED: of a group that is visible, or it would not have been found. */
		if ((FABRICMGR_WORD_STATE(word) != FABRICMGR_BLOCK_SEALED &&
		     !FABRICMGR_IS_GROUPED(FABRICMGR_WORD_STATE(word))) ||
		    !fm_lease_take(&pool->leases[lease], e, word)) {
			fm_pause(); /* being evicted: gone, or back, in a moment */
			continue;
		}
		FM_KILL_POINT("acquire: leased");
		/* Relaxed: under the lease the fields are those of this generation and stay. */
		*place = fm_load_relaxed(&e->place);
		*extent = fm_load_relaxed(&e->extent);
		block->length = FM_HIGH(*extent);
		block->entry = entry;
		block->generation = FABRICMGR_WORD_GENERATION(word);
		block->lease = fm_hold(pool, lease);
		block->origin = FM_LOW(fm_load_relaxed(&e->check));
		return true;
	}
	return false;
}

int64_t fm_leases_take(struct fm_pool *pool, const struct fm_key *keys, size_t n,
		       const uint32_t *leases, struct fm_block *blocks)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t place, extent;

		if (!acquire_one(pool, &keys[i], leases[i], &blocks[i], &place, &extent))
			return (int64_t)i;
		blocks[i].data = fm_place_hold(pool, FM_HIGH(place), FM_LOW(place),
					       FM_LOW(extent), blocks[i].length);
		if (!blocks[i].data) {
			int err = fm_error_last();

			/* The places are the caller's to give back: no hold may name them. */
			fm_lease_drop(&pool->leases[leases[i]]);
			for (size_t k = 0; k <= i; k++) {
				if (k < i)
					fm_lease_end(pool, leases[k]);
				blocks[k] = (struct fm_block){.lease = FM_NO_LEASE};
			}
			return err;
		}
	}
	return (int64_t)n;
}

uint32_t fm_leases_hold(struct fm_pool *pool, const struct fm_key *key)
{
	struct fm_block block;
	uint32_t lease;

	if (!fm_leases_reserve(pool, &lease, 1))
		return FM_NO_LEASE;
	if (fm_leases_take(pool, key, 1, &lease, &block) == 1)
		return lease;
	fm_leases_return(pool, &lease, 1);
	return FM_NO_LEASE;
}

void fm_leases_let_go(struct fm_pool *pool, uint32_t lease)
{
	if (lease == FM_NO_LEASE)
		return;
	fm_lease_end(pool, lease);
	fm_leases_return(pool, &lease, 1);
}

/* Whatever stood in the blocks beyond @done is no hold of the caller's. */
static void undo_acquire(struct fm_pool *pool, struct fm_block *blocks, size_t done, size_t n)
{
	fm_block_release(pool, blocks, done);
	for (size_t i = done; i < n; i++)
		blocks[i] = (struct fm_block){.lease = FM_NO_LEASE};
}

int64_t fm_pool_acquire(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			struct fm_block *blocks)
{
	uint32_t leases[64];
	size_t done = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (n && (!keys || !blocks))
		return fm_fail(FM_ERR_INVALID, "no keys or no room for blocks were given");
	while (done < n) {
		size_t piece = n - done < 64 ? n - done : 64;
		int64_t got;
		uint64_t word;

		/* What is not there needs no place in the table. */
		if (fm_index_find(&pool->index, &keys[done], &word) == FM_NO_ENTRY)
			break;
		while (piece > 1 && !fm_leases_reserve(pool, leases, piece))
			piece /= 2;
		if (piece == 1 && !fm_leases_reserve(pool, leases, 1)) {
			undo_acquire(pool, blocks, done, n);
			return fm_fail(FM_ERR_LIMIT,
				       "all %u entries of this client's lease table are in use; "
				       "release blocks or attach with more leases",
				       pool->lease_count);
		}
		got = fm_leases_take(pool, keys + done, piece, leases, blocks + done);
		if (got < 0) {
			fm_leases_return(pool, leases, piece);
			undo_acquire(pool, blocks, done, n);
			return got;
		}
		fm_leases_return(pool, leases + got, piece - (size_t)got);
		done += (size_t)got;
		if ((size_t)got < piece)
			break;
	}
	FM_KILL_POINT("acquire: before touch");
	/* The last block of each piece that one touch refreshes: its ancestors come with it. */
	for (size_t i = done; i > 0; i -= i < FM_TOUCH_STEPS ? i : FM_TOUCH_STEPS)
		fm_pool_touch(pool, blocks[i - 1].entry, blocks[i - 1].generation);
	return (int64_t)done;
}

void fm_block_release(struct fm_pool *pool, struct fm_block *blocks, size_t n)
{
	if (!blocks || fm_pool_check(pool, false))
		return;
	for (size_t i = 0; i < n; i++) {
		if (blocks[i].lease == FM_NO_LEASE)
			continue; /* staged, or released before */
		hold_end(pool, blocks[i].lease);
		blocks[i].lease = FM_NO_LEASE;
		blocks[i].data = NULL;
	}
}

int fm_block_verify(struct fm_pool *pool, const struct fm_block *block)
{
	const struct fm_entry *e;
	struct fm_header header;
	uint64_t place, extent;
	struct fm_key key;
	int err = fm_pool_check(pool, false);

	if (err)
		return err;
	if (!block || !fm_hold_is_current(pool, block->lease) || !block->data ||
	    block->entry >= pool->index.entries_max)
		return fm_fail(FM_ERR_INVALID, "only a leased block can be verified");
	e = &pool->index.entries[block->entry];
	fm_header_read(pool->headers, block->entry, &header);
	err = fm_header_check(&header);
	if (err)
		return err;
	/* Relaxed: the block is leased. */
	place = fm_load_relaxed(&e->place);
	extent = fm_load_relaxed(&e->extent);
	fm_key_load(e->key, &key);
	if (memcmp(header.key, &key, sizeof(key)) || header.generation != block->generation ||
	    header.length != FM_HIGH(extent) || header.chunk != FM_LOW(place) ||
	    header.slot != FM_LOW(extent) || header.region != FM_HIGH(place))
		return fm_fail(FM_ERR_CORRUPT,
			       "the header of block %u does not fit its index entry", block->entry);
	if (fm_crc32c(block->data, header.length) != header.crc32c)
		return fm_fail(FM_ERR_CORRUPT,
			       "the bytes of block %u do not have the CRC32C they were sealed with",
			       block->entry);
	return 0;
}

int fm_pool_walk(struct fm_pool *pool, uint32_t *cursor, struct fm_block_info *out)
{
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!cursor || !out)
		return fm_fail(FM_ERR_INVALID, "a walk needs a cursor and room for a block");
	while (*cursor < pool->index.entries_max) {
		uint32_t entry = (*cursor)++;
		const struct fm_entry *e = &pool->index.entries[entry];
		/* Acquire: pairs with the releases of the word in fm_life_set_state() and
		 * entry_free(). */
		uint64_t word = fm_load_acquire(&e->word), place, extent, check;
		uint32_t state = fm_index_state(&pool->index, FABRICMGR_WORD_STATE(word));
		struct fm_header header;

		if (state == FABRICMGR_BLOCK_EVICTING) {
			struct fm_key key;
			uint64_t other;

			/* Being evicted, and perhaps not; or removed, and only held by somebody. */
			fm_key_load(e->key, &key);
			if (fm_index_find(&pool->index, &key, &other) == entry)
				state = FABRICMGR_BLOCK_SEALED;
		}
		if (state != FABRICMGR_BLOCK_SEALED && state != FABRICMGR_BLOCK_STAGING)
			continue;
		memset(out, 0, sizeof(*out));
		fm_key_load(e->key, &out->key);
		fm_key_load(e->parent, &out->parent);
		place = fm_load_relaxed(&e->place);
		extent = fm_load_relaxed(&e->extent);
		check = fm_load_relaxed(&e->check);
		fm_header_read(pool->headers, entry, &header);
		/* The fields before the word again: a field of a later generation was stored with
		 * release (stage_entry()) or after the fence in sacrifice(), behind a new word. */
		fm_fence();
		if (FABRICMGR_WORD_GENERATION(fm_load_acquire(&e->word)) !=
		    FABRICMGR_WORD_GENERATION(word))
			continue; /* freed meanwhile */
		if (state == FABRICMGR_BLOCK_SEALED)
			memcpy(out->ns, header.ns, sizeof(out->ns));
		out->length = FM_HIGH(extent);
		out->entry = entry;
		out->generation = FABRICMGR_WORD_GENERATION(word);
		out->state = state;
		out->region = FM_HIGH(place);
		out->chunk = FM_LOW(place);
		out->slot = FM_LOW(extent);
		out->crc32c = FM_HIGH(check);
		out->origin = FM_LOW(check);
		return 1;
	}
	return 0;
}
