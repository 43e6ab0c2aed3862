// SPDX-License-Identifier: Apache-2.0
/*
 * See peer.h. The kernel lists the sockets of this network namespace with their users in
 * /proc/net/tcp and tcp6. Invariant: both addresses are compared, and only an established
 * connection counts: one that was closed is listed as root's.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "peer.h"

#define TCP_ESTABLISHED 1u

/* As /proc/net/tcp writes it: words of the address as this machine reads them. */
static bool write_address(const struct sockaddr_storage *from, char out[48])
{
	const struct sockaddr_in6 *six = (const void *)from;
	const struct sockaddr_in *four = (const void *)from;
	uint32_t words[4];

	if (from->ss_family == AF_INET) {
		snprintf(out, 48, "%08X:%04X", four->sin_addr.s_addr, ntohs(four->sin_port));
		return true;
	}
	if (from->ss_family != AF_INET6)
		return false;
	memcpy(words, &six->sin6_addr, sizeof(words));
	snprintf(out, 48, "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
		 ntohs(six->sin6_port));
	return true;
}

static bool find(const char *path, const char *local, const char *remote, uint32_t *uid)
{
	char line[256], from[48], to[48];
	FILE *file = fopen(path, "re");
	bool is_found = false;

	while (file && !is_found && fgets(line, sizeof(line), file)) {
		unsigned int state, user;

		/* sl local rem st tx:rx tr:when retransmits uid */
		if (sscanf(line, " %*[^:]: %47s %47s %x %*s %*s %*s %u", from, to, &state, &user) ==
			    4 &&
		    state == TCP_ESTABLISHED && !strcmp(from, local) && !strcmp(to, remote)) {
			*uid = user;
			is_found = true;
		}
	}
	if (file)
		fclose(file);
	return is_found;
}

bool peer_user(int socket, uint32_t *uid)
{
	struct sockaddr_storage peer = {0}, own = {0};
	socklen_t peer_size = sizeof(peer), own_size = sizeof(own);
	char local[48], remote[48];

	/* What is local to the peer is remote to us. */
	return !getpeername(socket, (struct sockaddr *)&peer, &peer_size) &&
	       !getsockname(socket, (struct sockaddr *)&own, &own_size) &&
	       write_address(&peer, local) && write_address(&own, remote) &&
	       find(peer.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6", local, remote,
		    uid);
}

bool peer_is_far(int socket)
{
	struct sockaddr_storage peer = {0};
	socklen_t size = sizeof(peer);
	const struct sockaddr_in6 *six = (const void *)&peer;
	const struct sockaddr_in *four = (const void *)&peer;

	if (getpeername(socket, (struct sockaddr *)&peer, &size))
		return false;
	return peer.ss_family == AF_INET ? ntohl(four->sin_addr.s_addr) >> 24 != 127
					 : !IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}
