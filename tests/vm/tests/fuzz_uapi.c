// SPDX-License-Identifier: Apache-2.0
/*
 * Hostile programs against the module: two processes at a time make calls with structures that are
 * nearly right, map and touch what they are given, fork, submit by rings and are killed anywhere.
 * FUZZ_SECONDS, FUZZ_SEED choose how long and which; the kernel's log and the counts judge.
 * VM: limit 7500
 */
#include "fuzz.h"
#include "uring.h"

#define PROCESSES 2
#define FILES	  3
#define MAPPINGS  6
#define RANGES	  24
#define BLOCK	  (64UL << 10)
#define OTHER	  1001

struct call {
	const char *name;
	uint32_t command;
	uint32_t bytes;
	bool may_ring;
	bool is_rare; /* needs more luck than a short run has */
	void (*fill)(void *argument);
};

static struct fuzz_shared *shared;
static int files[FILES];
static uint32_t clients[FILES]; /* as managers know them */
static struct {
	char *memory;
	size_t bytes;
} mappings[MAPPINGS];
static struct uring ring;
static struct fabricmgr_range ranges[RANGES];
static struct fabricmgr_event records[RANGES];
static union {
	uint64_t words[32];
	char bytes[256];
} buffer;
static struct fabricmgr_events waits[4]; /* of commands that wait in the ring */
static unsigned int waiting;

/* ---- members of structures ---- */

static struct fuzz_region *some_region(void)
{
	return &shared->regions[fuzz_below(FUZZ_REGIONS)];
}

static uint32_t some_id(void)
{
	return fuzz_chance(90) ? some_region()->id : fuzz_random() >> fuzz_below(64);
}

static uint32_t some_client(void)
{
	return fuzz_chance(85) ? shared->clients[fuzz_below(FUZZ_REGIONS)] : fuzz_below(64);
}

static void some_name(char *name)
{
	snprintf(name, FABRICMGR_NAME_BYTES, "fuzz-%u", (unsigned int)fuzz_below(12));
	if (fuzz_chance(6))
		name[fuzz_below(8)] = fuzz_random();
	if (fuzz_chance(3))
		memset(name, 'n', FABRICMGR_NAME_BYTES);
}

static uint32_t some_user(void)
{
	return fuzz_chance(80) ? FABRICMGR_ID_SAME : fuzz_chance(50) ? OTHER : fuzz_below(2000);
}

static uint64_t some_offset(uint64_t bytes)
{
	uint64_t offset = fuzz_below(bytes / 4096 + 1) * 4096;

	return fuzz_chance(94) ? offset : fuzz_random() >> fuzz_below(64);
}

static void some_pci(struct fabricmgr_pci *pci)
{
	pci->bus = fuzz_below(6);
	pci->device = fuzz_below(5);
	if (fuzz_chance(5))
		pci->domain = fuzz_random();
}

static int some_file(void)
{
	return files[fuzz_below(FILES)];
}

/* ---- structures ---- */

static void fill_nothing(void *argument)
{
	(void)argument;
}

static void fill_info(void *argument)
{
	struct fabricmgr_region_info *info = argument;

	info->id = some_id();
	info->flags = fuzz_below(2);
}

static void fill_create(void *argument)
{
	struct fabricmgr_region_create *create = argument;

	create->flags = fuzz_chance(80) ? fuzz_below(8) : fuzz_below(32);
	create->order = fuzz_chance(60) ? 0 : fuzz_below(12);
	create->bytes = (1 + fuzz_below(4)) * (create->order ? 4096UL << create->order : 2 * MIB);
	if (fuzz_chance(5))
		create->bytes = fuzz_random() >> fuzz_below(64);
	create->node = fuzz_chance(60) ? FABRICMGR_NODE_ANY : (int)fuzz_below(4) - 1;
	create->uid = some_user();
	create->gid = some_user();
	create->mode = fuzz_chance(90) ? 0666 : fuzz_below(01000);
	create->lease_region = fuzz_below(3);
	some_name(create->name);
}

