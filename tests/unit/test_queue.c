// SPDX-License-Identifier: Apache-2.0
/*
 * The submission and completion form through the public calls: results key by key, deadlines,
 * cancelling (nothing is written into memory that is gone), a pool that is detached under its
 * queue, a fork, and many threads on one queue. Nothing here depends on how fast anything is.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "pool_rig.h"

#define LONG_NS	    60000000000ull
#define ENTRIES	    64u
#define VALUE	    (256u << 10)
#define EVERLASTING (3600ull * 1000000000ull)

static const struct fm_digest ns = {{1}};
static struct pool_rig rig;
static struct fm_pool *pool;
static void start_on(uint64_t nvme_bytes)
{
	const struct fm_server_options options = {
		.pool_bytes = 32 << 20,
		.entries_max = ENTRIES,
		.nvme_bytes = nvme_bytes,
		.nvme_flags = nvme_bytes ? FM_NVME_NOT_DURABLE : 0,
	};

	pool_rig_start(&rig, &options);
	pool = pool_rig_attach(&rig, 0, 0);
}

static void start(void)
{
	start_on(0);
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

static struct fm_queue *create(uint32_t depth, uint32_t workers)
{
	struct fm_queue_options options = {
		.size = sizeof(options), .depth = depth, .workers = workers};
	struct fm_queue *queue;

	ck_assert_msg(!fm_queue_create(pool, &options, &queue), "%s", fm_error_detail());
	return queue;
}

/* The one completion that has to come next. */
static struct fm_queue_done next(struct fm_queue *queue)
{
	struct fm_queue_done done;
	int64_t n = fm_queue_wait(queue, &done, 1, LONG_NS);

	ck_assert_msg(n == 1, "%lld %s", (long long)n, fm_error_detail());
	return done;
}

/* What was discarded is free soon: nobody waits for that. */
static void nothing_stays_staged(void)
{
	struct fm_pool_info now = {.size = sizeof(now), .blocks_staging = 1};

	for (int i = 0; i < 60000 && now.blocks_staging; i++) {
		ck_assert_int_eq(fm_pool_info(pool, &now), 0);
		usleep(1000);
	}
	ck_assert_uint_eq(now.blocks_staging, 0);
}

/* Every place of the index is staged, so that a put waits for room. */
static void fill_pool(struct fm_block *blocks)
{
	ck_assert_msg(!fm_block_stage(pool, 4096, ENTRIES, blocks, LONG_NS), "%s",
		      fm_error_detail());
}

