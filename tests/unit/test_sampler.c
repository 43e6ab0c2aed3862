// SPDX-License-Identifier: Apache-2.0
/*
 * The sampler: greedy and its ties, log probabilities against long double, which tokens each filter
 * keeps (against a sort), how often each is drawn, what penalties, bias and banned ends do (by hand
 * and against a reference in double), and that a choice depends on nothing but logits, parameters,
 * history, seed, choice and position. The fixed draws are the same on every machine.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <text/sampler.h>

#define N_BIG 49152

static const struct fm_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
static float big[N_BIG];
static uint32_t scratch[3 * N_BIG];

/* Like a language model's: most logits near the middle, a few far above. */
static void fill(float *logits, size_t n, unsigned int seed)
{
	for (size_t i = 0; i < n; i++) {
		double a = (rand_r(&seed) % 10000 + 1) / 10001.0;
		double b = (rand_r(&seed) % 10000 + 1) / 10001.0;

		logits[i] = (float)(3 * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
		if (rand_r(&seed) % 1000 == 0)
			logits[i] += 12;
	}
}

/* After a history that no penalty looks at. */
static struct fm_sample choose(float *logits, size_t n, const struct fm_sampling *sampling,
			       uint32_t position, uint32_t n_top)
{
	struct fm_history history = {NULL, position, position};
	struct fm_sampling plain = *sampling;
	struct fm_sample out;

	plain.repetition_penalty = 1;
	ck_assert_uint_le(fm_sampler_scratch_bytes(n), sizeof(scratch));
	fm_sampler_choose(logits, n, &plain, &history, n_top, scratch, &out);
	return out;
}

static uint32_t choose_after(float *logits, size_t n, const struct fm_sampling *sampling,
			     const uint32_t *tokens, uint32_t n_prompt, uint32_t n_tokens)
{
	struct fm_history history = {tokens, n_prompt, n_tokens};
	struct fm_sample out;

	fm_sampler_choose(logits, n, sampling, &history, 0, scratch, &out);
	return out.token;
}

START_TEST(greedy_takes_the_lowest_of_equals)
{
	float logits[] = {1, NAN, 5, -INFINITY, 5, 4};
	float infinite[] = {1, INFINITY, INFINITY};
	float nothing[] = {NAN, -INFINITY, NAN};
	struct fm_sampling warm = {.temperature = 1, .top_p = 1};

	ck_assert_uint_eq(choose(logits, 6, &greedy, 0, 0).token, 2);
	ck_assert_uint_eq(choose(infinite, 3, &greedy, 0, 0).token, 1);
	ck_assert_uint_eq(choose(nothing, 3, &greedy, 0, 3).token, 0);
	ck_assert_uint_eq(choose(nothing, 3, &warm, 0, 3).token, 0);
	ck_assert_uint_eq(choose(logits, 1, &warm, 0, 1).token, 0);
	for (uint32_t position = 0; position < 200; position++) {
		uint32_t token = choose(logits, 6, &warm, position, 0).token;

		ck_assert(token != 1 && token != 3);
		ck_assert_uint_ne(choose(infinite, 3, &warm, position, 0).token, 0);
	}
}
END_TEST

START_TEST(log_probabilities_are_of_the_unmodified_distribution)
{
	static const size_t sizes[] = {1, 2, 7, 8, 9, 1023, 1024, 1025, N_BIG};
	struct fm_sampling warm = {.temperature = 0.3f, .top_p = 0.5f, .top_k = 3, .seed = 5};

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		size_t n = sizes[s];
		long double sum = 0, total;
		struct fm_sample out, scored;

		fill(big, n, (unsigned int)s);
		for (size_t i = 0; i < n; i++)
			sum += expl((long double)big[i]);
		total = logl(sum);
		out = choose(big, n, &warm, 9, 64);
		ck_assert_uint_eq(out.n_top, n < 64 ? n : 64);
		ck_assert_float_eq_tol(out.logprob, (float)((long double)big[out.token] - total),
				       1e-6f);
		for (uint32_t i = 0; i < out.n_top; i++) {
			uint32_t id = out.top[i].id;

			ck_assert_float_eq_tol(out.top[i].logprob,
					       (float)((long double)big[id] - total), 2e-6f);
			if (i > 0)
				ck_assert(big[id] < big[out.top[i - 1].id] ||
					  (big[id] == big[out.top[i - 1].id] &&
					   id > out.top[i - 1].id));
		}
		fm_sampler_score(big, n, out.token, 64, &scored);
		ck_assert_mem_eq(&scored.logprob, &out.logprob, sizeof(float));
		ck_assert_uint_eq(scored.token, out.token);
		ck_assert_uint_eq(scored.n_top, out.n_top);
		for (uint32_t i = 0; i < out.n_top; i++)
			ck_assert_uint_eq(scored.top[i].id, out.top[i].id);
	}
}
END_TEST

