/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order blocks are given up. A policy orders the leaves (blocks with no child in the pool)
 * of each list (arena and size class) from the first to go to the last; the caller decides who may
 * go (leases) and keeps the time. Pure. Invariant: what take() returns has no child that was
 * inserted and not removed.
 */
#ifndef FM_CORE_POLICY_H
#define FM_CORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fm_policy_block {
	uint32_t list;
	uint32_t parent; /* an entry that was inserted, or FM_NO_ENTRY */
	uint64_t name;	 /* of the key: a block that comes back is recognised by it */
};

struct fm_policy_ops {
	const char *name;
	const char *summary; /* for people: what goes first */
	size_t entry_bytes;  /* of memory that create() takes for each entry, about */
	void *(*create)(uint32_t entries_max, uint32_t lists); /* NULL: out of memory */
	void (*destroy)(void *state);
	void (*insert)(void *state, uint32_t entry, const struct fm_policy_block *block,
		       uint64_t now);
	/* The same of what an earlier process left, before anything else: nothing is learned from
	 * it. NULL: as insert. */
	void (*restore)(void *state, uint32_t entry, const struct fm_policy_block *block,
			uint64_t now);
	/* Each block of a chain that was used, the last one first. */
	void (*touch)(void *state, uint32_t entry, uint64_t now);
	/* When the block will be used again (0: unknown), and that a use of it counts 2^priority
	 * times. NULL: the policy takes no hints. */
	void (*hint)(void *state, uint32_t entry, uint64_t expected_at, int32_t priority,
		     uint64_t now);
	/* Given up (children before parents), or taken away by its owner. */
	void (*remove)(void *state, uint32_t entry, uint64_t now, bool is_given_up);
	/* Its parent is about to be removed before it. */
	void (*orphan)(void *state, uint32_t entry);
	/* The leaf of @list to give up first, or FM_NO_ENTRY. It is out of the order until it is
	 * given back() or removed; its parent stays where it is. */
	uint32_t (*take)(void *state, uint32_t list, uint64_t now);
	void (*back)(void *state, uint32_t entry);
};

extern const struct fm_policy_ops fm_policy_lru, fm_policy_s3fifo, fm_policy_density;

/* The policies, the default one first; returns how many there are. */
size_t fm_policy_list(const struct fm_policy_ops *const **out);
/* NULL when there is no policy of that name. */
const struct fm_policy_ops *fm_policy_find(const char *name);

#endif
