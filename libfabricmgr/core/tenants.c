// SPDX-License-Identifier: Apache-2.0
/*
 * See tenants.h. Called by allocator, store and driver; pure. Invariant: the guarantees together
 * are never above the pool, so whoever is below its own finds another that is above.
 */
#include <string.h>

#include <fabricmgr.h>

#include "core/index.h"
#include "core/tenants.h"

static uint32_t unmet(const struct fm_tenant *tenant)
{
	return tenant->guaranteed_entries > tenant->entries
		       ? tenant->guaranteed_entries - tenant->entries
		       : 0;
}

void fm_tenants_init(struct fm_tenants *tenants, uint32_t chunks, uint32_t entries_max)
{
	memset(tenants, 0, sizeof(*tenants));
	tenants->count = 1;
	tenants->chunks = chunks;
	tenants->entries_max = entries_max;
	for (uint32_t i = 0; i < FM_TENANTS_MAX; i++)
		tenants->list[i].oldest = tenants->list[i].newest = FM_NO_ENTRY;
}

int fm_tenants_check(const struct fm_tenant_limits *limits, uint32_t n, uint32_t chunks)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		sum += limits[i].guaranteed_chunks;
		if (limits[i].max_chunks && limits[i].guaranteed_chunks > limits[i].max_chunks)
			return fm_fail(FM_ERR_LIMIT,
				       "a tenant is guaranteed %u chunks of 4 MiB, above its "
				       "maximum of %u: raise that, or guarantee less",
				       limits[i].guaranteed_chunks, limits[i].max_chunks);
	}
	if (sum > chunks)
		return fm_fail(FM_ERR_LIMIT,
			       "the tenants are guaranteed %llu chunks of 4 MiB together, the pool "
			       "has %u: guarantee less, or make the pool larger",
			       (unsigned long long)sum, chunks);
	return 0;
}

int fm_tenants_set(struct fm_tenants *tenants, uint32_t number,
		   const struct fm_tenant_limits *limits)
{
	struct fm_tenant_limits all[FM_TENANTS_MAX];
	uint32_t count = number < tenants->count ? tenants->count : number + 1;
	struct fm_tenant *tenant;
	int err;

	if (number >= FM_TENANTS_MAX)
		return fm_fail(FM_ERR_LIMIT, "a pool has at most %u tenants", FM_TENANTS_MAX);
	for (uint32_t i = 0; i < count; i++)
		all[i] = i == number ? *limits : tenants->list[i].limits;
	err = fm_tenants_check(all, count, tenants->chunks);
	if (err)
		return err;
	tenants->count = count;
	tenant = &tenants->list[number];
	tenants->unmet_entries -= unmet(tenant);
	tenants->guaranteed_chunks -= tenant->limits.guaranteed_chunks;
	tenants->guaranteed_chunks += limits->guaranteed_chunks;
	tenant->limits = *limits;
	tenant->guaranteed_entries = (uint32_t)((uint64_t)limits->guaranteed_chunks *
						tenants->entries_max / tenants->chunks);
	tenants->unmet_entries += unmet(tenant);
	return 0;
}

void fm_tenants_set_region(struct fm_tenants *tenants, uint32_t region, uint32_t number)
{
	tenants->of_region[region] = (uint8_t)number;
}

void fm_tenants_count_entry(struct fm_tenants *tenants, uint32_t number, int sign)
{
	struct fm_tenant *tenant = &tenants->list[number];

	tenants->unmet_entries -= unmet(tenant);
	tenant->entries += (uint32_t)sign;
	tenants->unmet_entries += unmet(tenant);
}

void fm_tenants_count_block(struct fm_tenants *tenants, uint32_t region, uint64_t bytes, int sign)
{
	fm_tenants_count_entry(tenants, tenants->of_region[region], sign);
	fm_tenant_of(tenants, region)->used_bytes += sign > 0 ? bytes : -bytes;
}

bool fm_tenants_may_take_entry(const struct fm_tenants *tenants, uint32_t number,
			       uint32_t free_entries)
{
	const struct fm_tenant *tenant = &tenants->list[number];

	if (tenant->entries < tenant->guaranteed_entries)
		return free_entries;
	/* Its own share of the unmet ones is 0 here. */
	return free_entries > tenants->unmet_entries;
}

uint64_t fm_tenants_staging_max(const struct fm_tenants *tenants, const struct fm_tenant *tenant)
{
	uint64_t free_chunks =
		tenants->chunks - tenants->guaranteed_chunks + tenant->limits.guaranteed_chunks;
	uint64_t max = free_chunks * FM_SLOTS_PER_CHUNK * FM_SLOT_GRAIN;

	return tenant->limits.staging_bytes && tenant->limits.staging_bytes < max
		       ? tenant->limits.staging_bytes
		       : max;
}
