// SPDX-License-Identifier: Apache-2.0
/*
 * The table of layers at the end of a block. Clients on both sides call it; pure. Invariant:
 * nothing that stands in the table is used before it is found to fit the block's length.
 */
#include <string.h>

#include "core/layers.h"

static uint64_t data_bytes(uint64_t layers, uint64_t layer_bytes)
{
	return (layers * layer_bytes + 7) / 8 * 8;
}

uint64_t fm_layers_block_bytes(uint64_t layers, uint64_t layer_bytes)
{
	uint64_t bytes;

	if (!layers || layers > FM_LAYERS_MAX || !layer_bytes ||
	    layer_bytes > FABRICMGR_CHUNK_BYTES)
		return 0;
	bytes = data_bytes(layers, layer_bytes) + layers * sizeof(uint64_t) +
		sizeof(struct fm_layers_tail);
	return bytes > FABRICMGR_CHUNK_BYTES ? 0 : bytes;
}

void fm_layers_format(char *block, uint64_t length, uint32_t layers, uint32_t layer_bytes)
{
	uint64_t data = data_bytes(layers, layer_bytes);
	struct fm_layers_tail tail = {
		.layers = layers, .layer_bytes = layer_bytes, .magic = FM_LAYERS_MAGIC};

	/* What rounds the data up is part of the block, too. */
	memset(block + (uint64_t)layers * layer_bytes, 0,
	       length - (uint64_t)layers * layer_bytes - sizeof(tail));
	memcpy(block + data + layers * sizeof(uint64_t), &tail, sizeof(tail));
}

void fm_layers_erase(char *block, uint64_t length)
{
	if (length >= sizeof(struct fm_layers_tail))
		memset(block + length - sizeof(struct fm_layers_tail), 0,
		       sizeof(struct fm_layers_tail));
}

bool fm_layers_open(const char *block, uint64_t length, struct fm_layers *layers)
{
	struct fm_layers_tail *tail;

	if (length < sizeof(*tail) || length % 8)
		return false;
	/* Writers are handed the same memory writable; readers store nothing through it. */
	tail = (struct fm_layers_tail *)(uintptr_t)(block + length - sizeof(*tail));
	/* Relaxed: checked here against the length, and kept in private memory from here on. */
	layers->tail = tail;
	layers->layers = fm_load_relaxed(&tail->layers);
	layers->layer_bytes = fm_load_relaxed(&tail->layer_bytes);
	if (fm_load_relaxed(&tail->magic) != FM_LAYERS_MAGIC ||
	    fm_layers_block_bytes(layers->layers, layers->layer_bytes) != length)
		return false;
	layers->words = (uint64_t *)(void *)tail - layers->layers;
	return true;
}

void fm_layers_set(struct fm_layers *layers, uint32_t layer, uint32_t crc32c)
{
	/* Release: pairs with the acquire in fm_layers_get(); the layer's bytes are there. */
	fm_store_release(&layers->words[layer], FM_PAIR(1, crc32c));
	/* Release: pairs with the acquire of who goes to sleep on it; the word is there. */
	__atomic_fetch_add(&layers->tail->sealed, 1, __ATOMIC_RELEASE);
}

bool fm_layers_get(const struct fm_layers *layers, uint32_t layer, uint32_t *crc32c)
{
	/* Acquire: pairs with the release in fm_layers_set(). */
	uint64_t word = fm_load_acquire(&layers->words[layer]);

	*crc32c = FM_LOW(word);
	return FM_HIGH(word) == 1;
}

bool fm_layers_lack(const char *block, uint64_t length, uint32_t *layer, uint32_t *layers)
{
	struct fm_layers table;
	uint32_t crc32c;

	if (!fm_layers_open(block, length, &table))
		return false;
	*layers = table.layers;
	for (*layer = 0; *layer < table.layers; ++*layer)
		if (!fm_layers_get(&table, *layer, &crc32c))
			return true;
	return false;
}
