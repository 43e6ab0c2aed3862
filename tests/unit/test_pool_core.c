// SPDX-License-Identifier: Apache-2.0
/*
 * The pool's pure core without any daemon: keys against golden vectors, index, slots, policy, store
 * (prefix guard, leases, whole-chunk eviction) and ring. Every test builds its state in plain
 * memory.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>
#include <jansson.h>

#include "base/crc32c.h"
#include "core/evict.h"
#include "core/ghosts.h"
#include "core/hazard.h"
#include "core/lease.h"
#include "core/ring.h"
#include "core/store.h"

/* ---- keys ---- */

static void from_hex(const char *text, uint8_t *out)
{
	for (size_t i = 0; text[2 * i]; i++) {
		unsigned value;

		ck_assert_int_eq(sscanf(text + 2 * i, "%2x", &value), 1);
		out[i] = (uint8_t)value;
	}
}

static const char *text_of(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	ck_assert_ptr_nonnull(text);
	return text;
}

static uint32_t number_of(json_t *object, const char *name)
{
	return (uint32_t)json_integer_value(json_object_get(object, name));
}

static json_t *load_golden(void)
{
	json_error_t error;
	json_t *golden = json_load_file("tests/data/golden_keys.json", 0, &error);

	ck_assert_msg(golden != NULL, "tests/data/golden_keys.json: %s (run from the top folder)",
		      error.text);
	return golden;
}

