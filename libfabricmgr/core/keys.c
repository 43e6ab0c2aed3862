// SPDX-License-Identifier: Apache-2.0
/*
 * Names of what is cached: namespace digests, the chained keys of token blocks, keys of foreign
 * clients. Pure (SHA-256 from libcrypto); anybody may call.
 * Invariant: every field is typed and length-prefixed, so that no two inputs share an encoding; the
 * encoding is in Documentation/abi.md and pinned by tests/data/golden_keys.json.
 */
#include <string.h>

#include <openssl/evp.h>

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
static int put_field(EVP_MD_CTX *hash, enum field_type type, const void *data, size_t len)
{
	uint8_t head[5] = {(uint8_t)type};

	put_u32(head + 1, (uint32_t)len);
	return EVP_DigestUpdate(hash, head, sizeof(head)) && EVP_DigestUpdate(hash, data, len);
}

static int put_number(EVP_MD_CTX *hash, uint32_t value)
{
	uint8_t bytes[4];

	put_u32(bytes, value);
	return put_field(hash, FIELD_U32, bytes, sizeof(bytes));
}

static int put_text(EVP_MD_CTX *hash, const char *text)
{
	return put_field(hash, FIELD_TEXT, text ? text : "", text ? strlen(text) : 0);
}

static int hash_failed(void)
{
	return fm_fail(FM_ERR_NO_MEMORY, "SHA-256 from libcrypto failed; is memory exhausted?");
}

int fm_namespace_digest(const struct fm_namespace *ns, struct fm_digest *out)
{
	EVP_MD_CTX *hash;
	int good;

	if (!ns || !out || !ns->numerics_id || !ns->position_encoding)
		return fm_fail(FM_ERR_INVALID, "a namespace needs a numerics id and a position "
					       "encoding");
	if (!fm_layout_block_bytes(&ns->layout))
		return fm_fail(FM_ERR_INVALID, "the layout of the namespace is not valid");
	hash = EVP_MD_CTX_new();
	if (!hash)
		return hash_failed();
	good = EVP_DigestInit_ex(hash, EVP_sha256(), NULL) &&
	       put_field(hash, FIELD_LABEL, NAMESPACE_LABEL, strlen(NAMESPACE_LABEL)) &&
	       put_number(hash, FORMAT_VERSION) &&
	       put_field(hash, FIELD_BYTES, ns->weights.bytes, sizeof(ns->weights.bytes)) &&
	       put_number(hash, ns->layout.layers) && put_number(hash, ns->layout.kv_heads) &&
	       put_number(hash, ns->layout.head_dim) &&
	       put_number(hash, ns->layout.tokens_per_block) &&
	       put_number(hash, ns->layout.element) && put_number(hash, ns->layout.flags) &&
	       put_text(hash, ns->numerics_id) && put_text(hash, ns->position_encoding) &&
	       put_text(hash, ns->quantisation) && put_text(hash, ns->adapter) &&
	       put_text(hash, ns->tenant_salt) && EVP_DigestFinal_ex(hash, out->bytes, NULL);
	EVP_MD_CTX_free(hash);
	return good ? 0 : hash_failed();
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
	EVP_MD_CTX *hash;

	if (!parent || !tokens_per_block || (n_blocks && (!tokens || !keys)) ||
	    (extras_len && !extras))
		return fm_fail(FM_ERR_INVALID,
			       "a chain of keys needs a parent, tokens and room for "
			       "%zu keys",
			       n_blocks);
	hash = EVP_MD_CTX_new();
	if (!hash)
		return hash_failed();
	digest = *parent;
	for (size_t i = 0; i < n_blocks; i++) {
		const uint32_t *block = tokens + i * tokens_per_block;
		int good = EVP_DigestInit_ex(hash, EVP_sha256(), NULL) &&
			   EVP_DigestUpdate(hash, digest.bytes, sizeof(digest.bytes));

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
		good = good && EVP_DigestUpdate(hash, block, tokens_per_block * sizeof(*block));
#else
		for (uint32_t t = 0; good && t < tokens_per_block; t++) {
			uint8_t bytes[4];

			put_u32(bytes, block[t]);
			good = EVP_DigestUpdate(hash, bytes, sizeof(bytes));
		}
#endif
		good = good && (!extras_len || EVP_DigestUpdate(hash, extras, extras_len)) &&
		       EVP_DigestFinal_ex(hash, digest.bytes, NULL);
		if (!good) {
			EVP_MD_CTX_free(hash);
			return hash_failed();
		}
		memcpy(keys[i].bytes, digest.bytes, sizeof(keys[i].bytes));
	}
	EVP_MD_CTX_free(hash);
	if (last)
		*last = digest;
	return 0;
}

int fm_opaque_key(const struct fm_digest *ns, const void *key, size_t len, struct fm_key *out)
{
	struct fm_digest digest;
	EVP_MD_CTX *hash;
	int good;

	if (!ns || !out || (len && !key) || len > UINT32_MAX)
		return fm_fail(FM_ERR_INVALID, "an opaque key needs a namespace and at most 4 GiB");
	hash = EVP_MD_CTX_new();
	if (!hash)
		return hash_failed();
	good = EVP_DigestInit_ex(hash, EVP_sha256(), NULL) &&
	       put_field(hash, FIELD_LABEL, OPAQUE_LABEL, strlen(OPAQUE_LABEL)) &&
	       put_field(hash, FIELD_BYTES, ns->bytes, sizeof(ns->bytes)) &&
	       put_field(hash, FIELD_BYTES, key, len) &&
	       EVP_DigestFinal_ex(hash, digest.bytes, NULL);
	EVP_MD_CTX_free(hash);
	memcpy(out->bytes, digest.bytes, sizeof(out->bytes));
	return good ? 0 : hash_failed();
}
