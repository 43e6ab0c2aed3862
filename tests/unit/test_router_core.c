// SPDX-License-Identifier: Apache-2.0
/*
 * The router's decisions, and a fleet under virtual time whose workers die, refuse and freeze from
 * a seed: every request ends, with each of its tokens once.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "core/router_core.h"

#define MS	 1000000ull
#define DEADLINE (1000 * MS)

static struct fm_router_core *core;

static void set_up_with(uint32_t max_requests, uint32_t bypass_tokens, double bypass_ratio)
{
	struct fm_router_options options = {.max_requests = max_requests,
					    .bypass_tokens = bypass_tokens,
					    .bypass_ratio = bypass_ratio,
					    .deadline_ns = DEADLINE};

	ck_assert_int_eq(fm_router_core_create(&options, &core), 0);
}

static void set_up(void)
{
	set_up_with(8, 256, 0.3);
}

static void tear_down(void)
{
	fm_router_core_destroy(core);
	core = NULL;
}

static struct fm_router_action next(uint64_t now)
{
	struct fm_router_action action;

	ck_assert(fm_router_core_next(core, now, &action));
	return action;
}

static void nothing(uint64_t now)
{
	struct fm_router_action action;

	ck_assert(!fm_router_core_next(core, now, &action));
}

static enum fm_route route_of(uint32_t n_prompt, uint32_t cached)
{
	struct fm_router_request_info info;
	int request = fm_router_core_add(core, n_prompt, cached, 0);

	ck_assert_int_ge(request, 0);
	next(0);
	fm_router_core_info(core, (uint32_t)request, &info);
	fm_router_core_remove(core, (uint32_t)request, false);
	return info.route;
}

START_TEST(routes_follow_what_is_uncached)
{
	fm_router_core_worker_up(core, 0, FM_ROLE_PREFILL);
	fm_router_core_worker_up(core, 1, FM_ROLE_DECODE);
	ck_assert_int_eq(route_of(256, 0), FM_ROUTE_BYPASS);
	ck_assert_int_eq(route_of(257, 0), FM_ROUTE_DISAGGREGATED);
	ck_assert_int_eq(route_of(5000, 4744), FM_ROUTE_BYPASS);
	ck_assert_int_eq(route_of(1000, 700), FM_ROUTE_BYPASS); /* 30 % uncached */
	ck_assert_int_eq(route_of(1000, 699), FM_ROUTE_DISAGGREGATED);
	/* The ratio rule ends at 2048 uncached tokens. */
	ck_assert_int_eq(route_of(20000, 20000 - 2047), FM_ROUTE_BYPASS);
	ck_assert_int_eq(route_of(20000, 20000 - 2048), FM_ROUTE_DISAGGREGATED);
	ck_assert_int_eq(route_of(10, 50), FM_ROUTE_BYPASS); /* more cached than there is */
	fm_router_core_worker_down(core, 0);
	ck_assert_int_eq(route_of(5000, 0), FM_ROUTE_MONOLITHIC);
}
END_TEST

START_TEST(a_worker_of_both_roles_does_all_of_it)
{
	fm_router_core_worker_up(core, 3, FM_ROLE_BOTH);
	ck_assert_int_eq(route_of(10, 0), FM_ROUTE_MONOLITHIC);
	ck_assert_int_eq(route_of(5000, 0), FM_ROUTE_MONOLITHIC);
	fm_router_core_worker_up(core, 4, FM_ROLE_BOTH);
	ck_assert_int_eq(route_of(5000, 0), FM_ROUTE_MONOLITHIC);
}
END_TEST

