// SPDX-License-Identifier: Apache-2.0
/*
 * The driver of the NVMe tier (see nvme.h): the superblock, the scan at the start, batches, reads
 * and flushes on a device. One thread. Invariant: the header page and the memory of a batch are
 * untouched until every one of its writes is over.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_messages.h>

#include "base/crc32c.h"
#include "base/limits.h"
#include "tier/nvme.h"
#include "tier/uring.h"

#define SUPER_MAGIC   0x56544d46u /* "FMTV" */
#define SUPER_VERSION 2u
#define SUPER_VERSION_BEFORE 1u /* a log without groups; becomes one of ours when it is opened */
#define SUPER_COPY    65536u /* where the second one is */
#define LOG_AT	      (1u << 20)
#define SEGMENT_BYTES (64u << 20)
#define SEGMENT_MIN   (64u << 10)
#define SCAN_DEPTH    32u

/* One page; two copies, so that one is whole whenever the power fails. */
struct super {
	uint32_t magic, version;
	uint64_t log_id;
	uint64_t segment_bytes;
	uint64_t change; /* the copy with the higher one counts */
	uint32_t segments;
	uint32_t checksum; /* CRC32C of the page with this field zero */
	uint8_t rest[FM_LOG_PAGE - 40];
};

_Static_assert(sizeof(struct super) == FM_LOG_PAGE, "a superblock is one page");

struct batch_io {
	struct fm_nvme *nvme;
	struct fm_log_batch *batch;
	uint32_t outstanding;
	bool has_failed;
	struct fm_device_op ops[FM_LOG_RECORDS + 1];
	void *memory[FM_LOG_RECORDS];
	uint32_t buffers[FM_LOG_RECORDS];
};

struct read_io {
	struct fm_nvme *nvme;
	struct fm_device_op op;
	struct fm_log_place place;
	void *tag;
	struct read_io *next;
};

struct fm_nvme {
	struct fm_nvme_options options;
	struct fm_device *device;
	struct fm_log log;
	bool has_log;
	struct super *super;
	struct fm_log_page *pages; /* of each batch */
	uint32_t pages_buffer;
	struct batch_io batches[FM_LOG_BATCHES];
	struct fm_device_op flush;
	struct read_io reads[FM_NVME_READS];
	struct read_io *free_reads;
	struct fm_nvme_info info;
};

/* ---- one operation at a time: opening ---- */

struct wait {
	uint32_t outstanding;
	int64_t result;
};

static void on_waited(struct fm_device_op *op, int64_t result)
{
	struct wait *wait = op->context;

	wait->outstanding--;
	if (result < 0 || (op->kind != FM_DEVICE_FLUSH && (uint64_t)result != op->length))
		wait->result = result < 0 ? result : -EIO;
}

static int transfer(struct fm_nvme *nvme, enum fm_device_kind kind, uint64_t offset, void *memory)
{
	struct wait wait = {.outstanding = 1};
	struct fm_device_op op = {
		.kind = kind,
		.buffer = FM_DEVICE_UNREGISTERED,
		.offset = offset,
		.length = kind == FM_DEVICE_FLUSH ? 0 : FM_LOG_PAGE,
		.memory = memory,
		.done = on_waited,
		.context = &wait,
	};

	nvme->device->submit(nvme->device, &op);
	while (wait.outstanding)
		nvme->device->reap(nvme->device, true);
	return wait.result ? fm_fail(FM_ERR_IO, "%s: %s at byte %llu: %s", nvme->device->name,
				     kind == FM_DEVICE_READ    ? "reading"
				     : kind == FM_DEVICE_WRITE ? "writing"
							       : "flushing",
				     (unsigned long long)offset, strerror((int)-wait.result))
			   : 0;
}

/* ---- the superblock ---- */

static uint32_t super_checksum(const struct super *super)
{
	struct super copy = *super;

	copy.checksum = 0;
	return fm_crc32c(&copy, sizeof(copy));
}

static bool is_zero(const void *memory, size_t length)
{
	const char *bytes = memory;

	return !bytes[0] && !memcmp(bytes, bytes + 1, length - 1);
}

