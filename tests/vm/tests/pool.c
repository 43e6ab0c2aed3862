// SPDX-License-Identifier: Apache-2.0
/*
 * The pool in the module's keeping: fabricmgrd killed, stopped and started again finds its memory
 * by name, with nobody in between who held it; readers go on; who may not, does not get at it; what
 * is given back is gone. `pool ROUNDS` kills the daemon so often under a writer (4). The debug
 * kernel, where a daemon takes seconds to start, has the first half of it.
 * VM: limit 120
 */
#include <fabricmgr.h>

#include "module.h"

#define DAEMON	  "/usr/bin/fabricmgrd"
#define SOCKET	  "/tmp/pool.sock"
#define LENGTH	  65536u
#define PAGES	  "/proc/sys/vm/nr_hugepages"
#define MAX_BYTES "/sys/module/fabricmgr/parameters/max_bytes"

/* ---- the daemon ---- */

/* Starts it with up to three more arguments; 0: it did not come to serve, and has ended. */
static pid_t daemon_start(const char *size, const char *keep, const char *flag, const char *value)
{
	int ends[2];
	char byte, ready[16];
	pid_t pid;

	fflush(stdout);
	need(!pipe(ends));
	pid = fork();
	need(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		snprintf(ready, sizeof(ready), "%d", ends[1]);
		execl(DAEMON, DAEMON, "--config", "/dev/null", "--socket", SOCKET, "--log-level",
		      "warning", "--ready-fd", ready, "--size", size, "--keeper", keep, flag, value,
		      NULL);
		_exit(127);
	}
	close(ends[1]);
	if (read(ends[0], &byte, 1) != 1) {
		need(waitpid(pid, NULL, 0) == pid);
		pid = 0;
	}
	close(ends[0]);
	return pid;
}

static int daemon_stop(pid_t pid)
{
	int status;

	need(pid > 0 && !kill(pid, SIGTERM) && waitpid(pid, &status, 0) == pid);
	return status;
}

static int forget(void *context)
{
	(void)context;
	execl(DAEMON, DAEMON, "--config", "/dev/null", "--socket", SOCKET, "--forget", NULL);
	return 127;
}

/* ---- what is in it ---- */

static const struct fm_digest space = {.bytes = {1}};

static struct fm_key key_of(uint32_t number)
{
	struct fm_key key;

	need(!fm_opaque_key(&space, &number, sizeof(number), &key));
	return key;
}

static void fill(char *at, uint32_t number)
{
	memset(at, (int)(number * 7 + 1), LENGTH);
	memcpy(at, &number, sizeof(number));
}

static struct fm_pool *attach(void)
{
	struct fm_attach_options options = {
		.size = sizeof(options),
		.socket = SOCKET,
		.fd = -1,
		.leases = 64,
		.deadline_ns = 30000000000ull,
	};
	struct fm_pool *pool;
	int err = fm_pool_attach(&options, &pool);

	if (err)
		check(false, "attaching: %s", fm_error_detail());
	need(!err);
	return pool;
}

static bool put(struct fm_pool *pool, uint32_t number)
{
	static char data[LENGTH];
	struct fm_put one_put = {.key = key_of(number), .data = data, .length = LENGTH};

	fill(data, number);
	return !fm_pool_put(pool, &space, &one_put, 1, 0) && !one_put.result;
}

/* How many blocks of that range are there; -1: one has wrong bytes. */
static int found(struct fm_pool *pool, uint32_t first, uint32_t end)
{
	static char data[LENGTH];
	int n = 0;

	for (uint32_t number = first; number < end; number++) {
		struct fm_key key = key_of(number);
		struct fm_block block;
		bool is_right;

		if (fm_pool_acquire(pool, &key, 1, &block) != 1)
			continue;
		fill(data, number);
		is_right = block.length == LENGTH && !memcmp(block.data, data, LENGTH) &&
			   !fm_block_verify(pool, &block);
		fm_block_release(pool, &block, 1);
		if (!is_right)
			return -1;
		n++;
	}
	return n;
}

static struct fm_pool_info info_of(struct fm_pool *pool)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	need(!fm_pool_info(pool, &info));
	return info;
}

/* Regions of pools, as the caller sees them. */
static uint32_t regions(const char *part)
{
	struct fabricmgr_region_info info = {.flags = FABRICMGR_NEXT};
	int fd = device();
	uint32_t n = 0;

	for (; !call(fd, REGION_INFO, &info); info.flags = FABRICMGR_NEXT)
		n += !strncmp(info.name, "fm.", 3) && strstr(info.name, part);
	close(fd);
	return n;
}

/* ---- killed ---- */

static int as_reader(void *context, int ready)
{
	struct fm_key key = key_of(7);
	struct fm_pool *pool = attach();
	struct fm_block block;

	(void)context;
	need(fm_pool_acquire(pool, &key, 1, &block) == 1);
	need(write(ready, "r", 1) == 1);
	while (((volatile char *)block.data)[100] == 7 * 7 + 1)
		usleep(1000);
	return 1; /* its bytes changed under its lease */
}

