// SPDX-License-Identifier: Apache-2.0
/*
 * A client's handle where processes and threads come and go: fork, exec, threads that use all of it
 * at once, a descriptor in foreign hands, and an end in the middle of everything.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "base/clock.h"
#include "pool/copy.h"
#include "pool_rig.h"

enum { VALUE = 5000 };

static const struct fm_digest ns = {{1}};
static struct pool_rig rig;
static struct fm_pool *pool;
static char data[VALUE];

static struct fm_pool *attach(void)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = rig.socket, .fd = -1};
	struct fm_pool *attached;

	ck_assert_msg(!fm_pool_attach(&options, &attached), "%s", fm_error_detail());
	return attached;
}

static void start(void)
{
	pool_rig_start_small(&rig, 256);
	pool = attach();
}

static void stop(void)
{
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	key.bytes[15] = 1;
	return key;
}

static void put(uint32_t n)
{
	struct fm_put put = {.key = key_of(n), .data = data, .length = VALUE};

	ck_assert_msg(!fm_pool_put(pool, &ns, &put, 1, 0), "%s", fm_error_detail());
}

/* Every call of a client, of which none says anything else; how many. */
static int calls_that_are_not_refused(struct fm_block *leased, struct fm_block *staged)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_hint hint = {.size = sizeof(hint)};
	struct fm_seal seal = {.block = staged, .key = key_of(9)};
	struct fm_put puts = {.key = key_of(9), .data = data, .length = VALUE};
	struct fm_get gets = {.key = key_of(1), .data = data, .capacity = VALUE};
	struct iovec part = {data, VALUE};
	struct fm_put_parts put_parts = {.key = key_of(9), .parts = &part, .n_parts = 1};
	struct fm_get_parts get_parts = {.key = key_of(1), .parts = &part, .n_parts = 1};
	struct fm_key key = key_of(1), id;
	struct fm_client_info client;
	struct fm_block_info walked;
	struct fm_queue *queue;
	struct fm_block block;
	uint32_t cursor = 0, tokens[16] = {0};
	const int64_t results[] = {
		fm_pool_info(pool, &info),
		fm_pool_match(pool, &key, 1),
		fm_pool_match_tokens(pool, &ns, tokens, 16, 16, NULL, 0),
		fm_pool_fetch(pool, &key, 1, 0),
		fm_pool_acquire(pool, &key, 1, &block),
		fm_block_verify(pool, leased),
		fm_block_stage(pool, VALUE, 1, &block, 0),
		fm_block_seal(pool, &ns, &seal, 1),
		fm_group_seal(pool, &ns, &seal, 1),
		fm_group_acquire(pool, &key, 1, &block),
		fm_layers_begin(pool, staged, 1, 1, &id),
		fm_layers_seal(pool, staged, 0, 1),
		fm_layers_join(pool, &key, &block),
		fm_layers_wait(pool, leased, 0, 1),
		fm_block_offer(pool, staged, &id),
		fm_block_adopt(pool, &key, &block),
		fm_block_hint(pool, leased, &hint),
		fm_pool_put(pool, &ns, &puts, 1, 0),
		fm_pool_get(pool, &gets, 1),
		fm_pool_put_parts(pool, &ns, &put_parts, 1, 0),
		fm_pool_get_parts(pool, &get_parts, 1),
		fm_pool_remove(pool, &key, 1),
		fm_pool_invalidate(pool, &ns),
		fm_pool_walk(pool, &cursor, &walked),
		fm_pool_clients(pool, &client, 1),
		fm_pool_evict(pool, 0, NULL),
		fm_pool_drain(pool, true),
		fm_queue_create(pool, NULL, &queue),
	};
	int bad = 0;

	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
		/* Those of puts and gets are in the structures. */
		if (results[i] == FM_ERR_FORKED)
			continue;
		fprintf(stderr, "call %zu: %lld\n", i, (long long)results[i]);
		bad++;
	}
	fm_block_release(pool, leased, 1);
	fm_block_discard(pool, staged, 1);
	return bad + fm_pool_is_connected(pool);
}

