/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the kernel module share: results as kselftest prints them (TAP), the calls of
 * the device with their size filled in, mappings, children. Each test is one static program that
 * runs as root in a virtual machine with the module loaded.
 */
#ifndef FM_TEST_MODULE_H
#define FM_TEST_MODULE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../kmod/uapi/fabricmgr.h"

#define DEVICE "/dev/fabricmgr"
#define MIB (1UL << 20)
#define CHUNK (4 * MIB)
#define SKIPPED 4 /* exit status */

static int test_count, test_failures;

/* One result. Returns @is_good, so that what depends on it can be left out. */
__attribute__((format(printf, 2, 3))) static inline bool check(bool is_good,
								const char *format, ...)
{
	va_list list;

	test_failures += !is_good;
	printf("%s %d - ", is_good ? "ok" : "not ok", ++test_count);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
	return is_good;
}

/* Ends the test at once: nothing after it would mean anything. */
#define need(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			check(false, "%s:%d needs %s: %s", __FILE__, __LINE__, #condition,         \
			      strerror(errno));                                                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static inline void start(void)
{
	printf("TAP version 13\n");
	fflush(stdout);
}

static inline int finish(void)
{
	printf("1..%d\n", test_count);
	return test_failures != 0;
}

static inline void skip_all(const char *why)
{
	printf("1..0 # SKIP %s\n", why);
	exit(SKIPPED);
}

static inline int device(void)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	need(fd >= 0);
	return fd;
}

/* 0, or the negative errno. */
static inline int call_raw(int fd, unsigned long command, void *argument)
{
	return ioctl(fd, command, argument) < 0 ? -errno : 0;
}

#define call(fd, command, argument)                                                                \
	((argument)->size = sizeof(*(argument)), call_raw(fd, FABRICMGR_IOC_##command, argument))

static inline struct fabricmgr_region_create region_spec(const char *name, uint64_t bytes,
							 uint32_t flags)
{
	struct fabricmgr_region_create create = {
		.flags = flags,
		.bytes = bytes,
		.node = FABRICMGR_NODE_ANY,
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
	};

	snprintf(create.name, sizeof(create.name), "%s", name);
	return create;
}

static inline struct fabricmgr_region_create region_create(int fd, const char *name,
							   uint64_t bytes, uint32_t flags,
							   uint32_t mode)
{
	struct fabricmgr_region_create create = region_spec(name, bytes, flags);
	int error;

	create.mode = mode;
	error = call(fd, REGION_CREATE, &create);
	if (error)
		errno = -error;
	need(!error);
	return create;
}

static inline int region_open(int fd, const char *name, uint32_t flags,
			      struct fabricmgr_region_open *open)
{
	memset(open, 0, sizeof(*open));
	open->flags = flags;
	snprintf(open->name, sizeof(open->name), "%s", name);
	return call(fd, REGION_OPEN, open);
}

static inline int region_destroy(int fd, uint32_t id, uint32_t flags)
{
	struct fabricmgr_region_id argument = { .flags = flags, .id = id };

	return call(fd, REGION_DESTROY, &argument);
}

/* One range through a batch call: the call's error, or the range's. */
static inline int one(int fd, unsigned long command, uint32_t region, uint32_t client,
		      uint64_t offset, uint64_t bytes, uint32_t flags)
{
	struct fabricmgr_range range = { .offset = offset, .bytes = bytes };
	struct fabricmgr_batch batch = {
		.size = sizeof(batch),
		.flags = flags,
		.region = region,
		.client = client,
		.ranges = (uintptr_t)&range,
		.count = 1,
	};
	int error = call_raw(fd, command, &batch);

	return error ?: range.result;
}

static inline char *map(int fd, uint64_t offset, size_t bytes, int protection)
{
	return mmap(NULL, bytes, protection, MAP_SHARED, fd, offset);
}

static inline char *map_rw(int fd, uint64_t offset, size_t bytes)
{
	char *memory = map(fd, offset, bytes, PROT_READ | PROT_WRITE);

	need(memory != MAP_FAILED);
	return memory;
}

static inline bool is_all(const char *memory, size_t bytes, char value)
{
	size_t i;

	for (i = 0; i < bytes; i++)
		if (memory[i] != value)
			return false;
	return true;
}

/* ---- accesses that may end in a signal ---- */

static sigjmp_buf access_return;

static inline void access_signal(int number)
{
	siglongjmp(access_return, number);
}

/* The signal that writing (or reading) one byte there raises; 0: none. */
static inline int access_fails(volatile char *at, bool is_write)
{
	struct sigaction action = { .sa_handler = access_signal, .sa_flags = SA_NODEFER };
	int number;

	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	number = sigsetjmp(access_return, 1);
	if (!number) {
		if (is_write)
			*at = 'w';
		else
			(void)*at;
	}
	signal(SIGBUS, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	return number;
}

/* ---- children ---- */

/* Runs @body in a child of @uid and @gid (0: as we are) and returns its exit status. */
static inline int in_child(uid_t uid, gid_t gid, int (*body)(void *), void *context)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	need(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if ((gid && (syscall(SYS_setgroups, 0, NULL) || setgid(gid))) ||
		    (uid && setuid(uid)))
			_exit(99);
		_exit(body(context));
	}
	need(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child that works until it is killed: @body tells by the pipe when it is ready. */
static inline pid_t child_start(int (*body)(void *, int), void *context)
{
	int ends[2];
	char byte;
	pid_t pid;

	fflush(stdout);
	need(!pipe2(ends, O_CLOEXEC));
	pid = fork();
	need(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		_exit(body(context, ends[1]));
	}
	close(ends[1]);
	need(read(ends[0], &byte, 1) == 1);
	close(ends[0]);
	return pid;
}

static inline void child_kill(pid_t pid)
{
	need(!kill(pid, SIGKILL));
	need(waitpid(pid, NULL, 0) == pid);
}

/* Waits until an event is there and reads it; false: none came within ten seconds. */
static inline bool event_next(int fd, struct fabricmgr_event *event)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	return poll(&wait, 1, 10000) == 1 && read(fd, event, sizeof(*event)) == sizeof(*event);
}

static inline bool event_none(int fd)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	return poll(&wait, 1, 0) == 0;
}

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000UL + now.tv_nsec;
}

#endif
