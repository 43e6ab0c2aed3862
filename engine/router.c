// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine router`: options, signals, and the front end. Called by main only.
 * Invariant: SIGINT and SIGTERM end it in order, with every client answered.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "http/front_end.h"
#include "router.h"

static const char help[] =
	"usage: fabric-engine router -m MODEL --worker ADDRESS... [options]\n"
	"\n"
	"The front door of a fleet: an OpenAI-compatible HTTP server that gives prompts to "
	"prefill\n"
	"workers and answers to decode workers.\n"
	"\n"
	"  -m, --model FILE        the workers' GGUF file: tokenizer and chat template are read "
	"from it\n"
	"      --worker ADDRESS    unix:/path or 127.0.0.1:port; repeat for each worker (at most "
	"64)\n"
	"      --listen HOST:PORT  default 127.0.0.1:8080; port 0: any free one, which is printed\n"
	"      --tls terminated-by-proxy\n"
	"                          allow --listen off loopback, behind a proxy that does TLS and "
	"keys\n"
	"      --pool-socket PATH  the node daemon's socket, to see what of a prompt is cached\n"
	"      --bypass-tokens N   so many uncached tokens are computed by the decode worker "
	"(256)\n"
	"      --bypass-ratio R    or that share of the prompt, below 2048 tokens (0.3)\n"
	"      --deadline SECONDS  longest time without progress before a request fails (120)\n"
	"      --model-name NAME   what /v1/models shows (default: the file's name)\n"
	"      --max-requests N    requests in flight; beyond, 429 (256, at most 4096)\n"
	"  -h, --help\n"
	"\n"
	"Prints \"listening on http://HOST:PORT\", then \"ready\" when a worker can answer.\n";

enum {
	OPT_WORKER = 256,
	OPT_LISTEN,
	OPT_TLS,
	OPT_POOL,
	OPT_TOKENS,
	OPT_RATIO,
	OPT_DEADLINE,
	OPT_NAME,
	OPT_MAX
};

static const struct option long_options[] = {
	{"model", required_argument, NULL, 'm'},
	{"worker", required_argument, NULL, OPT_WORKER},
	{"listen", required_argument, NULL, OPT_LISTEN},
	{"tls", required_argument, NULL, OPT_TLS},
	{"pool-socket", required_argument, NULL, OPT_POOL},
	{"bypass-tokens", required_argument, NULL, OPT_TOKENS},
	{"bypass-ratio", required_argument, NULL, OPT_RATIO},
	{"deadline", required_argument, NULL, OPT_DEADLINE},
	{"model-name", required_argument, NULL, OPT_NAME},
	{"max-requests", required_argument, NULL, OPT_MAX},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static int parse_number(const char *name, const char *text, uint32_t min, uint32_t max,
			uint32_t *out)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < min || value > max)
		return fm_fail(FM_ERR_INVALID, "--%s %s: give a number from %u to %u", name, text,
			       min, max);
	*out = (uint32_t)value;
	return 0;
}

static int parse_ratio(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end == text || *end || !(*out >= 0 && *out <= 1))
		return fm_fail(FM_ERR_INVALID, "--bypass-ratio %s: give a number from 0 to 1",
			       text);
	return 0;
}

static int take_option(int option, struct fm_front_end_options *options, const char **workers)
{
	switch (option) {
	case 'm':
		options->model_path = optarg;
		return 0;
	case OPT_WORKER:
		if (options->n_workers == FM_FRONT_END_WORKERS_MAX)
			return fm_fail(FM_ERR_LIMIT, "more than %d workers",
				       FM_FRONT_END_WORKERS_MAX);
		workers[options->n_workers++] = optarg;
		return 0;
	case OPT_LISTEN:
		options->listen = optarg;
		return 0;
	case OPT_TLS:
		if (strcmp(optarg, "terminated-by-proxy"))
			return fm_fail(FM_ERR_INVALID,
				       "--tls %s: only terminated-by-proxy is known", optarg);
		options->tls_by_proxy = true;
		return 0;
	case OPT_POOL:
		options->pool_socket = optarg;
		return 0;
	case OPT_TOKENS:
		return parse_number("bypass-tokens", optarg, 0, INT32_MAX, &options->bypass_tokens);
	case OPT_RATIO:
		return parse_ratio(optarg, &options->bypass_ratio);
	case OPT_DEADLINE:
		return parse_number("deadline", optarg, 1, 86400, &options->deadline_s);
	case OPT_NAME:
		options->model_name = optarg;
		return 0;
	case OPT_MAX:
		return parse_number("max-requests", optarg, 1, FM_FRONT_END_REQUESTS_MAX,
				    &options->max_requests);
	default:
		return fm_fail(FM_ERR_INVALID, "router: see fabric-engine router --help");
	}
}

int fm_router_main(int argc, char **argv)
{
	struct fm_front_end_options options;
	const char *workers[FM_FRONT_END_WORKERS_MAX];
	sigset_t signals;
	int option, err;

	fm_front_end_options_init(&options);
	options.workers = workers;
	while ((option = getopt_long(argc, argv, "m:h", long_options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return 0;
		}
		if (take_option(option, &options, workers)) {
			fm_log(FM_LOG_ERROR, "%s", fm_error_detail());
			return 2;
		}
	}
	if (optind < argc || !options.model_path || !options.n_workers) {
		fm_log(FM_LOG_ERROR, "router: %s: see fabric-engine router --help",
		       optind < argc	     ? "there is an argument too many"
		       : !options.model_path ? "-m MODEL is missing"
					     : "--worker ADDRESS is missing");
		return 2;
	}
	/* Blocked before any thread starts, so that only the descriptor tells of them. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	options.stop_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (options.stop_fd < 0) {
		fm_log(FM_LOG_ERROR, "signalfd: %s", strerror(errno));
		return 1;
	}
	err = fm_front_end_run(&options);
	close(options.stop_fd);
	if (err)
		fm_log(FM_LOG_ERROR, "%s", fm_error_detail());
	return err ? 1 : 0;
}
