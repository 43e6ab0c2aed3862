/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a choice to what its client reads: text, chunks, log probabilities, usage. Called by
 * the front end's thread. Invariant: however often a request changed workers, each token is pushed
 * here once and in order, so the client's text has neither gap nor repetition.
 */
#ifndef FM_ENGINE_ANSWER_H
#define FM_ENGINE_ANSWER_H

#include "http/exchange.h"

struct fm_answer_context {
	const struct fm_tokenizer *tokenizer;
	const char *model_name;
};

struct fm_token_event {
	uint32_t token;
	double logprob;
	uint32_t n_top;
	struct {
		uint32_t token;
		double logprob;
	} top[FM_OPENAI_LOGPROBS_MAX];
};

/* Takes a token. 1: that was the last one, `finish` is set (stop string, or max_tokens reached);
 * 0: more may follow; negative: the client cannot be served any more. */
int fm_choice_token(struct fm_choice *choice, const struct fm_answer_context *context,
		    const struct fm_token_event *event, uint64_t now);
/* No more tokens: what was held back goes out, with the finish reason. */
int fm_choice_finish(struct fm_choice *choice, const struct fm_answer_context *context,
		     const char *finish);
/* All choices are done: the whole answer, or the stream's end. @address of a worker by its number.
 */
int fm_exchange_answer(struct fm_exchange *exchange, const struct fm_answer_context *context,
		       const char *(*address)(void *arg, int worker), void *arg);
/* Prompt tokens of this choice that came from the pool. */
uint32_t fm_choice_cached(const struct fm_choice *choice);

#endif
