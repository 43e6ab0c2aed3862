// SPDX-License-Identifier: Apache-2.0
/*
 * Times of the pool's own calls on one core, for the scripts beside it: a server in this process, a
 * client, and the machine's limit measured in turn with it. Prints one JSON object. Invariant: ours
 * and the limit move the same bytes, in the same order, in turns.
 */
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "timing.h"

#define VALUE	  (2u << 20)
#define CHAIN	  512u
#define PER_BLOCK 16u

static struct fm_server *server;
static struct fm_pool *pool;
static const struct fm_digest ns = {{7}};

static void need(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "pool_figures: %s: %s\n", what, fm_error_detail());
		exit(1);
	}
}

static void *serve(void *argument)
{
	(void)argument;
	need(fm_server_run(server), "serving");
	return NULL;
}

static struct fm_pool *attach(uint32_t flags)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .leases = 65536, .flags = flags};
	struct fm_pool *attached;

	need(fm_server_connect(server, &options.fd), "connecting");
	need(fm_pool_attach(&options, &attached), "attaching");
	return attached;
}

static pthread_t start(uint64_t bytes, uint32_t entries)
{
	struct fm_server_options options = {
		.size = sizeof(options), .pool_bytes = bytes, .entries_max = entries};
	pthread_t thread;

	need(fm_server_create(&options, &server), "a pool");
	if (pthread_create(&thread, NULL, serve, NULL))
		exit(1);
	pool = attach(0);
	return thread;
}

/* Chains of CHAIN small blocks each, in the pool. */
static struct fm_key *fill_chains(uint32_t chains, uint32_t **tokens)
{
	struct fm_key *keys = malloc(sizeof(*keys) * chains * CHAIN);
	static unsigned char data[64];

	*tokens = malloc(sizeof(**tokens) * chains * CHAIN * PER_BLOCK);
	for (uint32_t i = 0; i < chains * CHAIN * PER_BLOCK; i++)
		(*tokens)[i] = i * 2654435761u >> 12;
	for (uint32_t c = 0; c < chains; c++) {
		struct fm_put puts[CHAIN];

		need(fm_chain_keys(&ns, *tokens + (size_t)c * CHAIN * PER_BLOCK, CHAIN, PER_BLOCK,
				   NULL, 0, keys + c * CHAIN, NULL),
		     "keys");
		for (uint32_t i = 0; i < CHAIN; i++)
			puts[i] = (struct fm_put){.key = keys[c * CHAIN + i],
						  .parent = i ? &keys[c * CHAIN + i - 1] : NULL,
						  .data = data,
						  .length = sizeof(data)};
		need(fm_pool_put(pool, &ns, puts, CHAIN, 0), "filling");
	}
	return keys;
}

/* Blocks a second that a look-up of whole chains finds; from keys, and from tokens. */
static void match(uint32_t chains)
{
	pthread_t thread = start((uint64_t)chains * CHAIN * 4096 + (64 << 20), chains * CHAIN * 2);
	double by_keys[50], by_tokens[50];
	struct fm_key *keys;
	uint32_t *tokens, at = 1;

	keys = fill_chains(chains, &tokens);
	for (int run = 0; run < 50; run++) {
		uint32_t rounds = 200;
		double begin = own_time();

		for (uint32_t i = 0; i < rounds; i++) {
			at = at * 1664525u + 1013904223u;
			if (fm_pool_match(pool, keys + (at >> 8) % chains * CHAIN, CHAIN) != CHAIN)
				exit(1);
		}
		by_keys[run] = rounds * CHAIN / (own_time() - begin);
		begin = own_time();
		for (uint32_t i = 0; i < rounds / 10; i++) {
			const uint32_t *chain;

			at = at * 1664525u + 1013904223u;
			chain = tokens + (size_t)((at >> 8) % chains) * CHAIN * PER_BLOCK;
			if (fm_pool_match_tokens(pool, &ns, chain, CHAIN * PER_BLOCK, PER_BLOCK,
						 NULL, 0) != CHAIN)
				exit(1);
		}
		by_tokens[run] = rounds / 10 * CHAIN / (own_time() - begin);
	}
	printf("{\"match\": %.6g, \"match_tokens\": %.6g}\n", median(by_keys, 50),
	       median(by_tokens, 50));
	(void)thread;
}

#ifdef __x86_64__
static void stream_words(char *to, const char *from)
{
	for (size_t i = 0; i < VALUE; i += 8) {
		long long word;

		memcpy(&word, from + i, 8);
		__builtin_ia32_movnti64((long long *)(void *)(to + i), word);
	}
	__builtin_ia32_sfence();
}

__attribute__((target("avx512f"))) static void stream_lines(char *to, const char *from)
{
	for (size_t i = 0; i < VALUE; i += 64)
		_mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
	__builtin_ia32_sfence();
}
#endif

static double time_of(void (*copy)(char *to, const char *from), char *to, const char *from)
{
	double begin = now();

	copy(to, from);
	return now() - begin;
}

static void copy_plainly(char *to, const char *from)
{
	memcpy(to, from, VALUE);
}

/* The fastest of a plain copy and those that pass by the cache, which is what a limit is. @others
 * are VALUE apart, so that no copy finds in the cache what another left there. */
static double copy_limit(char *to, const char *from, const size_t others[3])
{
	double best = time_of(copy_plainly, to + others[0], from + others[0]);
#ifdef __x86_64__
	double words = time_of(stream_words, to + others[1], from + others[1]), lines = words;

	if (__builtin_cpu_supports("avx512f"))
		lines = time_of(stream_lines, to + others[2], from + others[2]);
	best = best < words ? best : words;
	best = best < lines ? best : lines;
#endif
	return best;
}

