// SPDX-License-Identifier: Apache-2.0
/*
 * See progress.h. Called by the main thread only.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "progress.h"

#define TO_START_AND_CLEAR "\r\033[K"

static bool is_shown;

void fm_progress(const char *format, ...)
{
	va_list args;

	if (!isatty(STDERR_FILENO))
		return;
	fputs(TO_START_AND_CLEAR, stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fflush(stderr);
	is_shown = true;
}

void fm_progress_end(void)
{
	if (is_shown)
		fputs(TO_START_AND_CLEAR, stderr);
	is_shown = false;
}
