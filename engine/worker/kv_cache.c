// SPDX-License-Identifier: Apache-2.0
/*
 * Sequences over pool blocks (see kv_cache.h). Calls the pool through fabricmgr.h only.
 * Invariant: n_offered * tokens_per_block <= n_computed <= n_tokens; a held block is leased exactly
 * when its lease is not UINT32_MAX, else it is staged by this process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_kill_point.h>

#include "worker/kv_cache.h"

/* How long blocks on NVMe are waited for; what a prompt of some blocks costs to compute. */
#define FETCH_NS   (250ull * 1000 * 1000)

#define SEAL_BATCH 64 /* bounds the stack, not the sequence */

struct fm_kv_cache {
	struct fm_kv_cache_options options;
	struct fm_pool *pool;
	uint32_t max_blocks;
	uint64_t pool_blocks; /* what the attached pool holds of our size */
	char salt[64];	      /* of the tenant, as it was when this was opened */
};

struct fm_kv_sequence {
	struct fm_kv_cache *cache;
	uint32_t n_tokens, n_computed, n_cached;
	uint32_t n_blocks;
	uint32_t n_offered; /* blocks that were leased or given to seal; the rest still fills */
	uint32_t n_mapped, n_published;
	uint32_t n_keys;       /* full blocks whose keys are known */
	struct fm_digest last; /* digest of block n_keys - 1, or the namespace */
	uint32_t *tokens;
	struct fm_key *keys;
	struct fm_block *blocks;
	void **addresses;
};

/* Blocks of a size share chunks; a chunk holds a whole number of them. */
static int measure_pool(struct fm_kv_cache *cache)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	uint64_t slot = (cache->options.block_bytes + 4095) / 4096 * 4096;
	int err = fm_pool_info(cache->pool, &info);

	if (err)
		return err;
	cache->pool_blocks = info.total_bytes / FM_CHUNK_BYTES * (FM_CHUNK_BYTES / slot);
	if (cache->pool_blocks > info.entries_max)
		cache->pool_blocks = info.entries_max;
	return 0;
}

uint64_t fm_kv_cache_tokens_max(const struct fm_kv_cache *cache)
{
	return cache->pool_blocks * cache->options.tokens_per_block;
}

int fm_kv_cache_open(const struct fm_kv_cache_options *options, struct fm_kv_cache **out)
{
	struct fm_kv_cache *cache = calloc(1, sizeof(*cache));
	int err;

	if (!cache)
		return fm_fail(FM_ERR_NO_MEMORY, "KV cache: out of memory");
	cache->options = *options;
	cache->max_blocks =
		(options->max_tokens + options->tokens_per_block - 1) / options->tokens_per_block;
	err = fm_pool_attach(&options->attach, &cache->pool);
	if (!err)
		err = measure_pool(cache);
	if (err) {
		fm_kv_cache_close(cache);
		return err;
	}
	snprintf(cache->salt, sizeof(cache->salt), "%s", fm_pool_salt(cache->pool));
	*out = cache;
	return 0;
}

void fm_kv_cache_close(struct fm_kv_cache *cache)
{
	if (!cache)
		return;
	if (cache->pool)
		fm_pool_detach(cache->pool);
	free(cache);
}

struct fm_pool *fm_kv_cache_pool(struct fm_kv_cache *cache)
{
	return cache->pool;
}

void fm_kv_cache_set_namespace(struct fm_kv_cache *cache, const struct fm_digest *ns)
{
	cache->options.ns = *ns;
}

int fm_kv_cache_reattach(struct fm_kv_cache *cache)
{
	int err;

	if (cache->pool && fm_pool_is_connected(cache->pool))
		return 0;
	if (cache->options.attach.fd >= 0)
		return fm_fail(FM_ERR_DISCONNECTED,
			       "the embedded pool is gone: restart the program");
	FM_KILL_POINT("kv: before attaching again");
	if (cache->pool)
		fm_pool_detach(cache->pool);
	cache->pool = NULL;
	err = fm_pool_attach(&cache->options.attach, &cache->pool);
	if (err)
		return err;
	err = measure_pool(cache);
	/* Its names of blocks, which it has told to others, are made with the old one. */
	if (!err && strcmp(cache->salt, fm_pool_salt(cache->pool)))
		err = fm_fail(FM_ERR_PERMISSION,
			      "the pool came back with another salt for tenant %s: start this "
			      "program again",
			      fm_pool_tenant(cache->pool));
	if (err) {
		fm_pool_detach(cache->pool);
		cache->pool = NULL;
	}
	return err;
}

