// SPDX-License-Identifier: Apache-2.0
/*
 * How fast chains of 512 keys are found in an index of argv[1] chains, in random order: the
 * function behind fm_pool_match(), on an index without the gigabytes of blocks that it would name.
 * Prints one JSON object, blocks a second of this thread's own time. Invariant: every key is found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/index.h"
#include "timing.h"

#define CHAIN 512u

enum { RUNS = 21, ROUNDS = 400 };

/* Keys are halves of SHA-256: any spread over all bits does. */
static struct fm_key key_of(uint64_t n)
{
	uint64_t words[2] = {n * 0x9e3779b97f4a7c15u, 0};
	struct fm_key key;

	words[0] ^= words[0] >> 29;
	words[0] *= 0xbf58476d1ce4e5b9u;
	words[1] = (words[0] ^ words[0] >> 32) * 0x94d049bb133111ebu;
	memcpy(&key, words, sizeof(key));
	return key;
}

int main(int argc, char **argv)
{
	uint32_t chains = argc > 1 ? (uint32_t)atoi(argv[1]) : 8192, at = 1;
	uint32_t n = chains * CHAIN;
	size_t bytes = fm_index_bytes(n);
	void *memory = aligned_alloc(4096, (bytes + 4095) & ~4095ull);
	struct fm_key *keys = malloc(sizeof(*keys) * n);
	struct fm_index index;
	double runs[RUNS];

	if (!memory || !keys)
		return 1;
	memset(memory, 0, bytes);
	fm_index_format(memory, n, 1, 2);
	if (fm_index_open(&index, memory, bytes))
		return 1;
	for (uint32_t i = 0; i < n; i++) {
		keys[i] = key_of(i);
		fm_key_store(index.entries[i].key, &keys[i]);
		index.entries[i].word = FABRICMGR_WORD(i, FABRICMGR_BLOCK_SEALED);
		if (fm_index_insert(&index, i))
			return 1;
	}
	for (int run = 0; run < RUNS; run++) {
		double begin = own_time();

		for (uint32_t i = 0; i < ROUNDS; i++) {
			at = at * 1664525u + 1013904223u;
			if (fm_index_match(&index, keys + (size_t)((at >> 8) % chains) * CHAIN,
					   CHAIN) != CHAIN)
				return 1;
		}
		runs[run] = ROUNDS * CHAIN / (own_time() - begin);
	}
	printf("{\"match\": %.6g, \"index_bytes\": %zu}\n", median(runs, RUNS), bytes);
	free(memory);
	free(keys);
	return 0;
}
