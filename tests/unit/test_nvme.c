// SPDX-License-Identifier: Apache-2.0
/*
 * The NVMe tier on a device that loses power, fails and reorders (fake_device.h), and on files. A
 * model says which blocks must be found after each power cut and which bytes may be; CUTS (1200)
 * and CUT_SEED choose how many and which.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "base/crc32c.h"
#include "fake_device.h"
#include "scratch.h"
#include "core/segment_map.h"
#include "tier/nvme.h"

#define SEGMENT	 (64u << 10)
#define SEGMENTS 8u
#define BYTES	 ((1u << 20) + SEGMENTS * SEGMENT)
/* Keys of blocks alone, then groups of three. */
#define SINGLES	  24u
#define MEMBERS	  3u
#define GROUPS	  4u
#define KEYS	  (SINGLES + GROUPS * MEMBERS)
#define VERSIONS  64u
#define SLOTS	  64u
#define BLOCK_MAX (20u << 10)

/* What may and must be found of one key. A version is a content. */
struct item {
	uint64_t allowed;      /* bit: this version may be found */
	uint64_t since_remove; /* bits begun after the last removal was asked for */
	uint32_t version;      /* the last one written */
	uint32_t current;      /* the one that is in the log, if any is */
	int must;	       /* this version has to be found; -1: none */
	uint64_t removal;      /* number to wait for; 0: none */
};

/* A write on its way; its memory stays as it is until the tier gives it back. */
struct slot {
	unsigned char *memory;
	uint32_t key, version, cycle;
	bool is_used;
};

struct world {
	struct fm_nvme *nvme;
	struct fake_device *fake;
	struct item items[KEYS];
	struct slot slots[SLOTS];
	uint32_t cycles[KEYS]; /* removals asked for so far */
	uint64_t seed;
	uint32_t cuts, cuts_wanted, boundaries, found, torn, groups;
	uint32_t per_boundary;
	bool is_durable;
	int read_result;
	bool has_read;
	bool counts_failures; /* they are expected */
	bool is_gone;	      /* what is stored from now on is not in the image */
	uint32_t failures;
	unsigned char *read_memory;
};

static void key_of(uint32_t key, struct fm_key *out)
{
	memset(out, 0, sizeof(*out));
	out->bytes[0] = (uint8_t)key;
	out->bytes[15] = 0x5a;
}

/* The first key of its group, or itself; and how many there are. */
static uint32_t first_of(uint32_t key)
{
	return key < SINGLES ? key : key - (key - SINGLES) % MEMBERS;
}

static uint32_t size_of(uint32_t key)
{
	return key < SINGLES ? 1 : MEMBERS;
}

static uint8_t ns_of(uint32_t key)
{
	return key < SINGLES ? key & 1 : (key - SINGLES) / MEMBERS & 1;
}

static uint32_t length_of(uint32_t key, uint32_t version)
{
	uint64_t seed = key * 1000ull + version;

	return 1 + (uint32_t)(fake_random(&seed) % BLOCK_MAX);
}

static void fill(uint32_t key, uint32_t version, unsigned char *out)
{
	uint64_t seed = key * 7919ull + version * 104729ull;

	for (uint32_t at = 0; at < BLOCK_MAX; at += 8) {
		uint64_t word = fake_random(&seed);

		memcpy(out + at, &word, 8);
	}
}

static void on_written(void *context, void *tag, int result)
{
	struct world *world = context;
	struct slot *slot = tag;
	struct item *item = &world->items[slot->key];

	ck_assert(slot->is_used);
	slot->is_used = false;
	if (result) {
		ck_assert(world->counts_failures);
		world->failures++;
	} else if (!world->is_gone && slot->cycle == world->cycles[slot->key] &&
		   item->current == slot->version) {
		item->must = (int)slot->version;
	}
}

static void on_read(void *context, void *tag, const struct fm_log_place *place, int result)
{
	struct world *world = context;

	(void)tag;
	(void)place;
	world->has_read = true;
	world->read_result = result;
}

