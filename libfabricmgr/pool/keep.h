/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool outlives its daemon: index, headers, arenas and lease tables are handed to a keeper, the
 * kernel module or the service manager, as they are made (keep.c), with a state that says what they
 * are, and a later start takes them over (resume.c; Documentation/design/warm-restart.md). server.c
 * and session.c call it, on the serving thread. Invariant: a client has no descriptor that was not
 * handed over before.
 */
#ifndef FM_POOL_KEEP_H
#define FM_POOL_KEEP_H

#include "base/service.h"
#include "core/store.h"

struct fm_server;
struct fm_server_needs;
struct fm_server_options;
struct fm_session;

#define FM_STATE_MAGIC	 0x54534d46u /* "FMST" */
#define FM_STATE_VERSION 1u

/* Of a client that was told its descriptors, and written before that. Each record ends with the
 * CRC32C of what stands before in it. */
struct fm_state_client {
	uint32_t id; /* 0: free */
	uint32_t pid, uid, flags;
	uint32_t leases; /* of its table */
	char name[48];
	uint32_t checksum;
};

struct fm_state_arena {
	uint32_t region; /* 0: there is none */
	uint32_t uid;
	char tenant[32];
	uint32_t checksum;
};

/* What stands in the memory "state", which only the daemon can open. Grows at the end only. */
struct fm_state {
	uint32_t magic, version;
	uint32_t bytes; /* of this structure */
	uint32_t index_version, header_version;
	uint32_t entries_max, rung, records;
	uint64_t pool_bytes, index_bytes, header_bytes;
	uint64_t seed, incarnation;
	char program[32]; /* version of who wrote it */
	char group[32];
	uint32_t reserved, checksum; /* CRC32C of all before */
	/* From here on it changes, a word at a time. */
	uint64_t is_incomplete; /* something could not be handed over */
	uint64_t next_id;	/* of a client, in the lower half; its complement in the upper */
	struct fm_state_arena arenas[FM_ARENAS_MAX];
	struct fm_state_client clients[FM_RECORDS_MAX];
};

/* A client of an earlier daemon, which may still read and lease by what it has mapped. */
struct fm_kept {
	struct fm_kept *next;
	struct fm_owner owner;
	int fd;
	uint64_t bytes;
	uint32_t record, flags;
};

#define FM_GIVEN_MAX (FM_RECORDS_MAX + FM_ARENAS_MAX + FM_ADOPTED_MAX + 4)

#define FM_KEEP_PREFIX 46

struct fm_keep {
	struct fm_server *server;
	struct fm_state *state; /* NULL: not handed over, or not yet */
	char prefix[FM_KEEP_PREFIX]; /* of the names of its descriptors */
	bool is_managers;	     /* the service manager has given a pool */
	int module; /* the open device, where the kernel module is the keeper, with the lock of
		     * @prefix; -1: the service manager is, or nobody */
	char group[32];
	uint32_t n_tenants;
	struct fm_service_fd given[FM_GIVEN_MAX];
	uint32_t n_given;
	bool is_candidate; /* what was given fits so far */
	bool is_given_up;  /* nothing is handed over any more */
	struct fm_kept *kept;
	uint32_t n_kept;
	uint64_t probe_at;
	/* What became of what was given; 0: there was nothing. */
	uint64_t resumed, dropped, took_ns;
	char cold_reason[160]; /* why it was not taken over; "" */
	char by[32], by_reason[160];
};

/* Makes server->keep and looks at what was given; without FM_SERVER_KEEP it stays NULL, which all
 * of the below ignore but for fm_keep_resume(). */
int fm_keep_open(struct fm_server *server, const struct fm_server_options *options);
/* Takes a candidate over: 1, or 0: it starts empty, and what was given is given back. */
int fm_keep_resume(struct fm_server *server, const struct fm_policy_ops *policy,
		   const struct fm_chunk_ops *ops);
/* Hands over the state, when index and headers were. */
int fm_keep_begin(struct fm_server *server, uint64_t seed);
/* Hands @fd over, of what @kind it is; @number 0: the only one. What cannot be is logged, and a
 * later start will not take the pool over. */
void fm_keep_fd(struct fm_keep *keep, const char *kind, uint32_t number, int fd);
void fm_keep_drop(struct fm_keep *keep, const char *kind, uint32_t number);
void fm_keep_arena(struct fm_server *server, uint32_t region);
/* Before the client is answered. FM_ERR_LIMIT: too many records. */
int fm_keep_client(struct fm_session *session, int fd);
void fm_keep_forget(struct fm_session *session);
/* Whether memory and clients' holds shall stay as they are when the server ends. */
bool fm_keep_is_complete(const struct fm_keep *keep);
void fm_keep_close(struct fm_server *server);

/* The pools of this process are there: what was given for others is not kept on. */
void fm_keep_all_are_there(const struct fm_keep *keep);
/* One turn: ends those of before that have gone. */
void fm_keep_run(struct fm_keep *keep, uint64_t now);
uint64_t fm_keep_next(const struct fm_keep *keep);
void fm_keep_info(const struct fm_keep *keep, struct fm_pool_info *info);

/* Who would keep the pool; the error when that has to be the module and it cannot. */
int fm_keep_check(const struct fm_server_options *options, struct fm_server_needs *needs);

/* Between keep.c and resume.c. */
/* Forgets the clients of before, as if none had been kept. */
void fm_kept_free(struct fm_keep *keep);
void fm_keep_find(struct fm_server *server, const struct fm_server_options *options);
/* Whether another keeper than ours has the pool of before; then fm_error_detail() says which. */
bool fm_keep_is_elsewhere(const struct fm_keep *keep, const struct fm_server_options *options);
uint32_t fm_state_checksum(const struct fm_state *state);
uint32_t fm_state_arena_checksum(const struct fm_state_arena *arena);
uint32_t fm_state_client_checksum(const struct fm_state_client *client);
/* The keeper lets go of @name, which it may not have. */
int fm_keeper_drop(const struct fm_keep *keep, const char *name);
void fm_keep_name(const struct fm_keep *keep, char name[FM_SERVICE_NAME], const char *kind,
		  uint32_t number);
/* Ends those that have gone. */
void fm_kept_probe(struct fm_keep *keep, uint64_t now);

#endif