START_TEST(a_child_is_refused_and_its_parent_unharmed)
{
	struct fm_block leased, staged;
	struct fm_key key = key_of(1);
	int status;
	pid_t child;

	put(1);
	ck_assert_int_eq(fm_pool_acquire(pool, &key, 1, &leased), 1);
	ck_assert_int_eq(fm_block_stage(pool, VALUE, 1, &staged, 0), 0);
	memset(staged.data, 7, VALUE);
	child = fork();
	if (!child) {
		/* Where the parent's memory was, something of the child's own. */
		void *here = mmap(leased.data, 4096, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		int bad = calls_that_are_not_refused(&leased, &staged);
		struct fm_attach_options options = {
			.size = sizeof(options), .socket = rig.socket, .fd = -1};
		struct fm_pool *own = NULL;

		bad += here == MAP_FAILED || fm_pool_attach(&options, &own);
		fm_pool_detach(pool);
		/* Neither that nor its own pool went with the parent's. */
		*(char *)here = 1;
		bad += fm_pool_match(own, &key, 1) != 1;
		fm_pool_detach(own);
		_exit(bad);
	}
	waitpid(child, &status, 0);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	ck_assert(fm_pool_is_connected(pool));
	ck_assert_int_eq(fm_block_verify(pool, &leased), 0);
	ck_assert_int_eq(((char *)staged.data)[0], 7);
	struct fm_seal seal = {.block = &staged, .key = key_of(2)};
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), 0);
}
END_TEST

enum { WAITERS = 3 };

static void *wait_for_room(void *argument)
{
	struct fm_block block;

	(void)argument;
	ck_assert_int_eq(fm_block_stage(pool, VALUE, 1, &block, 3600ull * 1000000000), 0);
	fm_block_discard(pool, &block, 1);
	return NULL;
}

/* Leases of the whole pool; how many. */
static uint32_t fill(struct fm_block *blocks, uint32_t max)
{
	uint32_t n = 0;

	while (n < max && !fm_block_stage(pool, VALUE, 1, &blocks[n], 1)) {
		struct fm_seal seal = {.block = &blocks[n], .key = key_of(n)};

		ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), 0);
		n++;
	}
	ck_assert_uint_lt(n, max);
	return n;
}

/* Threads that wait for the daemon are not in the child, and it does not wait for them. */
START_TEST(a_child_detaches_while_threads_wait)
{
	static struct fm_block blocks[512];
	uint32_t n = fill(blocks, 512);
	pthread_t waiters[WAITERS];
	bool all_wait = false;
	int status;
	pid_t child;

	for (int i = 0; i < WAITERS; i++)
		ck_assert_int_eq(pthread_create(&waiters[i], NULL, wait_for_room, NULL), 0);
	while (!all_wait) {
		usleep(1000);
		pthread_mutex_lock(&pool->ring_lock);
		/* The lock is left to wait only: one at the daemon, the others at ring_changed. */
		all_wait = pool->free_flight_count == FM_RING_ENTRIES - WAITERS && pool->has_poller;
		if (!all_wait)
			pthread_mutex_unlock(&pool->ring_lock);
	}
	child = fork();
	if (!child) {
		alarm(30);
		fm_pool_detach(pool);
		_exit(0);
	}
	pthread_mutex_unlock(&pool->ring_lock);
	waitpid(child, &status, 0);
	ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "the child ended with %x", status);
	fm_block_release(pool, blocks, n);
	for (int i = 0; i < WAITERS; i++)
		pthread_join(waiters[i], NULL);
}
END_TEST

