// SPDX-License-Identifier: Apache-2.0
/*
 * The table of settings and what is done with it (see settings.h). A new flag is a row here, with a
 * function that takes its value. Invariant: a value that its row refuses is not kept.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr_messages.h>

#include "command_line.h"
#include "settings.h"

#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

/* ---- values --------------------------------------------------------------------------------- */

static int take_yes(const char *what, const char *value, bool *out)
{
	static const char *const names[] = {"no", "yes"};
	int name = 0, err = fm_parse_name(what, value, names, 2, &name);

	*out = name == 1;
	return err;
}

static int take_socket(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	settings->server.socket = value;
	return *value && strlen(value) <= SOCKET_PATH_MAX
		       ? 0
		       : fm_fail(FM_ERR_INVALID, "%s %.200s: the path must have 1 to %zu bytes",
				 what, value, SOCKET_PATH_MAX);
}

static int take_mode(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return fm_parse_octal(what, value, 1, 0777, &settings->server.socket_mode);
}

static int take_size(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return fm_parse_bytes(what, value, FM_POOL_BYTES_MIN, &settings->server.pool_bytes);
}

static int take_memory(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	static const char *const rungs[] = {"best", "hugetlb", "memfd"};
	int name;

	(void)n;
	settings->server.memory = value;
	return fm_parse_name(what, value, rungs, 3, &name);
}

static int take_keeper(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	static const char *const keepers[] = {"best", "module", "manager"};
	int name;

	(void)n;
	settings->server.keeper = value;
	return fm_parse_name(what, value, keepers, 3, &name);
}

static int take_entries(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return fm_parse_u32(what, value, 1, UINT32_MAX, &settings->server.entries_max);
}

static int take_policy(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	static const char *const policies[] = {"density", "lru", "s3fifo"};
	int name;

	(void)n;
	settings->server.policy = value;
	return fm_parse_name(what, value, policies, 3, &name);
}

static int take_uids(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return ids_parse(what, value, false, &settings->uids);
}

static int take_gids(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return ids_parse(what, value, true, &settings->gids);
}

static int take_staging(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return fm_parse_bytes(what, value, 0, &settings->server.client_staging_bytes);
}

static int take_adopted(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return fm_parse_bytes(what, value, 0, &settings->server.adopted_bytes);
}

static int take_nvme(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	if (!*value)
		return fm_fail(FM_ERR_INVALID, "%s: give the path of a file or a block device",
			       what);
	settings->server.nvme_path = value;
	return 0;
}

static int take_nvme_size(struct settings *settings, const char *what, const char *value,
			  uint32_t n)
{
	(void)n;
	return fm_parse_bytes(what, value, 1, &settings->server.nvme_bytes);
}

static int take_nvme_durable(struct settings *settings, const char *what, const char *value,
			     uint32_t n)
{
	bool is_durable = true;
	int err = take_yes(what, value, &is_durable);

	(void)n;
	settings->server.nvme_flags = is_durable ? 0 : FM_NVME_NOT_DURABLE;
	return err;
}

static int take_redis(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	if (!*value)
		return fm_fail(FM_ERR_INVALID, "%s: give unix:/path or 127.0.0.1:PORT", what);
	settings->redis.listen[n] = value;
	settings->redis.n_listen = n + 1;
	return 0;
}

static int take_redis_password(struct settings *settings, const char *what, const char *value,
			       uint32_t n)
{
	(void)n;
	if (!*value)
		return fm_fail(FM_ERR_INVALID, "%s: give the path of a file", what);
	settings->redis.password_file = value;
	return 0;
}

static int take_redis_tenant(struct settings *settings, const char *what, const char *value,
			     uint32_t n)
{
	(void)n;
	if (!*value)
		return fm_fail(FM_ERR_INVALID, "%s: give the name of a tenant", what);
	settings->redis.tenant = value;
	return 0;
}

static int take_redis_names(struct settings *settings, const char *what, const char *value,
			    uint32_t n)
{
	(void)n;
	return fm_parse_bytes(what, value, 0, &settings->redis.name_bytes);
}

static int take_redis_proxy(struct settings *settings, const char *what, const char *value,
			    uint32_t n)
{
	(void)n;
	return take_yes(what, value, &settings->redis.is_behind_proxy);
}