static void test_killed(void)
{
	pid_t daemon = daemon_start("32M", "module", NULL, NULL), reader;
	struct fm_pool *old, *pool;
	struct fm_pool_info info;
	int n = 0, limit;

	if (!check(daemon > 0, "the daemon serves, with its memory in the module's keeping"))
		return;
	old = attach();
	for (uint32_t i = 0; i < 40; i++)
		n += put(old, i);
	check(n == 40 && found(old, 0, 40) == 40, "40 blocks are stored");
	info = info_of(old);
	check(!strcmp(info.kept_by, "kernel module") && !*info.kept_reason, "it says who keeps it");
	reader = child_start(as_reader, NULL);
	child_kill(daemon);
	check(regions("") == 8,
	      "killed, it leaves lock, state, index, headers, links, arena and "
	      "two lease tables (%u)",
	      regions(""));
	check(found(old, 7, 8) == 1, "who was attached reads on");
	daemon = daemon_start("32M", "module", NULL, NULL);
	if (!check(daemon > 0, "it starts again"))
		return;
	pool = attach();
	info = info_of(pool);
	check(found(pool, 0, 40) == 40, "and has all 40, byte for byte");
	check(info.resumed_blocks == 40 && !info.resume_dropped && !*info.cold_reason,
	      "as it tells (%lu, %s)", (unsigned long)info.resumed_blocks, info.cold_reason);
	check(info.kept_clients == 2 && info.kept_leases == 1,
	      "two clients of before hold on, one of them a block");
	check(!kill(reader, 0) && !waitpid(reader, NULL, WNOHANG), "whose bytes have not changed");
	fm_pool_detach(old);
	child_kill(reader);
	for (limit = 0; limit < 3000 && info_of(pool).kept_clients; limit++)
		usleep(10000);
	info = info_of(pool);
	check(!info.kept_clients && !info.kept_leases, "dead, they hold nothing");
	fm_pool_detach(pool);
	for (limit = 0; limit < 3000 && regions(".lease"); limit++)
		usleep(10000);
	check(!regions(".lease"), "and their tables are gone");
	check(daemon_stop(daemon) == 0, "it stops");
}

/* ---- others ---- */

static int as_stranger(void *context)
{
	const char *name = context;
	struct fabricmgr_region_open open;
	int fd = device();

	if (regions(""))
		return 1;
	if (region_open(fd, name, 0, &open) != -EACCES)
		return 2;
	return 0;
}

static void test_others(void)
{
	struct fabricmgr_region_info info = {.flags = FABRICMGR_NEXT};
	pid_t daemon = daemon_start("32M", "manager", NULL, NULL);
	struct fm_pool *pool;
	int fd = device(), status;

	need(daemon > 0);
	pool = attach();
	check(strstr(info_of(pool).cold_reason, "in the kernel module"),
	      "who starts it with another keeper hears what he leaves: %s",
	      info_of(pool).cold_reason);
	fm_pool_detach(pool);
	need(!daemon_stop(daemon));
	daemon = daemon_start("32M", "module", NULL, NULL);
	need(daemon > 0);
	pool = attach();
	check(found(pool, 0, 40) == 40, "stopped and started, it has its blocks");
	while (!call(fd, REGION_INFO, &info) && !strstr(info.name, ".arena"))
		info.flags = FABRICMGR_NEXT;
	check(strstr(info.name, ".arena") && info.mode == 0600, "its arena is its user's alone");
	close(fd);
	status = in_child(1000, 1000, as_stranger, info.name);
	check(!status, "another user neither sees nor opens it (%d)", status);
	/* Nothing but the module's own lock tells it. */
	need(!unlink(SOCKET) && !unlink(SOCKET ".lock"));
	check(!daemon_start("32M", "module", NULL, NULL), "a second one under its name is refused");
	check(in_child(0, 0, forget, NULL) == 1, "and so is it to forget it while it runs");
	check(found(pool, 0, 40) == 40 && put(pool, 40), "it was not disturbed");
	fm_pool_detach(pool);
	check(daemon_stop(daemon) == 0, "it stops");
	check(in_child(0, 0, forget, NULL) == 0 && !regions(""), "forgotten, all of it is gone");
	check(in_child(0, 0, forget, NULL) == 0, "as often as one likes");
}

/* ---- what does not fit ---- */

static void write_number(const char *path, uint64_t number)
{
	FILE *file = fopen(path, "we");

	if (file) {
		fprintf(file, "%lu\n", (unsigned long)number);
		fclose(file);
	}
}

static uint64_t read_number(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned long number = 0;

	if (file) {
		if (fscanf(file, "%lu", &number) != 1)
			number = 0;
		fclose(file);
	}
	return number;
}

