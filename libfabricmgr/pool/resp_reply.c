// SPDX-License-Identifier: Apache-2.0
/*
 * Answers on their way to a Redis client: short texts gathered in buffers, values as pieces of
 * leased blocks that are never copied. Called by resp_commands.c and resp_server.c. Invariant: a
 * piece that is with the kernel does not change.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/resp_front.h"

#define TEXT_BYTES 4096u

static struct resp_piece *add_piece(struct resp_connection *connection)
{
	struct resp_out *out = &connection->out;

	if (out->first && out->first == out->end)
		out->first = out->end = 0;
	if (out->end == out->size) {
		uint32_t size = out->size ? out->size * 2 : 16;
		struct resp_piece *pieces;

		/* With the kernel are iovecs, which point at the data and not at the pieces. */
		pieces = realloc(out->pieces, size * sizeof(*pieces));
		if (!pieces) {
			connection->is_dead = true;
			return NULL;
		}
		out->pieces = pieces;
		out->size = size;
	}
	out->pieces[out->end] = (struct resp_piece){.block.lease = UINT32_MAX};
	return &out->pieces[out->end++];
}

void resp_reply(struct resp_connection *connection, const char *text, size_t length)
{
	struct resp_out *out = &connection->out;
	struct resp_piece *last = NULL;

	if (connection->is_dead)
		return;
	if (out->end > out->first + out->in_flight)
		last = &out->pieces[out->end - 1];
	if (!last || last->room < length) {
		size_t size = length > TEXT_BYTES ? length : TEXT_BYTES;

		last = add_piece(connection);
		if (!last)
			return;
		last->text = malloc(size);
		if (!last->text) {
			out->end--;
			connection->is_dead = true;
			return;
		}
		last->data = last->text;
		last->room = last->size = size;
		connection->front->text_bytes += size;
	}
	memcpy(last->text + last->length, text, length);
	last->length += length;
	last->room -= length;
	out->bytes += length;
}

void resp_reply_text(struct resp_connection *connection, const char *text)
{
	resp_reply(connection, text, strlen(text));
}

void resp_reply_format(struct resp_connection *connection, const char *format, ...)
{
	char text[1024];
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text, sizeof(text) - 2, format, arguments);
	va_end(arguments);
	if (length > (int)sizeof(text) - 3)
		length = (int)sizeof(text) - 3;
	text[length++] = '\r';
	text[length++] = '\n';
	resp_reply(connection, text, (size_t)length);
}

void resp_reply_null(struct resp_connection *connection)
{
	resp_reply_text(connection, connection->protocol == 3 ? "_\r\n" : "$-1\r\n");
}

void resp_reply_bulk(struct resp_connection *connection, const void *data, size_t length)
{
	resp_reply_format(connection, "$%zu", length);
	resp_reply(connection, data, length);
	resp_reply(connection, "\r\n", 2);
}

void resp_reply_block(struct resp_connection *connection, struct fm_block *block, uint64_t offset,
		      uint64_t length)
{
	struct resp_piece *piece;

	/* Short ones are cheaper copied than as a piece of their own. */
	if (length < TEXT_BYTES / 4) {
		resp_reply_bulk(connection, (const char *)block->data + offset, length);
		fm_block_release(connection->front->pool, block, 1);
		return;
	}
	resp_reply_format(connection, "$%llu", (unsigned long long)length);
	piece = connection->is_dead ? NULL : add_piece(connection);
	if (!piece) {
		fm_block_release(connection->front->pool, block, 1);
		return;
	}
	piece->data = (const char *)block->data + offset;
	piece->length = length;
	piece->block = *block;
	connection->out.bytes += length;
	resp_reply(connection, "\r\n", 2);
}

static void drop_piece(struct resp_connection *connection, struct resp_piece *piece)
{
	free(piece->text);
	connection->front->text_bytes -= piece->size;
	if (piece->block.lease != UINT32_MAX)
		fm_block_release(connection->front->pool, &piece->block, 1);
}

void resp_out_sent(struct resp_connection *connection, size_t n)
{
	struct resp_out *out = &connection->out;

	out->in_flight = 0;
	out->bytes -= n;
	while (n) {
		struct resp_piece *piece = &out->pieces[out->first];

		if (n < piece->length) {
			piece->data += n;
			piece->length -= n;
			piece->room = 0; /* its start has moved: it grows no more */
			return;
		}
		n -= piece->length;
		drop_piece(connection, piece);
		out->first++;
	}
}

void resp_out_destroy(struct resp_connection *connection)
{
	struct resp_out *out = &connection->out;

	for (uint32_t i = out->first; i < out->end; i++)
		drop_piece(connection, &out->pieces[i]);
	free(out->pieces);
	*out = (struct resp_out){0};
}
