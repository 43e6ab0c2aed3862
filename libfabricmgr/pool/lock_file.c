// SPDX-License-Identifier: Apache-2.0
/*
 * See lock_file.h. Called when a server starts and ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "pool/lock_file.h"

/* The file may have been removed by the holder before us, after we opened it. */
static bool still_stands(const char *path, int fd)
{
	struct stat ours, there;

	return !fstat(fd, &ours) && !stat(path, &there) && ours.st_ino == there.st_ino &&
	       ours.st_dev == there.st_dev;
}

static int refuse(const char *path, int fd)
{
	char holder[16] = "";
	ssize_t n = pread(fd, holder, sizeof(holder) - 1, 0);

	holder[n > 0 ? n : 0] = '\0';
	return fm_fail(FM_ERR_EXISTS,
		       "another daemon (pid %s) holds %s: stop it or choose another socket",
		       n > 0 ? holder : "unknown", path);
}

int fm_lock_file_take(const char *path)
{
	for (;;) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), err;

		if (fd < 0)
			return fm_fail(FM_ERR_IO,
				       "lock file %s: %s: choose a socket in a folder that this "
				       "user may write",
				       path, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			err = errno == EWOULDBLOCK
				      ? refuse(path, fd)
				      : fm_fail(FM_ERR_IO, "locking %s: %s", path, strerror(errno));
			close(fd);
			return err;
		}
		if (still_stands(path, fd)) {
			/* For the message above only: a full disk does not matter. */
			if (ftruncate(fd, 0) || dprintf(fd, "%d", getpid()) < 0)
				fm_log(FM_LOG_DEBUG, FM1102 "lock file %s: %s", path,
				       strerror(errno));
			return fd;
		}
		close(fd);
	}
}

void fm_lock_file_release(const char *path, int fd)
{
	if (fd < 0)
		return;
	unlink(path);
	close(fd);
}
