// SPDX-License-Identifier: Apache-2.0
/*
 * Eviction policies by name. Called by the pool's driver and by fabric-sim; pure. Invariant: a name
 * stands in one place, the policy's own file.
 */
#include <string.h>

#include "core/policy.h"

static const struct fm_policy_ops *const all[] = {&fm_policy_density, &fm_policy_lru,
						  &fm_policy_s3fifo};

size_t fm_policy_list(const struct fm_policy_ops *const **out)
{
	*out = all;
	return sizeof(all) / sizeof(all[0]);
}

const struct fm_policy_ops *fm_policy_find(const char *name)
{
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(all[i]->name, name))
			return all[i];
	return NULL;
}
