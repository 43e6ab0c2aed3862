// SPDX-License-Identifier: Apache-2.0
/*
 * Eviction: choosing victims in the policy's order under the prefix guard, and freeing those that
 * no lease holds. Called by the daemon's thread only; pure. Invariant: no block is freed that a
 * lease table named in a scan begun after its EVICTING and the fence; and no parent before its
 * resident child; and for another tenant's sake no tenant gives a chunk of its guaranteed ones.
 */
#include <fabricmgr_kill_point.h>
#include <fabricmgr_probes.h>

#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"

#define NONE FM_NO_ENTRY

/* The block that a live lease names, or NONE. Tables belong to clients: every value is checked. */
static inline uint32_t leased_entry(const struct fm_store *store,
				    const struct fabricmgr_lease *lease)
{
	/* Acquire, here and below: pairs with the releases in fm_lease_write() and
	 * fm_lease_drop(). What is seen of a later lease ends the one before. */
	uint32_t region = fm_load_acquire(&lease->region);
	uint32_t entry;

	if (!region)
		return NONE;
	entry = fm_store_entry(store, region, fm_load_acquire(&lease->chunk),
			       fm_load_acquire(&lease->slot));
	if (entry != NONE && FABRICMGR_WORD_GENERATION(store->index.entries[entry].word) !=
				     fm_load_acquire(&lease->generation))
		return NONE;
	return entry;
}

/* Marks every block that a live lease names. */
void fm_store_scan_leases(struct fm_store *store)
{
	store->scan++;
	for (const struct fm_owner *owner = store->owners; owner; owner = owner->next) {
		for (uint32_t i = 0; i < owner->lease_count; i++) {
			uint32_t entry = leased_entry(store, &owner->leases[i]);

			if (entry != NONE)
				store->nodes[entry].leased = store->scan;
		}
	}
}

uint32_t fm_store_leased(const struct fm_store *store, const struct fm_owner *owner, uint32_t i)
{
	return leased_entry(store, &owner->leases[i]);
}

uint32_t fm_store_leases(struct fm_store *store, const struct fm_owner *owner)
{
	uint32_t n = 0;

	(void)store;
	/* Relaxed: a count for people; nothing is freed by it. */
	for (uint32_t i = 0; i < owner->lease_count; i++)
		n += fm_load_relaxed(&owner->leases[i].region) != 0;
	return n;
}

static bool may_go_alone(struct fm_store *store, uint32_t entry)
{
	const struct fm_node *node = &store->nodes[entry];

	if (node->pinned_until > store->now) {
		store->met_pin = true;
		if (!store->ignores_pins)
			return false;
	}

	if (FABRICMGR_WORD_STATE(store->index.entries[entry].word) != FABRICMGR_BLOCK_SEALED ||
	    node->leased == store->scan)
		return false;
	for (uint32_t child = node->first_child; child != NONE;
	     child = store->nodes[child].next_sibling)
		if (store->nodes[child].picked != store->round)
			return false;
	return true;
}

/* A group goes with all its members or stays. */
static bool may_go(struct fm_store *store, uint32_t entry)
{
	uint32_t member = entry;

	do {
		if (!may_go_alone(store, member))
			return false;
		member = fm_group_next(store, member);
	} while (member != entry);
	return true;
}

/* The block, and with it its group: victims that stand side by side. Returns how many there are. */
static uint32_t pick(struct fm_store *store, uint32_t entry, uint32_t n)
{
	uint32_t member = entry;

	do {
		store->nodes[member].picked = store->round;
		store->victims[n++] = member;
		member = fm_group_next(store, member);
	} while (member != entry);
	return n;
}

/* Of the block or of another of its group. */
static uint32_t unvisited_child(const struct fm_store *store, uint32_t entry)
{
	uint32_t member = entry, child;

	do {
		child = store->nodes[member].first_child;
		while (child != NONE && store->nodes[child].visited == store->round)
			child = store->nodes[child].next_sibling;
		member = fm_group_next(store, member);
	} while (child == NONE && member != entry);
	return child;
}

/* @next leads back up: to the member that the walk came in by, not to the child's own parent. */
static uint32_t descend(struct fm_store *store, uint32_t entry)
{
	for (;;) {
		uint32_t child = unvisited_child(store, entry);

		if (child == NONE)
			return entry;
		store->nodes[child].next = entry;
		entry = child;
	}
}

