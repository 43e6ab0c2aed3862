// SPDX-License-Identifier: Apache-2.0
/*
 * Life of a block: stage, seal, remove, discard, offer, adopt, touch, expire. Eviction is in
 * evict.c. Called by the daemon's thread only; pure. Invariant: a word is stored with release after
 * the fields that its state promises.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_probes.h>

#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"
#include "core/life.h"
#include "core/store.h"

#define NONE FM_NO_ENTRY

int fm_store_create(struct fm_store *store, void *index, size_t index_bytes,
		    struct fm_header *headers, uint32_t chunks, const struct fm_policy_ops *policy,
		    const struct fm_chunk_ops *ops, void *context)
{
	uint32_t entries;
	int err;

	memset(store, 0, sizeof(*store));
	err = fm_index_open(&store->index, index, index_bytes);
	if (err)
		return err;
	err = fm_slots_create(&store->slots, chunks, store->index.entries_max, ops, context);
	if (err)
		return err;
	entries = store->index.entries_max;
	store->headers = headers;
	store->policy = policy;
	store->policy_state = policy->create(entries, (FM_ARENAS_MAX + 1) * FM_SLOTS_PER_CHUNK);
	store->nodes = calloc(entries, sizeof(*store->nodes));
	store->free_entries = malloc(entries * sizeof(uint32_t));
	store->victims = malloc(FM_EVICT_MAX * sizeof(uint32_t));
	if (!store->policy_state || !store->nodes || !store->free_entries || !store->victims) {
		fm_store_destroy(store);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the tables of %u blocks", entries);
	}
	for (uint32_t i = 0; i < entries; i++)
		store->free_entries[i] = entries - 1 - i;
	store->free_count = entries;
	store->offers_head = store->quarantine_head = store->removed_head = NONE;
	store->batch = FM_EVICT_BATCH;
	store->next_generation = entries; /* fm_index_format() used those below */
	return 0;
}

void fm_store_destroy(struct fm_store *store)
{
	if (store->policy_state)
		store->policy->destroy(store->policy_state);
	fm_adopted_destroy(store);
	fm_slots_destroy(&store->slots);
	free(store->nodes);
	free(store->free_entries);
	free(store->victims);
	memset(store, 0, sizeof(*store));
}

/* ---- small lists of entries that wait for something ---- */

static void list_push(struct fm_store *store, uint32_t *head, uint32_t entry)
{
	store->nodes[entry].prev = NONE;
	store->nodes[entry].next = *head;
	if (*head != NONE)
		store->nodes[*head].prev = entry;
	*head = entry;
}

static void list_remove(struct fm_store *store, uint32_t *head, uint32_t entry)
{
	struct fm_node *node = &store->nodes[entry];

	if (node->prev == NONE)
		*head = node->next;
	else
		store->nodes[node->prev].next = node->next;
	if (node->next != NONE)
		store->nodes[node->next].prev = node->prev;
}

/* Of the pool's memory. */
static uint64_t bytes_of(const struct fm_store *store, uint32_t entry)
{
	if (fm_entry_is_adopted(store, entry))
		return 0;
	return (uint64_t)store->nodes[entry].pages * FM_SLOT_GRAIN;
}

void fm_life_set_state(struct fm_store *store, uint32_t entry, enum fabricmgr_block_state state)
{
	uint64_t *word = &store->index.entries[entry].word;

	/* Release: pairs with the acquires in fm_index_find(), fm_lease_take() and
	 * fm_pool_walk(). */
	fm_store_release(word, FABRICMGR_WORD(FABRICMGR_WORD_GENERATION(*word), state));
}

uint32_t fm_store_tenant(const struct fm_store *store, uint32_t entry)
{
	uint32_t region = FM_HIGH(store->index.entries[entry].place);

	return fm_region_is_adopted(region) ? store->adopted[region - FM_ADOPTED_FIRST].tenant
					    : store->slots.tenants.of_region[region];
}

static struct fm_tenant *tenant_of(struct fm_store *store, uint32_t entry)
{
	return &store->slots.tenants.list[fm_store_tenant(store, entry)];
}

