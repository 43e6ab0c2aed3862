// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl ls and verify: the pool's blocks one by one. Called by main.c and operate.c. Invariant:
 * verify holds one lease at a time, so it never keeps memory from being reused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabricctl.h"

enum { STATE_SEALED = 2 };

/* ---- who holds what ----------------------------------------------------------------------- */

struct hold {
	struct fm_lease_info block;
	uint32_t client, pid;
};

/* Of all clients, in the order of the blocks. */
struct holds {
	struct hold *list;
	size_t n;
	bool is_known; /* root and the daemon's user may ask, others not */
};

static int by_block(const void *a, const void *b)
{
	const struct hold *x = a, *y = b;

	if (x->block.entry != y->block.entry)
		return x->block.entry < y->block.entry ? -1 : 1;
	return x->client < y->client ? -1 : x->client > y->client;
}

/* Adds what one client leases; one that left meanwhile leases nothing. */
static int add_holds(struct ctl *ctl, struct holds *holds, const struct fm_client_info *client)
{
	size_t room = client->leases;
	struct fm_lease_info *leases = calloc(room ? room : 1, sizeof(*leases));
	struct hold *longer;
	int64_t n = leases ? fm_pool_leases(ctl->pool, client->id, leases, room)
			   : fm_fail(FM_ERR_NO_MEMORY, "no memory for the list of leases");

	if (n == FM_ERR_NOT_FOUND)
		n = 0;
	if (n > (int64_t)room)
		n = (int64_t)room; /* taken since it was asked how many */
	longer = n > 0 ? realloc(holds->list, (holds->n + (size_t)n) * sizeof(*longer)) : NULL;
	if (n > 0 && !longer)
		n = fm_fail(FM_ERR_NO_MEMORY, "no memory for the list of leases");
	else if (n > 0)
		holds->list = longer;
	for (int64_t i = 0; i < n; i++)
		holds->list[holds->n++] = (struct hold){leases[i], client->id, client->pid};
	free(leases);
	return n < 0 ? (int)n : 0;
}

static int find_holds(struct ctl *ctl, struct holds *holds)
{
	int64_t n_clients;
	struct fm_client_info *clients = ctl_clients(ctl, &n_clients);
	int err = clients ? 0 : (int)n_clients;

	*holds = (struct holds){.is_known = true};
	for (int64_t i = 0; i < n_clients && !err; i++)
		err = add_holds(ctl, holds, &clients[i]);
	free(clients);
	if (err == FM_ERR_PERMISSION) {
		holds->is_known = false;
		return 0;
	}
	if (holds->n)
		qsort(holds->list, holds->n, sizeof(*holds->list), by_block);
	return err;
}

/* The first of the block's holds; *@n how many follow each other. */
static const struct hold *holds_of(const struct holds *holds, const struct fm_block_info *info,
				   size_t *n)
{
	size_t low = 0, high = holds->n;

	*n = 0;
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (holds->list[middle].block.entry < info->entry)
			low = middle + 1;
		else
			high = middle;
	}
	/* Of another generation: a block that was there when the lease was told of. */
	while (low + *n < holds->n && holds->list[low + *n].block.entry == info->entry &&
	       holds->list[low + *n].block.generation == info->generation)
		++*n;
	return holds->list + low;
}

static json_t *holds_json(const struct holds *holds, const struct fm_block_info *info)
{
	json_t *list = holds->is_known ? json_array() : json_null();
	const struct hold *hold;
	size_t n;

	hold = holds_of(holds, info, &n);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list,
				      json_pack("{s:I, s:I}", "client", (json_int_t)hold[i].client,
						"pid", (json_int_t)hold[i].pid));
	return list;
}

static void print_holds(const struct holds *holds, const struct fm_block_info *info)
{
	const struct hold *hold;
	size_t n;

	hold = holds_of(holds, info, &n);
	if (!n)
		printf(holds->is_known ? "-\n" : "?\n");
	for (size_t i = 0; i < n; i++)
		printf("%u/%u%s", hold[i].client, hold[i].pid, i + 1 < n ? "," : "\n");
}

/* ---- ls ------------------------------------------------------------------------------------ */

