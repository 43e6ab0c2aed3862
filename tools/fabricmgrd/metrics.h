/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's figures over HTTP: /metrics for Prometheus, / for people, /healthz. Called by main.c
 * and control.c. Invariant: read-only; nothing of a client or a key is shown, only sums, of
 * groups and of tenants.
 */
#ifndef FABRICMGRD_METRICS_H
#define FABRICMGRD_METRICS_H

#include <fabricmgr.h>

struct metrics_flags {
	const char *listen; /* NULL: none are served */
	bool is_behind_proxy;
};

struct ids;

struct groups;
struct metrics;

/* Whether it may listen there; @what names the address in the message. */
int metrics_check(const char *what, const struct metrics_flags *flags);
/* Listens, on a thread of its own; *@out NULL when no address is given. Where there are tenants,
 * root, the daemon's user and @users see figures, and nobody else of this machine. */
int metrics_start(const struct metrics_flags *flags, const struct ids *users, struct groups *groups,
		  struct metrics **out);
/* Stops serving, while the pool still answers; from one thread at a time. NULL is ignored. */
void metrics_stop(struct metrics *metrics);
/* Stops, if it serves still, and frees. NULL is ignored. */
void metrics_finish(struct metrics *metrics);

#endif
