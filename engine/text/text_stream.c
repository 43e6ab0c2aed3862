// SPDX-License-Identifier: Apache-2.0
/*
 * Token bytes to visible text. The HTTP side and `run` call it; it calls the tokenizer. What
 * becomes visible depends on the bytes alone, not on how they were cut into tokens: characters are
 * completed one by one and the stop string that ends first counts (of those, the longest).
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "text/text_stream.h"
#include "text/utf8.h"

struct stop {
	char *text;
	size_t len;
};

struct fm_text_stream {
	const struct fm_tokenizer *tokenizer;
	struct stop stops[FM_STOP_STRINGS_MAX];
	size_t n_stops;
	bool is_stopped;
	char partial[4]; /* the beginning of a character */
	size_t n_partial;
	/* Whole characters: the first n_shown bytes went out with the last call, the rest is held
	 * back. */
	char *text;
	size_t n_shown, n_text, capacity;
};

int fm_text_stream_create(const struct fm_tokenizer *tokenizer, const char *const *stops,
			  size_t n_stops, struct fm_text_stream **out)
{
	struct fm_text_stream *stream;

	*out = NULL;
	if (n_stops > FM_STOP_STRINGS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%zu stop strings are too many: at most %d", n_stops,
			       FM_STOP_STRINGS_MAX);
	for (size_t i = 0; i < n_stops; i++) {
		size_t len = strlen(stops[i]);

		if (len == 0)
			return fm_fail(FM_ERR_INVALID, "stop string %zu is empty", i);
		if (len > FM_STOP_STRING_BYTES_MAX)
			return fm_fail(FM_ERR_LIMIT, "stop string %zu has %zu bytes: at most %d", i,
				       len, FM_STOP_STRING_BYTES_MAX);
		if (fm_utf8_valid_bytes(stops[i], len) < len)
			return fm_fail(FM_ERR_INVALID, "stop string %zu is not valid UTF-8", i);
	}
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a text stream");
	stream->tokenizer = tokenizer;
	for (; stream->n_stops < n_stops; stream->n_stops++) {
		struct stop *stop = &stream->stops[stream->n_stops];

		stop->len = strlen(stops[stream->n_stops]);
		stop->text = strdup(stops[stream->n_stops]);
		if (!stop->text) {
			fm_text_stream_destroy(stream);
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for a stop string");
		}
	}
	*out = stream;
	return 0;
}

void fm_text_stream_destroy(struct fm_text_stream *stream)
{
	if (!stream)
		return;
	for (size_t i = 0; i < stream->n_stops; i++)
		free(stream->stops[i].text);
	free(stream->text);
	free(stream);
}

/* Forgets what the last call showed, and makes room for what @n bytes may become (all U+FFFD). */
static int begin_call(struct fm_text_stream *stream, size_t n)
{
	size_t need;

	if (stream->n_shown) {
		memmove(stream->text, stream->text + stream->n_shown,
			stream->n_text - stream->n_shown);
		stream->n_text -= stream->n_shown;
		stream->n_shown = 0;
	}
	need = stream->n_text + 3 * (n + sizeof(stream->partial));
	if (need > stream->capacity) {
		char *grown = realloc(stream->text, 2 * need);

		if (!grown)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for %zu bytes of text", need);
		stream->text = grown;
		stream->capacity = 2 * need;
	}
	return 0;
}

static bool ends_with(const struct fm_text_stream *stream, const struct stop *stop)
{
	return stream->n_text >= stop->len &&
	       memcmp(stream->text + stream->n_text - stop->len, stop->text, stop->len) == 0;
}

/* Adds one character, then looks whether a stop string ends with it. */
static void add_character(struct fm_text_stream *stream, const char *bytes, size_t len)
{
	size_t cut = 0;

	memcpy(stream->text + stream->n_text, bytes, len);
	stream->n_text += len;
	for (size_t i = 0; i < stream->n_stops; i++) {
		if (ends_with(stream, &stream->stops[i]) && stream->stops[i].len > cut)
			cut = stream->stops[i].len;
	}
	if (cut) {
		stream->n_text -= cut;
		stream->is_stopped = true;
	}
}

static void add_byte(struct fm_text_stream *stream, char byte)
{
	int step;

	stream->partial[stream->n_partial++] = byte;
	while (stream->n_partial && !stream->is_stopped) {
		step = fm_utf8_step(stream->partial, stream->n_partial);
		if (step == 0)
			return;
		if (step > 0) {
			add_character(stream, stream->partial, step);
		} else {
			step = -step;
			add_character(stream, FM_UTF8_REPLACEMENT, strlen(FM_UTF8_REPLACEMENT));
		}
		stream->n_partial -= step;
		memmove(stream->partial, stream->partial + step, stream->n_partial);
	}
}

/* How many bytes at the end may be the beginning of a stop string. */
static size_t held_back(const struct fm_text_stream *stream)
{
	size_t longest = 0;

	for (size_t i = 0; i < stream->n_stops; i++) {
		const struct stop *stop = &stream->stops[i];
		size_t n = stop->len - 1 < stream->n_text ? stop->len - 1 : stream->n_text;

		for (; n > longest; n--) {
			if (memcmp(stream->text + stream->n_text - n, stop->text, n) == 0)
				longest = n;
		}
	}
	return longest;
}

static int show(struct fm_text_stream *stream, size_t n, const char **text, size_t *len)
{
	stream->n_shown = n;
	*text = stream->text ? stream->text : "";
	*len = n;
	return stream->is_stopped ? 1 : 0;
}

int fm_text_stream_push(struct fm_text_stream *stream, uint32_t token, const char **text,
			size_t *len)
{
	size_t n;
	const char *piece = fm_tokenizer_piece(stream->tokenizer, token, false, &n);
	int err = begin_call(stream, n);

	*text = "";
	*len = 0;
	if (err)
		return err;
	for (size_t i = 0; i < n && !stream->is_stopped; i++)
		add_byte(stream, piece[i]);
	if (stream->is_stopped)
		return show(stream, stream->n_text, text, len);
	return show(stream, stream->n_text - held_back(stream), text, len);
}

int fm_text_stream_finish(struct fm_text_stream *stream, const char **text, size_t *len)
{
	int err = begin_call(stream, 0);

	*text = "";
	*len = 0;
	if (err)
		return err;
	if (stream->n_partial && !stream->is_stopped) {
		stream->n_partial = 0;
		add_character(stream, FM_UTF8_REPLACEMENT, strlen(FM_UTF8_REPLACEMENT));
	}
	show(stream, stream->n_text, text, len);
	return 0;
}
