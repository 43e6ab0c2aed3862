// SPDX-License-Identifier: Apache-2.0
/*
 * Tenants in the pure core: accounts, maxima, guarantees, staging. A model checker runs random
 * operations of four tenants, whose chains cross, under every policy, and after each compares the
 * accounts with a recount and looks for what one tenant took from another. TENANT_STEPS and
 * TENANT_SEED make it longer or another one.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "core/evict.h"
#include "core/groups.h"
#include "core/lease.h"
#include "core/store.h"
#include "unbacked_chunks.h"

enum { CHUNKS = 12, ENTRIES = 320, LEASES = 16, REGIONS = 5, TENANTS = 4, LENGTHS = 5 };

/* Regions 2 and 3 are arenas of two users of one tenant. */
static const uint32_t tenant_of_region[REGIONS + 1] = {0, 0, 1, 1, 2, 3};
static const uint64_t lengths[LENGTHS] = {4096, 100000, 1 << 20, 2 << 20, 4 << 20};

struct rig {
	struct fm_store store;
	void *index;
	struct fm_header *headers;
	struct fm_owner owners[REGIONS + 1];
	struct fabricmgr_lease leases[REGIONS + 1][LEASES];
	uint64_t random, clock;
	uint32_t keys;
};

static void limit(struct rig *rig, uint32_t tenant, uint32_t guaranteed, uint32_t max)
{
	struct fm_tenant_limits limits = {.guaranteed_chunks = guaranteed, .max_chunks = max};

	ck_assert_int_eq(fm_tenants_set(&rig->store.slots.tenants, tenant, &limits), 0);
}

static struct rig *rig_create(const struct fm_policy_ops *policy)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	rig->index = aligned_alloc(4096, (fm_index_bytes(ENTRIES) + 4095) & ~4095ull);
	memset(rig->index, 0, fm_index_bytes(ENTRIES));
	rig->headers = calloc(ENTRIES, sizeof(*rig->headers));
	fm_index_format(rig->index, ENTRIES, 1, 42);
	ck_assert_int_eq(fm_store_create(&rig->store, rig->index, fm_index_bytes(ENTRIES),
					 rig->headers, CHUNKS, policy, &unbacked_chunks, rig),
			 0);
	for (uint32_t i = 1; i < TENANTS; i++)
		limit(rig, i, 0, 0);
	for (uint32_t i = 1; i <= REGIONS; i++) {
		fm_tenants_set_region(&rig->store.slots.tenants, i, tenant_of_region[i]);
		rig->owners[i] = (struct fm_owner){
			.id = i, .region = i, .leases = rig->leases[i], .lease_count = LEASES};
		fm_store_owner_add(&rig->store, &rig->owners[i]);
	}
	rig->store.batch = 1; /* so that figures are exact */
	rig->random = 88172645463325252ull;
	return rig;
}

static void rig_destroy(struct rig *rig)
{
	fm_store_destroy(&rig->store);
	free(rig->index);
	free(rig->headers);
	free(rig);
}

static struct fm_tenant *tenant(struct rig *rig, uint32_t number)
{
	return &rig->store.slots.tenants.list[number];
}

static struct fm_key key_of(uint32_t n)
{
	struct fm_key key = {{0}};
	uint64_t mixed = n * 0x9e3779b97f4a7c15ull;

	memcpy(&key, &n, sizeof(n));
	memcpy(&key.bytes[8], &mixed, sizeof(mixed));
	return key;
}

static uint64_t word_of(const struct rig *rig, uint32_t entry)
{
	return rig->store.index.entries[entry].word;
}

static uint32_t generation_of(const struct rig *rig, uint32_t entry)
{
	return FABRICMGR_WORD_GENERATION(word_of(rig, entry));
}

static bool is_sealed(const struct rig *rig, uint32_t entry)
{
	return FABRICMGR_WORD_STATE(word_of(rig, entry)) == FABRICMGR_BLOCK_SEALED;
}

static int stage(struct rig *rig, uint32_t region, uint64_t length, uint32_t *entry)
{
	return fm_store_stage(&rig->store, &rig->owners[region], length, entry);
}

