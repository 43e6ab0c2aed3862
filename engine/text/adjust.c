// SPDX-License-Identifier: Apache-2.0
/*
 * Changes of logits, see adjust.h. Called by the sampler; calls nothing. Invariant: each change is
 * one rounded float32 operation after another in a fixed order, so every machine gives its bits.
 *
 * Order, as vLLM's: min_tokens, logit bias, repetition penalty, frequency and presence penalty.
 */
#include <math.h>

#include "text/adjust.h"

/* A mark: how often the id was generated, and what has been done to it in this call. */
#define MARK_SAVED     (1u << 31)
#define MARK_PENALISED (1u << 30)
#define MARK_COUNT     (MARK_PENALISED - 1)

struct adjuster {
	float *logits;
	uint32_t *marks;
	struct fm_logit_saved *saved;
	size_t n_saved;
};

static bool has_penalty(const struct fm_sampling *sampling)
{
	return sampling->repetition_penalty != 1 || sampling->frequency_penalty != 0 ||
	       sampling->presence_penalty != 0;
}

static bool has_banned_ends(const struct fm_sampling *sampling, const struct fm_history *history)
{
	return sampling->n_ends && history->n_tokens - history->n_prompt < sampling->min_tokens;
}

bool fm_logits_need_adjusting(const struct fm_sampling *sampling, const struct fm_history *history)
{
	return sampling->n_bias || has_penalty(sampling) || has_banned_ends(sampling, history);
}

static void save(struct adjuster *adjuster, uint32_t id)
{
	if (adjuster->marks[id] & MARK_SAVED)
		return;
	adjuster->marks[id] |= MARK_SAVED;
	adjuster->saved[adjuster->n_saved++] = (struct fm_logit_saved){id, adjuster->logits[id]};
}

static void penalise(struct adjuster *adjuster, const struct fm_sampling *sampling, uint32_t id)
{
	float *logit = &adjuster->logits[id];
	uint32_t count = adjuster->marks[id] & MARK_COUNT;

	if (adjuster->marks[id] & MARK_PENALISED)
		return;
	save(adjuster, id);
	adjuster->marks[id] |= MARK_PENALISED;
	/* Towards less probable on both sides of zero. */
	if (*logit > 0)
		*logit /= sampling->repetition_penalty;
	else
		*logit *= sampling->repetition_penalty;
	if (!count)
		return;
	*logit -= sampling->frequency_penalty * (float)count;
	*logit -= sampling->presence_penalty;
}

size_t fm_logits_adjust(float *logits, const struct fm_sampling *sampling,
			const struct fm_history *history, uint32_t *marks,
			struct fm_logit_saved *saved)
{
	struct adjuster adjuster = {logits, marks, saved, 0};
	uint32_t n = has_penalty(sampling) ? history->n_tokens : 0;
	/* Without a repetition penalty nothing of the prompt counts. */
	uint32_t first = sampling->repetition_penalty != 1 ? 0 : history->n_prompt;
	uint32_t n_banned = has_banned_ends(sampling, history) ? sampling->n_ends : 0;

	for (uint32_t i = 0; i < n_banned; i++)
		marks[sampling->ends[i]] = 0;
	for (uint32_t i = 0; i < sampling->n_bias; i++)
		marks[sampling->bias[i].id] = 0;
	for (uint32_t i = first; i < n; i++)
		marks[history->tokens[i]] = 0;
	for (uint32_t i = history->n_prompt; i < n; i++)
		marks[history->tokens[i]]++;

	for (uint32_t i = 0; i < n_banned; i++) {
		save(&adjuster, sampling->ends[i]);
		logits[sampling->ends[i]] = -INFINITY;
	}
	for (uint32_t i = 0; i < sampling->n_bias; i++) {
		save(&adjuster, sampling->bias[i].id);
		logits[sampling->bias[i].id] += sampling->bias[i].bias;
	}
	for (uint32_t i = first; i < n; i++)
		penalise(&adjuster, sampling, history->tokens[i]);
	return adjuster.n_saved;
}

void fm_logits_restore(float *logits, const struct fm_logit_saved *saved, size_t n)
{
	for (size_t i = 0; i < n; i++)
		logits[saved[i].id] = saved[i].logit;
}
