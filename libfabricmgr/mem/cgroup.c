// SPDX-License-Identifier: Apache-2.0
/*
 * See cgroup.h. Reads files only.
 */
#include <stdio.h>
#include <string.h>

#include "mem/cgroup.h"

/* The number after @key ("" for a file of one number) in a file of a group; false: none ("max"). */
static bool read_number(const char *root, const char *group, const char *name, const char *key,
			uint64_t *out)
{
	char path[512], line[128];
	size_t len = strlen(key);
	bool found = false;
	FILE *file;

	snprintf(path, sizeof(path), "%s%s/%s", root, group, name);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		unsigned long long number;

		found = !strncmp(line, key, len) && sscanf(line + len, "%llu", &number) == 1;
		if (found)
			*out = number;
	}
	fclose(file);
	return found;
}

/* The group's path in the unified hierarchy: the line that begins with "0::". */
static bool find_group(const char *self, char *group, size_t size)
{
	char line[512];
	bool found = false;
	FILE *file = fopen(self, "re");

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		found = !strncmp(line, "0::/", 4) && strlen(line) - 3 < size;
		if (found) {
			line[strcspn(line, "\n")] = '\0';
			strcpy(group, line + 3);
		}
	}
	fclose(file);
	return found;
}

bool fm_cgroup_memory(const char *self, const char *root, struct fm_cgroup_memory *out)
{
	char group[sizeof(out->path)], *slash;
	bool is_limited = false;

	if (!find_group(self, group, sizeof(group)))
		return false;
	for (;;) {
		uint64_t limit, used = 0, cache = 0;

		if (!strcmp(group, "/"))
			group[0] = '\0';
		if (read_number(root, group, "memory.max", "", &limit) &&
		    read_number(root, group, "memory.current", "", &used)) {
			read_number(root, group, "memory.stat", "inactive_file ", &cache);
			used -= cache < used ? cache : used;
			used = used < limit ? used : limit;
			if (!is_limited || limit - used < out->limit - out->used) {
				snprintf(out->path, sizeof(out->path), "%s", *group ? group : "/");
				out->limit = limit;
				out->used = used;
			}
			is_limited = true;
		}
		slash = strrchr(group, '/');
		if (!slash)
			return is_limited;
		*slash = '\0';
	}
}
