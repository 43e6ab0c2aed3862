// SPDX-License-Identifier: Apache-2.0
/*
 * What a log that was found means: first the first page of each segment, then the batches of those
 * that count, from the oldest to the newest. Called through segment_log.h; pure. Every byte may be
 * anything. Invariant: when a batch that counted is not found, nothing older is believed, since a
 * removal may have stood in it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "core/segment_map.h"

#define NONE FM_NO_ENTRY

static bool is_intact(const struct fm_log *log, const struct fm_log_page *page)
{
	struct fm_log_page copy;

	if (!page || page->head.magic != FM_LOG_MAGIC ||
	    (page->head.version != FM_LOG_VERSION && page->head.version != FM_LOG_VERSION_BEFORE) ||
	    page->head.log_id != log->options.log_id)
		return false;
	copy = *page;
	copy.head.checksum = 0;
	return fm_crc32c(&copy, sizeof(copy)) == page->head.checksum && page->head.sequence &&
	       page->head.step < page->head.sequence && page->head.oldest <= page->head.sequence &&
	       page->head.records <= FM_LOG_RECORDS && page->head.pages;
}

/* As many blocks as it says follow. */
static bool is_group_sane(const struct fm_log_page *page, uint32_t at)
{
	uint32_t n = page->records[at].length;

	if (n < 2 || n >= page->head.records - at)
		return false;
	for (uint32_t i = at + 1; i <= at + n; i++)
		if (page->records[i].kind != FM_LOG_BLOCK)
			return false;
	return true;
}

static bool are_records_sane(const struct fm_log_page *page, uint32_t at)
{
	for (uint32_t i = 0; i < page->head.records; i++) {
		const struct fm_log_record *record = &page->records[i];
		uint32_t pages = fm_log_pages(record->length);

		if (record->kind == FM_LOG_REMOVED || record->kind == FM_LOG_NS_REMOVED)
			continue;
		if (record->kind == FM_LOG_GROUP) {
			if (!is_group_sane(page, i))
				return false;
			continue;
		}
		if (record->kind != FM_LOG_BLOCK || !record->length ||
		    record->length > FABRICMGR_CHUNK_BYTES || record->page <= at ||
		    record->page - at > page->head.pages ||
		    pages > page->head.pages - (record->page - at))
			return false;
	}
	return true;
}

void fm_log_scan_first(struct fm_log *log, uint32_t segment, const struct fm_log_page *page)
{
	struct fm_log_segment *where = &log->segments[segment];

	if (!page) {
		where->is_bad = true;
		log->counters.segments_bad++;
		log->unreadable++;
		return;
	}
	if (!is_intact(log, page) || page->head.number)
		return;
	where->sequence = page->head.sequence;
	where->run = page->head.run;
	where->oldest = page->head.oldest;
	where->previous = page->head.previous;
	where->step = page->head.step;
	if (where->sequence >= log->next_sequence)
		log->next_sequence = where->sequence + 1;
}

static int by_sequence(const void *a, const void *b)
{
	const uint64_t *one = a, *two = b;

	return *one < *two ? -1 : *one > *two;
}

/*
 * From the newest segment back to the oldest that counts: each names the one before, so what was
 * begun and never counted is left out. In memory: {sequence, segment} sorted, so that it takes
 * n log n steps.
 */
static int follow_chain(struct fm_log *log)
{
	struct {
		uint64_t sequence;
		uint32_t segment;
	} *sorted = calloc(log->options.segments, sizeof(*sorted));
	uint32_t n = 0, count = 0;
	uint64_t wanted = log->next_sequence - 1, oldest = 0;
	bool is_missing = false;

	if (!sorted)
		return FM_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < log->options.segments; i++)
		if (log->segments[i].sequence) {
			sorted[n].sequence = log->segments[i].sequence;
			sorted[n++].segment = i;
		}
	qsort(sorted, n, sizeof(*sorted), by_sequence);
	while (n && wanted) {
		struct fm_log_segment *segment;

		while (n && sorted[n - 1].sequence > wanted)
			n--;
		is_missing = !n || sorted[n - 1].sequence < wanted;
		if (is_missing || wanted < oldest)
			break;
		segment = &log->segments[sorted[n - 1].segment];
		if (segment->oldest > oldest)
			oldest = segment->oldest;
		log->order[log->options.segments - ++count] = sorted[n - 1].segment;
		segment->limit = UINT32_MAX;
		if (count > 1)
			segment->limit =
				log->segments[log->order[log->options.segments - count + 1]]
					.previous;
		wanted = segment->step ? wanted - segment->step : 0;
	}
	is_missing = is_missing && wanted >= oldest;
	free(sorted);
	memmove(log->order, log->order + log->options.segments - count,
		count * sizeof(*log->order));
	log->order_count = count;
	if (is_missing || log->unreadable)
		log->counters.distrusted++;
	/* A segment that cannot be read and is missed nowhere may be the newest of all. */
	if (log->unreadable > (is_missing ? 1U : 0U))
		log->order_count = 0;
	return 0;
}

/* Segments that are in the order keep their sequence, all others count as empty. */
static void forget_others(struct fm_log *log)
{
	for (uint32_t i = 0; i < log->options.segments; i++)
		log->segments[i].batches = NONE;
	for (uint32_t i = 0; i < log->order_count; i++)
		log->segments[log->order[i]].batches = 0;
	for (uint32_t i = 0; i < log->options.segments; i++)
		if (log->segments[i].batches == NONE) {
			log->segments[i].sequence = 0;
			log->segments[i].batches = 0;
		}
}

