/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis front end as fabricmgrd runs it: flags to a thread beside the pool's. Called by main.c.
 * Invariant: the pool serves until the front end's thread has ended, and stops then.
 */
#ifndef FABRICMGRD_REDIS_H
#define FABRICMGRD_REDIS_H

#include <fabricmgr.h>

enum { REDIS_LISTEN_MAX = 4, REDIS_PASSWORD_MAX = 512 };

struct redis_flags {
	const char *listen[REDIS_LISTEN_MAX];
	uint32_t n_listen; /* 0: no front end */
	const char *password_file;
	const char *tenant; /* whom they act for; NULL: default */
	uint64_t name_bytes;
	bool is_behind_proxy;
};

struct redis;

/* Whether the addresses can be served here and the password file, if there is one, has a password.
 */
int redis_check(const struct redis_flags *flags);
/* Binds the addresses and starts the thread; *@out NULL when no address is given. Whatever ends the
 * front end ends @server, too. */
int redis_start(const struct redis_flags *flags, struct fm_server *server, struct redis **out);
/* Another password from the file of @flags, for redis_set_password(): refuses what that would, but
 * for want of memory. @password stays "" when there is nothing to set, as for a NULL @redis. */
int redis_read_password(const struct redis *redis, const struct redis_flags *flags,
			char password[REDIS_PASSWORD_MAX]);
/* Counts for those who AUTH from now on. Any thread; on failure the old one stays. */
int redis_set_password(struct redis *redis, const char *password);
/* Its figures, from any thread. False: there is no front end. */
bool redis_info(struct redis *redis, struct fm_resp_info *info);
/* Asks it to end, from any thread. */
void redis_stop(struct redis *redis);
/* After the server has stopped: waits for the end and frees; how it ended. NULL: 0. */
int redis_finish(struct redis *redis);

#endif
