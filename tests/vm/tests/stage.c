// SPDX-License-Identifier: Apache-2.0
/*
 * Staging and sealing: what a client may write and from when on it may not, batches with a result
 * for each entry, pins of a device (an io_uring buffer stands for one) that hold a seal off, the
 * baseline, clients that die in between.
 */
#include "module.h"
#include "uring.h"

#define BLOCK (64UL << 10)

static struct fabricmgr_region_create arena;
static int owner, writer;
static uint32_t writer_id;
static char *writer_memory, *reader_memory;

static uint32_t client_id(int fd)
{
	struct fabricmgr_client_info info = { 0 };

	need(!call(fd, CLIENT_INFO, &info));
	return info.id;
}

static int stage(uint64_t offset, uint64_t bytes)
{
	return one(owner, FABRICMGR_IOC_STAGE, arena.id, writer_id, offset, bytes, 0);
}

static int seal(uint64_t offset, uint64_t bytes)
{
	return one(owner, FABRICMGR_IOC_SEAL, arena.id, 0, offset, bytes, 0);
}

static int unseal(uint64_t offset, uint64_t bytes)
{
	return one(owner, FABRICMGR_IOC_UNSEAL, arena.id, 0, offset, bytes, FABRICMGR_BATCH_ZERO);
}

static void begin(void)
{
	struct fabricmgr_region_open open;

	owner = device();
	writer = device();
	arena = region_create(owner, "arena", 2 * CHUNK, FABRICMGR_CREATE_MANAGE, 0600);
	need(!region_open(writer, "arena", 0, &open));
	writer_id = client_id(writer);
	writer_memory = map_rw(writer, open.write_offset, 2 * CHUNK);
	reader_memory = map(owner, open.map_offset, 2 * CHUNK, PROT_READ);
	need(reader_memory != MAP_FAILED);
}

static void test_life(void)
{
	check(access_fails(writer_memory, true) == SIGBUS, "nothing is staged: a store is SIGBUS");
	check(!stage(BLOCK, 2 * BLOCK), "two blocks are staged");
	check(stage(2 * BLOCK, 2 * BLOCK) == -EEXIST, "what is staged is not staged again");
	memset(writer_memory + BLOCK, 's', 2 * BLOCK);
	check(is_all(reader_memory + BLOCK, 2 * BLOCK, 's'), "they are written and read");
	check(access_fails(writer_memory + 3 * BLOCK, true) == SIGBUS, "beyond them is SIGBUS");
	check(seal(0, 2 * BLOCK) == -EINVAL, "a range of two states is not sealed");
	check(!seal(BLOCK, BLOCK), "the first is sealed");
	check(access_fails(writer_memory + BLOCK, true) == SIGBUS, "and no more to be written");
	check(access_fails(writer_memory + BLOCK, false) == SIGBUS, "nor read, in that window");
	check(!access_fails(writer_memory + 2 * BLOCK, true), "the second still is");
	check(is_all(reader_memory + BLOCK, BLOCK, 's'), "readers read what was sealed");
	check(seal(BLOCK, BLOCK) == -EALREADY, "sealing twice is EALREADY");
	check(stage(BLOCK, BLOCK) == -EEXIST, "what is sealed is not staged");
	check(one(writer, FABRICMGR_IOC_SEAL, arena.id, 0, 2 * BLOCK, BLOCK, 0) == 0,
	      "a client seals what is staged to it");
	check(one(writer, FABRICMGR_IOC_SEAL, arena.id, 0, 4 * BLOCK, BLOCK, 0) == -EACCES,
	      "but not what is not");
	check(one(writer, FABRICMGR_IOC_UNSEAL, arena.id, 0, BLOCK, BLOCK, 0) == -EACCES,
	      "and it unseals nothing");
	check(!unseal(BLOCK, 2 * BLOCK) && is_all(reader_memory + BLOCK, 2 * BLOCK, 0),
	      "the owner frees and clears them");
	check(unseal(BLOCK, BLOCK) == -EINVAL, "what is not sealed is not unsealed");
	check(!stage(BLOCK, BLOCK) && !access_fails(writer_memory + BLOCK, true),
	      "and stages them again");
	check(!one(owner, FABRICMGR_IOC_UNSTAGE, arena.id, 0, BLOCK, BLOCK, FABRICMGR_BATCH_ZERO) &&
		      access_fails(writer_memory + BLOCK, true) == SIGBUS &&
		      is_all(reader_memory + BLOCK, BLOCK, 0),
	      "or takes them back");
	check(one(owner, FABRICMGR_IOC_UNSTAGE, arena.id, 0, BLOCK, BLOCK, 0) == -EINVAL, "once");
}

