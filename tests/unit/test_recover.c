// SPDX-License-Identifier: Apache-2.0
/*
 * Taking over what a daemon left: after any part of the stores of any operation, and after bits
 * flipped. What is believed is compared with what was really written where. In plain memory, from a
 * seed.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "core/evict.h"
#include "core/groups.h"
#include "core/lease.h"
#include "core/recover.h"

enum { CHUNKS = 6, ENTRIES = 96, LEASES = 16, PAGES = CHUNKS * FM_SLOTS_PER_CHUNK, KEYS = 4096 };

/* A pool, with what is really in its memory: the number of the key that each page was filled for.
 */
struct world {
	struct fm_store store;
	struct fm_owner owner;
	struct fabricmgr_lease leases[LEASES];
	void *index;
	struct fm_header *headers;
	uint64_t *links;
	uint32_t pages[2][PAGES]; /* of two arenas */
	uint32_t next_key;
	uint32_t second;	   /* staged for a group */
	uint32_t is_grouped[KEYS]; /* of a key: that of its group's first */
	uint64_t seed;
};

static uint32_t chance(struct world *world, uint32_t n)
{
	world->seed = world->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((world->seed >> 33) % n);
}

static int populate(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
	return 0;
}

static void punch(void *context, uint32_t region, uint32_t chunk)
{
	struct world *world = context;

	memset(&world->pages[region - 1][chunk * FM_SLOTS_PER_CHUNK], 0,
	       FM_SLOTS_PER_CHUNK * sizeof(uint32_t));
}

static const struct fm_chunk_ops ops = {populate, punch};

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	key.bytes[15] = n != 0;
	return key;
}

static uint32_t number_of(const struct fm_entry *e)
{
	uint32_t n;

	memcpy(&n, e->key, sizeof(n));
	return n;
}

static void world_open(struct world *world, const struct fm_policy_ops *policy)
{
	ck_assert_int_eq(fm_store_create(&world->store, world->index, fm_index_bytes(ENTRIES),
					 world->headers, CHUNKS, policy, &ops, world),
			 0);
	world->store.links = world->links;
	world->owner = (struct fm_owner){
		.id = 7, .region = 1, .leases = world->leases, .lease_count = LEASES};
	fm_store_owner_add(&world->store, &world->owner);
}

static struct world *world_new(uint64_t seed)
{
	struct world *world = calloc(1, sizeof(*world));
	size_t bytes = (fm_index_bytes(ENTRIES) + 4095) & ~4095ull;

	world->index = aligned_alloc(4096, bytes);
	memset(world->index, 0, bytes);
	world->headers = calloc(ENTRIES, sizeof(*world->headers));
	world->links = calloc(ENTRIES, sizeof(*world->links));
	world->seed = seed;
	world->next_key = 1;
	fm_index_format(world->index, ENTRIES, 1, 42);
	world_open(world, &fm_policy_lru);
	return world;
}

static void world_free(struct world *world)
{
	fm_store_destroy(&world->store);
	free(world->index);
	free(world->headers);
	free(world->links);
	free(world);
}

/* The memory alone, as a daemon leaves it that dies. */
static struct world *world_copy(const struct world *from)
{
	struct world *world = calloc(1, sizeof(*world));
	size_t bytes = (fm_index_bytes(ENTRIES) + 4095) & ~4095ull;

	world->index = aligned_alloc(4096, bytes);
	memcpy(world->index, from->index, bytes);
	world->headers = malloc(ENTRIES * sizeof(*world->headers));
	memcpy(world->headers, from->headers, ENTRIES * sizeof(*world->headers));
	world->links = malloc(ENTRIES * sizeof(*world->links));
	memcpy(world->links, from->links, ENTRIES * sizeof(*world->links));
	memcpy(world->leases, from->leases, sizeof(world->leases));
	memcpy(world->pages, from->pages, sizeof(world->pages));
	world->seed = from->seed;
	world->next_key = from->next_key;
	memcpy(world->is_grouped, from->is_grouped, sizeof(world->is_grouped));
	return world;
}

