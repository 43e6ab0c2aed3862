// SPDX-License-Identifier: Apache-2.0
/*
 * Server and clients in one process, over real shared memory and a real socket pair: the life of a
 * block through the public calls, failures by name, and threads that acquire while others evict,
 * each checking every byte it was given.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "base/clock.h"
#include "pool/client.h"
#include "pool_rig.h"

/* For threads: ck_assert() takes a lock each time, which orders all that ThreadSanitizer sees. */
#define MUST(claim)                                                                                \
	do {                                                                                       \
		if (!(claim))                                                                      \
			ck_abort_msg("%s: %s", #claim, fm_error_detail());                         \
	} while (0)

static void start_pool(struct pool_rig *rig, uint64_t bytes)
{
	pool_rig_start(rig, &(struct fm_server_options){.pool_bytes = bytes,
							.quarantine_ns = 50 * FM_NS_PER_MS});
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	key.bytes[15] = 1;
	return key;
}

static const struct fm_digest ns = {{3}};

static void fill(struct fm_block *block, uint32_t n)
{
	uint32_t *words = block->data;

	for (uint64_t i = 0; i < block->length / 4; i++)
		words[i] = n * 2654435761u + (uint32_t)i;
}

static bool is_filled(const struct fm_block *block, uint32_t n)
{
	const uint32_t *words = block->data;

	for (uint64_t i = 0; i < block->length / 4; i++)
		if (words[i] != n * 2654435761u + (uint32_t)i)
			return false;
	return true;
}

static int put(struct fm_pool *pool, uint64_t length, uint32_t n, struct fm_block *block)
{
	struct fm_seal seal = {.block = block, .key = key_of(n)};
	int err = fm_block_stage(pool, length, 1, block, 0);

	if (err)
		return err;
	fill(block, n);
	err = fm_block_seal(pool, &ns, &seal, 1);
	MUST(err == seal.result);
	return err;
}

static struct fm_pool_info info_of(struct fm_pool *pool)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	MUST(fm_pool_info(pool, &info) == 0);
	return info;
}

