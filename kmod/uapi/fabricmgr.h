/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What the kernel module, the node daemon and every client agree on: the lease structure and the
 * state words, the same on every rung (module, hugetlb memfd, memfd), and the calls of the device.
 * Invariant: sizes and offsets of the lease and the words never change; the structures of calls
 * grow at the end only.
 */
#ifndef _UAPI_FABRICMGR_H
#define _UAPI_FABRICMGR_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* A chunk is what a region is made of, and what the allocator and the shrinker hand around. */
#define FABRICMGR_CHUNK_BYTES (4u << 20)

/*
 * The state word of a block: generation in the upper 32 bits, state in the lower. Written only by
 * the owner of the index. The generation changes only when the block is freed.
 */
enum fabricmgr_block_state {
	FABRICMGR_BLOCK_FREE = 0,
	FABRICMGR_BLOCK_STAGING = 1,	/* a writer has it; others cannot see it */
	FABRICMGR_BLOCK_SEALED = 2,	/* visible, immutable; may be leased */
	FABRICMGR_BLOCK_EVICTING = 3,	/* no new leases; goes back to SEALED if one is found */
	FABRICMGR_BLOCK_QUARANTINE = 4, /* its dead writer may still have device I/O in flight */
	FABRICMGR_BLOCK_GROUPED = 5,	/* in the lowest 3 bits; the others name the leader's entry.
					   Sealed when the leader is SEALED, staging before */
};

/* The members of a group but one are GROUPED until the one, its leader, has become SEALED. */
#define FABRICMGR_BLOCK_GROUPED_BY(leader) (((leader) << 3) | FABRICMGR_BLOCK_GROUPED)
#define FABRICMGR_IS_GROUPED(state) (((state) & 7) == FABRICMGR_BLOCK_GROUPED)
#define FABRICMGR_GROUP_LEADER(state) ((state) >> 3)
#define FABRICMGR_GROUPED_MAX (1u << 29) /* entries of an index that has groups, at most */

#define FABRICMGR_WORD(generation, state) (((__u64)(generation) << 32) | (__u32)(state))
#define FABRICMGR_WORD_GENERATION(word) ((__u32)((word) >> 32))
#define FABRICMGR_WORD_STATE(word) ((__u32)(word))

/*
 * One lease, in the table of the client that holds it. @region 0: the entry is free.
 *
 * Taking one: load-acquire the block's word (SEALED), store-release chunk, generation, slot, then
 * region, sequentially consistent fence, load the word again; changed: store region 0 and retry.
 * Dropping it: store-release region 0. All of these are releases since the scan acquires each word:
 * one word of a later lease in the entry tells that the reads under the earlier one are over.
 * Evicting: store EVICTING, sequentially consistent fence, scan every table; a victim that is
 * leased gets its old word back. The two fences make it impossible that both sides miss each other.
 */
struct fabricmgr_lease {
	__u32 region;
	__u32 chunk;
	__u32 generation;
	__u32 slot;
};

#define FABRICMGR_LEASES_MAX 65536 /* entries of one client's table, at most */

/*
 * The device: /dev/fabricmgr, calls of fabricmgr.ko.
 *
 * Every call takes the address of one structure. Its first two members are @size, set by the caller
 * to the sizeof that it was compiled with, and @flags. Structures grow at the end only: a shorter
 * one counts as filled up with zeros, of a longer one the unknown rest must be zero (E2BIG), and
 * results are written as far as @size reaches. Flags that the module does not know and reserved
 * members that are not zero are refused with EINVAL. The number of a call does not depend on its
 * structure's size. Members marked "out" are ignored on the way in. Layout is the same for 32-bit
 * programs. Offsets and lengths are bytes, times are CLOCK_MONOTONIC nanoseconds.
 *
 * One open file is one client. It lives until the last descriptor, mapping and ring that refers to
 * it is gone: open it with O_CLOEXEC. Mappings are not inherited by children (VM_DONTCOPY).
 */

#define FABRICMGR_API_MAJOR 1 /* differs: nothing fits */
#define FABRICMGR_API_MINOR 0 /* larger: calls, flags or members came to those known before */

#define FABRICMGR_NAME_BYTES 64 /* with the closing NUL; printable ASCII without '/' and spaces */
#define FABRICMGR_BATCH_MAX 4096 /* entries of one batch, at most */
#define FABRICMGR_NODE_ANY (-1)
#define FABRICMGR_ID_SAME 0xffffffffU /* uid, gid: the caller's own; or as it was */

