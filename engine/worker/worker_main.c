// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine worker`: flags to fm_worker_run().
 */
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "stop_signal.h"
#include "text/tokenizer.h"
#include "worker/worker.h"

static void usage(FILE *out)
{
	fputs("usage: fabric-engine worker -m FILE --listen ADDRESS [--role ROLE] [OPTION…]\n\n"
	      "      --role ROLE       prefill, decode or both (default)\n"
	      "      --listen ADDRESS  unix:/path or 127.0.0.1:port; routers connect "
	      "here\n" FM_ENGINE_OPTIONS_HELP,
	      out);
}

static int serve(const struct fm_engine_flags *flags, struct fm_worker_options *options)
{
	struct fm_model *model = NULL;
	struct fm_tokenizer *tokenizer = NULL;
	int err;

	err = fm_model_open(flags->model, &flags->model_options, &model);
	if (!err)
		err = fm_tokenizer_create(fm_model_gguf(model), &tokenizer);
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

int fm_worker_main(int argc, char **argv)
{
	static const struct option long_options[] = {FM_ENGINE_LONG_OPTIONS,
						     {"role", required_argument, NULL, 'r'},
						     {"listen", required_argument, NULL, 'l'},
						     {0}};
	struct fm_worker_options options = {.role = "both", .fd = -1, .say_ready = true};
	struct fm_engine_flags flags;
	int option, err = 0;

	fm_engine_flags_init(&flags);
	while (!err && (option = getopt_long(argc, argv, "m:t:h", long_options, NULL)) != -1) {
		int taken = fm_engine_flags_take(&flags, option, optarg);

		if (taken < 0)
			err = taken;
		else if (option == 'h') {
			usage(stdout);
			return 0;
		} else if (option == 'r')
			options.role = optarg;
		else if (option == 'l')
			options.listen = optarg;
		else if (!taken) {
			usage(stderr);
			return 2;
		}
	}
	if (!err && strcmp(options.role, "prefill") && strcmp(options.role, "decode") &&
	    strcmp(options.role, "both"))
		err = fm_fail(FM_ERR_INVALID, "--role %s: give prefill, decode or both",
			      options.role);
	if (!err && (!flags.model || !options.listen))
		err = fm_fail(FM_ERR_INVALID, "%s is missing",
			      flags.model ? "--listen" : "-m FILE");
	if (err) {
		fprintf(stderr, "fabric-engine worker: %s\n", fm_error_detail());
		usage(stderr);
		return 2;
	}
	options.stop_fd = fm_stop_signal_fd();
	options.engine = (struct fm_engine_options){
		.attach = {.size = sizeof(options.engine.attach),
			   .fd = -1,
			   .socket = flags.pool_socket,
			   .name = options.role},
		.max_batch = flags.max_batch,
		.token_budget = flags.chunk < flags.max_batch ? flags.max_batch : flags.chunk,
		.logits_log = flags.logits_log,
	};
	err = options.stop_fd < 0 ? options.stop_fd : serve(&flags, &options);
	if (err)
		fm_log(FM_LOG_ERROR, "worker: %s", fm_error_detail());
	return err ? 1 : 0;
}
