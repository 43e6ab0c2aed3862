// SPDX-License-Identifier: Apache-2.0
/*
 * Calls through a ring: the same results as by ioctl, events that complete a waiting command, and
 * what becomes of a waiting command when its process is killed, execs, closes its ring or hands the
 * ring on: never a file that stays open. VM: limit 120
 */
#include "uring.h"

struct waiting {
	struct uring ring;
	struct fabricmgr_events events;
	struct fabricmgr_event records[8];
};

static void wait_for_events(struct waiting *waiting, int fd)
{
	memset(&waiting->events, 0, sizeof(waiting->events));
	waiting->events.size = sizeof(waiting->events);
	waiting->events.records = (uintptr_t)waiting->records;
	waiting->events.capacity = 8;
	uring_submit(&waiting->ring, fd, FABRICMGR_IOC_EVENTS, &waiting->events, 7);
}

static uint32_t files_open(int fd)
{
	struct fabricmgr_quota quota = { .uid = FABRICMGR_ID_SAME };

	need(!call(fd, QUOTA_GET, &quota));
	return quota.clients;
}

/* The number of open files falls to @wanted: releasing may happen behind us. */
static bool files_fall_to(int fd, uint32_t wanted)
{
	int i;

	for (i = 0; i < 2000 && files_open(fd) > wanted; i++)
		usleep(5000);
	return files_open(fd) == wanted;
}

static void test_calls(void)
{
	struct fabricmgr_region_create create = region_spec("by-ring", 2 * CHUNK, 0);
	struct fabricmgr_region_id id = { .size = sizeof(id) };
	struct fabricmgr_version version = { .size = sizeof(version) };
	struct fabricmgr_range ranges[3] = {
		{ .bytes = 4096 }, { .offset = 4096, .bytes = 4096 }, { .offset = 1, .bytes = 1 },
	};
	struct fabricmgr_batch batch = { .size = sizeof(batch), .count = 3 };
	struct io_uring_cqe completion;
	struct uring ring;
	int fd = device();

	uring_open(&ring, 8, 0);
	create.size = sizeof(create);
	uring_submit(&ring, fd, FABRICMGR_IOC_REGION_CREATE, &create, 1);
	need(uring_wait(&ring, &completion));
	check(completion.user_data == 1 && !completion.res && create.id && create.map_offset,
	      "a region is created through a ring: %d", completion.res);
	uring_submit(&ring, fd, FABRICMGR_IOC_REGION_CREATE, &create, 2);
	need(uring_wait(&ring, &completion));
	check(completion.res == -EEXIST, "a second time not");
	batch.region = create.id;
	batch.ranges = (uintptr_t)ranges;
	uring_submit(&ring, fd, FABRICMGR_IOC_SEAL, &batch, 3);
	need(uring_wait(&ring, &completion));
	check(!completion.res && batch.succeeded == 2 && ranges[2].result == -EINVAL,
	      "a batch is sealed with its results");
	uring_submit(&ring, fd, FABRICMGR_IOC_SEAL, NULL, 4);
	need(uring_wait(&ring, &completion));
	check(completion.res == -EFAULT, "no structure is EFAULT");
	uring_submit(&ring, fd, FABRICMGR_IOC_VERSION, &version, 5);
	need(uring_wait(&ring, &completion));
	check(completion.res == -ENOTTY, "short calls are no ring commands");
	id.id = create.id;
	uring_submit(&ring, fd, FABRICMGR_IOC_REGION_DESTROY, &id, 6);
	need(uring_wait(&ring, &completion));
	check(!completion.res, "the region is destroyed through the ring");
	uring_close(&ring);
	close(fd);
}

