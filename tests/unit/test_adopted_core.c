// SPDX-License-Identifier: Apache-2.0
/*
 * Adopted regions in the store alone, by random operations: after each one the map of pages is
 * compared with the blocks that there are, the counters with a recount, and what is leased with
 * what was there when it was. From a seed.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "core/adopted.h"
#include "core/evict.h"
#include "core/groups.h"
#include "core/lease.h"
#include "unbacked_chunks.h"

enum { CHUNKS = 4, ENTRIES = 64, LEASES = 6, REGIONS = 3, OWN_CHUNKS = 2, KEYS = 90 };

struct rig {
	struct fm_store store;
	struct fm_owner owner, reader;
	struct fabricmgr_lease leases[LEASES];
	uint32_t held[LEASES]; /* entry + 1; 0: none */
	uint32_t regions[REGIONS];
	void *index;
	struct fm_header *headers;
	uint64_t seed;
};

static uint32_t chance(struct rig *rig, uint32_t n)
{
	rig->seed = rig->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rig->seed >> 33) % n);
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0x33}};

	memcpy(key.bytes + 4, &n, sizeof(n));
	return key;
}

static void rig_start(struct rig *rig, uint64_t seed)
{
	size_t bytes = (fm_index_bytes(ENTRIES) + 4095) & ~4095ull;

	memset(rig, 0, sizeof(*rig));
	rig->seed = seed;
	rig->index = aligned_alloc(4096, bytes);
	memset(rig->index, 0, bytes);
	rig->headers = calloc(ENTRIES, sizeof(*rig->headers));
	fm_index_format(rig->index, ENTRIES, 1, 42);
	ck_assert_int_eq(fm_store_create(&rig->store, rig->index, fm_index_bytes(ENTRIES),
					 rig->headers, CHUNKS, &fm_policy_density, &unbacked_chunks,
					 rig),
			 0);
	rig->owner = (struct fm_owner){.id = 1, .region = 1};
	rig->reader = (struct fm_owner){
		.id = 2, .region = 2, .leases = rig->leases, .lease_count = LEASES};
	fm_store_owner_add(&rig->store, &rig->owner);
	fm_store_owner_add(&rig->store, &rig->reader);
}

static void rig_stop(struct rig *rig)
{
	fm_store_destroy(&rig->store);
	free(rig->index);
	free(rig->headers);
}

/* ---- what must hold ---- */

static uint32_t entry_at(const struct rig *rig, uint32_t region, uint32_t chunk, uint32_t page)
{
	const struct fm_adopted *adopted = &rig->store.adopted[region - FM_ADOPTED_FIRST];

	return chunk < adopted->chunks && adopted->pages[chunk] ? adopted->pages[chunk][page]
								: FM_NO_ENTRY;
}

static void check(struct rig *rig)
{
	const struct fm_store *store = &rig->store;
	uint32_t blocks = 0, in_maps = 0, used = 0;
	uint64_t pages = 0;

	for (uint32_t entry = 0; entry < ENTRIES; entry++) {
		const struct fm_entry *e = &store->index.entries[entry];

		if (FABRICMGR_WORD_STATE(e->word) == FABRICMGR_BLOCK_FREE)
			continue;
		used++;
		if (!fm_entry_is_adopted(store, entry))
			continue;
		blocks++;
		pages += store->nodes[entry].pages;
		for (uint32_t i = 0; i < store->nodes[entry].pages; i++)
			ck_assert_uint_eq(entry_at(rig, FM_HIGH(e->place), FM_LOW(e->place),
						   FM_LOW(e->extent) + i),
					  entry);
	}
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		for (uint32_t at = 0; at < store->adopted[i].chunks * FM_SLOTS_PER_CHUNK; at++)
			in_maps += entry_at(rig, FM_ADOPTED_FIRST + i, at / FM_SLOTS_PER_CHUNK,
					    at % FM_SLOTS_PER_CHUNK) != FM_NO_ENTRY;
	ck_assert_uint_eq(in_maps, pages);
	ck_assert_uint_eq(store->counters.adopted_blocks, blocks);
	ck_assert_uint_eq(store->counters.adopted_bytes, pages * FM_SLOT_GRAIN);
	ck_assert_uint_le(blocks, ENTRIES / 2);
	ck_assert_uint_eq(store->free_count, ENTRIES - used);
	ck_assert_uint_eq(store->slots.tenants.list[0].entries, used);
	for (uint32_t i = 0; i < LEASES; i++) {
		const struct fabricmgr_lease *lease = &rig->leases[i];

		/* What is held is what it was. */
		if (rig->held[i])
			ck_assert_uint_eq(
				fm_store_entry(store, lease->region, lease->chunk, lease->slot),
				rig->held[i] - 1);
	}
}

/* ---- operations ---- */

