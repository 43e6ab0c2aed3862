// SPDX-License-Identifier: Apache-2.0
/*
 * Eviction policies by name, and the first of them: least recently used, one list an arena and
 * class. Pure. Invariant: prev/next of an entry outside any list are meaningless.
 */
#include <stdlib.h>
#include <string.h>

#include "core/index.h"
#include "core/policy.h"

struct lru {
	struct {
		uint32_t prev, next;
	} * links;
	struct {
		uint32_t oldest, newest;
	} * lists;
};

static void lru_destroy(void *state)
{
	struct lru *lru = state;

	if (!lru)
		return;
	free(lru->links);
	free(lru->lists);
	free(lru);
}

static void *lru_create(uint32_t entries_max, uint32_t lists)
{
	struct lru *lru = calloc(1, sizeof(*lru));

	if (!lru)
		return NULL;
	lru->links = calloc(entries_max, sizeof(*lru->links));
	lru->lists = malloc(lists * sizeof(*lru->lists));
	if (!lru->links || !lru->lists) {
		lru_destroy(lru);
		return NULL;
	}
	memset(lru->lists, 0xff, lists * sizeof(*lru->lists)); /* FM_NO_ENTRY everywhere */
	return lru;
}

static void lru_insert(void *state, uint32_t list, uint32_t entry)
{
	struct lru *lru = state;
	uint32_t newest = lru->lists[list].newest;

	lru->links[entry].prev = newest;
	lru->links[entry].next = FM_NO_ENTRY;
	if (newest == FM_NO_ENTRY)
		lru->lists[list].oldest = entry;
	else
		lru->links[newest].next = entry;
	lru->lists[list].newest = entry;
}

static void lru_remove(void *state, uint32_t list, uint32_t entry)
{
	struct lru *lru = state;
	uint32_t prev = lru->links[entry].prev, next = lru->links[entry].next;

	if (prev == FM_NO_ENTRY)
		lru->lists[list].oldest = next;
	else
		lru->links[prev].next = next;
	if (next == FM_NO_ENTRY)
		lru->lists[list].newest = prev;
	else
		lru->links[next].prev = prev;
}

static void lru_touch(void *state, uint32_t list, uint32_t entry)
{
	lru_remove(state, list, entry);
	lru_insert(state, list, entry);
}

static uint32_t lru_next(const void *state, uint32_t list, uint32_t entry)
{
	const struct lru *lru = state;

	return entry == FM_NO_ENTRY ? lru->lists[list].oldest : lru->links[entry].next;
}

const struct fm_policy_ops fm_policy_lru = {
	.name = "lru",
	.create = lru_create,
	.destroy = lru_destroy,
	.insert = lru_insert,
	.touch = lru_touch,
	.remove = lru_remove,
	.next = lru_next,
};

const struct fm_policy_ops *fm_policy_find(const char *name)
{
	static const struct fm_policy_ops *const all[] = {&fm_policy_lru};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(all[i]->name, name))
			return all[i];
	return NULL;
}
