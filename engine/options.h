/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command-line options that several subcommands share: the model and its precision, the pool, the
 * batch. One parser, so that a flag means the same everywhere.
 */
#ifndef FM_ENGINE_OPTIONS_H
#define FM_ENGINE_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct fm_engine_flags {
	const char *model;
	struct fm_model_options model_options;
	const char *pool_socket; /* NULL: embedded, or the default for a worker */
	uint64_t pool_bytes;	 /* of an embedded pool */
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
		{"logits-log", required_argument, NULL, 'L'}, {"help", no_argument, NULL, 'h'}

#define FM_ENGINE_OPTIONS_HELP                                                                     \
	"  -m, --model FILE      a GGUF file\n"                                                    \
	"      --precision P     q16 (16-bit activations, default), q8 or f32\n"                   \
	"      --kv TYPE         f16 (default) or f32\n"                                           \
	"  -t, --threads N       default: every CPU this process may use\n"                        \
	"      --isa NAME        portable, avx2, avx512; default: the best here; all give the "    \
	"same "                                                                                    \
	"bits\n"                                                                                   \
	"      --chunk N         prompt tokens computed in one step (default 256)\n"               \
	"      --max-batch N     requests that run at once (default 16)\n"                         \
	"      --pool-socket S   the node daemon's socket\n"                                       \
	"      --pool-size SIZE  of a pool inside this process, e.g. 512M (default 1G)\n" \
	"      --logits-log FILE append the SHA-256 of the logits behind each token\n"

void fm_engine_flags_init(struct fm_engine_flags *flags);
/* Takes one of the options above. 1: taken; 0: not one of them; negative: a usage error, said. */
int fm_engine_flags_take(struct fm_engine_flags *flags, int option, const char *value);
/* A number in [min, max], or a usage error that names @what. */
int fm_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* The same for a number with a fraction. */
int fm_parse_float(const char *what, const char *text, double min, double max, float *out);
/* 512M, 4G, 65536 … */
int fm_parse_bytes(const char *what, const char *text, uint64_t *out);

#endif