static void check_chain(json_t *item)
{
	json_t *ns = json_object_get(item, "namespace"), *layout = json_object_get(ns, "layout");
	json_t *list = json_object_get(item, "tokens"), *keys = json_object_get(item, "keys");
	size_t n_tokens = json_array_size(list), n_extras = strlen(text_of(item, "extras")) / 2;
	struct fm_namespace name = {
		.layout = {number_of(layout, "layers"), number_of(layout, "kv_heads"),
			   number_of(layout, "head_dim"), number_of(layout, "tokens_per_block"),
			   number_of(layout, "element"), number_of(layout, "flags")},
		.numerics_id = text_of(ns, "numerics_id"),
		.position_encoding = text_of(ns, "position_encoding"),
		.quantisation = text_of(ns, "quantisation"),
		.adapter = text_of(ns, "adapter"),
		.tenant_salt = text_of(ns, "tenant_salt"),
	};
	struct fm_digest digest, expected, last;
	struct fm_key made[64], key;
	uint32_t tokens[256];
	uint8_t extras[64];

	from_hex(text_of(ns, "weights"), name.weights.bytes);
	from_hex(text_of(item, "digest"), expected.bytes);
	from_hex(text_of(item, "extras"), extras);
	for (size_t i = 0; i < n_tokens; i++)
		tokens[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	ck_assert_int_eq(fm_namespace_digest(&name, &digest), 0);
	ck_assert_mem_eq(&digest, &expected, sizeof(digest));
	ck_assert_int_eq(fm_chain_keys(&digest, tokens, json_array_size(keys),
				       name.layout.tokens_per_block, extras, n_extras, made, &last),
			 0);
	for (size_t i = 0; i < json_array_size(keys); i++) {
		from_hex(json_string_value(json_array_get(keys, i)), key.bytes);
		ck_assert_mem_eq(&made[i], &key, sizeof(key));
	}
	from_hex(text_of(item, "last"), expected.bytes);
	ck_assert_mem_eq(&last, &expected, sizeof(last));
	/* The second half alone, from the digest in the middle, gives the same keys. */
	ck_assert_int_eq(fm_chain_keys(&digest, tokens, 2, name.layout.tokens_per_block, extras,
				       n_extras, made, &last),
			 0);
	ck_assert_int_eq(fm_chain_keys(&last, tokens + 2 * name.layout.tokens_per_block, 1,
				       name.layout.tokens_per_block, extras, n_extras, made, NULL),
			 0);
	from_hex(json_string_value(json_array_get(keys, 2)), key.bytes);
	ck_assert_mem_eq(&made[0], &key, sizeof(key));
}

START_TEST(keys_match_the_golden_vectors)
{
	json_t *golden = load_golden(), *item;
	size_t i;

	json_array_foreach(json_object_get(golden, "chains"), i, item) check_chain(item);
	ck_assert_uint_eq(i, 3);
	json_array_foreach(json_object_get(golden, "opaque"), i, item)
	{
		uint8_t opaque[256];
		struct fm_digest ns;
		struct fm_key key, expected;

		from_hex(text_of(item, "namespace"), ns.bytes);
		from_hex(text_of(item, "key"), opaque);
		from_hex(text_of(item, "result"), expected.bytes);
		ck_assert_int_eq(fm_opaque_key(&ns, opaque, strlen(text_of(item, "key")) / 2, &key),
				 0);
		ck_assert_mem_eq(&key, &expected, sizeof(key));
	}
	json_decref(golden);
}
END_TEST

START_TEST(crc32c_is_the_one_of_rfc_3720)
{
	ck_assert_uint_eq(fm_crc32c("123456789", 9), 0xe3069283u);
	ck_assert_uint_eq(fm_crc32c("", 0), 0);
}
END_TEST

START_TEST(layout_bytes_count_k_and_v)
{
	struct fm_layout layout = {28, 8, 128, 16, FM_ELEMENT_F32, 0};

	ck_assert_uint_eq(fm_layout_block_bytes(&layout), 28ull * 2 * 8 * 16 * 128 * 4);
	layout.element = FM_ELEMENT_NVFP4;
	ck_assert_uint_eq(fm_layout_block_bytes(&layout), 28ull * 2 * 8 * 16 * 128 / 2);
	layout.element = 9;
	ck_assert_uint_eq(fm_layout_block_bytes(&layout), 0);
}
END_TEST

/* ---- a store in plain memory ---- */

enum { CHUNKS = 4, ENTRIES = 2048, LEASES = 64 };

struct rig {
	struct fm_store store;
	struct fm_owner owner;
	struct fabricmgr_lease leases[LEASES];
	void *index;
	struct fm_header *headers;
	uint32_t backed[CHUNKS]; /* region that each chunk has memory in */
};

static int rig_populate(void *context, uint32_t region, uint32_t chunk)
{
	struct rig *rig = context;

	ck_assert_uint_eq(rig->backed[chunk], 0);
	rig->backed[chunk] = region;
	return 0;
}

static void rig_punch(void *context, uint32_t region, uint32_t chunk)
{
	struct rig *rig = context;

	ck_assert_uint_eq(rig->backed[chunk], region);
	rig->backed[chunk] = 0;
}

static const struct fm_chunk_ops rig_ops = {rig_populate, rig_punch};

static struct rig *rig_create(uint32_t entries)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	rig->index = aligned_alloc(4096, (fm_index_bytes(entries) + 4095) & ~4095ull);
	memset(rig->index, 0, fm_index_bytes(entries));
	rig->headers = calloc(entries, sizeof(*rig->headers));
	fm_index_format(rig->index, entries, 1, 42);
	ck_assert_int_eq(fm_store_create(&rig->store, rig->index, fm_index_bytes(entries),
					 rig->headers, CHUNKS, &fm_policy_lru, &rig_ops, rig),
			 0);
	rig->owner.id = 1;
	rig->owner.region = 1;
	rig->owner.leases = rig->leases;
	rig->owner.lease_count = LEASES;
	fm_store_owner_add(&rig->store, &rig->owner);
	return rig;
}

static void rig_destroy(struct rig *rig)
{
	fm_store_destroy(&rig->store);
	free(rig->index);
	free(rig->headers);
	free(rig);
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};

	memcpy(&key, &n, sizeof(n));
	key.bytes[15] = 1;
	return key;
}

static uint32_t generation_of(const struct rig *rig, uint32_t entry)
{
	return FABRICMGR_WORD_GENERATION(rig->store.index.entries[entry].word);
}

static int seal(struct rig *rig, uint32_t entry, uint32_t key, int64_t parent)
{
	static const uint8_t ns[16] = {7};
	struct fm_key above = key_of((uint32_t)parent);
	struct fm_store_seal seal = {
		.entry = entry,
		.generation = generation_of(rig, entry),
		.crc32c = 5,
		.key = key_of(key),
		.parent = parent < 0 ? NULL : &above,
		.ns = ns,
	};

	return fm_store_seal(&rig->store, &rig->owner, &seal);
}

static uint32_t put(struct rig *rig, uint64_t length, uint32_t key, int64_t parent)
{
	uint32_t entry;

	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, length, &entry), 0);
	ck_assert_int_eq(seal(rig, entry, key, parent), 0);
	return entry;
}

