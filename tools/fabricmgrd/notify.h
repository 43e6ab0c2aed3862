/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told: lines of sd_notify(3) to $NOTIFY_SOCKET. Called by main.c and
 * control.c, from any thread. Invariant: without the manager's environment nothing is done, and
 * nothing that it answers is waited for.
 */
#ifndef FABRICMGRD_NOTIFY_H
#define FABRICMGRD_NOTIFY_H

#include <stdint.h>

/* Lines such as "READY=1\nSTATUS=…". */
void notify_send(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Within which time a WATCHDOG=1 must follow the one before; 0: nobody waits for it. */
uint64_t notify_watchdog_ns(void);

#endif
