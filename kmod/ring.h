/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Calls through an io_uring. For main.c (the file operation), event.c (waking) and client.c.
 */
#ifndef FM_RING_H
#define FM_RING_H

#include "internal.h"

struct io_uring_cmd;

int fm_ring_command(struct io_uring_cmd *command, unsigned int issue_flags);
void fm_ring_wake(struct fm_events *events);
void fm_ring_flush(struct fm_client *client);
void fm_ring_init(struct fm_client *client);
void fm_ring_exit(struct fm_client *client);
u64 fm_ring_features(void);

#endif
