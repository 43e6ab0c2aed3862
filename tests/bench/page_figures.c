// SPDX-License-Identifier: Apache-2.0
/*
 * What the kind of memory costs a reader: the same index and the same KV blocks in a memfd, in huge
 * pages (hugetlb memfd), in chunks of the kernel module and in a vault of huge pages, mapped as a
 * client maps them. argv[1]: MiB of KV blocks (256), argv[2]: runs (9). Prints one JSON object for
 * each kind that this machine has: keys found a second (chains of 512), and microseconds of
 * attention for one token of an 8B model (32 layers, 8 KV heads of 128, 16-bit) over all blocks.
 * Kinds take turns; medians. Invariant: every kind gives the same sums.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/index.h"
#include "kernels.h"
#include "timing.h"

#define CHAIN	   512u
#define CHUNK	   (4ull << 20)
#define BLOCK	   (2ull << 20)
#define HUGE_PAGES (MFD_HUGETLB | 21u << 26)

enum { RUNS_MAX = 99, ROUNDS = 200, LAYERS = 32, KV_HEADS = 8, HEADS = 4, DIM = 128, TOKENS = 16 };
enum { KINDS = 4, HEAD_BYTES = TOKENS * DIM * 2 };

static const char *const names[] = {"memfd", "hugetlb", "chunks", "vault"};

struct kind {
	char *memory; /* as a reader maps it; NULL: there is none */
	struct fm_index index;
	void **blocks;
	double match[RUNS_MAX], attention[RUNS_MAX];
	float sum;
};

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* ---- memory ---- */

static char *map(int fd, uint64_t offset, size_t bytes, int protection)
{
	char *memory = mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)offset);

	return memory == MAP_FAILED ? NULL : memory;
}

/* The reader's mapping; @fill writes into the other one. */
static char *of_file(int fd, size_t bytes, char **writable)
{
	if (fd < 0 || ftruncate(fd, (off_t)bytes) || fchmod(fd, 0600) ||
	    fallocate(fd, 0, 0, (off_t)bytes))
		return NULL;
	*writable = map(fd, 0, bytes, PROT_READ | PROT_WRITE);
	return *writable ? map(fd, 0, bytes, PROT_READ) : NULL;
}

static char *of_chunks(size_t bytes, char **writable)
{
	struct fabricmgr_region_create region = {
		.size = sizeof(region),
		.bytes = bytes,
		.node = FABRICMGR_NODE_ANY,
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
		.name = "page-figures",
	};
	int fd = open("/dev/fabricmgr", O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, FABRICMGR_IOC_REGION_CREATE, &region))
		return NULL;
	*writable = map(fd, region.write_offset, bytes, PROT_READ | PROT_WRITE);
	return *writable ? map(fd, region.map_offset, bytes, PROT_READ) : NULL;
}

static char *of_vault(size_t bytes, char **writable)
{
	int file = memfd_create("vault", MFD_CLOEXEC | MFD_ALLOW_SEALING | HUGE_PAGES);
	int fd = open("/dev/fabricmgr", O_RDWR | O_CLOEXEC);
	struct fabricmgr_vault_create vault = {
		.size = sizeof(vault),
		.fd = file,
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
		.name = "page-figures-vault",
	};
	struct fabricmgr_region_fd out = {.size = sizeof(out), .fd_flags = O_RDONLY | O_CLOEXEC};

	if (fd < 0 || !of_file(file, bytes, writable) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) ||
	    ioctl(fd, FABRICMGR_IOC_VAULT_CREATE, &vault))
		return NULL;
	out.id = vault.id;
	return ioctl(fd, FABRICMGR_IOC_REGION_FD, &out) ? NULL : map(out.fd, 0, bytes, PROT_READ);
}

static void destroy(const char *name)
{
	struct fabricmgr_region_open region = {.size = sizeof(region)};
	struct fabricmgr_region_id id = {.size = sizeof(id), .flags = FABRICMGR_DESTROY_FORCE};
	int fd = open("/dev/fabricmgr", O_RDWR | O_CLOEXEC);

	snprintf(region.name, sizeof(region.name), "%s", name);
	if (fd < 0 || ioctl(fd, FABRICMGR_IOC_REGION_OPEN, &region))
		return;
	id.id = region.id;
	if (ioctl(fd, FABRICMGR_IOC_REGION_DESTROY, &id))
		perror(name);
	close(fd);
}

/* ---- what is in it ---- */

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

