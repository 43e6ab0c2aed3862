/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks between the pool's memory and its NVMe tier: written behind once they are sealed, fetched
 * when a client asks, removed in both. server.c and session.c call it, on the serving thread.
 * Invariant: nothing in the pool waits for the device but answers that promise something of it.
 */
#ifndef FM_POOL_TIERING_H
#define FM_POOL_TIERING_H

#include "core/ring.h"
#include "tier/nvme.h"

struct fm_server;
struct fm_session;
struct fm_tiering;

/* Whether fm_tiering_create() would take @options, which name a path, without a change to it;
 * *@memory_bytes: of its tables. */
int fm_tiering_check(const struct fm_server_options *options, uint64_t *memory_bytes);
int fm_tiering_create(struct fm_server *server, const struct fm_server_options *options,
		      struct fm_tiering **out);
/* The pool was taken over from an earlier daemon: what the log has not of its blocks is written
 * soon. NULL is ignored, here and below. */
void fm_tiering_resume(struct fm_tiering *tiering);
/* Writes what is still queued. */
void fm_tiering_destroy(struct fm_tiering *tiering);
/* One turn; true: something was done. */
bool fm_tiering_run(struct fm_tiering *tiering, uint64_t now);
/* When to call that again without an event, at the latest. */
uint64_t fm_tiering_next(const struct fm_tiering *tiering, uint64_t now);

/* A chunk got its memory in an arena, or is about to lose it. */
void fm_tiering_chunk(struct fm_tiering *tiering, uint32_t region, uint32_t chunk, bool is_backed);
/* The block of @entry was sealed: it is written soon. True: another of its key is in the log, and
 * is removed there. */
bool fm_tiering_sealed(struct fm_tiering *tiering, uint32_t entry, bool replaces);
/* The same of a group, of which @entry is one; what the log has of its keys was removed. */
void fm_tiering_group_sealed(struct fm_tiering *tiering, uint32_t entry);
/* True: it was in the log. */
bool fm_tiering_remove(struct fm_tiering *tiering, const struct fm_key *key);
/* How many blocks of the namespace it had that the pool had not. @tenant FM_NO_ENTRY: whoever's. */
uint32_t fm_tiering_invalidate(struct fm_tiering *tiering, const uint8_t *ns, uint32_t tenant);
/* Whether a block of @key is in the log that is not @tenant's. */
bool fm_tiering_is_others(const struct fm_tiering *tiering, const struct fm_key *key,
			  uint32_t tenant);
/* Completes @completion when every removal so far also holds after a restart; at once without
 * tiering. @is_removal: its result tells when the log could not note it. */
void fm_tiering_answer(struct fm_tiering *tiering, struct fm_session *session,
		       const struct fm_completion *completion, bool is_removal);
void fm_tiering_fetch(struct fm_tiering *tiering, struct fm_session *session,
		      const struct fm_submission *s);
/* Its answers are not wanted any more. */
void fm_tiering_forget(struct fm_tiering *tiering, const struct fm_session *session);
void fm_tiering_info(const struct fm_tiering *tiering, struct fm_pool_info *info);
/* Of a tenant's blocks, in whole pages. */
uint64_t fm_tiering_tenant_bytes(const struct fm_tiering *tiering, uint32_t tenant);

#endif
