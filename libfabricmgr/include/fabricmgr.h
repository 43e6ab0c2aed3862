/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabricmgr: the client's view of a node's KV pool.
 *
 * A program attaches to the daemon (or to a pool embedded in its own process), computes keys from
 * tokens, maps sealed blocks under leases and reads them in place, and stages new blocks, fills
 * them in place and seals them. No block's bytes ever pass through a socket.
 *
 * Errors: functions return 0 (or a count, where said) or a negative enum fm_err; fm_error_detail()
 * then holds a sentence that names the thing, the cause and the remedy (per thread, until that
 * thread's next failing call). Threads: every function may be called from any thread, also on one
 * and the same pool handle, unless said otherwise. Fork: a child must not use a handle it inherited
 * (calls return FM_ERR_FORKED), and has none of its memory; it may detach it, which harms nobody,
 * and attach for itself. Exec: nothing is inherited, no descriptor and no mapping. Descriptors: an
 * attachment cannot be handed to another process (who attaches by its socket gets FM_ERR_INVALID,
 * and it goes on); a block can, see fm_block_offer() and fm_layers_begin().
 */
#ifndef FABRICMGR_H
#define FABRICMGR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FM_API __attribute__((visibility("default")))

/* ---- errors ------------------------------------------------------------------------------- */

enum fm_err {
	FM_OK = 0,
	FM_ERR_INVALID = -1,	   /* an argument or input is malformed */
	FM_ERR_NOT_FOUND = -2,	   /* no such block, file, region */
	FM_ERR_EXISTS = -3,	   /* a block of that key is already sealed */
	FM_ERR_NO_MEMORY = -4,	   /* the process or the machine is out of memory */
	FM_ERR_POOL_FULL = -5,	   /* every block is leased or staged: nothing may be evicted */
	FM_ERR_LIMIT = -6,	   /* a documented limit would be exceeded */
	FM_ERR_DEADLINE = -7,	   /* the deadline passed first */
	FM_ERR_DISCONNECTED = -8,  /* the daemon (or peer) is gone; reattach */
	FM_ERR_PERMISSION = -9,	   /* the peer's credentials do not allow it */
	FM_ERR_VERSION = -10,	   /* the other side speaks another version */
	FM_ERR_CORRUPT = -11,	   /* a checksum or a structure is wrong */
	FM_ERR_UNSUPPORTED = -12,  /* this build, machine or file cannot do it */
	FM_ERR_IO = -13,	   /* a system call failed; the detail has errno's text */
	FM_ERR_FORKED = -14,	   /* the handle belongs to the parent process */
	FM_ERR_CANCELLED = -15,	   /* the caller cancelled it */
	FM_ERR_BUSY = -16,	   /* in use; try again later */
	FM_ERR_DRAINING = -17,	   /* the daemon takes no new work: it is being drained */
};

FM_API const char *fm_error_name(int err);   /* "FM_ERR_POOL_FULL"; never NULL */
FM_API const char *fm_error_text(int err);   /* a short sentence; never NULL */
FM_API const char *fm_error_detail(void);    /* "" when this thread has not failed yet */
/* Sets the calling thread's detail and returns @err: `return fm_fail(FM_ERR_IO, "…", …);` */
FM_API int fm_fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));
FM_API const char *fm_version(void);

/* ---- log ---------------------------------------------------------------------------------- */

enum fm_log_level { FM_LOG_ERROR = 3, FM_LOG_WARNING = 4, FM_LOG_INFO = 6, FM_LOG_DEBUG = 7 };

/* Lines to standard error: "<program>: <message>"; level from FABRICMGR_LOG (error, warning, info,
 * debug; default info) or fm_log_set_level(). Never log prompts, keys of tenants or secrets; keys
 * of blocks, which are digests, at debug only. */
