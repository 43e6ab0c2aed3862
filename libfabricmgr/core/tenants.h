/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each tenant of a pool holds and may hold: the accounts that allocator and store keep, and
 * the questions that eviction asks of them. A tenant's memory is that of its arenas (regions),
 * counted as it is given out: in whole chunks. Called by slots.c, store.c and evict.c, and by the
 * daemon's driver to set limits; pure. Invariant: over all tenants, chunks, entries and bytes are
 * those that the allocator has in use.
 */
#ifndef FM_CORE_TENANTS_H
#define FM_CORE_TENANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

/* A quota that refused something, as completions carry it (abi.md). */
enum fm_quota {
	FM_QUOTA_NONE = 0,
	FM_QUOTA_CLIENT_STAGING = 1,
	FM_QUOTA_MEMORY = 2,
	FM_QUOTA_STAGING = 3,
	FM_QUOTA_REQUESTS = 4,
	FM_QUOTA_OFFERS = 5,
	FM_QUOTA_ADOPTED = 6,
};

struct fm_tenant_limits {
	uint32_t guaranteed_chunks; /* that no other tenant's need takes away */
	uint32_t max_chunks;	    /* 0: all of the pool */
	uint64_t staging_bytes;	    /* as allocated; 0: no limit */
};

struct fm_tenant {
	struct fm_tenant_limits limits;
	uint32_t guaranteed_entries; /* of the index, in the proportion of the chunks */
	uint32_t chunks, entries, offers;
	uint64_t used_bytes, staged_bytes; /* in blocks, as allocated */
	uint32_t oldest, newest;	   /* its chunks in order of use: slots.c */
	/* Of its blocks: for its own sake, for another tenant's. Refused: requests that a quota
	 * refused; the driver counts them as it answers, not each try of one that waits. */
	uint64_t evictions, taken, refused;
	uint64_t lost_bytes; /* while one chunk is looked at: evict.c */
};

struct fm_tenants {
	struct fm_tenant list[FM_TENANTS_MAX];
	uint32_t count; /* number 0 is there always: who is no other tenant's */
	uint32_t chunks, entries_max;
	uint64_t guaranteed_chunks;	      /* of all */
	uint32_t unmet_entries;		      /* that tenants below their guarantee have to come */
	uint8_t of_region[FM_ARENAS_MAX + 1]; /* its tenant's number */
};

void fm_tenants_init(struct fm_tenants *tenants, uint32_t chunks, uint32_t entries_max);
/* Limits of tenant @number, which is there from now on. FM_ERR_LIMIT: the guarantees together are
 * above the pool, or one is above its maximum; nothing has changed then. */
int fm_tenants_set(struct fm_tenants *tenants, uint32_t number,
		   const struct fm_tenant_limits *limits);
/* The same for all of a pool of @chunks, before there is one. */
int fm_tenants_check(const struct fm_tenant_limits *limits, uint32_t n, uint32_t chunks);
/* Before anything is allocated there. */
void fm_tenants_set_region(struct fm_tenants *tenants, uint32_t region, uint32_t number);

static inline struct fm_tenant *fm_tenant_of(struct fm_tenants *tenants, uint32_t region)
{
	return &tenants->list[tenants->of_region[region]];
}

/* ---- accounts ---- */

/* A block's slot and entry are taken (@sign 1) or given back (-1). */
void fm_tenants_count_block(struct fm_tenants *tenants, uint32_t region, uint64_t bytes, int sign);
/* The same of a block in a client's own memory, which is no tenant's share of the pool. */
void fm_tenants_count_entry(struct fm_tenants *tenants, uint32_t number, int sign);

/* ---- questions ---- */

/* Whether a tenant may take one more of @free_entries: what others were promised stays free. */
bool fm_tenants_may_take_entry(const struct fm_tenants *tenants, uint32_t number,
			       uint32_t free_entries);

/* Bytes that may be staged: what is staged cannot go, so it keeps out of what others were promised.
 */
uint64_t fm_tenants_staging_max(const struct fm_tenants *tenants, const struct fm_tenant *tenant);

static inline bool fm_tenant_may_grow(const struct fm_tenant *tenant)
{
	return !tenant->limits.max_chunks || tenant->chunks < tenant->limits.max_chunks;
}

static inline bool fm_tenant_is_below_guarantee(const struct fm_tenant *tenant)
{
	return tenant->chunks < tenant->limits.guaranteed_chunks;
}

/* Whether another tenant's need may take one of its chunks. */
static inline bool fm_tenant_may_give(const struct fm_tenant *tenant)
{
	return tenant->chunks > tenant->limits.guaranteed_chunks;
}

/* Whether it keeps its guarantee without @tenant->lost_bytes of blocks. */
static inline bool fm_tenant_may_lose(const struct fm_tenant *tenant)
{
	return tenant->used_bytes - tenant->lost_bytes >=
	       (uint64_t)tenant->limits.guaranteed_chunks * FM_SLOTS_PER_CHUNK * FM_SLOT_GRAIN;
}

#endif
