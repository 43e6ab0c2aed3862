/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tier needs of a device: reads, writes and flushes that complete later. nvme.c calls it;
 * uring.c is it on a file or a block device, and a test's fake loses power at will. One thread.
 * Invariant: an operation's memory is the device's from submit() to done().
 */
#ifndef FM_TIER_DEVICE_H
#define FM_TIER_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fm_device_kind { FM_DEVICE_READ = 1, FM_DEVICE_WRITE = 2, FM_DEVICE_FLUSH = 3 };

#define FM_DEVICE_UNREGISTERED UINT32_MAX

struct fm_device_op {
	enum fm_device_kind kind;
	uint32_t buffer; /* a registered one that @memory lies in, or FM_DEVICE_UNREGISTERED */
	uint64_t offset, length;
	void *memory;
	/* @result: bytes, or a negative errno. May submit again. */
	void (*done)(struct fm_device_op *op, int64_t result);
	void *context;
	uint64_t moved;		   /* the device's own: bytes so far */
	struct fm_device_op *next; /* the device's own */
};

struct fm_device {
	uint64_t bytes;
	const char *name;
	/* For people: "io_uring, O_DIRECT" and why not better ("": it is the best). */
	const char *rung, *reason;
	/* Never fails: what cannot be begun is done() with an error later, from reap(). */
	void (*submit)(struct fm_device *device, struct fm_device_op *op);
	/* Calls done() of what is over; @waits: for at least one, if there is any. Whether one was,
	 * which its event will not tell again. */
	bool (*reap)(struct fm_device *device, bool waits);
	/* Announces memory that operations will name by @buffer; NULL takes it back. */
	int (*set_buffer)(struct fm_device *device, uint32_t buffer, void *memory, size_t length);
	void (*close)(struct fm_device *device);
};

#endif
