/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room: which blocks go, and the evictor's half of the lease protocol. Called by store.c.
 */
#ifndef FM_CORE_EVICT_H
#define FM_CORE_EVICT_H

#include "core/store.h"

/* Frees blocks so that a slot of @pages in @region (or a chunk for it) may become free; returns how
 * many blocks were freed, 0 when nothing that helps may go. */
uint32_t fm_store_evict(struct fm_store *store, uint32_t region, uint32_t pages);

/* Frees blocks, the longest unused first, until @bytes are free of them, but not many more than
 * FM_EVICT_STEP_CHUNKS at a time. Returns how many; 0: nothing may go. */
uint32_t fm_store_evict_bytes(struct fm_store *store, uint64_t bytes);

/* Marks every block that a live lease names: node.leased == store->scan. */
void fm_store_scan_leases(struct fm_store *store);

/* Takes a sealed block, which has left the policy's order, out of index and chain, and frees it. */
void fm_store_free_sealed(struct fm_store *store, uint32_t entry);
/* Gives a sealed block its place in the policy's order. */
void fm_store_rank(struct fm_store *store, uint32_t entry);

/* An entry as an earlier process left it, with its slot claimed and its node set (a sealed one's
 * with its parent, which was restored before), takes its place in the lists of @state; @owner: of
 * what is staged. The word is stored when it says another state. */
void fm_store_restore(struct fm_store *store, uint32_t entry, enum fabricmgr_block_state state,
		      struct fm_owner *owner, uint64_t expires);

#endif
