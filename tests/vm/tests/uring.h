/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of io_uring as the module's tests use, on the plain system calls: one ring, one thread.
 */
#ifndef FM_TEST_URING_H
#define FM_TEST_URING_H

#include <linux/io_uring.h>
#include <sys/uio.h>

#include "module.h"

struct uring {
	int fd;
	struct io_uring_params params;
	char *queues;
	size_t bytes;
	struct io_uring_sqe *entries;
};

static inline uint32_t *uring_word(struct uring *ring, uint32_t offset)
{
	return (uint32_t *)(ring->queues + offset);
}

static inline void uring_open(struct uring *ring, uint32_t depth, uint32_t flags)
{
	size_t bytes, completions;

	memset(ring, 0, sizeof(*ring));
	ring->params.flags = flags;
	ring->fd = syscall(SYS_io_uring_setup, depth, &ring->params);
	need(ring->fd >= 0);
	need(ring->params.features & IORING_FEAT_SINGLE_MMAP);
	bytes = ring->params.sq_off.array + ring->params.sq_entries * sizeof(uint32_t);
	completions = ring->params.cq_off.cqes +
		      ring->params.cq_entries * sizeof(struct io_uring_cqe);
	bytes = completions > bytes ? completions : bytes;
	ring->bytes = bytes;
	ring->queues = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
			    IORING_OFF_SQ_RING);
	need(ring->queues != MAP_FAILED);
	ring->entries = mmap(NULL, ring->params.sq_entries * sizeof(*ring->entries),
			     PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
	need(ring->entries != MAP_FAILED);
}

static inline void uring_close(struct uring *ring)
{
	munmap(ring->queues, ring->bytes); /* a mapping holds the ring as a descriptor does */
	munmap(ring->entries, ring->params.sq_entries * sizeof(*ring->entries));
	close(ring->fd);
}

static inline int uring_register_buffer(struct uring *ring, void *memory, size_t bytes)
{
	struct iovec buffer = { memory, bytes };

	return syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &buffer, 1) ?
		       -errno :
		       0;
}

/* Submits @command of the module with @argument; its completion carries @tag. 0 or an error. */
static inline int uring_try(struct uring *ring, int fd, uint32_t command, void *argument,
			    uint64_t tag)
{
	struct fabricmgr_ring_command payload = { .argument = (uintptr_t)argument };
	uint32_t tail = *uring_word(ring, ring->params.sq_off.tail);
	uint32_t slot = tail & *uring_word(ring, ring->params.sq_off.ring_mask);
	struct io_uring_sqe *entry = &ring->entries[slot];

	memset(entry, 0, sizeof(*entry));
	entry->opcode = IORING_OP_URING_CMD;
	entry->fd = fd;
	entry->off = command; /* cmd_op, which older headers do not name, and zeros */
	memcpy((char *)entry + 48, &payload, sizeof(payload));
	entry->user_data = tag;
	uring_word(ring, ring->params.sq_off.array)[slot] = slot;
	__atomic_store_n(uring_word(ring, ring->params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	return syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) == 1 ? 0 : -errno;
}

static inline void uring_submit(struct uring *ring, int fd, uint32_t command, void *argument,
				uint64_t tag)
{
	int error = uring_try(ring, fd, command, argument, tag);

	errno = -error;
	need(!error);
}

/* A completion that is there already. */
static inline bool uring_peek(struct uring *ring, struct io_uring_cqe *completion)
{
	uint32_t head = *uring_word(ring, ring->params.cq_off.head);
	uint32_t mask = *uring_word(ring, ring->params.cq_off.ring_mask);
	struct io_uring_cqe *all = (void *)(ring->queues + ring->params.cq_off.cqes);

	if (head == __atomic_load_n(uring_word(ring, ring->params.cq_off.tail), __ATOMIC_ACQUIRE))
		return false;
	*completion = all[head & mask];
	__atomic_store_n(uring_word(ring, ring->params.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return true;
}

/* Waits for one, ten seconds at most. */
static inline bool uring_wait(struct uring *ring, struct io_uring_cqe *completion)
{
	struct pollfd wait = { .fd = ring->fd, .events = POLLIN };
	int i;

	for (i = 0; i < 1000; i++) {
		/* Entering runs what the kernel has to do in our context. */
		syscall(SYS_io_uring_enter, ring->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
		if (uring_peek(ring, completion))
			return true;
		poll(&wait, 1, 10);
	}
	return false;
}

#endif