static int take_metrics(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	settings->metrics.listen = value;
	/* Whether a proxy stands before it, metrics_start() knows. */
	return metrics_check(what, &(struct metrics_flags){value, true});
}

static int take_metrics_users(struct settings *settings, const char *what, const char *value,
			      uint32_t n)
{
	(void)n;
	return ids_parse(what, value, false, &settings->metrics_users);
}

static int take_metrics_proxy(struct settings *settings, const char *what, const char *value,
			      uint32_t n)
{
	(void)n;
	return take_yes(what, value, &settings->metrics.is_behind_proxy);
}

static int take_log_level(struct settings *settings, const char *what, const char *value,
			  uint32_t n)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};
	static const int levels[] = {FM_LOG_ERROR, FM_LOG_WARNING, FM_LOG_INFO, FM_LOG_DEBUG};
	int name = 0, err = fm_parse_name(what, value, names, 4, &name);

	(void)n;
	settings->log_level = levels[name];
	return err;
}

static int take_log_target(struct settings *settings, const char *what, const char *value,
			   uint32_t n)
{
	static const char *const names[] = {"auto", "stderr", "journal"};

	(void)n;
	return fm_parse_name(what, value, names, 3, &settings->log_target);
}

static int take_ready_fd(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	uint32_t number = 0;
	int err = fm_parse_u32(what, value, 0, 1 << 20, &number);

	(void)n;
	if (!err && fcntl((int)number, F_GETFD) < 0)
		err = fm_fail(FM_ERR_INVALID,
			      "%s %s: give the number of a descriptor that is open for writing",
			      what, value);
	settings->ready_fd = (int)number;
	return err;
}

static int take_config(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	if (!*value)
		return fm_fail(FM_ERR_INVALID, "%s: give the path of a file", what);
	settings->file = value;
	return 0;
}

static int take_check(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return take_yes(what, value, &settings->is_check);
}

static int take_forget(struct settings *settings, const char *what, const char *value, uint32_t n)
{
	(void)n;
	return take_yes(what, value, &settings->is_forget);
}