/* Keys of the full blocks among the first n_tokens that are not yet known. */
static int extend_keys(struct fm_kv_sequence *sequence)
{
	uint32_t per_block = sequence->cache->options.tokens_per_block;
	uint32_t n_full = sequence->n_tokens / per_block;
	int err;

#ifdef FM_PLANT_KEY_WITHOUT_PREFIX /* a fault that the tests must find: tests/suites/plants.py */
	sequence->last = sequence->cache->options.ns;
	n_full = n_full > sequence->n_keys ? sequence->n_keys + 1 : n_full;
#endif
	if (n_full == sequence->n_keys)
		return 0;
	err = fm_chain_keys(&sequence->last,
			    sequence->tokens + (size_t)sequence->n_keys * per_block,
			    n_full - sequence->n_keys, per_block, NULL, 0,
			    sequence->keys + sequence->n_keys, &sequence->last);
	if (err)
		return err;
	sequence->n_keys = n_full;
#ifdef FM_PLANT_KEY_WITHOUT_PREFIX
	return extend_keys(sequence);
#endif
	return 0;
}

static void hold_block(struct fm_kv_sequence *sequence, uint32_t i, const struct fm_block *block)
{
	sequence->blocks[i] = *block;
	sequence->addresses[i] = block->data;
}

/* What the pool has of the chain becomes the head of the sequence. */
static int take_cached(struct fm_kv_sequence *sequence, const struct fm_key *tail)
{
	struct fm_kv_cache *cache = sequence->cache;
	uint32_t per_block = cache->options.tokens_per_block;
	uint32_t wanted = (sequence->n_tokens - 1) / per_block;
	int64_t found;

	/* What does not come in time is computed; errors show in the acquire. */
	fm_pool_fetch(cache->pool, sequence->keys, wanted, FETCH_NS);
	found = fm_pool_acquire(cache->pool, sequence->keys, wanted, sequence->blocks);
	if (found < 0)
		return (int)found;
	for (uint32_t i = 0; i < (uint32_t)found; i++) {
		sequence->addresses[i] = sequence->blocks[i].data;
		sequence->n_mapped += sequence->blocks[i].origin != fm_pool_client_id(cache->pool);
	}
	sequence->n_blocks = sequence->n_offered = (uint32_t)found;
	sequence->n_computed = (uint32_t)found * per_block;
	/* A tail continues a complete head only; otherwise it is left to expire and computed anew.
	 */
	if (tail && (uint32_t)found == wanted && (sequence->n_tokens - 1) % per_block) {
		struct fm_block block;

		if (!fm_block_adopt(cache->pool, tail, &block)) {
			FM_KILL_POINT("kv: tail adopted");
			hold_block(sequence, sequence->n_blocks++, &block);
			/* It holds everything up to the token before the last. */
			sequence->n_computed = sequence->n_tokens - 1;
		}
	}
#ifdef FM_PLANT_STALE_BLOCK /* likewise: what a block held before counts as its first token */
	sequence->n_computed += (uint32_t)found < wanted;
#endif
	sequence->n_cached = sequence->n_computed;
	return 0;
}

int fm_kv_sequence_open(struct fm_kv_cache *cache, const uint32_t *tokens, uint32_t n,
			const struct fm_key *tail, struct fm_kv_sequence **out)
{
	struct fm_kv_sequence *sequence;
	int err = FM_ERR_NO_MEMORY;

	if (!n || n > cache->options.max_tokens)
		return fm_fail(FM_ERR_LIMIT, "a sequence of %u tokens: the context holds 1 to %u",
			       n, cache->options.max_tokens);
	sequence = calloc(1, sizeof(*sequence));
	if (!sequence)
		return fm_fail(FM_ERR_NO_MEMORY, "KV sequence: out of memory");
	sequence->cache = cache;
	sequence->last = cache->options.ns;
	sequence->tokens = malloc(cache->options.max_tokens * sizeof(*sequence->tokens));
	sequence->keys = malloc(cache->max_blocks * sizeof(*sequence->keys));
	sequence->blocks = calloc(cache->max_blocks, sizeof(*sequence->blocks));
	sequence->addresses = calloc(cache->max_blocks, sizeof(*sequence->addresses));
	if (!sequence->tokens || !sequence->keys || !sequence->blocks || !sequence->addresses) {
		fm_fail(FM_ERR_NO_MEMORY, "KV sequence of %u tokens: out of memory", n);
		goto fail;
	}
	memcpy(sequence->tokens, tokens, n * sizeof(*tokens));
	sequence->n_tokens = n;
	err = extend_keys(sequence);
	if (!err)
		err = take_cached(sequence, tail);
	if (err)
		goto fail;
	*out = sequence;
	return 0;
fail:
	fm_kv_sequence_close(sequence);
	return err;
}

void fm_kv_sequence_close(struct fm_kv_sequence *sequence)
{
	if (!sequence)
		return;
	for (uint32_t i = 0; i < sequence->n_blocks; i++) {
		if (sequence->blocks[i].lease == UINT32_MAX)
			fm_block_discard(sequence->cache->pool, &sequence->blocks[i], 1);
		else
			fm_block_release(sequence->cache->pool, &sequence->blocks[i], 1);
	}
	free(sequence->tokens);
	free(sequence->keys);
	free(sequence->blocks);
	free(sequence->addresses);
	free(sequence);
}