FM_API void fm_log(enum fm_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
FM_API bool fm_log_is_on(enum fm_log_level level); /* whether fm_log() would write it */
FM_API void fm_log_set_level(enum fm_log_level level); /* 0: FABRICMGR_LOG's again */
FM_API void fm_log_set_program(const char *name);

enum fm_log_target {
	FM_LOG_AUTO = 0,    /* the journal, when standard error goes there ($JOURNAL_STREAM) */
	FM_LOG_STDERR = 1,  /* plain lines */
	FM_LOG_JOURNAL = 2, /* lines that begin with their priority, as "<4>" */
};
FM_API void fm_log_set_target(enum fm_log_target target);

/* ---- names of what is cached -------------------------------------------------------------- */

struct fm_digest {
	uint8_t bytes[32]; /* SHA-256 */
};

struct fm_key {
	uint8_t bytes[16]; /* first half of a chained digest */
};

enum fm_element {
	FM_ELEMENT_F32 = 1,
	FM_ELEMENT_F16 = 2,
	FM_ELEMENT_BF16 = 3,
	FM_ELEMENT_FP8_E4M3 = 4,
	FM_ELEMENT_INT8 = 5,
	FM_ELEMENT_NVFP4 = 6,
};

/* What a KV block holds, in the order [layer][k|v][head][token][dim]. */
struct fm_layout {
	uint32_t layers;
	uint32_t kv_heads;
	uint32_t head_dim;
	uint32_t tokens_per_block;
	uint32_t element; /* enum fm_element */
	uint32_t flags;	  /* 0 */
};

struct fm_namespace {
	struct fm_digest weights;    /* SHA-256 of the weights */
	struct fm_layout layout;
	const char *numerics_id;     /* arithmetic that produced the blocks */
	const char *position_encoding; /* e.g. "rope/theta=100000/dims=64/norm" */
	const char *quantisation;    /* "" when the element type says it all */
	const char *adapter;	     /* "" without LoRA */
	const char *tenant_salt;     /* "" or NULL: none */
};

/* The canonical digest of a namespace (encoding in Documentation/abi.md). */
FM_API int fm_namespace_digest(const struct fm_namespace *ns, struct fm_digest *out);

/* Bytes of one block of @layout, before rounding. 0 when the layout is invalid. */
FM_API size_t fm_layout_block_bytes(const struct fm_layout *layout);

/*
 * Keys of the full blocks of a token sequence: D[i] = SHA-256(D[i-1] || tokens as little-endian u32
 * || extras), K[i] = D[i][0..15], D[-1] = @parent (the namespace, or the digest of the block
 * before). @extras: length-prefixed typed extras, already encoded; NULL and 0 for none. Writes
 * @n_blocks keys, and the last digest to @last when it is not NULL. @tokens holds n_blocks *
 * tokens_per_block ids.
 */
FM_API int fm_chain_keys(const struct fm_digest *parent, const uint32_t *tokens, size_t n_blocks,
			 uint32_t tokens_per_block, const void *extras, size_t extras_len,
			 struct fm_key *keys, struct fm_digest *last);

/* The key of a foreign client's opaque key in its namespace. */
FM_API int fm_opaque_key(const struct fm_digest *ns, const void *key, size_t len,
			 struct fm_key *out);

/* ---- attaching ---------------------------------------------------------------------------- */

struct fm_pool; /* one attachment */

struct fm_attach_options {
	uint32_t size;		/* sizeof(struct fm_attach_options) */
	uint32_t flags;		/* FM_ATTACH_… */
	const char *socket;	/* NULL: $FABRICMGR_SOCKET, else /run/fabricmgr/pool.sock */
	int fd;			/* a connected socket from fm_server_connect(), or -1. Taken over by
				   the call, also when it fails; another kind of
				   descriptor is FM_ERR_INVALID, and not closed */
	uint32_t leases;	/* size of the lease table; 0: 4096 */
	const char *name;	/* what the daemon shows for it; NULL: the program's name */
	uint64_t deadline_ns;	/* how long to wait for the daemon, relative; 0: 5 s */
	const char *tenant;	/* to act for; NULL: $FABRICMGR_TENANT, else the first that may */
};

#define FM_ATTACH_READ_ONLY (1u << 0) /* never stages; arenas are mapped read-only */
#define FM_ATTACH_DEVICES (1u << 1)   /* may register arena memory with devices: staging of a dead
					 client waits in quarantine */
#define FM_ATTACH_PREFAULT (1u << 2)  /* attaching maps every page of what is in the pool, at about
					 70 us a MiB of 4 KiB pages: no first touch waits for it */

FM_API int fm_pool_attach(const struct fm_attach_options *options, struct fm_pool **out);
/* Releases every lease, discards every staged block, unmaps. No block of this pool may be used
 * afterwards. Its queues are stopped as by fm_queue_destroy(); what they had is collected or
 * destroyed later. The caller makes sure that no other thread is inside a call. */
FM_API void fm_pool_detach(struct fm_pool *pool);
/* False once the daemon is gone: mapped memory stays readable, but reattach for new blocks. */
FM_API bool fm_pool_is_connected(const struct fm_pool *pool);

/* Whom this attachment acts for, and the salt that keeps its names apart from other tenants': for
 * fm_namespace.tenant_salt. Valid until detach; "" without. The salt is a secret of the tenant. */
FM_API const char *fm_pool_tenant(const struct fm_pool *pool);
FM_API const char *fm_pool_salt(const struct fm_pool *pool);

struct fm_pool_info {
	uint32_t size;		 /* sizeof, set by the caller */
	uint32_t protocol;
	uint64_t total_bytes;	 /* what the pool may hold */
	uint64_t used_bytes;	 /* in staged and sealed blocks, rounded as allocated */
	uint64_t blocks_sealed, blocks_staging, blocks_quarantine;
	uint64_t entries_max;	 /* size of the index */
	uint64_t evictions, seals, stages, discards, duplicates;
	uint32_t clients;
	uint32_t daemon_pid;
	uint64_t incarnation;	 /* changes with each start of the daemon */
	char rung[32];		 /* "hugetlb memfd" or "memfd" */
	char rung_reason[160];	 /* why not the rung above */
	char policy[32];	 /* "density" */
	char loop[32];		 /* "io_uring" or "poll": what the daemon waits with */
	char loop_reason[160];	 /* why not io_uring */
	uint64_t blocks_offered; /* of the staging ones: on offer, not yet adopted */
	uint64_t blocks_removed; /* taken out of the pool, still held by somebody */
	uint32_t is_draining;	 /* see fm_pool_drain() */
	uint32_t reserved;
	/* The NVMe tier; all zero and "" without one. */
	uint64_t nvme_bytes, nvme_segments, nvme_segments_bad; /* bad: given up after an error */
	uint64_t nvme_blocks, nvme_block_bytes;		       /* that can be fetched */
	uint64_t nvme_memory_bytes;			       /* of its tables */
	uint64_t nvme_reading_bytes, nvme_writing_bytes;       /* in flight now */
	uint64_t nvme_stored, nvme_stored_bytes;	       /* since the start */
	uint64_t nvme_fetched, nvme_fetch_misses;
	uint64_t nvme_reclaimed; /* blocks given up for space */
	uint64_t nvme_skipped;	 /* sealed blocks that went before they were written */
	uint64_t nvme_recovered; /* blocks that were there at the start */
	uint64_t nvme_read_errors, nvme_write_errors, nvme_flush_errors, nvme_checksum_errors;
	uint32_t nvme_is_durable;
	uint32_t nvme_is_dead; /* takes no more blocks */
	char nvme_path[128], nvme_rung[64], nvme_rung_reason[160];
	/* Whether the pool would outlive this daemon, and what it took over from the one before. */
	char kept_by[32];      /* "kernel module", "holder", "service manager" or "nothing" */
	char kept_reason[160]; /* why not, or what is not known of it */
	char cold_reason[160]; /* why a pool that was there was not taken over; "" */
	uint64_t resumed_blocks, resume_dropped, resume_ns;
	uint64_t kept_clients, kept_leases; /* of earlier daemons, that still hold on */
	/* Memory of clients' own, counted apart: see fm_region_adopt(). */
	uint64_t adopted_regions, adopted_region_bytes;
	uint64_t adopted_blocks, adopted_bytes; /* of blocks in them, in whole pages */
};

FM_API int fm_pool_info(struct fm_pool *pool, struct fm_pool_info *out);

/* ---- reading ------------------------------------------------------------------------------ */

struct fm_block {
	void *data;	 /* first byte; read-only memory unless this client staged it */
	uint64_t length; /* bytes asked for when it was staged */
	uint32_t entry;	 /* index entry; opaque */
	uint32_t generation;
	uint32_t lease;	 /* lease-table slot; opaque. UINT32_MAX while staging */
	uint32_t origin; /* client number of the writer: equal to fm_pool_client_id() if ours */
};

/* This attachment's number, unique over the daemon's life. */
FM_API uint32_t fm_pool_client_id(const struct fm_pool *pool);

/* How many leading keys of the chain are present (0..n). Takes no lease, changes no eviction order,
 * makes no system call. */
FM_API int64_t fm_pool_match(struct fm_pool *pool, const struct fm_key *keys, size_t n);

/*
 * Brings the leading blocks of the chain that are on NVMe back into memory, several at once, and
 * returns how many leading keys are then present (0..n), or a negative error. After @deadline_ns
 * (relative; 0: 5 s) it returns with what is there; what is on its way arrives in the pool's memory
 * nevertheless, never in the caller's. Without an NVMe tier it is fm_pool_match(). The blocks are
 * not held: acquire them next.
 */
FM_API int64_t fm_pool_fetch(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			     uint64_t deadline_ns);

/*
 * fm_chain_keys() and fm_pool_match() in one call, without keeping the keys: how many leading
 * blocks of a token sequence are present. @n_tokens may end in a part of a block, which is not
 * looked at. Allocates nothing, makes no system call.
 */
FM_API int64_t fm_pool_match_tokens(struct fm_pool *pool, const struct fm_digest *parent,
				    const uint32_t *tokens, size_t n_tokens,
				    uint32_t tokens_per_block, const void *extras,
				    size_t extras_len);

/* Leases the leading blocks of the chain that are present; returns how many (0..n), each to be
 * given to fm_block_release() once, or a negative error with none leased. (A second release does
 * nothing, also by a copy of the structure.) Until then their bytes neither move nor change, even
 * after the daemon died. No system call, except the first time that memory of a new region is met.
 * FM_ERR_LIMIT: the lease table is full. */
FM_API int64_t fm_pool_acquire(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			       struct fm_block *blocks);
FM_API void fm_block_release(struct fm_pool *pool, struct fm_block *blocks, size_t n);

/* Reads a leased block and compares its CRC32C with the header table's: 0, or FM_ERR_CORRUPT. */
FM_API int fm_block_verify(struct fm_pool *pool, const struct fm_block *block);

/* ---- writing ------------------------------------------------------------------------------ */

/* Gets @n blocks of @length bytes (zero-filled or holding bytes of this tenant's own former blocks)
 * to fill in place: all or none. Evicts as needed. @deadline_ns relative; 0: 5 s. */
FM_API int fm_block_stage(struct fm_pool *pool, uint64_t length, size_t n, struct fm_block *blocks,
			  uint64_t deadline_ns);

struct fm_seal {
	struct fm_block *block; /* in: staged by this client; out: leased (or still staged) */
	struct fm_key key;
	const struct fm_key *parent; /* NULL for the first block of a chain */
	int result;	     /* out: 0, FM_ERR_EXISTS (the block stays staged), or another error */
	uint32_t flags;	     /* 0, or FM_SEAL_REPLACE */
};

/* Takes the place of a sealed block of the same key: from then on readers find this one, and who
 * holds the old one keeps it. */
#define FM_SEAL_REPLACE (1u << 0)

/*
 * Publishes filled blocks: computes each CRC32C, makes the block visible and immutable, and turns
 * the hold on it into a lease. @ns names the namespace in the header. Returns 0 when every result
 * is 0, else the first failure; each result says what became of its block. FM_ERR_INVALID before
 * anything is sealed: what is wrong with one (its flags, a block that this client has not staged,
 * layers that are not sealed) is its result, the others' are FM_ERR_CANCELLED, and all stay staged.
 * A parent need not be in memory, nor in the pool at all: who asks for the chain from its start
 * finds the block only while the parent is there, who asks for its key alone at once.
 */
FM_API int fm_block_seal(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
			 size_t n);

/*
 * The same for a group: 1 to 64 blocks (k, v, an indexer's, a recurrent state) that are found all
 * together or none at all, by whoever looks at whatever moment, also when the writer is killed. A
 * group leaves the pool together, too, and only when no member is leased; removing one removes all.
 * No member is another's parent, no key comes twice, all lie in the pool's memory or all in adopted
 * regions, and there is no FM_SEAL_REPLACE: else
 * FM_ERR_INVALID, with fm_error_detail() saying which. A failure of one leaves all staged;
 * results that are FM_ERR_CANCELLED were held back by another's, which is returned. The NVMe tier
 * keeps a group as a whole, up to 62 members of 64 MiB together, and a fetch of one member brings
 * all; a daemon that is restarted takes it over so.
 */
FM_API int fm_group_seal(struct fm_pool *pool, const struct fm_digest *ns, struct fm_seal *seals,
			 size_t n);

/* Leases every one of @n blocks, or none: FM_ERR_NOT_FOUND. fm_block_release() takes them back. */
FM_API int fm_group_acquire(struct fm_pool *pool, const struct fm_key *keys, size_t n,
			    struct fm_block *blocks);

/*
 * Memory of the caller's own as a region of the pool: what lies there is sealed and read by others
 * without a copy. @fd: a memfd (plain, or hugetlb), in whole chunks of FM_CHUNK_BYTES, of this
 * client's user, with mode 0600, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL and not sealed against
 * writing. It stays the caller's, and may be closed. @flags 0. The region stands in the account
 * "adopted" of the tenant, which has to have that quota, and never in an order of eviction.
 * FM_ERR_INVALID, FM_ERR_PERMISSION: that is no such memory, or the tenant may have none;
 * fm_error_detail() says which. FM_ERR_LIMIT: beyond the quota, 16 regions of a client or 64 of a
 * pool. FM_ERR_EXISTS: it is adopted already. FM_ERR_BUSY: blocks that were sealed in it by an
 * earlier attachment are still held. FM_ERR_DRAINING, FM_ERR_DISCONNECTED.
 *
 * The caller promises to write where it has staged, and nowhere else, until fm_region_release()
 * returned 0. A region lives as long as the attachment: at its end, however it comes, nobody finds
 * a block of it any more; who holds one keeps it until its release.
 */
struct fm_region;
FM_API int fm_region_adopt(struct fm_pool *pool, int fd, uint32_t flags, struct fm_region **out);
/* Where the library has mapped it, for writing; valid until it is released, or detach. */
FM_API void *fm_region_data(const struct fm_region *region);

/* Ends a region: nobody finds its blocks any more, those that are staged are discarded. 0: nobody
 * holds one, the memory is the caller's alone, and @region is no more. FM_ERR_BUSY: somebody still
 * does after @deadline_ns (relative; 0: 5 s), this client perhaps: call again. */
FM_API int fm_region_release(struct fm_pool *pool, struct fm_region *region, uint64_t deadline_ns);

/* A block that shall be staged where it lies. */
struct fm_stage_at {
	uint64_t offset;       /* in the region, on a page of 4096 bytes */
	uint64_t length;       /* 1 to one chunk, and within one chunk of the region */
	struct fm_block block; /* out: to be filled, if it is not, and sealed; data NULL: failed */
	int result;	       /* out: 0 or an error */
};

/*
 * Stages blocks in a region of the caller's. Nothing is written there: data may stand there
 * already. Sealed blocks of the region that lie in the way, wholly or in part, leave the pool, if
 * nobody holds them: FM_ERR_BUSY, and nothing has changed. FM_ERR_EXISTS: something else is staged
 * there. FM_ERR_INVALID: no page, not within a chunk, or behind the region's end. FM_ERR_LIMIT:
 * half of the index is such blocks already. FM_ERR_POOL_FULL: no entry of the index was free until
 * @deadline_ns (relative; 0: 5 s). FM_ERR_NOT_FOUND: the region was released. FM_ERR_DRAINING. Each
 * place has its own result; the first that is not 0 is returned.
 */
FM_API int fm_block_stage_at(struct fm_pool *pool, struct fm_region *region,
			     struct fm_stage_at *stages, size_t n, uint64_t deadline_ns);

/* Gives staged blocks back; nobody ever saw them. */
FM_API void fm_block_discard(struct fm_pool *pool, struct fm_block *blocks, size_t n);

/* ---- by copy: for data that stays in the caller's memory ---------------------------------- */

struct fm_put {
	struct fm_key key;
	const struct fm_key *parent; /* NULL for the first block of a chain */
	const void *data;
	uint64_t length; /* at most one chunk, 4 MiB */
	uint32_t flags;	 /* 0, or FM_SEAL_REPLACE */
	int result;	 /* out: 0, FM_ERR_EXISTS (that block is as good), or another error */
};

/* Copies data of the caller into blocks and seals them; copy and CRC32C are one pass. The blocks
 * are not held afterwards. Returns 0 when every result is 0 or FM_ERR_EXISTS, else the first
 * failure; a failure of one put (FM_ERR_INVALID: unknown flags) leaves the others as they are.
 * @deadline_ns relative, for room in the pool; 0: 5 s. A daemon that does not answer by then, and
 * for half a second more, is not asked for the rest: their results are FM_ERR_DEADLINE. */
FM_API int fm_pool_put(struct fm_pool *pool, const struct fm_digest *ns, struct fm_put *puts,
		       size_t n, uint64_t deadline_ns);

struct fm_get {
	struct fm_key key;
	void *data;
	uint64_t capacity; /* of @data, bytes */
	uint64_t length;   /* out: of the block, also when it did not fit */
	int result;	   /* out: 0, FM_ERR_NOT_FOUND, FM_ERR_LIMIT (does not fit) or
			      FM_ERR_CORRUPT (the copy has not the CRC32C of the block) */
};

/* Copies blocks into the caller's memory, each verified against the CRC32C it was sealed with. The
 * keys need not be a chain. Returns how many results are 0, or a negative error. What failed has
 * left its @data undefined. */
FM_API int64_t fm_pool_get(struct fm_pool *pool, struct fm_get *gets, size_t n);

/* One block gathered from several places, as writev(2) does: a layer here, a layer there. */
struct fm_put_parts {
	struct fm_key key;
	const struct fm_key *parent; /* NULL for the first block of a chain */
	const struct iovec *parts;   /* in this order; together 1 byte to one chunk, 4 MiB */
	uint32_t n_parts;
	uint32_t flags; /* 0, or FM_SEAL_REPLACE */
	int result;	/* out: as in struct fm_put */
};
/* As fm_pool_put(). A failure of one put leaves the others as they are. */
FM_API int fm_pool_put_parts(struct fm_pool *pool, const struct fm_digest *ns,
			     struct fm_put_parts *puts, size_t n, uint64_t deadline_ns);

/*
 * Bytes of one block, from @offset on, scattered over several places until those are full or the
 * block ends. The whole block is verified against the CRC32C that it was sealed with while it is
 * copied, and a range that is whole layers of a block that was sealed by layers against theirs. Of
 * another range nothing is known but that its header is sound, unless FM_GET_VERIFY asks for the
 * rest of the block to be read, too (at about 20 GB/s, without a copy).
 */
struct fm_get_parts {
	struct fm_key key;
	const struct iovec *parts;
	uint32_t n_parts;
	uint32_t flags;	      /* 0, or FM_GET_VERIFY */
	uint64_t offset;      /* in the block, of the first byte wanted */
	uint64_t length;      /* out: of the whole block */
	uint64_t copied;      /* out: bytes that are in the parts */
	uint32_t is_verified; /* out: they have been compared with their checksum */
	int result; /* out: 0, FM_ERR_NOT_FOUND (the parts are untouched), FM_ERR_LIMIT (@offset is
		       behind the end) or FM_ERR_CORRUPT (the parts are undefined) */
};
#define FM_GET_VERIFY (1u << 0)

/* As fm_pool_get(): how many results are 0, or a negative error. */
FM_API int64_t fm_pool_get_parts(struct fm_pool *pool, struct fm_get_parts *gets, size_t n);

/*
 * Takes sealed blocks out of the pool: they are not found any more when this returns; who holds one
 * keeps it until its release, then its memory is free. Blocks after them in a chain are out of
 * reach, and freed like any that nobody uses. Returns how many of the @n keys were there, or a
 * negative error. FM_ERR_PERMISSION: this client attached read-only.
 */
FM_API int64_t fm_pool_remove(struct fm_pool *pool, const struct fm_key *keys, size_t n);

/* Removes every sealed block of a namespace (a model that was replaced). Returns how many there
 * were, or a negative error. Costs the daemon about 10 ns for each entry of the index. */
FM_API int64_t fm_pool_invalidate(struct fm_pool *pool, const struct fm_digest *ns);

/*
 * Hand-over of a staged block (a tail that has no key) to another client of the same tenant:
 * fm_block_offer() gives it up and returns a private id; whoever presents the id adopts it, once,
 * as a staged block of its own. Not adopted within 30 s, nobody left, or the pool full: it is
 * freed.
 */
FM_API int fm_block_offer(struct fm_pool *pool, struct fm_block *block, struct fm_key *id);
FM_API int fm_block_adopt(struct fm_pool *pool, const struct fm_key *id, struct fm_block *out);

/*
 * Layer by layer: a reader whom the writer names begins with the first layers while the last are
 * computed. The block's data is its layers, one after the other; behind them stands a table that
 * the library keeps, with each layer's CRC32C: a few bytes of the block that readers of the whole
 * get, too. 1 to 1024 layers; block and table have at most one chunk, 4 MiB. Returns the length to
 * stage, 0: too long.
 */
FM_API uint64_t fm_layers_length(uint32_t layers, uint64_t layer_bytes);

/*
 * Begins a staged block of that length. @id: a private id by which other clients of the pool may
 * join it, out; NULL: none may. It holds until the block leaves the pool. Nobody else sees anything
 * of the block, or of its group, before fm_block_seal() or fm_group_seal().
 */
FM_API int fm_layers_begin(struct fm_pool *pool, const struct fm_block *block, uint32_t layers,
			   uint64_t layer_bytes, struct fm_key *id);

/* Layers @first to @first + @n - 1 are filled and will not change: computes their CRC32C, and wakes
 * who waits for them. In any order, each once; different layers also from several threads. Does not
 * ask the daemon. All of them before the block is sealed: else fm_block_seal() or fm_group_seal()
 * returns FM_ERR_INVALID, and the block stays staged. */
FM_API int fm_layers_seal(struct fm_pool *pool, const struct fm_block *block, uint32_t first,
			  uint32_t n);

/* Leases a block by its id, whether it is still staged or sealed by now; fm_block_release() gives
 * it back. As long as it is held its memory is not used for anything else, also when the writer
 * dies. FM_ERR_NOT_FOUND: the writer gave it up. */
FM_API int fm_layers_join(struct fm_pool *pool, const struct fm_key *id, struct fm_block *out);

/* Waits until a layer of a joined (or acquired) block is sealed and compares its CRC32C: from then
 * on that layer may be read. FM_ERR_DEADLINE: not in @deadline_ns (relative; 0: 5 s);
 * FM_ERR_NOT_FOUND: the writer gave the block up, or died, before; FM_ERR_CORRUPT;
 * FM_ERR_UNSUPPORTED: a block without layers. */
FM_API int fm_layers_wait(struct fm_pool *pool, const struct fm_block *block, uint32_t layer,
			  uint64_t deadline_ns);

/*
 * What the caller knows of a leased block's future; it replaces what was said before. Hints are
 * wishes: they change what is given up first, never what a call returns.
 */
struct fm_hint {
	uint32_t size;	      /* sizeof(struct fm_hint) */
	int32_t priority;     /* a use counts 2^priority times, -16 to 16; policy density */
	uint64_t pin_ns;      /* for so long it goes only when nothing else may; 0: not */
	uint64_t expected_ns; /* used again in about this time; 0: unknown; policy density */
};
/* Of the last block of a chain: those before it stay as long as it does. FM_ERR_PERMISSION: it is
 * another tenant's. */
FM_API int fm_block_hint(struct fm_pool *pool, const struct fm_block *block,
			 const struct fm_hint *hint);

/* ---- without waiting: submission and completion ------------------------------------------- */

/*
 * A queue takes requests at once and works on them with threads of its own (2, or as asked); what
 * became of each is collected later, in the order in which they end. One descriptor tells when
 * there is something to collect. Any thread may submit, collect and cancel.
 */
struct fm_queue;

struct fm_queue_options {
	uint32_t size;	  /* sizeof(struct fm_queue_options) */
	uint32_t depth;	  /* requests submitted and not yet collected; 0: 64; at most 4096 */
	uint32_t workers; /* threads that copy; 0: 2; at most 16. One more keeps the deadlines */
	uint32_t flags;	  /* 0 */
};

/* @options: NULL for the defaults. The pool may not be detached by another thread meanwhile. The
 * threads block every signal. */
FM_API int fm_queue_create(struct fm_pool *pool, const struct fm_queue_options *options,
			   struct fm_queue **out);
/* Cancels what is not done, ends the threads and frees the queue; results not collected are lost.
 * Nobody may be in another call on it. Waits for a thread that waits for the daemon: at most 10 s,
 * when that one is stopped. NULL is ignored. */
FM_API void fm_queue_destroy(struct fm_queue *queue);
/* An eventfd that is readable while there is something to collect. It stays the queue's; reading it
 * does no harm. */
FM_API int fm_queue_fd(const struct fm_queue *queue);

enum fm_queue_op {
	FM_QUEUE_MATCH = 1,	/* keys: a chain. Result: how many leading ones are in memory */
	FM_QUEUE_FETCH = 2,	/* keys: a chain; from NVMe too. Result: as fm_pool_fetch() */
	FM_QUEUE_EXISTS = 3,	/* keys, results: each 0 or FM_ERR_NOT_FOUND. Result: how many are
				   in memory */
	FM_QUEUE_ACQUIRE = 4, /* keys: a chain; blocks: out. Fetches it first. Result: how many are
				   leased */
	FM_QUEUE_GET = 5,	/* gets. Fetches what is not in memory. Result: how many are 0 */
	FM_QUEUE_PUT = 6,	/* ns, puts. Result: 0 or the first failure but FM_ERR_EXISTS */
	FM_QUEUE_REMOVE = 7,	/* keys. Result: how many were there */
};

/*
 * One request. The structure and its arrays are copied when it is submitted; where results go (and
 * the memory that a get fills or a put reads) stays the queue's until it is collected or cancelled.
 */
struct fm_queue_request {
	uint32_t size;	      /* sizeof(struct fm_queue_request) */
	uint32_t op;	      /* enum fm_queue_op */
	uint64_t user_data;   /* comes back with the completion */
	uint64_t deadline_ns; /* relative, from the submission; 0: 5 s */
	size_t n;	      /* keys, puts or gets: 1 to 4096 */
	const struct fm_key *keys;
	int *results;		   /* out, one for each key: EXISTS, and FETCH unless NULL */
	struct fm_block *blocks;   /* out: ACQUIRE */
	struct fm_get_parts *gets; /* in and out: GET */
	struct fm_put_parts *puts; /* in and out: PUT */
	const struct fm_digest *ns;
};

/* FM_ERR_BUSY: @depth requests are not collected yet. *@id (may be NULL) names the request for
 * fm_queue_cancel(). Never waits for the daemon or for a copy. */
FM_API int fm_queue_submit(struct fm_queue *queue, const struct fm_queue_request *request,
			   uint64_t *id);

struct fm_queue_done {
	uint64_t id, user_data;
	/* As said at enum fm_queue_op, or a negative error: FM_ERR_DEADLINE (not begun in time, or
	 * not ended where it waits), FM_ERR_CANCELLED, or what the call of that name returns.
	 * fm_error_text() says what that is. */
	int64_t result;
};

/* What has ended since, up to @max: how many. Never waits. */
FM_API int64_t fm_queue_complete(struct fm_queue *queue, struct fm_queue_done *out,
				 size_t max);
/* The same, after waiting for one at least: FM_ERR_DEADLINE when none ends in @deadline_ns
 * (relative; 0: 5 s), 0 when there is nothing to wait for. */
FM_API int64_t fm_queue_wait(struct fm_queue *queue, struct fm_queue_done *out, size_t max,
			     uint64_t deadline_ns);

/*
 * When it returns 0, nothing is written into the request's arrays and buffers any more and nothing
 * read from them, and its completion is FM_ERR_CANCELLED; that has to be collected, too. Waits for
 * the piece that is being copied, 512 KiB at most. What a get has copied before stays; blocks that
 * a put has sealed stay sealed. FM_ERR_NOT_FOUND: the request has ended by itself, or there was
 * none.
 */
FM_API int fm_queue_cancel(struct fm_queue *queue, uint64_t id);

/* ---- looking at the pool ------------------------------------------------------------------ */

struct fm_block_info {
	struct fm_key key, parent; /* parent all zero: first of its chain */
	uint8_t ns[16];		   /* first half of the namespace digest */
	uint64_t length;
	uint32_t entry, generation, state, region, chunk, slot, crc32c, origin;
};

/* Walks the index: fills @out with the next sealed or staged block at or after *@cursor (start with
 * 0) and moves the cursor. Returns 1, 0 at the end, or a negative error. */
FM_API int fm_pool_walk(struct fm_pool *pool, uint32_t *cursor, struct fm_block_info *out);

struct fm_client_info {
	uint32_t id, pid, uid;
	uint32_t flags; /* FM_ATTACH_…; its tenant's number in the upper half */
	uint32_t leases, staged;
	char name[48];
};
#define FM_CLIENT_TENANT(flags) ((flags) >> 16)
/* The attached clients, up to @max; returns how many there are. Of one's own tenant only, but for
 * those who may operate the pool. */
FM_API int64_t fm_pool_clients(struct fm_pool *pool, struct fm_client_info *out, size_t max);

/*
 * What a tenant may have; 0: no limit of its own, nothing guaranteed. Memory is counted as it is
 * given out, in chunks of FM_CHUNK_BYTES: a guarantee is rounded up, a maximum down.
 */
struct fm_tenant_quotas {
	uint64_t guaranteed_bytes; /* that no other tenant's need takes away */
	uint64_t max_bytes;	   /* beyond them its own blocks go */
	uint64_t staging_bytes;	   /* in blocks being filled */
	uint64_t requests;	   /* that wait for an answer: for room, for NVMe */
	uint64_t nvme_bytes;	   /* beyond them the oldest of its blocks there go */
};

struct fm_tenant_info {
	uint32_t size;	 /* sizeof, set by the caller in the first one */
	uint32_t number; /* as in FM_CLIENT_TENANT(); 0: who is no other tenant's */
	char name[32], group[32];
	struct fm_tenant_quotas quotas;
	uint64_t held_bytes; /* of memory, in whole chunks: what the quotas count */
	uint64_t used_bytes; /* of it in blocks */
	uint64_t staged_bytes, requests, blocks;
	uint64_t nvme_bytes; /* of its blocks on NVMe, in whole pages */
	uint64_t evictions; /* of its blocks, for its own sake; taken: for another tenant's */
	uint64_t taken;
	uint64_t refused; /* requests, by a quota; not those that waited and then had room */
	uint32_t clients;
	uint32_t reserved;
	uint64_t adopted_max_bytes; /* of memory of its clients' own; 0: none may be adopted */
	uint64_t adopted_bytes;	    /* of it: in regions */
};

/* The tenants of the pool, up to @max: one's own only, but for those who may operate the pool.
 * Returns how many. */
FM_API int64_t fm_pool_tenants(struct fm_pool *pool, struct fm_tenant_info *out, size_t max);

/* ---- operating the pool: by root and the daemon's own user (else FM_ERR_PERMISSION) -------- */

struct fm_lease_info {
	uint32_t entry, generation; /* of the block, as fm_block_info has them */
};
/* What a client (fm_client_info.id) leases, up to @max; returns how many there are, or a negative
 * error. FM_ERR_NOT_FOUND: the client is gone. */
FM_API int64_t fm_pool_leases(struct fm_pool *pool, uint32_t client_id, struct fm_lease_info *out,
			      size_t max);

/*
 * Frees blocks that nobody leases, the longest unused first, until @bytes of memory are free of
 * them or nothing more may go; UINT64_MAX: all. Whole chunks where it can. Returns how many blocks
 * went, or a negative error; *@freed (may be NULL) the bytes, as allocated. Other clients are
 * served meanwhile.
 */
FM_API int64_t fm_pool_evict(struct fm_pool *pool, uint64_t bytes, uint64_t *freed);

/*
 * While the daemon drains, no client gets new blocks to fill (FM_ERR_DRAINING) and none attaches,
 * but for read-only ones of those who may operate the pool. What is staged may be sealed or handed
 * over, what is sealed is read as before. A new start of the daemon does not drain.
 */
FM_API int fm_pool_drain(struct fm_pool *pool, bool is_draining);

#define FM_QUOTA_KEEP UINT64_MAX
/* Changes a tenant's quotas until the daemon reads its configuration again; FM_QUOTA_KEEP leaves
 * one as it is. FM_ERR_LIMIT: the guarantees would be above the pool. FM_ERR_NOT_FOUND. */
FM_API int fm_pool_set_quotas(struct fm_pool *pool, const char *tenant,
			      const struct fm_tenant_quotas *quotas);

/* ---- a pool in this process: the daemon, and programs that embed one ---------------------- */

struct fm_server;

/* What a pool is made of; a block is at most that long. */
#define FM_CHUNK_BYTES	   (4u << 20)
#define FM_POOL_BYTES_MIN  (2ull * FM_CHUNK_BYTES)

#define FM_TENANT_DEFAULT "default"

struct fm_tenant_options {
	uint32_t size;			/* sizeof(struct fm_tenant_options) */
	uint32_t n_uids, n_gids;	/* at most 64 each */
	uint32_t reserved;		/* 0 */
	const char *name;		/* 1 to 31 bytes, not that of another */
	const char *salt;		/* at most 63 bytes; NULL: "" */
	const uint32_t *uids, *gids;	/* who may act for it, besides root and the server's user */
	struct fm_tenant_quotas quotas;
	uint64_t adopted_bytes; /* that its clients may have adopted of their own; 0: none */
};

struct fm_server_options {
	uint32_t size;		  /* sizeof(struct fm_server_options) */
	uint32_t flags;		  /* 0, or FM_SERVER_KEEP */
	uint64_t pool_bytes;	  /* rounded down to whole chunks; at least FM_POOL_BYTES_MIN */
	uint32_t entries_max;	  /* 0: from pool_bytes, at 64 KiB a block */
	const char *socket;	  /* listen here; NULL: do not listen */
	uint32_t socket_mode;	  /* 0: 0600 */
	const char *policy;	  /* "density", "lru" or "s3fifo"; NULL: "density" */
	const char *memory;	  /* NULL: best; else "hugetlb" (fail without) or "memfd" */
	uint64_t quarantine_ns;	  /* 0: 1 s */
	/* Who may attach besides root and the server's own user: a user who stands in one of the
	 * lists, with any of its groups. Both empty: whoever can open the socket. Copied. */
	const uint32_t *uids, *gids;
	uint32_t n_uids, n_gids;	 /* at most 64 each */
	uint64_t client_staging_bytes; /* that one client may have staged at a time; 0: no limit */
	const char *nvme_path; /* a file or block device for sealed blocks; NULL: none */
	uint64_t nvme_bytes;   /* of the file; 0: as it is, which a new one is not */
	uint32_t nvme_flags;   /* FM_NVME_… */
	uint32_t n_tenants;    /* at most 31 */
	/* Who shares the pool, besides the tenant "default" of root, the server's own user, @uids
	 * and @gids; then both lists empty mean nobody else. Copied. */
	const struct fm_tenant_options *tenants;
	const char *group;    /* name of the sharing group; NULL: "default" */
	/* What other pools of this process will take of the memory, and of huge pages. */
	uint64_t other_bytes, other_huge_bytes;
	uint64_t adopted_bytes; /* of tenant "default": as in struct fm_tenant_options */
	/* With FM_SERVER_KEEP, who keeps the memory. NULL or "best": the kernel module if it can,
	 * else "manager"; "module": fail without it. */
	const char *keeper;
	/* In the module, names of memory begin with this and the user; the same for all servers of
	 * a process. NULL: socket. */
	const char *instance;
};

/* Hands the pool's memory to the kernel module (/dev/fabricmgr) or to the service manager that
 * started this process ($NOTIFY_SOCKET), and takes over what that kept of an earlier one (by names,
 * $LISTEN_FDS), by the name of the sharing group. All such servers of a process are created before
 * the first of them runs. What the module keeps stays there until fm_server_forget(). */
#define FM_SERVER_KEEP (1u << 0)

/* A block counts as stored once it is written, not only when a flush is over: it outlives the
 * daemon, not the power. */
#define FM_NVME_NOT_DURABLE (1u << 0)

struct fm_server_needs {
	uint32_t size;	     /* sizeof(struct fm_server_needs), set by the caller */
	uint32_t entries_max;
	uint64_t pool_bytes; /* in whole chunks */
	uint64_t table_bytes; /* index, headers, the server's own tables, those of NVMe */
	char rung[32];
	char rung_reason[160]; /* why not the rung above */
	char kept_by[32], kept_reason[160]; /* as in struct fm_pool_info; "": by nobody */
};

/* What fm_server_create() would take, and whether this machine has it now: the same checks, without
 * memory or socket. */
FM_API int fm_server_check(const struct fm_server_options *options, struct fm_server_needs *needs);

/* Creates the pool's memory and index and, with a socket, binds it. Refuses a pool larger than the
 * memory that is available, showing the sum. Starts no thread. */
FM_API int fm_server_create(const struct fm_server_options *options, struct fm_server **out);
/* Serves until fm_server_stop(). Call it from the thread that shall be the index's one writer. */
FM_API int fm_server_run(struct fm_server *server);
/* Other users, groups and quotas for the same tenants in the same order, from any thread while the
 * server runs; the rest of @options is not looked at. FM_ERR_UNSUPPORTED: other tenants. */
FM_API int fm_server_set_tenants(struct fm_server *server,
				 const struct fm_server_options *options);
/* Gives back what the kernel module keeps of an earlier process with the same @instance (or socket)
 * and user: the number of its groups. FM_ERR_EXISTS: one of them is in use, and stays;
 * FM_ERR_NOT_FOUND: there is no module. */
FM_API int fm_server_forget(const struct fm_server_options *options);
/* From any thread or a signal handler. */
FM_API void fm_server_stop(struct fm_server *server);
/* A connected socket for fm_attach_options.fd, from any thread while the server runs. */
FM_API int fm_server_connect(struct fm_server *server, int *fd);
/* After fm_server_run() returned. Removes the socket. */
FM_API void fm_server_destroy(struct fm_server *server);
/* The rung in use and why not the one above (strings live as long as the server). */
FM_API const char *fm_server_rung(const struct fm_server *server, const char **reason);

/* ---- a Redis front end: programs that speak RESP2 or RESP3 use the pool ------------------- */

struct fm_resp; /* one front end, a client of a pool */

struct fm_resp_options {
	uint32_t size;			 /* sizeof(struct fm_resp_options) */
	uint32_t n_listen;		 /* 1 to 4 */
	const char *const *listen;	 /* "unix:/path" or "127.0.0.1:6379" (IPv4); port 0: a
					    free one, which fm_resp_info() tells */
	struct fm_attach_options attach; /* of the pool; a connected fd is taken over */
	const char *tenant;		 /* salt of the namespace; NULL: that of attach's tenant */
	const char *password;		 /* of the user "default"; NULL: none is asked for */
	bool is_behind_proxy;		 /* TLS ends before us: other than loopback is allowed */
	uint64_t name_bytes;		 /* for the names that SCAN lists; 0: no SCAN */
	uint64_t hold_ns;		 /* how long an EXISTS keeps a value; 0: 10 s */
	uint64_t hold_bytes;		 /* of values kept so; 0: a quarter of the pool */
};

/* Whether fm_resp_create() would take them, on this machine: the same checks, without binding. */
FM_API int fm_resp_check(const struct fm_resp_options *options);
/* Binds the addresses; a busy one is tried again for 2 s, then FM_ERR_EXISTS. FM_ERR_UNSUPPORTED:
 * no io_uring; FM_ERR_PERMISSION: an address beyond loopback without password and proxy. Starts no
 * thread. */
FM_API int fm_resp_create(const struct fm_resp_options *options, struct fm_resp **out);
/* Attaches to the pool and serves until fm_resp_stop(): call it from a thread of its own. */
FM_API int fm_resp_run(struct fm_resp *resp);
/* From any thread or a signal handler. */
FM_API void fm_resp_stop(struct fm_resp *resp);
struct fm_resp_info {
	uint32_t size; /* sizeof, set by the caller */
	uint32_t connections;
	uint64_t accepted, refused; /* connections; refused: there were too many */
	uint64_t commands;
	uint64_t hits, misses;	    /* values that GET and MGET asked for */
	uint64_t held_bytes;	    /* of values that an EXISTS promised */
	uint64_t name_bytes;	    /* of the names that SCAN lists */
	uint64_t names_missing;	    /* that found no room there */
	uint32_t ports[4]; /* it listens on, as in fm_resp_options.listen; 0: a Unix socket */
};

/* As of the last time that it waited; from any thread. */
FM_API int fm_resp_info(struct fm_resp *resp, struct fm_resp_info *info);
/* Another password for those who AUTH from now on, from any thread. FM_ERR_UNSUPPORTED: the front
 * end was created without one. */
FM_API int fm_resp_set_password(struct fm_resp *resp, const char *password);
/* After fm_resp_run() returned, or without it. NULL is ignored. Removes Unix sockets. */
FM_API void fm_resp_destroy(struct fm_resp *resp);

#ifdef __cplusplus
}
#endif

#endif
