// SPDX-License-Identifier: Apache-2.0
/*
 * Names of what is cached: namespace digests, the chained keys of token blocks, keys of foreign
 * clients. Pure (SHA-256 from libcrypto); anybody may call.
 * Invariant: every field is typed and length-prefixed, so that no two inputs share an encoding; the
 * encoding is in Documentation/abi.md and pinned by tests/data/golden_keys.json.
 */
#include <string.h>

/* The calls of 1.1 need no memory and no library to be set up: a key is always computed. */
#define OPENSSL_API_COMPAT 10100
#include <openssl/sha.h>

#include <fabricmgr.h>

#include "base/limits.h"

#define NAMESPACE_LABEL "fabricmgr/namespace"
#define OPAQUE_LABEL	"fabricmgr/opaque-key"
#define FORMAT_VERSION	1u

enum field_type { FIELD_LABEL = 1, FIELD_U32 = 2, FIELD_TEXT = 3, FIELD_BYTES = 4 };

static void put_u32(uint8_t *to, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(value >> (8 * i));
}

/* One field: type (1 byte), length (u32 little-endian), bytes. */
static void put_field(SHA256_CTX *hash, enum field_type type, const void *data, size_t len)
{
	uint8_t head[5] = {(uint8_t)type};

	put_u32(head + 1, (uint32_t)len);
	SHA256_Update(hash, head, sizeof(head));
	SHA256_Update(hash, data, len);
}

static void put_number(SHA256_CTX *hash, uint32_t value)
{
	uint8_t bytes[4];

	put_u32(bytes, value);
	put_field(hash, FIELD_U32, bytes, sizeof(bytes));
}

static void put_text(SHA256_CTX *hash, const char *text)
{
	put_field(hash, FIELD_TEXT, text ? text : "", text ? strlen(text) : 0);
}

int fm_namespace_digest(const struct fm_namespace *ns, struct fm_digest *out)
{
	SHA256_CTX hash;

	if (!ns || !out || !ns->numerics_id || !ns->position_encoding)
		return fm_fail(FM_ERR_INVALID, "a namespace needs a numerics id and a position "
					       "encoding");
	if (!fm_layout_block_bytes(&ns->layout))
		return fm_fail(FM_ERR_INVALID, "the layout of the namespace is not valid");
	SHA256_Init(&hash);
	put_field(&hash, FIELD_LABEL, NAMESPACE_LABEL, strlen(NAMESPACE_LABEL));
	put_number(&hash, FORMAT_VERSION);
	put_field(&hash, FIELD_BYTES, ns->weights.bytes, sizeof(ns->weights.bytes));
	put_number(&hash, ns->layout.layers);
	put_number(&hash, ns->layout.kv_heads);
	put_number(&hash, ns->layout.head_dim);
	put_number(&hash, ns->layout.tokens_per_block);
	put_number(&hash, ns->layout.element);
	put_number(&hash, ns->layout.flags);
	put_text(&hash, ns->numerics_id);
	put_text(&hash, ns->position_encoding);
	put_text(&hash, ns->quantisation);
	put_text(&hash, ns->adapter);
	put_text(&hash, ns->tenant_salt);
	SHA256_Final(out->bytes, &hash);
	return 0;
}

size_t fm_layout_block_bytes(const struct fm_layout *layout)
{
	/* In half bytes, for NVFP4 (its scales stand elsewhere). */
	static const uint8_t halves[] = {
		[FM_ELEMENT_F32] = 8,	   [FM_ELEMENT_F16] = 4,  [FM_ELEMENT_BF16] = 4,
		[FM_ELEMENT_FP8_E4M3] = 2, [FM_ELEMENT_INT8] = 2, [FM_ELEMENT_NVFP4] = 1,
	};
	uint64_t factors[5];
	uint64_t bytes = 1;

	if (!layout || layout->flags || layout->element < FM_ELEMENT_F32 ||
	    layout->element > FM_ELEMENT_NVFP4)
		return 0;
	factors[0] = layout->layers;
	factors[1] = layout->kv_heads;
	factors[2] = layout->head_dim;
	factors[3] = layout->tokens_per_block;
	factors[4] = halves[layout->element];
	/* k and v make two of everything, which cancels the half bytes. */
	for (int i = 0; i < 5; i++) {
		if (!factors[i] || __builtin_mul_overflow(bytes, factors[i], &bytes))
			return 0;
	}
	return bytes;
}

int fm_chain_keys(const struct fm_digest *parent, const uint32_t *tokens, size_t n_blocks,
		  uint32_t tokens_per_block, const void *extras, size_t extras_len,
		  struct fm_key *keys, struct fm_digest *last)
{
	struct fm_digest digest;
	SHA256_CTX hash;

	if (!parent || !tokens_per_block || (n_blocks && (!tokens || !keys)) ||
	    (extras_len && !extras))
		return fm_fail(FM_ERR_INVALID,
			       "a chain of keys needs a parent, tokens and room for "
			       "%zu keys",
			       n_blocks);
	digest = *parent;
	for (size_t i = 0; i < n_blocks; i++) {
		const uint32_t *block = tokens + i * tokens_per_block;

		SHA256_Init(&hash);
		SHA256_Update(&hash, digest.bytes, sizeof(digest.bytes));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
		SHA256_Update(&hash, block, tokens_per_block * sizeof(*block));
#else
		for (uint32_t t = 0; t < tokens_per_block; t++) {
			uint8_t bytes[4];

			put_u32(bytes, block[t]);
			SHA256_Update(&hash, bytes, sizeof(bytes));
		}
#endif
		SHA256_Update(&hash, extras, extras_len);
		SHA256_Final(digest.bytes, &hash);
		memcpy(keys[i].bytes, digest.bytes, sizeof(keys[i].bytes));
	}
	if (last)
		*last = digest;
	return 0;
}

int fm_opaque_key(const struct fm_digest *ns, const void *key, size_t len, struct fm_key *out)
{
	struct fm_digest digest;
	SHA256_CTX hash;

	if (!ns || !out || (len && !key) || len > UINT32_MAX)
		return fm_fail(FM_ERR_INVALID, "an opaque key needs a namespace and at most 4 GiB");
	SHA256_Init(&hash);
	put_field(&hash, FIELD_LABEL, OPAQUE_LABEL, strlen(OPAQUE_LABEL));
	put_field(&hash, FIELD_BYTES, ns->bytes, sizeof(ns->bytes));
	put_field(&hash, FIELD_BYTES, key, len);
	SHA256_Final(digest.bytes, &hash);
	memcpy(out->bytes, digest.bytes, sizeof(out->bytes));
	return 0;
}
