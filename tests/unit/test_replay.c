// SPDX-License-Identifier: Apache-2.0
/*
 * fabric-sim's replay: the optimum against every possible choice on tiny trees, every policy under
 * the store's prefix guard, the same output for the same input, and the two trace formats.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>
#include <lzma.h>

#include "core/index.h"
#include "core/leaves.h"
#include "fabric-sim/replay.h"
#include "scratch.h"

#define TOKENS 4u

static uint32_t random_below(uint64_t *state, uint32_t limit)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33) % limit;
}

/* @requests walks down a random tree of @blocks; every walk starts at block 0 or 1. */
static void make_trace(struct fm_trace *trace, uint64_t seed, uint32_t blocks, uint32_t requests)
{
	struct fm_trace_builder *builder;
	uint32_t parents[4096];

	ck_assert_uint_le(blocks, 4096);
	for (uint32_t i = 0; i < blocks; i++)
		parents[i] = i < 2 ? FM_TRACE_NONE : random_below(&seed, i);
	ck_assert_int_eq(fm_trace_builder_create(trace, &builder), 0);
	for (uint32_t r = 0; r < requests; r++) {
		uint32_t up[4096], down[4096], n = 0;

		for (uint32_t at = random_below(&seed, blocks); at != FM_TRACE_NONE;
		     at = parents[at])
			up[n++] = at;
		for (uint32_t i = 0; i < n; i++)
			down[i] = up[n - 1 - i];
		ck_assert_int_eq(fm_trace_builder_add(builder, r * 1000ull, n * TOKENS, 7, down, n),
				 0);
	}
	fm_trace_builder_finish(builder);
	trace->tokens_per_block = TOKENS;
}

/* ---- the optimum ---- */

static bool is_closed(const struct fm_trace *trace, uint32_t set)
{
	for (uint32_t i = 0; i < trace->block_count; i++)
		if (set >> i & 1 && trace->parents[i] != FM_TRACE_NONE &&
		    !(set >> trace->parents[i] & 1))
			return false;
	return true;
}

/* The most hits over all sequences of resident sets: after each request any closed set of at most
 * @room blocks out of what was resident and what the request brought. */
static uint32_t best_hits(const struct fm_trace *trace, uint32_t room)
{
	uint32_t sets = 1u << trace->block_count, best = 0;
	int32_t *now = malloc(sets * sizeof(*now)), *then = malloc(sets * sizeof(*then));

	memset(now, 0xff, sets * sizeof(*now));
	now[0] = 0;
	for (uint32_t r = 0; r < trace->request_count; r++) {
		const struct fm_trace_request *request = &trace->requests[r];
		uint32_t brought = 0;

		memset(then, 0xff, sets * sizeof(*then));
		for (uint32_t i = 0; i < request->blocks; i++)
			brought |= 1u << trace->chain[request->first + i];
		for (uint32_t set = 0; set < sets; set++) {
			uint32_t all = set | brought;
			int32_t hits = now[set];

			if (hits < 0)
				continue;
			hits += __builtin_popcount(set & brought);
			for (uint32_t kept = all;; kept = (kept - 1) & all) {
				if ((uint32_t)__builtin_popcount(kept) <= room &&
				    is_closed(trace, kept) && hits > then[kept])
					then[kept] = hits;
				if (!kept)
					break;
			}
		}
		memcpy(now, then, sets * sizeof(*now));
	}
	for (uint32_t set = 0; set < sets; set++)
		if (now[set] > (int32_t)best)
			best = (uint32_t)now[set];
	free(now);
	free(then);
	return best;
}

START_TEST(optimum_is_the_best_of_all_choices)
{
	uint32_t above_lru = 0;

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct fm_trace trace;

		make_trace(&trace, seed, 8, 20);
		for (uint32_t room = 1; room <= 6; room++) {
			struct fm_replay_result optimum, lru;

			ck_assert_int_eq(fm_replay_optimum(&trace, room, &optimum), 0);
			ck_assert_uint_eq(optimum.block_hits, best_hits(&trace, room));
			ck_assert_int_eq(
				fm_replay_run(&trace, &fm_policy_lru, room, NULL, NULL, &lru), 0);
			ck_assert_uint_le(lru.block_hits, optimum.block_hits);
			above_lru += optimum.block_hits > lru.block_hits;
		}
		fm_trace_free(&trace);
	}
	ck_assert_uint_gt(above_lru, 100); /* the comparison was worth making */
}
END_TEST

/* ---- policies ---- */