static json_t *block_json(const struct fm_block_info *info, const struct holds *holds)
{
	char key[33], parent[33], ns[33];

	ctl_hex(info->key.bytes, 16, key);
	ctl_hex(info->parent.bytes, 16, parent);
	ctl_hex(info->ns, 16, ns);
	return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "key",
			 key, "parent", parent, "namespace", ns, "bytes", (json_int_t)info->length,
			 "state", ctl_state(info->state), "entry", (json_int_t)info->entry,
			 "generation", (json_int_t)info->generation, "region",
			 (json_int_t)info->region, "chunk", (json_int_t)info->chunk, "slot",
			 (json_int_t)info->slot, "crc32c", (json_int_t)info->crc32c, "origin",
			 (json_int_t)info->origin, "held_by", holds_json(holds, info));
}

json_t *ctl_blocks_json(struct ctl *ctl)
{
	json_t *list = json_array();
	struct fm_block_info info;
	struct holds holds;
	uint32_t cursor = 0;
	int more = find_holds(ctl, &holds) ? -1 : 1;

	while (more > 0 && (more = fm_pool_walk(ctl->pool, &cursor, &info)) > 0)
		json_array_append_new(list, block_json(&info, &holds));
	free(holds.list);
	if (more < 0) {
		json_decref(list);
		return NULL;
	}
	return list;
}

int ctl_ls(struct ctl *ctl)
{
	struct fm_block_info info;
	struct holds holds;
	uint32_t cursor = 0;
	int more;

	if (ctl->is_json) {
		json_t *list = ctl_blocks_json(ctl);

		return list ? ctl_print(list) : ctl_fail("ls");
	}
	if (find_holds(ctl, &holds)) {
		free(holds.list);
		return ctl_fail("ls");
	}
	printf("%-32s %10s %-8s %6s %7s %5s %7s  %s\n", "key", "bytes", "state", "region", "chunk",
	       "slot", "origin", "held by (client/pid)");
	while ((more = fm_pool_walk(ctl->pool, &cursor, &info)) > 0) {
		char key[33];

		ctl_hex(info.key.bytes, 16, key);
		printf("%-32s %10llu %-8s %6u %7u %5u %7u  ",
		       info.state == STATE_SEALED ? key : "-", (unsigned long long)info.length,
		       ctl_state(info.state), info.region, info.chunk, info.slot, info.origin);
		print_holds(&holds, &info);
	}
	free(holds.list);
	return more < 0 ? ctl_fail("ls") : CTL_OK;
}

int ctl_verify(struct ctl *ctl)
{
	uint64_t good = 0, bad = 0, vanished = 0, bytes = 0;
	json_t *list = json_array();
	struct fm_block_info info;
	uint32_t cursor = 0;
	char text[32];
	int more;

	while ((more = fm_pool_walk(ctl->pool, &cursor, &info)) > 0) {
		struct fm_block block;
		char key[33];

		if (info.state != STATE_SEALED)
			continue;
		if (fm_pool_acquire(ctl->pool, &info.key, 1, &block) != 1) {
			vanished++; /* evicted since the walk saw it */
			continue;
		}
		bytes += block.length;
		if (!fm_block_verify(ctl->pool, &block)) {
			good++;
		} else {
			bad++;
			ctl_hex(info.key.bytes, 16, key);
			json_array_append_new(list, json_pack("{s:s, s:s}", "key", key, "problem",
							      fm_error_detail()));
			if (!ctl->is_json)
				printf("bad  %s  %s\n", key, fm_error_detail());
		}
		fm_block_release(ctl->pool, &block, 1);
	}
	if (more < 0) {
		json_decref(list);
		return ctl_fail("verify");
	}
	if (ctl->is_json) {
		int result = ctl_print(json_pack("{s:I, s:I, s:I, s:I, s:o}", "good",
						 (json_int_t)good, "bad", (json_int_t)bad,
						 "vanished", (json_int_t)vanished, "bytes",
						 (json_int_t)bytes, "bad_blocks", list));

		return result || bad ? CTL_FAILED : CTL_OK;
	}
	json_decref(list);
	printf("%llu blocks good, %llu bad, %llu evicted meanwhile; %s read\n",
	       (unsigned long long)good, (unsigned long long)bad, (unsigned long long)vanished,
	       ctl_bytes(bytes, text));
	return bad ? CTL_FAILED : CTL_OK;
}
