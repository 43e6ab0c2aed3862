/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP on libmicrohttpd: paths, bodies, statuses, Server-Sent Events. Its one thread parses and
 * tokenizes, hands exchanges to the front end's thread, and sends what comes back.
 * Invariant: every request gets an answer in JSON (or metrics text) with the right status, or its
 * connection is closed because it broke a limit that cannot be answered.
 */
#ifndef FM_ENGINE_HTTP_SERVER_H
#define FM_ENGINE_HTTP_SERVER_H

#include "http/exchange.h"
#include "http/front_end.h"
#include "http/metrics.h"

struct fm_http_server;

struct fm_http_options {
	const char *listen;
	bool tls_by_proxy;
	const char *model_name;
	const struct fm_tokenizer *tokenizer;
	const struct fm_chat_template *chat; /* NULL: the file has none that is known */
	uint32_t model_context;		     /* of the model file, until workers said theirs */
	struct fm_metrics *metrics;
	/* Hands over a request (and a reference): 0, FM_ERR_LIMIT (429) or FM_ERR_CANCELLED (503,
	 * stopping). Called on the HTTP thread with the exchange's connection suspended. */
	int (*submit)(void *arg, struct fm_exchange *exchange);
	/* Wakes the front end's thread: a client left. */
	void (*left)(void *arg);
	void *arg;
};

/* Whether @listen is an address that may be listened on: 0, or negative with the detail. */
int fm_http_listen_check(const char *listen, bool tls_by_proxy);
/* @origin: "http://127.0.0.1:8080". */
int fm_http_server_start(const struct fm_http_options *options, char *origin, size_t origin_size,
			 struct fm_http_server **out);
/* Every exchange must be finished. Waits for the thread. */
void fm_http_server_stop(struct fm_http_server *server);

#endif
