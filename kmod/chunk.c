// SPDX-License-Identifier: GPL-2.0
/*
 * The pages of a region: compound, zeroed before use and after, given back only when nobody else
 * holds them. Called by region.c, stage.c and pressure.c.
 * Invariant: a page leaves this file for the kernel's allocator with our reference as its last one
 * and with zeros in it.
 */
#include <linux/highmem.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "internal.h"
#include "pressure.h"
#include "trace.h"

#define FM_LEAVING_DELAY msecs_to_jiffies(20)

static void fm_leaving_run(struct work_struct *work);

static DEFINE_MUTEX(fm_leaving_lock);
static LIST_HEAD(fm_leaving); /* fm_leaving_lock; regions of which a device holds pages */
static DECLARE_DELAYED_WORK(fm_leaving_work, fm_leaving_run);

static struct page *fm_page_alloc(int node, u32 order, bool is_charged)
{
	gfp_t flags = GFP_KERNEL | __GFP_COMP | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL;

	if (is_charged)
		flags |= __GFP_ACCOUNT;
	if (node != NUMA_NO_NODE)
		return alloc_pages_node(node, flags | __GFP_THISNODE, order);
	return alloc_pages(flags, order);
}

void fm_page_free(struct page *page, u32 order)
{
	u32 i;

	for (i = 0; i < 1U << order; i++) {
		clear_highpage(nth_page(page, i));
		if (i % 256 == 255)
			cond_resched();
	}
	__free_pages(page, order);
}

/* Gives @chunk memory; it has none. region->lock, or nobody else knows the region yet. */
int fm_chunk_fill(struct fm_region *region, struct fm_chunk *chunk, u32 order, bool is_charged)
{
	struct page *page;

	if (fatal_signal_pending(current))
		return -EINTR;
	page = fm_page_alloc(region->node, order, is_charged);
	if (!page)
		return -ENOMEM;
	chunk->baseline = 0;
	WRITE_ONCE(chunk->page, page);
	atomic64_add(PAGE_SIZE << order, &region->resident_bytes);
	fm_pressure_account(region, PAGE_SIZE << order);
	return 0;
}

static void fm_chunks_drop(struct fm_region *region, u32 order)
{
	u32 i;

	for (i = 0; i < region->chunk_count; i++)
		if (region->chunks[i].page)
			fm_page_free(region->chunks[i].page, order);
	kvfree(region->chunks);
	region->chunks = NULL;
	region->chunk_count = 0;
	fm_pressure_account(region, -atomic64_read(&region->resident_bytes));
	atomic64_set(&region->resident_bytes, 0);
}

static int fm_chunks_try(struct fm_region *region, u32 order, bool is_charged)
{
	u32 count = region->bytes >> (PAGE_SHIFT + order), i;
	int error;

	region->chunks = kvcalloc(count, sizeof(*region->chunks), GFP_KERNEL_ACCOUNT);
	if (!region->chunks)
		return -ENOMEM;
	region->chunk_count = count;
	for (i = 0; i < count; i++) {
		error = fm_chunk_fill(region, &region->chunks[i], order, is_charged);
		if (error) {
			fm_chunks_drop(region, order);
			return error;
		}
		cond_resched();
	}
	region->order = order;
	return 0;
}

/* All memory of a new region, in chunks of @order or, if that is too much, a little smaller. */
int fm_chunks_alloc(struct fm_region *region, u32 order, bool is_exact, bool is_charged)
{
	int error = fm_chunks_try(region, order, is_charged);

	while (error == -ENOMEM && !is_exact && order > FM_ORDER_DEFAULT)
		error = fm_chunks_try(region, --order, is_charged);
	return error;
}

/* The kernel's count of FOLL_PIN pins of a compound page is exact. */
u32 fm_chunk_pins(const struct fm_chunk *chunk)
{
	return atomic_read(&page_folio(chunk->page)->_pincount);
}

