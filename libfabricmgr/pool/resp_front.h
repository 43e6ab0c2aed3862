/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis front end: its parts and what they share. resp_server.c moves bytes (io_uring),
 * resp_commands.c says what commands do, resp_reply.c queues answers, resp_holds.c and resp_names.c
 * are the two tables. One thread, but for password and figures. It is a client of the pool like any
 * other. Invariant: every block that is staged, leased or held here belongs to exactly one
 * connection's list or to the holds.
 */
#ifndef FM_POOL_RESP_FRONT_H
#define FM_POOL_RESP_FRONT_H

#include <liburing.h>
#include <pthread.h>

#include <fabricmgr.h>

#include "core/resp.h"

struct fm_resp;

/* ---- answers on their way ---- */

/* Text of our own (@text is freed), or bytes of a leased block (released when sent). */
struct resp_piece {
	const char *data;
	size_t length, room; /* room: of a text that may still grow */
	size_t size;	     /* of the text as allocated */
	char *text;
	struct fm_block block;
};

struct resp_out {
	struct resp_piece *pieces;
	uint32_t first, end, size; /* pieces[first..end) are to be sent */
	uint32_t in_flight;	   /* of them, with the kernel: not to be touched */
	size_t bytes;
};

/* ---- connections ---- */

enum resp_phase {
	RESP_COMMANDS, /* bytes go to the buffer */
	RESP_IN_PLACE, /* bytes go to a staged block */
	RESP_SKIPPING, /* bytes of a refused value go nowhere */
};

/* A long value of the command that is being received. */
struct resp_long {
	struct fm_block block; /* data NULL: refused */
	uint32_t crc32c;       /* of what has come, summed while it is in the cache */
	int error;
	char reason[160];
};

struct resp_connection {
	struct fm_resp *front;
	struct resp_connection *prev, *next;
	int fd;
	uint64_t id;
	enum resp_phase phase;
	uint8_t protocol; /* 2 or 3 */
	bool is_authenticated, is_receiving, is_sending, is_ending, is_dead;
	char *in;
	size_t used, size;
	struct fm_resp_parser parser;
	struct resp_long *longs; /* of this command */
	uint32_t n_longs, longs_size;
	uint64_t received, wanted; /* of the long value with its CR LF */
	char tail[2];		   /* its CR LF */
	struct iovec receive_iov[2];
	struct msghdr receive_message, send_message;
	struct iovec send_iov[64];
	struct resp_out out;
	uint64_t send_ns;  /* when the kernel was last given something to send */
	uint64_t begun_ns; /* when the command that is half there began; 0: none is */
	char name[64];
};

/* ---- what EXISTS promised (resp_holds.c) ---- */

enum { RESP_HOLDS_MAX = 4096 };

struct resp_hold {
	struct fm_key key;
	struct fm_block block; /* data NULL: free */
	uint64_t until_ns;
	uint32_t next; /* in its hash chain, + 1 */
};

struct resp_holds {
	struct resp_hold *holds;
	uint32_t buckets[RESP_HOLDS_MAX];
	uint32_t *free, n_free;
	uint32_t *order, first, end; /* in the order of their ends; a ring of RESP_HOLDS_MAX */
	uint64_t bytes;
};

int resp_holds_create(struct resp_holds *holds);
void resp_holds_destroy(struct resp_holds *holds, struct fm_pool *pool);
/* False: at the bound. Else @block (leased) belongs to the holds, or is released: held already. */
bool resp_holds_add(struct fm_resp *front, const struct fm_key *key, struct fm_block *block,
		    uint64_t now);
/* Gives the held block out; false: none is held. */
bool resp_holds_take(struct fm_resp *front, const struct fm_key *key, struct fm_block *block);
void resp_holds_expire(struct fm_resp *front, uint64_t now);

/* ---- names for SCAN (resp_names.c) ---- */

struct resp_name {
	struct resp_name *next;
	struct fm_key key; /* of the value, not empty or empty */
	uint32_t length;
	char text[];
};

struct resp_names {
	struct resp_name **buckets;
	uint32_t bucket_count, hand;
	uint64_t bytes, bytes_max; /* bytes_max 0: no table */
	uint64_t n_missing;	   /* names that found no room */
};

int resp_names_create(struct resp_names *names, uint64_t bytes_max);
void resp_names_destroy(struct resp_names *names);
void resp_names_add(struct fm_resp *front, const char *text, size_t length,
		    const struct fm_key *key);
void resp_names_clear(struct resp_names *names);
/* Drops the bucket's names whose value is gone; returns its first name. */
struct resp_name *resp_names_bucket(struct fm_resp *front, uint32_t bucket);

/* ---- the front end ---- */

struct resp_text {
	const char *at;
	size_t length;
};

/* Short values that one connection's commands have set so far, to be stored together. */
enum { RESP_BATCH_MAX = 32 };

struct resp_batch {
	struct resp_text names[RESP_BATCH_MAX], values[RESP_BATCH_MAX];
	uint32_t n;
};

enum { RESP_LISTENERS_MAX = 4, RESP_CONNECTIONS_MAX = 1024 };

struct resp_listener {
	int fd;
	char *path;    /* of a Unix socket, removed at the end */
	uint32_t port; /* of TCP */
	bool is_paused;
};

struct fm_resp {
	struct fm_pool *pool;
	struct fm_attach_options attach;
	char *tenant; /* salt of @ns; NULL: that of the pool's tenant */
	struct fm_digest ns;
	pthread_mutex_t lock; /* of what other threads see: @password and @shown */
	char *password;	      /* with or without one (has_password) is for life */
	struct fm_resp_info shown;
	uint64_t hold_ns, hold_bytes;
	uint64_t text_bytes; /* allocated for answers, over all connections */
	struct resp_holds holds;
	struct resp_names names;
	struct io_uring ring;
	bool has_ring, is_stopping, has_password;
	struct resp_listener listeners[RESP_LISTENERS_MAX];
	uint32_t n_listeners;
	int stop_event;
	uint64_t stop_count;
	struct resp_connection *connections;
	uint32_t n_connections;
	uint64_t next_id, n_commands, n_accepted, n_refused, n_hits, n_misses, started_ns;
	uint64_t accept_said_at;
	char *scratch; /* refused values go here */
	struct resp_batch batch;
};

/* Runs the complete command in connection->parser; a SET of a short value may wait in the batch. */
void resp_command_run(struct resp_connection *connection);
/* Stores and answers what waits in the batch: before anything else of this connection is answered,
 * and before the bytes that it has received move. */
void resp_batch_end(struct resp_connection *connection);
/* Where the next long value of the unfinished command goes: stages a block, or says why not. */
void resp_command_long(struct resp_connection *connection, struct resp_long *value);

/* Appends to the answers. No memory: the connection ends. */
void resp_reply(struct resp_connection *connection, const char *text, size_t length);
void resp_reply_text(struct resp_connection *connection, const char *text);
void resp_reply_format(struct resp_connection *connection, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void resp_reply_null(struct resp_connection *connection);
void resp_reply_bulk(struct resp_connection *connection, const void *data, size_t length);
/* @length bytes of the leased block from @offset as a bulk string; takes the lease over. */
void resp_reply_block(struct resp_connection *connection, struct fm_block *block, uint64_t offset,
		      uint64_t length);
/* @n bytes have gone out. */
void resp_out_sent(struct resp_connection *connection, size_t n);
void resp_out_destroy(struct resp_connection *connection);

#endif
