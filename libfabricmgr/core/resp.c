// SPDX-License-Identifier: Apache-2.0
/*
 * The parser of Redis commands (see resp.h). Pure. Invariant: parser->scanned stands at the start
 * of a line or of an argument's bytes, so that parsing goes on there when more bytes have come.
 */
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "core/resp.h"

#define LINE_MAX_BYTES 65536u /* an inline command */

int fm_resp_parser_create(struct fm_resp_parser *parser)
{
	*parser = (struct fm_resp_parser){0};
	parser->args = malloc(FM_RESP_ARGS_MAX * sizeof(*parser->args));
	return parser->args ? 0 : fm_fail(FM_ERR_NO_MEMORY, "no memory for a connection");
}

void fm_resp_parser_destroy(struct fm_resp_parser *parser)
{
	free(parser->args);
	parser->args = NULL;
}

bool fm_resp_number(const char *text, size_t length, uint64_t *out)
{
	uint64_t value = 0;

	if (!length || length > 19)
		return false;
	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(text[i] - '0');
	}
	*out = value;
	return true;
}

static enum fm_resp_state broken(struct fm_resp_parser *parser, const char *error)
{
	parser->error = error;
	return FM_RESP_BROKEN;
}

/* The line at scanned, without its end; NULL: not all there. *@next: where the next one starts. */
static const char *take_line(struct fm_resp_parser *parser, const char *data, size_t length,
			     size_t *line_length, size_t *next)
{
	const char *line = data + parser->scanned;
	const char *end =
		length > parser->scanned ? memchr(line, '\n', length - parser->scanned) : NULL;

	if (!end)
		return NULL;
	*next = (size_t)(end - data) + 1;
	*line_length = (size_t)(end - line) - (end > line && end[-1] == '\r');
	return line;
}

/* "PING a b" as people type it: words, no quotes. */
static enum fm_resp_state take_inline(struct fm_resp_parser *parser, const char *data,
				      const char *line, size_t length, size_t next)
{
	size_t i = 0;

	while (i < length) {
		size_t start;

		while (i < length && (line[i] == ' ' || line[i] == '\t'))
			i++;
		start = i;
		while (i < length && line[i] != ' ' && line[i] != '\t')
			i++;
		if (i == start)
			break;
		if (parser->n_args == FM_RESP_ARGS_MAX)
			return broken(parser, "too many arguments");
		parser->args[parser->n_args++] = (struct fm_resp_arg){
			.at = (uint32_t)(line + start - data), .length = i - start};
	}
	parser->scanned = (uint32_t)next;
	return FM_RESP_COMMAND; /* perhaps without any argument: an empty line */
}

static enum fm_resp_state take_count(struct fm_resp_parser *parser, const char *data, size_t length)
{
	size_t line_length, next;
	const char *line = take_line(parser, data, length, &line_length, &next);
	uint64_t count;

	if (!line)
		return length - parser->scanned > LINE_MAX_BYTES
			       ? broken(parser, "too big inline request")
			       : FM_RESP_MORE;
	if (line_length == 0 || line[0] != '*')
		return take_inline(parser, data, line, line_length, next);
	if (line_length == 3 && !memcmp(line, "*-1", 3))
		count = 0; /* a null array: nothing to do, as Redis has it */
	else if (!fm_resp_number(line + 1, line_length - 1, &count))
		return broken(parser, "invalid multibulk length");
	if (count > FM_RESP_ARGS_MAX)
		return broken(parser, "more than 4096 arguments");
	parser->scanned = (uint32_t)next;
	parser->n_wanted = (uint32_t)count;
	parser->is_inside = true;
	return FM_RESP_MORE;
}

/* The "$length" line before an argument. */
static enum fm_resp_state take_length(struct fm_resp_parser *parser, const char *data,
				      size_t length)
{
	size_t line_length, next;
	const char *line = take_line(parser, data, length, &line_length, &next);

	if (!line)
		return length - parser->scanned > 32 ? broken(parser, "invalid bulk length")
						     : FM_RESP_MORE;
	if (!line_length || line[0] != '$')
		return broken(parser, "expected '$'");
	if (!fm_resp_number(line + 1, line_length - 1, &parser->length) ||
	    parser->length > UINT32_MAX)
		return broken(parser, "invalid bulk length");
	parser->scanned = (uint32_t)next;
	parser->has_length = true;
	return FM_RESP_MORE;
}