static int seal(struct rig *rig, uint32_t region, uint32_t entry, uint32_t key, uint32_t parent)
{
	static const uint8_t ns[16];
	struct fm_key above = key_of(parent);
	struct fm_store_seal sealing = {
		.entry = entry,
		.generation = generation_of(rig, entry),
		.key = key_of(key),
		.parent = parent ? &above : NULL,
		.ns = ns,
	};

	return fm_store_seal(&rig->store, &rig->owners[region], &sealing);
}

/* A sealed block: its entry, or FM_NO_ENTRY with the error in *@err. */
static uint32_t put(struct rig *rig, uint32_t region, uint64_t length, uint32_t parent, int *err)
{
	uint32_t entry;

	*err = stage(rig, region, length, &entry);
	if (*err)
		return FM_NO_ENTRY;
	ck_assert_int_eq(seal(rig, region, entry, ++rig->keys, parent), 0);
	return entry;
}

static void fill(struct rig *rig, uint32_t region, uint32_t n, uint64_t length)
{
	for (uint32_t i = 0; i < n; i++) {
		int err;

		put(rig, region, length, 0, &err);
		ck_assert_int_eq(err, 0);
	}
}

/* ---- one thing at a time ---- */

START_TEST(a_noisy_tenant_leaves_others_what_they_were_guaranteed)
{
	struct rig *rig = rig_create(&fm_policy_lru);

	limit(rig, 1, 4, 0);
	fill(rig, 2, 24, 1 << 20); /* six chunks */
	fill(rig, 4, 200, 1 << 20);
	ck_assert_uint_eq(tenant(rig, 1)->chunks, 4);
	ck_assert_uint_eq(tenant(rig, 1)->taken, 8);
	ck_assert_uint_eq(tenant(rig, 2)->chunks, 8);
	fill(rig, 5, 40, 4 << 20); /* a third, and in another class */
	ck_assert_uint_eq(tenant(rig, 1)->chunks, 4);
	ck_assert_uint_eq(tenant(rig, 1)->taken, 8);
	rig_destroy(rig);
}
END_TEST

START_TEST(who_is_below_its_guarantee_grows_at_the_cost_of_others)
{
	struct rig *rig = rig_create(&fm_policy_lru);

	limit(rig, 1, 4, 0);
	fill(rig, 2, 4, 1 << 20);
	fill(rig, 4, 100, 1 << 20);
	/* The oldest block of all is its own; it is not for that it was promised four chunks. */
	fill(rig, 2, 12, 1 << 20);
	ck_assert_uint_eq(tenant(rig, 1)->chunks, 4);
	ck_assert_uint_eq(tenant(rig, 1)->evictions, 0);
	ck_assert_uint_eq(tenant(rig, 2)->chunks, 8);
	rig_destroy(rig);
}
END_TEST

