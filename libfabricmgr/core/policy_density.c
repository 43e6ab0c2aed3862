// SPDX-License-Identifier: Apache-2.0
/*
 * Hit density: the leaf goes first whose place brings the fewest uses a second, as far as can be
 * learned from the blocks that came and went (hazard.h; Documentation/design/eviction.md). A new
 * block that promises less than what is there goes at once: that is the admission. Pure. Invariant:
 * a visit lives as long as a block or a ghost refers to it.
 */
#include <stdlib.h>
#include <string.h>

#include "core/ghosts.h"
#include "core/hazard.h"
#include "core/index.h"
#include "core/leaves.h"
#include "core/policy.h"

#define NONE FM_NO_ENTRY

/* One block in so many is watched and learned from. */
#define WATCHED_SHARE 8u
/* Ghosts of watched blocks for each entry: with the share above, the last 16 pools full. */
#define GHOSTS 2u
/* Blocks whose key is made anew with every call, so that no key is older than entries / this. */
#define SWEEP 8u
/* How often take() looks at a better candidate before it settles for what it has. */
#define TAKE_TRIES 32u

/* One request's use of a chain, shared by all blocks of the chain. */
struct visit {
	uint64_t time;
	uint32_t references; /* or the next free one */
	uint32_t length;
	uint8_t turn, branch, gap;
};

struct block {
	uint64_t name;
	uint32_t visit;
	uint32_t uses;
	uint32_t depth;
	uint32_t last_child; /* lower half of its name */
	uint8_t birth_turn, forks, gap;
	int8_t priority;
	uint64_t expected_at;
	uint8_t learned; /* age bins that were counted since the last use */
	bool is_known;
};

struct density {
	struct fm_leaves leaves;
	struct fm_ghosts ghosts;
	struct fm_hazard hazard;
	struct block *blocks;
	struct block *ghost_blocks; /* what was known of each ghost */
	struct visit *visits;
	uint32_t entries_max, ghost_count, free_visit;
	uint32_t last_touched;
	uint32_t hand, ghost_hand;
	/* Of the block that was restored last. */
	struct fm_traits restored;
	double restored_key;
	bool has_restored;
};

static void density_destroy(void *state)
{
	struct density *density = state;

	if (!density)
		return;
	fm_leaves_destroy(&density->leaves);
	fm_ghosts_destroy(&density->ghosts);
	free(density->blocks);
	free(density->ghost_blocks);
	free(density->visits);
	free(density);
}

static void *density_create(uint32_t entries_max, uint32_t lists)
{
	struct density *density = calloc(1, sizeof(*density));
	uint32_t visits;

	if (!density)
		return NULL;
	density->entries_max = entries_max;
	density->ghost_count = GHOSTS * entries_max;
	visits = entries_max + density->ghost_count + 1;
	density->blocks = calloc(entries_max, sizeof(*density->blocks));
	density->ghost_blocks = calloc(density->ghost_count, sizeof(*density->ghost_blocks));
	density->visits = calloc(visits, sizeof(*density->visits));
	if (!density->blocks || !density->ghost_blocks || !density->visits ||
	    !fm_leaves_create(&density->leaves, entries_max, lists) ||
	    !fm_ghosts_create(&density->ghosts, density->ghost_count)) {
		density_destroy(density);
		return NULL;
	}
	for (uint32_t i = 0; i < visits; i++)
		density->visits[i].references = i + 1;
	density->last_touched = NONE;
	fm_hazard_init(&density->hazard);
	return density;
}

/* ---- visits ---- */

static uint32_t visit_open(struct density *density, uint64_t now)
{
	uint32_t at = density->free_visit;

	density->free_visit = density->visits[at].references;
	density->visits[at] = (struct visit){.time = now, .gap = FM_NO_GAP};
	return at;
}

static void visit_hold(struct density *density, struct block *block, uint32_t visit)
{
	density->visits[visit].references++;
	block->visit = visit;
}

