// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl: shows, checks and operates a node's KV pool. Here: flags, attaching, and small helpers
 * of the commands. Invariant: exit status 0 good, 1 failed or bad blocks found, 2 wrong usage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "fabricctl.h"

/* How many words a command takes behind its name, and whether it attaches to write. */
enum { TAKES_ARGUMENT = 1, TAKES_TWO = 2, WRITES = 4 };

static const struct {
	const char *name;
	int (*run)(struct ctl *ctl);
	uint32_t more;
	int (*take)(struct ctl *ctl); /* what stands behind it; NULL: as it is */
} commands[] = {
	{"info", ctl_info, 0, NULL},
	{"status", ctl_status, 0, NULL},
	{"ls", ctl_ls, 0, NULL},
	{"verify", ctl_verify, 0, NULL},
	{"snapshot", ctl_snapshot, 0, NULL},
	{"top", ctl_top, 0, NULL},
	{"evict", ctl_evict, TAKES_ARGUMENT, ctl_take_evict},
	{"invalidate", ctl_invalidate, TAKES_ARGUMENT | WRITES, ctl_take_invalidate},
	{"pin", ctl_pin, TAKES_TWO | WRITES, ctl_take_pin},
	{"quota", ctl_quota, TAKES_ARGUMENT, NULL},
	{"drain", ctl_drain, 0, NULL},
	{"undrain", ctl_undrain, 0, NULL},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const char help[] =
	"usage: fabricctl [--socket PATH] [--json] [pool] COMMAND\n"
	"Shows, checks and operates the KV pool of this node.\n\n"
	"  info         version, what the pool stands on and why, its configuration\n"
	"  status       occupancy, blocks by state, counters, clients\n"
	"  ls           the blocks: key, bytes, state, place, origin, who holds them\n"
	"  verify       reads each sealed block and checks its CRC32C and header\n"
	"  snapshot     all of that but verify in one JSON document, for support\n"
	"  top          what happens, on a live screen (q ends it)\n"
	"  evict        [SIZE] frees blocks that nobody holds, at least SIZE of them; all without "
	"one\n"
	"  invalidate   NAMESPACE removes its blocks; 32 hexadecimal digits, as ls --json shows "
	"them\n"
	"  pin          KEY TIME keeps a block and those before it for so long (30s, 10m, 2h) as "
	"long\n"
	"               as anything else may go; 0 ends that\n"
	"  quota        what each tenant has and may have; TENANT with flags changes it, until "
	"the\n"
	"               daemon reads its configuration again\n"
	"  drain        no new blocks and clients from now on; what is there goes on\n"
	"  undrain      takes new blocks and clients again\n\n"
	"  --socket PATH  the daemon's socket (default: $FABRICMGR_SOCKET, else\n"
	"                 /run/fabricmgr/pool.sock)\n"
	"  --json         JSON instead of text\n"
	"  --interval N   top: seconds between two looks (default 1)\n"
	"  --once         top: one look after an interval, as text or JSON\n"
	"  --guaranteed SIZE, --max SIZE, --staging SIZE, --requests N, --nvme SIZE\n"
	"                 quota: what the tenant may have from now on; 0: no limit\n"
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

static int attach_and_run(struct ctl *ctl, size_t i)
{
	struct fm_attach_options options = {
		.size = sizeof(options),
		.flags = commands[i].more & WRITES ? 0 : FM_ATTACH_READ_ONLY,
		.socket = ctl->socket,
		.fd = -1,
		.leases = 64,
		.name = "fabricctl",
	};
	int result;

	if (fm_pool_attach(&options, &ctl->pool)) {
		fprintf(stderr, "fabricctl: %s\n", fm_error_detail());
		return CTL_FAILED;
	}
	result = commands[i].run(ctl);
	fm_pool_detach(ctl->pool);
	return result;
}

/* @words: the command and what stands behind it. */
static int run(struct ctl *ctl, char **words, int n)
{
	static const char *const and_values[] = {"", " and one value", " and two values"};
	const char *name = words[0], *near;
	int n_values;

	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(commands[i].name, name))
			continue;
		n_values = commands[i].more & (TAKES_ARGUMENT | TAKES_TWO);
		if (n > 1 + n_values) {
			fm_fail(FM_ERR_INVALID, "\"%.64s\" is too much: give one command%s",
				words[n - 1], and_values[n_values]);
			return fm_usage_error("fabricctl");
		}
		ctl->argument = n > 1 ? words[1] : NULL;
		ctl->second = n > 2 ? words[2] : NULL;
		/* Before the daemon is asked for: it need not be there. */
		if (commands[i].take && commands[i].take(ctl))
			return fm_usage_error("fabricctl");
		return attach_and_run(ctl, i);
	}
	near = fm_nearest_name(name, &commands[0].name, N_COMMANDS, sizeof(*commands));
	fm_fail(FM_ERR_INVALID, "there is no command \"%.64s\"%s%s%s", name,
		near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	return fm_usage_error("fabricctl");
}

