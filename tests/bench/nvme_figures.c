// SPDX-License-Identifier: Apache-2.0
/*
 * Times of the NVMe tier for nvme.py: a server in this process, one client, blocks of 2 MiB.
 * Arguments: the file, the number of blocks, 1 for durability; prints one JSON object. Invariant:
 * writing counts until the last block is stored, reading until the last one is in memory, with
 * their checksums compared.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fabricmgr.h>

#include "timing.h"

#define VALUE (2u << 20)

static struct fm_server *server;

static void need(int64_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "nvme_figures: %s: %s\n", what, fm_error_detail());
		exit(1);
	}
}

static void *serve(void *argument)
{
	(void)argument;
	need(fm_server_run(server), "serving");
	return NULL;
}

static struct fm_pool_info info_of(struct fm_pool *pool)
{
	struct fm_pool_info info = {.size = sizeof(info)};

	need(fm_pool_info(pool, &info), "info");
	return info;
}

/* A chain of @n blocks; writing behind begins with the first. */
static struct fm_key *fill(struct fm_pool *pool, uint32_t n, const struct fm_digest *ns,
			   uint32_t pass)
{
	struct fm_key *keys = calloc(n, sizeof(*keys));
	char *data = malloc(VALUE);

	for (uint32_t i = 0; i < VALUE; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	for (uint32_t i = 0; i < n; i++) {
		struct fm_put put = {.key = {{1}},
				     .parent = i ? &keys[i - 1] : NULL,
				     .data = data,
				     .length = VALUE};

		memcpy(put.key.bytes + 4, &i, sizeof(i));
		memcpy(put.key.bytes + 8, &pass, sizeof(pass));
		memcpy(data, &i, sizeof(i));
		keys[i] = put.key;
		need(fm_pool_put(pool, ns, &put, 1, 0), "put");
	}
	free(data);
	return keys;
}

static void pause_a_little(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

int main(int argc, char **argv)
{
	static const struct fm_digest ns = {{7}};
	uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 128;
	struct fm_server_options options = {
		.size = sizeof(options),
		.pool_bytes = (uint64_t)n * VALUE + (64 << 20),
		.entries_max = 4 * n,
		.nvme_path = argc > 1 ? argv[1] : "nvme_figures.log",
		.nvme_bytes = (uint64_t)n * VALUE * 3 + (512ull << 20),
		.nvme_flags = argc > 3 && atoi(argv[3]) ? 0 : FM_NVME_NOT_DURABLE};
	struct fm_attach_options attach = {.size = sizeof(attach), .name = "nvme_figures"};
	double begin, writing = 0, reading;
	struct fm_pool_info info;
	struct fm_pool *pool;
	struct fm_key *keys = NULL;
	pthread_t thread;
	uint64_t freed;

	need(fm_server_create(&options, &server), "a pool");
	if (pthread_create(&thread, NULL, serve, NULL))
		return 1;
	need(fm_server_connect(server, &attach.fd), "connecting");
	need(fm_pool_attach(&attach, &pool), "attaching");
	/* The first pass touches memory for the first time, which a pool does once in its life. */
	for (uint32_t pass = 0; pass < 2; pass++) {
		begin = now();
		keys = fill(pool, n, &ns, pass);
		while (info = info_of(pool), info.nvme_stored < (pass + 1) * (uint64_t)n)
			pause_a_little();
		writing = now() - begin;
		if (!pass) {
			need(fm_pool_remove(pool, keys, n), "remove");
			free(keys);
		}
	}
	if (info.nvme_skipped)
		return 1;
	need(fm_pool_evict(pool, UINT64_MAX, &freed), "evict");
	if (info_of(pool).blocks_sealed)
		return 1;
	begin = now();
	if (fm_pool_fetch(pool, keys, n, 600ull * 1000000000) != n)
		return 1;
	reading = now() - begin;
	info = info_of(pool);
	printf("{\"write\": %.6g, \"read\": %.6g, \"bytes\": %llu, \"rung\": \"%s\"}\n", writing,
	       reading, (unsigned long long)n * VALUE, info.nvme_rung);
	free(keys);
	fm_pool_detach(pool);
	fm_server_stop(server);
	pthread_join(thread, NULL);
	fm_server_destroy(server);
	return 0;
}