START_TEST(a_block_goes_from_one_client_to_another)
{
	struct pool_rig rig;
	struct fm_pool *writer, *reader;
	struct fm_block staged[300], got[300];
	struct fm_seal seals[300];
	struct fm_key keys[300];
	struct fm_block_info block;
	uint32_t cursor = 0, seen = 0;

	start_pool(&rig, 32 << 20);
	writer = pool_rig_attach(&rig, 0, 0);
	reader = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	ck_assert_int_eq(fm_block_stage(writer, 5000, 300, staged, 0), 0);
	for (uint32_t i = 0; i < 300; i++) {
		ck_assert_uint_eq((uintptr_t)staged[i].data % 4096, 0);
		fill(&staged[i], i);
		keys[i] = key_of(i);
		seals[i] = (struct fm_seal){
			.block = &staged[i], .key = keys[i], .parent = i ? &keys[i - 1] : NULL};
	}
	ck_assert_int_eq(fm_pool_match(reader, keys, 300), 0);
	ck_assert_int_eq(fm_block_seal(writer, &ns, seals, 300), 0);
	ck_assert_int_eq(fm_pool_match(reader, keys, 300), 300);
	ck_assert_int_eq(fm_pool_acquire(reader, keys, 300, got), 300);
	for (uint32_t i = 0; i < 300; i++) {
		ck_assert(is_filled(&got[i], i));
		ck_assert_uint_eq(got[i].origin, fm_pool_client_id(writer));
		ck_assert_int_eq(fm_block_verify(reader, &got[i]), 0);
	}
	while (fm_pool_walk(reader, &cursor, &block) == 1) {
		ck_assert_mem_eq(&block.parent, seen ? &keys[seen - 1] : &(struct fm_key){{0}}, 16);
		ck_assert_mem_eq(block.ns, &ns, 16);
		seen++;
	}
	ck_assert_uint_eq(seen, 300);
	/* A write through the writer's mapping is found out by the next verified read. */
	((char *)staged[7].data)[100] ^= 1;
	ck_assert_int_eq(fm_block_verify(reader, &got[7]), FM_ERR_CORRUPT);
	fm_block_release(reader, got, 300);
	fm_block_release(reader, got, 300); /* twice is harmless */
	fm_pool_detach(writer);
	ck_assert_int_eq(fm_pool_match(reader, keys, 300), 300);
	fm_pool_detach(reader);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(failures_have_names)
{
	struct pool_rig rig;
	struct fm_pool *pool, *reader;
	struct fm_block blocks[8], other, copy;
	struct fm_key keys[4] = {key_of(1), key_of(2), key_of(3), key_of(4)};
	struct fm_seal seal;
	uint64_t start;
	pid_t child;
	int status;

	start_pool(&rig, 16 << 20);
	pool = pool_rig_attach(&rig, 0, 3);
	reader = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	ck_assert_int_eq(fm_block_stage(reader, 4096, 1, blocks, 0), FM_ERR_PERMISSION);
	ck_assert_int_eq(fm_block_stage(pool, (4 << 20) + 1, 1, blocks, 0), FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "4194305"));
	ck_assert_int_eq(put(pool, 4096, 1, &blocks[0]), 0);
	ck_assert_int_eq(put(pool, 4096, 1, &other), FM_ERR_EXISTS);
	/* It stays staged, and may be sealed under another key. */
	copy = other;
	seal = (struct fm_seal){.block = &other, .key = keys[1]};
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), 0);
	seal.block = &copy;
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), FM_ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "another client staged it"));
	fm_block_discard(pool, &copy, 1); /* not staged any more: ignored */
	ck_assert_int_eq(put(pool, 4096, 3, &blocks[1]), 0);
	/* The table has three places, all taken: none more, and none lost. */
	ck_assert_int_eq(fm_pool_acquire(pool, keys, 3, blocks + 4), FM_ERR_LIMIT);
	ck_assert_int_eq(put(pool, 4096, 4, &copy), FM_ERR_LIMIT);
	fm_block_discard(pool, &copy, 1);
	fm_block_release(pool, &other, 1);
	ck_assert_int_eq(fm_pool_acquire(pool, keys + 3, 1, blocks + 4), 0);
	ck_assert_int_eq(fm_pool_acquire(pool, keys, 1, blocks + 4), 1);
	/* All or none, when the deadline passes. */
	start = fm_clock_ns();
	ck_assert_int_eq(fm_block_stage(pool, 4 << 20, 4, blocks, 30 * FM_NS_PER_MS),
			 FM_ERR_POOL_FULL);
	ck_assert_uint_ge(fm_clock_ns() - start, 25 * FM_NS_PER_MS);
	ck_assert_int_eq(fm_block_stage(pool, 4 << 20, 5, blocks, 30 * FM_NS_PER_MS),
			 FM_ERR_LIMIT);
	ck_assert_int_eq(fm_block_stage(pool, 4 << 20, 3, blocks, 0), 0);
	fm_block_discard(pool, blocks, 3);
	child = fork();
	if (!child)
		_exit(fm_pool_match(pool, keys, 1) == FM_ERR_FORKED ? 0 : 1);
	waitpid(child, &status, 0);
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	while (info_of(pool).blocks_staging) /* a discard has no answer */
		;
	fm_pool_detach(pool);
	fm_pool_detach(reader);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(a_pinned_block_outlives_the_others)
{
	struct pool_rig rig;
	struct fm_pool *pool, *reader;
	struct fm_hint hint = {.size = sizeof(hint), .pin_ns = 1000000000000ull, .priority = 2};
	struct fm_block block, other;

	start_pool(&rig, 16 << 20);
	pool = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(put(pool, 1 << 20, 1, &block), 0);
	ck_assert_int_eq(fm_block_hint(pool, &block, &hint), 0);
	fm_block_release(pool, &block, 1);
	for (uint32_t i = 2; i < 200; i++) {
		ck_assert_int_eq(put(pool, 1 << 20, i, &other), 0);
		fm_block_release(pool, &other, 1);
	}
	ck_assert_int_eq(fm_pool_match(pool, &(struct fm_key){{1, [15] = 1}}, 1), 1);
	ck_assert_uint_le(info_of(pool).blocks_sealed, 16); /* of 199 */
	other.generation = UINT32_MAX;
	ck_assert_int_eq(fm_block_hint(pool, &other, &hint), FM_ERR_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "acquire its key again"));
	hint.priority = 17;
	ck_assert_int_eq(fm_block_hint(pool, &block, &hint), FM_ERR_INVALID);
	hint.priority = 0;
	reader = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	ck_assert_int_eq(fm_block_hint(reader, &block, &hint), FM_ERR_PERMISSION);
	fm_pool_detach(reader);
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(a_tail_changes_hands_once)
{
	struct pool_rig rig;
	struct fm_pool *a, *b;
	struct fm_block block, got;
	struct fm_seal seal;
	struct fm_key id;

	start_pool(&rig, 16 << 20);
	a = pool_rig_attach(&rig, 0, 0);
	b = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(fm_block_stage(a, 70000, 1, &block, 0), 0);
	fill(&block, 9);
	ck_assert_int_eq(fm_block_offer(a, &block, &id), 0);
	fm_pool_detach(a);
	ck_assert_int_eq(fm_block_adopt(b, &id, &got), 0);
	ck_assert(is_filled(&got, 9));
	ck_assert_int_eq(fm_block_adopt(b, &id, &block), FM_ERR_NOT_FOUND);
	seal = (struct fm_seal){.block = &got, .key = key_of(9)};
	ck_assert_int_eq(fm_block_seal(b, &ns, &seal, 1), 0);
	fm_pool_detach(b);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(what_a_client_leaves_is_freed)
{
	struct pool_rig rig;
	struct fm_pool *watcher, *plain, *device;
	struct fm_block blocks[4];
	struct fm_client_info clients[4];

	start_pool(&rig, 16 << 20);
	watcher = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	plain = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(fm_block_stage(plain, 4096, 3, blocks, 0), 0);
	ck_assert_int_eq(put(plain, 4096, 1, &blocks[3]), 0);
	ck_assert_int_eq(fm_pool_clients(watcher, clients, 4), 2);
	ck_assert_uint_eq(clients[1].staged, 3);
	ck_assert_uint_eq(clients[1].leases, 1);
	ck_assert_str_eq(clients[1].name, "test");
	fm_pool_detach(plain);
	while (info_of(watcher).clients != 1)
		usleep(1000);
	ck_assert_uint_eq(info_of(watcher).blocks_staging, 0);
	ck_assert_uint_eq(info_of(watcher).blocks_sealed, 1);
	device = pool_rig_attach(&rig, FM_ATTACH_DEVICES, 0);
	ck_assert_int_eq(fm_block_stage(device, 4096, 2, blocks, 0), 0);
	fm_pool_detach(device);
	while (info_of(watcher).blocks_quarantine != 2)
		usleep(1000);
	while (info_of(watcher).blocks_quarantine)
		usleep(1000);
	ck_assert_uint_eq(info_of(watcher).used_bytes, 4096);
	fm_pool_detach(watcher);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(a_stopped_server_leaves_held_memory_readable)
{
	struct pool_rig rig;
	struct fm_pool *pool;
	struct fm_block block, staged, more;
	struct fm_seal seal = {.block = &staged, .key = {{9}}};
	struct fm_put put_one = {.key = {{8}}, .data = &seal, .length = 8};

	start_pool(&rig, 16 << 20);
	pool = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(put(pool, 100000, 1, &block), 0);
	ck_assert_int_eq(fm_block_stage(pool, 4096, 1, &staged, 0), 0);
	ck_assert(fm_pool_is_connected(pool));
	pool_rig_stop(&rig);
	ck_assert_int_eq(fm_block_stage(pool, 4096, 1, &more, 0), FM_ERR_DISCONNECTED);
	/* Whoever looks at the results alone learns it, too. */
	ck_assert_int_eq(fm_block_seal(pool, &ns, &seal, 1), FM_ERR_DISCONNECTED);
	ck_assert_int_eq(seal.result, FM_ERR_DISCONNECTED);
	ck_assert_int_eq(fm_pool_put(pool, &ns, &put_one, 1, 0), FM_ERR_DISCONNECTED);
	ck_assert_int_eq(put_one.result, FM_ERR_DISCONNECTED);
	ck_assert(!fm_pool_is_connected(pool));
	ck_assert(is_filled(&block, 1));
	ck_assert_int_eq(fm_block_verify(pool, &block), 0);
	fm_block_release(pool, &block, 1);
	fm_pool_detach(pool);
}
END_TEST

START_TEST(the_protocol_refuses_what_it_does_not_know)
{
	struct pool_rig rig;
	struct fm_wire_request request = {
		.head = {FM_WIRE_MAGIC, FM_WIRE_VERSION, FM_WIRE_HELLO, sizeof(request), 0, 0},
		.leases = 16,
	};
	struct fm_wire_reply reply;
	const struct {
		size_t offset;
		uint32_t value;
		int result;
	} wrongs[] = {
		{offsetof(struct fm_wire_request, flags), 1u << 31, FM_ERR_UNSUPPORTED},
		{offsetof(struct fm_wire_request, head.version), 99, FM_ERR_VERSION},
		{offsetof(struct fm_wire_request, reserved), 1, FM_ERR_INVALID},
		{offsetof(struct fm_wire_request, head.reserved), 1, FM_ERR_INVALID},
		{offsetof(struct fm_wire_request, head.size), 8, FM_ERR_INVALID},
		{offsetof(struct fm_wire_request, head.type), FM_WIRE_INFO, FM_ERR_INVALID},
		{offsetof(struct fm_wire_request, leases), 1u << 20, FM_ERR_LIMIT},
		{offsetof(struct fm_wire_request, leases), 0, FM_ERR_LIMIT},
	};
	int fd;

	fm_log_set_level(FM_LOG_ERROR);
	start_pool(&rig, 16 << 20);
	for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
		struct fm_wire_request wrong = request;
		struct timeval limit = {.tv_sec = 5};

		memcpy((char *)&wrong + wrongs[i].offset, &wrongs[i].value, 4);
		ck_assert_int_eq(fm_server_connect(rig.server, &fd), 0);
		ck_assert_int_eq(fm_wire_send(fd, &wrong, sizeof(wrong), NULL, 0), 0);
		while (recv(fd, &reply, sizeof(reply), 0) < 0 && errno == EAGAIN)
			usleep(200);
		ck_assert_int_eq(reply.head.result, wrongs[i].result);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		close(fd);
	}
	/* What was sent before there were tenants is a hello; what ends before that is none. */
	for (size_t cut = 0; cut < 2; cut++) {
		struct fm_wire_request early = request;

		early.head.size = (uint32_t)(FM_WIRE_REQUEST_MIN - cut);
		ck_assert_int_eq(fm_server_connect(rig.server, &fd), 0);
		ck_assert_int_eq(fm_wire_send(fd, &early, early.head.size, NULL, 0), 0);
		while (recv(fd, &reply, sizeof(reply), 0) < 0 && errno == EAGAIN)
			usleep(200);
		ck_assert_int_eq(reply.head.result, cut ? FM_ERR_INVALID : 0);
		close(fd);
	}
	/* Rubbish of any length ends the connection and nothing else. */
	for (size_t length = 1; length < 300; length += 13) {
		char rubbish[300];

		memset(rubbish, 0xa5, sizeof(rubbish));
		ck_assert_int_eq(fm_server_connect(rig.server, &fd), 0);
		fm_wire_send(fd, rubbish, length, NULL, 0);
		close(fd);
	}
	fm_pool_detach(pool_rig_attach(&rig, 0, 0));
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(a_hostile_ring_ends_its_own_client_only)
{
	struct pool_rig rig;
	struct fm_pool *bad, *good;
	struct fm_block block;
	unsigned seed = 7;

	fm_log_set_level(FM_LOG_ERROR);
	start_pool(&rig, 16 << 20);
	good = pool_rig_attach(&rig, 0, 0);
	bad = pool_rig_attach(&rig, 0, 0);
	/* Well-formed positions, random contents: every operation is validated. */
	for (int i = 0; i < 20000; i++) {
		struct fm_submission s;
		struct fm_completion c;

		for (size_t k = 0; k < sizeof(s) / 4; k++)
			((uint32_t *)&s)[k] = (uint32_t)rand_r(&seed) & (k % 3 ? 7 : ~0u);
		s.op = 2 + (uint32_t)rand_r(&seed) % 6;
		while (!fm_ring_room(&bad->ring))
			while (fm_ring_completion(&bad->ring, &c))
				;
		fm_ring_submit(&bad->ring, &s);
		fm_ring_must_wake_daemon(&bad->ring);
		if (write(bad->submitted, &(uint64_t){1}, 8) != 8)
			ck_abort();
		while (fm_ring_completion(&bad->ring, &c))
			;
	}
	ck_assert_int_eq(put(good, 4096, 1, &block), 0);
	/* Impossible positions: the client is put out. */
	fm_store_relaxed(&bad->ring.shared->sq_tail.value, bad->ring.sq_position + 5000);
	ck_assert_int_eq((int)write(bad->submitted, &(uint64_t){1}, 8), 8);
	while (fm_pool_is_connected(bad))
		usleep(1000);
	ck_assert_int_eq(put(good, 4096, 2, &block), 0);
	ck_assert_uint_eq(info_of(good).clients, 1);
	fm_pool_detach(bad);
	fm_pool_detach(good);
	pool_rig_stop(&rig);
}
END_TEST

START_TEST(sockets_are_guarded)
{
	char folder[SCRATCH_MAX], path[SCRATCH_MAX + 8];
	struct fm_server_options options = {
		.size = sizeof(options), .pool_bytes = 16 << 20, .memory = "memfd", .socket = path};
	struct fm_attach_options to = {.size = sizeof(to), .socket = path, .fd = -1};
	struct fm_server *second;
	struct fm_pool *pool;
	struct pool_rig rig;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int stale = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	/* A dead daemon's socket is replaced. */
	scratch_folder(folder);
	snprintf(path, sizeof(path), "%s/of-both", folder);
	strcpy(address.sun_path, path);
	ck_assert_int_eq(bind(stale, (struct sockaddr *)&address, sizeof(address)), 0);
	close(stale);
	pool_rig_start(&rig, &options);
	ck_assert_int_eq(fm_server_create(&options, &second), FM_ERR_EXISTS);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), path));
	ck_assert_int_eq(fm_pool_attach(&to, &pool), 0);
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
	ck_assert_int_ne(access(path, F_OK), 0);
	ck_assert_int_eq(fm_pool_attach(&to, &pool), FM_ERR_DISCONNECTED);
	options.socket = NULL;
	options.pool_bytes = 1ull << 44;
	ck_assert_int_eq(fm_server_create(&options, &second), FM_ERR_NO_MEMORY);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "="));
	options.pool_bytes = 4 << 20;
	ck_assert_int_eq(fm_server_create(&options, &second), FM_ERR_INVALID);
	options.pool_bytes = 16 << 20;
	options.policy = "psychic";
	ck_assert_int_eq(fm_server_create(&options, &second), FM_ERR_INVALID);
	scratch_remove(folder);
}
END_TEST

