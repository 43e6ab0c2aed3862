// SPDX-License-Identifier: Apache-2.0
/*
 * Copies with a checksum on the way, and put and get over them, through the public calls. Every
 * length and alignment gives the checksum of ISA-L; what a get returns is what was put, or an
 * error.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <check.h>
#define OPENSSL_API_COMPAT 10100
#include <openssl/sha.h>

#include <fabricmgr.h>

#include "base/crc32c.h"
#include "base/crc32c_copy.h"
#include "pool_rig.h"

static const struct fm_digest ns = {{1}};

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	return key;
}

typedef uint32_t copy_function(uint32_t before, char *to, const char *from, size_t len);

static uint32_t as_picked(uint32_t before, char *to, const char *from, size_t len)
{
	return fm_crc32c_copy_extend(before, to, from, len);
}

static bool is_there(void)
{
	return true;
}

/* Lengths around the streams' edges, at every alignment, with a guard behind. */
START_TEST(a_copy_has_the_checksum_and_nothing_else_changes)
{
	static const struct {
		const char *name;
		bool (*has)(void);
		copy_function *copy;
	} paths[] = {{"picked", is_there, as_picked},
		     {"wide", fm_crc32c_copy_has_wide, fm_crc32c_copy_wide},
		     {"narrow", fm_crc32c_copy_has_narrow, fm_crc32c_copy_narrow}};
	static const size_t lengths[] = {0,
					 1,
					 7,
					 63,
					 100,
					 32767,
					 32768,
					 32768 + 63,
					 65535,
					 65536,
					 65537,
					 3 * 4160 * 5,
					 3 * 4160 * 6 - 1,
					 3 * 4160 * 6 + 9,
					 1 << 20,
					 (2 << 20) + 13};
	size_t size = (2 << 20) + 4096;
	char *from = malloc(size), *to = aligned_alloc(64, size), *expected = malloc(size);

	if (!paths[_i].has()) {
		printf("SKIP: pool_copy/a_copy_has_the_checksum_and_nothing_else_changes: the "
		       "processor has not what the %s copy needs\n",
		       paths[_i].name);
		return;
	}
	for (size_t i = 0; i < size; i++)
		from[i] = (char)(i * 2654435761u >> 11);
	for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
		for (size_t shift = 0; shift < 66; shift += shift < 9 ? 1 : 7) {
			size_t n = lengths[l];

			memset(to, 0xee, size);
			memset(expected, 0xee, size);
			memcpy(expected + shift, from + 3, n);
			ck_assert_uint_eq(paths[_i].copy(0x1234567, to + shift, from + 3, n),
					  fm_crc32c_extend(0x1234567, from + 3, n));
			ck_assert_int_eq(memcmp(to, expected, size), 0);
		}
	ck_assert_uint_eq(fm_crc32c("123456789", 9), 0xe3069283u); /* RFC 3720 */
	free(from);
	free(to);
	free(expected);
}
END_TEST

static struct pool_rig rig;
static struct fm_pool *pool;

static void start(void)
{
	pool_rig_start(&rig, &(struct fm_server_options){.pool_bytes = 32 << 20});
	pool = pool_rig_attach(&rig, 0, 0);
}

static void stop(void)
{
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
}

static struct fm_pool_info info_of(void)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	ck_assert_int_eq(fm_pool_info(pool, &info), 0);
	return info;
}

