// SPDX-License-Identifier: Apache-2.0
/*
 * The n-th time that a call of the library wants memory, a mapping, a descriptor or a thread, it
 * gets none: for every n of every public call of a client. It says so by name, or has managed
 * without; the pool goes on, and no lease, staged block, descriptor or byte is lost.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "pool_rig.h"

/* ---- what fails: of this thread, while it is armed ---- */

static _Thread_local uint64_t fail_at, count; /* 0: nothing fails */
static _Thread_local bool has_failed;

/* A sanitizer has the allocator to itself: there the calls run, and nothing fails. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_FAIL true

static bool must_fail(void)
{
	if (!fail_at || ++count != fail_at)
		return false;
	has_failed = true;
	errno = ENOMEM;
	return true;
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

void *malloc(size_t bytes)
{
	return must_fail() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return must_fail() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
	return must_fail() ? NULL : __libc_realloc(old, bytes);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return must_fail()
		       ? MAP_FAILED
		       : (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

int eventfd(unsigned int value, int flags)
{
	return must_fail() ? -1 : (int)syscall(SYS_eventfd2, value, flags);
}

int socket(int domain, int type, int protocol)
{
	return must_fail() ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
		   void *argument)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	if (!real)
		real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
				void *))dlsym(RTLD_NEXT, "pthread_create");
	return must_fail() ? EAGAIN : real(thread, attributes, start, argument);
}

#else
#define CAN_FAIL false
#endif

/* ---- the pool, and what may not be lost of it ---- */

enum { VALUE = 5000 };

static const struct fm_digest ns = {{1}};
static struct pool_rig rig;
static struct fm_pool *pool, *other;
static struct fm_queue *queue;
static struct fm_key keys[4] = {{{1}}, {{2}}, {{3}}, {{4}}};
static char data[VALUE], back[VALUE];

static int attach(struct fm_pool **out)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = rig.socket, .fd = -1, .leases = 64};

	return fm_pool_attach(&options, out);
}

static uint32_t descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	uint32_t n = 0;

	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

struct state {
	uint64_t sealed, used, leases, descriptors, clients;
};

/* Once what was discarded and whom it left are gone: nobody waits for either. */
static struct state look(void)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_client_info clients[8];
	struct state state = {0};
	int64_t n;

	do {
		ck_assert_msg(!fm_pool_info(pool, &info), "%s", fm_error_detail());
		n = fm_pool_clients(pool, clients, 8);
	} while (info.blocks_staging || info.blocks_removed || n > 2);
	for (int64_t i = 0; i < n; i++)
		state.leases += clients[i].leases;
	state.sealed = info.blocks_sealed;
	state.used = info.used_bytes;
	state.descriptors = descriptors();
	state.clients = (uint64_t)n;
	return state;
}

static void put_one(uint32_t i)
{
	struct fm_put put = {.key = keys[i], .data = data, .length = VALUE};

	fm_pool_put(pool, &ns, &put, 1, 0);
}

/* ---- the calls: each leaves things as they were ---- */

static int do_attach(void)
{
	struct fm_pool *third;
	int err = attach(&third);

	if (!err)
		fm_pool_detach(third);
	return err;
}

static int do_stage_and_seal(void)
{
	struct fm_block blocks[2];
	struct fm_seal seals[2] = {{.block = &blocks[0], .key = keys[2]},
				   {.block = &blocks[1], .key = keys[3]}};
	int err = fm_block_stage(pool, VALUE, 2, blocks, 0);

	if (err)
		return err;
	memset(blocks[0].data, 1, VALUE);
	memset(blocks[1].data, 1, VALUE);
	err = fm_block_seal(pool, &ns, seals, 2);
	fm_block_release(pool, blocks, 2);
	fm_block_discard(pool, blocks, 2);
	fm_pool_remove(pool, &keys[2], 1);
	fm_pool_remove(pool, &keys[3], 1);
	return err;
}

static int do_group(void)
{
	struct fm_block blocks[2], got[2];
	struct fm_seal seals[2] = {{.block = &blocks[0], .key = keys[2]},
				   {.block = &blocks[1], .key = keys[3]}};
	int err = fm_block_stage(pool, VALUE, 2, blocks, 0);

	if (err)
		return err;
	err = fm_group_seal(pool, &ns, seals, 2);
	if (!err)
		err = fm_group_acquire(pool, &keys[2], 2, got);
	if (!err)
		fm_block_release(pool, got, 2);
	fm_block_release(pool, blocks, 2);
	fm_block_discard(pool, blocks, 2);
	fm_pool_remove(pool, &keys[2], 1);
	return err;
}

