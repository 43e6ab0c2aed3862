// SPDX-License-Identifier: Apache-2.0
/*
 * The sampler: greedy and its ties, log probabilities against long double, which tokens each filter
 * keeps (against a sort), how often each is drawn, and that a choice depends on nothing but logits,
 * parameters, seed, choice and position. The fixed draws are the same on every machine.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <text/sampler.h>

#define N_BIG 49152

static const struct fm_sampling greedy = {.temperature = 0, .top_p = 1};
static float big[N_BIG], scratch[N_BIG];

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

static struct fm_sample choose(const float *logits, size_t n, const struct fm_sampling *sampling,
			       uint32_t position, uint32_t n_top)
{
	struct fm_sample out;

	fm_sampler_choose(logits, n, sampling, position, n_top, scratch, &out);
	return out;
}

START_TEST(greedy_takes_the_lowest_of_equals)
{
	const float logits[] = {1, NAN, 5, -INFINITY, 5, 4};
	const float infinite[] = {1, INFINITY, INFINITY};
	const float nothing[] = {NAN, -INFINITY, NAN};
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
			struct fm_sample out;

			fm_sampler_choose(logits, N, &settings[s], position, 0, scratch, &out);
			drawn[out.token]++;
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

START_TEST(parameters_out_of_range_are_named)
{
	static const struct {
		struct fm_sampling sampling;
		const char *name;
	} bad[] = {
		{{.temperature = -1, .top_p = 1}, "temperature"},
		{{.temperature = NAN, .top_p = 1}, "temperature"},
		{{.temperature = INFINITY, .top_p = 1}, "temperature"},
		{{.temperature = 1, .top_p = 1.1f}, "top_p"},
		{{.temperature = 1, .top_p = NAN}, "top_p"},
		{{.temperature = 1, .top_p = 1, .min_p = -0.1f}, "min_p"},
		{{.temperature = 1, .top_p = 1, .min_p = 2}, "min_p"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		ck_assert_int_eq(fm_sampling_check(&bad[i].sampling), FM_ERR_INVALID);
		ck_assert_ptr_eq(strstr(fm_error_detail(), bad[i].name), fm_error_detail());
	}
	ck_assert_int_eq(fm_sampling_check(&greedy), 0);
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
	tcase_add_test(tests, parameters_out_of_range_are_named);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
