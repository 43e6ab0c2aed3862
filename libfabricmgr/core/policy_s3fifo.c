// SPDX-License-Identifier: Apache-2.0
/*
 * S3-FIFO (Yang and others, SOSP 2023) on the leaves of chains: new blocks queue in a small FIFO,
 * from which only what was used again goes on to the main one, where a used block gets another
 * round; what left the small one is remembered, and goes straight to the main one when it comes
 * back. A block that still has children waits at its place. Pure. Invariant: counts[] of a list are
 * the entries, leaves or not, that stand in its two queues.
 */
#include <stdlib.h>

#include "core/ghosts.h"
#include "core/index.h"
#include "core/leaves.h"
#include "core/policy.h"

enum { SMALL, MAIN };

/* The paper's figures: a tenth of the room for new blocks, two bits of use. */
#define SMALL_SHARE 10u
#define USES_MAX    3u
#define USES_KEPT   2u /* used more than once: goes on to the main queue */

struct s3fifo {
	struct fm_leaves leaves; /* heap 2 * list + queue; the key is the place in the queue */
	struct fm_ghosts ghosts;
	uint64_t *names;
	uint8_t *uses;
	uint32_t (*counts)[2];
	uint64_t calls;
};

static void s3fifo_destroy(void *state)
{
	struct s3fifo *s3 = state;

	if (!s3)
		return;
	fm_leaves_destroy(&s3->leaves);
	fm_ghosts_destroy(&s3->ghosts);
	free(s3->names);
	free(s3->uses);
	free(s3->counts);
	free(s3);
}

static void *s3fifo_create(uint32_t entries_max, uint32_t lists)
{
	struct s3fifo *s3 = calloc(1, sizeof(*s3));

	if (!s3)
		return NULL;
	s3->names = calloc(entries_max, sizeof(*s3->names));
	s3->uses = calloc(entries_max, sizeof(*s3->uses));
	s3->counts = calloc(lists, sizeof(*s3->counts));
	if (!s3->names || !s3->uses || !s3->counts ||
	    !fm_leaves_create(&s3->leaves, entries_max, 2 * lists) ||
	    !fm_ghosts_create(&s3->ghosts, entries_max)) {
		s3fifo_destroy(s3);
		return NULL;
	}
	return s3;
}

static void s3fifo_insert(void *state, uint32_t entry, const struct fm_policy_block *block,
			  uint64_t now)
{
	struct s3fifo *s3 = state;
	uint32_t queue = SMALL;

	(void)now;
	if (fm_ghosts_take(&s3->ghosts, block->name) != FM_NO_ENTRY)
		queue = MAIN;
	s3->names[entry] = block->name;
	s3->uses[entry] = 0;
	s3->counts[block->list][queue]++;
	fm_leaves_add(&s3->leaves, entry, block->parent, 2 * block->list + queue,
		      (double)++s3->calls);
}

static void s3fifo_touch(void *state, uint32_t entry, uint64_t now)
{
	struct s3fifo *s3 = state;

	(void)now;
	if (s3->uses[entry] < USES_MAX)
		s3->uses[entry]++;
}

static void s3fifo_remove(void *state, uint32_t entry, uint64_t now, bool is_given_up)
{
	struct s3fifo *s3 = state;
	uint32_t heap = s3->leaves.leaves[entry].heap;

	(void)now;
	s3->counts[heap / 2][heap % 2]--;
	fm_leaves_remove(&s3->leaves, entry);
	if (heap % 2 == SMALL && is_given_up) {
		fm_ghosts_take(&s3->ghosts, s3->names[entry]);
		fm_ghosts_put(&s3->ghosts, s3->names[entry]);
	}
}

static void requeue(struct s3fifo *s3, uint32_t list, uint32_t entry, uint8_t uses)
{
	uint32_t from = s3->leaves.leaves[entry].heap % 2;

	s3->uses[entry] = uses;
	s3->counts[list][from]--;
	s3->counts[list][MAIN]++;
	fm_leaves_move(&s3->leaves, entry, 2 * list + MAIN, (double)++s3->calls);
}

static void s3fifo_orphan(void *state, uint32_t entry)
{
	struct s3fifo *s3 = state;

	fm_leaves_orphan(&s3->leaves, entry);
}

static uint32_t s3fifo_take(void *state, uint32_t list, uint64_t now)
{
	struct s3fifo *s3 = state;
	const uint32_t *counts = s3->counts[list];

	(void)now;
	/* Ends: each round takes uses away, or takes an entry out of the small queue. */
	for (;;) {
		uint32_t small = fm_leaves_first(&s3->leaves, 2 * list + SMALL);
		uint32_t main = fm_leaves_first(&s3->leaves, 2 * list + MAIN);
		bool is_small_full = counts[SMALL] * SMALL_SHARE >= counts[SMALL] + counts[MAIN];
		uint32_t entry;

		if (small != FM_NO_ENTRY && (is_small_full || main == FM_NO_ENTRY)) {
			if (s3->uses[small] >= USES_KEPT) {
				requeue(s3, list, small, 0);
				continue;
			}
			entry = small;
		} else if (main == FM_NO_ENTRY) {
			return FM_NO_ENTRY;
		} else if (s3->uses[main]) {
			requeue(s3, list, main, s3->uses[main] - 1);
			continue;
		} else {
			entry = main;
		}
		fm_leaves_set_aside(&s3->leaves, entry, true);
		return entry;
	}
}

static void s3fifo_back(void *state, uint32_t entry)
{
	struct s3fifo *s3 = state;

	fm_leaves_set_aside(&s3->leaves, entry, false);
}

const struct fm_policy_ops fm_policy_s3fifo = {
	.name = "s3fifo",
	.summary = "two queues: what was used once goes before what was used again",
	.entry_bytes = sizeof(struct fm_leaf) + sizeof(struct fm_ghost) + 4 * sizeof(uint32_t) +
		       sizeof(uint64_t) + 1,
	.create = s3fifo_create,
	.destroy = s3fifo_destroy,
	.insert = s3fifo_insert,
	.touch = s3fifo_touch,
	.remove = s3fifo_remove,
	.orphan = s3fifo_orphan,
	.take = s3fifo_take,
	.back = s3fifo_back,
};
