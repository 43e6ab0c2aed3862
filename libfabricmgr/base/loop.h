/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: waits for descriptors to become readable, on io_uring, or on poll(2) where the
 * kernel or the container refuses io_uring. One thread at a time. Drivers call it.
 * Invariant: level-triggered: a descriptor that is still readable is reported again.
 */
#ifndef FM_BASE_LOOP_H
#define FM_BASE_LOOP_H

#include <stdint.h>

struct fm_loop;
struct fm_watch;

typedef void (*fm_watch_fn)(void *context);

int fm_loop_create(struct fm_loop **out);
void fm_loop_destroy(struct fm_loop *loop);
/* "io_uring" or "poll", and why not io_uring ("" if it is). */
const char *fm_loop_rung(const struct fm_loop *loop, const char **reason);

int fm_loop_add(struct fm_loop *loop, int fd, fm_watch_fn ready, void *context,
		struct fm_watch **out);
/* From within a callback too, also of the watch itself. NULL is ignored. */
void fm_loop_remove(struct fm_loop *loop, struct fm_watch *watch);
/* Waits at most @timeout_ns (UINT64_MAX: for ever) and calls what is ready. */
int fm_loop_wait(struct fm_loop *loop, uint64_t timeout_ns);

#endif