START_TEST(ties_in_the_list_go_by_id)
{
	float logits[300];
	struct fm_sample out;

	for (int i = 0; i < 300; i++)
		logits[i] = (float)(i % 3);
	out = choose(logits, 300, &greedy, 0, 64);
	ck_assert_uint_eq(out.n_top, 64);
	for (uint32_t i = 0; i < 64; i++)
		ck_assert_uint_eq(out.top[i].id, 2 + 3 * i);
	ck_assert_uint_eq(choose(logits, 300, &greedy, 0, 1000).n_top, 64);
}
END_TEST

struct candidate {
	uint32_t id;
	double weight;
	bool is_kept;
};

static int by_weight(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

/* The filters by their definition, over a full sort. Returns the sum of what is kept. */
static double filter(const float *logits, size_t n, const struct fm_sampling *sampling,
		     struct candidate *out)
{
	double max = -INFINITY, sum = 0, walked = 0;
	size_t kept = n;

	for (size_t i = 0; i < n; i++)
		max = fmax(max, (double)logits[i]);
	for (size_t i = 0; i < n; i++)
		out[i] = (struct candidate){
			i, exp(((double)logits[i] - max) / (double)sampling->temperature), false};
	qsort(out, n, sizeof(*out), by_weight);
	if (sampling->top_k && sampling->top_k < kept)
		kept = sampling->top_k;
	while (kept > 1 && out[kept - 1].weight < (double)sampling->min_p)
		kept--;
	for (size_t i = 0; i < kept; i++)
		sum += out[i].weight;
	for (size_t i = 0; i < kept; i++) {
		if (i > 0 && sampling->top_p < 1 && walked >= (double)sampling->top_p * sum)
			break;
		out[i].is_kept = true;
		walked += out[i].weight;
	}
	return walked;
}

START_TEST(tokens_are_drawn_as_often_as_they_should)
{
	static const struct fm_sampling settings[] = {
		{.temperature = 1, .top_p = 1},
		{.temperature = 0.7f, .top_p = 1},
		{.temperature = 1, .top_p = 0.8f},
		{.temperature = 1, .top_p = 0},
		{.temperature = 1, .top_p = 1, .top_k = 5},
		{.temperature = 1, .top_p = 1, .min_p = 0.1f},
		{.temperature = 1, .top_p = 1, .min_p = 1},
		{.temperature = 2, .top_p = 0.9f, .min_p = 0.02f, .top_k = 30},
		{.temperature = 1.5f, .top_p = 0.999f, .top_k = 100000},
	};
	enum { N = 700, DRAWS = 8000 };
	static struct candidate want[N];
	static float logits[N];
	static uint32_t drawn[N];

	fill(logits, N, 11);
	for (int i = 0; i < 20; i++)
		logits[i * 30] += 6;
	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
		double sum = filter(logits, N, &settings[s], want);

		memset(drawn, 0, sizeof(drawn));
		for (uint32_t position = 0; position < DRAWS; position++) {
			drawn[choose(logits, N, &settings[s], position, 0).token]++;
		}
		for (size_t i = 0; i < N; i++) {
			double expected = want[i].is_kept ? DRAWS * want[i].weight / sum : 0;
			double got = drawn[want[i].id];

			if (!want[i].is_kept && got != 0)
				ck_abort_msg("setting %zu: token %u is drawn but filtered out", s,
					     want[i].id);
			/* Six standard deviations; the draws are fixed, so this never flickers. */
			if (fabs(got - expected) > 6 * sqrt(expected + 1))
				ck_abort_msg("setting %zu: token %u drawn %g times, expected %g", s,
					     want[i].id, got, expected);
		}
	}
}
END_TEST

