/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a worker listens and a router connects: "unix:/path" or "127.0.0.1:port". Pure text.
 * Invariant: what is taken is a Unix socket or loopback, since the protocol is not encrypted.
 */
#ifndef FM_ENGINE_ADDRESS_H
#define FM_ENGINE_ADDRESS_H

#include <sys/socket.h>

/* FM_ERR_INVALID, or FM_ERR_UNSUPPORTED off loopback; the detail begins with "@what @text: ". */
int fm_worker_address_parse(const char *what, const char *text, struct sockaddr_storage *out,
			    socklen_t *len);

#endif
