/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach protocol between a client and the daemon, on a SOCK_SEQPACKET Unix socket: one packet
 * a message, host byte order, a request and its reply. Client and server include it. Invariant:
 * sizes and offsets of version 1 never change; reserved fields are zero and checked.
 */
#ifndef FM_POOL_WIRE_H
#define FM_POOL_WIRE_H

#include <fabricmgr.h>

#define FM_WIRE_MAGIC	0x31504d46u /* "FMP1" */
#define FM_WIRE_VERSION 1u
#define FM_WIRE_FDS	6
#define FM_WIRE_CLIENTS 16
#define FM_WIRE_LEASES_MAX 128
#define FM_WIRE_TENANTS 4
#define FM_WIRE_VALUES	8

enum fm_wire_type {
	FM_WIRE_HELLO = 1,
	FM_WIRE_REGION = 2,
	FM_WIRE_INFO = 3,
	FM_WIRE_CLIENTS_AFTER = 4,
	FM_WIRE_EVICT = 5,
	FM_WIRE_DRAIN = 6,
	FM_WIRE_LEASES = 7,
	FM_WIRE_TENANTS_AFTER = 8,
	FM_WIRE_QUOTAS = 9,
	FM_WIRE_ADOPT = 10, /* with one descriptor, which cannot write */
	FM_WIRE_RELEASE = 11,
};

struct fm_wire_head {
	uint32_t magic;
	uint32_t version;
	uint32_t type;
	uint32_t size;	   /* of the whole message */
	int32_t result;	   /* replies; then @detail says more */
	uint32_t reserved; /* 0 */
};

struct fm_wire_request {
	struct fm_wire_head head;
	uint32_t flags;	 /* HELLO: FM_ATTACH_… */
	/* HELLO; LEASES: the place in the table to begin at; RELEASE: the region's serial */
	uint32_t leases;
	/* REGION, RELEASE: its id; CLIENTS_AFTER: client id to start after; TENANTS_AFTER: number
	 * of the first; EVICT: slots of FM_SLOT_GRAIN; DRAIN: 1 or 0; LEASES: client id */
	uint32_t argument;
	uint32_t reserved; /* 0 */
	char name[48];	   /* HELLO */
	/* What follows was added: a request may end before it (FM_WIRE_REQUEST_MIN). */
	char tenant[32];		 /* HELLO: "": any; QUOTAS */
	uint64_t values[FM_WIRE_VALUES]; /* QUOTAS: as struct fm_tenant_quotas */
};

#define FM_WIRE_REQUEST_MIN offsetof(struct fm_wire_request, tenant)

/* HELLO's descriptors, in this order. */
enum fm_wire_fd {
	FM_FD_INDEX = 0,
	FM_FD_HEADERS = 1,
	FM_FD_LEASES = 2,
	FM_FD_RING = 3,
	FM_FD_SUBMITTED = 4,
	FM_FD_COMPLETED = 5,
};

struct fm_wire_hello {
	uint32_t client_id, daemon_pid;
	uint32_t region; /* the arena this client writes; 0: none */
	uint32_t leases, ring_entries, entries_max;
	uint64_t index_bytes, header_bytes, lease_bytes, ring_bytes, region_bytes;
	uint64_t incarnation;
	uint64_t features; /* FM_WIRE_HAS_… */
	char tenant[32], salt[64];
};

/* What HELLO may carry in its flags. */
#define FM_ATTACH_FLAGS (FM_ATTACH_READ_ONLY | FM_ATTACH_DEVICES | FM_ATTACH_PREFAULT)

#define FM_WIRE_HAS_NVME (1u << 0)

struct fm_wire_region {
	uint32_t region;
	uint32_t is_writable; /* REGION: one descriptor follows */
	uint64_t bytes;
	uint32_t serial; /* ADOPT: tells it from a later one of the same id */
	uint32_t held;	 /* RELEASE: blocks of it that somebody holds */
};

struct fm_wire_clients {
	uint32_t n, total;
	struct fm_client_info clients[FM_WIRE_CLIENTS];
};

struct fm_wire_leases {
	uint32_t n, next; /* the place to go on at; 0: that was all */
	struct fm_lease_info leases[FM_WIRE_LEASES_MAX];
};

struct fm_wire_tenants {
	uint32_t n, total;
	struct fm_tenant_info tenants[FM_WIRE_TENANTS];
};

/* What one request freed: at most FM_EVICT_STEP_CHUNKS at a time. */
struct fm_wire_evicted {
	uint64_t blocks, bytes;
};

struct fm_wire_reply {
	struct fm_wire_head head;
	char detail[256];
	/* Grows at the ends of its members: a reply may be shorter or longer than here. */
	union {
		struct fm_wire_hello hello;
		struct fm_wire_region region;
		struct fm_pool_info info;
		struct fm_wire_clients clients;
		struct fm_wire_leases leases;
		struct fm_wire_evicted evicted;
		struct fm_wire_tenants tenants;
	};
};

/* A reply that says what became of the request. */
#define FM_WIRE_REPLY_MIN offsetof(struct fm_wire_reply, hello)

/* Sends one packet with descriptors. 0, FM_ERR_DISCONNECTED, FM_ERR_BUSY (would block), FM_ERR_IO.
 */
int fm_wire_send(int socket, const void *data, size_t len, const int *fds, int n_fds);
/* Receives one packet without blocking: its length (0: the peer is gone), FM_ERR_BUSY when there is
 * none, or an error. Of a longer one the first @len bytes. *@n_fds: room in @fds, then how many
 * came; surplus descriptors are dropped. */
int64_t fm_wire_receive(int socket, void *data, size_t len, int *fds, int *n_fds);

#endif
