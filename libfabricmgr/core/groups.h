/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: blocks that become visible together, and go together. The daemon's thread seals them;
 * store.c and evict.c ask who belongs to whom. Pure. Invariant: the members of a group are sealed
 * and in the index, all of them, or none is; and none is freed while another has a lease.
 */
#ifndef FM_CORE_GROUPS_H
#define FM_CORE_GROUPS_H

#include "core/store.h"

/*
 * Seals @n (1 to FM_GROUP_MAX) staged blocks of @owner so that a reader finds all of them or none.
 * 0, or the first failure: then every block is staged as before, and @results says of each what is
 * wrong with it (FM_ERR_CANCELLED: nothing). Nothing is replaced: FM_ERR_EXISTS.
 */
int fm_store_seal_group(struct fm_store *store, struct fm_owner *owner,
			const struct fm_store_seal *seals, uint32_t n, int *results);

/*
 * Which members belong together, as a later process finds it: of each entry its next member, how
 * many there are, and a check of both with the entry's generation. Written before the group is
 * visible, and never taken back: a link of an earlier generation means nothing.
 */
uint64_t fm_group_link(uint32_t entry, uint32_t generation, uint32_t next, uint32_t size);
static inline uint32_t fm_group_link_next(uint64_t link)
{
	return link & (FABRICMGR_GROUPED_MAX - 1);
}
static inline uint32_t fm_group_link_size(uint64_t link)
{
	return (link >> 29 & (FM_GROUP_MAX - 1)) + 1;
}

_Static_assert(FABRICMGR_GROUPED_MAX == 536870912, "a member fits beside the number");
_Static_assert(FM_GROUP_MAX <= 64, "a number has six bits");

/* The next member of the group around; the block itself when it is alone. */
static inline uint32_t fm_group_next(const struct fm_store *store, uint32_t entry)
{
	uint32_t next = store->nodes[entry].group_next;

	return next ? next - 1 : entry;
}

/* @member, the next around after @entry, is alone from now on. */
static inline void fm_group_leave(struct fm_store *store, uint32_t member, uint32_t entry)
{
	uint32_t after = fm_group_next(store, member);

	store->nodes[member].group_next = 0;
	store->nodes[entry].group_next = after == entry ? 0 : after + 1;
}

#endif