/* A PCI function by its address. */
struct fabricmgr_pci {
	__u32 domain;
	__u8 bus;
	__u8 device;
	__u8 function;
	__u8 reserved; /* zero */
};

/* What the module is and what this kernel lets it do. */
#define FABRICMGR_IOC_VERSION _IO(0xFA, 0x00)

enum fabricmgr_feature {
	FABRICMGR_FEATURE_RING = 1 << 0,	/* calls as IORING_OP_URING_CMD */
	FABRICMGR_FEATURE_RING_CANCEL = 1 << 1, /* a waiting ring command can be cancelled */
	FABRICMGR_FEATURE_DMABUF = 1 << 2,	/* export of regions, import of peers */
	FABRICMGR_FEATURE_MOVE_NOTIFY = 1 << 3, /* exporters can revoke without unpinning */
	FABRICMGR_FEATURE_P2PDMA = 1 << 4,	/* distances are the kernel's, not our estimate */
	FABRICMGR_FEATURE_HUGETLB = 1 << 5,	/* vaults of huge pages */
};

struct fabricmgr_version {
	__u32 size;
	__u32 flags;		   /* zero */
	__u32 api_major;	   /* out */
	__u32 api_minor;	   /* out */
	__aligned_u64 features;	   /* out: enum fabricmgr_feature */
	__aligned_u64 limit_bytes; /* out: of all regions together */
	__u32 limit_regions;	   /* out */
	__u32 limit_clients;	   /* out */
	__u32 order_max;	   /* out: largest chunk, as power of two of pages */
	__u32 order_min;	   /* out */
	__u32 page_bytes;	   /* out */
	__u32 reserved;
};

/*
 * Regions. A region is memory with a name, an owner and a mode that outlives every process.
 *
 * Its mode is that of a file: read lets a client map the read window; write lets it map the write
 * window, hand out staging, seal, unseal, record pins and export. Destroying it and changing its
 * mode is for its owner's uid; all of it for administrators (CAP_SYS_ADMIN, or the group that the
 * module's parameter admin_gid names). At most one living client is its manager: who hears of the
 * deaths of its clients and of memory pressure, and may read its clients' lease tables.
 *
 * Two windows in the device's file offsets show the same memory: the read window at @map_offset,
 * for PROT_READ alone (it can never become writable), and the write window at @write_offset. In
 * the write window a client without write permission reaches what is staged to it, and nobody
 * reaches what is sealed: that is SIGBUS.
 */
enum fabricmgr_region_kind {
	FABRICMGR_REGION_CHUNKS = 1, /* the module's own pages */
	FABRICMGR_REGION_VAULT = 2,  /* somebody's memfd, kept alive: map its descriptor instead */
	FABRICMGR_REGION_PEER = 3,   /* a dma-buf of somebody else's: ends with its creator */
};

enum fabricmgr_region_state {
	FABRICMGR_REGION_IS_DISCARDABLE = 1 << 0,
	FABRICMGR_REGION_IS_REVOKED = 1 << 1, /* peer: its memory went; nothing can be had of it */
	FABRICMGR_REGION_IS_MANAGED = 1 << 2, /* it has a living manager */
	FABRICMGR_REGION_IS_BASELINED = 1 << 3,
};

struct fabricmgr_region_info {
	__u32 size;
	__u32 flags;		      /* 0: @id; FABRICMGR_NEXT: the next one after @id */
	__u32 id;		      /* in and out; never 0, not used again for another region */
	__u32 kind;		      /* out: enum fabricmgr_region_kind */
	__u32 state;		      /* out: enum fabricmgr_region_state */
	__u32 order;		      /* out: of its chunks; 0 for a vault or a peer */
	__s32 node;		      /* out: of all of it; FABRICMGR_NODE_ANY: mixed */
	__u32 uid;		      /* out: in the caller's user namespace */
	__u32 gid;		      /* out */
	__u32 mode;		      /* out: permission bits */
	__u32 lease_region;	      /* out: what leases on it hold in their member region */
	__u32 manager;		      /* out: client; 0: none */
	__aligned_u64 bytes;	      /* out */
	__aligned_u64 resident_bytes; /* out: less what reclaim has taken */
	__aligned_u64 map_offset;     /* out: read window; 0: it has none */
	__aligned_u64 write_offset;   /* out: write window; 0: it has none */
	__aligned_u64 words_offset;   /* out: chunk words, one __u64 each; 0: not discardable */
	__u32 clients;		      /* out: that have it open */
	__u32 mappings;		      /* out: address ranges that show it */
	__u32 exports;		      /* out: living dma-bufs of it */
	__u32 reserved;
	struct fabricmgr_pci pci;	 /* out: the importing function of a peer */
	char name[FABRICMGR_NAME_BYTES]; /* out */
};

