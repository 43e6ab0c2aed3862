/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of segments behind the NVMe tier: which block goes where, what is durable when, what goes
 * when space is needed, and what a log that was found means. Called by the tier's driver and by
 * tests, on one thread; pure: no I/O, no clock, random ids are handed in. What the device must do
 * is returned as batches to write and flushes to make. Why it is as it is:
 * Documentation/design/nvme-tier.md. Invariant: segments are reclaimed in the order in which they
 * were opened, and one is opened only after a flush that covers all before it.
 */
#ifndef FM_CORE_SEGMENT_LOG_H
#define FM_CORE_SEGMENT_LOG_H

#include <stdbool.h>

#include "base/limits.h"
#include "core/index.h"

#define FM_LOG_PAGE    4096u
#define FM_LOG_RECORDS 63u	   /* of one batch: its header is one page */
#define FM_LOG_BATCHES 16u	   /* not yet settled, at most */
#define FM_LOG_MAGIC   0x474c4d46u /* "FMLG" */
#define FM_LOG_VERSION 2u
#define FM_LOG_VERSION_BEFORE 1u /* without groups; read as well */
/* Members of a group in the log: one batch, with a record that says how many follow. */
#define FM_LOG_GROUP_MAX (FM_LOG_RECORDS - 1)
/* A segment that failed is not tried again; with fewer than these left the log takes no more. */
#define FM_LOG_SEGMENTS_MIN 3u
/* Flushes in a row that may fail before the log takes no more. */
#define FM_LOG_FLUSH_TRIES 3u

/* ---- on the device: a batch is a header page, then the blocks' pages ---- */

enum fm_log_kind {
	FM_LOG_BLOCK = 1,
	FM_LOG_REMOVED = 2,
	FM_LOG_NS_REMOVED = 3,
	FM_LOG_GROUP = 4, /* the next @length records are blocks that come and go together */
};

struct fm_log_head {
	uint32_t magic, version;
	uint64_t log_id;   /* of the log: bytes of another one mean nothing */
	uint64_t run;	   /* of the writer: a batch of an earlier life never continues this one */
	uint64_t sequence; /* of the segment */
	uint64_t oldest;   /* segments below are given up, whatever stands there */
	uint32_t number;   /* of the batch in its segment */
	uint32_t previous; /* batches that count of the segment before */
	uint32_t step;	   /* how far below its sequence is; 0: there is none before */
	uint32_t records;
	uint32_t pages;	   /* of the whole batch */
	uint32_t checksum; /* CRC32C of the page with this field zero */
};

struct fm_log_record {
	struct fm_key key, parent;
	uint8_t ns[16];
	uint32_t length, crc32c;
	uint32_t page; /* of the segment: where the bytes are */
	uint16_t kind;
	uint16_t mark; /* of who wrote the block; 0: nobody's */
};

struct fm_log_page {
	struct fm_log_head head;
	struct fm_log_record records[FM_LOG_RECORDS];
};

_Static_assert(sizeof(struct fm_log_head) == 64, "a head is as long as a record");
_Static_assert(sizeof(struct fm_log_page) == FM_LOG_PAGE, "a header is one page");

/* ---- in memory ---- */

struct fm_log_block {
	struct fm_key key, parent; /* parent all zero: none */
	uint8_t ns[16];
	uint32_t length, crc32c;
};

struct fm_log_entry {
	struct fm_log_block block;
	uint32_t segment, page;
	uint32_t hash_next, segment_prev, segment_next; /* segment_next: of free and queued ones */
	uint32_t group_next; /* entry + 1 of the next member of its group around; 0: in none */
	/* The same bytes again, later in the log; they may be torn, so they count only when these
	 * are given up. FM_NO_ENTRY: none. */
	uint32_t twin_segment, twin_page;
	uint16_t state, mark;
	uint64_t batch;	 /* that brings it, or its removal */
	uint64_t number; /* of a removal; else of this placement, never the same twice */
};

struct fm_log_segment {
	uint64_t sequence, run, oldest; /* sequence 0: nothing in it counts */
	uint32_t batches;		/* that count: written with all before them, or found */
	uint32_t previous, step;	/* as in the head */
	uint32_t limit; /* while scanning: how many the next segment says there are */
	uint32_t head;	/* list of its entries */
	bool is_bad;
};

