// SPDX-License-Identifier: Apache-2.0
/*
 * See address.h. Called by the worker, by the router's links and when flags are read.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include <fabricmgr.h>

#include "worker/address.h"

static int parse_path(const char *what, const char *text, struct sockaddr_un *out)
{
	const char *path = text + 5;

	if (!*path || strlen(path) >= sizeof(out->sun_path))
		return fm_fail(FM_ERR_INVALID, "%s %s: the path must have 1 to %zu bytes", what,
			       text, sizeof(out->sun_path) - 1);
	out->sun_family = AF_UNIX;
	strcpy(out->sun_path, path);
	return 0;
}

int fm_worker_address_parse(const char *what, const char *text, struct sockaddr_storage *out,
			    socklen_t *len)
{
	struct sockaddr_in *ip = (struct sockaddr_in *)out;
	const char *colon = strrchr(text, ':');
	unsigned long port;
	char host[64], *end;

	memset(out, 0, sizeof(*out));
	if (!strncmp(text, "unix:", 5)) {
		*len = sizeof(struct sockaddr_un);
		return parse_path(what, text, (struct sockaddr_un *)out);
	}
	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
		return fm_fail(FM_ERR_INVALID,
			       "%s %.200s: give unix:/path or 127.0.0.1:port (loopback only)", what,
			       text);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	port = strtoul(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end || !port || port > 65535)
		return fm_fail(FM_ERR_INVALID, "%s %s: the port must be from 1 to 65535", what,
			       text);
	if (!strcmp(host, "localhost"))
		strcpy(host, "127.0.0.1");
	/* Between hosts the protocol needs TLS (architecture rule 8), which this version has not.
	 */
	if (inet_pton(AF_INET, host, &ip->sin_addr) != 1 || ntohl(ip->sin_addr.s_addr) >> 24 != 127)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s %s: only loopback (127.0.0.1:port) or a Unix socket "
			       "(unix:/path): the worker protocol is not encrypted",
			       what, text);
	ip->sin_family = AF_INET;
	ip->sin_port = htons((uint16_t)port);
	*len = sizeof(*ip);
	return 0;
}