/* ---- working ---- */

static void fill(struct world *world, uint32_t entry, uint32_t key)
{
	const struct fm_entry *e = &world->store.index.entries[entry];
	uint32_t pages = fm_slots_pages(FM_HIGH(e->extent));
	uint32_t *at = &world->pages[FM_HIGH(e->place) - 1][FM_LOW(e->place) * FM_SLOTS_PER_CHUNK +
							    FM_LOW(e->extent) * pages];

	for (uint32_t i = 0; i < pages; i++)
		at[i] = key;
}

static int seal(struct world *world, uint32_t entry, uint32_t key, uint32_t parent, bool replaces)
{
	static const uint8_t ns[16] = {7};
	struct fm_key above = key_of(parent);
	struct fm_store_seal seal = {
		.entry = entry,
		.generation = FABRICMGR_WORD_GENERATION(world->store.index.entries[entry].word),
		.crc32c = key,
		.key = key_of(key),
		.parent = parent ? &above : NULL,
		.ns = ns,
		.replaces = replaces,
	};

	if (fm_store_seal(&world->store, &world->owner, &seal))
		return -1;
	if (key < KEYS)
		world->is_grouped[key] = 0;
	return 0;
}

static uint64_t length_of(uint32_t key)
{
	static const uint32_t lengths[] = {1u << 19, 300000, 1u << 20};

	return lengths[key % 3];
}

/* Stages a block for @key and fills it, or FM_NO_ENTRY. */
static uint32_t stage(struct world *world, uint32_t key)
{
	uint32_t entry;

	if (fm_store_stage(&world->store, &world->owner, length_of(key), &entry))
		return FM_NO_ENTRY;
	fill(world, entry, key);
	return entry;
}

static bool lease(struct world *world, uint32_t i, uint32_t key)
{
	struct fm_key wanted = key_of(key);
	uint64_t word;
	uint32_t entry = fm_index_find(&world->store.index, &wanted, &word);

	return entry != FM_NO_ENTRY &&
	       fm_lease_take(&world->leases[i], &world->store.index.entries[entry], word);
}

/* Both halves of a group: @prepared, and what was staged for the key after it. */
static void seal_group(struct world *world, uint32_t prepared, uint32_t key)
{
	static const uint8_t ns[16] = {7};
	struct fm_store_seal seals[2];
	int results[2];

	for (uint32_t i = 0; i < 2; i++)
		seals[i] = (struct fm_store_seal){
			.entry = i ? world->second : prepared,
			.generation = FABRICMGR_WORD_GENERATION(
				world->store.index.entries[i ? world->second : prepared].word),
			.crc32c = key + i,
			.key = key_of(key + i),
			.ns = ns,
		};
	if (!fm_store_seal_group(&world->store, &world->owner, seals, 2, results))
		world->is_grouped[key] = world->is_grouped[key + 1] = key;
}

/* One operation of the daemon; what a client fills, it filled before. @prepared: staged for it. */
static void operate(struct world *world, uint32_t kind, uint32_t prepared, uint32_t key)
{
	struct fm_key old = key_of(1 + chance(world, world->next_key));
	uint32_t entry;

	switch (kind) {
	case 0:
	case 1:
	case 2:
		if (prepared != FM_NO_ENTRY)
			seal(world, prepared, key, chance(world, 2) ? key - 1 : 0, kind == 2);
		break;
	case 3:
		fm_store_stage(&world->store, &world->owner, length_of(chance(world, 3)), &entry);
		break;
	case 4:
		fm_store_remove(&world->store, &old);
		break;
	case 5:
		fm_store_evict(&world->store, 1, fm_slots_pages(length_of(key)));
		break;
	case 6:
		fm_store_owner_remove(&world->store, &world->owner, chance(world, 2) ? 50 : 0);
		world->owner = (struct fm_owner){.id = 7,
						 .region = 1 + chance(world, 2),
						 .leases = world->leases,
						 .lease_count = LEASES};
		fm_store_owner_add(&world->store, &world->owner);
		break;
	case 7:
		if (prepared != FM_NO_ENTRY)
			seal_group(world, prepared, key);
		break;
	default:
		fm_store_free_removed(&world->store);
		fm_store_expire(&world->store, 100);
	}
}