static const uint16_t marks[FM_TENANTS_MAX - 1] = {7, 8};

/* Whose block it is; the last are nobody's that is counted apart. */
static uint16_t mark_of(uint32_t key)
{
	static const uint16_t all[] = {7, 8, 0, 9};

	return all[(key < SINGLES ? key : (key - SINGLES) / MEMBERS) % 4];
}

static struct fm_nvme *open_on(struct fake_device *fake, struct world *world, uint64_t run,
			       int expected)
{
	struct fm_nvme_options options = {
		.device = &fake->device,
		.segment_bytes = SEGMENT,
		.is_durable = world->is_durable,
		.entries_max = 64,
		.marks = marks,
		.run = run,
		.context = world,
		.written = on_written,
		.read = on_read,
	};
	struct fm_nvme *nvme = NULL;
	int err = fm_nvme_open(&options, &nvme);

	if (expected <= 0)
		ck_assert_msg(err == expected, "%d %s", err, fm_error_detail());
	return err ? NULL : nvme;
}

/* Version of @key that @nvme serves, -1: none, -2: found but not readable. */
static int serve(struct fm_nvme *nvme, struct world *world, uint32_t key)
{
	static unsigned char expected[BLOCK_MAX];
	struct fm_log_place place;
	struct fm_key name;

	key_of(key, &name);
	if (!fm_log_find(fm_nvme_log(nvme), &name, &place))
		return -1;
	world->has_read = false;
	ck_assert_int_eq(
		fm_nvme_read(nvme, &place, world->read_memory, FM_DEVICE_UNREGISTERED, NULL), 0);
	while (!world->has_read)
		fm_nvme_pump(nvme, true);
	/* Reclaimed meanwhile; there may be a second copy. */
	if (world->read_result == FM_ERR_NOT_FOUND)
		return serve(nvme, world, key);
	if (world->read_result)
		return -2;
	for (uint32_t version = 0; version < VERSIONS; version++) {
		if (length_of(key, version) != place.block.length)
			continue;
		fill(key, version, expected);
		if (!memcmp(expected, world->read_memory, place.block.length))
			return (int)version;
	}
	ck_abort_msg("key %u: bytes that nobody wrote", key);
}

/* What the running log still has: blocks that were reclaimed need not be found. */
static void note_there(struct fm_nvme *nvme, bool *is_there)
{
	for (uint32_t key = 0; key < KEYS; key++) {
		struct fm_log_place place;
		struct fm_key name;

		key_of(key, &name);
		is_there[key] = fm_log_find(fm_nvme_log(nvme), &name, &place);
	}
}

/* All that the model says of what @nvme, opened after a cut or a restart, serves. */
static void compare(struct world *world, struct fm_nvme *nvme, const bool *is_there)
{
	int versions[KEYS];
	bool is_found[KEYS];

	note_there(nvme, is_found);
	for (uint32_t key = SINGLES; key < KEYS; key++)
		ck_assert_msg(is_found[key] == is_found[first_of(key)],
			      "a part of the group of key %u is found (cut %u)", key, world->cuts);
	for (uint32_t key = 0; key < KEYS; key++) {
		const struct item *item = &world->items[key];
		int version = versions[key] = serve(nvme, world, key);
		/* Torn blocks that are met here are removed, and that may take a segment. */
		bool may_be_gone = version < 0 && fm_nvme_log(nvme)->next > 1;

		if (nvme == world->nvme && version >= 0)
			world->items[key].current = (uint32_t)version;
		if (version >= 0) {
			ck_assert_msg(item->allowed >> version & 1,
				      "key %u: version %d came back (allowed %llx, cut %u)", key,
				      version, (unsigned long long)item->allowed, world->cuts);
			world->found++;
		}
		world->torn += version == -2;
		if (is_there[key] && item->must >= 0)
			ck_assert_msg(is_found[key] && (version == item->must || may_be_gone),
				      "key %u: version %d was durable, %d is found (cut %u)", key,
				      item->must, version, world->cuts);
	}
	for (uint32_t key = SINGLES; key < KEYS; key += MEMBERS) {
		uint32_t whole = 0;

		for (uint32_t i = 0; i < MEMBERS; i++) {
			ck_assert(versions[key + i] < 0 || versions[key] < 0 ||
				  versions[key + i] == versions[key]);
			whole += versions[key + i] >= 0;
		}
		world->groups += whole == MEMBERS;
	}
}