uint32_t fm_store_entry(const struct fm_store *store, uint32_t region, uint32_t chunk,
			uint32_t slot)
{
	return fm_region_is_adopted(region) ? fm_adopted_entry(store, region, chunk, slot)
					    : fm_slots_entry(&store->slots, region, chunk, slot);
}

/* The entry leaves its slot; it is in no list any more. */
static void entry_free(struct fm_store *store, uint32_t entry)
{
	struct fm_entry *e = &store->index.entries[entry];
	uint32_t state = FABRICMGR_WORD_STATE(e->word);

	if (state == FABRICMGR_BLOCK_STAGING || state == FABRICMGR_BLOCK_QUARANTINE)
		tenant_of(store, entry)->staged_bytes -= bytes_of(store, entry);
	/* Release: pairs with the acquires in fm_lease_take() and fm_pool_walk(); the fields of the
	 * generation that ends were stored before. */
	fm_store_release(&e->word, FABRICMGR_WORD(store->next_generation++, FABRICMGR_BLOCK_FREE));
	if (fm_entry_is_adopted(store, entry))
		fm_adopted_give(store, entry);
	else
		fm_slots_give(&store->slots, FM_LOW(e->place), FM_LOW(e->extent));
	store->free_entries[store->free_count++] = entry;
}

/* The end of a block that was never sealed, and is in no list any more. */
static void staged_free(struct fm_store *store, uint32_t entry)
{
	if (!store->nodes[entry].may_be_held) {
		entry_free(store, entry);
		return;
	}
	tenant_of(store, entry)->staged_bytes -= bytes_of(store, entry);
	/* Who joined it sees that it is given up; freed when no lease holds it. */
	fm_life_set_state(store, entry, FABRICMGR_BLOCK_EVICTING);
	list_push(store, &store->removed_head, entry);
	store->counters.removed++;
	store->removed_fresh++;
}

/* ---- owners ---- */

void fm_store_owner_add(struct fm_store *store, struct fm_owner *owner)
{
	owner->staged_head = NONE;
	owner->staged = 0;
	owner->staged_bytes = 0;
	owner->prev = NULL;
	owner->next = store->owners;
	if (store->owners)
		store->owners->prev = owner;
	store->owners = owner;
}

static void owner_give_up(struct fm_store *store, struct fm_owner *owner, uint32_t entry)
{
	list_remove(store, &owner->staged_head, entry);
	owner->staged--;
	owner->staged_bytes -= bytes_of(store, entry);
	store->nodes[entry].owner = NULL;
}

static void owner_receive(struct fm_store *store, struct fm_owner *owner, uint32_t entry)
{
	list_push(store, &owner->staged_head, entry);
	owner->staged++;
	owner->staged_bytes += bytes_of(store, entry);
	store->nodes[entry].owner = owner;
}

void fm_store_owner_remove(struct fm_store *store, struct fm_owner *owner, uint64_t expires)
{
	FM_KILL_POINT("end of a client: before");
	while (owner->staged_head != NONE) {
		uint32_t entry = owner->staged_head;

		owner_give_up(store, owner, entry);
		store->counters.staging--;
		if (expires) {
			store->nodes[entry].expires = expires;
			fm_life_set_state(store, entry, FABRICMGR_BLOCK_QUARANTINE);
			list_push(store, &store->quarantine_head, entry);
			store->counters.quarantine++;
		} else {
			staged_free(store, entry);
		}
	}
	if (owner->prev)
		owner->prev->next = owner->next;
	else
		store->owners = owner->next;
	if (owner->next)
		owner->next->prev = owner->prev;
}

/* ---- the life of a block ---- */

uint32_t fm_life_stage(struct fm_store *store, struct fm_owner *owner, uint64_t place,
		       uint64_t extent)
{
	uint32_t entry = store->free_entries[--store->free_count];
	struct fm_entry *e = &store->index.entries[entry];

	/* Release: pairs with the fence after a reader's relaxed loads of the fields, in
	 * fm_lease_take() and fm_pool_walk(). Who has met a new field sees that the word has left
	 * the old generation. */
	fm_key_store(e->key, &(struct fm_key){{0}});
	fm_key_store(e->parent, &(struct fm_key){{0}});
	fm_store_release(&e->place, place);
	fm_store_release(&e->extent, extent);
	fm_store_release(&e->check, FM_PAIR(0, owner->id));
	store->nodes[entry] = (struct fm_node){
		.pages = fm_slots_pages(FM_HIGH(extent)),
		.parent = NONE,
		.first_child = NONE,
		.prev_sibling = NONE,
		.next_sibling = NONE,
	};
	owner_receive(store, owner, entry);
	tenant_of(store, entry)->staged_bytes += bytes_of(store, entry);
	fm_life_set_state(store, entry, FABRICMGR_BLOCK_STAGING);
	store->counters.staging++;
	store->counters.stages++;
	return entry;
}