/* What a client does between operations. */
static uint32_t prepare(struct world *world, uint32_t kind, uint32_t *key)
{
	uint32_t i = chance(world, LEASES);

	if (world->leases[i].region)
		fm_lease_drop(&world->leases[i]);
	else if (i < 6)
		lease(world, i, 1 + chance(world, world->next_key));
	*key = kind == 2 ? 1 + chance(world, world->next_key) : world->next_key++;
	if (kind == 7) {
		world->second = stage(world, world->next_key++);
		if (world->second == FM_NO_ENTRY)
			return FM_NO_ENTRY;
	}
	return kind < 3 || kind == 7 ? stage(world, *key) : FM_NO_ENTRY;
}

/* ---- taking over ---- */

static bool is_whole(void *context, const struct fm_header *header)
{
	struct world *world = context;
	uint32_t pages = fm_slots_pages(header->length), key;

	memcpy(&key, header->key, sizeof(key));
	if (!pages || header->region < 1 || header->region > 2 || header->chunk >= CHUNKS ||
	    header->slot >= FM_SLOTS_PER_CHUNK / pages)
		return false;
	for (uint32_t i = 0; i < pages; i++)
		if (world->pages[header->region - 1][header->chunk * FM_SLOTS_PER_CHUNK +
						     header->slot * pages + i] != key)
			return false;
	return true;
}

static int take_over(struct world *world, struct fm_recovery *recovery)
{
	*recovery = (struct fm_recovery){.regions = 2, .expires = 1000};
	if (fm_store_create(&world->store, world->index, fm_index_bytes(ENTRIES), world->headers,
			    CHUNKS, &fm_policy_density, &ops, world))
		return FM_ERR_CORRUPT;
	world->store.links = world->links;
	world->owner = (struct fm_owner){
		.id = 7, .region = 1, .leases = world->leases, .lease_count = LEASES};
	fm_store_owner_add(&world->store, &world->owner);
	return fm_store_recover(&world->store, recovery);
}

/* As the driver does it when the index is not to be trusted and nobody reads by it. */
static void rebuild(struct world *world, struct fm_recovery *recovery)
{
	struct fm_index index;

	fm_store_destroy(&world->store);
	memset(world->leases, 0, sizeof(world->leases));
	fm_index_reformat(world->index, ENTRIES, 1, 42);
	ck_assert_int_eq(fm_index_open(&index, world->index, fm_index_bytes(ENTRIES)), 0);
	fm_index_rebuild(&index, world->headers, is_whole, world);
	ck_assert_int_eq(take_over(world, recovery), 0);
	ck_assert_uint_eq(recovery->staged + recovery->quarantined, 0);
}

/* Whether every block that can be found is what was written; how many there are. */
static uint32_t check_blocks(struct world *world)
{
	const struct fm_store *store = &world->store;
	uint32_t n = 0;

	for (uint32_t entry = 0; entry < ENTRIES; entry++) {
		const struct fm_entry *e = &store->index.entries[entry];
		struct fm_header header;
		struct fm_key key;
		uint64_t word;

		fm_key_load(e->key, &key);
		if (fm_index_find(&store->index, &key, &word) != entry)
			continue;
		fm_header_read(world->headers, entry, &header);
		ck_assert_int_eq(fm_header_check(&header), 0);
		ck_assert_uint_eq(FABRICMGR_WORD_STATE(word), FABRICMGR_BLOCK_SEALED);
		ck_assert_uint_eq(FM_HIGH(e->check), number_of(e));
		ck_assert_uint_eq(FM_HIGH(e->extent), length_of(number_of(e)));
		ck_assert_msg(is_whole(world, &header), "key %u is served with other bytes",
			      number_of(e));
		ck_assert_uint_eq(fm_slots_entry(&store->slots, FM_HIGH(e->place), FM_LOW(e->place),
						 FM_LOW(e->extent)),
				  entry);
		n++;
	}
	ck_assert_uint_eq(n, store->counters.sealed);
	return n;
}

