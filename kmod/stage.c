// SPDX-License-Identifier: GPL-2.0
/*
 * Who may write where: staging ranges to clients, sealing and unsealing them, in batches. Called
 * from the table in main.c; fm_stage_clear() by region.c when a client's hold ends.
 * Invariant: a page sealed is in no write window of any process, and no device may write to it but
 * those whose pins the baseline holds. To seal: mark under region->lock, zap, then look for pins
 * (whoever pinned through the write window did so before the zap), and unmark if there are any.
 */
#include <linux/highmem.h>
#include <linux/slab.h>

#include "internal.h"
#include "trace.h"

/* One entry of a batch, checked: pages @first to @first + @count of @region. */
struct fm_span {
	struct fm_region *region;
	u64 first;
	u64 count;
};

struct fm_batch {
	struct fm_client *client;
	struct fm_attachment *attachment; /* the caller's */
	struct fm_attachment *target;	  /* STAGE: whose staging it becomes */
	unsigned int command;
	bool is_clearing;
};

static u32 fm_chunk_pages(const struct fm_region *region)
{
	return 1U << region->order;
}

static struct fm_chunk *fm_span_chunk(const struct fm_span *span, u64 at)
{
	return &span->region->chunks[at >> span->region->order];
}

/* Goes through a span by the chunks of its pages @at: pages @from to @to of each. */
#define fm_span_for_each(span, at, from, to)                                                       \
	for (at = (span)->first;                                                                   \
	     at < (span)->first + (span)->count &&                                                 \
	     (from = at & (fm_chunk_pages((span)->region) - 1),                                    \
	     to = min_t(u64, fm_chunk_pages((span)->region),                                       \
			from + (span)->first + (span)->count - at),                                \
	     true);                                                                                \
	     at += to - from)

static int fm_span_check(struct fm_region *region, const struct fabricmgr_range *range,
			 struct fm_span *span)
{
	if (range->reserved || !range->bytes || !PAGE_ALIGNED(range->offset) ||
	    !PAGE_ALIGNED(range->bytes))
		return -EINVAL;
	if (range->offset >= region->bytes || range->bytes > region->bytes - range->offset)
		return -ERANGE;
	span->region = region;
	span->first = range->offset >> PAGE_SHIFT;
	span->count = range->bytes >> PAGE_SHIFT;
	return 0;
}

/* Makes the states of all its chunks; ENXIO: reclaim has one of them. */
static int fm_span_prepare(const struct fm_span *span)
{
	u32 from, to;
	u64 at;

	fm_span_for_each(span, at, from, to) {
		struct fm_chunk *chunk = fm_span_chunk(span, at);

		if (!chunk->page)
			return -ENXIO;
		if (!chunk->states)
			chunk->states = kvcalloc(fm_chunk_pages(span->region), sizeof(u32),
						 GFP_KERNEL_ACCOUNT);
		if (!chunk->states)
			return -ENOMEM;
	}
	return 0;
}

/* The one state of all its pages. */
static int fm_span_state(const struct fm_span *span, u32 *state)
{
	u32 from, to;
	u64 at;

	*state = fm_span_chunk(span, span->first)
			 ->states[span->first & (fm_chunk_pages(span->region) - 1)];
	fm_span_for_each(span, at, from, to) {
		const struct fm_chunk *chunk = fm_span_chunk(span, at);
		u32 i;

		for (i = from; i < to; i++)
			if (chunk->states[i] != *state)
				return -EINVAL;
	}
	return 0;
}

static void fm_span_set(const struct fm_span *span, u32 state)
{
	u32 from, to;
	u64 at;

	fm_span_for_each(span, at, from, to)
		memset32(fm_span_chunk(span, at)->states + from, state, to - from);
}

static void fm_span_clear_memory(const struct fm_span *span)
{
	u32 from, to;
	u64 at;

	fm_span_for_each(span, at, from, to) {
		const struct fm_chunk *chunk = fm_span_chunk(span, at);
		u32 i;

		for (i = from; i < to; i++)
			clear_highpage(nth_page(chunk->page, i));
		cond_resched();
	}
}

static bool fm_span_is_pinned(const struct fm_span *span)
{
	u32 from, to;
	u64 at;

	fm_span_for_each(span, at, from, to)
		if (fm_chunk_is_pinned(span->region, fm_span_chunk(span, at)))
			return true;
	return false;
}

