// SPDX-License-Identifier: Apache-2.0
/*
 * fabricmgr-holder: keeps the memory of a fabricmgrd that it starts, where there is no systemd to
 * do so, and starts it again when it ends. It speaks the manager's side of sd_notify(3) and
 * sd_listen_fds(3) and knows nothing of what it keeps. main.c reads flags and runs the loop,
 * store.c keeps the descriptors. Invariant: whatever a daemon handed over before it ended is given
 * to the next one.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "command_line.h"
#include "store.h"

/* With the pauses, 30 restarts of a daemon that fails at once take about a minute. */
enum { RESTARTS = 30, WITHIN_S = 60, STOP_S = 90, RESTARTS_MAX = 1000000 };
/* A daemon that lived so long is started again at once; others after a pause, which doubles. */
enum { SOON_S = 10, PAUSE_S = 2 };
#define FIRST_PAUSE_S 0.05

struct holder {
	char **command;
	uint32_t restarts, within_s, stop_s, watchdog_s, pause_max_s;
	int ready_fd;
	struct store store;
	int signals;	      /* signalfd */
	pid_t pid, check_pid; /* the daemon; what looks whether another one would start; 0: none */
	double *starts;	      /* the last @restarts of them, a ring */
	uint32_t n_starts;
	double alive_at, kill_at; /* last sign of life; when patience ends, 0: not asked to end */
	double started_at, pause_s;
	double start_at; /* of the next daemon, while there is none */
	/* @is_ready: some daemon has served: there is a pool to lose. @serves: the present one. */
	bool is_ending, is_ready, serves, is_upgrade;
};

static const char help[] =
	"usage: fabricmgr-holder [options] -- fabricmgrd [its options]\n"
	"Starts fabricmgrd and keeps the pool's memory for it: a daemon that ends, for whatever\n"
	"reason, is started again and takes the pool over, with the leases of its clients. For\n"
	"machines without systemd, which does the same for its units.\n"
	"\n"
	"  --restarts N     give up after N restarts (30) ...\n"
	"  --within SECONDS ... in this time (60); the memory is gone then\n"
	"  --pause-max S    wait at most S seconds before a restart (2; 0: never wait)\n"
	"  --stop-time S    after a request to end, kill the daemon in S seconds (90)\n"
	"  --watchdog S     kill a daemon that has not said for S seconds that it lives (0: "
	"never)\n"
	"  --ready-fd N     write one byte to descriptor N when the daemon serves first\n"
	"  --version, --help\n"
	"\n"
	"SIGTERM, SIGINT: end the daemon, then itself. SIGHUP: passed on (reload). SIGUSR2: end "
	"the\n"
	"daemon and start the program at its path again (an upgrade), when a check of it finds no\n"
	"fault. See fabricmgr-holder(8).\n";

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the daemon's life ---- */

/* In a child; returns never. */
static void become(const struct holder *holder, pid_t parent, char *const *command)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Without us nobody would start it again, or know what it hands over. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent || store_give(&holder->store, holder->watchdog_s))
		_exit(FM_EXIT_FAILED);
	execvp(command[0], command);
	fm_log(FM_LOG_ERROR, FM1604 "%s: %s", command[0], strerror(errno));
	_exit(FM_EXIT_USAGE);
}

static int start(struct holder *holder)
{
	pid_t parent = getpid();

	holder->pid = fork();
	if (holder->pid < 0) {
		holder->pid = 0;
		return fm_fail(FM_ERR_IO, "fork: %s", strerror(errno));
	}
	if (!holder->pid)
		become(holder, parent, holder->command);
	store_expect(&holder->store, holder->pid);
	holder->alive_at = holder->started_at = now_s();
	holder->kill_at = holder->start_at = 0;
	holder->serves = false;
	fm_log(FM_LOG_INFO, FM1601 "%s is started, pid %d, with %u descriptors of before",
	       holder->command[0], (int)holder->pid, holder->store.n);
	return 0;
}

/* Whether one more start is within the limit. */
static bool may_restart(struct holder *holder)
{
	double now = now_s(), *oldest = &holder->starts[holder->n_starts % holder->restarts];

	if (holder->n_starts >= holder->restarts && now - *oldest < holder->within_s)
		return false;
	*oldest = now;
	holder->n_starts++;
	return true;
}

