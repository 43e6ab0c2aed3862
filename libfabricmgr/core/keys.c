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

/* ---- chains ---- */

/* Of a short block: SHA-256's input with its padding, of which a step changes digest and tokens. */
#define MESSAGE_MAX 1024u
#define HASH_BLOCK  64u

static void put_tokens(uint8_t *to, const uint32_t *tokens, uint32_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	memcpy(to, tokens, n * sizeof(*tokens));
#else
	for (uint32_t t = 0; t < n; t++)
		put_u32(to + 4 * t, tokens[t]);
#endif
}

/* Lays the message out but for digest and tokens; its padded length, 0: it is too long. */
static size_t lay_out(uint8_t message[MESSAGE_MAX], uint32_t tokens_per_block, const void *extras,
		      size_t extras_len)
{
	size_t before = sizeof(struct fm_digest) + tokens_per_block * sizeof(uint32_t), len, padded;

	if (tokens_per_block > MESSAGE_MAX / sizeof(uint32_t) || extras_len > MESSAGE_MAX)
		return 0;
	len = before + extras_len;
	padded = (len + 1 + 8 + HASH_BLOCK - 1) / HASH_BLOCK * HASH_BLOCK;
	if (padded > MESSAGE_MAX)
		return 0;
	memset(message + len, 0, padded - len);
	if (extras_len)
		memcpy(message + before, extras, extras_len);
	message[len] = 0x80;
	for (uint32_t i = 0; i < 4; i++) /* bits, big-endian */
		message[padded - 1 - i] = (uint8_t)(len * 8 >> (8 * i));
	return padded;
}

/* One step on a message that is laid out: whole blocks, so that nothing is buffered or copied. */
static void step_short(uint8_t *message, size_t padded, const uint32_t *tokens, uint32_t n,
		       struct fm_digest *digest)
{
	SHA256_CTX hash;

	memcpy(message, digest->bytes, sizeof(digest->bytes));
	put_tokens(message + sizeof(digest->bytes), tokens, n);
	SHA256_Init(&hash);
	SHA256_Update(&hash, message, padded);
	for (uint32_t i = 0; i < 8; i++) {
		uint32_t word = __builtin_bswap32(hash.h[i]);

		put_u32(digest->bytes + 4 * i, word);
	}
}

static void step_long(const uint32_t *tokens, uint32_t n, const void *extras, size_t extras_len,
		      struct fm_digest *digest)
{
	SHA256_CTX hash;

	SHA256_Init(&hash);
	SHA256_Update(&hash, digest->bytes, sizeof(digest->bytes));
	for (uint32_t t = 0; t < n; t++) {
		uint8_t bytes[4];

		put_u32(bytes, tokens[t]);
		SHA256_Update(&hash, bytes, sizeof(bytes));
	}
	SHA256_Update(&hash, extras, extras_len);
	SHA256_Final(digest->bytes, &hash);
}

int fm_chain_keys(const struct fm_digest *parent, const uint32_t *tokens, size_t n_blocks,
		  uint32_t tokens_per_block, const void *extras, size_t extras_len,
		  struct fm_key *keys, struct fm_digest *last)
{
	uint8_t message[MESSAGE_MAX];
	struct fm_digest digest;
	size_t padded;

	if (!parent || !tokens_per_block || (n_blocks && (!tokens || !keys)) ||
	    (extras_len && !extras))
		return fm_fail(FM_ERR_INVALID,
			       "a chain of keys needs a parent, tokens and room for "
			       "%zu keys",
			       n_blocks);
	digest = *parent;
	padded = lay_out(message, tokens_per_block, extras, extras_len);
	for (size_t i = 0; i < n_blocks; i++) {
		const uint32_t *block = tokens + i * tokens_per_block;

		if (padded)
			step_short(message, padded, block, tokens_per_block, &digest);
		else
			step_long(block, tokens_per_block, extras, extras_len, &digest);
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
