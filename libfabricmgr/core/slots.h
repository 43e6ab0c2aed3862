/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot allocator: chunks of 4 MiB, each given to one arena (region) and cut into slots of one
 * size class. Only the daemon's thread calls it. Pure but for two calls handed in, which give a
 * chunk its memory in an arena's file and take it away. Invariant: a chunk with no slot in use is
 * on a free list and may serve any class.
 */
#ifndef FM_CORE_SLOTS_H
#define FM_CORE_SLOTS_H

#include <stdbool.h>

#include "base/limits.h"
#include "core/index.h"
#include "core/tenants.h"

/* Two names, of two headers. NOLINTNEXTLINE(misc-redundant-expression) */
_Static_assert(FM_CHUNK_BYTES == FABRICMGR_CHUNK_BYTES, "one size for all sides");

struct fm_chunk_ops {
	/* Backs chunk @chunk of @region with memory: 0 or FM_ERR_NO_MEMORY. */
	int (*populate)(void *context, uint32_t region, uint32_t chunk);
	/* Takes the memory back; the next populate finds zeros. */
	void (*punch)(void *context, uint32_t region, uint32_t chunk);
};

struct fm_chunk {
	uint32_t region; /* that it is backed in; 0: nowhere */
	uint32_t pages;	 /* size of a slot in FM_SLOT_GRAIN; 0: on a free list */
	uint32_t used, slots;
	uint32_t prev, next;   /* free list of its region, or partial list of its class */
	uint32_t older, newer; /* order of use, of its tenant's chunks that have slots */
	bool is_partial;
	uint64_t stamp;	   /* when a block in it was last used */
	uint32_t *entries; /* of each slot; FM_NO_ENTRY: free */
	uint32_t hint;	   /* no free slot below */
};

struct fm_slots {
	struct fm_chunk *chunks;
	uint32_t count;
	uint32_t free_heads[FM_ARENAS_MAX + 1];
	uint32_t *partial_heads; /* [region][pages - 1] */
	struct fm_tenants tenants;
	uint64_t used_bytes;
	const struct fm_chunk_ops *ops;
	void *context;
};

int fm_slots_create(struct fm_slots *slots, uint32_t chunks, uint32_t entries_max,
		    const struct fm_chunk_ops *ops, void *context);
void fm_slots_destroy(struct fm_slots *slots);

static inline uint32_t fm_slots_pages(uint64_t length)
{
	return (uint32_t)((length + FM_SLOT_GRAIN - 1) / FM_SLOT_GRAIN);
}

/* List number of an arena's size class, for the policy. */
static inline uint32_t fm_slots_class(uint32_t region, uint32_t pages)
{
	return region * FM_SLOTS_PER_CHUNK + pages - 1;
}

/* FM_ERR_POOL_FULL when no slot and no free chunk is left; FM_ERR_LIMIT when the region's tenant
 * has as many chunks as it may have. */
int fm_slots_take(struct fm_slots *slots, uint32_t region, uint32_t pages, uint32_t entry,
		  uint64_t stamp, uint32_t *chunk, uint32_t *slot);
void fm_slots_give(struct fm_slots *slots, uint32_t chunk, uint32_t slot);
/* A slot that an earlier process gave, in memory that is there. FM_ERR_INVALID: there is no such
 * slot; FM_ERR_EXISTS: something else of this chunk was claimed that cannot be beside it. */
int fm_slots_claim(struct fm_slots *slots, uint32_t region, uint32_t pages, uint32_t entry,
		   uint32_t chunk, uint32_t slot);
/* Takes back every claim of a chunk; where it has memory is not known. */
void fm_slots_forget(struct fm_slots *slots, uint32_t chunk);
void fm_slots_touch(struct fm_slots *slots, uint32_t chunk, uint64_t stamp);
/* The entry at a place that a client named, or FM_NO_ENTRY. Checks every bound. */
uint32_t fm_slots_entry(const struct fm_slots *slots, uint32_t region, uint32_t chunk,
			uint32_t slot);

#endif