START_TEST(pins_do_not_keep_what_another_was_guaranteed)
{
	struct fm_store_hint hint = {.pinned_until = UINT64_MAX};
	struct rig *rig = rig_create(&fm_policy_lru);

	limit(rig, 1, 4, 0);
	fill(rig, 2, 4, 1 << 20);
	for (int i = 0; i < 60; i++) {
		int err;
		uint32_t entry = put(rig, 4, 1 << 20, 0, &err);

		ck_assert_int_eq(err, 0);
		ck_assert_int_eq(
			fm_store_hint(&rig->store, entry, generation_of(rig, entry), &hint), 0);
	}
	fill(rig, 2, 12, 1 << 20);
	ck_assert_uint_eq(tenant(rig, 1)->chunks, 4);
	ck_assert_uint_eq(tenant(rig, 1)->evictions, 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_tenant_at_its_maximum_gives_up_its_own)
{
	struct rig *rig = rig_create(&fm_policy_lru);
	uint32_t entry, n = 0;
	int err = 0;

	limit(rig, 2, 0, 3);
	fill(rig, 4, 50, 1 << 20);
	ck_assert_uint_eq(tenant(rig, 2)->chunks, 3);
	ck_assert_uint_eq(tenant(rig, 2)->evictions, 50 - 12);
	/* In another size: a chunk of its own goes, though nine are free. */
	fill(rig, 4, 3, 2 << 20);
	ck_assert_uint_eq(tenant(rig, 2)->chunks, 3);
	/* What is staged cannot go: then the quota is named. */
	while (!(err = stage(rig, 4, 4 << 20, &entry)))
		n++;
	ck_assert_uint_eq(n, 3);
	ck_assert_int_eq(err, FM_ERR_LIMIT);
	ck_assert_int_eq(rig->owners[4].over, FM_QUOTA_MEMORY);
	ck_assert_uint_eq(tenant(rig, 2)->refused, 0); /* a try: answers are what is counted */
	ck_assert_int_eq(stage(rig, 2, 4 << 20, &entry), 0); /* another's affair */
	rig_destroy(rig);
}
END_TEST

START_TEST(staging_is_counted_for_all_of_a_tenant)
{
	struct fm_tenant_limits limits = {.staging_bytes = 3 << 20};
	struct rig *rig = rig_create(&fm_policy_lru);
	struct fm_key id = key_of(7);
	uint32_t entry, other;

	ck_assert_int_eq(fm_tenants_set(&rig->store.slots.tenants, 1, &limits), 0);
	ck_assert_int_eq(stage(rig, 2, 2 << 20, &entry), 0);
	ck_assert_int_eq(stage(rig, 3, 1 << 20, &other), 0);
	ck_assert_int_eq(stage(rig, 3, 4096, &other), FM_ERR_LIMIT);
	ck_assert_int_eq(rig->owners[3].over, FM_QUOTA_STAGING);
	/* On offer it is staged as before. */
	ck_assert_int_eq(fm_store_offer(&rig->store, &rig->owners[2], entry,
					generation_of(rig, entry), &id, 500),
			 0);
	ck_assert_int_eq(stage(rig, 3, 4096, &other), FM_ERR_LIMIT);
	fm_store_expire(&rig->store, 500);
	ck_assert_uint_eq(tenant(rig, 1)->staged_bytes, 1 << 20);
	/* In quarantine, too. */
	fm_store_owner_remove(&rig->store, &rig->owners[3], 600);
	ck_assert_uint_eq(tenant(rig, 1)->staged_bytes, 1 << 20);
	fm_store_expire(&rig->store, 600);
	ck_assert_uint_eq(tenant(rig, 1)->staged_bytes, 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(a_chain_of_two_tenants_keeps_both_promises)
{
	struct rig *rig = rig_create(&fm_policy_lru);
	uint32_t parent, child;
	int err;

	/* The noisy one's oldest block carries a child of a tenant that is at its guarantee. */
	limit(rig, 1, 1, 0);
	parent = put(rig, 4, 1 << 20, 0, &err);
	child = put(rig, 2, 1 << 20, rig->keys, &err);
	fill(rig, 4, 300, 1 << 20);
	ck_assert(is_sealed(rig, parent));
	ck_assert(is_sealed(rig, child));
	ck_assert_uint_eq(tenant(rig, 1)->taken, 0);
	/* Without a guarantee both go. */
	limit(rig, 1, 0, 0);
	fill(rig, 5, 40, 4 << 20);
	ck_assert_uint_eq(tenant(rig, 1)->chunks, 0);
	rig_destroy(rig);
}
END_TEST

START_TEST(another_tenants_block_is_not_replaced_nor_invalidated)
{
	static const uint8_t ns[16];
	struct rig *rig = rig_create(&fm_policy_lru);
	struct fm_store_seal sealing = {.key = key_of(1), .ns = ns, .replaces = true};
	uint32_t entry;

	fill(rig, 2, 1, 4096);
	ck_assert_int_eq(stage(rig, 4, 4096, &entry), 0);
	sealing.entry = entry;
	sealing.generation = generation_of(rig, entry);
	ck_assert_int_eq(fm_store_seal(&rig->store, &rig->owners[4], &sealing), FM_ERR_PERMISSION);
	ck_assert_uint_eq(fm_store_invalidate(&rig->store, ns, 2), 0);
	ck_assert_int_eq(stage(rig, 3, 4096, &entry), 0); /* another user of the same tenant */
	sealing.entry = entry;
	sealing.generation = generation_of(rig, entry);
	ck_assert_int_eq(fm_store_seal(&rig->store, &rig->owners[3], &sealing), 0);
	ck_assert_uint_eq(fm_store_invalidate(&rig->store, ns, 1), 1);
	rig_destroy(rig);
}
END_TEST

START_TEST(small_blocks_do_not_use_up_the_entries_of_others)
{
	struct rig *rig = rig_create(&fm_policy_lru);

	limit(rig, 1, 6, 0);
	fill(rig, 4, 4 * ENTRIES, 4096);
	ck_assert_uint_eq(tenant(rig, 2)->entries, ENTRIES / 2);
	fill(rig, 2, ENTRIES / 2, 4096);
	ck_assert_uint_eq(tenant(rig, 1)->evictions, 0);
	ck_assert_uint_eq(tenant(rig, 1)->entries, ENTRIES / 2);
	rig_destroy(rig);
}
END_TEST

START_TEST(guarantees_above_the_pool_are_refused)
{
	struct rig *rig = rig_create(&fm_policy_lru);
	struct fm_tenants *tenants = &rig->store.slots.tenants;

	limit(rig, 1, 8, 0);
	ck_assert_int_eq(
		fm_tenants_set(tenants, 2, &(struct fm_tenant_limits){.guaranteed_chunks = 5}),
		FM_ERR_LIMIT);
	ck_assert_uint_eq(tenant(rig, 2)->limits.guaranteed_chunks, 0);
	ck_assert_int_eq(
		fm_tenants_set(tenants, 2,
			       &(struct fm_tenant_limits){.guaranteed_chunks = 4, .max_chunks = 3}),
		FM_ERR_LIMIT);
	limit(rig, 2, 4, 4);
	ck_assert_int_eq(fm_tenants_set(tenants, FM_TENANTS_MAX, &(struct fm_tenant_limits){0}),
			 FM_ERR_LIMIT);
	rig_destroy(rig);
}
END_TEST

/* ---- random operations ---- */

static uint32_t chance(struct rig *rig, uint32_t below)
{
	rig->random ^= rig->random << 13;
	rig->random ^= rig->random >> 7;
	rig->random ^= rig->random << 17;
	return (uint32_t)(rig->random >> 33) % below;
}

struct counted {
	uint32_t chunks[TENANTS], entries[TENANTS];
	uint64_t used[TENANTS], staged[TENANTS];
	uint64_t words[ENTRIES];
	uint32_t tenants[ENTRIES];
};

static void count(struct rig *rig, struct counted *out)
{
	bool is_seen[CHUNKS] = {false};

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < ENTRIES; i++) {
		const struct fm_entry *e = &rig->store.index.entries[i];
		uint32_t state = FABRICMGR_WORD_STATE(e->word), t;

		out->words[i] = e->word;
		if (state == FABRICMGR_BLOCK_FREE)
			continue;
		t = out->tenants[i] = tenant_of_region[FM_HIGH(e->place)];
		out->entries[t]++;
		out->used[t] += (uint64_t)rig->store.nodes[i].pages * FM_SLOT_GRAIN;
		if (state == FABRICMGR_BLOCK_STAGING || state == FABRICMGR_BLOCK_QUARANTINE)
			out->staged[t] += (uint64_t)rig->store.nodes[i].pages * FM_SLOT_GRAIN;
		if (!is_seen[FM_LOW(e->place)])
			out->chunks[t]++;
		is_seen[FM_LOW(e->place)] = true;
	}
}

/* Assertions of Check are system calls: not one for each thing that is compared after each step. */
static void check_accounts(struct rig *rig, const struct counted *now)
{
	const struct fm_tenants *tenants = &rig->store.slots.tenants;
	uint32_t unmet = 0;

	for (uint32_t t = 0; t < TENANTS; t++) {
		const struct fm_tenant *account = &tenants->list[t];

		if (account->chunks != now->chunks[t] || account->entries != now->entries[t] ||
		    account->used_bytes != now->used[t] || account->staged_bytes != now->staged[t])
			ck_abort_msg("tenant %u: %u chunks, %u entries, %llu bytes, %llu staged; "
				     "counted %u, %u, %llu, %llu",
				     t, account->chunks, account->entries,
				     (unsigned long long)account->used_bytes,
				     (unsigned long long)account->staged_bytes, now->chunks[t],
				     now->entries[t], (unsigned long long)now->used[t],
				     (unsigned long long)now->staged[t]);
		if (account->entries < account->guaranteed_entries)
			unmet += account->guaranteed_entries - account->entries;
	}
	if (tenants->unmet_entries != unmet)
		ck_abort_msg("%u entries unmet, counted %u", tenants->unmet_entries, unmet);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		uint32_t parent = rig->store.nodes[i].parent;

		if (is_sealed(rig, i) && parent != FM_NO_ENTRY && !is_sealed(rig, parent))
			ck_abort_msg("block %u has lost its parent %u", i, parent);
	}
}

/* What @actor's operation took from others. */
static void check_guarantees(struct rig *rig, uint32_t actor, const struct counted *before,
			     const struct counted *now)
{
	uint32_t max = tenant(rig, actor)->limits.max_chunks;

	/* More than its maximum it may have only from before that was lowered. */
	if (max && now->chunks[actor] > max && now->chunks[actor] > before->chunks[actor])
		ck_abort_msg("tenant %u has %u chunks, of at most %u", actor, now->chunks[actor],
			     max);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		uint32_t t = before->tenants[i], guaranteed;

		if (FABRICMGR_WORD_STATE(before->words[i]) != FABRICMGR_BLOCK_SEALED ||
		    t == actor || before->words[i] == now->words[i])
			continue;
		guaranteed = tenant(rig, t)->limits.guaranteed_chunks;
		if (before->chunks[t] <= guaranteed || now->chunks[t] < guaranteed)
			ck_abort_msg("tenant %u took a block of tenant %u, which had %u chunks and "
				     "has %u, of %u guaranteed",
				     actor, t, before->chunks[t], now->chunks[t], guaranteed);
	}
}

