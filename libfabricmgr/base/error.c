// SPDX-License-Identifier: Apache-2.0
/*
 * Names, sentences and the per-thread detail of errors. Any layer may call this; it calls nothing.
 * Invariant: every enum fm_err has exactly one row in the table.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include <fabricmgr.h>

#include "base/error.h"

static const struct {
	const char *name;
	const char *text;
} errors[] = {
	[-FM_OK] = {"FM_OK", "no error"},
	[-FM_ERR_INVALID] = {"FM_ERR_INVALID", "an argument or input is malformed"},
	[-FM_ERR_NOT_FOUND] = {"FM_ERR_NOT_FOUND", "there is no such thing"},
	[-FM_ERR_EXISTS] = {"FM_ERR_EXISTS", "a block of that key is already sealed"},
	[-FM_ERR_NO_MEMORY] = {"FM_ERR_NO_MEMORY", "out of memory"},
	[-FM_ERR_POOL_FULL] = {"FM_ERR_POOL_FULL", "every block of the pool is leased or staged"},
	[-FM_ERR_LIMIT] = {"FM_ERR_LIMIT", "a documented limit would be exceeded"},
	[-FM_ERR_DEADLINE] = {"FM_ERR_DEADLINE", "the deadline passed first"},
	[-FM_ERR_DISCONNECTED] = {"FM_ERR_DISCONNECTED", "the other side is gone"},
	[-FM_ERR_PERMISSION] = {"FM_ERR_PERMISSION", "not permitted"},
	[-FM_ERR_VERSION] = {"FM_ERR_VERSION", "the other side speaks another version"},
	[-FM_ERR_CORRUPT] = {"FM_ERR_CORRUPT", "a checksum or a structure is wrong"},
	[-FM_ERR_UNSUPPORTED] = {"FM_ERR_UNSUPPORTED", "not supported here"},
	[-FM_ERR_IO] = {"FM_ERR_IO", "a system call failed"},
	[-FM_ERR_FORKED] = {"FM_ERR_FORKED", "the handle belongs to the parent process"},
	[-FM_ERR_CANCELLED] = {"FM_ERR_CANCELLED", "cancelled by the caller"},
	[-FM_ERR_BUSY] = {"FM_ERR_BUSY", "in use; try again later"},
	[-FM_ERR_DRAINING] = {"FM_ERR_DRAINING",
			      "the daemon is being drained: no new blocks or clients"},
};

static _Thread_local char detail[512];
static _Thread_local int last;

static bool is_known(int err)
{
	return err <= 0 && err > -(int)(sizeof(errors) / sizeof(errors[0]));
}

const char *fm_error_name(int err)
{
	return is_known(err) ? errors[-err].name : "FM_ERR_UNKNOWN";
}

const char *fm_error_text(int err)
{
	return is_known(err) ? errors[-err].text : "an error that this version does not know";
}

const char *fm_error_detail(void)
{
	return detail;
}

int fm_fail(int err, const char *format, ...)
{
	char text[sizeof(detail)];
	va_list args;

	/* Formatted aside first: an argument may be the old detail itself. */
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	/* Names from files and peers stand in it, and people read it on terminals. */
	for (char *at = text; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	snprintf(detail, sizeof(detail), "%s", text);
	last = err;
	return err;
}

int fm_error_last(void)
{
	return last;
}

int fm_error_of(int number)
{
	return number == ENOMEM || number == ENOBUFS ? FM_ERR_NO_MEMORY : FM_ERR_IO;
}

const char *fm_version(void)
{
	return FM_VERSION;
}
