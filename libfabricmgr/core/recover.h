/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking over index and header table from a process that ended at any instruction. Called once by
 * the new owner of the memory, before it serves anybody; pure. Invariant: no block is believed
 * whose index entry and header do not agree in everything, and none is dropped from under a lease.
 */
#ifndef FM_CORE_RECOVER_H
#define FM_CORE_RECOVER_H

#include "core/store.h"

struct fm_recovery {
	uint32_t regions; /* the arenas that there are: 1 to this */
	uint64_t expires; /* when memory is free whose writer is not known any more */
	/* What became of the entries. */
	uint32_t sealed;      /* taken over */
	uint32_t dropped;     /* sealed ones that could not be believed */
	uint32_t removed;     /* were being removed or evicted, and are gone now or soon */
	uint32_t staged;      /* whose writer is an owner of the store still */
	uint32_t quarantined; /* others that were staged */
	uint32_t highest_id;  /* of a client that wrote anything */
};

/*
 * Repairs the index in place, and makes the tables of @store, which was just created over it, fit.
 * Readers may look blocks up and lease them meanwhile. The owners that still count (leases, staged
 * blocks) were added before. FM_ERR_CORRUPT: the index cannot be trusted, or a lease names what
 * cannot be; then the store is only good for fm_store_destroy().
 */
int fm_store_recover(struct fm_store *store, struct fm_recovery *recovery);

/*
 * Writes the entries and buckets of an index that cannot be trusted (fm_index_reformat()) anew from
 * the header table; fm_store_recover() follows. @is_whole: whether a block has its CRC32C; it is
 * asked of each that would be believed. Nobody else may use the index. Returns how many headers
 * were not believed.
 */
uint32_t fm_index_rebuild(struct fm_index *index, const struct fm_header *headers,
			  bool (*is_whole)(void *context, const struct fm_header *header),
			  void *context);

#endif