START_TEST(requests_go_in_and_results_come_out_key_by_key)
{
	struct fm_queue *queue = create(0, 0);
	char *data = malloc(4 * VALUE), *back = malloc(4 * VALUE);
	struct iovec in[5], out[4];
	struct fm_put_parts puts[4] = {0};
	struct fm_get_parts gets[4] = {0};
	struct fm_key keys[4];
	int results[4];
	struct fm_block blocks[4];
	struct fm_queue_request request = {.size = sizeof(request), .user_data = 77, .n = 4};
	struct pollfd state = {.fd = fm_queue_fd(queue), .events = POLLIN};
	struct fm_queue_done done[8];
	uint64_t id = 0, count;

	for (uint32_t i = 0; i < 4 * VALUE; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	memset(back, 0x5a, 4 * VALUE);
	for (uint32_t i = 0; i < 4; i++) {
		keys[i] = key_of(i);
		in[i] = (struct iovec){data + i * VALUE, VALUE};
		out[i] = (struct iovec){back + i * VALUE, VALUE};
		puts[i] = (struct fm_put_parts){.key = keys[i], .parts = &in[i], .n_parts = 1};
		gets[i] = (struct fm_get_parts){.key = keys[i], .parts = &out[i], .n_parts = 1};
	}
	/* The third in two pieces; the fourth is not put. */
	in[3] = (struct iovec){data + 2 * VALUE + 1000, VALUE - 1000};
	in[2].iov_len = 1000;
	puts[2].n_parts = 2;
	ck_assert_int_eq(poll(&state, 1, 0), 0);
	ck_assert_int_eq(fm_queue_wait(queue, done, 8, 1), 0); /* nothing to wait for */
	request.op = FM_QUEUE_PUT;
	request.ns = &ns;
	request.puts = puts;
	request.n = 3;
	ck_assert_int_eq(fm_queue_submit(queue, &request, &id), 0);
	ck_assert_int_eq(poll(&state, 1, 60000), 1);
	ck_assert_int_eq(read(state.fd, &count, sizeof(count)), sizeof(count)); /* does no harm */
	ck_assert_int_eq(fm_queue_complete(queue, done, 8), 1);
	ck_assert_uint_eq(done[0].id, id);
	ck_assert_uint_eq(done[0].user_data, 77);
	ck_assert_int_eq(done[0].result, 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(puts[i].result, 0);
	ck_assert_int_eq(fm_queue_complete(queue, done, 8), 0);
	request = (struct fm_queue_request){
		.size = sizeof(request), .op = FM_QUEUE_GET, .n = 4, .gets = gets};
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, 3);
	ck_assert_int_eq(memcmp(back, data, 3 * VALUE), 0);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(gets[i].result, 0);
		ck_assert(gets[i].is_verified && gets[i].copied == VALUE);
	}
	ck_assert_int_eq(gets[3].result, FM_ERR_NOT_FOUND);
	for (uint32_t i = 0; i < VALUE; i++)
		ck_assert_int_eq(back[3 * VALUE + i], 0x5a); /* a miss leaves them untouched */
	request = (struct fm_queue_request){.size = sizeof(request),
					    .n = 4,
					    .keys = keys,
					    .results = results,
					    .blocks = blocks};
	for (request.op = FM_QUEUE_MATCH; request.op <= FM_QUEUE_ACQUIRE; request.op++) {
		ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
		ck_assert_int_eq(next(queue).result, 3);
		if (request.op == FM_QUEUE_FETCH || request.op == FM_QUEUE_EXISTS)
			for (int i = 0; i < 4; i++)
				ck_assert_int_eq(results[i], i < 3 ? 0 : FM_ERR_NOT_FOUND);
	}
	ck_assert_int_eq(memcmp(blocks[2].data, data + 2 * VALUE, VALUE), 0);
	fm_block_release(pool, blocks, 3);
	request.op = FM_QUEUE_REMOVE;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, 3);
	ck_assert_int_eq(fm_pool_match(pool, keys, 4), 0);
	fm_queue_destroy(queue);
	free(data);
	free(back);
}
END_TEST

START_TEST(what_is_wrong_with_a_request_is_said_at_once)
{
	struct fm_queue *queue = create(2, 1);
	struct fm_key key = key_of(1);
	struct fm_queue_request request = {.size = sizeof(request), .op = FM_QUEUE_MATCH, .n = 1};
	struct fm_queue_options options = {.size = sizeof(options), .depth = 4097};
	struct fm_queue *other;
	struct fm_queue_done done[4];

	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_INVALID);
	request.keys = &key;
	request.n = 0;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_LIMIT);
	request.n = 4097;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_LIMIT);
	request.n = 1;
	request.op = 8;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_INVALID);
	request.op = FM_QUEUE_EXISTS;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_INVALID);
	ck_assert_int_eq(fm_queue_create(pool, &options, &other), FM_ERR_LIMIT);
	/* As many as its depth, until they are collected. */
	request.op = FM_QUEUE_MATCH;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_BUSY);
	next(queue);
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	next(queue);
	next(queue);
	ck_assert_int_eq(fm_queue_complete(queue, done, 4), 0);
	fm_queue_destroy(queue);
	fm_queue_destroy(NULL);
}
END_TEST