static bool is_present(struct rig *rig, uint32_t n)
{
	struct fm_key key = key_of(n);
	uint64_t word;

	return fm_index_find(&rig->store.index, &key, &word) != FM_NO_ENTRY;
}

#define QUARTER (FABRICMGR_CHUNK_BYTES / 4)

START_TEST(index_finds_what_is_sealed_and_nothing_else)
{
	struct rig *rig = rig_create(ENTRIES);
	struct fm_header header;
	uint32_t entry;

	for (uint32_t i = 0; i < 1000; i++)
		put(rig, 4096, i, -1);
	for (uint32_t i = 0; i < 1000; i++)
		ck_assert(is_present(rig, i));
	for (uint32_t i = 1000; i < 5000; i++)
		ck_assert(!is_present(rig, i));
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 10, &entry), 0);
	ck_assert_int_eq(seal(rig, entry, 77, -1), FM_ERR_EXISTS);
	ck_assert_uint_eq(rig->owner.staged, 1);
	ck_assert_int_eq(seal(rig, entry, 5000, -1), 0);
	fm_header_read(rig->headers, entry, &header);
	ck_assert_int_eq(fm_header_check(&header), 0);
	header.length ^= 1;
	ck_assert_int_eq(fm_header_check(&header), FM_ERR_CORRUPT);
	rig_destroy(rig);
}
END_TEST

START_TEST(index_refuses_a_damaged_header)
{
	struct rig *rig = rig_create(ENTRIES);
	struct fm_index index;

	((struct fm_index_header *)rig->index)->entries_max++;
	ck_assert_int_eq(fm_index_open(&index, rig->index, fm_index_bytes(ENTRIES)),
			 FM_ERR_CORRUPT);
	rig_destroy(rig);
}
END_TEST

START_TEST(lengths_are_bounded_by_a_chunk)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entry;

	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 0, &entry), FM_ERR_LIMIT);
	ck_assert_int_eq(
		fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES + 1, &entry),
		FM_ERR_LIMIT);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES, &entry),
			 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_free_chunk_serves_another_class_and_arena)
{
	struct rig *rig = rig_create(ENTRIES);
	struct fm_owner other = {.id = 2, .region = 2};
	uint32_t entries[CHUNKS * 4], entry;

	fm_store_owner_add(&rig->store, &other);
	for (int i = 0; i < CHUNKS * 4; i++)
		ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, QUARTER, &entries[i]), 0);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 4096, &entry), FM_ERR_POOL_FULL);
	for (int i = 0; i < CHUNKS * 4; i++)
		ck_assert_int_eq(fm_store_discard(&rig->store, &rig->owner, entries[i],
						  generation_of(rig, entries[i])),
				 0);
	ck_assert_uint_eq(rig->store.slots.used_bytes, 0);
	for (int i = 0; i < CHUNKS; i++)
		ck_assert_int_eq(fm_store_stage(&rig->store, &other, FABRICMGR_CHUNK_BYTES, &entry),
				 0);
	for (int i = 0; i < CHUNKS; i++)
		ck_assert_uint_eq(rig->backed[i], 2);
	fm_store_owner_remove(&rig->store, &other, 0);
	ck_assert_uint_eq(rig->store.slots.used_bytes, 0);
	ck_assert_uint_eq(rig->store.counters.staging, 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(slots_are_reused_at_the_same_place_under_a_new_generation)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t first, second, generation;

	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 100, &first), 0);
	generation = generation_of(rig, first);
	ck_assert_int_eq(fm_store_discard(&rig->store, &rig->owner, first, generation), 0);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 100, &second), 0);
	ck_assert_uint_eq(first, second);
	ck_assert_uint_ne(generation, generation_of(rig, second));
	ck_assert_int_eq(fm_store_discard(&rig->store, &rig->owner, second, generation),
			 FM_ERR_INVALID);
	rig_destroy(rig);
}
END_TEST