START_TEST(a_replay_is_deterministic_and_within_the_optimum)
{
	const struct fm_policy_ops *const *policies;
	size_t n = fm_policy_list(&policies);
	struct fm_trace trace;

	make_trace(&trace, 5, 4000, 3000);
	for (uint32_t room = 10; room <= 1000; room *= 10) {
		struct fm_replay_result optimum;

		ck_assert_int_eq(fm_replay_optimum(&trace, room, &optimum), 0);
		for (size_t i = 0; i < n; i++) {
			struct fm_replay_result a, b;

			ck_assert_int_eq(fm_replay_run(&trace, policies[i], room, NULL, NULL, &a),
					 0);
			ck_assert_int_eq(fm_replay_run(&trace, policies[i], room, NULL, NULL, &b),
					 0);
			ck_assert_mem_eq(&a, &b, sizeof(a));
			ck_assert_uint_gt(a.block_hits, 0);
			ck_assert_uint_le(a.block_hits, optimum.block_hits);
			ck_assert_uint_eq(a.token_hits, TOKENS * a.block_hits);
			ck_assert_uint_eq(a.tokens, optimum.tokens);
			ck_assert_uint_le(a.written - a.evicted, room);
		}
	}
	fm_trace_free(&trace);
}
END_TEST

/* Chains of four blocks that come back every 50 s, and between them ten times as many blocks that
 * never do: what was used least recently is always what will be needed next. */
static void make_scans(struct fm_trace *trace)
{
	struct fm_trace_builder *builder;
	uint32_t fresh = 1000;

	ck_assert_int_eq(fm_trace_builder_create(trace, &builder), 0);
	for (uint64_t t = 0; t < 4000; t++) {
		uint32_t chain[4], scan[40];

		for (uint32_t i = 0; i < 4; i++)
			chain[i] = (uint32_t)(t % 50) * 4 + i;
		for (uint32_t i = 0; i < 40; i++)
			scan[i] = fresh++;
		ck_assert_int_eq(
			fm_trace_builder_add(builder, t * 1000000000ull, 16, 0, chain, 4), 0);
		ck_assert_int_eq(fm_trace_builder_add(builder, t * 1000000000ull, 160, 0, scan, 40),
				 0);
	}
	fm_trace_builder_finish(builder);
	trace->tokens_per_block = TOKENS;
}

START_TEST(density_learns_to_leave_scans_out)
{
	struct fm_replay_result optimum, lru, density;
	struct fm_trace trace;

	make_scans(&trace);
	ck_assert_int_eq(fm_replay_optimum(&trace, 250, &optimum), 0);
	ck_assert_int_eq(fm_replay_run(&trace, &fm_policy_lru, 250, NULL, NULL, &lru), 0);
	ck_assert_int_eq(fm_replay_run(&trace, &fm_policy_density, 250, NULL, NULL, &density), 0);
	ck_assert_uint_eq(optimum.block_hits, (4000 - 50) * 4);
	ck_assert_uint_eq(lru.block_hits, 0);
	ck_assert_uint_gt(density.block_hits, optimum.block_hits * 8 / 10);
	fm_trace_free(&trace);
}
END_TEST

/* A policy that breaks the interface: it names a block with children whenever it knows one. */
static uint32_t bad_offers;

static uint32_t parent_first(void *state, uint32_t list, uint64_t now)
{
	struct fm_leaves *leaves = state; /* the first member of LRU's state */

	for (uint32_t i = 0; i < 30; i++)
		if (leaves->leaves[i].is_known && leaves->leaves[i].children &&
		    !leaves->leaves[i].is_aside) {
			leaves->leaves[i].is_aside = true;
			bad_offers++;
			return i;
		}
	return fm_policy_lru.take(state, list, now);
}

START_TEST(a_policy_that_offers_parents_is_not_obeyed)
{
	struct fm_policy_ops planted = fm_policy_lru;
	struct fm_trace trace;

	planted.take = parent_first;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct fm_replay_result bad;

		make_trace(&trace, seed, 300, 500);
		/* The replay fails when a block is there without the one before it. */
		ck_assert_int_eq(fm_replay_run(&trace, &planted, 30, NULL, NULL, &bad), 0);
		ck_assert_uint_gt(bad.block_hits, 0);
		fm_trace_free(&trace);
	}
	ck_assert_uint_gt(bad_offers, 1000);
}
END_TEST

/* ---- files ---- */

static const char mooncake[] =
	"{\"timestamp\": 2000, \"input_length\": 1100, \"hash_ids\": [5, 9, 7]}\n"
	"{\"timestamp\": 1000, \"input_length\": 600, \"hash_ids\": [5, 6]}\n";

static const char sessions[] =
	"{\"trace\":\"a\",\"block\":64,\"tools\":0,\"system\":0}\n"
	"{\"t\":1.5,\"in\":200,\"out\":1,\"keep\":0,\"add\":[[1,3]]}\n"
	"{\"t\":4,\"sub\":\"x\",\"n\":1,\"d\":1}\n"
	"{\"t\":0.5,\"in\":70,\"out\":1,\"keep\":0,\"add\":[[50,1]],\"d\":1}\n"
	"{\"t\":3.0,\"in\":330,\"out\":1,\"keep\":2,\"add\":[[8,2],[11,1]]}\n"
	"{\"trace\":\"b\",\"block\":64,\"tools\":0,\"system\":0}\n"
	"{\"t\":2.0,\"in\":64,\"out\":1,\"keep\":0,\"add\":[[1,1]]}\n";