static const char *describe(int status, char text[64])
{
	if (WIFSIGNALED(status))
		snprintf(text, 64, "was killed by signal %d", WTERMSIG(status));
	else
		snprintf(text, 64, "ended with status %d", WEXITSTATUS(status));
	return text;
}

/* What makes a daemon fail at once may pass: a port that another one holds for a moment. */
static void choose_pause(struct holder *holder)
{
	double now = now_s();

	if (now - holder->started_at >= SOON_S)
		holder->pause_s = 0;
	else
		holder->pause_s = holder->pause_s > 0 ? 2 * holder->pause_s : FIRST_PAUSE_S;
	if (holder->pause_s > holder->pause_max_s)
		holder->pause_s = holder->pause_max_s;
	holder->start_at = now + holder->pause_s;
}

/* The exit status of the holder, or FM_COMMAND_GO. */
static int start_again(struct holder *holder)
{
	if (!start(holder))
		return FM_COMMAND_GO;
	fm_log(FM_LOG_ERROR, FM1602 "%s", fm_error_detail());
	return FM_EXIT_FAILED;
}

/* The same; the next daemon starts when its pause is over. */
static int on_end(struct holder *holder, int status)
{
	bool is_usage = WIFEXITED(status) && WEXITSTATUS(status) == FM_EXIT_USAGE;
	char text[64];

	/* What it still said stands in the socket. */
	store_receive(&holder->store);
	store_expect(&holder->store, 0);
	holder->pid = 0;
	if (holder->is_ending)
		return WIFEXITED(status) ? WEXITSTATUS(status) : FM_EXIT_FAILED;
	/* Before there is a pool nothing is lost, and somebody waits for the fault to be named. */
	if (!holder->is_ready) {
		fm_log(FM_LOG_ERROR, FM1602 "%s %s and is not started again", holder->command[0],
		       describe(status, text));
		return is_usage ? FM_EXIT_USAGE : FM_EXIT_FAILED;
	}
	/* It ended as it was asked to: no failure. */
	if (holder->is_upgrade) {
		holder->is_upgrade = false;
		return start_again(holder);
	}
	if (!may_restart(holder)) {
		fm_log(FM_LOG_ERROR,
		       FM1602 "%s %s: %u restarts in %u s are the limit (--restarts, "
			      "--within)",
		       holder->command[0], describe(status, text), holder->restarts,
		       holder->within_s);
		return FM_EXIT_FAILED;
	}
	choose_pause(holder);
	fm_log(FM_LOG_WARNING, FM1603 "%s %s and is started again in %.2f s", holder->command[0],
	       describe(status, text), holder->pause_s);
	return holder->pause_s > 0 ? FM_COMMAND_GO : start_again(holder);
}

static void ask_to_end(struct holder *holder)
{
	if (!holder->pid)
		return;
	kill(holder->pid, SIGTERM);
	if (!holder->kill_at)
		holder->kill_at = now_s() + holder->stop_s;
}

/* ---- an upgrade ---- */

/* In a child; returns never. With --check behind its arguments, and its output for nobody. */
static void become_check(const struct holder *holder, pid_t parent)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	char **command, pid[16], check[] = "--check";
	size_t n = 0;

	while (holder->command[n])
		n++;
	command = calloc(n + 2, sizeof(*command));
	snprintf(pid, sizeof(pid), "%d", (int)holder->pid);
	/* Its memory is there for the next one: what it keeps here, and what ends with it. */
	if (!command || null < 0 || dup2(null, STDOUT_FILENO) < 0 ||
	    setenv("FABRICMGR_REPLACES", pid, 1))
		_exit(FM_EXIT_FAILED);
	memcpy(command, holder->command, n * sizeof(*command));
	command[n] = check;
	become(holder, parent, command);
}

/* Only a daemon that would start may take the place of one that serves. */
static void begin_upgrade(struct holder *holder)
{
	pid_t parent = getpid();

	if (holder->is_ending)
		return;
	if (!holder->pid) {
		holder->start_at = 0; /* there is none: now, not after its pause */
		return;
	}
	if (holder->check_pid) {
		kill(holder->check_pid, SIGKILL);
		waitpid(holder->check_pid, NULL, 0);
	}
	holder->check_pid = fork();
	if (!holder->check_pid)
		become_check(holder, parent);
	if (holder->check_pid > 0)
		return;
	holder->check_pid = 0;
	fm_log(FM_LOG_ERROR, FM1610 "no upgrade: fork: %s", strerror(errno));
}

