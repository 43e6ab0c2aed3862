/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool inside this process, for programs that run without a daemon (`run`, `serve`): the same
 * server code as fabricmgrd, on a thread of its own, attached to over a socket pair.
 * Invariant: the thread has ended when fm_embedded_pool_stop() returns.
 */
#ifndef FM_ENGINE_EMBEDDED_POOL_H
#define FM_ENGINE_EMBEDDED_POOL_H

#include <stdint.h>

struct fm_embedded_pool;

int fm_embedded_pool_start(uint64_t bytes, struct fm_embedded_pool **out);
/* A connected socket for fm_attach_options.fd. */
int fm_embedded_pool_connect(struct fm_embedded_pool *pool, int *fd);
void fm_embedded_pool_stop(struct fm_embedded_pool *pool);

#endif
