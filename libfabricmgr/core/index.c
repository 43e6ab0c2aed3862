// SPDX-License-Identifier: Apache-2.0
/*
 * The block index and the header table: layout, lookup by anybody, change by the one writer. Pure.
 * Invariant: an entry is reachable through a bucket only while its word is SEALED or EVICTING, or
 * GROUPED.
 */
#include <string.h>

#include "base/crc32c.h"
#include "base/limits.h"
#include "core/index.h"

static uint32_t buckets_for(uint32_t entries_max)
{
	/* At most half full: then two candidates overflow practically never. */
	return (uint32_t)(((uint64_t)entries_max * 2 + FM_BUCKET_SLOTS - 1) / FM_BUCKET_SLOTS) + 2;
}

size_t fm_index_bytes(uint32_t entries_max)
{
	return FM_INDEX_HEADER_BYTES + (size_t)buckets_for(entries_max) * sizeof(struct fm_bucket) +
	       (size_t)entries_max * sizeof(struct fm_entry);
}

static void write_header(void *memory, uint32_t entries_max, uint64_t incarnation, uint64_t seed)
{
	struct fm_index_header *header = memory;

	header->magic = FM_INDEX_MAGIC;
	header->version = FM_INDEX_VERSION;
	header->incarnation = incarnation;
	header->seed = seed;
	header->entries_max = entries_max;
	header->buckets = buckets_for(entries_max);
	header->buckets_offset = FM_INDEX_HEADER_BYTES;
	header->entries_offset =
		FM_INDEX_HEADER_BYTES + (uint64_t)header->buckets * sizeof(struct fm_bucket);
	header->bytes = fm_index_bytes(entries_max);
	header->reserved = 0;
	header->checksum = fm_crc32c(header, offsetof(struct fm_index_header, checksum));
}

void fm_index_format(void *memory, uint32_t entries_max, uint64_t incarnation, uint64_t seed)
{
	const struct fm_index_header *header = memory;
	struct fm_entry *entries;

	write_header(memory, entries_max, incarnation, seed);
	/* Different from the start, so that no two blocks ever share slot and generation. */
	entries = (struct fm_entry *)((char *)memory + header->entries_offset);
	for (uint32_t i = 0; i < entries_max; i++)
		entries[i].word = FABRICMGR_WORD(i, FABRICMGR_BLOCK_FREE);
}

void fm_index_reformat(void *memory, uint32_t entries_max, uint64_t incarnation, uint64_t seed)
{
	const struct fm_index_header *header = memory;

	write_header(memory, entries_max, incarnation, seed);
	memset((char *)memory + header->buckets_offset, 0,
	       header->entries_offset - header->buckets_offset);
}

int fm_index_open(struct fm_index *index, void *memory, size_t bytes)
{
	const struct fm_index_header *header = memory;

	if (bytes < FM_INDEX_HEADER_BYTES || header->magic != FM_INDEX_MAGIC)
		return fm_fail(FM_ERR_CORRUPT, "the index does not start with its magic number");
	if (header->version != FM_INDEX_VERSION)
		return fm_fail(FM_ERR_VERSION, "the index has version %u, this library reads %u",
			       header->version, FM_INDEX_VERSION);
	if (header->checksum != fm_crc32c(header, offsetof(struct fm_index_header, checksum)) ||
	    header->buckets != buckets_for(header->entries_max) || header->bytes > bytes ||
	    header->bytes != fm_index_bytes(header->entries_max))
		return fm_fail(FM_ERR_CORRUPT, "the header of the index fails its checks");
	index->header = header;
	index->buckets = (struct fm_bucket *)((char *)memory + header->buckets_offset);
	index->entries = (struct fm_entry *)((char *)memory + header->entries_offset);
	index->seed = header->seed;
	index->bucket_count = header->buckets;
	index->entries_max = header->entries_max;
	return 0;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ull;
	x ^= x >> 32;
	return x;
}

struct place {
	uint32_t bucket[2];
	uint32_t tag;
};

static struct place place_of(const struct fm_index *index, const uint64_t key[2])
{
	uint64_t a = mix(key[0] ^ index->seed);
	uint64_t b = mix(key[1] + a);
	struct place place;

	place.bucket[0] = (uint32_t)(((b >> 32) * index->bucket_count) >> 32);
	place.bucket[1] = (uint32_t)(((b & 0xffffffffu) * index->bucket_count) >> 32);
	if (place.bucket[1] == place.bucket[0])
		place.bucket[1] = (place.bucket[0] + 1) % index->bucket_count;
	place.tag = (uint32_t)(a >> 32);
	return place;
}