uint32_t fm_kv_sequence_length(const struct fm_kv_sequence *sequence)
{
	return sequence->n_tokens;
}

uint32_t fm_kv_sequence_computed(const struct fm_kv_sequence *sequence)
{
	return sequence->n_computed;
}

uint32_t fm_kv_sequence_cached(const struct fm_kv_sequence *sequence)
{
	return sequence->n_cached;
}

uint32_t fm_kv_sequence_mapped(const struct fm_kv_sequence *sequence)
{
	return sequence->n_mapped;
}

uint32_t fm_kv_sequence_sealed(const struct fm_kv_sequence *sequence)
{
	return sequence->n_published;
}

const struct fm_key *fm_kv_sequence_keys(const struct fm_kv_sequence *sequence, uint32_t *n)
{
	*n = sequence->n_offered;
	return sequence->keys;
}

const uint32_t *fm_kv_sequence_tokens(const struct fm_kv_sequence *sequence)
{
	return sequence->tokens;
}

void *const *fm_kv_sequence_blocks(const struct fm_kv_sequence *sequence)
{
	return sequence->addresses;
}

int fm_kv_sequence_append(struct fm_kv_sequence *sequence, uint32_t token)
{
	if (sequence->n_tokens == sequence->cache->options.max_tokens)
		return fm_fail(FM_ERR_LIMIT, "the sequence fills the context of %u tokens",
			       sequence->cache->options.max_tokens);
	sequence->tokens[sequence->n_tokens++] = token;
	return 0;
}

int fm_kv_sequence_reserve(struct fm_kv_sequence *sequence, uint32_t n, uint64_t deadline_ns)
{
	struct fm_kv_cache *cache = sequence->cache;
	uint32_t per_block = cache->options.tokens_per_block;
	uint32_t needed = (sequence->n_computed + n + per_block - 1) / per_block;
	int err;

	if (needed <= sequence->n_blocks)
		return 0;
	err = fm_block_stage(cache->pool, cache->options.block_bytes, needed - sequence->n_blocks,
			     sequence->blocks + sequence->n_blocks, deadline_ns);
	if (err)
		return err;
	for (; sequence->n_blocks < needed; sequence->n_blocks++)
		sequence->addresses[sequence->n_blocks] = sequence->blocks[sequence->n_blocks].data;
	return 0;
}

/*
 * Somebody else sealed the same block first (same key, so the same bits): use theirs and give ours
 * back, so that memory holds it once. Evicted in between: ours simply stays staged, for us alone.
 */
static void use_existing(struct fm_kv_sequence *sequence, uint32_t i)
{
	struct fm_pool *pool = sequence->cache->pool;
	struct fm_block theirs;

	if (fm_pool_acquire(pool, &sequence->keys[i], 1, &theirs) != 1)
		return;
	FM_KILL_POINT("kv: sealed by another");
	fm_block_discard(pool, &sequence->blocks[i], 1);
	hold_block(sequence, i, &theirs);
}

int fm_kv_sequence_advance(struct fm_kv_sequence *sequence, uint32_t n)
{
	struct fm_kv_cache *cache = sequence->cache;
	uint32_t n_full;
	int err;

	sequence->n_computed += n;
	n_full = sequence->n_computed / cache->options.tokens_per_block;
	err = extend_keys(sequence);
	while (!err && sequence->n_offered < n_full) {
		struct fm_seal seals[SEAL_BATCH];
		uint32_t first = sequence->n_offered, batch = n_full - first;

		if (batch > SEAL_BATCH)
			batch = SEAL_BATCH;
		for (uint32_t i = 0; i < batch; i++)
			seals[i] = (struct fm_seal){
				.block = &sequence->blocks[first + i],
				.key = sequence->keys[first + i],
				.parent = first + i ? &sequence->keys[first + i - 1] : NULL,
			};
		fm_block_seal(cache->pool, &cache->options.ns, seals, batch);
		FM_KILL_POINT("kv: sealed");
		for (uint32_t i = 0; i < batch; i++) {
			if (!seals[i].result)
				sequence->n_published++;
			else if (seals[i].result == FM_ERR_EXISTS)
				use_existing(sequence, first + i);
			else if (!err)
				err = seals[i].result;
		}
		sequence->n_offered += batch;
	}
	return err;
}

int fm_kv_sequence_offer_tail(struct fm_kv_sequence *sequence, struct fm_key *id)
{
	int err;

	if (sequence->n_blocks != sequence->n_offered + 1 ||
	    sequence->n_computed % sequence->cache->options.tokens_per_block == 0)
		return 0;
	err = fm_block_offer(sequence->cache->pool, &sequence->blocks[sequence->n_offered], id);
	if (err)
		return err;
	sequence->n_blocks--;
	return 1;
}