START_TEST(large_vocabularies_keep_exactly_what_a_sort_keeps)
{
	static const struct fm_sampling settings[] = {
		{.temperature = 1, .top_p = 0.95f},
		{.temperature = 3, .top_p = 0.9f},
		{.temperature = 1, .top_p = 0.9f, .top_k = 1000, .min_p = 0.001f},
		{.temperature = 20, .top_p = 0.99f},
	};
	static struct candidate want[N_BIG];
	static bool is_kept[N_BIG];

	fill(big, N_BIG, 3);
	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
		filter(big, N_BIG, &settings[s], want);
		for (size_t i = 0; i < N_BIG; i++)
			is_kept[want[i].id] = want[i].is_kept;
		for (uint32_t position = 0; position < 20; position++) {
			uint32_t token = choose(big, N_BIG, &settings[s], position, 0).token;

			if (!is_kept[token])
				ck_abort_msg("setting %zu draws token %u", s, token);
		}
	}
}
END_TEST

START_TEST(a_choice_depends_on_its_counters_alone)
{
	struct fm_sampling sampling = {.temperature = 1, .top_p = 1, .seed = 42};
	uint32_t same[3] = {0}, first[256];

	fill(big, N_BIG, 8);
	for (size_t i = 0; i < N_BIG; i++)
		big[i] *= 0.1f; /* flat: equal draws by accident are rare */
	for (uint32_t i = 0; i < 256; i++)
		first[i] = choose(big, N_BIG, &sampling, i, 0).token;
	for (uint32_t i = 256; i-- > 0;) { /* in another order, with other things asked */
		struct fm_sampling other = sampling;

		ck_assert_uint_eq(choose(big, N_BIG, &sampling, i, 5).token, first[i]);
		other.seed++;
		same[0] += choose(big, N_BIG, &other, i, 0).token == first[i];
		other = sampling;
		other.choice++;
		same[1] += choose(big, N_BIG, &other, i, 0).token == first[i];
		same[2] += choose(big, N_BIG, &sampling, i + 1, 0).token == first[i];
	}
	for (int i = 0; i < 3; i++)
		ck_assert_uint_le(same[i], 2);
}
END_TEST

START_TEST(draws_are_the_same_on_every_machine)
{
	static const uint32_t want[3][6] = {
		{1385, 851, 228, 1716, 982, 275},
		{982, 1304, 1097, 1448, 1330, 1406},
		{1474, 1796, 1796, 432, 1974, 1974},
	};
	static const struct fm_sampling settings[3] = {
		{.temperature = 1, .top_p = 1, .seed = 1},
		{.temperature = 0.8f, .top_p = 0.95f, .seed = 2, .choice = 3},
		{.temperature = 1.2f,
		 .top_p = 0.9f,
		 .top_k = 40,
		 .min_p = 0.05f,
		 .seed = UINT64_MAX},
	};
	static float logits[2000];

	for (uint32_t i = 0; i < 2000; i++) /* exact in float everywhere */
		logits[i] = (float)(i * 2654435761u >> 20) * (1.0f / 512);
	for (int s = 0; s < 3; s++) {
		for (uint32_t position = 0; position < 6; position++)
			ck_assert_uint_eq(choose(logits, 2000, &settings[s], position, 0).token,
					  want[s][position]);
	}
}
END_TEST

/* ---- adjustments ----------------------------------------------------------------------------- */

#define NEUTRAL .top_p = 1, .repetition_penalty = 1

