// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks by copy, for callers whose data stays where it is: put and get, in one piece or scattered
 * over several, over stage, seal and acquire. Any thread may call. Invariant: nothing stays staged
 * or leased when a call returns.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "pool/copy.h"

#define BATCH 32u /* blocks that one call has staged at a time: 128 MiB at most */

static bool enter(const struct fm_gate *gate)
{
	return !gate || gate->enter(gate->context);
}

static void leave(const struct fm_gate *gate)
{
	if (gate)
		gate->leave(gate->context);
}

uint64_t fm_parts_bytes(const struct iovec *parts, uint32_t n_parts)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n_parts; i++)
		if ((parts[i].iov_len && !parts[i].iov_base) ||
		    __builtin_add_overflow(bytes, parts[i].iov_len, &bytes))
			return UINT64_MAX;
	return bytes;
}

/* ---- put ---- */

/* The first puts of one length, which are staged with one question to the daemon. */
static size_t same_length(const struct fm_put_parts *puts, size_t n, uint64_t *length)
{
	size_t same = 1;

	*length = fm_parts_bytes(puts[0].parts, puts[0].n_parts);
	while (same < n && same < BATCH && !(puts[same].flags & ~FM_SEAL_REPLACE) &&
	       fm_parts_bytes(puts[same].parts, puts[same].n_parts) == *length)
		same++;
	return same;
}

/* Copies @n bytes and goes on with their checksum, a piece at a time where there is a gate. Returns
 * how many came over: fewer when the gate closed. */
static size_t copy(char *to, const char *from, size_t n, uint32_t *crc, const struct fm_gate *gate)
{
	size_t done = 0;

	while (done < n) {
		size_t left = n - done, piece = gate && left > FM_COPY_PIECE ? FM_COPY_PIECE : left;

		if (!enter(gate))
			break;
		*crc = fm_crc32c_copy_extend(*crc, to + done, from + done, piece);
		leave(gate);
		done += piece;
	}
	return done;
}

/* Gathers the parts into @block. False: the gate closed. */
static bool fill(const struct fm_block *block, const struct fm_put_parts *put, uint32_t *crc,
		 const struct fm_gate *gate)
{
	char *to = block->data;

	*crc = 0;
	for (uint32_t i = 0; i < put->n_parts; i++) {
		size_t length = put->parts[i].iov_len;

		if (copy(to, put->parts[i].iov_base, length, crc, gate) < length)
			return false;
		to += length;
	}
	return true;
}

/* What is put stands behind its parent: room for it is not made from that. */
static void hold_parents(struct fm_pool *pool, const struct fm_put_parts *puts, size_t n,
			 uint32_t *leases)
{
	for (size_t i = 0; i < n; i++) {
		bool is_next = i && puts[i].parent &&
			       !memcmp(puts[i].parent, &puts[i - 1].key, sizeof(*puts[i].parent));

		leases[i] = puts[i].parent && !is_next ? fm_leases_hold(pool, puts[i].parent)
						       : FM_NO_LEASE;
	}
}

static int put_batch(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put_parts *puts,
		     size_t n, uint64_t length, uint64_t deadline_ns, const struct fm_gate *gate)
{
	struct fm_block blocks[BATCH];
	struct fm_seal seals[BATCH];
	uint32_t checksums[BATCH], leases[BATCH];
	uint64_t start = fm_clock_ns(), spent;
	size_t filled = 0;
	int err, first = 0, sealed = 0;

	hold_parents(pool, puts, n, leases);
	err = fm_pool_stage(pool, length, n, blocks, deadline_ns, gate);
	for (size_t i = 0; i < n; i++)
		fm_leases_let_go(pool, leases[i]); /* the seals need places in the table, too */
	for (size_t i = 0; i < n; i++)
		puts[i].result = err ? err : FM_ERR_CANCELLED;
	if (err)
		return err;
	for (; filled < n && fill(&blocks[filled], &puts[filled], &checksums[filled], gate);
	     filled++)
		seals[filled] = (struct fm_seal){.block = &blocks[filled],
						 .key = puts[filled].key,
						 .parent = puts[filled].parent,
						 .flags = puts[filled].flags};
	spent = fm_clock_ns() - start;
	if (filled)
		sealed = fm_block_seal_summed(
			pool, ns, seals, checksums, filled,
			fm_answer_wait(spent < deadline_ns ? deadline_ns - spent : 0));
	/* Held back all together, as when the daemon has gone: by what the call says. */
	for (size_t i = 0; i < filled; i++)
		puts[i].result = seals[i].result == FM_ERR_CANCELLED ? sealed : seals[i].result;
	for (size_t i = 0; i < n; i++)
		if (puts[i].result && puts[i].result != FM_ERR_EXISTS && !first)
			first = puts[i].result;
	fm_block_release(pool, blocks, n); /* those that were sealed */
	fm_block_discard(pool, blocks, n); /* the others */
	return first;
}