/*
 * 1: found, 0: nothing there yet. @pages: both copies; @errors: of reading them.
 */
static int judge_super(const char *name, const struct super *pages, const int *errors,
		       struct super *out)
{
	bool is_found = false, is_blank = true;
	int err = 0;

	for (uint32_t i = 0; i < 2; i++) {
		if (errors[i]) {
			err = FM_ERR_IO;
			continue;
		}
		if (!is_zero(&pages[i], sizeof(pages[i])))
			is_blank = false;
		if (pages[i].magic != SUPER_MAGIC || pages[i].checksum != super_checksum(&pages[i]))
			continue;
		if (pages[i].version != SUPER_VERSION && pages[i].version != SUPER_VERSION_BEFORE)
			return fm_fail(FM_ERR_VERSION,
				       "%s is a log of format %u, this program writes %u; use "
				       "another file, or remove it to begin anew",
				       name, pages[i].version, SUPER_VERSION);
		if (!is_found || pages[i].change > out->change)
			*out = pages[i];
		is_found = true;
	}
	if (is_found)
		return 1;
	if (err)
		return err;
	/* A format that was interrupted has written one copy at most, and nothing else. */
	if (!is_blank && !(pages[0].magic == SUPER_MAGIC && is_zero(&pages[1], FM_LOG_PAGE)))
		return fm_fail(FM_ERR_INVALID,
			       "%s holds something that is not a log of this program; give "
			       "another path, or clear its first MiB (dd if=/dev/zero bs=1M "
			       "count=1)",
			       name);
	return 0;
}

static int read_super(struct fm_nvme *nvme)
{
	struct super *pages = (struct super *)nvme->pages;
	int errors[2];

	for (uint32_t i = 0; i < 2; i++)
		errors[i] = transfer(nvme, FM_DEVICE_READ, (uint64_t)i * SUPER_COPY, &pages[i]);
	return judge_super(nvme->device->name, pages, errors, nvme->super);
}

static int write_super(struct fm_nvme *nvme)
{
	int err = 0;

	nvme->super->change++;
	nvme->super->checksum = super_checksum(nvme->super);
	for (uint32_t i = 0; i < 2 && !err; i++) {
		err = transfer(nvme, FM_DEVICE_WRITE, (uint64_t)i * SUPER_COPY, nvme->super);
		if (!err)
			err = transfer(nvme, FM_DEVICE_FLUSH, 0, NULL);
	}
	return err;
}

static int draw(uint64_t *number)
{
	do
		if (getrandom(number, sizeof(*number), 0) != sizeof(*number))
			return fm_fail(FM_ERR_IO, "getrandom: %s", strerror(errno));
	while (!*number);
	return 0;
}

/* How many segments there are room for. */
static int count_segments(const char *name, uint64_t bytes, uint64_t segment_bytes, uint32_t *out)
{
	uint64_t fits;

	if (segment_bytes < SEGMENT_MIN || segment_bytes % FM_LOG_PAGE ||
	    segment_bytes / FM_LOG_PAGE > UINT32_MAX / 2)
		return fm_fail(FM_ERR_INVALID, "%s: segments of %llu bytes", name,
			       (unsigned long long)segment_bytes);
	fits = bytes > LOG_AT ? (bytes - LOG_AT) / segment_bytes : 0;
	if (fits <= FM_LOG_SEGMENTS_MIN)
		return fm_fail(
			FM_ERR_LIMIT,
			"%s: %llu MiB hold %llu segments of %llu MiB, at least %u are "
			"needed: give it %llu MiB",
			name, (unsigned long long)(bytes >> 20), (unsigned long long)fits,
			(unsigned long long)(segment_bytes >> 20), FM_LOG_SEGMENTS_MIN + 1,
			(unsigned long long)((LOG_AT + (FM_LOG_SEGMENTS_MIN + 1) * segment_bytes +
					      (1 << 20) - 1) >>
					     20));
	*out = fits < UINT32_MAX / 2 ? (uint32_t)fits : UINT32_MAX / 2;
	return 0;
}

