// SPDX-License-Identifier: Apache-2.0
/*
 * Shared memory on memfds, with huge pages where the machine has them. Drivers call it.
 * Invariant: every file is sealed against shrinking and growing before its descriptor leaves here.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/service.h"
#include "mem/cgroup.h"
#include "mem/region.h"

#define HUGE_BYTES (2ull << 20)
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

const char *fm_rung_name(enum fm_rung rung)
{
	return rung == FM_RUNG_HUGETLB ? "hugetlb memfd" : "memfd";
}

/* One line of /proc/meminfo; false when it is not there. */
static bool meminfo(const char *name, uint64_t *value)
{
	char line[128];
	size_t len = strlen(name);
	bool found = false;
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		unsigned long long number;

		if (!strncmp(line, name, len) && line[len] == ':' &&
		    sscanf(line + len + 1, "%llu", &number) == 1) {
			*value = number;
			found = true;
		}
	}
	fclose(file);
	return found;
}

int fm_memory_choose(const char *wanted, uint64_t bytes, struct fm_memory *out)
{
	uint64_t free_pages = 0, kilobytes = 0, needed = bytes / HUGE_BYTES;
	int fd;

	memset(out, 0, sizeof(*out));
	if (wanted && strcmp(wanted, "best") && strcmp(wanted, "hugetlb") &&
	    strcmp(wanted, "memfd"))
		return fm_fail(FM_ERR_INVALID, "memory \"%s\" is not known: best, hugetlb or memfd",
			       wanted);
	out->rung = FM_RUNG_MEMFD;
	if (wanted && !strcmp(wanted, "memfd")) {
		snprintf(out->reason, sizeof(out->reason), "memfd was asked for");
		return 0;
	}
	/* What an earlier daemon left is taken over, or given back. */
	if (meminfo("HugePages_Free", &free_pages))
		free_pages += fm_service_held_bytes(true) / HUGE_BYTES;
	if (!meminfo("Hugepagesize", &kilobytes) || kilobytes * 1024 != HUGE_BYTES) {
		snprintf(out->reason, sizeof(out->reason),
			 "the kernel's default huge page is not 2 MiB");
	} else if (free_pages < needed) {
		snprintf(out->reason, sizeof(out->reason),
			 "%llu huge pages of 2 MiB are needed, %llu are free "
			 "(sysctl vm.nr_hugepages=%llu)",
			 (unsigned long long)needed, (unsigned long long)free_pages,
			 (unsigned long long)needed);
	} else {
		fd = memfd_create("fabricmgr-probe", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
		if (fd >= 0) {
			close(fd);
			out->rung = FM_RUNG_HUGETLB;
			return 0;
		}
		snprintf(out->reason, sizeof(out->reason), "memfd_create(MFD_HUGETLB): %s",
			 strerror(errno));
	}
	if (wanted && !strcmp(wanted, "hugetlb"))
		return fm_fail(FM_ERR_NO_MEMORY, "no huge pages for the pool: %s", out->reason);
	return 0;
}

static double mebibytes(uint64_t bytes)
{
	return (double)bytes / 1048576.0;
}

int fm_memory_check(const struct fm_memory *memory, const struct fm_cgroup_memory *group,
		    uint64_t pool_bytes, uint64_t table_bytes, uint64_t other_bytes)
{
	uint64_t held = fm_service_held_bytes(false), available, used;
	uint64_t needed = table_bytes + other_bytes;
	char sum[160], others[64] = "";

	if (memory->rung == FM_RUNG_MEMFD)
		needed += pool_bytes; /* huge pages were counted by fm_memory_choose() */
	if (other_bytes)
		snprintf(others, sizeof(others), " + other groups %.1f MiB",
			 mebibytes(other_bytes));
	snprintf(sum, sizeof(sum), "pool %.1f MiB + tables %.1f MiB%s = %.1f MiB",
		 mebibytes(needed - table_bytes - other_bytes), mebibytes(table_bytes), others,
		 mebibytes(needed));
	/* Without /proc the kernel will say. */
	if (meminfo("MemAvailable", &available) && needed > available * 1024 + held)
		return fm_fail(FM_ERR_NO_MEMORY,
			       "%s, but only %.1f MiB of memory are available; choose a smaller "
			       "size",
			       sum, mebibytes(available * 1024 + held));
	/* What an earlier daemon left is this one's to fill. */
	used = !group ? 0 : group->used > held ? group->used - held : 0;
	if (group && needed > group->limit - used)
		return fm_fail(FM_ERR_NO_MEMORY,
			       "%s, but the control group %s may have %.1f MiB and %.1f MiB of "
			       "them are in use; choose a smaller size or raise its memory.max",
			       sum, group->path, mebibytes(group->limit), mebibytes(used));
	return 0;
}

static int create(enum fm_rung rung, const char *name, uint64_t bytes, int seals)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd, err;

	if (rung == FM_RUNG_HUGETLB)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	fd = memfd_create(name, flags);
	if (fd < 0)
		return fm_fail(FM_ERR_IO, "memfd_create(%s): %s", name, strerror(errno));
	if (ftruncate(fd, (off_t)bytes) || fchmod(fd, 0600) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | seals)) {
		err = fm_fail(FM_ERR_IO, "%s of %llu bytes: %s", name, (unsigned long long)bytes,
			      strerror(errno));
		close(fd);
		return err;
	}
	return fd;
}

