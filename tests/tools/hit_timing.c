// SPDX-License-Identifier: Apache-2.0
/*
 * An attacker that wants to know what a victim has cached: it asks for keys of which the victim has
 * cached half, chosen by chance, and compares what it is told and how long that takes. Run by
 * tests/process/test_isolation.py; prints one JSON object.
 *
 * hit_timing VICTIM_SOCKET VICTIM_TENANT ATTACKER_SOCKET ATTACKER_TENANT PROBES SEED
 *
 * Invariant: for every probe the victim does the same work, with the key or with another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fabricmgr.h>

enum { BLOCK_BYTES = 65536, N_MEASURES = 4 };
enum measure { MATCH, ACQUIRE, GET, PUT };

static const char *const names[N_MEASURES] = {"match", "acquire", "get", "put"};
static const struct fm_digest ns = {{1}};
static char data[BLOCK_BYTES];
static uint64_t random_state;

struct sample {
	uint64_t ns;
	bool is_cached;
};

static void must(bool claim, const char *what)
{
	if (claim)
		return;
	fprintf(stderr, "hit_timing: %s: %s\n", what, fm_error_detail());
	exit(1);
}

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state * 0x2545f4914f6cdd1dull;
}

static struct fm_key random_key(void)
{
	uint64_t words[2] = {next_random(), next_random()};
	struct fm_key key;

	memcpy(&key, words, sizeof(key));
	return key;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static struct fm_pool *attach(const char *socket, const char *tenant)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = socket, .fd = -1, .tenant = tenant};
	struct fm_pool *pool;

	must(!fm_pool_attach(&options, &pool), "attach");
	return pool;
}

static int put(struct fm_pool *pool, struct fm_key key)
{
	struct fm_put one = {.key = key, .data = data, .length = sizeof(data)};
	int err = fm_pool_put(pool, &ns, &one, 1, 0);

	must(!err, "put");
	return one.result;
}

/* Asks for @key in one way: how long it took, and whether the answer was that it is there. */
static uint64_t ask(struct fm_pool *pool, enum measure measure, struct fm_key key, bool *is_there)
{
	static char room[BLOCK_BYTES];
	struct fm_get get = {.key = key, .data = room, .capacity = sizeof(room)};
	struct fm_block block;
	uint64_t start = now_ns(), end;

	switch (measure) {
	case MATCH:
		*is_there = fm_pool_match(pool, &key, 1) == 1;
		break;
	case ACQUIRE:
		*is_there = fm_pool_acquire(pool, &key, 1, &block) == 1;
		break;
	case GET:
		*is_there = fm_pool_get(pool, &get, 1) == 1;
		break;
	default:
		*is_there = put(pool, key) == FM_ERR_EXISTS;
	}
	end = now_ns();
	if (measure == ACQUIRE && *is_there)
		fm_block_release(pool, &block, 1);
	return end - start;
}

static int by_time(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	return x->ns < y->ns ? -1 : x->ns > y->ns;
}

/* The chance that a cached one took longer than one that is not (ties: half): area under the ROC.
 */
static double auc(struct sample *samples, size_t n)
{
	double ranks = 0, cached = 0;

	qsort(samples, n, sizeof(*samples), by_time);
	for (size_t i = 0; i < n;) {
		size_t end = i;

		while (end < n && samples[end].ns == samples[i].ns)
			end++;
		for (size_t j = i; j < end; j++)
			if (samples[j].is_cached) {
				ranks += (double)(i + end + 1) / 2;
				cached++;
			}
		i = end;
	}
	return (ranks - cached * (cached + 1) / 2) / (cached * ((double)n - cached));
}

int main(int argc, char **argv)
{
	size_t probes = argc == 7 ? strtoul(argv[5], NULL, 10) : 0;
	uint64_t told[N_MEASURES][2] = {{0}}, counts[2] = {0};
	struct sample *samples[N_MEASURES];
	struct fm_pool *victim, *attacker;

	must(probes > 1, "usage: hit_timing SOCKET TENANT SOCKET TENANT PROBES SEED");
	random_state = 88172645463325252ull + strtoull(argv[6], NULL, 10);
	victim = attach(argv[1], argv[2]);
	attacker = attach(argv[3], argv[4]);
	for (int m = 0; m < N_MEASURES; m++) {
		samples[m] = calloc(probes, sizeof(*samples[m]));
		must(samples[m], "memory");
	}
	for (size_t i = 0; i < probes; i++) {
		struct fm_key key = random_key(), other = random_key();
		/* The first two are one of each, so that both are there. */
		bool is_cached = i < 2 ? i : next_random() >> 63, is_there;
		struct fm_key *taken = is_cached ? &key : &other;

		must(!put(victim, *taken), "a key that was there already");
		counts[is_cached]++;
		for (int m = 0; m < N_MEASURES; m++) {
			samples[m][i].ns = ask(attacker, m, key, &is_there);
			samples[m][i].is_cached = is_cached;
			told[m][is_cached] += is_there;
		}
		/* As before: nothing is left of either. */
		must(fm_pool_remove(attacker, &key, 1) >= 0, "remove");
		must(fm_pool_remove(victim, taken, 1) >= 0, "remove");
	}
	printf("{\"cached\": %llu, \"others\": %llu", (unsigned long long)counts[1],
	       (unsigned long long)counts[0]);
	for (int m = 0; m < N_MEASURES; m++) {
		printf(", \"%s\": {\"told_of_cached\": %llu, \"told_of_others\": %llu, \"auc\": "
		       "%.5f}",
		       names[m], (unsigned long long)told[m][1], (unsigned long long)told[m][0],
		       auc(samples[m], probes));
		free(samples[m]);
	}
	puts("}");
	fm_pool_detach(victim);
	fm_pool_detach(attacker);
	return 0;
}
