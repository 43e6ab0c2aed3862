// SPDX-License-Identifier: Apache-2.0
/*
 * fabricmgrd: the node daemon. Reads its flags, creates the pool, serves until SIGTERM or SIGINT.
 * It sees the library through fabricmgr.h only. Invariant: "ready" is printed, and the ready
 * descriptor written, once clients can attach.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

#define DEFAULT_SOCKET "/run/fabricmgr/pool.sock"
#define DEFAULT_SIZE   (512ull << 20)

static struct fm_server *server;

static void on_signal(int number)
{
	int saved_errno = errno;

	(void)number;
	fm_server_stop(server);
	errno = saved_errno;
}

static void print_help(void)
{
	printf("usage: fabricmgrd [options]\n"
	       "Owns the KV pool of this node and serves it on a Unix socket.\n\n"
	       "  --socket PATH      where clients attach (default %s)\n"
	       "  --socket-mode MODE octal mode of the socket (default 0600)\n"
	       "  --size SIZE        memory of the pool, e.g. 512M or 8G (default 512M)\n"
	       "  --memory RUNG      best, hugetlb or memfd (default best)\n"
	       "  --entries N        blocks that the index holds (default: one per 64 KiB)\n"
	       "  --policy NAME      eviction policy: lru (default)\n"
	       "  --ready-fd N       write a byte there when serving\n"
	       "  --version, --help\n\n"
	       "Exit status: 0 stopped by SIGTERM or SIGINT, 1 failed, 2 wrong usage.\n",
	       DEFAULT_SOCKET);
}

static bool parse_size(const char *text, uint64_t *bytes)
{
	unsigned long long value;
	unsigned shift = 0;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *text == '-')
		return false;
	switch (*end) {
	case 'T':
		shift += 10; /* fall through */
	case 'G':
		shift += 10; /* fall through */
	case 'M':
		shift += 10; /* fall through */
	case 'K':
		shift += 10;
		end++;
	}
	if (*end || (shift && value >> (64 - shift)))
		return false;
	*bytes = (uint64_t)value << shift;
	return true;
}

static bool parse_number(const char *text, int base, unsigned long max, unsigned long *value)
{
	char *end;

	errno = 0;
	*value = strtoul(text, &end, base);
	return !errno && end != text && !*end && *text != '-' && *value <= max;
}

static int usage(const char *flag, const char *value)
{
	fprintf(stderr, "fabricmgrd: --%s %s: not a value this flag takes; see fabricmgrd --help\n",
		flag, value);
	return 2;
}

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

static int serve(const struct fm_server_options *options, int ready_fd)
{
	const char *rung, *reason;
	int err;

	make_folder(options->socket);
	err = fm_server_create(options, &server);
	if (err) {
		fm_log(FM_LOG_ERROR, "%s", fm_error_detail());
		return 1;
	}
	ignore_and_catch();
	rung = fm_server_rung(server, &reason);
	fm_log(FM_LOG_INFO, "version %s", fm_version());
	fm_log(FM_LOG_INFO, "memory: %s%s%s", rung, *reason ? "; not the rung above: " : "",
	       reason);
	fm_log(FM_LOG_INFO, "size: %llu MiB", (unsigned long long)(options->pool_bytes >> 20));
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
	fm_server_destroy(server);
	return err ? 1 : 0;
}

int main(int argc, char **argv)
{
	enum { SOCKET = 1, MODE, SIZE, MEMORY, ENTRIES, POLICY, READY, VERSION, HELP };
	static const struct option flags[] = {
		{"socket", required_argument, NULL, SOCKET},
		{"socket-mode", required_argument, NULL, MODE},
		{"size", required_argument, NULL, SIZE},
		{"memory", required_argument, NULL, MEMORY},
		{"entries", required_argument, NULL, ENTRIES},
		{"policy", required_argument, NULL, POLICY},
		{"ready-fd", required_argument, NULL, READY},
		{"version", no_argument, NULL, VERSION},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0},
	};
	struct fm_server_options options = {
		.size = sizeof(options),
		.pool_bytes = DEFAULT_SIZE,
		.socket = DEFAULT_SOCKET,
	};
	unsigned long number;
	int ready_fd = -1, flag, which = 0;

	fm_log_set_program("fabricmgrd");
	while ((flag = getopt_long(argc, argv, "h", flags, &which)) != -1) {
		switch (flag) {
		case SOCKET:
			options.socket = optarg;
			break;
		case MODE:
			if (!parse_number(optarg, 8, 0777, &number) || !number)
				return usage("socket-mode", optarg);
			options.socket_mode = (uint32_t)number;
			break;
		case SIZE:
			if (!parse_size(optarg, &options.pool_bytes))
				return usage("size", optarg);
			break;
		case MEMORY:
			options.memory = optarg;
			break;
		case ENTRIES:
			if (!parse_number(optarg, 10, UINT32_MAX, &number) || !number)
				return usage("entries", optarg);
			options.entries_max = (uint32_t)number;
			break;
		case POLICY:
			options.policy = optarg;
			break;
		case READY:
			if (!parse_number(optarg, 10, 1 << 20, &number) ||
			    fcntl((int)number, F_GETFD) < 0)
				return usage("ready-fd", optarg);
			ready_fd = (int)number;
			break;
		case VERSION:
			printf("fabricmgrd %s\n", fm_version());
			return 0;
		case 'h':
		case HELP:
			print_help();
			return 0;
		default:
			fprintf(stderr, "fabricmgrd: see fabricmgrd --help\n");
			return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "fabricmgrd: %s: no argument is taken; see fabricmgrd --help\n",
			argv[optind]);
		return 2;
	}
	return serve(&options, ready_fd);
}
