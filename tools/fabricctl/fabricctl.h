/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fabricctl's commands share: the attached pool, the output form, exit codes. Commands stand
 * in show.c, blocks.c, operate.c and top.c and see the library through fabricmgr.h only. Invariant:
 * human text and JSON of a command tell the same facts.
 */
#ifndef FABRICCTL_H
#define FABRICCTL_H

#include <stdbool.h>

#include <jansson.h>

#include <fabricmgr.h>

enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2 };

struct ctl {
	struct fm_pool *pool;
	const char *socket;
	const char *argument; /* behind the command; NULL: none */
	const char *second;   /* and behind that */
	uint32_t interval;    /* top: seconds between two looks */
	bool is_json, is_once;
	uint64_t evict_bytes, pin_ns; /* what the words mean, where a command takes some */
	struct fm_digest ns;
	struct fm_key key;
	struct fm_tenant_quotas quotas; /* quota: to be set; FM_QUOTA_KEEP: not */
};

enum { CTL_TENANTS_MAX = 32, CTL_LINE_BYTES = 192 };

struct ctl_tenants {
	struct fm_tenant_info list[CTL_TENANTS_MAX];
	int64_t n;
};

int ctl_info(struct ctl *ctl);
int ctl_status(struct ctl *ctl);
int ctl_ls(struct ctl *ctl);
int ctl_verify(struct ctl *ctl);
/* What stands behind the command, before it attaches. */
int ctl_take_evict(struct ctl *ctl);
int ctl_take_invalidate(struct ctl *ctl);
int ctl_take_pin(struct ctl *ctl);
int ctl_evict(struct ctl *ctl);
int ctl_invalidate(struct ctl *ctl);
int ctl_pin(struct ctl *ctl);
int ctl_quota(struct ctl *ctl);
int ctl_drain(struct ctl *ctl);
int ctl_undrain(struct ctl *ctl);
int ctl_snapshot(struct ctl *ctl);
int ctl_top(struct ctl *ctl);

/* As JSON; NULL with fm_error_detail() set. */
json_t *ctl_info_json(struct ctl *ctl);
json_t *ctl_status_json(struct ctl *ctl);
json_t *ctl_blocks_json(struct ctl *ctl);
/* The clients, in memory of the caller to free; *@n how many. NULL with fm_error_detail() set. */
struct fm_client_info *ctl_clients(struct ctl *ctl, int64_t *n);
/* The tenants that this user sees, for the caller to free. NULL with fm_error_detail() set. */
struct ctl_tenants *ctl_tenants(struct ctl *ctl);
json_t *ctl_tenants_json(const struct ctl_tenants *tenants);
const char *ctl_tenant_name(const struct ctl_tenants *tenants, const struct fm_client_info *client);
/* A heading and a line for each; how many. None where nobody is configured. */
int ctl_tenant_lines(const struct ctl_tenants *tenants, char (*lines)[CTL_LINE_BYTES], int max);
int ctl_print_tenants(const struct ctl_tenants *tenants);
/* How a client attached, in a word. */
const char *ctl_client_mode(const struct fm_client_info *client);

/* Says what failed (the library's detail) and returns CTL_FAILED. */
int ctl_fail(const char *what);
/* Prints @object and releases it. */
int ctl_print(json_t *object);
void ctl_hex(const void *bytes, size_t n, char *out); /* 2n + 1 bytes */
const char *ctl_bytes(uint64_t bytes, char out[32]);
const char *ctl_state(uint32_t state);

#endif
