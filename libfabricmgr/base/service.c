// SPDX-License-Identifier: Apache-2.0
/*
 * The protocol of sd_notify(3) and sd_listen_fds(3), as far as descriptors go: datagrams and three
 * variables of the environment (see service.h). Calls libc and the clock. Invariant: a message goes
 * out whole, with its descriptor, or the caller learns that it did not.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/service.h"

#define FIRST_FD 3 /* of those that are given */

bool fm_service_is_there(void)
{
	const char *path = getenv("NOTIFY_SOCKET");

	return path && (*path == '/' || *path == '@') && path[1];
}

static int open_socket(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = strlen(path);
	int fd;

	if (length >= sizeof(address.sun_path))
		return fm_fail(FM_ERR_LIMIT, "NOTIFY_SOCKET %s is too long", path);
	memcpy(address.sun_path, path, length);
	if (*path == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fm_fail(FM_ERR_IO, "socket: %s", strerror(errno));
	if (connect(fd, (const struct sockaddr *)&address,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length))) {
		int err =
			fm_fail(FM_ERR_IO, "the service manager at %s: %s", path, strerror(errno));

		close(fd);
		return err;
	}
	return fd;
}

/* Once it did not read in time: who serves clients does not wait for it again. */
static _Atomic bool is_hung;

static int send_in_time(int to, const struct msghdr *message)
{
	uint64_t now = fm_clock_ns(), end = now + FM_SERVICE_NS;
	struct pollfd state = {.fd = to, .events = POLLOUT};

	for (;;) {
		if (sendmsg(to, message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno != EINTR && errno != EAGAIN)
			return fm_fail(FM_ERR_IO, "telling the service manager: %s",
				       strerror(errno));
		now = fm_clock_ns();
		if (now >= end)
			break;
		poll(&state, 1, (int)((end - now) / FM_NS_PER_MS) + 1);
	}
	/* Relaxed: it orders nothing. */
	atomic_store_explicit(&is_hung, true, memory_order_relaxed);
	return fm_fail(FM_ERR_DEADLINE,
		       "the service manager did not read what it was told for %llu ms",
		       (unsigned long long)(FM_SERVICE_NS / FM_NS_PER_MS));
}

static int send_state(const char *state, const int *fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec part = {.iov_base = (char *)state, .iov_len = strlen(state)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	int to, err;

	if (!fm_service_is_there())
		return 0;
	if (atomic_load_explicit(&is_hung, memory_order_relaxed))
		return fm_fail(FM_ERR_DEADLINE, "the service manager did not read what it was "
						"told before");
	to = open_socket();
	if (to < 0)
		return to;
	if (fd) {
		struct cmsghdr *head = &control.align;

		message.msg_control = control.space;
		message.msg_controllen = sizeof(control.space);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), fd, sizeof(int));
	}
	err = send_in_time(to, &message);
	close(to);
	return err;
}

int fm_service_keep(const char *name, int fd)
{
	char state[FM_SERVICE_NAME + 64];

	/* FDPOLL=0: a memfd is never at its end, and epoll(7) does not take it. */
	snprintf(state, sizeof(state), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
	return send_state(state, &fd);
}

int fm_service_drop(const char *name)
{
	char state[FM_SERVICE_NAME + 64];

	snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	return send_state(state, NULL);
}

/* A number of the environment, or 0. */
static uint64_t number(const char *name)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : 0;
}

/* Descriptors come without FD_CLOEXEC; what was taken has it, as all that is opened later. */
static bool is_taken(int fd)
{
	int flags = fcntl(fd, F_GETFD);

	return flags < 0 || flags & FD_CLOEXEC;
}

/* Calls @act for each descriptor that was given, with its name. */
static void for_each(void (*act)(void *context, int fd, const char *name), void *context)
{
	const char *names = getenv("LISTEN_FDNAMES");
	uint64_t n_fds = number("LISTEN_PID") == (uint64_t)getpid() ? number("LISTEN_FDS") : 0;
	char name[FM_SERVICE_NAME];

	for (uint64_t i = 0; names && i < n_fds && i < INT32_MAX - FIRST_FD; i++) {
		size_t length = strcspn(names, ":");

		/* A name that is longer is none of ours. */
		if (length < sizeof(name)) {
			memcpy(name, names, length);
			name[length] = '\0';
			act(context, FIRST_FD + (int)i, name);
		}
		names += length;
		names += *names == ':';
	}
}