static void visit_drop(struct density *density, const struct block *block)
{
	struct visit *visit = &density->visits[block->visit];

	if (--visit->references)
		return;
	visit->references = density->free_visit;
	density->free_visit = block->visit;
}

/* ---- what is known of a block ---- */

static uint8_t log2_of(uint32_t n, uint8_t max)
{
	uint8_t log = n ? (uint8_t)(32 - __builtin_clz(n)) : 0;

	return log < max ? log : max;
}

/* Of a request that goes on where @block is. */
static uint8_t turn_after(const struct block *block)
{
	return (uint8_t)(block->birth_turn + (block->birth_turn < FM_TRAIT_VALUES - 1));
}

static struct fm_traits traits_of(const struct density *density, const struct block *block)
{
	const struct visit *visit = &density->visits[block->visit];

	return (struct fm_traits){
		.values =
			{
				[FM_TRAIT_TURN] = visit->turn,
				[FM_TRAIT_BRANCH] = visit->branch,
				[FM_TRAIT_USES] = log2_of(block->uses, FM_TRAIT_VALUES - 1),
				[FM_TRAIT_FORKS] = block->forks,
				[FM_TRAIT_DEPTH] = log2_of(block->depth, FM_TRAIT_VALUES - 1),
				[FM_TRAIT_LENGTH] = log2_of(visit->length, FM_TRAIT_VALUES - 1),
			},
		.request_gap = visit->gap,
		.own_gap = block->gap,
	};
}

static uint64_t age_of(const struct density *density, const struct block *block, uint64_t now)
{
	uint64_t time = density->visits[block->visit].time;

	return now > time ? now - time : 0;
}

static bool is_watched(uint64_t name)
{
	return ((name * 0x9e3779b97f4a7c15ull) >> 40) % WATCHED_SHARE == 0;
}

/* The ages that the block has come into since it was used. */
static void learn_wait(struct density *density, struct block *block, uint64_t now)
{
	uint32_t bin = fm_age_bin(age_of(density, block, now));
	struct fm_traits traits;

	if (block->learned > bin)
		return;
	traits = traits_of(density, block);
	for (; block->learned <= bin; block->learned++)
		fm_hazard_learn(&density->hazard, &traits, block->learned, false);
}

static void learn_use(struct density *density, struct block *block, uint64_t now)
{
	uint32_t bin = fm_age_bin(age_of(density, block, now));
	struct fm_traits traits = traits_of(density, block);

	learn_wait(density, block, now);
	fm_hazard_learn(&density->hazard, &traits, bin, true);
}

/* ---- the order ---- */

static double key_of(const struct density *density, uint32_t entry, uint64_t now)
{
	const struct block *block = &density->blocks[entry];
	struct fm_traits traits = traits_of(density, block);
	double key = fm_hazard_density(&density->hazard, &traits, age_of(density, block, now));

	/* Who says when it comes back promises one use in that time. */
	if (block->expected_at > now && 1e9 > key * (double)(block->expected_at - now))
		key = 1e9 / (double)(block->expected_at - now);
	return block->priority < 0 ? key / (double)(1u << -block->priority)
				   : key * (double)(1u << block->priority);
}

static void refresh(struct density *density, uint32_t entry, uint64_t now)
{
	fm_leaves_move(&density->leaves, entry, density->leaves.leaves[entry].heap,
		       key_of(density, entry, now));
}

/* A few blocks and ghosts grow older with every call. */
static void sweep(struct density *density, uint64_t now)
{
	for (uint32_t i = 0; i < SWEEP; i++) {
		uint32_t entry = density->hand++;

		if (density->hand >= density->entries_max)
			density->hand = 0;
		if (!density->blocks[entry].is_known)
			continue;
		if (is_watched(density->blocks[entry].name))
			learn_wait(density, &density->blocks[entry], now);
		if (density->leaves.leaves[entry].is_queued)
			refresh(density, entry, now);
	}
	if (density->ghosts.slots[density->ghost_hand].is_live)
		learn_wait(density, &density->ghost_blocks[density->ghost_hand], now);
	if (++density->ghost_hand >= density->ghost_count)
		density->ghost_hand = 0;
}

