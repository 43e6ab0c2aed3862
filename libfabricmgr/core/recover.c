// SPDX-License-Identifier: Apache-2.0
/*
 * Recovery of the index (see recover.h). First everything is judged, without a change to shared
 * memory; then words and buckets are repaired, each by one store that is right by itself, so that
 * readers meet a block or miss it, and a death in here leaves what the next recovery understands.
 * Invariant: a slot is free afterwards only if nobody can hold it or write to it.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_kill_point.h>

#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"
#include "core/recover.h"

#define NONE FM_NO_ENTRY

enum verdict {
	VERDICT_FREE,
	VERDICT_SEALED,	    /* believed, and in a bucket */
	VERDICT_REMOVED,    /* believed, but not to be found: was on its way out */
	VERDICT_STAGED,	    /* somebody wrote to it */
	VERDICT_QUARANTINE, /* a device may write to it */
	VERDICT_DROPPED,    /* index and header do not agree */
	VERDICT_ON_PATH,    /* SEALED, while its ancestors are looked at */
	VERDICT_DONE,	    /* SEALED, and in the tables */
};

struct named_owner {
	uint32_t id;
	struct fm_owner *owner;
};

struct work {
	struct fm_store *store;
	struct fm_recovery *out;
	uint8_t *verdicts;    /* of the entries */
	bool *is_listed;      /* a bucket names the entry */
	bool *is_contested;   /* of the chunks: two claims that exclude each other */
	uint64_t *generation; /* {generation, entry}, for that */
	struct named_owner *owners;
	uint32_t n_owners, n_sealed;
	bool is_unsure; /* of the place of something that no header describes */
};

static void work_free(struct work *work)
{
	free(work->verdicts);
	free(work->is_listed);
	free(work->is_contested);
	free(work->generation);
	free(work->owners);
}

static int compare_ids(const void *a, const void *b)
{
	uint32_t x = ((const struct named_owner *)a)->id, y = ((const struct named_owner *)b)->id;

	return (x > y) - (x < y);
}

static int work_create(struct work *work, struct fm_store *store, struct fm_recovery *out)
{
	uint32_t entries = store->index.entries_max, n = 0;

	for (const struct fm_owner *owner = store->owners; owner; owner = owner->next)
		n++;
	*work = (struct work){
		.store = store,
		.out = out,
		.verdicts = calloc(entries, sizeof(*work->verdicts)),
		.is_listed = calloc(entries, sizeof(*work->is_listed)),
		.is_contested = calloc(store->slots.count, sizeof(*work->is_contested)),
		.generation = malloc(entries * sizeof(*work->generation)),
		.owners = malloc((n + 1) * sizeof(*work->owners)),
	};
	if (!work->verdicts || !work->is_listed || !work->is_contested || !work->generation ||
	    !work->owners) {
		work_free(work);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to take over %u blocks", entries);
	}
	for (struct fm_owner *owner = store->owners; owner; owner = owner->next)
		work->owners[work->n_owners++] = (struct named_owner){owner->id, owner};
	qsort(work->owners, n, sizeof(*work->owners), compare_ids);
	return 0;
}

static struct fm_owner *find_owner(const struct work *work, uint32_t id)
{
	struct named_owner wanted = {.id = id}, *found;

	found = bsearch(&wanted, work->owners, work->n_owners, sizeof(wanted), compare_ids);
	return found ? found->owner : NULL;
}

/* ---- judging ---- */

/* Index and header say the same of a block that can be. */
static bool is_believable(const struct work *work, uint32_t entry)
{
	const struct fm_entry *e = &work->store->index.entries[entry];
	struct fm_header header;
	struct fm_key key;

	fm_header_read(work->store->headers, entry, &header);
	fm_key_load(e->key, &key);
	return !fm_header_check(&header) && header.length &&
	       header.length <= FABRICMGR_CHUNK_BYTES && header.length == FM_HIGH(e->extent) &&
	       (header.region <= work->out->regions || fm_region_is_adopted(header.region)) &&
	       header.region == FM_HIGH(e->place) && header.chunk == FM_LOW(e->place) &&
	       header.slot == FM_LOW(e->extent) &&
	       header.generation == FABRICMGR_WORD_GENERATION(e->word) &&
	       header.crc32c == FM_HIGH(e->check) && !memcmp(header.key, &key, sizeof(key)) &&
	       /* One that is to be found is not marked as ended. */
	       !(work->is_listed[entry] && header.flags & FM_HEADER_ENDED);
}

static bool is_in_group(const struct work *work, uint32_t entry)
{
	struct fm_header header;

	fm_header_read(work->store->headers, entry, &header);
	return header.flags & FM_HEADER_IN_GROUP;
}