/* The same would become of each that is left: nobody answers, or nobody wants it any more. */
static bool ends_all(int err)
{
	return err == FM_ERR_DEADLINE || err == FM_ERR_DISCONNECTED || err == FM_ERR_CANCELLED;
}

int fm_parts_put(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put_parts *puts,
		 size_t n, uint64_t deadline_ns, const struct fm_gate *gate)
{
	uint64_t start = fm_clock_ns();
	uint32_t flags = 0;
	int first = 0;

	if (!deadline_ns)
		deadline_ns = FM_DEADLINE_NS;
	for (size_t done = 0; done < n;) {
		uint64_t length, spent = fm_clock_ns() - start;
		size_t batch = 1;
		int err;

		if (puts[done].flags & ~FM_SEAL_REPLACE) {
			err = FM_ERR_INVALID;
			puts[done].result = err;
			flags = puts[done].flags;
		} else {
			/* One nanosecond: what is free at once is still given. */
			batch = same_length(puts + done, n - done, &length);
			err = put_batch(pool, ns, puts + done, batch, length,
					spent < deadline_ns ? deadline_ns - spent : 1, gate);
		}
		if (err && !first)
			first = err;
		done += batch;
		while (ends_all(err) && done < n)
			puts[done++].result = err;
	}
	/* Last, since the puts behind it have words of their own. */
	if (flags && first == FM_ERR_INVALID)
		return fm_fail(first,
			       "a put has unknown flags %x: they are 0 or FM_SEAL_REPLACE; "
			       "its result says which one it is",
			       flags);
	return first;
}

int fm_pool_put_parts(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put_parts *puts,
		      size_t n, uint64_t deadline_ns)
{
	int err = fm_pool_check(pool, false);

	if (err)
		return err;
	if (n && (!ns || !puts))
		return fm_fail(FM_ERR_INVALID, "a put needs a namespace and data");
	for (size_t i = 0; i < n; i++)
		if (!puts[i].parts || fm_parts_bytes(puts[i].parts, puts[i].n_parts) == UINT64_MAX)
			return fm_fail(FM_ERR_INVALID, "put %zu has no data", i);
	return fm_parts_put(pool, ns, puts, n, deadline_ns, NULL);
}

int fm_pool_put(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put *puts, size_t n,
		uint64_t deadline_ns)
{
	struct fm_put_parts batch[BATCH];
	struct iovec parts[BATCH];
	uint64_t start = fm_clock_ns();
	int first = fm_pool_check(pool, false);

	if (first)
		return first;
	if (n && (!ns || !puts))
		return fm_fail(FM_ERR_INVALID, "a put needs a namespace and data");
	for (size_t i = 0; i < n; i++)
		if (!puts[i].data)
			return fm_fail(FM_ERR_INVALID, "put %zu has no data", i);
	if (!deadline_ns)
		deadline_ns = FM_DEADLINE_NS;
	for (size_t done = 0; done < n; done += BATCH) {
		size_t piece = n - done < BATCH ? n - done : BATCH;
		uint64_t spent = fm_clock_ns() - start;
		int err;

		for (size_t i = 0; i < piece; i++) {
			const struct fm_put *put = &puts[done + i];

			/* Only read through it. */
			parts[i] = (struct iovec){(void *)put->data, put->length};
			batch[i] = (struct fm_put_parts){.key = put->key,
							 .parent = put->parent,
							 .parts = &parts[i],
							 .n_parts = 1,
							 .flags = put->flags};
		}
		err = fm_parts_put(pool, ns, batch, piece,
				   spent < deadline_ns ? deadline_ns - spent : 1, NULL);
		for (size_t i = 0; i < piece; i++)
			puts[done + i].result = batch[i].result;
		if (err && !first)
			first = err;
		for (size_t i = done + piece; ends_all(err) && i < n; i++)
			puts[i].result = err;
		if (ends_all(err))
			break;
	}
	return first;
}

/* ---- get ---- */

/* Scatters bytes of a block over the parts, until either ends. False: the gate closed. */
static bool scatter(const char *from, uint64_t bytes, struct fm_get_parts *get, uint32_t *crc,
		    const struct fm_gate *gate)
{
	for (uint32_t i = 0; i < get->n_parts && bytes; i++) {
		size_t length = get->parts[i].iov_len < bytes ? get->parts[i].iov_len : bytes;
		size_t copied = copy(get->parts[i].iov_base, from, length, crc, gate);

		get->copied += copied;
		if (copied < length)
			return false;
		from += length;
		bytes -= length;
	}
	return true;
}

