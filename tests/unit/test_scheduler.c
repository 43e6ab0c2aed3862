// SPDX-License-Identifier: Apache-2.0
/*
 * The batch scheduler core: budget, order, preemption, and a random walk against its invariants.
 */
#include <check.h>
#include <stdlib.h>

#include <fabricmgr.h>

#include "core/scheduler.h"

static struct fm_scheduler *make(uint32_t running, uint32_t budget)
{
	struct fm_scheduler *scheduler;

	ck_assert_int_eq(fm_scheduler_create(running, budget, &scheduler), 0);
	return scheduler;
}

START_TEST(bad_limits_are_refused)
{
	struct fm_scheduler *scheduler;

	ck_assert_int_eq(fm_scheduler_create(0, 16, &scheduler), FM_ERR_INVALID);
	ck_assert_int_eq(fm_scheduler_create(17, 16, &scheduler), FM_ERR_INVALID);
	ck_assert_int_eq(fm_scheduler_create(FM_SCHEDULER_REQUESTS_MAX + 1, 1 << 20, &scheduler),
			 FM_ERR_INVALID);
}
END_TEST

START_TEST(decode_comes_before_prefill_chunks)
{
	struct fm_scheduler *scheduler = make(4, 32);
	struct fm_schedule_item items[8];
	uint32_t admitted[8];
	int prefill = fm_scheduler_add(scheduler, 100);
	int decode = fm_scheduler_add(scheduler, 1);

	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 8), 2);
	ck_assert_uint_eq(fm_scheduler_plan(scheduler, items, 8), 2);
	ck_assert_int_eq((int)items[0].request, decode);
	ck_assert_uint_eq(items[0].n_tokens, 1);
	ck_assert_int_eq((int)items[1].request, prefill);
	ck_assert_uint_eq(items[1].n_tokens, 31);
	fm_scheduler_destroy(scheduler);
}
END_TEST

START_TEST(a_preempted_request_resumes_before_younger_ones)
{
	struct fm_scheduler *scheduler = make(1, 8);
	uint32_t admitted[4];
	int old = fm_scheduler_add(scheduler, 5);
	int young = fm_scheduler_add(scheduler, 5);

	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 1);
	ck_assert_int_eq((int)admitted[0], old);
	fm_scheduler_preempt(scheduler, (uint32_t)old, 9, false);
	ck_assert(!fm_scheduler_is_running(scheduler, (uint32_t)old));
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 1);
	ck_assert_int_eq((int)admitted[0], old);
	ck_assert_int_eq(fm_scheduler_victim(scheduler), FM_ERR_NOT_FOUND);
	fm_scheduler_remove(scheduler, (uint32_t)old);
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 1);
	ck_assert_int_eq((int)admitted[0], young);
	fm_scheduler_destroy(scheduler);
}
END_TEST

START_TEST(whoever_asks_the_youngest_gives_way)
{
	struct fm_scheduler *scheduler = make(3, 8);
	struct fm_scheduler_counts counts;
	uint32_t admitted[4];
	int oldest = fm_scheduler_add(scheduler, 5);
	int middle = fm_scheduler_add(scheduler, 5);
	int youngest = fm_scheduler_add(scheduler, 5);

	ck_assert_int_eq(fm_scheduler_victim(scheduler), FM_ERR_NOT_FOUND);
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 3);
	ck_assert_int_eq(fm_scheduler_victim(scheduler), youngest);
	fm_scheduler_preempt(scheduler, (uint32_t)youngest, 5, true);
	ck_assert_int_eq(fm_scheduler_victim(scheduler), middle);
	fm_scheduler_preempt(scheduler, (uint32_t)middle, 5, true);
	ck_assert_int_eq(fm_scheduler_victim(scheduler), FM_ERR_NOT_FOUND);
	/* Held back while the oldest runs, but not for ever. */
	for (int i = 0; i < FM_SCHEDULER_HOLD_STEPS; i++)
		ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 0);
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 1), 1);
	ck_assert_int_eq((int)admitted[0], middle);
	fm_scheduler_preempt(scheduler, (uint32_t)middle, 5, true);
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 0);
	fm_scheduler_remove(scheduler, (uint32_t)oldest);
	ck_assert_uint_eq(fm_scheduler_admit(scheduler, admitted, 4), 2);
	ck_assert_int_eq((int)admitted[0], middle);
	ck_assert_int_eq((int)admitted[1], youngest);
	fm_scheduler_counts(scheduler, &counts);
	ck_assert_uint_eq(counts.preemptions, 3);
	fm_scheduler_destroy(scheduler);
}
END_TEST