/* What another program, started by this one, finds of it. */
START_TEST(exec_inherits_nothing)
{
	struct fm_queue *queue;
	char line[512];
	FILE *out;
	int lines = 0;

	put(1);
	ck_assert_int_eq(fm_queue_create(pool, NULL, &queue), 0);
	out = popen("ls -l /proc/self/fd; cat /proc/self/maps", "r");
	ck_assert_ptr_nonnull(out);
	while (fgets(line, sizeof(line), out)) {
		lines++;
		ck_assert_msg(!strstr(line, "fabricmgr-") && !strstr(line, "eventfd") &&
				      !strstr(line, "memfd:"),
			      "inherited: %s", line);
	}
	ck_assert_int_eq(pclose(out), 0);
	ck_assert_int_gt(lines, 10);
	fm_queue_destroy(queue);
}
END_TEST

START_TEST(an_attached_socket_is_of_no_use_to_others)
{
	struct fm_attach_options options = {.size = sizeof(options)};
	struct fm_pool *thief;
	struct fm_block block;
	struct fm_key key = key_of(1);

	put(1);
	ck_assert_int_eq(fm_pool_acquire(pool, &key, 1, &block), 1);
	options.fd = dup(pool->socket); /* as SCM_RIGHTS hands it over */
	ck_assert_int_eq(fm_pool_attach(&options, &thief), FM_ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "another attachment"));
	ck_assert(fm_pool_is_connected(pool));
	ck_assert_int_eq(fm_block_verify(pool, &block), 0);
	put(2);
	fm_block_release(pool, &block, 1);
	/* A descriptor that was handed over with the call is closed, whatever becomes of it. */
	options.fd = dup(pool->socket);
	options.leases = FABRICMGR_LEASES_MAX + 1;
	ck_assert_int_eq(fm_pool_attach(&options, &thief), FM_ERR_LIMIT);
	ck_assert_int_eq(close(options.fd), -1);
}
END_TEST

/* What a call that failed had leased is given back by it, and not by who releases its blocks. */
START_TEST(a_failed_acquire_leaves_no_holds)
{
	struct fm_key keys[3] = {key_of(1), key_of(2), key_of(3)};
	uint64_t region_bytes = pool->region_bytes;
	struct fm_block blocks[3];
	uint32_t n_free;

	for (uint32_t i = 1; i <= 3; i++)
		put(i);
	/* Mapped with its true size first: that much is unmapped in the end. */
	ck_assert_int_eq(fm_pool_acquire(pool, keys, 1, blocks), 1);
	fm_block_release(pool, blocks, 1);
	n_free = pool->free_lease_count;
	pool->region_bytes = VALUE; /* what the daemon says lies behind its end */
	ck_assert_int_eq(fm_pool_acquire(pool, keys, 3, blocks), FM_ERR_CORRUPT);
	pool->region_bytes = region_bytes;
	ck_assert_uint_eq(pool->free_lease_count, n_free);
	fm_block_release(pool, blocks, 3);
	ck_assert_uint_eq(pool->free_lease_count, n_free);
	/* The same without a place in the table; what stood in the blocks is no lease. */
	memset(blocks, 0, sizeof(blocks));
	pool->free_lease_count = 0;
	ck_assert_int_eq(fm_pool_acquire(pool, keys, 3, blocks), FM_ERR_LIMIT);
	pool->free_lease_count = n_free;
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(blocks[i].lease, FM_NO_LEASE);
}
END_TEST

/* Detached with everything open: as if the process had ended. */
START_TEST(an_early_end_frees_everything)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_pool *other = attach();
	struct fm_block leased[8], staged[8], offered;
	struct fm_key keys[8], id;
	struct fm_seal seals[8];

	ck_assert_int_eq(fm_block_stage(other, VALUE, 8, leased, 0), 0);
	for (uint32_t i = 0; i < 8; i++) {
		keys[i] = key_of(i);
		seals[i] = (struct fm_seal){.block = &leased[i], .key = keys[i]};
	}
	ck_assert_int_eq(fm_block_seal(other, &ns, seals, 8), 0);
	ck_assert_int_eq(fm_block_stage(other, VALUE, 8, staged, 0), 0);
	ck_assert_int_eq(fm_block_stage(other, VALUE, 1, &offered, 0), 0);
	ck_assert_int_eq(fm_block_offer(other, &offered, &id), 0);
	ck_assert_int_eq(fm_pool_remove(pool, keys, 8), 8);
	fm_pool_detach(other);
	do
		ck_assert_int_eq(fm_pool_info(pool, &info), 0);
	while (info.clients > 1 || info.blocks_staging > 1 || info.blocks_removed);
	/* The offer outlives who made it. */
	ck_assert_int_eq(fm_block_adopt(pool, &id, &offered), 0);
	fm_block_discard(pool, &offered, 1);
	do
		ck_assert_int_eq(fm_pool_info(pool, &info), 0);
	while (info.used_bytes);
}
END_TEST