static bool is_there(const struct world *world, uint32_t n)
{
	struct fm_key key = key_of(n);
	uint64_t word;

	return fm_index_find(&world->store.index, &key, &word) != FM_NO_ENTRY;
}

/* Page @k of the block of so many pages that lease @i holds. */
static uint32_t page_of(const struct world *world, uint32_t i, uint32_t k, uint32_t pages)
{
	const struct fabricmgr_lease *l = &world->leases[i];

	return world->pages[l->region - 1][l->chunk * FM_SLOTS_PER_CHUNK + l->slot * pages + k];
}

/* Fills the pool until nothing may go: no held block may change by that. */
static void go_on(struct world *world)
{
	uint32_t held[LEASES], pages[LEASES], entry, n = 0;
	struct world *before = world_copy(world);

	for (uint32_t i = 0; i < LEASES; i++) {
		const struct fabricmgr_lease *l = &world->leases[i];

		entry = fm_slots_entry(&world->store.slots, l->region, l->chunk, l->slot);
		held[i] = l->region && entry != FM_NO_ENTRY &&
					  FABRICMGR_WORD_GENERATION(
						  world->store.index.entries[entry].word) ==
						  l->generation
				  ? entry
				  : FM_NO_ENTRY;
		pages[i] = held[i] == FM_NO_ENTRY ? 0 : world->store.nodes[entry].pages;
	}
	while ((entry = stage(world, 1000000 + 3 * n)) != FM_NO_ENTRY)
		ck_assert_uint_le(++n, ENTRIES);
	for (uint32_t i = 0; i < LEASES; i++)
		for (uint32_t k = 0; held[i] != FM_NO_ENTRY && k < pages[i]; k++)
			ck_assert_msg(page_of(world, i, k, pages[i]) ==
					      page_of(before, i, k, pages[i]),
				      "a held block was overwritten");
	world_free(before);
	/* Everything can be given up again: no slot is lost. */
	memset(world->leases, 0, sizeof(world->leases));
	fm_store_owner_remove(&world->store, &world->owner, 0);
	fm_store_expire(&world->store, UINT64_MAX);
	fm_store_free_removed(&world->store);
	while (fm_store_evict_bytes(&world->store, UINT64_MAX))
		;
	ck_assert_uint_eq(world->store.slots.used_bytes, 0);
	ck_assert_uint_eq(world->store.free_count, ENTRIES);
	fm_store_owner_add(&world->store, &world->owner);
}

/* ---- the stores of one operation ---- */

struct change {
	uint64_t *where; /* in the copy */
	uint64_t value;
};

enum { CHANGES_MAX = 4096 };

static uint32_t differences(const void *before, const void *after, void *copy, size_t bytes,
			    struct change *changes, uint32_t n)
{
	const uint64_t *a = before, *b = after;

	for (size_t i = 0; i < bytes / sizeof(*a) && n < CHANGES_MAX; i++)
		if (a[i] != b[i])
			changes[n++] = (struct change){(uint64_t *)copy + i, b[i]};
	return n;
}

/* Of a group all or none is found. */
static void check_groups(const struct world *world)
{
	for (uint32_t key = 1; key + 1 < world->next_key; key++)
		if (world->is_grouped[key] && world->is_grouped[key + 1] == key)
			ck_assert_msg(is_there(world, key) == is_there(world, key + 1),
				      "half of the group of %u and %u", key, key + 1);
}

