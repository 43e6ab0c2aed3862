// SPDX-License-Identifier: Apache-2.0
/*
 * See hazard.h. A model of proportional hazards in discrete time: each factor is the ratio of uses
 * seen to uses expected by all other factors, drawn towards 1 by a gamma prior, so that there is no
 * step width and nothing to tune to a load. Called by policy_density.c; pure, and without the
 * mathematics library, so that every machine gets the same bits. Invariant: what a bin expects is
 * counted when a block comes into it, not when it leaves: else the oldest bins seem too good.
 */
#include <string.h>

#include "core/hazard.h"

/* Uses a block in each half octave before anything is known: an index that falls with age. */
#define PRIOR 0.03f
/* Uses that must have been expected before a factor is half its own: of what counts at all ages,
 * and of what is learned for each age and has less to learn from. */
#define DOUBT	     10.0f
#define DOUBT_AT_AGE 40.0f
#define CHANCE_MAX   0.7f
/* Of a wait, what is too unlikely to look at. */
#define WAITS_MIN 0.01

/* The start of a bin in seconds. */
static double edge(uint32_t bin)
{
	double start = (double)FM_AGE_MIN_NS * 1e-9;

	if (!bin)
		return 0;
	start *= (double)(1ull << (bin - 1) / 2);
	return (bin - 1) % 2 ? start * 1.4142135623730951 : start;
}

uint32_t fm_age_bin(uint64_t age_ns)
{
	uint32_t octave, bin;

	if (age_ns < FM_AGE_MIN_NS)
		return 0;
	octave = 63 - (uint32_t)__builtin_clzll(age_ns / FM_AGE_MIN_NS);
	/* The upper half octave begins at 1.4142 (181 / 128). */
	bin = 1 + 2 * octave + (age_ns >> octave >= FM_AGE_MIN_NS / 128 * 181);
	return bin < FM_AGE_BINS ? bin : FM_AGE_BINS - 1;
}

static void set(struct fm_effect *effects, size_t n, float factor)
{
	for (size_t i = 0; i < n; i++)
		effects[i] = (struct fm_effect){.factor = factor};
}

void fm_hazard_init(struct fm_hazard *hazard)
{
	set(hazard->ages, FM_AGE_BINS, PRIOR);
	set(&hazard->traits[0][0], FM_TRAITS * FM_TRAIT_VALUES, 1);
	set(&hazard->at_age[0][0][0], 3 * FM_TRAIT_VALUES * FM_AGE_GROUPS, 1);
}

/* A gap as a row of at_age: none, or its octave and a half. */
static uint32_t gap_row(uint32_t gap)
{
	return gap == FM_NO_GAP ? 0 : 1 + gap / 3;
}

_Static_assert(1 + (FM_AGE_BINS - 1) / 3 < FM_TRAIT_VALUES, "each gap has a row of at_age");

static float factor_at_all_ages(const struct fm_hazard *hazard, const struct fm_traits *traits)
{
	float factor = 1;

	for (uint32_t i = 0; i < FM_TRAITS; i++)
		factor *= hazard->traits[i][traits->values[i]].factor;
	return factor;
}

static float chance(const struct fm_hazard *hazard, const struct fm_traits *traits, float factor,
		    uint32_t bin)
{
	uint32_t group = bin / 3;

	factor *= hazard->ages[bin].factor *
		  hazard->at_age[0][gap_row(traits->request_gap)][group].factor *
		  hazard->at_age[1][gap_row(traits->own_gap)][group].factor *
		  hazard->at_age[2][traits->values[FM_TRAIT_TURN]][group].factor;
	return factor < CHANCE_MAX ? factor : CHANCE_MAX;
}

static void count(struct fm_effect *effect, float chance, bool is_use, float prior, float doubt)
{
	if (is_use)
		effect->uses++;
	else
		effect->expected += chance / effect->factor;
	effect->factor = (effect->uses + doubt * prior) / (effect->expected + doubt);
}

void fm_hazard_learn(struct fm_hazard *hazard, const struct fm_traits *traits, uint32_t bin,
		     bool is_use)
{
	float c = chance(hazard, traits, factor_at_all_ages(hazard, traits), bin);
	uint32_t group = bin / 3;

	count(&hazard->ages[bin], c, is_use, PRIOR, DOUBT);
	for (uint32_t i = 0; i < FM_TRAITS; i++)
		count(&hazard->traits[i][traits->values[i]], c, is_use, 1, DOUBT);
	count(&hazard->at_age[0][gap_row(traits->request_gap)][group], c, is_use, 1, DOUBT_AT_AGE);
	count(&hazard->at_age[1][gap_row(traits->own_gap)][group], c, is_use, 1, DOUBT_AT_AGE);
	count(&hazard->at_age[2][traits->values[FM_TRAIT_TURN]][group], c, is_use, 1, DOUBT_AT_AGE);
}

double fm_hazard_density(const struct fm_hazard *hazard, const struct fm_traits *traits,
			 uint64_t age_ns)
{
	float factor = factor_at_all_ages(hazard, traits);
	double waits = 1, uses = 0, seconds = 0, best = 0, age = (double)age_ns * 1e-9;
	uint32_t first = fm_age_bin(age_ns);
	double start = edge(first);

	for (uint32_t bin = first; bin + 1 < FM_AGE_BINS && waits > WAITS_MIN; bin++) {
		double end = edge(bin + 1), length = end - start;
		double used = (double)chance(hazard, traits, factor, bin);

		/* What is left of the bin that it is in. */
		if (bin == first && age > start) {
			used *= (end - age) / length;
			length = end - age;
		}
		uses += waits * used;
		seconds += waits * length * (1 - used / 2);
		waits *= 1 - used;
		if (uses > best * seconds)
			best = uses / seconds;
		start = end;
	}
	return best;
}