/* The whole group is; true: @root is in it. */
static bool visit(struct fm_store *store, uint32_t entry, uint32_t root)
{
	uint32_t member = entry;
	bool is_root = false;

	do {
		store->nodes[member].visited = store->round;
		is_root |= member == root;
		member = fm_group_next(store, member);
	} while (member != entry);
	return is_root;
}

/* Picks from @root's subtree, children before parents, until @limit victims. Each entry is visited
 * once a round, so a round costs at most one pass over the index. A group is one node of it, with
 * the children of all its members. */
static uint32_t gather(struct fm_store *store, uint32_t root, uint32_t n, uint32_t limit)
{
	uint32_t entry;
	bool is_root = false;

	if (store->nodes[root].visited == store->round || store->nodes[root].leased == store->scan)
		return n;
	for (entry = descend(store, root); n < limit && !is_root;
	     entry = is_root ? NONE : descend(store, store->nodes[entry].next)) {
		is_root = visit(store, entry, root);
		if (may_go(store, entry))
			n = pick(store, entry, n);
	}
	return n;
}

/* Whether the victim's group has a lease or a child; how many it is. A child stands before its
 * parent among the victims: one that stayed keeps its parent. */
static bool must_stay(const struct fm_store *store, uint32_t entry, uint32_t *size)
{
	uint32_t member = entry;
	bool stay = false;

	*size = 0;
	do {
		stay |= store->nodes[member].leased == store->scan ||
			store->nodes[member].first_child != NONE;
		++*size;
		member = fm_group_next(store, member);
	} while (member != entry);
	return stay;
}

static void free_victim(struct fm_store *store, uint32_t entry)
{
	FM_PROBE(evict, entry, store->index.entries[entry].key,
		 FM_HIGH(store->index.entries[entry].extent));
	fm_store_free_sealed(store, entry);
	FM_KILL_POINT("evict: one freed");
}

/* The same word again: readers that took a lease before see no change. */
static uint32_t keep_victim(struct fm_store *store, uint32_t entry, uint32_t stays)
{
	uint64_t *word = &store->index.entries[entry].word;

	store->victims[stays++] = entry;
	/* Release: pairs with the acquires in fm_index_find() and fm_lease_take(). */
	fm_store_release(word,
			 FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(*word), FABRICMGR_BLOCK_SEALED));
	return stays;
}

/* The evictor's half of the protocol, for all victims at once, which have left the policy's order.
 * Returns how many were freed. */
static uint32_t sacrifice(struct fm_store *store, uint32_t n)
{
	uint32_t freed = 0, stays = 0, size;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t *word = &store->index.entries[store->victims[i]].word;

		/* Relaxed: the one fence below orders all of them before the scan. */
		fm_store_relaxed(word, FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(*word),
						      FABRICMGR_BLOCK_EVICTING));
	}
	FM_KILL_POINT("evict: marked, not scanned");
	/* Pairs with the fence in fm_lease_take(): a lease that the scan misses saw EVICTING. */
	fm_fence();
	fm_store_scan_leases(store);
	FM_KILL_POINT("evict: scanned, not freed");
	for (uint32_t i = 0; i < n; i += size) {
		bool stay = must_stay(store, store->victims[i], &size);

		for (uint32_t k = i; k < i + size; k++)
			if (!stay)
				free_victim(store, store->victims[k]);
			else
				stays = keep_victim(store, store->victims[k], stays);
		freed += stay ? 0 : size;
	}
	/* Parents before children, as the policy was told of them first. */
	while (stays)
		fm_store_rank(store, store->victims[--stays]);
	return freed;
}

/* Victims of one eviction. Where blocks are large there are few, and most of the pool would go for
 * each block that is added. */
static uint32_t batch_of(const struct fm_store *store)
{
	uint32_t share;

	if (store->actor == NONE)
		return store->batch;
	share = store->slots.tenants.list[store->actor].entries / FM_EVICT_SHARE + 1;
	return share < store->batch ? share : store->batch;
}

/* Leaves of one class in the policy's order; each that goes may make its parent the next one. */
static uint32_t evict_from_class(struct fm_store *store, uint32_t list)
{
	uint32_t n = 0, entry, stays = NONE, first, batch = batch_of(store);

	store->round++;
	while (n < batch) {
		entry = store->policy->take(store->policy_state, list, store->now);
		if (entry == NONE)
			break;
		if (!may_go(store, entry)) {
			store->nodes[entry].next = stays;
			stays = entry;
			continue;
		}
		first = n;
		for (n = pick(store, entry, n); first < n; first++)
			store->policy->remove(store->policy_state, store->victims[first],
					      store->now, true);
	}
	/* What stayed for itself may have gone since with its group. */
	for (entry = stays; entry != NONE; entry = store->nodes[entry].next)
		if (store->nodes[entry].picked != store->round)
			store->policy->back(store->policy_state, entry);
	return n ? sacrifice(store, n) : 0;
}

