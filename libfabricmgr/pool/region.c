// SPDX-License-Identifier: Apache-2.0
/*
 * Where blocks are in this process: in an arena, which stays mapped until detach, or in a region
 * that a client adopted, which is mapped as long as a lease of ours names it. And the calls by
 * which this client has memory of its own adopted. Any thread may call. Invariant: a region that
 * another client owns is mapped only while one of our leases names it, and unmapped before the
 * last is dropped: no reader keeps memory for longer, and a number that is used again meets no
 * mapping of before.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>

#include "base/clock.h"
#include "base/error.h"
#include "core/adopted.h"
#include "pool/client.h"

/* How often is looked whether readers still hold blocks of a region that is released. */
#define LOOK_US 1000u

static struct fm_region *entry_of(struct fm_pool *pool, uint32_t region)
{
	return &pool->regions[region - FM_ADOPTED_FIRST];
}

/* ---- blocks of others ---- */

static char *impossible(uint32_t region, uint32_t chunk)
{
	fm_fail(FM_ERR_CORRUPT, "a block is at an impossible place, chunk %u of region %u", chunk,
		region);
	return NULL;
}

/* region_lock. */
static bool map_adopted(struct fm_pool *pool, struct fm_region *entry, uint32_t region)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_REGION, .argument = region};
	struct fm_wire_reply reply;
	int fd = -1, n_fds = 1, err = fm_pool_request(pool, &request, &reply, -1, &fd, &n_fds);

	if (!err && n_fds == 1)
		entry->memory = fm_region_map(fd, reply.region.bytes, false);
	else if (!err)
		fm_fail(FM_ERR_IO, "the daemon sent no descriptor for region %u", region);
	if (n_fds == 1)
		close(fd);
	entry->bytes = entry->memory ? reply.region.bytes : 0;
	return entry->memory != NULL;
}

/* region_lock. */
static void let_go(struct fm_region *entry)
{
	if (entry->is_own || !entry->holds || --entry->holds)
		return;
	fm_region_unmap(entry->memory, entry->bytes);
	*entry = (struct fm_region){.memory = NULL};
}

char *fm_place_hold(struct fm_pool *pool, uint32_t region, uint32_t chunk, uint32_t slot,
		    uint64_t length)
{
	struct fm_region *entry;
	uint64_t offset = (uint64_t)chunk * FABRICMGR_CHUNK_BYTES + slot * (uint64_t)FM_SLOT_GRAIN;
	char *base, *address = NULL;

	if (!fm_region_is_adopted(region)) {
		if (!fm_place_is_sane(pool, region, chunk, slot, length))
			return impossible(region, chunk);
		base = fm_pool_map(pool, region, false);
		return base ? fm_block_address(base, chunk, slot, length) : NULL;
	}
	entry = entry_of(pool, region);
	pthread_mutex_lock(&pool->region_lock);
	if (entry->memory || map_adopted(pool, entry, region)) {
		if (length && offset + length <= entry->bytes)
			address = entry->memory + offset;
		else
			impossible(region, chunk);
		entry->holds += !entry->is_own;
		if (!address)
			let_go(entry);
	}
	pthread_mutex_unlock(&pool->region_lock);
	return address;
}

void fm_place_let_go(struct fm_pool *pool, uint32_t region)
{
	struct fm_region *entry;

	if (!fm_region_is_adopted(region))
		return;
	entry = entry_of(pool, region);
	pthread_mutex_lock(&pool->region_lock);
	let_go(entry);
	pthread_mutex_unlock(&pool->region_lock);
}

void fm_lease_end(struct fm_pool *pool, uint32_t place)
{
	/* Relaxed: our own. */
	uint32_t region = fm_load_relaxed(&pool->leases[place].region);

	fm_place_let_go(pool, region);
	fm_lease_drop(&pool->leases[place]);
}

void fm_regions_unmap(struct fm_pool *pool)
{
	for (uint32_t i = 0; i < FM_ADOPTED_MAX; i++)
		fm_region_unmap(pool->regions[i].memory, pool->regions[i].bytes);
}

/* ---- memory of our own ---- */

