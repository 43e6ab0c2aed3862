// SPDX-License-Identifier: Apache-2.0
/*
 * Loading and unloading: twice, with parameters that are wrong, while it is in use, and the device
 * in a control group that may open no device. Loads the module itself, and leaves it unloaded.
 * VM: unloaded, limit 60
 */
#include <linux/bpf.h>

#include "module.h"

#define FILE_NAME "/modules/fabricmgr.ko"

static int load(const char *parameters)
{
	int fd = open(FILE_NAME, O_RDONLY | O_CLOEXEC), error;

	need(fd >= 0);
	error = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
	close(fd);
	return error;
}

static int unload(void)
{
	return syscall(SYS_delete_module, "fabricmgr", O_NONBLOCK) ? -errno : 0;
}

/* The last reference may go with a worker of the kernel. */
static int unload_soon(void)
{
	int i, error = unload();

	for (i = 0; i < 500 && error == -EAGAIN; i++) {
		poll(NULL, 0, 10);
		error = unload();
	}
	return error;
}

static void test_load(void)
{
	struct stat info;

	check(!load(""), "it loads on a machine without any of the hardware it is for");
	check(!stat(DEVICE, &info) && S_ISCHR(info.st_mode) && (info.st_mode & 0777) == 0660,
	      "its device is for its owner and group");
	check(load("") == -EEXIST, "a second time is EEXIST");
	check(!unload_soon() && stat(DEVICE, &info), "it unloads, and the device is gone");
	check(unload() == -ENOENT, "a second time is ENOENT");
}

static void test_parameters(void)
{
	static const char *const wrong[] = {"max_regions=0", "max_clients=0", "admin_gid=-2",
					    "max_bytes=many", "max_regions=-1"};
	struct fabricmgr_version version = {0};
	unsigned int i;
	int fd;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		check(load(wrong[i]) == -EINVAL, "%s is refused", wrong[i]);
	check(access(DEVICE, F_OK), "and leaves no device");
	check(!load("max_bytes=8388608 max_regions=2 max_clients=3"), "limits are taken");
	fd = device();
	need(!call(fd, VERSION, &version));
	check(version.limit_bytes == 8388608 && version.limit_regions == 2 &&
		      version.limit_clients == 3,
	      "and told");
	close(fd);
	check(!unload_soon(), "it unloads");
}

static void test_in_use(void)
{
	struct fabricmgr_region_create create;
	char *memory;
	int fd;

	need(!load(""));
	fd = device();
	check(unload() == -EAGAIN, "while a file is open it does not unload");
	create = region_create(fd, "kept", CHUNK, 0, 0600);
	memory = map_rw(fd, create.write_offset, CHUNK);
	memset(memory, 'k', CHUNK);
	close(fd);
	check(unload() == -EAGAIN, "nor while a mapping is left");
	munmap(memory, CHUNK);
	check(unload() == -EAGAIN, "nor while a region is");
	fd = device();
	check(!region_destroy(fd, create.id, 0), "when that is destroyed");
	close(fd);
	check(!unload_soon(), "it does");
}

/* Two instructions: no device may be opened. */
static int deny_devices(int group)
{
	struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
		.insns = (uintptr_t)program,
		.insn_cnt = 2,
		.license = (uintptr_t) "GPL",
	};
	union bpf_attr attach = {.target_fd = group, .attach_type = BPF_CGROUP_DEVICE};
	int fd = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load));

	if (fd < 0)
		return -errno;
	attach.attach_bpf_fd = fd;
	return syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof(attach)) ? -errno : 0;
}

static int in_group(void *context)
{
	struct fabricmgr_version version = {0};
	int given = *(int *)context, fd = open("/cgroup/container/cgroup.procs", O_WRONLY);

	if (fd < 0 || write(fd, "0", 1) != 1)
		return 10;
	fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (fd >= 0 || errno != EPERM)
		return 11;
	return call(given, VERSION, &version) ? 12 : 0;
}

static void test_container(void)
{
	int group, fd, error, status;

	need(!load(""));
	fd = device();
	mkdir("/cgroup/container", 0755);
	group = open("/cgroup/container", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	error = group < 0 ? -errno : deny_devices(group);
	if (error) {
		check(true, "no device group here: %s # SKIP", strerror(-error));
	} else {
		status = in_child(0, 0, in_group, &fd);
		check(!status,
		      "in a group without devices its device is EPERM, a file given to it "
		      "works (%d)",
		      status);
	}
	close(group);
	rmdir("/cgroup/container");
	close(fd);
	check(!unload_soon(), "it unloads");
}

int main(void)
{
	start();
	test_load();
	test_parameters();
	test_in_use();
	test_container();
	return finish();
}