/* ---- events ---- */

/* The block is used for the first time, or again, in @visit. */
static void use(struct density *density, struct block *block, uint32_t visit, uint64_t now)
{
	block->gap = (uint8_t)fm_age_bin(age_of(density, block, now));
	block->uses++;
	block->learned = 0;
	visit_drop(density, block);
	visit_hold(density, block, visit);
}

/* The block is known from now on, and has no place in the order yet. */
static void meet(struct density *density, uint32_t entry, const struct fm_policy_block *block,
		 uint64_t now)
{
	struct block *new = &density->blocks[entry], *parent = NULL;
	uint32_t visit, slot = NONE;

	density->last_touched = NONE;
	if (block->parent == NONE) {
		visit = visit_open(density, now);
	} else {
		parent = &density->blocks[block->parent];
		visit = parent->visit;
		density->visits[visit].time = now;
	}
	*new = (struct block){
		.name = block->name,
		.depth = parent ? parent->depth + 1 : 0,
		.birth_turn = density->visits[visit].turn,
		.gap = FM_NO_GAP,
		.is_known = true,
	};
	if (density->visits[visit].length < new->depth + 1)
		density->visits[visit].length = new->depth + 1;
	if (parent && (!parent->forks || parent->last_child != (uint32_t)block->name)) {
		parent->forks += parent->forks < 3;
		parent->last_child = (uint32_t)block->name;
	}
	if (is_watched(block->name))
		slot = fm_ghosts_take(&density->ghosts, block->name);
	if (slot != NONE) {
		struct block *ghost = &density->ghost_blocks[slot];

		learn_use(density, ghost, now);
		new->uses = ghost->uses + 1;
		new->gap = (uint8_t)fm_age_bin(age_of(density, ghost, now));
		new->birth_turn = ghost->birth_turn;
		new->forks = ghost->forks;
		new->last_child = ghost->last_child;
		density->visits[visit].turn = turn_after(ghost);
		density->visits[visit].branch = log2_of(ghost->uses, FM_TRAIT_VALUES - 1);
		density->visits[visit].gap = new->gap;
		visit_drop(density, ghost);
	}
	visit_hold(density, new, visit);
}

/* All of them are of one age, and nothing was learned yet: few differ in what they promise. */
static void density_restore(void *state, uint32_t entry, const struct fm_policy_block *block,
			    uint64_t now)
{
	struct density *density = state;
	struct fm_traits traits;

	meet(density, entry, block, now);
	traits = traits_of(density, &density->blocks[entry]);
	if (!density->has_restored || memcmp(&traits, &density->restored, sizeof(traits)))
		density->restored_key = fm_hazard_density(&density->hazard, &traits, 0);
	density->restored = traits;
	density->has_restored = true;
	fm_leaves_add(&density->leaves, entry, block->parent, block->list, density->restored_key);
}

static void density_insert(void *state, uint32_t entry, const struct fm_policy_block *block,
			   uint64_t now)
{
	struct density *density = state;

	sweep(density, now);
	meet(density, entry, block, now);
	fm_leaves_add(&density->leaves, entry, block->parent, block->list, 0);
	refresh(density, entry, now);
}

/* The visit of the touch before, when this one goes on from a block to its parent; or a new one. */
static uint32_t visit_of_touch(struct density *density, uint32_t entry, uint64_t now)
{
	const struct block *block = &density->blocks[entry];
	uint32_t before = density->last_touched, at;
	struct visit *visit;

	if (before != NONE && density->leaves.leaves[before].parent == entry &&
	    density->blocks[before].is_known)
		return density->blocks[before].visit;
	at = visit_open(density, now);
	visit = &density->visits[at];
	visit->turn = turn_after(block);
	visit->branch = log2_of(block->uses, FM_TRAIT_VALUES - 1);
	visit->gap = (uint8_t)fm_age_bin(age_of(density, block, now));
	visit->length = block->depth + 1;
	return at;
}

