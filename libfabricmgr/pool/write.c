// SPDX-License-Identifier: Apache-2.0
/*
 * Writing: stage, seal, discard, offer and adopt, as submissions on the client's ring. Any thread
 * may call: one at a time waits for the daemon and delivers everybody's answers. Invariant: an
 * answer that nobody waits for any more is undone (the block it brought is given back).
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "core/layers.h"
#include "core/tenants.h"
#include "pool/client.h"

/* Submissions that one call has in flight: half the ring, so that two callers share it. */
#define WINDOW	   (FM_RING_ENTRIES / 2)

#define UNANSWERED INT32_MIN

static void signal_daemon(struct fm_pool *pool)
{
	uint64_t one = 1;

	if (write(pool->submitted, &one, sizeof(one)) < 0 && errno != EAGAIN)
		fm_pool_gone(pool);
}

static void wake_daemon(struct fm_pool *pool)
{
	if (fm_ring_must_wake_daemon(&pool->ring))
		signal_daemon(pool);
}

/* ---- answers ---- */

static void submit_discard(struct fm_pool *pool, uint32_t entry, uint32_t generation)
{
	struct fm_submission s = {.op = FM_OP_DISCARD, .entry = entry, .generation = generation};

	fm_ring_submit(&pool->ring, &s);
}

/* ring_lock. */
static void free_flight(struct fm_pool *pool, struct fm_flight *flight)
{
	flight->is_used = false;
	pool->free_flights[pool->free_flight_count++] = (uint32_t)(flight - pool->flights);
}

/* ring_lock. Undoes what an answer brought that came too late for its caller: at once, or as soon
 * as there is room for the discard. */
static void undo(struct fm_pool *pool, struct fm_flight *flight, const struct fm_completion *c)
{
	bool is_staged = !c->result && (flight->op == FM_OP_STAGE || flight->op == FM_OP_ADOPT ||
					flight->op == FM_OP_STAGE_AT);
	bool is_left = c->result && (flight->op == FM_OP_SEAL || flight->op == FM_OP_OFFER);

	if (flight->op == FM_OP_SEAL) {
		fm_lease_drop(&pool->leases[flight->lease]);
		fm_leases_return(pool, &flight->lease, 1);
	}
	if (!is_staged && !is_left) {
		free_flight(pool, flight);
		return;
	}
	if (is_staged) {
		flight->entry = c->entry;
		flight->generation = c->generation;
	}
	flight->owes_discard = true;
	pool->owing_count++;
}

/* ring_lock. Submits the discards that late answers left to do; true when there was one. */
static bool discard_late(struct fm_pool *pool)
{
	bool did_any = false;

	for (uint32_t i = 0; pool->owing_count && i < FM_RING_ENTRIES; i++) {
		struct fm_flight *flight = &pool->flights[i];

		if (!flight->is_used || !flight->owes_discard)
			continue;
		if (!fm_ring_room(&pool->ring))
			break;
		submit_discard(pool, flight->entry, flight->generation);
		flight->owes_discard = false;
		pool->owing_count--;
		free_flight(pool, flight);
		did_any = true;
	}
	return did_any;
}

/* ring_lock. Delivers what has come; true when something has. */
static bool deliver(struct fm_pool *pool)
{
	struct fm_completion completion;
	bool came = false, has_discarded;

	while (fm_ring_completion(&pool->ring, &completion)) {
		struct fm_flight *flight;

		came = true;
		if (completion.tag >= FM_RING_ENTRIES || !pool->flights[completion.tag].is_used ||
		    pool->flights[completion.tag].owes_discard)
			continue;
		flight = &pool->flights[completion.tag];
		if (flight->batch) {
			flight->batch->completions[flight->index] = completion;
			flight->batch->pending--;
			free_flight(pool, flight);
		} else {
			undo(pool, flight, &completion);
		}
	}
	/* Discards may have filled the ring, and nothing else would get in until they are taken. */
	has_discarded = discard_late(pool);
	if (has_discarded || pool->owing_count)
		wake_daemon(pool);
	if (came && fm_ring_must_tell_daemon(&pool->ring))
		signal_daemon(pool);
	if (came || has_discarded)
		pthread_cond_broadcast(&pool->ring_changed);
	return came || has_discarded;
}

/* Waits for the daemon without the lock: spins a little, then sleeps on the eventfd. @position: how
 * far answers were delivered; another thread may deliver more, and then there is no need to wait.
 */
static void poll_daemon(struct fm_pool *pool, uint32_t position, uint64_t deadline)
{
	struct pollfd states[2] = {
		{.fd = pool->completed, .events = POLLIN},
		{.fd = pool->socket, .events = 0}, /* its end only */
	};
	uint64_t start = fm_clock_ns(), now = start, count, wait;

	while (now - start < FM_SPIN_NS) {
		/* Acquire is in fm_ring_completion(); this only looks. */
		if (fm_load_relaxed(&pool->ring.shared->cq_tail.value) != position)
			return;
		for (int i = 0; i < 16; i++)
			fm_pause();
		now = fm_clock_ns();
	}
	if (!fm_ring_client_sleep(&pool->ring, position))
		return;
	wait = deadline > now ? (deadline - now + FM_NS_PER_MS - 1) / FM_NS_PER_MS : 0;
	if (poll(states, 2, wait > 1000 ? 1000 : (int)wait) > 0) {
		if (states[1].revents & (POLLHUP | POLLERR | POLLNVAL))
			fm_pool_gone(pool);
		if (states[0].revents & POLLIN &&
		    read(pool->completed, &count, sizeof(count)) < 0 && errno != EAGAIN)
			fm_pool_gone(pool);
	}
	fm_ring_client_awake(&pool->ring);
}