enum { SOCKET = 1, JSON, INTERVAL, ONCE, GUARANTEED, MAX, STAGING, REQUESTS, NVME };

static int take(void *arg, int flag, const char *value)
{
	struct ctl *ctl = arg;

	switch (flag) {
	case JSON:
		ctl->is_json = true;
		return 0;
	case ONCE:
		ctl->is_once = true;
		return 0;
	case GUARANTEED:
		return fm_parse_quota("--guaranteed", value, &ctl->quotas.guaranteed_bytes);
	case MAX:
		return fm_parse_quota("--max", value, &ctl->quotas.max_bytes);
	case STAGING:
		return fm_parse_quota("--staging", value, &ctl->quotas.staging_bytes);
	case NVME:
		return fm_parse_bytes("--nvme", value, 0, &ctl->quotas.nvme_bytes);
	case REQUESTS:
		return fm_parse_u64("--requests", value, 0, 1 << 20, &ctl->quotas.requests);
	case INTERVAL:
		return fm_parse_u32("--interval", value, 1, 3600, &ctl->interval);
	default:
		ctl->socket = value;
		return *value ? 0
			      : fm_fail(FM_ERR_INVALID,
					"--socket: give the path of the daemon's socket");
	}
}

int main(int argc, char **argv)
{
	static const struct option flags[] = {
		{"socket", required_argument, NULL, SOCKET},
		{"json", no_argument, NULL, JSON},
		{"interval", required_argument, NULL, INTERVAL},
		{"once", no_argument, NULL, ONCE},
		{"guaranteed", required_argument, NULL, GUARANTEED},
		{"max", required_argument, NULL, MAX},
		{"staging", required_argument, NULL, STAGING},
		{"requests", required_argument, NULL, REQUESTS},
		{"nvme", required_argument, NULL, NVME},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	static const struct fm_command command = {"fabricctl", ":h", flags, help, take};
	struct ctl ctl = {.interval = 1,
			  .quotas = {FM_QUOTA_KEEP, FM_QUOTA_KEEP, FM_QUOTA_KEEP, FM_QUOTA_KEEP,
				     FM_QUOTA_KEEP}};
	int status;

	json_set_alloc_funcs(allocate, free);
	fm_log_set_program(command.name);
	status = fm_command_parse(&command, argc, argv, &ctl);
	/* The pool is what there is to operate: its name may stand before the command. */
	if (status == FM_COMMAND_GO && optind < argc && !strcmp(argv[optind], "pool"))
		optind++;
	if (status == FM_COMMAND_GO && optind >= argc) {
		fm_fail(FM_ERR_INVALID, "give one command, such as status");
		status = fm_usage_error(command.name);
	}
	if (status == FM_COMMAND_GO)
		status = run(&ctl, argv + optind, argc - optind);
	return fm_finish_output(command.name, status);
}
