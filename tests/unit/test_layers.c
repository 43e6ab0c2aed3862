// SPDX-License-Identifier: Apache-2.0
/*
 * Blocks that are sealed layer by layer: who was named reads what is whole, everybody else sees
 * nothing before all of it is; a writer that dies ends its readers' waiting and takes no memory
 * from under them. Real memory, a real socket, processes that are killed.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "core/layers.h"
#include "pool_rig.h"

enum { LAYERS = 12, BYTES = 10000, ENTRIES = 64 };

#define LONG_NS 60000000000ull

static const struct fm_digest ns = {{1}};
static struct pool_rig rig;
static struct fm_pool *writer, *reader;

static struct fm_pool *attach(uint32_t flags)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = rig.socket, .fd = -1, .flags = flags};
	struct fm_pool *pool;

	ck_assert_msg(!fm_pool_attach(&options, &pool), "%s", fm_error_detail());
	return pool;
}

static void start(void)
{
	pool_rig_start_small(&rig, ENTRIES);
	writer = attach(0);
	reader = attach(FM_ATTACH_READ_ONLY);
}

static void stop(void)
{
	fm_pool_detach(writer);
	fm_pool_detach(reader);
	pool_rig_stop(&rig);
}

static struct fm_pool_info info(void)
{
	struct fm_pool_info now = {.size = sizeof(now)};

	ck_assert_int_eq(fm_pool_info(reader, &now), 0);
	return now;
}

static void begin(struct fm_pool *pool, struct fm_block *block, struct fm_key *id)
{
	ck_assert_int_eq(fm_block_stage(pool, fm_layers_length(LAYERS, BYTES), 1, block, 0), 0);
	memset(block->data, 0xee, block->length); /* as what was there before */
	ck_assert_msg(!fm_layers_begin(pool, block, LAYERS, BYTES, id), "%s", fm_error_detail());
}

static void fill(const struct fm_block *block, uint32_t layer)
{
	memset((char *)block->data + layer * BYTES, (int)(layer + 1), BYTES);
}

static bool is_filled(const struct fm_block *block, uint32_t layer)
{
	const char *data = (const char *)block->data + layer * BYTES;

	for (uint32_t i = 0; i < BYTES; i++)
		if (data[i] != (char)(layer + 1))
			return false;
	return true;
}

START_TEST(a_reader_that_is_named_reads_layer_by_layer)
{
	struct fm_block block, joined, twice, found;
	struct fm_key id, key = {{5}};
	struct fm_seal seal = {.block = &block, .key = key};

	begin(writer, &block, &id);
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
	ck_assert_int_eq(fm_layers_join(reader, &id, &twice), 0);
	ck_assert_uint_eq(joined.length, block.length);
	ck_assert_uint_eq(joined.origin, fm_pool_client_id(writer));
	fm_block_release(reader, &twice, 1);
	for (uint32_t i = 0; i < LAYERS; i++) {
		uint32_t layer = i * 5 % LAYERS; /* in any order */

		ck_assert_int_eq(fm_layers_wait(reader, &joined, layer, 1), FM_ERR_DEADLINE);
		fill(&block, layer);
		ck_assert_int_eq(fm_layers_seal(writer, &block, layer, 1), 0);
		ck_assert_int_eq(fm_layers_wait(reader, &joined, layer, 0), 0);
		ck_assert(is_filled(&joined, layer));
		/* Nobody else sees any of it. */
		ck_assert_int_eq(fm_pool_match(reader, &key, 1), 0);
		ck_assert_uint_eq(info().blocks_sealed, 0);
	}
	ck_assert_int_eq(fm_block_seal(writer, &ns, &seal, 1), 0);
	ck_assert_int_eq(fm_pool_acquire(reader, &key, 1, &found), 1);
	ck_assert_ptr_eq(found.data, joined.data);
	ck_assert_int_eq(fm_block_verify(reader, &joined), 0);
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		ck_assert_int_eq(fm_layers_wait(reader, &found, layer, 0), 0);
	fm_block_release(reader, &found, 1);
	/* Late, but by the same id. */
	ck_assert_int_eq(fm_layers_join(reader, &id, &twice), 0);
	fm_block_release(reader, &twice, 1);
	fm_block_release(reader, &joined, 1);
	fm_block_release(writer, &block, 1);
	ck_assert_int_eq(fm_pool_remove(writer, &key, 1), 1);
	ck_assert_int_eq(fm_layers_join(reader, &id, &twice), FM_ERR_NOT_FOUND);
}
END_TEST