/* A part of the stores was done: by the bits of @mask, repeated. True: it could be taken over. */
static bool try_part(const struct world *before, const struct world *after, uint64_t mask)
{
	struct world *world = world_copy(before);
	static struct change changes[CHANGES_MAX];
	struct fm_recovery recovery;
	bool is_taken;
	uint32_t n;

	n = differences(before->index, after->index, world->index, fm_index_bytes(ENTRIES), changes,
			0);
	n = differences(before->headers, after->headers, world->headers,
			ENTRIES * sizeof(*world->headers), changes, n);
	n = differences(before->links, after->links, world->links, ENTRIES * sizeof(*world->links),
			changes, n);
	for (uint32_t i = 0; i < n; i++)
		if (mask >> i % 64 & 1)
			*changes[i].where = changes[i].value;
	is_taken = !take_over(world, &recovery);
	if (!is_taken)
		rebuild(world, &recovery);
	check_blocks(world);
	memcpy(world->is_grouped, after->is_grouped, sizeof(world->is_grouped));
	check_groups(world);
	go_on(world);
	world_free(world);
	return is_taken;
}

static void check_whole(const struct world *before, const struct world *truth)
{
	struct world *world = world_copy(before);
	struct fm_recovery recovery;

	ck_assert_msg(!take_over(world, &recovery), "%s", fm_error_detail());
	ck_assert_uint_eq(recovery.dropped, 0);
	check_blocks(world);
	for (uint32_t key = 1; key < truth->next_key; key++)
		ck_assert_msg(is_there(world, key) == is_there(truth, key), "key %u", key);
	check_groups(world);
	/* Without the links, which an earlier version did not keep, groups are let go. */
	world_free(world);
	world = world_copy(before);
	memset(world->links, 0, ENTRIES * sizeof(*world->links));
	ck_assert_int_eq(take_over(world, &recovery), 0);
	for (uint32_t key = 1; key < truth->next_key; key++)
		ck_assert(is_there(world, key) ==
			  (is_there(truth, key) && !truth->is_grouped[key]));
	world_free(world);
}

START_TEST(any_part_of_an_operation_is_understood)
{
	struct world *world = world_new(11);

	for (uint32_t i = 0; i < 100; i++) {
		uint32_t kind = chance(world, 9), key, prepared = prepare(world, kind, &key);
		struct world *before = world_copy(world);

		operate(world, kind, prepared, key);
		check_whole(world, world);
		try_part(before, world, 0);
		for (uint32_t bit = 0; bit < 8; bit++) {
			try_part(before, world, (1ull << bit) - 1);
			try_part(before, world, ~((1ull << bit) - 1));
			try_part(before, world, 1ull << bit);
			try_part(before, world,
				 (uint64_t)chance(world, 1u << 31) << 32 | chance(world, 1u << 31));
		}
		world_free(before);
	}
	world_free(world);
}
END_TEST

/* ---- flipped bits ---- */

static void flip(struct world *world, uint32_t n)
{
	size_t index = fm_index_bytes(ENTRIES), all = index + ENTRIES * sizeof(struct fm_header);

	if (chance(world, 2))
		world->links[chance(world, ENTRIES)] ^= 1ull << chance(world, 64);
	while (n--) {
		size_t at = chance(world, (uint32_t)all);

		/* The first page is the header, and mostly empty. */
		if (at < FM_INDEX_HEADER_BYTES && at >= sizeof(struct fm_index_header) &&
		    chance(world, 8))
			at = index - 1 - chance(world, ENTRIES * sizeof(struct fm_entry));
		((uint8_t *)(at < index ? world->index
					: world->headers))[at < index ? at : at - index] ^=
			(uint8_t)(1u << chance(world, 8));
	}
}

