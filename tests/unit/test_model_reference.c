/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model against the reference logits, both precisions; prints the figures. Needs the real model
 * in $FABRICMGR_TEST_MODEL and says so when it is not there.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "reference.h"

static struct reference_score score(enum fm_precision precision, enum fm_element kv_element)
{
	const char *path = reference_model_path("model_reference");
	struct fm_model_options options = {
		.precision = precision,
		.kv_element = kv_element,
		.isa = getenv("FABRICMGR_TEST_ISA"),
		.tokens_per_block = 16,
	};
	struct reference_score out = {0};

	if (!path)
		return out;
	ck_assert_msg(reference_score(REFERENCE_SMOLLM2, path, &options, &out) == 0, "%s",
		      fm_error_detail());
	ck_assert_uint_eq(out.positions, 493);
	ck_assert_uint_eq(out.greedy_positions, 320);
	fprintf(stderr,
		"precision %s, KV %s: mean KL %.3g, worst %.3g, same first candidate at %zu of %zu "
		"positions, %zu of %zu of the continuations\n",
		precision == FM_PRECISION_Q8	? "q8"
		: precision == FM_PRECISION_Q16 ? "q16"
						: "f32",
		kv_element == FM_ELEMENT_F16 ? "f16" : "f32", out.mean_kl, out.worst_kl,
		out.same_first, out.positions, out.greedy_same, out.greedy_positions);
	return out;
}

START_TEST(float_precision_equals_the_reference)
{
	struct reference_score out = score(FM_PRECISION_F32, FM_ELEMENT_F32);

	ck_assert_double_le(out.mean_kl, 1e-5);
	ck_assert_uint_eq(out.same_first, out.positions);
}
END_TEST

START_TEST(integer_precision_is_near_the_reference)
{
	struct reference_score out = score(FM_PRECISION_Q8, FM_ELEMENT_F16);

	ck_assert_double_le(out.mean_kl, 0.0027);
	ck_assert_uint_ge(out.greedy_same + 6, out.greedy_positions);
}
END_TEST

START_TEST(fine_integer_precision_is_close_to_the_reference)
{
	struct reference_score out = score(FM_PRECISION_Q16, FM_ELEMENT_F16);

	ck_assert_double_le(out.mean_kl, 1e-5);
	ck_assert_uint_eq(out.greedy_same, out.greedy_positions);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("model_reference");
	TCase *tests = tcase_create("model_reference");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 600);
	tcase_add_test(tests, float_precision_equals_the_reference);
	tcase_add_test(tests, integer_precision_is_near_the_reference);
	tcase_add_test(tests, fine_integer_precision_is_close_to_the_reference);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
