// SPDX-License-Identifier: Apache-2.0
/*
 * Lines of the worker protocol from a hostile front end: parsed or refused by name, never a crash,
 * a leak, or a request that breaks the protocol's bounds. Seeds: corpus/worker_protocol/.
 *
 * FUZZ_SOURCES: engine/json_memory.c engine/worker/protocol.c libfabricmgr/base/error.c
 * FUZZ_LIBS: -ljansson
 */
#include <stdlib.h>

#include "worker/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool claim)
{
	if (!claim)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fm_worker_message message;
	int err = fm_worker_parse((const char *)data, size, &message);

	if (err) {
		require(err < 0 && *fm_error_detail());
	} else if (message.op == FM_WORKER_OP_REQUEST) {
		require(message.request.n_tokens && message.request.tokens == message.tokens);
		require(message.request.max_tokens >= 1);
		require(message.request.n_top <= FM_TOP_LOGPROBS_MAX);
		require(!message.request.request_id ||
			fm_request_id_is_valid(message.request.request_id));
		require(!message.request.tail || message.request.tail == &message.tail);
	}
	fm_worker_message_free(&message);
	return 0;
}
