// SPDX-License-Identifier: Apache-2.0
/*
 * jansson's allocator: malloc, a note of each failure, and while a text is read a reserve from
 * which the failed are served, so that jansson never meets a failure in the middle of a text (see
 * json_memory.h). Calls libc only. Invariant: what was served from a reserve ends with the reading.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <fabricmgr.h>

#include "json_memory.h"

/* More than jansson makes of a byte ("{}," is its worst: an object and its buckets). Only touched
 * where memory is short. */
#define RESERVE_PER_BYTE 96
#define RESERVE_LEAST	 4096

static _Thread_local bool is_short;
static _Thread_local struct {
	char *start;
	size_t size, used;
} reserve;

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (memory)
		return memory;
	is_short = true;
	bytes = (bytes + 15) / 16 * 16;
	if (bytes > reserve.size - reserve.used)
		return NULL;
	memory = reserve.start + reserve.used;
	reserve.used += bytes;
	return memory;
}

static void release(void *memory)
{
	if ((uintptr_t)memory - (uintptr_t)reserve.start >= reserve.size)
		free(memory);
}

/* Before main(), so before any thread and before any allocation of jansson. */
__attribute__((constructor)) static void install(void)
{
	json_set_alloc_funcs(allocate, release);
}

json_t *fm_json_load(const char *text, size_t len, size_t flags, json_error_t *error)
{
	char *memory = malloc(len * RESERVE_PER_BYTE + RESERVE_LEAST);
	json_t *root;

	is_short = !memory;
	if (!memory)
		return NULL;
	reserve.start = memory;
	reserve.size = len * RESERVE_PER_BYTE + RESERVE_LEAST;
	root = json_loadb(text, len, flags, error);
	if (is_short) {
		json_decref(root);
		root = NULL;
	}
	reserve.start = NULL;
	reserve.size = reserve.used = 0;
	free(memory);
	return root;
}

int fm_json_print(json_t *root, size_t flags)
{
	char *text = json_dumps(root, flags);
	bool is_whole = !fm_json_was_short() && text;

	if (is_whole)
		puts(text);
	free(text);
	json_decref(root);
	return is_whole ? 0 : fm_fail(FM_ERR_NO_MEMORY, "no memory for the JSON of the answer");
}

void fm_json_be_short(void)
{
	is_short = true;
}

bool fm_json_was_short(void)
{
	bool was_short = is_short;

	is_short = false;
	return was_short;
}
