/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attachment to a pool, shared by attach.c (life, socket), read.c (lookup and leases) and
 * write.c (staging and sealing, the ring). Any thread may use it. Invariant: locks are taken in the
 * order queue_lock, socket_lock, ring_lock, lease_lock, region_lock.
 */
#ifndef FM_POOL_CLIENT_H
#define FM_POOL_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/lease.h"
#include "core/ring.h"
#include "mem/region.h"
#include "pool/wire.h"

#define FM_NO_LEASE UINT32_MAX

/* An arena as mapped here. Pointers are stored with release once, and read without a lock. */
struct fm_mapping {
	_Atomic(char *) readable; /* PROT_READ */
	_Atomic(char *) writable; /* NULL unless this client may write there */
};

/* A region of a client's own memory, as mapped here. region_lock. */
struct fm_region {
	char *memory; /* NULL: not mapped */
	uint64_t bytes;
	uint32_t region, serial; /* of our own */
	uint32_t holds;		 /* leases of ours, of a region that another client owns */
	bool is_own;		 /* adopted by this client: mapped for writing, until released */
};

/* What a caller waits for: its submissions that are not answered yet. ring_lock. */
struct fm_batch {
	uint32_t pending;
	struct fm_completion *completions; /* one for each submission */
};

/* Names a submission in flight; the tag of a submission is its place in the table. ring_lock. */
struct fm_flight {
	struct fm_batch *batch; /* NULL with is_used: nobody waits any more */
	uint32_t index;
	uint32_t op;
	uint32_t lease; /* SEAL: to be dropped when nobody waits */
	uint32_t entry, generation;
	bool is_used;
	bool owes_discard; /* of @entry: its answer came too late, and the ring had no room */
};

struct fm_queue;

struct fm_pool {
	int socket;
	int submitted, completed; /* eventfds */
	/* Relaxed, without pairs: once true, always true, and it stands for no other data. */
	_Atomic bool is_gone; /* the daemon is not there any more */
	uint32_t fork_value; /* see base/fork.h */
	uint32_t client_id, region, flags;
	char tenant[32], salt[64];
	bool has_nvme;
	/* Relaxed: only has to differ between calls. */
	_Atomic uint64_t fetch_calls;
	struct fm_index index;
	void *index_memory;
	const struct fm_header *headers;
	uint64_t index_bytes, header_bytes, lease_bytes, ring_bytes, region_bytes;
	struct fm_mapping mappings[FM_ARENAS_MAX + 1];
	struct fm_region regions[FM_ADOPTED_MAX];
	_Atomic uint64_t *prefaulted; /* of the own arena: see prefault.c; NULL: none */

	pthread_mutex_t socket_lock; /* a request and its reply */
	uint32_t unanswered; /* replies that come first, and that nobody waits for any more */
	pthread_mutex_t region_lock; /* mapping a region */

	pthread_mutex_t lease_lock; /* which entries of the table are in use */
	struct fabricmgr_lease *leases;
	uint32_t *free_leases;
	uint32_t free_lease_count, lease_count;
	/* How often each place was given back: see fm_hold(). Relaxed, written under the lock. */
	_Atomic uint16_t *lease_uses;

	pthread_mutex_t ring_lock;
	pthread_cond_t ring_changed; /* answers came, or flights became free */
	bool has_poller;	     /* one thread waits for the daemon, for all */
	struct fm_ring ring;
	struct fm_flight flights[FM_RING_ENTRIES];
	uint32_t free_flights[FM_RING_ENTRIES];
	uint32_t free_flight_count, owing_count;

	pthread_mutex_t queue_lock; /* taken before every other; the list alone */
	struct fm_queue *queues;
};

/*
 * What fm_block.lease holds: a place of the lease table, and above it how often that was given back
 * before. A copy of a handle that was released is so told from the holds that came after it (for
 * 65,535 of them), and takes nothing from whom has the place now.
 */
static inline uint32_t fm_hold(const struct fm_pool *pool, uint32_t place)
{
	return (uint32_t)atomic_load_explicit(&pool->lease_uses[place], memory_order_relaxed)
		       << 16 |
	       place;
}

_Static_assert(FABRICMGR_LEASES_MAX <= 1 << 16, "a place has 16 bits in a hold");

static inline uint32_t fm_hold_place(uint32_t hold)
{
	return hold & 0xffff;
}

static inline bool fm_hold_is_current(const struct fm_pool *pool, uint32_t hold)
{
	return hold != FM_NO_LEASE && fm_hold_place(hold) < pool->lease_count &&
	       hold == fm_hold(pool, fm_hold_place(hold));
}

/* 0, FM_ERR_INVALID, FM_ERR_FORKED or (when @needs_daemon) FM_ERR_DISCONNECTED. */
int fm_pool_check(const struct fm_pool *pool, bool needs_daemon);
int fm_pool_gone(struct fm_pool *pool);
/* True when the socket says that the daemon is gone; remembers it. */
bool fm_pool_probe(struct fm_pool *pool);

/* One request on the socket and its reply, within 5 s. @sent: a descriptor that goes with it, or
 * -1. @fds: for *@n_fds that come, and how many did. */