/* Of a log that is @found, or of a new one. */
static uint64_t choose_segment_bytes(uint64_t asked, int found, const struct super *super)
{
	return found ? super->segment_bytes : asked ? asked : SEGMENT_BYTES;
}

static int load_super(struct fm_nvme *nvme)
{
	int found = read_super(nvme), err;
	uint64_t segment_bytes;
	uint32_t fits;

	if (found < 0)
		return found;
	segment_bytes = choose_segment_bytes(nvme->options.segment_bytes, found, nvme->super);
	err = count_segments(nvme->device->name, nvme->device->bytes, segment_bytes, &fits);
	if (err || (found && nvme->super->segments == fits &&
		    nvme->super->version == SUPER_VERSION))
		return err;
	if (!found) {
		memset(nvme->super, 0, sizeof(*nvme->super));
		nvme->super->magic = SUPER_MAGIC;
		nvme->super->segment_bytes = segment_bytes;
		err = draw(&nvme->super->log_id);
	}
	/* Before anything that an earlier program would not understand is written. */
	nvme->super->version = SUPER_VERSION;
	nvme->super->segments = fits;
	return err ? err : write_super(nvme);
}

/* ---- the scan ---- */

static uint64_t place_of(const struct fm_nvme *nvme, uint32_t segment, uint32_t page)
{
	return LOG_AT + segment * nvme->super->segment_bytes + (uint64_t)page * FM_LOG_PAGE;
}

static void scan_firsts(struct fm_nvme *nvme, struct fm_log_page *pages)
{
	struct fm_device_op ops[SCAN_DEPTH];
	struct wait waits[SCAN_DEPTH];

	for (uint32_t first = 0; first < nvme->super->segments; first += SCAN_DEPTH) {
		uint32_t n = nvme->super->segments - first;

		n = n < SCAN_DEPTH ? n : SCAN_DEPTH;
		for (uint32_t i = 0; i < n; i++) {
			waits[i] = (struct wait){.outstanding = 1};
			ops[i] = (struct fm_device_op){
				.kind = FM_DEVICE_READ,
				.buffer = FM_DEVICE_UNREGISTERED,
				.offset = place_of(nvme, first + i, 0),
				.length = FM_LOG_PAGE,
				.memory = &pages[i],
				.done = on_waited,
				.context = &waits[i],
			};
			nvme->device->submit(nvme->device, &ops[i]);
		}
		for (uint32_t i = 0; i < n; i++) {
			while (waits[i].outstanding)
				nvme->device->reap(nvme->device, true);
			/* Once more alone: a passing error must not cost the log. */
			if (waits[i].result)
				waits[i].result =
					transfer(nvme, FM_DEVICE_READ, ops[i].offset, &pages[i]);
			if (waits[i].result) {
				nvme->info.read_errors++;
				fm_log(FM_LOG_WARNING, FM1401 "%s", fm_error_detail());
			}
			fm_log_scan_first(&nvme->log, first + i,
					  waits[i].result ? NULL : &pages[i]);
		}
	}
}

static int scan(struct fm_nvme *nvme)
{
	struct fm_log_page *pages = aligned_alloc(FM_LOG_PAGE, SCAN_DEPTH * sizeof(*pages));
	uint32_t segment, page;

	if (!pages)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to read a log");
	scan_firsts(nvme, pages);
	while (fm_log_scan_next(&nvme->log, &segment, &page)) {
		uint64_t offset = place_of(nvme, segment, page);
		/* Once more when it fails. NOLINTNEXTLINE(misc-redundant-expression) */
		bool is_read = !transfer(nvme, FM_DEVICE_READ, offset, pages) ||
			       !transfer(nvme, FM_DEVICE_READ, offset, pages);

		if (!is_read) {
			nvme->info.read_errors++;
			fm_log(FM_LOG_WARNING, FM1401 "%s", fm_error_detail());
		}
		fm_log_scan_page(&nvme->log, is_read ? pages : NULL);
	}
	free(pages);
	return 0;
}

/* ---- open and close ---- */

