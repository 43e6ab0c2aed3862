/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that the service manager (systemd, or fabricmgr-holder where there is none) keeps for
 * the next start, and how much memory this process was left by whatever keeper. Drivers call it;
 * those that were given are taken by one thread at a time. Invariant: a descriptor that was given
 * is either taken by its name or closed.
 */
#ifndef FM_BASE_SERVICE_H
#define FM_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#define FM_SERVICE_NAME 64

struct fm_service_fd {
	char name[FM_SERVICE_NAME];
	int fd;
};

/* Whether there is one that listens ($NOTIFY_SOCKET). */
bool fm_service_is_there(void);
/* Hands over a copy of @fd, to be given to the next start as @name, or ends that. FM_ERR_DEADLINE:
 * it does not read, which is waited for once in a process's life. */
int fm_service_keep(const char *name, int fd);
int fm_service_drop(const char *name);
/* The descriptors that this process was started with ($LISTEN_FDS), at most @max of those whose
 * name begins with @prefix; the others stay as they are. How many. A second call does not find
 * them again. */
uint32_t fm_service_given(const char *prefix, struct fm_service_fd *given, uint32_t max);
/* Whether one of that name was given, taken or not. */
bool fm_service_has(const char *name);
/* Ends the keeping of those of that prefix that nobody took. */
void fm_service_drop_rest(const char *prefix);
/* Memory in all that was given: it is taken, and will be taken over or given back. */
uint64_t fm_service_held_bytes(bool is_huge);
/* These count as given, too: another keeper has them for this process. */
void fm_service_count(const struct fm_service_fd *given, uint32_t n);
/* These count no more: they are about to be closed. */
void fm_service_give_back(const struct fm_service_fd *given, uint32_t n);

#endif
