/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table at the end of a block that is sealed layer by layer: which layers are whole, and each
 * one's CRC32C. Its writer fills it, readers of the staged or sealed block look into it. Pure: the
 * memory is handed in. Invariant: a layer's word is stored once, after the layer's last byte.
 */
#ifndef FM_CORE_LAYERS_H
#define FM_CORE_LAYERS_H

#include <stdbool.h>

#include "base/limits.h"
#include "core/index.h"

#define FM_LAYERS_MAGIC 0x594c4d46u /* "FMLY" */

/* The last bytes of the block; the words of the layers stand right before it. */
struct fm_layers_tail {
	uint32_t sealed; /* how often a layer was: what readers sleep on. Release; acquire */
	uint32_t layers;
	uint32_t layer_bytes;
	uint32_t magic;
};

/* One layer's word: 1 in the upper half when it is whole, its CRC32C in the lower. */
struct fm_layers {
	struct fm_layers_tail *tail;
	uint64_t *words;
	uint32_t layers, layer_bytes;
};

/* Bytes of a block with its table; 0: there is no such block. */
uint64_t fm_layers_block_bytes(uint64_t layers, uint64_t layer_bytes);
/* A table without a whole layer, at the end of a block of fm_layers_block_bytes(). */
void fm_layers_format(char *block, uint64_t length, uint32_t layers, uint32_t layer_bytes);
/* What a block that was here before left of a table at the end of this one is none. */
void fm_layers_erase(char *block, uint64_t length);
/* False: no table ends this block. The memory may change at any time: what is read is checked. */
bool fm_layers_open(const char *block, uint64_t length, struct fm_layers *layers);

/* The layer is whole, and has @crc32c. */
void fm_layers_set(struct fm_layers *layers, uint32_t layer, uint32_t crc32c);
/* False: it is not whole. */
bool fm_layers_get(const struct fm_layers *layers, uint32_t layer, uint32_t *crc32c);
/* Whether the block has layers, and one that is not whole: which, of how many. */
bool fm_layers_lack(const char *block, uint64_t length, uint32_t *layer, uint32_t *layers);

#endif
