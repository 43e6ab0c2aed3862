// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program, lets its n-th allocation fail, or all from the n-th on. The file named
 * by $FABRICMGR_FAIL_ALLOC is mapped by program and test alike: the test writes the number, the
 * program what became of it. Counted are malloc, calloc, realloc, aligned_alloc, posix_memalign,
 * mmap, memfd_create and ftruncate, that is whatever returns ENOMEM. Invariant: unarmed, everything
 * is as without it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAMES = 24, NAME = 48 };

/* tests/process/fail_alloc.py has the same layout. */
struct control {
	_Atomic uint64_t fail_at; /* which allocation from now on; 0: none */
	_Atomic uint64_t count;	  /* since it was armed */
	_Atomic uint64_t failed;  /* 1: it did */
	_Atomic uint64_t lasts;	  /* 1: all after it fail as well */
	uint64_t n_frames;
	struct {
		uint64_t offset; /* in the file, for addr2line */
		char name[NAME]; /* last part of the file's name */
	} frames[FRAMES];
};

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
/* Under ASan its allocator is behind us, so that it sees what becomes of the memory. */
extern void *__interceptor_malloc(size_t bytes) __attribute__((weak));
extern void *__interceptor_calloc(size_t n, size_t bytes) __attribute__((weak));
extern void *__interceptor_realloc(void *old, size_t bytes) __attribute__((weak));
extern void *__interceptor_memalign(size_t alignment, size_t bytes) __attribute__((weak));

static struct control *control;
static _Thread_local bool is_inside;

static void *map(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

__attribute__((constructor)) static void attach(void)
{
	const char *path = getenv("FABRICMGR_FAIL_ALLOC");
	void *memory, *frames[2];
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0)
		return;
	backtrace(frames, 2); /* its first call allocates */
	memory = map(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory != MAP_FAILED)
		control = memory;
}

static void note_frames(void)
{
	void *frames[FRAMES];
	int n = backtrace(frames, FRAMES);

	for (int i = 0; i < n; i++) {
		const char *name = "?", *slash;
		Dl_info info;

		control->frames[i].offset = (uint64_t)frames[i];
		if (dladdr(frames[i], &info) && info.dli_fname) {
			slash = strrchr(info.dli_fname, '/');
			name = slash ? slash + 1 : info.dli_fname;
			control->frames[i].offset -= (uint64_t)info.dli_fbase;
		}
		strncpy(control->frames[i].name, name, NAME - 1);
	}
	control->n_frames = (uint64_t)n;
}

static bool must_fail(void)
{
	uint64_t fail_at, count;

	if (!control || is_inside)
		return false;
	fail_at = atomic_load(&control->fail_at);
	if (!fail_at)
		return false;
	count = atomic_fetch_add(&control->count, 1) + 1;
	if (count < fail_at || (count > fail_at && !atomic_load(&control->lasts)))
		return false;
	if (count == fail_at) {
		is_inside = true;
		note_frames();
		is_inside = false;
		atomic_store(&control->failed, 1);
	}
	errno = ENOMEM;
	return true;
}

void *malloc(size_t bytes)
{
	if (must_fail())
		return NULL;
	return __interceptor_malloc ? __interceptor_malloc(bytes) : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	if (must_fail())
		return NULL;
	return __interceptor_calloc ? __interceptor_calloc(n, bytes) : __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
	if (must_fail())
		return NULL;
	return __interceptor_realloc ? __interceptor_realloc(old, bytes)
				     : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	if (must_fail())
		return NULL;
	return __interceptor_memalign ? __interceptor_memalign(alignment, bytes)
				      : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	void *memory = aligned_alloc(alignment, bytes);

	if (!memory)
		return ENOMEM;
	*out = memory;
	return 0;
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return must_fail() ? MAP_FAILED : map(address, length, protection, flags, fd, offset);
}

int memfd_create(const char *name, unsigned int flags)
{
	return must_fail() ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}

int ftruncate(int fd, off_t length)
{
	return must_fail() ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}
