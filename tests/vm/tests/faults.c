// SPDX-License-Identifier: Apache-2.0
/*
 * Every allocation of every call fails once: the n-th, for n from 1 until the call needs no more.
 * Each time the call succeeds or gives an error, nothing of it is left, and without the fault it
 * works. Needs a kernel with fault injection. VM: only debug, limit 400
 */
#include "uring.h"

#define TURNS_MAX 400

struct scene {
	int fd, client;
	uint32_t arena, client_id;
	uint64_t write_offset;
	int result; /* of what is tried */
};

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		skip_all("the kernel injects no faults");
	close(fd);
}

static int fail_fd, nth;
static bool is_over; /* the call needed less than nth allocations and copies */

/* From here on the nth allocation, or copy from or to user memory, of this thread fails. */
static void arm(void)
{
	char text[16];
	int bytes = snprintf(text, sizeof(text), "%d", nth);

	need(pwrite(fail_fd, text, bytes, 0) == bytes);
}

/* Looking may be what fails: then the call has not. */
static void disarm(void)
{
	char text[16] = "0";

	is_over = pread(fail_fd, text, sizeof(text) - 1, 0) <= 0 || atoi(text);
	while (pwrite(fail_fd, "0", 1, 0) != 1)
		;
}

static void try_open(struct scene *scene)
{
	int fd;

	arm();
	fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	scene->result = fd < 0 ? -errno : 0;
	disarm();
	if (fd >= 0)
		close(fd);
}

static void create_one(struct scene *scene, uint32_t flags, uint32_t order, uint64_t bytes)
{
	struct fabricmgr_region_create create = region_spec("faulty", bytes, flags);
	struct fabricmgr_region_open open;

	create.order = order;
	arm();
	scene->result = call(scene->fd, REGION_CREATE, &create);
	disarm();
	if (scene->result == -EFAULT && !region_open(scene->fd, "faulty", 0, &open))
		scene->result = 0, create.id = open.id; /* its result could not be told */
	if (!scene->result)
		need(!region_destroy(scene->fd, create.id, 0));
}

static void try_create(struct scene *scene)
{
	create_one(scene, FABRICMGR_CREATE_MANAGE, 4, 256 << 10);
}

static void try_create_discardable(struct scene *scene)
{
	create_one(scene, FABRICMGR_CREATE_DISCARDABLE, 0, CHUNK);
}

static void try_attach(struct scene *scene)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_region_id id = { .id = scene->arena };
	int fd = device();

	arm();
	scene->result = region_open(fd, "arena", FABRICMGR_OPEN_WRITE, &open);
	disarm();
	if (!scene->result)
		need(!call(fd, REGION_CLOSE, &id));
	close(fd);
}

static void try_setup(struct scene *scene)
{
	struct fabricmgr_client_setup setup = { .entries = 1000 };
	int fd = device();

	arm();
	scene->result = call(fd, CLIENT_SETUP, &setup);
	disarm();
	close(fd);
}

static void try_stage(struct scene *scene)
{
	int undone;

	arm();
	scene->result = one(scene->fd, FABRICMGR_IOC_STAGE, scene->arena, scene->client_id,
			    CHUNK - 4096, 8192, 1);
	disarm();
	/* Where only the result could not be told the pages are staged all the same. */
	undone = one(scene->fd, FABRICMGR_IOC_UNSTAGE, scene->arena, 0, CHUNK - 4096, 8192, 0);
	need(!undone || scene->result);
}

static void try_seal(struct scene *scene)
{
	int undone;

	arm();
	scene->result = one(scene->fd, FABRICMGR_IOC_SEAL, scene->arena, 0, 0, 3 * CHUNK, 0);
	disarm();
	undone = one(scene->fd, FABRICMGR_IOC_UNSEAL, scene->arena, 0, 0, 3 * CHUNK, 0);
	need(!undone || scene->result);
}

/* The descriptor that a call made and could not tell: the highest one, a dma-buf. */
static bool lost_export(int *fd)
{
	char path[32], target[64];
	ssize_t bytes;

	for (*fd = 64; *fd > 2; (*fd)--) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
		bytes = readlink(path, target, sizeof(target) - 1);
		if (bytes > 0)
			return !strncmp(target, "/dmabuf", 7);
	}
	return false;
}

static void try_export(struct scene *scene)
{
	struct fabricmgr_region_export export = { .id = scene->arena, .fd_flags = O_CLOEXEC };

	arm();
	scene->result = call(scene->fd, REGION_EXPORT, &export);
	disarm();
	if (scene->result == -EFAULT && lost_export(&export.fd))
		close(export.fd);
	if (!scene->result)
		close(export.fd);
}

