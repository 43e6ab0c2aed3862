/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket to one worker: connect, hello, lines in and out (Documentation/worker-protocol.md).
 * Used by the front end's thread only; never blocks. Invariant: a line is handed on whole and
 * parsed or the connection is closed; nothing of one connection survives into the next.
 */
#ifndef FM_ENGINE_WORKER_LINK_H
#define FM_ENGINE_WORKER_LINK_H

#include <jansson.h>

#include <fabricmgr.h>

#include "core/router_core.h"
#include "http/exchange.h"

#define FM_WORKER_UNSENT_MAX	   (64u << 20) /* beyond, the worker is taken for dead */
#define FM_WORKER_RETRY_NS	   (100ull * 1000000)
#define FM_WORKER_REFUSED_RETRY_NS (2000ull * 1000000)
#define FM_WORKER_SHORT_NS	   (10ull * 1000000) /* between tries to read without memory */
#define FM_WORKER_SHORT_TRIES_MAX  500
#define FM_WORKER_HELLO_NS	   (5000ull * 1000000)

enum fm_link_state { FM_LINK_DOWN, FM_LINK_CONNECTING, FM_LINK_HELLO, FM_LINK_UP };

struct fm_hello {
	enum fm_role role;
	struct fm_digest ns;
	uint32_t tokens_per_block, context, vocab, pid, max_batch;
	char model[128], numerics[64];
};

struct fm_worker_link {
	char address[128];
	bool is_fixed; /* a given socket: never reconnected */
	enum fm_link_state state;
	int fd;
	uint64_t due;	  /* DOWN: when to connect; CONNECTING, HELLO: when to give up */
	char reason[200]; /* why it is not up, as last logged */
	struct fm_hello hello;
	struct fm_bytes in, out;
	size_t in_taken, out_sent;
	uint32_t short_tries; /* to read a line: there was no memory */
	uint32_t running, waiting;
};

/* @address: "unix:/path" or "host:port" on loopback; anything else is FM_ERR_INVALID. */
int fm_worker_link_init(struct fm_worker_link *link, const char *address);
void fm_worker_link_init_fd(struct fm_worker_link *link, int fd, size_t number);
void fm_worker_link_destroy(struct fm_worker_link *link);

/* Begins to connect when it is due. */
void fm_worker_link_connect(struct fm_worker_link *link, uint64_t now);
/* Closes, and says why (once for one reason). Comes back after @pause_ns. */
void fm_worker_link_close(struct fm_worker_link *link, uint64_t now, uint64_t pause_ns,
			  const char *format, ...) __attribute__((format(printf, 4, 5)));
short fm_worker_link_events(const struct fm_worker_link *link);
/* Sends and receives what can be. Negative: the connection is over (detail set); close it. */
int fm_worker_link_io(struct fm_worker_link *link, short events, uint64_t now);
/* The next whole line as JSON (new reference): 1, 0 when there is none, or negative as above. 0
 * with short_tries set: there was no memory to read it; ask again in FM_WORKER_SHORT_NS. */
int fm_worker_link_next(struct fm_worker_link *link, json_t **out);
/* Queues a message. Takes over @message. FM_ERR_NO_MEMORY: it was not, the connection is as
 * before. */
int fm_worker_link_send(struct fm_worker_link *link, json_t *message);
/* Queues the end of a request, without memory of jansson. */
int fm_worker_link_cancel(struct fm_worker_link *link, uint64_t id);
/* Checks and stores the first message. FM_ERR_VERSION, FM_ERR_INVALID with the detail. */
int fm_worker_link_take_hello(struct fm_worker_link *link, json_t *message);

#endif
