// SPDX-License-Identifier: Apache-2.0
/*
 * Clients: lease tables and who sees them, what a killed client leaves behind (nothing), events to
 * the manager, descriptors handed over and inherited.
 */
#include "module.h"

#define ENTRIES 1024

struct holder {
	uint32_t region;
	const char *name;
	int fd; /* a file made by the parent, or -1 */
};

static struct fabricmgr_lease *leases_map(int fd, uint64_t offset, int protection)
{
	struct fabricmgr_lease *leases =
		(void *)map(fd, offset, ENTRIES * sizeof(*leases), protection);

	need(leases != MAP_FAILED);
	return leases;
}

static struct fabricmgr_client_setup setup(int fd)
{
	struct fabricmgr_client_setup setup = { .entries = ENTRIES };

	need(!call(fd, CLIENT_SETUP, &setup));
	return setup;
}

/* A client with ten leases, ready to be killed. It tells its id as its first lease's slot. */
static int hold(void *context, int ready)
{
	struct holder *holder = context;
	struct fabricmgr_region_open open;
	struct fabricmgr_lease *leases;
	int fd = holder->fd >= 0 ? holder->fd : device(), i;

	if (region_open(fd, holder->name, 0, &open))
		return 1;
	leases = leases_map(fd, setup(fd).leases_offset, PROT_READ | PROT_WRITE);
	for (i = 0; i < 10; i++)
		leases[i * 100] = (struct fabricmgr_lease){ open.id, i, 1, i };
	if (write(ready, "r", 1) != 1)
		return 1;
	for (;;)
		pause();
}

static uint32_t client_after(int fd, uint32_t id, struct fabricmgr_client_info *info)
{
	memset(info, 0, sizeof(*info));
	info->flags = FABRICMGR_NEXT;
	info->id = id;
	return call(fd, CLIENT_INFO, info) ? 0 : info->id;
}

static void test_setup(void)
{
	struct fabricmgr_client_setup argument = { .entries = FABRICMGR_LEASES_MAX + 1 };
	struct fabricmgr_client_info info = { 0 };
	struct fabricmgr_lease *leases;
	int fd = device(), other = device();

	check(call(fd, CLIENT_SETUP, &argument) == -EINVAL, "too many entries are refused");
	argument.entries = 0;
	check(call(fd, CLIENT_SETUP, &argument) == -EINVAL, "none, too");
	argument = setup(fd);
	check(argument.id && argument.leases_bytes == ENTRIES * sizeof(*leases),
	      "client %u has a table", argument.id);
	check(call(fd, CLIENT_SETUP, &argument) == -EEXIST, "one only");
	leases = leases_map(fd, argument.leases_offset, PROT_READ | PROT_WRITE);
	check(is_all((char *)leases, ENTRIES * sizeof(*leases), 0), "which is empty");
	leases[7].region = 1;
	check(!call(fd, CLIENT_INFO, &info) && info.id == argument.id && info.leases == 1 &&
		      info.pid == getpid() && info.uid == 0,
	      "it is described, with its lease");
	check(map(other, argument.leases_offset, 4096, PROT_READ | PROT_WRITE) == MAP_FAILED &&
		      errno == EACCES,
	      "nobody else writes to it");
	munmap(leases, ENTRIES * sizeof(*leases));
	close(fd);
	close(other);
}