START_TEST(flipped_bits_never_make_a_wrong_block)
{
	struct world *world = world_new(12);
	uint32_t n_warm = 0, n_dropped = 0, n_rebuilt = 0;

	for (uint32_t i = 0; i < 60; i++) {
		uint32_t kind = chance(world, 9), key, prepared = prepare(world, kind, &key);

		operate(world, kind, prepared, key);
		for (uint32_t k = 0; k < 20; k++) {
			struct world *copy = world_copy(world);
			struct fm_recovery recovery;

			copy->seed += 1000 * i + k;
			flip(copy, 1 + k);
			if (k % 2)
				memset(copy->leases, 0, sizeof(copy->leases));
			if (take_over(copy, &recovery)) {
				rebuild(copy, &recovery);
				n_rebuilt++;
			} else {
				n_warm++;
				n_dropped += recovery.dropped;
			}
			check_blocks(copy);
			check_groups(copy);
			go_on(copy);
			world_free(copy);
		}
	}
	/* Each of the ways was gone. */
	ck_assert_uint_gt(n_warm, 100);
	ck_assert_uint_gt(n_dropped, 100);
	ck_assert_uint_gt(n_rebuilt, 100);
	world_free(world);
}
END_TEST

/* ---- one thing at a time ---- */

static uint32_t put(struct world *world, uint32_t key, uint32_t parent)
{
	uint32_t entry = stage(world, key);

	ck_assert_int_eq(seal(world, entry, key, parent, false), 0);
	return entry;
}

START_TEST(what_is_staged_stays_with_its_writer_or_waits)
{
	struct world *world = world_new(1), *copy;
	uint32_t entry = stage(world, 3), stranger;
	struct fm_recovery recovery;

	world->owner.id = 99; /* whose record is gone */
	stranger = stage(world, 3);
	copy = world_copy(world);
	ck_assert_int_eq(take_over(copy, &recovery), 0);
	ck_assert_uint_eq(recovery.staged, 1);
	ck_assert_uint_eq(recovery.quarantined, 1);
	ck_assert_ptr_eq(copy->store.nodes[entry].owner, &copy->owner);
	ck_assert_uint_eq(copy->owner.staged, 1);
	fm_store_expire(&copy->store, 999);
	ck_assert_uint_eq(FABRICMGR_WORD_STATE(copy->store.index.entries[stranger].word),
			  FABRICMGR_BLOCK_QUARANTINE);
	fm_store_expire(&copy->store, 1000);
	fm_store_free_removed(&copy->store);
	ck_assert_uint_eq(FABRICMGR_WORD_STATE(copy->store.index.entries[stranger].word),
			  FABRICMGR_BLOCK_FREE);
	fm_store_owner_remove(&copy->store, &copy->owner, 0);
	fm_store_free_removed(&copy->store);
	ck_assert_uint_eq(copy->store.slots.used_bytes, 0);
	world_free(copy);
	world_free(world);
}
END_TEST

START_TEST(who_joined_a_staged_block_keeps_it)
{
	struct world *world = world_new(1), *copy;
	struct fm_recovery recovery;
	struct fm_key id = {{0}};
	uint32_t entry = stage(world, 3);
	const struct fm_entry *e = &world->store.index.entries[entry];

	ck_assert_int_eq(fm_store_show(&world->store, &world->owner, entry,
				       FABRICMGR_WORD_GENERATION(e->word), &id),
			 0);
	fm_lease_write(&world->leases[0], FM_HIGH(e->place), FM_LOW(e->place),
		       FABRICMGR_WORD_GENERATION(e->word), FM_LOW(e->extent));
	/* Its writer is gone before the daemon is, or after. */
	for (uint32_t i = 0; i < 2; i++) {
		copy = world_copy(world);
		ck_assert_int_eq(take_over(copy, &recovery), 0);
		ck_assert_int_eq(fm_store_join(&copy->store, &id, &entry), FM_ERR_NOT_FOUND);
		ck_assert_uint_eq(recovery.removed, i);
		fm_store_owner_remove(&copy->store, &copy->owner, 0);
		fm_store_owner_add(&copy->store, &copy->owner);
		fm_store_free_removed(&copy->store);
		ck_assert_uint_eq(copy->store.counters.removed, 1);
		fm_lease_drop(&copy->leases[0]);
		ck_assert_uint_eq(fm_store_free_removed(&copy->store), 1);
		ck_assert_uint_eq(copy->store.slots.used_bytes, 0);
		world_free(copy);
		fm_store_owner_remove(&world->store, &world->owner, 0);
		fm_store_owner_add(&world->store, &world->owner);
	}
	world_free(world);
}
END_TEST