/* ring_lock. Waits until something changed: as the one who polls, or for the one who does. */
static void wait_for_change(struct fm_pool *pool, uint64_t deadline)
{
	uint32_t position;

	if (deliver(pool))
		return;
	if (pool->has_poller) {
		struct timespec until = {
			.tv_sec = (time_t)(deadline / FM_NS_PER_S),
			.tv_nsec = (long)(deadline % FM_NS_PER_S),
		};

		pthread_cond_timedwait(&pool->ring_changed, &pool->ring_lock, &until);
		return;
	}
	pool->has_poller = true;
	position = pool->ring.cq_position;
	pthread_mutex_unlock(&pool->ring_lock);
	poll_daemon(pool, position, deadline);
	pthread_mutex_lock(&pool->ring_lock);
	pool->has_poller = false;
	deliver(pool);
	/* Also without an answer: another thread must take over the polling. */
	pthread_cond_broadcast(&pool->ring_changed);
}

static bool is_gone(const struct fm_pool *pool)
{
	return atomic_load_explicit(&pool->is_gone, memory_order_relaxed);
}

/* ---- submitting ---- */

/* ring_lock, which is let go meanwhile. The next call, in which they would find room, may never
 * come. */
static void discard_all_late(struct fm_pool *pool)
{
	uint64_t until = pool->owing_count ? fm_clock_ns() + FM_GRACE_NS : 0;

	while (pool->owing_count && !is_gone(pool) && fm_clock_ns() < until) {
		pthread_mutex_unlock(&pool->ring_lock);
		usleep(50);
		pthread_mutex_lock(&pool->ring_lock);
		deliver(pool);
	}
}

/* ring_lock. One submission with an answer; the caller saw that there is room and a free flight. */
static void submit(struct fm_pool *pool, struct fm_batch *batch, uint32_t index,
		   struct fm_submission *s, uint32_t lease)
{
	uint32_t at = pool->free_flights[--pool->free_flight_count];

	pool->flights[at] = (struct fm_flight){
		.batch = batch,
		.index = index,
		.op = s->op,
		.lease = lease,
		.entry = s->entry,
		.generation = s->generation,
		.is_used = true,
	};
	s->tag = at;
	batch->pending++;
	fm_ring_submit(&pool->ring, s);
}

/* ring_lock. Nobody waits for @batch any more. */
static void abandon(struct fm_pool *pool, struct fm_batch *batch)
{
	for (uint32_t i = 0; i < FM_RING_ENTRIES; i++)
		if (pool->flights[i].is_used && pool->flights[i].batch == batch)
			pool->flights[i].batch = NULL;
}

/* ring_lock. What waits for room of @batch need not any more. Where this finds no room itself, a
 * deadline ends it. */
static void forget(struct fm_pool *pool, const struct fm_batch *batch)
{
	for (uint32_t i = 0; i < FM_RING_ENTRIES; i++) {
		/* No flight has this tag: a daemon that does not know FORGET answers nobody. */
		struct fm_submission s = {.op = FM_OP_FORGET, .tag = UINT64_MAX, .length = i};

		if (pool->flights[i].is_used && pool->flights[i].batch == batch &&
		    fm_ring_room(&pool->ring))
			fm_ring_submit(&pool->ring, &s);
	}
	wake_daemon(pool);
}

/* ring_lock, which is let go meanwhile: the gate has a lock of its own. */
static bool is_open(struct fm_pool *pool, const struct fm_gate *gate)
{
	bool open;

	if (!gate)
		return true;
	pthread_mutex_unlock(&pool->ring_lock);
	open = gate->enter(gate->context);
	if (open)
		gate->leave(gate->context);
	pthread_mutex_lock(&pool->ring_lock);
	return open;
}

/* How a batch is exchanged; all may be zero. */
struct manner {
	const uint32_t *leases;	    /* of seals */
	const struct fm_gate *gate; /* FM_ERR_CANCELLED soon after it has closed */
	bool together;		    /* nothing of another thread comes between the entries */
};

/*
 * Submits @n (at most WINDOW) entries and waits for all answers. Not answered in time, or the
 * daemon gone: their completions hold FM_ERR_DEADLINE or FM_ERR_DISCONNECTED. Returns how many were
 * submitted; the daemon will never hear of the others.
 */
