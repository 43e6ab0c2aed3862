// SPDX-License-Identifier: Apache-2.0
/*
 * See leaves.h. Pairing heaps whose links stand in the entries: every operation is O(log n)
 * amortised and allocates nothing. Called by policies only; pure. Invariant: prev of a heap's top
 * and of an entry outside any heap is FM_NO_ENTRY.
 */
#include <stdlib.h>
#include <string.h>

#include "core/index.h"
#include "core/leaves.h"

#define NONE FM_NO_ENTRY

bool fm_leaves_create(struct fm_leaves *leaves, uint32_t entries_max, uint32_t heaps)
{
	leaves->leaves = calloc(entries_max, sizeof(*leaves->leaves));
	leaves->tops = malloc(heaps * sizeof(*leaves->tops));
	if (!leaves->leaves || !leaves->tops) {
		fm_leaves_destroy(leaves);
		return false;
	}
	memset(leaves->tops, 0xff, heaps * sizeof(*leaves->tops)); /* NONE everywhere */
	return true;
}

void fm_leaves_destroy(struct fm_leaves *leaves)
{
	free(leaves->leaves);
	free(leaves->tops);
	leaves->leaves = NULL;
	leaves->tops = NULL;
}

/* ---- the heaps ---- */

/* Two heaps become one; either may be NONE. Equal keys: the lower entry is above, so that the order
 * depends on nothing but the calls. */
static uint32_t merge(struct fm_leaf *all, uint32_t a, uint32_t b)
{
	if (a == NONE)
		return b;
	if (b == NONE)
		return a;
	if (all[b].key < all[a].key || (all[b].key == all[a].key && b < a)) {
		uint32_t swap = a;

		a = b;
		b = swap;
	}
	all[b].prev = a;
	all[b].next = all[a].first;
	if (all[a].first != NONE)
		all[all[a].first].prev = b;
	all[a].first = b;
	return a;
}

/* The children of a top that leaves: merged in pairs from the first on, then from the last back. */
static uint32_t merge_children(struct fm_leaf *all, uint32_t first)
{
	uint32_t pairs = NONE, top = NONE;

	while (first != NONE) {
		uint32_t a = first, b = all[a].next, pair;

		first = b == NONE ? NONE : all[b].next;
		all[a].next = all[a].prev = NONE;
		if (b != NONE)
			all[b].next = all[b].prev = NONE;
		pair = merge(all, a, b);
		all[pair].next = pairs;
		pairs = pair;
	}
	while (pairs != NONE) {
		uint32_t pair = pairs;

		pairs = all[pair].next;
		all[pair].next = NONE;
		top = merge(all, top, pair);
	}
	return top;
}

static void queue(struct fm_leaves *leaves, uint32_t entry)
{
	struct fm_leaf *leaf = &leaves->leaves[entry];

	if (leaf->is_queued || leaf->is_aside || !leaf->is_known || leaf->children)
		return;
	leaf->first = leaf->next = leaf->prev = NONE;
	leaf->is_queued = true;
	leaves->tops[leaf->heap] = merge(leaves->leaves, leaves->tops[leaf->heap], entry);
}

static void unqueue(struct fm_leaves *leaves, uint32_t entry)
{
	struct fm_leaf *all = leaves->leaves, *leaf = &all[entry];
	uint32_t below;

	if (!leaf->is_queued)
		return;
	leaf->is_queued = false;
	below = merge_children(all, leaf->first);
	if (leaves->tops[leaf->heap] == entry) {
		leaves->tops[leaf->heap] = below;
		return;
	}
	if (all[leaf->prev].first == entry)
		all[leaf->prev].first = leaf->next;
	else
		all[leaf->prev].next = leaf->next;
	if (leaf->next != NONE)
		all[leaf->next].prev = leaf->prev;
	leaves->tops[leaf->heap] = merge(all, leaves->tops[leaf->heap], below);
}

/* ---- what policies call ---- */

void fm_leaves_add(struct fm_leaves *leaves, uint32_t entry, uint32_t parent, uint32_t heap,
		   double key)
{
	leaves->leaves[entry] = (struct fm_leaf){
		.key = key,
		.heap = heap,
		.parent = parent,
		.is_known = true,
	};
	if (parent != NONE) {
		leaves->leaves[parent].children++;
		unqueue(leaves, parent);
	}
	queue(leaves, entry);
}

void fm_leaves_orphan(struct fm_leaves *leaves, uint32_t entry)
{
	uint32_t parent = leaves->leaves[entry].parent;

	if (parent == NONE)
		return;
	leaves->leaves[entry].parent = NONE;
	leaves->leaves[parent].children--;
	queue(leaves, parent);
}

void fm_leaves_remove(struct fm_leaves *leaves, uint32_t entry)
{
	struct fm_leaf *leaf = &leaves->leaves[entry];

	unqueue(leaves, entry);
	leaf->is_known = false;
	fm_leaves_orphan(leaves, entry);
}

void fm_leaves_move(struct fm_leaves *leaves, uint32_t entry, uint32_t heap, double key)
{
	struct fm_leaf *leaf = &leaves->leaves[entry];

	if (leaf->heap == heap && leaf->key == key)
		return;
	unqueue(leaves, entry);
	leaf->heap = heap;
	leaf->key = key;
	queue(leaves, entry);
}

uint32_t fm_leaves_first(const struct fm_leaves *leaves, uint32_t heap)
{
	return leaves->tops[heap];
}

void fm_leaves_set_aside(struct fm_leaves *leaves, uint32_t entry, bool is_aside)
{
	leaves->leaves[entry].is_aside = is_aside;
	if (is_aside)
		unqueue(leaves, entry);
	else
		queue(leaves, entry);
}