/* The header of a leased block, found to be its own. */
static int read_header(struct fm_pool *pool, const struct fm_block *block, const struct fm_key *key,
		       struct fm_header *header)
{
	int err;

	fm_header_read(pool->headers, block->entry, header);
	err = fm_header_check(header);
	if (!err && (header->generation != block->generation || header->length != block->length ||
		     memcmp(header->key, key, sizeof(header->key))))
		err = fm_fail(FM_ERR_CORRUPT, "the header of block %u is another block's",
			      block->entry);
	return err;
}

/* A range that is whole layers is compared with theirs: in the block, once it was copied. */
static int check_layers(const struct fm_block *block, struct fm_get_parts *get, uint64_t bytes)
{
	bool is_sound;

	if (!fm_layers_cover(block, get->offset, bytes, &is_sound))
		return 0;
	get->is_verified = is_sound;
	return is_sound ? 0
			: fm_fail(FM_ERR_CORRUPT,
				  "layers of block %u do not have the CRC32C they were sealed with",
				  block->entry);
}

static int get_leased(struct fm_pool *pool, const struct fm_block *block, struct fm_get_parts *get,
		      const struct fm_gate *gate)
{
	uint64_t wanted = fm_parts_bytes(get->parts, get->n_parts);
	const char *data = block->data;
	struct fm_header header;
	uint32_t crc = 0;
	int err;

	if (get->offset > block->length)
		return fm_fail(FM_ERR_LIMIT, "byte %llu of a block of %llu",
			       (unsigned long long)get->offset, (unsigned long long)block->length);
	if (wanted > block->length - get->offset)
		wanted = block->length - get->offset;
	err = read_header(pool, block, &get->key, &header);
	if (err)
		return err;
	get->is_verified = wanted == block->length || get->flags & FM_GET_VERIFY;
	if (get->is_verified)
		crc = fm_crc32c(data, get->offset);
	if (!scatter(data + get->offset, wanted, get, &crc, gate))
		return FM_ERR_CANCELLED;
	if (!get->is_verified)
		return check_layers(block, get, wanted);
	crc = fm_crc32c_extend(crc, data + get->offset + wanted,
			       block->length - get->offset - wanted);
	if (crc != header.crc32c)
		return fm_fail(FM_ERR_CORRUPT,
			       "the bytes of block %u do not have the CRC32C they were sealed with",
			       block->entry);
	return 0;
}

int fm_parts_get(struct fm_pool *pool, struct fm_get_parts *get, const struct fm_gate *gate)
{
	struct fm_block block;
	int64_t got = fm_pool_acquire(pool, &get->key, 1, &block);

	get->length = get->copied = get->is_verified = 0;
	if (got != 1)
		get->result = got < 0 ? (int)got : FM_ERR_NOT_FOUND;
	else {
		get->length = block.length;
		get->result = get_leased(pool, &block, get, gate);
		fm_block_release(pool, &block, 1);
	}
	if (get->result)
		get->is_verified = 0;
	return get->result;
}

int64_t fm_pool_get_parts(struct fm_pool *pool, struct fm_get_parts *gets, size_t n)
{
	int64_t found = 0;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (n && !gets)
		return fm_fail(FM_ERR_INVALID, "no keys to get were given");
	for (size_t i = 0; i < n; i++)
		if (!gets[i].parts || gets[i].flags & ~FM_GET_VERIFY ||
		    fm_parts_bytes(gets[i].parts, gets[i].n_parts) == UINT64_MAX)
			return fm_fail(FM_ERR_INVALID, "get %zu has no room or unknown flags", i);
	for (size_t i = 0; i < n; i++)
		found += !fm_parts_get(pool, &gets[i], NULL);
	return found;
}

static int get_whole(struct fm_pool *pool, struct fm_get *get)
{
	struct iovec part = {get->data, get->capacity};
	struct fm_get_parts parts = {.key = get->key, .parts = &part, .n_parts = 1};
	struct fm_block block;
	int64_t got = fm_pool_acquire(pool, &get->key, 1, &block);
	int err;

	get->length = 0;
	if (got != 1)
		return got < 0 ? (int)got : FM_ERR_NOT_FOUND;
	get->length = block.length;
	if (block.length > get->capacity)
		err = fm_fail(FM_ERR_LIMIT, "a block of %llu bytes for room of %llu",
			      (unsigned long long)block.length, (unsigned long long)get->capacity);
	else
		err = get_leased(pool, &block, &parts, NULL);
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
		gets[i].result = get_whole(pool, &gets[i]);
		found += !gets[i].result;
	}
	return found;
}
