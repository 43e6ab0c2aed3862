// SPDX-License-Identifier: Apache-2.0
/*
 * See ghosts.h. A ring of slots and an open-addressed table over it, at most half full, whose gaps
 * are closed on removal. Called by policies only; pure. Invariant: no empty place stands between a
 * name's home and its place.
 */
#include <stdlib.h>

#include "core/ghosts.h"
#include "core/index.h"

bool fm_ghosts_create(struct fm_ghosts *ghosts, uint32_t count)
{
	uint32_t places = 16;

	while (places < 2ull * count)
		places *= 2;
	ghosts->slots = calloc(count, sizeof(*ghosts->slots));
	ghosts->table = calloc(places, sizeof(*ghosts->table));
	ghosts->count = count;
	ghosts->mask = places - 1;
	ghosts->next = 0;
	if (ghosts->slots && ghosts->table)
		return true;
	fm_ghosts_destroy(ghosts);
	return false;
}

void fm_ghosts_destroy(struct fm_ghosts *ghosts)
{
	free(ghosts->slots);
	free(ghosts->table);
	ghosts->slots = NULL;
	ghosts->table = NULL;
}

/* Names are halves of digests, but a client may choose them: the upper bits of the product. */
static uint32_t home(const struct fm_ghosts *ghosts, uint64_t name)
{
	return (uint32_t)((name * 0x9e3779b97f4a7c15ull) >> 32) & ghosts->mask;
}

/* Where @name stands, or the empty place where it would. */
static uint32_t place_of(const struct fm_ghosts *ghosts, uint64_t name)
{
	uint32_t at = home(ghosts, name);

	while (ghosts->table[at] && ghosts->slots[ghosts->table[at] - 1].name != name)
		at = (at + 1) & ghosts->mask;
	return at;
}

static void forget(struct fm_ghosts *ghosts, uint32_t at)
{
	uint32_t hole = at;

	ghosts->slots[ghosts->table[at] - 1].is_live = false;
	for (;;) {
		uint32_t wanted;

		at = (at + 1) & ghosts->mask;
		if (!ghosts->table[at])
			break;
		wanted = home(ghosts, ghosts->slots[ghosts->table[at] - 1].name);
		/* It may move back as far as its home. */
		if (((at - wanted) & ghosts->mask) < ((at - hole) & ghosts->mask))
			continue;
		ghosts->table[hole] = ghosts->table[at];
		hole = at;
	}
	ghosts->table[hole] = 0;
}

uint32_t fm_ghosts_next(const struct fm_ghosts *ghosts)
{
	return ghosts->next;
}

uint32_t fm_ghosts_put(struct fm_ghosts *ghosts, uint64_t name)
{
	uint32_t slot = ghosts->next;

	if (ghosts->slots[slot].is_live)
		forget(ghosts, place_of(ghosts, ghosts->slots[slot].name));
	ghosts->slots[slot] = (struct fm_ghost){.name = name, .is_live = true};
	ghosts->table[place_of(ghosts, name)] = slot + 1;
	ghosts->next = slot + 1 == ghosts->count ? 0 : slot + 1;
	return slot;
}

uint32_t fm_ghosts_take(struct fm_ghosts *ghosts, uint64_t name)
{
	uint32_t at = place_of(ghosts, name), slot = ghosts->table[at];

	if (!slot)
		return FM_NO_ENTRY;
	forget(ghosts, at);
	return slot - 1;
}