enum { VALUES = 64, ROUNDS = 6, SEALS = 400 };

/* Seconds for 2 MiB: put, get, and the limit, each over more memory than the caches hold. */
static void put_get(void)
{
	pthread_t thread = start((uint64_t)VALUES * VALUE * 2, 4096);
	char *from = aligned_alloc(4096, (size_t)VALUES * VALUE);
	char *to = aligned_alloc(4096, (size_t)VALUES * VALUE);
	double put[VALUES * ROUNDS], get[VALUES * ROUNDS], limit[VALUES * ROUNDS];
	size_t n = 0;

	memset(to, 1, (size_t)VALUES * VALUE);
	for (size_t i = 0; i < (size_t)VALUES * VALUE; i++)
		from[i] = (char)(i * 2654435761u >> 13);
	for (int round = -1; round < ROUNDS; round++)
		for (uint32_t i = 0; i < VALUES; i++) {
			struct fm_put p = {.key = {{(uint8_t)i, 1}},
					   .data = from + (size_t)i * VALUE,
					   .length = VALUE,
					   .flags = FM_SEAL_REPLACE};
			struct fm_get g = {
				.key = p.key, .data = to + (size_t)i * VALUE, .capacity = VALUE};
			size_t others[3];
			double begin = now(), put_time, get_time;

			need(fm_pool_put(pool, &ns, &p, 1, 0), "put");
			put_time = now() - begin;
			begin = now();
			if (fm_pool_get(pool, &g, 1) != 1)
				exit(1);
			get_time = now() - begin;
			if (round < 0)
				continue; /* first touches of the memory */
			put[n] = put_time;
			get[n] = get_time;
			for (uint32_t k = 0; k < 3; k++)
				others[k] = (i + VALUES / 4 * (k + 1)) % VALUES * (size_t)VALUE;
			limit[n++] = copy_limit(to, from, others);
		}
	if (memcmp(from, to, (size_t)VALUES * VALUE))
		exit(1);
	printf("{\"put\": %.6g, \"get\": %.6g, \"limit\": %.6g}\n", median(put, n), median(get, n),
	       median(limit, n));
	(void)thread;
}

/* Seconds from acquire to the first byte of a 2 MiB block, by a client that never saw it. */
static void get_mapped(bool is_prefaulting)
{
	pthread_t thread = start((uint64_t)VALUES * VALUE * 2, 4096);
	char *data = calloc(1, VALUE);
	double times[VALUES * ROUNDS], attaching = 0;
	size_t n = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct fm_pool *reader;

		for (uint32_t i = 0; i < VALUES; i++) {
			struct fm_put p = {.key = {{(uint8_t)i, 1}},
					   .data = data,
					   .length = VALUE,
					   .flags = FM_SEAL_REPLACE};

			need(fm_pool_put(pool, &ns, &p, 1, 0), "put");
		}
		attaching = now();
		reader = attach(is_prefaulting ? FM_ATTACH_PREFAULT : 0);
		attaching = now() - attaching;
		for (uint32_t i = 0; i < VALUES; i++) {
			struct fm_key key = {{(uint8_t)i, 1}};
			struct fm_block block;
			double begin = now();
			volatile char first;

			if (fm_pool_acquire(reader, &key, 1, &block) != 1)
				exit(1);
			first = *(volatile char *)block.data;
			times[n++] = now() - begin;
			(void)first;
			fm_block_release(reader, &block, 1);
		}
		fm_pool_detach(reader);
	}
	printf("{\"median\": %.6g, ", median(times, n));
	printf("\"p99\": %.6g, \"attach\": %.6g}\n", times[n * 99 / 100], attaching);
	(void)thread;
}

/* Stages, fills and seals blocks one by one; median seconds of the seal, and of a checksum of what
 * it left in the cache. */
static void seal_of(uint64_t length, double *sealing, double *checksum)
{
	static uint32_t number; /* no two keys are the same */
	double seals[SEALS], checks[SEALS];

	for (uint32_t i = 0; i < SEALS; i++) {
		struct fm_block block;
		struct fm_seal seal = {.block = &block, .key = {{1}}};
		double begin;

		number++;
		memcpy(seal.key.bytes + 4, &number, sizeof(number));
		need(fm_block_stage(pool, length, 1, &block, 0), "stage");
		memset(block.data, (int)i, length);
		begin = now();
		need(fm_block_seal(pool, &ns, &seal, 1), "seal");
		seals[i] = now() - begin;
		begin = own_time();
		need(fm_block_verify(pool, &block), "verify");
		checks[i] = own_time() - begin;
		fm_block_release(pool, &block, 1);
	}
	*sealing = median(seals, SEALS);
	*checksum = median(checks, SEALS);
}

/* "checksum": bytes a second, of 1 MiB; "besides": seconds to seal 4 KiB, less the checksum. */
static void seal(void)
{
	const uint64_t small = 4 << 10, large = 1 << 20;
	pthread_t thread = start(1ull << 30, 8192);
	double sealing, checksum, small_checksum;

	seal_of(small, &sealing, &small_checksum);
	printf("{\"besides\": %.6g, ", sealing - small_checksum);
	seal_of(large, &sealing, &checksum);
	printf("\"checksum\": %.6g}\n", (double)large / checksum);
	(void)thread;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "match"))
		match(argc > 2 ? (uint32_t)atoi(argv[2]) : 16);
	else if (!strcmp(what, "put_get"))
		put_get();
	else if (!strcmp(what, "get"))
		get_mapped(argc > 2 && atoi(argv[2]));
	else if (!strcmp(what, "seal"))
		seal();
	else
		return 2;
	return 0; /* the server's thread ends with us */
}