static uint32_t exchange_all(struct fm_pool *pool, struct fm_submission *s, uint32_t n,
			     struct fm_completion *completions, uint64_t deadline,
			     const struct manner *how)
{
	uint32_t at_least = how->together ? n : 1;
	int unanswered = FM_ERR_DEADLINE;
	struct fm_batch batch = {.completions = completions};
	uint32_t sent = 0, fresh = 0, wanted = n;
	uint64_t now, until;

	for (uint32_t i = 0; i < n; i++)
		completions[i] = (struct fm_completion){.result = UNANSWERED};
	pthread_mutex_lock(&pool->ring_lock);
	for (;;) {
		/* First, since the lock is let go for it: nothing that comes meanwhile is missed.
		 */
		if (unanswered != FM_ERR_CANCELLED && !is_open(pool, how->gate)) {
			/* What is answered now is this caller's to give back: not long. */
			forget(pool, &batch);
			unanswered = FM_ERR_CANCELLED;
			wanted = sent;
			until = fm_clock_ns() + FM_GRACE_NS;
			deadline = deadline < until ? deadline : until;
		}
		while (sent < wanted && !is_gone(pool) && pool->free_flight_count >= at_least &&
		       fm_ring_room(&pool->ring) >= at_least) {
			at_least = 1;
			FM_KILL_POINT("ring: before a submission");
			submit(pool, &batch, sent, &s[sent],
			       how->leases ? how->leases[sent] : FM_NO_LEASE);
			sent++;
			fresh++;
		}
		if (fresh) {
			FM_KILL_POINT("ring: submitted, daemon not woken");
			wake_daemon(pool);
			FM_KILL_POINT("ring: submitted, daemon woken");
			fresh = 0;
		}
		now = fm_clock_ns();
		if ((sent == wanted && !batch.pending) || is_gone(pool) || now >= deadline)
			break;
		until = how->gate ? now + FM_CANCEL_NS : deadline;
		/* Who takes a discard says nothing, so room in the ring is looked for. */
		if (sent < wanted && (pool->free_flight_count >= at_least || pool->owing_count))
			until = now + FM_NS_PER_MS;
		wait_for_change(pool, until < deadline ? until : deadline);
	}
	deliver(pool);
	if (batch.pending)
		abandon(pool, &batch);
	discard_all_late(pool);
	for (uint32_t i = 0; i < n; i++)
		if (completions[i].result == UNANSWERED)
			completions[i].result = is_gone(pool) ? FM_ERR_DISCONNECTED : unanswered;
	pthread_mutex_unlock(&pool->ring_lock);
	return sent;
}

static void exchange(struct fm_pool *pool, struct fm_submission *s, uint32_t n,
		     struct fm_completion *completions, uint64_t deadline)
{
	const struct manner any = {0};

	exchange_all(pool, s, n, completions, deadline, &any);
}

void fm_pool_ask(struct fm_pool *pool, struct fm_submission *submission,
		 struct fm_completion *completion)
{
	exchange(pool, submission, 1, completion, fm_clock_ns() + FM_ANSWER_NS);
}

/* Submits without an answer; waits for room in the ring only. */
static void send_discards(struct fm_pool *pool, const struct fm_block *blocks, size_t n)
{
	uint64_t deadline = fm_clock_ns() + FM_ANSWER_NS;
	size_t sent = 0;

	pthread_mutex_lock(&pool->ring_lock);
	while (sent < n && !is_gone(pool) && fm_clock_ns() < deadline) {
		const struct fm_block *block = &blocks[sent];
		bool is_staged = block->data && block->lease == FM_NO_LEASE;

		if (!is_staged || fm_ring_room(&pool->ring)) {
			if (is_staged)
				submit_discard(pool, block->entry, block->generation);
			sent++;
			continue;
		}
		wake_daemon(pool);
		pthread_mutex_unlock(&pool->ring_lock);
		usleep(50);
		pthread_mutex_lock(&pool->ring_lock);
		fm_pool_probe(pool);
	}
	wake_daemon(pool);
	pthread_mutex_unlock(&pool->ring_lock);
}

void fm_pool_touch(struct fm_pool *pool, uint32_t entry, uint32_t generation)
{
	struct fm_submission s = {.op = FM_OP_TOUCH, .entry = entry, .generation = generation};

	/* Lossy by design: never waits for a lock, never fills the ring, never wakes the daemon. */
	if (pthread_mutex_trylock(&pool->ring_lock))
		return;
	if (fm_ring_room(&pool->ring) > FM_RING_ENTRIES / 2)
		fm_ring_submit(&pool->ring, &s);
	pthread_mutex_unlock(&pool->ring_lock);
}

/* ---- the calls ---- */

int fm_pool_explain(struct fm_pool *pool, int err, const char *what)
{
	switch (err) {
	case 0:
	case FM_ERR_EXISTS:
		return err;
	case FM_ERR_POOL_FULL:
		return fm_fail(err,
			       "%s: every block of the pool is leased or staged, also when "
			       "the deadline passed; release blocks or enlarge the pool",
			       what);
	case FM_ERR_LIMIT:
		return fm_fail(err,
			       "%s: beyond a limit of this client or of the pool; seal or discard "
			       "what is staged first",
			       what);
	case FM_ERR_DISCONNECTED:
		return fm_pool_gone(pool);
	case FM_ERR_DEADLINE:
		return fm_fail(err,
			       "%s: the daemon did not answer in time: it is stopped or overloaded "
			       "(its log says more); wait and try again, or do without the pool",
			       what);
	case FM_ERR_INVALID:
		return fm_fail(err,
			       "%s: the block is not staged by this client: another client staged "
			       "it, or it was sealed, offered or discarded already; leave it to "
			       "who has it, or stage one",
			       what);
	case FM_ERR_PERMISSION:
		return fm_fail(err, "%s: this client attached read-only, or it is another tenant's",
			       what);
	case FM_ERR_DRAINING:
		return fm_fail(err,
			       "%s: the daemon is being drained and gives no new blocks; use "
			       "another node, or compute without the pool",
			       what);
	default:
		return fm_fail(err, "%s: %s", what, fm_error_text(err));
	}
}

