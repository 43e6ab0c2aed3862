/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors that a daemon handed over, and the socket on which it does. main.c calls it.
 * Invariant: only the process that is expected is listened to.
 */
#ifndef FABRICMGR_HOLDER_STORE_H
#define FABRICMGR_HOLDER_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A pool has up to 132 descriptors, and one for each client of this daemon and of those before;
 * their names go into one variable of the environment, for which the kernel has 128 KiB. */
enum { STORE_MAX = 4096, STORE_NAME = 64, STORE_NAMES_MAX = 120000 };

struct store {
	struct {
		char name[STORE_NAME];
		int fd;
	} kept[STORE_MAX];
	uint32_t n, name_bytes;
	int socket;
	char address[32]; /* of NOTIFY_SOCKET: "@…" */
	pid_t pid;	  /* who may speak; 0: nobody */
};

/* What store_receive() heard. */
enum { STORE_HEARD = 1, STORE_READY = 2 };

int store_open(struct store *store);
void store_close(struct store *store);
void store_expect(struct store *store, pid_t pid);
/* Takes every message that is there; a set of STORE_…. */
uint32_t store_receive(struct store *store);
/* In the new process: the descriptors from 3 on, and the environment. */
int store_give(const struct store *store, uint32_t watchdog_s);

#endif