static void on_boundary(void *context)
{
	struct world *world = context;
	static unsigned char image[BYTES];
	bool is_there[KEYS];

	world->boundaries++;
	if (!world->nvme)
		return;
	note_there(world->nvme, is_there);
	for (uint32_t i = 0; i < world->per_boundary; i++) {
		struct fake_device *fake;
		struct fm_nvme *nvme;
		uint64_t seed = fake_random(&world->seed);

		fake_device_cut(world->fake, seed, image);
		fake = fake_device_create(BYTES, seed, image);
		nvme = open_on(fake, world, 0, 0);
		compare(world, nvme, is_there);
		world->cuts++;
		fm_nvme_close(nvme);
	}
}

/* ---- the script ---- */

static void note_removals(struct world *world)
{
	uint64_t stored = fm_log_removals_stored(fm_nvme_log(world->nvme));

	for (uint32_t key = 0; key < KEYS; key++) {
		struct item *item = &world->items[key];

		if (item->removal && item->removal <= stored) {
			item->allowed &= item->since_remove;
			item->removal = 0;
		}
	}
}

/* A version of a block that is new, in a slot of its own. */
static struct slot *prepare(struct world *world, uint32_t key, struct fm_log_block *block)
{
	struct item *item = &world->items[key];
	struct slot *slot = world->slots;

	while (slot < world->slots + SLOTS && slot->is_used)
		slot++;
	if (slot == world->slots + SLOTS)
		return NULL;
	slot->is_used = true;
	slot->key = key;
	slot->version = item->version + 1;
	slot->cycle = world->cycles[key];
	fill(key, slot->version, slot->memory);
	*block = (struct fm_log_block){.length = length_of(key, slot->version)};
	key_of(key, &block->key);
	block->crc32c = fm_crc32c(slot->memory, block->length);
	block->ns[0] = ns_of(key);
	item->allowed |= 1ull << slot->version;
	return slot;
}

/* All members, each of the same version, or none. */
static void step_write_group(struct world *world, uint32_t first)
{
	struct slot *slots[MEMBERS] = {NULL};
	struct fm_log_block blocks[MEMBERS];
	void *memory[MEMBERS], *tags[MEMBERS];
	uint32_t buffers[MEMBERS], n = 0;
	int err = 0;

	if (world->items[first].version + 1 == VERSIONS)
		return;
	for (; n < MEMBERS; n++) {
		slots[n] = prepare(world, first + n, &blocks[n]);
		if (!slots[n])
			break;
		memory[n] = slots[n]->memory;
		tags[n] = slots[n];
		buffers[n] = FM_DEVICE_UNREGISTERED;
	}
	if (n == MEMBERS)
		err = fm_nvme_write_group(world->nvme, blocks, MEMBERS, mark_of(first), memory,
					  buffers, tags);
	for (uint32_t i = 0; i < n; i++) {
		struct item *item = &world->items[first + i];

		if (n < MEMBERS || err) {
			slots[i]->is_used = false;
			item->allowed &= ~(1ull << slots[i]->version);
			continue;
		}
		item->must = -1;
		item->current = item->version = slots[i]->version;
		item->since_remove |= 1ull << slots[i]->version;
	}
}

