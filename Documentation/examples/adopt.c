/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's own memory as a region of the node's pool: a block is sealed where it lies, read by
 * others there, and its place is used again. C and C++; needs a daemon ($FABRICMGR_SOCKET) that
 * lets its tenant (fabricmgrd --adopted 64M, or adopted = 64M in the configuration):
 *   cc adopt.c $(pkg-config --cflags --libs fabricmgr) -o adopt && ./adopt
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create(), F_ADD_SEALS */
#endif
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

#define LENGTH 65536

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fm_error_detail());
	return 1;
}

/* What an engine would hold its KV in: two chunks, which nobody can make smaller. */
static int kv_memory(void)
{
	int fd = memfd_create("engine-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, 2 * FM_CHUNK_BYTES) || fchmod(fd, 0600) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -1;
	return fd;
}

/* Seals what @letter fills, at the start of the region, in place of what lay there. */
static int seal(struct fm_pool *pool, struct fm_region *region, const struct fm_digest *ns,
		const char *name, char letter)
{
	struct fm_stage_at at;
	struct fm_seal sealing;

	memset(&at, 0, sizeof(at));
	memset(&sealing, 0, sizeof(sealing));
	at.offset = 0;
	at.length = LENGTH;
	/* FM_ERR_BUSY: somebody reads what lies there; a real engine takes another place. */
	if (fm_block_stage_at(pool, region, &at, 1, 0))
		return fail("stage");
	memset(at.block.data, letter, LENGTH);
	sealing.block = &at.block;
	if (fm_opaque_key(ns, name, strlen(name), &sealing.key) ||
	    fm_block_seal(pool, ns, &sealing, 1))
		return fail("seal");
	fm_block_release(pool, &at.block, 1);
	return 0;
}

/* As any client of the pool does. */
static int get(struct fm_pool *pool, const struct fm_digest *ns, const char *name)
{
	struct fm_block block;
	struct fm_key key;

	if (fm_opaque_key(ns, name, strlen(name), &key))
		return fail("key");
	if (fm_pool_acquire(pool, &key, 1, &block) != 1) {
		printf("%s: not there\n", name);
		return 0;
	}
	if (fm_block_verify(pool, &block))
		return fail("verify");
	printf("%s: %llu bytes, first '%c'\n", name, (unsigned long long)block.length,
	       *(const char *)block.data);
	fm_block_release(pool, &block, 1);
	return 0;
}

int main(void)
{
	struct fm_attach_options options;
	struct fm_region *region;
	struct fm_pool *pool;
	struct fm_digest ns;
	int fd = kv_memory(), status;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.fd = -1;
	if (fd < 0 || fm_pool_attach(&options, &pool))
		return fail("attach");
	if (fm_region_adopt(pool, fd, 0, &region))
		return fail("adopt");
	close(fd);		    /* a real engine goes on using it */
	memset(&ns, 2, sizeof(ns)); /* a real program: fm_namespace_digest() */
	status = seal(pool, region, &ns, "one", '1') || get(pool, &ns, "one") ||
		 seal(pool, region, &ns, "two", '2') || get(pool, &ns, "one") ||
		 get(pool, &ns, "two");
	/* From here on the memory is the program's alone. */
	if (fm_region_release(pool, region, 0))
		status = fail("release");
	fm_pool_detach(pool);
	return status;
}
