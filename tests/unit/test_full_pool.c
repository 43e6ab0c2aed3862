// SPDX-License-Identifier: Apache-2.0
/*
 * A pool that is full: how much goes for what comes, that a chain is not taken apart to make room
 * for its own end, and that what can never fit costs nothing. A server in this process, with an
 * NVMe log for the fetches. Invariant of each test: what was found before is found afterwards, but
 * for what the new blocks need.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "pool_rig.h"

#define MIB	(1u << 20)
#define LONG_NS 60000000000ull

static const struct fm_digest ns = {{9}};
static const char *const policies[] = {"density", "lru", "s3fifo"};
static struct pool_rig rig;
static struct fm_pool *pool;
static char data[MIB];

static void start(uint64_t bytes, const char *policy, bool has_nvme)
{
	const struct fm_server_options options = {
		.pool_bytes = bytes,
		.policy = policy,
		.nvme_bytes = has_nvme ? 400ull * MIB : 0,
		.nvme_flags = has_nvme ? FM_NVME_NOT_DURABLE : 0,
	};

	pool_rig_start(&rig, &options);
	pool = pool_rig_attach(&rig, 0, 0);
}

static void stop(void)
{
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
}

static struct fm_pool_info info(void)
{
	struct fm_pool_info now = {.size = sizeof(now)};

	ck_assert_int_eq(fm_pool_info(pool, &now), 0);
	return now;
}

static struct fm_key key_of(uint32_t chain, uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(key.bytes, &n, sizeof(n));
	memcpy(key.bytes + 4, &chain, sizeof(chain));
	key.bytes[15] = 1;
	return key;
}

static void keys_of(uint32_t chain, struct fm_key *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = key_of(chain, i);
}

/* Block @n of 1 MiB, behind block n - 1 of its chain. */
static int put(uint32_t chain, uint32_t n, uint64_t deadline)
{
	struct fm_key parent = key_of(chain, n - 1);
	struct fm_put one = {.key = key_of(chain, n),
			     .parent = n ? &parent : NULL,
			     .data = data,
			     .length = MIB};

	return fm_pool_put(pool, &ns, &one, 1, deadline);
}

START_TEST(few_large_blocks_go_one_by_one)
{
	start(64ull * MIB, policies[_i], false);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_int_eq(put(i, 0, LONG_NS), 0);
	ck_assert_uint_eq(info().blocks_sealed, 64);
	for (uint32_t i = 64; i < 90; i++) {
		ck_assert_int_eq(put(i, 0, LONG_NS), 0);
		ck_assert_uint_ge(info().blocks_sealed, 62);
	}
	stop();
}
END_TEST

START_TEST(what_can_never_fit_costs_nothing)
{
	struct fm_block blocks[20];

	start(64ull * MIB, policies[_i], false);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_int_eq(put(i, 0, LONG_NS), 0);
	ck_assert_int_eq(fm_block_stage(pool, 4 * MIB, 17, blocks, LONG_NS), FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "the whole pool has room for 16"));
	/* Three of 1.1 MiB in a chunk of 4. */
	ck_assert_int_eq(fm_block_stage(pool, MIB + MIB / 8, 49, blocks, LONG_NS), FM_ERR_LIMIT);
	ck_assert_uint_eq(info().blocks_sealed, 64);
	ck_assert_int_eq(fm_block_stage(pool, 4 * MIB, 16, blocks, LONG_NS), 0);
	fm_block_discard(pool, blocks, 16);
	stop();
}
END_TEST

START_TEST(a_chain_does_not_lose_its_head_to_its_end)
{
	struct fm_key keys[96];
	uint32_t n;

	start(64ull * MIB, policies[_i], false);
	keys_of(0, keys, 96);
	/* Others' blocks go first, then there is no room. */
	for (uint32_t i = 0; i < 24; i++)
		ck_assert_int_eq(put(7 + i, 0, LONG_NS), 0);
	for (n = 0; n < 96; n++) {
		int err = put(0, n, n < 60 ? LONG_NS : 1000000);

		if (err == FM_ERR_POOL_FULL)
			break;
		ck_assert_int_eq(err, 0);
		ck_assert_int_eq(fm_pool_match(pool, keys, 96), n + 1);
	}
	ck_assert_uint_ge(n, 60);
	ck_assert_int_eq(fm_pool_match(pool, keys, 96), n);
	stop();
}
END_TEST

/* Until everything that was put is on NVMe. */
static void wait_for_stored(uint64_t n)
{
	while (info().nvme_stored < n)
		usleep(1000);
}

START_TEST(a_fetch_leaves_what_was_there)
{
	struct fm_key keys[40];
	uint64_t stored = 0;
	int64_t present;

	start(32ull * MIB, policies[_i], true);
	keys_of(0, keys, 40);
	/* The chain and others, all of them stored; each goes when the next ones need its room. */
	for (uint32_t n = 0; n < 40; n++) {
		ck_assert_int_eq(put(0, n, n < 24 ? LONG_NS : 1000000), 0);
		wait_for_stored(++stored);
		if (n == 23)
			ck_assert_int_eq(fm_pool_evict(pool, UINT64_MAX, NULL), 24);
	}
	ck_assert_int_eq(fm_pool_evict(pool, UINT64_MAX, NULL), 16);
	present = fm_pool_fetch(pool, keys, 20, LONG_NS);
	ck_assert_int_eq(present, 20);
	for (uint32_t i = 0; i < 12; i++) {
		ck_assert_int_eq(put(100 + i, 0, LONG_NS), 0);
		wait_for_stored(++stored);
	}
	present = fm_pool_match(pool, keys, 40);
	ck_assert_int_gt(present, 0);
	/* More than there is room for: what comes last stays out. */
	ck_assert_int_ge(fm_pool_fetch(pool, keys, 40, 2000000000), present);
	ck_assert_int_ge(fm_pool_match(pool, keys, 40), present);
	stop();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("full_pool");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(all, 120);
	tcase_add_loop_test(all, few_large_blocks_go_one_by_one, 0, 3);
	tcase_add_loop_test(all, what_can_never_fit_costs_nothing, 0, 3);
	tcase_add_loop_test(all, a_chain_does_not_lose_its_head_to_its_end, 0, 3);
	tcase_add_loop_test(all, a_fetch_leaves_what_was_there, 0, 3);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
