// SPDX-License-Identifier: Apache-2.0
/*
 * Adopted regions between clients and a server on a thread: which memory is taken, where blocks may
 * be staged in it, how long readers keep what they hold, and what becomes of it all at the end.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "pool_rig.h"

#define CHUNK	(4u << 20)
#define QUOTA	(16ull * CHUNK)
#define ENTRIES 128u
#define SEALS	(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static const struct fm_digest ns = {{7}};
static struct pool_rig rig;

static void start(void)
{
	static const struct fm_tenant_options tenant = {.size = sizeof(tenant), .name = "poor"};

	pool_rig_start(&rig, &(struct fm_server_options){.entries_max = ENTRIES,
							 .adopted_bytes = QUOTA,
							 .tenants = &tenant,
							 .n_tenants = 1});
}

static void stop(void)
{
	pool_rig_stop(&rig);
}

static struct fm_pool *attach_as(const char *tenant, uint32_t flags)
{
	struct fm_attach_options options = {.size = sizeof(options),
					    .fd = -1,
					    .socket = rig.socket,
					    .tenant = tenant,
					    .flags = flags};
	struct fm_pool *pool;

	ck_assert_msg(!fm_pool_attach(&options, &pool), "%s", fm_error_detail());
	return pool;
}

static struct fm_pool *attach(void)
{
	return attach_as(FM_TENANT_DEFAULT, 0);
}

static int memory_of(uint64_t bytes, int seals, mode_t mode)
{
	int fd = memfd_create("engine-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int memory(uint32_t chunks)
{
	return memory_of((uint64_t)chunks * CHUNK, SEALS, 0600);
}

static struct fm_region *adopt(struct fm_pool *pool, uint32_t chunks)
{
	struct fm_region *region;
	int fd = memory(chunks);

	ck_assert_msg(!fm_region_adopt(pool, fd, 0, &region), "%s", fm_error_detail());
	close(fd);
	return region;
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0x11}};

	memcpy(key.bytes + 4, &n, sizeof(n));
	return key;
}

#ifdef __SANITIZE_THREAD__
enum { EACH_MAPS = 0 }; /* tests/tools/one_mapping.c: all of a process have one */
#else
enum { EACH_MAPS = 1 };
#endif

/* How many mappings of such memory this process has: the owner's, and one for each reader. */
static int mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	ck_assert_ptr_nonnull(file);
	while (fgets(line, sizeof(line), file))
		n += strstr(line, "engine-kv") != NULL;
	fclose(file);
	return n;
}

static struct fm_pool_info info_of(struct fm_pool *pool)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	ck_assert_int_eq(fm_pool_info(pool, &info), 0);
	return info;
}

/* Until the daemon has seen the last lease of it end; it looks every few ms. */
static void wait_for_regions(struct fm_pool *pool, uint64_t n)
{
	for (int i = 0; i < 20000 && info_of(pool).adopted_regions != n; i++)
		usleep(1000);
	ck_assert_uint_eq(info_of(pool).adopted_regions, n);
}

static int stage(struct fm_pool *pool, struct fm_region *region, uint64_t offset, uint64_t length,
		 struct fm_block *block)
{
	struct fm_stage_at at = {.offset = offset, .length = length};
	int err = fm_block_stage_at(pool, region, &at, 1, 0);

	ck_assert_int_eq(err, at.result);
	ck_assert((at.block.data != NULL) == !err);
	*block = at.block;
	return err;
}

/* Writes @n there, and seals it under its number. Held by the writer. */
static struct fm_block seal(struct fm_pool *pool, struct fm_region *region, uint64_t offset,
			    uint64_t length, uint32_t n)
{
	struct fm_block block;
	struct fm_seal seal = {.block = &block, .key = key_of(n)};

	ck_assert_msg(!stage(pool, region, offset, length, &block), "%s", fm_error_detail());
	ck_assert_ptr_eq(block.data, (char *)fm_region_data(region) + offset);
	memset(block.data, (int)n, length);
	ck_assert_msg(!fm_block_seal(pool, &ns, &seal, 1), "%s", fm_error_detail());
	return block;
}

static void put(struct fm_pool *pool, struct fm_region *region, uint64_t offset, uint64_t length,
		uint32_t n)
{
	struct fm_block block = seal(pool, region, offset, length, n);

	fm_block_release(pool, &block, 1);
}

