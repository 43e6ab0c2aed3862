// SPDX-License-Identifier: Apache-2.0
/*
 * Reads traces from files: plain or .xz, one JSON object a line, in Mooncake's or kv-cache-tester's
 * format. Called by main.c; calls liblzma and jansson. Invariant: whatever a file holds, the result
 * is a sound trace or an error that names the line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <lzma.h>

#include <fabricmgr.h>

#include "fabric-sim/trace.h"

#define IDS_MAX	  (1u << 24) /* blocks of one request */
#define NS_PER_S  1e9
#define NS_PER_MS 1000000ull

/* The block list of the last request at one place of a session: its own, or a sub-agent's. */
struct place {
	uint32_t *ids;
	size_t n, room;
};

struct reader {
	struct fm_trace_builder *builder;
	struct fm_trace *trace;
	struct place top, sub;
	uint32_t session;  /* number of the session that is open, from 1 */
	uint64_t sub_left; /* requests of the sub-agent that are still to come */
	double sub_start_s;
};

/* ---- bytes ---- */

static int read_all(const char *path, uint8_t **out, size_t *out_n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0, room = 1 << 20;
	uint8_t *bytes = malloc(room);
	ssize_t got = fd < 0 ? -1 : 0;

	while (fd >= 0 && bytes) {
		if (n == room) {
			uint8_t *more = room < FM_TRACE_BYTES_MAX ? realloc(bytes, 2 * room) : NULL;

			if (!more)
				break;
			bytes = more;
			room *= 2;
		}
		/* cppcheck-suppress nullPointerArithmeticRedundantCheck ; the loop ends first */
		got = read(fd, bytes + n, room - n);
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	if (got) {
		int err = got < 0 ? fm_fail(FM_ERR_IO,
					    "--trace %s: %s: give a file of requests (three are in "
					    "the sources' tests/data/traces)",
					    path, strerror(errno))
				  : fm_fail(FM_ERR_LIMIT, "%s: larger than %llu MiB", path,
					    FM_TRACE_BYTES_MAX >> 20);

		free(bytes);
		if (fd >= 0)
			close(fd);
		return err;
	}
	close(fd);
	if (!bytes)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to read %s", path);
	*out = bytes;
	*out_n = n;
	return 0;
}

/* Replaces @bytes by what they hold when they are an .xz file. */
static int unpack(const char *path, uint8_t **bytes, size_t *n)
{
	static const uint8_t magic[6] = {0xfd, '7', 'z', 'X', 'Z', 0};
	lzma_stream stream = LZMA_STREAM_INIT;
	size_t room = 8 * *n;
	uint8_t *plain;
	lzma_ret ret;

	if (*n < sizeof(magic) || memcmp(*bytes, magic, sizeof(magic)))
		return 0;
	plain = malloc(room);
	ret = lzma_stream_decoder(&stream, FM_TRACE_BYTES_MAX, LZMA_CONCATENATED);
	stream.next_in = *bytes;
	stream.avail_in = *n;
	while (plain && ret == LZMA_OK && stream.total_out < FM_TRACE_BYTES_MAX) {
		if (stream.total_out == room) {
			uint8_t *more = realloc(plain, 2 * room);

			if (!more)
				break;
			plain = more;
			room *= 2;
		}
		/* cppcheck-suppress nullPointerArithmeticRedundantCheck ; the loop ends first */
		stream.next_out = plain + stream.total_out;
		stream.avail_out = room - stream.total_out;
		ret = lzma_code(&stream, LZMA_FINISH);
	}
	lzma_end(&stream);
	if (ret != LZMA_STREAM_END) {
		free(plain);
		return ret == LZMA_OK
			       ? fm_fail(FM_ERR_LIMIT, "%s: no memory, or larger than %llu MiB",
					 path, FM_TRACE_BYTES_MAX >> 20)
			       : fm_fail(FM_ERR_CORRUPT, "%s: a damaged .xz file (liblzma: %d)",
					 path, (int)ret);
	}
	free(*bytes);
	*bytes = plain;
	*n = (size_t)stream.total_out;
	return 0;
}

/* ---- lines ---- */

static int number(const json_t *object, const char *name, double max, double *out)
{
	const json_t *value = json_object_get(object, name);

	if (!json_is_number(value) || !(json_number_value(value) >= 0) ||
	    json_number_value(value) > max)
		return fm_fail(FM_ERR_CORRUPT, "\"%s\" must be a number from 0 to %.0f", name, max);
	*out = json_number_value(value);
	return 0;
}

static int extend(struct place *place, uint64_t first, uint64_t n)
{
	if (n > IDS_MAX - place->n || first + n > UINT32_MAX)
		return fm_fail(FM_ERR_LIMIT, "a request of more than %u blocks", IDS_MAX);
	if (place->n + n > place->room) {
		size_t room = 2 * (place->n + n);
		uint32_t *ids = realloc(place->ids, room * sizeof(*ids));

		if (!ids)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for a request's blocks");
		place->ids = ids;
		place->room = room;
	}
	for (uint64_t i = 0; i < n; i++)
		place->ids[place->n++] = (uint32_t)(first + i);
	return 0;
}

static int mooncake_line(struct reader *reader, const json_t *line)
{
	const json_t *ids = json_object_get(line, "hash_ids");
	double time, tokens;
	int err = number(line, "timestamp", 1e12, &time);

	if (!err)
		err = number(line, "input_length", 1e9, &tokens);
	reader->top.n = 0;
	for (size_t i = 0; !err && i < json_array_size(ids); i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0)
			err = fm_fail(FM_ERR_CORRUPT, "\"hash_ids\" must hold whole numbers");
		else
			err = extend(&reader->top, (uint64_t)json_integer_value(id), 1);
	}
	if (err)
		return err;
	reader->trace->tokens_per_block = FM_TRACE_MOONCAKE_SIZE;
	return fm_trace_builder_add(reader->builder, (uint64_t)time * NS_PER_MS, (uint64_t)tokens,
				    0, reader->top.ids, reader->top.n);
}

