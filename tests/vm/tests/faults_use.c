// SPDX-License-Identifier: Apache-2.0
/*
 * Every allocation fails once of what asks, maps, reads, hands out and ends; see faults.h. What
 * ends something works in the end, whatever failed before; what could not be read is not lost.
 *
 * VM: only debug, limit 400
 */
#include <dirent.h>

#include "../modules/peer_test.h"
#include "faults.h"

#define DEBUG_FOLDER "/sys/kernel/debug/fabricmgr"

/*
 * A call that only tells: it has to work, or to say why not. The distance of functions is left out,
 * since pci_p2pdma_distance() of 6.1 sleeps under rcu_read_lock() when its first attempt to get
 * memory fails.
 */
#define QUESTION(name, command, type, ...)                                                         \
	static void try_##name(struct scene *scene)                                                \
	{                                                                                          \
		struct type argument = {__VA_ARGS__};                                              \
		arm();                                                                             \
		scene->result = call(scene->fd, command, &argument);                               \
		disarm();                                                                          \
	}

QUESTION(version, VERSION, fabricmgr_version)
QUESTION(region_info, REGION_INFO, fabricmgr_region_info, .id = scene->arena)
QUESTION(client_info, CLIENT_INFO, fabricmgr_client_info)
QUESTION(quota_get, QUOTA_GET, fabricmgr_quota, .uid = FABRICMGR_ID_SAME)
QUESTION(baseline, REGION_BASELINE, fabricmgr_region_id, .id = scene->arena)
QUESTION(own, REGION_OWN, fabricmgr_region_own, .id = scene->arena, .uid = FABRICMGR_ID_SAME,
	 .gid = FABRICMGR_ID_SAME, .mode = 0600)

static struct fabricmgr_pci function_of_a_driver(void)
{
	DIR *folder = opendir("/sys/bus/pci/drivers/nvme");
	unsigned int domain, bus, slot, function;
	struct dirent *entry;

