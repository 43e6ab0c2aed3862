// SPDX-License-Identifier: Apache-2.0
/*
 * Greedy and random choice of a token, and log probabilities. The engine's step loop calls it; it
 * calls the adjustments (adjust.h) and libm's log(). Invariant: sums run in one fixed order in
 * double with an exponential of our own and nothing fused, so the same logits give the same token
 * on every machine.
 *
 * Order: adjustments, temperature, top-k, min-p, top-p; each sees what the one before it left.
 * Not-a-number counts as minus infinity, plus infinity as the largest float.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#include "text/adjust.h"
#include "text/sampler.h"

#define GREEDY_BELOW	 1e-5f
#define BUCKETS		 1024
#define BUCKETS_PER_UNIT 32.0
#define CHUNK		 1024 /* logits whose weights are summed before a choice looks inside */

/* Ids stand in the caller's scratch floats. */
typedef uint32_t __attribute__((may_alias)) scratch_id;

/* Eight lanes, summed pairwise at the end: the order does not depend on the machine's vectors. */
typedef double lanes __attribute__((vector_size(64)));
typedef int64_t lanes_int __attribute__((vector_size(64)));
typedef float lanes_float __attribute__((vector_size(32)));
typedef int32_t lanes_float_int __attribute__((vector_size(32)));

/* The sanitizers' run-time cannot start before the choice among clones. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR_WIDTHS
#endif

struct distribution {
	const float *logits;
	size_t n;
	double max;	/* of the logits */
	double inverse; /* 1 / temperature */
};

/* ---- exponentials --------------------------------------------------------------------------- */

/*
 * exp(x) for x <= 0, zero below -700: x = k ln 2 + r, |r| <= ln 2 / 2, a Taylor polynomial of
 * degree 13 in r (error below 1e-17), times 2^k by its exponent bits. Lane by lane the same as
 * exp_scalar.
 */
static const double inverse_factorial[] = {
	1.0,
	1.0,
	1.0 / 2,
	1.0 / 6,
	1.0 / 24,
	1.0 / 120,
	1.0 / 720,
	1.0 / 5040,
	1.0 / 40320,
	1.0 / 362880,
	1.0 / 3628800,
	1.0 / 39916800,
	1.0 / 479001600,
	1.0 / 6227020800,
};
#define LOG2_E		 1.4426950408889634
#define LN2_HIGH	 0x1.62e42fefa3800p-1 /* 42 bits: k times it is exact */
#define LN2_LOW		 0x1.ef35793c76730p-45
#define ROUND_TO_INTEGER 0x1.8p52
#define EXP_MIN		 (-700.0)

/* In and out by pointer: 64-byte vectors have no calling convention on plain x86-64. */
static inline void exp_lanes(lanes *value)
{
	lanes_int is_live = *value >= EXP_MIN; /* false for not-a-number too */
	lanes x = (lanes)((lanes_int)*value & is_live);
	lanes shifted = x * LOG2_E + ROUND_TO_INTEGER;
	lanes k = shifted - ROUND_TO_INTEGER;
	lanes r = (x - k * LN2_HIGH) - k * LN2_LOW;
	lanes sum = r * inverse_factorial[13] + inverse_factorial[12];

	for (int i = 11; i >= 0; i--)
		sum = sum * r + inverse_factorial[i];
	/* The low bits of the shifted number are k: into the exponent field. */
	*value = (lanes)((((lanes_int)shifted << 52) + (lanes_int)sum) & is_live);
}

static double exp_scalar(double x)
{
	double shifted = x * LOG2_E + ROUND_TO_INTEGER;
	double k = shifted - ROUND_TO_INTEGER;
	double r = (x - k * LN2_HIGH) - k * LN2_LOW;
	double sum = r * inverse_factorial[13] + inverse_factorial[12];
	uint64_t shifted_bits, bits;

	if (!(x >= EXP_MIN))
		return 0;
	for (int i = 11; i >= 0; i--)
		sum = sum * r + inverse_factorial[i];
	memcpy(&shifted_bits, &shifted, sizeof(bits));
	memcpy(&bits, &sum, sizeof(bits));
	bits += shifted_bits << 52;
	memcpy(&sum, &bits, sizeof(bits));
	return sum;
}