static int stage_entry(struct fm_store *store, struct fm_owner *owner, uint64_t length,
		       uint32_t *out)
{
	uint32_t tenant = store->slots.tenants.of_region[owner->region], entry, chunk, slot;
	int err;

	if (!fm_tenants_may_take_entry(&store->slots.tenants, tenant, store->free_count))
		return FM_ERR_POOL_FULL;
	entry = store->free_entries[store->free_count - 1];
	err = fm_slots_take(&store->slots, owner->region, fm_slots_pages(length), entry,
			    ++store->tick, &chunk, &slot);
	if (!err)
		*out = fm_life_stage(store, owner, FM_PAIR(owner->region, chunk),
				     FM_PAIR(length, slot));
	return err;
}

static void offer_remove(struct fm_store *store, uint32_t entry)
{
	list_remove(store, &store->offers_head, entry);
	tenant_of(store, entry)->offers--;
	store->offers--;
}

static void offer_drop(struct fm_store *store, uint32_t entry)
{
	offer_remove(store, entry);
	staged_free(store, entry);
	store->counters.staging--;
	store->counters.discards++;
}

/* Frees the oldest offer of a class: who would have adopted it computes it again. */
static bool drop_oldest_offer(struct fm_store *store, uint32_t region, uint32_t pages)
{
	uint32_t oldest = NONE;

	for (uint32_t entry = store->offers_head; entry != NONE; entry = store->nodes[entry].next)
		if (FM_HIGH(store->index.entries[entry].place) == region &&
		    store->nodes[entry].pages == pages &&
		    (oldest == NONE || store->nodes[entry].expires < store->nodes[oldest].expires))
			oldest = entry;
	if (oldest == NONE)
		return false;
	offer_drop(store, oldest);
	return true;
}

static int refuse(struct fm_owner *owner, enum fm_quota quota, const char *what, uint64_t max)
{
	owner->over = quota;
	return fm_fail(FM_ERR_LIMIT, "%s %llu bytes", what, (unsigned long long)max);
}

static int check_staging(struct fm_store *store, struct fm_owner *owner, uint64_t length)
{
	const struct fm_tenant *tenant = fm_tenant_of(&store->slots.tenants, owner->region);
	uint64_t bytes = (uint64_t)fm_slots_pages(length) * FM_SLOT_GRAIN, max;

	if (owner->staging_max && owner->staged_bytes + bytes > owner->staging_max)
		return refuse(owner, FM_QUOTA_CLIENT_STAGING,
			      "what this client may have staged at a time:", owner->staging_max);
	max = fm_tenants_staging_max(&store->slots.tenants, tenant);
	/* All of the pool is no quota: then there is no room, and it is waited for. */
	if (tenant->staged_bytes + bytes > max &&
	    max < (uint64_t)store->slots.count * FABRICMGR_CHUNK_BYTES)
		return refuse(owner, FM_QUOTA_STAGING,
			      "what this tenant may have staged at a time:", max);
	return 0;
}

