// SPDX-License-Identifier: Apache-2.0
/*
 * Memory: reclaim asks the manager, then takes unleased chunks of a discardable region and nothing
 * else; taken ones are SIGBUS until refilled; regions are charged to their creator's memory cgroup;
 * what a person can read of it all.
 */
#include <sys/mount.h>

#include "module.h"

#define CHUNKS 16
#define WORD(generation, state) FABRICMGR_WORD(generation, FABRICMGR_BLOCK_##state)

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	need(fd >= 0);
	if (write(fd, text, strlen(text)) < 0)
		printf("# %s: %s\n", path, strerror(errno));
	close(fd);
}

/* The kernel calls every shrinker for all it has. */
static void reclaim(void)
{
	write_file("/proc/sys/vm/drop_caches", "2");
}

static struct fabricmgr_region_create region;
static int manager;
static volatile uint64_t *words;
static char *memory;

static void begin(void)
{
	int i;

	manager = device();
	region = region_spec("cache", CHUNKS * CHUNK,
			     FABRICMGR_CREATE_MANAGE | FABRICMGR_CREATE_DISCARDABLE |
				     FABRICMGR_CREATE_EXACT_ORDER);
	need(!call(manager, REGION_CREATE, &region));
	words = (void *)map_rw(manager, region.words_offset, 4096);
	memory = map_rw(manager, region.write_offset, CHUNKS * CHUNK);
	for (i = 0; i < CHUNKS; i++) {
		memset(memory + i * CHUNK, 'a' + i, CHUNK);
		words[i] = WORD(7, SEALED);
	}
}

static int lease_two(void *context, int ready)
{
	struct fabricmgr_client_setup setup = { .entries = 256 };
	struct fabricmgr_region_open open;
	struct fabricmgr_lease *leases;
	int fd = device();
	char *mapped;

	(void)context;
	if (region_open(fd, "cache", 0, &open) || call(fd, CLIENT_SETUP, &setup))
		return 1;
	leases = (void *)map_rw(fd, setup.leases_offset, setup.leases_bytes);
	leases[200] = (struct fabricmgr_lease){ open.id, 3, 7, 0 };
	leases[201] = (struct fabricmgr_lease){ open.id, 15, 7, 0 };
	mapped = map(fd, open.map_offset + 3 * CHUNK, CHUNK, PROT_READ);
	if (mapped == MAP_FAILED || mapped[0] != 'd' || write(ready, "r", 1) != 1)
		return 1;
	for (;;)
		pause();
}

static bool is_taken(int chunk)
{
	return access_fails(memory + chunk * CHUNK, false) == SIGBUS;
}

static void test_reclaim(void)
{
	struct fabricmgr_region_info info = { .id = region.id };
	struct fabricmgr_event event;
	pid_t pid = child_start(lease_two, NULL);
	int i, taken = 0, changed = 0;

	words[5] = WORD(7, STAGING);
	reclaim();
	check(event_next(manager, &event) && event.kind == FABRICMGR_EVENT_PRESSURE &&
		      event.region == region.id && event.bytes,
	      "the manager is asked first");
	for (i = 0; i < CHUNKS; i++)
		taken += is_taken(i);
	check(!taken && event_none(manager), "and nothing is taken yet");
	usleep(150000);
	for (i = 0; i < 20 && event_none(manager); i++)
		reclaim();
	check(event_next(manager, &event) && event.kind == FABRICMGR_EVENT_CHUNKS_TAKEN,
	      "after its time chunks are taken");
	for (i = 0; i < 20; i++)
		reclaim();
	for (i = taken = 0; i < CHUNKS; i++) {
		bool is_kept = i == 3 || i == 5 || i == 15;

		taken += is_taken(i);
		changed += is_taken(i) == is_kept;
		if (is_kept)
			changed += memory[i * CHUNK] != 'a' + i ||
				   words[i] != (i == 5 ? WORD(7, STAGING) : WORD(7, SEALED));
		else
			changed += words[i] != WORD(8, FREE);
	}
	check(taken == CHUNKS - 3 && !changed,
	      "%d of %d: all but two that are leased and one that is staged", taken, CHUNKS);
	need(!call(manager, REGION_INFO, &info));
	check(info.resident_bytes == 3 * CHUNK && info.bytes == CHUNKS * CHUNK,
	      "which the region tells");
	check(one(manager, FABRICMGR_IOC_SEAL, region.id, 0, 0, CHUNK, 0) == -ENXIO,
	      "a taken chunk is not sealed");
	check(!one(manager, FABRICMGR_IOC_REFILL, region.id, 0, 0, 3 * CHUNK, 0) &&
		      is_all(memory, 3 * CHUNK, 0),
	      "three are refilled, with zeros");
	check(one(manager, FABRICMGR_IOC_REFILL, region.id, 0, 0, 4096, 0) == -EINVAL,
	      "chunks are refilled as a whole");
	child_kill(pid);
	for (i = 0; i < 20; i++)
		reclaim();
	check(is_taken(3) && is_taken(15), "when their holder is dead the leased ones go");
}