START_TEST(what_was_put_is_got)
{
	enum { N = 70 };
	static unsigned char data[N][200000], back[N][200000];
	struct fm_put puts[N];
	struct fm_get gets[N + 1];

	start();
	for (uint32_t i = 0; i < N; i++) {
		memset(data[i], (int)i, sizeof(data[i]));
		data[i][i] = 0xff;
		puts[i] = (struct fm_put){.key = key_of(i),
					  .data = data[i],
					  .length = i % 7 ? 200000 : 1000 + i,
					  .parent = i ? &puts[i - 1].key : NULL};
		gets[i] = (struct fm_get){
			.key = key_of(i), .data = back[i], .capacity = sizeof(back[i])};
	}
	gets[N] = (struct fm_get){.key = key_of(999), .data = back[0], .capacity = 1};
	ck_assert_msg(!fm_pool_put(pool, &ns, puts, N, 0), "%s", fm_error_detail());
	ck_assert_int_eq(fm_pool_get(pool, gets, N + 1), N);
	for (uint32_t i = 0; i < N; i++) {
		ck_assert_uint_eq(gets[i].length, puts[i].length);
		ck_assert_int_eq(memcmp(back[i], data[i], gets[i].length), 0);
	}
	ck_assert_int_eq(gets[N].result, FM_ERR_NOT_FOUND);
	/* Again: they are there, and that is as good. Replaced: the new one is got. */
	ck_assert_int_eq(fm_pool_put(pool, &ns, puts, N, 0), 0);
	ck_assert_int_eq(puts[3].result, FM_ERR_EXISTS);
	data[3][0] = 77;
	puts[3].flags = FM_SEAL_REPLACE;
	ck_assert_int_eq(fm_pool_put(pool, &ns, &puts[3], 1, 0), 0);
	ck_assert_int_eq(fm_pool_get(pool, &gets[3], 1), 1);
	ck_assert_int_eq(back[3][0], 77);
	ck_assert_uint_eq(info_of().blocks_staging, 0);
	stop();
}
END_TEST

START_TEST(what_cannot_be_has_a_name_and_leaves_nothing)
{
	unsigned char data[5000] = {1}, room[100];
	struct fm_put put = {.key = key_of(1), .data = data, .length = sizeof(data)};
	struct fm_get get = {.key = key_of(1), .data = room, .capacity = sizeof(room)};
	struct fm_block held[9];

	start();
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 0), 0);
	ck_assert_int_eq(fm_pool_get(pool, &get, 1), 0);
	ck_assert_int_eq(get.result, FM_ERR_LIMIT);
	ck_assert_uint_eq(get.length, sizeof(data));
	put.length = 0;
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 0), FM_ERR_LIMIT);
	put.length = (4 << 20) + 1;
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 0), FM_ERR_LIMIT);
	put.data = NULL;
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 0), FM_ERR_INVALID);
	get.data = NULL;
	ck_assert_int_eq(fm_pool_get(pool, &get, 1), FM_ERR_INVALID);
	/* Full of what others write: refused when the time is over. */
	ck_assert_int_eq(fm_block_stage(pool, 4 << 20, 8, held, 0), 0);
	put = (struct fm_put){.key = key_of(2), .data = data, .length = sizeof(data)};
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 20000000), FM_ERR_POOL_FULL);
	ck_assert_int_eq(put.result, FM_ERR_POOL_FULL);
	fm_block_discard(pool, held, 8);
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, 0), 0);
	ck_assert_uint_eq(info_of().blocks_staging, 0);
	stop();
}
END_TEST

/* One put of many is wrong, wherever it stands: the others are done. */
START_TEST(unknown_flags_are_one_puts_affair)
{
	enum { PUTS = 70 };
	static unsigned char data[1000] = {1};
	struct iovec part = {data, sizeof(data)};
	struct fm_put puts[PUTS];
	struct fm_put_parts parts[PUTS];

	start();
	for (uint32_t wrong = 0; wrong < PUTS; wrong += 23) {
		for (uint32_t i = 0; i < PUTS; i++) {
			puts[i] = (struct fm_put){.key = key_of(1000 * wrong + i),
						  .data = data,
						  .length = sizeof(data),
						  .flags = i == wrong ? 8 : 0,
						  .result = 77};
			parts[i] = (struct fm_put_parts){.key = key_of(500 + 1000 * wrong + i),
							 .parts = &part,
							 .n_parts = 1,
							 .flags = i == wrong ? 9 : 0,
							 .result = 77};
		}
		ck_assert_int_eq(fm_pool_put(pool, &ns, puts, PUTS, 0), FM_ERR_INVALID);
		ck_assert_ptr_nonnull(strstr(fm_error_detail(), "unknown flags 8"));
		ck_assert_int_eq(fm_pool_put_parts(pool, &ns, parts, PUTS, 0), FM_ERR_INVALID);
		ck_assert_ptr_nonnull(strstr(fm_error_detail(), "unknown flags 9"));
		for (uint32_t i = 0; i < PUTS; i++) {
			int expected = i == wrong ? FM_ERR_INVALID : 0;

			ck_assert_int_eq(puts[i].result, expected);
			ck_assert_int_eq(parts[i].result, expected);
			ck_assert_int_eq(fm_pool_match(pool, &puts[i].key, 1), !expected);
			ck_assert_int_eq(fm_pool_match(pool, &parts[i].key, 1), !expected);
		}
		ck_assert_int_eq(fm_pool_invalidate(pool, &ns), 2 * (PUTS - 1)); /* for room */
	}
	ck_assert_uint_eq(info_of().blocks_staging, 0);
	stop();
}
END_TEST

