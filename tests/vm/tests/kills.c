// SPDX-License-Identifier: Apache-2.0
/*
 * Processes that are killed at any instruction while they lease, stage, seal, create, wait in rings
 * and have children. After each nothing may be left of them: no file, no staging, no lease, no
 * half-made region. "kills ROUNDS SEED" for more than the short form. Prints what was hit.
 * VM: limit 200
 */
#include "uring.h"

#define BLOCK (64UL << 10)
#define BYTES (4 * CHUNK)
#define BLOCKS (BYTES / BLOCK)

enum step {
	OPENING,
	ATTACHING,
	LEASING,
	STAGING,
	WRITING,
	SEALING,
	UNSEALING,
	CREATING,
	RING_BATCH,
	RING_WAIT,
	FORKING,
	DESTROYING,
	STEPS
};

static const char *const step_names[STEPS] = {
	"opening", "attaching", "leasing",    "staging",   "writing", "sealing",
	"unsealing", "creating",  "ring batch", "ring wait", "forking", "destroying",
};

struct shared {
	volatile int step;
	volatile int turns; /* how often the victim has been through all of it */
	volatile uint64_t killed_ns;
};

static struct shared *shared;
static unsigned int seed;

static unsigned int any(unsigned int below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 16) % below;
}

static void take_leases(int fd, uint32_t region)
{
	struct fabricmgr_client_setup setup = { .entries = 4096 };
	struct fabricmgr_lease *leases;
	int i;

	shared->step = LEASING;
	if (call(fd, CLIENT_SETUP, &setup))
		return;
	leases = (void *)map(fd, setup.leases_offset, setup.leases_bytes, PROT_READ | PROT_WRITE);
	for (i = 0; i < 200 && leases != MAP_FAILED; i++)
		leases[any(4096)] = (struct fabricmgr_lease){ region, any(4), 1, i };
}

static void stage_and_seal(int fd, uint32_t region, uint32_t id, uint64_t write_offset)
{
	char *memory = map(fd, write_offset, BYTES, PROT_READ | PROT_WRITE);
	uint64_t offset = any(BLOCKS - 8) * BLOCK, bytes = (1 + any(8)) * BLOCK;

	shared->step = STAGING;
	one(fd, FABRICMGR_IOC_STAGE, region, id, offset, bytes, any(2));
	shared->step = WRITING;
	if (memory != MAP_FAILED && !access_fails(memory + offset, true))
		access_fails(memory + offset + bytes - 1, true);
	shared->step = SEALING;
	one(fd, FABRICMGR_IOC_SEAL, region, 0, offset, bytes, 0);
	shared->step = UNSEALING;
	if (any(2))
		one(fd, FABRICMGR_IOC_UNSEAL, region, 0, offset, bytes, any(2));
	munmap(memory, BYTES);
}

static void make_and_destroy(int fd)
{
	struct fabricmgr_region_create create = region_spec("victims", CHUNK, any(2) ? 0 : 2);
	struct fabricmgr_region_open open;

	shared->step = CREATING;
	if (call(fd, REGION_CREATE, &create) && region_open(fd, "victims", 1, &open))
		return;
	shared->step = DESTROYING;
	if (any(2))
		region_destroy(fd, create.id, FABRICMGR_DESTROY_FORCE);
}

static void use_ring(int fd, uint32_t region)
{
	static struct fabricmgr_range ranges[64];
	static struct fabricmgr_event records[4];
	static struct fabricmgr_batch batch;
	static struct fabricmgr_events events;
	struct uring ring;
	int i;

	for (i = 0; i < 64; i++)
		ranges[i] = (struct fabricmgr_range){ .offset = i * BLOCK, .bytes = 4096 };
	batch = (struct fabricmgr_batch){ .size = sizeof(batch), .region = region,
					  .ranges = (uintptr_t)ranges, .count = 64 };
	events = (struct fabricmgr_events){ .size = sizeof(events),
					    .records = (uintptr_t)records, .capacity = 4 };
	uring_open(&ring, 8, 0);
	shared->step = RING_WAIT;
	uring_submit(&ring, fd, FABRICMGR_IOC_EVENTS, &events, 1);
	shared->step = RING_BATCH;
	uring_submit(&ring, fd, any(2) ? FABRICMGR_IOC_SEAL : FABRICMGR_IOC_PINS, &batch, 2);
	if (any(2))
		uring_submit(&ring, fd, FABRICMGR_IOC_EVENTS, &events, 3);
	/* Not closed: what waits in it has to end with us. */
	munmap(ring.queues, ring.bytes);
	munmap(ring.entries, ring.params.sq_entries * sizeof(*ring.entries));
}

/* A child with the same file, which ends a little after its parent. */
static void have_child(void)
{
	pid_t parent = getpid();

	shared->step = FORKING;
	if (!fork()) {
		while (getppid() == parent)
			usleep(1000);
		_exit(0);
	}
}