static uint32_t choose_entries(uint64_t asked, uint32_t segments, uint64_t segment_bytes)
{
	uint64_t entries = asked ? asked : segments * segment_bytes >> 16;

	return entries < FM_ENTRIES_MAX ? (uint32_t)entries : FM_ENTRIES_MAX;
}

/* The superblock of a file that is there, read as any program would. */
static int peek_super(const char *path, struct super *super)
{
	struct super *pages = calloc(2, sizeof(*pages));
	int fd = open(path, O_RDONLY | O_CLOEXEC), errors[2], err;

	if (!pages || fd < 0)
		err = fm_fail(FM_ERR_IO, "opening %s: %s", path, strerror(errno));
	else {
		/* What is shorter will be made longer, with zeros. */
		for (uint32_t i = 0; i < 2; i++)
			errors[i] = pread(fd, &pages[i], sizeof(*pages), (off_t)i * SUPER_COPY) < 0
					    ? fm_fail(FM_ERR_IO, "reading %s: %s", path,
						      strerror(errno))
					    : 0;
		err = judge_super(path, pages, errors, super);
	}
	if (fd >= 0)
		close(fd);
	free(pages);
	return err;
}

int fm_nvme_check(const struct fm_nvme_options *options, uint64_t *memory_bytes)
{
	struct super *super = calloc(1, sizeof(*super));
	struct fm_log_options log = {0};
	uint64_t bytes = 0, segment_bytes = 0;
	bool is_new = false;
	int found = 0, err;

	if (!super)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the NVMe tier");
	err = fm_uring_check(options->path, options->bytes, &bytes, &is_new);
	if (!err && !is_new)
		found = peek_super(options->path, super);
	if (!err && found < 0)
		err = found;
	if (!err) {
		segment_bytes = choose_segment_bytes(options->segment_bytes, found, super);
		err = count_segments(options->path, bytes, segment_bytes, &log.segments);
	}
	if (!err) {
		log.entries_max = choose_entries(options->entries_max, log.segments, segment_bytes);
		*memory_bytes = fm_log_memory(&log);
	}
	free(super);
	return err;
}

static int open_log(struct fm_nvme *nvme)
{
	struct fm_log_options options = {
		.run = nvme->options.run,
		.batch_bytes = FM_NVME_BATCH_BYTES,
		.is_durable = nvme->options.is_durable,
	};
	int err = load_super(nvme);

	if (!err && !options.run)
		err = draw(&options.run);
	if (err)
		return err;
	options.log_id = nvme->super->log_id;
	options.segment_pages = (uint32_t)(nvme->super->segment_bytes / FM_LOG_PAGE);
	options.segments = nvme->super->segments;
	options.entries_max = choose_entries(nvme->options.entries_max, options.segments,
					     nvme->super->segment_bytes);
	if (nvme->options.marks)
		memcpy(options.marks, nvme->options.marks, sizeof(options.marks));
	err = fm_log_create(&nvme->log, &options);
	if (err)
		return err;
	nvme->has_log = true;
	nvme->info.memory_bytes = fm_log_memory(&nvme->log.options);
	return scan(nvme);
}

int fm_nvme_open(const struct fm_nvme_options *options, struct fm_nvme **out)
{
	struct fm_nvme *nvme = calloc(1, sizeof(*nvme));
	int err = 0;

	if (!nvme) {
		if (options->device)
			options->device->close(options->device);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the NVMe tier");
	}
	nvme->options = *options;
	nvme->device = options->device;
	nvme->pages_buffer = options->buffers;
	nvme->pages = aligned_alloc(FM_LOG_PAGE, FM_LOG_BATCHES * sizeof(*nvme->pages));
	nvme->super = aligned_alloc(FM_LOG_PAGE, sizeof(*nvme->super));
	if (!nvme->pages || !nvme->super)
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory for the NVMe tier");
	if (!err && !nvme->device)
		err = fm_uring_open(options->path, options->bytes, FM_NVME_DEPTH,
				    options->buffers + 1, &nvme->device);
	if (!err)
		err = open_log(nvme);
	if (err) {
		fm_nvme_close(nvme);
		return err;
	}
	for (uint32_t i = 0; i < FM_LOG_BATCHES; i++)
		nvme->batches[i].nvme = nvme;
	for (uint32_t i = 0; i < FM_NVME_READS; i++) {
		nvme->reads[i].nvme = nvme;
		nvme->reads[i].next = nvme->free_reads;
		nvme->free_reads = &nvme->reads[i];
	}
	fm_nvme_set_memory(nvme, nvme->pages_buffer, nvme->pages,
			   FM_LOG_BATCHES * sizeof(*nvme->pages));
	*out = nvme;
	return 0;
}