#define FABRICMGR_NEXT 1 /* of two INFO calls: iterate; ENOENT ends it */

/* About a region whose name the caller may know: it may read it, owns it, or is administrator. */
#define FABRICMGR_IOC_REGION_INFO _IO(0xFA, 0x10)

/* Creates one, zeroed, and opens it for the caller with read and write. May go through a ring. */
#define FABRICMGR_IOC_REGION_CREATE _IO(0xFA, 0x11)

enum fabricmgr_create_flag {
	FABRICMGR_CREATE_MANAGE = 1 << 0,      /* the caller becomes its manager */
	FABRICMGR_CREATE_DISCARDABLE = 1 << 1, /* reclaim may take chunks without leases */
	FABRICMGR_CREATE_EXACT_ORDER = 1 << 2, /* ENOMEM rather than smaller chunks */
	FABRICMGR_CREATE_UNCHARGED = 1 << 3,   /* administrators: not to the memory cgroup */
};

struct fabricmgr_region_create {
	__u32 size;
	__u32 flags;		  /* enum fabricmgr_create_flag */
	__aligned_u64 bytes;	  /* a multiple of the chunk's size, which @order decides */
	__s32 node;		  /* there or nowhere; or FABRICMGR_NODE_ANY */
	__u32 order;		  /* of chunks, in and out: wanted, and what they are; 0: largest */
	__u32 uid;		  /* FABRICMGR_ID_SAME, or an administrator's choice */
	__u32 gid;		  /* FABRICMGR_ID_SAME, or one of the caller's groups */
	__u32 mode;		  /* 0 to 0666 without execute bits */
	__u32 lease_region;	  /* what leases on it hold in their member region; 0: its id */
	__u32 id;		  /* out */
	__u32 reserved;		  /* zero */
	__aligned_u64 map_offset; /* out */
	__aligned_u64 write_offset; /* out */
	__aligned_u64 words_offset; /* out */
	char name[FABRICMGR_NAME_BYTES];
};

/*
 * Opens one by name, or by id when @name is empty; opening again adds rights. ENOBUFS while its
 * manager leaves thousands of deaths unread.
 */
#define FABRICMGR_IOC_REGION_OPEN _IO(0xFA, 0x12)

enum fabricmgr_open_flag {
	FABRICMGR_OPEN_WRITE = 1 << 0,
	FABRICMGR_OPEN_MANAGE = 1 << 1, /* with WRITE; EBUSY while another client manages it */
};

struct fabricmgr_region_open {
	__u32 size;
	__u32 flags;		    /* enum fabricmgr_open_flag */
	__u32 id;		    /* in, when @name is empty; out */
	__u32 reserved;		    /* zero */
	__aligned_u64 bytes;	    /* out */
	__aligned_u64 map_offset;   /* out */
	__aligned_u64 write_offset; /* out */
	__aligned_u64 words_offset; /* out */
	char name[FABRICMGR_NAME_BYTES];
};

/* Ends what REGION_OPEN began, staging included. EBUSY while the caller has it mapped. */
#define FABRICMGR_IOC_REGION_CLOSE _IO(0xFA, 0x13)
/*
 * EBUSY while it is open elsewhere, mapped, exported or pinned. With FABRICMGR_DESTROY_FORCE it
 * goes all the same: its mappings become SIGBUS, its exports are revoked, its clients hear
 * FABRICMGR_EVENT_REGION_GONE; pages that devices still hold are freed, zeroed, when they let go.
 * May go through a ring.
 */
#define FABRICMGR_IOC_REGION_DESTROY _IO(0xFA, 0x14)
#define FABRICMGR_DESTROY_FORCE 1
/* Records the pins on each chunk as its owner's: seal ignores as many. Again after each change. */
#define FABRICMGR_IOC_REGION_BASELINE _IO(0xFA, 0x15)

struct fabricmgr_region_id { /* of CLOSE, DESTROY, BASELINE */
	__u32 size;
	__u32 flags; /* of the call; else zero */
	__u32 id;
	__u32 reserved; /* zero */
};