/* FM_ERR_LIMIT of a stage, by what @quota says (core/tenants.h). */
static int explain_quota(uint32_t quota)
{
	static const char *const names[] = {
		[FM_QUOTA_CLIENT_STAGING] =
			"what this client may have staged at a time (staging of "
			"a client); seal or discard what is staged first",
		[FM_QUOTA_MEMORY] =
			"what its tenant may hold (max), also when the deadline passed; "
			"release its blocks or raise that quota",
		[FM_QUOTA_STAGING] = "what its tenant may have staged at a time (staging); seal or "
				     "discard what is staged first, or raise that quota",
		[FM_QUOTA_REQUESTS] = "how many requests of its tenant may wait (requests); wait, "
				      "or raise that quota",
	};

	return fm_fail(FM_ERR_LIMIT, "staging: beyond %s", names[quota]);
}

static int take_block(struct fm_pool *pool, const struct fm_completion *c, struct fm_block *block)
{
	char *base;

	if (!fm_place_is_sane(pool, c->region, c->chunk, c->slot, c->length))
		return fm_fail(FM_ERR_CORRUPT, "the daemon named an impossible place");
	base = fm_pool_map(pool, c->region, true);
	if (!base)
		return fm_error_last();
	*block = (struct fm_block){
		.data = fm_block_address(base, c->chunk, c->slot, c->length),
		.length = c->length,
		.entry = c->entry,
		.generation = c->generation,
		.lease = FM_NO_LEASE,
		.origin = c->origin,
	};
	fm_prefault_staged(pool, base, block);
	return 0;
}

int fm_pool_check_writer(struct fm_pool *pool)
{
	int err = fm_pool_check(pool, true);

	if (!err && pool->flags & FM_ATTACH_READ_ONLY)
		return fm_fail(FM_ERR_PERMISSION, "this client attached read-only");
	return err;
}

/* What the pool could not hold if it were empty is refused before it is emptied for it. */
static int check_room(const struct fm_pool *pool, uint64_t length, size_t n)
{
	uint64_t pages = (length + FM_SLOT_GRAIN - 1) / FM_SLOT_GRAIN;
	uint64_t in_chunk = FABRICMGR_CHUNK_BYTES / FM_SLOT_GRAIN / pages;
	uint64_t chunks = pool->region_bytes / FABRICMGR_CHUNK_BYTES;

	if (n <= chunks * in_chunk)
		return 0;
	return fm_fail(FM_ERR_LIMIT,
		       "staging %zu blocks of %llu bytes: the whole pool has room for %llu; stage "
		       "fewer at a time",
		       n, (unsigned long long)length, (unsigned long long)chunks * in_chunk);
}

int fm_pool_stage(struct fm_pool *pool, uint64_t length, size_t n, struct fm_block *blocks,
		  uint64_t deadline_ns, const struct fm_gate *gate)
{
	struct fm_submission submissions[WINDOW];
	struct fm_completion completions[WINDOW];
	size_t done = 0;
	uint64_t start = fm_clock_ns();
	uint32_t quota = 0;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (n && !blocks)
		return fm_fail(FM_ERR_INVALID, "no room for blocks was given");
	if (!length || length > FABRICMGR_CHUNK_BYTES)
		return fm_fail(FM_ERR_LIMIT,
			       "a block of %llu bytes: a block has 1 to %u bytes (one chunk)",
			       (unsigned long long)length, FABRICMGR_CHUNK_BYTES);
	err = check_room(pool, length, n);
	if (err)
		return err;
	if (!deadline_ns)
		deadline_ns = FM_DEADLINE_NS;
	while (!err && done < n) {
		uint32_t piece = (uint32_t)(n - done < WINDOW ? n - done : WINDOW);
		uint64_t spent = fm_clock_ns() - start;
		uint64_t left = deadline_ns > spent ? deadline_ns - spent : 0;

		for (uint32_t i = 0; i < piece; i++)
			submissions[i] = (struct fm_submission){
				.op = FM_OP_STAGE, .length = length, .deadline_ns = left};
		FM_KILL_POINT("stage: before");
		exchange_all(pool, submissions, piece, completions,
			     fm_clock_ns() + left + FM_GRACE_NS, &(struct manner){.gate = gate});
		FM_KILL_POINT("stage: answered");
		for (uint32_t i = 0; i < piece; i++) {
			struct fm_block *block = &blocks[done + i];

			*block = (struct fm_block){.lease = FM_NO_LEASE};
			if (!completions[i].result)
				completions[i].result = take_block(pool, &completions[i], block);
			if (!completions[i].result)
				fm_layers_erase(block->data, block->length);
			if (completions[i].result && !err) {
				err = completions[i].result;
				quota = completions[i].quota;
			}
		}
		done += piece;
	}
	if (err) {
		fm_block_discard(pool, blocks, done); /* all or none */
		if (err == FM_ERR_LIMIT && quota && quota <= FM_QUOTA_REQUESTS)
			return explain_quota(quota);
		return fm_pool_explain(pool, err, "staging");
	}
	return 0;
}

