// SPDX-License-Identifier: Apache-2.0
/* The undisturbed run that others are compared with (see lone_run.h). For tests only. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "lone_run.h"

void lone_run_create(struct fm_model *model, const uint32_t *prompt, uint32_t n_prompt,
		     uint32_t max_tokens, const struct fm_sampling *sampling, struct lone_run *out)
{
	const struct fm_model_info *info = fm_model_info(model);
	const uint32_t vocab = info->vocab_size, n_blocks = (n_prompt + max_tokens) / 16 + 1;
	struct fm_token_in *batch = calloc(n_prompt, sizeof(*batch));
	void **blocks = calloc(n_blocks, sizeof(*blocks));
	uint8_t *kv = calloc(n_blocks, fm_model_block_bytes(model));
	void *scratch = malloc(fm_sampler_scratch_bytes(vocab));
	struct fm_sample sample;
	uint32_t n = n_prompt;

	*out = (struct lone_run){.n_prompt = n_prompt};
	out->tokens = calloc(n_prompt + max_tokens, sizeof(*out->tokens));
	out->logits = calloc(max_tokens, vocab * sizeof(*out->logits));
	for (uint32_t i = 0; i < n_blocks; i++)
		blocks[i] = kv + i * fm_model_block_bytes(model);
	memcpy(out->tokens, prompt, n_prompt * sizeof(*prompt));
	for (uint32_t first = 0; out->n_generated < max_tokens && n < info->context_length;) {
		float *logits = out->logits + (size_t)out->n_generated * vocab;
		struct fm_history history = {out->tokens, n_prompt, n};

		for (uint32_t i = first; i < n; i++)
			batch[i - first] = (struct fm_token_in){
				.token = out->tokens[i],
				.position = i,
				.blocks = blocks,
				.logits = i + 1 == n ? logits : NULL,
			};
		ck_assert_int_eq(fm_model_forward(model, batch, n - first), 0);
		fm_sampler_choose(logits, vocab, sampling, &history, 0, scratch, &sample);
		first = n;
		out->tokens[n++] = sample.token;
		out->n_generated++;
	}
	free(batch);
	free(blocks);
	free(kv);
	free(scratch);
}

void lone_run_destroy(struct lone_run *run)
{
	free(run->tokens);
	free(run->logits);
	*run = (struct lone_run){0};
}