int fm_store_stage(struct fm_store *store, struct fm_owner *owner, uint64_t length, uint32_t *entry)
{
	int err;

	if (!owner->region)
		return fm_fail(FM_ERR_PERMISSION, "this client attached read-only");
	if (!length || length > FABRICMGR_CHUNK_BYTES)
		return fm_fail(FM_ERR_LIMIT,
			       "a block of %llu bytes: a block has 1 to %u bytes (one chunk)",
			       (unsigned long long)length, FABRICMGR_CHUNK_BYTES);
	owner->over = FM_QUOTA_NONE;
	err = check_staging(store, owner, length);
	if (err)
		return err;
	for (;;) {
		uint32_t pages = fm_slots_pages(length);

		err = stage_entry(store, owner, length, entry);
		if (!err)
			FM_PROBE(stage, owner->id, *entry, length);
		if (err != FM_ERR_POOL_FULL && err != FM_ERR_LIMIT)
			return err;
		if (fm_store_free_removed(store))
			continue;
		/* Each round frees at least one block, so this ends. */
		if (fm_store_evict(store, owner->region, pages) ||
		    drop_oldest_offer(store, owner->region, pages))
			continue;
		if (err == FM_ERR_POOL_FULL)
			return err;
		return refuse(owner, FM_QUOTA_MEMORY, "what this tenant may hold:",
			      (uint64_t)fm_tenant_of(&store->slots.tenants, owner->region)
					      ->limits.max_chunks *
				      FABRICMGR_CHUNK_BYTES);
	}
}

bool fm_life_is_staged(const struct fm_store *store, const struct fm_owner *owner, uint32_t entry,
		       uint32_t generation)
{
	return entry < store->index.entries_max && store->nodes[entry].owner == owner &&
	       store->index.entries[entry].word ==
		       FABRICMGR_WORD(generation, FABRICMGR_BLOCK_STAGING);
}

static int not_staged(uint32_t entry)
{
	return fm_fail(FM_ERR_INVALID, "block %u is not staged by this client", entry);
}

static void link_parent(struct fm_store *store, uint32_t entry, uint32_t parent)
{
	struct fm_node *node = &store->nodes[entry], *above = &store->nodes[parent];

	node->parent = parent;
	node->next_sibling = above->first_child;
	if (above->first_child != NONE)
		store->nodes[above->first_child].prev_sibling = entry;
	above->first_child = entry;
}

static void retire(struct fm_store *store, uint32_t entry);
static void retire_companions(struct fm_store *store, uint32_t entry);

void fm_life_describe(struct fm_store *store, const struct fm_store_seal *seal, uint16_t flags)
{
	struct fm_entry *e = &store->index.entries[seal->entry];
	struct fm_header header = {
		.magic = FM_HEADER_MAGIC,
		.version = FM_HEADER_VERSION,
		.flags = flags,
		.length = FM_HIGH(e->extent),
		.generation = seal->generation,
		.chunk = FM_LOW(e->place),
		.slot = (uint16_t)FM_LOW(e->extent),
		.region = (uint16_t)FM_HIGH(e->place),
		.crc32c = seal->crc32c,
	};

	fm_key_store(e->key, &seal->key);
	if (seal->parent)
		fm_key_store(e->parent, seal->parent);
	/* Relaxed: SEALED follows with release. */
	fm_store_relaxed(&e->check, FM_PAIR(seal->crc32c, FM_LOW(e->check)));
	memcpy(header.ns, seal->ns, sizeof(header.ns));
	memcpy(header.key, &seal->key, sizeof(header.key));
	fm_header_write(store->headers, seal->entry, header);
}

void fm_life_place(struct fm_store *store, struct fm_owner *owner, uint32_t entry, uint32_t parent)
{
	const struct fm_entry *e = &store->index.entries[entry];

	owner_give_up(store, owner, entry);
	tenant_of(store, entry)->staged_bytes -= bytes_of(store, entry);
	store->nodes[entry].stamp = ++store->tick;
	/* A client's own memory has no place in the order of eviction, and keeps nothing in it. */
	if (!fm_entry_is_adopted(store, entry)) {
		if (parent != NONE && !fm_entry_is_adopted(store, parent))
			link_parent(store, entry, parent);
		fm_slots_touch(&store->slots, FM_LOW(e->place), store->tick);
		fm_store_rank(store, entry);
	}
	store->counters.staging--;
	store->counters.sealed++;
	store->counters.seals++;
	FM_PROBE(seal, owner->id, entry, e->key, FM_HIGH(e->extent));
}

