/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits text into the words inside which byte pairs may merge. For the tokenizer only; calls
 * PCRE2. Invariant: the words, joined, are the text. Immutable after creation: safe from any
 * thread.
 */
#ifndef FM_ENGINE_PRETOKENIZER_H
#define FM_ENGINE_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

struct fm_pretokenizer;

/* @name: tokenizer.ggml.pre of a model file. FM_ERR_NOT_FOUND, with no detail set, when unknown.
 */
int fm_pretokenizer_create(const char *name, size_t len, struct fm_pretokenizer **out);
void fm_pretokenizer_destroy(struct fm_pretokenizer *pre);

/* Names that fm_pretokenizer_create() knows, for messages. */
const char *fm_pretokenizer_known(void);
/* A word that is a token as a whole is that token, whatever the merges say. */
bool fm_pretokenizer_ignores_merges(const struct fm_pretokenizer *pre);
/* Whether a prompt begins with BOS when the file does not say. */
bool fm_pretokenizer_adds_bos(const struct fm_pretokenizer *pre);

/* Calls @word for each word of valid UTF-8 in order, until it returns an error. */
int fm_pretokenizer_split(const struct fm_pretokenizer *pre, const char *text, size_t len,
			  int (*word)(void *context, const char *word, size_t len), void *context);

#endif