static void test_refusals(void)
{
	struct fabricmgr_batch batch = { .size = sizeof(batch), .region = arena.id, .count = 1 };

	check(seal(1, BLOCK) == -EINVAL && seal(0, 100) == -EINVAL && seal(0, 0) == -EINVAL,
	      "ranges are whole pages");
	check(seal(2 * CHUNK, 4096) == -ERANGE && seal(CHUNK, 2 * CHUNK) == -ERANGE &&
		      seal(4096, UINT64_MAX - 4095) == -ERANGE,
	      "within the region");
	check(call_raw(owner, FABRICMGR_IOC_SEAL, &batch) == -EFAULT, "no ranges are EFAULT");
	batch.count = FABRICMGR_BATCH_MAX + 1;
	check(call_raw(owner, FABRICMGR_IOC_SEAL, &batch) == -EINVAL, "too many are EINVAL");
	check(one(owner, FABRICMGR_IOC_STAGE, arena.id, 12345, 0, BLOCK, 0) == -ESRCH,
	      "a client that is not there is ESRCH");
	check(one(owner, FABRICMGR_IOC_SEAL, 99, 0, 0, BLOCK, 0) == -ENOENT,
	      "a region that is not there is ENOENT");
	check(one(writer, FABRICMGR_IOC_STAGE, arena.id, writer_id, 0, BLOCK, 0) == -EACCES,
	      "staging needs permission to write");
	check(one(owner, FABRICMGR_IOC_SEAL, arena.id, writer_id, 0, BLOCK, 0) == -EINVAL,
	      "sealing names no client");
}

static void test_batch(void)
{
	struct fabricmgr_range ranges[64];
	struct fabricmgr_batch batch = {
		.size = sizeof(batch),
		.region = arena.id,
		.client = writer_id,
		.ranges = (uintptr_t)ranges,
		.count = 64,
	};
	int i, good = 0;

	for (i = 0; i < 64; i++)
		ranges[i] = (struct fabricmgr_range){ .offset = i * 2 * 4096UL, .bytes = 4096 };
	ranges[10].offset = 1;
	ranges[20].offset = 0; /* staged by the first */
	check(!call_raw(owner, FABRICMGR_IOC_STAGE, &batch) && batch.succeeded == 62,
	      "a batch of 64 has 62 good entries");
	check(ranges[10].result == -EINVAL && ranges[20].result == -EEXIST && !ranges[21].result,
	      "and tells of the others");
	for (i = 0; i < 64; i++)
		good += !access_fails(writer_memory + i * 2 * 4096UL, true);
	check(good == 62, "%d pages are written", good);
	batch.client = 0;
	ranges[10].offset = 10 * 2 * 4096UL;
	ranges[20].offset = 20 * 2 * 4096UL;
	check(!call_raw(owner, FABRICMGR_IOC_SEAL, &batch) && batch.succeeded == 64,
	      "a batch of 64 is sealed, free ones, too");
	check(!call_raw(owner, FABRICMGR_IOC_UNSEAL, &batch) && batch.succeeded == 64,
	      "and unsealed");
}

/* A buffer that a ring has registered is pinned as a device's registration is. */
static void test_pins(void)
{
	struct uring ring;
	int error;

	need(!stage(0, BLOCK) && !stage(CHUNK, BLOCK));
	memset(writer_memory, 'p', BLOCK);
	uring_open(&ring, 4, 0);
	error = uring_register_buffer(&ring, writer_memory, BLOCK);
	if (error == -EOPNOTSUPP) {
		check(true, "this kernel registers no buffer of such a mapping # SKIP");
	} else {
		check(!error, "a ring registers the staged block: %s", strerror(-error));
		check(seal(0, BLOCK) == -EBUSY, "while it is pinned it is not sealed");
		check(!access_fails(writer_memory, true), "and stays writable");
		check(one(owner, FABRICMGR_IOC_PINS, arena.id, 0, 0, BLOCK, 0) == -EBUSY,
		      "PINS tells why");
		check(seal(BLOCK, BLOCK) == -EBUSY, "nor is another block of its chunk");
		check(!seal(CHUNK, BLOCK), "but one of another chunk is");
		need(!unseal(CHUNK, BLOCK));
		uring_close(&ring);
		uring_open(&ring, 4, 0);
		for (error = -EBUSY; error == -EBUSY; usleep(1000)) /* rings close behind us */
			error = seal(0, BLOCK);
		check(!error, "when the ring is gone it is sealed");
		check(uring_register_buffer(&ring, writer_memory, BLOCK) == -EFAULT,
		      "what is sealed is not pinned for writing");
		need(!unseal(0, BLOCK));
	}
	uring_close(&ring);
}

