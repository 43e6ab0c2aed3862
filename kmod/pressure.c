// SPDX-License-Identifier: GPL-2.0
/*
 * Giving chunks of discardable regions back when the machine is short of memory. The manager is
 * asked first, by an event; after a grace its free and unleased chunks are taken, by the protocol
 * of the header: EVICTING, a fence, one look through the lease tables, the old word back for what
 * is leased. Entered by reclaim, with any lock of the kernel held that may be held there.
 * Invariant: takes no lock but by trying, allocates nothing, believes no word or lease: a chunk
 * goes only when by the kernel's own counts nobody but us holds it.
 */
#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/ktime.h>

#include "internal.h"
#include "pressure.h"
#include "trace.h"

#define FM_VICTIMS 64U /* chunks looked at together: one pass over the lease tables for all */

unsigned int fm_pressure_grace_ms = 100;

/* Bytes of chunks that could be taken if nobody leased them. */
static atomic64_t fm_discardable_bytes;

void fm_pressure_account(const struct fm_region *region, s64 bytes)
{
	if (region->is_discardable)
		atomic64_add(bytes, &fm_discardable_bytes);
}

static u64 *fm_word(const struct fm_region *region, u32 chunk)
{
	return &region->words[chunk];
}

/* Whether the pages of the chunk are nobody's but ours and the page tables'. */
static bool fm_chunk_is_idle(const struct fm_region *region, const struct fm_chunk *chunk)
{
	u32 i;

	if (!chunk->page || atomic_read(&chunk->exported) || fm_chunk_pins(chunk))
		return false;
	for (i = 0; chunk->states && i < 1U << region->order; i++)
		if (chunk->states[i] != FM_STATE_FREE && chunk->states[i] != FM_STATE_SEALED)
			return false;
	return true;
}

/* Marks those of @count chunks from @first that may go, and keeps their words. */
static u64 fm_victims_mark(struct fm_region *region, u32 first, u32 count, u64 *words)
{
	u64 victims = 0;
	u32 i;

	for (i = 0; i < count; i++) {
		u64 word = READ_ONCE(*fm_word(region, first + i));
		u32 state = FABRICMGR_WORD_STATE(word);
		u64 evicting = FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(word),
					      FABRICMGR_BLOCK_EVICTING);

		if (state != FABRICMGR_BLOCK_FREE && state != FABRICMGR_BLOCK_SEALED)
			continue;
		if (!fm_chunk_is_idle(region, &region->chunks[first + i]))
			continue;
		words[i] = word;
		if (cmpxchg(fm_word(region, first + i), word, evicting) == word)
			victims |= 1ULL << i;
	}
	return victims;
}

/* Those of @victims that no client of the region leases. Their words say EVICTING. */
static u64 fm_victims_unleased(struct fm_region *region, u32 first, u64 victims)
{
	struct fm_attachment *attachment;
	unsigned long id;
	u32 i;

	/* Pairs with the fence of who takes a lease: it sees EVICTING, or we see its lease. */
	smp_mb();
	xa_for_each(&region->attachments, id, attachment) {
		const struct fm_client *client = attachment->client;

		for (i = 0; i < client->entries && victims; i++) {
			const struct fabricmgr_lease *lease = &client->leases[i];
			u32 chunk = READ_ONCE(lease->chunk) - first;

			if (READ_ONCE(lease->region) == region->lease_region && chunk < FM_VICTIMS)
				victims &= ~(1ULL << chunk);
		}
	}
	return victims;
}

/* Takes one chunk out of all page tables and frees it, unless somebody holds it still. */
static bool fm_chunk_take(struct fm_region *region, u32 index, u64 word)
{
	struct fm_chunk *chunk = &region->chunks[index];
	u64 pages = 1ULL << region->order;
	struct page *page = chunk->page;

	fm_map_zap(region, &region->read_window, index * pages, pages);
	fm_map_zap(region, &region->write_window, index * pages, pages);
	if (fm_chunk_is_held(page)) {
		WRITE_ONCE(*fm_word(region, index), word);
		return false;
	}
	if (chunk->states)
		memset32(chunk->states, FM_STATE_FREE, pages);
	chunk->page = NULL;
	fm_page_free(page, region->order);
	atomic64_sub(PAGE_SIZE << region->order, &region->resident_bytes);
	fm_pressure_account(region, -(s64)(PAGE_SIZE << region->order));
	WRITE_ONCE(*fm_word(region, index), FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(word) + 1,
							   FABRICMGR_BLOCK_FREE));
	return true;
}

