// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration file: inih reads it, the table of settings says what may stand in it. Called by
 * settings.c. Invariant: what is not understood is refused with its line, never skipped.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ini.h>

#include "command_line.h"
#include "settings.h"

struct reader {
	struct settings *settings;
	FILE *file;
	uint32_t line, fault_line; /* fault_line 0: none so far */
	int err;
};

static void fault(struct reader *reader, int err)
{
	if (reader->fault_line)
		return;
	reader->fault_line = reader->line;
	reader->err = err;
}

/* The sections, or the keys of @section; how many. */
static size_t list_names(const char *section, const char *names[SETTINGS_MAX])
{
	size_t n = 0;

	for (uint32_t row = 0; row < settings_count; row++) {
		const struct setting *setting = &settings_table[row];

		if (!setting->section || (section && strcmp(section, setting->section)))
			continue;
		if (section)
			names[n++] = setting->key;
		else if (!n || strcmp(names[n - 1], setting->section))
			names[n++] = setting->section;
	}
	if (!section) {
		names[n++] = "group NAME";
		names[n++] = "tenant NAME";
	}
	return n;
}

/* What could have been written: the nearest, or all. @section NULL: of the sections. */
static int refuse(struct reader *reader, const char *section, const char *given)
{
	const char *names[SETTINGS_MAX] = {NULL}, *near, *mark = section ? "" : "[",
		   *end = section ? "" : "]";
	size_t n = list_names(section, names), used = 0;
	char list[256] = "";

	near = fm_nearest_name(given, names, n, sizeof(*names));
	if (near)
		snprintf(list, sizeof(list), "did you mean %s%s%s?", mark, near, end);
	for (size_t i = 0; !near && i < n && used < sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s%s%s",
					 i ? ", " : "give one of ", mark, names[i], end);
	if (section)
		return fm_fail(FM_ERR_INVALID, "%s:%u: %.64s: [%s] has no such key; %s",
			       reader->settings->read_from, reader->line, given, section, list);
	return fm_fail(FM_ERR_INVALID, "%s:%u: there is no section [%.64s]; %s",
		       reader->settings->read_from, reader->line, given, list);
}

/* A line that opens a section: inih tells of it only with the section's first key. */
static void check_section(struct reader *reader, const char *text)
{
	const char *end = *text == '[' ? strchr(text, ']') : NULL;
	char name[64];
	int err;

	if (!end)
		return;
	snprintf(name, sizeof(name), "%.*s", (int)(end - text - 1 < 63 ? end - text - 1 : 63),
		 text + 1);
	for (uint32_t row = 0; row < settings_count; row++)
		if (settings_table[row].section && !strcmp(settings_table[row].section, name))
			return;
	if (sharing_open(reader->settings, name, reader->line, &err)) {
		if (err)
			fault(reader, err);
		return;
	}
	fault(reader, refuse(reader, NULL, name));
}

/*
 * For inih: the next line, without its leading blanks, which inih would take for more of the value
 * before; it cuts what is too long for its buffer, which is refused here. A file's byte order marks
 * go, too.
 */
static char *next_line(char *text, int size, void *context)
{
	struct reader *reader = context;
	size_t blanks;

	if (reader->fault_line || !fgets(text, size, reader->file))
		return NULL;
	reader->line++;
	if (!strchr(text, '\n') && !feof(reader->file)) {
		fault(reader,
		      fm_fail(FM_ERR_INVALID,
			      "%s:%u: over %d bytes, or with a byte 0 in it; make it shorter",
			      reader->settings->read_from, reader->line, size - 2));
		return NULL;
	}
	blanks = strspn(text, " \t\v\f\r");
	/* inih would skip a second one, and open a section that was not seen here. */
	while (reader->line == 1 && !strncmp(text + blanks, "\xEF\xBB\xBF", 3)) {
		blanks += 3;
		blanks += strspn(text + blanks, " \t\v\f\r");
	}
	memmove(text, text + blanks, strlen(text + blanks) + 1);
	check_section(reader, text);
	return reader->fault_line ? NULL : text;
}

/* The fault of a value, and what may have led to it. */
static void fault_of_value(struct reader *reader, int err, const char *value)
{
	char detail[512];

	if (strstr(value, " #")) {
		snprintf(detail, sizeof(detail), "%s", fm_error_detail());
		fm_fail(err, "%s; behind a value only a blank and ; begin a comment, # does not",
			detail);
	}
	fault(reader, err);
}

static int take_key(void *context, const char *section, const char *key, const char *value)
{
	struct reader *reader = context;
	int err;

	if (sharing_has(section)) {
		err = sharing_take(reader->settings, section, key, value, reader->line);
		if (err)
			fault_of_value(reader, err, value);
		return !err;
	}
	for (uint32_t row = 0; row < settings_count; row++) {
		const struct setting *setting = &settings_table[row];

		if (!setting->section || strcmp(setting->section, section) ||
		    strcmp(setting->key, key))
			continue;
		/* inih takes ";" for a comment behind a blank only. */
		if (*value == ';')
			err = fm_fail(FM_ERR_INVALID,
				      "%s:%u: %s %.64s: put a blank before the comment, and a "
				      "value before both",
				      reader->settings->read_from, reader->line, key, value);
		else
			err = settings_give(reader->settings, row, FROM_FILE, reader->line, value);
		if (err)
			fault_of_value(reader, err, value);
		return !err;
	}
	if (!*section)
		fault(reader, fm_fail(FM_ERR_INVALID,
				      "%s:%u: %.64s stands before the first section; write [pool] "
				      "or another above it",
				      reader->settings->read_from, reader->line, key));
	else
		fault(reader, refuse(reader, section, key));
	return 0;
}

int settings_open_file(const char *what, const char *path, FILE **out)
{
	/* A pipe without a writer would hold up the thread that hears signals. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = errno;
	struct stat status;

	*out = NULL;
	if (fd < 0)
		return fm_fail(FM_ERR_IO, "%s%s: %s", what, path, strerror(error));
	/* /dev/null is an empty configuration; a pipe or a terminal would be waited for. */
	if (fstat(fd, &status) ||
	    !(S_ISREG(status.st_mode) || (S_ISCHR(status.st_mode) && !isatty(fd)))) {
		close(fd);
		return fm_fail(FM_ERR_IO, "%s%s: not a regular file; give one", what, path);
	}
	*out = fdopen(fd, "r");
	if (*out)
		return 0;
	close(fd);
	return fm_fail(FM_ERR_NO_MEMORY, "%s%s: no memory to read it", what, path);
}

int settings_read_file(struct settings *settings, const char *path)
{
	struct reader reader = {.settings = settings};
	int first_bad, err = settings_open_file("configuration file ", path, &reader.file);

	if (err)
		return err;
	settings->read_from = strdup(path);
	if (!settings->read_from) {
		fclose(reader.file);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a path");
	}
	first_bad = ini_parse_stream(next_line, &reader, take_key, &reader);
	if (ferror(reader.file) && !reader.fault_line)
		fault(&reader,
		      fm_fail(FM_ERR_IO, "configuration file %s: it could not be read", path));
	fclose(reader.file);
	/* A line that inih itself does not understand; it goes on after one. */
	if (first_bad > 0 && (!reader.fault_line || (uint32_t)first_bad < reader.fault_line))
		return fm_fail(FM_ERR_INVALID,
			       "%s:%d: neither [section] nor key = value; a comment begins with #",
			       path, first_bad);
	return reader.err;
}