/* In the order of --help. */
const struct setting settings_table[] = {
	{.flag = "config",
	 .argument = "FILE",
	 .help = "configuration (default " SETTINGS_FILE ", when it is there)",
	 .take = take_config},
	{.flag = "check",
	 .help = "says what would be used, and whether it fits; starts nothing",
	 .take = take_check},
	{.flag = "forget",
	 .help = "gives back what the kernel module keeps of it, and ends",
	 .take = take_forget},
	{.section = "pool",
	 .key = "socket",
	 .flag = "socket",
	 .is_of_group = true,
	 .argument = "PATH",
	 .help = "where clients attach (default /run/fabricmgr/pool.sock)",
	 .fallback = "/run/fabricmgr/pool.sock",
	 .take = take_socket},
	{.section = "pool",
	 .key = "socket-mode",
	 .flag = "socket-mode",
	 .is_of_group = true,
	 .argument = "MODE",
	 .help = "octal mode of the socket (default 0600)",
	 .fallback = "0600",
	 .take = take_mode},
	{.section = "pool",
	 .key = "size",
	 .flag = "size",
	 .is_of_group = true,
	 .argument = "SIZE",
	 .help = "memory of the pool, e.g. 512M or 8G (default 512M)",
	 .fallback = "512M",
	 .take = take_size},
	{.section = "pool",
	 .key = "memory",
	 .flag = "memory",
	 .is_of_group = true,
	 .argument = "RUNG",
	 .help = "best, hugetlb or memfd (default best)",
	 .fallback = "best",
	 .take = take_memory},
	{.section = "pool",
	 .key = "keeper",
	 .flag = "keeper",
	 .is_of_group = true,
	 .argument = "WHO",
	 .help = "memory beyond the daemon's end: best, module or manager (default best)",
	 .fallback = "best",
	 .take = take_keeper},
	{.section = "pool",
	 .key = "entries",
	 .flag = "entries",
	 .is_of_group = true,
	 .argument = "N",
	 .help = "blocks that the index holds (default: one per 64 KiB)",
	 .take = take_entries},
	{.section = "pool",
	 .key = "policy",
	 .flag = "policy",
	 .is_of_group = true,
	 .argument = "NAME",
	 .help = "eviction policy: density (default), lru or s3fifo",
	 .fallback = "density",
	 .take = take_policy},
	{.section = "pool",
	 .key = "allow-uid",
	 .flag = "allow-uid",
	 .argument = "USERS",
	 .help = "who may attach besides root and the daemon's user: numbers or names, with commas",
	 .take = take_uids,
	 .is_live = true},
	{.section = "pool",
	 .key = "allow-gid",
	 .flag = "allow-gid",
	 .argument = "GROUPS",
	 .help = "and who is in one of these groups (neither given: who can open the socket)",
	 .take = take_gids,
	 .is_live = true},
	{.section = "pool",
	 .key = "client-staging",
	 .flag = "client-staging",
	 .is_of_group = true,
	 .argument = "SIZE",
	 .help = "that one client may have in blocks being filled (default 0: no limit)",
	 .fallback = "0",
	 .take = take_staging},
	{.section = "pool",
	 .key = "adopted",
	 .flag = "adopted",
	 .is_of_group = true,
	 .argument = "SIZE",
	 .help = "memory of their own that clients of no tenant may have adopted (default 0: none)",
	 .fallback = "0",
	 .take = take_adopted,
	 .is_live = true},
	{.section = "nvme",
	 .key = "path",
	 .flag = "nvme",
	 .is_of_group = true,
	 .argument = "PATH",
	 .help = "keep sealed blocks there, too: a file, made if need be, or a block device",
	 .take = take_nvme},
	{.section = "nvme",
	 .key = "size",
	 .flag = "nvme-size",
	 .is_of_group = true,
	 .argument = "SIZE",
	 .help = "of that file (default: as it is; a device: all of it)",
	 .take = take_nvme_size},
	{.section = "nvme",
	 .key = "durable",
	 .flag = "nvme-durable",
	 .is_of_group = true,
	 .argument = "YES",
	 .help = "yes: flushed, outlives a power failure (default); no: outlives the daemon",
	 .fallback = "yes",
	 .take = take_nvme_durable},
	{.flag = "ready-fd",
	 .argument = "N",
	 .help = "write a byte there when serving",
	 .take = take_ready_fd},
	{.section = "redis",
	 .key = "listen",
	 .flag = "redis",
	 .is_of_group = true,
	 .argument = "ADDRESS",
	 .help = "serve Redis clients there: unix:/path or 127.0.0.1:6379; up to 4 times",
	 .values_max = REDIS_LISTEN_MAX,
	 .take = take_redis},
	{.section = "redis",
	 .key = "password-file",
	 .flag = "redis-password-file",
	 .is_of_group = true,
	 .argument = "FILE",
	 .help = "whose first line they must AUTH with (default: none)",
	 .take = take_redis_password,
	 .is_live = true},
	{.section = "redis",
	 .key = "tenant",
	 .flag = "redis-tenant",
	 .is_of_group = true,
	 .argument = "NAME",
	 .help = "whom Redis clients act for (default: default, or a group's only tenant)",
	 .take = take_redis_tenant},
	{.section = "redis",
	 .key = "names",
	 .flag = "redis-names",
	 .is_of_group = true,
	 .argument = "SIZE",
	 .help = "memory for the names that SCAN lists, 0 for no SCAN (default 16M)",
	 .fallback = "16M",
	 .take = take_redis_names},
	{.section = "redis",
	 .key = "behind-proxy",
	 .flag = "redis-behind-proxy",
	 .is_of_group = true,
	 .help = "TLS ends at a proxy: other addresses than loopback are allowed",
	 .fallback = "no",
	 .take = take_redis_proxy},
	{.section = "metrics",
	 .key = "listen",
	 .flag = "metrics",
	 .argument = "ADDRESS",
	 .help = "serve figures there, for Prometheus and for people, e.g. 127.0.0.1:9464",
	 .take = take_metrics},
	{.section = "metrics",
	 .key = "behind-proxy",
	 .flag = "metrics-behind-proxy",
	 .help = "TLS and keys are a proxy's: other addresses than loopback are allowed",
	 .fallback = "no",
	 .take = take_metrics_proxy},
	{.section = "metrics",
	 .key = "users",
	 .flag = "metrics-users",
	 .argument = "USERS",
	 .help = "who sees them where there are tenants, besides root and the daemon's user",
	 .take = take_metrics_users},
	{.section = "log",
	 .key = "level",
	 .flag = "log-level",
	 .argument = "LEVEL",
	 .help = "error, warning, info or debug (default: $FABRICMGR_LOG, else info)",
	 .take = take_log_level,
	 .is_live = true},
	{.section = "log",
	 .key = "target",
	 .flag = "log-target",
	 .argument = "WHERE",
	 .help = "auto (default), stderr or journal: with priorities, for systemd",
	 .fallback = "auto",
	 .take = take_log_target},
};