/* Options that were only zeroed name standard input: it stays, and the words say what to set. */
START_TEST(a_descriptor_that_is_no_pools_stays_open)
{
	struct fm_attach_options options = {.size = sizeof(options)};
	int pipes[2], stream[2], packets[2], input = open("/dev/null", O_RDONLY);
	int keep = dup(STDIN_FILENO);
	struct fm_pool *pool;

	ck_assert_int_eq(dup2(input, STDIN_FILENO), STDIN_FILENO);
	ck_assert(!pipe(pipes) && !socketpair(AF_UNIX, SOCK_STREAM, 0, stream) &&
		  !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets));
	for (int i = 0; i < 4; i++) {
		options.fd = (int[]){STDIN_FILENO, pipes[1], stream[0], 1 << 19}[i];
		ck_assert_int_eq(fm_pool_attach(&options, &pool), FM_ERR_INVALID);
		ck_assert_ptr_nonnull(strstr(fm_error_detail(), "set fd to -1"));
		ck_assert(i == 3 || fcntl(options.fd, F_GETFD) >= 0);
	}
	/* Of the right kind, though nobody answers: taken over, and closed. */
	close(packets[1]);
	options.fd = packets[0];
	ck_assert_int_eq(fm_pool_attach(&options, &pool), FM_ERR_DISCONNECTED);
	ck_assert_int_eq(fcntl(packets[0], F_GETFD), -1);
	for (int i = 0; i < 2; i++)
		close(pipes[i]), close(stream[i]);
	if (keep >= 0)
		dup2(keep, STDIN_FILENO), close(keep);
	close(input);
}
END_TEST