/* Whose blocks may make room. */
enum sources { FROM_OWN = 1, FROM_OTHERS = 2, FROM_ALL = 4 /* whatever was guaranteed */ };

/*
 * A chunk's descendants may stand in other chunks, of other tenants, too: those may go as long as
 * their tenant's blocks stay above what it is guaranteed. What is above that in bytes is so in
 * chunks.
 */
static bool may_lose(struct fm_store *store, uint32_t chunk, uint32_t n)
{
	struct fm_tenants *tenants = &store->slots.tenants;
	bool may = true;

	for (uint32_t i = 0; i < tenants->count; i++)
		tenants->list[i].lost_bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		tenants->list[fm_store_tenant(store, store->victims[i])].lost_bytes +=
			(uint64_t)store->nodes[store->victims[i]].pages * FM_SLOT_GRAIN;
	for (uint32_t i = 0; i < n && may; i++) {
		uint32_t entry = store->victims[i], tenant = fm_store_tenant(store, entry);

		may = tenant == store->actor ||
		      FM_LOW(store->index.entries[entry].place) == chunk ||
		      fm_tenant_may_lose(&tenants->list[tenant]);
	}
	return may;
}

/* Picks all blocks of a chunk with their descendants; 0 when one of them cannot go. */
static uint32_t gather_chunk(struct fm_store *store, uint32_t at, uint32_t sources)
{
	const struct fm_chunk *chunk = &store->slots.chunks[at];
	uint32_t n = 0;

	store->round++;
	for (uint32_t i = 0; i < chunk->slots; i++)
		if (chunk->entries[i] != NONE)
			n = gather(store, chunk->entries[i], n, FM_EVICT_MAX - FM_GROUP_MAX);
	for (uint32_t i = 0; i < chunk->slots; i++)
		if (chunk->entries[i] != NONE &&
		    store->nodes[chunk->entries[i]].picked != store->round)
			return 0;
	if (!(sources & FROM_ALL) && !may_lose(store, at, n))
		return 0;
	for (uint32_t i = 0; i < n; i++)
		store->policy->remove(store->policy_state, store->victims[i], store->now, true);
	return n;
}

static bool is_other(const struct fm_chunk *chunk, uint32_t region, uint32_t pages)
{
	return chunk->region != region || chunk->pages != pages;
}

/* The chunks of those who may give, the longest unused first, over all of them. */
struct chunk_walk {
	uint32_t next[FM_TENANTS_MAX];
};

/* Where entries are short, what others have of them within their share would not help. */
static bool may_give(const struct fm_store *store, const struct fm_tenant *tenant)
{
	return fm_tenant_may_give(tenant) &&
	       (!store->needs_entry || tenant->entries > tenant->guaranteed_entries);
}

static void walk_start(struct fm_store *store, uint32_t sources, struct chunk_walk *walk)
{
	struct fm_tenants *tenants = &store->slots.tenants;

	for (uint32_t i = 0; i < tenants->count; i++) {
		const struct fm_tenant *tenant = &tenants->list[i];
		bool is_source =
			sources & FROM_ALL ||
			(i == store->actor ? sources & FROM_OWN
					   : sources & FROM_OTHERS && may_give(store, tenant));

		walk->next[i] = is_source ? tenant->oldest : NONE;
	}
}

/* NONE at the end. */
static uint32_t walk_next(const struct fm_store *store, struct chunk_walk *walk)
{
	const struct fm_chunk *chunks = store->slots.chunks;
	uint32_t first = NONE, at;

	for (uint32_t i = 0; i < store->slots.tenants.count; i++)
		if (walk->next[i] != NONE &&
		    (first == NONE ||
		     chunks[walk->next[i]].stamp < chunks[walk->next[first]].stamp))
			first = i;
	if (first == NONE)
		return NONE;
	at = walk->next[first];
	walk->next[first] = chunks[at].newer;
	return at;
}