int fm_store_seal(struct fm_store *store, struct fm_owner *owner, const struct fm_store_seal *seal)
{
	struct fm_entry *e;
	uint32_t parent = NONE, old;
	uint64_t word;
	int err = 0;

	if (!fm_life_is_staged(store, owner, seal->entry, seal->generation))
		return not_staged(seal->entry);
	old = fm_index_find(&store->index, &seal->key, &word);
	if (old != NONE && !seal->replaces) {
		store->counters.duplicates++;
		return FM_ERR_EXISTS;
	}
	/* What another tenant was promised to keep is not this one's to take. */
	if (old != NONE && fm_store_tenant(store, old) != fm_store_tenant(store, seal->entry))
		return fm_fail(FM_ERR_PERMISSION, "the block of this key is another tenant's");
	if (seal->parent)
		parent = fm_index_find(&store->index, seal->parent, &word);
	e = &store->index.entries[seal->entry];
	fm_key_store(e->key, &seal->key);
	if (old == NONE)
		err = fm_index_insert(&store->index, seal->entry);
	if (err) {
		fm_key_store(e->key, &(struct fm_key){{0}});
		return err;
	}
	FM_KILL_POINT("seal: in the index, no header");
	fm_life_describe(store, seal, 0);
	FM_KILL_POINT("seal: header written, not visible");
	fm_life_place(store, owner, seal->entry, parent);
	fm_life_set_state(store, seal->entry, FABRICMGR_BLOCK_SEALED);
	if (old != NONE) {
		retire_companions(store, old);
		fm_index_replace(&store->index, old, seal->entry);
		retire(store, old);
	}
	return 0;
}

static struct fm_policy_block rank_of(const struct fm_store *store, uint32_t entry)
{
	const struct fm_entry *e = &store->index.entries[entry];

	return (struct fm_policy_block){
		.list = fm_slots_class(FM_HIGH(e->place), store->nodes[entry].pages),
		.parent = store->nodes[entry].parent,
		.name = e->key[0],
	};
}

void fm_store_rank(struct fm_store *store, uint32_t entry)
{
	struct fm_policy_block block = rank_of(store, entry);

	store->policy->insert(store->policy_state, entry, &block, store->now);
}

/* A sealed block leaves its chain. */
static void unlink_sealed(struct fm_store *store, uint32_t entry)
{
	struct fm_node *node = &store->nodes[entry];

	if (node->prev_sibling != NONE)
		store->nodes[node->prev_sibling].next_sibling = node->next_sibling;
	else if (node->parent != NONE)
		store->nodes[node->parent].first_child = node->next_sibling;
	if (node->next_sibling != NONE)
		store->nodes[node->next_sibling].prev_sibling = node->prev_sibling;
}

void fm_store_free_sealed(struct fm_store *store, uint32_t entry)
{
	if (store->actor == NONE || store->actor == fm_store_tenant(store, entry))
		tenant_of(store, entry)->evictions++;
	else
		tenant_of(store, entry)->taken++;
	fm_index_remove(&store->index, entry);
	fm_header_end(store->headers, entry);
	unlink_sealed(store, entry);
	entry_free(store, entry);
	store->counters.sealed--;
	store->counters.evictions++;
}

/* ---- removal ---- */

/*
 * A sealed block that is not in the index any more: freed once no lease holds it. Its children, out
 * of reach now, stay until they are evicted as the heads of chains of their own.
 */
static void retire(struct fm_store *store, uint32_t entry)
{
	struct fm_node *node = &store->nodes[entry];
	uint32_t child, next;

	for (child = node->first_child; child != NONE; child = next) {
		next = store->nodes[child].next_sibling;
		store->policy->orphan(store->policy_state, child);
		store->nodes[child].parent = NONE;
		store->nodes[child].prev_sibling = store->nodes[child].next_sibling = NONE;
	}
	node->first_child = NONE;
	fm_header_end(store->headers, entry);
	if (!fm_entry_is_adopted(store, entry))
		store->policy->remove(store->policy_state, entry, store->now, false);
	unlink_sealed(store, entry);
	/* Readers that found it before take no lease any more; see fm_store_free_removed(). */
	fm_life_set_state(store, entry, FABRICMGR_BLOCK_EVICTING);
	list_push(store, &store->removed_head, entry);
	store->counters.sealed--;
	store->counters.removed++;
	if (++store->removed_fresh >= FM_EVICT_BATCH)
		fm_store_free_removed(store);
}

