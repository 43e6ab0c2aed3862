// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl quota: what tenants have and may have; and what status and top show of them. Called by
 * main.c, show.c and top.c. Invariant: only what the daemon tells this user is shown: its own
 * tenant, or all.
 */
#include <stdio.h>
#include <stdlib.h>

#include "command_line.h"
#include "fabricctl.h"

struct ctl_tenants *ctl_tenants(struct ctl *ctl)
{
	struct ctl_tenants *tenants = calloc(1, sizeof(*tenants));

	if (!tenants) {
		fm_fail(FM_ERR_NO_MEMORY, "no memory for the list of tenants");
		return NULL;
	}
	tenants->list[0].size = sizeof(tenants->list[0]);
	tenants->n = fm_pool_tenants(ctl->pool, tenants->list, CTL_TENANTS_MAX);
	if (tenants->n >= 0)
		return tenants;
	free(tenants);
	return NULL;
}

const char *ctl_tenant_name(const struct ctl_tenants *tenants, const struct fm_client_info *client)
{
	for (int64_t i = 0; i < tenants->n && i < CTL_TENANTS_MAX; i++)
		if (tenants->list[i].number == FM_CLIENT_TENANT(client->flags))
			return tenants->list[i].name;
	return "?"; /* it came between the two questions */
}

json_t *ctl_tenants_json(const struct ctl_tenants *tenants)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < tenants->n && i < CTL_TENANTS_MAX; i++) {
		const struct fm_tenant_info *t = &tenants->list[i];

		json_array_append_new(
			list,
			json_pack(
				"{s:s, s:s, s:I, s:{s:I, s:I, s:I, s:I, s:I}, s:I, s:I, s:I, s:I, "
				"s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
				"name", t->name, "group", t->group, "number", (json_int_t)t->number,
				"quotas", "guaranteed_bytes",
				(json_int_t)t->quotas.guaranteed_bytes, "max_bytes",
				(json_int_t)t->quotas.max_bytes, "staging_bytes",
				(json_int_t)t->quotas.staging_bytes, "requests",
				(json_int_t)t->quotas.requests, "nvme_bytes",
				(json_int_t)t->quotas.nvme_bytes, "held_bytes",
				(json_int_t)t->held_bytes, "used_bytes", (json_int_t)t->used_bytes,
				"staged_bytes", (json_int_t)t->staged_bytes, "requests",
				(json_int_t)t->requests, "blocks", (json_int_t)t->blocks,
				"nvme_bytes", (json_int_t)t->nvme_bytes, "evictions",
				(json_int_t)t->evictions, "taken", (json_int_t)t->taken, "refused",
				(json_int_t)t->refused, "adopted_bytes",
				(json_int_t)t->adopted_bytes, "adopted_max_bytes",
				(json_int_t)t->adopted_max_bytes));
	}
	return list;
}

/* "12.0 MiB of 16.0 MiB", or without what is no limit. */
static const char *of(uint64_t value, uint64_t max, char out[72])
{
	char a[32], b[32];

	if (max)
		snprintf(out, 72, "%s of %s", ctl_bytes(value, a), ctl_bytes(max, b));
	else
		snprintf(out, 72, "%s", ctl_bytes(value, a));
	return out;
}

int ctl_tenant_lines(const struct ctl_tenants *tenants, char (*lines)[CTL_LINE_BYTES], int max)
{
	int n = 0;

	if (max < 1 || (tenants->n == 1 && !tenants->list[0].number))
		return 0;
	snprintf(lines[n++], CTL_LINE_BYTES,
		 "%-16s %22s %11s %10s %20s %20s %20s %8s %9s %7s %7s", "tenant", "held of max",
		 "guaranteed", "in blocks", "staged", "nvme", "adopted", "requests", "evictions",
		 "taken", "refused");
	for (int64_t i = 0; i < tenants->n && i < CTL_TENANTS_MAX && n < max; i++) {
		const struct fm_tenant_info *t = &tenants->list[i];
		char held[72], guaranteed[32], used[32], staged[72], nvme[72], adopted[72];

		snprintf(lines[n++], CTL_LINE_BYTES,
			 "%-16s %22s %11s %10s %20s %20s %20s %8llu %9llu %7llu %7llu", t->name,
			 of(t->held_bytes, t->quotas.max_bytes, held),
			 ctl_bytes(t->quotas.guaranteed_bytes, guaranteed),
			 ctl_bytes(t->used_bytes, used),
			 of(t->staged_bytes, t->quotas.staging_bytes, staged),
			 of(t->nvme_bytes, t->quotas.nvme_bytes, nvme),
			 of(t->adopted_bytes, t->adopted_max_bytes, adopted),
			 (unsigned long long)t->requests, (unsigned long long)t->evictions,
			 (unsigned long long)t->taken, (unsigned long long)t->refused);
	}
	return n;
}

int ctl_print_tenants(const struct ctl_tenants *tenants)
{
	char lines[CTL_TENANTS_MAX + 1][CTL_LINE_BYTES];
	int n = ctl_tenant_lines(tenants, lines, CTL_TENANTS_MAX + 1);

	for (int i = 0; i < n; i++)
		puts(lines[i]);
	return n;
}

static int show(struct ctl *ctl)
{
	struct ctl_tenants *tenants = ctl_tenants(ctl);
	int status = CTL_OK;

	if (!tenants)
		return ctl_fail("quota");
	if (ctl->is_json)
		status = ctl_print(ctl_tenants_json(tenants));
	else if (!ctl_print_tenants(tenants))
		printf("no tenants are configured: Documentation/tenants.md says how\n");
	free(tenants);
	return status;
}

static bool is_change(const struct fm_tenant_quotas *quotas)
{
	return quotas->guaranteed_bytes != FM_QUOTA_KEEP || quotas->max_bytes != FM_QUOTA_KEEP ||
	       quotas->staging_bytes != FM_QUOTA_KEEP || quotas->requests != FM_QUOTA_KEEP ||
	       quotas->nvme_bytes != FM_QUOTA_KEEP;
}

int ctl_quota(struct ctl *ctl)
{
	bool changes = is_change(&ctl->quotas);

	if (!ctl->argument && !changes)
		return show(ctl);
	if (!ctl->argument)
		fm_fail(FM_ERR_INVALID, "quota: give the tenant whose quotas are to change");
	else if (!changes)
		fm_fail(FM_ERR_INVALID, "quota %.32s: give what to change, such as --max 8G",
			ctl->argument);
	if (!ctl->argument || !changes)
		return fm_usage_error("fabricctl");
	return fm_pool_set_quotas(ctl->pool, ctl->argument, &ctl->quotas) ? ctl_fail("quota")
									  : show(ctl);
}