static bool is_there(struct fm_pool *pool, uint32_t n)
{
	struct fm_key key = key_of(n);

	return fm_pool_match(pool, &key, 1) == 1;
}

static struct fm_block hold(struct fm_pool *pool, uint32_t n)
{
	struct fm_key key = key_of(n);
	struct fm_block block;

	ck_assert_msg(fm_pool_acquire(pool, &key, 1, &block) == 1, "%s", fm_error_detail());
	return block;
}

static void look(struct fm_pool *pool, const struct fm_block *block, uint32_t n)
{
	const unsigned char *bytes = block->data;

	ck_assert_int_eq(fm_block_verify(pool, block), 0);
	for (uint64_t i = 0; i < block->length; i += 511)
		ck_assert_uint_eq(bytes[i], n & 0xff);
}

/* ---- which memory is taken ---- */

static void refused(struct fm_pool *pool, int fd, int err, const char *why)
{
	struct fm_region *region;

	ck_assert_int_eq(fm_region_adopt(pool, fd, 0, &region), err);
	ck_assert_msg(strstr(fm_error_detail(), why) != NULL, "%s", fm_error_detail());
	ck_assert_uint_eq(info_of(pool).adopted_regions, 0);
	close(fd);
}

START_TEST(test_what_is_no_such_memory)
{
	struct fm_pool *reader = attach_as(FM_TENANT_DEFAULT, FM_ATTACH_READ_ONLY);
	struct fm_pool *pool = attach(), *poor = attach_as("poor", 0);
	struct fm_region *region;
	int fd, ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	close(ends[0]);
	refused(pool, ends[1], FM_ERR_INVALID, "no memory");
	refused(pool, open("/dev/null", O_RDWR), FM_ERR_INVALID, "no memory");
	refused(pool, memory_of(CHUNK, F_SEAL_GROW | F_SEAL_SEAL, 0600), FM_ERR_INVALID,
		"against shrinking");
	refused(pool, memory_of(CHUNK, F_SEAL_SHRINK | F_SEAL_GROW, 0600), FM_ERR_INVALID,
		"against other seals");
	refused(pool, memory_of(CHUNK, SEALS | F_SEAL_WRITE, 0600), FM_ERR_INVALID,
		"sealed against writing");
	refused(pool, memory_of(CHUNK, SEALS, 0660), FM_ERR_PERMISSION, "mode 0660");
	refused(pool, memory_of(CHUNK + 4096, SEALS, 0600), FM_ERR_INVALID, "whole chunks");
	refused(pool, memory_of(0, SEALS, 0600), FM_ERR_INVALID, "whole chunks");
	refused(pool, memory_of(QUOTA + CHUNK, SEALS, 0600), FM_ERR_LIMIT, "quota");
	refused(poor, memory(1), FM_ERR_PERMISSION, "adopted = 8G");
	refused(reader, memory(1), FM_ERR_PERMISSION, "read-only");
	fd = memory_of(CHUNK, SEALS, 0600);
	ck_assert_int_eq(fchown(fd, 65534, 65534), geteuid() ? -1 : 0);
	if (!geteuid())
		refused(pool, fd, FM_ERR_PERMISSION, "its owner adopts it");
	ck_assert_int_eq(fm_region_adopt(pool, memory(1), 1, &region), FM_ERR_INVALID);
	ck_assert_int_eq(fm_region_adopt(pool, -1, 0, &region), FM_ERR_INVALID);
	ck_assert_int_eq(fm_region_release(pool, region, 0), FM_ERR_INVALID);
	fm_pool_detach(pool);
	fm_pool_detach(reader);
	fm_pool_detach(poor);
}
END_TEST

