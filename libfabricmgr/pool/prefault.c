// SPDX-License-Identifier: Apache-2.0
/*
 * Page tables filled ahead: a client's first touch of pool memory costs a page fault for each
 * 4 KiB, a range at once a twentieth of that. attach.c calls it for what is in the pool, write.c
 * for what it is about to fill. Invariant: only memory that the daemon has populated is touched,
 * and a kernel that refuses changes nothing but the time.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "pool/client.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* What one bit stands for: less is not worth a system call. */
#define UNIT (64u << 10)

void fm_prefault_init(struct fm_pool *pool)
{
	/* Without memory for it, pages come one by one. */
	if (pool->region)
		pool->prefaulted = calloc((pool->region_bytes / UNIT + 63) / 64, sizeof(uint64_t));
}

void fm_prefault_staged(struct fm_pool *pool, char *base, const struct fm_block *block)
{
	uint64_t from = (uint64_t)((char *)block->data - base);
	bool is_new = false;

	if (!pool->prefaulted || block->length < UNIT)
		return;
	for (uint64_t unit = from / UNIT; unit < (from + block->length) / UNIT; unit++) {
		uint64_t bit = 1ull << unit % 64;

		/* Relaxed: two threads that both find it clear do the same work twice. */
		is_new |= !(atomic_fetch_or_explicit(&pool->prefaulted[unit / 64], bit,
						     memory_order_relaxed) &
			    bit);
	}
	if (is_new)
		madvise(block->data, block->length, MADV_POPULATE_WRITE);
}

/* A lease keeps each block where it is meanwhile; that is no use of it. */
int fm_prefault_sealed(struct fm_pool *pool)
{
	struct fm_block_info info;
	uint32_t cursor = 0, lease;
	int more;

	if (!fm_leases_reserve(pool, &lease, 1))
		return 0;
	while ((more = fm_pool_walk(pool, &cursor, &info)) == 1) {
		struct fm_block block;

		/* What went in the meantime is missed, as what comes later is. */
		if (info.state != FABRICMGR_BLOCK_SEALED ||
		    fm_leases_take(pool, &info.key, 1, &lease, &block) != 1)
			continue;
		madvise(block.data, block.length, MADV_POPULATE_READ);
		fm_lease_end(pool, lease);
	}
	fm_leases_return(pool, &lease, 1);
	return more;
}
