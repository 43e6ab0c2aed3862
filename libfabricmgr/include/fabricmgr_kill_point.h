/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places where the crash tests kill a process: FM_KILL_POINT("seal: submitted") names a step of a
 * protocol. And the faults that these tests must notice: FM_FAULT("name") is true where
 * FABRICMGR_FAULT names it. Any layer may use both; they are not part of the library's interface
 * and not installed.
 * Invariant: without FM_KILL_POINTS (only VARIANT=kill defines it) they are no code at all.
 */
#ifndef FABRICMGR_KILL_POINT_H
#define FABRICMGR_KILL_POINT_H

#include <stdbool.h>

#ifdef FM_KILL_POINTS

#include <stdatomic.h>
#include <stdint.h>

enum { FM_KILL_NAME = 48, FM_KILL_STEPS = 256 };

/*
 * The file that FABRICMGR_KILL_FILE names, shared by the processes under test and their tester: one
 * step for each kill point and role (FABRICMGR_KILL_ROLE, e.g. "decode"), in the order in which
 * they were first passed. The tester sets @armed to n: the n-th passing from then on dies.
 */
struct fm_kill_step {
	char name[FM_KILL_NAME]; /* "role step", zero: free */
	_Atomic uint64_t passes;
	_Atomic uint32_t armed, kills;
};
struct fm_kill_file {
	struct fm_kill_step steps[FM_KILL_STEPS];
};

/* One per place in the code: where its step stands in the file, once known. */
struct fm_kill_site {
	const char *name;
	_Atomic(struct fm_kill_step *) step;
};

/* Counts a passing, and ends the process by SIGKILL when the tester has asked for it. Does nothing
 * when FABRICMGR_KILL_FILE is not set. Any thread. */
void fm_kill_point(struct fm_kill_site *site);
/* True when the environment's FABRICMGR_FAULT is @name. Any thread. */
bool fm_fault(const char *name);

#define FM_KILL_POINT(step_name)                                                                   \
	do {                                                                                       \
		static struct fm_kill_site fm_kill_site_here = {.name = (step_name)};              \
		fm_kill_point(&fm_kill_site_here);                                                 \
	} while (0)
#define FM_FAULT(name) fm_fault(name)

#else

#define FM_KILL_POINT(step_name) ((void)0)
#define FM_FAULT(name)		 false

#endif
#endif