/* Takes the slot for the entry: 0, FM_ERR_INVALID (there is no such slot), FM_ERR_EXISTS. */
static int claim(struct work *work, uint32_t entry)
{
	struct fm_store *store = work->store;
	const struct fm_entry *e = &store->index.entries[entry];
	uint64_t length = FM_HIGH(e->extent);
	uint32_t pages = fm_slots_pages(length);
	int err;

	if (length > FABRICMGR_CHUNK_BYTES)
		return FM_ERR_INVALID;
	store->nodes[entry] = (struct fm_node){
		.pages = pages,
		.parent = NONE,
		.first_child = NONE,
		.prev_sibling = NONE,
		.next_sibling = NONE,
	};
	if (fm_entry_is_adopted(store, entry))
		return fm_adopted_claim(store, entry);
	if (FM_HIGH(e->place) > work->out->regions)
		return FM_ERR_INVALID;
	err = fm_slots_claim(&store->slots, FM_HIGH(e->place), pages, entry, FM_LOW(e->place),
			     FM_LOW(e->extent));
	if (err == FM_ERR_EXISTS)
		work->is_contested[FM_LOW(e->place)] = true;
	return err;
}

/*
 * A block in memory that a client had adopted: the attachment that it hung on has ended. Whoever
 * leases it keeps its own mapping of that memory, and the entry stays until then; nobody else finds
 * it. What contradicts itself is dropped, and whether a lease names it is looked at.
 */
static int judge_adopted(struct work *work, uint32_t entry, uint32_t state)
{
	int err = claim(work, entry);

	if ((state == FABRICMGR_BLOCK_SEALED || state == FABRICMGR_BLOCK_EVICTING) &&
	    !is_believable(work, entry))
		work->is_unsure = true;
	work->verdicts[entry] = (uint8_t)(err ? VERDICT_DROPPED : VERDICT_REMOVED);
	return err == FM_ERR_NO_MEMORY ? err : 0;
}

/* A GROUPED member is what its leader made of it, as fm_index_state() has it. */
static uint32_t state_of(const struct work *work, uint32_t entry)
{
	const struct fm_index *index = &work->store->index;
	uint32_t state = FABRICMGR_WORD_STATE(index->entries[entry].word);
	uint32_t leader = FABRICMGR_GROUP_LEADER(state);

	if (!FABRICMGR_IS_GROUPED(state) || leader >= index->entries_max)
		return state;
	state = FABRICMGR_WORD_STATE(index->entries[leader].word);
	return state == FABRICMGR_BLOCK_SEALED || state == FABRICMGR_BLOCK_EVICTING
		       ? FABRICMGR_BLOCK_EVICTING
		       : FABRICMGR_BLOCK_STAGING;
}

static int judge(struct work *work, uint32_t entry)
{
	uint32_t state = state_of(work, entry);
	enum verdict verdict = VERDICT_FREE;
	int err = 0;

	if (state != FABRICMGR_BLOCK_FREE && fm_entry_is_adopted(work->store, entry))
		return judge_adopted(work, entry, state);
	switch (state) {
	case FABRICMGR_BLOCK_FREE:
		break;
	case FABRICMGR_BLOCK_STAGING:
	case FABRICMGR_BLOCK_QUARANTINE:
		verdict = state == FABRICMGR_BLOCK_STAGING ? VERDICT_STAGED : VERDICT_QUARANTINE;
		err = claim(work, entry);
		/* Where it is somebody may be writing now, and nobody knows where that is. */
		if (err == FM_ERR_INVALID)
			return fm_fail(FM_ERR_CORRUPT,
				       "entry %u of the index is staged at a place that is none",
				       entry);
		break;
	case FABRICMGR_BLOCK_SEALED:
	case FABRICMGR_BLOCK_EVICTING:
		verdict = VERDICT_DROPPED;
		if (!is_believable(work, entry)) {
			/* Given up while staged, when others had joined it: they may hold it. */
			if (state == FABRICMGR_BLOCK_EVICTING && !work->is_listed[entry] &&
			    !claim(work, entry)) {
				verdict = VERDICT_REMOVED;
				work->is_unsure = true;
			}
			break;
		}
		err = claim(work, entry);
		if (!err)
			verdict = work->is_listed[entry] ? VERDICT_SEALED : VERDICT_REMOVED;
		break;
	default:
		return fm_fail(FM_ERR_CORRUPT, "entry %u of the index is in no state that there is",
			       entry);
	}
	work->verdicts[entry] = (uint8_t)verdict;
	return err == FM_ERR_NO_MEMORY ? err : 0;
}