/* A sealed block by chance, or FM_NO_ENTRY. */
static uint32_t pick(struct rig *rig)
{
	for (int tries = 0; tries < 20; tries++) {
		uint32_t entry = chance(rig, ENTRIES);

		if (is_sealed(rig, entry))
			return entry;
	}
	return FM_NO_ENTRY;
}

static void stage_and_seal(struct rig *rig, uint32_t region)
{
	uint32_t above = chance(rig, 3) ? pick(rig) : FM_NO_ENTRY, parent = 0, entry;
	int err = stage(rig, region, lengths[chance(rig, LENGTHS)], &entry);

	if (err) {
		ck_assert(err == FM_ERR_POOL_FULL || err == FM_ERR_LIMIT);
		return;
	}
	if (!chance(rig, 10))
		return; /* stays staged */
	if (above != FM_NO_ENTRY && is_sealed(rig, above)) {
		struct fm_key key;

		fm_key_load(rig->store.index.entries[above].key, &key);
		memcpy(&parent, &key, sizeof(parent));
	}
	ck_assert_int_eq(seal(rig, region, entry, ++rig->keys, parent), 0);
}

/* Two blocks of different sizes that become visible together. */
static void seal_group(struct rig *rig, uint32_t region)
{
	static const uint8_t ns[16];
	struct fm_store_seal seals[2];
	int results[2];

	for (int i = 0; i < 2; i++) {
		uint32_t entry;

		if (stage(rig, region, lengths[chance(rig, LENGTHS)], &entry))
			return; /* what is there stays staged */
		seals[i] = (struct fm_store_seal){
			.entry = entry,
			.generation = generation_of(rig, entry),
			.key = key_of(++rig->keys),
			.ns = ns,
		};
	}
	ck_assert_int_eq(fm_store_seal_group(&rig->store, &rig->owners[region], seals, 2, results),
			 0);
}

