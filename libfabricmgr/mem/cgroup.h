/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control group of this process leaves of memory (cgroup v2). The region driver asks when
 * a pool is created. Invariant: what cannot be read limits nothing; the kernel has the last word.
 */
#ifndef FM_MEM_CGROUP_H
#define FM_MEM_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

struct fm_cgroup_memory {
	char path[256];	      /* the group whose limit is the tightest */
	uint64_t limit, used; /* memory.max; memory.current without page cache that can go */
};

/* False: no group above this process has a limit. @self: "/proc/self/cgroup"; @root: where the
 * hierarchy is mounted, "/sys/fs/cgroup". */
bool fm_cgroup_memory(const char *self, const char *root, struct fm_cgroup_memory *out);

#endif