static void test_baseline(void)
{
	struct fabricmgr_region_id argument = { .id = arena.id };
	struct uring ring;
	char *memory = map_rw(owner, arena.write_offset, 2 * CHUNK);
	int error;

	uring_open(&ring, 4, 0);
	error = uring_register_buffer(&ring, memory, 2 * CHUNK);
	if (error != -EOPNOTSUPP) {
		check(!error, "the owner registers all of it");
		check(seal(8 * BLOCK, BLOCK) == -EBUSY, "which hinders a seal");
		check(!call(owner, REGION_BASELINE, &argument), "until he records it");
		check(!seal(8 * BLOCK, BLOCK), "then it does not");
		check(call(writer, REGION_BASELINE, &argument) == -EACCES,
		      "a writer records nothing");
		need(!unseal(8 * BLOCK, BLOCK));
		check(region_destroy(owner, arena.id, 0) == -EBUSY,
		      "what is pinned is not destroyed");
	}
	uring_close(&ring);
	munmap(memory, 2 * CHUNK);
}

static int stage_and_wait(void *context, int ready)
{
	struct fabricmgr_region_open open;
	int fd = device();
	volatile char *memory;

	(void)context;
	if (region_open(fd, "arena", 0, &open))
		return 1;
	memory = map_rw(fd, open.write_offset, CHUNK);
	if (write(ready, "r", 1) != 1)
		return 1;
	while (access_fails(memory, true))
		usleep(100);
	for (;;)
		memory[5] = 2;
}

static void test_death(void)
{
	struct fabricmgr_client_info info = { .flags = FABRICMGR_NEXT };
	struct fabricmgr_event event;
	uint32_t id = writer_id;
	pid_t pid;

	pid = child_start(stage_and_wait, NULL);
	info.id = id;
	need(!call(owner, CLIENT_INFO, &info));
	check(!one(owner, FABRICMGR_IOC_STAGE, arena.id, info.id, 0, 8 * BLOCK, 0),
	      "a block is staged to a child");
	while (*(volatile char *)(reader_memory + 5) < 2)
		usleep(100);
	info.flags = 0;
	need(!call(owner, CLIENT_INFO, &info));
	check(info.staged_bytes == 8 * BLOCK, "%llu bytes are staged to it", info.staged_bytes);
	child_kill(pid);
	check(event_next(owner, &event) && event.client == info.id && event.bytes == 8 * BLOCK,
	      "it dies with them");
	writer_id = client_id(owner);
	check(!stage(0, 8 * BLOCK), "and they are free at once");
	need(!one(owner, FABRICMGR_IOC_UNSTAGE, arena.id, 0, 0, 8 * BLOCK, 0));
}

/* Seals and faults race: no store may be seen after the seal has returned. */
static int store_always(void *context, int ready)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_client_info info = { 0 };
	int fd = device();
	char *memory;
	uint32_t i;

	need(!region_open(fd, "arena", 0, &open));
	memory = map_rw(fd, open.write_offset, CHUNK);
	need(!call(fd, CLIENT_INFO, &info));
	*(volatile uint32_t *)context = info.id;
	if (write(ready, "r", 1) != 1)
		return 1;
	for (i = 0;; i++)
		access_fails(memory + (i % 16) * 4096, true);
}

static void test_race(void)
{
	uint32_t *shared =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int i, j, changed = 0, stored = 0, sealed = 0;
	pid_t pid = child_start(store_always, shared);
	uint64_t until = now_ns() + 30000000000UL; /* for a client that stores nothing at all */

	for (i = 0; i < 50; i++) {
		int before = stored;
		int error = one(owner, FABRICMGR_IOC_STAGE, arena.id, *shared, 0, BLOCK,
				FABRICMGR_BATCH_ZERO);

		errno = -error;
		need(!error);
		/* The client may have to wait for a processor. */
		while (stored == before && now_ns() < until) {
			for (j = 0; j < 16; j++)
				stored += *(volatile char *)(reader_memory + j * 4096) == 'w';
			if (stored == before)
				sched_yield();
		}
		error = seal(0, BLOCK);
		errno = -error;
		need(!error);
		sealed++;
		for (j = 0; j < 16; j++)
			changed += *(volatile char *)(reader_memory + j * 4096) << j;
		for (j = 0; j < 16; j++)
			changed -= *(volatile char *)(reader_memory + j * 4096) << j;
		need(!unseal(0, BLOCK));
	}
	check(sealed == 50 && stored && !changed,
	      "%d seals against a storing client (%d stores seen): no change", sealed, stored);
	child_kill(pid);
}

int main(void)
{
	struct fabricmgr_event event;

	start();
	begin();
	test_life();
	test_refusals();
	test_batch();
	test_pins();
	test_baseline();
	munmap(writer_memory, 2 * CHUNK);
	close(writer);
	test_race();
	while (!event_none(owner))
		need(event_next(owner, &event));
	test_death();
	munmap(reader_memory, 2 * CHUNK);
	need(!region_destroy(owner, arena.id, FABRICMGR_DESTROY_FORCE));
	close(owner);
	return finish();
}
