/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adopted regions: memory of a client's own in which it stages and seals blocks where its data lies
 * already. Called by store.c, evict.c, groups.c and recover.c, and by the daemon's driver; pure.
 * Invariant: a page is at most one block's, a region's number is not used again before the last of
 * its blocks is free, and no block of one is in an order of eviction or keeps another from going.
 */
#ifndef FM_CORE_ADOPTED_H
#define FM_CORE_ADOPTED_H

#include "core/store.h"

/* Regions of the pool's own have the numbers up to FM_ARENAS_MAX. */
#define FM_ADOPTED_FIRST (FM_ARENAS_MAX + 1)

static inline bool fm_region_is_adopted(uint32_t region)
{
	return region >= FM_ADOPTED_FIRST && region < FM_ADOPTED_FIRST + FM_ADOPTED_MAX;
}

static inline struct fm_adopted *fm_adopted_of(struct fm_store *store, uint32_t region)
{
	return &store->adopted[region - FM_ADOPTED_FIRST];
}

/* Whether the block of an entry that is not FREE lies in one. */
static inline bool fm_entry_is_adopted(const struct fm_store *store, uint32_t entry)
{
	return fm_region_is_adopted(FM_HIGH(store->index.entries[entry].place));
}

/* A region of @chunks that @owner, of @tenant, writes. FM_ERR_LIMIT: there are too many. */
int fm_adopted_begin(struct fm_store *store, struct fm_owner *owner, uint32_t tenant,
		     uint32_t chunks, uint32_t *region);
/* Its blocks are not found any more; those that nobody holds are free, the others at the end of
 * their last lease. */
void fm_adopted_end(struct fm_store *store, uint32_t region);
/* Of regions that ended, one of which no block is left; its number is free from now on. 0: none. */
uint32_t fm_adopted_over(struct fm_store *store);

/*
 * Stages @length bytes from @slot (pages of FM_SLOT_GRAIN) of @chunk on. Sealed blocks that lie
 * there go, unless one is held: FM_ERR_BUSY. FM_ERR_EXISTS: something is staged there already.
 * FM_ERR_POOL_FULL: no entry of the index may be freed now. Whatever fails has changed nothing.
 */
int fm_adopted_stage(struct fm_store *store, struct fm_owner *owner, uint32_t region,
		     uint32_t chunk, uint32_t slot, uint64_t length, uint32_t *entry);

/* The entry of the block that begins there, or FM_NO_ENTRY. Checks every bound. */
uint32_t fm_adopted_entry(const struct fm_store *store, uint32_t region, uint32_t chunk,
			  uint32_t slot);
/* The pages of a block: taken as an earlier process left them (as fm_slots_claim() says), and given
 * back. */
int fm_adopted_claim(struct fm_store *store, uint32_t entry);
void fm_adopted_give(struct fm_store *store, uint32_t entry);
void fm_adopted_destroy(struct fm_store *store);

#endif