/* Changes owner (administrators), group and mode; the same rules as for creating. */
#define FABRICMGR_IOC_REGION_OWN _IO(0xFA, 0x16)

struct fabricmgr_region_own {
	__u32 size;
	__u32 flags; /* zero */
	__u32 id;
	__u32 uid;  /* FABRICMGR_ID_SAME: as it is */
	__u32 gid;  /* FABRICMGR_ID_SAME: as it is */
	__u32 mode; /* FABRICMGR_ID_SAME: as it is */
};

/*
 * A dma-buf of a range of chunks, for ibv_reg_dmabuf_mr and the like; with write permission O_RDWR
 * is possible. A read-only one can be mapped for a device to read alone (DMA_TO_DEVICE); who may
 * write to the region answers for what devices write through his exports, sealed or not. Vaults
 * and peers are EOPNOTSUPP: REGION_FD gives what is behind them.
 */
#define FABRICMGR_IOC_REGION_EXPORT _IO(0xFA, 0x17)

struct fabricmgr_region_export {
	__u32 size;
	__u32 flags; /* zero */
	__u32 id;
	__u32 fd_flags;	      /* O_CLOEXEC, O_RDONLY or O_RDWR */
	__aligned_u64 offset; /* whole pages */
	__aligned_u64 bytes;  /* whole pages; 0: to the end */
	__s32 fd;	      /* out */
	__u32 reserved;	      /* zero */
};

/*
 * Keeps a memfd (hugetlb or shmem) alive under a name. It must be writable by its owner alone (mode
 * 0600 or less) and, so that nobody can truncate it, carry F_SEAL_SHRINK. Costs quota, not memory.
 */
#define FABRICMGR_IOC_VAULT_CREATE _IO(0xFA, 0x18)

struct fabricmgr_vault_create {
	__u32 size;
	__u32 flags; /* FABRICMGR_CREATE_MANAGE or zero */
	__s32 fd;
	__u32 uid; /* these four as in fabricmgr_region_create */
	__u32 gid;
	__u32 mode;
	__u32 lease_region;
	__u32 id;	     /* out */
	__aligned_u64 bytes; /* out */
	char name[FABRICMGR_NAME_BYTES];
};

/*
 * The descriptor behind a vault, for reading, or for writing with write permission; or that of a
 * peer, which asks for write permission always. It works after the region is destroyed.
 */
#define FABRICMGR_IOC_REGION_FD _IO(0xFA, 0x19)

struct fabricmgr_region_fd {
	__u32 size;
	__u32 flags; /* zero */
	__u32 id;
	__u32 fd_flags; /* O_CLOEXEC, O_RDONLY or O_RDWR */
	__s32 fd;	/* out */
	__u32 reserved; /* zero */
};

/*
 * Takes a dma-buf as a peer region (administrators): @pci, a function with a driver, is attached to
 * it and its memory is mapped for that. It ends with its creator's file; its exporter may revoke it
 * before.
 */
#define FABRICMGR_IOC_PEER_CREATE _IO(0xFA, 0x1a)

struct fabricmgr_peer_create {
	__u32 size;
	__u32 flags; /* FABRICMGR_CREATE_MANAGE or zero */
	__s32 fd;
	__u32 uid; /* these four as in fabricmgr_region_create */
	__u32 gid;
	__u32 mode;
	__u32 lease_region;
	__u32 id; /* out */
	struct fabricmgr_pci pci;
	__aligned_u64 bytes; /* out */
	__u32 segments;	     /* out: contiguous ranges of device addresses */
	__u32 reserved;	     /* zero */
	char name[FABRICMGR_NAME_BYTES];
};

/*
 * How far a peer-to-peer transfer between two functions goes. 0 is the same function, each bridge
 * on the way is one more; negative: they cannot, and @reason and @text say why.
 */
#define FABRICMGR_IOC_PEER_DISTANCE _IO(0xFA, 0x1b)

enum fabricmgr_distance_reason {
	FABRICMGR_DISTANCE_OK = 0,
	FABRICMGR_DISTANCE_NO_KERNEL_SUPPORT = 1, /* estimated: the kernel has no P2PDMA */
	FABRICMGR_DISTANCE_ACS_REDIRECT = 2,	  /* a bridge sends it up through the root */
	FABRICMGR_DISTANCE_HOST_BRIDGE = 3,	  /* between roots that nobody vouches for */
	FABRICMGR_DISTANCE_NO_SUCH_DEVICE = 4,
};

