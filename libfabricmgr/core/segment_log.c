// SPDX-License-Identifier: Apache-2.0
/*
 * Writing to the log and removing from it (see segment_log.h); what a log holds at the start is
 * found in segment_scan.c. Pure, one thread.
 * Invariant: batches settle in the order in which they were formed; a batch counts as stored only
 * when all before it in its segment do, since a reader gets to it through them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "core/segment_map.h"

#define NONE FM_NO_ENTRY
/* Batches have ids from 1 on; the first id is never of a batch that waits for this. */
#define FLOOR_WAITS UINT64_MAX

uint64_t fm_log_memory(const struct fm_log_options *options)
{
	uint64_t buckets = 16;

	while (buckets < options->entries_max)
		buckets *= 2;
	return options->entries_max * (uint64_t)sizeof(struct fm_log_entry) +
	       buckets * sizeof(uint32_t) +
	       options->segments * (uint64_t)(sizeof(struct fm_log_segment) + sizeof(uint32_t));
}

int fm_log_create(struct fm_log *log, const struct fm_log_options *options)
{
	memset(log, 0, sizeof(*log));
	log->options = *options;
	/* What one segment may hold, so that a scan never has to drop the one that it is in. */
	if (log->options.entries_max < options->segment_pages)
		log->options.entries_max = options->segment_pages;
	log->segments = calloc(options->segments, sizeof(*log->segments));
	log->order = calloc(options->segments, sizeof(*log->order));
	if (!log->segments || !log->order || fm_log_map_create(log)) {
		fm_log_destroy(log);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the tables of a log of %u blocks",
			       options->entries_max);
	}
	for (uint32_t i = 0; i < options->segments; i++)
		log->segments[i].head = NONE;
	for (uint32_t i = 1; i < FM_TENANTS_MAX; i++)
		log->accounts[i].mark = options->marks[i - 1];
	log->removed_head = log->removed_tail = NONE;
	log->first = log->next = 1;
	log->next_sequence = 1;
	log->segment = NONE;
	log->needs_flush = true;
	return 0;
}

void fm_log_destroy(struct fm_log *log)
{
	fm_log_map_destroy(log);
	free(log->segments);
	free(log->order);
	memset(log, 0, sizeof(*log));
}

static struct fm_log_batch *batch_of(struct fm_log *log, uint64_t id)
{
	return &log->batches[id % FM_LOG_BATCHES];
}

/* The batch that is being formed, or NULL. */
static struct fm_log_batch *forming(struct fm_log *log)
{
	struct fm_log_batch *last = batch_of(log, log->next - 1);

	return log->first < log->next && last->state == FM_LOG_FORMING ? last : NULL;
}

static bool is_removal(const struct fm_log_record *record)
{
	return record->kind == FM_LOG_REMOVED || record->kind == FM_LOG_NS_REMOVED;
}

/* ---- segments ---- */

/* The segment with the lowest sequence that counts, or NONE. */
static uint32_t oldest_segment(const struct fm_log *log)
{
	uint32_t oldest = NONE;

	for (uint32_t i = 0; i < log->options.segments; i++)
		if (log->segments[i].sequence &&
		    (oldest == NONE || log->segments[i].sequence < log->segments[oldest].sequence))
			oldest = i;
	return oldest;
}

static void floor_rises(struct fm_log *log)
{
	log->floor_batch = FLOOR_WAITS;
	log->floor_number = ++log->removals;
}

static void reclaim(struct fm_log *log, uint32_t segment)
{
	log->counters.reclaimed += fm_log_map_drop(log, segment);
	log->segments[segment].sequence = 0;
	floor_rises(log);
}

/* A segment to fill: one that holds nothing, else the oldest. */
static int open_segment(struct fm_log *log)
{
	uint32_t segment = NONE;
	struct fm_log_segment *where;

	if (log->options.segments - log->counters.segments_bad < FM_LOG_SEGMENTS_MIN)
		log->is_dead = true;
	if (log->is_dead)
		return FM_ERR_IO;
	for (uint32_t i = 0; i < log->options.segments && segment == NONE; i++)
		if (!log->segments[i].sequence && !log->segments[i].is_bad)
			segment = i;
	/* In order: those that failed and still can be read have their turn, too. */
	while (segment == NONE) {
		segment = oldest_segment(log);
		reclaim(log, segment);
		if (log->segments[segment].is_bad)
			segment = NONE;
	}
	where = &log->segments[segment];
	where->sequence = log->next_sequence++;
	where->previous = log->previous_batches;
	where->step =
		log->previous_sequence ? (uint32_t)(where->sequence - log->previous_sequence) : 0;
	where->batches = 0;
	log->segment = segment;
	log->page = log->batches_in = 0;
	return 0;
}