START_TEST(lru_gives_up_the_oldest_and_keeps_what_was_touched)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entries[CHUNKS];

	for (uint32_t i = 0; i < CHUNKS; i++)
		entries[i] = put(rig, FABRICMGR_CHUNK_BYTES, i, -1);
	fm_store_touch(&rig->store, entries[0], generation_of(rig, entries[0]));
	fm_store_touch(&rig->store, 1u << 30, 0);	     /* of nowhere: ignored */
	fm_store_touch(&rig->store, entries[1], UINT32_MAX); /* of another time: ignored */
	/* One scan frees a batch; the touched one is the last in it. Leases keep two. */
	fm_lease_write(&rig->leases[3], 1, FM_LOW(rig->store.index.entries[entries[2]].place),
		       generation_of(rig, entries[2]), 0);
	fm_lease_write(&rig->leases[4], 1, FM_LOW(rig->store.index.entries[entries[0]].place),
		       generation_of(rig, entries[0]), 0);
	put(rig, FABRICMGR_CHUNK_BYTES, 100, -1);
	ck_assert(is_present(rig, 0));
	ck_assert(!is_present(rig, 1));
	ck_assert(is_present(rig, 2));
	rig_destroy(rig);
}
END_TEST

START_TEST(lru_takes_leaves_in_order_of_use)
{
	void *lru = fm_policy_lru.create(8, 2);
	uint32_t order[] = {1, 2, 0};

	for (uint32_t i = 0; i < 4; i++)
		fm_policy_lru.insert(lru, i, &(struct fm_policy_block){1, FM_NO_ENTRY, i}, 0);
	fm_policy_lru.insert(lru, 4, &(struct fm_policy_block){0, 1, 4}, 0);
	fm_policy_lru.touch(lru, 0, 0);
	fm_policy_lru.remove(lru, 3, 0, true);
	/* 1 has a child, of another list: it waits until that has gone. */
	ck_assert_uint_eq(fm_policy_lru.take(lru, 1, 0), 2);
	fm_policy_lru.back(lru, 2);
	ck_assert_uint_eq(fm_policy_lru.take(lru, 0, 0), 4);
	ck_assert_uint_eq(fm_policy_lru.take(lru, 0, 0), FM_NO_ENTRY);
	fm_policy_lru.remove(lru, 4, 0, true);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(fm_policy_lru.take(lru, 1, 0), order[i]);
	ck_assert_uint_eq(fm_policy_lru.take(lru, 1, 0), FM_NO_ENTRY);
	ck_assert_ptr_null(fm_policy_find("clairvoyant"));
	fm_policy_lru.destroy(lru);
}
END_TEST

START_TEST(s3fifo_keeps_what_was_used_again)
{
	void *s3 = fm_policy_s3fifo.create(20, 1);

	for (uint32_t i = 0; i < 10; i++)
		fm_policy_s3fifo.insert(s3, i, &(struct fm_policy_block){0, FM_NO_ENTRY, i}, 0);
	for (int i = 0; i < 2; i++)
		fm_policy_s3fifo.touch(s3, 0, 0);
	fm_policy_s3fifo.touch(s3, 1, 0); /* once is not enough */
	ck_assert_uint_eq(fm_policy_s3fifo.take(s3, 0, 0), 1);
	fm_policy_s3fifo.remove(s3, 1, 0, true);
	/* It comes back and is known: the new ones go first. */
	fm_policy_s3fifo.insert(s3, 1, &(struct fm_policy_block){0, FM_NO_ENTRY, 1}, 0);
	for (uint32_t i = 2; i < 10; i++) {
		ck_assert_uint_eq(fm_policy_s3fifo.take(s3, 0, 0), i);
		fm_policy_s3fifo.remove(s3, i, 0, true);
	}
	ck_assert_uint_eq(fm_policy_s3fifo.take(s3, 0, 0), 0);
	ck_assert_uint_eq(fm_policy_s3fifo.take(s3, 0, 0), 1);
	ck_assert_uint_eq(fm_policy_s3fifo.take(s3, 0, 0), FM_NO_ENTRY);
	fm_policy_s3fifo.destroy(s3);
}
END_TEST

/* Traits of blocks that differ in one thing: @uses. */
static struct fm_traits traits_of(uint8_t uses)
{
	return (struct fm_traits){
		.values = {[FM_TRAIT_USES] = uses},
		.request_gap = FM_NO_GAP,
		.own_gap = FM_NO_GAP,
	};
}

/* Blocks that wait @ages half octaves and are used then, or never (@is_used). */
static void live(struct fm_hazard *hazard, uint8_t uses, uint32_t ages, bool is_used)
{
	struct fm_traits traits = traits_of(uses);

	for (uint32_t bin = 0; bin <= ages; bin++)
		fm_hazard_learn(hazard, &traits, bin, false);
	if (is_used)
		fm_hazard_learn(hazard, &traits, ages, true);
}

