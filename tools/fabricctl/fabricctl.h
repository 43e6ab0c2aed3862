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
};

int ctl_info(struct ctl *ctl);
int ctl_status(struct ctl *ctl);
int ctl_ls(struct ctl *ctl);
int ctl_verify(struct ctl *ctl);
int ctl_evict(struct ctl *ctl);
int ctl_invalidate(struct ctl *ctl);
int ctl_pin(struct ctl *ctl);
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
