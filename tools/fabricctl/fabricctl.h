/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fabricctl's commands share: the attached pool, the output form, exit codes. Each command is
 * a file of its own and sees the library through fabricmgr.h only. Invariant: human text and JSON
 * of a command tell the same facts.
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
	bool is_json;
};

int ctl_info(struct ctl *ctl);
int ctl_status(struct ctl *ctl);
int ctl_ls(struct ctl *ctl);
int ctl_verify(struct ctl *ctl);

/* Says what failed (the library's detail) and returns CTL_FAILED. */
int ctl_fail(const char *what);
/* Prints @object and releases it. */
int ctl_print(json_t *object);
void ctl_hex(const void *bytes, size_t n, char *out); /* 2n + 1 bytes */
const char *ctl_bytes(uint64_t bytes, char out[32]);
const char *ctl_state(uint32_t state);

#endif