START_TEST(layers_are_verified_each_by_itself)
{
	struct fm_block block, joined;
	struct fm_key id, key = {{5}};
	struct fm_seal seal = {.block = &block, .key = key};
	static char back[LAYERS * BYTES];
	struct iovec part = {back, 2 * BYTES};
	struct fm_get_parts get = {.key = key, .parts = &part, .n_parts = 1, .offset = 3 * BYTES};
	char *mine;

	begin(writer, &block, &id);
	mine = block.data;
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		fill(&block, layer);
	ck_assert_int_eq(fm_layers_seal(writer, &block, 0, LAYERS), 0);
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
	mine[7 * BYTES + 77] ^= 1;
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 7, 0), FM_ERR_CORRUPT);
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 6, 0), 0);
	fm_block_release(reader, &joined, 1);
	ck_assert_int_eq(fm_block_seal(writer, &ns, &seal, 1), 0);
	/* A range of whole layers by theirs; what is not whole layers by nothing. */
	ck_assert_int_eq(fm_pool_get_parts(reader, &get, 1), 1);
	ck_assert(get.is_verified && get.copied == 2 * BYTES);
	ck_assert_int_eq(back[0], 4);
	ck_assert_int_eq(back[BYTES], 5);
	get.offset = 6 * BYTES;
	ck_assert_int_eq(fm_pool_get_parts(reader, &get, 1), 0);
	ck_assert_int_eq(get.result, FM_ERR_CORRUPT);
	get.offset++;
	ck_assert_int_eq(fm_pool_get_parts(reader, &get, 1), 1);
	ck_assert(!get.is_verified);
	fm_block_release(writer, &block, 1);
}
END_TEST

/* Memory of a block with layers, given to one without: its ranges are verified by nothing. */
START_TEST(a_table_that_was_left_behind_is_none)
{
	struct fm_block block, again;
	struct fm_seal seal = {.block = &again, .key = {{5}}};
	static char back[BYTES];
	struct iovec part = {back, BYTES};
	struct fm_get_parts get = {.key = seal.key, .parts = &part, .n_parts = 1};
	const void *place;

	begin(writer, &block, NULL);
	place = block.data;
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		fill(&block, layer);
	ck_assert_int_eq(fm_layers_seal(writer, &block, 0, LAYERS), 0);
	fm_block_discard(writer, &block, 1);
	ck_assert_int_eq(fm_block_stage(writer, block.length, 1, &again, 0), 0);
	ck_assert_ptr_eq(again.data, place);
	memset(again.data, 0x11, LAYERS * BYTES); /* and nothing behind that */
	ck_assert_int_eq(fm_layers_seal(writer, &again, 0, 1), FM_ERR_INVALID);
	ck_assert_int_eq(fm_block_seal(writer, &ns, &seal, 1), 0);
	ck_assert_int_eq(fm_pool_get_parts(reader, &get, 1), 1);
	ck_assert(!get.is_verified);
	ck_assert_int_eq(back[0], 0x11);
	fm_block_release(writer, &again, 1);
}
END_TEST

START_TEST(what_cannot_be_has_a_name)
{
	struct fm_block block, other, joined;
	struct fm_key id, wrong;

	ck_assert_uint_eq(fm_layers_length(0, 1), 0);
	ck_assert_uint_eq(fm_layers_length(1025, 1), 0);
	ck_assert_uint_eq(fm_layers_length(1, 0), 0);
	ck_assert_uint_eq(fm_layers_length(2, 2 << 20), 0); /* no room for the table */
	ck_assert_uint_eq(fm_layers_length(1024, 4090), 0);
	ck_assert_uint_gt(fm_layers_length(1024, 4080), 0);
	begin(writer, &block, &id);
	ck_assert_int_eq(fm_layers_begin(writer, &block, LAYERS + 1, BYTES, NULL), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_layers_begin(reader, &block, LAYERS, BYTES, NULL), FM_ERR_PERMISSION);
	ck_assert_int_eq(fm_layers_seal(writer, &block, LAYERS, 1), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_layers_seal(writer, &block, 3, UINT32_MAX), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_layers_seal(writer, &block, LAYERS, 0), 0);
	ck_assert_int_eq(fm_block_offer(writer, &block, &wrong), FM_ERR_INVALID);
	wrong = id;
	wrong.bytes[15] ^= 1;
	ck_assert_int_eq(fm_layers_join(reader, &wrong, &joined), FM_ERR_NOT_FOUND);
	memset(&wrong, 0xff, sizeof(wrong));
	ck_assert_int_eq(fm_layers_join(reader, &wrong, &joined), FM_ERR_NOT_FOUND);
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
	ck_assert_int_eq(fm_layers_wait(reader, &joined, LAYERS, 0), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_layers_wait(writer, &block, 0, 0), FM_ERR_INVALID);
	/* A table that does not fit its block is none. */
	struct fm_layers_tail *tail =
		(void *)((char *)block.data + block.length - sizeof(struct fm_layers_tail));
	tail->layers = 1u << 31;
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 0, 0), FM_ERR_UNSUPPORTED);
	ck_assert_int_eq(fm_layers_seal(writer, &block, 0, 1), FM_ERR_INVALID);
	fm_block_release(reader, &joined, 1);
	fm_block_discard(writer, &block, 1);
	/* Without a table. */
	ck_assert_int_eq(fm_block_stage(writer, 4096, 1, &other, 0), 0);
	memset(other.data, 0, 4096);
	ck_assert_int_eq(fm_layers_seal(writer, &other, 0, 1), FM_ERR_INVALID);
	fm_block_discard(writer, &other, 1);
}
END_TEST

