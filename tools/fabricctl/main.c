// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl: shows and checks a node's KV pool. Here: flags, attaching, and small helpers of the
 * commands. Invariant: exit status 0 good, 1 failed or bad blocks found, 2 wrong usage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "fabricctl.h"

static const struct {
	const char *name;
	int (*run)(struct ctl *ctl);
} commands[] = {
	{"info", ctl_info},
	{"status", ctl_status},
	{"ls", ctl_ls},
	{"verify", ctl_verify},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const char help[] =
	"usage: fabricctl [--socket PATH] [--json] COMMAND\n"
	"Shows and checks the KV pool of this node.\n\n"
	"  info     version, what the pool stands on and why, its configuration\n"
	"  status   occupancy, blocks by state, counters, clients\n"
	"  ls       the blocks: key, bytes, state, place, origin\n"
	"  verify   reads each sealed block and checks its CRC32C and header\n\n"
	"  --socket PATH  the daemon's socket (default: $FABRICMGR_SOCKET, else\n"
	"                 /run/fabricmgr/pool.sock)\n"
	"  --json         JSON instead of text\n"
	"  --version, --help\n\n"
	"Exit status: 0 good, 1 failed or bad blocks found, 2 wrong usage.\n";

int ctl_fail(const char *what)
{
	fprintf(stderr, "fabricctl: %s: %s\n", what, fm_error_detail());
	return CTL_FAILED;
}

/* jansson leaves out what finds no memory: nothing of it may be printed then. */
static bool is_short;

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (!memory)
		is_short = true;
	return memory;
}

int ctl_print(json_t *object)
{
	int result = object && !is_short ? json_dumpf(object, stdout, JSON_INDENT(2)) : -1;

	json_decref(object);
	if (result || putchar('\n') == EOF) {
		fprintf(stderr, "fabricctl: cannot write JSON: out of memory or output closed\n");
		return CTL_FAILED;
	}
	return CTL_OK;
}

void ctl_hex(const void *bytes, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		sprintf(out + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
}

const char *ctl_bytes(uint64_t bytes, char out[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)bytes;
	int unit = 0;

	while (value >= 1024 && unit < 4) {
		value /= 1024;
		unit++;
	}
	snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return out;
}

const char *ctl_state(uint32_t state)
{
	static const char *const names[] = {"free", "staging", "sealed", "evicting", "quarantine"};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "unknown";
}

static int run(struct ctl *ctl, const char *name)
{
	struct fm_attach_options options = {
		.size = sizeof(options),
		.flags = FM_ATTACH_READ_ONLY,
		.socket = ctl->socket,
		.fd = -1,
		.leases = 64,
		.name = "fabricctl",
	};

	const char *near;

	for (size_t i = 0; i < N_COMMANDS; i++) {
		int result;

		if (strcmp(commands[i].name, name))
			continue;
		if (fm_pool_attach(&options, &ctl->pool)) {
			fprintf(stderr, "fabricctl: %s\n", fm_error_detail());
			return CTL_FAILED;
		}
		result = commands[i].run(ctl);
		fm_pool_detach(ctl->pool);
		return result;
	}
	near = fm_nearest_name(name, &commands[0].name, N_COMMANDS, sizeof(*commands));
	fm_fail(FM_ERR_INVALID, "there is no command \"%.64s\"%s%s%s", name,
		near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	return fm_usage_error("fabricctl");
}

enum { SOCKET = 1, JSON };

static int take(void *arg, int flag, const char *value)
{
	struct ctl *ctl = arg;

	if (flag == JSON)
		ctl->is_json = true;
	else if (*value)
		ctl->socket = value;
	else
		return fm_fail(FM_ERR_INVALID, "--socket: give the path of the daemon's socket");
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option flags[] = {
		{"socket", required_argument, NULL, SOCKET},
		{"json", no_argument, NULL, JSON},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	static const struct fm_command command = {"fabricctl", ":h", flags, help, take};
	struct ctl ctl = {0};
	int status;

	json_set_alloc_funcs(allocate, free);
	fm_log_set_program(command.name);
	status = fm_command_parse(&command, argc, argv, &ctl);
	if (status == FM_COMMAND_GO && argc - optind != 1) {
		fm_fail(FM_ERR_INVALID, "give one command: info, status, ls or verify");
		status = fm_usage_error(command.name);
	}
	if (status == FM_COMMAND_GO)
		status = run(&ctl, argv[optind]);
	return fm_finish_output(command.name, status);
}
