// SPDX-License-Identifier: Apache-2.0
/*
 * fabric-sim: the pool's cores under virtual time. `fabric-sim replay` runs a trace of requests
 * through the eviction core and prints how much of it each policy would have served. Calls the rest
 * of tools/fabric-sim. Invariant: the same trace and flags give the same output, byte for byte.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <fabricmgr.h>

#include "command_line.h"
#include "fabric-sim/replay.h"

#define PROGRAM	     "fabric-sim replay"
#define ROOMS_MAX    16
#define ROOM_MAX     (1u << 28)
#define POLICIES_MAX 8

struct command_line {
	const char *trace;
	uint32_t rooms[ROOMS_MAX];
	size_t room_count;
	const struct fm_policy_ops *policies[POLICIES_MAX];
	size_t policy_count;
	uint64_t block_bytes;
	bool is_json;
};

static const char help[] =
	"usage: fabric-sim replay --trace FILE [options]\n"
	"Runs a trace of requests through the pool's eviction core, and through a clairvoyant\n"
	"that knows what comes: how many of the prompts' tokens were in the pool.\n\n"
	"  --trace FILE       requests, one JSON object a line, plain or .xz: Mooncake's format\n"
	"                     (timestamp, input_length, hash_ids) or kv-cache-tester's sessions\n"
	"  --blocks N[,N...]  room of the pool in blocks (default 1000,10000,50000)\n"
	"  --policy NAME[,NAME...]\n"
	"                     the policies to compare (default all of them)\n"
	"  --block-bytes SIZE of one block, for the bytes served and written (default 1M)\n"
	"  --json             one JSON object a line instead of a table\n"
	"  --version, --help\n\n"
	"Exit status: 0 done, 1 failed, 2 wrong usage.\n";

/* ---- flags ---- */

enum { TRACE = 1, BLOCKS, POLICY, BLOCK_BYTES, JSON };

static int take_rooms(struct command_line *line, const char *value)
{
	char text[256], *rest = text, *part;
	bool is_good = snprintf(text, sizeof(text), "%s", value) < (int)sizeof(text);

	line->room_count = 0;
	while (is_good && (part = strsep(&rest, ",")))
		is_good = line->room_count < ROOMS_MAX &&
			  !fm_parse_u32("--blocks", part, 1, ROOM_MAX,
					&line->rooms[line->room_count++]);
	return is_good ? 0
		       : fm_fail(FM_ERR_INVALID,
				 "--blocks %.128s: give up to %d whole numbers from 1 to %u, with "
				 "commas between them",
				 value, ROOMS_MAX, ROOM_MAX);
}

static void take_all(struct command_line *line)
{
	const struct fm_policy_ops *const *all;

	line->policy_count = fm_policy_list(&all);
	memcpy(line->policies, all, line->policy_count * sizeof(*all));
}

static int take_policies(struct command_line *line, const char *value)
{
	char text[256], *rest = text, *part;
	bool is_good = snprintf(text, sizeof(text), "%s", value) < (int)sizeof(text);

	if (!strcmp(value, "all")) {
		take_all(line);
		return 0;
	}
	line->policy_count = 0;
	while (is_good && (part = strsep(&rest, ","))) {
		const struct fm_policy_ops *policy = fm_policy_find(part);

		is_good = policy && line->policy_count < POLICIES_MAX;
		if (is_good)
			line->policies[line->policy_count++] = policy;
	}
	if (is_good)
		return 0;
	take_all(line);
	text[0] = '\0';
	for (size_t i = 0; i < line->policy_count; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), ", %s",
			 line->policies[i]->name);
	return fm_fail(FM_ERR_INVALID,
		       "--policy %.128s: give all, or up to %d of these with commas between: %s",
		       value, POLICIES_MAX, text + 2);
}

static int take(void *arg, int flag, const char *value)
{
	struct command_line *line = arg;

	switch (flag) {
	case TRACE:
		line->trace = value;
		return *value ? 0 : fm_fail(FM_ERR_INVALID, "--trace: give the path of a trace");
	case BLOCKS:
		return take_rooms(line, value);
	case POLICY:
		return take_policies(line, value);
	case BLOCK_BYTES:
		return fm_parse_bytes("--block-bytes", value, 1, &line->block_bytes);
	default:
		line->is_json = true;
		return 0;
	}
}

/* ---- results ---- */

static double rate(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

struct row {
	const char *policy;
	struct fm_replay_result result;
};

/* The share of the way from the better baseline to the optimum; not a number when there is no way
 * to go, or no baseline among the rows. */
static double gap_closed(const struct row *rows, size_t n, const struct row *row)
{
	double optimum = rate(rows[0].result.token_hits, rows[0].result.tokens), best = -1;

	for (size_t i = 1; i < n; i++) {
		double hits = rate(rows[i].result.token_hits, rows[i].result.tokens);

		if ((!strcmp(rows[i].policy, "lru") || !strcmp(rows[i].policy, "s3fifo")) &&
		    hits > best)
			best = hits;
	}
	if (best < 0 || best >= optimum)
		return NAN;
	return (rate(row->result.token_hits, row->result.tokens) - best) / (optimum - best);
}

static int print_json(const struct command_line *line, uint32_t room, const struct row *rows,
		      size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct fm_replay_result *r = &rows[i].result;
		double closed = gap_closed(rows, n, &rows[i]);
		json_t *object = json_pack(
			"{s:s, s:I, s:s, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:I}",
			"trace", line->trace, "room", (json_int_t)room, "policy", rows[i].policy,
			"token_hit_rate", rate(r->token_hits, r->tokens), "block_hit_rate",
			rate(r->block_hits, r->blocks), "of_optimum",
			rate(r->token_hits, rows[0].result.token_hits), "gap_closed",
			isnan(closed) ? json_null() : json_real(closed), "tokens",
			(json_int_t)r->tokens, "token_hits", (json_int_t)r->token_hits,
			"bytes_served", (json_int_t)r->block_hits * (json_int_t)line->block_bytes,
			"bytes_written", (json_int_t)r->written * (json_int_t)line->block_bytes,
			"blocks_written", (json_int_t)r->written, "blocks_evicted",
			(json_int_t)r->evicted);

		if (!object || json_dumpf(object, stdout, JSON_PRESERVE_ORDER) ||
		    putchar('\n') == EOF) {
			json_decref(object);
			return fm_fail(FM_ERR_IO, "JSON could not be written");
		}
		json_decref(object);
	}
	return 0;
}