uint32_t fm_index_state(const struct fm_index *index, uint32_t state)
{
	uint32_t leader = FABRICMGR_GROUP_LEADER(state);

	if (!FABRICMGR_IS_GROUPED(state))
		return state;
	/* Acquire: pairs with the release that makes a whole group visible, in
	 * fm_store_seal_group(): who sees it finds every member. The leader's entry is the group's
	 * as long as a member is GROUPED; a reader that is later than that has an old word. */
	if (leader < index->entries_max &&
	    FABRICMGR_WORD_STATE(fm_load_acquire(&index->entries[leader].word)) ==
		    FABRICMGR_BLOCK_SEALED)
		return FABRICMGR_BLOCK_SEALED;
	return FABRICMGR_BLOCK_STAGING;
}

static uint32_t find_at(const struct fm_index *index, struct place place, const uint64_t wanted[2],
			uint64_t *word)
{
	for (uint32_t side = 0; side < 2; side++) {
		struct fm_bucket *bucket = &index->buckets[place.bucket[side]];
		uint32_t again = 0;

		for (uint32_t i = 0; i < FM_BUCKET_SLOTS; i++) {
			/* Acquire: pairs with the release in change_slot() and insert. */
			uint64_t slot = fm_load_acquire(&bucket->slots[i]);
			struct fm_entry *entry;
			uint32_t state;

			if (!slot || FM_HIGH(slot) != place.tag ||
			    FM_LOW(slot) - 1 >= index->entries_max)
				continue;
			entry = &index->entries[FM_LOW(slot) - 1];
			/* Acquire: pairs with the release that made it SEALED; fields follow. */
			*word = fm_load_acquire(&entry->word);
			state = FABRICMGR_WORD_STATE(*word);
			if (__builtin_expect(FABRICMGR_IS_GROUPED(state), 0))
				state = fm_index_state(index, state);
			/* Relaxed: a key of a later generation is found out by fm_lease_take();
			 * without a lease, the answer is a hint anyway. */
			if ((state == FABRICMGR_BLOCK_SEALED ||
			     state == FABRICMGR_BLOCK_EVICTING) &&
			    fm_load_relaxed(&entry->key[0]) == wanted[0] &&
			    fm_load_relaxed(&entry->key[1]) == wanted[1])
				return FM_LOW(slot) - 1;
			/* Replaced after we read the slot, and freed already: look again. */
			if (fm_load_acquire(&bucket->slots[i]) != slot &&
			    again++ < FM_ACQUIRE_RETRIES)
				i--;
		}
	}
	return FM_NO_ENTRY;
}

uint32_t fm_index_find(const struct fm_index *index, const struct fm_key *key, uint64_t *word)
{
	uint64_t wanted[2];

	memcpy(wanted, key, sizeof(wanted));
	return find_at(index, place_of(index, wanted), wanted, word);
}

/* A look-up waits for two cache lines, one after the other: each is asked for this many keys ahead.
 */
enum { AHEAD = 8, WINDOW = 4 * AHEAD };

static void fetch_entry(const struct fm_index *index, struct place place)
{
	for (uint32_t side = 0; side < 2; side++)
		for (uint32_t i = 0; i < FM_BUCKET_SLOTS; i++) {
			/* Relaxed: a guess of what find_at() will read. */
			uint64_t slot =
				fm_load_relaxed(&index->buckets[place.bucket[side]].slots[i]);

			if (slot && FM_HIGH(slot) == place.tag &&
			    FM_LOW(slot) - 1 < index->entries_max) {
				__builtin_prefetch(&index->entries[FM_LOW(slot) - 1]);
				return;
			}
		}
}

size_t fm_index_match(const struct fm_index *index, const struct fm_key *keys, size_t n)
{
	struct place places[WINDOW];
	uint64_t wanted[2], word;

	/* Step i asks for the buckets of key i, for the entry of key i - AHEAD, and looks at key
	 * i - 2 * AHEAD. */
	for (size_t i = 0; i < n + 2 * (size_t)AHEAD; i++) {
		if (i < n) {
			struct place *place = &places[i % WINDOW];

			memcpy(wanted, &keys[i], sizeof(wanted));
			*place = place_of(index, wanted);
			__builtin_prefetch(&index->buckets[place->bucket[0]]);
			__builtin_prefetch(&index->buckets[place->bucket[1]]);
		}
		if (i >= AHEAD && i - AHEAD < n)
			fetch_entry(index, places[(i - AHEAD) % WINDOW]);
		if (i >= 2 * (size_t)AHEAD) {
			size_t at = i - 2 * (size_t)AHEAD;

			memcpy(wanted, &keys[at], sizeof(wanted));
			if (find_at(index, places[at % WINDOW], wanted, &word) == FM_NO_ENTRY)
				return at;
		}
	}
	return n;
}