START_TEST(the_loop_serves_without_io_uring)
{
	struct fm_pool *pool;
	struct fm_block block;
	struct pool_rig rig;

	setenv("FABRICMGR_LOOP", "poll", 1);
	start_pool(&rig, 16 << 20);
	pool = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(put(pool, 4096, 1, &block), 0);
	ck_assert_str_eq(info_of(pool).loop, "poll");
	ck_assert_uint_gt(strlen(info_of(pool).loop_reason), 0);
	fm_pool_detach(pool);
	pool_rig_stop(&rig);
	unsetenv("FABRICMGR_LOOP");
}
END_TEST

/* ---- threads that acquire while others evict ---- */

enum { STRESS_KEYS = 400, STRESS_THREADS = 4 };

struct stress {
	struct fm_pool *pool;
	uint32_t seed;
	uint64_t hits;
	_Atomic bool *is_over;
};

/* Blocks of three classes compete for 8 chunks, so the pool evicts all the time. */
static uint64_t length_of(uint32_t n)
{
	static const uint64_t lengths[] = {40000, 300000, 8192};

	return lengths[n % 3];
}

static void *stress_thread(void *context)
{
	struct stress *stress = context;

	while (!atomic_load(stress->is_over)) {
		uint32_t n = (uint32_t)rand_r(&stress->seed) % STRESS_KEYS;
		struct fm_key key = key_of(n);
		struct fm_block block;

		if (fm_pool_acquire(stress->pool, &key, 1, &block) == 1) {
			MUST(block.length == length_of(n));
			MUST(is_filled(&block, n));
			stress->hits++;
		} else {
			int err = put(stress->pool, length_of(n), n, &block);

			if (err == FM_ERR_EXISTS) {
				fm_block_discard(stress->pool, &block, 1);
				continue;
			}
			MUST(!err);
		}
		fm_block_release(stress->pool, &block, 1);
	}
	return NULL;
}

