/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of blocks that were given up lately, the oldest forgotten first: by them a policy knows a
 * block that comes back. Called by policies only; pure; takes no memory after create. Invariant: a
 * name that is remembered stands in exactly one slot, and the table leads to it.
 */
#ifndef FM_CORE_GHOSTS_H
#define FM_CORE_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

struct fm_ghost {
	uint64_t name;
	bool is_live;
};

struct fm_ghosts {
	struct fm_ghost *slots; /* a ring */
	uint32_t *table;	/* slot + 1; 0: empty */
	uint32_t count, mask, next;
};

bool fm_ghosts_create(struct fm_ghosts *ghosts, uint32_t count);
void fm_ghosts_destroy(struct fm_ghosts *ghosts);
/* The slot that fm_ghosts_put() will use; when it is live, what it remembers is lost then. */
uint32_t fm_ghosts_next(const struct fm_ghosts *ghosts);
/* Remembers @name (which is not remembered); returns its slot. */
uint32_t fm_ghosts_put(struct fm_ghosts *ghosts, uint64_t name);
/* The slot of @name, which is forgotten by this, or FM_NO_ENTRY. */
uint32_t fm_ghosts_take(struct fm_ghosts *ghosts, uint64_t name);

#endif