static int explain_stage_at(struct fm_pool *pool, int err)
{
	switch (err) {
	case FM_ERR_BUSY:
		return fm_fail(err, "staging in a region: a block that lies there is still held, "
				    "by a reader or by this client; release it, or try again "
				    "later");
	case FM_ERR_EXISTS:
		return fm_fail(err, "staging in a region: a block that overlaps it is staged "
				    "already: seal or discard that first");
	case FM_ERR_LIMIT:
		return fm_fail(err, "staging in a region: blocks in adopted memory have taken half "
				    "of the index: remove some, or give the pool more entries");
	case FM_ERR_INVALID:
		return fm_fail(err,
			       "staging in a region: a block begins on a page of %u bytes and "
			       "lies within one chunk of %u, 1 byte to all of it",
			       FM_SLOT_GRAIN, FABRICMGR_CHUNK_BYTES);
	case FM_ERR_NOT_FOUND:
		return fm_fail(err, "staging in a region: it was released");
	default:
		return fm_pool_explain(pool, err, "staging in a region");
	}
}

static void take_staged(const struct fm_region *region, const struct fm_completion *c,
			struct fm_stage_at *stage)
{
	stage->result = c->result;
	if (!c->result)
		stage->block = (struct fm_block){
			.data = region->memory + stage->offset,
			.length = c->length,
			.entry = c->entry,
			.generation = c->generation,
			.lease = FM_NO_LEASE,
			.origin = c->origin,
		};
}

/* Asks for those that have had no room in the index so far, and returns how many still have none.
 */
static size_t stage_pending(struct fm_pool *pool, const struct fm_region *region,
			    struct fm_stage_at *stages, size_t n, uint64_t wait_ns)
{
	struct fm_submission submissions[WINDOW];
	struct fm_completion completions[WINDOW];
	struct fm_stage_at *asked[WINDOW];
	size_t pending = 0;
	uint32_t piece = 0;

	for (size_t i = 0; i < n || piece;) {
		for (; i < n && piece < WINDOW; i++) {
			if (stages[i].result != FM_ERR_POOL_FULL)
				continue;
			submissions[piece] = (struct fm_submission){
				.op = FM_OP_STAGE_AT,
				.entry = region->region,
				.length = stages[i].length,
				.reserved[0] = stages[i].offset,
			};
			asked[piece++] = &stages[i];
		}
		FM_KILL_POINT("stage at: before");
		exchange(pool, submissions, piece, completions,
			 fm_clock_ns() + wait_ns + FM_GRACE_NS);
		FM_KILL_POINT("stage at: answered");
		for (; piece; piece--) {
			take_staged(region, &completions[piece - 1], asked[piece - 1]);
			pending += asked[piece - 1]->result == FM_ERR_POOL_FULL;
		}
	}
	return pending;
}

int fm_block_stage_at(struct fm_pool *pool, struct fm_region *region, struct fm_stage_at *stages,
		      size_t n, uint64_t deadline_ns)
{
	uint64_t start = fm_clock_ns(), wait = deadline_ns ? deadline_ns : FM_DEADLINE_NS, spent;
	int first = 0, err = fm_pool_check_writer(pool);
	size_t pending = n;

	if (!err && ((n && !stages) || !fm_region_is_of(pool, region)))
		err = fm_fail(FM_ERR_INVALID,
			      "staging in a region needs one that this client adopted, and places");
	for (size_t i = 0; stages && i < n; i++) {
		stages[i].block = (struct fm_block){.lease = FM_NO_LEASE};
		stages[i].result = err ? err : FM_ERR_POOL_FULL;
	}
	if (err)
		return err;
	for (spent = 0; pending && spent <= wait; spent = fm_clock_ns() - start) {
		if (spent)
			usleep(1000); /* an entry is free when somebody releases a block */
		pending = stage_pending(pool, region, stages, n, wait - spent);
	}
	for (size_t i = 0; i < n && !first; i++)
		first = stages[i].result;
	return first ? explain_stage_at(pool, first) : 0;
}

int fm_block_stage(struct fm_pool *pool, uint64_t length, size_t n, struct fm_block *blocks,
		   uint64_t deadline_ns)
{
	return fm_pool_stage(pool, length, n, blocks, deadline_ns, NULL);
}