static void test_misfits(void)
{
	pid_t daemon = daemon_start("32M", "module", NULL, NULL);
	uint64_t limit = read_number(MAX_BYTES);
	struct fm_pool *pool;
	struct fm_pool_info info;

	need(daemon > 0 && limit);
	pool = attach();
	check(put(pool, 1), "a block is stored");
	fm_pool_detach(pool);
	child_kill(daemon);
	daemon = daemon_start("48M", "module", NULL, NULL);
	need(daemon > 0);
	pool = attach();
	info = info_of(pool);
	check(!info.resumed_blocks && *info.cold_reason && !found(pool, 0, 40),
	      "of another size it starts empty: %s", info.cold_reason);
	check(regions(".arena") == 1 && regions(".index") == 1, "and the old memory is gone");
	fm_pool_detach(pool);
	check(daemon_stop(daemon) == 0 && in_child(0, 0, forget, NULL) == 0, "it stops");
	write_number(MAX_BYTES, 24 * MIB);
	daemon = daemon_start("32M", "best", NULL, NULL);
	need(daemon > 0);
	pool = attach();
	info = info_of(pool);
	check(put(pool, 1) && !strcmp(info.kept_by, "nothing") && *info.kept_reason,
	      "above the module's limit it serves, and says that nobody keeps it: %s",
	      info.kept_reason);
	check(regions("") == 1, "nothing but the lock is left there (%u)", regions(""));
	fm_pool_detach(pool);
	check(daemon_stop(daemon) == 0 && in_child(0, 0, forget, NULL) == 0 && !regions(""),
	      "it stops, and leaves nothing");
	write_number(MAX_BYTES, limit);
}

static void test_huge(void)
{
	uint64_t before = read_number(PAGES);
	struct fm_pool *pool;
	pid_t daemon;

	write_number(PAGES, 16);
	if (read_number(PAGES) < 16) {
		write_number(PAGES, before);
		check(true, "there are no huge pages # SKIP");
		return;
	}
	daemon = daemon_start("32M", "module", "--memory", "hugetlb");
	need(daemon > 0);
	pool = attach();
	check(!strcmp(info_of(pool).rung, "hugetlb memfd") && put(pool, 1), "on huge pages");
	child_kill(daemon);
	fm_pool_detach(pool);
	daemon = daemon_start("32M", "module", "--memory", "hugetlb");
	if (check(daemon > 0, "it starts again, though they are all in use")) {
		pool = attach();
		check(found(pool, 1, 2) == 1 && info_of(pool).resumed_blocks == 1,
		      "and has its block");
		fm_pool_detach(pool);
		check(daemon_stop(daemon) == 0, "it stops");
	}
	check(in_child(0, 0, forget, NULL) == 0 && !regions(""), "forgotten");
	write_number(PAGES, before);
	check(read_number(PAGES) == before, "the huge pages are free again");
}

/* ---- killed at any instruction ---- */

/* Stores blocks from *@context on and tells of each by a byte. */
static int as_writer(void *context, int ready)
{
	struct fm_pool *pool = attach();
	uint32_t number = *(uint32_t *)context;

	while (put(pool, number++))
		if (write(ready, "p", 1) != 1)
			break;
	return 0;
}

static void test_kills(int rounds)
{
	uint32_t first = 1000, stored = 0;
	bool is_right = true;
	pid_t daemon = daemon_start("32M", "module", NULL, NULL), writer;

	need(daemon > 0);
	srand(1);
	for (int round = 0; round < rounds && is_right; round++) {
		struct fm_pool *pool;
		uint32_t told = 0;
		int ends[2];
		char byte;

		need(!pipe2(ends, O_CLOEXEC));
		fflush(stdout);
		writer = fork();
		need(writer >= 0);
		if (!writer) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(ends[0]);
			_exit(as_writer(&first, ends[1]));
		}
		close(ends[1]);
		while (told < 10 && read(ends[0], &byte, 1) == 1)
			told++;
		usleep((useconds_t)(rand() % 20000));
		child_kill(daemon);
		while (read(ends[0], &byte, 1) == 1)
			told++;
		close(ends[0]);
		need(waitpid(writer, NULL, 0) == writer);
		daemon = daemon_start("32M", "module", NULL, NULL);
		need(daemon > 0);
		pool = attach();
		/* The pool is larger than what is stored between two kills. */
		is_right = found(pool, first + (told > 200 ? told - 200 : 0), first + told) ==
			   (int)(told > 200 ? 200 : told);
		fm_pool_detach(pool);
		first += told + 1;
		stored += told;
	}
	check(is_right, "killed %d times under a writer, it has each block that was stored (%u)",
	      rounds, stored);
	check(daemon_stop(daemon) == 0 && in_child(0, 0, forget, NULL) == 0 && !regions(""),
	      "forgotten");
}

int main(int argc, char **argv)
{
	const char *kernel = getenv("FABRICMGR_KERNEL");

	start();
	setenv("FABRICMGR_LOG", "error", 1);
	test_killed();
	test_others();
	if (kernel && !strcmp(kernel, "debug") && argc == 1)
		return finish();
	test_misfits();
	test_huge();
	test_kills(argc > 1 ? atoi(argv[1]) : 4);
	return finish();
}
