/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares a model's logits, teacher-forced, with those that Transformers gave on the same weights
 * (tests/data/README.md). For tests and measurements. The model comes from $FABRICMGR_TEST_MODEL.
 */
#ifndef FM_TESTS_REFERENCE_H
#define FM_TESTS_REFERENCE_H

#include <stddef.h>

#include <model/model.h>

struct reference_score {
	size_t positions, same_first;	      /* all that the reference holds */
	size_t greedy_positions, greedy_same; /* those of the continuations */
	double mean_kl, worst_kl;
};

/* $FABRICMGR_TEST_MODEL, or NULL after saying on standard error that @test is skipped. */
const char *reference_model_path(const char *test);

/* Opens the model, runs every prompt with its continuation, closes it. Returns 0 or a negative
 * fm_err. */
int reference_score(const char *model_path, const struct fm_model_options *options,
		    struct reference_score *out);

#endif
