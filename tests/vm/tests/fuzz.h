/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers by chance that can be had again, and what processes by chance know together: which
 * regions there are, what every call answered how often. Used by fuzz_uapi.c; a process may
 * be killed anywhere, so everything shared is written word by word.
 */
#ifndef FM_TEST_FUZZ_H
#define FM_TEST_FUZZ_H

#include "module.h"

#define FUZZ_REGIONS 16
#define FUZZ_CALLS   128
#define FUZZ_ERRORS  256 /* [call][0]: done; [call][n]: refused with errno n */

struct fuzz_region {
	uint32_t id;
	uint64_t bytes, map_offset, write_offset;
};

struct fuzz_shared {
	struct fuzz_region regions[FUZZ_REGIONS];
	uint32_t clients[FUZZ_REGIONS];
	uint64_t results[FUZZ_CALLS][FUZZ_ERRORS];
	uint64_t touches, signals, forks, ring_calls;
};

static inline struct fuzz_shared *fuzz_share(void)
{
	struct fuzz_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	need(shared != MAP_FAILED);
	return shared;
}

static inline void fuzz_count(uint64_t *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static uint64_t fuzz_state;

static inline uint64_t fuzz_random(void)
{
	uint64_t mixed = fuzz_state += 0x9e3779b97f4a7c15;

	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
	return mixed ^ (mixed >> 31);
}

static inline uint64_t fuzz_below(uint64_t limit)
{
	return fuzz_random() % limit;
}

static inline bool fuzz_chance(unsigned int percent)
{
	return fuzz_below(100) < percent;
}

/* The same numbers for the same (seed, process, round). */
static inline void fuzz_seed(uint64_t seed, uint64_t process, uint64_t round)
{
	fuzz_state = seed * 1000003 + process * 7919 + round;
	fuzz_random();
}

static inline uint64_t fuzz_setting(const char *name, uint64_t other)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : other;
}

/* What the quota of @uid still counts: regions, clients. */
static inline uint64_t fuzz_held(int fd, uint32_t uid, bool is_clients)
{
	struct fabricmgr_quota quota = {.uid = uid};

	need(!call(fd, QUOTA_GET, &quota));
	return is_clients ? quota.clients : quota.regions;
}

/* Whoever has set it so low that nothing can be opened any more cannot raise it either. */
static inline void fuzz_raise_quota(int fd, uint32_t uid)
{
	struct fabricmgr_quota quota = {
		.uid = uid,
		.limit_bytes = FABRICMGR_QUOTA_DEFAULT,
		.limit_regions = FABRICMGR_QUOTA_DEFAULT,
		.limit_clients = FABRICMGR_QUOTA_DEFAULT,
	};

	need(!call(fd, QUOTA_SET, &quota));
}

/* Calls that were done, of all kinds. */
static inline uint64_t fuzz_done(const struct fuzz_shared *shared)
{
	uint64_t done = 0;
	unsigned int i;

	for (i = 0; i < FUZZ_CALLS; i++)
		done += __atomic_load_n(&shared->results[i][0], __ATOMIC_RELAXED);
	return done;
}

/* Destroys what there is by force; how many regions that were. */
static inline int fuzz_destroy_all(int fd)
{
	struct fabricmgr_region_info info = {.flags = FABRICMGR_NEXT};
	int count = 0;

	while (!call(fd, REGION_INFO, &info)) {
		count += !region_destroy(fd, info.id, FABRICMGR_DESTROY_FORCE);
		info.flags = FABRICMGR_NEXT;
	}
	return count;
}

/* Waits until @uid has @clients files open: the kernel may close one in a worker of its own. */
static inline bool fuzz_clients_become(int fd, uint32_t uid, uint64_t clients)
{
	int i;

	for (i = 0; i < 1000 && fuzz_held(fd, uid, true) != clients; i++)
		poll(NULL, 0, 10);
	return fuzz_held(fd, uid, true) == clients;
}

/* What the module lists, for whoever has to find out why something is left. */
static inline void fuzz_tell_left(void)
{
	static const char *const lists[] = {"clients", "regions"};
	char path[64], line[256];
	unsigned int i;
	FILE *file;

	for (i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/fabricmgr/%s", lists[i]);
		file = fopen(path, "re");
		while (file && fgets(line, sizeof(line), file))
			printf("# %s: %s", lists[i], line);
		if (file)
			fclose(file);
	}
}

static inline bool fuzz_set_limit(const char *text)
{
	int fd = open("/sys/module/fabricmgr/parameters/max_bytes", O_WRONLY | O_CLOEXEC);
	bool is_set = fd >= 0 && write(fd, text, strlen(text)) > 0;

	close(fd);
	return is_set;
}

#endif
