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
		      uint32_t at, struct fm_log_page *page)
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
		.records = 2 + segment % 2,
		.pages = 3,
	};
	/* Two blocks, a group in every other segment. */
	if (segment % 2)
		page->records[0] = (struct fm_log_record){.kind = FM_LOG_GROUP, .length = 2};
	for (uint32_t i = 0; i < 2; i++)
		page->records[segment % 2 + i] = (struct fm_log_record){
			.kind = FM_LOG_BLOCK,
			.length = 4000,
			.page = at + 1 + i,
			.key = {{(uint8_t)(segment / 2), (uint8_t)number, (uint8_t)i}},
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

static void append_group(struct fm_log *log, uint32_t first)
{
	struct fm_log_block blocks[3] = {{.length = 5000}, {.length = 1}, {.length = 4096}};
	void *tags[3] = {NULL};

	for (uint32_t i = 0; i < 3; i++) {
		uint32_t key = first + i * 1000;

		memcpy(blocks[i].key.bytes, &key, sizeof(key));
	}
	fm_log_append_group(log, blocks, 3, (uint16_t)(first % 3), tags);
}

/* A group is found with all of its members. */
static void check_group(const struct fm_log *log, const struct fm_log_place *place)
{
	struct fm_log_place members[FM_LOG_GROUP_MAX], other;
	uint32_t n = fm_log_group(log, place, members);
	bool is_in = false;

	if (!n || n > FM_LOG_GROUP_MAX)
		abort();
	for (uint32_t i = 0; i < n; i++) {
		if (!fm_log_find(log, &members[i].block.key, &other) ||
		    other.entry != members[i].entry)
			abort();
		is_in |= members[i].entry == place->entry;
	}
	if (!is_in)
		abort();
}

static void go_on(struct fm_log *log)
{
	struct fm_log_block block = {.length = 5000};
	struct fm_log_batch *batch;
	struct fm_log_page page;
	bool is_stored;

	for (uint32_t i = 0; i < 200; i++) {
		memcpy(block.key.bytes, &i, sizeof(i));
		if (i % 4)
			fm_log_append(log, &block, (uint16_t)(i % 3), NULL);
		else
			append_group(log, i);
		if (i % 16 == 9) {
			memcpy(block.key.bytes, &(uint32_t){i - 9}, sizeof(i));
			fm_log_remove(log, &block.key);
		}
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
		make_page(&data, &size, i, 0, 0, &page);
		fm_log_scan_first(&log, i, unreadable >> i & 1 ? NULL : &page);
	}
	while (fm_log_scan_next(&log, &segment, &at)) {
		if (segment >= SEGMENTS || at >= PAGES || ++n > SEGMENTS * PAGES + SEGMENTS)
			abort();
		make_page(&data, &size, segment, log.scan_number, at, &page);
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
		check_group(&log, &place);
	}
	go_on(&log);
	fm_log_destroy(&log);
	return 0;
}