static void fill_open(void *argument)
{
	struct fabricmgr_region_open *open = argument;

	open->flags = fuzz_below(4);
	if (fuzz_chance(70))
		some_name(open->name);
	else
		open->id = some_id();
}

static void fill_id(void *argument)
{
	struct fabricmgr_region_id *id = argument;

	id->id = some_id();
}

static void fill_destroy(void *argument)
{
	struct fabricmgr_region_id *id = argument;

	id->id = some_id();
	id->flags = fuzz_chance(50);
}

static void fill_own(void *argument)
{
	struct fabricmgr_region_own *own = argument;

	own->id = some_id();
	own->uid = some_user();
	own->gid = some_user();
	own->mode = fuzz_chance(80) ? 0666 : fuzz_random();
}

static void fill_export(void *argument)
{
	struct fabricmgr_region_export *export = argument;

	export->id = some_id();
	export->fd_flags = O_CLOEXEC | (fuzz_chance(50) ? O_RDWR : O_RDONLY);
	export->offset = fuzz_chance(50) ? 0 : some_offset(CHUNK);
	export->bytes = fuzz_chance(50) ? 0 : some_offset(CHUNK);
}

static int some_memfd(void)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return some_file();
	if (fuzz_chance(90))
		fchmod(fd, 0600);
	if (ftruncate(fd, (1 + fuzz_below(64)) * 4096) < 0)
		return fd;
	if (fuzz_chance(80))
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
	return fd;
}

static void fill_vault(void *argument)
{
	struct fabricmgr_vault_create *vault = argument;

	vault->fd = fuzz_chance(80) ? some_memfd() : some_file();
	vault->uid = some_user();
	vault->gid = some_user();
	vault->mode = 0666;
	vault->flags = fuzz_below(2);
	some_name(vault->name);
}

static void fill_fd(void *argument)
{
	struct fabricmgr_region_fd *fd = argument;

	fd->id = some_id();
	fd->fd_flags = O_CLOEXEC | (fuzz_chance(50) ? O_RDWR : O_RDONLY);
}

static int some_dmabuf(void)
{
	struct fabricmgr_region_export export = {
		.size = sizeof(export), .id = some_id(), .fd_flags = O_CLOEXEC | O_RDWR};

	return ioctl(some_file(), FABRICMGR_IOC_REGION_EXPORT, &export) ? some_file() : export.fd;
}

static void fill_peer(void *argument)
{
	struct fabricmgr_peer_create *peer = argument;

	peer->fd = some_dmabuf();
	peer->uid = some_user();
	peer->gid = some_user();
	peer->mode = 0666;
	some_pci(&peer->pci);
	some_name(peer->name);
}

static void fill_distance(void *argument)
{
	struct fabricmgr_peer_distance *distance = argument;

	some_pci(&distance->provider);
	some_pci(&distance->requester);
}

static void fill_setup(void *argument)
{
	struct fabricmgr_client_setup *setup = argument;

	setup->entries = fuzz_chance(90) ? 1 + fuzz_below(4096) : fuzz_random();
}

static void fill_client(void *argument)
{
	struct fabricmgr_client_info *info = argument;

	info->id = fuzz_chance(30) ? 0 : some_client();
	info->flags = fuzz_below(2);
}

static void fill_batch(void *argument)
{
	struct fabricmgr_batch *batch = argument;
	struct fuzz_region *region = some_region();
	unsigned int i;

	batch->region = fuzz_chance(95) ? region->id : some_id();
	batch->flags = fuzz_chance(40);
	batch->count = 1 + fuzz_below(RANGES);
	batch->ranges = (uintptr_t)ranges;
	for (i = 0; i < batch->count; i++) {
		/* Mostly one of few blocks, so that one call finds what another one left. */
		bool is_block = fuzz_chance(80);

		ranges[i].offset = is_block ? fuzz_below(8) * BLOCK : some_offset(2 * CHUNK);
		ranges[i].bytes = is_block ? BLOCK : some_offset(CHUNK);
		ranges[i].reserved = fuzz_chance(1);
	}
	if (fuzz_chance(3))
		batch->count = fuzz_random() >> fuzz_below(64);
	if (fuzz_chance(3))
		batch->ranges = fuzz_random() >> fuzz_below(64);
}