static void lease_or_drop(struct rig *rig, uint32_t region)
{
	struct fabricmgr_lease *lease = &rig->leases[region][chance(rig, LEASES)];
	uint32_t entry = pick(rig);

	if (lease->region || entry == FM_NO_ENTRY)
		fm_lease_drop(lease);
	else
		ck_assert(fm_lease_take(lease, &rig->store.index.entries[entry],
					word_of(rig, entry)));
}

static void discard_one(struct rig *rig, uint32_t region)
{
	uint32_t entry = rig->owners[region].staged_head;

	if (rig->owners[region].staged)
		ck_assert_int_eq(fm_store_discard(&rig->store, &rig->owners[region], entry,
						  generation_of(rig, entry)),
				 0);
}

/* Removes a block of its own tenant: what others have is not its to remove (session.c). */
static void remove_one(struct rig *rig, uint32_t region)
{
	uint32_t entry = pick(rig);
	struct fm_key key;

	if (entry == FM_NO_ENTRY || fm_store_tenant(&rig->store, entry) != tenant_of_region[region])
		return;
	fm_key_load(rig->store.index.entries[entry].key, &key);
	ck_assert_int_eq(fm_store_remove(&rig->store, &key), 0);
}

static void leave_and_return(struct rig *rig, uint32_t region)
{
	fm_store_owner_remove(&rig->store, &rig->owners[region],
			      chance(rig, 2) ? rig->clock + 5 : 0);
	memset(rig->leases[region], 0, sizeof(rig->leases[region]));
	fm_store_owner_add(&rig->store, &rig->owners[region]);
}

