// SPDX-License-Identifier: Apache-2.0
/*
 * Sealing a group. Readers look up without a lock, so that what makes all members visible at once
 * is one word: each member but the leader becomes GROUPED, which a reader takes for what the
 * leader's word says; then the leader becomes SEALED, and the others after it, at leisure. The
 * daemon's thread calls it; pure. Invariant: between the first GROUPED and the last SEALED nothing
 * else happens in the store, so the leader's entry is the group's for that long.
 */
#include <string.h>

#include <fabricmgr_kill_point.h>

#include "base/crc32c.h"
#include "core/adopted.h"
#include "core/groups.h"
#include "core/life.h"

static bool is_same(const struct fm_store_seal *a, const struct fm_store_seal *b)
{
	return a->entry == b->entry || !memcmp(&a->key, &b->key, sizeof(a->key));
}

static bool is_parent(const struct fm_store_seal *a, const struct fm_store_seal *of)
{
	return of->parent && !memcmp(of->parent, &a->key, sizeof(a->key));
}

/* A group goes as a whole: what is evicted would take along what is not. */
static bool is_mixed(const struct fm_store *store, const struct fm_store_seal *a,
		     const struct fm_store_seal *b)
{
	return b->entry >= store->index.entries_max ||
	       fm_entry_is_adopted(store, a->entry) != fm_entry_is_adopted(store, b->entry);
}

/* Whether @seals can be a group; what is wrong with which. */
static int check(struct fm_store *store, struct fm_owner *owner, const struct fm_store_seal *seals,
		 uint32_t n, int *results)
{
	int first = 0;

	if (!n || n > FM_GROUP_MAX)
		return fm_fail(FM_ERR_LIMIT, "a group has 1 to %u blocks, not %u", FM_GROUP_MAX, n);
	if (store->index.entries_max > FABRICMGR_GROUPED_MAX)
		first = FM_ERR_LIMIT; /* a word has no room for the leader's name */
	for (uint32_t i = 0; i < n; i++) {
		uint64_t word;

		results[i] = first == FM_ERR_LIMIT ? first : FM_ERR_CANCELLED;
		if (!fm_life_is_staged(store, owner, seals[i].entry, seals[i].generation) ||
		    seals[i].replaces || is_mixed(store, &seals[i], &seals[0]))
			results[i] = FM_ERR_INVALID;
		else if (fm_index_find(&store->index, &seals[i].key, &word) != FM_NO_ENTRY)
			results[i] = FM_ERR_EXISTS;
		for (uint32_t k = 0; k < n; k++)
			if ((k < i && is_same(&seals[i], &seals[k])) ||
			    is_parent(&seals[k], &seals[i]))
				results[i] = FM_ERR_INVALID;
		if (results[i] != FM_ERR_CANCELLED && !first)
			first = results[i];
		store->counters.duplicates += results[i] == FM_ERR_EXISTS;
	}
	return first;
}

uint64_t fm_group_link(uint32_t entry, uint32_t generation, uint32_t next, uint32_t size)
{
	const uint32_t words[] = {entry, generation, next, size};
	uint64_t check = fm_crc32c(words, sizeof(words)) >> 3;

	return check << 35 | (uint64_t)(size - 1) << 29 | next;
}

/* For a later process, before anybody finds a member. */
static void link_members(struct fm_store *store, const struct fm_store_seal *seals, uint32_t n)
{
	for (uint32_t i = 0; store->links && i < n; i++)
		/* Relaxed: the leader's word follows with release. */
		fm_store_relaxed(&store->links[seals[i].entry],
				 fm_group_link(seals[i].entry, seals[i].generation,
					       seals[(i + 1) % n].entry, n));
}

/* Into the index, where no reader takes it for there yet. */
static int enter(struct fm_store *store, const struct fm_store_seal *seal, uint32_t leader)
{
	struct fm_entry *e = &store->index.entries[seal->entry];
	int err;

	fm_life_describe(store, seal, FM_HEADER_IN_GROUP);
	/* Release: pairs with the acquire in fm_index_find(), which goes on to the leader's word.
	 */
	if (seal->entry != leader)
		fm_store_release(&e->word, FABRICMGR_WORD(seal->generation,
							  FABRICMGR_BLOCK_GROUPED_BY(leader)));
	FM_KILL_POINT("group: member described, not in the index");
	err = fm_index_insert(&store->index, seal->entry);
	FM_KILL_POINT("group: member in the index");
	return err;
}

/* Staged as before, as if nothing had been. */
static void withdraw(struct fm_store *store, const struct fm_store_seal *seal, bool is_entered)
{
	if (is_entered)
		fm_index_remove(&store->index, seal->entry);
	fm_life_set_state(store, seal->entry, FABRICMGR_BLOCK_STAGING);
	fm_key_store(store->index.entries[seal->entry].key, &(struct fm_key){{0}});
	fm_key_store(store->index.entries[seal->entry].parent, &(struct fm_key){{0}});
}

int fm_store_seal_group(struct fm_store *store, struct fm_owner *owner,
			const struct fm_store_seal *seals, uint32_t n, int *results)
{
	uint32_t leader = seals[0].entry, parents[FM_GROUP_MAX];
	int err = check(store, owner, seals, n, results);
	uint64_t word;

	if (err)
		return err;
	/* Before any of them is found: a member is no other's parent. */
	for (uint32_t i = 0; i < n; i++)
		parents[i] = seals[i].parent ? fm_index_find(&store->index, seals[i].parent, &word)
					     : FM_NO_ENTRY;
	for (uint32_t i = 0; i < n; i++) {
		err = enter(store, &seals[i], leader);
		if (!err)
			continue;
		results[i] = err;
		for (uint32_t k = 0; k <= i; k++)
			withdraw(store, &seals[k], k < i);
		return err;
	}
	link_members(store, seals, n);
	FM_KILL_POINT("group: in the index, not visible");
	/* The moment in which all become visible. Release: pairs with the acquire of this word in
	 * fm_index_find(); the others stand in the index before it. */
	fm_life_set_state(store, leader, FABRICMGR_BLOCK_SEALED);
	FM_KILL_POINT("group: visible");
	for (uint32_t i = 0; i < n; i++) {
		uint32_t entry = seals[i].entry;

		if (entry != leader)
			fm_life_set_state(store, entry, FABRICMGR_BLOCK_SEALED);
		if (n > 1)
			store->nodes[entry].group_next = seals[(i + 1) % n].entry + 1;
		fm_life_place(store, owner, entry, parents[i]);
		results[i] = 0;
	}
	return 0;
}