static void drop_before(struct fm_log *log, uint64_t sequence)
{
	for (uint32_t i = 0; i < log->scan_at; i++) {
		struct fm_log_segment *segment = &log->segments[log->order[i]];

		if (!segment->sequence || segment->sequence >= sequence)
			continue;
		fm_log_map_drop(log, log->order[i]);
		segment->sequence = 0;
	}
}

static void finish(struct fm_log *log)
{
	log->next_sequence += log->unreadable;
	log->counters.recovered = log->counters.blocks;
	/* What is not believed now must not be believed later. */
	if (log->counters.distrusted)
		log->floor_batch = UINT64_MAX;
	if (log->floor_batch)
		log->floor_number = ++log->removals;
}

bool fm_log_scan_next(struct fm_log *log, uint32_t *segment, uint32_t *page)
{
	if (!log->order_count && !log->scan_at) {
		if (follow_chain(log))
			log->order_count = 0;
		forget_others(log);
	}
	if (log->scan_at >= log->order_count) {
		if (log->scan_at != NONE)
			finish(log);
		log->scan_at = NONE;
		return false;
	}
	*segment = log->order[log->scan_at];
	*page = log->scan_page;
	return true;
}

/* The chain of batches ends here; is it as long as the next segment says? */
static void end_segment(struct fm_log *log, bool is_readable)
{
	struct fm_log_segment *segment = &log->segments[log->order[log->scan_at]];
	bool is_short = segment->limit != UINT32_MAX && segment->batches < segment->limit;

	log->previous_sequence = segment->sequence;
	log->previous_batches = segment->batches;
	log->scan_at++;
	if (is_short || !is_readable) {
		log->counters.distrusted++;
		drop_before(log, segment->sequence + 1);
	}
	log->scan_page = log->scan_number = 0;
}

static void forget(struct fm_log *log, uint32_t entry)
{
	uint32_t next;

	for (; entry != NONE; entry = next) {
		next = fm_log_map_companion(log, entry);
		fm_log_map_unlink(log, entry);
		fm_log_map_free(log, entry);
	}
}

static struct fm_log_block block_of(const struct fm_log_record *record)
{
	struct fm_log_block block = {
		.key = record->key,
		.parent = record->parent,
		.length = record->length,
		.crc32c = record->crc32c,
	};

	memcpy(block.ns, record->ns, sizeof(block.ns));
	return block;
}

/* More blocks than fit: whole segments go, the oldest first. NONE: also then there is no room. */
static uint32_t add(struct fm_log *log, uint32_t segment, const struct fm_log_record *record)
{
	struct fm_log_block block = block_of(record);
	uint32_t entry, i = 0;

	while ((entry = fm_log_map_add(log, &block, record->mark, segment, record->page,
				       FM_LOG_LIVE)) == NONE &&
	       i < log->scan_at) {
		drop_before(log, log->segments[log->order[i++]].sequence + 1);
		log->floor_batch = UINT64_MAX;
	}
	return entry;
}

/* All of the @n members, or none, in the place of whatever had their keys. */
static void replay_group(struct fm_log *log, uint32_t segment, const struct fm_log_record *members,
			 uint32_t n)
{
	uint32_t first = NONE, entry;

	for (uint32_t i = 0; i < n; i++)
		forget(log, fm_log_map_find(log, &members[i].key));
	for (uint32_t i = 0; i < n; i++) {
		/* A key that comes twice was never written so. */
		entry = fm_log_map_find(log, &members[i].key) == NONE
				? add(log, segment, &members[i])
				: NONE;
		if (entry == NONE) {
			forget(log, first);
			return;
		}
		if (first == NONE)
			first = entry;
		else
			fm_log_map_join(log, entry, first);
	}
}

static void replay(struct fm_log *log, uint32_t segment, const struct fm_log_record *record)
{
	struct fm_log_block block = block_of(record);
	uint32_t old;

	if (record->kind == FM_LOG_NS_REMOVED) {
		for (uint32_t i = 0; i < log->options.entries_max; i++)
			if (log->entries[i].state == FM_LOG_LIVE &&
			    !memcmp(log->entries[i].block.ns, block.ns, sizeof(block.ns)))
				forget(log, i);
		return;
	}
	old = fm_log_map_find(log, &block.key);
	if (old != NONE && record->kind == FM_LOG_BLOCK && !log->entries[old].group_next &&
	    log->entries[old].block.crc32c == block.crc32c &&
	    log->entries[old].block.length == block.length) {
		fm_log_map_twin(log, old, segment, record->page);
		return;
	}
	forget(log, old);
	if (record->kind != FM_LOG_REMOVED)
		add(log, segment, record);
}

void fm_log_scan_page(struct fm_log *log, const struct fm_log_page *page)
{
	uint32_t at = log->order[log->scan_at];
	struct fm_log_segment *segment = &log->segments[at];

	if (!is_intact(log, page) || page->head.run != segment->run ||
	    page->head.sequence != segment->sequence || page->head.number != log->scan_number ||
	    page->head.pages > log->options.segment_pages - log->scan_page ||
	    !are_records_sane(page, log->scan_page)) {
		end_segment(log, page != NULL);
		return;
	}
	if (page->head.oldest > segment->oldest)
		drop_before(log, page->head.oldest);
	for (uint32_t i = 0; i < page->head.records; i++) {
		const struct fm_log_record *record = &page->records[i];

		if (record->kind == FM_LOG_GROUP) {
			replay_group(log, at, record + 1, record->length);
			i += record->length;
		} else {
			replay(log, at, record);
		}
	}
	segment->batches++;
	log->scan_number++;
	log->scan_page += page->head.pages;
	if (segment->batches == segment->limit || log->scan_page >= log->options.segment_pages)
		end_segment(log, true);
}
