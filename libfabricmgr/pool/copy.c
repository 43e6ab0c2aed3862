// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks by copy, for callers whose data stays where it is: put and get over stage, seal and
 * acquire. Any thread may call. Invariant: nothing stays staged or leased when a call returns.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "pool/client.h"

#define BATCH 32u /* blocks that one call has staged at a time: 128 MiB at most */

static void fail_all(struct fm_put *puts, size_t n, int err)
{
	for (size_t i = 0; i < n; i++)
		puts[i].result = err;
}

/* The first puts of one length, which are staged with one question to the daemon. */
static size_t same_length(const struct fm_put *puts, size_t n)
{
	size_t same = 1;

	while (same < n && same < BATCH && puts[same].length == puts[0].length)
		same++;
	return same;
}

static int put_batch(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put *puts,
		     size_t n, uint64_t deadline_ns)
{
	struct fm_block blocks[BATCH];
	struct fm_seal seals[BATCH];
	uint32_t checksums[BATCH];
	int err = fm_block_stage(pool, puts[0].length, n, blocks, deadline_ns), first = 0;

	if (err) {
		fail_all(puts, n, err);
		return err;
	}
	for (size_t i = 0; i < n; i++) {
		checksums[i] = fm_crc32c_copy(blocks[i].data, puts[i].data, puts[i].length);
		seals[i] = (struct fm_seal){.block = &blocks[i],
					    .key = puts[i].key,
					    .parent = puts[i].parent,
					    .flags = puts[i].flags};
	}
	fm_block_seal_summed(pool, ns, seals, checksums, n);
	for (size_t i = 0; i < n; i++) {
		puts[i].result = seals[i].result;
		if (puts[i].result && puts[i].result != FM_ERR_EXISTS && !first)
			first = puts[i].result;
	}
	fm_block_release(pool, blocks, n); /* those that were sealed */
	fm_block_discard(pool, blocks, n); /* the others */
	return first;
}

int fm_pool_put(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put *puts, size_t n,
		uint64_t deadline_ns)
{
	uint64_t start = fm_clock_ns();
	int first = 0;

	if (n && (!ns || !puts))
		return fm_fail(FM_ERR_INVALID, "a put needs a namespace and data");
	for (size_t i = 0; i < n; i++)
		if (!puts[i].data)
			return fm_fail(FM_ERR_INVALID, "put %zu has no data", i);
	if (!deadline_ns)
		deadline_ns = FM_DEADLINE_NS;
	for (size_t done = 0; done < n;) {
		size_t batch = same_length(puts + done, n - done);
		uint64_t spent = fm_clock_ns() - start;
		/* One nanosecond: what is free at once is still given. */
		int err = put_batch(pool, ns, puts + done, batch,
				    spent < deadline_ns ? deadline_ns - spent : 1);

		if (err && !first)
			first = err;
		done += batch;
	}
	return first;
}

static int get_one(struct fm_pool *pool, struct fm_get *get)
{
	struct fm_header header;
	struct fm_block block;
	int64_t got = fm_pool_acquire(pool, &get->key, 1, &block);
	int err = 0;

	get->length = 0;
	if (got != 1)
		return got < 0 ? (int)got : FM_ERR_NOT_FOUND;
	get->length = block.length;
	if (block.length > get->capacity)
		err = fm_fail(FM_ERR_LIMIT, "a block of %llu bytes for room of %llu",
			      (unsigned long long)block.length, (unsigned long long)get->capacity);
	if (!err) {
		fm_header_read(pool->headers, block.entry, &header);
		err = fm_header_check(&header);
	}
	if (!err && (header.generation != block.generation || header.length != block.length ||
		     memcmp(header.key, &get->key, sizeof(header.key))))
		err = fm_fail(FM_ERR_CORRUPT, "the header of block %u is another block's",
			      block.entry);
	if (!err && fm_crc32c_copy(get->data, block.data, block.length) != header.crc32c)
		err = fm_fail(FM_ERR_CORRUPT,
			      "the bytes of block %u do not have the CRC32C they were sealed with",
			      block.entry);
	fm_block_release(pool, &block, 1);
	return err;
}

int64_t fm_pool_get(struct fm_pool *pool, struct fm_get *gets, size_t n)
{
	int64_t found = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (n && !gets)
		return fm_fail(FM_ERR_INVALID, "no keys to get were given");
	for (size_t i = 0; i < n; i++)
		if (!gets[i].data)
			return fm_fail(FM_ERR_INVALID, "get %zu has no room", i);
	for (size_t i = 0; i < n; i++) {
		gets[i].result = get_one(pool, &gets[i]);
		found += !gets[i].result;
	}
	return found;
}