/* No batch goes into the segment any more; the next is opened when all of this are stored. */
static void close_segment(struct fm_log *log)
{
	log->segment = NONE;
}

static void abandon_segment(struct fm_log *log, uint32_t segment)
{
	if (!log->segments[segment].is_bad) {
		log->segments[segment].is_bad = true;
		log->counters.segments_bad++;
	}
	if (log->segment == segment)
		close_segment(log);
}

/* ---- removals ---- */

static void queue_removal(struct fm_log *log, uint32_t entry)
{
	log->entries[entry].segment_next = NONE;
	log->entries[entry].batch = 0;
	if (log->removed_tail == NONE)
		log->removed_head = entry;
	else
		log->entries[log->removed_tail].segment_next = entry;
	log->removed_tail = entry;
}

static void start_alone(struct fm_log *log, uint32_t entry, enum fm_log_entry_state state)
{
	fm_log_map_unlink(log, entry);
	log->entries[entry].state = state;
	log->entries[entry].number = ++log->removals;
	queue_removal(log, entry);
}

/* With what comes back with it. */
static void start_removal(struct fm_log *log, uint32_t entry)
{
	uint32_t next;

	for (; entry != NONE; entry = next) {
		next = fm_log_map_companion(log, entry);
		start_alone(log, entry, FM_LOG_REMOVING);
	}
}

int fm_log_remove(struct fm_log *log, const struct fm_key *key)
{
	uint32_t entry = fm_log_map_find(log, key);

	if (entry == NONE)
		return FM_ERR_NOT_FOUND;
	start_removal(log, entry);
	log->counters.removed++;
	return 0;
}

uint64_t fm_log_marked_bytes(const struct fm_log *log, uint16_t mark)
{
	return fm_log_map_account((struct fm_log *)log, mark)->bytes;
}

/* The oldest one with @mark in a segment, whose list begins with the newest. *@is_empty: none of
 * that mark is there, also none on its way. */
static uint32_t oldest_marked(const struct fm_log *log, uint32_t segment, uint16_t mark,
			      bool *is_empty)
{
	uint32_t found = NONE;

	*is_empty = true;
	for (uint32_t i = log->segments[segment].head; i != NONE;
	     i = log->entries[i].segment_next) {
		if (log->entries[i].mark != mark)
			continue;
		*is_empty = false;
		if (log->entries[i].state == FM_LOG_LIVE)
			found = i;
	}
	return found;
}

/* The segment with the lowest sequence from @from on, or NONE. */
static uint32_t segment_from(const struct fm_log *log, uint64_t from)
{
	uint32_t first = NONE;

	for (uint32_t i = 0; i < log->options.segments; i++)
		if (log->segments[i].sequence && log->segments[i].sequence >= from &&
		    (first == NONE || log->segments[i].sequence < log->segments[first].sequence))
			first = i;
	return first;
}

bool fm_log_give_up(struct fm_log *log, uint16_t mark)
{
	struct fm_log_account *account = fm_log_map_account(log, mark);
	uint64_t from = account->from;
	bool is_empty = true, goes_on = true;
	uint32_t segment, entry;

	while ((segment = segment_from(log, from)) != NONE) {
		entry = oldest_marked(log, segment, mark, &is_empty);
		if (entry != NONE) {
			start_removal(log, entry);
			log->counters.removed++;
			return true;
		}
		from = log->segments[segment].sequence + 1;
		/* Not looked at again: blocks come into the newest one only, or move to a later
		 * one where their twin is. */
		goes_on &= is_empty && segment != log->segment;
		if (goes_on)
			account->from = from;
	}
	return false;
}

bool fm_log_is_one(const struct fm_log *log, uint16_t mark, uint16_t other)
{
	return fm_log_map_account((struct fm_log *)log, mark) ==
	       fm_log_map_account((struct fm_log *)log, other);
}