START_TEST(readers_never_see_a_wrong_byte_while_blocks_are_evicted)
{
	struct pool_rig rig;
	struct stress stress[STRESS_THREADS];
	pthread_t threads[STRESS_THREADS];
	_Atomic bool is_over = false;
	struct fm_pool *pools[2];
	struct fm_pool_info info;
	uint64_t hits = 0;

	start_pool(&rig, 32 << 20);
	pools[0] = pool_rig_attach(&rig, 0, 0);
	pools[1] = pool_rig_attach(&rig, 0, 0);
	for (uint32_t i = 0; i < STRESS_THREADS; i++) {
		stress[i] =
			(struct stress){.pool = pools[i % 2], .seed = i + 1, .is_over = &is_over};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, stress_thread, &stress[i]), 0);
	}
	usleep(1500 * 1000);
	while (!info_of(pools[0]).evictions)
		usleep(1000);
	atomic_store(&is_over, true);
	for (uint32_t i = 0; i < STRESS_THREADS; i++) {
		pthread_join(threads[i], NULL);
		hits += stress[i].hits;
	}
	do /* a discard has no answer: it may still be on its way */
		info = info_of(pools[0]);
	while (info.blocks_staging);
	ck_assert_uint_gt(hits, 0);
	printf("stress: %llu hits, %llu seals, %llu evictions\n", (unsigned long long)hits,
	       (unsigned long long)info.seals, (unsigned long long)info.evictions);
	fm_pool_detach(pools[0]);
	fm_pool_detach(pools[1]);
	pool_rig_stop(&rig);
}
END_TEST