/* A pinned or staged chunk stays whatever its word says, and so does a region of another kind. */
static void test_kept(void)
{
	struct fabricmgr_client_info info = { 0 };
	uint32_t plain = region_create(manager, "plain", CHUNK, 0, 0600).id;
	struct fabricmgr_region_info described = { .id = plain };
	int i;

	need(!one(manager, FABRICMGR_IOC_REFILL, region.id, 0, 0, 4 * CHUNK, 0));
	need(!call(manager, CLIENT_INFO, &info));
	need(!one(manager, FABRICMGR_IOC_STAGE, region.id, info.id, CHUNK, 4096, 0));
	words[1] = WORD(9, SEALED);
	for (i = 0; i < 20; i++)
		reclaim();
	check(is_taken(0) && !is_taken(1), "a chunk in which a client stages stays");
	need(!call(manager, REGION_INFO, &described));
	check(described.resident_bytes == CHUNK, "and a region that is not discardable, too");
	need(!region_destroy(manager, plain, 0));
}

static void test_tables_race(void)
{
	int i, wrong = 0, fd = device();
	struct fabricmgr_client_setup setup = { .entries = 1 };
	struct fabricmgr_region_open open;
	volatile struct fabricmgr_lease *lease;

	need(!region_open(fd, "cache", 0, &open) && !call(fd, CLIENT_SETUP, &setup));
	lease = (void *)map_rw(fd, setup.leases_offset, setup.leases_bytes);
	for (i = 0; i < 50; i++) {
		uint64_t word;

		need(!one(manager, FABRICMGR_IOC_REFILL, region.id, 0, 2 * CHUNK, CHUNK, 0));
		words[2] = word = WORD(100 + 2 * i, SEALED);
		memory[2 * CHUNK] = 'r';
		if (i % 2) {
			lease->chunk = 2;
			lease->generation = FABRICMGR_WORD_GENERATION(word);
			__atomic_store_n(&lease->region, region.id, __ATOMIC_SEQ_CST);
		}
		reclaim();
		wrong += is_taken(2) != !(i % 2);
		wrong += i % 2 && (words[2] != word || memory[2 * CHUNK] != 'r');
		__atomic_store_n(&lease->region, 0, __ATOMIC_RELEASE);
	}
	check(!wrong, "50 rounds: taken without a lease, kept with one");
	munmap((void *)lease, setup.leases_bytes);
	close(fd);
}

static int create_in_group(void *context)
{
	struct fabricmgr_region_create create = region_spec("charged", 16 * CHUNK, 0);
	int fd = device(), error;

	(void)context;
	write_file("/tmp/cgroup/tight/cgroup.procs", "0");
	error = call(fd, REGION_CREATE, &create);
	if (error != -ENOMEM)
		return 1;
	create.flags = FABRICMGR_CREATE_UNCHARGED;
	if (call(fd, REGION_CREATE, &create))
		return 2;
	return region_destroy(fd, create.id, 0) ? 3 : 0;
}

static void test_cgroup(void)
{
	int status;

	mkdir("/tmp/cgroup", 0700);
	if (mount("cgroup2", "/tmp/cgroup", "cgroup2", 0, NULL)) {
		check(true, "there are no cgroups # SKIP");
		return;
	}
	write_file("/tmp/cgroup/cgroup.subtree_control", "+memory");
	need(!mkdir("/tmp/cgroup/tight", 0700));
	if (access("/tmp/cgroup/tight/memory.max", F_OK)) {
		check(true, "there is no memory controller # SKIP");
	} else {
		write_file("/tmp/cgroup/tight/memory.max", "16M");
		status = in_child(0, 0, create_in_group, NULL);
		check(!status, "a region is charged to its creator's memory cgroup: %d", status);
	}
	rmdir("/tmp/cgroup/tight");
	umount("/tmp/cgroup");
}

static uint64_t value(const char *name)
{
	char path[128], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/sys/class/misc/fabricmgr/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	need(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return strtoull(text, NULL, 10);
}

static bool list_has(const char *name, const char *wanted)
{
	char path[128], text[4096] = "";
	int fd;

	snprintf(path, sizeof(path), "/sys/kernel/debug/fabricmgr/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	need(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return strstr(text, wanted);
}

static void test_reports(void)
{
	struct fabricmgr_client_setup setup = { .entries = 64 };
	struct fabricmgr_lease *leases;
	char line[64];

	check(value("api_major") == FABRICMGR_API_MAJOR && value("regions") == 1 &&
		      value("bytes") == CHUNKS * CHUNK && value("clients") == 1 &&
		      !value("leaving_bytes"),
	      "sysfs counts");
	if (access("/sys/kernel/debug/fabricmgr", F_OK))
		mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	need(!call(manager, CLIENT_SETUP, &setup));
	leases = (void *)map_rw(manager, setup.leases_offset, setup.leases_bytes);
	leases[5] = (struct fabricmgr_lease){ region.id, 77, 88, 99 };
	snprintf(line, sizeof(line), "\n%u %d %u 77 99 88\n", setup.id, getpid(), region.id);
	check(list_has("regions", " cache chunks 0 0 0600 "), "debugfs lists regions");
	check(list_has("clients", " 1/64 "), "clients");
	check(list_has("leases", line), "and who holds which lease");
	munmap(leases, setup.leases_bytes);
}

int main(void)
{
	start();
	begin();
	test_reclaim();
	/* From here on asking is taking: how long a round lasts does not matter. */
	write_file("/sys/module/fabricmgr/parameters/pressure_grace_ms", "0");
	test_kept();
	test_tables_race();
	test_reports();
	munmap(memory, CHUNKS * CHUNK);
	munmap((void *)words, 4096);
	need(!region_destroy(manager, region.id, 0));
	close(manager);
	write_file("/sys/module/fabricmgr/parameters/pressure_grace_ms", "100");
	test_cgroup();
	return finish();
}
