/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comparison with reference logits: Kullback-Leibler divergence over the 32 best candidates of
 * the reference and one bucket for the rest, and whether the first candidate is the same. Called by
 * tests only.
 */
#include "reference.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *reference_path(const char *variable, const char *test)
{
	const char *path = getenv(variable);

	if (path && *path)
		return path;
	fprintf(stderr, "SKIP: %s: %s is not set\n", test, variable);
	return NULL;
}

const char *reference_model_path(const char *test)
{
	return reference_path("FABRICMGR_TEST_MODEL", test);
}

json_t *reference_load(const char *file)
{
	char command[256];
	FILE *pipe;
	json_t *root;

	snprintf(command, sizeof(command), "gzip -dc tests/data/%s", file);
	pipe = popen(command, "r");
	root = pipe ? json_loadf(pipe, JSON_ALLOW_NUL, NULL) : NULL;
	if (pipe)
		pclose(pipe);
	return root;
}

static double log_sum_exp(const float *logits, size_t n)
{
	double largest = -INFINITY, sum = 0.0;

	for (size_t i = 0; i < n; i++)
		largest = logits[i] > largest ? logits[i] : largest;
	for (size_t i = 0; i < n; i++)
		sum += exp(logits[i] - largest);
	return largest + log(sum);
}

static double divergence(json_t *position, const float *logits, size_t n)
{
	json_t *ids = json_object_get(position, "ids"), *ours = json_object_get(position, "logits");
	double theirs_sum = json_number_value(json_object_get(position, "logsumexp"));
	double ours_sum = log_sum_exp(logits, n), kl = 0.0, p_rest = 1.0, q_rest = 1.0;

	for (size_t i = 0; i < json_array_size(ids); i++) {
		size_t id = (size_t)json_integer_value(json_array_get(ids, i));
		double log_p = json_number_value(json_array_get(ours, i)) - theirs_sum;
		double log_q = logits[id] - ours_sum;

		kl += exp(log_p) * (log_p - log_q);
		p_rest -= exp(log_p);
		q_rest -= exp(log_q);
	}
	if (p_rest > 1e-9 && q_rest > 1e-9)
		kl += p_rest * log(p_rest / q_rest);
	return kl;
}

static size_t best(const float *logits, size_t n)
{
	size_t at = 0;

	for (size_t i = 1; i < n; i++)
		at = logits[i] > logits[at] ? i : at;
	return at;
}

static void add_position(json_t *position, bool is_greedy, const float *logits, size_t n,
			 struct reference_score *score)
{
	double kl = divergence(position, logits, n);
	json_t *first = json_array_get(json_object_get(position, "ids"), 0);
	bool is_same = best(logits, n) == (size_t)json_integer_value(first);

	score->positions++;
	score->same_first += is_same;
	score->greedy_positions += is_greedy;
	score->greedy_same += is_greedy && is_same;
	score->mean_kl += kl;
	score->worst_kl = kl > score->worst_kl ? kl : score->worst_kl;
}

/* One prompt and its continuation, in one call of the model. */
static int score_prompt(struct fm_model *model, json_t *prompt, struct reference_score *score)
{
	json_t *start = json_object_get(prompt, "prompt_tokens");
	json_t *greedy = json_object_get(prompt, "greedy");
	json_t *positions = json_object_get(prompt, "positions");
	size_t first = (size_t)json_integer_value(json_object_get(prompt, "first_position"));
	size_t n_start = json_array_size(start), n = n_start + json_array_size(greedy) - 1;
	size_t vocab = fm_model_info(model)->vocab_size, n_blocks = n / 16 + 1;
	struct fm_token_in *tokens = calloc(n, sizeof(*tokens));
	void **blocks = calloc(n_blocks, sizeof(*blocks));
	float *logits = calloc(n - first, vocab * sizeof(float));
	int error;

	for (size_t i = 0; i < n_blocks; i++)
		blocks[i] = calloc(1, fm_model_block_bytes(model));
	for (size_t i = 0; i < n; i++) {
		json_t *id = i < n_start ? json_array_get(start, i)
					 : json_array_get(greedy, i - n_start);

		tokens[i] = (struct fm_token_in){
			.token = (uint32_t)json_integer_value(id),
			.position = (uint32_t)i,
			.blocks = blocks,
			.logits = i < first ? NULL : logits + (i - first) * vocab,
		};
	}
	error = fm_model_forward(model, tokens, n);
	for (size_t i = first; i < n && !error; i++)
		add_position(json_array_get(positions, i - first), i >= n_start - 1,
			     logits + (i - first) * vocab, vocab, score);
	for (size_t i = 0; i < n_blocks; i++)
		free(blocks[i]);
	free(blocks);
	free(tokens);
	free(logits);
	return error;
}

int reference_score(const char *file, const char *model_path,
		    const struct fm_model_options *options, struct reference_score *out)
{
	json_t *root = reference_load(file), *prompts = json_object_get(root, "prompts");
	struct fm_model *model = NULL;
	int error = fm_model_open(model_path, options, &model);

	*out = (struct reference_score){0};
	if (!error && json_array_size(prompts) == 0)
		error = fm_fail(FM_ERR_NOT_FOUND,
				"tests/data/%s: run this from the top of the tree", file);
	for (size_t i = 0; i < json_array_size(prompts) && !error; i++)
		error = score_prompt(model, json_array_get(prompts, i), out);
	out->mean_kl /= out->positions ? (double)out->positions : 1.0;
	fm_model_close(model);
	json_decref(root);
	return error;
}