static bool is_in_namespace(const struct fm_log_entry *entry, const uint8_t *ns)
{
	return (entry->state == FM_LOG_PENDING || entry->state == FM_LOG_LIVE) &&
	       !memcmp(entry->block.ns, ns, sizeof(entry->block.ns));
}

/* Whether somebody else has blocks in a namespace, too. */
static bool is_shared(const struct fm_log *log, const uint8_t *ns, int32_t mark)
{
	for (uint32_t i = 0; mark != FM_LOG_ANY && i < log->options.entries_max; i++)
		if (is_in_namespace(&log->entries[i], ns) &&
		    !fm_log_is_one(log, log->entries[i].mark, (uint16_t)mark))
			return true;
	return false;
}

uint32_t fm_log_invalidate(struct fm_log *log, const uint8_t *ns, int32_t mark)
{
	/* The record of a namespace removes all that stands before it, whoever's that is. */
	bool goes_singly = is_shared(log, ns, mark);
	uint32_t n = 0;

	for (uint32_t i = 0; i < log->options.entries_max; i++) {
		const struct fm_log_entry *entry = &log->entries[i];

		if (!is_in_namespace(entry, ns) ||
		    (goes_singly && !fm_log_is_one(log, entry->mark, (uint16_t)mark)))
			continue;
		if (!n++ || goes_singly) {
			/* A group is of one namespace and mark: each member has its turn. */
			start_alone(log, i, goes_singly ? FM_LOG_REMOVING : FM_LOG_REMOVING_NS);
			continue;
		}
		fm_log_map_unlink(log, i);
		fm_log_map_free(log, i);
	}
	log->counters.removed += n;
	return n;
}

uint64_t fm_log_removals_stored(const struct fm_log *log)
{
	uint64_t stored = log->removals;

	/* Not in order: those of a batch that failed are queued again. */
	for (uint32_t entry = log->removed_head; entry != NONE;
	     entry = log->entries[entry].segment_next)
		if (log->entries[entry].number <= stored)
			stored = log->entries[entry].number - 1;
	for (uint64_t id = log->first; id < log->next; id++) {
		const struct fm_log_batch *batch = &log->batches[id % FM_LOG_BATCHES];

		for (uint32_t i = 0; i < batch->count; i++)
			if (is_removal(&batch->records[i]) &&
			    log->entries[batch->entries[i]].number <= stored)
				stored = log->entries[batch->entries[i]].number - 1;
	}
	if (log->floor_batch && log->floor_number <= stored)
		stored = log->floor_number - 1;
	return stored;
}

/* ---- forming a batch ---- */

/* The batch that is being formed has room for @records more and @pages; else it is to be taken
 * first, or there is none and a new one begins. */
static int make_room(struct fm_log *log, uint32_t records, uint32_t pages,
		     struct fm_log_batch **out)
{
	struct fm_log_batch *batch = forming(log);
	uint64_t most = log->options.batch_bytes / FM_LOG_PAGE;
	int err;

	if (log->is_dead)
		return FM_ERR_IO;
	if (batch) {
		bool is_full = batch->count + records > FM_LOG_RECORDS ||
			       (batch->pages > 1 && batch->pages - 1 + pages > most);

		*out = batch;
		if (is_full)
			return FM_ERR_BUSY;
		if (batch->page + batch->pages + pages <= log->options.segment_pages)
			return 0;
		close_segment(log);
		return FM_ERR_BUSY;
	}
	if (log->segment != NONE && log->page + 1 + pages > log->options.segment_pages)
		close_segment(log);
	if (log->next - log->first == FM_LOG_BATCHES)
		return FM_ERR_BUSY;
	if (log->segment == NONE) {
		if (log->first < log->next || log->needs_flush || log->flush_mark)
			return FM_ERR_BUSY;
		err = open_segment(log);
		if (err)
			return err;
	}
	batch = batch_of(log, log->next);
	*batch = (struct fm_log_batch){
		.id = log->next++,
		.segment = log->segment,
		.page = log->page,
		.pages = 1,
		.number = log->batches_in++,
		.state = FM_LOG_FORMING,
	};
	*out = batch;
	return 0;
}

