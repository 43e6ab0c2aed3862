// SPDX-License-Identifier: Apache-2.0
/*
 * The Redis front end's thread and password (see redis.h). It calls the library through
 * fabricmgr.h. Invariant: the password is in memory from its file to the front end's copy of it, no
 * longer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_messages.h>

#include "redis.h"
#include "settings.h"

struct redis {
	struct fm_resp *resp;
	struct fm_server *server;
	pthread_t thread;
	bool has_password;
	int result;
};

static void *serve(void *argument)
{
	struct redis *redis = argument;

	redis->result = fm_resp_run(redis->resp);
	if (redis->result)
		fm_log(FM_LOG_ERROR, FM1201 "the Redis front end stopped: %s", fm_error_detail());
	/* Not before: its last commands need the pool's answers. */
	fm_server_stop(redis->server);
	return NULL;
}

/* The file's first line. */
static int read_password(const char *path, char password[REDIS_PASSWORD_MAX])
{
	FILE *file;
	size_t length;
	int err = settings_open_file("--redis-password-file ", path, &file);

	if (err)
		return err;
	if (!fgets(password, REDIS_PASSWORD_MAX, file))
		password[0] = '\0';
	fclose(file);
	length = strcspn(password, "\r\n");
	if (!length || length == REDIS_PASSWORD_MAX - 1)
		return fm_fail(
			FM_ERR_INVALID,
			"--redis-password-file %s: its first line must be a password of 1 to "
			"%d bytes",
			path, REDIS_PASSWORD_MAX - 2);
	password[length] = '\0';
	return 0;
}

static int start_thread(struct redis *redis)
{
	/* Signals are control.c's: they are blocked by now. */
	int failed = pthread_create(&redis->thread, NULL, serve, redis);

	return failed ? fm_fail(FM_ERR_NO_MEMORY, "a thread for the Redis front end: %s",
				strerror(failed))
		      : 0;
}

/* What the flags say, but for the pool; @password is filled and becomes part of @options. */
static int make_options(const struct redis_flags *flags, char password[REDIS_PASSWORD_MAX],
			struct fm_resp_options *options)
{
	int err = 0;

	*options = (struct fm_resp_options){
		.size = sizeof(*options),
		.n_listen = flags->n_listen,
		.listen = flags->listen,
		.attach = {.size = sizeof(options->attach),
			   .name = "redis front end",
			   .tenant = flags->tenant ? flags->tenant : FM_TENANT_DEFAULT},
		.is_behind_proxy = flags->is_behind_proxy,
		.name_bytes = flags->name_bytes,
	};
	if (flags->password_file) {
		err = read_password(flags->password_file, password);
		options->password = password;
	}
	return err;
}

int redis_check(const struct redis_flags *flags)
{
	char password[REDIS_PASSWORD_MAX] = "";
	struct fm_resp_options options;
	int err = make_options(flags, password, &options);

	if (!err && flags->n_listen)
		err = fm_resp_check(&options);
	explicit_bzero(password, sizeof(password));
	return err;
}

int redis_start(const struct redis_flags *flags, struct fm_server *server, struct redis **out)
{
	char password[REDIS_PASSWORD_MAX] = "";
	struct fm_resp_options options;
	struct redis *redis;
	int err;

	*out = NULL;
	if (!flags->n_listen)
		return 0;
	redis = calloc(1, sizeof(*redis));
	if (!redis)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the Redis front end");
	redis->server = server;
	redis->has_password = flags->password_file;
	err = make_options(flags, password, &options);
	if (!err)
		err = fm_server_connect(server, &options.attach.fd);
	if (!err)
		err = fm_resp_create(&options, &redis->resp);
	explicit_bzero(password, sizeof(password));
	if (!err)
		err = start_thread(redis);
	if (err) {
		fm_resp_destroy(redis->resp);
		free(redis);
		return err;
	}
	*out = redis;
	return 0;
}

int redis_read_password(const struct redis *redis, const struct redis_flags *flags,
			char password[REDIS_PASSWORD_MAX])
{
	if (!redis || (!redis->has_password && !flags->password_file))
		return 0;
	if (!redis->has_password || !flags->password_file)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "whether a Redis front end has a password is decided at its start: "
			       "restart it");
	return read_password(flags->password_file, password);
}

int redis_set_password(struct redis *redis, const char *password)
{
	return fm_resp_set_password(redis->resp, password);
}

bool redis_info(struct redis *redis, struct fm_resp_info *info)
{
	info->size = sizeof(*info);
	return redis && !fm_resp_info(redis->resp, info);
}

void redis_stop(struct redis *redis)
{
	fm_resp_stop(redis->resp);
}

int redis_finish(struct redis *redis)
{
	int result;

	if (!redis)
		return 0;
	fm_resp_stop(redis->resp); /* the server may have ended by itself */
	pthread_join(redis->thread, NULL);
	result = redis->result;
	fm_resp_destroy(redis->resp);
	free(redis);
	return result;
}