/* One window of seals: leases first, then the submissions, then what became of each. */
static int seal_piece(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
		      const uint32_t *checksums, uint32_t n, uint64_t wait_ns, bool is_group)
{
	struct fm_submission submissions[WINDOW];
	struct fm_completion completions[WINDOW];
	uint32_t leases[WINDOW], sent;
	int first = 0;

	if (!fm_leases_reserve(pool, leases, n))
		return fm_fail(FM_ERR_LIMIT,
			       "the lease table (%u entries) has no room for %u sealed blocks; "
			       "release blocks or attach with more leases",
			       pool->lease_count, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct fm_block *block = seals[i].block;
		/* Relaxed: they are ours since the completion of the stage (acquire). */
		uint64_t place = fm_load_relaxed(&pool->index.entries[block->entry].place);
		uint64_t extent = fm_load_relaxed(&pool->index.entries[block->entry].extent);

		submissions[i] = (struct fm_submission){
			.op = FM_OP_SEAL,
			.entry = block->entry,
			.generation = block->generation,
			.crc32c = checksums ? checksums[i] : fm_crc32c(block->data, block->length),
			.key = seals[i].key,
			.has_parent = seals[i].parent != NULL,
			.flags = seals[i].flags | (is_group && i + 1 < n ? FM_SUBMIT_MORE : 0),
		};
		if (seals[i].parent)
			submissions[i].parent = *seals[i].parent;
		memcpy(submissions[i].ns, ns->bytes, sizeof(submissions[i].ns));
		/* Before the daemon can make it visible, and so evictable. */
		fm_lease_write(&pool->leases[leases[i]], FM_HIGH(place), FM_LOW(place),
			       block->generation, FM_LOW(extent));
	}
	FM_KILL_POINT("seal: leases written");
	sent = exchange_all(pool, submissions, n, completions, fm_clock_ns() + wait_ns,
			    &(struct manner){.leases = leases, .together = is_group});
	FM_KILL_POINT("seal: answered");
	for (uint32_t i = 0; i < n; i++) {
		int result = completions[i].result;

		seals[i].result = result;
		if (!result) {
			seals[i].block->lease = fm_hold(pool, leases[i]);
		} else if (result == FM_ERR_DEADLINE && i < sent) {
			/* The answer may still come; it will find nobody and be undone. */
			*seals[i].block = (struct fm_block){.lease = FM_NO_LEASE};
		} else if (result == FM_ERR_DISCONNECTED) {
			continue; /* the lease keeps nothing any more; its place is lost, too */
		} else {
			fm_lease_drop(&pool->leases[leases[i]]);
			fm_leases_return(pool, &leases[i], 1);
		}
		if (result && !first)
			first = result;
	}
	return first;
}

/* Puts give blocks that they filled with whatever the caller had: @has_layers false. */
static int check_seal(const struct fm_pool *pool, const struct fm_seal *seal, size_t i,
		      bool is_group, bool has_layers)
{
	const struct fm_block *block = seal->block;
	uint32_t layer, layers;

	if (seal->flags & ~FM_SEAL_REPLACE)
		return fm_fail(FM_ERR_INVALID,
			       "seal %zu has unknown flags %x: they are 0 or FM_SEAL_REPLACE", i,
			       seal->flags);
	if (is_group && seal->flags)
		return fm_fail(FM_ERR_INVALID,
			       "seal %zu has FM_SEAL_REPLACE, but a group takes no block's place: "
			       "remove the block of that key first",
			       i);
	if (!block || !block->data || block->lease != FM_NO_LEASE ||
	    block->entry >= pool->index.entries_max)
		return fm_fail(FM_ERR_INVALID,
			       "seal %zu names a block that is not staged by this client", i);
	if (has_layers && fm_layers_lack(block->data, block->length, &layer, &layers))
		return fm_fail(FM_ERR_INVALID,
			       "seal %zu: layer %u of the block's %u is not sealed yet: "
			       "fm_layers_seal() all of them first",
			       i, layer, layers);
	return 0;
}

/* Whether the seals may be one group; of which one it is said when they may not. */
static int check_members(struct fm_seal *seals, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++) {
			int err = 0;

			if (k < i && seals[i].block->entry == seals[k].block->entry)
				err = fm_fail(FM_ERR_INVALID,
					      "seals %zu and %zu of a group name the same block: "
					      "stage one for each",
					      k, i);
			else if (k < i &&
				 !memcmp(&seals[i].key, &seals[k].key, sizeof(seals[i].key)))
				err = fm_fail(FM_ERR_INVALID,
					      "seals %zu and %zu of a group have the same key: "
					      "give each block its own",
					      k, i);
			else if (seals[i].parent &&
				 !memcmp(seals[i].parent, &seals[k].key, sizeof(seals[k].key)))
				err = fm_fail(FM_ERR_INVALID,
					      "the parent of seal %zu is seal %zu of the same "
					      "group: a member's parent is a block sealed before, "
					      "or NULL",
					      i, k);
			if (err) {
				seals[i].result = err;
				return err;
			}
		}
	return 0;
}

/* Whether the seals can be asked for at all. If not, the one that is wrong has the error, and the
 * others, which it held back, FM_ERR_CANCELLED. */
static int check_seals(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
		       size_t n, bool is_group, bool has_layers)
{
	int err = fm_pool_check_writer(pool);

	for (size_t i = 0; seals && i < n; i++)
		seals[i].result = err ? err : FM_ERR_CANCELLED; /* by another's failure */
	if (err)
		return err;
	if (n && (!seals || !ns))
		return fm_fail(FM_ERR_INVALID, "a seal needs a namespace and blocks");
	if (is_group && (!n || n > FM_GROUP_MAX))
		return fm_fail(FM_ERR_LIMIT, "a group has 1 to %u blocks, not %zu", FM_GROUP_MAX,
			       n);
	for (size_t i = 0; i < n; i++) {
		err = check_seal(pool, &seals[i], i, is_group, has_layers);
		if (err) {
			seals[i].result = err;
			return err;
		}
	}
	return is_group ? check_members(seals, n) : 0;
}

