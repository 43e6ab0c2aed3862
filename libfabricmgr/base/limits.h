/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every limit of the library, each with its reason. Any layer may include this; documents quote it.
 * Invariant: nothing in the library grows beyond a number that stands here.
 */
#ifndef FM_BASE_LIMITS_H
#define FM_BASE_LIMITS_H

/* A slot is cut at this grain, so that every block starts on a page (DMA, mprotect). */
#define FM_SLOT_GRAIN 4096u

/* Slots of one chunk at most, and size classes at most: a chunk in pages of FM_SLOT_GRAIN. */
#define FM_SLOTS_PER_CHUNK 1024u

/* Chunks of a pool: 16 TiB, more DRAM than a node has; bounds the daemon's private tables. */
#define FM_CHUNKS_MAX (4u << 20)

/* Index entries: 32 bits name one, the upper quarter is kept for markers such as FM_NO_ENTRY. */
#define FM_ENTRIES_MAX (1u << 30)

/* Trust domains (uids that write) of one pool: each costs a descriptor in every client. */
#define FM_ARENAS_MAX 64u

/* Regions of clients' own memory, of one pool and of one client: each costs the daemon a
 * descriptor; an engine has one, or one for each NUMA node. */
#define FM_ADOPTED_MAX	     64u
#define FM_ADOPTED_OF_CLIENT 16u

/* Descriptors that were sent instead of memory and are being closed, which may take as long as the
 * sender likes: as many threads. */
#define FM_CLOSING_MAX 8u

/* Tenants of one pool: each has an arena at least. */
#define FM_TENANTS_MAX 32u

/* Users and groups that may attach: looked through one by one at each hello. */
#define FM_ALLOWED_MAX 64u

/* Clients of one daemon: each costs six descriptors; 1024 stay within the usual hard limit. */
#define FM_CLIENTS_MAX 1024u

/* Those of one user: a quarter. The last ones are for root and the daemon's user, whom the first
 * does not bind: who looks what is wrong gets in. */
#define FM_CLIENTS_OF_USER 256u
#define FM_CLIENTS_RESERVE 32u

/* Lines of the log about connections that are not taken: whoever may connect causes them. */
#define FM_TURNED_AWAY_NS (1 * FM_NS_PER_S)

/* Leases of a client that does not say: enough for 64 sequences of 1024 tokens at 16 a block. */
#define FM_LEASES_DEFAULT 4096u

/* Entries of a submission and of a completion ring: 256 * 192 bytes stay within a client's L2. */
#define FM_RING_ENTRIES 256u

/* Submissions taken from one client before the next one has its turn. */
#define FM_RING_BURST 64u

/* Victims of one eviction: the fence and the scan of all lease tables are paid once for them. */
#define FM_EVICT_BATCH 64u

/* Of a tenant's blocks, the part that goes at once at most: few, where it has few large ones. */
#define FM_EVICT_SHARE 64u

/* Victims when a whole chunk goes with its descendants: a chunk of the smallest class, four times.
 */
#define FM_EVICT_MAX 4096u

/* Chunks that go by one request to evict: a few ms in which the daemon serves nobody else. */
#define FM_EVICT_STEP_CHUNKS 16u

/* Blocks of one group: an object for each layer of a model of 64; a quarter of a ring. */
#define FM_GROUP_MAX 64u

/* Layers of one block that is sealed by layers: more than any model has; 8 bytes of it each. */
#define FM_LAYERS_MAX 1024u

/* Ancestors that one touch refreshes: a chain of 64 Ki tokens at 16 a block. */
#define FM_TOUCH_STEPS 4096u

/* Priorities of blocks, in powers of two: 65,536 times more or less than others. */
#define FM_PRIORITY_MAX 16

/* How often a reader looks again at a block whose word changed under it before it is a miss. */
#define FM_ACQUIRE_RETRIES 256u

/* How often removed blocks that were held are looked at again: a lease ends without a word. */
#define FM_REMOVED_RETRY_NS (10 * FM_NS_PER_MS)

/* Staged blocks offered and not yet adopted, over all clients: looked through one by one. */
#define FM_OFFERS_MAX 1024u

/* Stage requests of one client that wait for room: as many as its ring holds. */
#define FM_WAITERS_MAX FM_RING_ENTRIES

#define FM_NS_PER_S    1000000000ull
#define FM_NS_PER_MS   1000000ull

/* An offer that nobody adopts in this time is freed (fabricmgr.h promises 30 s). */
#define FM_OFFER_NS (30 * FM_NS_PER_S)