/* The other members of a group that is about to lose one: none of it is found any more. */
static void retire_companions(struct fm_store *store, uint32_t entry)
{
	uint32_t member;

	/* All of them first: from here on a reader gets none, whatever it asks for. */
	for (member = fm_group_next(store, entry); member != entry;
	     member = fm_group_next(store, member))
		fm_life_set_state(store, member, FABRICMGR_BLOCK_EVICTING);
	if (member != fm_group_next(store, entry))
		fm_life_set_state(store, entry, FABRICMGR_BLOCK_EVICTING);
	while ((member = fm_group_next(store, entry)) != entry) {
		fm_group_leave(store, member, entry);
		fm_index_remove(&store->index, member);
		retire(store, member);
	}
}

uint32_t fm_store_free_removed(struct fm_store *store)
{
	uint32_t freed = 0, entry, after;

	store->removed_fresh = 0;
	if (store->removed_head == NONE)
		return 0;
	/* Pairs with the fence in fm_lease_take(): a lease that the scan misses saw EVICTING. */
	fm_fence();
	fm_store_scan_leases(store);
	for (entry = store->removed_head; entry != NONE; entry = after) {
		after = store->nodes[entry].next;
		if (store->nodes[entry].leased == store->scan)
			continue;
		list_remove(store, &store->removed_head, entry);
		entry_free(store, entry);
		store->counters.removed--;
		freed++;
	}
	return freed;
}

static void remove_sealed(struct fm_store *store, uint32_t entry)
{
	retire_companions(store, entry);
	fm_index_remove(&store->index, entry);
	retire(store, entry);
}

int fm_store_remove(struct fm_store *store, const struct fm_key *key)
{
	uint64_t word;
	uint32_t entry = fm_index_find(&store->index, key, &word);

	if (entry == NONE)
		return FM_ERR_NOT_FOUND;
	FM_PROBE(remove, entry, key->bytes);
	remove_sealed(store, entry);
	return 0;
}

static void discard(struct fm_store *store, struct fm_owner *owner, uint32_t entry)
{
	owner_give_up(store, owner, entry);
	staged_free(store, entry);
	store->counters.staging--;
	store->counters.discards++;
}

void fm_life_drop(struct fm_store *store, uint32_t entry)
{
	uint32_t state = FABRICMGR_WORD_STATE(store->index.entries[entry].word);

	if (state == FABRICMGR_BLOCK_SEALED)
		remove_sealed(store, entry);
	else if (state == FABRICMGR_BLOCK_STAGING && store->nodes[entry].owner)
		discard(store, store->nodes[entry].owner, entry);
}

uint32_t fm_store_invalidate(struct fm_store *store, const uint8_t *ns, uint32_t tenant)
{
	uint32_t before = store->counters.sealed;

	for (uint32_t entry = 0; entry < store->index.entries_max; entry++) {
		uint64_t word = store->index.entries[entry].word, found;
		struct fm_key key;

		if (FABRICMGR_WORD_STATE(word) != FABRICMGR_BLOCK_SEALED ||
		    (tenant != NONE && fm_store_tenant(store, entry) != tenant) ||
		    memcmp(store->headers[entry].ns, ns, sizeof(store->headers[entry].ns)))
			continue;
		fm_key_load(store->index.entries[entry].key, &key);
		if (fm_index_find(&store->index, &key, &found) == entry)
			fm_store_remove(store, &key);
	}
	return before - store->counters.sealed;
}

int fm_store_discard(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		     uint32_t generation)
{
	if (!fm_life_is_staged(store, owner, entry, generation))
		return not_staged(entry);
	if (!FM_FAULT("leak-discarded"))
		discard(store, owner, entry);
	return 0;
}

