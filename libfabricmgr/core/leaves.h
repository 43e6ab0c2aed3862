/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks have no child in the pool, in order of a key: what policies are built of. Each heap
 * (a list of a policy, or part of one) holds its leaves, smallest key first; a block above others
 * waits outside until its last child has gone. Called by policies only; pure; takes no memory after
 * create. Invariant: an entry is in its heap exactly when it is known, has no child and is not set
 * aside.
 */
#ifndef FM_CORE_LEAVES_H
#define FM_CORE_LEAVES_H

#include <stdbool.h>
#include <stdint.h>

struct fm_leaf {
	double key;
	uint32_t heap;
	uint32_t parent, children;
	uint32_t first, next, prev; /* of the heap: first child, sibling, sibling or parent */
	bool is_known, is_aside, is_queued;
};

struct fm_leaves {
	struct fm_leaf *leaves; /* one an entry */
	uint32_t *tops;		/* one a heap */
};

bool fm_leaves_create(struct fm_leaves *leaves, uint32_t entries_max, uint32_t heaps);
void fm_leaves_destroy(struct fm_leaves *leaves);

/* @parent: a known entry, or FM_NO_ENTRY. */
void fm_leaves_add(struct fm_leaves *leaves, uint32_t entry, uint32_t parent, uint32_t heap,
		   double key);
/* Its parent is a leaf once no other child is left. */
void fm_leaves_remove(struct fm_leaves *leaves, uint32_t entry);
/* From now on the first of a chain. */
void fm_leaves_orphan(struct fm_leaves *leaves, uint32_t entry);
/* Another key, perhaps another heap. */
void fm_leaves_move(struct fm_leaves *leaves, uint32_t entry, uint32_t heap, double key);
/* The leaf with the smallest key, or FM_NO_ENTRY. */
uint32_t fm_leaves_first(const struct fm_leaves *leaves, uint32_t heap);
/* Out of the order for a while; its parent does not become a leaf by that. */
void fm_leaves_set_aside(struct fm_leaves *leaves, uint32_t entry, bool is_aside);

#endif