int fm_index_insert(struct fm_index *index, uint32_t entry)
{
	struct place place = place_of(index, index->entries[entry].key);
	uint64_t *free_slot[2] = {NULL, NULL};
	uint32_t used[2] = {0, 0};
	uint32_t side;

	for (side = 0; side < 2; side++) {
		struct fm_bucket *bucket = &index->buckets[place.bucket[side]];

		for (uint32_t i = 0; i < FM_BUCKET_SLOTS; i++) {
			if (bucket->slots[i])
				used[side]++;
			else if (!free_slot[side])
				free_slot[side] = &bucket->slots[i];
		}
	}
	side = used[1] < used[0]; /* the emptier of the two */
	if (!free_slot[side])
		return fm_fail(FM_ERR_LIMIT, "both index buckets of this key are full; "
					     "start the daemon with more --entries");
	/* Release: pairs with the acquire in fm_index_find(); the key is there. */
	fm_store_release(free_slot[side], FM_PAIR(place.tag, entry + 1));
	return 0;
}

/* The slot that names @old gets @entry; NONE: nothing. */
static void change_slot(struct fm_index *index, uint32_t old, uint32_t entry)
{
	struct place place = place_of(index, index->entries[old].key);
	uint64_t wanted = FM_PAIR(place.tag, old + 1);
	uint64_t value = entry == FM_NO_ENTRY ? 0 : FM_PAIR(place.tag, entry + 1);

	/* Release: pairs with the acquire in fm_index_find(), as every store of a slot does. */
	for (uint32_t side = 0; side < 2; side++)
		for (uint32_t i = 0; i < FM_BUCKET_SLOTS; i++)
			if (index->buckets[place.bucket[side]].slots[i] == wanted)
				fm_store_release(&index->buckets[place.bucket[side]].slots[i],
						 value);
}

void fm_index_remove(struct fm_index *index, uint32_t entry)
{
	change_slot(index, entry, FM_NO_ENTRY);
}

void fm_index_replace(struct fm_index *index, uint32_t old, uint32_t entry)
{
	change_slot(index, old, entry);
}

uint32_t fm_index_at(const struct fm_index *index, uint32_t bucket, uint32_t slot)
{
	uint64_t value = index->buckets[bucket].slots[slot];
	struct place place;

	if (!value || FM_LOW(value) - 1 >= index->entries_max)
		return FM_NO_ENTRY;
	place = place_of(index, index->entries[FM_LOW(value) - 1].key);
	return place.tag == FM_HIGH(value) &&
			       (place.bucket[0] == bucket || place.bucket[1] == bucket)
		       ? FM_LOW(value) - 1
		       : FM_NO_ENTRY;
}

void fm_index_clear(struct fm_index *index, uint32_t bucket, uint32_t slot)
{
	/* Release, as every store of a slot: pairs with the acquire in find_at(). */
	fm_store_release(&index->buckets[bucket].slots[slot], 0);
}

static uint32_t checksum_of(struct fm_header header)
{
	header.flags &= (uint16_t)~FM_HEADER_ENDED;
	return fm_crc32c(&header, offsetof(struct fm_header, checksum));
}

void fm_header_write(struct fm_header *table, uint32_t entry, struct fm_header header)
{
	uint64_t words[8];

	header.checksum = checksum_of(header);
	memcpy(words, &header, sizeof(words));
	for (int i = 0; i < 8; i++)
		fm_store_relaxed((uint64_t *)&table[entry] + i, words[i]);
}

void fm_header_read(const struct fm_header *table, uint32_t entry, struct fm_header *out)
{
	uint64_t words[8];

	for (int i = 0; i < 8; i++)
		words[i] = fm_load_relaxed((const uint64_t *)&table[entry] + i);
	memcpy(out, words, sizeof(words));
}

void fm_header_end(struct fm_header *table, uint32_t entry)
{
	struct fm_header header;
	uint64_t word;

	fm_header_read(table, entry, &header);
	header.flags |= FM_HEADER_ENDED;
	memcpy(&word, &header, sizeof(word));
	/* Relaxed: for who finds the table without the index; nobody else looks at it. */
	fm_store_relaxed((uint64_t *)&table[entry], word);
}

int fm_header_check(const struct fm_header *header)
{
	if (header->magic != FM_HEADER_MAGIC || header->version != FM_HEADER_VERSION)
		return fm_fail(FM_ERR_CORRUPT, "the block's header has no magic number or version");
	if (header->checksum != checksum_of(*header))
		return fm_fail(FM_ERR_CORRUPT, "the block's header fails its own checksum");
	return 0;
}