static void fill_stage(void *argument)
{
	struct fabricmgr_batch *batch = argument;

	fill_batch(argument);
	batch->client = some_client();
	if (fuzz_chance(50)) {
		struct fabricmgr_region_open open = {.size = sizeof(open), .flags = 1};
		unsigned int at = fuzz_below(FILES);

		open.id = batch->region;
		if (!call_raw(files[at], FABRICMGR_IOC_REGION_OPEN, &open))
			batch->client = clients[at];
	}
}

static void fill_refill(void *argument)
{
	struct fabricmgr_batch *batch = argument;

	fill_batch(argument);
	batch->flags = 0;
	batch->count = 1;
	ranges[0] = (struct fabricmgr_range){.offset = fuzz_below(3) * CHUNK, .bytes = CHUNK};
}

static void fill_quota(void *argument)
{
	struct fabricmgr_quota *quota = argument;

	quota->uid = some_user();
	quota->limit_bytes = fuzz_chance(80) ? 128 * MIB : fuzz_below(256) * MIB;
	quota->limit_regions = fuzz_chance(80) ? FABRICMGR_QUOTA_DEFAULT : 4 + fuzz_below(16);
	quota->limit_clients = fuzz_chance(80) ? FABRICMGR_QUOTA_DEFAULT : 8 + fuzz_below(16);
}

#define CALL(name, type, may_ring, is_rare, fill)                                                  \
	{                                                                                          \
#name, FABRICMGR_IOC_##name, sizeof(struct type), may_ring, is_rare, fill          \
	}

