// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks that are sealed layer by layer: the writer's side, which needs the daemon only to let a
 * reader in, and the reader's, which joins a block that is still staged. Any thread may call.
 * Invariant: a joined block is leased before its first byte is read, so that its memory stays its
 * own when the writer dies.
 */
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "core/layers.h"
#include "pool/client.h"

/* How often a reader that waits for a layer looks whether its writer is still there. */
#define LOOK_NS (20 * FM_NS_PER_MS)

uint64_t fm_layers_length(uint32_t layers, uint64_t layer_bytes)
{
	return fm_layers_block_bytes(layers, layer_bytes);
}

/* ---- the writer ---- */

int fm_layers_begin(struct fm_pool *pool, const struct fm_block *block, uint32_t layers,
		    uint64_t layer_bytes, struct fm_key *id)
{
	struct fm_submission s = {.op = FM_OP_SHOW};
	struct fm_completion c;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (!block || !block->data || block->lease != FM_NO_LEASE)
		return fm_fail(FM_ERR_INVALID, "only a block staged by this client gets layers");
	if (!fm_layers_block_bytes(layers, layer_bytes) ||
	    fm_layers_block_bytes(layers, layer_bytes) != block->length)
		return fm_fail(FM_ERR_LIMIT,
			       "%u layers of %llu bytes do not fit a block of %llu: "
			       "fm_layers_length() says how long it has to be",
			       layers, (unsigned long long)layer_bytes,
			       (unsigned long long)block->length);
	fm_layers_format(block->data, block->length, layers, (uint32_t)layer_bytes);
	if (!id)
		return 0;
	s.entry = block->entry;
	s.generation = block->generation;
	FM_KILL_POINT("layers: before it is shown");
	fm_pool_ask(pool, &s, &c);
	FM_KILL_POINT("layers: shown");
	if (c.result)
		return fm_pool_explain(pool, c.result, "showing a block");
	*id = c.key;
	return 0;
}

int fm_layers_seal(struct fm_pool *pool, const struct fm_block *block, uint32_t first, uint32_t n)
{
	struct fm_layers layers;
	int err = fm_pool_check(pool, false);

	if (err)
		return err;
	if (!block || !block->data || block->lease != FM_NO_LEASE ||
	    !fm_layers_open(block->data, block->length, &layers))
		return fm_fail(FM_ERR_INVALID, "only a block staged by this client, and begun by "
					       "fm_layers_begin(), has layers to seal");
	if (first > layers.layers || n > layers.layers - first)
		return fm_fail(FM_ERR_LIMIT, "layers %u to %llu of a block that has %u", first,
			       (unsigned long long)first + n, layers.layers);
	for (uint32_t i = first; i < first + n; i++) {
		const char *data = (const char *)block->data + (uint64_t)i * layers.layer_bytes;

		FM_KILL_POINT("layers: before a layer is sealed");
		fm_layers_set(&layers, i, fm_crc32c(data, layers.layer_bytes));
		FM_KILL_POINT("layers: a layer is sealed");
	}
	/* Who sleeps in another process, on its own mapping of the same page. */
	syscall(SYS_futex, &layers.tail->sealed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return 0;
}

/* ---- the reader ---- */

/* Of the generation that was joined: staged, being sealed, or sealed. */
static bool is_alive(const struct fm_pool *pool, uint32_t entry, uint32_t generation,
		     uint64_t *word)
{
	/* Acquire: pairs with the releases in fm_life_set_state() and entry_free(). */
	uint64_t now = fm_load_acquire(&pool->index.entries[entry].word);
	uint32_t state = FABRICMGR_WORD_STATE(now);

	*word = now;
	return FABRICMGR_WORD_GENERATION(now) == generation &&
	       (state == FABRICMGR_BLOCK_STAGING || state == FABRICMGR_BLOCK_SEALED ||
		FABRICMGR_IS_GROUPED(state));
}

static int gone(void)
{
	return fm_fail(FM_ERR_NOT_FOUND, "the writer of this block gave it up, or is not there any "
					 "more; compute it again");
}

static int lease(struct fm_pool *pool, const struct fm_completion *c, struct fm_block *out)
{
	uint32_t at;
	uint64_t word;
	char *data;

	if (!fm_leases_reserve(pool, &at, 1))
		return fm_fail(FM_ERR_LIMIT,
			       "all %u entries of this client's lease table are in use; release "
			       "blocks or attach with more leases",
			       pool->lease_count);
	/* Its word changes a few times at most: when it is sealed, or given up. */
	while (is_alive(pool, c->entry, c->generation, &word)) {
		if (!fm_lease_take(&pool->leases[at], &pool->index.entries[c->entry], word))
			continue;
		FM_KILL_POINT("layers: joined");
		data = fm_place_hold(pool, c->region, c->chunk, c->slot, c->length);
		if (!data) {
			int err = fm_error_last();

			fm_lease_drop(&pool->leases[at]);
			fm_leases_return(pool, &at, 1);
			return err;
		}
		*out = (struct fm_block){
			.data = data,
			.length = c->length,
			.entry = c->entry,
			.generation = c->generation,
			.lease = fm_hold(pool, at),
			.origin = c->origin,
		};
		return 0;
	}
	fm_leases_return(pool, &at, 1);
	return gone();
}

int fm_layers_join(struct fm_pool *pool, const struct fm_key *id, struct fm_block *out)
{
	struct fm_submission s = {.op = FM_OP_JOIN};
	struct fm_completion c;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!id || !out)
		return fm_fail(FM_ERR_INVALID, "joining a block needs its id and room for it");
	s.key = *id;
	FM_KILL_POINT("layers: before joining");
	fm_pool_ask(pool, &s, &c);
	FM_KILL_POINT("layers: let in");
	if (c.result == FM_ERR_NOT_FOUND)
		return gone();
	if (c.result)
		return fm_pool_explain(pool, c.result, "joining a block");
	if (c.entry >= pool->index.entries_max)
		return fm_fail(FM_ERR_CORRUPT, "the daemon named an impossible place");
	return lease(pool, &c, out);
}