/* Its readers would wait for the rest of it for ever. */
START_TEST(a_block_is_sealed_with_all_of_its_layers)
{
	struct fm_block blocks[2];
	struct fm_key key = {{5}}, other = {{6}};
	struct fm_seal seals[2] = {{.block = &blocks[0], .key = other, .result = 1},
				   {.block = &blocks[1], .key = key, .result = 1}};

	ck_assert_int_eq(fm_block_stage(writer, 4096, 1, &blocks[0], 0), 0);
	begin(writer, &blocks[1], NULL);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		fill(&blocks[1], layer);
		ck_assert_int_eq(fm_block_seal(writer, &ns, seals, 2), FM_ERR_INVALID);
		ck_assert_ptr_nonnull(strstr(fm_error_detail(), "seal 1: layer "));
		ck_assert_ptr_nonnull(strstr(fm_error_detail(), "fm_layers_seal()"));
		ck_assert_int_eq(seals[0].result, FM_ERR_CANCELLED);
		ck_assert_int_eq(seals[1].result, FM_ERR_INVALID);
		ck_assert_int_eq(fm_group_seal(writer, &ns, seals, 2), FM_ERR_INVALID);
		ck_assert_uint_eq(info().blocks_staging, 2);
		ck_assert_uint_eq(info().blocks_sealed, 0);
		ck_assert_int_eq(fm_layers_seal(writer, &blocks[1], layer, 1), 0);
	}
	ck_assert_int_eq(fm_block_seal(writer, &ns, seals, 2), 0);
	ck_assert_int_eq(fm_pool_match(reader, &key, 1), 1);
	fm_block_release(writer, blocks, 2);
}
END_TEST

/* Takes all room that there is; what is joined is not among it. */
static void fill_pool(const struct fm_block *joined, uint32_t whole)
{
	struct fm_block blocks[ENTRIES];
	uint32_t n = 0;

	while (n < ENTRIES && !fm_block_stage(writer, joined->length, 1, &blocks[n], 1000000))
		memset(blocks[n].data, 0x77, blocks[n].length), n++;
	ck_assert_uint_ge(n, 8);
	for (uint32_t layer = 0; layer < whole; layer++)
		ck_assert(is_filled(joined, layer));
	fm_block_discard(writer, blocks, n);
}

/* How the writer ends: gives the block up, or is killed, with devices or without. */
#ifdef __SANITIZE_THREAD__
#define IS_TSAN true
#else
#define IS_TSAN false
#endif

