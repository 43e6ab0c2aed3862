// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon's configuration file, of any bytes: taken, or refused with its line, never a crash or
 * a leak; and what --check prints of a file that was taken is a file that says the same. Called by
 * libFuzzer; the metrics' listening address is parsed here as metrics.c does. Seeds:
 * corpus/config/.
 *
 * FUZZ_SOURCES: tools/fabricmgrd/config.c tools/fabricmgrd/settings.c tools/command_line.c
 * FUZZ_SOURCES: tools/fabricmgrd/tenants.c libfabricmgr/base/error.c libfabricmgr/base/log.c
 * FUZZ_LIBS: -linih
 * FUZZ_FLAGS: -Itools -Itools/fabricmgrd
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command_line.h"
#include "settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool claim)
{
	if (!claim)
		abort();
}

int metrics_check(const char *what, const struct metrics_flags *flags)
{
	struct sockaddr_storage address;
	char host[64];

	return flags->listen ? fm_parse_listen(what, flags->listen, flags->is_behind_proxy,
					       "a remedy", &address, host, sizeof(host))
			     : 0;
}

/* @data as the file of @path. */
static int load(const char *path, int fd, const void *data, size_t size, struct settings *out)
{
	struct settings line;
	int err;

	require(!ftruncate(fd, 0) && pwrite(fd, data, size, 0) == (ssize_t)size);
	require(!settings_create(&line));
	line.file = path;
	err = settings_load(&line, out);
	settings_destroy(&line);
	return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct settings first, second;
	char path[64], *printed = NULL;
	size_t length = 0;
	static int fd = -1;
	FILE *out;
	int err;

	if (fd < 0)
		fd = memfd_create("config", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	err = load(path, fd, data, size, &first);
	if (err) {
		require(err < 0 && *fm_error_detail());
		return 0;
	}
	out = open_memstream(&printed, &length);
	require(out != NULL);
	settings_print(&first, out);
	require(!fclose(out));
	/* With the source of its value behind it, a line may get too long. */
	err = load(path, fd, printed, length, &second);
	require(!err || strstr(fm_error_detail(), "over 198 bytes"));
	for (uint32_t row = 0; row < settings_count && !err; row++)
		require(settings_are_equal(&first, &second, row));
	settings_destroy(&first);
	if (!err)
		settings_destroy(&second);
	free(printed);
	return 0;
}