static int check_layer(const struct fm_block *block, const struct fm_layers *layers, uint32_t layer,
		       uint32_t crc32c)
{
	const char *data = (const char *)block->data + (uint64_t)layer * layers->layer_bytes;

	if (fm_crc32c(data, layers->layer_bytes) != crc32c)
		return fm_fail(FM_ERR_CORRUPT,
			       "layer %u of block %u does not have the CRC32C it was sealed with",
			       layer, block->entry);
	return 0;
}

int fm_layers_wait(struct fm_pool *pool, const struct fm_block *block, uint32_t layer,
		   uint64_t deadline_ns)
{
	uint64_t start = fm_clock_ns(), wait = deadline_ns ? deadline_ns : FM_DEADLINE_NS, word;
	struct timespec slice = {.tv_nsec = LOOK_NS};
	struct fm_layers layers;
	uint32_t crc32c;
	int err = fm_pool_check(pool, false);

	if (err)
		return err;
	if (!block || !fm_hold_is_current(pool, block->lease) || !block->data ||
	    block->entry >= pool->index.entries_max)
		return fm_fail(FM_ERR_INVALID, "only of a block that was joined or acquired");
	if (!fm_layers_open(block->data, block->length, &layers))
		return fm_fail(FM_ERR_UNSUPPORTED, "this block was not sealed by layers");
	if (layer >= layers.layers)
		return fm_fail(FM_ERR_LIMIT, "layer %u of a block that has %u", layer,
			       layers.layers);
	for (;;) {
		/* Acquire: pairs with the release in fm_layers_set(): what is sealed after this
		 * look changes it, and the sleep below ends at once. */
		uint32_t seen = fm_load_acquire(&layers.tail->sealed);
		uint64_t passed = fm_clock_ns() - start;

		if (fm_layers_get(&layers, layer, &crc32c))
			return check_layer(block, &layers, layer, crc32c);
		if (!is_alive(pool, block->entry, block->generation, &word))
			return gone();
		if (passed >= wait)
			return fm_fail(FM_ERR_DEADLINE, "layer %u was not sealed in that time",
				       layer);
		slice.tv_nsec = wait - passed < LOOK_NS ? (long)(wait - passed) : (long)LOOK_NS;
		syscall(SYS_futex, &layers.tail->sealed, FUTEX_WAIT, seen, &slice, NULL, 0);
	}
}

bool fm_layers_cover(const struct fm_block *block, uint64_t offset, uint64_t bytes, bool *is_sound)
{
	struct fm_layers layers;
	uint32_t crc32c;

	if (!bytes || !fm_layers_open(block->data, block->length, &layers) ||
	    offset % layers.layer_bytes || bytes % layers.layer_bytes ||
	    (offset + bytes) / layers.layer_bytes > layers.layers)
		return false;
	*is_sound = true;
	for (uint64_t i = offset / layers.layer_bytes; i < (offset + bytes) / layers.layer_bytes;
	     i++) {
		const char *data = (const char *)block->data + i * layers.layer_bytes;

		if (!fm_layers_get(&layers, (uint32_t)i, &crc32c))
			return false;
		*is_sound &= fm_crc32c(data, layers.layer_bytes) == crc32c;
	}
	return true;
}
