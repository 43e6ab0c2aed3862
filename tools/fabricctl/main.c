// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl: shows and checks a node's KV pool. Here: flags, attaching, and small helpers of the
 * commands. Invariant: exit status 0 good, 1 failed or bad blocks found, 2 wrong usage.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabricctl.h"

static const struct {
	const char *name;
	const char *does;
	int (*run)(struct ctl *ctl);
} commands[] = {
	{"info", "version, what the pool stands on and why, its configuration", ctl_info},
	{"status", "occupancy, blocks by state, counters, clients", ctl_status},
	{"ls", "the blocks: key, bytes, state, place, origin", ctl_ls},
	{"verify", "reads each sealed block and checks its CRC32C and header", ctl_verify},
};

static void print_help(void)
{
	printf("usage: fabricctl [--socket PATH] [--json] COMMAND\n"
	       "Shows and checks the KV pool of this node.\n\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		printf("  %-8s %s\n", commands[i].name, commands[i].does);
	printf("\n  --socket PATH  the daemon's socket (default: $FABRICMGR_SOCKET, else\n"
	       "                 /run/fabricmgr/pool.sock)\n"
	       "  --json         JSON instead of text\n"
	       "  --version, --help\n\n"
	       "Exit status: 0 good, 1 failed or bad blocks found, 2 wrong usage.\n");
}

int ctl_fail(const char *what)
{
	fprintf(stderr, "fabricctl: %s: %s\n", what, fm_error_detail());
	return CTL_FAILED;
}

int ctl_print(json_t *object)
{
	int result = object ? json_dumpf(object, stdout, JSON_INDENT(2)) : -1;

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

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
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
	fprintf(stderr, "fabricctl: there is no command \"%s\"; see fabricctl --help\n", name);
	return CTL_USAGE;
}

int main(int argc, char **argv)
{
	enum { SOCKET = 1, JSON, VERSION, HELP };
	static const struct option flags[] = {
		{"socket", required_argument, NULL, SOCKET},
		{"json", no_argument, NULL, JSON},
		{"version", no_argument, NULL, VERSION},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0},
	};
	struct ctl ctl = {0};
	int flag;

	fm_log_set_program("fabricctl");
	while ((flag = getopt_long(argc, argv, "h", flags, NULL)) != -1) {
		switch (flag) {
		case SOCKET:
			ctl.socket = optarg;
			break;
		case JSON:
			ctl.is_json = true;
			break;
		case VERSION:
			printf("fabricctl %s\n", fm_version());
			return CTL_OK;
		case 'h':
		case HELP:
			print_help();
			return CTL_OK;
		default:
			fprintf(stderr, "fabricctl: see fabricctl --help\n");
			return CTL_USAGE;
		}
	}
	if (argc - optind != 1) {
		fprintf(stderr, "fabricctl: one command is needed: info, status, ls or verify; see "
				"fabricctl --help\n");
		return CTL_USAGE;
	}
	return run(&ctl, argv[optind]);
}
