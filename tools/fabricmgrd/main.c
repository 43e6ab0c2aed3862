// SPDX-License-Identifier: Apache-2.0
/*
 * fabricmgrd: the node daemon. Reads its flags and its configuration file, creates the pool, serves
 * until SIGTERM or SIGINT. It sees the library through fabricmgr.h only. Invariant: "ready" is
 * printed, and the ready descriptor written, once clients can attach.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "command_line.h"
#include "control.h"
#include "metrics.h"
#include "notify.h"
#include "redis.h"
#include "settings.h"

/* The folder of a socket, when it is not there. */
static void make_folder(const char *path)
{
	char folder[4096];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return;
	*slash = '\0';
	if (mkdir(folder, 0755) && errno != EEXIST)
		fm_log(FM_LOG_WARNING, FM1001 "cannot create the folder %s: %s", folder,
		       strerror(errno));
}

static void say_what_serves(const struct settings *settings, struct fm_server *server)
{
	const char *reason, *rung = fm_server_rung(server, &reason);

	fm_log(FM_LOG_INFO, FM1002 "version %s", fm_version());
	if (settings->read_from)
		fm_log(FM_LOG_INFO, FM1003 "configuration: %s", settings->read_from);
	fm_log(FM_LOG_INFO, FM1004 "memory: %s%s%s", rung, *reason ? "; not the rung above: " : "",
	       reason);
	/* As it is held, in whole chunks, which may be less than was asked for. */
	fm_log(FM_LOG_INFO, FM1005 "size: %llu MiB in chunks of %u MiB",
	       (unsigned long long)(settings->server.pool_bytes / FM_CHUNK_BYTES) *
		       (FM_CHUNK_BYTES >> 20),
	       FM_CHUNK_BYTES >> 20);
	fm_log(FM_LOG_INFO, FM1006 "socket: %s", settings->server.socket);
	for (uint32_t i = 0; i < settings->redis.n_listen; i++)
		fm_log(FM_LOG_INFO, FM1202 "redis: %s", settings->redis.listen[i]);
	fm_log(FM_LOG_INFO, FM1007 "ready");
	notify_send("READY=1\nSTATUS=serving %s", settings->server.socket);
	if (settings->ready_fd < 0)
		return;
	if (write(settings->ready_fd, "r", 1) != 1)
		fm_log(FM_LOG_WARNING, FM1008 "--ready-fd %d: %s", settings->ready_fd,
		       strerror(errno));
	close(settings->ready_fd);
}

static int serve(const struct settings *line, struct settings *settings)
{
	struct fm_server *server;
	struct redis *redis = NULL;
	struct metrics *metrics = NULL;
	struct control *control = NULL;
	int err, redis_err;

	control_block_signals();
	make_folder(settings->server.socket);
	for (uint32_t i = 0; i < settings->redis.n_listen; i++)
		if (!strncmp(settings->redis.listen[i], "unix:", 5))
			make_folder(settings->redis.listen[i] + 5);
	err = fm_server_create(&settings->server, &server);
	if (err) {
		fm_log(FM_LOG_ERROR, FM1009 "%s", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	err = redis_start(&settings->redis, server, &redis);
	if (!err)
		err = metrics_start(&settings->metrics, server, redis, &metrics);
	if (!err)
		err = control_start(&control, line, settings, server, redis, metrics);
	if (err) {
		fm_log(FM_LOG_ERROR, FM1009 "%s", fm_error_detail());
	} else {
		say_what_serves(settings, server);
		err = fm_server_run(server);
		if (err)
			fm_log(FM_LOG_ERROR, FM1010 "stopped serving: %s", fm_error_detail());
	}
	control_finish(control);
	metrics_finish(metrics);
	redis_err = redis_finish(redis);
	fm_server_destroy(server);
	return err || redis_err ? FM_EXIT_FAILED : 0;
}

/* --check: what would be used, and whether this machine has it now. */
static int check(const struct settings *settings)
{
	struct fm_server_needs needs = {.size = sizeof(needs)};
	double mebibyte = 1 << 20;

	settings_print(settings, stdout);
	if (redis_check(&settings->redis) || fm_server_check(&settings->server, &needs)) {
		fm_log(FM_LOG_ERROR, FM1011 "%s", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	printf("# memory: %s%s%s\n", needs.rung, *needs.rung_reason ? "; not the rung above: " : "",
	       needs.rung_reason);
	printf("# fits: pool %.1f MiB + tables %.1f MiB for %u blocks = %.1f MiB\n",
	       (double)needs.pool_bytes / mebibyte, (double)needs.table_bytes / mebibyte,
	       needs.entries_max, (double)(needs.pool_bytes + needs.table_bytes) / mebibyte);
	return 0;
}

static int take(void *arg, int flag, const char *value)
{
	return settings_give(arg, (uint32_t)(flag - SETTINGS_FLAG), FROM_FLAG, 0,
			     value ? value : "yes");
}

static int run(const struct fm_command *command, int argc, char **argv)
{
	struct settings line, settings;
	int status;

	if (settings_create(&line))
		return fm_usage_error(command->name);
	status = fm_command_parse(command, argc, argv, &line);
	if (status == FM_COMMAND_GO && optind < argc) {
		fm_fail(FM_ERR_INVALID, "\"%.64s\": only flags are taken here", argv[optind]);
		status = fm_usage_error(command->name);
	}
	if (status == FM_COMMAND_GO && settings_load(&line, &settings))
		status = fm_usage_error(command->name);
	if (status == FM_COMMAND_GO) {
		fm_log_set_target((enum fm_log_target)settings.log_target);
		if (settings.log_level)
			fm_log_set_level((enum fm_log_level)settings.log_level);
		status = settings.is_check ? check(&settings) : serve(&line, &settings);
		settings_destroy(&settings);
	}
	settings_destroy(&line);
	return fm_finish_output(command->name, status);
}

int main(int argc, char **argv)
{
	struct option flags[SETTINGS_MAX + 3];
	const struct fm_command command = {"fabricmgrd", ":h", flags, settings_help(), take};

	settings_flags(flags);
	fm_log_set_program(command.name);
	return run(&command, argc, argv);
}