static void step_write(struct world *world, uint32_t key)
{
	struct item *item = &world->items[key];
	struct slot *slot = world->slots;
	struct fm_log_block block = {0};
	struct fm_log_place place;
	uint64_t rewritten = fm_nvme_log(world->nvme)->counters.rewritten;
	int err;

	if (key >= SINGLES) {
		step_write_group(world, first_of(key));
		return;
	}
	while (slot < world->slots + SLOTS && slot->is_used)
		slot++;
	key_of(key, &block.key);
	if (slot == world->slots + SLOTS || item->version + 1 == VERSIONS)
		return;
	/* A new content only after the old was removed; else the same once more. */
	slot->version = item->current;
	if (!fm_log_find(fm_nvme_log(world->nvme), &block.key, &place) &&
	    !fm_log_has(fm_nvme_log(world->nvme), &block.key, &block.length, &block.crc32c))
		slot->version = item->version + 1;
	slot->key = key;
	slot->cycle = world->cycles[key];
	fill(key, slot->version, slot->memory);
	block.length = length_of(key, slot->version);
	block.crc32c = fm_crc32c(slot->memory, block.length);
	block.ns[0] = ns_of(key);
	/* The submission of a full batch inside is a boundary already. */
	slot->is_used = true;
	item->allowed |= 1ull << slot->version;
	err = fm_nvme_write(world->nvme, &block, mark_of(key), slot->memory, FM_DEVICE_UNREGISTERED,
			    slot);
	if (err) {
		slot->is_used = false;
		if (slot->version > item->version)
			item->allowed &= ~(1ull << slot->version);
		return;
	}
	/* The stored copy is not there any more, unless this is a second one of it. */
	if (fm_nvme_log(world->nvme)->counters.rewritten == rewritten)
		item->must = -1;
	item->current = slot->version;
	if (slot->version > item->version)
		item->version = slot->version;
	item->since_remove |= 1ull << slot->version;
}

static void asked_to_remove(struct world *world, uint32_t key)
{
	struct item *item = &world->items[key];

	item->must = -1;
	item->since_remove = 0;
	item->removal = fm_nvme_log(world->nvme)->removals;
	world->cycles[key]++;
	if (!item->removal)
		item->allowed = 0;
}

/* With what comes and goes with it. */
static void remove_key(struct world *world, uint32_t key)
{
	struct fm_key name;

	key_of(key, &name);
	fm_log_remove(fm_nvme_log(world->nvme), &name);
	for (uint32_t i = 0; i < size_of(key); i++)
		asked_to_remove(world, first_of(key) + i);
}

/* The accounts are a recount. */
static void compare_accounts(const struct fm_log *log)
{
	uint64_t bytes[3] = {0};

	for (uint32_t i = 0; i < log->options.entries_max; i++) {
		const struct fm_log_entry *entry = &log->entries[i];

		if (entry->state == FM_LOG_PENDING || entry->state == FM_LOG_LIVE)
			bytes[entry->mark == 7	 ? 1
			      : entry->mark == 8 ? 2
						 : 0] +=
				(uint64_t)fm_log_pages(entry->block.length) * FM_LOG_PAGE;
	}
	if (bytes[0] != fm_log_marked_bytes(log, 0) || bytes[1] != fm_log_marked_bytes(log, 7) ||
	    bytes[2] != fm_log_marked_bytes(log, 8))
		ck_abort_msg("counted %llu %llu %llu", (unsigned long long)bytes[0],
			     (unsigned long long)bytes[1], (unsigned long long)bytes[2]);
}

static bool has_key(struct world *world, uint32_t key)
{
	struct fm_key name;
	uint32_t length, crc32c;

	key_of(key, &name);
	return fm_log_has(fm_nvme_log(world->nvme), &name, &length, &crc32c);
}

/* The oldest of those marked 7 goes, with its group, and none else. */
static void step_give_up(struct world *world)
{
	bool had[KEYS], gave;
	uint32_t gone = 0;

	for (uint32_t key = 0; key < KEYS; key++)
		had[key] = has_key(world, key);
	gave = fm_log_give_up(fm_nvme_log(world->nvme), 7);
	for (uint32_t key = 0; key < KEYS; key++) {
		if (!had[key] || has_key(world, key))
			continue;
		ck_assert_uint_eq(mark_of(key), 7);
		asked_to_remove(world, key);
		gone++;
	}
	ck_assert(gave ? gone == 1 || gone == MEMBERS : !gone);
}

