// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine serve`: front end, one worker of role "both" and (without --pool-socket) a pool,
 * each on a thread of this process, joined by the same socket pairs and protocols as a fleet.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fabricmgr_messages.h>

#include "embedded_pool.h"
#include "http/front_end.h"
#include "options.h"
#include "progress.h"
#include "serve.h"
#include "stop_signal.h"
#include "text/tokenizer.h"
#include "worker/worker.h"

struct serve {
	struct fm_engine_flags flags;
	struct fm_front_end_options front;
	struct fm_embedded_pool *pool;
	struct fm_model *model;
	struct fm_tokenizer *tokenizer;
	struct fm_worker_options worker;
	pthread_t thread;
	int worker_stop, front_fd;
	int worker_error;
	char worker_detail[256];
};

static const char help[] = "usage: fabric-engine serve -m FILE [OPTION…]\n"
			   "\n" FM_FRONT_END_OPTIONS_HELP FM_ENGINE_OPTIONS_HELP;

static void *work(void *argument)
{
	struct serve *serve = argument;

	serve->worker_error = fm_worker_run(&serve->worker);
	if (serve->worker_error) {
		snprintf(serve->worker_detail, sizeof(serve->worker_detail), "%s",
			 fm_error_detail());
		close(serve->worker.fd); /* not taken: lets the front end see the end */
	}
	return NULL;
}

static int start_worker(struct serve *serve)
{
	struct fm_attach_options attach = {.size = sizeof(attach),
					   .fd = -1,
					   .socket = serve->flags.pool_socket,
					   .name = "serve"};
	sigset_t all, old;
	int pair[2], err = 0;

	if (!serve->flags.pool_socket) {
		err = fm_embedded_pool_start(serve->flags.pool_bytes, &serve->pool);
		if (!err)
			err = fm_embedded_pool_connect(serve->pool, &attach.fd);
	}
	if (err)
		return err;
	serve->worker_stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (serve->worker_stop < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return fm_fail(FM_ERR_IO, "serve: %s", strerror(errno));
	serve->front_fd = pair[0];
	serve->worker = (struct fm_worker_options){
		.role = "both",
		.fd = pair[1],
		.stop_fd = serve->worker_stop,
		.engine = {.model = serve->model,
			   .tokenizer = serve->tokenizer,
			   .attach = attach,
			   .max_batch = serve->flags.max_batch,
			   .token_budget = serve->flags.chunk < serve->flags.max_batch
						   ? serve->flags.max_batch
						   : serve->flags.chunk,
			   .logits_log = serve->flags.logits_log},
	};
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&serve->thread, NULL, work, serve);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err ? fm_fail(FM_ERR_IO, "serve: no thread: %s", strerror(err)) : 0;
}

static int serve_all(struct serve *serve)
{
	uint64_t one = 1;
	int err;

	fm_progress("loading %s …", serve->flags.model);
	err = fm_tokenizer_open(serve->flags.model, &serve->tokenizer);
	if (!err)
		err = fm_model_open(serve->flags.model, &serve->flags.model_options, &serve->model);
	fm_progress_end();
	if (!err)
		err = start_worker(serve);
	if (!err) {
		serve->front.worker_fds = &serve->front_fd;
		serve->front.n_worker_fds = 1;
		serve->front.model_path = serve->flags.model;
		serve->front.pool_socket = serve->flags.pool_socket;
		err = fm_front_end_run(&serve->front);
		if (write(serve->worker_stop, &one, sizeof(one)) < 0)
			fm_log(FM_LOG_ERROR, FM2002 "serve: %s", strerror(errno));
		pthread_join(serve->thread, NULL);
		/* Not that the worker is gone, but why. */
		if (serve->worker_error)
			err = fm_fail(serve->worker_error, "%s", serve->worker_detail);
	}
	fm_embedded_pool_stop(serve->pool);
	fm_tokenizer_destroy(serve->tokenizer);
	fm_model_close(serve->model);
	return err;
}

static int take(void *arg, int flag, const char *value)
{
	struct serve *serve = arg;
	int taken = fm_engine_flags_take(&serve->flags, flag, value);

	if (!taken)
		taken = fm_front_end_flag_take(&serve->front, flag, value);
	return taken < 0 ? taken : 0;
}

int fm_serve_main(int argc, char **argv)
{
	static const struct option long_options[] = {
		FM_ENGINE_LONG_OPTIONS, FM_FRONT_END_LONG_OPTIONS, {0}};
	static const struct fm_command command = {"fabric-engine serve", ":m:t:h", long_options,
						  help, take};
	struct serve serve = {.worker_stop = -1};
	int status, err;

	fm_engine_flags_init(&serve.flags);
	fm_front_end_options_init(&serve.front);
	status = fm_command_parse(&command, argc, argv, &serve);
	if (status != FM_COMMAND_GO)
		return status;
	if (fm_engine_flags_finish(&serve.flags, argc, argv) ||
	    fm_front_end_options_check(&serve.front))
		return fm_usage_error(command.name);
	serve.front.stop_fd = fm_stop_signal_fd();
	err = serve.front.stop_fd < 0 ? serve.front.stop_fd : serve_all(&serve);
	if (err)
		fm_log(FM_LOG_ERROR, FM2002 "serve: %s", fm_error_detail());
	return err ? FM_EXIT_FAILED : 0;
}