struct taking {
	const char *prefix;
	struct fm_service_fd *given;
	uint32_t n, max;
};

static void take(void *context, int fd, const char *name)
{
	struct taking *taking = context;

	if (strncmp(name, taking->prefix, strlen(taking->prefix)) || is_taken(fd))
		return;
	if (taking->n == taking->max || fcntl(fd, F_SETFD, FD_CLOEXEC)) {
		close(fd);
		return;
	}
	snprintf(taking->given[taking->n].name, FM_SERVICE_NAME, "%s", name);
	taking->given[taking->n++].fd = fd;
}

uint32_t fm_service_given(const char *prefix, struct fm_service_fd *given, uint32_t max)
{
	struct taking taking = {.prefix = prefix, .given = given, .max = max};

	for_each(take, &taking);
	return taking.n;
}

static void drop_untaken(void *context, int fd, const char *name)
{
	const char *prefix = context;

	if (strncmp(name, prefix, strlen(prefix)) || is_taken(fd))
		return;
	close(fd);
	fm_service_drop(name);
}

struct looking {
	const char *name;
	bool is_there;
};

static void look(void *context, int fd, const char *name)
{
	struct looking *looking = context;

	(void)fd;
	looking->is_there |= !strcmp(name, looking->name);
}

bool fm_service_has(const char *name)
{
	struct looking looking = {.name = name};

	for_each(look, &looking);
	return looking.is_there;
}

void fm_service_drop_rest(const char *prefix)
{
	for_each(drop_untaken, (void *)prefix);
}

/* Counted once, when all of them are still what was given. */
static struct held {
	bool is_counted;
	uint64_t bytes, huge_bytes;
} held;

static uint64_t bytes_in(int fd, bool *is_huge)
{
	struct statfs system;
	struct stat status;

	if (fstat(fd, &status) || fstatfs(fd, &system))
		return 0;
	*is_huge = system.f_type == HUGETLBFS_MAGIC;
	return (uint64_t)status.st_blocks * 512;
}

/* A client's own memory is not this process's to fill. */
static bool is_clients(const char *name)
{
	return strstr(name, ".adopt-") != NULL;
}

static void count(void *context, int fd, const char *name)
{
	struct held *sum = context;
	bool is_huge = false;
	uint64_t bytes = strncmp(name, "fm.", 3) || is_clients(name) ? 0 : bytes_in(fd, &is_huge);

	*(is_huge ? &sum->huge_bytes : &sum->bytes) += bytes;
}

/* Of the process that this one would replace (a check before an upgrade); it ends first. */
static uint64_t replaced_bytes(void)
{
	unsigned long long kibibytes = 0;
	char path[64], line[128];
	FILE *file;

	if (!number("FABRICMGR_REPLACES"))
		return 0;
	snprintf(path, sizeof(path), "/proc/%u/status", (uint32_t)number("FABRICMGR_REPLACES"));
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %llu", &kibibytes) == 1)
			break;
	if (file)
		fclose(file);
	return kibibytes << 10;
}

uint64_t fm_service_held_bytes(bool is_huge)
{
	if (!held.is_counted) {
		for_each(count, &held);
		held.bytes += replaced_bytes();
	}
	held.is_counted = true;
	return is_huge ? held.huge_bytes : held.bytes;
}

void fm_service_count(const struct fm_service_fd *given, uint32_t n)
{
	fm_service_held_bytes(false);
	for (uint32_t i = 0; i < n; i++)
		count(&held, given[i].fd, given[i].name);
}

void fm_service_give_back(const struct fm_service_fd *given, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		bool is_huge = false;
		bool is_ours = given[i].fd >= 0 && !is_clients(given[i].name);
		uint64_t bytes = is_ours ? bytes_in(given[i].fd, &is_huge) : 0;
		uint64_t *sum = is_huge ? &held.huge_bytes : &held.bytes;

		*sum -= bytes < *sum ? bytes : *sum;
	}
}
