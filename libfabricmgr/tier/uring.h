/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file or a block device on io_uring (see device.h). nvme.c opens it. Invariant: while it is open
 * nobody else who asks has it.
 */
#ifndef FM_TIER_URING_H
#define FM_TIER_URING_H

#include "tier/device.h"

/*
 * What fm_uring_open() would refuse of @path and @bytes, and of this kernel, without a change to
 * either; *@have: how long the device would be. *@is_new: there is no such file yet.
 */
int fm_uring_check(const char *path, uint64_t bytes, uint64_t *have, bool *is_new);
/*
 * Opens @path for exclusive use, and when it is a file (or not there) makes it @bytes long,
 * allocated and zeroed where it is new; 0: as long as it is. Never shorter than it was.
 */
int fm_uring_open(const char *path, uint64_t bytes, uint32_t depth, uint32_t buffers,
		  struct fm_device **out);
/* Readable when reap() has something to do. */
int fm_uring_event(const struct fm_device *device);

#endif
