/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order blocks are given up. A policy orders the entries of each list (arena and size
 * class) from the first to go to the last; the caller decides who may go (leases, children). Pure.
 * Invariant: an entry is in at most one list; next() from FM_NO_ENTRY visits each entry of a list
 * once.
 */
#ifndef FM_CORE_POLICY_H
#define FM_CORE_POLICY_H

#include <stddef.h>
#include <stdint.h>

struct fm_policy_ops {
	const char *name;
	void *(*create)(uint32_t entries_max, uint32_t lists); /* NULL: out of memory */
	void (*destroy)(void *state);
	void (*insert)(void *state, uint32_t list, uint32_t entry);
	void (*touch)(void *state, uint32_t list, uint32_t entry);
	void (*remove)(void *state, uint32_t list, uint32_t entry);
	/* The entry to give up after @entry; the first for FM_NO_ENTRY; FM_NO_ENTRY at the end. */
	uint32_t (*next)(const void *state, uint32_t list, uint32_t entry);
};

extern const struct fm_policy_ops fm_policy_lru;

/* NULL when there is no policy of that name. */
const struct fm_policy_ops *fm_policy_find(const char *name);

#endif
