// SPDX-License-Identifier: Apache-2.0
/*
 * What the module's calls cost, printed and never judged: "figures MIB" creates a region of so much
 * (64 by default, 1024 for Documentation/performance.md) and compares with a memfd in the same
 * machine. VM: not debug
 */
#include "module.h"

#define BLOCK (2 * MIB)
#define HELD 10000
#define RUNS 5

static uint64_t best_of(uint64_t *best, uint64_t took)
{
	if (!*best || took < *best)
		*best = took;
	return *best;
}

static uint64_t touch(char *memory, size_t bytes, bool is_write)
{
	uint64_t begin = now_ns();
	size_t i;

	for (i = 0; i < bytes; i += 4096) {
		if (is_write)
			((volatile char *)memory)[i] = 1;
		else
			(void)((volatile char *)memory)[i];
	}
	return now_ns() - begin;
}

static void regions(int fd, size_t bytes)
{
	uint64_t create = 0, destroy = 0, first = 0, again = 0, memfd = 0, begin;
	int i;

	for (i = 0; i < RUNS; i++) {
		struct fabricmgr_region_create region;
		char *memory;
		int file;

		begin = now_ns();
		region = region_create(fd, "figures", bytes, 0, 0600);
		best_of(&create, now_ns() - begin);
		memory = map_rw(fd, region.write_offset, bytes);
		best_of(&first, touch(memory, bytes, true));
		munmap(memory, bytes);
		memory = map(fd, region.map_offset, bytes, PROT_READ);
		need(memory != MAP_FAILED);
		best_of(&again, touch(memory, bytes, false));
		munmap(memory, bytes);
		begin = now_ns();
		need(!region_destroy(fd, region.id, 0));
		best_of(&destroy, now_ns() - begin);

		file = syscall(SYS_memfd_create, "figures", 1U);
		need(file >= 0 && !ftruncate(file, bytes) && !fallocate(file, 0, 0, bytes));
		memory = map_rw(file, 0, bytes);
		best_of(&memfd, touch(memory, bytes, true));
		munmap(memory, bytes);
		close(file);
	}
	printf("# create %zu MiB: %lu us, destroy: %lu us\n", bytes / MIB, create / 1000,
	       destroy / 1000);
	printf("# first touch, ns a 4 KiB page: write window %lu, read window %lu, memfd %lu\n",
	       first / (bytes / 4096), again / (bytes / 4096), memfd / (bytes / 4096));
}

/* Blocks that are mapped and written, so that there is something to zap. */
static void seals(int fd, uint32_t blocks)
{
	size_t bytes = blocks * BLOCK;
	struct fabricmgr_region_create region = region_create(fd, "seals", bytes, 0, 0600);
	char *memory = map_rw(fd, region.write_offset, bytes);
	uint64_t single = 0, unsealed = 0, batched = 0, unbatched = 0, begin;
	struct fabricmgr_range ranges[64];
	struct fabricmgr_batch batch = {
		.size = sizeof(batch),
		.region = region.id,
		.ranges = (uintptr_t)ranges,
		.count = blocks,
	};
	uint32_t i, run;

	for (i = 0; i < blocks; i++)
		ranges[i] = (struct fabricmgr_range){ .offset = i * BLOCK, .bytes = BLOCK };
	for (run = 0; run < RUNS; run++) {
		touch(memory, bytes, true);
		begin = now_ns();
		need(!one(fd, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0));
		best_of(&single, now_ns() - begin);
		begin = now_ns();
		need(!one(fd, FABRICMGR_IOC_UNSEAL, region.id, 0, 0, BLOCK, 0));
		best_of(&unsealed, now_ns() - begin);
		touch(memory, bytes, true);
		begin = now_ns();
		need(!call_raw(fd, FABRICMGR_IOC_SEAL, &batch) && batch.succeeded == blocks);
		best_of(&batched, now_ns() - begin);
		begin = now_ns();
		need(!call_raw(fd, FABRICMGR_IOC_UNSEAL, &batch) && batch.succeeded == blocks);
		best_of(&unbatched, now_ns() - begin);
	}
	printf("# 2 MiB, written: seal %lu ns, unseal %lu ns; of %u at once, each: %lu and %lu\n",
	       single, unsealed, blocks, batched / blocks, unbatched / blocks);
	munmap(memory, bytes);
	need(!region_destroy(fd, region.id, 0));
}

static int hold_many(void *context, int ready)
{
	struct fabricmgr_client_setup setup = { .entries = HELD };
	struct fabricmgr_region_open open;
	struct fabricmgr_lease *leases;
	int fd = device(), i;

	(void)context;
	need(!region_open(fd, "deaths", 0, &open) && !call(fd, CLIENT_SETUP, &setup));
	leases = (void *)map_rw(fd, setup.leases_offset, setup.leases_bytes);
	for (i = 0; i < HELD; i++)
		leases[i] = (struct fabricmgr_lease){ open.id, i, 1, 0 };
	need(write(ready, "r", 1) == 1);
	for (;;)
		pause();
}

static void deaths(int fd)
{
	uint32_t id = region_create(fd, "deaths", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	struct fabricmgr_event event;
	uint64_t best = 0, killed;
	bool is_whole = true;
	int i;

	for (i = 0; i < RUNS; i++) {
		pid_t pid = child_start(hold_many, NULL);

		killed = now_ns();
		child_kill(pid);
		need(event_next(fd, &event));
		is_whole &= event.value == HELD;
		best_of(&best, event.time_ns - killed);
	}
	check(is_whole, "each of %d deaths freed %d leases", RUNS, HELD);
	printf("# from the kill of a process with %d leases until they are free: %lu us\n", HELD,
	       best / 1000);
	need(!region_destroy(fd, id, 0));
}

int main(int count, char **arguments)
{
	size_t bytes = (count > 1 ? strtoul(arguments[1], NULL, 0) : 64) * MIB;
	int fd;

	start();
	fd = device();
	regions(fd, bytes);
	seals(fd, bytes / BLOCK < 64 ? bytes / BLOCK : 64);
	deaths(fd);
	close(fd);
	return finish();
}
