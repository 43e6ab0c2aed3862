// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine worker`: flags to fm_worker_run(). Loads model and tokenizer, then serves until
 * SIGINT or SIGTERM.
 */
#include <stdio.h>

#include <fabricmgr_messages.h>

#include "options.h"
#include "progress.h"
#include "stop_signal.h"
#include "text/tokenizer.h"
#include "worker/address.h"
#include "worker/worker.h"
#include "worker_command.h"

struct command_line {
	struct fm_engine_flags flags;
	struct fm_worker_options options;
};

static const char help[] =
	"usage: fabric-engine worker -m FILE --listen ADDRESS [--role ROLE] [OPTION…]\n\n"
	"      --role ROLE       prefill, decode or both (default)\n"
	"      --listen ADDRESS  unix:/path or 127.0.0.1:port; routers connect "
	"here\n" FM_ENGINE_OPTIONS_HELP;

static int serve(const struct fm_engine_flags *flags, struct fm_worker_options *options)
{
	struct fm_model *model = NULL;
	struct fm_tokenizer *tokenizer = NULL;
	int err;

	fm_progress("loading %s …", flags->model);
	err = fm_tokenizer_open(flags->model, &tokenizer);
	if (!err)
		err = fm_model_open(flags->model, &flags->model_options, &model);
	fm_progress_end();
	if (!err) {
		const struct fm_model_info *info = fm_model_info(model);

		printf("%s worker: %s, %u layers, %s, %s\n", options->role, info->name,
		       info->n_layers, info->numerics_id, info->isa);
		options->engine.model = model;
		options->engine.tokenizer = tokenizer;
		err = fm_worker_run(options);
	}
	fm_tokenizer_destroy(tokenizer);
	fm_model_close(model);
	return err;
}

static int take(void *arg, int flag, const char *value)
{
	static const char *const roles[] = {"prefill", "decode", "both"};
	struct command_line *line = arg;
	int taken = fm_engine_flags_take(&line->flags, flag, value), role = 0;

	if (taken)
		return taken < 0 ? taken : 0;
	if (flag == 'l') {
		line->options.listen = value;
		return 0;
	}
	taken = fm_parse_name("--role", value, roles, 3, &role);
	line->options.role = roles[role];
	return taken;
}

static int check(const struct command_line *line, int argc, char **argv)
{
	struct sockaddr_storage address;
	socklen_t len;
	int err = fm_engine_flags_finish(&line->flags, argc, argv);

	if (!err && !line->options.listen)
		err = fm_fail(FM_ERR_INVALID, "--listen ADDRESS is missing: give unix:/path or "
					      "127.0.0.1:port, where routers connect");
	return err ? err
		   : fm_worker_address_parse("--listen", line->options.listen, &address, &len);
}

int fm_worker_main(int argc, char **argv)
{
	static const struct option long_options[] = {FM_ENGINE_LONG_OPTIONS,
						     {"role", required_argument, NULL, 'r'},
						     {"listen", required_argument, NULL, 'l'},
						     {0}};
	static const struct fm_command command = {"fabric-engine worker", ":m:t:h", long_options,
						  help, take};
	struct command_line line = {.options = {.role = "both", .fd = -1, .say_ready = true}};
	struct fm_worker_options *options = &line.options;
	const struct fm_engine_flags *flags = &line.flags;
	int status, err;

	fm_engine_flags_init(&line.flags);
	status = fm_command_parse(&command, argc, argv, &line);
	if (status != FM_COMMAND_GO)
		return status;
	if (check(&line, argc, argv))
		return fm_usage_error(command.name);
	options->stop_fd = fm_stop_signal_fd();
	options->engine = (struct fm_engine_options){
		.attach = {.size = sizeof(options->engine.attach),
			   .fd = -1,
			   .socket = flags->pool_socket,
			   .name = options->role},
		.max_batch = flags->max_batch,
		.token_budget = flags->chunk < flags->max_batch ? flags->max_batch : flags->chunk,
		.logits_log = flags->logits_log,
	};
	err = options->stop_fd < 0 ? options->stop_fd : serve(flags, options);
	if (err)
		fm_log(FM_LOG_ERROR, FM2004 "worker: %s", fm_error_detail());
	return err ? FM_EXIT_FAILED : 0;
}
