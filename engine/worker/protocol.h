/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's side of the worker protocol as JSON: requests in, events out. Pure text; no sockets.
 * Invariant: a line that is not a well-formed request changes nothing and names what is wrong.
 */
#ifndef FM_ENGINE_PROTOCOL_H
#define FM_ENGINE_PROTOCOL_H

#include <jansson.h>

#include "worker/engine.h"

#define FM_WORKER_PROTOCOL_VERSION 2
#define FM_WORKER_LINE_MAX	   (16u << 20)
#define FM_WORKER_FRONT_ENDS_MAX   8		 /* connections of one worker */
#define FM_WORKER_GREETING_NS	   5000000000ull /* for a front end's first line */

enum fm_worker_op {
	FM_WORKER_OP_HELLO,
	FM_WORKER_OP_REQUEST,
	FM_WORKER_OP_CANCEL,
	FM_WORKER_OP_STATS,
};

struct fm_worker_message {
	enum fm_worker_op op;
	struct fm_request request; /* its pointers point into this message */
	uint32_t *tokens, *stop_tokens;
	struct fm_logit_bias *bias;
	struct fm_key tail;
	char request_id[FM_REQUEST_ID_MAX + 1];
};

/* Letters, digits and . _ : / + = @ -, from 1 to FM_REQUEST_ID_MAX of them. */
bool fm_request_id_is_valid(const char *text);

/* Parses one line. On error message->request.id is the line's id, when it had one. */
int fm_worker_parse(const char *line, size_t len, struct fm_worker_message *message);
void fm_worker_message_free(struct fm_worker_message *message);

/* One JSON object for an event; NULL when out of memory. The caller json_decref()s it. */
json_t *fm_worker_event_json(const struct fm_engine_event *event, uint32_t n_top);
json_t *fm_worker_stats_json(const struct fm_engine_stats *stats);

#endif
