// SPDX-License-Identifier: Apache-2.0
/*
 * See notify.h. The protocol is one datagram to a Unix socket, so it needs no library. Invariant: a
 * manager that does not take a datagram is complained of once.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "notify.h"

static void complain(const char *path)
{
	static _Atomic bool has_complained;

	/* Relaxed: it orders nothing. */
	if (!atomic_exchange_explicit(&has_complained, true, memory_order_relaxed))
		fm_log(FM_LOG_WARNING, FM1013 "the service manager at %s is not told: %s", path,
		       strerror(errno));
}

void notify_send(const char *format, ...)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char text[512];
	socklen_t size;
	va_list args;
	int fd, length;

	if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, strlen(path));
	if (*path == '@') /* an abstract socket: its name begins with a zero and has no end */
		address.sun_path[0] = '\0';
	size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	va_start(args, format);
	length = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || length < 0 || (size_t)length >= sizeof(text) ||
	    sendto(fd, text, (size_t)length, MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
		complain(path);
	if (fd >= 0)
		close(fd);
}

uint64_t notify_watchdog_ns(void)
{
	const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
	unsigned long long value = us ? strtoull(us, NULL, 10) : 0;

	if ((pid && strtol(pid, NULL, 10) != getpid()) || value > UINT64_MAX / 1000)
		return 0;
	return value * 1000;
}