/* region->lock for writing. Up to @wanted chunks, from where the last time ended. */
static u32 fm_region_shrink(struct fm_region *region, u32 wanted)
{
	u64 words[FM_VICTIMS], victims, unleased;
	u32 taken = 0, seen = 0;

	while (taken < wanted && seen < region->chunk_count) {
		u32 first = region->reclaim_next < region->chunk_count ? region->reclaim_next : 0;
		u32 count = min(region->chunk_count - first, FM_VICTIMS), i;

		victims = fm_victims_mark(region, first, count, words);
		unleased = victims ? fm_victims_unleased(region, first, victims) : 0;
		for (i = 0; i < count; i++) {
			if (!(victims & (1ULL << i)))
				continue;
			if (taken < wanted && unleased & (1ULL << i))
				taken += fm_chunk_take(region, first + i, words[i]);
			else
				WRITE_ONCE(*fm_word(region, first + i), words[i]);
		}
		region->reclaim_next = first + count;
		seen += count;
	}
	return taken;
}

static void fm_region_notify(struct fm_region *region, struct fm_event *event, u32 kind, u64 value,
			     u64 bytes)
{
	if (!region->manager)
		return;
	event->record.kind = kind;
	event->record.region = region->id;
	event->record.value = value;
	event->record.bytes = bytes;
	event->record.time_ns = ktime_get_ns();
	fm_event_post(region->manager, event);
}

/* Whether the manager has had its time; asks it otherwise. */
static bool fm_region_was_asked(struct fm_region *region, u64 bytes)
{
	u64 now = ktime_get_ns(), grace = (u64)fm_pressure_grace_ms * NSEC_PER_MSEC;

	if (!region->manager)
		return true;
	/* What was asked long ago was about another shortage. */
	if (!region->asked_ns || now - region->asked_ns > 100 * grace) {
		region->asked_ns = now;
		region->taken_chunks = 0;
		fm_region_notify(region, &region->pressure, FABRICMGR_EVENT_PRESSURE, 0, bytes);
		return !grace;
	}
	return now - region->asked_ns >= grace;
}

/* fm_objects. Returns the pages that went. */
static unsigned long fm_region_reclaim(struct fm_region *region, unsigned long pages)
{
	u64 bytes = (u64)pages << PAGE_SHIFT;
	u32 taken;

	if (!region->is_discardable || !region->is_ready || !fm_region_was_asked(region, bytes))
		return 0;
	if (!down_write_trylock(&region->lock))
		return 0;
	taken = fm_region_shrink(region, DIV_ROUND_UP(pages, 1UL << region->order));
	up_write(&region->lock);
	trace_fabricmgr_reclaim(region->id, bytes, taken);
	if (taken) {
		region->taken_chunks += taken;
		fm_region_notify(region, &region->taken, FABRICMGR_EVENT_CHUNKS_TAKEN,
				 region->taken_chunks,
				 (u64)region->taken_chunks << (PAGE_SHIFT + region->order));
	}
	return (unsigned long)taken << region->order;
}

static unsigned long fm_pressure_count(struct shrinker *shrinker, struct shrink_control *control)
{
	return atomic64_read(&fm_discardable_bytes) >> PAGE_SHIFT;
}

static unsigned long fm_pressure_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	struct fm_region *region;
	unsigned long freed = 0;

	if (!(control->gfp_mask & __GFP_FS) || !mutex_trylock(&fm_objects))
		return SHRINK_STOP;
	list_for_each_entry(region, &fm_regions, link) {
		if (freed >= control->nr_to_scan)
			break;
		freed += fm_region_reclaim(region, control->nr_to_scan - freed);
	}
	mutex_unlock(&fm_objects);
	return freed ?: SHRINK_STOP;
}

/* fm_objects. What the manager has not read goes with it, or with the region. */
void fm_pressure_cancel(struct fm_region *region)
{
	if (!region->manager)
		return;
	fm_event_cancel(region->manager, &region->pressure);
	fm_event_cancel(region->manager, &region->taken);
	region->asked_ns = 0;
}

static struct shrinker *fm_shrinker;

int fm_pressure_init(void)
{
	fm_shrinker = fm_shrinker_create(fm_pressure_count, fm_pressure_scan);
	return PTR_ERR_OR_ZERO(fm_shrinker);
}

void fm_pressure_exit(void)
{
	fm_shrinker_destroy(fm_shrinker);
}