void fm_nvme_close(struct fm_nvme *nvme)
{
	if (!nvme)
		return;
	while (nvme->has_log &&
	       (fm_log_is_busy(&nvme->log) || nvme->info.reading_bytes || nvme->info.writing_bytes))
		fm_nvme_pump(nvme, true);
	if (nvme->device)
		nvme->device->close(nvme->device);
	if (nvme->has_log)
		fm_log_destroy(&nvme->log);
	free(nvme->pages);
	free(nvme->super);
	free(nvme);
}

int fm_nvme_event(const struct fm_nvme *nvme)
{
	return nvme->options.device ? -1 : fm_uring_event(nvme->device);
}

struct fm_log *fm_nvme_log(struct fm_nvme *nvme)
{
	return &nvme->log;
}

void fm_nvme_set_memory(struct fm_nvme *nvme, uint32_t buffer, void *memory, size_t length)
{
	if (nvme->device->set_buffer(nvme->device, buffer, memory, length) && memory &&
	    !nvme->info.register_errors++)
		fm_log(FM_LOG_WARNING, FM1402 "%s; going on unregistered", fm_error_detail());
}

void fm_nvme_info(const struct fm_nvme *nvme, struct fm_nvme_info *info)
{
	*info = nvme->info;
	info->name = nvme->device->name;
	info->rung = nvme->device->rung;
	info->reason = nvme->device->reason;
	info->segments = nvme->super->segments;
	info->segment_bytes = nvme->super->segment_bytes;
	info->bytes = info->segments * info->segment_bytes;
	info->is_durable = nvme->options.is_durable;
	info->is_dead = nvme->log.is_dead;
}

/* ---- writing ---- */

static void on_part_written(struct fm_device_op *op, int64_t result)
{
	struct batch_io *io = op->context;
	struct fm_nvme *nvme = io->nvme;

	nvme->info.writing_bytes -= op->length;
	if (result != (int64_t)op->length) {
		nvme->info.write_errors++;
		if (!io->has_failed)
			fm_log(FM_LOG_WARNING,
			       FM1403 "%s: writing %llu bytes at %llu: %s; the segment is given up",
			       nvme->device->name, (unsigned long long)op->length,
			       (unsigned long long)op->offset,
			       strerror(result < 0 ? (int)-result : ENOSPC));
		io->has_failed = true;
	}
	FM_KILL_POINT("nvme: a part of a batch written");
	if (!--io->outstanding)
		fm_log_written(&nvme->log, io->batch, !io->has_failed);
}

static void write_part(struct batch_io *io, uint32_t part, uint32_t page, void *memory,
		       uint64_t length, uint32_t buffer)
{
	io->ops[part] = (struct fm_device_op){
		.kind = FM_DEVICE_WRITE,
		.buffer = buffer,
		.offset = place_of(io->nvme, io->batch->segment, page),
		.length = length,
		.memory = memory,
		.done = on_part_written,
		.context = io,
	};
	io->outstanding++;
	io->nvme->device->submit(io->nvme->device, &io->ops[part]);
}

