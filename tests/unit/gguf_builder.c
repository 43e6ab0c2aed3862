// SPDX-License-Identifier: Apache-2.0
/* GGUF files in memory, for tests; the format is that of ggml. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_builder.h"

void build_bytes(struct gguf_builder *out, const void *data, size_t n)
{
	if (out->n + n > out->capacity) {
		out->capacity = 2 * (out->n + n) + 256;
		out->data = realloc(out->data, out->capacity);
		if (!out->data)
			abort();
	}
	memcpy(out->data + out->n, data, n);
	out->n += n;
}

void build_u32(struct gguf_builder *out, uint32_t value)
{
	build_bytes(out, &value, sizeof(value));
}

void build_u64(struct gguf_builder *out, uint64_t value)
{
	build_bytes(out, &value, sizeof(value));
}

void build_string(struct gguf_builder *out, const char *text)
{
	build_u64(out, strlen(text));
	build_bytes(out, text, strlen(text));
}

void build_header(struct gguf_builder *out, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
	build_bytes(out, "GGUF", 4);
	build_u32(out, version);
	build_u64(out, n_tensors);
	build_u64(out, n_keys);
}

void build_key(struct gguf_builder *out, const char *key, uint32_t type)
{
	build_string(out, key);
	build_u32(out, type);
}

void build_key_u32(struct gguf_builder *out, const char *key, uint32_t value)
{
	build_key(out, key, GGUF_U32);
	build_u32(out, value);
}

void build_key_bool(struct gguf_builder *out, const char *key, uint8_t value)
{
	build_key(out, key, GGUF_BOOL);
	build_bytes(out, &value, 1);
}

void build_key_string(struct gguf_builder *out, const char *key, const char *text)
{
	build_key(out, key, GGUF_STRING);
	build_string(out, text);
}

void build_key_strings(struct gguf_builder *out, const char *key, const char *const *texts,
		       size_t n)
{
	build_key(out, key, GGUF_ARRAY);
	build_u32(out, GGUF_STRING);
	build_u64(out, n);
	for (size_t i = 0; i < n; i++)
		build_string(out, texts[i]);
}

void build_tensor(struct gguf_builder *out, const char *name, uint32_t n_dims, const uint64_t *dims,
		  uint32_t type, uint64_t offset)
{
	build_string(out, name);
	build_u32(out, n_dims);
	for (uint32_t i = 0; i < n_dims && i < 4; i++)
		build_u64(out, dims[i]);
	build_u32(out, type);
	build_u64(out, offset);
}

void build_align(struct gguf_builder *out, size_t alignment)
{
	while (out->n % alignment)
		build_bytes(out, "", 1);
}

void build_free(struct gguf_builder *out)
{
	free(out->data);
	*out = (struct gguf_builder){0};
}

/* The character that stands for a byte in byte-level vocabularies. */
static void byte_name(int byte, char out[3])
{
	uint32_t character = (uint32_t)byte, next = 0x100;

	for (int other = 0; other < 256; other++) {
		if ((other >= 0x21 && other <= 0x7e) || (other >= 0xa1 && other <= 0xac) ||
		    other >= 0xae)
			continue;
		if (other == byte)
			character = next;
		next++;
	}
	if (character < 0x80)
		snprintf(out, 3, "%c", (int)character);
	else
		snprintf(out, 3, "%c%c", (int)(0xc0 | character >> 6),
			 (int)(0x80 | (character & 0x3f)));
}

void build_tokenizer_file(struct gguf_builder *out, const char *pre, const char *chat_template)
{
	/* "Ġ" is the blank. */
	static const char *const rest[] = {
		"he",	      "ll",	      "hell",	    "hello",	     "\u0120h",
		"\u0120hell", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool>"};
	static const char *const merges[] = {"h e",    "l l",	   "he ll",
					     "hell o", "\u0120 h", "\u0120 hell"};
	static char bytes[256][3];
	const char *tokens[TINY_TOKENS];

	for (int i = 0; i < 256; i++) {
		byte_name(i, bytes[i]);
		tokens[i] = bytes[i];
	}
	for (int i = 256; i < TINY_TOKENS; i++)
		tokens[i] = rest[i - 256];
	build_header(out, 3, 0, 7 + (chat_template != NULL));
	build_key_string(out, "tokenizer.ggml.model", "gpt2");
	build_key_string(out, "tokenizer.ggml.pre", pre);
	build_key_strings(out, "tokenizer.ggml.tokens", tokens, TINY_TOKENS);
	build_key(out, "tokenizer.ggml.token_type", GGUF_ARRAY);
	build_u32(out, GGUF_I32);
	build_u64(out, TINY_TOKENS);
	for (int i = 0; i < TINY_TOKENS; i++)
		build_u32(out, i < TINY_START ? 1 : i == TINY_TOOL ? 4 : 3);
	build_key_strings(out, "tokenizer.ggml.merges", merges, 6);
	build_key_u32(out, "tokenizer.ggml.eos_token_id", TINY_END);
	build_key_u32(out, "tokenizer.ggml.bos_token_id", TINY_END_OF_TEXT);
	if (chat_template)
		build_key_string(out, "tokenizer.chat_template", chat_template);
}
