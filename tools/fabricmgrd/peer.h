/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose a TCP connection from this machine is. Called by metrics.c. Invariant: a user is named only
 * while the connection is open on both sides.
 */
#ifndef FABRICMGRD_PEER_H
#define FABRICMGRD_PEER_H

#include <stdbool.h>
#include <stdint.h>

/* The user at the other end of @socket. False: it is not of this machine, or has ended. */
bool peer_user(int socket, uint32_t *uid);
/* Whether the other end is on another machine. */
bool peer_is_far(int socket);

#endif
