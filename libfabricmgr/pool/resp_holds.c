// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks that an EXISTS promised: kept until a GET takes them, for a bounded time, number and size.
 * For clients that wait for ever when what EXISTS told them is gone at their GET (LMCache's Redis
 * client blocks on a null reply). Invariant: a held block's lease belongs to this table alone; ends
 * stand in the ring in the order in which they come, because every hold lasts as long.
 */
#include <stdlib.h>
#include <string.h>

#include "pool/resp_front.h"

int resp_holds_create(struct resp_holds *holds)
{
	memset(holds, 0, sizeof(*holds));
	holds->holds = calloc(RESP_HOLDS_MAX, sizeof(*holds->holds));
	holds->free = malloc(RESP_HOLDS_MAX * sizeof(*holds->free));
	holds->order = malloc(RESP_HOLDS_MAX * sizeof(*holds->order));
	if (!holds->holds || !holds->free || !holds->order)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the Redis front end's holds");
	for (uint32_t i = 0; i < RESP_HOLDS_MAX; i++)
		holds->free[i] = RESP_HOLDS_MAX - 1 - i;
	holds->n_free = RESP_HOLDS_MAX;
	return 0;
}

void resp_holds_destroy(struct resp_holds *holds, struct fm_pool *pool)
{
	for (uint32_t i = 0; holds->holds && i < RESP_HOLDS_MAX; i++)
		if (holds->holds[i].block.data)
			fm_block_release(pool, &holds->holds[i].block, 1);
	free(holds->holds);
	free(holds->free);
	free(holds->order);
}

/* The link that names the hold of @key, or the end of its chain. */
static uint32_t *find(struct resp_holds *holds, const struct fm_key *key)
{
	uint32_t hash, *link;

	memcpy(&hash, key, sizeof(hash)); /* a key is a digest */
	link = &holds->buckets[hash % RESP_HOLDS_MAX];
	while (*link && memcmp(&holds->holds[*link - 1].key, key, sizeof(*key)))
		link = &holds->holds[*link - 1].next;
	return link;
}

bool resp_holds_add(struct fm_resp *front, const struct fm_key *key, struct fm_block *block,
		    uint64_t now)
{
	struct resp_holds *holds = &front->holds;
	uint32_t *link = find(holds, key), at;

	if (*link) {
		struct resp_hold *held = &holds->holds[*link - 1];

		/* Its end stays: a client that only asks does not keep a block for ever. The block
		 * may have been replaced since: then the newer one is what a GET shall have. */
		holds->bytes += block->length - held->block.length;
		fm_block_release(front->pool, &held->block, 1);
		held->block = *block;
		return true;
	}
	/* The ring has a place for each hold, also for those that were taken early. */
	if (!holds->n_free || holds->end - holds->first == RESP_HOLDS_MAX ||
	    holds->bytes + block->length > front->hold_bytes)
		return false;
	at = holds->free[--holds->n_free];
	holds->holds[at] =
		(struct resp_hold){.key = *key, .block = *block, .until_ns = now + front->hold_ns};
	*link = at + 1;
	holds->order[holds->end++ % RESP_HOLDS_MAX] = at;
	holds->bytes += block->length;
	return true;
}

static void give_up(struct resp_holds *holds, uint32_t *link)
{
	uint32_t at = *link - 1;

	*link = holds->holds[at].next;
	holds->bytes -= holds->holds[at].block.length;
	holds->holds[at].block.data = NULL; /* its place is free when its end has come */
}

bool resp_holds_take(struct fm_resp *front, const struct fm_key *key, struct fm_block *block)
{
	uint32_t *link = find(&front->holds, key);

	if (!*link)
		return false;
	*block = front->holds.holds[*link - 1].block;
	give_up(&front->holds, link);
	return true;
}

void resp_holds_expire(struct fm_resp *front, uint64_t now)
{
	struct resp_holds *holds = &front->holds;

	while (holds->first != holds->end) {
		uint32_t at = holds->order[holds->first % RESP_HOLDS_MAX];
		struct resp_hold *hold = &holds->holds[at];

		if (hold->block.data && hold->until_ns > now)
			return;
		if (hold->block.data) {
			struct fm_block block = hold->block;

			give_up(holds, find(holds, &hold->key));
			fm_block_release(front->pool, &block, 1);
		}
		holds->free[holds->n_free++] = at;
		holds->first++;
	}
}