static void seal_one(struct rig *rig, uint32_t entry)
{
	static const uint8_t ns[16] = {7};
	struct fm_key parent = key_of(chance(rig, KEYS));
	struct fm_store_seal seal = {
		.entry = entry,
		.generation = FABRICMGR_WORD_GENERATION(rig->store.index.entries[entry].word),
		.key = key_of(chance(rig, KEYS)),
		.parent = chance(rig, 2) ? &parent : NULL,
		.ns = ns,
		.replaces = chance(rig, 4) == 0,
	};

	if (fm_store_seal(&rig->store, &rig->owner, &seal))
		ck_assert_int_eq(fm_store_discard(&rig->store, &rig->owner, entry, seal.generation),
				 0);
}

/* Staged over what lies there: not over what is held or staged. */
static void stage_at(struct rig *rig, uint32_t region, bool seals)
{
	uint32_t chunk = chance(rig, OWN_CHUNKS), slot = chance(rig, FM_SLOTS_PER_CHUNK), entry;
	uint32_t pages = 1 + chance(rig, 300), least = 0;
	bool is_held = false, is_staged = false;
	int err;

	for (uint32_t i = slot; i < slot + pages && i < FM_SLOTS_PER_CHUNK; i++) {
		uint32_t there = entry_at(rig, region, chunk, i);

		if (there == FM_NO_ENTRY)
			continue;
		least++;
		is_staged |= FABRICMGR_WORD_STATE(rig->store.index.entries[there].word) ==
			     FABRICMGR_BLOCK_STAGING;
		for (uint32_t k = 0; k < LEASES; k++)
			is_held |= rig->held[k] == there + 1;
	}
	err = fm_adopted_stage(&rig->store, &rig->owner, region, chunk, slot,
			       (uint64_t)pages * FM_SLOT_GRAIN, &entry);
	if (slot + pages > FM_SLOTS_PER_CHUNK)
		ck_assert_int_eq(err, FM_ERR_INVALID);
	else if (is_held || is_staged)
		ck_assert_int_lt(err, 0);
	else if (least)
		ck_assert(!err || err == FM_ERR_BUSY); /* removed, and not looked at since */
	if (!err && seals)
		seal_one(rig, entry);
}

static void operate(struct rig *rig)
{
	uint32_t r = chance(rig, REGIONS), i = chance(rig, LEASES), entry;
	struct fm_key key = key_of(chance(rig, KEYS));
	uint64_t word;

	switch (chance(rig, 12)) {
	case 0:
		if (!rig->regions[r])
			ck_assert_int_eq(fm_adopted_begin(&rig->store, &rig->owner, 0, OWN_CHUNKS,
							  &rig->regions[r]),
					 0);
		break;
	case 1:
		if (rig->regions[r] && chance(rig, 4) == 0) {
			fm_adopted_end(&rig->store, rig->regions[r]);
			rig->regions[r] = 0;
		}
		break;
	case 2:
		fm_store_remove(&rig->store, &key);
		break;
	case 3:
	case 4:
		if (rig->held[i]) {
			fm_lease_drop(&rig->leases[i]);
			rig->held[i] = 0;
			break;
		}
		entry = fm_index_find(&rig->store.index, &key, &word);
		if (entry != FM_NO_ENTRY &&
		    fm_lease_take(&rig->leases[i], &rig->store.index.entries[entry], word))
			rig->held[i] = entry + 1;
		break;
	case 5:
		fm_store_expire(&rig->store, 1000000000ull * chance(rig, 100));
		fm_adopted_over(&rig->store);
		break;
	case 6:
		if (!fm_store_stage(&rig->store, &rig->owner, 70000, &entry))
			seal_one(rig, entry);
		break;
	case 7:
		entry = fm_index_find(&rig->store.index, &key, &word);
		if (entry != FM_NO_ENTRY)
			fm_store_touch(&rig->store, entry, FABRICMGR_WORD_GENERATION(word));
		break;
	default:
		if (rig->regions[r])
			stage_at(rig, rig->regions[r], chance(rig, 8));
	}
}

START_TEST(maps_leases_and_counters_agree)
{
	struct rig rig;

	rig_start(&rig, 100 + (uint64_t)_i);
	for (uint32_t i = 0; i < 1000; i++) {
		operate(&rig);
		check(&rig);
	}
	/* When the owner goes and the readers let go, nothing is left. */
	fm_store_owner_remove(&rig.store, &rig.owner, 0);
	for (uint32_t r = 0; r < REGIONS; r++)
		if (rig.regions[r])
			fm_adopted_end(&rig.store, rig.regions[r]);
	check(&rig);
	memset(rig.leases, 0, sizeof(rig.leases));
	memset(rig.held, 0, sizeof(rig.held));
	fm_store_free_removed(&rig.store);
	while (fm_adopted_over(&rig.store))
		;
	ck_assert_uint_eq(rig.store.adopted_count, 0);
	ck_assert_uint_eq(rig.store.counters.adopted_blocks, 0);
	while (fm_store_evict_bytes(&rig.store, UINT64_MAX))
		;
	ck_assert_uint_eq(rig.store.free_count, ENTRIES);
	rig_stop(&rig);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("adopted_core");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(all, 120);
	tcase_add_loop_test(all, maps_leases_and_counters_agree, 0, 4);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
