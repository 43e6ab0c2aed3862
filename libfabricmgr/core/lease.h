/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking and dropping one lease: the reader's half of the protocol in kmod/uapi/fabricmgr.h. The
 * evictor's half is in evict.c; why both are right: Documentation/design/lease-ordering.md. Pure;
 * called by clients on their own table.
 * Invariant: fm_lease_take() returned true => the block neither moves nor changes until the drop.
 */
#ifndef FM_CORE_LEASE_H
#define FM_CORE_LEASE_H

#include <stdbool.h>

#include <fabricmgr_kill_point.h>

#include "core/index.h"

/*
 * Writes the lease. Every word is a release that pairs with an acquire in fm_store_scan_leases():
 * the entry may have held another block, and a scan that meets one new word among the old ones
 * takes that block for free. The holder's reads of it have to be over by then, whichever word it
 * is.
 */
static inline void fm_lease_write(struct fabricmgr_lease *lease, uint32_t region, uint32_t chunk,
				  uint32_t generation, uint32_t slot)
{
	fm_store_release(&lease->chunk, chunk);
	fm_store_release(&lease->generation, generation);
	fm_store_release(&lease->slot, slot);
	fm_store_release(&lease->region, region);
}

/* Release: the holder's reads of the block come before; pairs with the acquire in
 * fm_store_scan_leases(). */
static inline void fm_lease_drop(struct fabricmgr_lease *lease)
{
#ifdef FM_PLANT_UNORDERED_DROP /* a race that the tests must find: tests/suites/sanitizers.py */
	fm_store_relaxed(&lease->region, 0);
#else
	fm_store_release(&lease->region, 0);
#endif
}

/* @expected: the SEALED word that was loaded (acquire) before the entry's fields. */
static inline bool fm_lease_take(struct fabricmgr_lease *lease, const struct fm_entry *entry,
				 uint64_t expected)
{
	/* Relaxed: of whatever generation; the fence and the second look at the word judge them. */
	uint64_t place = fm_load_relaxed(&entry->place);
	uint64_t extent = fm_load_relaxed(&entry->extent);

	fm_lease_write(lease, FM_HIGH(place), FM_LOW(place), FABRICMGR_WORD_GENERATION(expected),
		       FM_LOW(extent));
	FM_KILL_POINT("acquire: lease written, not checked");
	/* Pairs with the fence in sacrifice(), between EVICTING and the scan: either the evictor
	 * sees this lease, or this load sees EVICTING. Acquire: the reads of the block follow;
	 * pairs with the release that made the word SEALED, in fm_life_set_state() or
	 * keep_victim(). */
	fm_fence();
	if (fm_load_acquire(&entry->word) == expected)
		return true;
	fm_lease_drop(lease);
	return false;
}

#endif