static void finish_check(struct holder *holder, int status)
{
	char text[64];

	holder->check_pid = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fm_log(FM_LOG_ERROR,
		       FM1610 "no upgrade, and the daemon that runs stays: %s --check %s: its "
			      "lines above say why",
		       holder->command[0], describe(status, text));
		return;
	}
	if (!holder->pid)
		return; /* it has ended meanwhile, and the next one is the new one */
	fm_log(FM_LOG_INFO, FM1605 "%s is replaced by what stands at its path now",
	       holder->command[0]);
	holder->is_upgrade = true;
	ask_to_end(holder);
}

/* ---- the loop ---- */

/* One signal may tell of both. */
static int on_child(struct holder *holder)
{
	int status;

	if (holder->check_pid && waitpid(holder->check_pid, &status, WNOHANG) == holder->check_pid)
		finish_check(holder, status);
	if (holder->pid && waitpid(holder->pid, &status, WNOHANG) == holder->pid)
		return on_end(holder, status);
	return FM_COMMAND_GO;
}

static int on_signal(struct holder *holder)
{
	struct signalfd_siginfo info;

	if (read(holder->signals, &info, sizeof(info)) != sizeof(info))
		return FM_COMMAND_GO;
	switch (info.ssi_signo) {
	case SIGCHLD:
		return on_child(holder);
	case SIGHUP:
		if (holder->pid)
			kill(holder->pid, SIGHUP);
		break;
	case SIGUSR2:
		begin_upgrade(holder);
		break;
	default:
		holder->is_ending = true;
		if (!holder->pid)
			return FM_EXIT_FAILED; /* the pool ends without a daemon */
		ask_to_end(holder);
	}
	return FM_COMMAND_GO;
}

static void on_message(struct holder *holder)
{
	uint32_t heard = store_receive(&holder->store);

	if (heard)
		holder->alive_at = now_s();
	if (!(heard & STORE_READY))
		return;
	holder->serves = true;
	if (holder->is_ready)
		return;
	holder->is_ready = true;
	if (holder->ready_fd >= 0 && write(holder->ready_fd, "r", 1) != 1)
		fm_log(FM_LOG_WARNING, FM1608 "--ready-fd %d: %s", holder->ready_fd,
		       strerror(errno));
	if (holder->ready_fd >= 0)
		close(holder->ready_fd);
	holder->ready_fd = -1;
}

/*
 * Starts a daemon whose pause is over, kills one that does not end, or does not live. *@wait_ms:
 * until the next of these. The exit status of the holder, or FM_COMMAND_GO.
 */
static int look_at_clock(struct holder *holder, int *wait_ms)
{
	double now = now_s(), until = holder->kill_at;

	*wait_ms = -1;
	if (!holder->pid) {
		if (now >= holder->start_at)
			return start_again(holder);
		*wait_ms = (int)((holder->start_at - now) * 1000) + 1;
		return FM_COMMAND_GO;
	}
	/* Until it serves it says nothing: it may have a pool to take over, or a log to read. */
	if (!until && holder->watchdog_s && holder->serves)
		until = holder->alive_at + holder->watchdog_s;
	if (!until)
		return FM_COMMAND_GO;
	if (now < until) {
		*wait_ms = (int)((until - now) * 1000) + 1;
		return FM_COMMAND_GO;
	}
	fm_log(FM_LOG_WARNING, FM1606 "%s, pid %d, does not %s and is killed", holder->command[0],
	       (int)holder->pid, holder->kill_at ? "end" : "say that it lives");
	kill(holder->pid, SIGKILL);
	holder->kill_at = now + holder->stop_s;
	*wait_ms = 1000;
	return FM_COMMAND_GO;
}