/* A namespace goes as a whole, or what is of one mark there and nothing else. */
static void step_invalidate(struct world *world, uint8_t name, int32_t mark)
{
	uint8_t ns[16] = {name};
	uint32_t there = 0;
	bool had[KEYS];

	for (uint32_t key = 0; key < KEYS; key++)
		had[key] = has_key(world, key);
	for (uint32_t key = 0; key < KEYS; key++)
		there += ns_of(key) == name && had[key] &&
			 (mark == FM_LOG_ANY || mark_of(key) == mark);
	ck_assert_uint_eq(fm_log_invalidate(fm_nvme_log(world->nvme), ns, mark), there);
	for (uint32_t key = 0; key < KEYS; key++) {
		bool goes = ns_of(key) == name && (mark == FM_LOG_ANY || mark_of(key) == mark);

		ck_assert(has_key(world, key) == (had[key] && !goes));
		if (goes)
			asked_to_remove(world, key);
	}
}

static void step(struct world *world)
{
	uint32_t key = (uint32_t)(fake_random(&world->seed) % KEYS);
	uint64_t kind = fake_random(&world->seed) % 32;

	if (kind < 20) {
		step_write(world, key);
	} else if (kind < 24) {
		remove_key(world, key);
	} else if (kind == 24) {
		step_invalidate(world, ns_of(key), key % 3 ? FM_LOG_ANY : mark_of(key));
	} else if (kind == 25) {
		step_give_up(world);
	} else {
		fm_nvme_pump(world->nvme, kind & 1);
	}
	compare_accounts(fm_nvme_log(world->nvme));
	note_removals(world);
}

static void world_start(struct world *world, uint64_t seed, bool is_durable)
{
	memset(world, 0, sizeof(*world));
	world->seed = seed;
	world->is_durable = is_durable;
	for (uint32_t i = 0; i < KEYS; i++)
		world->items[i].must = -1;
	for (uint32_t i = 0; i < SLOTS; i++)
		world->slots[i].memory = aligned_alloc(4096, BLOCK_MAX);
	world->read_memory = aligned_alloc(4096, BLOCK_MAX);
}

static void world_end(struct world *world)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		free(world->slots[i].memory);
	free(world->read_memory);
}

static void world_open(struct world *world, const void *image)
{
	world->nvme = NULL;
	world->fake = fake_device_create(BYTES, fake_random(&world->seed), image);
	world->fake->boundary = on_boundary;
	world->fake->context = world;
	world->nvme = open_on(world->fake, world, fake_random(&world->seed), 0);
}

/* The machine comes up after a cut: what is served now is there, what was on its way is not. */
static void world_cut(struct world *world)
{
	static unsigned char image[BYTES];
	struct fm_nvme *gone = world->nvme;
	bool is_there[KEYS];

	note_there(world->nvme, is_there);
	fake_device_cut(world->fake, fake_random(&world->seed), image);
	world->fake->boundary = NULL;
	world->nvme = NULL;
	world->is_gone = true;
	fm_nvme_close(gone);
	for (uint32_t i = 0; i < SLOTS; i++)
		ck_assert(!world->slots[i].is_used);
	world->is_gone = false;
	world_open(world, image);
	world->fake->boundary = NULL; /* one comparison at a time */
	compare(world, world->nvme, is_there);
	world->fake->boundary = on_boundary;
	for (uint32_t key = 0; key < KEYS; key++) {
		struct item *item = &world->items[key];

		/* Reclaimed: it may be there again, but nobody promised it. */
		if (!is_there[key])
			item->must = -1;
		/* A removal that was not stored happened or did not: ask again. */
		if (item->removal)
			remove_key(world, key);
	}
}

