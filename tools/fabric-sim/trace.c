// SPDX-License-Identifier: Apache-2.0
/*
 * See trace.h: the builder, which numbers blocks and checks that they form trees. Called by
 * trace_file.c and by tests. Invariant: the table of ids holds every block of the trace once.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "fabric-sim/trace.h"

struct slot {
	uint64_t id;
	uint32_t block; /* + 1; 0: empty */
};

struct fm_trace_builder {
	struct fm_trace *trace;
	struct slot *table;
	uint64_t places, used;
};

void fm_trace_free(struct fm_trace *trace)
{
	free(trace->requests);
	free(trace->chain);
	free(trace->parents);
	memset(trace, 0, sizeof(*trace));
}

int fm_trace_builder_create(struct fm_trace *trace, struct fm_trace_builder **out)
{
	struct fm_trace_builder *builder = calloc(1, sizeof(*builder));

	memset(trace, 0, sizeof(*trace));
	if (!builder)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to read a trace");
	builder->trace = trace;
	builder->places = 1024;
	builder->table = calloc(builder->places, sizeof(*builder->table));
	if (!builder->table) {
		free(builder);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to read a trace");
	}
	*out = builder;
	return 0;
}

static struct slot *find(struct fm_trace_builder *builder, uint64_t id)
{
	uint64_t at = (id * 0x9e3779b97f4a7c15ull) >> 20 & (builder->places - 1);

	while (builder->table[at].block && builder->table[at].id != id)
		at = (at + 1) & (builder->places - 1);
	return &builder->table[at];
}

static int grow_table(struct fm_trace_builder *builder)
{
	struct slot *old = builder->table;
	uint64_t places = builder->places;

	builder->table = calloc(2 * places, sizeof(*builder->table));
	if (!builder->table) {
		builder->table = old;
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the blocks of a trace");
	}
	builder->places = 2 * places;
	for (uint64_t i = 0; i < places; i++)
		if (old[i].block)
			*find(builder, old[i].id) = old[i];
	free(old);
	return 0;
}

/* Room for one more of @size bytes each; @room doubles. */
static int make_room(void *array, size_t size, uint64_t used, uint64_t *room)
{
	void **memory = array, *more;
	uint64_t wanted = *room ? 2 * *room : 1024;

	if (used < *room)
		return 0;
	more = realloc(*memory, wanted * size);
	if (!more)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a trace");
	*memory = more;
	*room = wanted;
	return 0;
}

static int number_block(struct fm_trace_builder *builder, uint64_t id, uint32_t parent,
			uint32_t *out)
{
	struct fm_trace *trace = builder->trace;
	struct slot *slot = find(builder, id);
	uint64_t room = trace->block_room;
	int err;

	if (slot->block) {
		*out = slot->block - 1;
		if (trace->parents[*out] == parent)
			return 0;
		return fm_fail(FM_ERR_CORRUPT,
			       "block id %llu stands behind two different blocks: an id must name "
			       "the whole prefix",
			       (unsigned long long)(uint32_t)id);
	}
	err = make_room(&trace->parents, sizeof(uint32_t), trace->block_count, &room);
	if (err)
		return err;
	trace->block_room = (uint32_t)room;
	*out = trace->block_count++;
	trace->parents[*out] = parent;
	*slot = (struct slot){id, *out + 1};
	return 2 * ++builder->used > builder->places ? grow_table(builder) : 0;
}

int fm_trace_builder_add(struct fm_trace_builder *builder, uint64_t time_ns, uint64_t tokens,
			 uint32_t space, const uint32_t *ids, size_t n)
{
	struct fm_trace *trace = builder->trace;
	struct fm_trace_request *request;
	uint32_t parent = FM_TRACE_NONE;
	int err = make_room(&trace->requests, sizeof(*request), trace->request_count,
			    &trace->request_room);

	if (err)
		return err;
	if (trace->accesses + n > FM_TRACE_ACCESSES_MAX)
		return fm_fail(FM_ERR_LIMIT, "the trace names more than %llu blocks",
			       FM_TRACE_ACCESSES_MAX);
	request = &trace->requests[trace->request_count];
	*request = (struct fm_trace_request){
		.time_ns = time_ns,
		.tokens = tokens,
		.first = trace->accesses,
		.blocks = (uint32_t)n,
		.order = trace->request_count++,
	};
	for (size_t i = 0; i < n; i++) {
		err = make_room(&trace->chain, sizeof(uint32_t), trace->accesses,
				&trace->access_room);
		if (!err)
			err = number_block(builder, (uint64_t)space << 32 | ids[i], parent,
					   &parent);
		if (err)
			return err;
		trace->chain[trace->accesses++] = parent;
	}
	return 0;
}

static int by_time(const void *a, const void *b)
{
	const struct fm_trace_request *x = a, *y = b;

	if (x->time_ns != y->time_ns)
		return x->time_ns < y->time_ns ? -1 : 1;
	return x->order < y->order ? -1 : 1;
}

void fm_trace_builder_finish(struct fm_trace_builder *builder)
{
	struct fm_trace *trace = builder->trace;

	free(builder->table);
	free(builder);
	if (trace->request_count)
		qsort(trace->requests, trace->request_count, sizeof(*trace->requests), by_time);
}