static bool has_place(enum verdict verdict)
{
	return verdict != VERDICT_FREE && verdict != VERDICT_DROPPED;
}

/* Of blocks that exclude each other none is believed. */
static int settle_contests(struct work *work)
{
	struct fm_store *store = work->store;

	for (uint32_t entry = 0; entry < store->index.entries_max; entry++) {
		enum verdict verdict = work->verdicts[entry];
		uint32_t chunk = FM_LOW(store->index.entries[entry].place);

		if (!has_place(verdict) || fm_entry_is_adopted(store, entry) ||
		    !work->is_contested[chunk])
			continue;
		if (verdict == VERDICT_STAGED || verdict == VERDICT_QUARANTINE)
			return fm_fail(FM_ERR_CORRUPT,
				       "entry %u of the index is staged where other blocks are",
				       entry);
		work->verdicts[entry] = VERDICT_DROPPED;
	}
	for (uint32_t chunk = 0; chunk < store->slots.count; chunk++)
		if (work->is_contested[chunk])
			fm_slots_forget(&store->slots, chunk);
	return 0;
}

static int judge_all(struct work *work)
{
	struct fm_store *store = work->store;
	struct fm_index *index = &store->index;
	uint32_t highest = index->entries_max - 1;
	int err = 0;

	for (uint32_t bucket = 0; bucket < index->bucket_count; bucket++)
		for (uint32_t slot = 0; slot < FM_BUCKET_SLOTS; slot++) {
			uint32_t entry = fm_index_at(index, bucket, slot);

			if (entry != NONE)
				work->is_listed[entry] = true;
		}
	for (uint32_t entry = 0; entry < index->entries_max && !err; entry++) {
		uint32_t generation = FABRICMGR_WORD_GENERATION(index->entries[entry].word);

		if (generation > highest)
			highest = generation;
		err = judge(work, entry);
	}
	/* No generation comes twice at one slot; those of free entries count, too. */
	store->next_generation = highest + 1;
	return err ? err : settle_contests(work);
}

/* ---- repairing ---- */

/* A lease that may hold a block which is not believed. */
static bool has_unknown_lease(const struct work *work)
{
	const struct fm_store *store = work->store;

	for (const struct fm_owner *owner = store->owners; owner; owner = owner->next)
		for (uint32_t i = 0; i < owner->lease_count; i++) {
			const struct fabricmgr_lease *lease = &owner->leases[i];
			/* Acquire: pairs with the releases in fm_lease_write(). */
			uint32_t region = fm_load_acquire(&lease->region), entry;

			if (!region)
				continue;
			entry = fm_store_entry(store, region, fm_load_acquire(&lease->chunk),
					       fm_load_acquire(&lease->slot));
			if (entry == NONE ||
			    FABRICMGR_WORD_GENERATION(store->index.entries[entry].word) !=
				    fm_load_acquire(&lease->generation))
				return true;
		}
	return false;
}

/* Takes away what is not believed. Who holds such a block holds memory that nobody can name. */
static int drop(struct work *work)
{
	struct fm_store *store = work->store;
	uint32_t n = 0;

	for (uint32_t entry = 0; entry < store->index.entries_max; entry++) {
		uint64_t *word = &store->index.entries[entry].word;

		if (work->verdicts[entry] != VERDICT_DROPPED)
			continue;
		n++;
		/* Relaxed: the fence below orders all of them before the look at the leases. */
		fm_store_relaxed(word, FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(*word),
						      FABRICMGR_BLOCK_EVICTING));
	}
	if (!n && !work->is_unsure)
		return 0;
	/* Pairs with the fence in fm_lease_take(): a lease that is not seen saw EVICTING. */
	fm_fence();
	if (has_unknown_lease(work))
		return fm_fail(FM_ERR_CORRUPT,
			       "%u blocks fail their checks, and a client may hold one of them", n);
	for (uint32_t entry = 0; entry < store->index.entries_max; entry++)
		/* Release: pairs with the acquires in find_at() and fm_pool_walk(). */
		if (work->verdicts[entry] == VERDICT_DROPPED)
			fm_store_release(
				&store->index.entries[entry].word,
				FABRICMGR_WORD(store->next_generation++, FABRICMGR_BLOCK_FREE));
	work->out->dropped = n;
	return 0;
}