static u64 fm_staged_in(struct fm_attachment *attachment, u64 chunk)
{
	const void *entry = xa_load(&attachment->staged, chunk);

	return entry ? xa_to_value(entry) : 0;
}

/* What @attachment's client stages becomes less. Never needs memory. */
static void fm_staged_sub(struct fm_attachment *attachment, const struct fm_span *span)
{
	u32 from, to;
	u64 at;

	if (!attachment)
		return;
	fm_span_for_each(span, at, from, to) {
		u64 index = at >> span->region->order;
		u64 left = fm_staged_in(attachment, index) - (to - from);

		if (left)
			xa_store(&attachment->staged, index, xa_mk_value(left), GFP_NOWAIT);
		else
			xa_erase(&attachment->staged, index);
	}
	atomic64_sub(span->count, &attachment->staged_pages);
}

/* What it stages becomes more, or stays what it was. */
static int fm_staged_add(struct fm_attachment *attachment, const struct fm_span *span)
{
	struct fm_span done = *span;
	u32 from, to;
	u64 at;
	int error = 0;

	fm_span_for_each(span, at, from, to) {
		u64 index = at >> span->region->order;
		u64 more = fm_staged_in(attachment, index) + (to - from);

		error = xa_err(xa_store(&attachment->staged, index, xa_mk_value(more),
					GFP_KERNEL_ACCOUNT));
		if (error)
			break;
	}
	done.count = at < span->first + span->count ? at - span->first : span->count;
	atomic64_add(done.count, &attachment->staged_pages);
	if (error)
		fm_staged_sub(attachment, &done);
	return error;
}

/* region->lock. All that the client stages in the region is free again. Returns its bytes. */
u64 fm_stage_clear(struct fm_attachment *attachment)
{
	struct fm_region *region = attachment->region;
	u32 id = attachment->client->id, i;
	unsigned long index;
	void *entry;

	xa_for_each(&attachment->staged, index, entry) {
		u32 *states = region->is_dead ? NULL : region->chunks[index].states;

		for (i = 0; states && i < fm_chunk_pages(region); i++)
			if (states[i] == id)
				states[i] = FM_STATE_FREE;
		xa_erase(&attachment->staged, index);
	}
	return atomic64_xchg(&attachment->staged_pages, 0) << PAGE_SHIFT;
}

/* ---- one range each; region->lock for writing ---- */

static int fm_stage_one(const struct fm_batch *batch, const struct fm_span *span)
{
	u32 state;
	int error;

	if (batch->target->is_closed)
		return -ESRCH;
	if (fm_span_state(span, &state) || state != FM_STATE_FREE)
		return -EEXIST;
	error = fm_staged_add(batch->target, span);
	if (error)
		return error;
	if (batch->is_clearing)
		fm_span_clear_memory(span);
	fm_span_set(span, batch->target->client->id);
	return 0;
}

static int fm_unstage_one(const struct fm_batch *batch, const struct fm_span *span)
{
	u32 state;

	if (fm_span_state(span, &state) || state == FM_STATE_FREE || state == FM_STATE_SEALED)
		return -EINVAL;
	fm_span_set(span, FM_STATE_FREE);
	fm_map_zap(span->region, &span->region->write_window, span->first, span->count);
	fm_staged_sub(xa_load(&span->region->attachments, state), span);
	if (batch->is_clearing)
		fm_span_clear_memory(span);
	return 0;
}

static int fm_seal_one(const struct fm_batch *batch, const struct fm_span *span)
{
	u32 state;

	if (fm_span_state(span, &state))
		return -EINVAL;
	if (state == FM_STATE_SEALED)
		return -EALREADY;
	if (!batch->attachment->may_write && state != batch->client->id)
		return -EACCES;
	fm_span_set(span, FM_STATE_SEALED);
	fm_map_zap(span->region, &span->region->write_window, span->first, span->count);
	if (fm_span_is_pinned(span)) {
		fm_span_set(span, state);
		return -EBUSY;
	}
	if (state != FM_STATE_FREE)
		fm_staged_sub(xa_load(&span->region->attachments, state), span);
	return 0;
}

static int fm_unseal_one(const struct fm_batch *batch, const struct fm_span *span)
{
	u32 state;

	if (fm_span_state(span, &state) || state != FM_STATE_SEALED)
		return -EINVAL;
	if (batch->is_clearing)
		fm_span_clear_memory(span);
	fm_span_set(span, FM_STATE_FREE);
	return 0;
}

