/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares a model's logits, teacher-forced, with those that Transformers gave on the same weights
 * (tests/data/README.md). For tests and measurements. The models come from the environment.
 */
#ifndef FM_TESTS_REFERENCE_H
#define FM_TESTS_REFERENCE_H

#include <jansson.h>
#include <stddef.h>

#include <model/model.h>

struct reference_score {
	size_t positions, same_first;	      /* all that the reference holds */
	size_t greedy_positions, greedy_same; /* those of the continuations */
	double mean_kl, worst_kl;
};

#define REFERENCE_SMOLLM2 "smollm2-135m-q4_1-reference.json.gz"
#define REFERENCE_GEMMA3  "gemma3-270m-q4_k_m-reference.json.gz"

/* A file of tests/data, or NULL. */
json_t *reference_load(const char *file);

/* What the environment's variable says, or NULL after saying on standard error that @test is
 * skipped. */
const char *reference_path(const char *variable, const char *test);
/* $FABRICMGR_TEST_MODEL, or NULL after saying on standard error that @test is skipped. */
const char *reference_model_path(const char *test);

/* Opens the model, runs every prompt with its continuation, closes it. Returns 0 or a negative
 * fm_err. */
int reference_score(const char *file, const char *model_path,
		    const struct fm_model_options *options, struct reference_score *out);

#endif