/* Each sealed block stands in one slot, and nothing else does. */
static void repair_buckets(struct work *work)
{
	struct fm_index *index = &work->store->index;
	uint64_t word;

	memset(work->is_listed, 0, index->entries_max * sizeof(*work->is_listed));
	for (uint32_t bucket = 0; bucket < index->bucket_count; bucket++)
		for (uint32_t slot = 0; slot < FM_BUCKET_SLOTS; slot++) {
			uint32_t entry = fm_index_at(index, bucket, slot);

			if (entry != NONE && work->verdicts[entry] == VERDICT_SEALED &&
			    !work->is_listed[entry])
				work->is_listed[entry] = true;
			else if (index->buckets[bucket].slots[slot])
				fm_index_clear(index, bucket, slot);
		}
	/* Of two blocks of one key the one that readers find. */
	for (uint32_t entry = 0; entry < index->entries_max; entry++) {
		struct fm_key key;

		if (work->verdicts[entry] != VERDICT_SEALED)
			continue;
		fm_key_load(index->entries[entry].key, &key);
		if (fm_index_find(index, &key, &word) == entry)
			continue;
		fm_index_remove(index, entry);
		work->verdicts[entry] = VERDICT_REMOVED;
	}
}

/* Whether every member of the block's group is there, all round. */
static bool is_whole_group(const struct work *work, uint32_t entry)
{
	const struct fm_store *store = work->store;
	uint32_t at = entry, size = 0, n = 0;

	do {
		uint32_t generation = FABRICMGR_WORD_GENERATION(store->index.entries[at].word);
		uint64_t link = store->links[at];
		uint32_t next = fm_group_link_next(link);

		if (!n++)
			size = fm_group_link_size(link);
		if (n > size || next >= store->index.entries_max ||
		    work->verdicts[at] != VERDICT_SEALED || !is_in_group(work, at) ||
		    link != fm_group_link(at, generation, next, size))
			return false;
		at = next;
	} while (at != entry);
	return n == size;
}

/* A group is taken over as a whole, or nobody finds any of it; who holds some keeps those. */
static void settle_groups(struct work *work)
{
	struct fm_store *store = work->store;

	for (uint32_t entry = 0; entry < store->index.entries_max; entry++) {
		uint32_t next;

		if (work->verdicts[entry] != VERDICT_SEALED || !is_in_group(work, entry))
			continue;
		if (store->links && is_whole_group(work, entry)) {
			next = fm_group_link_next(store->links[entry]);
			store->nodes[entry].group_next = next == entry ? 0 : next + 1;
			continue;
		}
		fm_index_remove(&store->index, entry);
		work->verdicts[entry] = VERDICT_REMOVED;
	}
}

/* Whether others have joined it only its daemon knew; nobody joins it from now on. */
static void keep_for_joined(struct fm_node *node)
{
	node->is_shown = true;
	memset(&node->offer, 0xff, sizeof(node->offer));
}

static void restore(struct work *work, uint32_t entry)
{
	struct fm_store *store = work->store;
	struct fm_recovery *out = work->out;
	uint32_t origin = FM_LOW(store->index.entries[entry].check);
	struct fm_owner *owner;

	switch ((enum verdict)work->verdicts[entry]) {
	case VERDICT_STAGED:
		owner = find_owner(work, origin);
		keep_for_joined(&store->nodes[entry]);
		out->staged += owner != NULL;
		out->quarantined += !owner;
		fm_store_restore(store, entry,
				 owner ? FABRICMGR_BLOCK_STAGING : FABRICMGR_BLOCK_QUARANTINE,
				 owner, owner ? 0 : out->expires);
		break;
	case VERDICT_QUARANTINE:
		out->quarantined++;
		keep_for_joined(&store->nodes[entry]);
		fm_store_restore(store, entry, FABRICMGR_BLOCK_QUARANTINE, NULL, out->expires);
		break;
	case VERDICT_REMOVED:
		out->removed++;
		fm_header_end(store->headers, entry);
		fm_store_restore(store, entry, FABRICMGR_BLOCK_EVICTING, NULL, 0);
		break;
	case VERDICT_SEALED:
		work->generation[work->n_sealed++] =
			FM_PAIR(FABRICMGR_WORD_GENERATION(store->index.entries[entry].word), entry);
		break;
	default:
		fm_store_restore(store, entry, FABRICMGR_BLOCK_FREE, NULL, 0);
		return;
	}
	if (origin > out->highest_id)
		out->highest_id = origin;
}