static int do_layers(void)
{
	struct fm_block block, joined;
	struct fm_key id;
	int err = fm_block_stage(pool, fm_layers_length(3, 1000), 1, &block, 0);

	if (err)
		return err;
	err = fm_layers_begin(pool, &block, 3, 1000, &id);
	if (!err)
		err = fm_layers_seal(pool, &block, 0, 3);
	if (!err)
		err = fm_layers_join(other, &id, &joined);
	if (!err) {
		err = fm_layers_wait(other, &joined, 2, 0);
		fm_block_release(other, &joined, 1);
	}
	fm_block_discard(pool, &block, 1);
	return err;
}

static int do_hand_over(void)
{
	struct fm_block block, mine;
	struct fm_key id;
	int err = fm_block_stage(pool, VALUE, 1, &block, 0);

	if (err)
		return err;
	err = fm_block_offer(pool, &block, &id);
	if (err) {
		fm_block_discard(pool, &block, 1);
		return err;
	}
	err = fm_block_adopt(other, &id, &mine);
	if (err)
		fm_block_adopt(other, &id, &mine);
	fm_block_discard(other, &mine, 1);
	return err;
}

static int do_put_and_get(void)
{
	struct iovec parts[2] = {{data, 1000}, {data + 1000, VALUE - 1000}};
	struct fm_put_parts put = {.key = keys[1], .parts = parts, .n_parts = 2};
	struct fm_put again = {.key = keys[1], .data = data, .length = VALUE};
	struct fm_get get = {.key = keys[0], .data = back, .capacity = VALUE};
	struct fm_get_parts part = {.key = keys[0], .parts = parts, .n_parts = 1};
	int err = fm_pool_put(pool, &ns, &again, 1, 0);
	int64_t got;

	if (!err)
		err = fm_pool_put_parts(pool, &ns, &put, 1, 0);
	if (!err && (got = fm_pool_get(pool, &get, 1)) != 1)
		err = got < 0 ? (int)got : get.result;
	if (!err && (got = fm_pool_get_parts(pool, &part, 1)) != 1)
		err = got < 0 ? (int)got : part.result;
	fm_pool_remove(pool, &keys[1], 1);
	return err;
}

/* Of one who meets the region of the blocks for the first time. */
static int do_read(void)
{
	struct fm_attach_options options = {.size = sizeof(options),
					    .socket = rig.socket,
					    .fd = -1,
					    .flags = FM_ATTACH_READ_ONLY};
	uint32_t tokens[64] = {0}, cursor = 0;
	struct fm_block_info info;
	struct fm_pool *third;
	struct fm_block block;
	int64_t got;
	int err = fm_pool_attach(&options, &third);

	if (err)
		return err;
	got = fm_pool_match(third, keys, 1);
	if (got >= 0)
		got = fm_pool_match_tokens(third, &ns, tokens, 64, 16, NULL, 0);
	if (got >= 0)
		got = fm_pool_fetch(third, keys, 4, 0);
	if (got >= 0)
		got = fm_pool_walk(third, &cursor, &info);
	if (got >= 0)
		got = fm_pool_acquire(third, keys, 1, &block);
	if (got == 1) {
		got = fm_block_verify(third, &block);
		fm_block_release(third, &block, 1);
	}
	fm_pool_detach(third);
	return (int)got;
}

static int do_hint_and_invalidate(void)
{
	struct fm_hint hint = {.size = sizeof(hint)};
	const struct fm_digest no_such = {{99}};
	struct fm_block block;
	int64_t got = fm_pool_acquire(pool, keys, 1, &block);
	int err;

	if (got < 0)
		return (int)got;
	err = fm_block_hint(pool, &block, &hint);
	fm_block_release(pool, &block, 1);
	got = fm_pool_invalidate(pool, &no_such);
	return err ? err : (int)got;
}

static int do_queue(void)
{
	struct fm_queue *another;
	int err = fm_queue_create(pool, NULL, &another);

	if (!err)
		fm_queue_destroy(another);
	return err;
}

static int do_requests(void)
{
	struct iovec part = {back, VALUE};
	struct fm_get_parts get = {.key = keys[0], .parts = &part, .n_parts = 1};
	struct fm_queue_request request = {
		.size = sizeof(request), .op = FM_QUEUE_GET, .n = 1, .gets = &get};
	struct fm_queue_done done;
	int err = fm_queue_submit(queue, &request, NULL);

	if (err)
		return err;
	if (fm_queue_wait(queue, &done, 1, 60000000000ull) != 1)
		return FM_ERR_DEADLINE; /* no ck_assert() here: it allocates, too */
	return done.result == 1 ? 0 : (int)done.result;
}

