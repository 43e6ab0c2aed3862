// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes as header pages to the scan of a log: each piece of the input is laid over a page, the
 * checksum is made right for every other one. What is found must lie within its segment, and the
 * log must go on. The first byte chooses which pages cannot be read.
 */
// FUZZ_SOURCES: libfabricmgr/core/segment_*.c libfabricmgr/base/error.c libfabricmgr/base/crc32c.c
// FUZZ_LIBS: -lisal
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "core/segment_log.h"

#define SEGMENTS 6u
#define PAGES	 16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One page from the input; its head says what a log of ours would, unless the input says else. */
static void make_page(const uint8_t **data, size_t *size, uint32_t segment, uint32_t number,
		      struct fm_log_page *page)
{
	size_t n = *size ? (size_t)(*data)[0] * 4 : 0;

	if (*size) {
		(*data)++;
		(*size)--;
	}
	memset(page, 0, sizeof(*page));
	page->head = (struct fm_log_head){
		.magic = FM_LOG_MAGIC,
		.version = FM_LOG_VERSION,
		.log_id = 7,
		.run = 9,
		.sequence = segment + 1,
		.number = number,
		.step = segment ? 1 : 0,
		.records = 2,
		.pages = 3,
	};
	n = n < *size ? n : *size;
	n = n < sizeof(*page) ? n : sizeof(*page);
	for (size_t i = 0; i < n; i++)
		((uint8_t *)page)[i] ^= (*data)[i];
	if (n & 4 || !n) {
		page->head.checksum = 0;
		page->head.checksum = fm_crc32c(page, sizeof(*page));
	}
	*data += n;
	*size -= n;
}

static void go_on(struct fm_log *log)
{
	struct fm_log_block block = {.length = 5000};
	struct fm_log_batch *batch;
	struct fm_log_page page;
	bool is_stored;

	for (uint32_t i = 0; i < 200; i++) {
		memcpy(block.key.bytes, &i, sizeof(i));
		fm_log_append(log, &block, (uint16_t)(i % 3), NULL);
		while ((batch = fm_log_take(log))) {
			if (batch->segment >= SEGMENTS || batch->page + batch->pages > PAGES)
				abort();
			fm_log_header(log, batch, &page);
			fm_log_written(log, batch, true);
		}
		if (fm_log_flush_begin(log))
			fm_log_flush_end(log, true);
		while (fm_log_settle(log, &is_stored))
			if (!is_stored)
				abort();
	}
	if (!log->is_dead && fm_log_removals_stored(log) != log->removals)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fm_log_options options = {
		.log_id = 7,
		.run = 8,
		.segment_pages = PAGES,
		.segments = SEGMENTS,
		.entries_max = 1,
		.batch_bytes = 16384,
		.is_durable = true,
	};
	uint32_t segment, at, n = 0;
	struct fm_log_page page;
	struct fm_log log;
	uint8_t unreadable;

	if (!size)
		return 0;
	unreadable = *data++;
	size--;
	if (fm_log_create(&log, &options))
		abort();
	for (uint32_t i = 0; i < SEGMENTS; i++) {
		make_page(&data, &size, i, 0, &page);
		fm_log_scan_first(&log, i, unreadable >> i & 1 ? NULL : &page);
	}
	while (fm_log_scan_next(&log, &segment, &at)) {
		if (segment >= SEGMENTS || at >= PAGES || ++n > SEGMENTS * PAGES + SEGMENTS)
			abort();
		make_page(&data, &size, segment, log.scan_number, &page);
		fm_log_scan_page(&log, n % 32 == 31 && unreadable >> 7 ? NULL : &page);
	}
	for (uint32_t i = 0; i < log.options.entries_max; i++) {
		const struct fm_log_entry *entry = &log.entries[i];
		struct fm_log_place place;

		if (!fm_log_find(&log, &entry->block.key, &place))
			continue;
		if (place.offset % FM_LOG_PAGE || !place.block.length ||
		    place.offset / FM_LOG_PAGE % PAGES + fm_log_pages(place.block.length) > PAGES ||
		    place.offset >= (uint64_t)SEGMENTS * PAGES * FM_LOG_PAGE)
			abort();
	}
	go_on(&log);
	fm_log_destroy(&log);
	return 0;
}
