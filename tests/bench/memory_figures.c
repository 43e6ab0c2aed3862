// SPDX-License-Identifier: Apache-2.0
/*
 * The client of memory.py: so many operations on a daemon's pool, puts, leases and removals of
 * blocks of 4 KiB in an order that looks random, more of them than the pool holds. Arguments: the
 * socket, operations, seed; prints what they were as one JSON object. Invariant: nothing is held or
 * staged when it ends.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#define BLOCK	4096u
#define NUMBERS 5000u
#define BATCH	32u

static void need(int64_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "memory_figures: %s: %s\n", what, fm_error_detail());
		exit(1);
	}
}

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

static struct fm_key key_of(uint64_t number)
{
	struct fm_key key = {{0}};

	number *= 0x9e3779b97f4a7c15u;
	memcpy(key.bytes, &number, sizeof(number));
	memcpy(key.bytes + 8, "memory", 6);
	return key;
}

int main(int argc, char **argv)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .fd = -1, .socket = argc > 1 ? argv[1] : NULL};
	uint64_t wanted = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
	uint64_t puts = 0, fresh = 0, hits = 0, misses = 0, removed = 0;
	static const struct fm_digest ns;
	static char data[BLOCK];
	struct fm_pool *pool;

	need(fm_pool_attach(&options, &pool), "attach");
	for (uint64_t done = 0; done < wanted; done += BATCH) {
		uint64_t what = draw(&state) % 10;
		struct fm_put batch[BATCH];
		struct fm_key keys[BATCH];

		for (uint32_t i = 0; i < BATCH; i++) {
			keys[i] = key_of(draw(&state) % NUMBERS);
			batch[i] = (struct fm_put){
				.key = keys[i], .data = data, .length = sizeof(data)};
		}
		if (what < 6) {
			int err = fm_pool_put(pool, &ns, batch, BATCH, 0);

			/* The same number twice in a batch. */
			need(err == FM_ERR_EXISTS ? 0 : err, "put");
			puts += BATCH;
			for (uint32_t i = 0; i < BATCH; i++)
				fresh += !batch[i].result;
		} else if (what < 9) {
			for (uint32_t i = 0; i < BATCH; i++) {
				struct fm_block block;
				int64_t got = fm_pool_acquire(pool, &keys[i], 1, &block);

				need(got, "acquire");
				fm_block_release(pool, &block, (size_t)got);
				hits += got == 1;
				misses += got == 0;
			}
		} else {
			int64_t gone = fm_pool_remove(pool, keys, BATCH);

			need(gone, "remove");
			removed += (uint64_t)gone;
		}
	}
	fm_pool_detach(pool);
	printf("{\"puts\": %llu, \"fresh\": %llu, \"hits\": %llu, \"misses\": %llu, "
	       "\"removed\": %llu}\n",
	       (unsigned long long)puts, (unsigned long long)fresh, (unsigned long long)hits,
	       (unsigned long long)misses, (unsigned long long)removed);
	return 0;
}
