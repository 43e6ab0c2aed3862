/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a block's life that store.c has and groups.c and adopted.c need, too. Nobody else calls
 * them. Pure.
 * Invariant: the caller leaves a state that the invariant of store.h allows.
 */
#ifndef FM_CORE_LIFE_H
#define FM_CORE_LIFE_H

#include "core/store.h"

bool fm_life_is_staged(const struct fm_store *store, const struct fm_owner *owner, uint32_t entry,
		       uint32_t generation);
/* Release, after everything that the state promises. */
void fm_life_set_state(struct fm_store *store, uint32_t entry, enum fabricmgr_block_state state);
/* Key, parent, checksum and header of a staged block that is about to be sealed. */
void fm_life_describe(struct fm_store *store, const struct fm_store_seal *seal, uint16_t flags);
/* An entry, which there is, begins its life staged at @place, of @extent, as struct fm_entry has
 * them. */
uint32_t fm_life_stage(struct fm_store *store, struct fm_owner *owner, uint64_t place,
		       uint64_t extent);
/* Whatever it is: not found from now on, and freed when no lease holds it. */
void fm_life_drop(struct fm_store *store, uint32_t entry);
/* A block that is sealed now leaves its owner and takes its place in chain and eviction order. */
void fm_life_place(struct fm_store *store, struct fm_owner *owner, uint32_t entry, uint32_t parent);

#endif