START_TEST(a_deadline_holds_while_every_thread_waits)
{
	struct fm_queue *queue = create(0, 1);
	struct fm_block blocks[ENTRIES];
	struct fm_key key = key_of(1);
	struct iovec part = {(void *)"x", 1};
	struct fm_put_parts put = {.key = key_of(2), .parts = &part, .n_parts = 1};
	struct fm_queue_request waits = {.size = sizeof(waits),
					 .op = FM_QUEUE_PUT,
					 .n = 1,
					 .puts = &put,
					 .ns = &ns,
					 .deadline_ns = EVERLASTING,
					 .user_data = 1};
	struct fm_queue_request short_one = {.size = sizeof(short_one),
					     .op = FM_QUEUE_MATCH,
					     .n = 1,
					     .keys = &key,
					     .deadline_ns = 1000000,
					     .user_data = 2};
	struct fm_queue_done done;
	uint64_t id;

	fill_pool(blocks);
	ck_assert_int_eq(fm_queue_submit(queue, &waits, &id), 0);
	ck_assert_int_eq(fm_queue_submit(queue, &short_one, NULL), 0);
	done = next(queue);
	ck_assert_uint_eq(done.user_data, 2);
	ck_assert_int_eq(done.result, FM_ERR_DEADLINE);
	/* It waits still: cancelled, it is over. */
	ck_assert_int_eq(fm_queue_wait(queue, &done, 1, 1000000), FM_ERR_DEADLINE);
	ck_assert_int_eq(fm_queue_cancel(queue, id), 0);
	ck_assert_int_eq(fm_queue_cancel(queue, id), FM_ERR_NOT_FOUND);
	put.result = 12345; /* ours again */
	done = next(queue);
	ck_assert_uint_eq(done.id, id);
	ck_assert_int_eq(done.result, FM_ERR_CANCELLED);
	/* One that waits for its turn, and one whose own deadline passes while it waits for room.
	 */
	waits.deadline_ns = 20000000;
	ck_assert_int_eq(fm_queue_submit(queue, &waits, &id), 0);
	done = next(queue); /* its turn may come too late */
	ck_assert(done.result == FM_ERR_DEADLINE ||
		  (done.result == FM_ERR_POOL_FULL && put.result == FM_ERR_POOL_FULL));
	fm_block_discard(pool, blocks, ENTRIES);
	waits.deadline_ns = 0;
	ck_assert_int_eq(fm_queue_submit(queue, &waits, &id), 0);
	ck_assert_int_eq(next(queue).result, 0);
	fm_queue_destroy(queue);
	nothing_stays_staged();
}
END_TEST

/* Memory that is unmapped when cancel has returned: a byte written or read later ends the test. */
START_TEST(after_cancel_nothing_touches_the_memory)
{
	struct fm_queue *queue = create(0, 2);
	size_t size = 8 * (4u << 20);
	struct fm_put_parts put = {.key = key_of(1), .n_parts = 1};
	struct fm_get_parts gets[8] = {0};
	struct iovec part = {malloc(4 << 20), 4 << 20}, parts[8];
	struct fm_queue_request request = {.size = sizeof(request), .n = 8, .gets = gets};
	uint32_t cancelled = 0;
	struct fm_block held;

	memset(part.iov_base, 7, 4 << 20);
	put.parts = &part;
	ck_assert_int_eq(fm_pool_put_parts(pool, &ns, &put, 1, 0), 0);
	ck_assert_int_eq(fm_pool_acquire(pool, &put.key, 1, &held), 1); /* it stays */
	for (uint32_t round = 0; round < 60; round++) {
		char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				    -1, 0);
		struct fm_put_parts *puts = malloc(sizeof(*puts) * 8);
		uint64_t id;

		ck_assert_ptr_ne(memory, MAP_FAILED);
		for (uint32_t i = 0; i < 8; i++) {
			parts[i] = (struct iovec){memory + i * (4u << 20), 4 << 20};
			gets[i] = (struct fm_get_parts){
				.key = key_of(1), .parts = &parts[i], .n_parts = 1};
			puts[i] = (struct fm_put_parts){.key = key_of(2 + i),
							.parts = &parts[i],
							.n_parts = 1,
							.flags = FM_SEAL_REPLACE};
		}
		request.op = round % 2 ? FM_QUEUE_GET : FM_QUEUE_PUT;
		request.n = round % 2 ? 8 : 4;
		request.puts = puts;
		request.ns = &ns;
		ck_assert_int_eq(fm_queue_submit(queue, &request, &id), 0);
		for (uint32_t i = 0; i < round % 40; i++)
			usleep(20); /* any moment will do */
		if (!fm_queue_cancel(queue, id))
			cancelled++;
		else
			ck_assert_int_eq(next(queue).result, round % 2 ? 8 : 0);
		munmap(memory, size);
		free(puts);
		if (cancelled) {
			struct fm_queue_done done[1];

			while (fm_queue_complete(queue, done, 1) == 1)
				ck_assert_int_eq(done[0].result, FM_ERR_CANCELLED);
		}
	}
	ck_assert_uint_gt(cancelled, 0);
	fm_queue_destroy(queue);
	fm_block_release(pool, &held, 1);
	nothing_stays_staged();
	free(part.iov_base);
}
END_TEST