START_TEST(hand_over_names_the_tail_once)
{
	struct fm_router_action action;
	int request;

	fm_router_core_worker_up(core, 0, FM_ROLE_PREFILL);
	fm_router_core_worker_up(core, 1, FM_ROLE_DECODE);
	fm_router_core_worker_up(core, 2, FM_ROLE_DECODE);
	request = fm_router_core_add(core, 1000, 0, 0);
	action = next(0);
	ck_assert_int_eq(action.kind, FM_ROUTER_PREFILL);
	ck_assert_int_eq(action.worker, 0);
	nothing(0);
	ck_assert_int_eq(fm_router_core_find(core, 0, action.wire_id), request);
	ck_assert_int_lt(fm_router_core_find(core, 1, action.wire_id), 0);
	fm_router_core_prefilled(core, (uint32_t)request, true, 10);
	ck_assert_int_lt(fm_router_core_find(core, 0, action.wire_id), 0);
	action = next(10);
	ck_assert_int_eq(action.kind, FM_ROUTER_GENERATE);
	ck_assert(action.with_tail);
	fm_router_core_worker_down(core, action.worker);
	action = next(10);
	ck_assert_int_eq(action.kind, FM_ROUTER_GENERATE);
	ck_assert(!action.with_tail);
}
END_TEST

START_TEST(least_loaded_and_then_in_turn)
{
	uint32_t seen[3] = {0};

	for (uint32_t i = 0; i < 3; i++)
		fm_router_core_worker_up(core, i, FM_ROLE_BOTH);
	for (int i = 0; i < 6; i++) {
		fm_router_core_add(core, 100, 0, 0);
		seen[next(0).worker]++;
	}
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(seen[i], 2);
	/* Another front end's load counts as much as ours. */
	fm_router_core_worker_stats(core, 0, 1, 9, 9000);
	fm_router_core_worker_stats(core, 1, 1, 9, 9000);
	for (int i = 0; i < 2; i++) {
		fm_router_core_add(core, 100, 0, 0);
		ck_assert_int_eq(next(0).worker, 2);
	}
	ck_assert_int_eq(fm_router_core_add(core, 1, 0, 0), FM_ERR_LIMIT);
}
END_TEST

START_TEST(first_come_first_served_when_a_worker_returns)
{
	int requests[4];

	for (int i = 0; i < 4; i++)
		requests[i] = fm_router_core_add(core, 10, 0, (uint64_t)i);
	nothing(5);
	ck_assert(!fm_router_core_is_ready(core));
	fm_router_core_worker_up(core, 0, FM_ROLE_PREFILL);
	nothing(5);
	fm_router_core_remove(core, (uint32_t)requests[0], true);
	requests[0] = fm_router_core_add(core, 10, 0, 6); /* takes the free place, not the turn */
	fm_router_core_worker_up(core, 1, FM_ROLE_DECODE);
	ck_assert(fm_router_core_is_ready(core));
	ck_assert_int_eq(next(6).request, requests[1]);
	ck_assert_int_eq(next(6).request, requests[2]);
	ck_assert_int_eq(next(6).request, requests[3]);
	ck_assert_int_eq(next(6).request, requests[0]);
}
END_TEST

START_TEST(retry_waits_and_prefers_another)
{
	struct fm_router_action first, second;

	fm_router_core_worker_up(core, 0, FM_ROLE_BOTH);
	fm_router_core_worker_up(core, 1, FM_ROLE_BOTH);
	fm_router_core_worker_stats(core, 1, 9, 9, 9000);
	fm_router_core_add(core, 10, 0, 0);
	first = next(0);
	ck_assert_int_eq(first.worker, 0);
	fm_router_core_retry(core, first.request, 50);
	nothing(50);
	ck_assert_uint_eq(fm_router_core_wake(core, 50), 50 + FM_ROUTER_RETRY_NS);
	second = next(50 + FM_ROUTER_RETRY_NS);
	ck_assert_int_eq(second.worker, 1);
	ck_assert(second.wire_id != first.wire_id);
}
END_TEST

