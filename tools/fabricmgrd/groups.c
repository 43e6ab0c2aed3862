// SPDX-License-Identifier: Apache-2.0
/*
 * See groups.h. The first pool is served by the thread that calls groups_run(), each other one by
 * one of its own. Invariant: a front end ends before its pool, and a pool before its thread is
 * joined.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <fabricmgr_messages.h>

#include "groups.h"

/* ---- before they run ---- */

/* The pool of group @number and what those before it take, which is added to @other and @huge. */
static int check_one(struct settings *settings, uint32_t number, uint64_t *other, uint64_t *huge,
		     FILE *out)
{
	struct fm_tenant_options tenants[SHARING_TENANTS_MAX];
	struct fm_server_needs needs = {.size = sizeof(needs)};
	struct fm_server_options options;
	const double mebibyte = 1 << 20;
	char name[48] = "";
	int err;

	sharing_options(settings, number, &options, tenants);
	options.flags |= FM_SERVER_KEEP;
	options.other_bytes = *other;
	options.other_huge_bytes = *huge;
	err = redis_check(&settings->sharing.groups[number].settings->redis);
	if (!err)
		err = fm_server_check(&options, &needs);
	if (err)
		return err;
	if (!strcmp(needs.rung, "memfd"))
		*other += needs.pool_bytes;
	else
		*huge += needs.pool_bytes;
	*other += needs.table_bytes;
	if (!out)
		return 0;
	if (number)
		snprintf(name, sizeof(name), "group %s: ", settings->sharing.groups[number].name);
	fprintf(out, "# %smemory: %s%s%s\n", name, needs.rung,
		*needs.rung_reason ? "; not the rung above: " : "", needs.rung_reason);
	fprintf(out, "# %skept by: %s%s%s\n", name, needs.kept_by, *needs.kept_reason ? "; " : "",
		needs.kept_reason);
	fprintf(out, "# %sfits: pool %.1f MiB + tables %.1f MiB for %u blocks%s = %.1f MiB\n", name,
		(double)needs.pool_bytes / mebibyte, (double)needs.table_bytes / mebibyte,
		needs.entries_max, options.nvme_path ? " and those on NVMe" : "",
		(double)(needs.pool_bytes + needs.table_bytes) / mebibyte);
	return 0;
}

int groups_check(struct settings *settings, FILE *out)
{
	uint64_t other = 0, huge = 0;
	uint32_t n = settings->sharing.n_groups;

	for (uint32_t i = 0; i < n; i++) {
		int err = check_one(settings, i, &other, &huge, out);

		if (err)
			return err;
	}
	if (out && n > 1)
		fprintf(out, "# %u groups together: %.1f MiB\n", n,
			(double)(other + huge) / (1 << 20));
	return 0;
}

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

static int start_one(struct groups *groups, struct settings *settings, uint32_t number)
{
	struct fm_tenant_options tenants[SHARING_TENANTS_MAX];
	struct pool_run *run = &groups->list[number];
	struct fm_server_options options;
	const struct redis_flags *redis;
	int err;

	*run = (struct pool_run){
		.name = settings->sharing.groups[number].name,
		.groups = groups,
		.settings = settings->sharing.groups[number].settings,
	};
	sharing_options(settings, number, &options, tenants);
	/* What those before it will fill; their tables are there already. */
	for (uint32_t i = 0; i < number; i++) {
		const char *reason, *rung = fm_server_rung(groups->list[i].server, &reason);

		*(strcmp(rung, "memfd") ? &options.other_huge_bytes : &options.other_bytes) +=
			groups->list[i].settings->server.pool_bytes;
	}
	redis = &run->settings->redis;
	make_folder(options.socket);
	for (uint32_t i = 0; i < redis->n_listen; i++)
		if (!strncmp(redis->listen[i], "unix:", 5))
			make_folder(redis->listen[i] + 5);
	options.flags |= FM_SERVER_KEEP;
	err = fm_server_create(&options, &run->server);
	if (!err)
		err = redis_start(redis, run->server, &run->redis);
	return err;
}

int groups_start(struct groups *groups, struct settings *settings)
{
	int err = 0;

	*groups = (struct groups){0};
	while (!err && groups->n < settings->sharing.n_groups)
		err = start_one(groups, settings, groups->n++);
	return err;
}

/* ---- while they run ---- */

static void serve(struct pool_run *run)
{
	run->err = fm_server_run(run->server);
	if (run->err)
		fm_log(FM_LOG_ERROR, FM1010 "stopped serving: %s", fm_error_detail());
	groups_stop(run->groups);
}

static void *serve_on_thread(void *argument)
{
	serve(argument);
	return NULL;
}

int groups_run(struct groups *groups)
{
	int err = 0;

	for (uint32_t i = 1; i < groups->n && !err; i++) {
		struct pool_run *run = &groups->list[i];

		err = pthread_create(&run->thread, NULL, serve_on_thread, run);
		run->has_thread = !err;
		if (err) {
			fm_log(FM_LOG_ERROR, FM1010 "no thread for group %s: %s", run->name,
			       strerror(err));
			groups_stop(groups);
		}
	}
	serve(&groups->list[0]);
	for (uint32_t i = 0; i < groups->n; i++) {
		struct pool_run *run = &groups->list[i];

		if (run->has_thread)
			pthread_join(run->thread, NULL);
		run->has_thread = false;
		if (!err)
			err = run->err;
	}
	return err;
}

void groups_stop(struct groups *groups)
{
	for (uint32_t i = 0; i < groups->n; i++) {
		struct pool_run *run = &groups->list[i];

		if (run->redis)
			redis_stop(run->redis); /* and it the server */
		else if (run->server)
			fm_server_stop(run->server);
	}
}

int groups_finish(struct groups *groups)
{
	int err = 0;

	for (uint32_t i = 0; i < groups->n; i++) {
		int ended = redis_finish(groups->list[i].redis);

		if (!err)
			err = ended;
		fm_server_destroy(groups->list[i].server);
	}
	groups->n = 0;
	return err;
}
