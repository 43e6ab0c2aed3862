/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The OpenAI API as data: request bodies to a checked struct, results to JSON. Pure: no sockets, no
 * tokenizer, no clock; called by the HTTP server and by the front end's thread, and fuzzed.
 * Invariant: a parsed request is within every documented limit, so nothing behind it checks again.
 */
#ifndef FM_ENGINE_OPENAI_H
#define FM_ENGINE_OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/chat_template.h"
#include "text/sampler.h"
#include "text/text_stream.h"

#define FM_OPENAI_CHOICES_MAX	 16 /* prompts times n */
#define FM_OPENAI_MESSAGES_MAX	 2048
#define FM_OPENAI_LOGPROBS_MAX	 20 /* as OpenAI */
#define FM_OPENAI_DEFAULT_TOKENS 16 /* of /v1/completions, as OpenAI */

struct fm_openai_error {
	int status;
	const char *type; /* "invalid_request_error", "server_error", … */
	const char *code; /* or NULL */
	char param[64];	  /* or "" */
	char message[512];
};

enum fm_openai_kind {
	FM_OPENAI_COMPLETION,
	FM_OPENAI_CHAT,
};

struct fm_openai_prompt {
	char *text; /* terminated; NULL when tokens were given */
	size_t len;
	uint32_t *tokens;
	size_t n_tokens;
};

struct fm_openai_request {
	enum fm_openai_kind kind;
	char *model; /* NULL: not named */
	struct fm_openai_prompt *prompts;
	size_t n_prompts;
	struct fm_chat_message *messages;
	size_t n_messages;
	bool stream, include_usage, has_seed, logprobs, ignore_end;
	uint32_t n_top;	     /* top alternatives a token */
	uint32_t max_tokens; /* 0: as many as the context takes */
	uint32_t n;
	struct fm_sampling sampling; /* its lists are the two below; their ids are any */
	struct fm_logit_bias *bias;
	uint32_t *stop_tokens;
	char *stops[FM_STOP_STRINGS_MAX];
	size_t n_stops;
};

/* 0, or FM_ERR_INVALID / FM_ERR_NO_MEMORY with @error filled in. fm_openai_request_free() either
 * way. */
int fm_openai_parse(enum fm_openai_kind kind, const char *body, size_t len,
		    struct fm_openai_request *out, struct fm_openai_error *error);
void fm_openai_request_free(struct fm_openai_request *request);

struct fm_openai_tokenize {
	char *content;
	size_t len;
	bool add_special, parse_special;
};
int fm_openai_parse_tokenize(const char *body, size_t len, struct fm_openai_tokenize *out,
			     struct fm_openai_error *error);
/* @tokens: owned by the caller, free(). */
int fm_openai_parse_detokenize(const char *body, size_t len, uint32_t **tokens, size_t *n,
			       struct fm_openai_error *error);

/* Fills @error and returns FM_ERR_INVALID. The message may hold any bytes: they are made UTF-8. */
int fm_openai_refuse(struct fm_openai_error *error, int status, const char *param, const char *code,
		     const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- results. Strings are owned by the caller, free(); NULL: out of memory. */

/* A JSON string of any bytes; what is not UTF-8 becomes U+FFFD. */
json_t *fm_json_text(const char *text, size_t len);
char *fm_openai_error_text(const struct fm_openai_error *error);

struct fm_openai_usage {
	uint32_t prompt_tokens, completion_tokens, cached_tokens;
	json_t *fabricmgr; /* borrowed; NULL: none */
};

struct fm_openai_identity {
	enum fm_openai_kind kind;
	const char *id, *model;
	int64_t created;
};

/* One choice of an answer or of a chunk. Takes over @logprobs (may be NULL). */
json_t *fm_openai_choice(enum fm_openai_kind kind, bool is_chunk, uint32_t index, const char *text,
			 size_t len, bool is_first, const char *finish, json_t *logprobs);
/* A whole answer, or the JSON of one SSE event. Takes over @choices; @usage may be NULL. */
char *fm_openai_answer(const struct fm_openai_identity *identity, bool is_chunk, json_t *choices,
		       const struct fm_openai_usage *usage);

/* Log probabilities in the kind's own form, filled a token at a time. */
json_t *fm_openai_logprobs_create(enum fm_openai_kind kind);
struct fm_openai_piece {
	const char *bytes;
	size_t len;
	double logprob;
};
int fm_openai_logprobs_add(json_t *logprobs, enum fm_openai_kind kind,
			   const struct fm_openai_piece *token, const struct fm_openai_piece *top,
			   size_t n_top, size_t text_offset);

#endif