/* ---- a daemon that does not answer ---- */

static void halt(void)
{
	fm_server_stop(rig.server);
	pthread_join(rig.thread, NULL);
}

static void go_on(void)
{
	pool_rig_serve(&rig);
}

/* It is asked for the first length, and not once more for each of the others. */
START_TEST(a_silent_daemon_is_asked_once_by_a_put)
{
	struct fm_put puts[40];

	for (uint32_t i = 0; i < 40; i++)
		puts[i] = (struct fm_put){.key = key_of(i), .data = data, .length = 100 + i};
	halt();
	ck_assert_int_eq(fm_pool_put(pool, &ns, puts, 40, 1), FM_ERR_DEADLINE);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_int_eq(puts[i].result, FM_ERR_DEADLINE);
	ck_assert_uint_eq(pool->free_flight_count, FM_RING_ENTRIES - 1);
	go_on();
	put(1);
}
END_TEST

static bool halt_once(void *has_halted)
{
	if (!*(bool *)has_halted)
		halt();
	*(bool *)has_halted = true;
	return true;
}

static void leave_open(void *context)
{
	(void)context;
}

/* Between its stage and its seal: neither waits longer than the call may take. */
START_TEST(a_put_keeps_its_deadline_at_the_seal)
{
	bool has_halted = false;
	const struct fm_gate gate = {halt_once, leave_open, &has_halted};
	const struct iovec part = {data, VALUE};
	struct fm_put_parts one = {.key = key_of(1), .parts = &part, .n_parts = 1};
	uint64_t start = fm_clock_ns();

	ck_assert_int_eq(fm_parts_put(pool, &ns, &one, 1, 2 * FM_NS_PER_S, &gate), FM_ERR_DEADLINE);
	ck_assert_uint_lt(fm_clock_ns() - start, FM_ANSWER_NS);
	go_on();
	put(2);
}
END_TEST

START_TEST(a_queued_remove_keeps_its_deadline)
{
	struct fm_key key = key_of(1);
	struct fm_queue_request request = {.size = sizeof(request),
					   .op = FM_QUEUE_REMOVE,
					   .deadline_ns = FM_NS_PER_S,
					   .n = 1,
					   .keys = &key};
	struct fm_queue_done done;
	struct fm_queue *queue;
	uint64_t start = fm_clock_ns();

	ck_assert_int_eq(fm_queue_create(pool, NULL, &queue), 0);
	halt();
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(fm_queue_wait(queue, &done, 1, 60 * FM_NS_PER_S), 1);
	ck_assert_int_eq(done.result, FM_ERR_DEADLINE);
	ck_assert_uint_lt(fm_clock_ns() - start, FM_ANSWER_NS);
	go_on();
	fm_queue_destroy(queue);
}
END_TEST

/* ---- threads ---- */

static _Atomic uint32_t read_whole;