static struct fm_log_record *add_record(struct fm_log *log, struct fm_log_batch *batch,
					uint32_t entry, enum fm_log_kind kind, void *tag)
{
	const struct fm_log_block *block = &log->entries[entry].block;
	struct fm_log_record *record = &batch->records[batch->count];

	*record = (struct fm_log_record){
		.key = block->key,
		.parent = block->parent,
		.crc32c = block->crc32c,
		.kind = (uint16_t)kind,
		.mark = log->entries[entry].mark,
	};
	memcpy(record->ns, block->ns, sizeof(record->ns));
	batch->entries[batch->count] = entry;
	batch->tags[batch->count++] = tag;
	log->entries[entry].batch = batch->id;
	return record;
}

/* Removals go before any block that is appended later. */
static int add_removals(struct fm_log *log)
{
	while (log->removed_head != NONE) {
		uint32_t entry = log->removed_head;
		struct fm_log_batch *batch;
		int err = make_room(log, 1, 0, &batch);

		if (err)
			return err;
		log->removed_head = log->entries[entry].segment_next;
		if (log->removed_head == NONE)
			log->removed_tail = NONE;
		add_record(log, batch, entry,
			   log->entries[entry].state == FM_LOG_REMOVING ? FM_LOG_REMOVED
									: FM_LOG_NS_REMOVED,
			   NULL);
	}
	return 0;
}

static uint32_t add_block(struct fm_log *log, struct fm_log_batch *batch,
			  const struct fm_log_block *block, uint16_t mark, void *tag)
{
	uint32_t page = batch->page + batch->pages;
	uint32_t entry = fm_log_map_add(log, block, mark, batch->segment, page, FM_LOG_PENDING);
	struct fm_log_record *record = add_record(log, batch, entry, FM_LOG_BLOCK, tag);

	record->page = page;
	record->length = block->length;
	batch->pages += fm_log_pages(block->length);
	return entry;
}

/* Whether there are @n of them, when older segments have been given up for it. */
static bool has_free_entries(struct fm_log *log, uint32_t segment, uint32_t n)
{
	for (;;) {
		uint32_t found = 0, oldest;

		for (uint32_t i = log->free_entries; i != NONE && found < n;
		     i = log->entries[i].segment_next)
			found++;
		if (found == n)
			return true;
		oldest = oldest_segment(log);
		if (oldest == segment)
			return false; /* every entry is a removal on its way, or in here */
		reclaim(log, oldest);
	}
}

static bool is_old_segment(const struct fm_log *log, uint32_t segment)
{
	return log->segments[segment].sequence + log->options.segments <=
	       log->next_sequence + log->options.segments / 4;
}

int fm_log_append(struct fm_log *log, const struct fm_log_block *block, uint16_t mark, void *tag)
{
	uint32_t pages = fm_log_pages(block->length), entry;
	struct fm_log_batch *batch;
	int err;

	if (!block->length || pages + 1 > log->options.segment_pages)
		return FM_ERR_LIMIT;
	err = add_removals(log);
	if (err)
		return err;
	entry = fm_log_map_find(log, &block->key);
	if (entry != NONE &&
	    !(log->entries[entry].state == FM_LOG_LIVE && !log->entries[entry].group_next &&
	      is_old_segment(log, log->entries[entry].segment))) {
		log->counters.duplicates++;
		return FM_ERR_EXISTS;
	}
	err = make_room(log, 1, pages, &batch);
	if (err)
		return err;
	/* Opening a segment may have reclaimed it. */
	entry = fm_log_map_find(log, &block->key);
	if (entry != NONE) {
		fm_log_map_unlink(log, entry);
		fm_log_map_free(log, entry);
		log->counters.rewritten++;
	}
	if (!has_free_entries(log, batch->segment, 1))
		return FM_ERR_BUSY;
	add_block(log, batch, block, mark, tag);
	return 0;
}