enum fm_log_batch_state {
	FM_LOG_FORMING = 1,
	FM_LOG_WRITING,
	FM_LOG_WRITTEN,
	FM_LOG_DURABLE,
	FM_LOG_FAILED,
};

struct fm_log_batch {
	uint64_t id;
	uint32_t segment, page, pages, number, count;
	enum fm_log_batch_state state;
	bool is_doomed; /* still being written, but will not count */
	uint32_t entries[FM_LOG_RECORDS];
	struct fm_log_record records[FM_LOG_RECORDS];
	void *tags[FM_LOG_RECORDS]; /* the caller's; NULL for removals */
};

struct fm_log_counters {
	uint64_t appended, appended_bytes, duplicates, rewritten;
	uint64_t reclaimed, removed, lost, failed;
	uint32_t blocks, segments_bad;
	uint64_t block_bytes; /* in blocks that can be read, in whole pages */
	uint64_t recovered, distrusted;
};

/* Whose blocks are counted apart: by the marks that they were written with. */
struct fm_log_account {
	uint16_t mark;
	uint64_t bytes; /* of blocks in the log or on their way there, in whole pages */
	uint64_t from;	/* sequence of the first segment that may have one */
};

struct fm_log_options {
	uint64_t log_id, run;
	uint32_t segment_pages, segments, entries_max;
	uint64_t batch_bytes; /* of one batch, at most; at least one block always fits */
	bool is_durable;      /* a block counts as stored after a flush, else after its write */
	uint16_t marks[FM_TENANTS_MAX - 1]; /* of the accounts from the second on; 0: no more */
};

struct fm_log {
	struct fm_log_options options;
	struct fm_log_segment *segments;
	struct fm_log_entry *entries;
	uint32_t *buckets, bucket_mask;
	uint32_t free_entries;
	uint32_t removed_head, removed_tail; /* removals that are in no batch yet */
	uint64_t removals, placements;
	/* Segments were given up; a batch that says so is not stored. It counts as a
	 * removal, since what stands in them may come back. */
	uint64_t floor_batch, floor_number;
	struct fm_log_batch batches[FM_LOG_BATCHES]; /* by id */
	uint64_t first, next;			     /* ids that are not settled */
	uint64_t next_sequence;
	uint32_t segment, page; /* being filled; FM_NO_ENTRY: none */
	uint32_t batches_in;
	uint32_t previous_batches;
	uint64_t previous_sequence; /* of the last segment in which a batch counts; 0: none */
	uint64_t flush_mark;	    /* != 0: a flush is on its way */
	uint32_t flush_failures;
	bool needs_flush; /* something was written since the last flush began */
	bool is_dead;
	/* While scanning. */
	uint32_t *order, order_count, scan_at, scan_page, scan_number, unreadable;
	uint64_t newest;
	struct fm_log_counters counters;
	struct fm_log_account accounts[FM_TENANTS_MAX]; /* the first: of all other marks */
};

int fm_log_create(struct fm_log *log, const struct fm_log_options *options);
void fm_log_destroy(struct fm_log *log);
/* Bytes of memory that a log of these options takes. */
uint64_t fm_log_memory(const struct fm_log_options *options);

/* ---- finding out what a log holds; before anything else ---- */

/* The first page of each segment; NULL: it cannot be read. */
void fm_log_scan_first(struct fm_log *log, uint32_t segment, const struct fm_log_page *page);
/* Then: which page to look at next; false: the scan is over. */
bool fm_log_scan_next(struct fm_log *log, uint32_t *segment, uint32_t *page);
/* That page; NULL: it cannot be read. */
void fm_log_scan_page(struct fm_log *log, const struct fm_log_page *page);

/* ---- writing ---- */

/* Puts a block into the batch that is being formed. FM_ERR_EXISTS: it is there already (and not
 * about to go); FM_ERR_BUSY: later, when batches have settled or a flush is over; FM_ERR_LIMIT: too
 * long for a segment; FM_ERR_IO: the log is dead. */
