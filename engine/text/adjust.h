/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request asks to change in the logits before a token is chosen: ends that may not come yet,
 * a bias, penalties on what has been said. Only the sampler calls it. Invariant: what was changed
 * is put back bit for bit, and the work grows with the history and the lists, never with the
 * vocabulary.
 */
#ifndef FM_ENGINE_ADJUST_H
#define FM_ENGINE_ADJUST_H

#include <stdbool.h>

#include "text/sampler.h"

struct fm_logit_saved {
	uint32_t id;
	float logit;
};

/* Whether @sampling changes any logit here: without it, nothing is done or paid. */
bool fm_logits_need_adjusting(const struct fm_sampling *sampling, const struct fm_history *history);
/* Changes @logits; the old values of what changed stand in @saved (one for each id of the
 * vocabulary has room). @marks: as many words, of any content. Returns how many were saved. */
size_t fm_logits_adjust(float *logits, const struct fm_sampling *sampling,
			const struct fm_history *history, uint32_t *marks,
			struct fm_logit_saved *saved);
void fm_logits_restore(float *logits, const struct fm_logit_saved *saved, size_t n);

#endif