/* The daemon gets a descriptor that cannot write, and hands it on as it is. */
static int ask_to_adopt(struct fm_pool *pool, int fd, struct fm_wire_region *out)
{
	struct fm_wire_request request = {.head.type = FM_WIRE_ADOPT};
	struct fm_wire_reply reply;
	struct stat status;
	int copy, none = 0, err;

	if (!fstat(fd, &status) && status.st_uid != geteuid())
		return fm_fail(FM_ERR_PERMISSION,
			       "the memory to adopt is user %u's, and this is user %u: its owner "
			       "adopts it",
			       status.st_uid, geteuid());
	copy = fm_region_reopen_read_only(fd);
	if (copy < 0)
		return copy;
	FM_KILL_POINT("region: before it is adopted");
	err = fm_pool_request(pool, &request, &reply, copy, NULL, &none);
	FM_KILL_POINT("region: adopted");
	close(copy);
	if (!err && !fm_region_is_adopted(reply.region.region))
		err = fm_fail(FM_ERR_CORRUPT, "the daemon named an impossible region");
	*out = reply.region;
	return err;
}

static int ask_to_release(struct fm_pool *pool, uint32_t region, uint32_t serial, uint32_t *held)
{
	struct fm_wire_request request = {
		.head.type = FM_WIRE_RELEASE, .argument = region, .leases = serial};
	struct fm_wire_reply reply;
	int none = 0, err = fm_pool_request(pool, &request, &reply, -1, NULL, &none);

	*held = err ? 0 : reply.region.held;
	return err == FM_ERR_NOT_FOUND ? 0 : err; /* it is over */
}

int fm_region_adopt(struct fm_pool *pool, int fd, uint32_t flags, struct fm_region **out)
{
	struct fm_wire_region region;
	struct fm_region *entry;
	uint32_t held;
	char *memory;
	int err = fm_pool_check_writer(pool);

	if (err)
		return err;
	if (fd < 0 || !out || flags)
		return fm_fail(FM_ERR_INVALID,
			       "adopting memory needs its descriptor, no flags, and room for a "
			       "region");
	if (!fm_region_is_memory(fd))
		return fm_fail(FM_ERR_INVALID,
			       "descriptor %d is no memory: give one of memfd_create(2)", fd);
	err = ask_to_adopt(pool, fd, &region);
	if (err)
		return err;
	memory = fm_region_map(fd, region.bytes, true);
	if (!memory) {
		err = fm_error_last();
		ask_to_release(pool, region.region, region.serial, &held);
		return fm_fail(err, "the memory to adopt cannot be mapped for writing: give a "
				    "descriptor that may write");
	}
	entry = entry_of(pool, region.region);
	pthread_mutex_lock(&pool->region_lock);
	*entry = (struct fm_region){
		.memory = memory,
		.bytes = region.bytes,
		.region = region.region,
		.serial = region.serial,
		.is_own = true,
	};
	pthread_mutex_unlock(&pool->region_lock);
	*out = entry;
	return 0;
}

bool fm_region_is_of(const struct fm_pool *pool, const struct fm_region *region)
{
	return region >= pool->regions && region < pool->regions + FM_ADOPTED_MAX && region->is_own;
}

void *fm_region_data(const struct fm_region *region)
{
	return region ? region->memory : NULL;
}

int fm_region_release(struct fm_pool *pool, struct fm_region *region, uint64_t deadline_ns)
{
	uint64_t start = fm_clock_ns(), wait = deadline_ns ? deadline_ns : FM_DEADLINE_NS;
	uint32_t held;
	int err = fm_pool_check(pool, true);

	if (err)
		return err;
	if (!fm_region_is_of(pool, region))
		return fm_fail(FM_ERR_INVALID, "this is no region that this client adopted");
	for (;;) {
		err = ask_to_release(pool, region->region, region->serial, &held);
		if (err || !held)
			break;
		if (fm_clock_ns() - start >= wait)
			return fm_fail(FM_ERR_BUSY,
				       "%u blocks of the region are still held: write nothing "
				       "there and call again; nobody finds them any more",
				       held);
		usleep(LOOK_US);
	}
	if (err)
		return err;
	pthread_mutex_lock(&pool->region_lock);
	fm_region_unmap(region->memory, region->bytes);
	*region = (struct fm_region){.memory = NULL};
	pthread_mutex_unlock(&pool->region_lock);
	return 0;
}
