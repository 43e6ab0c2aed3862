/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that one process at a time holds, beside what it guards. The server uses it for its
 * socket. Invariant: whoever holds the lock holds it on the file that stands at the path, so of two
 * daemons that find a dead one's socket only one replaces it.
 */
#ifndef FM_POOL_LOCK_FILE_H
#define FM_POOL_LOCK_FILE_H

/* Takes the lock of @path without waiting: its descriptor, or FM_ERR_EXISTS naming who holds it. */
int fm_lock_file_take(const char *path);
/* Removes the file and gives the lock up; a negative @fd is no lock. */
void fm_lock_file_release(const char *path, int fd);

#endif