struct fabricmgr_peer_distance {
	__u32 size;
	__u32 flags;			/* zero */
	struct fabricmgr_pci provider;	/* whose memory it is */
	struct fabricmgr_pci requester; /* who reads or writes it */
	__s32 distance;			/* out: as the kernel says; -1: not possible */
	__u32 reason;			/* out: enum fabricmgr_distance_reason */
	__s32 hops;			/* out: bridges on the way; -1: no common one */
	__u32 reserved;			/* zero */
	char text[128];			/* out: the reason in words */
};

/*
 * Clients and their leases. CLIENT_SETUP gives the caller's file a lease table of @entries zeroed
 * struct fabricmgr_lease at @leases_offset, which it may map for reading and writing, and managers
 * of the regions it has open for reading. Once for each file (EEXIST).
 */
#define FABRICMGR_IOC_CLIENT_SETUP _IO(0xFA, 0x20)

struct fabricmgr_client_setup {
	__u32 size;
	__u32 flags;		     /* zero */
	__u32 entries;		     /* 1 to FABRICMGR_LEASES_MAX */
	__u32 id;		     /* out: by which managers know this client */
	__aligned_u64 leases_offset; /* out */
	__aligned_u64 leases_bytes;  /* out: whole pages */
};

/* About a client: the caller itself (id 0), one of its uid, or one in a region that it manages. */
#define FABRICMGR_IOC_CLIENT_INFO _IO(0xFA, 0x21)

struct fabricmgr_client_info {
	__u32 size;
	__u32 flags;		     /* 0: @id; FABRICMGR_NEXT: the next one after @id */
	__u32 id;		     /* in and out; 0 without NEXT: the caller */
	__u32 uid;		     /* out: who opened it, in the caller's user namespace */
	__u32 gid;		     /* out */
	__s32 pid;		     /* out: its opener, in the caller's pid namespace; 0: gone */
	__u32 entries;		     /* out: of its lease table; 0: none */
	__u32 leases;		     /* out: entries in use at the moment */
	__aligned_u64 leases_offset; /* out: 0: none, or not for the caller */
	__aligned_u64 staged_bytes;  /* out */
	__aligned_u64 opened_ns;     /* out */
	__u32 regions;		     /* out: that it has open */
	__u32 reserved;
};

/*
 * Staging, sealing and unsealing: batches of page-aligned ranges of one region. A batch is not
 * atomic: each entry has its result, 0 or a negative errno, and the call fails only when it could
 * not look at its entries at all. All may go through a ring.
 *
 * STAGE gives free ranges to a client that has the region open (write permission; EEXIST: staged or
 * sealed already). UNSTAGE takes them back, closing the write window there. SEAL makes ranges that
 * are free, or staged to one client, immutable: EBUSY while one of their chunks carries DMA pins
 * above the baseline; a client may seal what is staged to it. UNSEAL frees sealed ranges again
 * (write permission). PINS tells in @result whether a range's chunks carry pins above the baseline
 * (EBUSY) and changes nothing.
 */
#define FABRICMGR_IOC_STAGE _IO(0xFA, 0x30)
#define FABRICMGR_IOC_UNSTAGE _IO(0xFA, 0x31)
#define FABRICMGR_IOC_SEAL _IO(0xFA, 0x32)
#define FABRICMGR_IOC_UNSEAL _IO(0xFA, 0x33)
#define FABRICMGR_IOC_PINS _IO(0xFA, 0x34)

struct fabricmgr_range {
	__aligned_u64 offset;
	__aligned_u64 bytes;
	__s32 result;	/* out: of SEAL, EINVAL where the range is not all in one state */
	__u32 reserved; /* zero */
};

struct fabricmgr_batch {
	__u32 size;
	__u32 flags;	      /* FABRICMGR_BATCH_ZERO or zero */
	__u32 region;	      /* id */
	__u32 client;	      /* STAGE: to whom; else 0 */
	__aligned_u64 ranges; /* address of @count struct fabricmgr_range */
	__u32 count;	      /* 1 to FABRICMGR_BATCH_MAX */
	__u32 succeeded;      /* out */
};

#define FABRICMGR_BATCH_ZERO 1 /* STAGE, UNSTAGE, UNSEAL: clear the memory */