static void test_events(void)
{
	struct fabricmgr_region_open open;
	struct io_uring_cqe completion;
	struct waiting waiting;
	int fd = device(), client, i;
	uint32_t id = region_create(fd, "events", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;

	uring_open(&waiting.ring, 8, 0);
	for (i = 0; i < 3; i++) {
		wait_for_events(&waiting, fd);
		check(!uring_peek(&waiting.ring, &completion), "round %d: nothing yet", i);
		client = device();
		need(!region_open(client, "events", 0, &open));
		close(client);
		check(uring_wait(&waiting.ring, &completion) && completion.res == 1 &&
			      completion.user_data == 7 &&
			      waiting.records[0].kind == FABRICMGR_EVENT_CLIENT_DIED,
		      "a death completes the waiting command");
	}
	for (i = 0; i < 3; i++) {
		client = device();
		need(!region_open(client, "events", 0, &open));
		close(client);
	}
	wait_for_events(&waiting, fd);
	check(uring_wait(&waiting.ring, &completion) && completion.res == 3,
	      "what is there completes it at once, all of it");
	waiting.events.capacity = 0;
	uring_submit(&waiting.ring, fd, FABRICMGR_IOC_EVENTS, &waiting.events, 8);
	check(uring_wait(&waiting.ring, &completion) && completion.res == -EINVAL,
	      "no room is EINVAL");
	need(!region_destroy(fd, id, 0));
	uring_close(&waiting.ring);
	close(fd);
}

enum ending { KILLED, EXEC, EXITS, RING_CLOSED };

static int wait_and(void *context, int ready)
{
	static struct waiting waiting;
	enum ending ending = *(enum ending *)context;
	int fd = device(), i;

	uring_open(&waiting.ring, 8, 0);
	for (i = 0; i < 3; i++)
		wait_for_events(&waiting, fd);
	if (write(ready, "r", 1) != 1)
		return 1;
	if (ending == EXEC)
		execl("/proc/self/exe", "ring", "sleep", NULL);
	if (ending == RING_CLOSED)
		uring_close(&waiting.ring);
	if (ending == RING_CLOSED)
		close(fd);
	while (ending != EXITS)
		pause();
	return 0;
}

static void test_endings(void)
{
	static const char *const names[] = { "is killed", "execs", "exits", "closes both" };
	struct fabricmgr_version version = { 0 };
	int fd = device(), i;
	bool has_cancel;

	need(!call(fd, VERSION, &version));
	has_cancel = version.features & FABRICMGR_FEATURE_RING_CANCEL;
	for (i = KILLED; i <= RING_CLOSED; i++) {
		enum ending ending = i;
		uint32_t before = files_open(fd);
		pid_t pid = child_start(wait_and, &ending);

		if (ending == RING_CLOSED && !has_cancel) {
			check(true, "closing the ring ends a wait where it is cancelled # SKIP");
			child_kill(pid);
			need(files_fall_to(fd, before));
			continue;
		}
		if (ending == KILLED)
			child_kill(pid);
		check(files_fall_to(fd, before), "no file is left of a process that %s", names[i]);
		if (ending == EXITS)
			need(waitpid(pid, NULL, 0) == pid);
		else if (ending != KILLED)
			child_kill(pid);
	}
	close(fd);
}

static int wait_in_ring(void *context, int ready)
{
	static struct waiting waiting;
	struct fabricmgr_region_open open;
	int fd = device();

	need(!region_open(fd, "handed", 0, &open));
	uring_open(&waiting.ring, 8, 0);
	wait_for_events(&waiting, fd);
	*(volatile int *)context = waiting.ring.fd;
	if (write(ready, "r", 1) != 1)
		return 1;
	for (;;)
		pause();
}

/* Its process is dead, but its ring, with a command in it, is with somebody else. */
static void test_handed_over(void)
{
	int *number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct fabricmgr_event event;
	int fd = device(), process, ring;
	uint32_t id = region_create(fd, "handed", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	uint32_t before = files_open(fd);
	pid_t pid = child_start(wait_in_ring, number);

	process = syscall(SYS_pidfd_open, pid, 0);
	ring = syscall(SYS_pidfd_getfd, process, *number, 0);
	need(process >= 0 && ring >= 0);
	child_kill(pid);
	close(ring);
	check(event_next(fd, &event) && event.kind == FABRICMGR_EVENT_CLIENT_DIED,
	      "a client whose ring somebody has is dead when that is closed as well");
	check(files_fall_to(fd, before), "and its file is gone");
	need(!region_destroy(fd, id, 0));
	close(process);
	close(fd);
}

/* What a ring command costs beside an ioctl: printed, never judged. */
static void report_cost(void)
{
	struct fabricmgr_range range = { .bytes = 4096 };
	struct fabricmgr_batch batch = { .size = sizeof(batch), .count = 1 };
	struct io_uring_cqe completion;
	struct uring ring;
	uint64_t begin, by_ioctl, by_ring;
	int fd = device(), i;

	batch.region = region_create(fd, "cost", CHUNK, 0, 0600).id;
	batch.ranges = (uintptr_t)&range;
	uring_open(&ring, 8, 0);
	begin = now_ns();
	for (i = 0; i < 200; i++)
		need(!call_raw(fd, FABRICMGR_IOC_PINS, &batch));
	by_ioctl = now_ns() - begin;
	begin = now_ns();
	for (i = 0; i < 200; i++) {
		uring_submit(&ring, fd, FABRICMGR_IOC_PINS, &batch, 1);
		need(uring_wait(&ring, &completion) && !completion.res);
	}
	by_ring = now_ns() - begin;
	printf("# PINS of one range: %lu ns by ioctl, %lu ns by ring\n", by_ioctl / 200,
	       by_ring / 200);
	need(!region_destroy(fd, batch.region, 0));
	uring_close(&ring);
	close(fd);
}

int main(int count, char **arguments)
{
	if (count > 1 && !strcmp(arguments[1], "sleep"))
		for (;;)
			pause();
	start();
	test_calls();
	test_events();
	test_endings();
	test_handed_over();
	report_cost();
	return finish();
}