int fm_region_create(enum fm_rung rung, const char *name, uint64_t bytes)
{
	return create(rung, name, bytes, F_SEAL_SEAL);
}

int fm_region_create_table(const char *name, uint64_t bytes)
{
	return create(FM_RUNG_MEMFD, name, bytes, 0);
}

bool fm_region_has_ended(int fd)
{
	/* The kernel refuses this seal (EBUSY) as long as a writable mapping is left anywhere. */
	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE))
		return true;
	return errno == EPERM && fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL;
}

bool fm_region_is_ours(int fd, uint64_t bytes)
{
	int seals = fcntl(fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat status;

	return seals >= 0 && (seals & wanted) == wanted && !fstat(fd, &status) &&
	       (uint64_t)status.st_size == bytes;
}

bool fm_region_is_memory(int fd)
{
	/* Of other files the kernel itself says no; nothing is asked of who serves them. */
	return fcntl(fd, F_GET_SEALS) >= 0;
}

static int check_seals(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS), wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (seals < 0)
		return fm_fail(FM_ERR_INVALID,
			       "what shall be adopted is no memory: give a descriptor of "
			       "memfd_create(2)");
	if ((seals & wanted) != wanted)
		return fm_fail(FM_ERR_INVALID,
			       "the memory to adopt is not sealed against%s%s%s: F_ADD_SEALS "
			       "F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL first",
			       seals & F_SEAL_SHRINK ? "" : " shrinking",
			       seals & F_SEAL_GROW ? "" : " growing",
			       seals & F_SEAL_SEAL ? "" : " other seals");
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return fm_fail(FM_ERR_INVALID,
			       "the memory to adopt is sealed against writing: nothing could be "
			       "staged in it");
	return 0;
}

int fm_region_check_adopted(int fd, uint32_t uid, struct stat *status)
{
	int flags = fcntl(fd, F_GETFL), err = check_seals(fd);

	if (err)
		return err;
	if (flags < 0 || (flags & O_ACCMODE) != O_RDONLY)
		return fm_fail(FM_ERR_INVALID,
			       "the descriptor of the memory to adopt could write: send one that "
			       "is opened for reading alone, as fm_region_adopt() does");
	if (fstat(fd, status))
		return fm_fail(FM_ERR_IO, "the memory to adopt: %s", strerror(errno));
	if (status->st_uid != uid)
		return fm_fail(FM_ERR_PERMISSION,
			       "the memory to adopt is user %u's, the client is user %u: its owner "
			       "adopts it",
			       status->st_uid, uid);
	if ((status->st_mode & 07777) != 0600)
		return fm_fail(FM_ERR_PERMISSION,
			       "the memory to adopt has mode %04o: fchmod(2) it to 0600, so that "
			       "those who may read it cannot open it for writing",
			       status->st_mode & 07777);
	if (status->st_size <= 0 || (uint64_t)status->st_size % FM_CHUNK_BYTES)
		return fm_fail(FM_ERR_INVALID,
			       "the memory to adopt has %lld bytes: whole chunks of %u are needed",
			       (long long)status->st_size, FM_CHUNK_BYTES);
	if ((uint64_t)status->st_size / FM_CHUNK_BYTES > FM_CHUNKS_MAX)
		return fm_fail(FM_ERR_LIMIT, "the memory to adopt has %llu TiB: at most %llu",
			       (unsigned long long)status->st_size >> 40,
			       (unsigned long long)FM_CHUNKS_MAX * FM_CHUNK_BYTES >> 40);
	return 0;
}

int fm_region_reopen_read_only(int fd)
{
	char path[40];
	int copy;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, O_RDONLY | O_CLOEXEC);
	if (copy < 0)
		return fm_fail(FM_ERR_IO, "reopening %s read-only: %s (is /proc mounted?)", path,
			       strerror(errno));
	return copy;
}

int fm_region_populate(int fd, uint64_t offset, uint64_t bytes)
{
	int result;

	do
		result = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
	while (result && errno == EINTR);
	if (result)
		return fm_fail(FM_ERR_NO_MEMORY, "%llu bytes of pool memory: %s",
			       (unsigned long long)bytes, strerror(errno));
	return 0;
}

void fm_region_punch(int fd, uint64_t offset, uint64_t bytes)
{
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes))
		fm_log(FM_LOG_WARNING, FM1101 "giving back %llu bytes of pool memory: %s",
		       (unsigned long long)bytes, strerror(errno));
}

void *fm_region_map(int fd, uint64_t bytes, bool is_writable)
{
	/* NORESERVE: chunks are backed one by one (populate), not by mapping the whole file. */
	void *memory = mmap(NULL, bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ,
			    MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (memory == MAP_FAILED) {
		fm_fail(fm_error_of(errno), "mapping %llu bytes of shared memory: %s",
			(unsigned long long)bytes, strerror(errno));
		return NULL;
	}
	madvise(memory, bytes, MADV_DONTFORK);
	return memory;
}

void fm_region_unmap(void *memory, uint64_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}
