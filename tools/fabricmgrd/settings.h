/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fabricmgrd can be told, by flags and by its configuration file: one table of settings, from
 * which come the flags, the keys of the file, --help and what --check prints. main.c and control.c
 * call it; it calls tools/command_line.h. Invariant: every text that a setting points to belongs to
 * its struct settings.
 */
#ifndef FABRICMGRD_SETTINGS_H
#define FABRICMGRD_SETTINGS_H

#include <stdio.h>

#include <fabricmgr.h>

#include "metrics.h"
#include "redis.h"
#include "tenants.h"

struct option;

#define SETTINGS_FILE "/etc/fabricmgr/fabricmgrd.conf"

enum { SETTINGS_MAX = 48, SETTING_VALUES_MAX = 4 };

enum setting_source { FROM_DEFAULT, FROM_FILE, FROM_FLAG };

struct settings {
	struct fm_server_options server;
	struct redis_flags redis;
	struct metrics_flags metrics;
	int log_level;	/* 0: what FABRICMGR_LOG says */
	int log_target; /* enum fm_log_target */
	int ready_fd;
	bool is_check, is_forget;
	const char *file;      /* --config; NULL: SETTINGS_FILE when it is there */
	char *read_from;       /* the file that was read; NULL: none */
	bool is_group;	       /* of a sharing group other than that of [pool] */
	struct ids uids, gids; /* who may attach without being a tenant's */
	struct ids metrics_users;
	struct sharing sharing;
	struct {
		char *values[SETTING_VALUES_MAX];
		uint32_t n, line;
		enum setting_source source;
	} given[SETTINGS_MAX]; /* beside the table's rows */
};

struct setting {
	const char *section, *key; /* NULL: a flag only */
	const char *flag;
	const char *argument; /* as --help shows it; NULL: a switch, in the file yes or no */
	const char *help;
	const char *fallback; /* the value without one; NULL: none */
	uint32_t values_max;  /* 0: one */
	/* Sets the @n-th value; @what is "--flag" or "file:line: key". */
	int (*take)(struct settings *settings, const char *what, const char *value, uint32_t n);
	/* Whether a reload takes it (control.c). */
	bool is_live;
	bool is_of_group; /* also a key of [group NAME], there named as the flag */
};

extern const struct setting settings_table[];
extern const uint32_t settings_count;

/* The fallbacks. What settings_destroy() frees is valid even after a failure. */
int settings_create(struct settings *settings);
void settings_destroy(struct settings *settings);

/* One value. A flag takes the place of the file's values; a second one in the file is refused. */
int settings_give(struct settings *settings, uint32_t row, enum setting_source source,
		  uint32_t line, const char *value);
/* @out: the fallbacks, then the file, then the flags of @line. On failure @out is destroyed. */
int settings_load(const struct settings *line, struct settings *out);
/* Takes the values that may change while it runs from @next, which gets the old ones; names
 * (FM1301) those that may not, as keys of sharing group @group, NULL: of the file's sections. How
 * many changed. */
uint32_t settings_take_live(struct settings *settings, struct settings *next, const char *group);
bool settings_are_equal(const struct settings *a, const struct settings *b, uint32_t row);

/* For getopt_long(): flags[i].val is SETTINGS_FLAG + row. */
enum { SETTINGS_FLAG = 256 };
void settings_flags(struct option *flags); /* SETTINGS_MAX + 3 of them */
/* The text of --help; valid for ever. */
const char *settings_help(void);
/* As a configuration file, each value with where it came from. */
void settings_print(const struct settings *settings, FILE *out);
/* The keys of a group alone. */
void settings_print_group(const struct settings *settings, FILE *out);

/* config.c: reads the file into @settings. Its first fault is the error, as "file:line: …". */
int settings_read_file(struct settings *settings, const char *path);
/* A regular file for reading; the error names it behind @what. */
int settings_open_file(const char *what, const char *path, FILE **out);

#endif