START_TEST(hazard_learns_who_comes_back_and_when)
{
	struct fm_hazard *hazard = malloc(sizeof(*hazard));
	struct fm_traits often = traits_of(3), never = traits_of(1);
	uint64_t second = 1000000000ull;

	fm_hazard_init(hazard);
	/* Before anything is known the older block is worth less. */
	ck_assert(fm_hazard_density(hazard, &often, 100 * second) <
		  fm_hazard_density(hazard, &often, second));
	/* One kind is used four times of five, 32 to 45 s (bin 17) after the last time. */
	for (int i = 0; i < 3000; i++) {
		live(hazard, 3, 17, i % 5 != 0);
		live(hazard, 1, 24, false);
	}
	ck_assert_uint_eq(fm_age_bin(40 * second), 17);
	ck_assert(fm_hazard_density(hazard, &often, second) >
		  20 * fm_hazard_density(hazard, &never, second));
	/* Shortly before its time it is worth more than at first, and little when that is over. */
	ck_assert(fm_hazard_density(hazard, &often, 30 * second) >
		  2 * fm_hazard_density(hazard, &often, second));
	ck_assert(fm_hazard_density(hazard, &often, 30 * second) >
		  10 * fm_hazard_density(hazard, &often, 200 * second));
	free(hazard);
}
END_TEST

START_TEST(age_bins_are_half_octaves)
{
	ck_assert_uint_eq(fm_age_bin(0), 0);
	ck_assert_uint_eq(fm_age_bin(FM_AGE_MIN_NS - 1), 0);
	ck_assert_uint_eq(fm_age_bin(FM_AGE_MIN_NS), 1);
	ck_assert_uint_eq(fm_age_bin(FM_AGE_MIN_NS * 3 / 2), 2);
	ck_assert_uint_eq(fm_age_bin(FM_AGE_MIN_NS * 2), 3);
	ck_assert_uint_eq(fm_age_bin(UINT64_MAX), FM_AGE_BINS - 1);
	for (uint32_t shift = 0; shift < 63; shift++)
		ck_assert_uint_le(fm_age_bin(1ull << shift), fm_age_bin(1ull << (shift + 1)));
}
END_TEST

START_TEST(ghosts_forget_the_oldest)
{
	struct fm_ghosts ghosts;
	uint64_t seed = 1, names = 0;
	uint32_t found = 0;

	ck_assert(fm_ghosts_create(&ghosts, 100));
	for (uint64_t name = 0; name < 1000; name++)
		fm_ghosts_put(&ghosts, name << 40);
	for (uint64_t name = 0; name < 900; name++)
		ck_assert_uint_eq(fm_ghosts_take(&ghosts, name << 40), FM_NO_ENTRY);
	for (uint64_t name = 900; name < 1000; name += 2)
		ck_assert_uint_eq(fm_ghosts_take(&ghosts, name << 40), (uint32_t)name % 100);
	/* What is there is found, whatever was put and taken before. */
	for (int i = 0; i < 100000; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		if (fm_ghosts_take(&ghosts, seed >> 57) != FM_NO_ENTRY)
			found++;
		else
			fm_ghosts_put(&ghosts, seed >> 57);
		names += seed >> 57 < 128;
	}
	ck_assert_uint_eq(names, 100000);
	ck_assert_uint_gt(found, 30000);
	fm_ghosts_destroy(&ghosts);
}
END_TEST

static int hint(struct rig *rig, uint32_t entry, struct fm_store_hint hint)
{
	return fm_store_hint(&rig->store, entry, generation_of(rig, entry), &hint);
}

