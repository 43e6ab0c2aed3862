/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission and completion ring that one client and the daemon share. Pure: atomics only; who
 * sleeps and wakes is the drivers' business, by the two flags here.
 * Invariant: each side keeps its own positions in private memory and takes from the shared page
 * only the other's, checked; so a hostile other side can waste only its own ring.
 */
#ifndef FM_CORE_RING_H
#define FM_CORE_RING_H

#include <stdbool.h>

#include "base/limits.h"
#include "core/index.h"

enum fm_op {
	FM_OP_STAGE = 1,
	FM_OP_SEAL = 2,
	FM_OP_DISCARD = 3, /* no completion */
	FM_OP_OFFER = 4,
	FM_OP_ADOPT = 5,
	FM_OP_TOUCH = 6, /* no completion, never wakes the daemon, may be dropped */
	FM_OP_REMOVE = 7,
	FM_OP_INVALIDATE = 8,
	FM_OP_HINT = 9,	     /* deadline_ns: pin; length: expected ns; reserved[0]: priority */
	FM_OP_FETCH = 10,    /* @length: the same for all keys of one call */
	FM_OP_SHOW = 11,     /* of a staged block: a private id by which others may join it */
	FM_OP_JOIN = 12,     /* @key: the id. Where the block is, for the client to lease */
	FM_OP_FORGET = 13,   /* no completion; @length: tag of a STAGE, to be answered at once */
	FM_OP_STAGE_AT = 14, /* @entry: an adopted region; reserved[0]: the offset in it */
};

/* SEAL: one of a group whose other members follow, the last without it. All are answered then. */
#define FM_SUBMIT_MORE (1u << 31)

struct fm_submission {
	uint32_t op;
	uint32_t flags; /* 0; SEAL: FM_SEAL_…, FM_SUBMIT_MORE */
	uint64_t tag;	/* comes back in the completion */
	struct fm_key key;
	struct fm_key parent;
	uint8_t ns[16];
	uint64_t deadline_ns; /* relative; STAGE */
	uint64_t length;      /* STAGE, STAGE_AT */
	uint32_t entry, generation;
	uint32_t crc32c;
	uint32_t has_parent;
	uint64_t reserved[4];
};

struct fm_completion {
	uint64_t tag;
	int32_t result;
	uint32_t entry, generation;
	uint32_t region, chunk, slot;
	uint64_t length;
	struct fm_key key; /* OFFER, SHOW: the private id */
	uint32_t origin;   /* INVALIDATE: how many */
	uint32_t quota;	   /* FM_ERR_LIMIT: enum fm_quota */
};

_Static_assert(sizeof(struct fm_submission) == 128, "two cache lines");
_Static_assert(sizeof(struct fm_completion) == 64, "one cache line");

struct fm_ring_word {
	uint32_t value;
	uint32_t pad[15];
};

struct fm_ring_shared {
	struct fm_ring_word sq_tail;	   /* client: release, daemon: acquire */
	struct fm_ring_word sq_head;	   /* daemon: release, client: acquire */
	struct fm_ring_word cq_tail;	   /* daemon: release, client: acquire */
	struct fm_ring_word cq_head;	   /* client: release, daemon: acquire */
	struct fm_ring_word daemon_sleeps; /* fences on both sides, see ring.c */
	struct fm_ring_word client_sleeps;
	struct fm_submission sq[FM_RING_ENTRIES];
	struct fm_completion cq[FM_RING_ENTRIES];
};

/* One side's private view. */
struct fm_ring {
	struct fm_ring_shared *shared;
	uint32_t sq_position; /* client: next to write; daemon: next to read */
	uint32_t cq_position; /* client: next to read; daemon: next to write */
};

/* Client. Room in the submission ring, in entries. */
uint32_t fm_ring_room(const struct fm_ring *ring);
void fm_ring_submit(struct fm_ring *ring, const struct fm_submission *submission);
/* True when the daemon sleeps and must be woken by its eventfd (at most once per sleep). */
bool fm_ring_must_wake_daemon(struct fm_ring *ring);
/* True when the daemon sleeps until answers are taken, and must be woken: after taking some. */
bool fm_ring_must_tell_daemon(struct fm_ring *ring);
bool fm_ring_completion(struct fm_ring *ring, struct fm_completion *out);
/* Announces that the client is about to sleep; false when there is work after all, that is when
 * completions beyond @position (read under the client's lock) have come. */
bool fm_ring_client_sleep(struct fm_ring *ring, uint32_t position);
void fm_ring_client_awake(struct fm_ring *ring);

/* Daemon. 1: copied out, 0: none, FM_ERR_CORRUPT: the client's position is impossible. */
int fm_ring_take(struct fm_ring *ring, struct fm_submission *out);
/* Room for completions, or FM_ERR_CORRUPT. */
int fm_ring_completion_room(const struct fm_ring *ring);
void fm_ring_complete(struct fm_ring *ring, const struct fm_completion *completion);
bool fm_ring_must_wake_client(struct fm_ring *ring);
bool fm_ring_daemon_sleep(struct fm_ring *ring);
/* Instead, when there is no room beyond the @due answers; false when there is some after all. */
bool fm_ring_daemon_block(struct fm_ring *ring, uint32_t due);
void fm_ring_daemon_awake(struct fm_ring *ring);

#endif
