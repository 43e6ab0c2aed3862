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
	struct fm_server *server;
	struct redis *redis;
	struct metrics *metrics;
	struct fm_pool *pool; /* attached when a watchdog waits */
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

/* The values of @row change places, and so does whose they are. */
static void swap_values(struct settings *a, struct settings *b, uint32_t row)
{
	__typeof__(a->given[row]) kept = a->given[row];

	a->given[row] = b->given[row];
	b->given[row] = kept;
}

/* Names what a reload would like to change and cannot; how many. */
static uint32_t name_restarts(const struct control *control, const struct settings *next)
{
	uint32_t n = 0;

	for (uint32_t row = 0; row < settings_count; row++) {
		const struct setting *setting = &settings_table[row];

		if (!setting->section || setting->is_live ||
		    settings_are_equal(control->settings, next, row))
			continue;
		fm_log(FM_LOG_WARNING, FM1301 "reload: [%s] %s has changed: it needs a restart",
		       setting->section, setting->key);
		n++;
	}
	return n;
}

static int reload(struct control *control)
{
	struct settings next;
	uint32_t n_changed = 0;
	int err = settings_load(control->line, &next);

	/* First what may fail: a reload that does has changed nothing. */
	if (!err) {
		err = redis_set_password(control->redis, &next.redis);
		if (err)
			settings_destroy(&next);
	}
	if (err) {
		fm_log(FM_LOG_ERROR, FM1302 "reload: nothing is changed: %s", fm_error_detail());
		return err;
	}
	fm_log_set_level(next.log_level);
	control->settings->log_level = next.log_level;
	control->settings->redis.password_file = next.redis.password_file;
	for (uint32_t row = 0; row < settings_count; row++) {
		if (!settings_table[row].is_live)
			continue;
		n_changed += !settings_are_equal(control->settings, &next, row);
		swap_values(control->settings, &next, row);
	}
	name_restarts(control, &next);
	fm_log(FM_LOG_INFO, FM1303 "reload: %s read, %u settings changed",
	       next.read_from ? next.read_from : "no file", n_changed);
	settings_destroy(&next);
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

static int ask_pool(struct control *control, struct fm_pool_info *info)
{
	struct fm_attach_options options = {
		.size = sizeof(options),
		.flags = FM_ATTACH_READ_ONLY,
		.leases = 1,
		.name = "watchdog",
	};
	int err = 0;

	if (!control->pool) {
		err = fm_server_connect(control->server, &options.fd);
		if (!err)
			err = fm_pool_attach(&options, &control->pool);
		if (err)
			control->pool = NULL;
	}
	*info = (struct fm_pool_info){.size = sizeof(*info)};
	return err ? err : fm_pool_info(control->pool, info);
}

static void tell_watchdog(struct control *control)
{
	struct fm_pool_info info;

	if (!ask_pool(control, &info)) {
		notify_send("WATCHDOG=1\nSTATUS=%s%llu of %llu MiB used, %u clients",
			    info.is_draining ? "draining; " : "",
			    (unsigned long long)info.used_bytes >> 20,
			    (unsigned long long)info.total_bytes >> 20, (uint32_t)info.clients);
		return;
	}
	fm_log(FM_LOG_WARNING, FM1014 "the pool does not answer, and the watchdog is not told: %s",
	       fm_error_detail());
	fm_pool_detach(control->pool);
	control->pool = NULL;
}

/* First those who ask the pool. */
static void stop(struct control *control)
{
	notify_send("STOPPING=1");
	metrics_stop(control->metrics);
	if (control->redis)
		redis_stop(control->redis); /* and it the server */
	else
		fm_server_stop(control->server);
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
		  struct fm_server *server, struct redis *redis, struct metrics *metrics)
{
	struct control *control = calloc(1, sizeof(*control));
	int failed;

	if (!control)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the thread of signals");
	*control = (struct control){.line = line,
				    .settings = settings,
				    .server = server,
				    .redis = redis,
				    .metrics = metrics};
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
	fm_pool_detach(control->pool);
	free(control);
}
