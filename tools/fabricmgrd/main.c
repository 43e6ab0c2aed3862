// SPDX-License-Identifier: Apache-2.0
/*
 * fabricmgrd: the node daemon. Reads its flags, creates the pool, serves until SIGTERM or SIGINT.
 * It sees the library through fabricmgr.h only. Invariant: "ready" is printed, and the ready
 * descriptor written, once clients can attach.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "command_line.h"
#include "redis.h"

#define DEFAULT_SOCKET	"/run/fabricmgr/pool.sock"
#define DEFAULT_SIZE	(512ull << 20)
#define DEFAULT_NAMES	(16ull << 20)
#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

static struct fm_server *server;
static struct redis *redis; /* NULL: no front end */

static void on_signal(int number)
{
	int saved_errno = errno;

	(void)number;
	if (redis)
		redis_stop(redis); /* and it the server */
	else
		fm_server_stop(server);
	errno = saved_errno;
}

struct command_line {
	struct fm_server_options options;
	struct redis_flags redis;
	int ready_fd;
};

static const char help[] =
	"usage: fabricmgrd [options]\n"
	"Owns the KV pool of this node and serves it on a Unix socket.\n\n"
	"  --socket PATH      where clients attach (default " DEFAULT_SOCKET ")\n"
	"  --socket-mode MODE octal mode of the socket (default 0600)\n"
	"  --size SIZE        memory of the pool, e.g. 512M or 8G (default 512M)\n"
	"  --memory RUNG      best, hugetlb or memfd (default best)\n"
	"  --entries N        blocks that the index holds (default: one per 64 KiB)\n"
	"  --policy NAME      eviction policy: lru (default) or s3fifo\n"
	"  --ready-fd N       write a byte there when serving\n"
	"  --redis ADDRESS    serve Redis clients there: unix:/path or 127.0.0.1:6379 (or both)\n"
	"  --redis-password-file FILE  whose first line they must AUTH with (default: none)\n"
	"  --redis-names SIZE memory for the names that SCAN lists, 0 for no SCAN (default 16M)\n"
	"  --redis-behind-proxy  TLS ends at a proxy: other addresses than loopback are allowed\n"
	"  --version, --help\n\n"
	"Exit status: 0 stopped by SIGTERM or SIGINT, 1 failed, 2 wrong usage.\n";

/* The folder of the socket, when it is not there. */
static void make_folder(const char *path)
{
	char folder[4096];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return;
	*slash = '\0';
	if (mkdir(folder, 0755) && errno != EEXIST)
		fm_log(FM_LOG_WARNING, "cannot create the folder %s: %s", folder, strerror(errno));
}