START_TEST(the_table_is_bounded)
{
	struct fm_scheduler *scheduler = make(4, 8);

	for (int i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++)
		ck_assert_int_eq(fm_scheduler_add(scheduler, 1), i);
	ck_assert_int_eq(fm_scheduler_add(scheduler, 1), FM_ERR_LIMIT);
	fm_scheduler_destroy(scheduler);
}
END_TEST

/* Every request is served in full, oldest not starved, counts agree with a model kept beside. */
START_TEST(random_walk_keeps_the_invariants)
{
	const uint32_t max_running = 5, budget = 16;
	struct fm_scheduler *scheduler = make(max_running, budget);
	uint32_t pending[FM_SCHEDULER_REQUESTS_MAX] = {0};
	bool is_live[FM_SCHEDULER_REQUESTS_MAX] = {false};
	unsigned int seed = 42;
	uint64_t added = 0, finished = 0;

	for (int step = 0; step < 20000; step++) {
		struct fm_schedule_item items[64];
		struct fm_scheduler_counts counts;
		uint32_t admitted[64], total = 0, live = 0;
		uint64_t tokens = 0;
		size_t n;

		if (added < 2000 && rand_r(&seed) % 3 == 0) {
			uint32_t want = 1 + (uint32_t)rand_r(&seed) % 60;
			int number = fm_scheduler_add(scheduler, want);

			ck_assert_int_ge(number, 0);
			pending[number] = want;
			is_live[number] = true;
			added++;
		}
		fm_scheduler_admit(scheduler, admitted, 64);
		if (rand_r(&seed) % 50 == 0) {
			int victim = fm_scheduler_victim(scheduler);

			if (victim >= 0) {
				pending[victim] += 3;
				fm_scheduler_preempt(scheduler, (uint32_t)victim, pending[victim],
						     rand_r(&seed) % 2);
			}
		}
		n = fm_scheduler_plan(scheduler, items, 64);
		ck_assert_uint_le(n, max_running);
		for (size_t i = 0; i < n; i++) {
			uint32_t number = items[i].request;

			ck_assert(fm_scheduler_is_running(scheduler, number));
			ck_assert_uint_ge(items[i].n_tokens, 1);
			ck_assert_uint_le(items[i].n_tokens, pending[number]);
			total += items[i].n_tokens;
			pending[number] -= items[i].n_tokens;
			fm_scheduler_set_pending(scheduler, number, pending[number]);
			if (!pending[number]) {
				fm_scheduler_remove(scheduler, number);
				is_live[number] = false;
				finished++;
			}
		}
		ck_assert_uint_le(total, budget);
		for (int i = 0; i < FM_SCHEDULER_REQUESTS_MAX; i++) {
			live += is_live[i];
			tokens += is_live[i] ? pending[i] : 0;
		}
		fm_scheduler_counts(scheduler, &counts);
		ck_assert_uint_eq(counts.running + counts.waiting, live);
		ck_assert_uint_eq(counts.waiting_tokens, tokens);
	}
	ck_assert_uint_eq(added, 2000);
	ck_assert_uint_eq(finished, added);
	fm_scheduler_destroy(scheduler);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("scheduler");
	TCase *tests = tcase_create("core");
	SRunner *runner;
	int failed;

	tcase_add_test(tests, bad_limits_are_refused);
	tcase_add_test(tests, decode_comes_before_prefill_chunks);
	tcase_add_test(tests, a_preempted_request_resumes_before_younger_ones);
	tcase_add_test(tests, whoever_asks_the_youngest_gives_way);
	tcase_add_test(tests, the_table_is_bounded);
	tcase_add_test(tests, random_walk_keeps_the_invariants);
	suite_add_tcase(suite, tests);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