/* A hostile or broken writer changes a block after its seal: a verified copy says so. */
START_TEST(a_block_that_was_changed_is_not_got)
{
	static unsigned char data[100000];
	struct fm_get get = {.key = key_of(1), .data = data, .capacity = sizeof(data)};
	struct fm_block block;
	struct fm_seal seal = {.block = &block, .key = key_of(1)};

	start();
	ck_assert_int_eq(fm_block_stage(pool, sizeof(data), 1, &block, 0), 0);
	memset(block.data, 5, sizeof(data));
	unsigned char *mine = block.data;
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), 0);
	ck_assert_int_eq(fm_pool_get(pool, &get, 1), 1);
	mine[77777] ^= 1;
	ck_assert_int_eq(fm_pool_get(pool, &get, 1), 0);
	ck_assert_int_eq(get.result, FM_ERR_CORRUPT);
	fm_block_release(pool, &block, 1);
	stop();
}
END_TEST

/* Every cut of a block into parts, odd addresses among them, is the same block; and every range of
 * it is got, checked as the header says. */
START_TEST(parts_and_ranges_are_the_same_bytes)
{
	enum { LENGTH = 300007 };
	static unsigned char data[LENGTH], back[LENGTH + 64];
	static const size_t cuts[] = {1, 7, 4096, 65536, 65537, 100000, LENGTH};
	struct fm_key key = key_of(5);
	struct iovec in[8], out[3];
	struct fm_block block;

	start();
	for (uint32_t i = 0; i < LENGTH; i++)
		data[i] = (unsigned char)(i * 2654435761u >> 9);
	for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
		struct fm_put_parts put = {.key = key, .parts = in, .flags = FM_SEAL_REPLACE};
		struct fm_get_parts get = {.key = key, .parts = out, .n_parts = 3};

		for (size_t at = 0; at < LENGTH; put.n_parts++) {
			size_t n =
				put.n_parts == 7 || cuts[c] > LENGTH - at ? LENGTH - at : cuts[c];

			in[put.n_parts] = (struct iovec){data + at, n};
			at += n;
		}
		ck_assert_int_eq(fm_pool_put_parts(pool, &ns, &put, 1, 0), 0);
		memset(back, 0xee, sizeof(back));
		/* All, with an empty part and room that is left over. */
		out[0] = (struct iovec){back, cuts[c] - 1};
		out[1] = (struct iovec){NULL, 0};
		out[2] = (struct iovec){back + cuts[c] - 1, LENGTH + 64 - cuts[c]};
		ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 1);
		ck_assert(get.is_verified && get.copied == LENGTH && get.length == LENGTH);
		ck_assert_int_eq(memcmp(back, data, LENGTH), 0);
		ck_assert_int_eq(back[LENGTH], 0xee);
		/* A range of it, and the same with the rest read for its checksum. */
		for (uint32_t flags = 0; flags <= FM_GET_VERIFY; flags++) {
			memset(back, 0xee, sizeof(back));
			out[0] = (struct iovec){back, 77};
			get.n_parts = 1;
			get.offset = cuts[c] < LENGTH - 77 ? cuts[c] : LENGTH - 77;
			get.flags = flags;
			ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 1);
			ck_assert_uint_eq(get.is_verified, flags);
			ck_assert_int_eq(memcmp(back, data + get.offset, 77), 0);
			ck_assert_int_eq(back[77], 0xee);
		}
	}
	struct fm_get_parts get = {.key = key, .parts = out, .n_parts = 1, .offset = LENGTH};
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 1); /* nothing of it */
	ck_assert_uint_eq(get.copied, 0);
	get.offset++;
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 0);
	ck_assert_int_eq(get.result, FM_ERR_LIMIT);
	/* A byte that is wrong beyond the range: seen where that is asked for. */
	struct fm_seal seal = {.block = &block, .key = key_of(6)};
	ck_assert_int_eq(fm_block_stage(pool, LENGTH, 1, &block, 0), 0);
	memcpy(block.data, data, LENGTH);
	unsigned char *mine = block.data;
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), 0);
	mine[200000] ^= 1;
	get = (struct fm_get_parts){.key = seal.key, .parts = out, .n_parts = 1, .offset = 100};
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 1);
	get.flags = FM_GET_VERIFY;
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), 0);
	ck_assert_int_eq(get.result, FM_ERR_CORRUPT);
	ck_assert(!get.is_verified);
	get.flags = 2;
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), FM_ERR_INVALID);
	get.flags = 0;
	out[0] = (struct iovec){NULL, 1};
	ck_assert_int_eq(fm_pool_get_parts(pool, &get, 1), FM_ERR_INVALID);
	fm_block_release(pool, &block, 1);
	ck_assert_uint_eq(info_of().blocks_staging, 0);
	stop();
}
END_TEST

