// SPDX-License-Identifier: Apache-2.0
/*
 * fabric-engine: picks the subcommand. Everything else is in the subcommand's own file.
 */
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#include "bench.h"
#include "inspect.h"
#include "router.h"
#include "run.h"
#include "serve.h"
#include "worker/worker.h"

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *what;
} commands[] = {
	{"run", fm_run_main, "generate from one prompt and print it"},
	{"serve", fm_serve_main, "an OpenAI-compatible server, all in one process"},
	{"worker", fm_worker_main, "a member of a fleet: --role prefill, decode or both"},
	{"router", fm_router_main, "the OpenAI-compatible front door of a fleet"},
	{"bench", fm_bench_main, "tokens a second of prompts and of generation"},
	{"inspect", fm_inspect_main, "what is in a model file"},
};

static void usage(FILE *out)
{
	fputs("usage: fabric-engine COMMAND [OPTION…]   (fabric-engine COMMAND --help)\n\n", out);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].what);
}

int main(int argc, char **argv)
{
	char name[64];

	fm_log_set_program("fabric-engine");
	if (argc > 1 && !strcmp(argv[1], "--version")) {
		printf("fabric-engine %s\n", fm_version());
		return 0;
	}
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))) {
		usage(stdout);
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[1], commands[i].name) != 0)
			continue;
		/* What getopt puts before its messages. */
		snprintf(name, sizeof(name), "fabric-engine %s", argv[1]);
		argv[1] = name;
		return commands[i].main(argc - 1, argv + 1);
	}
	if (argc > 1)
		fprintf(stderr, "fabric-engine: there is no command \"%s\"\n", argv[1]);
	usage(stderr);
	return 2;
}
