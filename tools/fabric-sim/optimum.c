// SPDX-License-Identifier: Apache-2.0
/*
 * The clairvoyant of replay.h. A block's parent is never needed later than the block itself, so
 * giving up the leaf that is needed last, and refusing what is needed later still, is Belady's MIN
 * and keeps every prefix whole: no policy bound to prefixes has more hits, nor any that is not.
 * Called by main.c and by tests. Invariant: the parent of a resident block is resident.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "core/index.h"
#include "core/leaves.h"
#include "fabric-sim/replay.h"

#define NEVER UINT32_MAX

/* For each place in the chains the next request that uses the same block. */
static uint32_t *find_next_uses(const struct fm_trace *trace)
{
	uint32_t *next = malloc((trace->accesses + 1) * sizeof(*next));
	uint32_t *seen = malloc(((size_t)trace->block_count + 1) * sizeof(*seen));

	if (next && seen) {
		memset(seen, 0xff, trace->block_count * sizeof(*seen));
		for (uint32_t r = trace->request_count; r-- > 0;) {
			const struct fm_trace_request *request = &trace->requests[r];

			for (uint64_t i = request->first; i < request->first + request->blocks;
			     i++) {
				next[i] = seen[trace->chain[i]];
				seen[trace->chain[i]] = r;
			}
		}
	} else {
		free(next);
		next = NULL;
	}
	free(seen);
	return next;
}

/* Takes in the blocks of a request behind its hits, as far as they are worth it. */
static void take_in(const struct fm_trace *trace, struct fm_leaves *leaves, const uint32_t *next,
		    const struct fm_trace_request *request, uint32_t hits, uint32_t room,
		    struct fm_replay_result *result)
{
	for (uint64_t i = request->first + hits; i < request->first + request->blocks; i++) {
		uint32_t block = trace->chain[i];

		if (next[i] == NEVER)
			return;
		if (result->written - result->evicted == room) {
			uint32_t victim = fm_leaves_first(leaves, 0);

			/* A victim needed later than this block is not above it. */
			if (-leaves->leaves[victim].key <= next[i])
				return;
			fm_leaves_remove(leaves, victim);
			result->evicted++;
		}
		fm_leaves_add(leaves, block, trace->parents[block], 0, -(double)next[i]);
		result->written++;
	}
}

int fm_replay_optimum(const struct fm_trace *trace, uint32_t room, struct fm_replay_result *result)
{
	uint32_t *next = find_next_uses(trace);
	struct fm_leaves leaves = {0};

	memset(result, 0, sizeof(*result));
	if (!next || !fm_leaves_create(&leaves, trace->block_count + 1, 1)) {
		free(next);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the optimum of %u blocks",
			       trace->block_count);
	}
	for (uint32_t r = 0; r < trace->request_count; r++) {
		const struct fm_trace_request *request = &trace->requests[r];
		const uint32_t *chain = trace->chain + request->first;
		uint32_t hits = 0;

		while (hits < request->blocks && leaves.leaves[chain[hits]].is_known)
			hits++;
		fm_replay_count(result, trace, request, hits);
		for (uint32_t i = 0; i < hits; i++)
			fm_leaves_move(&leaves, chain[i], 0, -(double)next[request->first + i]);
		take_in(trace, &leaves, next, request, hits, room, result);
	}
	fm_leaves_destroy(&leaves);
	free(next);
	return 0;
}