START_TEST(a_detached_pool_leaves_a_queue_to_collect)
{
	struct fm_queue *queue = create(0, 1);
	struct fm_block blocks[ENTRIES];
	struct iovec part = {(void *)"x", 1};
	struct fm_put_parts put = {.key = key_of(2), .parts = &part, .n_parts = 1};
	struct fm_queue_request request = {.size = sizeof(request),
					   .op = FM_QUEUE_PUT,
					   .n = 1,
					   .puts = &put,
					   .ns = &ns,
					   .deadline_ns = EVERLASTING};
	struct fm_queue_done done[16];

	fill_pool(blocks);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	fm_pool_detach(pool);
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), FM_ERR_DISCONNECTED);
	ck_assert_int_eq(fm_queue_complete(queue, done, 16), 10);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(done[i].result, FM_ERR_CANCELLED);
	ck_assert_int_eq(fm_queue_wait(queue, done, 16, 0), 0);
	fm_queue_destroy(queue);
	pool = pool_rig_attach(&rig, 0, 0);
	queue = create(0, 0); /* and one that is destroyed with requests in it */
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	fm_queue_destroy(queue);
}
END_TEST

START_TEST(a_child_has_no_queue_and_no_pool)
{
	struct fm_queue *queue = create(0, 0);
	struct fm_key key = key_of(1);
	struct fm_queue_request request = {
		.size = sizeof(request), .op = FM_QUEUE_MATCH, .n = 1, .keys = &key};
	struct fm_queue_done done;
	int status;
	pid_t child = fork();

	if (!child) {
		struct fm_attach_options options = {
			.size = sizeof(options), .socket = rig.socket, .fd = -1};
		struct fm_queue *other;
		struct fm_pool *own;
		int bad = 0;

		bad |= fm_queue_submit(queue, &request, NULL) != FM_ERR_FORKED;
		bad |= fm_queue_complete(queue, &done, 1) != FM_ERR_FORKED;
		bad |= fm_queue_wait(queue, &done, 1, 0) != FM_ERR_FORKED;
		bad |= fm_queue_cancel(queue, 1) != FM_ERR_FORKED;
		bad |= fm_queue_create(pool, NULL, &other) != FM_ERR_FORKED;
		/* Attached for itself, what it inherited is still the parent's. */
		bad |= fm_server_connect(rig.server, &status) != FM_ERR_FORKED;
		bad |= fm_pool_attach(&options, &own) != 0;
		bad |= fm_pool_match(own, &key, 1) != 0;
		bad |= fm_pool_match(pool, &key, 1) != FM_ERR_FORKED;
		fm_queue_destroy(queue);
		fm_pool_detach(pool);
		_exit(bad);
	}
	waitpid(child, &status, 0);
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, 0);
	fm_queue_destroy(queue);
}
END_TEST

/* What memory has no room for comes back from NVMe, by gets of any keys and by chains. */
START_TEST(a_queue_fetches_what_is_not_in_memory)
{
	enum { N = ENTRIES + 40 };
	struct fm_pool_info now = {.size = sizeof(now)};
	static char data[N][70000], back[N][70000];
	struct fm_get_parts gets[N];
	struct iovec parts[N];
	struct fm_queue *queue;
	struct fm_key keys[N];
	struct fm_block blocks[8];
	int results[N];
	struct fm_queue_request request = {.size = sizeof(request), .n = N, .deadline_ns = LONG_NS};

	stop();
	start_on(260 << 20);
	queue = create(0, 0);
	for (uint32_t i = 0; i < N; i++) {
		struct fm_put put = {.key = key_of(i), .data = data[i], .length = sizeof(data[i])};

		memset(data[i], (int)i, sizeof(data[i]));
		keys[i] = put.key;
		/* As a chain of its own for each: only room decides what goes. */
		ck_assert_int_eq(fm_pool_put(pool, &ns, &put, 1, LONG_NS), 0);
		do /* what goes before it is written does not come back */
			ck_assert_int_eq(fm_pool_info(pool, &now), 0);
		while (now.nvme_stored < i + 1);
		parts[i] = (struct iovec){back[i], sizeof(back[i])};
		gets[i] = (struct fm_get_parts){.key = put.key, .parts = &parts[i], .n_parts = 1};
	}
	ck_assert_uint_lt(now.blocks_sealed, N);
	request.op = FM_QUEUE_GET;
	request.gets = gets;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, N);
	ck_assert_int_eq(memcmp(back, data, sizeof(data)), 0);
	/* The first have gone again: a chain of a few of them. */
	request = (struct fm_queue_request){.size = sizeof(request),
					    .op = FM_QUEUE_ACQUIRE,
					    .n = 8,
					    .keys = keys,
					    .blocks = blocks,
					    .deadline_ns = LONG_NS};
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, 8);
	fm_block_release(pool, blocks, 8);
	request.op = FM_QUEUE_FETCH;
	request.results = results;
	request.keys = keys + 20;
	ck_assert_int_eq(fm_queue_submit(queue, &request, NULL), 0);
	ck_assert_int_eq(next(queue).result, 8);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(results[i], 0);
	ck_assert_int_eq(fm_pool_info(pool, &now), 0);
	ck_assert_uint_gt(now.nvme_fetched, 0);
	fm_queue_destroy(queue);
}
END_TEST

