/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool's state machine: entries through their life (staging, sealed, evicting, quarantine,
 * free), over the index, the slot allocator and the policy. Only the daemon's thread calls it.
 * Pure: memory, time and random ids are handed in. Invariant: an entry that is not FREE has exactly
 * one slot, and is in exactly one of: its owner's staged list, the offers, the quarantine, the
 * removed, a policy list.
 */
#ifndef FM_CORE_STORE_H
#define FM_CORE_STORE_H

#include "core/policy.h"
#include "core/slots.h"

/* One client, as the store knows it. */
struct fm_owner {
	uint32_t id;	 /* never 0 */
	uint32_t region; /* arena that it writes; 0: read-only */
	uint32_t staged_head, staged;
	uint64_t staged_bytes, staging_max; /* as allocated; max 0: no limit */
	enum fm_quota over; /* which one fm_store_stage() or offer refused by, with FM_ERR_LIMIT */
	/* Its lease table, mapped read-only; contents are never trusted. */
	const struct fabricmgr_lease *leases;
	uint32_t lease_count;
	struct fm_owner *prev, *next;
};

struct fm_node {
	struct fm_owner *owner;
	uint64_t stamp;	  /* tick of the last use */
	uint64_t expires; /* offers and quarantine */
	uint64_t pinned_until;
	uint32_t prev, next; /* of the list that it is in; sealed: while one eviction goes on */
	uint32_t parent, first_child, prev_sibling, next_sibling;
	uint32_t group_next; /* entry + 1 of the next member around; 0: in no group */
	uint32_t pages;
	uint32_t leased;	  /* == store->scan: a lease was seen in that scan */
	uint32_t visited, picked; /* == store->round */
	struct fm_key offer;	  /* private id while on offer or shown; never in shared memory */
	bool is_shown;		  /* @offer is the id by which others join it */
	bool may_be_held;	  /* by leases of others, while it is staged */
};

/* A region of a client's own memory: adopted.h. */
struct fm_adopted {
	bool is_used;		/* its number is taken */
	struct fm_owner *owner; /* NULL: it ended, and some of its blocks are still held */
	uint32_t tenant;
	uint32_t chunks, blocks;
	uint32_t **pages; /* of each chunk, which entry a page is of; NULL: nothing there yet */
};

struct fm_store_counters {
	uint64_t evictions, seals, stages, discards, duplicates, adopted_bytes;
	uint32_t sealed, staging, quarantine, removed, adopted_blocks;
};

struct fm_store {
	struct fm_index index;
	struct fm_header *headers;
	struct fm_slots slots;
	struct fm_node *nodes;
	uint64_t *links; /* of groups, for a later process: groups.h; NULL: none will be */
	uint32_t *free_entries;
	uint32_t free_count;
	uint32_t offers_head, offers, quarantine_head, removed_head;
	uint32_t removed_fresh; /* since the leases were last looked at for them */
	uint64_t removed_at;	/* when to look at the removed ones again */
	uint32_t next_generation;
	uint32_t scan, round;
	uint64_t tick;
	struct fm_owner *owners;
	const struct fm_policy_ops *policy;
	void *policy_state;
	bool ignores_pins; /* of an eviction: nothing else may go */
	bool met_pin;
	uint32_t actor;	  /* the tenant that an eviction is for; FM_NO_ENTRY: for nobody's */
	bool needs_entry; /* it is for an entry of the index */
	uint64_t now;	  /* what fm_store_expire() was told last */
	uint32_t batch;	  /* victims of one eviction: FM_EVICT_BATCH; a simulation may want fewer */
	uint32_t *victims;
	struct fm_adopted adopted[FM_ADOPTED_MAX];
	uint32_t adopted_count;
	struct fm_store_counters counters;
};

/* @index: formatted memory; @headers: zeroed, one a block. Both stay the caller's. */
int fm_store_create(struct fm_store *store, void *index, size_t index_bytes,
		    struct fm_header *headers, uint32_t chunks, const struct fm_policy_ops *policy,
		    const struct fm_chunk_ops *ops, void *context);
