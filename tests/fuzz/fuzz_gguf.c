// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes as a model file: opening must fail or give a file whose every key, array and tensor can
 * be read, from which a tokenizer and a chat template are created or refused, and so is a model,
 * which then computes a token. The input stands in memory of exactly its size, and once more in an
 * anonymous file for the model. Nobody may hold more memory at once than the input's size and 64
 * MiB.
 *
 * Seeds: python3 tests/fuzz/make_gguf_seeds.py writes tests/fuzz/corpus/gguf.
 */
/* tests/suites/fuzz.py reads these, each in one line. */
// clang-format off
// FUZZ_SOURCES: engine/model/*.c engine/text/tokenizer.c engine/text/pretokenizer.c engine/text/chat_template.c
// FUZZ_SOURCES: kernels/cpu/dispatch.c kernels/cpu/pack.c kernels/cpu/pack_level.c kernels/cpu/portable.c libfabricmgr/base/error.c libfabricmgr/core/keys.c
// FUZZ_FLAGS: -DFM_PORTABLE_ONLY -Wl,--wrap=mmap
// FUZZ_LIBS: -lpcre2-8 -lutf8proc -lcrypto -lm -lpthread
// clang-format on
#include <sanitizer/allocator_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "model/gguf.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv);
void *__real_mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset);

static volatile uint64_t sink; /* keeps the reads from being left out */

/* ---- the limit of memory ------------------------------------------------------------------- */

static int64_t used, limit; /* bytes; no limit between inputs */

static void count(int64_t n)
{
	used += n;
	if (limit && used > limit) {
		fprintf(stderr, "more than %lld bytes are held\n", (long long)limit);
		abort();
	}
}

static void on_malloc(const volatile void *at, size_t n)
{
	(void)at;
	count((int64_t)n);
}

static void on_free(const volatile void *at)
{
	if (at)
		count(-(int64_t)__sanitizer_get_allocated_size(at));
}

/* The arena of the weights; given back with the input. */
void *__wrap_mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset)
{
	if (flags & MAP_ANONYMOUS)
		count((int64_t)n);
	return __real_mmap(address, n, protection, flags, fd, offset);
}

static int file_fd;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	file_fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
	if (file_fd < 0 || !__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free))
		abort();
	return 0;
}

/* ---- the uses ------------------------------------------------------------------------------- */

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

/* One token through all layers. What it gives is of no interest; weights may be NaN. */
static void compute(struct fm_model *model)
{
	size_t bytes = fm_model_block_bytes(model);
	void *blocks[1] = {malloc(bytes)};
	struct fm_token_in token = {
		.blocks = blocks,
		.logits = calloc(fm_model_info(model)->vocab_size, sizeof(float)),
	};

	if (blocks[0] && token.logits && fm_model_forward(model, &token, 1) == 0)
		sink += (uint64_t)(token.logits[0] > 0.0f);
	free(blocks[0]);
	free(token.logits);
}

static void use_model(const uint8_t *data, size_t size)
{
	struct fm_model_options options = {
		.threads = 1,
		.precision = size % 3 == 0   ? FM_PRECISION_Q8
			     : size % 3 == 1 ? FM_PRECISION_Q16
					     : FM_PRECISION_F32,
		.kv_element = size % 2 ? FM_ELEMENT_F16 : FM_ELEMENT_F32,
		.tokens_per_block = 16,
	};
	struct fm_model *model;
	char path[64];

	if (ftruncate(file_fd, 0) || pwrite(file_fd, data, size, 0) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file_fd);
	if (fm_model_open(path, &options, &model))
		return;
	limit = 0; /* it was accepted: activations are as large as the model says */
	if (fm_model_block_bytes(model) < 1 << 24)
		compute(model);
	fm_model_close(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf *file;

	used = 0;
	limit = (int64_t)size + (64 << 20);
	if (gguf_open_memory(data, size, "fuzz.gguf", &file) == 0) {
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
		use_model(data, size);
	}
	limit = 0;
	return 0;
}