enum { LIVES = 6, CHAIN = 5 };

struct lives {
	struct pool_rig *rig;
	uint32_t seed;
	uint64_t hits;
};

/* A chain of the key space: put what is missing, read all that is there, verified. */
static void one_chain(struct fm_pool *pool, struct lives *lives)
{
	uint32_t first = (uint32_t)rand_r(&lives->seed) % (STRESS_KEYS / CHAIN) * CHAIN;
	struct fm_block blocks[CHAIN], staged;
	struct fm_key keys[CHAIN];
	int64_t n;

	for (uint32_t i = 0; i < CHAIN; i++)
		keys[i] = key_of(first + i);
	for (uint32_t i = (uint32_t)fm_pool_match(pool, keys, CHAIN); i < CHAIN; i++) {
		int err = put(pool, length_of(first + i), first + i, &staged);

		if (err == FM_ERR_EXISTS)
			fm_block_discard(pool, &staged, 1);
		else
			fm_block_release(pool, &staged, 1);
		MUST(!err || err == FM_ERR_EXISTS);
	}
	n = fm_pool_acquire(pool, keys, CHAIN, blocks);
	MUST(n >= 0);
	for (int64_t i = 0; i < n; i++) {
		MUST(is_filled(&blocks[i], first + (uint32_t)i));
		MUST(fm_block_verify(pool, &blocks[i]) == 0);
	}
	lives->hits += (uint64_t)n;
	fm_block_release(pool, blocks, (size_t)n);
}

