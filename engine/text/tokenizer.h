/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to token ids and back, built from a GGUF file's own vocabulary, merges and pre-tokenizer.
 * Immutable after creation, so safe to use from any number of threads.
 */
#ifndef FM_ENGINE_TOKENIZER_H
#define FM_ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;
struct fm_tokenizer;

/* Copies what it needs: @file may be closed afterwards. Refuses (FM_ERR_UNSUPPORTED) a tokenizer
 * model or pre-tokenizer that it does not know, naming it. */
int fm_tokenizer_create(const struct gguf *file, struct fm_tokenizer **out);
/* The same from a path. Programs do this before they open the model, so that a tokenizer that is
 * refused costs no packed weights. */
int fm_tokenizer_open(const char *path, struct fm_tokenizer **out);
void fm_tokenizer_destroy(struct fm_tokenizer *tokenizer);

struct fm_tokens { /* owned by the caller: fm_tokens_free() */
	uint32_t *ids;
	size_t n;
};

/*
 * Encodes @len bytes of UTF-8. With @parse_special, control tokens written out in the text
 * (<|im_start|>) become their ids; without, they are plain text (user input cannot forge roles).
 * With @add_bos, the file's add_bos_token is honoured. FM_ERR_INVALID names the offset of bad
 * UTF-8.
 */
int fm_tokenizer_encode(const struct fm_tokenizer *tokenizer, const char *text, size_t len,
			bool parse_special, bool add_bos, struct fm_tokens *out);
void fm_tokens_free(struct fm_tokens *tokens);

/* The raw bytes of a token (may be part of a character). Control tokens give their written form
 * when @special, else nothing. The pointer lives as long as the tokenizer. */
const char *fm_tokenizer_piece(const struct fm_tokenizer *tokenizer, uint32_t id, bool special,
			       size_t *len);
uint32_t fm_tokenizer_vocab_size(const struct fm_tokenizer *tokenizer);
bool fm_tokenizer_is_end(const struct fm_tokenizer *tokenizer, uint32_t id); /* eos, eot, eom */
bool fm_tokenizer_is_control(const struct fm_tokenizer *tokenizer, uint32_t id);

#endif