static int fm_refill_one(const struct fm_batch *batch, const struct fm_span *span)
{
	struct fm_region *region = span->region;
	u32 from, to;
	u64 at;
	int error;

	if ((span->first | span->count) & (fm_chunk_pages(region) - 1))
		return -EINVAL;
	fm_span_for_each(span, at, from, to) {
		struct fm_chunk *chunk = fm_span_chunk(span, at);

		error = chunk->page ? 0 : fm_chunk_fill(region, chunk, region->order, true);
		if (error)
			return error;
	}
	return 0;
}

static int fm_batch_one(const struct fm_batch *batch, const struct fabricmgr_range *range)
{
	struct fm_region *region = batch->attachment->region;
	struct fm_span span;
	int error = fm_span_check(region, range, &span);

	if (error)
		return error;
	if (region->is_dead)
		return -ENODEV;
	if (batch->command == FABRICMGR_IOC_REFILL)
		return fm_refill_one(batch, &span);
	if (batch->command == FABRICMGR_IOC_PINS)
		return fm_span_is_pinned(&span) ? -EBUSY : 0;
	error = fm_span_prepare(&span);
	if (error)
		return error;
	switch (batch->command) {
	case FABRICMGR_IOC_STAGE:
		return fm_stage_one(batch, &span);
	case FABRICMGR_IOC_UNSTAGE:
		return fm_unstage_one(batch, &span);
	case FABRICMGR_IOC_SEAL:
		return fm_seal_one(batch, &span);
	default:
		return fm_unseal_one(batch, &span);
	}
}

/* ---- the batch ---- */

static u32 fm_batch_all(const struct fm_batch *batch, struct fabricmgr_range *ranges, u32 count)
{
	struct fm_region *region = batch->attachment->region;
	u32 succeeded = 0, i;

	for (i = 0; i < count; i++) {
		/* Between two ranges faults and dying clients get their turn. */
		down_write(&region->lock);
		ranges[i].result = fm_batch_one(batch, &ranges[i]);
		up_write(&region->lock);
		succeeded += !ranges[i].result;
		cond_resched();
	}
	trace_fabricmgr_batch(_IOC_NR(batch->command), region->id, count, succeeded);
	return succeeded;
}

/* Whether the caller may at all, and the attachment of the client that STAGE names. */
static int fm_batch_check(struct fm_batch *batch, const struct fabricmgr_batch *arg)
{
	struct fm_region *region = batch->attachment->region;
	bool is_stage = batch->command == FABRICMGR_IOC_STAGE;
	bool is_public = batch->command == FABRICMGR_IOC_SEAL ||
			 batch->command == FABRICMGR_IOC_PINS;

	if (region->kind != FABRICMGR_REGION_CHUNKS)
		return -EOPNOTSUPP;
	if (!is_public && !READ_ONCE(batch->attachment->may_write))
		return -EACCES;
	if (!is_stage)
		return arg->client ? -EINVAL : 0;
	mutex_lock(&fm_objects);
	batch->target = xa_load(&region->attachments, arg->client);
	if (batch->target)
		kref_get(&batch->target->kref);
	mutex_unlock(&fm_objects);
	return batch->target ? 0 : -ESRCH;
}

/* STAGE, UNSTAGE, SEAL, UNSEAL, PINS and REFILL. */
long fm_batch_run(struct fm_client *client, unsigned int command, void *argument)
{
	struct fabricmgr_batch *arg = argument;
	void __user *address = u64_to_user_ptr(arg->ranges);
	struct fm_batch batch = {
		.client = client,
		.command = command,
		.is_clearing = arg->flags & FABRICMGR_BATCH_ZERO,
	};
	struct fabricmgr_range *ranges;
	size_t bytes;
	long error;

	if (!arg->count || arg->count > FABRICMGR_BATCH_MAX)
		return -EINVAL;
	bytes = arg->count * sizeof(*ranges);
	ranges = vmemdup_user(address, bytes);
	if (IS_ERR(ranges))
		return PTR_ERR(ranges);
	error = -ENOENT;
	batch.attachment = fm_region_attachment(client, arg->region);
	if (!batch.attachment)
		goto out;
	error = fm_batch_check(&batch, arg);
	if (!error) {
		arg->succeeded = fm_batch_all(&batch, ranges, arg->count);
		error = copy_to_user(address, ranges, bytes) ? -EFAULT : 0;
	}
	if (batch.target)
		fm_attachment_put(batch.target);
	fm_attachment_put(batch.attachment);
out:
	kvfree(ranges);
	return error;
}