static void *live(void *context)
{
	struct lives *lives = context;

	for (int life = 0; life < LIVES; life++) {
		struct fm_pool *pool =
			pool_rig_attach(lives->rig, life % 2 ? FM_ATTACH_DEVICES : 0, 64);
		struct fm_block left[2];

		for (int i = 0; i < 12; i++)
			one_chain(pool, lives);
		/* Left staged: the server takes it back while others stage. */
		MUST(fm_block_stage(pool, 8192, 2, left, 0) == 0);
		fm_pool_detach(pool);
	}
	return NULL;
}

START_TEST(clients_come_and_go_while_others_read_and_evict)
{
	struct pool_rig rig;
	struct lives lives[STRESS_THREADS];
	pthread_t threads[STRESS_THREADS];
	struct fm_pool_info info;
	struct fm_pool *watcher;
	uint64_t hits = 0;

	start_pool(&rig, 32 << 20);
	watcher = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	for (uint32_t i = 0; i < STRESS_THREADS; i++) {
		lives[i] = (struct lives){.rig = &rig, .seed = 100 + i};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, live, &lives[i]), 0);
	}
	for (uint32_t i = 0; i < STRESS_THREADS; i++) {
		pthread_join(threads[i], NULL);
		hits += lives[i].hits;
	}
	do
		info = info_of(watcher);
	while (info.clients != 1 || info.blocks_staging || info.blocks_quarantine);
	ck_assert_uint_gt(hits, 0);
	ck_assert_uint_gt(info.evictions, 0);
	fm_pool_detach(watcher);
	pool_rig_stop(&rig);
}
END_TEST

enum { GLANCED = 40 };

struct glimpse {
	struct fm_pool *pool;
	_Atomic bool is_read, is_over;
};

/* Reads what is there, then does nothing that anybody could see: that it is through, the server
 * knows from its leases alone. */
static void *glance(void *context)
{
	struct glimpse *glimpse = context;

	for (uint32_t n = 0; n < GLANCED; n++) {
		struct fm_key key = key_of(n);
		struct fm_block block;

		MUST(fm_pool_acquire(glimpse->pool, &key, 1, &block) == 1);
		MUST(is_filled(&block, n));
		fm_block_release(glimpse->pool, &block, 1);
	}
	atomic_store_explicit(&glimpse->is_read, true, memory_order_relaxed);
	while (!atomic_load_explicit(&glimpse->is_over, memory_order_relaxed))
		usleep(1000);
	return NULL;
}

static void put_some(struct fm_pool *pool, uint32_t n)
{
	struct fm_block block;
	int err = put(pool, length_of(n), n, &block);

	if (err == FM_ERR_EXISTS)
		fm_block_discard(pool, &block, 1);
	else
		fm_block_release(pool, &block, 1);
	MUST(!err || err == FM_ERR_EXISTS);
}

START_TEST(a_reader_is_through_before_its_block_is_filled_anew)
{
	struct pool_rig rig;
	struct glimpse glimpse = {0};
	struct fm_pool *writer;
	pthread_t thread;
	uint32_t n = 0;

	start_pool(&rig, 32 << 20);
	writer = pool_rig_attach(&rig, 0, 0);
	glimpse.pool = pool_rig_attach(&rig, FM_ATTACH_READ_ONLY, 0);
	while (n < GLANCED)
		put_some(writer, n++);
	ck_assert_int_eq(pthread_create(&thread, NULL, glance, &glimpse), 0);
	while (!atomic_load_explicit(&glimpse.is_read, memory_order_relaxed))
		usleep(1000);
	while (info_of(writer).evictions < 12 * GLANCED)
		put_some(writer, n++);
	atomic_store_explicit(&glimpse.is_over, true, memory_order_relaxed);
	pthread_join(thread, NULL);
	fm_pool_detach(glimpse.pool);
	fm_pool_detach(writer);
	pool_rig_stop(&rig);
}
END_TEST