/* The first argument is the command's name, the second its first key: those are never long. */
static bool is_long(const struct fm_resp_parser *parser)
{
	return parser->n_args >= 2 && parser->length &&
	       (parser->length >= FM_RESP_LONG_MIN ||
		(parser->n_args % 2 == 0 && parser->scanned + parser->length > FM_RESP_TEXT_MANY));
}

static enum fm_resp_state take_argument(struct fm_resp_parser *parser, const char *data,
					size_t length)
{
	const char *bytes = data + parser->scanned;
	size_t left = length - parser->scanned;

	if (is_long(parser)) {
		parser->long_length = parser->length;
		return FM_RESP_LONG;
	}
	if (parser->length > FM_RESP_TEXT_MAX - parser->scanned)
		return broken(parser, "a command of more than 1 MiB besides its values");
	if (left < parser->length + 2)
		return FM_RESP_MORE;
	if (bytes[parser->length] != '\r' || bytes[parser->length + 1] != '\n')
		return broken(parser, "expected CR LF after an argument");
	parser->args[parser->n_args++] =
		(struct fm_resp_arg){.at = parser->scanned, .length = parser->length};
	parser->scanned += (uint32_t)parser->length + 2;
	parser->has_length = false;
	return FM_RESP_MORE;
}

enum fm_resp_state fm_resp_parse(struct fm_resp_parser *parser, const char *data, size_t length)
{
	if (parser->error)
		return FM_RESP_BROKEN;
	for (;;) {
		uint32_t scanned = parser->scanned;
		bool had_length = parser->has_length;
		enum fm_resp_state state;

		if (parser->scanned > FM_RESP_TEXT_MAX)
			return broken(parser, "a command of more than 1 MiB besides its values");
		if (!parser->is_inside)
			state = take_count(parser, data, length);
		else if (parser->n_args == parser->n_wanted)
			return FM_RESP_COMMAND;
		else if (!parser->has_length)
			state = take_length(parser, data, length);
		else
			state = take_argument(parser, data, length);
		if (state != FM_RESP_MORE)
			return state;
		if (parser->scanned == scanned && parser->has_length == had_length)
			return FM_RESP_MORE;
	}
}

void fm_resp_long_taken(struct fm_resp_parser *parser)
{
	parser->args[parser->n_args++] = (struct fm_resp_arg){
		.length = parser->long_length, .is_long = true, .long_at = parser->n_long++};
	parser->has_length = false;
}

size_t fm_resp_command_taken(struct fm_resp_parser *parser)
{
	size_t taken = parser->scanned;

	parser->n_args = parser->n_wanted = parser->n_long = parser->scanned = 0;
	parser->is_inside = parser->has_length = false;
	return taken;
}

/* ---- glob ---- */

/* Whether @c is in the class at pattern[*at] (behind the bracket); moves *@at behind it. */
static bool is_in_class(const char *pattern, size_t length, size_t *at, char c)
{
	bool is_negated = *at < length && pattern[*at] == '^', is_in = false;

	*at += is_negated;
	while (*at < length && pattern[*at] != ']') {
		char low = pattern[*at], high;

		if (low == '\\' && *at + 1 < length)
			low = pattern[++*at];
		high = low;
		if (*at + 2 < length && pattern[*at + 1] == '-') {
			high = pattern[*at + 2];
			*at += 2;
		}
		if (low > high) {
			char swap = low;

			low = high;
			high = swap;
		}
		is_in |= c >= low && c <= high;
		++*at;
	}
	if (*at < length)
		++*at; /* the closing bracket */
	return is_in != is_negated;
}

bool fm_resp_glob(const char *pattern, size_t pattern_length, const char *text, size_t length)
{
	size_t p = 0, t = 0, star = SIZE_MAX, star_text = 0;

	while (t < length) {
		size_t next = p;
		bool fits = false;

		if (p < pattern_length && pattern[p] == '*') {
			star = ++p;
			star_text = t;
			continue;
		}
		if (p < pattern_length && pattern[p] == '[') {
			next = p + 1;
			fits = is_in_class(pattern, pattern_length, &next, text[t]);
		} else if (p < pattern_length) {
			if (pattern[p] == '\\' && p + 1 < pattern_length)
				next++;
			fits = pattern[next] == text[t] || (pattern[p] == '?');
			next++;
		}
		if (fits) {
			p = next;
			t++;
		} else if (star != SIZE_MAX) {
			p = star; /* the last star takes one more */
			t = ++star_text;
		} else {
			return false;
		}
	}
	while (p < pattern_length && pattern[p] == '*')
		p++;
	return p == pattern_length;
}