static uint32_t setting(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void cut_often(bool is_durable, uint32_t wanted)
{
	struct world world;
	uint32_t lives = 0;

	world_start(&world, setting("CUT_SEED", 1), is_durable);
	world.per_boundary = is_durable ? 2 : 1;
	world_open(&world, NULL);
	while (world.cuts < wanted) {
		for (uint32_t i = 0; i < 120 && world.cuts < wanted; i++)
			step(&world);
		world_cut(&world);
		/* Versions end: a new set of keys' contents begins with an empty log. */
		for (uint32_t key = 0; key < KEYS; key++)
			ck_assert_uint_lt(world.items[key].version, VERSIONS);
		lives++;
	}
	printf("NOTE: %u power cuts at %u boundaries in %u lives: %u blocks served, %u whole "
	       "groups, %u torn\n",
	       world.cuts, world.boundaries, lives, world.found, world.groups, world.torn);
	ck_assert_uint_gt(world.found, 1000);
	ck_assert_uint_gt(world.groups, 100);
	ck_assert_uint_gt(world.torn, 0);
	world.per_boundary = 0;
	fm_nvme_close(world.nvme);
	world_end(&world);
}

START_TEST(nothing_durable_is_lost_and_nothing_torn_is_served)
{
	cut_often(true, setting("CUTS", 1200));
}
END_TEST

START_TEST(without_durability_the_same_holds_for_what_was_told)
{
	struct world world;

	/* A cut may take what was stored; what comes back is still never torn, nor removed. */
	world_start(&world, setting("CUT_SEED", 1), false);
	world_open(&world, NULL);
	for (uint32_t life = 0; life < 20; life++) {
		bool is_there[KEYS] = {false};

		for (uint32_t i = 0; i < 200; i++)
			step(&world);
		while (fm_log_is_busy(fm_nvme_log(world.nvme)))
			fm_nvme_pump(world.nvme, true);
		note_removals(&world);
		/* The process dies, the machine does not: all that was written is there. */
		note_there(world.nvme, is_there);
		struct fake_device *old = world.fake;
		struct fm_nvme *gone = world.nvme;
		unsigned char *image = malloc(BYTES);

		memcpy(image, old->current, BYTES);
		old->boundary = NULL;
		fm_nvme_close(gone);
		world_open(&world, image);
		compare(&world, world.nvme, is_there);
		free(image);
	}
	fm_nvme_close(world.nvme);
	world_end(&world);
}
END_TEST

/* An event of the device comes as long as it has something: nothing else may wake who waits. */
START_TEST(who_waits_when_nothing_came_has_nothing_left_to_do)
{
	struct world world;

	world_start(&world, 5, true);
	world_open(&world, NULL);
	for (uint32_t i = 0; i < 2000; i++) {
		for (uint64_t n = fake_random(&world.seed) % 6; n; n--)
			step(&world);
		do {
			while (fm_nvme_pump(world.nvme, false))
				;
		} while (world.fake->queued);
		ck_assert_msg(!fm_log_is_busy(fm_nvme_log(world.nvme)), "asleep in step %u", i);
		note_removals(&world);
	}
	fm_nvme_close(world.nvme);
	world_end(&world);
}
END_TEST

/* One life with a device on which the n-th operation fails; the number of operations it took. */
static uint64_t live_with_fault(uint64_t n, bool fails_on, bool is_torn)
{
	struct world world;
	struct fm_nvme *nvme;
	uint64_t operations;
	unsigned char *image = malloc(BYTES);
	bool is_there[KEYS] = {false};

	world_start(&world, 7, true);
	world.counts_failures = true;
	world.fake = fake_device_create(BYTES, 11, NULL);
	world.fake->fail_at = n;
	world.fake->fails_on = fails_on;
	world.fake->fails_torn = is_torn;
	world.nvme = open_on(world.fake, &world, 99, 1);
	if (!world.nvme) {
		/* Refused, with a reason; the device was closed. */
		ck_assert_str_ne(fm_error_detail(), "");
		free(image);
		world_end(&world);
		return UINT64_MAX;
	}
	for (uint32_t i = 0; i < 500; i++) {
		step(&world);
		if (i % 16 == 0) {
			int version = serve(world.nvme, &world, i % KEYS);

			ck_assert(version < 0 || world.items[i % KEYS].allowed >> version & 1);
		}
	}
	for (uint32_t i = 0; i < 400 && fm_log_is_busy(fm_nvme_log(world.nvme)); i++)
		fm_nvme_pump(world.nvme, true);
	note_removals(&world);
	operations = world.fake->operations;
	/* What a later start finds on the same device, sound again. */
	memcpy(image, world.fake->current, BYTES);
	for (uint32_t key = 0; key < KEYS; key++)
		world.items[key].must = -1;
	fm_nvme_close(world.nvme);
	for (uint32_t i = 0; i < SLOTS; i++)
		ck_assert(!world.slots[i].is_used);
	world.fake = fake_device_create(BYTES, 12, image);
	nvme = open_on(world.fake, &world, 100, 1);
	/* A superblock that was being written may be broken: then it is refused. */
	if (nvme)
		compare(&world, nvme, is_there);
	else
		ck_assert_uint_le(n, 8);
	fm_nvme_close(nvme);
	free(image);
	world_end(&world);
	return operations;
}

static void fail_each(bool fails_on, bool is_torn)
{
	uint64_t operations = live_with_fault(0, false, false), refused = 0;

	ck_assert_uint_lt(operations, UINT64_MAX);
	ck_assert_uint_gt(operations, 100);
	for (uint64_t n = 1; n <= operations; n++)
		refused += live_with_fault(n, fails_on, is_torn) == UINT64_MAX;
	printf("NOTE: each of %llu operations failed%s%s; %llu times it did not start\n",
	       (unsigned long long)operations, fails_on ? " with all after it" : "",
	       is_torn ? " half done" : "", (unsigned long long)refused);
	ck_assert_uint_lt(refused, 10);
}

START_TEST(each_operation_may_fail)
{
	fail_each(_i & 1, _i & 2);
}
END_TEST

/* ---- files ---- */

static char folder[SCRATCH_MAX], path[SCRATCH_MAX + 8];

static void make_folder(void)
{
	scratch_folder(folder);
	snprintf(path, sizeof(path), "%s/log", folder);
}

static void remove_folder(void)
{
	unlink(path);
	ck_assert_int_eq(rmdir(folder), 0);
}

static int open_file(struct world *world, uint64_t bytes, struct fm_nvme **out)
{
	struct fm_nvme_options options = {
		.path = path,
		.bytes = bytes,
		.segment_bytes = 1 << 20,
		.is_durable = true,
		.context = world,
		.written = on_written,
		.read = on_read,
	};

	*out = NULL;
	return fm_nvme_open(&options, out);
}

/* Writes version 1 of each key and waits until all are stored. */
static void store_all(struct world *world)
{
	for (uint32_t key = 0; key < KEYS; key++) {
		uint32_t length, crc32c;
		struct fm_key name;

		key_of(key, &name);
		while (!fm_log_has(fm_nvme_log(world->nvme), &name, &length, &crc32c)) {
			step_write(world, key);
			fm_nvme_pump(world->nvme, false);
		}
	}
	while (fm_log_is_busy(fm_nvme_log(world->nvme)))
		fm_nvme_pump(world->nvme, true);
	for (uint32_t key = 0; key < KEYS; key++)
		ck_assert_int_ge(world->items[key].must, 1);
}

static void expect_all(struct world *world, uint32_t least)
{
	uint32_t n = 0;

	for (uint32_t key = 0; key < KEYS; key++) {
		int version = serve(world->nvme, world, key);

		ck_assert_int_ge(version, -1);
		n += version >= 1 && version == world->items[key].must;
	}
	ck_assert_uint_ge(n, least);
}

START_TEST(a_file_keeps_its_blocks_and_may_grow_and_shrink)
{
	struct fm_nvme_info info;
	struct world world;
	struct stat status;

	world_start(&world, 1, true);
	ck_assert_msg(!open_file(&world, 8 << 20, &world.nvme), "%s", fm_error_detail());
	store_all(&world);
	fm_nvme_info(world.nvme, &info);
	ck_assert_uint_eq(info.segments, 7);
	ck_assert_ptr_nonnull(strstr(info.rung, "io_uring"));
	fm_nvme_close(world.nvme);
	ck_assert_int_eq(stat(path, &status), 0);
	ck_assert_int_eq(status.st_size, 8 << 20);
	/* Allocated, not a hole. */
	ck_assert_int_ge(status.st_blocks * 512, 8 << 20);
	ck_assert_int_eq(status.st_mode & 0777, 0600);

	ck_assert_int_eq(open_file(&world, 0, &world.nvme), 0);
	expect_all(&world, KEYS);
	fm_nvme_close(world.nvme);
	ck_assert_int_eq(open_file(&world, 16 << 20, &world.nvme), 0);
	expect_all(&world, KEYS);
	fm_nvme_info(world.nvme, &info);
	ck_assert_uint_eq(info.segments, 15);
	fm_nvme_close(world.nvme);
	/* Smaller: some of it is left, and nothing wrong. */
	ck_assert_int_eq(open_file(&world, 6 << 20, &world.nvme), 0);
	expect_all(&world, 0);
	store_all(&world);
	fm_nvme_close(world.nvme);
	/* Cut from outside: what was there is longer than what is. */
	ck_assert_int_eq(truncate(path, 5 << 20), 0);
	ck_assert_int_eq(open_file(&world, 0, &world.nvme), 0);
	expect_all(&world, 0);
	fm_nvme_close(world.nvme);
	world_end(&world);
}
END_TEST

START_TEST(one_file_has_one_user)
{
	struct fm_nvme *first, *second;
	struct world world;

	world_start(&world, 1, true);
	ck_assert_int_eq(open_file(&world, 8 << 20, &first), 0);
	ck_assert_int_eq(open_file(&world, 8 << 20, &second), FM_ERR_BUSY);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "another process uses it"));
	fm_nvme_close(first);
	world_end(&world);
}
END_TEST

