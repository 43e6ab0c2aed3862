// SPDX-License-Identifier: Apache-2.0
/*
 * See stop_signal.h. The handler does one async-signal-safe write.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "stop_signal.h"

static int stop_fd = -1;

static void on_signal(int number)
{
	uint64_t one = 1;
	int saved = errno;

	(void)number;
	if (write(stop_fd, &one, sizeof(one)) < 0)
		_exit(1); /* an eventfd that cannot be written leaves no way to stop in order */
	errno = saved;
}

int fm_stop_signal_fd(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	if (stop_fd >= 0)
		return stop_fd;
	stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (stop_fd < 0)
		return fm_fail(FM_ERR_IO, "eventfd: %s", strerror(errno));
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	return stop_fd;
}