int fm_store_offer(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		   uint32_t generation, const struct fm_key *id, uint64_t expires)
{
	struct fm_tenant *tenant;

	owner->over = FM_QUOTA_NONE;
	if (!fm_life_is_staged(store, owner, entry, generation))
		return not_staged(entry);
	if (store->nodes[entry].is_shown)
		return fm_fail(FM_ERR_INVALID,
			       "block %u may be joined by others: it stays with its writer", entry);
	if (fm_entry_is_adopted(store, entry))
		return fm_fail(FM_ERR_INVALID,
			       "block %u lies in its writer's own memory, where nobody else writes",
			       entry);
	tenant = tenant_of(store, entry);
	if (tenant->offers >= FM_OFFERS_MAX / store->slots.tenants.count)
		owner->over = FM_QUOTA_OFFERS;
	if (owner->over || store->offers >= FM_OFFERS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%u blocks are on offer already", tenant->offers);
	owner_give_up(store, owner, entry);
	store->nodes[entry].offer = *id;
	store->nodes[entry].expires = expires;
	list_push(store, &store->offers_head, entry);
	tenant->offers++;
	store->offers++;
	return 0;
}

int fm_store_adopt(struct fm_store *store, struct fm_owner *owner, const struct fm_key *id,
		   uint32_t *out)
{
	for (uint32_t entry = store->offers_head; entry != NONE; entry = store->nodes[entry].next) {
		struct fm_entry *e = &store->index.entries[entry];

		if (memcmp(&store->nodes[entry].offer, id, sizeof(*id)) ||
		    FM_HIGH(e->place) != owner->region)
			continue;
		offer_remove(store, entry);
		owner_receive(store, owner, entry);
		/* Relaxed: only a walk reads it before SEALED, to show it. */
		fm_store_relaxed(&e->check, FM_PAIR(0, owner->id));
		*out = entry;
		return 0;
	}
	return fm_fail(FM_ERR_NOT_FOUND,
		       "nothing is on offer under this id: adopted already, older than 30 s, or "
		       "taken back because the pool was full; compute it again");
}

int fm_store_show(struct fm_store *store, struct fm_owner *owner, uint32_t entry,
		  uint32_t generation, struct fm_key *id)
{
	if (!fm_life_is_staged(store, owner, entry, generation))
		return not_staged(entry);
	/* Shown again, by the same id: who has the first may come late. */
	memcpy(id->bytes, &entry, sizeof(entry));
	if (store->nodes[entry].is_shown)
		*id = store->nodes[entry].offer;
	store->nodes[entry].offer = *id;
	store->nodes[entry].is_shown = store->nodes[entry].may_be_held = true;
	return 0;
}

int fm_store_join(struct fm_store *store, const struct fm_key *id, uint32_t *out)
{
	uint32_t entry, state;

	memcpy(&entry, id->bytes, sizeof(entry));
	if (entry >= store->index.entries_max || !store->nodes[entry].is_shown ||
	    memcmp(&store->nodes[entry].offer, id, sizeof(*id)))
		return FM_ERR_NOT_FOUND;
	state = FABRICMGR_WORD_STATE(store->index.entries[entry].word);
	if (state != FABRICMGR_BLOCK_STAGING && state != FABRICMGR_BLOCK_SEALED)
		return FM_ERR_NOT_FOUND;
	*out = entry;
	return 0;
}

/* Between an adopted block and one of the pool a chain has no link: the key leads on. */
static uint32_t parent_of(const struct fm_store *store, uint32_t entry)
{
	struct fm_key key;
	uint64_t word;

	if (store->nodes[entry].parent != NONE || !store->counters.adopted_blocks)
		return store->nodes[entry].parent;
	fm_key_load(store->index.entries[entry].parent, &key);
	if (!memcmp(&key, &(struct fm_key){{0}}, sizeof(key)))
		return NONE;
	return fm_index_find(&store->index, &key, &word);
}

void fm_store_touch(struct fm_store *store, uint32_t entry, uint32_t generation)
{
	if (entry >= store->index.entries_max ||
	    store->index.entries[entry].word != FABRICMGR_WORD(generation, FABRICMGR_BLOCK_SEALED))
		return;
	/* Child first: so that in every list a parent ends up behind, that is safer than, its
	 * children. */
	for (uint32_t steps = 0; entry != NONE && steps < FM_TOUCH_STEPS; steps++) {
		uint32_t member = entry;

		do { /* a group is as new as its newest member */
			uint64_t place = store->index.entries[member].place;

			store->nodes[member].stamp = ++store->tick;
			if (!fm_entry_is_adopted(store, member)) {
				fm_slots_touch(&store->slots, FM_LOW(place), store->tick);
				store->policy->touch(store->policy_state, member, store->now);
			}
			member = fm_group_next(store, member);
		} while (member != entry);
		entry = parent_of(store, entry);
	}
}

int fm_store_hint(struct fm_store *store, uint32_t entry, uint32_t generation,
		  const struct fm_store_hint *hint)
{
	if (hint->priority < -FM_PRIORITY_MAX || hint->priority > FM_PRIORITY_MAX)
		return FM_ERR_LIMIT;
	if (entry >= store->index.entries_max ||
	    store->index.entries[entry].word != FABRICMGR_WORD(generation, FABRICMGR_BLOCK_SEALED))
		return FM_ERR_NOT_FOUND;
	store->nodes[entry].pinned_until = hint->pinned_until;
	if (store->policy->hint && !fm_entry_is_adopted(store, entry))
		store->policy->hint(store->policy_state, entry, hint->expected_at, hint->priority,
				    store->now);
	return 0;
}

static bool has_adopter(const struct fm_store *store, uint32_t region)
{
	for (const struct fm_owner *owner = store->owners; owner; owner = owner->next)
		if (owner->region == region)
			return true;
	return false;
}

uint64_t fm_store_expire(struct fm_store *store, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	uint32_t entry, after;

	store->now = now;
	for (entry = store->offers_head; entry != NONE; entry = after) {
		after = store->nodes[entry].next;
		if (store->nodes[entry].expires <= now ||
		    !has_adopter(store, FM_HIGH(store->index.entries[entry].place))) {
			offer_drop(store, entry);
		} else if (store->nodes[entry].expires < next) {
			next = store->nodes[entry].expires;
		}
	}
	if (store->removed_head != NONE) {
		if (!store->removed_at)
			store->removed_at = now + FM_REMOVED_RETRY_NS;
		if (store->removed_at <= now) {
			fm_store_free_removed(store);
			store->removed_at = now + FM_REMOVED_RETRY_NS;
		}
	}
	if (store->removed_head == NONE)
		store->removed_at = 0;
	else if (store->removed_at < next)
		next = store->removed_at;
	for (entry = store->quarantine_head; entry != NONE; entry = after) {
		after = store->nodes[entry].next;
		if (store->nodes[entry].expires <= now) {
			list_remove(store, &store->quarantine_head, entry);
			staged_free(store, entry);
			store->counters.quarantine--;
		} else if (store->nodes[entry].expires < next) {
			next = store->nodes[entry].expires;
		}
	}
	return next;
}

/* ---- what an earlier process left (recover.c) ---- */

void fm_store_restore(struct fm_store *store, uint32_t entry, enum fabricmgr_block_state state,
		      struct fm_owner *owner, uint64_t expires)
{
	struct fm_node *node = &store->nodes[entry];
	struct fm_policy_block block;

	node->expires = expires;
	/* Whether it was shown to others is forgotten; those who joined it have their leases. */
	node->may_be_held = true;
	switch (state) {
	case FABRICMGR_BLOCK_STAGING:
		owner_receive(store, owner, entry);
		tenant_of(store, entry)->staged_bytes += bytes_of(store, entry);
		store->counters.staging++;
		break;
	case FABRICMGR_BLOCK_QUARANTINE:
		list_push(store, &store->quarantine_head, entry);
		tenant_of(store, entry)->staged_bytes += bytes_of(store, entry);
		store->counters.quarantine++;
		break;
	case FABRICMGR_BLOCK_EVICTING:
		list_push(store, &store->removed_head, entry);
		store->counters.removed++;
		break;
	case FABRICMGR_BLOCK_SEALED:
		if (node->parent != NONE)
			link_parent(store, entry, node->parent);
		node->stamp = ++store->tick;
		fm_slots_touch(&store->slots, FM_LOW(store->index.entries[entry].place),
			       store->tick);
		block = rank_of(store, entry);
		(store->policy->restore ? store->policy->restore : store->policy->insert)(
			store->policy_state, entry, &block, store->now);
		store->counters.sealed++;
		break;
	case FABRICMGR_BLOCK_FREE:
		store->free_entries[store->free_count++] = entry;
		return;
	case FABRICMGR_BLOCK_GROUPED: /* is one of the others before it comes here */
		return;
	}
	if (FABRICMGR_WORD_STATE(store->index.entries[entry].word) != (uint32_t)state)
		fm_life_set_state(store, entry, state);
}