/*
 * References beyond our own, those of page tables and those that come with pins: where direct I/O
 * takes references alone, a transfer in flight. May see one that is just being taken or dropped.
 */
static bool fm_chunk_has_transfer(const struct fm_region *region, const struct fm_chunk *chunk)
{
	long expected = 1 + fm_chunk_pins(chunk) + atomic_read(&chunk->exported);
	u32 i;

	for (i = 0; i < 1U << region->order; i++)
		expected += atomic_read(&nth_page(chunk->page, i)->_mapcount) + 1;
	return page_ref_count(chunk->page) > expected;
}

/*
 * Whether somebody but the owner may let a device write to the chunk. region->lock for writing. The
 * baseline follows downwards, or the owner's deregistration would make room for a writer's pins.
 */
bool fm_chunk_is_pinned(struct fm_region *region, struct fm_chunk *chunk)
{
	u32 pins;

	if (!chunk->page)
		return false;
	pins = fm_chunk_pins(chunk);
	chunk->baseline = min(chunk->baseline, pins);
	if (pins > chunk->baseline)
		return true;
	return !FM_DIRECT_IO_PINS && fm_chunk_has_transfer(region, chunk);
}

/* Whether anybody but us refers to the page at all; it is mapped nowhere. */
bool fm_chunk_is_held(const struct page *page)
{
	return page_ref_count(page) > 1;
}

/* Frees those pages of a leaving region that are ours alone by now. */
static bool fm_region_is_left(struct fm_region *region)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, &region->leaving_pages, lru) {
		if (fm_chunk_is_held(page))
			continue;
		list_del(&page->lru);
		fm_page_free(page, region->order);
		atomic64_sub(PAGE_SIZE << region->order, &region->resident_bytes);
	}
	return list_empty(&region->leaving_pages);
}

static void fm_region_leave(struct fm_region *region)
{
	trace_fabricmgr_region(region->id, 3, region->bytes, region->order);
	fm_quota_uncharge(region->charged_uid, FM_QUOTA_BYTES, region->bytes);
	fm_region_put(region);
	module_put(THIS_MODULE);
}

static void fm_leaving_run(struct work_struct *work)
{
	struct fm_region *region, *next;

	mutex_lock(&fm_leaving_lock);
	list_for_each_entry_safe(region, next, &fm_leaving, leaving) {
		if (!fm_region_is_left(region))
			continue;
		list_del(&region->leaving);
		fm_region_leave(region);
	}
	if (!list_empty(&fm_leaving))
		schedule_delayed_work(&fm_leaving_work, FM_LEAVING_DELAY);
	mutex_unlock(&fm_leaving_lock);
}

/* All memory of a dead region that is mapped nowhere. Takes over one reference of the caller's. */
void fm_chunks_free(struct fm_region *region)
{
	u32 i;

	fm_pressure_account(region, -atomic64_read(&region->resident_bytes));
	for (i = 0; i < region->chunk_count; i++) {
		struct page *page = region->chunks[i].page;

		kvfree(region->chunks[i].states);
		region->chunks[i].states = NULL;
		region->chunks[i].page = NULL;
		if (page)
			list_add_tail(&page->lru, &region->leaving_pages);
	}
	if (fm_region_is_left(region)) {
		fm_region_leave(region);
		return;
	}
	mutex_lock(&fm_leaving_lock);
	list_add_tail(&region->leaving, &fm_leaving);
	schedule_delayed_work(&fm_leaving_work, FM_LEAVING_DELAY);
	mutex_unlock(&fm_leaving_lock);
}

u64 fm_chunks_leaving_bytes(void)
{
	struct fm_region *region;
	u64 bytes = 0;

	mutex_lock(&fm_leaving_lock);
	list_for_each_entry(region, &fm_leaving, leaving)
		bytes += atomic64_read(&region->resident_bytes);
	mutex_unlock(&fm_leaving_lock);
	return bytes;
}

void fm_chunks_exit(void)
{
	cancel_delayed_work_sync(&fm_leaving_work);
}
