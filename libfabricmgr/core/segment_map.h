/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the log has in memory for each block: entries, found by key and listed by segment. Called by
 * segment_log.c and segment_scan.c; pure. Invariant: an entry in state PENDING or LIVE is in one
 * bucket and in its segment's list; any other is in neither.
 */
#ifndef FM_CORE_SEGMENT_MAP_H
#define FM_CORE_SEGMENT_MAP_H

#include "core/segment_log.h"

enum fm_log_entry_state {
	FM_LOG_FREE = 0,
	FM_LOG_PENDING,	 /* in a batch that is not written yet */
	FM_LOG_LIVE,	 /* can be read */
	FM_LOG_REMOVING, /* a removal that is not stored yet */
	FM_LOG_REMOVING_NS,
};

int fm_log_map_create(struct fm_log *log);
void fm_log_map_destroy(struct fm_log *log);
uint32_t fm_log_map_find(const struct fm_log *log, const struct fm_key *key);
/* A new entry of @block there, or FM_NO_ENTRY: all are in use. */
uint32_t fm_log_map_add(struct fm_log *log, const struct fm_log_block *block, uint16_t mark,
			uint32_t segment, uint32_t page, enum fm_log_entry_state state);
struct fm_log_account *fm_log_map_account(struct fm_log *log, uint16_t mark);
/* From PENDING to LIVE. */
void fm_log_map_settle(struct fm_log *log, uint32_t entry);
/* @entry, which was just added, is of the group of @of. */
void fm_log_map_join(struct fm_log *log, uint32_t entry, uint32_t of);
/* Another member of its group, or FM_NO_ENTRY. */
uint32_t fm_log_map_companion(const struct fm_log *log, uint32_t entry);
/* Takes a PENDING or LIVE entry out of bucket, list and group; then it is the caller's, who sees to
 * its companions. */
void fm_log_map_unlink(struct fm_log *log, uint32_t entry);
/* Another place that @entry's bytes are said to be at. */
void fm_log_map_twin(struct fm_log *log, uint32_t entry, uint32_t segment, uint32_t page);
/* Moves it there; false: there is none. */
bool fm_log_map_to_twin(struct fm_log *log, uint32_t entry);
void fm_log_map_free(struct fm_log *log, uint32_t entry);
/* Gives up a segment: its entries are freed, or moved to where their twins are. How many went. */
uint32_t fm_log_map_drop(struct fm_log *log, uint32_t segment);

#endif