static float clean(float logit)
{
	return isnan(logit) ? -INFINITY : logit > FLT_MAX ? FLT_MAX : logit;
}

static double exponent_of(const struct distribution *dist, size_t id)
{
	return ((double)clean(dist->logits[id]) - dist->max) * dist->inverse;
}

static double weight(const struct distribution *dist, size_t id)
{
	return exp_scalar(exponent_of(dist, id));
}

/* weight >= floor, where 2^floor_log2 <= floor: most are far below, which needs no exponential. */
static bool weight_reaches(const struct distribution *dist, size_t id, double floor, int floor_log2)
{
	double x = exponent_of(dist, id);

	return x * LOG2_E >= floor_log2 - 1 && exp_scalar(x) >= floor;
}

/* The sum of the weights of logits at..at+n. Wider vectors do the same steps, lane by lane. */
VECTOR_WIDTHS static double sum_weights(const struct distribution *dist, size_t at, size_t n)
{
	const lanes_float largest = (lanes_float){} + FLT_MAX;
	lanes sum = {};

	for (size_t i = 0; i < n; i += 8) {
		lanes_float_int is_huge;
		lanes_float raw = {};
		lanes x;

		if (n - i >= 8) {
			memcpy(&raw, dist->logits + at + i, sizeof(raw));
		} else {
			raw -= INFINITY;
			memcpy(&raw, dist->logits + at + i, (n - i) * sizeof(float));
		}
		/* The largest float instead of infinity; not-a-number stays and weighs nothing. */
		is_huge = raw > FLT_MAX;
		raw = (lanes_float)(((lanes_float_int)raw & ~is_huge) |
				    ((lanes_float_int)largest & is_huge));
		x = (__builtin_convertvector(raw, lanes) - dist->max) * dist->inverse;
		exp_lanes(&x);
		sum += x;
	}
	return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static double sum_all(const struct distribution *dist)
{
	double sum = 0;

	for (size_t at = 0; at < dist->n; at += CHUNK)
		sum += sum_weights(dist, at, dist->n - at < CHUNK ? dist->n - at : CHUNK);
	return sum;
}

/* ---- order ------------------------------------------------------------------------------------
 */

/* Better: a larger logit; among equals the lower id. */
static bool is_better(const float *logits, uint32_t a, uint32_t b)
{
	float x = clean(logits[a]), y = clean(logits[b]);

	return x > y || (x == y && a < b);
}

static uint32_t best_id(const float *logits, size_t n)
{
	uint32_t best = 0;
	float max = -INFINITY;

	/* False for not-a-number, and for equals: the lowest id stays. */
	for (size_t i = 0; i < n; i++) {
		if (logits[i] > max) {
			max = logits[i];
			best = i;
		}
	}
	return best;
}

/* Heaps of ids: the root is the worst of all (@worst_first) or the best. */
static void sift_down(const float *logits, scratch_id *heap, size_t n, size_t at, bool worst_first)
{
	uint32_t moving = heap[at];

	for (size_t child; (child = 2 * at + 1) < n; at = child) {
		if (child + 1 < n && is_better(logits, heap[child + 1], heap[child]) != worst_first)
			child++;
		if (is_better(logits, heap[child], moving) == worst_first)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moving;
}

static void heapify(const float *logits, scratch_id *heap, size_t n, bool worst_first)
{
	for (size_t i = n / 2; i-- > 0;)
		sift_down(logits, heap, n, i, worst_first);
}

/* The @k best ids, best first. */
static size_t select_best(const float *logits, size_t n, size_t k, scratch_id *out)
{
	float worst;

	if (k > n)
		k = n;
	if (k == 0)
		return 0;
	for (size_t i = 0; i < k; i++)
		out[i] = i;
	heapify(logits, out, k, true);
	worst = clean(logits[out[0]]);
	for (size_t i = k; i < n; i++) {
		/* The first comparison is cheap and settles most. */
		if (logits[i] > worst && is_better(logits, i, out[0])) {
			out[0] = i;
			sift_down(logits, out, k, 0, true);
			worst = clean(logits[out[0]]);
		}
	}
	for (size_t end = k; end-- > 1;) {
		uint32_t last = out[0];

		out[0] = out[end];
		out[end] = last;
		sift_down(logits, out, end, 0, true);
	}
	return k;
}

/* ---- log probabilities --------------------------------------------------------------------------
 */

static void report(const float *logits, size_t n_vocab, uint32_t token, uint32_t best,
		   uint32_t n_top, struct fm_sample *out)
{
	struct distribution plain = {logits, n_vocab, clean(logits[best]), 1.0};
	scratch_id ids[FM_TOP_LOGPROBS_MAX];
	double total = isinf(plain.max) ? 0 : plain.max + log(sum_all(&plain));

	if (n_top > FM_TOP_LOGPROBS_MAX)
		n_top = FM_TOP_LOGPROBS_MAX;
	out->token = token;
	out->logprob = (float)(clean(logits[token]) - total);
	out->n_top = select_best(logits, n_vocab, n_top, ids);
	for (uint32_t i = 0; i < out->n_top; i++) {
		out->top[i].id = ids[i];
		out->top[i].logprob = (float)(clean(logits[ids[i]]) - total);
	}
}

void fm_sampler_score(const float *logits, size_t n_vocab, uint32_t token, uint32_t n_top,
		      struct fm_sample *out)
{
	report(logits, n_vocab, token, best_id(logits, n_vocab), n_top, out);
}

/* ---- random choice ------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* SplitMix64 over the counters: uniform in [0, 1) from 53 bits. */
static double uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
	const uint64_t golden = 0x9e3779b97f4a7c15u;
	uint64_t z = mix(seed + golden);

	z = mix((z ^ choice) + golden);
	z = mix((z ^ position) + golden);
	return (double)(z >> 11) * 0x1p-53;
}

/* A choice among all, in the order of ids. The chunks' sums stand in @scratch. */
static uint32_t choose_any(const struct distribution *dist, double random, float *scratch)
{
	double sum = 0, part, target, walked = 0;
	size_t n_chunks = (dist->n + CHUNK - 1) / CHUNK, chunk;
	uint32_t last = 0;

	/* A vocabulary of less than two ids has no room for a sum, nor anything to choose. */
	if (dist->n < 2)
		return 0;
	for (chunk = 0; chunk < n_chunks; chunk++) {
		size_t at = chunk * CHUNK;

		part = sum_weights(dist, at, dist->n - at < CHUNK ? dist->n - at : CHUNK);
		memcpy(scratch + 2 * chunk, &part, sizeof(part));
		sum += part;
	}
	target = random * sum;
	for (chunk = 0; chunk + 1 < n_chunks; chunk++) {
		memcpy(&part, scratch + 2 * chunk, sizeof(part));
		if (walked + part > target)
			break;
		walked += part;
	}
	/* Rounding may leave the target just above the walk's end: the last that has a weight. */
	for (size_t i = chunk * CHUNK; i < dist->n; i++) {
		part = weight(dist, i);
		if (part <= 0)
			continue;
		walked += part;
		last = i;
		if (walked > target)
			return i;
	}
	return last ? last : best_id(dist->logits, dist->n);
}

/* A choice among ids, in their order. */
static uint32_t choose_among(const struct distribution *dist, const scratch_id *ids, size_t n,
			     double random)
{
	double sum = 0, walked = 0;

	for (size_t i = 0; i < n; i++)
		sum += weight(dist, ids[i]);
	for (size_t i = 0; i < n; i++) {
		walked += weight(dist, ids[i]);
		if (walked > random * sum)
			return ids[i];
	}
	return ids[0];
}

/* Equal steps of the exponent, best first; the last one takes all the rest. */
static size_t bucket_of(const struct distribution *dist, size_t id)
{
	double steps = exponent_of(dist, id) * -BUCKETS_PER_UNIT;

	return steps < BUCKETS - 1 ? (size_t)steps : BUCKETS - 1;
}

/* Takes the best of @ids, best first, until they hold @missing of the weight: at least one. Returns
 * how many stand in front then. */
static size_t take_best(const struct distribution *dist, scratch_id *ids, size_t n, double missing)
{
	size_t n_heap = n, taken;
	double walked = 0;

	/* A heap at the front gives the best first; each goes to the end that it freed. */
	heapify(dist->logits, ids, n, false);
	while (n_heap > 0 && (n_heap == n || walked < missing)) {
		uint32_t best = ids[0];

		ids[0] = ids[--n_heap];
		if (n_heap)
			sift_down(dist->logits, ids, n_heap, 0, false);
		ids[n_heap] = best;
		walked += weight(dist, best);
	}
	/* They stand from the end towards n_heap: turn them and move them to the front. */
	taken = n - n_heap;
	for (size_t i = 0; i < taken / 2; i++) {
		uint32_t other = ids[n_heap + i];

		ids[n_heap + i] = ids[n - 1 - i];
		ids[n - 1 - i] = other;
	}
	memmove(ids, ids + n_heap, taken * sizeof(*ids));
	return taken;
}

/* Keeps the fewest best ids that hold @top_p of the weight; returns how many. Only the bucket in
 * which the last of them stands is sorted. */
static size_t keep_top_p(const struct distribution *dist, scratch_id *ids, size_t n, double top_p)
{
	double sums[BUCKETS] = {0}, sum = 0, walked = 0;
	size_t edge = 0, kept = 0, end = 0;

	for (size_t i = 0; i < n; i++)
		sums[bucket_of(dist, ids[i])] += weight(dist, ids[i]);
	for (size_t i = 0; i < BUCKETS; i++)
		sum += sums[i];
	while (edge < BUCKETS - 1 && walked + sums[edge] < top_p * sum)
		walked += sums[edge++];
	/* Better buckets to the front, the edge after them. */
	for (size_t i = 0; i < n; i++) {
		uint32_t id = ids[i];
		size_t bucket = bucket_of(dist, id);

		if (bucket > edge)
			continue;
		ids[end++] = bucket < edge ? ids[kept] : id;
		if (bucket < edge)
			ids[kept++] = id;
	}
	return kept + take_best(dist, ids + kept, end - kept, top_p * sum - walked);
}

static uint32_t choose_random(const float *logits, size_t n_vocab,
			      const struct fm_sampling *sampling, uint32_t position, uint32_t best,
			      float *scratch)
{
	struct distribution dist = {logits, n_vocab, clean(logits[best]),
				    1.0 / (double)sampling->temperature};
	double random = uniform(sampling->seed, sampling->choice, position);
	scratch_id *ids = (scratch_id *)scratch;
	size_t n = 0;

	if (isinf(dist.max)) /* no candidate at all */
		return best;
	if (!sampling->top_k && sampling->min_p <= 0 && sampling->top_p >= 1)
		return choose_any(&dist, random, scratch);
	if (sampling->top_k && sampling->top_k < n_vocab) {
		n = select_best(logits, n_vocab, sampling->top_k, ids);
	} else {
		for (size_t i = 0; i < n_vocab; i++)
			ids[n++] = i;
	}
	if (sampling->min_p > 0) {
		size_t kept = 0;
		int floor_log2;

		frexp((double)sampling->min_p, &floor_log2);
		for (size_t i = 0; i < n; i++) {
			/* The best has weight 1 and always stays. */
			if (ids[i] == best ||
			    weight_reaches(&dist, ids[i], (double)sampling->min_p, floor_log2 - 1))
				ids[kept++] = ids[i];
		}
		n = kept;
	}
	if (sampling->top_p < 1)
		n = keep_top_p(&dist, ids, n, (double)sampling->top_p);
	return choose_among(&dist, ids, n, random);
}

/* The marks or the candidates' ids (one word an id), then what adjusting saved. */
size_t fm_sampler_scratch_bytes(size_t n_vocab)
{
	return n_vocab * (sizeof(uint32_t) + sizeof(struct fm_logit_saved));
}

/* The best of restored @logits, whose best was @adjusted, of the value @value, before. Looks at all
 * of them only when an adjustment has lifted that one above the others. */
static uint32_t best_of_restored(const float *logits, size_t n_vocab,
				 const struct fm_logit_saved *saved, size_t n_saved,
				 uint32_t adjusted, float value)
{
	uint32_t best = saved[0].id;
	bool was_changed = false;

	for (size_t i = 0; i < n_saved; i++) {
		if (is_better(logits, saved[i].id, best))
			best = saved[i].id;
		was_changed |= saved[i].id == adjusted;
	}
	if (!was_changed)
		return is_better(logits, adjusted, best) ? adjusted : best;
	return clean(logits[best]) > value ? best : best_id(logits, n_vocab);
}

void fm_sampler_choose(float *logits, size_t n_vocab, const struct fm_sampling *sampling,
		       const struct fm_history *history, uint32_t n_top, void *scratch,
		       struct fm_sample *out)
{
	struct fm_logit_saved *saved = (void *)((uint32_t *)scratch + n_vocab);
	bool is_adjusted = fm_logits_need_adjusting(sampling, history);
	size_t n_saved =
		is_adjusted ? fm_logits_adjust(logits, sampling, history, scratch, saved) : 0;
	uint32_t best = best_id(logits, n_vocab);
	uint32_t token = best;

	if (sampling->temperature >= GREEDY_BELOW)
		token = choose_random(logits, n_vocab, sampling, history->n_tokens, best, scratch);
	if (n_saved) {
		float value = clean(logits[best]);

		fm_logits_restore(logits, saved, n_saved);
		best = best_of_restored(logits, n_vocab, saved, n_saved, best, value);
	}
	report(logits, n_vocab, token, best, n_top, out);
}

/* ---- checks --------------------------------------------------------------------------------- */

static int check_range(const char *name, float value, float min, float max, const char *off)
{
	/* Written so that not-a-number fails. */
	if (value >= min && value <= max)
		return 0;
	return fm_fail(FM_ERR_INVALID, "%s is %g, it must be from %g to %g (%s)", name,
		       (double)value, (double)min, (double)max, off);
}

int fm_sampling_check(const struct fm_sampling *sampling)
{
	int err;

	if ((err = check_range("temperature", sampling->temperature, 0, FM_TEMPERATURE_MAX,
			       "0: greedy")) ||
	    (err = check_range("top_p", sampling->top_p, 0, 1, "1: off")) ||
	    (err = check_range("min_p", sampling->min_p, 0, 1, "0: off")) ||
	    (err = check_range("repetition_penalty", sampling->repetition_penalty,
			       FM_REPETITION_PENALTY_MIN, FM_REPETITION_PENALTY_MAX, "1: off")) ||
	    (err = check_range("frequency_penalty", sampling->frequency_penalty, -FM_PENALTY_MAX,
			       FM_PENALTY_MAX, "0: off")) ||
	    (err = check_range("presence_penalty", sampling->presence_penalty, -FM_PENALTY_MAX,
			       FM_PENALTY_MAX, "0: off")))
		return err;
	if (sampling->n_bias > FM_LOGIT_BIASES_MAX)
		return fm_fail(FM_ERR_INVALID, "logit_bias has %u entries, it may have at most %d",
			       sampling->n_bias, FM_LOGIT_BIASES_MAX);
	for (uint32_t i = 0; i < sampling->n_bias; i++) {
		char name[64];

		snprintf(name, sizeof(name), "logit_bias of token %u", sampling->bias[i].id);
		err = check_range(name, sampling->bias[i].bias, -FM_LOGIT_BIAS_MAX,
				  FM_LOGIT_BIAS_MAX, "0: off");
		if (err)
			return err;
	}
	return 0;
}

int fm_sampling_check_ids(const struct fm_sampling *sampling, size_t n_vocab)
{
	for (uint32_t i = 0; i < sampling->n_bias; i++)
		if (sampling->bias[i].id >= n_vocab)
			return fm_fail(FM_ERR_INVALID,
				       "logit_bias of token %u: ids must be below %zu, the size of "
				       "the vocabulary",
				       sampling->bias[i].id, n_vocab);
	for (uint32_t i = 0; i < sampling->n_ends; i++)
		if (sampling->ends[i] >= n_vocab)
			return fm_fail(FM_ERR_INVALID,
				       "stop_token_ids: %u: ids must be below %zu, the size of the "
				       "vocabulary",
				       sampling->ends[i], n_vocab);
	return 0;
}
