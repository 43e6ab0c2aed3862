/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts one block into the node's pool and reads it back in place, under a lease. C and C++; needs a
 * daemon ($FABRICMGR_SOCKET):
 *   cc put_get.c $(pkg-config --cflags --libs fabricmgr) -o put_get && ./put_get
 */
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#define LENGTH 65536

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fm_error_detail());
	return 1;
}

/* Stages a block, fills it where readers will find it, and seals it under @key. */
static int put(struct fm_pool *pool, const struct fm_digest *ns, const struct fm_key *key)
{
	struct fm_block block;
	struct fm_seal seal;
	int err;

	if (fm_block_stage(pool, LENGTH, 1, &block, 0))
		return fail("stage");
	memset(block.data, 'x', LENGTH);
	memset(&seal, 0, sizeof(seal));
	seal.block = &block;
	seal.key = *key;
	err = fm_block_seal(pool, ns, &seal, 1);
	if (err == FM_ERR_EXISTS)
		fm_block_discard(pool, &block, 1); /* somebody was faster with the same bytes */
	else if (err)
		return fail("seal");
	else
		fm_block_release(pool, &block, 1);
	return 0;
}

static int get(struct fm_pool *pool, const struct fm_key *key)
{
	struct fm_block block;
	int64_t n = fm_pool_acquire(pool, key, 1, &block);

	if (n < 0)
		return fail("acquire");
	if (!n) {
		fprintf(stderr, "the block is not there\n");
		return 1;
	}
	printf("%llu bytes, first '%c'\n", (unsigned long long)block.length,
	       *(const char *)block.data);
	fm_block_release(pool, &block, 1);
	return 0;
}

int main(void)
{
	struct fm_attach_options options;
	struct fm_pool *pool;
	struct fm_digest ns;
	struct fm_key key;
	int status;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.fd = -1;
	if (fm_pool_attach(&options, &pool))
		return fail("attach");
	memset(&ns, 1, sizeof(ns)); /* a real program: fm_namespace_digest() */
	if (fm_opaque_key(&ns, "greeting", 8, &key))
		return fail("key");
	status = put(pool, &ns, &key) || get(pool, &key);
	fm_pool_detach(pool);
	return status;
}
