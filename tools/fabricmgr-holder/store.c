// SPDX-License-Identifier: Apache-2.0
/*
 * See store.h. The protocol is that of sd_notify(3): lines NAME=VALUE in a datagram, descriptors
 * beside it. Called by main.c.
 * Invariant: a descriptor that comes is kept under its name or closed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "store.h"

enum { FIRST_FD = 3, MESSAGE_MAX = 4096, FDS_MAX = 16 };

int store_open(struct store *store)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t length = sizeof(address);
	int yes = 1;

	store->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* The kernel finds a name that is free, in no folder. */
	if (store->socket < 0 ||
	    setsockopt(store->socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) ||
	    bind(store->socket, (struct sockaddr *)&address, sizeof(sa_family_t)) ||
	    getsockname(store->socket, (struct sockaddr *)&address, &length))
		return fm_fail(FM_ERR_IO, "a socket for the daemon: %s", strerror(errno));
	snprintf(store->address, sizeof(store->address), "@%.*s",
		 (int)(length - offsetof(struct sockaddr_un, sun_path) - 1), address.sun_path + 1);
	return 0;
}

void store_close(struct store *store)
{
	for (uint32_t i = 0; i < store->n; i++)
		close(store->kept[i].fd);
	store->n = 0;
	if (store->socket > 0)
		close(store->socket);
}

void store_expect(struct store *store, pid_t pid)
{
	store->pid = pid;
}

/* ---- messages ---- */

/* The value of a line "NAME=VALUE", or NULL. */
static const char *value_of(const char *message, const char *name, char value[64])
{
	size_t length = strlen(name), end;

	for (const char *line = message; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) || line[length] != '=')
			continue;
		end = strcspn(line + length + 1, "\n");
		snprintf(value, 64, "%.*s", (int)(end < 63 ? end : 63), line + length + 1);
		return value;
	}
	return NULL;
}

static void keep(struct store *store, const char *name, int fd)
{
	uint32_t bytes = (uint32_t)strlen(name) + 1;

	if (store->n == STORE_MAX || bytes > STORE_NAME || strchr(name, ':') ||
	    store->name_bytes + bytes > STORE_NAMES_MAX) {
		fm_log(FM_LOG_WARNING,
		       FM1607 "\"%s\" is not kept: %u descriptors, with names of %u bytes in all, "
			      "are the limit",
		       name, STORE_MAX, STORE_NAMES_MAX);
		close(fd);
		return;
	}
	snprintf(store->kept[store->n].name, STORE_NAME, "%s", name);
	store->kept[store->n++].fd = fd;
	store->name_bytes += bytes;
}

static void drop(struct store *store, const char *name)
{
	for (uint32_t i = store->n; i-- > 0;)
		if (!strcmp(store->kept[i].name, name)) {
			close(store->kept[i].fd);
			store->name_bytes -= (uint32_t)strlen(name) + 1;
			store->kept[i] = store->kept[--store->n];
		}
}

static uint32_t act(struct store *store, const char *message, const int *fds, uint32_t n)
{
	char name[64] = "stored", value[64];
	uint32_t heard = STORE_HEARD;

	value_of(message, "FDNAME", name);
	if (value_of(message, "FDSTOREREMOVE", value) && !strcmp(value, "1"))
		drop(store, name);
	if (value_of(message, "READY", value) && !strcmp(value, "1"))
		heard |= STORE_READY;
	if (value_of(message, "STATUS", value))
		fm_log(FM_LOG_DEBUG, FM1609 "%s", value);
	for (uint32_t i = 0; i < n; i++)
		if (value_of(message, "FDSTORE", value) && !strcmp(value, "1"))
			keep(store, name, fds[i]);
		else
			close(fds[i]);
	return heard;
}

/* One message: what was heard, or -1 when there is none. */
static int receive_one(struct store *store)
{
	union {
		char space[CMSG_SPACE(FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	char message[MESSAGE_MAX];
	struct iovec part = {.iov_base = message, .iov_len = sizeof(message) - 1};
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = control.space,
				.msg_controllen = sizeof(control.space)};
	ssize_t length = recvmsg(store->socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct ucred sender = {.pid = 0};
	int fds[FDS_MAX];
	uint32_t n = 0;

	if (length < 0)
		return -1;
	message[length] = '\0';
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&header); h; h = CMSG_NXTHDR(&header, h)) {
		size_t bytes = h->cmsg_len - CMSG_LEN(0);

		if (h->cmsg_level != SOL_SOCKET)
			continue;
		if (h->cmsg_type == SCM_CREDENTIALS && bytes == sizeof(sender))
			memcpy(&sender, CMSG_DATA(h), sizeof(sender));
		if (h->cmsg_type == SCM_RIGHTS && bytes <= sizeof(fds)) {
			memcpy(fds, CMSG_DATA(h), bytes);
			n = (uint32_t)(bytes / sizeof(int));
		}
	}
	if (store->pid && sender.pid == store->pid && !(header.msg_flags & MSG_TRUNC))
		return (int)act(store, message, fds, n);
	for (uint32_t i = 0; i < n; i++)
		close(fds[i]);
	return 0;
}

uint32_t store_receive(struct store *store)
{
	uint32_t heard = 0;
	int one;

	while ((one = receive_one(store)) >= 0)
		heard |= (uint32_t)one;
	return heard;
}

/* ---- the next daemon ---- */

static int set(const char *name, const char *format, unsigned long long value)
{
	char text[32];

	snprintf(text, sizeof(text), format, value);
	return setenv(name, text, 1);
}

static int set_names(const struct store *store)
{
	char *names = malloc((size_t)store->n * STORE_NAME + 1), *at = names;
	int failed;

	if (!names)
		return -1;
	*at = '\0';
	for (uint32_t i = 0; i < store->n; i++)
		at += sprintf(at, "%s%s", i ? ":" : "", store->kept[i].name);
	failed = setenv("LISTEN_FDNAMES", names, 1);
	free(names);
	return failed;
}

int store_give(const struct store *store, uint32_t watchdog_s)
{
	int copies[STORE_MAX];

	/* First out of the way of the numbers that they shall have. */
	for (uint32_t i = 0; i < store->n; i++) {
		copies[i] = fcntl(store->kept[i].fd, F_DUPFD_CLOEXEC, FIRST_FD + (int)store->n);
		if (copies[i] < 0)
			return fm_fail(FM_ERR_IO, "giving a descriptor: %s", strerror(errno));
	}
	for (uint32_t i = 0; i < store->n; i++)
		if (dup2(copies[i], FIRST_FD + (int)i) < 0)
			return fm_fail(FM_ERR_IO, "giving a descriptor: %s", strerror(errno));
	if (setenv("NOTIFY_SOCKET", store->address, 1) ||
	    set("FABRICMGR_HOLDER", "%llu", (unsigned long long)getppid()) ||
	    set("FDSTORE", "%llu", STORE_MAX) ||
	    (store->n && (set("LISTEN_PID", "%llu", (unsigned long long)getpid()) ||
			  set("LISTEN_FDS", "%llu", store->n) || set_names(store))) ||
	    (watchdog_s && set("WATCHDOG_USEC", "%llu", watchdog_s * 1000000ull)))
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the environment");
	return 0;
}
