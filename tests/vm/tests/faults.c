// SPDX-License-Identifier: Apache-2.0
/*
 * Every allocation fails once of what makes something: devices, regions, lease tables, staging,
 * seals, exports, vaults; see faults.h. What asks, maps, reads and ends is in faults_use.c.
 * VM: only debug, limit 400
 */
#include "faults.h"

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
	struct fabricmgr_region_id id = {.id = scene->arena};
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
	struct fabricmgr_client_setup setup = {.entries = 1000};
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

static void try_export(struct scene *scene)
{
	struct fabricmgr_region_export export = {.id = scene->arena, .fd_flags = O_CLOEXEC};

	arm();
	scene->result = call(scene->fd, REGION_EXPORT, &export);
	disarm();
	if (scene->result == -EFAULT && lost_descriptor("/dmabuf", &export.fd))
		close(export.fd);
	if (!scene->result)
		close(export.fd);
}

static void try_vault(struct scene *scene)
{
	struct fabricmgr_region_open open;
	struct fabricmgr_vault_create vault = vault_of_a_page();

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
	struct fabricmgr_range range = {.bytes = 4096};
	struct fabricmgr_batch batch = {.size = sizeof(batch),
					.region = scene->arena,
					.ranges = (uintptr_t)&range,
					.count = 1};
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

static const struct fault_case cases[] = {
	{"opening the device", try_open, false},
	{"creating small chunks", try_create, false},
	{"creating a discardable region", try_create_discardable, false},
	{"opening a region", try_attach, false},
	{"a lease table", try_setup, false},
	{"staging", try_stage, false},
	{"sealing", try_seal, false},
	{"exporting", try_export, false},
	{"a vault", try_vault, false},
	{"touching a window", try_touch, false},
	{"a ring command", try_ring, false},
	{"a quota", try_quota, false},
};

int main(void)
{
	return run_cases(cases, sizeof(cases) / sizeof(cases[0]));
}