/* Under ThreadSanitizer all mappings of a file are one: nothing is new to the second. */
#ifdef __SANITIZE_THREAD__
#define ONE_MAPPING true
#else
#define ONE_MAPPING false
#endif

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/* Page faults of a reader that looks at each page of 24 blocks of 1 MiB. */
static long faults_of_reading(struct pool_rig *rig, uint32_t flags)
{
	struct fm_pool *pool = pool_rig_attach(rig, flags, 0);
	struct fm_block blocks[24];
	long before;

	for (uint32_t n = 0; n < 24; n++) {
		struct fm_key key = key_of(n);

		ck_assert_int_eq(fm_pool_acquire(pool, &key, 1, &blocks[n]), 1);
	}
	before = faults();
	for (uint32_t n = 0; n < 24; n++)
		for (size_t i = 0; i < blocks[n].length; i += 4096)
			(void)*((volatile char *)blocks[n].data + i);
	before = faults() - before;
	fm_pool_detach(pool);
	return before;
}

START_TEST(pages_are_mapped_ahead)
{
	struct pool_rig rig;
	struct fm_pool *writer;
	struct fm_block block;
	long before, ahead, one_by_one;

	start_pool(&rig, 64 << 20);
	writer = pool_rig_attach(&rig, 0, 0);
	ck_assert_int_eq(fm_block_stage(writer, 1 << 20, 1, &block, 0), 0);
	before = faults();
	fill(&block, 0);
	ck_assert_int_lt(faults() - before, 128); /* of 256 pages; a sanitizer's own among them */
	fm_block_discard(writer, &block, 1);
	for (uint32_t n = 0; n < 24; n++) {
		ck_assert_int_eq(put(writer, 1 << 20, n, &block), 0);
		fm_block_release(writer, &block, 1);
	}
	one_by_one = faults_of_reading(&rig, FM_ATTACH_READ_ONLY);
	ahead = faults_of_reading(&rig, FM_ATTACH_READ_ONLY | FM_ATTACH_PREFAULT);
	ck_assert_int_gt(one_by_one, 100);
	ck_assert_int_lt(ahead, one_by_one / 2);
	fm_pool_detach(writer);
	pool_rig_stop(&rig);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pool_server");
	TCase *cases = tcase_create("server"), *reuse = tcase_create("reuse");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 60);
	tcase_add_test(cases, a_block_goes_from_one_client_to_another);
	tcase_add_test(cases, failures_have_names);
	tcase_add_test(cases, a_pinned_block_outlives_the_others);
	tcase_add_test(cases, a_tail_changes_hands_once);
	tcase_add_test(cases, what_a_client_leaves_is_freed);
	tcase_add_test(cases, a_stopped_server_leaves_held_memory_readable);
	tcase_add_test(cases, the_protocol_refuses_what_it_does_not_know);
	tcase_add_test(cases, a_hostile_ring_ends_its_own_client_only);
	tcase_add_test(cases, sockets_are_guarded);
	tcase_add_test(cases, a_descriptor_that_is_no_pools_stays_open);
	tcase_add_test(cases, the_loop_serves_without_io_uring);
	tcase_add_test(cases, clients_come_and_go_while_others_read_and_evict);
	tcase_add_test(cases, readers_never_see_a_wrong_byte_while_blocks_are_evicted);
	if (!ONE_MAPPING)
		tcase_add_test(cases, pages_are_mapped_ahead);
	suite_add_tcase(suite, cases);
	/* By itself for the planted race (tests/suites/sanitizers.py). */
	tcase_add_test(reuse, a_reader_is_through_before_its_block_is_filled_anew);
	tcase_set_timeout(reuse, 300);
	suite_add_tcase(suite, reuse);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