/* The index, then the blocks, by @writable; and where a reader sees them. */
static int fill(struct kind *kind, char *writable, uint32_t n_keys, size_t at, uint32_t n_blocks)
{
	struct fm_index index;
	uint64_t state = 1;

	fm_index_format(writable, n_keys, 1, 2);
	if (fm_index_open(&index, writable, at))
		return 1;
	for (uint32_t i = 0; i < n_keys; i++) {
		struct fm_key key = key_of(i);

		fm_key_store(index.entries[i].key, &key);
		index.entries[i].word = FABRICMGR_WORD(i, FABRICMGR_BLOCK_SEALED);
		if (fm_index_insert(&index, i))
			return 1;
	}
	for (uint64_t i = 0; i < n_blocks * BLOCK / 2; i++)
		((uint16_t *)(writable + at))[i] = (uint16_t)(0x2c00 + draw(&state) % 0x400);
	kind->blocks = malloc(n_blocks * sizeof(*kind->blocks));
	if (!kind->blocks)
		return 1;
	for (uint32_t i = 0; i < n_blocks; i++)
		kind->blocks[i] = kind->memory + at + i * BLOCK;
	/* A sequence's blocks lie anywhere. */
	for (uint32_t i = n_blocks - 1; i; i--) {
		uint32_t other = (uint32_t)(draw(&state) % (i + 1));
		void *block = kind->blocks[i];

		kind->blocks[i] = kind->blocks[other];
		kind->blocks[other] = block;
	}
	return fm_index_open(&kind->index, kind->memory, at);
}

/* ---- measuring ---- */

static double match(struct kind *kind, const struct fm_key *keys, uint32_t chains)
{
	double begin = own_time();
	uint64_t state = 7;

	for (uint32_t i = 0; i < ROUNDS; i++)
		if (fm_index_match(&kind->index, keys + draw(&state) % chains * CHAIN, CHAIN) !=
		    CHAIN)
			exit(1);
	return ROUNDS * CHAIN / (own_time() - begin);
}

static double attend(struct kind *kind, const struct fm_kernels *kernels, uint32_t n_blocks)
{
	static float q[HEADS * DIM], out[HEADS * DIM];
	double begin = own_time();

	for (size_t i = 0; i < HEADS * DIM; i++)
		q[i] = 0.01f * (float)(i % 13);
	kind->sum = 0;
	for (size_t layer = 0; layer < LAYERS; layer++)
		for (size_t head = 0; head < KV_HEADS; head++) {
			size_t key = (layer * 2 * KV_HEADS + head) * HEAD_BYTES;
			struct fm_attention attention = {
				.n_heads = HEADS,
				.head_dim = DIM,
				.position = n_blocks * TOKENS - 1,
				.n_tokens = 1,
				.stride = sizeof(q) / sizeof(*q),
				.is_half = true,
				.scale = 0.088f,
				.blocks = kind->blocks,
				.key_offset = key,
				.value_offset = key + KV_HEADS * HEAD_BYTES,
			};

			kernels->attention(&attention, q, out);
			kind->sum += out[head];
		}
	return (own_time() - begin) * 1e6;
}

/* What outlives processes does not outlive this one. */
static void clean(void)
{
	destroy("page-figures");
	destroy("page-figures-vault");
}

static char *memory_of(int kind, size_t bytes, char **writable)
{
	switch (kind) {
	case 0:
		return of_file(memfd_create("pages", MFD_CLOEXEC), bytes, writable);
	case 1:
		return of_file(memfd_create("pages", MFD_CLOEXEC | HUGE_PAGES), bytes, writable);
	case 2:
		return of_chunks(bytes, writable);
	default:
		return of_vault(bytes, writable);
	}
}

static int print(struct kind *kinds, uint32_t n_blocks, size_t index_bytes, int runs)
{
	for (int i = 0; i < KINDS; i++) {
		struct kind *kind = &kinds[i];

		if (!kind->memory)
			continue;
		printf("{\"kind\": \"%s\", \"keys_per_s\": %.4g, \"attention_us\": %.0f, "
		       "\"kv_mib\": %u, \"index_mib\": %zu}\n",
		       names[i], median(kind->match, (size_t)runs),
		       median(kind->attention, (size_t)runs), n_blocks * 2, index_bytes >> 20);
		if (memcmp(&kinds->sum, &kind->sum, sizeof(kind->sum)))
			return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	uint32_t n_blocks = (argc > 1 ? (uint32_t)atoi(argv[1]) : 256) / 2, chains = n_blocks * 8;
	uint32_t n_keys = chains * CHAIN;
	size_t at = (fm_index_bytes(n_keys) + CHUNK - 1) / CHUNK * CHUNK;
	size_t bytes = at + (n_blocks * BLOCK + CHUNK - 1) / CHUNK * CHUNK;
	struct fm_key *keys = malloc(n_keys * sizeof(*keys));
	static struct kind kinds[KINDS];
	int runs = argc > 2 ? atoi(argv[2]) : 9;
	const struct fm_kernels *kernels;

	if (runs < 1 || runs > RUNS_MAX || !n_blocks || !keys || fm_kernels_select(NULL, &kernels))
		return 1;
	atexit(clean);
	for (uint32_t i = 0; i < n_keys; i++)
		keys[i] = key_of(i);
	for (int i = 0; i < KINDS; i++) {
		char *writable = NULL;

		kinds[i].memory = memory_of(i, bytes, &writable);
		if (kinds[i].memory && fill(&kinds[i], writable, n_keys, at, n_blocks))
			return 1;
	}
	for (int run = 0; run < runs; run++)
		for (int i = 0; i < KINDS; i++)
			if (kinds[i].memory) {
				kinds[i].match[run] = match(&kinds[i], keys, chains);
				kinds[i].attention[run] = attend(&kinds[i], kernels, n_blocks);
			}
	return print(kinds, n_blocks, at, runs);
}