static uint32_t evict_chunk(struct fm_store *store, uint32_t region, uint32_t pages,
			    uint32_t sources)
{
	struct chunk_walk walk;
	uint32_t at, n, freed;

	walk_start(store, sources, &walk);
	while ((at = walk_next(store, &walk)) != NONE) {
		if (!is_other(&store->slots.chunks[at], region, pages))
			continue;
		n = gather_chunk(store, at, sources);
		freed = n ? sacrifice(store, n) : 0;
		if (freed)
			return freed;
	}
	return 0;
}

/* What a tenant was promised goes above what others wish: their pins count no more. */
static uint32_t claim_guarantee(struct fm_store *store, uint32_t region, uint32_t pages)
{
	bool ignored = store->ignores_pins;
	uint32_t freed = evict_chunk(store, region, pages, FROM_OTHERS);

	if (freed || ignored)
		return freed;
	store->ignores_pins = true;
	freed = evict_chunk(store, region, pages, FROM_OTHERS);
	store->ignores_pins = ignored;
	return freed;
}

static uint32_t evict(struct fm_store *store, uint32_t region, uint32_t pages)
{
	const struct fm_tenant *actor = &store->slots.tenants.list[store->actor];
	uint32_t list = fm_slots_class(region, pages);
	uint32_t own = store->policy->take(store->policy_state, list, store->now);
	uint32_t sources = fm_tenant_may_grow(actor) ? FROM_OWN | FROM_OTHERS : FROM_OWN;
	struct chunk_walk walk;
	uint32_t at, freed;
	uint64_t stamp = UINT64_MAX;

	if (own != NONE)
		store->policy->back(store->policy_state, own);
	fm_store_scan_leases(store);
	if (fm_tenant_is_below_guarantee(actor) && !store->needs_entry) {
		freed = claim_guarantee(store, region, pages);
		if (freed)
			return freed;
	}
	/* What of ours goes first may have come just now: then the chunk of ours that was used
	 * longest ago is what another class's is compared with. */
	if (own != NONE)
		stamp = store->nodes[own].stamp;
	walk_start(store, sources, &walk);
	while ((at = walk_next(store, &walk)) != NONE &&
	       !is_other(&store->slots.chunks[at], region, pages))
		if (store->slots.chunks[at].stamp < stamp)
			stamp = store->slots.chunks[at].stamp;
	/* Another class gives a chunk when even the newest block in it is older than that, or when
	 * our class has nothing to give. Entries alone (no slot) are freed by either. */
	if (at != NONE && (own == NONE || store->slots.chunks[at].stamp < stamp)) {
		freed = evict_chunk(store, region, pages, sources);
		return freed ? freed : evict_from_class(store, list);
	}
	freed = evict_from_class(store, list);
	return freed ? freed : evict_chunk(store, region, pages, sources);
}

uint32_t fm_store_evict(struct fm_store *store, uint32_t region, uint32_t pages)
{
	uint32_t freed;

	store->ignores_pins = store->met_pin = false;
	store->actor = store->slots.tenants.of_region[region];
	store->needs_entry =
		!fm_tenants_may_take_entry(&store->slots.tenants, store->actor, store->free_count);
	freed = evict(store, region, pages);
	/* A pin is a wish: where nothing else may go, what is pinned goes. */
	if (!freed && store->met_pin) {
		store->ignores_pins = true;
		freed = evict(store, region, pages);
	}
	return freed;
}

uint32_t fm_store_evict_bytes(struct fm_store *store, uint64_t bytes)
{
	uint64_t step = (uint64_t)FM_EVICT_STEP_CHUNKS * FABRICMGR_CHUNK_BYTES;
	uint64_t before = store->slots.used_bytes, until;
	uint32_t total = 0, freed;

	store->ignores_pins = true; /* an administrator's order is above a client's wish */
	store->actor = NONE;
	store->needs_entry = false;
	if (bytes > step)
		bytes = step;
	until = before > bytes ? before - bytes : 0;
	fm_store_scan_leases(store);
	/* Chunk by chunk gives memory back; a chunk with a block that stays gives its others. */
	while (store->slots.used_bytes > until && (freed = evict_chunk(store, 0, 0, FROM_ALL)))
		total += freed;
	for (uint32_t at = 0; at < store->slots.count && store->slots.used_bytes > until; at++) {
		const struct fm_chunk *chunk = &store->slots.chunks[at];

		if (chunk->pages)
			total += evict_from_class(store,
						  fm_slots_class(chunk->region, chunk->pages));
	}
	return total;
}
