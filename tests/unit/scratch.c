// SPDX-License-Identifier: Apache-2.0
/* Folders and files of one test (see scratch.h). For tests only. */
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "scratch.h"

#define END "/fabricmgr-unit-XXXXXX"

/* Not by Check: main() calls these, too. */
static void must(bool is_done, const char *what)
{
	if (is_done)
		return;
	perror(what);
	abort();
}

static void name(char path[SCRATCH_MAX])
{
	const char *folder = getenv("TMPDIR");
	bool is_usable = folder && *folder && strlen(folder) < SCRATCH_MAX - sizeof(END);

	snprintf(path, SCRATCH_MAX, "%.*s" END, SCRATCH_MAX - (int)sizeof(END),
		 is_usable ? folder : "/tmp");
}

void scratch_folder(char folder[SCRATCH_MAX])
{
	name(folder);
	must(mkdtemp(folder) && !chmod(folder, 0755), folder);
}

int scratch_file(char path[SCRATCH_MAX])
{
	int fd;

	name(path);
	fd = mkstemp(path);
	must(fd >= 0, path);
	return fd;
}

static int remove_one(const char *path, const struct stat *state, int kind, struct FTW *place)
{
	(void)state;
	(void)kind;
	(void)place;
	return remove(path);
}

void scratch_remove(const char *folder)
{
	must(!nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), folder);
}
