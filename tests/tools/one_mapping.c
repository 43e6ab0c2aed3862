// SPDX-License-Identifier: Apache-2.0
/*
 * Linked into every program of VARIANT=tsan in place of mmap and munmap: a memfd that one process
 * maps several times (a pool's server and its clients, all threads of it) has one address there.
 * ThreadSanitizer knows memory by address: without this it would see neither the races between them
 * nor the order. Invariant: files that are no memfd, and parts of files, are mapped as without it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SHARED_MAX = 1024 };

struct shared {
	dev_t device;
	ino_t inode;
	void *memory;
	size_t length;
	int protection;
	unsigned int users; /* 0: free */
};

void *__real_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t length);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t length);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared table[SHARED_MAX];

static void *map_locked(const struct stat *status, size_t length, int protection, int flags, int fd)
{
	struct shared *free_entry = NULL;

	for (int i = 0; i < SHARED_MAX; i++) {
		struct shared *entry = &table[i];

		if (!entry->users) {
			free_entry = free_entry ? free_entry : entry;
			continue;
		}
		if (entry->device != status->st_dev || entry->inode != status->st_ino ||
		    entry->length != length)
			continue;
		/* Once anybody may write, all of the process may. */
		if (protection & ~entry->protection) {
			/* Not by the sanitizer's mmap(), which counts as a write of it all. */
			if (syscall(SYS_mmap, entry->memory, length,
				    protection | entry->protection, flags | MAP_FIXED, fd,
				    0) == -1)
				return MAP_FAILED;
			entry->protection |= protection;
		}
		entry->users++;
		return entry->memory;
	}
	if (!free_entry)
		return MAP_FAILED;
	*free_entry = (struct shared){.device = status->st_dev,
				      .inode = status->st_ino,
				      .length = length,
				      .protection = protection,
				      .users = 1};
	free_entry->memory = __real_mmap(NULL, length, protection, flags, fd, 0);
	if (free_entry->memory == MAP_FAILED)
		free_entry->users = 0;
	return free_entry->memory;
}

/* A pool's memory is not inherited: a child begins without any. */
static void forget(void)
{
	for (int i = 0; i < SHARED_MAX; i++)
		table[i].users = 0;
}

__attribute__((constructor)) static void forget_in_children(void)
{
	pthread_atfork(NULL, NULL, forget);
}

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	struct stat status;
	void *memory;

	/* Only a memfd has seals. */
	if (address || offset || !(flags & MAP_SHARED) || fd < 0 || fcntl(fd, F_GET_SEALS) < 0 ||
	    fstat(fd, &status))
		return __real_mmap(address, length, protection, flags, fd, offset);
	pthread_mutex_lock(&lock);
	memory = map_locked(&status, length, protection, flags, fd);
	pthread_mutex_unlock(&lock);
	return memory;
}

int __wrap_munmap(void *address, size_t length)
{
	bool is_used = false;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < SHARED_MAX; i++)
		if (table[i].users && table[i].memory == address)
			is_used = --table[i].users > 0;
	pthread_mutex_unlock(&lock);
	return is_used ? 0 : __real_munmap(address, length);
}
