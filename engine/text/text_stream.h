/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids of an answer to the text that a client may see: whole UTF-8 characters only, cut at the
 * first stop string, with text held back while it may be the beginning of one. Bytes that can never
 * become valid UTF-8 come out as U+FFFD.
 */
#ifndef FM_ENGINE_TEXT_STREAM_H
#define FM_ENGINE_TEXT_STREAM_H

#include "text/tokenizer.h"

#define FM_STOP_STRINGS_MAX 16
#define FM_STOP_STRING_BYTES_MAX 1024

struct fm_text_stream;

int fm_text_stream_create(const struct fm_tokenizer *tokenizer, const char *const *stops,
			  size_t n_stops, struct fm_text_stream **out);
void fm_text_stream_destroy(struct fm_text_stream *stream);

/* Adds a token. *@text / *@len: what became visible (valid until the next call). Returns 1 when a
 * stop string was met (nothing after it is ever visible), 0 to go on, or a negative fm_err. */
int fm_text_stream_push(struct fm_text_stream *stream, uint32_t token, const char **text,
			size_t *len);
/* No more tokens: what was held back becomes visible. */
int fm_text_stream_finish(struct fm_text_stream *stream, const char **text, size_t *len);

#endif
