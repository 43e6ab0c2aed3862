// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl ls and verify: the pool's blocks one by one. Verify holds one lease at a time, so it
 * never keeps memory from being reused.
 */
#include <stdio.h>
#include <string.h>

#include "fabricctl.h"

enum { STATE_SEALED = 2 };

static json_t *block_json(const struct fm_block_info *info)
{
	char key[33], parent[33], ns[33];

	ctl_hex(info->key.bytes, 16, key);
	ctl_hex(info->parent.bytes, 16, parent);
	ctl_hex(info->ns, 16, ns);
	return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "key", key,
			 "parent", parent, "namespace", ns, "bytes", (json_int_t)info->length,
			 "state", ctl_state(info->state), "entry", (json_int_t)info->entry,
			 "generation", (json_int_t)info->generation, "region",
			 (json_int_t)info->region, "chunk", (json_int_t)info->chunk, "slot",
			 (json_int_t)info->slot, "crc32c", (json_int_t)info->crc32c, "origin",
			 (json_int_t)info->origin);
}

json_t *ctl_blocks_json(struct ctl *ctl)
{
	json_t *list = json_array();
	struct fm_block_info info;
	uint32_t cursor = 0;
	int more;

	while ((more = fm_pool_walk(ctl->pool, &cursor, &info)) > 0)
		json_array_append_new(list, block_json(&info));
	if (more < 0) {
		json_decref(list);
		return NULL;
	}
	return list;
}

int ctl_ls(struct ctl *ctl)
{
	struct fm_block_info info;
	uint32_t cursor = 0;
	int more;

	if (ctl->is_json) {
		json_t *list = ctl_blocks_json(ctl);

		return list ? ctl_print(list) : ctl_fail("ls");
	}
	printf("%-32s %10s %-8s %6s %7s %5s %7s\n", "key", "bytes", "state", "region", "chunk",
	       "slot", "origin");
	while ((more = fm_pool_walk(ctl->pool, &cursor, &info)) > 0) {
		char key[33];

		ctl_hex(info.key.bytes, 16, key);
		printf("%-32s %10llu %-8s %6u %7u %5u %7u\n",
		       info.state == STATE_SEALED ? key : "-", (unsigned long long)info.length,
		       ctl_state(info.state), info.region, info.chunk, info.slot, info.origin);
	}
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
