/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process a handle belongs to: a child of fork() must not use its parent's. Any layer may
 * call. Invariant: a process has another value than each of its ancestors.
 */
#ifndef FM_BASE_FORK_H
#define FM_BASE_FORK_H

#include <stdbool.h>
#include <stdint.h>

/* The value of this process; never 0. */
uint32_t fm_fork_value(void);
/* False in a child of the process that took the value. No system call. */
bool fm_fork_is_ours(uint32_t value);

#endif