static int compare_generations(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void find_parent(struct work *work, uint32_t entry)
{
	static const struct fm_key none;
	struct fm_store *store = work->store;
	uint32_t parent = NONE;
	struct fm_key key;
	uint64_t word;

	fm_key_load(store->index.entries[entry].parent, &key);
	if (memcmp(&key, &none, sizeof(key)))
		parent = fm_index_find(&store->index, &key, &word);
	store->nodes[entry].parent = parent;
}

/* The entry and those of its ancestors that are not in the tables yet, the first of them first. */
static void restore_chain(struct work *work, uint32_t entry)
{
	struct fm_store *store = work->store;
	uint32_t at = entry, below = NONE;

	while (at != NONE && work->verdicts[at] == VERDICT_SEALED) {
		work->verdicts[at] = VERDICT_ON_PATH;
		store->nodes[at].next = below;
		below = at;
		at = store->nodes[at].parent;
	}
	/* Clients may name parents in a circle. */
	if (at != NONE && work->verdicts[at] == VERDICT_ON_PATH)
		store->nodes[below].parent = NONE;
	for (at = below; at != NONE; at = below) {
		below = store->nodes[at].next;
		store->nodes[at].next = NONE;
		work->verdicts[at] = VERDICT_DONE;
		fm_store_restore(store, at, FABRICMGR_BLOCK_SEALED, NULL, 0);
		work->out->sealed++;
	}
}

static void restore_sealed(struct work *work)
{
	/* Generations are given as blocks come and go: the best that is known of their age. */
	qsort(work->generation, work->n_sealed, sizeof(*work->generation), compare_generations);
	for (uint32_t i = 0; i < work->n_sealed; i++)
		find_parent(work, FM_LOW(work->generation[i]));
	for (uint32_t i = 0; i < work->n_sealed; i++)
		if (work->verdicts[FM_LOW(work->generation[i])] == VERDICT_SEALED)
			restore_chain(work, FM_LOW(work->generation[i]));
}

int fm_store_recover(struct fm_store *store, struct fm_recovery *recovery)
{
	struct work work;
	int err = work_create(&work, store, recovery);

	if (err)
		return err;
	err = judge_all(&work);
	FM_KILL_POINT("recover: judged");
	if (!err)
		err = drop(&work);
	if (!err) {
		repair_buckets(&work);
		settle_groups(&work);
		FM_KILL_POINT("recover: buckets repaired");
		store->free_count = 0;
		for (uint32_t entry = store->index.entries_max; entry-- > 0;)
			restore(&work, entry);
		FM_KILL_POINT("recover: half restored");
		restore_sealed(&work);
		fm_store_free_removed(store);
	}
	work_free(&work);
	return err;
}

/* ---- from the header table alone ---- */

uint32_t fm_index_rebuild(struct fm_index *index, const struct fm_header *headers,
			  bool (*is_whole)(void *context, const struct fm_header *header),
			  void *context)
{
	static const struct fm_key none;
	uint32_t highest = index->entries_max - 1, bad = 0;
	struct fm_header header;
	uint64_t word;

	for (uint32_t entry = 0; entry < index->entries_max; entry++) {
		fm_header_read(headers, entry, &header);
		if (!fm_header_check(&header) && header.generation > highest)
			highest = header.generation;
	}
	for (uint32_t entry = 0; entry < index->entries_max; entry++)
		index->entries[entry].word = FABRICMGR_WORD(++highest, FABRICMGR_BLOCK_FREE);
	for (uint32_t entry = 0; entry < index->entries_max; entry++) {
		struct fm_entry *e = &index->entries[entry];
		struct fm_key key, parent;
		bool is_same;

		fm_header_read(headers, entry, &header);
		if (!header.magic || header.flags & (FM_HEADER_ENDED | FM_HEADER_IN_GROUP) ||
		    fm_region_is_adopted(header.region))
			continue;
		memcpy(&key, header.key, sizeof(key));
		if (fm_header_check(&header) || !is_whole(context, &header) ||
		    fm_index_find(index, &key, &word) != NONE) {
			bad++;
			continue;
		}
		fm_key_load(e->parent, &parent);
		is_same = !memcmp(e->key, &key, sizeof(key));
		*e = (struct fm_entry){
			.word = FABRICMGR_WORD(header.generation, FABRICMGR_BLOCK_STAGING),
			.place = FM_PAIR(header.region, header.chunk),
			.extent = FM_PAIR(header.length, header.slot),
			.check = FM_PAIR(header.crc32c, 0),
		};
		fm_key_store(e->key, &key);
		/* Only the order of eviction hangs on it: taken when the key beside it is right. */
		fm_key_store(e->parent, is_same ? &parent : &none);
		if (fm_index_insert(index, entry)) {
			e->word = FABRICMGR_WORD(++highest, FABRICMGR_BLOCK_FREE);
			bad++;
			continue;
		}
		/* Release, as always; nobody else looks yet. */
		fm_store_release(&e->word,
				 FABRICMGR_WORD(header.generation, FABRICMGR_BLOCK_SEALED));
	}
	return bad;
}
