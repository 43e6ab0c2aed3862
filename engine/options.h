/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command-line options that several subcommands share: the model and its precision, the pool, the
 * batch. One parser, so that a flag means the same everywhere.
 */
#ifndef FM_ENGINE_OPTIONS_H
#define FM_ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "command_line.h"
#include "http/front_end.h"
#include "model/model.h"

struct fm_engine_flags {
	const char *model;
	struct fm_model_options model_options;
	const char *pool_socket; /* NULL: embedded, or the default for a worker */
	uint64_t pool_bytes;	 /* of an embedded pool */
	bool has_pool_bytes;	 /* the command line gave them */
	uint32_t max_batch, chunk;
	const char *logits_log; /* NULL: none */
};

#define FM_ENGINE_LONG_OPTIONS                                                                     \
	{"model", required_argument, NULL, 'm'}, {"precision", required_argument, NULL, 'P'},      \
		{"kv", required_argument, NULL, 'K'}, {"threads", required_argument, NULL, 't'},   \
		{"isa", required_argument, NULL, 'I'}, {"chunk", required_argument, NULL, 'C'},    \
		{"max-batch", required_argument, NULL, 'B'},                                       \
		{"pool-socket", required_argument, NULL, 'S'},                                     \
		{"pool-size", required_argument, NULL, 'Z'},                                       \
		{"logits-log", required_argument, NULL, 'L'}, {"help", no_argument, NULL, 'h'},    \
	{                                                                                          \
		"version", no_argument, NULL, 'V'                                                  \
	}

#define FM_ENGINE_OPTIONS_HELP                                                                     \
	"  -m, --model FILE      a GGUF file\n"                                                    \
	"      --precision P     q16 (16-bit activations, default), q8 or f32\n"                   \
	"      --kv TYPE         f16 (default) or f32\n"                                           \
	"  -t, --threads N       default: every CPU this process may use\n"                        \
	"      --isa NAME        portable, avx2, avx512 or amx: the same bits (default: the "      \
	"best)\n"                                                                                  \
	"      --chunk N         prompt tokens computed in one step (default 256)\n"               \
	"      --max-batch N     requests that run at once (default 16)\n"                         \
	"      --pool-socket S   the node daemon's socket\n"                                       \
	"      --pool-size SIZE  of a pool inside this process, e.g. 512M (default 1G)\n"          \
	"      --logits-log FILE append the SHA-256 of the logits behind each token\n"             \
	"  -h, --help; --version\n"

void fm_engine_flags_init(struct fm_engine_flags *flags);
/* Takes one of the options above. 1: taken; 0: not one of them; negative: a usage error, said. */
int fm_engine_flags_take(struct fm_engine_flags *flags, int option, const char *value);
/* What stands behind the flags is an error, and so is a missing -m FILE. */
int fm_engine_flags_finish(const struct fm_engine_flags *flags, int argc, char **argv);

/* ---- flags of the HTTP side: serve and router */

enum {
	FM_FLAG_LISTEN = 2000,
	FM_FLAG_TLS,
	FM_FLAG_NAME,
	FM_FLAG_DEADLINE,
	FM_FLAG_MAX_REQUESTS,
	FM_FLAG_DRAIN
};

#define FM_FRONT_END_LONG_OPTIONS                                                                  \
	{"listen", required_argument, NULL, FM_FLAG_LISTEN},                                       \
		{"tls", required_argument, NULL, FM_FLAG_TLS},                                     \
		{"model-name", required_argument, NULL, FM_FLAG_NAME},                             \
		{"deadline", required_argument, NULL, FM_FLAG_DEADLINE},                           \
		{"max-requests", required_argument, NULL, FM_FLAG_MAX_REQUESTS},                   \
	{                                                                                          \
		"drain-seconds", required_argument, NULL, FM_FLAG_DRAIN                            \
	}

#define FM_FRONT_END_OPTIONS_HELP                                                                  \
	"      --listen HOST:PORT  default 127.0.0.1:8080; port 0: any free one, printed\n"        \
	"      --tls terminated-by-proxy  allows an address off loopback, behind a TLS proxy\n"    \
	"      --model-name NAME what clients call the model (default: the file's name)\n"         \
	"      --deadline S      longest time without progress (default 120)\n"                    \
	"      --max-requests N  beyond them: 429 (default 256, at most 4096)\n"                   \
	"      --drain-seconds S what runs at SIGTERM may go on so long (default 30)\n"

/* 1: taken; 0: not one of them; negative: a usage error. */
int fm_front_end_flag_take(struct fm_front_end_options *options, int flag, const char *value);

#endif
