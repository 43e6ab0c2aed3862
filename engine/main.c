// SPDX-License-Identifier: Apache-2.0
/*
 * fabric-engine: picks the subcommand. Everything else is in the subcommand's own file.
 */
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#include "bench.h"
#include "command_line.h"
#include "inspect.h"
#include "router.h"
#include "run.h"
#include "serve.h"
#include "worker_command.h"

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

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *out)
{
	fputs("usage: fabric-engine COMMAND [OPTION…]   (fabric-engine COMMAND --help)\n\n", out);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].what);
	fputs("\nExit status: 0 ended as asked, 1 failed, 2 wrong usage.\n", out);
}

static int refuse(const char *word)
{
	const char *near = fm_nearest_name(word, &commands[0].name, N_COMMANDS, sizeof(*commands));

	if (*word == '-')
		fm_fail(FM_ERR_INVALID, "%.64s: a command comes first", word);
	else if (near)
		fm_fail(FM_ERR_INVALID, "there is no command \"%.64s\"; did you mean %s?", word,
			near);
	else
		fm_fail(FM_ERR_INVALID, "there is no command \"%.64s\"", word);
	return fm_usage_error("fabric-engine");
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "--help";
	char name[64];

	fm_log_set_program("fabric-engine");
	if (!strcmp(word, "--version")) {
		printf("fabric-engine %s\n", fm_version());
		return fm_finish_output("fabric-engine", 0);
	}
	if (argc < 2) {
		usage(stderr);
		return FM_EXIT_USAGE;
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
		usage(stdout);
		return fm_finish_output("fabric-engine", 0);
	}
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(word, commands[i].name) != 0)
			continue;
		snprintf(name, sizeof(name), "fabric-engine %s", word);
		return fm_finish_output(name, commands[i].main(argc - 1, argv + 1));
	}
	return refuse(word);
}