static void try_vault(struct scene *scene)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_vault_create vault = {
		.uid = FABRICMGR_ID_SAME, .gid = FABRICMGR_ID_SAME, .mode = 0600, .name = "vault",
	};

	vault.fd = syscall(SYS_memfd_create, "vault", 3U);
	need(!ftruncate(vault.fd, 4096) && !fchmod(vault.fd, 0600) &&
	     !fcntl(vault.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	arm();
	scene->result = call(scene->fd, VAULT_CREATE, &vault);
	disarm();
	close(vault.fd);
	if (!region_open(scene->fd, "vault", 0, &open))
		need(!region_destroy(scene->fd, open.id, 0));
}

/* A page fault that the kernel takes for us, in a read: without memory that is EFAULT. */
/* Each time where no page table is yet, or touching would allocate nothing. */
static void try_touch(struct scene *scene)
{
	static uintptr_t at = 1ul << 44;
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char *memory = mmap((void *)at, 4096, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_FIXED_NOREPLACE, scene->fd, scene->write_offset);

	need(memory != MAP_FAILED);
	at += 1ul << 30;
	arm();
	scene->result = read(zero, memory, 4096) != 4096;
	disarm();
	munmap(memory, 4096);
	close(zero);
}

static void try_ring(struct scene *scene)
{
	struct fabricmgr_range range = { .bytes = 4096 };
	struct fabricmgr_batch batch = { .size = sizeof(batch), .region = scene->arena,
					 .ranges = (uintptr_t)&range, .count = 1 };
	struct io_uring_cqe completion;
	struct uring ring;

	uring_open(&ring, 4, 0);
	arm();
	scene->result = uring_try(&ring, scene->fd, FABRICMGR_IOC_PINS, &batch, 1);
	disarm();
	if (!scene->result && uring_wait(&ring, &completion))
		scene->result = completion.res;
	uring_close(&ring);
}

static void try_quota(struct scene *scene)
{
	struct fabricmgr_quota quota = {
		.uid = 4711,
		.limit_bytes = FABRICMGR_QUOTA_DEFAULT,
		.limit_regions = FABRICMGR_QUOTA_DEFAULT,
		.limit_clients = FABRICMGR_QUOTA_DEFAULT,
	};

	arm();
	scene->result = call(scene->fd, QUOTA_SET, &quota);
	disarm();
}

static const struct {
	const char *what;
	void (*attempt)(struct scene *scene);
} cases[] = {
	{ "opening the device", try_open },
	{ "creating small chunks", try_create },
	{ "creating a discardable region", try_create_discardable },
	{ "opening a region", try_attach },
	{ "a lease table", try_setup },
	{ "staging", try_stage },
	{ "sealing", try_seal },
	{ "exporting", try_export },
	{ "a vault", try_vault },
	{ "touching a window", try_touch },
	{ "a ring command", try_ring },
	{ "a quota", try_quota },
};

static uint64_t used(int fd)
{
	struct fabricmgr_quota quota = { .uid = FABRICMGR_ID_SAME };

	need(!call(fd, QUOTA_GET, &quota));
	return quota.bytes + quota.regions + quota.clients;
}

static void test_case(struct scene *scene, size_t index)
{
	uint64_t before = used(scene->fd);
	int failures = 0, wait;

	for (nth = 1, is_over = false; nth < TURNS_MAX && !is_over; nth++) {
		cases[index].attempt(scene);
		failures += scene->result != 0;
	}
	check(is_over && failures, "%s: %d faults, of which it told %d", cases[index].what, nth - 2,
	      failures);
	nth = 100000;
	cases[index].attempt(scene);
	check(!scene->result, "%s: works without", cases[index].what);
	for (wait = 0; wait < 1000 && used(scene->fd) != before; wait++)
		usleep(10000); /* files close behind us */
	check(used(scene->fd) == before, "%s: leaves nothing", cases[index].what);
}

int main(void)
{
	struct fabricmgr_client_info info = { 0 };
	struct fabricmgr_region_create arena;
	struct fabricmgr_region_open open_arena;
	struct scene scene;
	size_t i;

	write_to("/sys/kernel/debug/failslab/ignore-gfp-wait", "N");
	write_to("/sys/kernel/debug/failslab/verbose", "0");
	write_to("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N");
	write_to("/sys/kernel/debug/fail_page_alloc/min-order", "0");
	write_to("/sys/kernel/debug/fail_page_alloc/verbose", "0");
	write_to("/sys/kernel/debug/fail_usercopy/verbose", "0");
	fail_fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_fd < 0)
		skip_all("the kernel cannot fail the n-th allocation");
	start();
	scene.fd = device();
	scene.client = device();
	arena = region_create(scene.fd, "arena", 4 * CHUNK, 0, 0600);
	scene.arena = arena.id;
	scene.write_offset = arena.write_offset;
	need(!region_open(scene.client, "arena", 0, &open_arena));
	need(!call(scene.client, CLIENT_INFO, &info));
	scene.client_id = info.id;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		test_case(&scene, i);
	close(scene.client);
	need(!region_destroy(scene.fd, arena.id, FABRICMGR_DESTROY_FORCE));
	close(scene.fd);
	return finish();
}