static int session_line(struct reader *reader, const json_t *line)
{
	double block;
	int err = number(line, "block", 1 << 20, &block);

	if (err)
		return err;
	if (block < 1 ||
	    (reader->trace->tokens_per_block && reader->trace->tokens_per_block != (uint32_t)block))
		return fm_fail(FM_ERR_CORRUPT,
			       "\"block\" must be above 0, and the same in all sessions");
	reader->trace->tokens_per_block = (uint32_t)block;
	reader->session++;
	reader->top.n = reader->sub.n = 0;
	reader->sub_left = 0;
	return 0;
}

static int sub_line(struct reader *reader, const json_t *line)
{
	double n;
	int err = number(line, "n", 1e9, &n);

	if (!err)
		err = number(line, "t", 1e9, &reader->sub_start_s);
	reader->sub_left = err ? 0 : (uint64_t)n;
	reader->sub.n = 0;
	return err;
}

static int request_line(struct reader *reader, const json_t *line)
{
	struct place *place = reader->sub_left ? &reader->sub : &reader->top;
	const json_t *runs = json_object_get(line, "add");
	double time, tokens, keep;
	int err = number(line, "t", 1e9, &time);

	if (!reader->session)
		return fm_fail(FM_ERR_CORRUPT, "a request before the first session");
	if (!err)
		err = number(line, "in", 1e9, &tokens);
	if (!err)
		err = number(line, "keep", (double)place->n, &keep);
	if (err)
		return err;
	place->n = (size_t)keep;
	for (size_t i = 0; !err && i < json_array_size(runs); i++) {
		const json_t *first = json_array_get(json_array_get(runs, i), 0);
		const json_t *n = json_array_get(json_array_get(runs, i), 1);

		if (json_integer_value(first) < 0 || json_integer_value(n) <= 0)
			err = fm_fail(FM_ERR_CORRUPT, "\"add\" must hold pairs [first id, count]");
		else
			err = extend(place, (uint64_t)json_integer_value(first),
				     (uint64_t)json_integer_value(n));
	}
	if (err)
		return err;
	if (reader->sub_left) {
		reader->sub_left--;
		time += reader->sub_start_s;
	}
	return fm_trace_builder_add(reader->builder, (uint64_t)(time * NS_PER_S), (uint64_t)tokens,
				    reader->session, place->ids, place->n);
}

static int read_line(struct reader *reader, const json_t *line)
{
	if (json_object_get(line, "hash_ids"))
		return mooncake_line(reader, line);
	if (json_object_get(line, "trace"))
		return session_line(reader, line);
	if (json_object_get(line, "sub"))
		return sub_line(reader, line);
	if (json_object_get(line, "keep"))
		return request_line(reader, line);
	return fm_fail(FM_ERR_CORRUPT,
		       "neither a request of Mooncake's format (\"hash_ids\") nor a line of "
		       "kv-cache-tester's (\"trace\", \"sub\", \"keep\")");
}

static int read_lines(struct reader *reader, const char *path, const char *text, size_t n)
{
	unsigned int line_number = 0;
	int err = 0;

	for (size_t at = 0; !err && at < n;) {
		const char *end = memchr(text + at, '\n', n - at);
		size_t length = end ? (size_t)(end - text) - at : n - at;
		json_error_t error;
		json_t *line;

		line_number++;
		line = json_loadb(text + at, length, 0, &error);
		err = line ? read_line(reader, line)
			   : fm_fail(FM_ERR_CORRUPT,
				     "not JSON (%s): give a trace, a JSON object a line "
				     "(man fabric-sim)",
				     error.text);
		if (err) {
			char why[256];

			snprintf(why, sizeof(why), "%s", fm_error_detail());
			err = fm_fail(err, "%s, line %u: %s", path, line_number, why);
		}
		json_decref(line);
		at += length + 1;
	}
	return err;
}

int fm_trace_load(const char *path, struct fm_trace *trace)
{
	struct reader reader = {.trace = trace};
	uint8_t *bytes = NULL;
	size_t n = 0;
	int err;

	memset(trace, 0, sizeof(*trace));
	err = read_all(path, &bytes, &n);
	if (!err)
		err = unpack(path, &bytes, &n);
	if (!err)
		err = fm_trace_builder_create(trace, &reader.builder);
	if (err) {
		free(bytes);
		return err;
	}
	err = read_lines(&reader, path, (const char *)bytes, n);
	fm_trace_builder_finish(reader.builder);
	if (!err && !trace->request_count)
		err = fm_fail(FM_ERR_CORRUPT, "%s: no request in it", path);
	free(bytes);
	free(reader.top.ids);
	free(reader.sub.ids);
	if (err)
		fm_trace_free(trace);
	return err;
}