START_TEST(test_a_region_too_many)
{
	struct fm_pool *pool = attach();
	struct fm_region *regions[17];
	int fd = memory(1), n;

	ck_assert_int_eq(fm_region_adopt(pool, fd, 0, &regions[0]), 0);
	ck_assert_int_eq(fm_region_adopt(pool, fd, 0, &regions[1]), FM_ERR_EXISTS);
	close(fd);
	for (n = 1; n < 16; n++)
		regions[n] = adopt(pool, 1);
	fd = memory(1);
	for (int i = 0; i < 1000; i++)
		ck_assert_int_eq(fm_region_adopt(pool, fd, 0, &regions[16]), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_region_release(pool, regions[7], 0), 0);
	ck_assert_int_eq(fm_region_adopt(pool, fd, 0, &regions[7]), 0);
	close(fd);
	ck_assert_uint_eq(info_of(pool).adopted_regions, 16);
	ck_assert_uint_eq(info_of(pool).adopted_region_bytes, QUOTA);
	ck_assert_int_eq(mappings(), 16);
	fm_pool_detach(pool);
	ck_assert_int_eq(mappings(), 0);
	pool = attach();
	wait_for_regions(pool, 0);
	fm_pool_detach(pool);
}
END_TEST

/* ---- blocks ---- */

START_TEST(test_read_where_it_lies)
{
	struct fm_pool *owner = attach(), *reader = attach();
	struct fm_region *region = adopt(owner, 2);
	struct fm_block own = seal(owner, region, CHUNK + 8192, 70000, 1), block;
	struct fm_pool_info info;

	ck_assert_int_eq(mappings(), 1);
	block = hold(reader, 1);
	ck_assert_int_eq(mappings(), 1 + EACH_MAPS);
	look(reader, &block, 1);
	ck_assert_int_eq(block.data != own.data, EACH_MAPS);
	ck_assert_uint_eq(block.origin, fm_pool_client_id(owner));
	info = info_of(reader);
	ck_assert_uint_eq(info.used_bytes, 0);
	ck_assert_uint_eq(info.adopted_blocks, 1);
	ck_assert_uint_eq(info.adopted_bytes, 73728);
	ck_assert_uint_eq(info.adopted_region_bytes, 2ull * CHUNK);
	fm_block_release(reader, &block, 1);
	ck_assert_int_eq(mappings(), 1);
	fm_block_release(owner, &own, 1);
	ck_assert_int_eq(fm_region_release(owner, region, 0), 0);
	ck_assert_int_eq(mappings(), 0);
	ck_assert(!is_there(reader, 1));
	ck_assert_uint_eq(info_of(reader).adopted_regions, 0);
	ck_assert_uint_eq(info_of(reader).adopted_blocks, 0);
	fm_pool_detach(reader);
	fm_pool_detach(owner);
}
END_TEST

