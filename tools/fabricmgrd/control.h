/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's signals, on a thread of their own: SIGTERM and SIGINT end it, SIGHUP reads the
 * configuration again. Called by main.c. Invariant: a reload is whole or not at all; what it cannot
 * change at run time it names.
 */
#ifndef FABRICMGRD_CONTROL_H
#define FABRICMGRD_CONTROL_H

#include "groups.h"
#include "settings.h"

struct control;

/* Blocks the signals, in this thread and those it creates: before there is any other. */
void control_block_signals(void);
/* @line: the flags, @settings: what is in use; both stay the caller's, who leaves them alone until
 * control_finish(). @metrics may be NULL. */
int control_start(struct control **out, const struct settings *line, struct settings *settings,
		  struct groups *groups, struct metrics *metrics);
/* Ends the thread and frees. NULL is ignored. */
void control_finish(struct control *control);

#endif