static int load(const void *bytes, size_t n, struct fm_trace *trace)
{
	char path[SCRATCH_MAX];
	int fd = scratch_file(path), err;

	ck_assert_int_eq(write(fd, bytes, n), n);
	close(fd);
	err = fm_trace_load(path, trace);
	unlink(path);
	return err;
}

static void check_mooncake(const struct fm_trace *trace)
{
	ck_assert_uint_eq(trace->tokens_per_block, 512);
	ck_assert_uint_eq(trace->request_count, 2);
	ck_assert_uint_eq(trace->block_count, 4);
	ck_assert_uint_eq(trace->accesses, 5);
	ck_assert_uint_eq(trace->requests[0].time_ns, 1000000000ull); /* in order of time */
	ck_assert_uint_eq(trace->requests[0].tokens, 600);
	ck_assert_uint_eq(trace->chain[trace->requests[0].first],
			  trace->chain[trace->requests[1].first]);
}

START_TEST(both_formats_are_read_plain_and_packed)
{
	uint8_t packed[1024];
	size_t n = 0;
	struct fm_trace trace;

	ck_assert_int_eq(load(mooncake, strlen(mooncake), &trace), 0);
	check_mooncake(&trace);
	fm_trace_free(&trace);
	ck_assert_int_eq(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC32, NULL,
						 (const uint8_t *)mooncake, strlen(mooncake),
						 packed, &n, sizeof(packed)),
			 LZMA_OK);
	ck_assert_int_eq(load(packed, n, &trace), 0);
	check_mooncake(&trace);
	fm_trace_free(&trace);
	ck_assert_int_eq(load(packed, n - 9, &trace), FM_ERR_CORRUPT);
	ck_assert_int_eq(load(sessions, strlen(sessions), &trace), 0);
	ck_assert_uint_eq(trace.tokens_per_block, 64);
	ck_assert_uint_eq(trace.request_count, 4);
	/* 1 2 3, then 1 2 8 9 11; 50 apart; and another session's 1. */
	ck_assert_uint_eq(trace.block_count, 8);
	ck_assert_uint_eq(trace.requests[1].tokens, 64);
	ck_assert_uint_eq(trace.requests[2].blocks, 5);
	ck_assert_uint_eq(trace.requests[3].time_ns, 4500000000ull);
	fm_trace_free(&trace);
}
END_TEST

START_TEST(bad_lines_are_named)
{
	static const char *const bad[][2] = {
		{"", "no request"},
		{"{\"timestamp\": 1", "line 1"},
		{"[]", "line 1: neither"},
		{"{\"timestamp\": -1, \"input_length\": 5, \"hash_ids\": [1]}", "\"timestamp\""},
		{"{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [1.5]}", "\"hash_ids\""},
		{"{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [1, 2]}\n"
		 "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [2]}",
		 "line 2: block id 2 stands behind"},
		{"{\"t\":1,\"in\":1,\"keep\":0,\"add\":[[1,1]]}", "before the first session"},
		{"{\"trace\":\"a\",\"block\":0}", "\"block\""},
		{"{\"trace\":\"a\",\"block\":4}\n{\"t\":1,\"in\":1,\"keep\":1,\"add\":[]}",
		 "line 2: \"keep\""},
		{"{\"trace\":\"a\",\"block\":4}\n{\"t\":1,\"in\":1,\"keep\":0,\"add\":[[1]]}",
		 "line 2: \"add\""},
		{"{\"trace\":\"a\",\"block\":4}\n"
		 "{\"t\":1,\"in\":1,\"keep\":0,\"add\":[[1,999999999]]}",
		 "line 2: a request of more"},
	};
	struct fm_trace trace;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_lt(load(bad[i][0], strlen(bad[i][0]), &trace), 0);
		ck_assert_msg(strstr(fm_error_detail(), bad[i][1]) != NULL, "%s: %s", bad[i][0],
			      fm_error_detail());
	}
	ck_assert_int_eq(fm_trace_load("/nowhere/at/all", &trace), FM_ERR_IO);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("replay");
	TCase *cases = tcase_create("replay");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 120);
	tcase_add_test(cases, optimum_is_the_best_of_all_choices);
	tcase_add_test(cases, a_replay_is_deterministic_and_within_the_optimum);
	tcase_add_test(cases, density_learns_to_leave_scans_out);
	tcase_add_test(cases, a_policy_that_offers_parents_is_not_obeyed);
	tcase_add_test(cases, both_formats_are_read_plain_and_packed);
	tcase_add_test(cases, bad_lines_are_named);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