START_TEST(test_places_that_are_none)
{
	struct fm_pool *owner = attach(), *other = attach();
	struct fm_region *region = adopt(owner, 2);
	struct fm_block block, staged;
	struct fm_key id;

	ck_assert_int_eq(stage(owner, region, 1, 4096, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 64, 4096, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 0, 0, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 0, CHUNK + 1, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 4096, CHUNK, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 2ull * CHUNK, 1, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, UINT64_MAX - 4095, 1, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 0, UINT64_MAX, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(other, region, 0, 4096, &block), FM_ERR_INVALID);
	ck_assert_int_eq(stage(owner, region, 2ull * CHUNK - 4096, 4096, &staged), 0);
	ck_assert_int_eq(stage(owner, region, CHUNK, CHUNK, &block), FM_ERR_EXISTS);
	ck_assert_int_eq(fm_block_offer(owner, &staged, &id), FM_ERR_INVALID);
	fm_block_discard(owner, &staged, 1);
	ck_assert_int_eq(stage(owner, region, CHUNK, CHUNK, &block), 0);
	ck_assert_uint_eq(info_of(owner).blocks_staging, 1);
	/* What is staged when the region ends is discarded. */
	ck_assert_int_eq(fm_region_release(owner, region, 0), 0);
	ck_assert_uint_eq(info_of(owner).blocks_staging, 0);
	fm_pool_detach(other);
	fm_pool_detach(owner);
}
END_TEST

START_TEST(test_a_place_is_used_again)
{
	struct fm_pool *owner = attach(), *reader = attach();
	struct fm_region *region = adopt(owner, 1);
	struct fm_block held, block;
	struct fm_stage_at stages[3];

	for (uint32_t n = 0; n < 4; n++)
		put(owner, region, n * 65536ull, 65536, n);
	held = hold(reader, 1);
	/* Over two of them, of which one is held. */
	ck_assert_int_eq(stage(owner, region, 32768, 65536, &block), FM_ERR_BUSY);
	for (uint32_t n = 0; n < 4; n++)
		ck_assert(is_there(reader, n));
	look(reader, &held, 1);
	for (uint32_t n = 0; n < 3; n++)
		stages[n] = (struct fm_stage_at){.offset = n * 65536ull, .length = 65536};
	ck_assert_int_eq(fm_block_stage_at(owner, region, stages, 3, 0), FM_ERR_BUSY);
	ck_assert_int_eq(stages[0].result, 0);
	ck_assert_int_eq(stages[1].result, FM_ERR_BUSY);
	ck_assert_int_eq(stages[2].result, 0);
	ck_assert(!is_there(reader, 0) && is_there(reader, 1) && !is_there(reader, 2));
	for (uint32_t n = 0; n < 3; n++)
		fm_block_discard(owner, &stages[n].block, 1);
	/* Removed, and still held. */
	ck_assert_int_eq(fm_pool_remove(owner, &(struct fm_key[]){key_of(1)}[0], 1), 1);
	ck_assert_int_eq(stage(owner, region, 65536, 4096, &block), FM_ERR_BUSY);
	look(reader, &held, 1);
	fm_block_release(reader, &held, 1);
	for (int i = 0; i < 20000 && info_of(owner).blocks_removed; i++)
		usleep(1000);
	put(owner, region, 32768, 131072, 9);
	ck_assert(is_there(reader, 9) && is_there(reader, 3));
	ck_assert_uint_eq(info_of(owner).adopted_blocks, 2);
	fm_pool_detach(reader);
	fm_pool_detach(owner);
}
END_TEST

START_TEST(test_the_owner_goes)
{
	struct fm_pool *owner = attach(), *reader = attach();
	struct fm_region *region = adopt(owner, 1), *again;
	int fd = memory(1);
	struct fm_block held, other;

	put(owner, region, 0, 70000, 1);
	put(owner, region, 131072, 70000, 2);
	held = hold(reader, 1);
	other = hold(reader, 2);
	ck_assert_int_eq(fm_region_release(owner, region, 1), FM_ERR_BUSY);
	ck_assert(!is_there(reader, 1) && !is_there(reader, 2));
	look(reader, &held, 1);
	fm_pool_detach(owner);
	look(reader, &held, 1);
	look(reader, &other, 2);
	fm_block_release(reader, &other, 1);
	ck_assert_int_eq(mappings(), 1);
	ck_assert_uint_eq(info_of(reader).adopted_regions, 1);
	fm_block_release(reader, &held, 1);
	ck_assert_int_eq(mappings(), 0);
	wait_for_regions(reader, 0);
	ck_assert_uint_eq(info_of(reader).adopted_blocks, 0);
	ck_assert_uint_eq(info_of(reader).adopted_bytes, 0);

	/* The same memory, by a later attachment: not while somebody reads of the earlier one. */
	owner = attach();
	ck_assert_int_eq(fm_region_adopt(owner, fd, 0, &region), 0);
	put(owner, region, 0, 70000, 3);
	held = hold(reader, 3);
	fm_pool_detach(owner);
	owner = attach();
	while (info_of(reader).clients != 2)
		usleep(1000);
	ck_assert_int_eq(fm_region_adopt(owner, fd, 0, &again), FM_ERR_BUSY);
	look(reader, &held, 3);
	fm_block_release(reader, &held, 1);
	wait_for_regions(reader, 0);
	ck_assert_int_eq(fm_region_adopt(owner, fd, 0, &again), 0);
	close(fd);
	fm_pool_detach(owner);
	fm_pool_detach(reader);
}
END_TEST

START_TEST(test_nobody_evicts_it)
{
	struct fm_pool *owner = attach();
	struct fm_region *region = adopt(owner, 1);
	static char data[65536];
	struct fm_block block;
	struct fm_key key, parent = key_of(1000);
	uint32_t n;

	put(owner, region, 0, 4096, 1000);
	/* What stands behind it in a chain goes as if it did not. */
	for (n = 0; n < 4 * ENTRIES; n++) {
		struct fm_put in = {
			.key = key_of(n), .parent = &parent, .data = data, .length = sizeof(data)};

		ck_assert_msg(!fm_pool_put(owner, &ns, &in, 1, 0), "%s", fm_error_detail());
	}
	ck_assert(is_there(owner, 1000));
	ck_assert_uint_gt(info_of(owner).evictions, ENTRIES);
	ck_assert_int_ge(fm_pool_evict(owner, UINT64_MAX, NULL), 1);
	ck_assert(is_there(owner, 1000));
	ck_assert_uint_eq(info_of(owner).used_bytes, 0);
	/* Half of the index, and no more. */
	for (n = 1; n < ENTRIES / 2; n++)
		put(owner, region, n * 4096ull, 4096, 1000 + n);
	ck_assert_int_eq(stage(owner, region, n * 4096ull, 4096, &block), FM_ERR_LIMIT);
	/* In place of another: that is none more. */
	put(owner, region, 0, 4096, 2000);
	key = key_of(1001);
	ck_assert_int_eq(fm_pool_remove(owner, &key, 1), 1);
	put(owner, region, n * 4096ull, 4096, 1000 + n);
	ck_assert_uint_eq(info_of(owner).adopted_blocks, ENTRIES / 2);
	ck_assert_int_eq(fm_pool_invalidate(owner, &ns), ENTRIES / 2);
	ck_assert_uint_eq(info_of(owner).adopted_blocks, 0);
	fm_pool_detach(owner);
}
END_TEST

START_TEST(test_groups_and_layers)
{
	struct fm_pool *owner = attach(), *reader = attach();
	struct fm_region *region = adopt(owner, 2);
	uint64_t length = fm_layers_length(2, 4096);
	struct fm_block blocks[2], mixed, joined, got[2];
	struct fm_key keys[2] = {key_of(1), key_of(2)}, id;
	struct fm_seal seals[2] = {{.block = &blocks[0], .key = keys[0]},
				   {.block = &mixed, .key = keys[1]}};

	ck_assert_int_eq(stage(owner, region, 0, 4096, &blocks[0]), 0);
	ck_assert_int_eq(stage(owner, region, CHUNK, length, &blocks[1]), 0);
	ck_assert_int_eq(fm_block_stage(owner, 4096, 1, &mixed, 0), 0);
	ck_assert_int_eq(fm_group_seal(owner, &ns, seals, 2), FM_ERR_INVALID);
	/* A reader joins a block of the region while it is staged. */
	ck_assert_int_eq(fm_layers_begin(owner, &blocks[1], 2, 4096, &id), 0);
	memset(blocks[1].data, 2, 8192);
	ck_assert_int_eq(fm_layers_seal(owner, &blocks[1], 0, 1), 0);
	ck_assert_int_eq(fm_layers_join(reader, &id, &joined), 0);
	ck_assert_int_eq(fm_layers_wait(reader, &joined, 0, 0), 0);
	ck_assert_int_eq(fm_layers_seal(owner, &blocks[1], 1, 1), 0);
	seals[1].block = &blocks[1];
	ck_assert_msg(!fm_group_seal(owner, &ns, seals, 2), "%s", fm_error_detail());
	fm_block_release(owner, blocks, 2);
	ck_assert_int_eq(fm_group_acquire(reader, keys, 2, got), 0);
	fm_block_release(reader, got, 2);
	/* It is held by the one who joined: so the other member stays, too. */
	ck_assert_int_eq(stage(owner, region, 0, 4096, &blocks[0]), FM_ERR_BUSY);
	fm_block_release(reader, &joined, 1);
	ck_assert_int_eq(mappings(), 1);
	ck_assert_int_eq(stage(owner, region, 0, 4096, &blocks[0]), 0);
	ck_assert(!is_there(reader, 1) && !is_there(reader, 2));
	fm_pool_detach(reader);
	fm_pool_detach(owner);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("adopted");
	TCase *tests = tcase_create("adopted");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_checked_fixture(tests, start, stop);
	tcase_set_timeout(tests, 120);
	tcase_add_test(tests, test_what_is_no_such_memory);
	tcase_add_test(tests, test_a_region_too_many);
	tcase_add_test(tests, test_read_where_it_lies);
	tcase_add_test(tests, test_places_that_are_none);
	tcase_add_test(tests, test_a_place_is_used_again);
	tcase_add_test(tests, test_the_owner_goes);
	tcase_add_test(tests, test_nobody_evicts_it);
	tcase_add_test(tests, test_groups_and_layers);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
