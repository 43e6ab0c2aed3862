// SPDX-License-Identifier: Apache-2.0
/* A device in memory (see fake_device.h). For tests only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "fake_device.h"

uint64_t fake_random(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15ull);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void at_boundary(struct fake_device *fake)
{
	if (fake->boundary)
		fake->boundary(fake->context);
}

static void fake_submit(struct fm_device *device, struct fm_device_op *op)
{
	struct fake_device *fake = (struct fake_device *)device;

	ck_assert_uint_lt(fake->queued, 512);
	ck_assert(op->offset + op->length <= device->bytes);
	ck_assert_uint_eq(op->offset % 4096, 0);
	ck_assert_uint_eq(op->length % 4096, 0);
	fake->covers[fake->queued] = fake->completed;
	fake->queue[fake->queued++] = op;
	if (op->kind == FM_DEVICE_WRITE) {
		struct fake_write *write = calloc(1, sizeof(*write));

		*write = (struct fake_write){
			.offset = op->offset,
			.length = op->length,
			.bytes = malloc(op->length),
			.next = fake->writes,
		};
		memcpy(write->bytes, op->memory, op->length);
		fake->writes = write;
		op->moved = (uintptr_t)write;
	}
	at_boundary(fake);
}

/* The oldest first, so that the later of two writes to one sector wins. */
static void make_stable(struct fake_device *fake, struct fake_write **link, uint64_t covers)
{
	struct fake_write *write = *link;

	if (!write)
		return;
	make_stable(fake, &write->next, covers);
	if (!write->number || write->number > covers)
		return;
	memcpy(fake->stable + write->offset, write->bytes, write->length);
	*link = write->next;
	free(write->bytes);
	free(write);
}

static void complete(struct fake_device *fake, uint32_t at)
{
	struct fm_device_op *op = fake->queue[at];
	uint64_t covers = fake->covers[at], number = ++fake->operations;
	bool fails = fake->fail_at &&
		     (number == fake->fail_at || (fake->fails_on && number > fake->fail_at));
	int64_t result = fails ? -EIO : (int64_t)op->length;

	fake->queued--;
	memmove(fake->queue + at, fake->queue + at + 1,
		(fake->queued - at) * sizeof(fake->queue[0]));
	memmove(fake->covers + at, fake->covers + at + 1,
		(fake->queued - at) * sizeof(fake->covers[0]));
	if (op->kind == FM_DEVICE_READ) {
		if (!fails)
			memcpy(op->memory, fake->current + op->offset, op->length);
	} else if (op->kind == FM_DEVICE_WRITE) {
		struct fake_write *write = (struct fake_write *)(uintptr_t)op->moved;
		uint64_t part = fails && !fake->fails_torn ? 0
				: fails ? op->length / 2 / FAKE_SECTOR * FAKE_SECTOR
					: op->length;

		/* The memory was the device's all the time. */
		ck_assert_int_eq(memcmp(write->bytes, op->memory, op->length), 0);
		write->number = ++fake->completed;
		memcpy(fake->current + op->offset, write->bytes, part);
		write->length = part;
	} else if (!fails) {
		make_stable(fake, &fake->writes, covers);
	}
	op->done(op, result);
	at_boundary(fake);
}

static bool fake_reap(struct fm_device *device, bool waits)
{
	struct fake_device *fake = (struct fake_device *)device;
	uint32_t n = waits ? 1 : 0;
	bool has_come = false;

	n += (uint32_t)(fake_random(&fake->seed) % 3);
	while (n-- && fake->queued) {
		complete(fake, (uint32_t)(fake_random(&fake->seed) % fake->queued));
		has_come = true;
	}
	return has_come;
}

static int fake_set_buffer(struct fm_device *device, uint32_t buffer, void *memory, size_t length)
{
	(void)device;
	(void)buffer;
	(void)memory;
	(void)length;
	return 0;
}

static void fake_close(struct fm_device *device)
{
	struct fake_device *fake = (struct fake_device *)device;

	while (fake->writes) {
		struct fake_write *write = fake->writes;

		fake->writes = write->next;
		free(write->bytes);
		free(write);
	}
	free(fake->stable);
	free(fake->current);
	free(fake);
}

struct fake_device *fake_device_create(uint64_t bytes, uint64_t seed, const void *image)
{
	struct fake_device *fake = calloc(1, sizeof(*fake));

	ck_assert_ptr_nonnull(fake);
	fake->device = (struct fm_device){
		.bytes = bytes,
		.name = "fake",
		.rung = "memory",
		.reason = "",
		.submit = fake_submit,
		.reap = fake_reap,
		.set_buffer = fake_set_buffer,
		.close = fake_close,
	};
	fake->seed = seed;
	fake->stable = calloc(1, bytes);
	fake->current = calloc(1, bytes);
	ck_assert(fake->stable && fake->current);
	if (image) {
		memcpy(fake->stable, image, bytes);
		memcpy(fake->current, image, bytes);
	}
	return fake;
}

/* Each write: gone, whole, or each of its sectors for itself; in the order of submission or not. */
static void lose_some(const struct fake_write *write, uint64_t *seed, unsigned char *image,
		      bool reorders)
{
	uint64_t fate;

	if (!write)
		return;
	if (!reorders)
		lose_some(write->next, seed, image, false);
	fate = fake_random(seed) % 4;
	for (uint64_t at = 0; fate && at < write->length; at += FAKE_SECTOR)
		if (fate == 1 || fake_random(seed) % 2)
			memcpy(image + write->offset + at, write->bytes + at, FAKE_SECTOR);
	if (reorders)
		lose_some(write->next, seed, image, true);
}

void fake_device_cut(const struct fake_device *fake, uint64_t seed, unsigned char *image)
{
	memcpy(image, fake->stable, fake->device.bytes);
	lose_some(fake->writes, &seed, image, fake_random(&seed) % 2);
}
