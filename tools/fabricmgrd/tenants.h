/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sections [group NAME] and [tenant NAME] of the configuration file: who shares a pool, with
 * which quotas. A group is settings of its own, with keys that are named as the flags are. Called
 * by config.c and settings.c, which own it, and by groups.c. Invariant: after sharing_finish()
 * every tenant has a group, and group 0 is the one of [pool].
 */
#ifndef FABRICMGRD_TENANTS_H
#define FABRICMGRD_TENANTS_H

#include <stdio.h>

#include <fabricmgr.h>

struct settings;

enum { SHARING_TENANTS_MAX = 31, SHARING_GROUPS_MAX = 16, SHARING_IDS_MAX = 64 };

struct ids {
	uint32_t list[SHARING_IDS_MAX], n;
};

struct sharing_tenant {
	char name[32], group[32]; /* group "": one of its own */
	uint32_t line;		  /* of its section */
	struct ids uids, gids;
	struct fm_tenant_quotas quotas;
	uint64_t adopted_bytes; /* of memory of its clients' own */
	char *salt_file; /* NULL: none */
	char salt[64];
	uint32_t given; /* keys that were, one bit each */
};

struct sharing_group {
	char name[32];
	uint32_t line;
	struct settings *settings; /* of group 0: those that the sharing belongs to */
};

struct sharing {
	struct sharing_tenant tenants[SHARING_TENANTS_MAX];
	struct sharing_group groups[SHARING_GROUPS_MAX];
	uint32_t n_tenants, n_groups;
};

/* "1001, alice": numbers and names of users, or of groups. */
int ids_parse(const char *what, const char *text, bool are_groups, struct ids *out);

/* Whether @section is one of ours; a new one begins here. *@err: it is malformed. */
bool sharing_open(struct settings *settings, const char *section, uint32_t line, int *err);
/* Whether @section is one of ours. */
bool sharing_has(const char *section);
/* A key of such a section. */
int sharing_take(struct settings *settings, const char *section, const char *key, const char *value,
		 uint32_t line);
/* Once everything was read: groups of tenants, whom Redis clients act for, and whether the quotas
 * can be kept. */
int sharing_finish(struct settings *settings);
void sharing_destroy(struct settings *settings);

/* The pool of group @number as the library wants it; @tenants has SHARING_TENANTS_MAX places. */
void sharing_options(const struct settings *settings, uint32_t number,
		     struct fm_server_options *out, struct fm_tenant_options *tenants);
/* As a configuration file. Salts are not shown. */
void sharing_print(const struct settings *settings, FILE *out);
/* Takes what may change while the daemon runs from @next, and names what may not (FM1301); how many
 * settings changed. */
uint32_t sharing_reload(struct settings *settings, struct settings *next);

#endif