	while (folder && (entry = readdir(folder)))
		if (sscanf(entry->d_name, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4) {
			closedir(folder);
			return (struct fabricmgr_pci){domain, bus, slot, function, 0};
		}
	skip_all("there is no NVMe drive to import for");
	return (struct fabricmgr_pci){0};
}

static void try_pins(struct scene *scene)
{
	arm();
	scene->result = one(scene->fd, FABRICMGR_IOC_PINS, scene->arena, 0, 0, CHUNK, 0);
	disarm();
}

static void try_unstage(struct scene *scene)
{
	int again;

	need(!one(scene->fd, FABRICMGR_IOC_STAGE, scene->arena, scene->client_id, 0, 8192, 0));
	arm();
	scene->result = one(scene->fd, FABRICMGR_IOC_UNSTAGE, scene->arena, 0, 0, 8192, 1);
	disarm();
	again = one(scene->fd, FABRICMGR_IOC_UNSTAGE, scene->arena, 0, 0, 8192, 0);
	need(scene->result ? !again || scene->result == -EFAULT : again);
}

static void try_unseal(struct scene *scene)
{
	int again;

	need(!one(scene->fd, FABRICMGR_IOC_SEAL, scene->arena, 0, 0, 2 * CHUNK, 0));
	arm();
	scene->result = one(scene->fd, FABRICMGR_IOC_UNSEAL, scene->arena, 0, 0, 2 * CHUNK, 1);
	disarm();
	again = one(scene->fd, FABRICMGR_IOC_UNSEAL, scene->arena, 0, 0, 2 * CHUNK, 0);
	need(scene->result ? !again || scene->result == -EFAULT : again);
}

static void try_close_region(struct scene *scene)
{
	struct fabricmgr_region_id id = {.id = scene->arena};
	struct fabricmgr_region_open open;
	int fd = device();

	need(!region_open(fd, "arena", 0, &open));
	arm();
	scene->result = call(fd, REGION_CLOSE, &id);
	disarm();
	/* -EFAULT: done, and its result could not be told, or not. */
	if (scene->result)
		need(!call(fd, REGION_CLOSE, &id) || scene->result == -EFAULT);
	close(fd);
}

static void try_destroy(struct scene *scene)
{
	uint32_t id = region_create(scene->fd, "faulty", CHUNK, 0, 0600).id;

	arm();
	scene->result = region_destroy(scene->fd, id, 0);
	disarm();
	if (scene->result)
		need(!region_destroy(scene->fd, id, 0) || scene->result == -EFAULT);
}

/* A client that goes takes its staging along, with or without memory. */
static void try_die(struct scene *scene)
{
	struct fabricmgr_client_setup setup = {.entries = 100};
	struct fabricmgr_client_info info = {0};
	struct fabricmgr_region_open open;
	int fd = device(), wait;

	need(!region_open(fd, "arena", 0, &open) && !call(fd, CLIENT_SETUP, &setup));
	need(!call(fd, CLIENT_INFO, &info));
	need(!one(scene->fd, FABRICMGR_IOC_STAGE, scene->arena, info.id, CHUNK, 8192, 0));
	arm();
	scene->result = close(fd);
	disarm();
	for (wait = 0; wait < 1000; wait++) {
		if (!one(scene->fd, FABRICMGR_IOC_SEAL, scene->arena, 0, CHUNK, CHUNK, 0))
			break;
		usleep(10000);
	}
	need(!one(scene->fd, FABRICMGR_IOC_UNSEAL, scene->arena, 0, CHUNK, CHUNK, 0));
}

/* A death that is to be read: an event that could not be told is still there. */
static void make_event(struct scene *scene, int manager)
{
	struct fabricmgr_region_open open;
	int fd = device();

	(void)scene;
	need(!region_open(manager, "arena", FABRICMGR_OPEN_WRITE | FABRICMGR_OPEN_MANAGE, &open));
	need(!region_open(fd, "arena", 0, &open));
	close(fd);
	need(poll(&(struct pollfd){.fd = manager, .events = POLLIN}, 1, 10000) == 1);
}

static void try_read(struct scene *scene)
{
	struct fabricmgr_event event;
	int manager = device();

	make_event(scene, manager);
	arm();
	scene->result = read(manager, &event, sizeof(event)) == sizeof(event) ? 0 : -errno;
	disarm();
	need(scene->result ? event_next(manager, &event) : event_none(manager));
	close(manager);
}

static void try_events(struct scene *scene)
{
	struct fabricmgr_event event;
	struct fabricmgr_events events = {.records = (uintptr_t)&event, .capacity = 1};
	int manager = device();

	make_event(scene, manager);
	arm();
	scene->result = call(manager, EVENTS, &events);
	disarm();
	/* The record may have been told, and its count not. */
	need(scene->result == -EFAULT ||
	     (scene->result ? event_next(manager, &event) : event_none(manager)));
	close(manager);
}

static void try_map(struct scene *scene)
{
	char *memory;

	arm();
	memory = map(scene->fd, scene->write_offset, 2 * CHUNK, PROT_READ | PROT_WRITE);
	scene->result = memory == MAP_FAILED ? -errno : 0;
	disarm();
	if (!scene->result)
		need(!munmap(memory, 2 * CHUNK));
}

static void try_map_leases(struct scene *scene)
{
	struct fabricmgr_client_setup setup = {.entries = 5000};
	int fd = device();
	char *memory;

	need(!call(fd, CLIENT_SETUP, &setup));
	arm();
	memory = map(fd, setup.leases_offset, setup.leases_bytes, PROT_READ | PROT_WRITE);
	scene->result = memory == MAP_FAILED ? -errno : 0;
	disarm();
	if (!scene->result) {
		memory[setup.leases_bytes - 1] = 1;
		need(!munmap(memory, setup.leases_bytes));
	}
	close(fd);
}

/* The middle of a mapping goes: two are left of it, or all. */
static void try_split(struct scene *scene)
{
	char *memory = map_rw(scene->fd, scene->write_offset, 2 * CHUNK);

	arm();
	scene->result = munmap(memory + CHUNK, 4096) ? -errno : 0;
	disarm();
	memory[0] = memory[2 * CHUNK - 1] = 1;
	need(!munmap(memory, 2 * CHUNK));
}

static void try_fork(struct scene *scene)
{
	char *memory = map_rw(scene->fd, scene->write_offset, CHUNK);
	pid_t pid;

	memory[0] = 1;
	fflush(stdout);
	arm();
	pid = fork();
	if (!pid)
		_exit(memory[0] != 1);
	scene->result = pid < 0 ? -errno : 0;
	disarm();
	if (pid > 0)
		need(waitpid(pid, NULL, 0) == pid);
	need(!munmap(memory, CHUNK));
}

static void try_vault_fd(struct scene *scene)
{
	struct fabricmgr_region_fd argument = {.fd_flags = O_RDONLY | O_CLOEXEC};
	struct fabricmgr_vault_create vault = vault_of_a_page();

	need(!call(scene->fd, VAULT_CREATE, &vault));
	close(vault.fd);
	argument.id = vault.id;
	arm();
	scene->result = call(scene->fd, REGION_FD, &argument);
	disarm();
	if (!scene->result ||
	    (scene->result == -EFAULT && lost_descriptor("/memfd:", &argument.fd)))
		close(argument.fd);
	need(!region_destroy(scene->fd, vault.id, 0));
}

static int other_side = -1;

static void try_import_from_us(struct scene *scene)
{
	struct fabricmgr_region_export export = {.id = scene->arena,
						 .fd_flags = O_RDWR | O_CLOEXEC};

	need(!call(scene->fd, REGION_EXPORT, &export));
	arm();
	scene->result = ioctl(other_side, PEER_TEST_IMPORT, export.fd) ? -errno : 0;
	disarm();
	need(scene->result || ioctl(other_side, PEER_TEST_FILL, 'f') == 4 * (int)(CHUNK / 4096));
	ioctl(other_side, PEER_TEST_LET_GO, 0);
	close(export.fd);
}

static void try_peer(struct scene *scene)
{
	struct fabricmgr_peer_create peer = {
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
		.name = "peer",
	};
	struct fabricmgr_region_open open;

	peer.pci = function_of_a_driver();
	peer.fd = ioctl(other_side, PEER_TEST_EXPORT, 0);
	need(peer.fd >= 0);
	arm();
	scene->result = call(scene->fd, PEER_CREATE, &peer);
	disarm();
	if (!region_open(scene->fd, "peer", 0, &open))
		need(!region_destroy(scene->fd, open.id, FABRICMGR_DESTROY_FORCE));
	close(peer.fd);
}

static void try_list(const char *path, struct scene *scene)
{
	char text[4096];
	int fd;

	arm();
	fd = open(path, O_RDONLY | O_CLOEXEC);
	scene->result = fd < 0 || read(fd, text, sizeof(text)) < 0 ? -errno : 0;
	disarm();
	if (fd >= 0)
		close(fd);
}

static void try_list_regions(struct scene *scene)
{
	try_list(DEBUG_FOLDER "/regions", scene);
}

static void try_list_leases(struct scene *scene)
{
	try_list(DEBUG_FOLDER "/leases", scene);
}

static const struct fault_case cases[] = {
	{"the version", try_version, false},
	{"about a region", try_region_info, false},
	{"about a client", try_client_info, false},
	{"about a quota", try_quota_get, false},
	{"about pins", try_pins, false},
	{"recording pins", try_baseline, false},
	{"an owner", try_own, false},
	{"unstaging", try_unstage, false},
	{"unsealing", try_unseal, false},
	{"closing a region", try_close_region, false},
	{"destroying a region", try_destroy, false},
	{"a client's end", try_die, true},
	{"reading an event", try_read, false},
	{"asking for events", try_events, false},
	{"mapping a window", try_map, false},
	{"mapping a lease table", try_map_leases, false},
	{"splitting a mapping", try_split, false},
	{"forking with a window", try_fork, false},
	{"a vault's descriptor", try_vault_fd, false},
	{"a device's mapping of an export", try_import_from_us, false},
	{"a peer region", try_peer, false},
	{"the list of regions", try_list_regions, false},
	{"the list of leases", try_list_leases, false},
};

int main(void)
{
	int module = open("/modules/peer_test.ko", O_RDONLY | O_CLOEXEC);

	if (module >= 0)
		syscall(SYS_finit_module, module, "", 0);
	close(module);
	other_side = open("/dev/fabricmgr_peer_test", O_RDWR | O_CLOEXEC);
	if (other_side < 0)
		skip_all("there is no module peer_test");
	return run_cases(cases, sizeof(cases) / sizeof(cases[0]));
}