/* Longer than any I/O of a dead process that a device may still have in flight. */
#define FM_QUARANTINE_NS (1 * FM_NS_PER_S)

/* What a caller waits that names no deadline. */
#define FM_DEADLINE_NS (5 * FM_NS_PER_S)

/* What a client gives the daemon to answer beyond the deadline it was told, before it gives up. */
#define FM_GRACE_NS (500 * FM_NS_PER_MS)

/* How long a call without a deadline waits for a daemon that is there but does not answer. */
#define FM_ANSWER_NS (10 * FM_NS_PER_S)

/* A lease ends without telling the daemon: how often a waiting stage request is tried again. */
#define FM_RETRY_NS (1 * FM_NS_PER_MS)

/* Looking at the rings before sleeping: about the price of a wake-up on either side. */
#define FM_SPIN_NS 20000u

/* Requests whose deadline has passed, and whose replies may still come: then no more are sent. */
#define FM_UNANSWERED_MAX 16u

/* Requests of a queue that are submitted and not yet collected, and its threads that copy: more
 * than 16 cores do not move bytes faster. */
#define FM_QUEUE_DEPTH	     64u
#define FM_QUEUE_DEPTH_MAX   4096u
#define FM_QUEUE_WORKERS     2u
#define FM_QUEUE_WORKERS_MAX 16u

/* Keys of one request of a queue: 1 GiB of blocks of 256 KiB; bounds the private copy of its
 * arrays. */
#define FM_QUEUE_KEYS_MAX  4096u
#define FM_QUEUE_PARTS_MAX 262144u /* 64 a key: a layer's k and v of 32 layers */

/* What a queue copies before it looks whether that is still wanted: 50 us of copying. */
#define FM_COPY_PIECE (512u << 10)

/* How often a queue that waits for the daemon looks whether that is still wanted. */
#define FM_CANCEL_NS (100 * FM_NS_PER_MS)

/* A connection that has not said hello by then is closed. */
#define FM_HELLO_NS (5 * FM_NS_PER_S)

/* Operations of the NVMe tier that the kernel has at once: what one drive wants to be busy. */
#define FM_NVME_DEPTH 128u

/* Blocks being read at once, and their bytes: 4 of the longest, or 16 of 1 MiB. Writes: half. */
#define FM_NVME_READS	    64u
#define FM_NVME_READ_BYTES  (32u << 20)
#define FM_NVME_WRITE_BYTES (32u << 20)

/* Blocks of one batch of the log: the longest block fits, and a header page is 0.1 %. */
#define FM_NVME_BATCH_BYTES (4u << 20)

/* Sealed blocks that wait to be written to NVMe, and those being written: half a MiB of names. */
#define FM_SPILL_QUEUE 65536u
#define FM_SPILLS_MAX  256u

/* Fetches of all clients that are not answered, and how often one that waits is looked at. */
#define FM_FETCHES_MAX	  65536u
#define FM_FETCH_RETRY_NS (5 * FM_NS_PER_MS)

/* Chunks that io_uring knows: 64 GiB, as the kernel takes 16384 buffers; others not. */
#define FM_NVME_BUFFERS 16383u

/* What a daemon that ends still writes of the sealed blocks. */
#define FM_SPILL_END_NS (10 * FM_NS_PER_S)

/* Clients of which a later daemon finds a record: those of this one, and as many that are attached
 * to what an earlier one served. */
#define FM_RECORDS_MAX (2 * FM_CLIENTS_MAX)

/* How often the daemon looks whether a client of an earlier one still has its lease table. */
#define FM_KEPT_PROBE_NS (50 * FM_NS_PER_MS)

/* How long it looks at most, so that it serves others meanwhile. */
#define FM_KEPT_PROBE_MAX_NS (2 * FM_NS_PER_MS)

/* A service manager that does not read for so long is not told any more. */
#define FM_SERVICE_NS (500 * FM_NS_PER_MS)

/* A Redis address that a killed daemon's ring still has: how long it is waited for, and how often
 * it is tried. The kernel needs some ms. */
#define FM_BUSY_ADDRESS_NS (2 * FM_NS_PER_S)
#define FM_BUSY_RETRY_US   10000u

/* So long connections wait when there is no descriptor or memory to take one; said so often. */
#define FM_ACCEPT_PAUSE_NS (100 * FM_NS_PER_MS)
#define FM_ACCEPT_SAID_NS  (60 * FM_NS_PER_S)

/* Connections waiting for accept(2). */
#define FM_BACKLOG 128

#endif
