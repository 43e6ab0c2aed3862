// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl info and status: what the daemon says about itself, its counters and its clients.
 */
#include <stdio.h>
#include <stdlib.h>

#include "fabricctl.h"

static void print_rung(const char *label, const char *rung, const char *reason)
{
	printf("%-12s %s\n", label, rung);
	if (*reason)
		printf("%-12s   not the rung above: %s\n", "", reason);
}

static const char kernel_module[] = "not used: this version has no kernel rung";

/* NULL (JSON: null) without a tier. */
static json_t *nvme_json(const struct fm_pool_info *info)
{
	if (!*info->nvme_path)
		return json_null();
	return json_pack(
		"{s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		"path", info->nvme_path, "rung", info->nvme_rung, "rung_reason",
		info->nvme_rung_reason, "is_durable", (int)info->nvme_is_durable, "is_dead",
		(int)info->nvme_is_dead, "bytes", (json_int_t)info->nvme_bytes, "segments",
		(json_int_t)info->nvme_segments, "segments_bad",
		(json_int_t)info->nvme_segments_bad, "blocks", (json_int_t)info->nvme_blocks,
		"block_bytes", (json_int_t)info->nvme_block_bytes, "table_bytes",
		(json_int_t)info->nvme_memory_bytes, "reading_bytes",
		(json_int_t)info->nvme_reading_bytes, "writing_bytes",
		(json_int_t)info->nvme_writing_bytes, "stored", (json_int_t)info->nvme_stored,
		"stored_bytes", (json_int_t)info->nvme_stored_bytes, "fetched",
		(json_int_t)info->nvme_fetched, "fetch_misses", (json_int_t)info->nvme_fetch_misses,
		"reclaimed", (json_int_t)info->nvme_reclaimed, "skipped",
		(json_int_t)info->nvme_skipped, "recovered", (json_int_t)info->nvme_recovered,
		"read_errors", (json_int_t)info->nvme_read_errors, "write_errors",
		(json_int_t)info->nvme_write_errors, "flush_errors",
		(json_int_t)info->nvme_flush_errors, "checksum_errors",
		(json_int_t)info->nvme_checksum_errors);
}

static void show_nvme(const struct fm_pool_info *info)
{
	char used[32], total[32], reading[32], writing[32];

	if (!*info->nvme_path)
		return;
	printf("%-12s %llu blocks, %s of %s; %llu of %llu segments given up%s\n", "nvme",
	       (unsigned long long)info->nvme_blocks, ctl_bytes(info->nvme_block_bytes, used),
	       ctl_bytes(info->nvme_bytes, total), (unsigned long long)info->nvme_segments_bad,
	       (unsigned long long)info->nvme_segments,
	       info->nvme_is_dead ? "; it takes NO MORE blocks" : "");
	printf("%-12s   %llu found at the start, %llu stored, %llu fetched, %llu missed, "
	       "%llu given up for space, %llu gone before they were written\n",
	       "", (unsigned long long)info->nvme_recovered, (unsigned long long)info->nvme_stored,
	       (unsigned long long)info->nvme_fetched, (unsigned long long)info->nvme_fetch_misses,
	       (unsigned long long)info->nvme_reclaimed, (unsigned long long)info->nvme_skipped);
	printf("%-12s   in flight: %s reading, %s writing; errors: %llu read, %llu write, "
	       "%llu flush, %llu checksum\n",
	       "", ctl_bytes(info->nvme_reading_bytes, reading),
	       ctl_bytes(info->nvme_writing_bytes, writing),
	       (unsigned long long)info->nvme_read_errors,
	       (unsigned long long)info->nvme_write_errors,
	       (unsigned long long)info->nvme_flush_errors,
	       (unsigned long long)info->nvme_checksum_errors);
}

/* Whether the pool outlives the daemon, and what came from the one before. */
static json_t *kept_json(const struct fm_pool_info *info)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:I}", "by", info->kept_by, "reason",
			 info->kept_reason, "cold_reason", info->cold_reason, "resumed_blocks",
			 (json_int_t)info->resumed_blocks, "dropped_blocks",
			 (json_int_t)info->resume_dropped, "resume_ms",
			 (double)info->resume_ns / 1e6, "clients", (json_int_t)info->kept_clients,
			 "leases", (json_int_t)info->kept_leases);
}

