/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device in memory that completes in any order, fails when told, and loses power: what was not
 * flushed is then there, gone or torn, sector by sector, from a seed. For tests of the NVMe tier.
 * Invariant: "stable" holds exactly what a finished flush promised.
 */
#ifndef FM_TESTS_FAKE_DEVICE_H
#define FM_TESTS_FAKE_DEVICE_H

#include "tier/device.h"

#define FAKE_SECTOR 512u

struct fake_write {
	uint64_t offset, length;
	unsigned char *bytes;
	uint64_t number; /* in the order of completion; 0: not yet */
	struct fake_write *next;
};

struct fake_device {
	struct fm_device device;
	uint64_t seed;
	unsigned char *stable, *current;
	struct fake_write *writes; /* not covered by a flush; the latest first */
	struct fm_device_op *queue[512];
	uint64_t covers[512]; /* of a flush: writes up to this number */
	uint32_t queued;
	uint64_t completed, operations;
	uint64_t fail_at; /* the operation with this number (from 1) fails; 0: none */
	bool fails_on;	  /* and all after it */
	bool fails_torn;  /* a failed write has written a part */
	/* After each operation was submitted, and after each was completed. */
	void (*boundary)(void *context);
	void *context;
};

uint64_t fake_random(uint64_t *seed);
/* @image: copied, or NULL: zeros. Closing it frees it. */
struct fake_device *fake_device_create(uint64_t bytes, uint64_t seed, const void *image);
/* What a power failure now leaves, into @image. */
void fake_device_cut(const struct fake_device *fake, uint64_t seed, unsigned char *image);

#endif
