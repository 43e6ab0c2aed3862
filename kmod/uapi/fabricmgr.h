/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What the kernel module, the node daemon and every client agree on: the lease structure and the
 * state words. They are the same on every rung (module, hugetlb memfd, memfd).
 * Invariant: sizes and offsets here never change; extension is by new structures.
 */
#ifndef _UAPI_FABRICMGR_H
#define _UAPI_FABRICMGR_H

#include <linux/types.h>

/* A chunk is what a region is made of, and what the allocator and the shrinker hand around. */
#define FABRICMGR_CHUNK_BYTES (4u << 20)

/*
 * The state word of a block: generation in the upper 32 bits, state in the lower. Written only by
 * the owner of the index. The generation changes only when the block is freed.
 */
enum fabricmgr_block_state {
	FABRICMGR_BLOCK_FREE = 0,
	FABRICMGR_BLOCK_STAGING = 1,	/* a writer has it; others cannot see it */
	FABRICMGR_BLOCK_SEALED = 2,	/* visible, immutable; may be leased */
	FABRICMGR_BLOCK_EVICTING = 3,	/* no new leases; goes back to SEALED if one is found */
	FABRICMGR_BLOCK_QUARANTINE = 4, /* its dead writer may still have device I/O in flight */
	FABRICMGR_BLOCK_GROUPED = 5,	/* in the lowest 3 bits; the others name the leader's entry.
					   Sealed when the leader is SEALED, staging before */
};

/* The members of a group but one are GROUPED until the one, its leader, has become SEALED. */
#define FABRICMGR_BLOCK_GROUPED_BY(leader) (((leader) << 3) | FABRICMGR_BLOCK_GROUPED)
#define FABRICMGR_IS_GROUPED(state) (((state) & 7) == FABRICMGR_BLOCK_GROUPED)
#define FABRICMGR_GROUP_LEADER(state) ((state) >> 3)
#define FABRICMGR_GROUPED_MAX (1u << 29) /* entries of an index that has groups, at most */

#define FABRICMGR_WORD(generation, state) (((__u64)(generation) << 32) | (__u32)(state))
#define FABRICMGR_WORD_GENERATION(word) ((__u32)((word) >> 32))
#define FABRICMGR_WORD_STATE(word) ((__u32)(word))

/*
 * One lease, in the table of the client that holds it. @region 0: the entry is free.
 *
 * Taking one: load-acquire the block's word (SEALED), store-release chunk, generation, slot, then
 * region, sequentially consistent fence, load the word again; changed: store region 0 and retry.
 * Dropping it: store-release region 0. All of these are releases since the scan acquires each word:
 * one word of a later lease in the entry tells that the reads under the earlier one are over.
 * Evicting: store EVICTING, sequentially consistent fence, scan every table; a victim that is
 * leased gets its old word back. The two fences make it impossible that both sides miss each other.
 */
struct fabricmgr_lease {
	__u32 region;
	__u32 chunk;
	__u32 generation;
	__u32 slot;
};

#define FABRICMGR_LEASES_MAX 65536 /* entries of one client's table, at most */

#endif /* _UAPI_FABRICMGR_H */