const uint32_t settings_count = sizeof(settings_table) / sizeof(settings_table[0]);
_Static_assert(sizeof(settings_table) / sizeof(settings_table[0]) <= SETTINGS_MAX, "room for rows");

/* ---- life ----------------------------------------------------------------------------------- */

int settings_create(struct settings *settings)
{
	int err = 0;

	*settings = (struct settings){.server.size = sizeof(settings->server), .ready_fd = -1};
	settings->sharing.groups[0] =
		(struct sharing_group){.name = FM_TENANT_DEFAULT, .settings = settings};
	settings->sharing.n_groups = 1;
	for (uint32_t row = 0; row < settings_count && !err; row++)
		if (settings_table[row].fallback)
			err = settings_table[row].take(settings, settings_table[row].flag,
						       settings_table[row].fallback, 0);
	return err;
}

static void drop_values(struct settings *settings, uint32_t row)
{
	while (settings->given[row].n)
		free(settings->given[row].values[--settings->given[row].n]);
}

void settings_destroy(struct settings *settings)
{
	sharing_destroy(settings);
	for (uint32_t row = 0; row < settings_count; row++)
		drop_values(settings, row);
	free(settings->read_from);
	settings->read_from = NULL;
}

int settings_give(struct settings *settings, uint32_t row, enum setting_source source,
		  uint32_t line, const char *value)
{
	const struct setting *setting = &settings_table[row];
	uint32_t max = setting->values_max ? setting->values_max : 1, n;
	char what[512], *copy;
	int err;

	if (source == FROM_FLAG)
		snprintf(what, sizeof(what), "--%s", setting->flag);
	else
		snprintf(what, sizeof(what), "%s:%u: %s", settings->read_from, line,
			 settings->is_group ? setting->flag : setting->key);
	if (settings->given[row].source == FROM_FILE && source == FROM_FILE && max == 1)
		return fm_fail(FM_ERR_INVALID, "%s: line %u gives it already; give it once", what,
			       settings->given[row].line);
	if (settings->given[row].source != source || max == 1)
		drop_values(settings, row);
	n = settings->given[row].n;
	if (n == max)
		return fm_fail(FM_ERR_LIMIT, "%s: at most %u times", what, max);
	copy = strdup(value);
	if (!copy)
		return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory for its value", what);
	err = setting->take(settings, what, copy, n);
	if (err) {
		free(copy);
		return err;
	}
	settings->given[row].values[settings->given[row].n++] = copy;
	settings->given[row].source = source;
	settings->given[row].line = line;
	return 0;
}

int settings_load(const struct settings *line, struct settings *out)
{
	const char *path = line->file ? line->file : SETTINGS_FILE;
	int err = settings_create(out);

	if (!err && (line->file || !access(path, F_OK)))
		err = settings_read_file(out, path);
	for (uint32_t row = 0; row < settings_count; row++)
		for (uint32_t i = 0; i < line->given[row].n && !err; i++)
			err = settings_give(out, row, FROM_FLAG, 0, line->given[row].values[i]);
	if (!err)
		err = metrics_check("[metrics] listen", &out->metrics);
	if (!err)
		err = sharing_finish(out);
	if (err)
		settings_destroy(out);
	return err;
}

/* The values of @row change places, and so does whose they are. */
static void swap_values(struct settings *a, struct settings *b, uint32_t row)
{
	__typeof__(a->given[row]) kept = a->given[row];

	a->given[row] = b->given[row];
	b->given[row] = kept;
}

uint32_t settings_take_live(struct settings *settings, struct settings *next, const char *group)
{
	uint32_t n = 0;

	settings->log_level = next->log_level;
	settings->redis.password_file = next->redis.password_file;
	settings->uids = next->uids;
	settings->gids = next->gids;
	settings->server.adopted_bytes = next->server.adopted_bytes;
	for (uint32_t row = 0; row < settings_count; row++) {
		const struct setting *setting = &settings_table[row];
		bool is_equal = settings_are_equal(settings, next, row);

		if (setting->is_live) {
			n += !is_equal;
			swap_values(settings, next, row);
		} else if (setting->section && !is_equal) {
			fm_log(FM_LOG_WARNING,
			       FM1301 "reload: [%s%s] %s has changed: it needs a restart",
			       group ? "group " : "", group ? group : setting->section,
			       group ? setting->flag : setting->key);
		}
	}
	return n;
}