void fm_store_destroy(struct fm_store *store);

void fm_store_owner_add(struct fm_store *store, struct fm_owner *owner);
/* Its leases count no more; staged blocks are freed at once, or at @expires when it is not 0. */
void fm_store_owner_remove(struct fm_store *store, struct fm_owner *owner, uint64_t expires);
/* How many live leases its table holds. */
uint32_t fm_store_leases(struct fm_store *store, const struct fm_owner *owner);
/* The block that the @i-th place of its table (below lease_count) leases, or FM_NO_ENTRY. */
uint32_t fm_store_leased(const struct fm_store *store, const struct fm_owner *owner, uint32_t i);

/* FM_ERR_POOL_FULL: nothing may go now; a later try may succeed. FM_ERR_LIMIT with owner->over
 * FM_QUOTA_MEMORY: the same of the tenant's own blocks. */
int fm_store_stage(struct fm_store *store, struct fm_owner *owner, uint64_t length,
		   uint32_t *entry);
struct fm_store_seal {
	uint32_t entry, generation, crc32c;
	struct fm_key key;
	const struct fm_key *parent;
	const uint8_t *ns;
	bool replaces; /* a sealed block of the same key, if there is one */
};
int fm_store_seal(struct fm_store *store, struct fm_owner *owner, const struct fm_store_seal *seal);
int fm_store_discard(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		     uint32_t generation);
int fm_store_offer(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		   uint32_t generation, const struct fm_key *id, uint64_t expires);
int fm_store_adopt(struct fm_store *store, struct fm_owner *owner, const struct fm_key *id,
		   uint32_t *entry);
/* Lets others join a staged block by @id, whose first four bytes become its entry. */
int fm_store_show(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		  uint32_t generation, struct fm_key *id);
/* Which block @id is of, staged or sealed since: to be leased. */
int fm_store_join(struct fm_store *store, const struct fm_key *id, uint32_t *entry);
/* Removal: not found from now on; freed when no lease holds it any more. */
int fm_store_remove(struct fm_store *store, const struct fm_key *key);
/* Every sealed block of @tenant's whose header has @ns, 16 bytes; how many. @tenant FM_NO_ENTRY: of
 * anybody's. */
uint32_t fm_store_invalidate(struct fm_store *store, const uint8_t *ns, uint32_t tenant);
/* The entry at a place that a client named, or FM_NO_ENTRY. Checks every bound. */
uint32_t fm_store_entry(const struct fm_store *store, uint32_t region, uint32_t chunk,
			uint32_t slot);
/* The tenant that @entry is charged to. */
uint32_t fm_store_tenant(const struct fm_store *store, uint32_t entry);
/* Frees the removed blocks that nobody holds; how many. */
uint32_t fm_store_free_removed(struct fm_store *store);
/* The block was used: it and its ancestors are the last to go. Wrong names are ignored. */
void fm_store_touch(struct fm_store *store, uint32_t entry, uint32_t generation);
/* What a client knows of a sealed block's future, for the time that it names. */
struct fm_store_hint {
	uint64_t pinned_until; /* what is not pinned goes first; 0: nothing */
	uint64_t expected_at;  /* when it will be used again; 0: unknown */
	int32_t priority;      /* a use counts 2^priority times; -FM_PRIORITY_MAX to it */
};
/* FM_ERR_NOT_FOUND: the block is gone. FM_ERR_LIMIT: the priority is out of range. */
int fm_store_hint(struct fm_store *store, uint32_t entry, uint32_t generation,
		  const struct fm_store_hint *hint);
/* Sets the store's time; frees what has expired, and offers that no client of their arena is left
 * to adopt. Returns when to call again, UINT64_MAX: no need. */
uint64_t fm_store_expire(struct fm_store *store, uint64_t now);

#endif