START_TEST(what_is_no_log_is_refused_and_left_alone)
{
	struct world world;
	char byte = 0;
	int fd = open(path, O_CREAT | O_RDWR, 0600);

	ck_assert_int_eq(ftruncate(fd, 8 << 20), 0);
	ck_assert_int_eq(pwrite(fd, "my thesis", 9, 0), 9);
	world_start(&world, 1, true);
	ck_assert_int_eq(open_file(&world, 8 << 20, &world.nvme), FM_ERR_INVALID);
	ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
	ck_assert_int_eq(byte, 'm');
	close(fd);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(open_file(&world, 2 << 20, &world.nvme), FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "at least 4 are needed: give it 5 MiB"));
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(open_file(&world, 1ull << 55, &world.nvme), FM_ERR_IO);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "MiB left"));
	ck_assert_int_ne(access(path, F_OK), 0);
	world_end(&world);
}
END_TEST

static Suite *nvme_suite(void)
{
	Suite *suite = suite_create("nvme");
	TCase *tests = tcase_create("power");

	tcase_set_timeout(tests, 300);
	tcase_add_test(tests, nothing_durable_is_lost_and_nothing_torn_is_served);
	tcase_add_test(tests, without_durability_the_same_holds_for_what_was_told);
	tcase_add_test(tests, who_waits_when_nothing_came_has_nothing_left_to_do);
	tcase_add_loop_test(tests, each_operation_may_fail, 0, 4);
	suite_add_tcase(suite, tests);
	tests = tcase_create("files");
	tcase_set_timeout(tests, 60);
	tcase_add_checked_fixture(tests, make_folder, remove_folder);
	tcase_add_test(tests, a_file_keeps_its_blocks_and_may_grow_and_shrink);
	tcase_add_test(tests, one_file_has_one_user);
	tcase_add_test(tests, what_is_no_log_is_refused_and_left_alone);
	suite_add_tcase(suite, tests);
	return suite;
}

int main(void)
{
	SRunner *runner = srunner_create(nvme_suite());
	int failed;

	/* Every torn block would be told. */
	fm_log_set_level(FM_LOG_ERROR);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
