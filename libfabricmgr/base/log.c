// SPDX-License-Identifier: Apache-2.0
/*
 * The one logger: whole lines to standard error. Any layer may call it; it calls nothing above
 * libc.
 * Invariant: a line is written by a single write(2), so lines of several threads never mix. What
 * somebody else can provoke without end does not fill the log.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

/* Relaxed, without pairs: each value stands alone, and the name is text that never changes. */
static _Atomic int log_level; /* 0: not yet read from the environment */
static _Atomic(const char *) program_name;

static _Atomic int log_target = FM_LOG_AUTO; /* then FM_LOG_STDERR or FM_LOG_JOURNAL */

/* The service manager names what it connected to standard error: "device:inode" of the journal. */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat status;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       !fstat(STDERR_FILENO, &status) && status.st_dev == device && status.st_ino == inode;
}

void fm_log_set_target(enum fm_log_target target)
{
	atomic_store_explicit(&log_target, (int)target, memory_order_relaxed);
}

static int level_from_environment(void)
{
	const char *name = getenv("FABRICMGR_LOG");

	if (name && !strcmp(name, "error"))
		return FM_LOG_ERROR;
	if (name && !strcmp(name, "warning"))
		return FM_LOG_WARNING;
	if (name && !strcmp(name, "debug"))
		return FM_LOG_DEBUG;
	return !name || !*name || !strcmp(name, "info") ? FM_LOG_INFO : 0;
}

void fm_log_set_level(enum fm_log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void fm_log_set_program(const char *name)
{
	atomic_store_explicit(&program_name, name, memory_order_relaxed);
}

bool fm_log_is_on(enum fm_log_level level)
{
	int limit = atomic_load_explicit(&log_level, memory_order_relaxed);

	if (!limit) {
		limit = level_from_environment();
		/* First the level: the warning is a message itself. */
		atomic_store_explicit(&log_level, limit ? limit : FM_LOG_INFO,
				      memory_order_relaxed);
		if (!limit)
			fm_log(FM_LOG_WARNING,
			       FM1015 "FABRICMGR_LOG=%.32s is no level and counts as info: give "
				      "error, warning, info or debug",
			       getenv("FABRICMGR_LOG"));
		limit = limit ? limit : FM_LOG_INFO;
	}
	return (int)level <= limit;
}

/* Warnings of one code in one minute; others are counted. */
#define WARNINGS_A_MINUTE 60u
#define CODES 4096u

static struct {
	_Atomic uint32_t minute, said; /* relaxed: a line too many or too few does no harm */
} warnings[CODES];

/* Counts a warning; whether it is to be left out. @tail: what to say behind it. */
static bool is_left_out(enum fm_log_level level, const char *format, char *tail, size_t size)
{
	uint32_t code, minute, said, before = 0;
	struct timespec now;

	if (level != FM_LOG_WARNING || strncmp(format, "FM", 2))
		return false;
	code = (uint32_t)strtoul(format + 2, NULL, 10) % CODES;
	clock_gettime(CLOCK_MONOTONIC, &now);
	minute = (uint32_t)(now.tv_sec / 60) + 1;
	if (atomic_exchange_explicit(&warnings[code].minute, minute, memory_order_relaxed) !=
	    minute)
		before = atomic_exchange_explicit(&warnings[code].said, 0, memory_order_relaxed);
	said = atomic_fetch_add_explicit(&warnings[code].said, 1, memory_order_relaxed) + 1;
	if (before > WARNINGS_A_MINUTE)
		snprintf(tail, size, " (%u like this one were left out before)",
			 before - WARNINGS_A_MINUTE);
	else if (said == WARNINGS_A_MINUTE)
		snprintf(tail, size, " (more of these are left out until the minute is over)");
	return said > WARNINGS_A_MINUTE;
}

void fm_log(enum fm_log_level level, const char *format, ...)
{
	const char *program = atomic_load_explicit(&program_name, memory_order_relaxed);
	int target = atomic_load_explicit(&log_target, memory_order_relaxed);
	int saved_errno = errno;
	char line[1024], priority[8] = "", tail[96] = "";
	va_list args;
	size_t used;

	if (!fm_log_is_on(level) || is_left_out(level, format, tail, sizeof(tail)))
		return;
	if (target == FM_LOG_AUTO) {
		target = is_journal() ? FM_LOG_JOURNAL : FM_LOG_STDERR;
		fm_log_set_target((enum fm_log_target)target);
	}
	if (target == FM_LOG_JOURNAL)
		snprintf(priority, sizeof(priority), "<%d>", (int)level);
	used = (size_t)snprintf(line, sizeof(line) - 1, "%s%s: %s", priority,
				program ? program : program_invocation_short_name,
				level == FM_LOG_ERROR	  ? "error: "
				: level == FM_LOG_WARNING ? "warning: "
							  : "");
	if (used < sizeof(line) - 1) {
		va_start(args, format);
		used += (size_t)vsnprintf(line + used, sizeof(line) - 1 - used, format, args);
		va_end(args);
	}
	if (used > sizeof(line) - 2 - strlen(tail))
		used = sizeof(line) - 2 - strlen(tail);
	used += (size_t)snprintf(line + used, sizeof(line) - used, "%s", tail);
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, used) < 0)
		used = 0; /* nowhere left to complain */
	errno = saved_errno;
}
