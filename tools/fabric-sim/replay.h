/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a trace through the pool's own store under virtual time, and through a clairvoyant that
 * knows the whole trace. Used by fabric-sim and by tests. Invariant: both look a request's blocks
 * up first and change what is resident afterwards, with the same room: so they can be compared.
 */
#ifndef FM_SIM_REPLAY_H
#define FM_SIM_REPLAY_H

#include "core/policy.h"
#include "fabric-sim/trace.h"

struct fm_replay_result {
	uint64_t tokens, token_hits;
	uint64_t blocks, block_hits;
	uint64_t written, evicted; /* blocks */
};

/* Called now and then with the share that is done. */
typedef void fm_replay_progress(void *context, double share);

/* @room blocks and @policy, from empty. */
int fm_replay_run(const struct fm_trace *trace, const struct fm_policy_ops *policy, uint32_t room,
		  fm_replay_progress *progress, void *context, struct fm_replay_result *result);
/* The most block hits that any policy can have that keeps parents before children, and may refuse
 * blocks. */
int fm_replay_optimum(const struct fm_trace *trace, uint32_t room, struct fm_replay_result *result);

/* Counts a request whose first @hits blocks were there. */
static inline void fm_replay_count(struct fm_replay_result *result, const struct fm_trace *trace,
				   const struct fm_trace_request *request, uint32_t hits)
{
	uint64_t tokens = (uint64_t)hits * trace->tokens_per_block;

	result->tokens += request->tokens;
	result->token_hits += tokens < request->tokens ? tokens : request->tokens;
	result->blocks += request->blocks;
	result->block_hits += hits;
}

#endif