START_TEST(penalties_by_hand)
{
	static const uint32_t tokens[] = {0, 3, 1, 1}; /* two of the prompt, two generated */
	static const struct fm_logit_bias ban[] = {{2, -100}, {0, 0.25f}};
	static const struct fm_logit_bias lift[] = {{0, 1}};
	static const uint32_t ends[] = {2, 0};
	static const struct {
		struct fm_sampling sampling;
		float logits[4];
		uint32_t n_tokens, token;
	} cases[] = {
		{{NEUTRAL}, {2, 1, 1.5f, -1}, 4, 0},
		/* of the prompt: 2 / 2 = 1 */
		{{.top_p = 1, .repetition_penalty = 2}, {2, 1, 1.5f, -1}, 4, 2},
		/* below zero it multiplies: -1 * 2 = -2, and unseen -1.5 wins */
		{{.top_p = 1, .repetition_penalty = 2}, {-1, -1, -1.5f, -1}, 4, 2},
		/* below one it favours what has been said: 1 / 0.5 = 2 */
		{{.top_p = 1, .repetition_penalty = 0.5f}, {0.5f, 1, 1.5f, -1}, 4, 1},
		/* generated twice: 2 - 2 * 0.5 = 1; once it would be 1.5 and still win */
		{{NEUTRAL, .frequency_penalty = 0.5f}, {0, 2, 1.25f, 0}, 4, 2},
		{{NEUTRAL, .frequency_penalty = 0.5f}, {0, 2, 1.25f, 0}, 3, 1},
		/* the prompt's tokens do not count */
		{{NEUTRAL, .frequency_penalty = 2}, {2, 1, 1.5f, 1}, 4, 0},
		{{NEUTRAL, .presence_penalty = 2}, {2, 1, 1.5f, 1}, 4, 0},
		/* once, however often: 2 - 0.5 = 1.5 */
		{{NEUTRAL, .presence_penalty = 0.5f}, {0, 2, 1.25f, 0}, 4, 1},
		{{NEUTRAL, .presence_penalty = 1}, {0, 2, 1.25f, 0}, 4, 2},
		{{NEUTRAL, .presence_penalty = -1}, {2, 1.5f, 0, 0}, 4, 1},
		{{NEUTRAL, .bias = ban, .n_bias = 2}, {1.375f, 1.5f, 9, 0}, 4, 0},
		/* the bias first: (1 + 1) / 2 = 1; the other way round 1 / 2 + 1 = 1.5 */
		{{.top_p = 1, .repetition_penalty = 2, .bias = lift, .n_bias = 1},
		 {1, 0, 1.1f, 0},
		 4,
		 2},
		/* two are generated: an end may come at min_tokens 2, not at 3 */
		{{NEUTRAL, .min_tokens = 2, .ends = ends, .n_ends = 2}, {5, 1, 9, 0}, 4, 2},
		{{NEUTRAL, .min_tokens = 3, .ends = ends, .n_ends = 2}, {5, 1, 9, 0}, 4, 1},
		/* no bias lifts a banned end */
		{{NEUTRAL, .min_tokens = 3, .ends = ends, .n_ends = 2, .bias = lift, .n_bias = 1},
		 {5, 1, 9, 0},
		 4,
		 1},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		float logits[4];
		uint32_t token;

		memcpy(logits, cases[i].logits, sizeof(logits));
		token = choose_after(logits, 4, &cases[i].sampling, tokens, 2, cases[i].n_tokens);
		ck_assert_msg(token == cases[i].token, "case %zu: token %u", i, token);
		ck_assert_mem_eq(logits, cases[i].logits, sizeof(logits));
	}
}
END_TEST

/* The same by their definition, in double, over the whole vocabulary. */
static void adjust_by_definition(const float *logits, size_t n, const struct fm_sampling *sampling,
				 const struct fm_history *history, float *out)
{
	for (uint32_t id = 0; id < n; id++) {
		double logit = (double)logits[id], r = (double)sampling->repetition_penalty;
		int in_prompt = 0, generated = 0;

		for (uint32_t i = 0; i < history->n_tokens; i++) {
			in_prompt += i < history->n_prompt && history->tokens[i] == id;
			generated += i >= history->n_prompt && history->tokens[i] == id;
		}
		for (uint32_t i = 0; i < sampling->n_bias; i++)
			if (sampling->bias[i].id == id)
				logit += (double)sampling->bias[i].bias;
		if (in_prompt || generated)
			logit = logit > 0 ? logit / r : logit * r;
		logit -= (double)sampling->frequency_penalty * generated;
		logit -= generated ? (double)sampling->presence_penalty : 0;
		for (uint32_t i = 0; i < sampling->n_ends; i++)
			if (sampling->ends[i] == id &&
			    history->n_tokens - history->n_prompt < sampling->min_tokens)
				logit = -INFINITY;
		out[id] = (float)logit;
	}
}

static float between(unsigned int *seed, double min, double max)
{
	return (float)(min + (max - min) * (rand_r(seed) % 1001) / 1000);
}

