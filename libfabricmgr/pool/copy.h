/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks by copy, for the blocking calls (copy.c) and for a queue's workers (queue_work.c). Any
 * thread may call. Invariant: the caller's memory is read and written behind its gate alone.
 */
#ifndef FM_POOL_COPY_H
#define FM_POOL_COPY_H

#include "pool/client.h"

/* As fm_pool_put_parts() and fm_pool_get_parts(), with results in the same places. What a closed
 * gate kept from its copy has FM_ERR_CANCELLED. */
int fm_parts_put(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put_parts *puts,
		 size_t n, uint64_t deadline_ns, const struct fm_gate *gate);
int fm_parts_get(struct fm_pool *pool, struct fm_get_parts *get, const struct fm_gate *gate);

/* Bytes of all parts; UINT64_MAX when that is no number, or one of them is nowhere. */
uint64_t fm_parts_bytes(const struct iovec *parts, uint32_t n_parts);

#endif
