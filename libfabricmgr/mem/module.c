// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of /dev/fabricmgr that keep memory files (see module.h); kmod/uapi/fabricmgr.h has
 * their structures. Calls libc alone. Invariant: a region is open in our file of the device only
 * while a function of here runs, but for locks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

/* kmod/uapi is searched after the public headers, and its file has the same name. */
#include "../../kmod/uapi/fabricmgr.h"
#include "base/error.h"
#include "mem/module.h"

#define DEVICE "/dev/fabricmgr"
#define LOCK   "lock"

/* @argument begins with its size. */
#define CALL(device, name, argument)                                                               \
	((argument)->size = sizeof(*(argument)), ioctl(device, FABRICMGR_IOC_##name, argument))

/* What a call of the device failed with. */
static int error_of(int number)
{
	switch (number) {
	case EEXIST:
	case EBUSY:
		return FM_ERR_EXISTS;
	case EACCES:
	case EPERM:
		return FM_ERR_PERMISSION;
	case ENOENT:
	case ENXIO:
	case ENODEV:
		return FM_ERR_NOT_FOUND;
	case EDQUOT:
	case ENOSPC:
		return FM_ERR_LIMIT;
	default:
		return fm_error_of(number);
	}
}

/* What to do about it. */
static const char *remedy(int number)
{
	switch (error_of(number)) {
	case FM_ERR_PERMISSION:
		return " (the device's group is fabricmgr)";
	case FM_ERR_NOT_FOUND:
		return " (fabricmgr.ko is not loaded)";
	case FM_ERR_LIMIT:
		return " (raise the module's limits, or this user's quota: "
		       "/sys/module/fabricmgr/parameters)";
	default:
		return "";
	}
}

int fm_module_open(void)
{
	struct fabricmgr_version version = {0};
	int device = open(DEVICE, O_RDWR | O_CLOEXEC), err;

	if (device < 0)
		return fm_fail(error_of(errno), DEVICE ": %s%s", strerror(errno), remedy(errno));
	if (CALL(device, VERSION, &version))
		err = fm_fail(FM_ERR_UNSUPPORTED, DEVICE ": %s (not the device of fabricmgr.ko?)",
			      strerror(errno));
	else if (version.api_major != FABRICMGR_API_MAJOR)
		err = fm_fail(FM_ERR_VERSION,
			      DEVICE ": the module speaks version %u, this program %u: load "
				     "the module that came with it",
			      version.api_major, FABRICMGR_API_MAJOR);
	else
		return device;
	close(device);
	return err;
}

static int named(const char *name, char out[FABRICMGR_NAME_BYTES])
{
	if (strlen(name) >= FABRICMGR_NAME_BYTES)
		return fm_fail(FM_ERR_LIMIT, "%s is too long for a name in the module", name);
	strcpy(out, name);
	return 0;
}

static void region_close(int device, uint32_t id)
{
	struct fabricmgr_region_id region = {.id = id};

	CALL(device, REGION_CLOSE, &region);
}

static int vault_create(int device, const char *name, int fd, uint32_t flags, uint32_t *id)
{
	struct fabricmgr_vault_create vault = {
		.flags = flags,
		.fd = fd,
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
	};
	int err = named(name, vault.name);

	if (err)
		return err;
	if (CALL(device, VAULT_CREATE, &vault))
		return fm_fail(error_of(errno), DEVICE " does not keep %s: %s%s", name,
			       strerror(errno), remedy(errno));
	*id = vault.id;
	return 0;
}

int fm_module_keep(int device, const char *name, int fd)
{
	uint32_t id;
	int err = vault_create(device, name, fd, 0, &id);

	if (!err)
		region_close(device, id);
	return err;
}

/* ---- locks ---- */

static int lock_create(int device, const char *name)
{
	int fd = memfd_create("fabricmgr-lock", MFD_CLOEXEC | MFD_ALLOW_SEALING), err;
	uint32_t id;

	if (fd < 0)
		return fm_fail(error_of(errno), "memfd_create: %s", strerror(errno));
	if (ftruncate(fd, 4096) || fchmod(fd, 0600) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		err = fm_fail(FM_ERR_IO, "a memory file of 4096 bytes: %s", strerror(errno));
	else
		err = vault_create(device, name, fd, FABRICMGR_CREATE_MANAGE, &id);
	close(fd);
	return err;
}

static int lock_take(int device, const char *name)
{
	struct fabricmgr_region_open region = {
		.flags = FABRICMGR_OPEN_WRITE | FABRICMGR_OPEN_MANAGE,
	};
	int err = named(name, region.name);

	if (err)
		return err;
	if (!CALL(device, REGION_OPEN, &region))
		return 0;
	if (errno == EBUSY)
		return fm_fail(FM_ERR_EXISTS,
			       "another program that runs keeps its pool in the module as %s: stop "
			       "it, or choose another socket",
			       name);
	return fm_fail(error_of(errno), DEVICE ": %s: %s", name, strerror(errno));
}

int fm_module_lock(int device, const char *prefix)
{
	char name[FABRICMGR_NAME_BYTES + 8];
	int err;

	snprintf(name, sizeof(name), "%.60s" LOCK, prefix);
	err = lock_take(device, name);
	if (err != FM_ERR_NOT_FOUND)
		return err;
	err = lock_create(device, name);
	/* Somebody else made it in between. */
	return err == FM_ERR_EXISTS ? lock_take(device, name) : err;
}

/* ---- what is there ---- */

/* The next region after @info->id that is ours to take: of our user, of that prefix. */
static bool next_of(int device, const char *prefix, struct fabricmgr_region_info *info)
{
	do {
		info->flags = FABRICMGR_NEXT;
		if (CALL(device, REGION_INFO, info))
			return false;
	} while (info->kind != FABRICMGR_REGION_VAULT || info->uid != geteuid() ||
		 strncmp(info->name, prefix, strlen(prefix)));
	return true;
}

static bool is_lock(const char *name)
{
	size_t length = strlen(name);

	return length > strlen("." LOCK) && !strcmp(name + length - strlen("." LOCK), "." LOCK);
}

static int take(int device, uint32_t id)
{
	struct fabricmgr_region_open region = {.id = id, .flags = FABRICMGR_OPEN_WRITE};
	struct fabricmgr_region_fd out = {.id = id, .fd_flags = O_RDWR | O_CLOEXEC};
	int fd = -1;

	if (CALL(device, REGION_OPEN, &region))
		return -1;
	if (!CALL(device, REGION_FD, &out))
		fd = out.fd;
	region_close(device, id);
	return fd;
}

uint32_t fm_module_given(int device, const char *prefix, struct fm_service_fd *given, uint32_t max)
{
	struct fabricmgr_region_info info = {0};
	uint32_t n = 0;

	while (n < max && next_of(device, prefix, &info)) {
		if (is_lock(info.name))
			continue;
		given[n].fd = take(device, info.id);
		if (given[n].fd < 0)
			continue;
		snprintf(given[n++].name, sizeof(given->name), "%s", info.name);
	}
	return n;
}

/* ---- the end ---- */

static int destroy(int device, uint32_t id)
{
	struct fabricmgr_region_id region = {.id = id};

	return CALL(device, REGION_DESTROY, &region);
}

int fm_module_drop(int device, const char *name)
{
	struct fabricmgr_region_open region = {.flags = FABRICMGR_OPEN_WRITE};
	int err = named(name, region.name);

	if (err)
		return err;
	if (CALL(device, REGION_OPEN, &region))
		return fm_fail(error_of(errno), DEVICE " does not drop %s: %s", name,
			       strerror(errno));
	if (destroy(device, region.id)) {
		err = fm_fail(error_of(errno), DEVICE " does not drop %s: %s", name,
			      strerror(errno));
		region_close(device, region.id);
	}
	return err;
}

bool fm_module_has(int device, const char *prefix)
{
	struct fabricmgr_region_info info = {0};

	while (next_of(device, prefix, &info))
		if (!is_lock(info.name))
			return true;
	return false;
}

int fm_module_drop_all(int device, const char *prefix, bool is_lock_left)
{
	struct fabricmgr_region_info info = {0};
	int err = 0;

	while (next_of(device, prefix, &info))
		if (!is_lock(info.name) && destroy(device, info.id))
			err = fm_fail(error_of(errno), DEVICE " does not drop %s: %s", info.name,
				      strerror(errno));
	info.id = 0;
	/* The last, when all is gone: until then nobody else takes what is there, and by it alone
	 * fm_module_forget() finds the rest. */
	while (!err && !is_lock_left && next_of(device, prefix, &info))
		destroy(device, info.id);
	return err;
}

int fm_module_forget(int device, const char *prefix)
{
	struct fabricmgr_region_info info = {0};
	char own[FABRICMGR_NAME_BYTES];
	int n = 0, err = 0;

	while (next_of(device, prefix, &info)) {
		int other;

		if (!is_lock(info.name))
			continue;
		snprintf(own, sizeof(own), "%.*s", (int)(strlen(info.name) - strlen(LOCK)),
			 info.name);
		/* With a file of its own, whose end gives the lock back. */
		other = fm_module_open();
		if (other < 0)
			return other;
		if (fm_module_lock(other, own) || fm_module_drop_all(other, own, false))
			err = fm_error_last();
		else
			n++;
		close(other);
	}
	return err ? err : n;
}