static void test_death(void)
{
	struct holder holder = { .name = "deaths", .fd = -1 };
	struct fabricmgr_client_info info;
	struct fabricmgr_event event;
	struct fabricmgr_lease *leases;
	uint64_t killed;
	int fd = device();
	uint32_t own;
	pid_t pid;

	holder.region = region_create(fd, "deaths", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	memset(&info, 0, sizeof(info));
	need(!call(fd, CLIENT_INFO, &info));
	own = info.id;
	pid = child_start(hold, &holder);
	check(client_after(fd, own, &info) > own && info.leases == 10 && info.pid == pid,
	      "the manager finds its client with ten leases");
	leases = leases_map(fd, info.leases_offset, PROT_READ);
	check(leases[900].region == holder.region && leases[900].slot == 9,
	      "and reads them in its table");
	check(mprotect(leases, 4096, PROT_READ | PROT_WRITE) && errno == EACCES,
	      "which it may not write");
	check(event_none(fd), "nothing has happened yet");
	killed = now_ns();
	child_kill(pid);
	check(event_next(fd, &event) && event.kind == FABRICMGR_EVENT_CLIENT_DIED &&
		      event.client == info.id && event.region == holder.region &&
		      event.value == 10 && event.uid == 0,
	      "its death is told, with ten leases");
	check(event.time_ns >= killed && event.time_ns <= now_ns(), "%llu us after the kill",
	      (event.time_ns - killed) / 1000);
	check(is_all((char *)leases, ENTRIES * sizeof(*leases), 0), "they are gone from its table");
	check(event_none(fd), "it is told once");
	check(!client_after(fd, own, &info), "and the client is gone from the list");
	munmap(leases, ENTRIES * sizeof(*leases));
	need(!region_destroy(fd, holder.region, 0));
	close(fd);
}

static int sleep_on(void *context, int ready)
{
	int fd = *(int *)context;

	(void)fd;
	if (write(ready, "r", 1) != 1)
		return 1;
	for (;;)
		pause();
}

/* A file that a second process has, by fork, lives on with it. */
static void test_inherited(void)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_event event;
	int fd = device(), client = device();
	uint32_t id = region_create(fd, "inherited", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	pid_t pid;

	need(!region_open(client, "inherited", 0, &open));
	pid = child_start(sleep_on, &client);
	close(client);
	check(event_none(fd), "a client whose file a child has is alive");
	child_kill(pid);
	check(event_next(fd, &event) && event.kind == FABRICMGR_EVENT_CLIENT_DIED,
	      "and dies with the child");
	need(!region_destroy(fd, id, 0));
	close(fd);
}

static void test_managers(void)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_region_id argument;
	struct fabricmgr_event event;
	int fd = device(), second = device(), client = device();
	uint32_t id = region_create(fd, "managed", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	uint32_t other = region_create(fd, "managed-too", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	char record[4];

	check(region_open(second, "managed", FABRICMGR_OPEN_MANAGE, &open) == -EINVAL,
	      "managing needs writing");
	check(region_open(second, "managed", FABRICMGR_OPEN_MANAGE | FABRICMGR_OPEN_WRITE, &open) ==
		      -EBUSY,
	      "there is one manager at a time");
	need(!region_open(client, "managed", 0, &open));
	need(!region_open(client, "managed-too", 0, &open));
	close(client);
	check(event_next(fd, &event) && event_none(fd),
	      "a manager of two regions hears of a death once");
	close(fd);
	check(!region_open(second, "managed", FABRICMGR_OPEN_MANAGE | FABRICMGR_OPEN_WRITE, &open),
	      "when the manager is gone another takes its place");
	client = device();
	need(!region_open(client, "managed", 0, &open));
	argument = (struct fabricmgr_region_id){ .id = id };
	check(!call(client, REGION_CLOSE, &argument), "a region is closed again");
	close(client);
	check(event_none(second), "and with it what its manager would hear");
	check(read(second, record, sizeof(record)) < 0 && errno == EINVAL,
	      "less than a record is not read");
	need(!fcntl(second, F_SETFL, O_NONBLOCK));
	check(read(second, &event, sizeof(event)) < 0 && errno == EAGAIN,
	      "nor is there anything to read");
	client = device();
	need(!region_open(client, "managed", 0, &open));
	check(region_destroy(second, id, 0) == -EBUSY, "what is open elsewhere is not destroyed");
	check(!region_destroy(second, id, FABRICMGR_DESTROY_FORCE), "but by force");
	check(event_next(client, &event) && event.kind == FABRICMGR_EVENT_REGION_GONE &&
		      event.region == id,
	      "its client hears of it");
	need(!region_destroy(second, other, 0));
	close(client);
	close(second);
}

/* A manager that never reads: clients are refused before its queue is endless. */
static void test_unread(void)
{
	struct fabricmgr_region_open open;
	const char *kernel = getenv("FABRICMGR_KERNEL");
	int fd = device(), error = 0, i;
	uint32_t id;

	if (kernel && !strcmp(kernel, "debug")) {
		check(true, "thousands of deaths take this kernel minutes # SKIP");
		close(fd);
		return;
	}
	id = region_create(fd, "unread", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id;
	for (i = 0; i < 20000 && !error; i++) {
		int client = device();

		error = region_open(client, "unread", 0, &open);
		close(client);
	}
	check(error == -ENOBUFS && i > 1000, "after %d unread deaths no client comes", i - 1);
	need(!region_destroy(fd, id, 0));
	close(fd);
}

/* Events that nobody fetches hold the memory of their clients' quota, and no more. */
static void test_many(void)
{
	struct fabricmgr_event events[64];
	struct fabricmgr_region_open open;
	int fd = device(), i, got = 0;
	uint32_t id = region_create(fd, "many", CHUNK, FABRICMGR_CREATE_MANAGE, 0600).id, last = 0;
	bool is_ordered = true;

	for (i = 0; i < 200; i++) {
		int client = device();

		need(!region_open(client, "many", 0, &open));
		close(client);
	}
	while (!event_none(fd)) {
		ssize_t bytes = read(fd, events, sizeof(events));

		need(bytes > 0);
		for (i = 0; i < bytes / (ssize_t)sizeof(events[0]); i++, got++) {
			is_ordered &= events[i].client > last;
			last = events[i].client;
		}
	}
	check(got == 200 && is_ordered, "%d of 200 deaths are told, in order", got);
	need(!region_destroy(fd, id, 0));
	close(fd);
}

static void test_quota(void)
{
	struct fabricmgr_quota quota = { .uid = FABRICMGR_ID_SAME };
	struct fabricmgr_region_create create = region_spec("beyond", 2 * CHUNK, 0);
	int fd = device(), i;

	need(!call(fd, QUOTA_GET, &quota));
	check(quota.clients == 1 && !quota.regions && !quota.bytes, "one client and no bytes");
	quota.limit_bytes = CHUNK;
	quota.limit_clients = 3;
	check(!call(fd, QUOTA_SET, &quota), "a quota is set");
	check(call(fd, REGION_CREATE, &create) == -EDQUOT, "a region beyond it is EDQUOT");
	for (i = 0; i < 2; i++)
		device();
	check(open(DEVICE, O_RDWR) < 0 && errno == EDQUOT, "a file beyond it, too");
	quota.limit_bytes = quota.limit_regions = quota.limit_clients = FABRICMGR_QUOTA_DEFAULT;
	check(!call(fd, QUOTA_SET, &quota) && !call(fd, REGION_CREATE, &create),
	      "without it there is room");
	need(!call(fd, QUOTA_GET, &quota));
	check(quota.bytes == 2 * CHUNK && quota.regions == 1 && quota.clients == 3,
	      "which is counted");
	need(!region_destroy(fd, create.id, 0));
	need(!call(fd, QUOTA_GET, &quota));
	check(!quota.bytes && !quota.regions, "and no more when it is gone");
	close(fd);
}

int main(void)
{
	start();
	test_setup();
	test_death();
	test_inherited();
	test_managers();
	test_many();
	test_unread();
	test_quota();
	return finish();
}