/* Not before all of it fits, and in one batch: what is found of it later is all or nothing. */
int fm_log_append_group(struct fm_log *log, const struct fm_log_block *blocks, uint32_t n,
			uint16_t mark, void *const *tags)
{
	struct fm_log_batch *batch;
	uint64_t pages = 0;
	uint32_t first, entry;
	int err;

	for (uint32_t i = 0; i < n; i++)
		pages += fm_log_pages(blocks[i].length);
	if (n < 2 || n > FM_LOG_GROUP_MAX || pages + 1 > log->options.segment_pages)
		return FM_ERR_LIMIT;
	err = add_removals(log);
	if (err)
		return err;
	for (uint32_t i = 0; i < n; i++)
		if (fm_log_map_find(log, &blocks[i].key) != NONE) {
			log->counters.duplicates++;
			return FM_ERR_EXISTS;
		}
	err = make_room(log, n + 1, (uint32_t)pages, &batch);
	if (err)
		return err;
	if (!has_free_entries(log, batch->segment, n))
		return FM_ERR_BUSY;
	batch->records[batch->count] = (struct fm_log_record){.kind = FM_LOG_GROUP, .length = n};
	batch->entries[batch->count] = NONE;
	batch->tags[batch->count++] = NULL;
	first = add_block(log, batch, &blocks[0], mark, tags[0]);
	for (uint32_t i = 1; i < n; i++) {
		entry = add_block(log, batch, &blocks[i], mark, tags[i]);
		fm_log_map_join(log, entry, first);
	}
	return 0;
}

void fm_log_header(const struct fm_log *log, const struct fm_log_batch *batch,
		   struct fm_log_page *page)
{
	const struct fm_log_segment *segment = &log->segments[batch->segment];

	memset(page, 0, sizeof(*page));
	page->head = (struct fm_log_head){
		.magic = FM_LOG_MAGIC,
		.version = FM_LOG_VERSION,
		.log_id = log->options.log_id,
		.run = log->options.run,
		.sequence = segment->sequence,
		.oldest = log->segments[oldest_segment(log)].sequence,
		.number = batch->number,
		.previous = segment->previous,
		.step = segment->step,
		.records = batch->count,
		.pages = batch->pages,
	};
	memcpy(page->records, batch->records, batch->count * sizeof(page->records[0]));
	page->head.checksum = fm_crc32c(page, sizeof(*page));
}

struct fm_log_batch *fm_log_take(struct fm_log *log)
{
	struct fm_log_batch *batch;

	/* Busy or dead: what does not fit into this batch has its turn later. */
	if (!add_removals(log) && log->floor_batch == FLOOR_WAITS && !forming(log))
		make_room(log, 1, 0, &batch);
	batch = forming(log);
	if (!batch)
		return NULL;
	batch->state = FM_LOG_WRITING;
	log->page = batch->page + batch->pages;
	log->needs_flush = true;
	if (log->floor_batch == FLOOR_WAITS)
		log->floor_batch = batch->id;
	return batch;
}

/* ---- what becomes of it ---- */

static bool brings(const struct fm_log *log, const struct fm_log_batch *batch, uint32_t i)
{
	const struct fm_log_entry *entry;

	if (batch->records[i].kind == FM_LOG_GROUP)
		return false;
	entry = &log->entries[batch->entries[i]];
	if (entry->batch != batch->id)
		return false;
	return batch->records[i].kind == FM_LOG_BLOCK
		       ? entry->state == FM_LOG_PENDING || entry->state == FM_LOG_LIVE
		       : entry->state == FM_LOG_REMOVING || entry->state == FM_LOG_REMOVING_NS;
}

/*
 * The batch and those behind it in its segment do not count. Their blocks become removals: pages
 * that were written all the same must not bring them back when they are removed later.
 */
static void fail_batch(struct fm_log *log, struct fm_log_batch *batch)
{
	for (uint32_t i = 0; i < batch->count; i++)
		if (batch->records[i].kind == FM_LOG_BLOCK && brings(log, batch, i)) {
			start_alone(log, batch->entries[i], FM_LOG_REMOVING);
			log->counters.failed++;
		}
	batch->state = FM_LOG_FAILED;
}

/* What the next segment's head says of this one, or of that before when nothing here counts. */
static void note_previous(struct fm_log *log, const struct fm_log_segment *segment)
{
	if (segment->batches) {
		log->previous_sequence = segment->sequence;
		log->previous_batches = segment->batches;
	} else {
		log->previous_sequence = segment->step ? segment->sequence - segment->step : 0;
		log->previous_batches = segment->previous;
	}
}

