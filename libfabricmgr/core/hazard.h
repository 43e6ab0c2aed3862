/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How likely a block is to be used again, learned while the pool runs: the chance that a block
 * which has waited so long is used in the next stretch of time, times a factor for each thing that
 * is known of it; and from that its hit density, the most uses for the time that its place is
 * taken. Called by policy_density.c; pure. Invariant: every factor is above 0 and finite, and the
 * same calls give the same factors.
 */
#ifndef FM_CORE_HAZARD_H
#define FM_CORE_HAZARD_H

#include <stdbool.h>
#include <stdint.h>

/* Ages and gaps in half octaves: bin 0 is below FM_AGE_MIN_NS, the last one has no end. */
#define FM_AGE_BINS   40u
#define FM_AGE_MIN_NS (1ull << 27) /* an eighth of a second */
/* Coarser, where an effect is learned for each age: three half octaves together. */
#define FM_AGE_GROUPS (FM_AGE_BINS / 3 + 1)
#define FM_NO_GAP     FM_AGE_BINS

/* What a block's chance depends on, each a number below FM_TRAIT_VALUES. */
enum fm_trait {
	FM_TRAIT_TURN,	 /* of the last request that used it: how often its chain was continued */
	FM_TRAIT_BRANCH, /* log2 of the uses of the block where that request left what was known */
	FM_TRAIT_USES,	 /* log2 of its own uses */
	FM_TRAIT_FORKS,	 /* different blocks that came behind it, up to 3 */
	FM_TRAIT_DEPTH,	 /* log2 of its place in the chain */
	FM_TRAIT_LENGTH, /* log2 of the length of the last request's chain */
	FM_TRAITS
};
#define FM_TRAIT_VALUES 16u

struct fm_traits {
	uint8_t values[FM_TRAITS];
	uint8_t request_gap; /* bin of the time from the use before that request's; or FM_NO_GAP */
	uint8_t own_gap;     /* bin of the time between the block's last two uses; or FM_NO_GAP */
};

/* What happened, over what was to be expected without this effect. */
struct fm_effect {
	float uses, expected, factor;
};

struct fm_hazard {
	struct fm_effect ages[FM_AGE_BINS];
	struct fm_effect traits[FM_TRAITS][FM_TRAIT_VALUES];
	/* The gap of the request, of the block, and the turn, at each age. */
	struct fm_effect at_age[3][FM_TRAIT_VALUES][FM_AGE_GROUPS];
};

void fm_hazard_init(struct fm_hazard *hazard);
uint32_t fm_age_bin(uint64_t age_ns);
/* A block's age came into @bin, or the block was used in it. */
void fm_hazard_learn(struct fm_hazard *hazard, const struct fm_traits *traits, uint32_t bin,
		     bool is_use);
/* Uses a second of a block that is @age_ns old, kept for the time that is best. */
double fm_hazard_density(const struct fm_hazard *hazard, const struct fm_traits *traits,
			 uint64_t age_ns);

#endif