struct client {
	struct fm_queue *queue;
	uint32_t seed;
	pthread_t thread;
	uint64_t submitted, ended;
};

/* Submits, cancels and collects what may be another's. */
static void *use(void *argument)
{
	struct client *client = argument;
	char data[3][5000];
	struct iovec parts[3];
	struct fm_put_parts puts[3] = {0};
	struct fm_get_parts gets[3] = {0};
	struct fm_queue_done done[4];
	int64_t n;

	for (uint32_t round = 0; round < 60; round++) {
		struct fm_queue_request request = {.size = sizeof(request), .n = 3, .ns = &ns};
		uint64_t id;

		for (uint32_t i = 0; i < 3; i++) {
			parts[i] = (struct iovec){data[i], sizeof(data[i])};
			puts[i] = (struct fm_put_parts){
				.key = key_of(i), .parts = &parts[i], .n_parts = 1};
			gets[i] = (struct fm_get_parts){
				.key = key_of(i), .parts = &parts[i], .n_parts = 1};
			memset(data[i], (int)i, sizeof(data[i]));
		}
		request.op = round % 3 ? FM_QUEUE_GET : FM_QUEUE_PUT;
		request.gets = gets;
		request.puts = puts;
		if (fm_queue_submit(client->queue, &request, &id))
			continue; /* full: others have to collect first */
		client->submitted++;
		if ((round + client->seed) % 4 == 0)
			fm_queue_cancel(client->queue, id);
		/* Its own memory is in use until it is known to have ended: cancelled or not. */
		while (fm_queue_cancel(client->queue, id) != FM_ERR_NOT_FOUND)
			;
		n = fm_queue_complete(client->queue, done, 4);
		client->ended += n > 0 ? (uint64_t)n : 0;
	}
	return NULL;
}

START_TEST(many_threads_use_one_queue)
{
	struct client clients[4] = {0};
	struct fm_queue *queue = create(16, 3);
	uint64_t submitted = 0, ended = 0;
	struct fm_queue_done done[8];
	int64_t n;

	for (uint32_t i = 0; i < 4; i++) {
		clients[i].queue = queue;
		clients[i].seed = i;
		ck_assert_int_eq(pthread_create(&clients[i].thread, NULL, use, &clients[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(clients[i].thread, NULL);
		submitted += clients[i].submitted;
		ended += clients[i].ended;
	}
	while ((n = fm_queue_wait(queue, done, 8, LONG_NS)) > 0)
		ended += (uint64_t)n;
	ck_assert_int_eq(n, 0);
	ck_assert_uint_eq(submitted, ended);
	ck_assert_uint_gt(submitted, 0);
	fm_queue_destroy(queue);
	nothing_stays_staged();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("queue");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(all, start, stop);
	tcase_add_test(all, requests_go_in_and_results_come_out_key_by_key);
	tcase_add_test(all, what_is_wrong_with_a_request_is_said_at_once);
	tcase_add_test(all, a_deadline_holds_while_every_thread_waits);
	tcase_add_test(all, after_cancel_nothing_touches_the_memory);
	tcase_add_test(all, a_detached_pool_leaves_a_queue_to_collect);
	tcase_add_test(all, a_child_has_no_queue_and_no_pool);
	tcase_add_test(all, a_queue_fetches_what_is_not_in_memory);
	tcase_add_test(all, many_threads_use_one_queue);
	tcase_set_timeout(all, 120);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
