// SPDX-License-Identifier: Apache-2.0
/*
 * Packets with descriptors over a Unix socket. Client and server call it.
 * Invariant: no descriptor that arrives is lost: it is handed out or closed.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool/wire.h"

int fm_wire_send(int socket, const void *data, size_t len, const int *fds, int n_fds)
{
	union {
		char space[CMSG_SPACE(FM_WIRE_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = {.iov_base = (void *)data, .iov_len = len};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (n_fds) {
		struct cmsghdr *header;

		memset(&control, 0, sizeof(control));
		message.msg_control = control.space;
		message.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
		memcpy(CMSG_DATA(header), fds, (size_t)n_fds * sizeof(int));
	}
	while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
		if (errno == EINTR)
			continue;
		if (errno == EAGAIN)
			return FM_ERR_BUSY;
		if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
			return fm_fail(FM_ERR_DISCONNECTED, "the other side closed the connection");
		return fm_fail(FM_ERR_IO, "sendmsg: %s", strerror(errno));
	}
	return 0;
}

int64_t fm_wire_receive(int socket, void *data, size_t len, int *fds, int *n_fds)
{
	union {
		char space[CMSG_SPACE(FM_WIRE_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = {.iov_base = data, .iov_len = len};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space),
	};
	int room = n_fds ? *n_fds : 0, kept = 0;
	int tries = 2;
	ssize_t got;

	/* Where none is expected the kernel drops them: closing one here could wait for whoever
	 * serves the file. */
	if (!room)
		message.msg_controllen = 0;
	else if (room < FM_WIRE_FDS)
		message.msg_controllen = CMSG_LEN((size_t)room * sizeof(int));
	/* A reset is told once, before what the other side said last. */
	do
		got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && (errno == EINTR || (errno == ECONNRESET && --tries)));
	if (got < 0) {
		if (errno == EAGAIN)
			return FM_ERR_BUSY;
		if (errno == ECONNRESET || errno == EPIPE)
			return 0;
		return fm_fail(FM_ERR_IO, "recvmsg: %s", strerror(errno));
	}
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
		size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
			if (kept < room)
				fds[kept++] = fd;
			else
				close(fd);
		}
	}
	if (n_fds)
		*n_fds = kept;
	return got;
}