START_TEST(deadline_is_time_without_progress)
{
	struct fm_router_action action;

	fm_router_core_worker_up(core, 0, FM_ROLE_BOTH);
	fm_router_core_add(core, 10, 0, 0);
	action = next(0);
	ck_assert_uint_eq(fm_router_core_wake(core, 0), DEADLINE);
	fm_router_core_token(core, action.request, DEADLINE - 1);
	nothing(DEADLINE);
	ck_assert_uint_eq(fm_router_core_wake(core, DEADLINE), 2 * DEADLINE - 1);
	ck_assert_int_eq(next(2 * DEADLINE).kind, FM_ROUTER_EXPIRED);
	ck_assert_int_eq(next(2 * DEADLINE).kind, FM_ROUTER_CANCEL);
	nothing(2 * DEADLINE);
	ck_assert_uint_eq(fm_router_core_wake(core, 2 * DEADLINE), UINT64_MAX);
}
END_TEST

START_TEST(removal_cancels_only_where_it_runs)
{
	struct fm_router_action action;

	fm_router_core_worker_up(core, 0, FM_ROLE_BOTH);
	fm_router_core_add(core, 10, 0, 0);
	action = next(0);
	fm_router_core_remove(core, action.request, true);
	ck_assert_int_eq(next(0).kind, FM_ROUTER_CANCEL);
	fm_router_core_add(core, 10, 0, 0);
	action = next(0);
	fm_router_core_remove(core, action.request, true);
	fm_router_core_worker_down(core, 0); /* nobody is left to be told */
	nothing(0);
}
END_TEST

/* ---- a fleet from a seed ------------------------------------------------------------------ */

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % n;
}

#define FLEET	 6
#define REQUESTS 32

struct sim_request {
	bool is_live, is_done;
	uint32_t want, made;
};

struct sim_job { /* what a worker is at */
	bool is_live, is_prefill;
	uint32_t request;
	uint64_t wire_id;
};

static struct sim_request sim[REQUESTS];
static struct sim_job jobs[FLEET][REQUESTS];
static bool is_up[FLEET];
static const enum fm_role roles[FLEET] = {FM_ROLE_PREFILL, FM_ROLE_PREFILL, FM_ROLE_DECODE,
					  FM_ROLE_DECODE,  FM_ROLE_BOTH,    FM_ROLE_DECODE};
static uint64_t last_wire_id;

static void sim_start_job(const struct fm_router_action *action)
{
	int n_holders = 0; /* counted first: each ck_assert writes to a pipe */

	ck_assert_msg(is_up[action->worker], "work for a worker that is down");
	ck_assert_uint_gt(action->wire_id, last_wire_id);
	last_wire_id = action->wire_id;
	for (int w = 0; w < FLEET; w++)
		for (int j = 0; j < REQUESTS; j++)
			n_holders += jobs[w][j].is_live && jobs[w][j].request == action->request;
	ck_assert_msg(!n_holders, "a request is with two workers");
	ck_assert(roles[action->worker] &
		  (action->kind == FM_ROUTER_PREFILL ? FM_ROLE_PREFILL : FM_ROLE_DECODE));
	ck_assert(action->kind == FM_ROUTER_GENERATE || !sim[action->request].made);
	for (int j = 0; j < REQUESTS; j++) {
		if (jobs[action->worker][j].is_live)
			continue;
		jobs[action->worker][j] = (struct sim_job){true, action->kind == FM_ROUTER_PREFILL,
							   action->request, action->wire_id};
		return;
	}
	ck_abort_msg("more jobs than requests");
}

static void sim_drive(uint64_t now)
{
	struct fm_router_action action;

	while (fm_router_core_next(core, now, &action)) {
		if (action.kind == FM_ROUTER_CANCEL) {
			for (int j = 0; j < REQUESTS; j++)
				if (jobs[action.worker][j].wire_id == action.wire_id)
					jobs[action.worker][j].is_live = false;
			continue;
		}
		ck_assert_int_ne(action.kind, FM_ROUTER_EXPIRED);
		sim_start_job(&action);
	}
}

