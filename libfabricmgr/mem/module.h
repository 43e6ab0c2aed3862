/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory files that the kernel module keeps, under names, when every process is gone
 * (/dev/fabricmgr, its vaults). The pool's drivers call it, on one thread at a time. Invariant: who
 * takes or drops files of a prefix holds its lock, the region PREFIXlock, of which one living open
 * file is the manager; the lock goes with the process, however that ends.
 */
#ifndef FM_MEM_MODULE_H
#define FM_MEM_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/service.h"

/* An open file of the device, or an error that tells what is missing. FM_ERR_NOT_FOUND: there is no
 * such device. */
int fm_module_open(void);
/* FM_ERR_EXISTS: another process that lives has the lock. */
int fm_module_lock(int device, const char *prefix);
/* Keeps the memory file @fd as @name, which is free. */
int fm_module_keep(int device, const char *name, int fd);
/* The name is free afterwards; the memory goes with its last user. */
int fm_module_drop(int device, const char *name);
/* New descriptors, for writing, of at most @max files of that prefix; how many. */
uint32_t fm_module_given(int device, const char *prefix, struct fm_service_fd *given, uint32_t max);
/* Whether there is any file of that prefix, of this user. */
bool fm_module_has(int device, const char *prefix);
/* Drops all of @prefix, the lock too, or the lock stays. FM_ERR_EXISTS: some are in use, and stay
 * with the lock. */
int fm_module_drop_all(int device, const char *prefix, bool is_lock_left);
/* Drops what this user's processes that ended have left under @prefix, whatever follows it. How
 * many locks had files; FM_ERR_EXISTS: some are in use, and stay. */
int fm_module_forget(int device, const char *prefix);

#endif