static void one_operation(struct rig *rig, uint32_t region)
{
	uint32_t entry = pick(rig), what = chance(rig, 100);
	struct fm_store_hint hint = {.pinned_until = rig->clock + chance(rig, 200)};

	if (what < 52) {
		stage_and_seal(rig, region);
	} else if (what < 60) {
		seal_group(rig, region);
	} else if (what < 72 && entry != FM_NO_ENTRY) {
		fm_store_touch(&rig->store, entry, generation_of(rig, entry));
	} else if (what < 76 && entry != FM_NO_ENTRY) {
		fm_store_hint(&rig->store, entry, generation_of(rig, entry), &hint);
	} else if (what < 86) {
		lease_or_drop(rig, region);
	} else if (what < 92) {
		discard_one(rig, region);
	} else if (what < 97) {
		remove_one(rig, region);
	} else {
		leave_and_return(rig, region);
	}
}

static uint64_t setting(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : fallback;
}

START_TEST(no_operation_takes_what_another_tenant_was_guaranteed)
{
	static const uint32_t quotas[][TENANTS][2] = {
		{{0, 0}, {4, 6}, {3, 0}, {2, 2}},
		{{0, 0}, {6, 0}, {6, 0}, {0, 0}},
		{{0, 3}, {1, 0}, {0, 0}, {8, 0}},
	};
	const struct fm_policy_ops *const *policies;
	size_t n = fm_policy_list(&policies);
	uint64_t steps = setting("TENANT_STEPS", 40000), seed = setting("TENANT_SEED", 1);

	for (size_t p = 0; p < n; p++) {
		struct rig *rig = rig_create(policies[p]);
		struct counted before, now;
		uint64_t taken = 0, evicted = 0;

		rig->random += seed * 0x9e3779b97f4a7c15ull;
		rig->store.batch = 1 + (uint32_t)p * 3;
		count(rig, &before);
		for (uint64_t step = 0; step < steps; step++) {
			uint32_t region = 1 + chance(rig, REGIONS);
			uint32_t phase = (uint32_t)(step * 3 / steps);

			if (step == phase * steps / 3)
				for (uint32_t pass = 0; pass < 2; pass++)
					for (uint32_t t = 0; t < TENANTS; t++)
						limit(rig, t, pass ? quotas[phase][t][0] : 0,
						      pass ? quotas[phase][t][1] : 0);
			fm_store_expire(&rig->store, ++rig->clock);
			count(rig, &before);
			one_operation(rig, region);
			count(rig, &now);
			check_accounts(rig, &now);
			check_guarantees(rig, tenant_of_region[region], &before, &now);
		}
		for (uint32_t t = 0; t < TENANTS; t++) {
			taken += tenant(rig, t)->taken;
			evicted += tenant(rig, t)->evictions;
		}
		/* Otherwise it has proved nothing. */
		ck_assert_uint_gt(taken, steps / 100);
		ck_assert_uint_gt(evicted, steps / 100);
		rig_destroy(rig);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tenants");
	TCase *cases = tcase_create("tenants");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 600);
	tcase_add_test(cases, a_noisy_tenant_leaves_others_what_they_were_guaranteed);
	tcase_add_test(cases, who_is_below_its_guarantee_grows_at_the_cost_of_others);
	tcase_add_test(cases, pins_do_not_keep_what_another_was_guaranteed);
	tcase_add_test(cases, a_tenant_at_its_maximum_gives_up_its_own);
	tcase_add_test(cases, staging_is_counted_for_all_of_a_tenant);
	tcase_add_test(cases, a_chain_of_two_tenants_keeps_both_promises);
	tcase_add_test(cases, another_tenants_block_is_not_replaced_nor_invalidated);
	tcase_add_test(cases, small_blocks_do_not_use_up_the_entries_of_others);
	tcase_add_test(cases, guarantees_above_the_pool_are_refused);
	tcase_add_test(cases, no_operation_takes_what_another_tenant_was_guaranteed);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