static int serve(struct holder *holder)
{
	struct pollfd polled[2] = {{.fd = holder->store.socket, .events = POLLIN},
				   {.fd = holder->signals, .events = POLLIN}};
	int status = start_again(holder);

	while (status == FM_COMMAND_GO) {
		int wait_ms, n;

		status = look_at_clock(holder, &wait_ms);
		if (status != FM_COMMAND_GO)
			break;
		n = poll(polled, 2, wait_ms);
		if (n < 0 && errno != EINTR)
			status = FM_EXIT_FAILED;
		if (n > 0 && polled[0].revents)
			on_message(holder);
		if (n > 0 && polled[1].revents)
			status = on_signal(holder);
	}
	if (holder->pid) {
		kill(holder->pid, SIGTERM);
		waitpid(holder->pid, NULL, 0);
	}
	return status;
}

static int prepare(struct holder *holder)
{
	struct rlimit files;
	sigset_t set;

	sigemptyset(&set);
	for (const int *number = (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR2, 0};
	     *number; number++)
		sigaddset(&set, *number);
	sigprocmask(SIG_BLOCK, &set, NULL);
	/* Ours alone: the daemon gets numbers from 3 on for other things. */
	if (holder->ready_fd >= 0 && fcntl(holder->ready_fd, F_SETFD, FD_CLOEXEC))
		return fm_fail(FM_ERR_INVALID, "--ready-fd %d: %s", holder->ready_fd,
			       strerror(errno));
	/* Each client's lease table is one descriptor here. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	holder->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	holder->starts = calloc(holder->restarts, sizeof(*holder->starts));
	if (holder->signals < 0 || !holder->starts)
		return fm_fail(FM_ERR_IO, "signalfd or memory: %s", strerror(errno));
	return store_open(&holder->store);
}

/* ---- flags ---- */

enum { FLAG_RESTARTS = 256, FLAG_WITHIN, FLAG_PAUSE, FLAG_STOP, FLAG_WATCHDOG, FLAG_READY };

static const struct option flags[] = {
	{"restarts", required_argument, NULL, FLAG_RESTARTS},
	{"within", required_argument, NULL, FLAG_WITHIN},
	{"pause-max", required_argument, NULL, FLAG_PAUSE},
	{"stop-time", required_argument, NULL, FLAG_STOP},
	{"watchdog", required_argument, NULL, FLAG_WATCHDOG},
	{"ready-fd", required_argument, NULL, FLAG_READY},
	{"version", no_argument, NULL, 'V'},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static int take(void *arg, int flag, const char *value)
{
	struct holder *holder = arg;
	uint32_t fd;
	int err;

	switch (flag) {
	case FLAG_RESTARTS:
		return fm_parse_u32("--restarts", value, 1, RESTARTS_MAX, &holder->restarts);
	case FLAG_WITHIN:
		return fm_parse_u32("--within", value, 1, UINT32_MAX, &holder->within_s);
	case FLAG_PAUSE:
		return fm_parse_u32("--pause-max", value, 0, 3600, &holder->pause_max_s);
	case FLAG_STOP:
		return fm_parse_u32("--stop-time", value, 1, 86400, &holder->stop_s);
	case FLAG_WATCHDOG:
		return fm_parse_u32("--watchdog", value, 0, 86400, &holder->watchdog_s);
	default:
		err = fm_parse_u32("--ready-fd", value, 0, INT32_MAX, &fd);
		holder->ready_fd = (int)fd;
		return err;
	}
}

int main(int argc, char **argv)
{
	/* "+": what follows the command are its own flags. */
	const struct fm_command command = {"fabricmgr-holder", "+:h", flags, help, take};
	struct holder holder = {.restarts = RESTARTS,
				.within_s = WITHIN_S,
				.pause_max_s = PAUSE_S,
				.stop_s = STOP_S,
				.ready_fd = -1};
	int status;

	fm_log_set_program(command.name);
	status = fm_command_parse(&command, argc, argv, &holder);
	if (status == FM_COMMAND_GO && optind >= argc) {
		fm_fail(FM_ERR_INVALID, "no command was given: fabricmgr-holder -- fabricmgrd ...");
		status = fm_usage_error(command.name);
	}
	if (status != FM_COMMAND_GO)
		return fm_finish_output(command.name, status);
	holder.command = &argv[optind];
	if (prepare(&holder)) {
		fm_log(FM_LOG_ERROR, FM1602 "%s", fm_error_detail());
		status = FM_EXIT_FAILED;
	} else {
		status = serve(&holder);
	}
	store_close(&holder.store);
	free(holder.starts);
	return status;
}
