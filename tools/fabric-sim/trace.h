/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace of requests as chains of numbered blocks, and the reader of the two file formats. Used by
 * fabric-sim only. Invariant: a block has one parent over the whole trace, its number is above the
 * parent's, and the requests are in order of time.
 */
#ifndef FM_SIM_TRACE_H
#define FM_SIM_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define FM_TRACE_NONE	       UINT32_MAX
#define FM_TRACE_BYTES_MAX     (1ull << 30) /* of a file, unpacked */
#define FM_TRACE_ACCESSES_MAX  (1ull << 30) /* blocks of all requests together: 4 GiB of memory */
#define FM_TRACE_MOONCAKE_SIZE 512u	    /* tokens of a block, which that format does not say */

struct fm_trace_request {
	uint64_t time_ns;
	uint64_t tokens; /* of the prompt */
	uint64_t first;	 /* its blocks: chain[first .. first + blocks) */
	uint32_t blocks;
	uint32_t order; /* in the file, among requests of one time */
};

struct fm_trace {
	struct fm_trace_request *requests;
	uint32_t *chain;
	uint32_t *parents; /* of each block, FM_TRACE_NONE at the start of a chain */
	uint64_t accesses, request_room, access_room;
	uint32_t request_count, block_count, block_room;
	uint32_t tokens_per_block;
};

/* Mooncake's format (one object a request: timestamp, input_length, hash_ids) or kv-cache-tester's
 * (sessions of requests with keep and add; all sessions start at time 0); unpacks .xz. */
int fm_trace_load(const char *path, struct fm_trace *trace);
void fm_trace_free(struct fm_trace *trace);

/* Adds a request, whose blocks are known by @ids; those of one @space are the same when equal. */
struct fm_trace_builder;
int fm_trace_builder_create(struct fm_trace *trace, struct fm_trace_builder **out);
int fm_trace_builder_add(struct fm_trace_builder *builder, uint64_t time_ns, uint64_t tokens,
			 uint32_t space, const uint32_t *ids, size_t n);
/* Puts the requests in order of time; frees the builder. */
void fm_trace_builder_finish(struct fm_trace_builder *builder);

#endif