static void ignore_and_catch(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static int serve(const struct fm_server_options *options, const struct redis_flags *redis_flags,
		 int ready_fd)
{
	const char *rung, *reason;
	int err, redis_err;

	make_folder(options->socket);
	err = fm_server_create(options, &server);
	if (err) {
		fm_log(FM_LOG_ERROR, "%s", fm_error_detail());
		return 1;
	}
	err = redis_start(redis_flags, server, &redis);
	if (err) {
		fm_log(FM_LOG_ERROR, "%s", fm_error_detail());
		fm_server_destroy(server);
		return 1;
	}
	ignore_and_catch();
	rung = fm_server_rung(server, &reason);
	fm_log(FM_LOG_INFO, "version %s", fm_version());
	fm_log(FM_LOG_INFO, "memory: %s%s%s", rung, *reason ? "; not the rung above: " : "",
	       reason);
	/* As it is held, in whole chunks, which may be less than was asked for. */
	fm_log(FM_LOG_INFO, "size: %llu MiB in chunks of %u MiB",
	       (unsigned long long)(options->pool_bytes / FM_CHUNK_BYTES *
				    (FM_CHUNK_BYTES >> 20)),
	       FM_CHUNK_BYTES >> 20);
	fm_log(FM_LOG_INFO, "socket: %s", options->socket);
	fm_log(FM_LOG_INFO, "ready");
	if (ready_fd >= 0) {
		if (write(ready_fd, "r", 1) != 1)
			fm_log(FM_LOG_WARNING, "--ready-fd %d: %s", ready_fd, strerror(errno));
		close(ready_fd);
	}
	err = fm_server_run(server);
	if (err)
		fm_log(FM_LOG_ERROR, "stopped serving: %s", fm_error_detail());
	redis_err = redis_finish(redis);
	fm_server_destroy(server);
	return err || redis_err ? 1 : 0;
}

enum {
	SOCKET = 1,
	MODE,
	SIZE,
	MEMORY,
	ENTRIES,
	POLICY,
	READY,
	REDIS,
	REDIS_PASSWORD,
	REDIS_NAMES,
	REDIS_PROXY
};

static int take(void *arg, int flag, const char *value)
{
	static const char *const rungs[] = {"best", "hugetlb", "memfd"};
	static const char *const policies[] = {"lru", "s3fifo"};
	struct command_line *line = arg;
	struct fm_server_options *options = &line->options;
	uint32_t number = 0;
	int name = 0, err = 0;

	switch (flag) {
	case SOCKET:
		options->socket = value;
		return *value && strlen(value) <= SOCKET_PATH_MAX
			       ? 0
			       : fm_fail(FM_ERR_INVALID,
					 "--socket %.200s: the path must have 1 to %zu bytes",
					 value, SOCKET_PATH_MAX);
	case MODE:
		return fm_parse_octal("--socket-mode", value, 1, 0777, &options->socket_mode);
	case SIZE:
		return fm_parse_bytes("--size", value, FM_POOL_BYTES_MIN, &options->pool_bytes);
	case MEMORY:
		options->memory = value;
		return fm_parse_name("--memory", value, rungs, 3, &name);
	case ENTRIES:
		return fm_parse_u32("--entries", value, 1, UINT32_MAX, &options->entries_max);
	case POLICY:
		options->policy = value;
		return fm_parse_name("--policy", value, policies, 2, &name);
	case REDIS:
		if (line->redis.n_listen == REDIS_LISTEN_MAX)
			return fm_fail(FM_ERR_LIMIT, "--redis: at most %d times", REDIS_LISTEN_MAX);
		line->redis.listen[line->redis.n_listen++] = value;
		return 0;
	case REDIS_PASSWORD:
		line->redis.password_file = value;
		return 0;
	case REDIS_NAMES:
		return fm_parse_bytes("--redis-names", value, 0, &line->redis.name_bytes);
	case REDIS_PROXY:
		line->redis.is_behind_proxy = true;
		return 0;
	default:
		err = fm_parse_u32("--ready-fd", value, 0, 1 << 20, &number);
		if (!err && fcntl((int)number, F_GETFD) < 0)
			err = fm_fail(FM_ERR_INVALID,
				      "--ready-fd %s: give the number of a descriptor that is open "
				      "for writing",
				      value);
		line->ready_fd = (int)number;
		return err;
	}
}

int main(int argc, char **argv)
{
	static const struct option flags[] = {
		{"socket", required_argument, NULL, SOCKET},
		{"socket-mode", required_argument, NULL, MODE},
		{"size", required_argument, NULL, SIZE},
		{"memory", required_argument, NULL, MEMORY},
		{"entries", required_argument, NULL, ENTRIES},
		{"policy", required_argument, NULL, POLICY},
		{"ready-fd", required_argument, NULL, READY},
		{"redis", required_argument, NULL, REDIS},
		{"redis-password-file", required_argument, NULL, REDIS_PASSWORD},
		{"redis-names", required_argument, NULL, REDIS_NAMES},
		{"redis-behind-proxy", no_argument, NULL, REDIS_PROXY},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	static const struct fm_command command = {"fabricmgrd", ":h", flags, help, take};
	struct command_line line = {
		.options = {.size = sizeof(line.options),
			    .pool_bytes = DEFAULT_SIZE,
			    .socket = DEFAULT_SOCKET},
		.redis = {.name_bytes = DEFAULT_NAMES},
		.ready_fd = -1,
	};
	int status;

	fm_log_set_program(command.name);
	status = fm_command_parse(&command, argc, argv, &line);
	if (status != FM_COMMAND_GO)
		return fm_finish_output(command.name, status);
	if (optind < argc) {
		fm_fail(FM_ERR_INVALID, "\"%.64s\": only flags are taken here", argv[optind]);
		return fm_usage_error(command.name);
	}
	return serve(&line.options, &line.redis, line.ready_fd);
}