/* Brings back, zeroed, chunks that reclaim took from a discardable region (write permission). */
#define FABRICMGR_IOC_REFILL _IO(0xFA, 0x35) /* struct fabricmgr_batch, whole chunks */

/*
 * Events. read() on the device gives whole records: as many as fit, at least one, blocking unless
 * O_NONBLOCK; poll() works. The call EVENTS is the same; through a ring it completes, once, with
 * the number of records, when there are any, and is then armed again by submitting it again.
 */
#define FABRICMGR_IOC_EVENTS _IO(0xFA, 0x40)

struct fabricmgr_events {
	__u32 size;
	__u32 flags;	       /* zero */
	__aligned_u64 records; /* address of @capacity struct fabricmgr_event */
	__u32 capacity;	       /* 1 to FABRICMGR_BATCH_MAX */
	__u32 count;	       /* out; through a ring only the completion's result tells it */
};

enum fabricmgr_event_kind {
	/* To managers: @client is gone; its leases (@value) and its staging (@bytes) are free. */
	FABRICMGR_EVENT_CLIENT_DIED = 1,
	/* To managers and clients of a peer: its memory went. */
	FABRICMGR_EVENT_PEER_REVOKED = 2,
	/* To managers: the machine is short of memory. Free chunks, or @bytes go soon. */
	FABRICMGR_EVENT_PRESSURE = 3,
	/* To managers: reclaim took @value chunks since the event before, @bytes together. */
	FABRICMGR_EVENT_CHUNKS_TAKEN = 4,
	/* To clients: the region was destroyed by force. */
	FABRICMGR_EVENT_REGION_GONE = 5,
};

struct fabricmgr_event {
	__u32 kind; /* enum fabricmgr_event_kind */
	__u32 region;
	__u32 client;
	__s32 pid; /* CLIENT_DIED: who opened it, in the reader's pid namespace; 0: not in it */
	__u32 uid; /* CLIENT_DIED: who opened it, in the reader's user namespace */
	__u32 reserved;
	__aligned_u64 time_ns; /* CLIENT_DIED: when its holds were free */
	__aligned_u64 value;
	__aligned_u64 bytes;
};

/* Quotas of a uid: what its regions may hold and it may have open. Setting: administrators. */
#define FABRICMGR_IOC_QUOTA_GET _IO(0xFA, 0x50)
#define FABRICMGR_IOC_QUOTA_SET _IO(0xFA, 0x51)
#define FABRICMGR_QUOTA_DEFAULT 0xffffffffffffffffULL /* as the module's parameter says */

struct fabricmgr_quota {
	__u32 size;
	__u32 flags;		     /* zero */
	__u32 uid;		     /* FABRICMGR_ID_SAME: the caller's; else administrators */
	__u32 reserved;		     /* zero */
	__aligned_u64 limit_bytes;   /* in for SET, out for GET */
	__aligned_u64 limit_regions; /* in for SET, out for GET */
	__aligned_u64 limit_clients; /* in for SET, out for GET */
	__aligned_u64 bytes;	     /* out */
	__aligned_u64 regions;	     /* out */
	__aligned_u64 clients;	     /* out */
};

/*
 * A call through a ring: opcode IORING_OP_URING_CMD on the device's descriptor, cmd_op one of
 * REGION_CREATE, REGION_DESTROY, STAGE, UNSTAGE, SEAL, UNSEAL, PINS, REFILL, EVENTS, and this in
 * the submission's cmd (16 bytes: any ring will do). The completion's result is what the ioctl
 * returns. The structure must stay where it is until then.
 */
struct fabricmgr_ring_command {
	__aligned_u64 argument; /* address of the call's structure */
	__aligned_u64 reserved; /* zero */
};

#ifdef __cplusplus
#define FABRICMGR_ASSERT_BYTES(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define FABRICMGR_ASSERT_BYTES(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif
FABRICMGR_ASSERT_BYTES(struct fabricmgr_lease, 16);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_pci, 8);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_version, 56);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_info, 176);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_create, 136);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_open, 112);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_id, 16);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_own, 24);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_export, 40);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_vault_create, 104);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_region_fd, 24);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_peer_create, 120);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_peer_distance, 168);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_client_setup, 32);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_client_info, 64);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_range, 24);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_batch, 32);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_events, 24);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_event, 48);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_quota, 64);
FABRICMGR_ASSERT_BYTES(struct fabricmgr_ring_command, 16);

#endif /* _UAPI_FABRICMGR_H */