START_TEST(adjusted_choices_are_those_of_the_reference)
{
	enum { N = 400, TOKENS = 120, ROUNDS = 3000 };
	static float logits[N], kept[N], want[N];
	unsigned int seed = 1;
	int changed = 0;

	for (int round = 0; round < ROUNDS; round++) {
		uint32_t tokens[TOKENS], ends[3];
		struct fm_logit_bias bias[8];
		struct fm_history history = {tokens, 1 + rand_r(&seed) % 60, 0};
		struct fm_sampling sampling = {
			.temperature = round % 3 ? between(&seed, 0.3, 1.5) : 0,
			.top_p = round % 4 ? 1 : 0.9f,
			.top_k = round % 5 ? 0 : 50,
			.min_p = round % 7 ? 0 : 0.05f,
			.seed = (uint64_t)round,
			.choice = (uint32_t)round % 3,
			.repetition_penalty = round & 1 ? between(&seed, 0.6, 2) : 1,
			.frequency_penalty = round & 2 ? between(&seed, -2, 2) : 0,
			.presence_penalty = round & 4 ? between(&seed, -2, 2) : 0,
			.min_tokens = (uint32_t)rand_r(&seed) % 60,
			.ends = ends,
			.n_ends = (uint32_t)rand_r(&seed) % 4,
			.bias = bias,
			.n_bias = round & 8 ? (uint32_t)rand_r(&seed) % 9 : 0,
		};
		struct fm_sampling plain = sampling;
		struct fm_sample out, reference;
		uint32_t token;

		history.n_tokens = history.n_prompt + (uint32_t)rand_r(&seed) % 60;
		fill(logits, N, (unsigned int)round);
		/* Few different ids, from the likely ones too, so that they repeat and matter. */
		for (uint32_t i = 0; i < TOKENS; i++)
			tokens[i] = (uint32_t)rand_r(&seed) % 40;
		for (uint32_t i = 0; i < 40; i++)
			logits[i] += 8;
		for (int i = 0; i < 8; i++) /* an id may come twice: both count */
			bias[i] = (struct fm_logit_bias){(uint32_t)rand_r(&seed) % 30,
							 between(&seed, -9, 9)};
		for (int i = 0; i < 3; i++)
			ends[i] = (uint32_t)rand_r(&seed) % 50;
		memcpy(kept, logits, sizeof(kept));
		adjust_by_definition(logits, N, &sampling, &history, want);
		fm_sampler_choose(logits, N, &sampling, &history, 5, scratch, &out);
		ck_assert_mem_eq(logits, kept, sizeof(kept));

		plain.n_bias = plain.n_ends = 0;
		plain.frequency_penalty = plain.presence_penalty = 0;
		plain.repetition_penalty = 1;
		token = choose_after(want, N, &plain, tokens, history.n_prompt, history.n_tokens);
		ck_assert_msg(out.token == token, "round %d: token %u, reference %u", round,
			      out.token, token);
		changed += token != choose_after(logits, N, &plain, tokens, history.n_prompt,
						 history.n_tokens);
		/* What is reported is of the logits as they came. */
		fm_sampler_score(kept, N, out.token, 5, &reference);
		ck_assert_mem_eq(&reference.logprob, &out.logprob, sizeof(float));
		for (int i = 0; i < 5; i++)
			ck_assert_uint_eq(reference.top[i].id, out.top[i].id);
	}
	ck_assert_int_gt(changed, ROUNDS / 4);
}
END_TEST

START_TEST(a_taken_over_request_goes_on_alike)
{
	enum { N = 200, LENGTH = 64 };
	struct fm_sampling sampling = {.temperature = 1,
				       .top_p = 1,
				       .repetition_penalty = 1.2f,
				       .frequency_penalty = 0.7f,
				       .presence_penalty = 0.3f,
				       .seed = 3};
	uint32_t first[8 + LENGTH] = {1, 2, 3, 4, 5, 6, 7, 8}, again[8 + LENGTH];
	static float logits[N];
	int other = 0;

	for (uint32_t n = 8; n < 8 + LENGTH; n++) {
		fill(logits, N, n);
		first[n] = choose_after(logits, N, &sampling, first, 8, n);
	}
	/* Another worker gets the tokens so far and the length of the prompt, at any point. */
	for (uint32_t cut = 8; cut < 8 + LENGTH; cut++) {
		memcpy(again, first, cut * sizeof(*again));
		for (uint32_t n = cut; n < 8 + LENGTH; n++) {
			fill(logits, N, n);
			again[n] = choose_after(logits, N, &sampling, again, 8, n);
		}
		ck_assert_mem_eq(again, first, sizeof(again));
		fill(logits, N, cut);
		other += choose_after(logits, N, &sampling, first, cut, cut) != first[cut];
	}
	ck_assert_int_gt(other, 5); /* the prompt's length is not without meaning */
}
END_TEST