int fm_log_append(struct fm_log *log, const struct fm_log_block *block, uint16_t mark, void *tag);
/* The same of @n blocks, 2 to FM_LOG_GROUP_MAX, that are found all together or none. FM_ERR_EXISTS:
 * one of them is there. FM_ERR_LIMIT: together too long for a segment, or too many. */
int fm_log_append_group(struct fm_log *log, const struct fm_log_block *blocks, uint32_t n,
			uint16_t mark, void *const *tags);
/* Takes the batch to be written, removals included; NULL: nothing to write now. Its header page
 * (fm_log_header()) and its blocks are to be written, in any order. */
struct fm_log_batch *fm_log_take(struct fm_log *log);
void fm_log_header(const struct fm_log *log, const struct fm_log_batch *batch,
		   struct fm_log_page *page);
/* The place in the batch, and the batch, of what fm_log_append() took last; of a group, of the last
 * member. */
static inline uint32_t fm_log_last(const struct fm_log *log, uint32_t *slot)
{
	*slot = (uint32_t)((log->next - 1) % FM_LOG_BATCHES);
	return log->batches[*slot].count - 1;
}
void fm_log_written(struct fm_log *log, struct fm_log_batch *batch, bool is_ok);
/* True: a flush is to be made now that begins after this call. */
bool fm_log_flush_begin(struct fm_log *log);
void fm_log_flush_end(struct fm_log *log, bool is_ok);
/* The oldest batch, once its fate is known: true, and whether it is stored. Good until the next
 * call. */
const struct fm_log_batch *fm_log_settle(struct fm_log *log, bool *is_stored);
/* Something is on its way, or waits for fm_log_take(). */
bool fm_log_is_busy(const struct fm_log *log);

/* ---- removing ---- */

/* Not found from now on. FM_ERR_NOT_FOUND: it is not in the log. */
int fm_log_remove(struct fm_log *log, const struct fm_key *key);
/* All of a namespace that are @mark's, as the accounts tell them apart; FM_LOG_ANY: whoever's. */
#define FM_LOG_ANY (-1)
uint32_t fm_log_invalidate(struct fm_log *log, const uint8_t *ns, int32_t mark);
/* The oldest block that can be read of those with @mark is removed; false: there is none. */
bool fm_log_give_up(struct fm_log *log, uint16_t mark);
/* Bytes of the blocks with @mark. */
uint64_t fm_log_marked_bytes(const struct fm_log *log, uint16_t mark);
/* Removals up to this number (fm_log.removals counts them) also hold after a restart. */
uint64_t fm_log_removals_stored(const struct fm_log *log);

/* ---- reading ---- */

struct fm_log_place {
	struct fm_log_block block;
	uint64_t offset; /* in bytes from the first segment */
	uint32_t entry;
	uint16_t mark;
	uint64_t number;
};

/* False: not there, or still on its way. */
bool fm_log_find(const struct fm_log *log, const struct fm_key *key, struct fm_log_place *place);
/* The members of the group that the block at @place is of, in the order in which they were
 * appended, into FM_LOG_GROUP_MAX places: how many; 1: it is in none. */
uint32_t fm_log_group(const struct fm_log *log, const struct fm_log_place *place,
		      struct fm_log_place *members);
/* In the log, perhaps still on its way. */
bool fm_log_has(const struct fm_log *log, const struct fm_key *key, uint32_t *length,
		uint32_t *crc32c);
/* It is, perhaps still on its way, and was written with a mark of another account than @mark's. */
bool fm_log_is_others(const struct fm_log *log, const struct fm_key *key, uint16_t mark);
/* Whether an account has both marks. */
bool fm_log_is_one(const struct fm_log *log, uint16_t mark, uint16_t other);
/* The bytes at @place are still those of its block. */
bool fm_log_is_current(const struct fm_log *log, const struct fm_log_place *place);
/* Its bytes are wrong or cannot be read. True: @place is where another copy is. */
bool fm_log_lose(struct fm_log *log, struct fm_log_place *place);
/* Among the first to be reclaimed: who uses it appends it again. */
bool fm_log_is_old(const struct fm_log *log, const struct fm_log_place *place);

static inline uint32_t fm_log_pages(uint64_t length)
{
	return (uint32_t)((length + FM_LOG_PAGE - 1) / FM_LOG_PAGE);
}

#endif