int fm_group_seal(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals, size_t n)
{
	int err = check_seals(pool, ns, seals, n, true, true);

	if (err)
		return err;
	err = seal_piece(pool, ns, seals, NULL, (uint32_t)n, FM_ANSWER_NS, true);
	/* What is wrong with one, not that the others were held back by it. */
	for (size_t i = 0; err == FM_ERR_CANCELLED && i < n; i++)
		if (seals[i].result != FM_ERR_CANCELLED)
			err = seals[i].result;
	if (err == FM_ERR_EXISTS)
		return fm_fail(err, "a block of one of the group's keys is sealed already");
	return fm_pool_explain(pool, err, "sealing a group");
}

/* Leased one by one, and then found once more: so at the first of these looks all were there. */
static bool are_all_found(const struct fm_pool *pool, const struct fm_key *keys, size_t n,
			  const struct fm_block *blocks)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t word;

		if (fm_index_find(&pool->index, &keys[i], &word) != blocks[i].entry ||
		    FABRICMGR_WORD_GENERATION(word) != blocks[i].generation)
			return false;
	}
	return true;
}

int fm_group_acquire(struct fm_pool *pool, const struct fm_key *keys, size_t n,
		     struct fm_block *blocks)
{
	for (uint32_t tries = 0; tries < FM_ACQUIRE_RETRIES; tries++) {
		int64_t got = fm_pool_acquire(pool, keys, n, blocks);

		if (got < 0)
			return (int)got;
		if ((size_t)got == n && n && are_all_found(pool, keys, n, blocks))
			return 0;
		fm_block_release(pool, blocks, (size_t)got);
		if ((size_t)got < n || !n)
			break;
	}
	return fm_fail(FM_ERR_NOT_FOUND, "of a group of %zu blocks not all are in the pool", n);
}

int fm_block_seal(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals, size_t n)
{
	return fm_block_seal_summed(pool, ns, seals, NULL, n, FM_ANSWER_NS);
}

int fm_block_seal_summed(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
			 const uint32_t *checksums, size_t n, uint64_t wait_ns)
{
	int first = 0, err = check_seals(pool, ns, seals, n, false, !checksums);

	if (err)
		return err;
	for (size_t done = 0; done < n; done += WINDOW) {
		uint32_t piece = (uint32_t)(n - done < WINDOW ? n - done : WINDOW);

		err = seal_piece(pool, ns, seals + done, checksums ? checksums + done : NULL, piece,
				 wait_ns, false);
		for (uint32_t i = 0; i < piece; i++)
			if (seals[done + i].result == FM_ERR_CANCELLED)
				seals[done + i].result = err;
		if (err && !first)
			first = err;
	}
	if (first == FM_ERR_EXISTS)
		return fm_fail(first, "a block of this key is already sealed");
	return fm_pool_explain(pool, first, "sealing");
}

void fm_block_discard(struct fm_pool *pool, struct fm_block *blocks, size_t n)
{
	if (!blocks || fm_pool_check(pool, false))
		return;
	send_discards(pool, blocks, n);
	FM_KILL_POINT("discard: submitted");
	for (size_t i = 0; i < n; i++)
		if (blocks[i].lease == FM_NO_LEASE)
			blocks[i].data = NULL;
}

int64_t fm_pool_remove(struct fm_pool *pool, const struct fm_key *keys, size_t n)
{
	return fm_pool_remove_within(pool, keys, n, FM_ANSWER_NS);
}

int64_t fm_pool_remove_within(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			      uint64_t wait_ns)
{
	struct fm_submission submissions[WINDOW];
	struct fm_completion completions[WINDOW];
	uint64_t deadline = fm_clock_ns() + wait_ns;
	int64_t removed = 0;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (n && !keys)
		return fm_fail(FM_ERR_INVALID, "no keys were given");
	for (size_t done = 0; done < n; done += WINDOW) {
		uint32_t piece = (uint32_t)(n - done < WINDOW ? n - done : WINDOW);

		for (uint32_t i = 0; i < piece; i++)
			submissions[i] =
				(struct fm_submission){.op = FM_OP_REMOVE, .key = keys[done + i]};
		exchange(pool, submissions, piece, completions, deadline);
		for (uint32_t i = 0; i < piece; i++) {
			removed += !completions[i].result;
			if (completions[i].result && completions[i].result != FM_ERR_NOT_FOUND)
				err = completions[i].result;
		}
		if (err)
			return fm_pool_explain(pool, err, "removing blocks");
	}
	return removed;
}

int64_t fm_pool_invalidate(struct fm_pool *pool, const struct fm_digest *ns)
{
	struct fm_submission s = {.op = FM_OP_INVALIDATE};
	struct fm_completion c;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (!ns)
		return fm_fail(FM_ERR_INVALID, "no namespace was given");
	memcpy(s.ns, ns->bytes, sizeof(s.ns));
	exchange(pool, &s, 1, &c, fm_clock_ns() + FM_ANSWER_NS);
	return c.result ? fm_pool_explain(pool, c.result, "invalidating a namespace")
			: (int64_t)c.origin;
}