START_TEST(parameters_out_of_range_are_named)
{
	static const struct fm_logit_bias wild[] = {{7, 0}, {9, -100.5f}};
	static const struct {
		struct fm_sampling sampling;
		const char *name, *value;
	} bad[] = {
		{{NEUTRAL, .temperature = -1}, "temperature", "-1"},
		{{NEUTRAL, .temperature = 2.5f}, "temperature", "2.5"},
		{{NEUTRAL, .temperature = NAN}, "temperature", "nan"},
		{{NEUTRAL, .temperature = INFINITY}, "temperature", "inf"},
		{{.top_p = 1.5f, .repetition_penalty = 1}, "top_p", "1.5"},
		{{.top_p = NAN, .repetition_penalty = 1}, "top_p", "nan"},
		{{NEUTRAL, .min_p = -0.5f}, "min_p", "-0.5"},
		{{NEUTRAL, .min_p = 2}, "min_p", "2"},
		{{.top_p = 1}, "repetition_penalty", "0"},
		{{.top_p = 1, .repetition_penalty = -1}, "repetition_penalty", "-1"},
		{{.top_p = 1, .repetition_penalty = NAN}, "repetition_penalty", "nan"},
		{{NEUTRAL, .frequency_penalty = -2.5f}, "frequency_penalty", "-2.5"},
		{{NEUTRAL, .presence_penalty = 2.5f}, "presence_penalty", "2.5"},
		{{NEUTRAL, .presence_penalty = NAN}, "presence_penalty", "nan"},
		{{NEUTRAL, .bias = wild, .n_bias = 2}, "logit_bias of token 9", "-100.5"},
		{{NEUTRAL, .bias = wild, .n_bias = 1025}, "logit_bias", "1025"},
	};
	static const uint32_t ends[] = {3, 50};
	struct fm_sampling ids = {NEUTRAL, .ends = ends, .n_ends = 2};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_eq(fm_sampling_check(&bad[i].sampling), FM_ERR_INVALID);
		ck_assert_ptr_eq(strstr(fm_error_detail(), bad[i].name), fm_error_detail());
		ck_assert_msg(strstr(fm_error_detail(), bad[i].value), "%s", fm_error_detail());
	}
	ck_assert_int_eq(fm_sampling_check(&greedy), 0);
	ck_assert_int_eq(fm_sampling_check_ids(&ids, 51), 0);
	ck_assert_int_eq(fm_sampling_check_ids(&ids, 50), FM_ERR_INVALID);
	ck_assert_msg(strstr(fm_error_detail(), "stop_token_ids: 50"), "%s", fm_error_detail());
	ids.bias = wild;
	ids.n_bias = 1;
	ck_assert_int_eq(fm_sampling_check_ids(&ids, 7), FM_ERR_INVALID);
	ck_assert_msg(strstr(fm_error_detail(), "logit_bias of token 7"), "%s", fm_error_detail());
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("sampler");
	TCase *tests = tcase_create("sampler");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 120);
	tcase_add_test(tests, greedy_takes_the_lowest_of_equals);
	tcase_add_test(tests, log_probabilities_are_of_the_unmodified_distribution);
	tcase_add_test(tests, ties_in_the_list_go_by_id);
	tcase_add_test(tests, tokens_are_drawn_as_often_as_they_should);
	tcase_add_test(tests, large_vocabularies_keep_exactly_what_a_sort_keeps);
	tcase_add_test(tests, a_choice_depends_on_its_counters_alone);
	tcase_add_test(tests, draws_are_the_same_on_every_machine);
	tcase_add_test(tests, penalties_by_hand);
	tcase_add_test(tests, adjusted_choices_are_those_of_the_reference);
	tcase_add_test(tests, a_taken_over_request_goes_on_alike);
	tcase_add_test(tests, parameters_out_of_range_are_named);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
