/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader begins with a block's first layers while its writer computes the last: two attachments
 * of one program here, two processes in earnest, where the id goes by the way of the request. C and
 * C++; needs a daemon ($FABRICMGR_SOCKET):
 *   cc layers.c $(pkg-config --cflags --libs fabricmgr) -pthread -o layers && ./layers
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#define LAYERS 4
#define BYTES  65536

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fm_error_detail());
	return 1;
}

static struct fm_pool *attach(void)
{
	struct fm_attach_options options;
	struct fm_pool *pool = NULL;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.fd = -1;
	if (fm_pool_attach(&options, &pool))
		fail("attach");
	return pool;
}

struct reading {
	struct fm_pool *pool;
	struct fm_key id;
	int status;
};

/* The one who decodes. */
static void *read_layers(void *argument)
{
	struct reading *reading = (struct reading *)argument;
	struct fm_block block;

	reading->status = 1;
	if (fm_layers_join(reading->pool, &reading->id, &block)) {
		fail("join");
		return NULL;
	}
	for (int layer = 0; layer < LAYERS; layer++) {
		if (fm_layers_wait(reading->pool, &block, (unsigned)layer, 0)) {
			fail("wait");
			break;
		}
		printf("layer %d: '%c'\n", layer, ((const char *)block.data)[layer * BYTES]);
		reading->status = layer != LAYERS - 1;
	}
	fm_block_release(reading->pool, &block, 1);
	return NULL;
}

/* The one who computes. */
static int write_layers(struct fm_pool *pool, struct reading *reading)
{
	struct fm_block block;
	pthread_t thread;

	if (fm_block_stage(pool, fm_layers_length(LAYERS, BYTES), 1, &block, 0))
		return fail("stage");
	if (fm_layers_begin(pool, &block, LAYERS, BYTES, &reading->id))
		return fail("begin");
	if (pthread_create(&thread, NULL, read_layers, reading))
		return 1;
	for (int layer = 0; layer < LAYERS; layer++) {
		memset((char *)block.data + layer * BYTES, 'a' + layer, BYTES);
		if (fm_layers_seal(pool, &block, (unsigned)layer, 1))
			return fail("seal");
	}
	pthread_join(thread, NULL);
	fm_block_discard(pool, &block, 1); /* a real program: fm_block_seal(), for everybody */
	return reading->status;
}

int main(void)
{
	struct fm_pool *writer = attach();
	struct reading reading;
	int status = 1;

	memset(&reading, 0, sizeof(reading));
	reading.pool = attach();
	if (writer && reading.pool)
		status = write_layers(writer, &reading);
	fm_pool_detach(reading.pool);
	fm_pool_detach(writer);
	return status;
}