START_TEST(pins_are_kept_while_anything_else_may_go)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entries[CHUNKS];

	for (uint32_t i = 0; i < CHUNKS; i++)
		entries[i] = put(rig, FABRICMGR_CHUNK_BYTES, i, -1);
	ck_assert_int_eq(hint(rig, entries[0], (struct fm_store_hint){.pinned_until = 100}), 0);
	ck_assert_int_eq(hint(rig, entries[0], (struct fm_store_hint){.priority = 17}),
			 FM_ERR_LIMIT);
	ck_assert_int_eq(fm_store_hint(&rig->store, entries[0], UINT32_MAX,
				       &(struct fm_store_hint){.priority = 1}),
			 FM_ERR_NOT_FOUND);
	fm_store_expire(&rig->store, 99);
	put(rig, FABRICMGR_CHUNK_BYTES, 100, -1);
	ck_assert(is_present(rig, 0));
	/* Everything pinned: the request does not fail for that. */
	for (uint32_t i = 0; i < ENTRIES; i++)
		if (FABRICMGR_WORD_STATE(rig->store.index.entries[i].word) ==
		    FABRICMGR_BLOCK_SEALED)
			hint(rig, i, (struct fm_store_hint){.pinned_until = UINT64_MAX});
	for (uint32_t i = 0; i < CHUNKS; i++)
		put(rig, FABRICMGR_CHUNK_BYTES, 200 + i, -1);
	fm_store_expire(&rig->store, 100);
	rig_destroy(rig);
}
END_TEST

START_TEST(density_heeds_what_is_expected_and_what_matters)
{
	const struct fm_policy_ops *ops = &fm_policy_density;
	void *density = ops->create(8, 1);

	for (uint32_t i = 0; i < 4; i++)
		ops->insert(density, i, &(struct fm_policy_block){0, FM_NO_ENTRY, i}, 0);
	ops->hint(density, 0, 20000000000ull, 0, 0); /* back in 20 s */
	ops->hint(density, 1, 0, -3, 0);
	ops->hint(density, 2, 0, 8, 0);
	ops->hint(density, 3, 400000000ull, 0, 0); /* back in 0.4 s */
	ck_assert_uint_eq(ops->take(density, 0, 0), 1);
	ck_assert_uint_eq(ops->take(density, 0, 0), 0);
	ops->destroy(density);
}
END_TEST

START_TEST(everything_leased_means_pool_full_and_release_ends_it)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entry;

	for (uint32_t i = 0; i < CHUNKS; i++) {
		uint32_t e = put(rig, FABRICMGR_CHUNK_BYTES, i, -1);

		ck_assert(fm_lease_take(&rig->leases[i], &rig->store.index.entries[e],
					rig->store.index.entries[e].word));
	}
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 4096, &entry), FM_ERR_POOL_FULL);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES, &entry),
			 FM_ERR_POOL_FULL);
	for (uint32_t i = 0; i < CHUNKS; i++)
		ck_assert(is_present(rig, i));
	fm_lease_drop(&rig->leases[2]);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 4096, &entry), 0);
	ck_assert(!is_present(rig, 2));
	ck_assert_uint_eq(rig->store.counters.evictions, 1);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_parent_outlives_its_resident_children)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entries[CHUNKS * 4], entry;

	/* One chain over the whole pool; its last block is leased. */
	for (int i = 0; i < CHUNKS * 4; i++)
		entries[i] = put(rig, QUARTER, (uint32_t)i, i - 1);
	entry = entries[CHUNKS * 4 - 1];
	ck_assert(fm_lease_take(&rig->leases[0], &rig->store.index.entries[entry],
				rig->store.index.entries[entry].word));
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, QUARTER, &entry),
			 FM_ERR_POOL_FULL);
	fm_lease_drop(&rig->leases[0]);
	/* Lease the middle: what is below may go, what is above may not. */
	entry = entries[7];
	ck_assert(fm_lease_take(&rig->leases[0], &rig->store.index.entries[entry],
				rig->store.index.entries[entry].word));
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, QUARTER, &entry), 0);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert(is_present(rig, i));
	ck_assert(!is_present(rig, 15));
	rig_destroy(rig);
}
END_TEST

START_TEST(a_starved_class_takes_the_oldest_chunk_of_another)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entry;

	for (uint32_t i = 0; i < CHUNKS * 4; i++)
		put(rig, QUARTER, i, -1);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, 4096, &entry), 0);
	for (uint32_t i = 0; i < CHUNKS * 4; i++)
		ck_assert_int_eq(is_present(rig, i), i >= 4);
	rig_destroy(rig);
}
END_TEST

START_TEST(hostile_lease_tables_pin_nothing_that_is_not_there)
{
	struct rig *rig = rig_create(ENTRIES);
	unsigned seed = 1;

	for (uint32_t round = 0; round < 200; round++) {
		for (int i = 0; i < LEASES; i++)
			fm_lease_write(&rig->leases[i], (uint32_t)rand_r(&seed) | 4,
				       (uint32_t)rand_r(&seed), (uint32_t)rand_r(&seed),
				       (uint32_t)rand_r(&seed));
		put(rig, QUARTER, round, -1);
	}
	ck_assert_uint_gt(rig->store.counters.evictions, 100);
	rig_destroy(rig);
}
END_TEST