static void sim_step_job(uint32_t worker, struct sim_job *job, uint64_t now)
{
	int found = fm_router_core_find(core, worker, job->wire_id);
	struct sim_request *request = &sim[job->request];

	ck_assert_int_eq(found, (int)job->request);
	if (!below(12)) {
		job->is_live = false;
		fm_router_core_retry(core, job->request, now);
		return;
	}
	request->made++;
	if (job->is_prefill) {
		job->is_live = false;
		fm_router_core_prefilled(core, job->request, below(2), now);
	} else {
		fm_router_core_token(core, job->request, now);
	}
	ck_assert_uint_le(request->made, request->want);
	if (request->made == request->want) {
		job->is_live = false;
		fm_router_core_remove(core, job->request, below(2) && !job->is_prefill);
		request->is_live = false;
		request->is_done = true;
	}
}

static void sim_flip(uint32_t worker)
{
	is_up[worker] = !is_up[worker];
	if (is_up[worker]) {
		fm_router_core_worker_up(core, worker, roles[worker]);
		return;
	}
	fm_router_core_worker_down(core, worker);
	memset(jobs[worker], 0, sizeof(jobs[worker]));
}

static uint32_t sim_run(uint64_t seed, uint32_t total)
{
	uint32_t added = 0, done = 0;
	uint64_t now = 0;

	random_state = seed * 2654435761u + 88172645463325252ull;
	memset(sim, 0, sizeof(sim));
	memset(jobs, 0, sizeof(jobs));
	memset(is_up, 0, sizeof(is_up));
	last_wire_id = 0;
	while (done < total) {
		now += below(3) * MS;
		if (added < total && !below(3)) {
			int request = fm_router_core_add(core, 1 + below(4000), below(4000), now);

			if (request >= 0) {
				ck_assert(!sim[request].is_live);
				sim[request] = (struct sim_request){.is_live = true,
								    .want = 1 + below(20)};
				added++;
			}
		}
		if (!below(20))
			sim_flip(below(FLEET));
		if (!below(200)) /* nobody is away for as long as a deadline */
			for (uint32_t w = 0; w < FLEET; w++)
				if (!is_up[w])
					sim_flip(w);
		sim_drive(now);
		for (uint32_t w = 0; w < FLEET; w++)
			for (int j = 0; j < REQUESTS; j++)
				if (jobs[w][j].is_live && !below(3))
					sim_step_job(w, &jobs[w][j], now);
		for (int r = 0; r < REQUESTS; r++)
			if (sim[r].is_done) {
				sim[r].is_done = false;
				done++;
			}
		ck_assert_uint_lt(now, 3600ull * 1000 * MS);
	}
	sim_drive(now);
	return done;
}

START_TEST(a_fleet_that_dies_and_returns_finishes_everything)
{
	struct fm_router_counts counts;

	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct fm_router_options options = {.max_requests = REQUESTS,
						    .bypass_tokens = below(2) ? 0 : 256,
						    .bypass_ratio = 0.3,
						    .deadline_ns = 3600ull * 1000 * MS};

		ck_assert_int_eq(fm_router_core_create(&options, &core), 0);
		ck_assert_uint_eq(sim_run(seed, 60), 60);
		fm_router_core_counts(core, &counts);
		ck_assert_uint_eq(counts.running + counts.waiting, 0);
		ck_assert_uint_eq(counts.routes[1] + counts.routes[2] + counts.routes[3], 60);
		fm_router_core_destroy(core);
	}
	core = NULL;
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("router_core");
	TCase *rules = tcase_create("rules"), *fleet = tcase_create("fleet");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(rules, set_up, tear_down);
	tcase_add_test(rules, routes_follow_what_is_uncached);
	tcase_add_test(rules, a_worker_of_both_roles_does_all_of_it);
	tcase_add_test(rules, hand_over_names_the_tail_once);
	tcase_add_test(rules, least_loaded_and_then_in_turn);
	tcase_add_test(rules, first_come_first_served_when_a_worker_returns);
	tcase_add_test(rules, retry_waits_and_prefers_another);
	tcase_add_test(rules, deadline_is_time_without_progress);
	tcase_add_test(rules, removal_cancels_only_where_it_runs);
	tcase_set_timeout(fleet, 120);
	tcase_add_test(fleet, a_fleet_that_dies_and_returns_finishes_everything);
	suite_add_tcase(suite, rules);
	suite_add_tcase(suite, fleet);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
