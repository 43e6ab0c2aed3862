/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVMe tier: blocks go out to a log on a device and come back. The pool's server drives it, on
 * one thread; nothing here waits but open and close. It decides by core/segment_log.h. Invariant:
 * what a read delivers has the checksum that was written with it; what was told to be stored
 * outlives this process, and with durability the power.
 */
#ifndef FM_TIER_NVME_H
#define FM_TIER_NVME_H

#include "core/segment_log.h"
#include "tier/device.h"

struct fm_nvme;

struct fm_nvme_options {
	const char *path;	  /* a file (made if it is not there) or a block device */
	struct fm_device *device; /* instead, for tests; closed by fm_nvme_close() */
	uint64_t bytes;		  /* of a file: its size; 0: as it is */
	uint64_t segment_bytes;	  /* 0: 64 MiB, or what the log has */
	bool is_durable;	  /* stored means flushed */
	uint32_t entries_max;	  /* 0: one for 64 KiB of the log */
	uint32_t buffers;	  /* that fm_nvme_set_memory() will name */
	uint64_t run;		  /* 0: drawn at random; never the same twice */
	const uint16_t *marks;	  /* of blocks that are counted apart, as in struct fm_log_options;
				     NULL: none */
	void *context;
	/* A block that fm_nvme_write() took: 0 when it is stored, else it is not. Its memory is the
	 * caller's again. */
	void (*written)(void *context, void *tag, int result);
	/* 0: the bytes are there and right; FM_ERR_NOT_FOUND, FM_ERR_CORRUPT, FM_ERR_IO: a miss. */
	void (*read)(void *context, void *tag, const struct fm_log_place *place, int result);
};

/* What fm_nvme_open() would refuse of a path, without a change to it: what it holds, its size, the
 * room for it. *@memory_bytes: what the tables would take. Who else has it open is not asked. */
int fm_nvme_check(const struct fm_nvme_options *options, uint64_t *memory_bytes);
int fm_nvme_open(const struct fm_nvme_options *options, struct fm_nvme **out);
/* Finishes what was begun. */
void fm_nvme_close(struct fm_nvme *nvme);
/* Readable when fm_nvme_pump() has something to do; -1 for a test's device. */
int fm_nvme_event(const struct fm_nvme *nvme);
/* Submits, reaps and calls back. @waits: for the device, if it has anything. True: something came,
 * and what follows from it has not begun: pump again before waiting for the event. */
bool fm_nvme_pump(struct fm_nvme *nvme, bool waits);

/* Memory that reads and writes will name by @buffer; NULL takes it back. A failure is counted, and
 * the memory is used unregistered. */
void fm_nvme_set_memory(struct fm_nvme *nvme, uint32_t buffer, void *memory, size_t length);

/* @memory: on a page, whole pages, until written(). FM_ERR_BUSY: too much is on its way (try again
 * after a pump); FM_ERR_EXISTS: it is there. */
int fm_nvme_write(struct fm_nvme *nvme, const struct fm_log_block *block, uint16_t mark,
		  const void *memory, uint32_t buffer, void *tag);
/* The same of @n blocks that are found together or not at all, as fm_log_append_group() says; each
 * is given back by itself. */
int fm_nvme_write_group(struct fm_nvme *nvme, const struct fm_log_block *blocks, uint32_t n,
			uint16_t mark, void *const *memory, const uint32_t *buffers,
			void *const *tags);
/* Whether a read of a block that long would begin now. */
bool fm_nvme_may_read(const struct fm_nvme *nvme, uint32_t length);
/* Begins to read a block that fm_log_find() found. @memory as above, until read(). */
int fm_nvme_read(struct fm_nvme *nvme, const struct fm_log_place *place, void *memory,
		 uint32_t buffer, void *tag);
/* The log, for finding, removing and counting. */
struct fm_log *fm_nvme_log(struct fm_nvme *nvme);

struct fm_nvme_info {
	const char *name, *rung, *reason;
	uint64_t bytes, segment_bytes, segments;
	uint64_t reading_bytes, writing_bytes; /* now in flight */
	uint64_t read_bytes, reads, flushes;
	uint64_t read_errors, write_errors, flush_errors, checksum_errors, register_errors;
	uint64_t memory_bytes; /* of the tables */
	bool is_durable, is_dead;
};
void fm_nvme_info(const struct fm_nvme *nvme, struct fm_nvme_info *info);

#endif