static void fail_from(struct fm_log *log, uint64_t id)
{
	uint32_t at = batch_of(log, id)->segment;
	struct fm_log_segment *segment = &log->segments[at];

	abandon_segment(log, at);
	if (batch_of(log, id)->number < segment->batches)
		segment->batches = batch_of(log, id)->number;
	note_previous(log, segment);
	for (; id < log->next; id++) {
		struct fm_log_batch *batch = batch_of(log, id);

		if (batch->state == FM_LOG_WRITING)
			batch->is_doomed = true;
		else if (batch->state != FM_LOG_FAILED)
			fail_batch(log, batch);
	}
}

/* Blocks can be read, and without durability count, once all before them are written. */
static void settle_written(struct fm_log *log)
{
	for (uint64_t id = log->first; id < log->next; id++) {
		struct fm_log_batch *batch = batch_of(log, id);

		if (batch->state == FM_LOG_FORMING || batch->state == FM_LOG_WRITING)
			break;
		if (batch->state != FM_LOG_WRITTEN)
			continue;
		for (uint32_t i = 0; i < batch->count; i++)
			if (batch->records[i].kind == FM_LOG_BLOCK && brings(log, batch, i) &&
			    log->entries[batch->entries[i]].state == FM_LOG_PENDING)
				fm_log_map_settle(log, batch->entries[i]);
		if (batch->number >= log->segments[batch->segment].batches) {
			log->segments[batch->segment].batches = batch->number + 1;
			note_previous(log, &log->segments[batch->segment]);
		}
	}
}

void fm_log_written(struct fm_log *log, struct fm_log_batch *batch, bool is_ok)
{
	batch->state = FM_LOG_WRITTEN;
	if (batch->is_doomed)
		fail_batch(log, batch);
	else if (!is_ok)
		fail_from(log, batch->id);
	settle_written(log);
}

bool fm_log_flush_begin(struct fm_log *log)
{
	uint64_t mark = log->first;
	bool is_wanted = log->options.is_durable;

	if (log->flush_mark || !log->needs_flush || log->is_dead)
		return false;
	while (mark < log->next && batch_of(log, mark)->state != FM_LOG_FORMING &&
	       batch_of(log, mark)->state != FM_LOG_WRITING)
		mark++;
	/* To open the next segment, all that was written before has to be safe. */
	if (log->first == log->next)
		is_wanted = log->segment == NONE;
	else if (mark == log->first)
		is_wanted = false;
	if (!is_wanted)
		return false;
	log->flush_mark = mark;
	/* Behind the mark something is on its way still: another flush will have to cover it. */
	log->needs_flush = mark < log->next && batch_of(log, mark)->state == FM_LOG_WRITING;
	return true;
}

void fm_log_flush_end(struct fm_log *log, bool is_ok)
{
	uint64_t mark = log->flush_mark;

	log->flush_mark = 0;
	if (is_ok) {
		log->flush_failures = 0;
	} else {
		log->needs_flush = true;
		if (++log->flush_failures >= FM_LOG_FLUSH_TRIES)
			log->is_dead = true;
	}
	for (uint64_t id = log->first; id < mark; id++) {
		if (batch_of(log, id)->state != FM_LOG_WRITTEN)
			continue;
		if (!is_ok) {
			fail_from(log, id);
			break;
		}
		batch_of(log, id)->state = FM_LOG_DURABLE;
	}
}

static void requeue_removals(struct fm_log *log, const struct fm_log_batch *batch)
{
	uint32_t first = NONE, last = NONE;

	for (uint32_t i = 0; i < batch->count; i++) {
		uint32_t entry = batch->entries[i];

		if (!is_removal(&batch->records[i]) || !brings(log, batch, i))
			continue;
		log->entries[entry].batch = 0;
		log->entries[entry].segment_next = NONE;
		if (last == NONE)
			first = entry;
		else
			log->entries[last].segment_next = entry;
		last = entry;
	}
	if (first == NONE)
		return;
	log->entries[last].segment_next = log->removed_head;
	if (log->removed_head == NONE)
		log->removed_tail = last;
	log->removed_head = first;
}