static bool submit_batch(struct fm_nvme *nvme)
{
	uint32_t slot;
	struct batch_io *io;
	struct fm_log_batch *batch;

	batch = fm_log_take(&nvme->log);
	if (!batch)
		return false;
	slot = batch->id % FM_LOG_BATCHES;
	io = &nvme->batches[slot];
	io->batch = batch;
	io->outstanding = 0;
	io->has_failed = false;
	fm_log_header(&nvme->log, batch, &nvme->pages[slot]);
	nvme->info.writing_bytes += FM_LOG_PAGE;
	write_part(io, 0, batch->page, &nvme->pages[slot], FM_LOG_PAGE, nvme->pages_buffer);
	for (uint32_t i = 0; i < batch->count; i++) {
		const struct fm_log_record *record = &batch->records[i];

		if (record->kind == FM_LOG_BLOCK)
			write_part(io, i + 1, record->page, io->memory[i],
				   (uint64_t)fm_log_pages(record->length) * FM_LOG_PAGE,
				   io->buffers[i]);
	}
	FM_KILL_POINT("nvme: a batch begun");
	return true;
}

int fm_nvme_write(struct fm_nvme *nvme, const struct fm_log_block *block, uint16_t mark,
		  const void *memory, uint32_t buffer, void *tag)
{
	uint64_t bytes = (uint64_t)fm_log_pages(block->length) * FM_LOG_PAGE;
	struct batch_io *io;
	uint32_t slot, at;
	int err;

	if (nvme->info.writing_bytes && nvme->info.writing_bytes + bytes > FM_NVME_WRITE_BYTES)
		return FM_ERR_BUSY;
	err = fm_log_append(&nvme->log, block, mark, tag);
	/* The batch is full: it goes, and a new one begins. */
	if (err == FM_ERR_BUSY && submit_batch(nvme))
		err = fm_log_append(&nvme->log, block, mark, tag);
	if (err)
		return err;
	at = fm_log_last(&nvme->log, &slot);
	io = &nvme->batches[slot];
	io->memory[at] = (void *)memory;
	io->buffers[at] = buffer;
	nvme->info.writing_bytes += bytes;
	return 0;
}

int fm_nvme_write_group(struct fm_nvme *nvme, const struct fm_log_block *blocks, uint32_t n,
			uint16_t mark, void *const *memory, const uint32_t *buffers,
			void *const *tags)
{
	struct batch_io *io;
	uint64_t bytes = 0;
	uint32_t slot, at;
	int err;

	for (uint32_t i = 0; i < n; i++)
		bytes += (uint64_t)fm_log_pages(blocks[i].length) * FM_LOG_PAGE;
	if (nvme->info.writing_bytes && nvme->info.writing_bytes + bytes > FM_NVME_WRITE_BYTES)
		return FM_ERR_BUSY;
	err = fm_log_append_group(&nvme->log, blocks, n, mark, tags);
	if (err == FM_ERR_BUSY && submit_batch(nvme))
		err = fm_log_append_group(&nvme->log, blocks, n, mark, tags);
	if (err)
		return err;
	at = fm_log_last(&nvme->log, &slot) - (n - 1);
	io = &nvme->batches[slot];
	for (uint32_t i = 0; i < n; i++) {
		io->memory[at + i] = memory[i];
		io->buffers[at + i] = buffers[i];
	}
	nvme->info.writing_bytes += bytes;
	return 0;
}

static void on_flushed(struct fm_device_op *op, int64_t result)
{
	struct fm_nvme *nvme = op->context;

	nvme->info.flushes++;
	if (result < 0) {
		nvme->info.flush_errors++;
		fm_log(FM_LOG_WARNING, FM1404 "%s: flushing: %s", nvme->device->name,
		       strerror((int)-result));
	}
	FM_KILL_POINT("nvme: flushed, not counted as stored");
	fm_log_flush_end(&nvme->log, result >= 0);
}

static void settle(struct fm_nvme *nvme)
{
	const struct fm_log_batch *batch;
	bool is_stored, was_dead = nvme->log.is_dead;

	while ((batch = fm_log_settle(&nvme->log, &is_stored))) {
		for (uint32_t i = 0; i < batch->count; i++)
			if (batch->records[i].kind == FM_LOG_BLOCK && nvme->options.written)
				nvme->options.written(nvme->options.context, batch->tags[i],
						      is_stored ? 0 : FM_ERR_IO);
		FM_KILL_POINT("nvme: a batch is stored");
	}
	if (nvme->log.is_dead && !was_dead)
		fm_log(FM_LOG_ERROR,
		       FM1405 "%s: takes no more blocks: too many segments or flushes failed",
		       nvme->device->name);
}