/* Chains by SHA-256 over the whole input, whatever its length; and what of them is there. */
START_TEST(tokens_are_matched_as_their_keys_are)
{
	static const uint32_t sizes[] = {1, 6, 7, 8, 16, 100, 230, 248, 249, 1000};
	static uint32_t tokens[64 * 1000];
	static unsigned char extras[1100];

	start();
	for (uint32_t i = 0; i < 64 * 1000; i++)
		tokens[i] = i * 2654435761u >> 7;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		size_t extras_len = s * s * 13 % 1100;
		uint32_t per_block = sizes[s];
		struct fm_put puts[50];
		struct fm_key keys[64];
		struct fm_digest digest = ns, last;
		unsigned char message[8192], whole[32];

		extras[s] = (unsigned char)(s + 1);
		ck_assert_int_eq(
			fm_chain_keys(&ns, tokens, 64, per_block, extras, extras_len, keys, &last),
			0);
		for (uint32_t i = 0; i < 64; i++) {
			memcpy(message, digest.bytes, 32);
			memcpy(message + 32, tokens + i * per_block, per_block * 4);
			memcpy(message + 32 + per_block * 4, extras, extras_len);
			SHA256(message, 32 + per_block * 4 + extras_len, whole);
			memcpy(digest.bytes, whole, 32);
			ck_assert_mem_eq(&keys[i], whole, 16);
		}
		ck_assert_mem_eq(&last, whole, 32);
		ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, tokens, 64 * per_block, per_block,
						      extras, extras_len),
				 0);
		for (uint32_t i = 0; i < 50; i++)
			puts[i] = (struct fm_put){.key = keys[i], .data = "x", .length = 1};
		ck_assert_int_eq(fm_pool_put(pool, &ns, puts, 50, 0), 0);
		ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, tokens, 64 * per_block, per_block,
						      extras, extras_len),
				 50);
		/* What is no whole block is not looked at. */
		ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, tokens, 34 * per_block - 1,
						      per_block, extras, extras_len),
				 33);
	}
	ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, NULL, 5, 1, NULL, 0), FM_ERR_INVALID);
	ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, tokens, 5, 0, NULL, 0), FM_ERR_INVALID);
	ck_assert_int_eq(fm_pool_match_tokens(pool, &ns, NULL, 0, 1, NULL, 0), 0);
	stop();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pool_copy");
	TCase *cases = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(cases, 300);
	tcase_add_loop_test(cases, a_copy_has_the_checksum_and_nothing_else_changes, 0, 3);
	tcase_add_test(cases, what_was_put_is_got);
	tcase_add_test(cases, what_cannot_be_has_a_name_and_leaves_nothing);
	tcase_add_test(cases, unknown_flags_are_one_puts_affair);
	tcase_add_test(cases, parts_and_ranges_are_the_same_bytes);
	tcase_add_test(cases, tokens_are_matched_as_their_keys_are);
	tcase_add_test(cases, a_block_that_was_changed_is_not_got);
	suite_add_tcase(suite, cases);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