/* Ones that a link leads out of, or past a member, and one that is not there any more. */
START_TEST(a_group_is_taken_over_as_a_whole_or_not_at_all)
{
	for (uint32_t spoilt = 0; spoilt < 6; spoilt++) {
		struct world *world = world_new(3), *copy;
		struct fm_store_seal seals[3];
		struct fm_recovery recovery;
		static const uint8_t ns[16] = {7};
		uint32_t entries[3];
		int results[3];

		for (uint32_t i = 0; i < 3; i++) {
			entries[i] = stage(world, 10 + i);
			seals[i] = (struct fm_store_seal){
				.entry = entries[i],
				.generation = FABRICMGR_WORD_GENERATION(
					world->store.index.entries[entries[i]].word),
				.crc32c = 10 + i,
				.key = key_of(10 + i),
				.ns = ns,
			};
		}
		ck_assert_int_eq(
			fm_store_seal_group(&world->store, &world->owner, seals, 3, results), 0);
		put(world, 20, 0);
		copy = world_copy(world);
		if (spoilt == 1) /* past the second: a ring of two */
			copy->links[entries[0]] =
				fm_group_link(entries[0], seals[0].generation, entries[2], 3);
		if (spoilt == 2) { /* which both say that they are */
			copy->links[entries[0]] =
				fm_group_link(entries[0], seals[0].generation, entries[2], 2);
			copy->links[entries[1]] = 0;
		}
		if (spoilt == 3)
			copy->links[entries[1]] ^= 1ull << 40;
		if (spoilt == 4)
			fm_header_end(copy->headers, entries[2]);
		if (spoilt == 5) /* as if its entry had been another block's since */
			copy->links[entries[2]] =
				fm_group_link(entries[2], seals[2].generation - 1, entries[0], 3);
		ck_assert_int_eq(take_over(copy, &recovery), 0);
		for (uint32_t i = 0; i < 3; i++)
			ck_assert_int_eq(is_there(copy, 10 + i), !spoilt);
		ck_assert(is_there(copy, 20));
		if (!spoilt) {
			/* It is one still: nobody takes one of it away alone. */
			ck_assert(lease(copy, 0, 11));
			while (fm_store_evict_bytes(&copy->store, UINT64_MAX))
				;
			ck_assert(is_there(copy, 10) && is_there(copy, 11) && is_there(copy, 12) &&
				  !is_there(copy, 20));
			fm_lease_drop(&copy->leases[0]);
			ck_assert_int_eq(fm_store_remove(&copy->store, &seals[1].key), 0);
			ck_assert(!is_there(copy, 10) && !is_there(copy, 12));
		}
		go_on(copy);
		world_free(copy);
		world_free(world);
	}
}
END_TEST

START_TEST(removed_stays_removed_and_replaced_stays_new)
{
	struct world *world = world_new(1), *copy;
	struct fm_key first = key_of(3);
	struct fm_recovery recovery;
	uint32_t entry;

	put(world, 3, 0);
	put(world, 6, 0);
	ck_assert(lease(world, 0, 3));
	ck_assert(lease(world, 1, 6));
	ck_assert_int_eq(fm_store_remove(&world->store, &first), 0);
	entry = stage(world, 6);
	ck_assert_int_eq(seal(world, entry, 6, 0, true), 0);
	copy = world_copy(world);
	ck_assert_int_eq(take_over(copy, &recovery), 0);
	ck_assert(!is_there(copy, 3));
	ck_assert(is_there(copy, 6));
	ck_assert_uint_eq(copy->store.counters.removed, 2); /* both are held */
	fm_lease_drop(&copy->leases[0]);
	ck_assert_uint_eq(fm_store_free_removed(&copy->store), 1);
	world_free(copy);
	/* The headers alone say so, too. */
	copy = world_copy(world);
	memset(copy->index, 0xff, fm_index_bytes(ENTRIES));
	ck_assert_int_eq(take_over(copy, &recovery), FM_ERR_CORRUPT);
	rebuild(copy, &recovery);
	ck_assert(!is_there(copy, 3));
	ck_assert(is_there(copy, 6));
	ck_assert_uint_eq(recovery.sealed, 1);
	world_free(copy);
	world_free(world);
}
END_TEST