bool fm_nvme_pump(struct fm_nvme *nvme, bool waits)
{
	bool has_come;

	settle(nvme);
	while (submit_batch(nvme))
		;
	if (fm_log_flush_begin(&nvme->log)) {
		nvme->flush = (struct fm_device_op){
			.kind = FM_DEVICE_FLUSH,
			.buffer = FM_DEVICE_UNREGISTERED,
			.done = on_flushed,
			.context = nvme,
		};
		nvme->device->submit(nvme->device, &nvme->flush);
	}
	has_come = nvme->device->reap(nvme->device, waits);
	settle(nvme);
	return has_come;
}

/* ---- reading ---- */

static void on_read(struct fm_device_op *op, int64_t result)
{
	struct read_io *io = op->context;
	struct fm_nvme *nvme = io->nvme;
	struct fm_log_place place = io->place;
	void *tag = io->tag;
	int err = 0;

	if (!fm_log_is_current(&nvme->log, &place)) {
		err = FM_ERR_NOT_FOUND; /* removed, or its segment was reclaimed */
	} else if (result != (int64_t)op->length) {
		nvme->info.read_errors++;
		fm_log(FM_LOG_WARNING, FM1406 "%s: reading %llu bytes at %llu: %s",
		       nvme->device->name, (unsigned long long)op->length,
		       (unsigned long long)op->offset,
		       result < 0 ? strerror((int)-result) : "the end of the device");
		err = FM_ERR_IO;
	} else if (FM_FAULT("wrong-read")) {
		*(char *)op->memory ^= 1;
	} else if (fm_crc32c(op->memory, place.block.length) != place.block.crc32c) {
		nvme->info.checksum_errors++;
		fm_log(FM_LOG_WARNING, FM1407 "%s: the checksum of %llu bytes at %llu is wrong",
		       nvme->device->name, (unsigned long long)op->length,
		       (unsigned long long)op->offset);
		err = FM_ERR_CORRUPT;
	}
	if (err && fm_log_lose(&nvme->log, &place)) {
		io->place = place;
		op->offset = LOG_AT + place.offset;
		nvme->device->submit(nvme->device, op);
		return;
	}
	FM_KILL_POINT("nvme: read, not answered");
	nvme->info.reading_bytes -= op->length;
	io->next = nvme->free_reads;
	nvme->free_reads = io;
	nvme->info.reads += !err;
	nvme->info.read_bytes += err ? 0 : place.block.length;
	nvme->options.read(nvme->options.context, tag, &place, err);
}

bool fm_nvme_may_read(const struct fm_nvme *nvme, uint32_t length)
{
	uint64_t bytes = (uint64_t)fm_log_pages(length) * FM_LOG_PAGE;

	return nvme->free_reads && (!nvme->info.reading_bytes ||
				    nvme->info.reading_bytes + bytes <= FM_NVME_READ_BYTES);
}

int fm_nvme_read(struct fm_nvme *nvme, const struct fm_log_place *place, void *memory,
		 uint32_t buffer, void *tag)
{
	uint64_t bytes = (uint64_t)fm_log_pages(place->block.length) * FM_LOG_PAGE;
	struct read_io *io = nvme->free_reads;

	if (!fm_nvme_may_read(nvme, place->block.length))
		return FM_ERR_BUSY;
	nvme->free_reads = io->next;
	io->place = *place;
	io->tag = tag;
	io->op = (struct fm_device_op){
		.kind = FM_DEVICE_READ,
		.buffer = buffer,
		.offset = LOG_AT + place->offset,
		.length = bytes,
		.memory = memory,
		.done = on_read,
		.context = io,
	};
	nvme->info.reading_bytes += bytes;
	nvme->device->submit(nvme->device, &io->op);
	return 0;
}
