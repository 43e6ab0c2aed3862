// SPDX-License-Identifier: Apache-2.0
/*
 * Digests of logits as lines of a file (see logits_log.h). Calls libcrypto and the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
/* As in libfabricmgr/core/keys.c: the calls that need no memory. */
#define OPENSSL_API_COMPAT 10100
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "worker/logits_log.h"

#define LINE_BYTES 128 /* three numbers and 64 digits */

struct fm_logits_log {
	int fd;
	char path[256]; /* for messages: cut when longer */
};

int fm_logits_log_open(const char *path, struct fm_logits_log **out)
{
	struct fm_logits_log *log = calloc(1, sizeof(*log));

	if (!log)
		return fm_fail(FM_ERR_NO_MEMORY, "--logits-log: out of memory");
	snprintf(log->path, sizeof(log->path), "%s", path);
	log->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log->fd < 0) {
		int err = fm_fail(FM_ERR_IO, "--logits-log %s: cannot be written: %s", path,
				  strerror(errno));

		free(log);
		return err;
	}
	*out = log;
	return 0;
}

void fm_logits_log_close(struct fm_logits_log *log)
{
	if (!log)
		return;
	close(log->fd);
	free(log);
}

int fm_logits_log_add(struct fm_logits_log *log, uint64_t request, uint32_t position,
		      const float *logits, size_t vocab, uint32_t token)
{
	unsigned char digest[32];
	char line[LINE_BYTES];
	int n;

	SHA256((const unsigned char *)logits, vocab * sizeof(*logits), digest);
	n = snprintf(line, sizeof(line), "%" PRIu64 " %" PRIu32 " ", request, position);
	for (size_t i = 0; i < sizeof(digest); i++)
		n += snprintf(line + n, sizeof(line) - (size_t)n, "%02x", digest[i]);
	n += snprintf(line + n, sizeof(line) - (size_t)n, " %" PRIu32 "\n", token);
	errno = 0;
	if (write(log->fd, line, (size_t)n) != n)
		return fm_fail(FM_ERR_IO, "--logits-log %s: a line could not be written: %s",
			       log->path, errno ? strerror(errno) : "the disk is full");
	return 0;
}