static void print_bytes(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	int unit = 0;

	for (; value >= 1024 && unit < 5; unit++)
		value /= 1024;
	printf(" %8.1f %-3s", value, units[unit]);
}

static void print_table(const struct command_line *line, uint32_t room, const struct row *rows,
			size_t n)
{
	printf("\n%u blocks\n  %-10s %10s %10s %12s %12s %10s %10s\n", room, "policy", "token hits",
	       "block hits", "served", "written", "of optimum", "gap closed");
	for (size_t i = 0; i < n; i++) {
		const struct fm_replay_result *r = &rows[i].result;
		double closed = gap_closed(rows, n, &rows[i]);

		printf("  %-10s %9.2f%% %9.2f%%", rows[i].policy,
		       100 * rate(r->token_hits, r->tokens), 100 * rate(r->block_hits, r->blocks));
		print_bytes(r->block_hits * line->block_bytes);
		print_bytes(r->written * line->block_bytes);
		printf(" %10.3f", rate(r->token_hits, rows[0].result.token_hits));
		if (isnan(closed) || !i)
			printf(" %10s\n", "-");
		else
			printf(" %9.1f%%\n", 100 * closed);
	}
}

/* ---- the run ---- */

struct progress {
	const char *policy;
	uint32_t room;
	bool is_shown;
};

static void show(void *context, double share)
{
	const struct progress *progress = context;

	if (progress->is_shown)
		fprintf(stderr, "\r%u blocks, %s: %3.0f %%\033[K", progress->room, progress->policy,
			100 * share);
}

static int replay(const struct command_line *line, const struct fm_trace *trace)
{
	struct progress progress = {.is_shown = isatty(STDERR_FILENO)};
	struct row rows[POLICIES_MAX + 1];
	int err = 0;

	if (!line->is_json)
		printf("%s: %u requests for %llu blocks of %u tokens, %u of them different\n",
		       line->trace, trace->request_count, (unsigned long long)trace->accesses,
		       trace->tokens_per_block, trace->block_count);
	for (size_t i = 0; !err && i < line->room_count; i++) {
		progress.room = line->rooms[i];
		rows[0].policy = progress.policy = "optimum";
		show(&progress, 0);
		err = fm_replay_optimum(trace, line->rooms[i], &rows[0].result);
		for (size_t k = 0; !err && k < line->policy_count; k++) {
			rows[k + 1].policy = progress.policy = line->policies[k]->name;
			err = fm_replay_run(trace, line->policies[k], line->rooms[i], show,
					    &progress, &rows[k + 1].result);
		}
		if (progress.is_shown)
			fputs("\r\033[K", stderr);
		if (err)
			break;
		if (line->is_json)
			err = print_json(line, line->rooms[i], rows, line->policy_count + 1);
		else
			print_table(line, line->rooms[i], rows, line->policy_count + 1);
		fflush(stdout);
	}
	return err;
}

static int run(struct command_line *line)
{
	struct fm_trace trace;
	int err = fm_trace_load(line->trace, &trace);

	if (!err) {
		err = replay(line, &trace);
		fm_trace_free(&trace);
	}
	if (err)
		fprintf(stderr, PROGRAM ": %s\n", fm_error_detail());
	return err ? FM_EXIT_FAILED : 0;
}

int main(int argc, char **argv)
{
	static const struct option flags[] = {
		{"trace", required_argument, NULL, TRACE},
		{"blocks", required_argument, NULL, BLOCKS},
		{"policy", required_argument, NULL, POLICY},
		{"block-bytes", required_argument, NULL, BLOCK_BYTES},
		{"json", no_argument, NULL, JSON},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	static const struct fm_command command = {PROGRAM, ":h", flags, help, take};
	struct command_line line = {
		.rooms = {1000, 10000, 50000}, .room_count = 3, .block_bytes = 1 << 20};
	int status;

	fm_log_set_program("fabric-sim");
	take_all(&line);
	if (argc > 1 && !strcmp(argv[1], "replay")) {
		argc--;
		argv++;
	} else if (argc < 2 || *argv[1] != '-') {
		fm_fail(FM_ERR_INVALID, "%s%.64s%s: give the command replay", argc < 2 ? "" : "\"",
			argc < 2 ? "no command" : argv[1], argc < 2 ? "" : "\"");
		return fm_usage_error("fabric-sim");
	}
	status = fm_command_parse(&command, argc, argv, &line);
	if (status == FM_COMMAND_GO && (optind < argc || !line.trace)) {
		if (optind < argc)
			fm_fail(FM_ERR_INVALID, "\"%.64s\" is one argument too many", argv[optind]);
		else
			fm_fail(FM_ERR_INVALID, "give --trace FILE, such as one of the sources' "
						"tests/data/traces");
		status = fm_usage_error(command.name);
	}
	if (status == FM_COMMAND_GO)
		status = run(&line);
	return fm_finish_output(command.name, status);
}