static int victim(void *context, int ready)
{
	struct fabricmgr_client_info info;
	struct fabricmgr_region_open arena;
	int fd;

	(void)context;
	if (write(ready, "r", 1) != 1)
		return 1;
	for (;; shared->turns++) {
		shared->step = OPENING;
		fd = open(DEVICE, O_RDWR | O_CLOEXEC);
		shared->step = ATTACHING;
		if (fd < 0 || region_open(fd, "kills", FABRICMGR_OPEN_WRITE, &arena))
			return 1;
		memset(&info, 0, sizeof(info));
		if (call(fd, CLIENT_INFO, &info))
			return 1;
		take_leases(fd, arena.id);
		if (any(8) == 0)
			have_child();
		stage_and_seal(fd, arena.id, info.id, arena.write_offset);
		if (any(4) == 0)
			make_and_destroy(fd);
		if (any(2))
			use_ring(fd, arena.id);
		stage_and_seal(fd, arena.id, info.id, arena.write_offset);
		/* Some files are left open, with all they hold. */
		if (any(4))
			close(fd);
	}
}

static uint32_t files_open(int fd)
{
	struct fabricmgr_quota quota = { .uid = FABRICMGR_ID_SAME };

	need(!call(fd, QUOTA_GET, &quota));
	return quota.clients;
}

/* Every page is free, or sealed and freed by that; returns the ranges that are neither. */
static int pages_held(int fd, uint32_t region, uint32_t own)
{
	int held = 0;
	uint64_t offset;

	for (offset = 0; offset < BYTES; offset += BLOCK) {
		uint64_t page;
		int error = one(fd, FABRICMGR_IOC_STAGE, region, own, offset, BLOCK, 0);

		if (!error) {
			need(!one(fd, FABRICMGR_IOC_UNSTAGE, region, 0, offset, BLOCK, 0));
			continue;
		}
		for (page = offset; page < offset + BLOCK; page += 4096) {
			error = one(fd, FABRICMGR_IOC_UNSEAL, region, 0, page, 4096, 0);
			if (error)
				error = one(fd, FABRICMGR_IOC_STAGE, region, own, page, 4096, 0);
			held += error != 0;
		}
		for (page = offset; page < offset + BLOCK; page += 4096)
			one(fd, FABRICMGR_IOC_UNSTAGE, region, 0, page, 4096, 0);
	}
	return held;
}

/* What was told of the dead: how long after the kill the last of their holds was free. */
static uint64_t read_deaths(int fd, int *deaths)
{
	struct fabricmgr_event event;
	uint64_t latest = 0;

	while (!event_none(fd)) {
		need(event_next(fd, &event));
		*deaths += event.kind == FABRICMGR_EVENT_CLIENT_DIED;
		if (event.time_ns > shared->killed_ns && event.time_ns - shared->killed_ns > latest)
			latest = event.time_ns - shared->killed_ns;
	}
	return latest;
}

static void forget_victims_region(int fd)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_region_id id = { 0 };

	if (region_open(fd, "victims", 0, &open))
		return;
	id.id = open.id;
	need(open.bytes == CHUNK);
	need(!region_destroy(fd, open.id, 0));
	call(fd, REGION_CLOSE, &id);
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 60, hits[STEPS] = { 0 }, i;
	int left = 0, held = 0, deaths = 0, turns = 0;
	struct fabricmgr_client_info info = { 0 };
	uint64_t slowest = 0, late;
	uint32_t region;
	int fd, wait;

	start();
	seed = count > 2 ? strtoul(arguments[2], NULL, 0) : now_ns();
	printf("# %d kills, seed %u\n", rounds, seed);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(shared != MAP_FAILED);
	/* Children of the dead come to us, and are waited for. */
	need(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	fd = device();
	region = region_create(fd, "kills", BYTES, FABRICMGR_CREATE_MANAGE, 0600).id;
	need(!call(fd, CLIENT_INFO, &info));
	for (i = 0; i < rounds; i++) {
		pid_t pid = child_start(victim, NULL);

		any(2);
		usleep(any(any(4) ? 3000 : 40000));
		shared->killed_ns = now_ns();
		child_kill(pid);
		hits[shared->step]++;
		while (waitpid(-1, NULL, 0) > 0)
			;
		for (wait = 0; wait < 2000 && files_open(fd) > 1; wait++)
			usleep(1000);
		left += files_open(fd) - 1;
		held += pages_held(fd, region, info.id);
		late = read_deaths(fd, &deaths);
		slowest = late > slowest ? late : slowest;
		forget_victims_region(fd);
		if (left || held)
			break;
	}
	turns = shared->turns;
	for (i = 0; i < STEPS; i++)
		printf("# killed while %s: %d\n", step_names[i], hits[i]);
	printf("# %d turns, %d deaths told, the last hold free %lu us after its kill at most\n",
	       turns, deaths, slowest / 1000);
	check(!left, "%d files are left of %d killed processes", left, rounds);
	check(!held, "%d ranges are held", held);
	check(deaths >= rounds / 2, "%d deaths were told", deaths);
	need(!region_destroy(fd, region, 0));
	close(fd);
	return finish();
}
