// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes as a GGUF file: opening must fail or give a file whose every key, array and tensor can
 * be read, and from which a tokenizer and a chat template are created or refused. The input stands
 * in memory of exactly its size.
 *
 * Seeds: python3 tests/fuzz/make_gguf_seeds.py writes tests/fuzz/corpus/gguf.
 */
/* tests/run.py reads these, each in one line. */
// clang-format off
// FUZZ_SOURCES: engine/model/gguf.c engine/text/tokenizer.c engine/text/pretokenizer.c engine/text/chat_template.c libfabricmgr/base/error.c
// FUZZ_LIBS: -lpcre2-8
// clang-format on
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "model/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps the reads from being left out */

static void read_keys(const struct gguf *file)
{
	for (size_t i = 0; i < gguf_n_keys(file); i++) {
		enum gguf_type type, element;
		struct gguf_string name = gguf_key_at(file, i, &type), text;
		char *key = strndup(name.data, name.len);
		uint32_t number;
		int64_t wide;
		float real;
		bool flag;
		size_t n;

		sink += gguf_get_u32(file, key, &number) + gguf_get_bool(file, key, &flag) +
			gguf_get_f32(file, key, &real);
		if (gguf_get_string(file, key, &text) && text.len)
			sink += (uint8_t)text.data[text.len - 1];
		if (gguf_get_array(file, key, &element, &n)) {
			for (size_t j = 0; j <= n; j++) {
				sink += gguf_array_i64(file, key, j, &wide);
				sink += gguf_array_f32(file, key, j, &real);
				if (gguf_array_string(file, key, j, &text) && text.len)
					sink += (uint8_t)text.data[text.len - 1];
			}
		}
		free(key);
	}
}

static void use_text(const struct gguf *file, const uint8_t *data, size_t size)
{
	const struct fm_chat_message message = {"user", "hello <|im_start|> 123"};
	struct fm_chat_template *chat = NULL;
	struct fm_tokenizer *tokenizer;
	struct fm_tokens tokens;

	if (fm_tokenizer_create(file, &tokenizer) != 0)
		return;
	/* The file's own bytes are as good a text as any. */
	if (fm_tokenizer_encode(tokenizer, (const char *)data, size, true, true, &tokens) == 0) {
		for (size_t i = 0; i < tokens.n; i++) {
			size_t len;
			const char *piece =
				fm_tokenizer_piece(tokenizer, tokens.ids[i], true, &len);

			sink += len ? (uint8_t)piece[len - 1] : 0;
		}
		fm_tokens_free(&tokens);
	}
	if (fm_chat_template_create(file, &chat) == 0 &&
	    fm_chat_template_encode(chat, tokenizer, &message, 1, &tokens) == 0)
		fm_tokens_free(&tokens);
	fm_chat_template_destroy(chat);
	fm_tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf *file;

	if (gguf_open_memory(data, size, "fuzz.gguf", &file) != 0)
		return 0;
	read_keys(file);
	for (size_t i = 0; i < gguf_n_tensors(file); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(file, i);

		if ((const uint8_t *)tensor->data < data ||
		    (const uint8_t *)tensor->data + tensor->n_bytes > data + size)
			abort();
		sink += ((const uint8_t *)tensor->data)[tensor->n_bytes - 1];
	}
	use_text(file, data, size);
	gguf_close(file);
	return 0;
}
