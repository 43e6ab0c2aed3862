/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of the Redis protocol (RESP2 requests, https://redis.io/docs/latest/develop/reference/
 * protocol-spec/), taken from a byte stream piece by piece. Pure; called by the front end in pool/.
 * Invariant: what a sender may make us keep is bounded by FM_RESP_ARGS_MAX and FM_RESP_TEXT_MAX;
 * long values never pass through here, the caller is told to receive them where they belong.
 */
#ifndef FM_CORE_RESP_H
#define FM_CORE_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Arguments of one command: MGET and EXISTS of 4,095 keys, MSET of 2,047 pairs. */
#define FM_RESP_ARGS_MAX 4096u
/* Bytes of one command besides its long values. */
#define FM_RESP_TEXT_MAX (1u << 20)
/* An argument at least this long is received in place; and, when this much text is there, any at an
 * even place, where SET and MSET have their values. */
#define FM_RESP_LONG_MIN  16384u
#define FM_RESP_TEXT_MANY (FM_RESP_TEXT_MAX / 4 * 3)

struct fm_resp_arg {
	uint32_t at; /* offset from the start of the command; not used when is_long */
	uint64_t length;
	bool is_long;	  /* received by the caller */
	uint32_t long_at; /* which of the command's long values, from 0 */
};

enum fm_resp_state {
	FM_RESP_MORE,	 /* needs more bytes */
	FM_RESP_COMMAND, /* args[0..n_args) are complete */
	FM_RESP_LONG,	 /* @long_length bytes and CR LF follow: fm_resp_long_taken() goes on */
	FM_RESP_BROKEN,	 /* not the protocol; @error says why. Nothing more can be understood */
};

struct fm_resp_parser {
	struct fm_resp_arg *args; /* FM_RESP_ARGS_MAX */
	uint32_t n_args, n_wanted, n_long;
	bool is_inside;	  /* of a command whose number of arguments is known */
	uint32_t scanned; /* bytes of this command that were understood */
	bool has_length;  /* of the argument that comes next */
	uint64_t length, long_length;
	const char *error;
};

int fm_resp_parser_create(struct fm_resp_parser *parser);
void fm_resp_parser_destroy(struct fm_resp_parser *parser);
/* @data: all bytes since the start of the command, long values left out. */
enum fm_resp_state fm_resp_parse(struct fm_resp_parser *parser, const char *data, size_t length);
/* The long value and its CR LF were received elsewhere. */
void fm_resp_long_taken(struct fm_resp_parser *parser);
/* The command was dealt with: returns how many bytes of @data it had, and begins the next. */
size_t fm_resp_command_taken(struct fm_resp_parser *parser);

/* A decimal number without sign, all of @text. */
bool fm_resp_number(const char *text, size_t length, uint64_t *out);
/* Redis' glob: * ? [abc] [^a-z] and \ as an escape. */
bool fm_resp_glob(const char *pattern, size_t pattern_length, const char *text, size_t length);

#endif
