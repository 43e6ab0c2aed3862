/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logits to a token. Pure: the result is a function of the logits, the parameters and (seed, choice,
 * position) alone, so a request gives the same tokens wherever and whenever it runs.
 */
#ifndef FM_ENGINE_SAMPLER_H
#define FM_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#define FM_TOP_LOGPROBS_MAX 64

struct fm_sampling {
	float temperature; /* below 1e-5: greedy (lowest id among equals) */
	float top_p;	   /* 1: off */
	float min_p;	   /* 0: off */
	uint32_t top_k;	   /* 0: off */
	uint64_t seed;
	uint32_t choice;
};

struct fm_logprob {
	uint32_t id;
	float logprob; /* natural log, of the unmodified distribution */
};

struct fm_sample {
	uint32_t token;
	float logprob;
	uint32_t n_top;
	struct fm_logprob top[FM_TOP_LOGPROBS_MAX]; /* best first; ties by lower id */
};

/* FM_ERR_INVALID with fm_error_detail() naming the parameter that is out of range. */
int fm_sampling_check(const struct fm_sampling *sampling);
/* @position: absolute position of the token to be chosen. @n_top may be 0. @scratch: @n_vocab
 * floats, may be overwritten. */
void fm_sampler_choose(const float *logits, size_t n_vocab, const struct fm_sampling *sampling,
		       uint32_t position, uint32_t n_top, float *scratch, struct fm_sample *out);
/* The same report for a given token (teacher forcing). */
void fm_sampler_score(const float *logits, size_t n_vocab, uint32_t token, uint32_t n_top,
		      struct fm_sample *out);

#endif