static void write_and_read(uint32_t seed)
{
	struct fm_block blocks[2], got;
	uint32_t n = seed % 40 * 2;
	struct fm_key keys[2] = {key_of(n), key_of(n + 1)};
	struct fm_seal seals[2] = {{.block = &blocks[0], .key = keys[0]},
				   {.block = &blocks[1], .key = keys[1]}};

	if (fm_pool_acquire(pool, keys, 1, &got) == 1) {
		const char *bytes = got.data;

		ck_assert_int_eq(bytes[0], (char)n);
		ck_assert_int_eq(bytes[VALUE - 1], (char)n);
		fm_block_release(pool, &got, 1);
		atomic_fetch_add(&read_whole, 1);
		return;
	}
	ck_assert_msg(!fm_block_stage(pool, VALUE, 2, blocks, 0), "%s", fm_error_detail());
	memset(blocks[0].data, (int)n, VALUE);
	memset(blocks[1].data, (int)n + 1, VALUE);
	/* One of many is first; the others find it there. */
	if (seed % 3 ? fm_block_seal(pool, &ns, seals, 2) : fm_group_seal(pool, &ns, seals, 2))
		for (int i = 0; i < 2; i++)
			ck_assert(seals[i].result == FM_ERR_EXISTS || !seals[i].result ||
				  seals[i].result == FM_ERR_CANCELLED);
	fm_block_release(pool, blocks, 2);
	fm_block_discard(pool, blocks, 2);
}

static void in_layers(void)
{
	struct fm_block block, joined;
	struct fm_key id;

	ck_assert_int_eq(fm_block_stage(pool, fm_layers_length(2, 100), 1, &block, 0), 0);
	ck_assert_int_eq(fm_layers_begin(pool, &block, 2, 100, &id), 0);
	ck_assert_int_eq(fm_layers_join(pool, &id, &joined), 0);
	memset(block.data, 3, 200);
	ck_assert_int_eq(fm_layers_seal(pool, &block, 0, 2), 0);
	ck_assert_int_eq(fm_layers_wait(pool, &joined, 1, 0), 0);
	fm_block_discard(pool, &block, 1);
	fm_block_release(pool, &joined, 1);
}

static void *use(void *argument)
{
	uint32_t seed = *(uint32_t *)argument;

	for (uint32_t round = 0; round < 200; round++) {
		struct fm_pool_info info = {.size = sizeof(info)};
		struct fm_block_info walked;
		struct fm_key key;
		uint32_t cursor = 0;

		seed = seed * 1103515245u + 12345u;
		key = key_of((seed >> 16) % 40 * 2);
		switch ((seed >> 8) % 8) {
		case 0:
			ck_assert_int_ge(fm_pool_remove(pool, &key, 1), 0);
			break;
		case 1:
			ck_assert_int_eq(fm_pool_info(pool, &info), 0);
			break;
		case 2:
			while (fm_pool_walk(pool, &cursor, &walked) == 1)
				;
			break;
		case 3:
			in_layers();
			break;
		default:
			write_and_read(seed >> 16);
		}
	}
	return NULL;
}

START_TEST(threads_share_a_handle)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	uint32_t seeds[4] = {1, 2, 3, 4};
	struct fm_client_info client;
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, use, &seeds[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_gt(atomic_load(&read_whole), 0);
	do {
		ck_assert_int_eq(fm_pool_info(pool, &info), 0);
	} while (info.blocks_staging || info.blocks_removed);
	ck_assert_int_eq(fm_pool_clients(pool, &client, 1), 1);
	ck_assert_uint_eq(client.leases, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_life");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(all, start, stop);
	tcase_add_test(all, a_child_is_refused_and_its_parent_unharmed);
	tcase_add_test(all, a_child_detaches_while_threads_wait);
	tcase_add_test(all, exec_inherits_nothing);
	tcase_add_test(all, an_attached_socket_is_of_no_use_to_others);
	tcase_add_test(all, a_failed_acquire_leaves_no_holds);
	tcase_add_test(all, an_early_end_frees_everything);
	tcase_add_test(all, a_silent_daemon_is_asked_once_by_a_put);
	tcase_add_test(all, a_put_keeps_its_deadline_at_the_seal);
	tcase_add_test(all, a_queued_remove_keeps_its_deadline);
	tcase_add_test(all, threads_share_a_handle);
	tcase_set_timeout(all, 120);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
