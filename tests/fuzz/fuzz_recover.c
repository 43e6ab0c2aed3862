// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes over the index, the header table and the leases that a daemon left. What is believed
 * afterwards must be what was sealed, at the place where it was; and the pool must go on. The first
 * byte chooses what the state is; each three that follow an address and what is XORed there.
 */
// FUZZ_SOURCES: libfabricmgr/core/*.c libfabricmgr/base/error.c libfabricmgr/base/crc32c.c
// FUZZ_LIBS: -lisal -lcrypto
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/evict.h"
#include "core/groups.h"
#include "core/lease.h"
#include "core/recover.h"

enum { CHUNKS = 3, ENTRIES = 48, LEASES = 8, LENGTH = 1u << 19, FIRST_MEMBER = 20, MEMBERS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int populate(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
	return 0;
}

static void punch(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
}

static const struct fm_chunk_ops ops = {populate, punch};

struct world {
	struct fm_store store;
	struct fm_owner owner;
	void *index;
	struct fm_header headers[ENTRIES];
	struct fabricmgr_lease leases[LEASES];
	uint64_t links[ENTRIES];
	bool has_group;
	uint64_t places[ENTRIES]; /* {region, chunk} of each number that was sealed */
	uint32_t slots[ENTRIES];
	bool is_sealed[ENTRIES];
};

static int take_over(struct world *world, bool is_first, struct fm_recovery *recovery)
{
	int err = fm_store_create(&world->store, world->index, fm_index_bytes(ENTRIES),
				  world->headers, CHUNKS, &fm_policy_lru, &ops, world);

	if (err)
		return err;
	world->store.links = world->links;
	world->owner = (struct fm_owner){
		.id = 7, .region = 1, .leases = world->leases, .lease_count = LEASES};
	fm_store_owner_add(&world->store, &world->owner);
	return is_first ? 0 : fm_store_recover(&world->store, recovery);
}

static struct fm_key key_of(uint32_t n)
{
	return (struct fm_key){{(uint8_t)(n + 1), 1}};
}

static int seal(struct world *world, uint32_t entry, uint32_t n)
{
	static const uint8_t ns[16] = {7};
	struct fm_key parent = key_of(n / 2);
	struct fm_store_seal seal = {
		.entry = entry,
		.generation = FABRICMGR_WORD_GENERATION(world->store.index.entries[entry].word),
		.crc32c = n,
		.key = key_of(n),
		.parent = n % 3 ? &parent : NULL,
		.ns = ns,
	};

	return fm_store_seal(&world->store, &world->owner, &seal);
}

static void note(struct world *world, uint32_t n, uint32_t entry)
{
	world->places[n] = world->store.index.entries[entry].place;
	world->slots[n] = FM_LOW(world->store.index.entries[entry].extent);
	world->is_sealed[n] = true;
}

/* The numbers from FIRST_MEMBER on, as one. */
static void seal_group(struct world *world)
{
	static const uint8_t ns[16] = {7};
	struct fm_store_seal seals[MEMBERS];
	int results[MEMBERS];
	uint32_t entry;

	for (uint32_t i = 0; i < MEMBERS; i++) {
		if (fm_store_stage(&world->store, &world->owner, LENGTH >> (FIRST_MEMBER + i) % 2,
				   &entry))
			return;
		seals[i] = (struct fm_store_seal){
			.entry = entry,
			.generation =
				FABRICMGR_WORD_GENERATION(world->store.index.entries[entry].word),
			.crc32c = FIRST_MEMBER + i,
			.key = key_of(FIRST_MEMBER + i),
			.ns = ns,
		};
	}
	if (fm_store_seal_group(&world->store, &world->owner, seals, MEMBERS, results))
		abort();
	for (uint32_t i = 0; i < MEMBERS; i++)
		note(world, FIRST_MEMBER + i, seals[i].entry);
	world->has_group = true;
}

/* Sealed, staged, leased and removed blocks, by the bits of @kind. */
static void prepare(struct world *world, uint8_t kind)
{
	uint32_t entry;
	uint64_t word;

	if (kind & 8)
		seal_group(world);
	for (uint32_t n = 0; n < 16; n++) {
		if (fm_store_stage(&world->store, &world->owner, LENGTH >> n % 2, &entry))
			break;
		if (n == 5 && kind & 1)
			continue;
		if (seal(world, entry, n))
			abort();
		note(world, n, entry);
	}
	for (uint32_t n = 0; n < 4 && kind & 2; n++) {
		struct fm_key key = key_of(n);

		entry = fm_index_find(&world->store.index, &key, &word);
		if (entry != FM_NO_ENTRY)
			fm_lease_take(&world->leases[n], &world->store.index.entries[entry], word);
	}
	for (uint32_t n = 3; n < 8 && kind & 4; n += 2) {
		struct fm_key key = key_of(n);

		fm_store_remove(&world->store, &key);
		world->is_sealed[n] = false;
	}
}

static void spoil(struct world *world, const uint8_t *data, size_t size)
{
	size_t index = fm_index_bytes(ENTRIES) - FM_INDEX_HEADER_BYTES + 64;

	for (; size >= 3; data += 3, size -= 3) {
		size_t at = (size_t)data[0] << 8 | data[1];
		uint8_t *where;

		/* The rest of the header's page is nothing. */
		if (at < index)
			where = (uint8_t *)world->index +
				(at < 64 ? at : at + FM_INDEX_HEADER_BYTES - 64);
		else if (at - index < sizeof(world->headers))
			where = (uint8_t *)world->headers + (at - index);
		else if (at & 1)
			where = (uint8_t *)world->links + (at / 2) % sizeof(world->links);
		else
			where = (uint8_t *)world->leases + (at / 2) % sizeof(world->leases);
		*where ^= data[2];
	}
}

static bool is_whole(void *context, const struct fm_header *header)
{
	const struct world *world = context;
	uint32_t n = header->key[0] - 1u;

	return n < ENTRIES && world->is_sealed[n] && header->crc32c == n &&
	       world->places[n] == FM_PAIR(header->region, header->chunk) &&
	       world->slots[n] == header->slot && header->length == LENGTH >> n % 2;
}

/* What is found is what was sealed, and of a group all or nothing. */
static void check(struct world *world)
{
	uint32_t members = 0;

	for (uint32_t i = 0; world->has_group && i < MEMBERS; i++) {
		struct fm_key key = key_of(FIRST_MEMBER + i);
		uint64_t word;

		members += fm_index_find(&world->store.index, &key, &word) != FM_NO_ENTRY;
	}
	if (members % MEMBERS)
		abort();
	for (uint32_t n = 0; n < ENTRIES; n++) {
		struct fm_key key = key_of(n);
		struct fm_header header;
		uint64_t word;
		uint32_t entry = fm_index_find(&world->store.index, &key, &word);

		if (entry == FM_NO_ENTRY)
			continue;
		fm_header_read(world->headers, entry, &header);
		if (fm_header_check(&header) || header.key[0] != n + 1 ||
		    !is_whole(world, &header) ||
		    FABRICMGR_WORD_STATE(word) != FABRICMGR_BLOCK_SEALED ||
		    fm_slots_entry(&world->store.slots, header.region, header.chunk, header.slot) !=
			    entry)
			abort();
	}
}

static void go_on(struct world *world)
{
	uint32_t entry, n = 0;

	while (!fm_store_stage(&world->store, &world->owner, LENGTH, &entry))
		if (++n > ENTRIES)
			abort();
	memset(world->leases, 0, sizeof(world->leases));
	fm_store_owner_remove(&world->store, &world->owner, 0);
	fm_store_expire(&world->store, UINT64_MAX);
	fm_store_free_removed(&world->store);
	while (fm_store_evict_bytes(&world->store, UINT64_MAX))
		;
	if (world->store.slots.used_bytes || world->store.free_count != ENTRIES)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fm_recovery recovery = {.regions = 1, .expires = 1000};
	struct world *world;
	struct fm_index index;

	if (!size)
		return 0;
	world = calloc(1, sizeof(*world));
	world->index = calloc(1, fm_index_bytes(ENTRIES));
	fm_index_format(world->index, ENTRIES, 1, 42);
	if (take_over(world, true, NULL))
		abort();
	prepare(world, data[0]);
	fm_store_destroy(&world->store);
	spoil(world, data + 1, size - 1);
	if (take_over(world, false, &recovery)) {
		/* Nobody reads by it, as the driver makes sure. */
		fm_store_destroy(&world->store);
		memset(world->leases, 0, sizeof(world->leases));
		fm_index_reformat(world->index, ENTRIES, 1, 42);
		if (fm_index_open(&index, world->index, fm_index_bytes(ENTRIES)))
			abort();
		fm_index_rebuild(&index, world->headers, is_whole, world);
		if (take_over(world, false, &recovery))
			abort();
	}
	check(world);
	go_on(world);
	fm_store_destroy(&world->store);
	free(world->index);
	free(world);
	return 0;
}