/* Another client reads what lies in memory of ours, which is adopted and released. */
static int do_adopt(void)
{
	int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct fm_stage_at at = {.length = VALUE};
	struct fm_seal seal = {.block = &at.block, .key = keys[2]};
	struct fm_region *region;
	struct fm_block got;
	int err;

	if (fd < 0 || ftruncate(fd, FM_CHUNK_BYTES) || fchmod(fd, 0600) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return FM_ERR_IO;
	err = fm_region_adopt(pool, fd, 0, &region);
	close(fd);
	if (err)
		return err;
	err = fm_block_stage_at(pool, region, &at, 1, 0);
	if (!err) {
		err = fm_block_seal(pool, &ns, &seal, 1);
		fm_block_release(pool, &at.block, 1);
	}
	if (!err) {
		int64_t n = fm_pool_acquire(other, &keys[2], 1, &got);

		err = n < 0 ? (int)n : n == 1 ? fm_block_verify(other, &got) : FM_ERR_NOT_FOUND;
		if (n == 1)
			fm_block_release(other, &got, 1);
	}
	/* Not one of the calls that may fail: nothing may be lost by it. */
	fail_at = 0;
	return fm_region_release(pool, region, 0) ? FM_ERR_BUSY : err;
}

static int do_operate(void)
{
	int64_t got = fm_pool_evict(pool, 0, NULL);

	if (got >= 0)
		got = fm_pool_drain(pool, false);
	return (int)got;
}

static const struct {
	const char *name;
	int (*call)(void);
	uint32_t at_least; /* things that it asks for */
} calls[] = {
	{"attach", do_attach, 8},	{"stage and seal", do_stage_and_seal, 0},
	{"group", do_group, 0},		{"layers", do_layers, 0},
	{"hand-over", do_hand_over, 0}, {"put and get", do_put_and_get, 0},
	{"read", do_read, 7},		{"hint and invalidate", do_hint_and_invalidate, 0},
	{"queue", do_queue, 4},		{"requests", do_requests, 1},
	{"operate", do_operate, 0},	{"adopt", do_adopt, 2},
};

START_TEST(the_nth_of_every_call_may_fail)
{
	struct state before, after;
	uint32_t failed = 0;

	put_one(0);
	calls[_i].call(); /* what is set up once is set up */
	before = look();
	for (uint64_t n = 1;; n++) {
		int err;

		fm_fail(0, "nothing yet");
		has_failed = false;
		count = 0;
		fail_at = n;
		err = calls[_i].call();
		fail_at = 0;
		if (!has_failed) {
			ck_assert_msg(!err, "%s: %d without a failure: %s", calls[_i].name, err,
				      fm_error_detail());
			break;
		}
		failed++;
		ck_assert_msg(!err || err == FM_ERR_NO_MEMORY, "%s, the %u.: %s: %s",
			      calls[_i].name, failed, fm_error_name(err), fm_error_detail());
		if (err)
			ck_assert_str_ne(fm_error_detail(), "nothing yet");
		after = look();
		ck_assert_msg(!memcmp(&before, &after, sizeof(before)),
			      "%s, the %u.: %lu sealed, %lu bytes, %lu leases, %lu descriptors, "
			      "%lu clients; before %lu, %lu, %lu, %lu, %lu",
			      calls[_i].name, failed, after.sealed, after.used, after.leases,
			      after.descriptors, after.clients, before.sealed, before.used,
			      before.leases, before.descriptors, before.clients);
		ck_assert_int_eq(calls[_i].call(), 0); /* it goes on */
	}
	ck_assert_uint_ge(failed, CAN_FAIL ? calls[_i].at_least : 0);
}
END_TEST

static void start(void)
{
	pool_rig_start(&rig, &(struct fm_server_options){.entries_max = 64,
							 .adopted_bytes = FM_CHUNK_BYTES});
	ck_assert_msg(!attach(&pool) && !attach(&other), "%s", fm_error_detail());
	ck_assert_int_eq(fm_queue_create(pool, NULL, &queue), 0);
}

static void stop(void)
{
	fm_queue_destroy(queue);
	fm_pool_detach(other);
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
}

int main(void)
{
	Suite *suite = suite_create("client_alloc");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(all, start, stop);
	tcase_add_loop_test(all, the_nth_of_every_call_may_fail, 0,
			    sizeof(calls) / sizeof(calls[0]));
	tcase_set_timeout(all, 120);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
