// SPDX-License-Identifier: Apache-2.0
/*
 * Least recently used: of the leaves, the one whose last use is longest ago. Pure. Invariant: the
 * key of a leaf is the number of the call that used it last.
 */
#include <stdlib.h>

#include "core/index.h"
#include "core/leaves.h"
#include "core/policy.h"

struct lru {
	struct fm_leaves leaves;
	uint64_t calls; /* below 2^53, so that a double holds it: 28 years at 10 a microsecond */
};

static void lru_destroy(void *state)
{
	struct lru *lru = state;

	fm_leaves_destroy(&lru->leaves);
	free(lru);
}

static void *lru_create(uint32_t entries_max, uint32_t lists)
{
	struct lru *lru = calloc(1, sizeof(*lru));

	if (lru && !fm_leaves_create(&lru->leaves, entries_max, lists)) {
		free(lru);
		return NULL;
	}
	return lru;
}

static void lru_insert(void *state, uint32_t entry, const struct fm_policy_block *block,
		       uint64_t now)
{
	struct lru *lru = state;

	(void)now;
	fm_leaves_add(&lru->leaves, entry, block->parent, block->list, (double)++lru->calls);
}

static void lru_touch(void *state, uint32_t entry, uint64_t now)
{
	struct lru *lru = state;

	(void)now;
	fm_leaves_move(&lru->leaves, entry, lru->leaves.leaves[entry].heap, (double)++lru->calls);
}

static void lru_remove(void *state, uint32_t entry, uint64_t now, bool is_given_up)
{
	struct lru *lru = state;

	(void)now;
	(void)is_given_up;
	fm_leaves_remove(&lru->leaves, entry);
}

static void lru_orphan(void *state, uint32_t entry)
{
	struct lru *lru = state;

	fm_leaves_orphan(&lru->leaves, entry);
}

static uint32_t lru_take(void *state, uint32_t list, uint64_t now)
{
	struct lru *lru = state;
	uint32_t entry = fm_leaves_first(&lru->leaves, list);

	(void)now;
	if (entry != FM_NO_ENTRY)
		fm_leaves_set_aside(&lru->leaves, entry, true);
	return entry;
}

static void lru_back(void *state, uint32_t entry)
{
	struct lru *lru = state;

	fm_leaves_set_aside(&lru->leaves, entry, false);
}

const struct fm_policy_ops fm_policy_lru = {
	.name = "lru",
	.summary = "least recently used",
	.entry_bytes = sizeof(struct fm_leaf),
	.create = lru_create,
	.destroy = lru_destroy,
	.insert = lru_insert,
	.touch = lru_touch,
	.remove = lru_remove,
	.orphan = lru_orphan,
	.take = lru_take,
	.back = lru_back,
};