static const struct call calls[] = {
	CALL(VERSION, fabricmgr_version, false, false, fill_nothing),
	CALL(REGION_INFO, fabricmgr_region_info, false, false, fill_info),
	CALL(REGION_CREATE, fabricmgr_region_create, true, false, fill_create),
	CALL(REGION_CREATE, fabricmgr_region_create, true, false, fill_create),
	CALL(REGION_OPEN, fabricmgr_region_open, false, false, fill_open),
	CALL(REGION_OPEN, fabricmgr_region_open, false, false, fill_open),
	CALL(REGION_CLOSE, fabricmgr_region_id, false, false, fill_id),
	CALL(REGION_DESTROY, fabricmgr_region_id, true, false, fill_destroy),
	CALL(REGION_BASELINE, fabricmgr_region_id, false, false, fill_id),
	CALL(REGION_OWN, fabricmgr_region_own, false, false, fill_own),
	CALL(REGION_EXPORT, fabricmgr_region_export, false, false, fill_export),
	CALL(REGION_FD, fabricmgr_region_fd, false, true, fill_fd),
	CALL(VAULT_CREATE, fabricmgr_vault_create, false, false, fill_vault),
	CALL(PEER_CREATE, fabricmgr_peer_create, false, true, fill_peer),
	CALL(PEER_DISTANCE, fabricmgr_peer_distance, false, false, fill_distance),
	CALL(CLIENT_SETUP, fabricmgr_client_setup, false, false, fill_setup),
	CALL(CLIENT_INFO, fabricmgr_client_info, false, false, fill_client),
	CALL(STAGE, fabricmgr_batch, true, false, fill_stage),
	CALL(STAGE, fabricmgr_batch, true, false, fill_stage),
	CALL(UNSTAGE, fabricmgr_batch, true, false, fill_batch),
	CALL(SEAL, fabricmgr_batch, true, false, fill_batch),
	CALL(SEAL, fabricmgr_batch, true, false, fill_batch),
	CALL(UNSEAL, fabricmgr_batch, true, false, fill_batch),
	CALL(PINS, fabricmgr_batch, true, false, fill_batch),
	CALL(REFILL, fabricmgr_batch, true, true, fill_refill),
	CALL(QUOTA_GET, fabricmgr_quota, false, false, fill_quota),
	CALL(QUOTA_SET, fabricmgr_quota, false, false, fill_quota),
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- what a process does ---- */

static void remember(const struct call *call)
{
	struct fuzz_region *region = some_region();

	if (call->command == FABRICMGR_IOC_REGION_CREATE) {
		struct fabricmgr_region_create *create = (void *)&buffer;

		*region = (struct fuzz_region){create->id, create->bytes, create->map_offset,
					       create->write_offset};
	} else if (call->command == FABRICMGR_IOC_REGION_OPEN) {
		struct fabricmgr_region_open *open = (void *)&buffer;

		*region = (struct fuzz_region){open->id, open->bytes, open->map_offset,
					       open->write_offset};
	} else if (call->command == FABRICMGR_IOC_CLIENT_SETUP) {
		struct fabricmgr_client_setup *setup = (void *)&buffer;

		shared->clients[fuzz_below(FUZZ_REGIONS)] = setup->id;
		*region = (struct fuzz_region){region->id, setup->leases_bytes,
					       setup->leases_offset, setup->leases_offset};
	} else if (call->command == FABRICMGR_IOC_REGION_EXPORT) {
		close(((struct fabricmgr_region_export *)&buffer)->fd);
	} else if (call->command == FABRICMGR_IOC_REGION_FD) {
		close(((struct fabricmgr_region_fd *)&buffer)->fd);
	}
}

/* The result of @call by the ring; what waited there for events may complete before it. */
static int through_ring(const struct call *call, int fd)
{
	struct io_uring_cqe completion;

	fuzz_count(&shared->ring_calls);
	uring_submit(&ring, fd, call->command, &buffer, 1);
	for (;;) {
		if (!uring_wait(&ring, &completion))
			return -ETIME; /* which the judge takes for a call that was forgotten */
		if (completion.user_data == 1)
			return completion.res;
		waiting--;
	}
}

static void one_call(void)
{
	const struct call *call = &calls[fuzz_below(COUNT(calls))];
	uint32_t *header = (uint32_t *)&buffer;
	int given = -1, result;

	memset(&buffer, 0, sizeof(buffer));
	call->fill(&buffer);
	header[0] = fuzz_chance(95) ? call->bytes : fuzz_below(sizeof(buffer));
	if (fuzz_chance(3))
		header[1] = fuzz_random() >> fuzz_below(64);
	if (fuzz_chance(3))
		buffer.bytes[8 + fuzz_below(call->bytes - 8)] ^= 1 << fuzz_below(8);
	if (call->command == FABRICMGR_IOC_VAULT_CREATE ||
	    call->command == FABRICMGR_IOC_PEER_CREATE)
		given = ((int *)&buffer)[2];
	if (fuzz_chance(2))
		result = call_raw(some_file(), call->command,
				  (void *)(fuzz_random() >> fuzz_below(64)));
	else if (call->may_ring && fuzz_chance(30))
		result = through_ring(call, some_file());
	else
		result = call_raw(some_file(), call->command, &buffer);
	if (result >= 0)
		remember(call);
	fuzz_count(&shared->results[_IOC_NR(call->command)][result < 0 ? -result & 255 : 0]);
	if (given >= 0 && given != files[0] && given != files[1] && given != files[2])
		close(given);
}

static void events(void)
{
	ssize_t got;
	int result;

	if (fuzz_chance(50)) {
		got = read(some_file(), records, sizeof(records[0]) * fuzz_below(RANGES));
		result = got < 0 ? errno : 0;
		fuzz_count(&shared->results[_IOC_NR(FABRICMGR_IOC_EVENTS)][result]);
	} else if (waiting < COUNT(waits)) {
		waits[waiting] = (struct fabricmgr_events){.size = sizeof(waits[0]),
							   .records = (uintptr_t)records,
							   .capacity = RANGES};
		uring_submit(&ring, some_file(), FABRICMGR_IOC_EVENTS, &waits[waiting], 2);
		waiting++;
	}
}

static void touch(void)
{
	unsigned int at = fuzz_below(MAPPINGS);
	struct fuzz_region *region = some_region();
	uint64_t bytes = (1 + fuzz_below(64)) * 4096, window;
	char *memory;

	if (!mappings[at].memory || fuzz_chance(20)) {
		if (mappings[at].memory)
			munmap(mappings[at].memory, mappings[at].bytes);
		mappings[at].memory = NULL;
		window = (fuzz_chance(50) ? region->map_offset : region->write_offset) +
			 (fuzz_chance(50) ? 0 : some_offset(region->bytes) & ~4095UL);
		memory = map(some_file(), window, bytes, 1 + fuzz_below(3));
		if (memory == MAP_FAILED)
			return;
		mappings[at].memory = memory;
		mappings[at].bytes = bytes;
	}
	fuzz_count(&shared->touches);
	if (access_fails(mappings[at].memory + fuzz_below(mappings[at].bytes), fuzz_chance(50)))
		fuzz_count(&shared->signals);
	if (fuzz_chance(5))
		mprotect(mappings[at].memory, 4096, fuzz_below(4));
}

static void open_file(unsigned int at)
{
	struct fabricmgr_client_info info = {.size = sizeof(info)};

	files[at] = fuzz_chance(80) ? open(DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK)
				    : dup(files[(at + 1) % FILES]);
	if (!call_raw(files[at], FABRICMGR_IOC_CLIENT_INFO, &info))
		clients[at] = info.id;
}

static void reopen(void)
{
	unsigned int at = fuzz_below(FILES);

	close(files[at]);
	open_file(at);
}

static void steps(unsigned int count)
{
	while (count--) {
		unsigned int what = fuzz_below(100);

		if (what < 75)
			one_call();
		else if (what < 90)
			touch();
		else if (what < 96)
			events();
		else
			reopen();
	}
}

/* A child has the files, not the mappings; one in two is killed at work. */
static void fork_once(void)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		uring_open(&ring, 8, 0);
		waiting = 0;
		steps(fuzz_chance(50) ? 20 : 100000);
		_exit(0);
	}
	if (pid < 0)
		return;
	fuzz_count(&shared->forks);
	poll(NULL, 0, fuzz_below(20));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void process(uint64_t seed, unsigned int number, uint64_t round)
{
	unsigned int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The judge alone has a say: a ring may be short of memory, and that is no result. */
	if (!freopen("/dev/null", "w", stdout))
		_exit(1);
	fuzz_seed(seed, number, round);
	for (i = 0; i < FILES; i++)
		open_file(i);
	uring_open(&ring, 8, 0);
	if (fuzz_chance(50) && (setgid(OTHER) || setuid(OTHER)))
		_exit(1);
	for (i = 0; i < 50; i++) {
		steps(60);
		fork_once();
	}
	_exit(0);
}

