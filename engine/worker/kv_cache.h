/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The KV of the engine's sequences, held in pool blocks and nowhere else: leading blocks that the
 * pool already has are leased and read in place, the rest is staged, filled by the model and sealed
 * as each block fills. One thread uses it. It knows pools and keys, but nothing of models or
 * requests. Invariant: every block that a sequence holds is either leased (immutable) or staged by
 * this process, and is released or discarded exactly once.
 */
#ifndef FM_ENGINE_KV_CACHE_H
#define FM_ENGINE_KV_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fabricmgr.h>

struct fm_kv_cache;
struct fm_kv_sequence;

struct fm_kv_cache_options {
	struct fm_attach_options attach; /* kept for reattaching; strings must outlive the cache */
	struct fm_digest ns;
	uint64_t block_bytes;
	uint32_t tokens_per_block;
	uint32_t max_tokens; /* of one sequence */
};

int fm_kv_cache_open(const struct fm_kv_cache_options *options, struct fm_kv_cache **out);
/* Every sequence must have been closed. */
void fm_kv_cache_close(struct fm_kv_cache *cache);
struct fm_pool *fm_kv_cache_pool(struct fm_kv_cache *cache);
/* What the keys of sequences opened from now on begin with. */
void fm_kv_cache_set_namespace(struct fm_kv_cache *cache, const struct fm_digest *ns);
/* After the pool was lost and every sequence was closed: 0 once a pool is there again. */
int fm_kv_cache_reattach(struct fm_kv_cache *cache);

/* Tokens of one sequence that the pool has room for when nobody else uses it. */
uint64_t fm_kv_cache_tokens_max(const struct fm_kv_cache *cache);

/* A sequence that begins with @tokens (@n > 0, copied). Takes the leading full blocks that the pool
 * has, but leaves at least the last token to be computed. @tail: private id of a staged block with
 * the KV of the tokens after the last full block, or NULL; a tail that is gone is computed anew. */
int fm_kv_sequence_open(struct fm_kv_cache *cache, const uint32_t *tokens, uint32_t n,
			const struct fm_key *tail, struct fm_kv_sequence **out);
/* Releases leases and discards what is staged. */
void fm_kv_sequence_close(struct fm_kv_sequence *sequence);

uint32_t fm_kv_sequence_length(const struct fm_kv_sequence *sequence); /* tokens known */
uint32_t
fm_kv_sequence_computed(const struct fm_kv_sequence *sequence); /* tokens whose KV is there */
uint32_t fm_kv_sequence_cached(const struct fm_kv_sequence *sequence); /* of them, found at open */
uint32_t fm_kv_sequence_mapped(const struct fm_kv_sequence *sequence); /* blocks of other writers */
uint32_t fm_kv_sequence_sealed(const struct fm_kv_sequence *sequence); /* blocks published by us */
/* Keys of its blocks that are in the pool for others, too, from the first; *@n of them. */
const struct fm_key *fm_kv_sequence_keys(const struct fm_kv_sequence *sequence, uint32_t *n);
const uint32_t *fm_kv_sequence_tokens(const struct fm_kv_sequence *sequence);
/* Base addresses, one a block, for the model. Valid until the next call on this sequence. */
void *const *fm_kv_sequence_blocks(const struct fm_kv_sequence *sequence);

int fm_kv_sequence_append(struct fm_kv_sequence *sequence, uint32_t token);
/* Stages blocks so that @n more tokens can be computed. FM_ERR_POOL_FULL, FM_ERR_DISCONNECTED. */
int fm_kv_sequence_reserve(struct fm_kv_sequence *sequence, uint32_t n, uint64_t deadline_ns);
/* @n more tokens have their KV: seals the blocks that this filled. */
int fm_kv_sequence_advance(struct fm_kv_sequence *sequence, uint32_t n);
/* Gives the staged tail away; 1 and *@id, or 0 when the tokens fill their last block exactly. */
int fm_kv_sequence_offer_tail(struct fm_kv_sequence *sequence, struct fm_key *id);

#endif