int fm_block_hint(struct fm_pool *pool, const struct fm_block *block, const struct fm_hint *hint)
{
	struct fm_submission s = {.op = FM_OP_HINT};
	struct fm_completion c;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (!block || !hint || hint->size < sizeof(*hint) || hint->priority < -FM_PRIORITY_MAX ||
	    hint->priority > FM_PRIORITY_MAX)
		return fm_fail(FM_ERR_INVALID,
			       "a hint needs a block, its size and a priority from -%d to %d",
			       FM_PRIORITY_MAX, FM_PRIORITY_MAX);
	s.entry = block->entry;
	s.generation = block->generation;
	s.deadline_ns = hint->pin_ns;
	s.length = hint->expected_ns;
	s.reserved[0] = (uint64_t)(int64_t)hint->priority;
	exchange(pool, &s, 1, &c, fm_clock_ns() + FM_ANSWER_NS);
	if (c.result == FM_ERR_NOT_FOUND)
		return fm_fail(
			FM_ERR_NOT_FOUND,
			"a hint: its block has left the pool (evicted, removed or replaced): "
			"acquire its key again, and give the hint while it is leased");
	return c.result ? fm_pool_explain(pool, c.result, "a hint") : 0;
}

int64_t fm_pool_fetch(struct fm_pool *pool, const struct fm_key *keys, size_t n,
		      uint64_t deadline_ns)
{
	uint64_t start = fm_clock_ns(), limit = deadline_ns ? deadline_ns : FM_DEADLINE_NS;
	struct fm_submission submissions[WINDOW];
	struct fm_completion completions[WINDOW];
	int64_t present = fm_pool_match(pool, keys, n);
	uint32_t lease = FM_NO_LEASE;
	uint64_t call;

	if (present < 0 || (size_t)present == n || !pool->has_nvme)
		return present;
	/* Relaxed: it orders nothing. */
	call = 1 + atomic_fetch_add_explicit(&pool->fetch_calls, 1, memory_order_relaxed);
	for (size_t done = (size_t)present; done < n; done += WINDOW) {
		uint32_t piece = (uint32_t)(n - done < WINDOW ? n - done : WINDOW);
		uint64_t passed = fm_clock_ns() - start, left = passed < limit ? limit - passed : 0;
		uint32_t last = 0;

		/* The chain so far: what comes would push it out. */
		fm_leases_let_go(pool, lease);
		lease = done ? fm_leases_hold(pool, &keys[done - 1]) : FM_NO_LEASE;
		for (uint32_t i = 0; i < piece; i++) {
			last = i;
			submissions[i] = (struct fm_submission){
				.op = FM_OP_FETCH,
				.key = keys[done + i],
				.length = call,
				.deadline_ns = left,
			};
		}
		exchange(pool, submissions, piece, completions, fm_clock_ns() + left);
		if (completions[last].result)
			break;
	}
	present = fm_pool_match(pool, keys, n);
	fm_leases_let_go(pool, lease);
	return present;
}

int fm_block_offer(struct fm_pool *pool, struct fm_block *block, struct fm_key *id)
{
	struct fm_submission s = {.op = FM_OP_OFFER};
	struct fm_completion c;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (!block || !id || !block->data || block->lease != FM_NO_LEASE)
		return fm_fail(FM_ERR_INVALID, "only a block staged by this client can be offered");
	s.entry = block->entry;
	s.generation = block->generation;
	FM_KILL_POINT("offer: before");
	exchange(pool, &s, 1, &c, fm_clock_ns() + FM_ANSWER_NS);
	FM_KILL_POINT("offer: answered");
	if (c.result == FM_ERR_INVALID)
		return fm_fail(FM_ERR_INVALID,
			       "offering a block: it is not staged by this client; or others may "
			       "join it (fm_layers_begin() with an id), or it lies in memory that "
			       "this client had adopted, and stays with its writer: seal it "
			       "instead");
	if (c.result)
		return fm_pool_explain(pool, c.result, "offering a block");
	*id = c.key;
	*block = (struct fm_block){.lease = FM_NO_LEASE};
	return 0;
}

int fm_block_adopt(struct fm_pool *pool, const struct fm_key *id, struct fm_block *out)
{
	struct fm_submission s = {.op = FM_OP_ADOPT};
	struct fm_completion c;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (!id || !out)
		return fm_fail(FM_ERR_INVALID, "an adoption needs an id and room for a block");
	s.key = *id;
	FM_KILL_POINT("adopt: before");
	exchange(pool, &s, 1, &c, fm_clock_ns() + FM_ANSWER_NS);
	FM_KILL_POINT("adopt: answered");
	if (c.result == FM_ERR_NOT_FOUND)
		return fm_fail(FM_ERR_NOT_FOUND, "nothing is on offer under this id (adopted "
						 "already, or older than 30 s)");
	if (c.result)
		return fm_pool_explain(pool, c.result, "adopting a block");
	return take_block(pool, &c, out);
}
