/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logits to a token. Pure: the result is a function of the logits, the parameters, the tokens
 * before (which their number gives the position of) and (seed, choice) alone, so a request gives
 * the same tokens wherever and whenever it runs, also when another worker takes it over.
 */
#ifndef FM_ENGINE_SAMPLER_H
#define FM_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#define FM_TOP_LOGPROBS_MAX	  64
#define FM_TEMPERATURE_MAX	  2.0f /* as OpenAI */
#define FM_PENALTY_MAX		  2.0f /* of frequency and presence, on both sides; as OpenAI */
#define FM_REPETITION_PENALTY_MIN 0.01f
#define FM_REPETITION_PENALTY_MAX 100.0f
#define FM_LOGIT_BIAS_MAX	  100.0f /* on both sides; as OpenAI */
#define FM_LOGIT_BIASES_MAX	  1024	 /* a request; each costs a few steps a token */
#define FM_STOP_TOKENS_MAX	  64	 /* a request; all are compared after each token */

struct fm_logit_bias {
	uint32_t id;
	float bias;
};

struct fm_sampling {
	float temperature; /* below 1e-5: greedy (lowest id among equals) */
	float top_p;	   /* 1: off */
	float min_p;	   /* 0: off */
	uint32_t top_k;	   /* 0: off */
	uint64_t seed;
	uint32_t choice;
	float repetition_penalty;		   /* 1: off; over prompt and answer */
	float frequency_penalty, presence_penalty; /* 0: off; over the answer */
	uint32_t min_tokens;			   /* so many generated before one of @ends */
	const uint32_t *ends;			   /* tokens that end the answer */
	uint32_t n_ends;
	const struct fm_logit_bias *bias; /* added to the logits */
	uint32_t n_bias;
};

/* All off, greedy. */
#define FM_SAMPLING_NEUTRAL ((struct fm_sampling){.top_p = 1, .repetition_penalty = 1})

/* The tokens before the one to be chosen; its position is @n_tokens. */
struct fm_history {
	const uint32_t *tokens; /* read only when a penalty is on */
	uint32_t n_prompt, n_tokens;
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

/* FM_ERR_INVALID with fm_error_detail() naming the parameter, its value and its range. */
int fm_sampling_check(const struct fm_sampling *sampling);
/* The same for ids that are not below @n_vocab. */
int fm_sampling_check_ids(const struct fm_sampling *sampling, size_t n_vocab);

/* Bytes of @scratch for @n_vocab logits, aligned as for uint32_t. */
size_t fm_sampler_scratch_bytes(size_t n_vocab);
/* @logits: changed and put back. Ids of @sampling and @history are below @n_vocab. @n_top may be
 * 0. @scratch: any content. */
void fm_sampler_choose(float *logits, size_t n_vocab, const struct fm_sampling *sampling,
		       const struct fm_history *history, uint32_t n_top, void *scratch,
		       struct fm_sample *out);
/* The same report for a given token (teacher forcing). */
void fm_sampler_score(const float *logits, size_t n_vocab, uint32_t token, uint32_t n_top,
		      struct fm_sample *out);

#endif
