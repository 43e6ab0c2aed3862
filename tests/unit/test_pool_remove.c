// SPDX-License-Identifier: Apache-2.0
/*
 * Removing, replacing and invalidating blocks while others hold them, through the public calls. A
 * holder's bytes stay, nobody finds what was removed, and its memory comes back.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "pool_rig.h"

static struct pool_rig rig;
static struct fm_pool *writer, *reader;

static void start(void)
{
	pool_rig_start(&rig, &(struct fm_server_options){0});
	writer = pool_rig_attach(&rig, 0, 0);
	reader = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
}

static void stop(void)
{
	fm_pool_detach(writer);
	fm_pool_detach(reader);
	pool_rig_stop(&rig);
}

static const struct fm_digest ns = {{1}}, other_ns = {{2}};

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	return key;
}

/* A block of 64 KiB, all bytes @value; its lease goes back at once. */
static int put(const struct fm_digest *in, uint32_t n, const struct fm_key *parent, int value,
	       uint32_t flags)
{
	struct fm_block block;
	struct fm_seal seal = {.block = &block, .key = key_of(n), .parent = parent, .flags = flags};
	int err = fm_block_stage(writer, 65536, 1, &block, 0);

	ck_assert_msg(!err, "%s", fm_error_detail());
	memset(block.data, value, block.length);
	err = fm_block_seal(writer, in, &seal, 1);
	if (err)
		fm_block_discard(writer, &block, 1);
	else
		fm_block_release(writer, &block, 1);
	return err;
}

static bool has(uint32_t n)
{
	struct fm_key key = key_of(n);

	return fm_pool_match(reader, &key, 1) == 1;
}

static struct fm_block hold(uint32_t n, int value)
{
	struct fm_key key = key_of(n);
	struct fm_block block;

	ck_assert_int_eq(fm_pool_acquire(reader, &key, 1, &block), 1);
	ck_assert_int_eq(((unsigned char *)block.data)[0], value);
	ck_assert_int_eq(((unsigned char *)block.data)[65535], value);
	return block;
}

static struct fm_pool_info info_of(void)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	ck_assert_int_eq(fm_pool_info(reader, &info), 0);
	return info;
}

static void wait_for_removed(uint64_t n)
{
	for (int i = 0; i < 1000 && info_of().blocks_removed != n; i++)
		usleep(5000);
	ck_assert_uint_eq(info_of().blocks_removed, n);
}

START_TEST(who_holds_a_removed_block_keeps_it)
{
	struct fm_key keys[3] = {key_of(1), key_of(2), key_of(99)};
	struct fm_block held;

	start();
	put(&ns, 1, NULL, 11, 0);
	put(&ns, 2, NULL, 22, 0);
	held = hold(1, 11);
	ck_assert_int_eq(fm_pool_remove(writer, keys, 3), 2);
	ck_assert(!has(1) && !has(2));
	ck_assert_int_eq(fm_pool_remove(writer, keys, 3), 0);
	wait_for_removed(1);
	/* Everything else of the pool is used again and again meanwhile. */
	for (uint32_t i = 0; i < 300; i++)
		ck_assert_int_eq(put(&ns, 1000 + i, NULL, 55, 0), 0);
	ck_assert_int_eq(((unsigned char *)held.data)[4096], 11);
	ck_assert_int_eq(fm_block_verify(reader, &held), 0);
	fm_block_release(reader, &held, 1);
	wait_for_removed(0);
	ck_assert_int_eq(fm_pool_remove(reader, keys, 1), FM_ERR_PERMISSION);
	stop();
}
END_TEST