/* ---- the judge ---- */

/* Whether each call was done once, but for those that need more luck than a short run has. */
static bool is_covered(void)
{
	unsigned int i;

	for (i = 0; i < COUNT(calls); i++)
		if (!calls[i].is_rare && !shared->results[_IOC_NR(calls[i].command)][0])
			return false;
	return true;
}

/* Until then, and on a machine that is slow until all was done, ten times as long at most. Adds to
 * @idle the turns, of which each has one kill, in which no call of any kind was done. */
static uint64_t run(int fd, uint64_t seed, uint64_t nanoseconds, uint64_t *idle)
{
	uint64_t until_ns = now_ns() + nanoseconds, last_ns = until_ns + 9 * nanoseconds;
	uint64_t rounds = 0, kills = 0, done;
	pid_t pids[PROCESSES] = {0};
	unsigned int i;
	int status, left;

	fuzz_seed(seed, PROCESSES, 0);
	while (now_ns() < until_ns || (!is_covered() && now_ns() < last_ns)) {
		for (i = 0; i < PROCESSES; i++) {
			if (!pids[i]) {
				pids[i] = fork();
				need(pids[i] >= 0);
				if (!pids[i]) {
					close(fd);
					process(seed, i, rounds);
				}
				rounds++;
			}
		}
		done = fuzz_done(shared);
		for (left = 50 + fuzz_below(500); left > 0; left -= 20) {
			fuzz_raise_quota(fd, 0);
			fuzz_raise_quota(fd, OTHER);
			poll(NULL, 0, left < 20 ? left : 20);
		}
		*idle += fuzz_done(shared) == done;
		i = fuzz_below(PROCESSES);
		kill(pids[i], SIGKILL);
		need(waitpid(pids[i], &status, 0) == pids[i]);
		kills += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		pids[i] = 0;
	}
	for (i = 0; i < PROCESSES; i++) {
		if (pids[i]) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
	}
	return kills;
}