START_TEST(a_held_block_that_fails_its_checks_is_not_taken_away)
{
	struct world *world = world_new(1), *copy;
	struct fm_recovery recovery;
	uint32_t entry = put(world, 3, 0);

	put(world, 6, 0);
	ck_assert(lease(world, 0, 3));
	world->headers[entry].length ^= 4096;
	copy = world_copy(world);
	ck_assert_int_eq(take_over(copy, &recovery), FM_ERR_CORRUPT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "may hold"));
	world_free(copy);
	/* Held by nobody it is dropped, and the other stays. */
	copy = world_copy(world);
	memset(copy->leases, 0, sizeof(copy->leases));
	ck_assert_int_eq(take_over(copy, &recovery), 0);
	ck_assert_uint_eq(recovery.dropped, 1);
	ck_assert(!is_there(copy, 3) && is_there(copy, 6));
	world_free(copy);
	world_free(world);
}
END_TEST

START_TEST(chains_keep_their_order_and_circles_end)
{
	struct world *world = world_new(1), *copy;
	struct fm_recovery recovery;

	/* 3 <- 6 <- 9, sealed in this order; 12 and 15 name each other. */
	put(world, 3, 0);
	put(world, 6, 3);
	put(world, 9, 6);
	put(world, 12, 15);
	put(world, 15, 12);
	copy = world_copy(world);
	ck_assert_int_eq(take_over(copy, &recovery), 0);
	ck_assert_uint_eq(recovery.sealed, 5);
	ck_assert_uint_eq(copy->store.counters.sealed, 5);
	ck_assert(lease(copy, 0, 9));
	/* What is held keeps its ancestors; all else may go. */
	while (fm_store_evict_bytes(&copy->store, UINT64_MAX))
		;
	ck_assert(is_there(copy, 3) && is_there(copy, 6) && is_there(copy, 9));
	ck_assert(!is_there(copy, 12) && !is_there(copy, 15));
	world_free(copy);
	world_free(world);
}
END_TEST

START_TEST(generations_go_on)
{
	struct world *world = world_new(1), *copy;
	struct fm_recovery recovery;
	uint32_t highest = 0, entry;

	for (uint32_t i = 1; i < 200; i++)
		put(world, 3 * i, 0);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		uint64_t word = world->store.index.entries[i].word;

		if (FABRICMGR_WORD_GENERATION(word) > highest)
			highest = FABRICMGR_WORD_GENERATION(word);
	}
	copy = world_copy(world);
	ck_assert_int_eq(take_over(copy, &recovery), 0);
	ck_assert_uint_eq(copy->store.next_generation, highest + 1);
	/* The youngest stays longest, as far as is known. */
	entry = stage(copy, 3000);
	ck_assert_uint_ne(entry, FM_NO_ENTRY);
	ck_assert(is_there(copy, 3 * 199));
	world_free(copy);
	world_free(world);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("recover");
	TCase *tcase = tcase_create("recover");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tcase, 600);
	tcase_add_test(tcase, what_is_staged_stays_with_its_writer_or_waits);
	tcase_add_test(tcase, who_joined_a_staged_block_keeps_it);
	tcase_add_test(tcase, a_group_is_taken_over_as_a_whole_or_not_at_all);
	tcase_add_test(tcase, removed_stays_removed_and_replaced_stays_new);
	tcase_add_test(tcase, a_held_block_that_fails_its_checks_is_not_taken_away);
	tcase_add_test(tcase, chains_keep_their_order_and_circles_end);
	tcase_add_test(tcase, generations_go_on);
	tcase_add_test(tcase, any_part_of_an_operation_is_understood);
	tcase_add_test(tcase, flipped_bits_never_make_a_wrong_block);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
