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
#include <sys/resource.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "command_line.h"
#include "control.h"
#include "groups.h"
#include "metrics.h"
#include "notify.h"
#include "settings.h"

/* Port 0 was any free one: the one that it is. */
static void say_redis(const struct pool_run *run, const char *mark)
{
	const struct redis_flags *flags = &run->settings->redis;
	struct fm_resp_info info = {.size = sizeof(info)};
	bool is_known = redis_info(run->redis, &info);

	for (uint32_t i = 0; i < flags->n_listen; i++) {
		const char *where = flags->listen[i], *colon = strrchr(where, ':');

		if (is_known && colon && info.ports[i])
			fm_log(FM_LOG_INFO, FM1202 "redis: %.*s:%u%s", (int)(colon - where), where,
			       info.ports[i], mark);
		else
			fm_log(FM_LOG_INFO, FM1202 "redis: %s%s", where, mark);
	}
}

/* One sharing group; @mark says which, where there are several. */
static void say_pool(const struct pool_run *run, const char *mark)
{
	const struct settings *settings = run->settings;
	const char *reason, *rung = fm_server_rung(run->server, &reason);

	fm_log(FM_LOG_INFO, FM1004 "memory: %s%s%s%s", rung,
	       *reason ? "; not the rung above: " : "", reason, mark);
	/* As it is held, in whole chunks, which may be less than was asked for. */
	fm_log(FM_LOG_INFO, FM1005 "size: %llu MiB in chunks of %u MiB%s",
	       (unsigned long long)(settings->server.pool_bytes / FM_CHUNK_BYTES) *
		       (FM_CHUNK_BYTES >> 20),
	       FM_CHUNK_BYTES >> 20, mark);
	fm_log(FM_LOG_INFO, FM1006 "socket: %s%s", settings->server.socket, mark);
	say_redis(run, mark);
}

static void say_what_serves(const struct settings *settings, const struct groups *groups)
{
	char mark[64] = "";

	fm_log(FM_LOG_INFO, FM1002 "version %s", fm_version());
	if (settings->read_from)
		fm_log(FM_LOG_INFO, FM1003 "configuration: %s", settings->read_from);
	for (uint32_t i = 0; i < groups->n; i++) {
		if (i)
			snprintf(mark, sizeof(mark), " (group %s)", groups->list[i].name);
		say_pool(&groups->list[i], mark);
	}
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
	struct groups groups;
	struct metrics *metrics = NULL;
	struct control *control = NULL;
	struct rlimit files;
	int err, redis_err;

	control_block_signals();
	/* Each client costs some; without the service's own limit a shell's is a few hundred. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	/* All of them together; each one looks again for itself. */
	err = settings->sharing.n_groups > 1 ? groups_check(settings, NULL) : 0;
	if (err) {
		fm_log(FM_LOG_ERROR, FM1009 "%s", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	err = groups_start(&groups, settings);
	if (!err)
		err = metrics_start(&settings->metrics, &settings->metrics_users, &groups,
				    &metrics);
	if (!err)
		err = control_start(&control, line, settings, &groups, metrics);
	if (err) {
		fm_log(FM_LOG_ERROR, FM1009 "%s", fm_error_detail());
	} else {
		say_what_serves(settings, &groups);
		err = groups_run(&groups);
	}
	control_finish(control);
	metrics_finish(metrics);
	redis_err = groups_finish(&groups);
	return err || redis_err ? FM_EXIT_FAILED : 0;
}

/* --check: what would be used, and whether this machine has it now. */
static int check(struct settings *settings)
{
	settings_print(settings, stdout);
	if (groups_check(settings, stdout)) {
		fm_log(FM_LOG_ERROR, FM1011 "%s", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	return 0;
}

/* --forget: an ended daemon's memory, for good. */
static int forget(const struct settings *settings)
{
	struct fm_server_options options = settings->server;
	int groups;

	options.instance = options.socket;
	groups = fm_server_forget(&options);
	if (groups < 0) {
		fprintf(stderr, "fabricmgrd: %s\n", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	printf("given back: the memory of %d groups\n", groups);
	return 0;
}

static int take(void *arg, int flag, const char *value)
{
	return settings_give(arg, (uint32_t)(flag - SETTINGS_FLAG), FROM_FLAG, 0,
			     value ? value : "yes");
}

/* --help has no sections and keys; the man page has. */
static int configuration_error(void)
{
	fprintf(stderr, "fabricmgrd: %s; see: man fabricmgrd\n", fm_error_detail());
	return FM_EXIT_USAGE;
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
		status = configuration_error();
	if (status == FM_COMMAND_GO) {
		fm_log_set_target((enum fm_log_target)settings.log_target);
		if (settings.log_level)
			fm_log_set_level((enum fm_log_level)settings.log_level);
		status = settings.is_forget  ? forget(&settings)
			 : settings.is_check ? check(&settings)
					     : serve(&line, &settings);
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