static void show_kept(const struct fm_pool_info *info)
{
	printf("%-12s %s\n", "kept by", info->kept_by);
	if (*info->kept_reason)
		printf("%-12s   %s\n", "", info->kept_reason);
	if (info->resume_ns)
		printf("%-12s   %llu blocks of the daemon before taken over in %.1f ms, %llu not "
		       "believed\n",
		       "", (unsigned long long)info->resumed_blocks, (double)info->resume_ns / 1e6,
		       (unsigned long long)info->resume_dropped);
	if (*info->cold_reason)
		printf("%-12s   what was there is not taken over: %s\n", "", info->cold_reason);
	if (info->kept_clients)
		printf("%-12s   %llu clients of daemons before hold on, with %llu leases\n", "",
		       (unsigned long long)info->kept_clients,
		       (unsigned long long)info->kept_leases);
}

/* The sharing group, which the first tenant that is seen tells. */
static int ask_group(struct ctl *ctl, char group[32])
{
	struct ctl_tenants *tenants = ctl_tenants(ctl);

	snprintf(group, 32, "%s", tenants ? tenants->list[0].group : "");
	free(tenants);
	return tenants ? 0 : -1;
}

json_t *ctl_info_json(struct ctl *ctl)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	char group[32];

	if (fm_pool_info(ctl->pool, &info) || ask_group(ctl, group))
		return NULL;
	return json_pack(
		"{s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:o, s:o}",
		"version", fm_version(), "group", group, "tenant", fm_pool_tenant(ctl->pool),
		"protocol", (int)info.protocol, "daemon_pid", (int)info.daemon_pid, "memory",
		info.rung, "memory_reason", info.rung_reason, "loop", info.loop, "loop_reason",
		info.loop_reason, "policy", info.policy, "total_bytes",
		(json_int_t)info.total_bytes, "entries_max", (json_int_t)info.entries_max,
		"kernel_module", kernel_module, "kept", kept_json(&info), "nvme", nvme_json(&info));
}

int ctl_info(struct ctl *ctl)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	char bytes[32], tables[32], group[32];

	if (ctl->is_json) {
		json_t *object = ctl_info_json(ctl);

		return object ? ctl_print(object) : ctl_fail("info");
	}
	if (fm_pool_info(ctl->pool, &info) || ask_group(ctl, group))
		return ctl_fail("info");
	printf("%-12s %s, protocol %u\n", "version", fm_version(), info.protocol);
	printf("%-12s pid %u, incarnation %016llx\n", "daemon", info.daemon_pid,
	       (unsigned long long)info.incarnation);
	printf("%-12s %s of group %s\n", "tenant", fm_pool_tenant(ctl->pool), group);
	print_rung("memory", info.rung, info.rung_reason);
	print_rung("loop", info.loop, info.loop_reason);
	printf("%-12s %s in chunks of 4 MiB\n", "size", ctl_bytes(info.total_bytes, bytes));
	printf("%-12s %llu blocks\n", "index", (unsigned long long)info.entries_max);
	printf("%-12s %s\n", "policy", info.policy);
	printf("%-12s %s\n", "kernel", kernel_module);
	show_kept(&info);
	if (*info.nvme_path) {
		printf("%-12s %s, %s, %s; tables of %s\n", "nvme", info.nvme_path,
		       ctl_bytes(info.nvme_bytes, bytes),
		       info.nvme_is_durable ? "durable" : "not flushed",
		       ctl_bytes(info.nvme_memory_bytes, tables));
		print_rung("nvme i/o", info.nvme_rung, info.nvme_rung_reason);
	}
	return CTL_OK;
}

struct fm_client_info *ctl_clients(struct ctl *ctl, int64_t *n)
{
	enum { MAX = 1024 };
	struct fm_client_info *clients = calloc(MAX, sizeof(*clients));

	*n = clients ? fm_pool_clients(ctl->pool, clients, MAX)
		     : fm_fail(FM_ERR_NO_MEMORY, "no memory for the list of clients");
	if (*n >= 0) {
		if (*n > MAX)
			*n = MAX;
		return clients;
	}
	free(clients);
	return NULL;
}

const char *ctl_client_mode(const struct fm_client_info *client)
{
	return client->flags & FM_ATTACH_READ_ONLY ? "read-only"
	       : client->flags & FM_ATTACH_DEVICES ? "devices"
						   : "plain";
}

