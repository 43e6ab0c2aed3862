/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes GGUF files into memory, right or wrong: nothing is checked here. For tests. Order of
 * calls: header, keys, tensors, align, data.
 */
#ifndef FM_TESTS_GGUF_BUILDER_H
#define FM_TESTS_GGUF_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#include <model/gguf.h>

struct gguf_builder {
	uint8_t *data;
	size_t n, capacity;
};

void build_bytes(struct gguf_builder *out, const void *data, size_t n);
void build_u32(struct gguf_builder *out, uint32_t value);
void build_u64(struct gguf_builder *out, uint64_t value);
void build_string(struct gguf_builder *out, const char *text);
void build_header(struct gguf_builder *out, uint32_t version, uint64_t n_tensors, uint64_t n_keys);
void build_key(struct gguf_builder *out, const char *key, uint32_t type);
void build_key_u32(struct gguf_builder *out, const char *key, uint32_t value);
void build_key_bool(struct gguf_builder *out, const char *key, uint8_t value);
void build_key_string(struct gguf_builder *out, const char *key, const char *text);
void build_key_strings(struct gguf_builder *out, const char *key, const char *const *texts,
		       size_t n);
void build_tensor(struct gguf_builder *out, const char *name, uint32_t n_dims, const uint64_t *dims,
		  uint32_t type, uint64_t offset);
void build_align(struct gguf_builder *out, size_t alignment);
void build_free(struct gguf_builder *out);

/*
 * A file with a small byte-level tokenizer and no tensors: token b is byte b (0..255), then
 * "he", "ll", "hell", "hello", " h", " hell", then <|im_start|> (262), <|im_end|> (263) and
 * <|endoftext|> (264) as control tokens, the user token <tool> (265). @chat_template may be NULL.
 */
void build_tokenizer_file(struct gguf_builder *out, const char *pre, const char *chat_template);

enum {
	TINY_HE = 256,
	TINY_LL,
	TINY_HELL,
	TINY_HELLO,
	TINY_BLANK_H,
	TINY_BLANK_HELL,
	TINY_START,
	TINY_END,
	TINY_END_OF_TEXT,
	TINY_TOOL,
	TINY_TOKENS,
};

#endif