START_TEST(index_entries_run_out_before_memory_does)
{
	struct rig *rig = rig_create(16);

	for (uint32_t i = 0; i < 100; i++)
		put(rig, 4096, i, -1);
	ck_assert(is_present(rig, 99));
	ck_assert_uint_ge(rig->store.counters.evictions, 84);
	rig_destroy(rig);
}
END_TEST

START_TEST(quarantine_and_offers_end)
{
	struct rig *rig = rig_create(ENTRIES);
	struct fm_owner device = {.id = 2, .region = 1}, stranger = {.id = 3, .region = 2};
	struct fm_key id = key_of(9);
	uint32_t entry, got;

	fm_store_owner_add(&rig->store, &device);
	fm_store_owner_add(&rig->store, &stranger);
	ck_assert_int_eq(fm_store_stage(&rig->store, &device, 4096, &entry), 0);
	ck_assert_int_eq(fm_store_stage(&rig->store, &device, 4096, &got), 0);
	ck_assert_int_eq(
		fm_store_offer(&rig->store, &device, got, generation_of(rig, got), &id, 500), 0);
	ck_assert_int_eq(fm_store_adopt(&rig->store, &stranger, &id, &got), FM_ERR_NOT_FOUND);
	ck_assert_int_eq(fm_store_adopt(&rig->store, &rig->owner, &id, &got), 0);
	ck_assert_int_eq(fm_store_adopt(&rig->store, &rig->owner, &id, &got), FM_ERR_NOT_FOUND);
	fm_store_owner_remove(&rig->store, &device, 1000);
	ck_assert_uint_eq(rig->store.counters.quarantine, 1);
	ck_assert_uint_eq(fm_store_expire(&rig->store, 999), 1000);
	ck_assert_uint_eq(fm_store_expire(&rig->store, 1000), UINT64_MAX);
	ck_assert_uint_eq(rig->store.counters.quarantine, 0);
	ck_assert_int_eq(
		fm_store_offer(&rig->store, &rig->owner, got, generation_of(rig, got), &id, 2000),
		0);
	fm_store_expire(&rig->store, 2000);
	ck_assert_uint_eq(rig->store.slots.used_bytes, 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_full_pool_takes_the_oldest_offer)
{
	struct rig *rig = rig_create(ENTRIES);
	struct fm_key old = key_of(1), young = key_of(2);
	uint32_t entries[CHUNKS], got;

	for (int i = 0; i < CHUNKS; i++)
		ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES,
						&entries[i]),
				 0);
	ck_assert_int_eq(fm_store_offer(&rig->store, &rig->owner, entries[0],
					generation_of(rig, entries[0]), &old, 500),
			 0);
	ck_assert_int_eq(fm_store_offer(&rig->store, &rig->owner, entries[1],
					generation_of(rig, entries[1]), &young, 600),
			 0);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES, &got), 0);
	ck_assert_int_eq(fm_store_adopt(&rig->store, &rig->owner, &old, &got), FM_ERR_NOT_FOUND);
	ck_assert_int_eq(fm_store_adopt(&rig->store, &rig->owner, &young, &got), 0);
	ck_assert_int_eq(fm_store_stage(&rig->store, &rig->owner, FABRICMGR_CHUNK_BYTES, &got),
			 FM_ERR_POOL_FULL);
	ck_assert_uint_eq(rig->store.counters.staging, CHUNKS);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_lease_of_a_changed_word_is_taken_back)
{
	struct rig *rig = rig_create(ENTRIES);
	uint32_t entry = put(rig, 4096, 1, -1);
	uint64_t word = rig->store.index.entries[entry].word;

	rig->store.index.entries[entry].word =
		FABRICMGR_WORD(generation_of(rig, entry), FABRICMGR_BLOCK_EVICTING);
	ck_assert(!fm_lease_take(&rig->leases[0], &rig->store.index.entries[entry], word));
	ck_assert_uint_eq(rig->leases[0].region, 0);
	rig->store.index.entries[entry].word = word;
	ck_assert(fm_lease_take(&rig->leases[0], &rig->store.index.entries[entry], word));
	ck_assert_uint_eq(rig->leases[0].region, 1);
	ck_assert_uint_eq(fm_store_leases(&rig->store, &rig->owner), 1);
	rig_destroy(rig);
}
END_TEST