START_TEST(a_replacement_is_seen_at_once_and_by_nobody_who_holds_the_old)
{
	struct fm_block old, new;

	start();
	ck_assert_int_eq(put(&ns, 1, NULL, 11, 0), 0);
	old = hold(1, 11);
	ck_assert_int_eq(put(&ns, 1, NULL, 12, 0), FM_ERR_EXISTS);
	ck_assert_int_eq(put(&ns, 1, NULL, 12, FM_SEAL_REPLACE), 0);
	new = hold(1, 12);
	ck_assert_int_eq(((unsigned char *)old.data)[7], 11);
	ck_assert_int_eq(fm_block_verify(reader, &old), 0);
	ck_assert_int_eq(fm_block_verify(reader, &new), 0);
	fm_block_release(reader, &old, 1);
	fm_block_release(reader, &new, 1);
	ck_assert_int_eq(put(&ns, 2, NULL, 9, FM_SEAL_REPLACE), 0); /* nothing to replace */
	wait_for_removed(0);
	ck_assert_uint_eq(info_of().blocks_sealed, 2);
	/* Many times, so that the pool's memory would not do if one of them leaked. */
	for (int i = 0; i < 2000; i++)
		ck_assert_int_eq(put(&ns, 1, NULL, i & 0xff, FM_SEAL_REPLACE), 0);
	wait_for_removed(0);
	ck_assert_uint_eq(info_of().blocks_sealed, 2);
	ck_assert_uint_eq(info_of().evictions, 0);
	stop();
}
END_TEST

START_TEST(an_invalidated_namespace_is_gone_and_others_are_not)
{
	struct fm_key parent = key_of(1);

	start();
	put(&ns, 1, NULL, 1, 0);
	put(&ns, 2, &parent, 2, 0);
	put(&other_ns, 3, NULL, 3, 0);
	ck_assert_int_eq(fm_pool_invalidate(writer, &ns), 2);
	ck_assert(!has(1) && !has(2) && has(3));
	ck_assert_int_eq(fm_pool_invalidate(writer, &ns), 0);
	ck_assert_int_eq(fm_pool_invalidate(reader, &ns), FM_ERR_PERMISSION);
	wait_for_removed(0);
	ck_assert_uint_eq(info_of().blocks_sealed, 1);
	stop();
}
END_TEST

/* A parent is removed: its children are out of reach and evicted in time; nothing dangles. */
START_TEST(children_of_a_removed_block_are_evicted_alone)
{
	start();
	for (uint32_t round = 0; round < 50; round++) {
		struct fm_key parent, keys[4];

		for (uint32_t i = 0; i < 4; i++) {
			keys[i] = key_of(round * 8 + i);
			ck_assert_int_eq(put(&ns, round * 8 + i, i ? &parent : NULL, (int)i, 0), 0);
			parent = keys[i / 2]; /* 0 <- 1, 0 <- 2, 1 <- 3 */
		}
		ck_assert_int_eq(fm_pool_remove(writer, &keys[round % 4], 1), 1);
		if (round % 3 == 0)
			ck_assert_int_eq(fm_pool_remove(writer, keys, 4), 3);
	}
	for (uint32_t i = 0; i < 300; i++)
		ck_assert_int_eq(put(&ns, 1000 + i, NULL, 55, 0), 0);
	wait_for_removed(0);
	stop();
}
END_TEST

static atomic_bool is_over;

static void *read_always(void *context)
{
	struct fm_key key = key_of(1);
	uint64_t *misses = context;

	while (!atomic_load(&is_over)) {
		struct fm_block block;

		if (fm_pool_acquire(reader, &key, 1, &block) != 1) {
			++*misses;
			continue;
		}
		for (int i = 1; i < 65536; i += 512)
			ck_assert_int_eq(((char *)block.data)[i], ((char *)block.data)[0]);
		fm_block_release(reader, &block, 1);
	}
	return NULL;
}

START_TEST(readers_find_the_old_or_the_new_and_never_nothing)
{
	uint64_t misses[2] = {0};
	pthread_t threads[2];

	start();
	ck_assert_int_eq(put(&ns, 1, NULL, 0, 0), 0);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, read_always, &misses[i]);
	for (int i = 0; i < 3000; i++)
		ck_assert_int_eq(put(&ns, 1, NULL, i & 0x7f, FM_SEAL_REPLACE), 0);
	atomic_store(&is_over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(misses[0] + misses[1], 0);
	stop();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pool_remove");
	TCase *cases = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(cases, 300);
	tcase_add_test(cases, who_holds_a_removed_block_keeps_it);
	tcase_add_test(cases, a_replacement_is_seen_at_once_and_by_nobody_who_holds_the_old);
	tcase_add_test(cases, an_invalidated_namespace_is_gone_and_others_are_not);
	tcase_add_test(cases, children_of_a_removed_block_are_evicted_alone);
	tcase_add_test(cases, readers_find_the_old_or_the_new_and_never_nothing);
	suite_add_tcase(suite, cases);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
