/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request must give: the model alone, no pool, no engine, the prompt in one call. For the
 * tests that compare bits with it.
 */
#ifndef FM_TESTS_LONE_RUN_H
#define FM_TESTS_LONE_RUN_H

#include <stdint.h>

#include <model/model.h>
#include <text/sampler.h>

struct lone_run {
	uint32_t n_prompt, n_generated;
	uint32_t *tokens; /* prompt, then what was generated */
	float *logits;	  /* [generated][vocab] */
};

/* Fails the test when the model fails. */
void lone_run_create(struct fm_model *model, const uint32_t *prompt, uint32_t n_prompt,
		     uint32_t max_tokens, const struct fm_sampling *sampling, struct lone_run *out);
void lone_run_destroy(struct lone_run *run);

#endif