/* ---- ring ---- */

START_TEST(ring_wraps_bounds_and_wakes_once)
{
	struct fm_ring_shared *shared = aligned_alloc(64, sizeof(*shared));
	struct fm_ring client = {.shared = shared}, daemon = {.shared = shared};
	struct fm_submission s = {.op = FM_OP_STAGE};
	struct fm_completion c = {0};

	memset(shared, 0, sizeof(*shared));
	for (uint64_t i = 0; i < 3 * FM_RING_ENTRIES; i++) {
		s.tag = i;
		fm_ring_submit(&client, &s);
		s.tag = 0;
		ck_assert_int_eq(fm_ring_take(&daemon, &s), 1);
		ck_assert_uint_eq(s.tag, i);
		c.tag = i;
		fm_ring_complete(&daemon, &c);
		ck_assert(fm_ring_completion(&client, &c));
		ck_assert_uint_eq(c.tag, i);
	}
	ck_assert_int_eq(fm_ring_take(&daemon, &s), 0);
	ck_assert(!fm_ring_completion(&client, &c));
	ck_assert(!fm_ring_must_wake_daemon(&client));
	ck_assert(fm_ring_daemon_sleep(&daemon));
	fm_ring_submit(&client, &s);
	ck_assert(fm_ring_must_wake_daemon(&client));
	ck_assert(!fm_ring_must_wake_daemon(&client));
	ck_assert(!fm_ring_daemon_sleep(&daemon));
	for (uint32_t i = 1; i < FM_RING_ENTRIES; i++)
		fm_ring_submit(&client, &s);
	ck_assert_uint_eq(fm_ring_room(&client), 0);
	/* A client that lies about its position is found out. */
	shared->sq_tail.value += 1000;
	ck_assert_int_eq(fm_ring_take(&daemon, &s), FM_ERR_CORRUPT);
	shared->cq_head.value += 1000;
	ck_assert_int_eq(fm_ring_completion_room(&daemon), FM_ERR_CORRUPT);
	free(shared);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pool_core");
	TCase *cases = tcase_create("core");
	SRunner *runner;
	int failed;

	tcase_add_test(cases, keys_match_the_golden_vectors);
	tcase_add_test(cases, crc32c_is_the_one_of_rfc_3720);
	tcase_add_test(cases, layout_bytes_count_k_and_v);
	tcase_add_test(cases, index_finds_what_is_sealed_and_nothing_else);
	tcase_add_test(cases, index_refuses_a_damaged_header);
	tcase_add_test(cases, lengths_are_bounded_by_a_chunk);
	tcase_add_test(cases, a_free_chunk_serves_another_class_and_arena);
	tcase_add_test(cases, slots_are_reused_at_the_same_place_under_a_new_generation);
	tcase_add_test(cases, lru_gives_up_the_oldest_and_keeps_what_was_touched);
	tcase_add_test(cases, pins_are_kept_while_anything_else_may_go);
	tcase_add_test(cases, density_heeds_what_is_expected_and_what_matters);
	tcase_add_test(cases, lru_takes_leaves_in_order_of_use);
	tcase_add_test(cases, s3fifo_keeps_what_was_used_again);
	tcase_add_test(cases, hazard_learns_who_comes_back_and_when);
	tcase_add_test(cases, age_bins_are_half_octaves);
	tcase_add_test(cases, ghosts_forget_the_oldest);
	tcase_add_test(cases, everything_leased_means_pool_full_and_release_ends_it);
	tcase_add_test(cases, a_parent_outlives_its_resident_children);
	tcase_add_test(cases, a_starved_class_takes_the_oldest_chunk_of_another);
	tcase_add_test(cases, hostile_lease_tables_pin_nothing_that_is_not_there);
	tcase_add_test(cases, index_entries_run_out_before_memory_does);
	tcase_add_test(cases, quarantine_and_offers_end);
	tcase_add_test(cases, a_full_pool_takes_the_oldest_offer);
	tcase_add_test(cases, a_lease_of_a_changed_word_is_taken_back);
	tcase_add_test(cases, ring_wraps_bounds_and_wakes_once);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
