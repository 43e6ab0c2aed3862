// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine router`: options, signals, and the front end. Called by main only.
 * Invariant: SIGINT and SIGTERM end it in order, with every client answered (front_end.h).
 */
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "options.h"
#include "router.h"
#include "stop_signal.h"

static const char help[] =
	"usage: fabric-engine router -m MODEL --worker ADDRESS... [options]\n"
	"\n"
	"The front door of a fleet: an OpenAI-compatible HTTP server that gives prompts to "
	"prefill\n"
	"workers and answers to decode workers.\n"
	"\n"
	"  -m, --model FILE      the workers' GGUF file: tokenizer and chat template are read from "
	"it\n"
	"      --worker ADDRESS  unix:/path or 127.0.0.1:port; repeat for each worker (at most "
	"64)\n"
	"      --pool-socket PATH  the node daemon's socket, to see what of a prompt is cached\n"
	"      --bypass-tokens N so many uncached tokens are computed by the decode worker "
	"(256)\n"
	"      --bypass-ratio R  or that share of the prompt, below 2048 tokens "
	"(0.3)\n" FM_FRONT_END_OPTIONS_HELP "  -h, --help; --version\n"
	"\n"
	"Prints \"listening on http://HOST:PORT\", then \"ready\" when a worker can answer.\n";

enum { OPT_WORKER = 256, OPT_POOL, OPT_TOKENS, OPT_RATIO };

static const struct option long_options[] = {
	{"model", required_argument, NULL, 'm'},
	{"worker", required_argument, NULL, OPT_WORKER},
	{"pool-socket", required_argument, NULL, OPT_POOL},
	{"bypass-tokens", required_argument, NULL, OPT_TOKENS},
	{"bypass-ratio", required_argument, NULL, OPT_RATIO},
	FM_FRONT_END_LONG_OPTIONS,
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{NULL, 0, NULL, 0},
};

struct router {
	struct fm_front_end_options options;
	const char *workers[FM_FRONT_END_WORKERS_MAX];
};

static int take(void *arg, int flag, const char *value)
{
	struct router *router = arg;
	struct fm_front_end_options *options = &router->options;
	float ratio = 0;
	int err;

	switch (flag) {
	case 'm':
		options->model_path = value;
		return 0;
	case OPT_WORKER:
		if (options->n_workers == FM_FRONT_END_WORKERS_MAX)
			return fm_fail(FM_ERR_LIMIT, "--worker %s: at most %d workers may be given",
				       value, FM_FRONT_END_WORKERS_MAX);
		for (size_t i = 0; i < options->n_workers; i++)
			if (!strcmp(router->workers[i], value))
				return fm_fail(FM_ERR_INVALID, "--worker %s is given twice", value);
		router->workers[options->n_workers++] = value;
		return 0;
	case OPT_POOL:
		options->pool_socket = value;
		return 0;
	case OPT_TOKENS:
		return fm_parse_u32("--bypass-tokens", value, 0, INT32_MAX,
				    &options->bypass_tokens);
	case OPT_RATIO:
		err = fm_parse_float("--bypass-ratio", value, 0, 1, &ratio);
		options->bypass_ratio = (double)ratio;
		return err;
	default:
		err = fm_front_end_flag_take(options, flag, value);
		return err < 0 ? err : 0;
	}
}

static int check(const struct router *router, int argc, char **argv)
{
	const struct fm_front_end_options *options = &router->options;

	if (optind < argc)
		return fm_fail(FM_ERR_INVALID, "\"%.64s\": only flags are taken here",
			       argv[optind]);
	if (!options->model_path)
		return fm_fail(FM_ERR_INVALID, "-m FILE is missing: name the workers' GGUF file");
	if (!options->n_workers)
		return fm_fail(FM_ERR_INVALID, "--worker ADDRESS is missing: name at least one "
					       "worker, unix:/path or 127.0.0.1:port");
	return fm_front_end_options_check(options);
}

int fm_router_main(int argc, char **argv)
{
	static const struct fm_command command = {"fabric-engine router", ":m:h", long_options,
						  help, take};
	struct router router;
	int status, err;

	fm_front_end_options_init(&router.options);
	router.options.workers = router.workers;
	status = fm_command_parse(&command, argc, argv, &router);
	if (status != FM_COMMAND_GO)
		return status;
	if (check(&router, argc, argv))
		return fm_usage_error(command.name);
	router.options.stop_fd = fm_stop_signal_fd();
	err = router.options.stop_fd < 0 ? router.options.stop_fd
					 : fm_front_end_run(&router.options);
	if (err)
		fm_log(FM_LOG_ERROR, FM2003 "%s", fm_error_detail());
	return err ? FM_EXIT_FAILED : 0;
}