START_TEST(a_writer_that_ends_takes_nothing_along)
{
	struct fm_block joined;
	struct fm_key id;
	int up[2], down[2], status;
	pid_t child;

	ck_assert(!pipe(up) && !pipe(down));
	child = fork();
	if (!child) {
		struct fm_pool *pool = attach(_i == 2 ? FM_ATTACH_DEVICES : 0);
		struct fm_block block;
		char go;

		begin(pool, &block, &id);
		for (uint32_t layer = 0; layer < 5; layer++)
			fill(&block, layer);
		if (fm_layers_seal(pool, &block, 0, 5) || write(up[1], &id, 16) != 16 ||
		    read(down[0], &go, 1) != 1)
			_exit(1);
		fm_block_discard(pool, &block, 1);
		pause();
	}
	ck_assert_int_eq(read(up[0], &id, sizeof(id)), sizeof(id));
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
	for (uint32_t layer = 0; layer < 5; layer++)
		ck_assert_int_eq(fm_layers_wait(reader, &joined, layer, 0), 0);
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 5, 1000000), FM_ERR_DEADLINE);
	if (_i == 1)
		ck_assert_int_eq(write(down[1], "g", 1), 1);
	else
		kill(child, SIGKILL);
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 5, LONG_NS), FM_ERR_NOT_FOUND);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	fill_pool(&joined, 5);
	while (info().blocks_removed != 1)
		; /* quarantine first, where it had devices */
	for (uint32_t layer = 0; layer < 5; layer++)
		ck_assert_int_eq(fm_layers_wait(reader, &joined, layer, 0), 0); /* still whole */
	fm_block_release(reader, &joined, 1);
	while (info().blocks_removed || info().used_bytes)
		;
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), FM_ERR_NOT_FOUND);
	close(up[0]);
	close(up[1]);
	close(down[0]);
	close(down[1]);
}
END_TEST

static void *seal_all(void *argument)
{
	const struct fm_block *block = argument;

	for (uint32_t i = 0; i < LAYERS; i++) {
		fill(block, i);
		ck_assert_int_eq(fm_layers_seal(writer, block, i, 1), 0);
		usleep(i % 3 * 300);
	}
	return NULL;
}

START_TEST(a_reader_sleeps_until_its_layer_is_there)
{
	struct fm_block block, joined;
	struct fm_key id;
	pthread_t thread;

	for (uint32_t round = 0; round < 20; round++) {
		begin(writer, &block, &id);
		ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
		ck_assert_int_eq(pthread_create(&thread, NULL, seal_all, &block), 0);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			ck_assert_int_eq(fm_layers_wait(reader, &joined, layer, LONG_NS), 0);
			ck_assert(is_filled(&joined, layer));
		}
		pthread_join(thread, NULL);
		fm_block_release(reader, &joined, 1);
		fm_block_discard(writer, &block, 1);
	}
}
END_TEST

/* A group whose blocks are read while they are computed, and seen by others as a whole. */
START_TEST(a_group_of_layers_is_seen_as_a_whole)
{
	struct fm_block blocks[2], joined[2], found[2];
	struct fm_key ids[2], keys[2] = {{{5}}, {{6}}};
	struct fm_seal seals[2];

	for (uint32_t i = 0; i < 2; i++) {
		begin(writer, &blocks[i], &ids[i]);
		seals[i] = (struct fm_seal){.block = &blocks[i], .key = keys[i]};
		ck_assert_int_eq(fm_layers_join(reader, &ids[i], &joined[i]), 0);
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			fill(&blocks[i], layer);
			ck_assert_int_eq(fm_layers_seal(writer, &blocks[i], layer, 1), 0);
			ck_assert_int_eq(fm_layers_wait(reader, &joined[i], layer, 0), 0);
			ck_assert_int_eq(fm_group_acquire(reader, keys, 2, found),
					 FM_ERR_NOT_FOUND);
		}
		ck_assert_int_eq(fm_pool_match(reader, &keys[i], 1), 0);
	}
	ck_assert_int_eq(fm_group_seal(writer, &ns, seals, 2), 0);
	ck_assert_int_eq(fm_group_acquire(reader, keys, 2, found), 0);
	fm_block_release(reader, found, 2);
	fm_block_release(reader, joined, 2);
	fm_block_release(writer, blocks, 2);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("layers");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(all, start, stop);
	tcase_add_test(all, a_reader_that_is_named_reads_layer_by_layer);
	tcase_add_test(all, layers_are_verified_each_by_itself);
	tcase_add_test(all, a_table_that_was_left_behind_is_none);
	tcase_add_test(all, what_cannot_be_has_a_name);
	tcase_add_test(all, a_block_is_sealed_with_all_of_its_layers);
	/* The writer is forked off a process with threads: ThreadSanitizer may stand still. */
	if (!IS_TSAN)
		tcase_add_loop_test(all, a_writer_that_ends_takes_nothing_along,
				    0, 3);
	tcase_add_test(all, a_reader_sleeps_until_its_layer_is_there);
	tcase_add_test(all, a_group_of_layers_is_seen_as_a_whole);
	tcase_set_timeout(all, 120);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
