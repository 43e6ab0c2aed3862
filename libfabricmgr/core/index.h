/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index in shared memory: what it looks like, how anybody finds a block in it without
 * lock or system call, and how its one writer (the daemon) changes it. Pure: the memory is handed
 * in. Invariant: a reader that loads an entry's word (acquire), then its fields, and finds the word
 * unchanged under a lease, has fields that belong to that generation.
 */
#ifndef FM_CORE_INDEX_H
#define FM_CORE_INDEX_H

#include <fabricmgr.h>

#include "base/atomic.h"
/* kmod/uapi is searched after the public headers, and its file has the same name. */
#include "../../kmod/uapi/fabricmgr.h"

#define FM_INDEX_MAGIC	      0x58494d46u /* "FMIX" */
#define FM_INDEX_VERSION      1u
#define FM_INDEX_HEADER_BYTES 4096u
#define FM_BUCKET_SLOTS	      8u
#define FM_NO_ENTRY	      UINT32_MAX

struct fm_index_header {
	uint32_t magic;
	uint32_t version;
	uint64_t incarnation;
	uint64_t seed; /* keeps a tenant from choosing keys that share a bucket */
	uint32_t entries_max;
	uint32_t buckets;
	uint64_t buckets_offset;
	uint64_t entries_offset;
	uint64_t bytes;
	uint32_t reserved;
	uint32_t checksum; /* CRC32C of all before */
};

/* A slot is {tag, entry + 1}; 0 is empty. Stored with release, pairs with the acquire in find. */
struct fm_bucket {
	uint64_t slots[FM_BUCKET_SLOTS];
};

/*
 * Everything is a 64-bit word so that a reader racing with the writer reads each whole. All but
 * @word are stored before @word becomes SEALED (release; pairs with the reader's acquire), and
 * after it has left the generation before (each a release; pairs with the fence behind the
 * reader's relaxed loads).
 */
struct fm_entry {
	uint64_t word; /* FABRICMGR_WORD(generation, state) */
	uint64_t key[2];
	uint64_t parent[2]; /* key of the block before in the chain; zero for the first */
	uint64_t place;	    /* region in the upper half, chunk in the lower */
	uint64_t extent;    /* length in the upper half, slot in the lower */
	uint64_t check;	    /* CRC32C in the upper half, origin in the lower */
};

_Static_assert(sizeof(struct fm_bucket) == 64, "a bucket is one cache line");
_Static_assert(sizeof(struct fm_entry) == 64, "an entry is one cache line");

#define FM_PAIR(high, low) (((uint64_t)(high) << 32) | (uint32_t)(low))
#define FM_HIGH(pair)	   ((uint32_t)((pair) >> 32))
#define FM_LOW(pair)	   ((uint32_t)(pair))

/* A view of mapped index memory, the reader's as well as the writer's. */
struct fm_index {
	const struct fm_index_header *header;
	struct fm_bucket *buckets;
	struct fm_entry *entries;
	uint64_t seed;
	uint32_t bucket_count;
	uint32_t entries_max;
};

size_t fm_index_bytes(uint32_t entries_max);
/* Lays out an index in @memory (zeroed, fm_index_bytes() long). Entry i starts FREE, generation i.
 */
void fm_index_format(void *memory, uint32_t entries_max, uint64_t incarnation, uint64_t seed);
/* Checks the header and fills @index. */
int fm_index_open(struct fm_index *index, void *memory, size_t bytes);
/* Of memory whose header cannot be trusted: a header and empty buckets; entries stay. */
void fm_index_reformat(void *memory, uint32_t entries_max, uint64_t incarnation, uint64_t seed);

/* What a reader may take @state for: GROUPED is what the leader's word makes of it. */
uint32_t fm_index_state(const struct fm_index *index, uint32_t state);

/* The entry that holds @key and the word it had (SEALED, EVICTING or, in a group that is visible,
 * GROUPED), or FM_NO_ENTRY. */
uint32_t fm_index_find(const struct fm_index *index, const struct fm_key *key, uint64_t *word);

/* How many leading keys are there: as fm_index_find() of each, with the memory of later ones
 * fetched while earlier ones are looked at. */
size_t fm_index_match(const struct fm_index *index, const struct fm_key *keys, size_t n);

/* Writer only. @entry's key is set. FM_ERR_LIMIT when both buckets are full. */
int fm_index_insert(struct fm_index *index, uint32_t entry);
void fm_index_remove(struct fm_index *index, uint32_t entry);
/* @entry, which has the same key, is found in the place of @old from one moment to the next. */
void fm_index_replace(struct fm_index *index, uint32_t old, uint32_t entry);
/* The entry that a slot of a bucket names, if its key belongs there; or FM_NO_ENTRY. */
uint32_t fm_index_at(const struct fm_index *index, uint32_t bucket, uint32_t slot);
/* That slot names nothing any more. */
void fm_index_clear(struct fm_index *index, uint32_t bucket, uint32_t slot);

/* Relaxed: the caller holds a lease, or fences and looks at the word again (fm_pool_walk()). */
static inline void fm_key_load(const uint64_t from[2], struct fm_key *key)
{
	uint64_t words[2] = {fm_load_relaxed(&from[0]), fm_load_relaxed(&from[1])};

	__builtin_memcpy(key, words, sizeof(*key));
}

/* Release: pairs with the fence in fm_lease_take() and fm_pool_walk(), see struct fm_entry. */
static inline void fm_key_store(uint64_t to[2], const struct fm_key *key)
{
	uint64_t words[2];

	__builtin_memcpy(words, key, sizeof(words));
	fm_store_release(&to[0], words[0]);
	fm_store_release(&to[1], words[1]);
}

/* ---- the header table: one write-once record a block, from which an index can be rebuilt ---- */

#define FM_HEADER_MAGIC	  0x4b424d46u /* "FMBK" */
#define FM_HEADER_VERSION 1u

/* The block is not found any more: removed, replaced or evicted. Set by one store while others may
 * read, so it is outside of the checksum. */
#define FM_HEADER_ENDED (1u << 0)

struct fm_header {
	uint32_t magic;
	uint16_t version;
	uint16_t flags; /* FM_HEADER_… */
	uint8_t ns[16]; /* first half of the namespace digest */
	uint8_t key[16];
	uint32_t length;
	uint32_t generation;
	uint32_t chunk;
	uint16_t slot;
	uint16_t region;
	uint32_t crc32c;   /* of the data */
	uint32_t checksum; /* CRC32C of all before, without FM_HEADER_ENDED */
};

/* One of a group: sealed with others, and gone with them. */
#define FM_HEADER_IN_GROUP (1u << 8)

_Static_assert(sizeof(struct fm_header) == 64, "a header is one cache line");

/* Written before the word becomes SEALED (release; pairs with the acquires that see SEALED). Every
 * access is a relaxed word: a walk may race with it, and looks at the word again. */
void fm_header_write(struct fm_header *table, uint32_t entry, struct fm_header header);
void fm_header_read(const struct fm_header *table, uint32_t entry, struct fm_header *out);
void fm_header_end(struct fm_header *table, uint32_t entry);
/* 0, or FM_ERR_CORRUPT with what is wrong. */
int fm_header_check(const struct fm_header *header);

#endif