static void density_touch(void *state, uint32_t entry, uint64_t now)
{
	struct density *density = state;
	struct block *block = &density->blocks[entry];
	uint32_t visit = visit_of_touch(density, entry, now);

	if (is_watched(block->name))
		learn_use(density, block, now);
	use(density, block, visit, now);
	density->last_touched = entry;
	if (density->leaves.leaves[entry].is_queued)
		refresh(density, entry, now);
	sweep(density, now);
}

static void density_hint(void *state, uint32_t entry, uint64_t expected_at, int32_t priority,
			 uint64_t now)
{
	struct density *density = state;

	density->blocks[entry].expected_at = expected_at;
	density->blocks[entry].priority = (int8_t)priority;
	if (density->leaves.leaves[entry].is_queued)
		refresh(density, entry, now);
}

static void remember(struct density *density, const struct block *block, uint64_t now)
{
	uint32_t slot = fm_ghosts_take(&density->ghosts, block->name);

	if (slot != NONE)
		visit_drop(density, &density->ghost_blocks[slot]);
	slot = fm_ghosts_next(&density->ghosts);
	if (density->ghosts.slots[slot].is_live) {
		learn_wait(density, &density->ghost_blocks[slot], now);
		visit_drop(density, &density->ghost_blocks[slot]);
	}
	fm_ghosts_put(&density->ghosts, block->name);
	density->ghost_blocks[slot] = *block;
	visit_hold(density, &density->ghost_blocks[slot], block->visit);
}

static void density_remove(void *state, uint32_t entry, uint64_t now, bool is_given_up)
{
	struct density *density = state;
	struct block *block = &density->blocks[entry];
	uint32_t parent = density->leaves.leaves[entry].parent;

	if (is_given_up && is_watched(block->name))
		remember(density, block, now);
	visit_drop(density, block);
	block->is_known = false;
	fm_leaves_remove(&density->leaves, entry);
	if (parent != NONE && density->leaves.leaves[parent].is_queued)
		refresh(density, parent, now);
}

static void density_orphan(void *state, uint32_t entry)
{
	struct density *density = state;

	fm_leaves_orphan(&density->leaves, entry);
}

static uint32_t density_take(void *state, uint32_t list, uint64_t now)
{
	struct density *density = state;
	uint32_t entry = NONE;

	/* Keys are as old as the last look at them: the first one that has not risen since goes. */
	for (uint32_t i = 0; i < TAKE_TRIES; i++) {
		double key;

		entry = fm_leaves_first(&density->leaves, list);
		if (entry == NONE)
			return NONE;
		key = density->leaves.leaves[entry].key;
		refresh(density, entry, now);
		if (density->leaves.leaves[entry].key <= key)
			break;
	}
	entry = fm_leaves_first(&density->leaves, list);
	fm_leaves_set_aside(&density->leaves, entry, true);
	return entry;
}

static void density_back(void *state, uint32_t entry)
{
	struct density *density = state;

	fm_leaves_set_aside(&density->leaves, entry, false);
}

const struct fm_policy_ops fm_policy_density = {
	.name = "density",
	.summary = "fewest uses expected for the time that the place is taken",
	.entry_bytes = sizeof(struct fm_leaf) + (1 + GHOSTS) * sizeof(struct block) +
		       (1 + GHOSTS) * sizeof(struct visit) +
		       GHOSTS * (sizeof(struct fm_ghost) + 4 * sizeof(uint32_t)),
	.create = density_create,
	.destroy = density_destroy,
	.insert = density_insert,
	.restore = density_restore,
	.touch = density_touch,
	.hint = density_hint,
	.remove = density_remove,
	.orphan = density_orphan,
	.take = density_take,
	.back = density_back,
};