bool settings_are_equal(const struct settings *a, const struct settings *b, uint32_t row)
{
	const char *fallback = settings_table[row].fallback ? settings_table[row].fallback : "";
	uint32_t n = a->given[row].n > b->given[row].n ? a->given[row].n : b->given[row].n;

	for (uint32_t i = 0; i < n; i++) {
		const char *of_a = i < a->given[row].n ? a->given[row].values[i] : fallback;
		const char *of_b = i < b->given[row].n ? b->given[row].values[i] : fallback;

		if (strcmp(of_a, of_b))
			return false;
	}
	return true;
}

/* ---- flags, help, what is in use ------------------------------------------------------------ */

void settings_flags(struct option *flags)
{
	uint32_t n = 0;

	for (; n < settings_count; n++)
		flags[n] = (struct option){
			.name = settings_table[n].flag,
			.has_arg = settings_table[n].argument ? required_argument : no_argument,
			.val = SETTINGS_FLAG + (int)n,
		};
	flags[n++] = (struct option){"version", no_argument, NULL, 'V'};
	flags[n++] = (struct option){"help", no_argument, NULL, 'h'};
	flags[n] = (struct option){0};
}

const char *settings_help(void)
{
	static char text[8192];
	size_t used = (size_t)snprintf(
		text, sizeof(text),
		"usage: fabricmgrd [options]\n"
		"Owns the KV pool of this node and serves it on a Unix socket.\n\n");

	for (uint32_t row = 0; row < settings_count && used < sizeof(text); row++) {
		const struct setting *setting = &settings_table[row];
		char flag[64];

		snprintf(flag, sizeof(flag), "--%s%s%s", setting->flag,
			 setting->argument ? " " : "", setting->argument ? setting->argument : "");
		used += (size_t)snprintf(text + used, sizeof(text) - used, "  %-19s %s%s\n", flag,
					 strlen(flag) > 19 ? " " : "", setting->help);
	}
	if (used < sizeof(text))
		snprintf(
			text + used, sizeof(text) - used,
			"  --version, --help\n\n"
			"SIGHUP reads the configuration file again.\n"
			"Exit status: 0 stopped by SIGTERM or SIGINT, or --check found no fault; 1 "
			"failed;\n2 wrong usage or configuration.\n");
	return text;
}

static void print_source(const struct settings *settings, uint32_t row, FILE *out)
{
	switch (settings->given[row].source) {
	case FROM_FILE:
		fprintf(out, " ; line %u\n", settings->given[row].line);
		break;
	case FROM_FLAG:
		fprintf(out, " ; --%s\n", settings_table[row].flag);
		break;
	default:
		fprintf(out, " ; default\n");
	}
}

void settings_print_group(const struct settings *settings, FILE *out)
{
	for (uint32_t row = 0; row < settings_count; row++)
		for (uint32_t i = 0; settings_table[row].is_of_group && i < settings->given[row].n;
		     i++) {
			fprintf(out, "%s = %s", settings_table[row].flag,
				settings->given[row].values[i]);
			print_source(settings, row, out);
		}
}

void settings_print(const struct settings *settings, FILE *out)
{
	const char *section = "";

	fprintf(out, "# configuration file: %s\n",
		settings->read_from ? settings->read_from : "none");
	for (uint32_t row = 0; row < settings_count; row++) {
		const struct setting *setting = &settings_table[row];

		if (!setting->section)
			continue;
		if (strcmp(section, setting->section))
			fprintf(out, "[%s]\n", setting->section);
		section = setting->section;
		for (uint32_t i = 0; i < settings->given[row].n; i++) {
			fprintf(out, "%s = %s", setting->key, settings->given[row].values[i]);
			print_source(settings, row, out);
		}
		if (settings->given[row].n)
			continue;
		if (!setting->fallback) {
			fprintf(out, "# %s: not given\n", setting->key);
			continue;
		}
		fprintf(out, "%s = %s", setting->key, setting->fallback);
		print_source(settings, row, out);
	}
	sharing_print(settings, out);
}
