// SPDX-License-Identifier: Apache-2.0
/*
 * The ring's positions and its two sleep flags. Pure; a ring has one submitting and one serving
 * thread at a time (the client's lock sees to the first).
 * Invariant: work, or room, is published before the fence and the flag is read after it; the
 * sleeper sets the flag before its fence and looks after it. So one of the two always sees the
 * other.
 */
#include "core/ring.h"

#define MASK (FM_RING_ENTRIES - 1)

/* What a sleep flag says. */
enum { AWAKE = 0, FOR_WORK = 1, FOR_ROOM = 2 };

_Static_assert((FM_RING_ENTRIES & MASK) == 0, "positions are masked");

uint32_t fm_ring_room(const struct fm_ring *ring)
{
	/* Acquire: pairs with the daemon's release in fm_ring_take(); the slot may be reused. */
	uint32_t used = ring->sq_position - fm_load_acquire(&ring->shared->sq_head.value);

	return used > FM_RING_ENTRIES ? 0 : FM_RING_ENTRIES - used;
}

void fm_ring_submit(struct fm_ring *ring, const struct fm_submission *submission)
{
	ring->shared->sq[ring->sq_position & MASK] = *submission;
	/* Release: the daemon's acquire in fm_ring_take() sees the entry. */
	fm_store_release(&ring->shared->sq_tail.value, ++ring->sq_position);
}

static bool take_flag(uint32_t *flag)
{
	fm_fence(); /* after publishing; pairs with the fence in sleep_on() */
	/* Relaxed: the fences order the flag and what it is about; it carries no data. */
	return fm_load_relaxed(flag) && __atomic_exchange_n(flag, AWAKE, __ATOMIC_RELAXED);
}

bool fm_ring_must_tell_daemon(struct fm_ring *ring)
{
	uint32_t *flag = &ring->shared->daemon_sleeps.value;

	fm_fence(); /* after taking answers; pairs with the fence in fm_ring_daemon_block() */
	return fm_load_relaxed(flag) == FOR_ROOM &&
	       __atomic_exchange_n(flag, AWAKE, __ATOMIC_RELAXED) != AWAKE;
}

static bool sleep_on(uint32_t *flag, const uint32_t *tail, uint32_t position)
{
	fm_store_relaxed(flag, FOR_WORK);
	fm_fence(); /* before looking; pairs with the fence in take_flag() */
	/* Acquire: pairs with the release of a tail in fm_ring_submit() or fm_ring_complete(). */
	if (fm_load_acquire(tail) == position)
		return true;
	fm_store_relaxed(flag, AWAKE);
	return false;
}

bool fm_ring_must_wake_daemon(struct fm_ring *ring)
{
	return take_flag(&ring->shared->daemon_sleeps.value);
}

bool fm_ring_completion(struct fm_ring *ring, struct fm_completion *out)
{
	/* Acquire: pairs with the release in fm_ring_complete(). */
	if (fm_load_acquire(&ring->shared->cq_tail.value) == ring->cq_position)
		return false;
	*out = ring->shared->cq[ring->cq_position & MASK];
	/* Release: our reads are done; pairs with the acquire in fm_ring_completion_room(). */
	fm_store_release(&ring->shared->cq_head.value, ++ring->cq_position);
	return true;
}

bool fm_ring_client_sleep(struct fm_ring *ring, uint32_t position)
{
	return sleep_on(&ring->shared->client_sleeps.value, &ring->shared->cq_tail.value, position);
}

void fm_ring_client_awake(struct fm_ring *ring)
{
	fm_store_relaxed(&ring->shared->client_sleeps.value, AWAKE); /* see take_flag() */
}

int fm_ring_take(struct fm_ring *ring, struct fm_submission *out)
{
	/* Acquire: pairs with the release in fm_ring_submit(). */
	uint32_t ready = fm_load_acquire(&ring->shared->sq_tail.value) - ring->sq_position;

	if (!ready)
		return 0;
	if (ready > FM_RING_ENTRIES)
		return fm_fail(FM_ERR_CORRUPT, "a client's submission ring claims %u entries",
			       ready);
	/* Copied before anything looks at it: the client may change it at any time. */
	*out = ring->shared->sq[ring->sq_position & MASK];
	/* Release: the copy is done; pairs with the acquire in fm_ring_room(). */
	fm_store_release(&ring->shared->sq_head.value, ++ring->sq_position);
	return 1;
}

int fm_ring_completion_room(const struct fm_ring *ring)
{
	/* Acquire: pairs with the release in fm_ring_completion(); the slot may be reused. */
	uint32_t used = ring->cq_position - fm_load_acquire(&ring->shared->cq_head.value);

	if (used > FM_RING_ENTRIES)
		return fm_fail(FM_ERR_CORRUPT, "a client's completion ring claims %u entries",
			       used);
	return (int)(FM_RING_ENTRIES - used);
}

void fm_ring_complete(struct fm_ring *ring, const struct fm_completion *completion)
{
	ring->shared->cq[ring->cq_position & MASK] = *completion;
	/* Release: pairs with the acquire in fm_ring_completion(). */
	fm_store_release(&ring->shared->cq_tail.value, ++ring->cq_position);
}

bool fm_ring_must_wake_client(struct fm_ring *ring)
{
	return take_flag(&ring->shared->client_sleeps.value);
}

bool fm_ring_daemon_sleep(struct fm_ring *ring)
{
	return sleep_on(&ring->shared->daemon_sleeps.value, &ring->shared->sq_tail.value,
			ring->sq_position);
}

bool fm_ring_daemon_block(struct fm_ring *ring, uint32_t due)
{
	uint32_t *flag = &ring->shared->daemon_sleeps.value;
	int room;

	fm_store_relaxed(flag, FOR_ROOM);
	fm_fence(); /* before looking; pairs with the fence in fm_ring_must_tell_daemon() */
	room = fm_ring_completion_room(ring);
	if (room >= 0 && (uint32_t)room <= due)
		return true;
	fm_store_relaxed(flag, AWAKE);
	return false;
}

void fm_ring_daemon_awake(struct fm_ring *ring)
{
	fm_store_relaxed(&ring->shared->daemon_sleeps.value, AWAKE); /* see take_flag() */
}