/* One line a call: how often it did it, how often it refused, in how many ways. */
static void tell(const struct call *call)
{
	const uint64_t *results = shared->results[_IOC_NR(call->command)];
	uint64_t refused = 0, ways = 0;
	unsigned int i;

	for (i = 1; i < FUZZ_ERRORS; i++) {
		refused += results[i];
		ways += results[i] != 0;
	}
	check((results[0] || call->is_rare) && refused, "%s: %lu done, %lu refused with %lu errors",
	      call->name, results[0], refused, ways);
}

int main(void)
{
	const char *kernel = getenv("FABRICMGR_KERNEL") ?: "";
	uint64_t seed = fuzz_setting("FUZZ_SEED", 1), kills, total = 0, idle = 0;
	uint64_t seconds = fuzz_setting("FUZZ_SECONDS", strcmp(kernel, "debug") ? 10 : 60);
	unsigned int i, j;
	int fd;

	start();
	shared = fuzz_share();
	need(!chmod(DEVICE, 0666)); /* both users open it */
	need(fuzz_set_limit("201326592"));
	fd = device(); /* before anybody lowers its quota */
	kills = run(fd, seed, seconds * 1000000000, &idle);
	check(kills > 0 && shared->forks > 0, "seed %lu, %lu s: %lu processes killed, %lu forks",
	      seed, seconds, kills, shared->forks);
	check(idle < kills / 2, "%lu turns in which nothing was done", idle);
	check(shared->ring_calls > 0 && !shared->results[_IOC_NR(FABRICMGR_IOC_STAGE)][ETIME],
	      "%lu calls by a ring, all of them answered", shared->ring_calls);
	check(shared->touches > shared->signals && shared->signals,
	      "%lu touches, %lu of them signals", shared->touches, shared->signals);
	for (i = 0; i < COUNT(calls); i++)
		if (!i || calls[i].command != calls[i - 1].command)
			tell(&calls[i]);
	for (i = 0; i < FUZZ_CALLS; i++)
		for (j = 0; j < FUZZ_ERRORS; j++)
			total += shared->results[i][j];
	if (!check(fuzz_clients_become(fd, 0, 1) && fuzz_clients_become(fd, OTHER, 0),
		   "no client is left after %lu calls", total))
		fuzz_tell_left();
	fuzz_destroy_all(fd);
	if (!check(!fuzz_held(fd, 0, false) && !fuzz_held(fd, OTHER, false), "nor a region"))
		fuzz_tell_left();
	return finish();
}