static json_t *status_json(const struct fm_pool_info *info, const struct fm_client_info *clients,
			   int64_t n, const struct ctl_tenants *tenants)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(
			list, json_pack("{s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:b, s:b}", "id",
					(int)clients[i].id, "pid", (int)clients[i].pid, "uid",
					(int)clients[i].uid, "name", clients[i].name, "tenant",
					ctl_tenant_name(tenants, &clients[i]), "leases",
					(int)clients[i].leases, "staged", (int)clients[i].staged,
					"is_read_only", clients[i].flags & FM_ATTACH_READ_ONLY,
					"has_devices", clients[i].flags & FM_ATTACH_DEVICES));
	return json_pack(
		"{s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I}, s:I, s:{s:I, s:I, s:I, s:I, s:I}, "
		"s:b, s:o, s:o, s:o, s:{s:I, s:I, s:I, s:I}}",
		"total_bytes", (json_int_t)info->total_bytes, "used_bytes",
		(json_int_t)info->used_bytes, "blocks", "sealed", (json_int_t)info->blocks_sealed,
		"staging", (json_int_t)info->blocks_staging, "quarantine",
		(json_int_t)info->blocks_quarantine, "offered", (json_int_t)info->blocks_offered,
		"removed", (json_int_t)info->blocks_removed, "entries_max",
		(json_int_t)info->entries_max, "counters", "stages", (json_int_t)info->stages,
		"seals", (json_int_t)info->seals, "duplicates", (json_int_t)info->duplicates,
		"discards", (json_int_t)info->discards, "evictions", (json_int_t)info->evictions,
		"is_draining", (int)info->is_draining, "clients", list, "tenants",
		ctl_tenants_json(tenants), "nvme", nvme_json(info), "adopted", "regions",
		(json_int_t)info->adopted_regions, "region_bytes",
		(json_int_t)info->adopted_region_bytes, "blocks", (json_int_t)info->adopted_blocks,
		"bytes", (json_int_t)info->adopted_bytes);
}

json_t *ctl_status_json(struct ctl *ctl)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_client_info *clients;
	struct ctl_tenants *tenants;
	json_t *object = NULL;
	int64_t n;

	if (fm_pool_info(ctl->pool, &info))
		return NULL;
	clients = ctl_clients(ctl, &n);
	if (!clients)
		return NULL;
	tenants = ctl_tenants(ctl);
	if (tenants)
		object = status_json(&info, clients, n, tenants);
	free(tenants);
	free(clients);
	return object;
}

int ctl_status(struct ctl *ctl)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_client_info *clients;
	struct ctl_tenants *tenants;
	char used[32], total[32];
	int64_t n;

	if (ctl->is_json) {
		json_t *object = ctl_status_json(ctl);

		return object ? ctl_print(object) : ctl_fail("status");
	}
	if (fm_pool_info(ctl->pool, &info))
		return ctl_fail("status");
	clients = ctl_clients(ctl, &n);
	tenants = clients ? ctl_tenants(ctl) : NULL;
	if (!tenants) {
		free(clients);
		return ctl_fail("status");
	}
	if (info.is_draining)
		printf("%-12s no new blocks, no new clients\n", "draining");
	printf("%-12s %s of %s (%.1f %%)\n", "memory", ctl_bytes(info.used_bytes, used),
	       ctl_bytes(info.total_bytes, total),
	       100.0 * (double)info.used_bytes / (double)info.total_bytes);
	printf("%-12s %llu sealed, %llu staging (%llu of them on offer), %llu quarantine, "
	       "%llu removed and held; at most %llu\n",
	       "blocks", (unsigned long long)info.blocks_sealed,
	       (unsigned long long)info.blocks_staging, (unsigned long long)info.blocks_offered,
	       (unsigned long long)info.blocks_quarantine, (unsigned long long)info.blocks_removed,
	       (unsigned long long)info.entries_max);
	printf("%-12s %llu staged, %llu sealed, %llu duplicates, %llu discarded, %llu evicted\n",
	       "since start", (unsigned long long)info.stages, (unsigned long long)info.seals,
	       (unsigned long long)info.duplicates, (unsigned long long)info.discards,
	       (unsigned long long)info.evictions);
	if (info.adopted_regions)
		printf("%-12s %s in %llu regions of clients' own; %llu blocks in %s of it\n",
		       "adopted", ctl_bytes(info.adopted_region_bytes, total),
		       (unsigned long long)info.adopted_regions,
		       (unsigned long long)info.adopted_blocks,
		       ctl_bytes(info.adopted_bytes, used));
	show_nvme(&info);
	putchar('\n');
	if (ctl_print_tenants(tenants))
		putchar('\n');
	printf("%6s %8s %6s %8s %8s  %-10s %-12s %s\n", "client", "pid", "uid", "leases", "staged",
	       "mode", "tenant", "name");
	for (int64_t i = 0; i < n; i++)
		printf("%6u %8u %6u %8u %8u  %-10s %-12s %s\n", clients[i].id, clients[i].pid,
		       clients[i].uid, clients[i].leases, clients[i].staged,
		       ctl_client_mode(&clients[i]), ctl_tenant_name(tenants, &clients[i]),
		       clients[i].name);
	free(tenants);
	free(clients);
	return CTL_OK;
}