int fm_pool_request(struct fm_pool *pool, struct fm_wire_request *request,
		    struct fm_wire_reply *reply, int sent, int *fds, int *n_fds);

/* region.c: the address of a block that is leased, at a place that is checked; NULL: detail is set.
 * Held until fm_place_let_go() of its region, before the lease is dropped; or fm_lease_end(), which
 * does both. */
char *fm_place_hold(struct fm_pool *pool, uint32_t region, uint32_t chunk, uint32_t slot,
		    uint64_t length);
void fm_place_let_go(struct fm_pool *pool, uint32_t region);
void fm_lease_end(struct fm_pool *pool, uint32_t place);
void fm_regions_unmap(struct fm_pool *pool);
/* Whether this client adopted it. */
bool fm_region_is_of(const struct fm_pool *pool, const struct fm_region *region);

/* The mapping of an arena, asking the daemon for its memory the first time. NULL: detail is set. */
char *fm_pool_map(struct fm_pool *pool, uint32_t region, bool is_writable);

/* prefault.c: for the own arena, for a block that was staged, for every block that is sealed. */
void fm_prefault_init(struct fm_pool *pool);
void fm_prefault_staged(struct fm_pool *pool, char *base, const struct fm_block *block);
int fm_prefault_sealed(struct fm_pool *pool);

/* Entries of the lease table: @n or none. */
bool fm_leases_reserve(struct fm_pool *pool, uint32_t *leases, size_t n);
void fm_leases_return(struct fm_pool *pool, const uint32_t *leases, size_t n);
/* Leases up to @n leading blocks of a chain into reserved entries, which is no use of them yet;
 * returns how many, or an error with none. */
int64_t fm_leases_take(struct fm_pool *pool, const struct fm_key *keys, size_t n,
		       const uint32_t *leases, struct fm_block *blocks);
/* Keeps a block, and with it what it is a child of, from making room for what comes behind it: that
 * is no use of it. Returns the lease for fm_leases_let_go(); FM_NO_LEASE: it is not there, or the
 * table is full. */
uint32_t fm_leases_hold(struct fm_pool *pool, const struct fm_key *key);
void fm_leases_let_go(struct fm_pool *pool, uint32_t lease);

/* fm_block_seal() by one who knows the CRC32C of each block already; NULL: computed here. @wait_ns:
 * what the daemon has to answer. */
int fm_block_seal_summed(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
			 const uint32_t *checksums, size_t n, uint64_t wait_ns);
int64_t fm_pool_remove_within(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			      uint64_t wait_ns);

/* What the daemon has to answer when the caller has @left_ns: more by the grace, to a bound. */
static inline uint64_t fm_answer_wait(uint64_t left_ns)
{
	return left_ns < FM_ANSWER_NS - FM_GRACE_NS ? left_ns + FM_GRACE_NS : FM_ANSWER_NS;
}

/* 0, or why this client writes nothing. */
int fm_pool_check_writer(struct fm_pool *pool);
/* Between enter() and leave() the caller's memory may be touched; enter() is false once it may not
 * be any more. A NULL gate is always open. */
struct fm_gate {
	bool (*enter)(void *context);
	void (*leave)(void *context);
	void *context;
};

/* fm_block_stage(); FM_ERR_CANCELLED soon after the gate has closed. */
int fm_pool_stage(struct fm_pool *pool, uint64_t length, size_t n, struct fm_block *blocks,
		  uint64_t deadline_ns, const struct fm_gate *gate);
/* One submission and its answer, within 10 s. */
void fm_pool_ask(struct fm_pool *pool, struct fm_submission *submission,
		 struct fm_completion *completion);
/* Sets the detail for what the daemon answered to @what, and returns it. */
int fm_pool_explain(struct fm_pool *pool, int err, const char *what);

/* Whether a range of a block is whole layers that have checksums of their own, and whether they
 * have those (layers.c). */
bool fm_layers_cover(const struct fm_block *block, uint64_t offset, uint64_t bytes, bool *is_sound);

/* Ends the threads of every queue of the pool, which can only be collected and destroyed then. */
void fm_queues_stop(struct fm_pool *pool);

/* Tells the daemon, if it costs nothing, that a leaf and its ancestors were used. */
void fm_pool_touch(struct fm_pool *pool, uint32_t entry, uint32_t generation);

static inline char *fm_block_address(char *base, uint32_t chunk, uint32_t slot, uint64_t length)
{
	uint64_t slot_bytes = (length + FM_SLOT_GRAIN - 1) / FM_SLOT_GRAIN * FM_SLOT_GRAIN;

	return base + (uint64_t)chunk * FABRICMGR_CHUNK_BYTES + slot * slot_bytes;
}

static inline bool fm_place_is_sane(const struct fm_pool *pool, uint32_t region, uint32_t chunk,
				    uint32_t slot, uint64_t length)
{
	return region && region <= FM_ARENAS_MAX && length &&
	       chunk < pool->region_bytes / FABRICMGR_CHUNK_BYTES &&
	       (slot + 1ull) * ((length + FM_SLOT_GRAIN - 1) / FM_SLOT_GRAIN * FM_SLOT_GRAIN) <=
		       FABRICMGR_CHUNK_BYTES;
}

#endif