const struct fm_log_batch *fm_log_settle(struct fm_log *log, bool *is_stored)
{
	struct fm_log_batch *batch = batch_of(log, log->first);

	if (log->first == log->next)
		return NULL;
	*is_stored = batch->state == FM_LOG_DURABLE ||
		     (batch->state == FM_LOG_WRITTEN && !log->options.is_durable);
	if (!*is_stored && batch->state != FM_LOG_FAILED)
		return NULL;
	if (!*is_stored) {
		requeue_removals(log, batch);
		if (log->floor_batch == batch->id)
			log->floor_batch = FLOOR_WAITS;
	} else {
		for (uint32_t i = 0; i < batch->count; i++) {
			if (is_removal(&batch->records[i]) && brings(log, batch, i)) {
				fm_log_map_free(log, batch->entries[i]);
			} else if (batch->records[i].kind == FM_LOG_BLOCK) {
				log->counters.appended++;
				log->counters.appended_bytes += batch->records[i].length;
			}
		}
		if (log->floor_batch == batch->id)
			log->floor_batch = 0;
	}
	log->first++;
	return batch;
}

bool fm_log_is_busy(const struct fm_log *log)
{
	return !log->is_dead && (log->first < log->next || log->removed_head != NONE ||
				 log->floor_batch || log->flush_mark);
}

/* ---- reading ---- */

static void describe(const struct fm_log *log, uint32_t entry, struct fm_log_place *place)
{
	const struct fm_log_entry *e = &log->entries[entry];

	*place = (struct fm_log_place){
		.block = e->block,
		.offset =
			((uint64_t)e->segment * log->options.segment_pages + e->page) * FM_LOG_PAGE,
		.entry = entry,
		.mark = e->mark,
		.number = e->number,
	};
}

uint32_t fm_log_group(const struct fm_log *log, const struct fm_log_place *place,
		      struct fm_log_place *members)
{
	uint32_t first = place->entry, at = first, n = 0;

	/* They stand one behind the other. */
	while ((at = fm_log_map_companion(log, at)) != NONE && at != place->entry)
		if (log->entries[at].page < log->entries[first].page)
			first = at;
	describe(log, first, &members[n++]);
	for (at = fm_log_map_companion(log, first); at != NONE && at != first;
	     at = fm_log_map_companion(log, at)) {
		uint32_t to = n++;

		/* Into its place: the ring has an order of its own. */
		for (; to > 1 && members[to - 1].offset > ((uint64_t)log->entries[at].segment *
								   log->options.segment_pages +
							   log->entries[at].page) *
								  FM_LOG_PAGE;
		     to--)
			members[to] = members[to - 1];
		describe(log, at, &members[to]);
	}
	return n;
}

bool fm_log_find(const struct fm_log *log, const struct fm_key *key, struct fm_log_place *place)
{
	uint32_t entry = fm_log_map_find(log, key);

	if (entry == NONE || log->entries[entry].state != FM_LOG_LIVE)
		return false;
	describe(log, entry, place);
	return true;
}

bool fm_log_has(const struct fm_log *log, const struct fm_key *key, uint32_t *length,
		uint32_t *crc32c)
{
	uint32_t entry = fm_log_map_find(log, key);

	if (entry == NONE)
		return false;
	*length = log->entries[entry].block.length;
	*crc32c = log->entries[entry].block.crc32c;
	return true;
}

bool fm_log_is_others(const struct fm_log *log, const struct fm_key *key, uint16_t mark)
{
	uint32_t entry = fm_log_map_find(log, key);

	return entry != NONE && !fm_log_is_one(log, log->entries[entry].mark, mark);
}

bool fm_log_is_current(const struct fm_log *log, const struct fm_log_place *place)
{
	const struct fm_log_entry *entry = &log->entries[place->entry];

	return entry->state == FM_LOG_LIVE && entry->number == place->number;
}

bool fm_log_lose(struct fm_log *log, struct fm_log_place *place)
{
	if (!fm_log_is_current(log, place))
		return false;
	log->counters.lost++;
	if (fm_log_map_to_twin(log, place->entry)) {
		describe(log, place->entry, place);
		return true;
	}
	start_removal(log, place->entry);
	return false;
}

bool fm_log_is_old(const struct fm_log *log, const struct fm_log_place *place)
{
	return fm_log_is_current(log, place) &&
	       is_old_segment(log, log->entries[place->entry].segment);
}
