// SPDX-License-Identifier: Apache-2.0
/*
 * See control.h. The thread sleeps in sigtimedwait(); it calls the server and the front end through
 * calls that any thread may make, and asks the pool as its client before it tells the watchdog.
 * Invariant: what is in use stands in control->settings, also after a reload.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fabricmgr_messages.h>

#include "control.h"
#include "notify.h"

struct control {
	const struct settings *line;
	struct settings *settings;
	struct groups *groups;
	struct metrics *metrics;
	struct fm_pool *pools[SHARING_GROUPS_MAX]; /* attached when a watchdog waits */
	pthread_t thread;
	_Atomic bool is_ending; /* set before the signal that wakes the thread */
};

static void our_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
}

void control_block_signals(void)
{
	sigset_t set;

	our_signals(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* The settings of a front end that stand in @next; NULL: its group does not. */
static const struct redis_flags *redis_of(const struct settings *next, const struct pool_run *run)
{
	for (uint32_t i = 0; i < next->sharing.n_groups; i++)
		if (!strcmp(run->name, next->sharing.groups[i].name))
			return &next->sharing.groups[i].settings->redis;
	return NULL;
}

/* The passwords of the front ends; a group that is new has none. All are read before one is set. */
static int reload_passwords(struct control *control, const struct settings *next)
{
	char passwords[SHARING_GROUPS_MAX][REDIS_PASSWORD_MAX] = {{0}};
	struct groups *groups = control->groups;
	int err = 0;

	for (uint32_t i = 0; i < groups->n && !err; i++) {
		const struct redis_flags *flags = redis_of(next, &groups->list[i]);

		if (flags)
			err = redis_read_password(groups->list[i].redis, flags, passwords[i]);
	}
	for (uint32_t i = 0; i < groups->n && !err; i++)
		if (*passwords[i])
			err = redis_set_password(groups->list[i].redis, passwords[i]);
	explicit_bzero(passwords, sizeof(passwords));
	return err;
}

static void reload_tenants(struct control *control)
{
	struct fm_tenant_options tenants[SHARING_TENANTS_MAX];
	struct fm_server_options options;

	for (uint32_t i = 0; i < control->groups->n; i++) {
		sharing_options(control->settings, i, &options, tenants);
		if (fm_server_set_tenants(control->groups->list[i].server, &options))
			fm_log(FM_LOG_ERROR, FM1302 "reload: group %s keeps its quotas: %s",
			       control->groups->list[i].name, fm_error_detail());
	}
}

static int reload(struct control *control)
{
	struct settings *next = calloc(1, sizeof(*next));
	uint32_t n_changed;
	int err = next ? settings_load(control->line, next)
		       : fm_fail(FM_ERR_NO_MEMORY, "no memory for the settings");

	/* First what may fail: a reload that does has changed nothing. */
	if (!err) {
		err = reload_passwords(control, next);
		if (err)
			settings_destroy(next);
	}
	if (err) {
		fm_log(FM_LOG_ERROR, FM1302 "reload: nothing is changed: %s", fm_error_detail());
		free(next);
		return err;
	}
	n_changed = settings_take_live(control->settings, next, NULL);
	n_changed += sharing_reload(control->settings, next);
	fm_log_set_level((enum fm_log_level)control->settings->log_level);
	reload_tenants(control);
	fm_log(FM_LOG_INFO, FM1303 "reload: %s read, %u settings changed",
	       next->read_from ? next->read_from : "no file", n_changed);
	settings_destroy(next);
	free(next);
	return 0;
}

static void on_hangup(struct control *control)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	notify_send("RELOADING=1\nMONOTONIC_USEC=%lld",
		    (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
	notify_send(reload(control) ? "READY=1\nSTATUS=the last reload was refused (FM1302)"
				    : "READY=1\nSTATUS=the configuration was read again");
}

/* ---- the watchdog: told of only when the serving thread has answered ---- */

static int ask_pool(struct control *control, uint32_t number, struct fm_pool_info *info)
{
	struct fm_pool **pool = &control->pools[number];
	struct fm_attach_options options = {
		.size = sizeof(options),
		.flags = FM_ATTACH_READ_ONLY,
		.leases = 1,
		.name = "watchdog",
		.tenant = FM_TENANT_DEFAULT,
	};
	int err = 0;

	if (!*pool) {
		err = fm_server_connect(control->groups->list[number].server, &options.fd);
		if (!err)
			err = fm_pool_attach(&options, pool);
		if (err)
			*pool = NULL;
	}
	*info = (struct fm_pool_info){.size = sizeof(*info)};
	return err ? err : fm_pool_info(*pool, info);
}

static void tell_watchdog(struct control *control)
{
	uint64_t used = 0, total = 0;
	uint32_t clients = 0;
	bool is_draining = false;

	for (uint32_t i = 0; i < control->groups->n; i++) {
		struct fm_pool_info info;

		if (ask_pool(control, i, &info)) {
			fm_log(FM_LOG_WARNING,
			       FM1014 "the pool does not answer, and the watchdog is not told: %s",
			       fm_error_detail());
			fm_pool_detach(control->pools[i]);
			control->pools[i] = NULL;
			return;
		}
		used += info.used_bytes;
		total += info.total_bytes;
		clients += info.clients;
		is_draining |= info.is_draining;
	}
	notify_send("WATCHDOG=1\nSTATUS=%s%llu of %llu MiB used, %u clients",
		    is_draining ? "draining; " : "", (unsigned long long)used >> 20,
		    (unsigned long long)total >> 20, clients);
}

/* First those who ask the pool. */
static void stop(struct control *control)
{
	notify_send("STOPPING=1");
	metrics_stop(control->metrics);
	groups_stop(control->groups);
}

static void *serve(void *argument)
{
	struct control *control = argument;
	/* Thrice in its time, since an answer of the pool may take a part of it. */
	uint64_t pause = notify_watchdog_ns() / 3;
	struct timespec wait = {(time_t)(pause / 1000000000), (long)(pause % 1000000000)};
	bool is_stopping = false;
	sigset_t set;

	our_signals(&set);
	for (;;) {
		int number = sigtimedwait(&set, NULL, pause ? &wait : NULL);

		if (atomic_load(&control->is_ending))
			return NULL;
		if (number == SIGHUP) {
			on_hangup(control);
		} else if (number > 0) {
			is_stopping = true;
			stop(control);
		} else if (pause && errno == EAGAIN && !is_stopping) {
			tell_watchdog(control);
		}
	}
}

int control_start(struct control **out, const struct settings *line, struct settings *settings,
		  struct groups *groups, struct metrics *metrics)
{
	struct control *control = calloc(1, sizeof(*control));
	int failed;

	if (!control)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the thread of signals");
	*control = (struct control){
		.line = line, .settings = settings, .groups = groups, .metrics = metrics};
	failed = pthread_create(&control->thread, NULL, serve, control);
	if (failed) {
		free(control);
		return fm_fail(FM_ERR_NO_MEMORY, "a thread for signals: %s", strerror(failed));
	}
	*out = control;
	return 0;
}

void control_finish(struct control *control)
{
	if (!control)
		return;
	atomic_store(&control->is_ending, true);
	pthread_kill(control->thread, SIGTERM);
	pthread_join(control->thread, NULL);
	for (uint32_t i = 0; i < control->groups->n; i++)
		fm_pool_detach(control->pools[i]);
	free(control);
}
