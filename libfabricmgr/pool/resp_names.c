// SPDX-License-Identifier: Apache-2.0
/*
 * Names of the keys that Redis clients stored, for SCAN alone: the pool itself knows digests.
 * Bounded in bytes; names whose value was evicted go when they are met. Invariant: the number of
 * buckets never changes, so a SCAN sees every name that is there from its beginning to its end.
 */
#include <stdlib.h>
#include <string.h>

#include "pool/resp_front.h"

#define SWEEP_BUCKETS 256u /* looked at to make room for one name */

int resp_names_create(struct resp_names *names, uint64_t bytes_max)
{
	uint32_t count = 1024;

	*names = (struct resp_names){.bytes_max = bytes_max};
	if (!bytes_max)
		return 0;
	while (count < (1u << 24) && count < bytes_max / 96)
		count *= 2;
	names->bucket_count = count;
	names->buckets = calloc(count, sizeof(*names->buckets));
	return names->buckets ? 0 : fm_fail(FM_ERR_NO_MEMORY, "no memory for a table of key names");
}

void resp_names_clear(struct resp_names *names)
{
	for (uint32_t i = 0; i < names->bucket_count; i++)
		while (names->buckets[i]) {
			struct resp_name *name = names->buckets[i];

			names->buckets[i] = name->next;
			free(name);
		}
	names->bytes = names->n_missing = 0;
}

void resp_names_destroy(struct resp_names *names)
{
	if (names->buckets)
		resp_names_clear(names);
	free(names->buckets);
}

static uint64_t cost(size_t length)
{
	return sizeof(struct resp_name) + length + 16; /* what malloc adds */
}

struct resp_name *resp_names_bucket(struct fm_resp *front, uint32_t bucket)
{
	struct resp_names *names = &front->names;
	struct resp_name **link = &names->buckets[bucket];

	while (*link) {
		struct resp_name *name = *link;

		if (fm_pool_match(front->pool, &name->key, 1) == 1) {
			link = &name->next;
			continue;
		}
		*link = name->next;
		names->bytes -= cost(name->length);
		free(name);
	}
	return names->buckets[bucket];
}

void resp_names_add(struct fm_resp *front, const char *text, size_t length,
		    const struct fm_key *key)
{
	struct resp_names *names = &front->names;
	struct resp_name *name;
	uint32_t hash;

	if (!names->bytes_max)
		return;
	memcpy(&hash, key, sizeof(hash));
	hash &= names->bucket_count - 1;
	for (name = names->buckets[hash]; name; name = name->next)
		if (!memcmp(&name->key, key, sizeof(*key)))
			return;
	for (uint32_t i = 0; i < SWEEP_BUCKETS && names->bytes + cost(length) > names->bytes_max;
	     i++)
		resp_names_bucket(front, names->hand++ & (names->bucket_count - 1));
	name = names->bytes + cost(length) > names->bytes_max ? NULL
							      : malloc(sizeof(*name) + length);
	if (!name) {
		names->n_missing++;
		return;
	}
	name->key = *key;
	name->length = (uint32_t)length;
	memcpy(name->text, text, length);
	name->next = names->buckets[hash];
	names->buckets[hash] = name;
	names->bytes += cost(length);
}
