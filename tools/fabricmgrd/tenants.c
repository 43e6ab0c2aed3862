// SPDX-License-Identifier: Apache-2.0
/*
 * See tenants.h. Called by config.c, settings.c, control.c and groups.c. Invariant: a salt goes
 * from its file into struct sharing_tenant and from there to the library, nowhere else.
 */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr_messages.h>

#include "command_line.h"
#include "settings.h"

enum key {
	GROUP,
	USERS,
	GROUPS,
	GUARANTEED,
	MAX,
	STAGING,
	REQUESTS,
	NVME,
	ADOPTED,
	SALT_FILE,
	N_KEYS
};

static const char *const keys[N_KEYS] = {
	"group",   "users",    "groups", "guaranteed", "max",
	"staging", "requests", "nvme",	 "adopted",    "salt-file",
};

/* ---- values --------------------------------------------------------------------------------- */

static int parse_id(const char *word, bool is_group, uint32_t *out)
{
	const struct passwd *user = NULL;
	const struct group *group = NULL;

	if (word[strspn(word, "0123456789")] == '\0')
		return fm_parse_u32("", word, 0, UINT32_MAX - 1, out);
	if (is_group)
		group = getgrnam(word);
	else
		user = getpwnam(word);
	*out = group ? group->gr_gid : user ? user->pw_uid : 0;
	return group || user ? 0 : FM_ERR_NOT_FOUND;
}

int ids_parse(const char *what, const char *text, bool are_groups, struct ids *out)
{
	char *copy = strdup(text), *rest = NULL;
	int err = copy ? 0 : fm_fail(FM_ERR_NO_MEMORY, "%s: no memory", what);

	out->n = 0;
	for (char *word = copy ? strtok_r(copy, ", \t", &rest) : NULL; word && !err;
	     word = strtok_r(NULL, ", \t", &rest)) {
		if (out->n == SHARING_IDS_MAX)
			err = fm_fail(FM_ERR_LIMIT, "%s: at most %d of them", what,
				      SHARING_IDS_MAX);
		else if (parse_id(word, are_groups, &out->list[out->n++]))
			err = fm_fail(FM_ERR_INVALID,
				      "%s %.64s: %.64s is no %s of this machine; give its number, "
				      "or create it",
				      what, text, word, are_groups ? "group" : "user");
	}
	free(copy);
	if (!err && !out->n)
		err = fm_fail(FM_ERR_INVALID,
			      "%s %.64s: give numbers or names, with commas between", what, text);
	return err;
}

static bool is_name(const char *text)
{
	size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789._-");

	return isalnum((unsigned char)*text) && !text[length] && length < 32;
}

/* The file's first line. */
static int read_salt(const char *what, struct sharing_tenant *tenant)
{
	char whose[520];
	FILE *file;
	size_t length;
	int err;

	snprintf(whose, sizeof(whose), "%s: ", what);
	err = settings_open_file(whose, tenant->salt_file, &file);
	if (err)
		return err;
	if (!fgets(tenant->salt, sizeof(tenant->salt), file))
		tenant->salt[0] = '\0';
	fclose(file);
	length = strcspn(tenant->salt, "\r\n");
	if (!length || length == sizeof(tenant->salt) - 1)
		return fm_fail(FM_ERR_INVALID,
			       "%s: %s: its first line must be a salt of 1 to %zu "
			       "bytes",
			       what, tenant->salt_file, sizeof(tenant->salt) - 2);
	tenant->salt[length] = '\0';
	return 0;
}

/* ---- sections ------------------------------------------------------------------------------- */

static struct sharing_tenant *find_tenant(struct sharing *sharing, const char *name)
{
	for (uint32_t i = 0; i < sharing->n_tenants; i++)
		if (!strcmp(sharing->tenants[i].name, name))
			return &sharing->tenants[i];
	return NULL;
}

static struct sharing_group *find_group(struct sharing *sharing, const char *name)
{
	for (uint32_t i = 0; i < sharing->n_groups; i++)
		if (!strcmp(sharing->groups[i].name, name))
			return &sharing->groups[i];
	return NULL;
}

static int add_group(struct settings *settings, const char *name, uint32_t line)
{
	struct sharing *sharing = &settings->sharing;
	struct sharing_group *group = &sharing->groups[sharing->n_groups];
	int err;

	if (sharing->n_groups == SHARING_GROUPS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%s:%u: at most %d sharing groups",
			       settings->read_from, line, SHARING_GROUPS_MAX);
	group->settings = calloc(1, sizeof(*group->settings));
	if (!group->settings)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a sharing group");
	err = settings_create(group->settings);
	group->settings->read_from = settings->read_from;
	group->settings->is_group = true;
	snprintf(group->name, sizeof(group->name), "%s", name);
	group->line = line;
	sharing->n_groups++;
	return err;
}

static int add_tenant(struct settings *settings, const char *name, uint32_t line)
{
	struct sharing *sharing = &settings->sharing;
	struct sharing_tenant *tenant = &sharing->tenants[sharing->n_tenants];

	if (sharing->n_tenants == SHARING_TENANTS_MAX)
		return fm_fail(FM_ERR_LIMIT, "%s:%u: at most %d tenants", settings->read_from, line,
			       SHARING_TENANTS_MAX);
	snprintf(tenant->name, sizeof(tenant->name), "%s", name);
	tenant->line = line;
	sharing->n_tenants++;
	return 0;
}

/* What stands behind "group " or "tenant "; NULL: it is neither. */
static const char *name_in(const char *section, bool *is_group)
{
	*is_group = !strncmp(section, "group ", 6);
	if (!*is_group && strncmp(section, "tenant ", 7))
		return NULL;
	section += *is_group ? 6 : 7;
	return section + strspn(section, " \t");
}

bool sharing_has(const char *section)
{
	bool is_group;

	return name_in(section, &is_group);
}

bool sharing_open(struct settings *settings, const char *section, uint32_t line, int *err)
{
	struct sharing *sharing = &settings->sharing;
	bool is_group;
	const char *name = name_in(section, &is_group);

	*err = 0;
	if (!name)
		return false;
	if (!is_name(name) || !strcmp(name, FM_TENANT_DEFAULT))
		*err = fm_fail(FM_ERR_INVALID,
			       "%s:%u: [%.64s]: the name has 1 to 31 lower-case letters, digits, "
			       "dots, dashes and underscores, and is not " FM_TENANT_DEFAULT
			       ", whose section is [pool]",
			       settings->read_from, line, section);
	else if (is_group ? find_group(sharing, name) != NULL : find_tenant(sharing, name) != NULL)
		*err = fm_fail(FM_ERR_INVALID, "%s:%u: [%.64s] stands above already",
			       settings->read_from, line, section);
	else
		*err = is_group ? add_group(settings, name, line)
				: add_tenant(settings, name, line);
	return true;
}

static int refuse_key(const struct settings *settings, uint32_t line, const char *section,
		      const char *key, const char *const *names, size_t n)
{
	const char *near = fm_nearest_name(key, names, n, sizeof(*names));
	char list[256] = "";
	size_t used = 0;

	if (near)
		snprintf(list, sizeof(list), "did you mean %s?", near);
	for (size_t i = 0; !near && i < n && used < sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
					 i ? ", " : "give one of ", names[i]);
	return fm_fail(FM_ERR_INVALID, "%s:%u: %.64s: [%s] has no such key; %s",
		       settings->read_from, line, key, section, list);
}

static int take_of_group(const struct settings *settings, struct sharing_group *group,
			 const char *section, const char *key, const char *value, uint32_t line)
{
	const char *names[SETTINGS_MAX];
	size_t n = 0;

	for (uint32_t row = 0; row < settings_count; row++) {
		if (!settings_table[row].is_of_group)
			continue;
		names[n++] = settings_table[row].flag;
		if (!strcmp(settings_table[row].flag, key))
			return settings_give(group->settings, row, FROM_FILE, line, value);
	}
	return refuse_key(settings, line, section, key, names, n);
}

static int take_of_tenant(struct sharing_tenant *tenant, enum key key, const char *what,
			  const char *value)
{
	struct fm_tenant_quotas *quotas = &tenant->quotas;

	switch (key) {
	case GROUP:
		if (!is_name(value))
			return fm_fail(FM_ERR_INVALID,
				       "%s %.64s: give the name of a group, or "
				       "default for that of [pool]",
				       what, value);
		snprintf(tenant->group, sizeof(tenant->group), "%s", value);
		return 0;
	case USERS:
		return ids_parse(what, value, false, &tenant->uids);
	case GROUPS:
		return ids_parse(what, value, true, &tenant->gids);
	case GUARANTEED:
		return fm_parse_quota(what, value, &quotas->guaranteed_bytes);
	case MAX:
		return fm_parse_quota(what, value, &quotas->max_bytes);
	case STAGING:
		return fm_parse_quota(what, value, &quotas->staging_bytes);
	case NVME:
		return fm_parse_bytes(what, value, 0, &quotas->nvme_bytes);
	case ADOPTED:
		return fm_parse_bytes(what, value, 0, &tenant->adopted_bytes);
	case REQUESTS:
		return fm_parse_u64(what, value, 0, 1 << 20, &quotas->requests);
	default:
		tenant->salt_file = strdup(value);
		return tenant->salt_file ? read_salt(what, tenant)
					 : fm_fail(FM_ERR_NO_MEMORY, "%s: no memory", what);
	}
}

int sharing_take(struct settings *settings, const char *section, const char *key, const char *value,
		 uint32_t line)
{
	bool is_group;
	const char *name = name_in(section, &is_group);
	struct sharing_group *group = is_group ? find_group(&settings->sharing, name) : NULL;
	struct sharing_tenant *tenant = is_group ? NULL : find_tenant(&settings->sharing, name);
	char what[512];

	/* inih read another section out of its line than sharing_open() did. */
	if (!group && !tenant)
		return fm_fail(FM_ERR_INVALID,
			       "%s:%u: %.64s: the line of section [%.64s] is not clear; write it "
			       "without anything else",
			       settings->read_from, line, key, section);
	if (is_group)
		return take_of_group(settings, group, section, key, value, line);
	snprintf(what, sizeof(what), "%s:%u: %.64s", settings->read_from, line, key);
	for (uint32_t i = 0; i < N_KEYS; i++) {
		if (strcmp(keys[i], key))
			continue;
		if (tenant->given & 1u << i)
			return fm_fail(FM_ERR_INVALID,
				       "%s: the section gives it already; give it "
				       "once",
				       what);
		tenant->given |= 1u << i;
		return take_of_tenant(tenant, i, what, value);
	}
	return refuse_key(settings, line, section, key, keys, N_KEYS);
}

/* ---- when all is read ----------------------------------------------------------------------- */

static uint32_t row_of(const char *flag)
{
	uint32_t row = 0;

	while (strcmp(settings_table[row].flag, flag))
		row++;
	return row;
}

static int place_tenant(struct settings *settings, struct sharing_tenant *tenant)
{
	struct sharing *sharing = &settings->sharing;
	bool is_alone = !*tenant->group;
	struct sharing_group *group;
	char size[32];
	int err = 0;

	if (is_alone)
		memcpy(tenant->group, tenant->name, sizeof(tenant->group)); /* as long */
	group = find_group(sharing, tenant->group);
	if (!group && !is_alone)
		return fm_fail(FM_ERR_INVALID,
			       "%s:%u: [tenant %s]: there is no group %s; write [group %s] with "
			       "its size",
			       settings->read_from, tenant->line, tenant->name, tenant->group,
			       tenant->group);
	if (!group) {
		err = add_group(settings, tenant->group, tenant->line);
		group = &sharing->groups[sharing->n_groups - 1];
	}
	/* Alone, it has the pool that it may fill. */
	if (!err && is_alone && !group->settings->given[row_of("size")].n &&
	    tenant->quotas.max_bytes) {
		snprintf(size, sizeof(size), "%llu", (unsigned long long)tenant->quotas.max_bytes);
		err = settings_give(group->settings, row_of("size"), FROM_FILE, tenant->line, size);
	}
	if (!err && !tenant->uids.n && !tenant->gids.n)
		err = fm_fail(FM_ERR_INVALID,
			      "%s:%u: [tenant %s]: nobody may act for it; give users or groups",
			      settings->read_from, tenant->line, tenant->name);
	return err;
}

static int place_group(struct settings *settings, struct sharing_group *group)
{
	const char *socket = settings->server.socket, *slash = strrchr(socket, '/');
	struct settings *own = group->settings;
	char path[512];
	int err = 0;

	if (!own->given[row_of("size")].n)
		return fm_fail(FM_ERR_INVALID,
			       "%s:%u: sharing group %s has no size; give it in [group %s], or, "
			       "for a tenant alone, as its max",
			       settings->read_from, group->line, group->name, group->name);
	/* Who may attach is said by users and groups; the socket need not say it again. */
	if (!own->given[row_of("socket-mode")].n)
		err = settings_give(own, row_of("socket-mode"), FROM_DEFAULT, group->line, "0666");
	if (err || own->given[row_of("socket")].n)
		return err;
	snprintf(path, sizeof(path), "%.*s%s.sock", slash ? (int)(slash - socket + 1) : 0, socket,
		 group->name);
	return settings_give(own, row_of("socket"), FROM_DEFAULT, group->line, path);
}

static bool may_meet(const char *a, const char *b)
{
	return a && b && !strcmp(a, b);
}

static int check_places(const struct settings *settings, const struct sharing_group *group,
			const struct sharing_group *other)
{
	const char *what = NULL;

	if (may_meet(group->settings->server.socket, other->settings->server.socket))
		what = "socket";
	if (may_meet(group->settings->server.nvme_path, other->settings->server.nvme_path))
		what = "NVMe log";
	return what ? fm_fail(FM_ERR_INVALID, "%s:%u: the groups %s and %s have the same %s",
			      settings->read_from, group->line, group->name, other->name, what)
		    : 0;
}

static int check_nvme(const struct settings *settings, const struct settings *own)
{
	const char *what = own->is_group ? "nvme" : "path";
	uint32_t row = row_of("nvme-size");

	if (!own->given[row].n || own->server.nvme_path)
		return 0;
	return own->given[row].source == FROM_FLAG
		       ? fm_fail(FM_ERR_INVALID, "--nvme-size without --nvme: give both, or none")
		       : fm_fail(FM_ERR_INVALID,
				 "%s:%u: a size of NVMe without %s: give both, or none",
				 settings->read_from, own->given[row].line, what);
}

/* What fm_server_create() refuses, too; here the line is known. */
static int check_quotas(const struct settings *settings, const struct sharing_group *group)
{
	uint64_t chunks = group->settings->server.pool_bytes / FM_CHUNK_BYTES, sum = 0;

	for (uint32_t i = 0; i < settings->sharing.n_tenants; i++) {
		const struct sharing_tenant *tenant = &settings->sharing.tenants[i];
		const struct fm_tenant_quotas *quotas = &tenant->quotas;

		if (strcmp(tenant->group, group->name))
			continue;
		if (quotas->max_bytes && quotas->guaranteed_bytes > quotas->max_bytes)
			return fm_fail(FM_ERR_INVALID,
				       "%s:%u: [tenant %s]: more is guaranteed than its max",
				       settings->read_from, tenant->line, tenant->name);
		sum += quotas->guaranteed_bytes / FM_CHUNK_BYTES +
		       (quotas->guaranteed_bytes % FM_CHUNK_BYTES != 0);
		if (sum > chunks)
			return fm_fail(FM_ERR_INVALID,
				       "%s:%u: [tenant %s]: with it, %llu MiB are guaranteed "
				       "together, and the pool of group %s has %llu MiB: guarantee "
				       "less, or make it larger",
				       settings->read_from, tenant->line, tenant->name,
				       (unsigned long long)(sum * FM_CHUNK_BYTES >> 20),
				       group->name,
				       (unsigned long long)(chunks * FM_CHUNK_BYTES >> 20));
	}
	return 0;
}

/* Whom Redis clients of a group act for: one of its tenants, of a tenant alone that one. */
static int place_redis(struct settings *settings, uint32_t number)
{
	const struct sharing *sharing = &settings->sharing;
	const struct sharing_group *group = &sharing->groups[number];
	struct settings *own = group->settings;
	const char *wanted = own->redis.tenant, *first = NULL;
	uint32_t row = row_of("redis-tenant"), n = 0;
	char where[512];

	for (uint32_t i = 0; i < sharing->n_tenants; i++) {
		if (strcmp(sharing->tenants[i].group, group->name))
			continue;
		first = n++ ? first : sharing->tenants[i].name;
		if (wanted && !strcmp(sharing->tenants[i].name, wanted))
			return 0;
	}
	if (!wanted && number && n == 1)
		own->redis.tenant = first;
	if (!wanted || !strcmp(wanted, FM_TENANT_DEFAULT))
		return 0;
	if (own->given[row].source == FROM_FLAG)
		snprintf(where, sizeof(where), "--redis-tenant");
	else
		snprintf(where, sizeof(where), "%s:%u: %s", settings->read_from,
			 own->given[row].line,
			 own->is_group ? settings_table[row].flag : settings_table[row].key);
	return fm_fail(
		FM_ERR_INVALID,
		"%s %.64s: group %s has no such tenant; name one of its own, or " FM_TENANT_DEFAULT,
		where, wanted, group->name);
}

int sharing_finish(struct settings *settings)
{
	struct sharing *sharing = &settings->sharing;
	int err = 0;

	for (uint32_t i = 0; i < sharing->n_tenants && !err; i++)
		err = place_tenant(settings, &sharing->tenants[i]);
	for (uint32_t i = 1; i < sharing->n_groups && !err; i++)
		err = place_group(settings, &sharing->groups[i]);
	for (uint32_t i = 0; i < sharing->n_groups && !err; i++) {
		for (uint32_t j = 0; j < i && !err; j++)
			err = check_places(settings, &sharing->groups[i], &sharing->groups[j]);
		if (!err)
			err = check_nvme(settings, sharing->groups[i].settings);
		if (!err)
			err = check_quotas(settings, &sharing->groups[i]);
		if (!err)
			err = place_redis(settings, i);
	}
	return err;
}

void sharing_destroy(struct settings *settings)
{
	struct sharing *sharing = &settings->sharing;

	for (uint32_t i = 1; i < sharing->n_groups; i++) {
		sharing->groups[i].settings->read_from = NULL; /* it was lent */
		settings_destroy(sharing->groups[i].settings);
		free(sharing->groups[i].settings);
	}
	for (uint32_t i = 0; i < sharing->n_tenants; i++) {
		free(sharing->tenants[i].salt_file);
		explicit_bzero(sharing->tenants[i].salt, sizeof(sharing->tenants[i].salt));
	}
	sharing->n_tenants = sharing->n_groups = 0;
}

void sharing_options(const struct settings *settings, uint32_t number,
		     struct fm_server_options *out, struct fm_tenant_options *tenants)
{
	const struct sharing_group *group = &settings->sharing.groups[number];

	*out = group->settings->server;
	out->instance = settings->server.socket;
	out->uids = group->settings->uids.list;
	out->n_uids = group->settings->uids.n;
	out->gids = group->settings->gids.list;
	out->n_gids = group->settings->gids.n;
	out->group = group->name;
	out->tenants = tenants;
	out->n_tenants = 0;
	for (uint32_t i = 0; i < settings->sharing.n_tenants; i++) {
		const struct sharing_tenant *tenant = &settings->sharing.tenants[i];

		if (strcmp(tenant->group, group->name))
			continue;
		tenants[out->n_tenants++] = (struct fm_tenant_options){
			.size = sizeof(*tenants),
			.name = tenant->name,
			.salt = tenant->salt,
			.uids = tenant->uids.list,
			.n_uids = tenant->uids.n,
			.gids = tenant->gids.list,
			.n_gids = tenant->gids.n,
			.quotas = tenant->quotas,
			.adopted_bytes = tenant->adopted_bytes,
		};
	}
}

/* ---- for people, and reloads ---------------------------------------------------------------- */

static void print_ids(FILE *out, const char *key, const struct ids *ids)
{
	if (!ids->n)
		return;
	fprintf(out, "%s =", key);
	for (uint32_t i = 0; i < ids->n; i++)
		fprintf(out, " %u", ids->list[i]);
	fputc('\n', out);
}

static void print_quota(FILE *out, const char *key, uint64_t value)
{
	if (value)
		fprintf(out, "%s = %llu\n", key, (unsigned long long)value);
}

void sharing_print(const struct settings *settings, FILE *out)
{
	const struct sharing *sharing = &settings->sharing;

	for (uint32_t i = 1; i < sharing->n_groups; i++) {
		fprintf(out, "[group %s] ; line %u\n", sharing->groups[i].name,
			sharing->groups[i].line);
		settings_print_group(sharing->groups[i].settings, out);
	}
	for (uint32_t i = 0; i < sharing->n_tenants; i++) {
		const struct sharing_tenant *tenant = &sharing->tenants[i];

		fprintf(out, "[tenant %s] ; line %u\ngroup = %s\n", tenant->name, tenant->line,
			tenant->group);
		print_ids(out, keys[USERS], &tenant->uids);
		print_ids(out, keys[GROUPS], &tenant->gids);
		print_quota(out, keys[GUARANTEED], tenant->quotas.guaranteed_bytes);
		print_quota(out, keys[MAX], tenant->quotas.max_bytes);
		print_quota(out, keys[STAGING], tenant->quotas.staging_bytes);
		print_quota(out, keys[REQUESTS], tenant->quotas.requests);
		print_quota(out, keys[NVME], tenant->quotas.nvme_bytes);
		print_quota(out, keys[ADOPTED], tenant->adopted_bytes);
		if (tenant->salt_file)
			fprintf(out, "salt-file = %s\n", tenant->salt_file);
	}
}

static void name_change(const char *kind, const char *name, const char *what)
{
	fm_log(FM_LOG_WARNING, FM1301 "reload: [%s %s] %s: it needs a restart", kind, name, what);
}

/* What of @next has the same name and place; NULL: it went or moved. */
static struct sharing_tenant *same_tenant(struct sharing *next, const struct sharing_tenant *tenant)
{
	struct sharing_tenant *other = find_tenant(next, tenant->name);

	return other && !strcmp(other->group, tenant->group) ? other : NULL;
}

/* Names the tenants and groups that came, went or moved. */
static void name_changes(struct sharing *now, struct sharing *next)
{
	for (uint32_t i = 0; i < now->n_tenants; i++)
		if (!same_tenant(next, &now->tenants[i]))
			name_change("tenant", now->tenants[i].name,
				    find_tenant(next, now->tenants[i].name) ? "moved" : "went");
	for (uint32_t i = 0; i < next->n_tenants; i++)
		if (!find_tenant(now, next->tenants[i].name))
			name_change("tenant", next->tenants[i].name, "came");
	for (uint32_t i = 0; i < now->n_groups; i++)
		if (!find_group(next, now->groups[i].name))
			name_change("group", now->groups[i].name, "went");
	for (uint32_t i = 0; i < next->n_groups; i++)
		if (!find_group(now, next->groups[i].name))
			name_change("group", next->groups[i].name, "came");
}

/* How many of a tenant's settings differ; they are taken over. */
static uint32_t take_over(struct sharing_tenant *tenant, const struct sharing_tenant *next)
{
	uint32_t n = 0;

	if (strcmp(tenant->salt, next->salt))
		fm_log(FM_LOG_WARNING,
		       FM1301 "reload: [tenant %s] its salt has changed: it needs a restart",
		       tenant->name);
	n += memcmp(&tenant->uids, &next->uids, sizeof(tenant->uids)) != 0;
	n += memcmp(&tenant->gids, &next->gids, sizeof(tenant->gids)) != 0;
	n += memcmp(&tenant->quotas, &next->quotas, sizeof(tenant->quotas)) != 0;
	n += tenant->adopted_bytes != next->adopted_bytes;
	tenant->uids = next->uids;
	tenant->gids = next->gids;
	tenant->quotas = next->quotas;
	tenant->adopted_bytes = next->adopted_bytes;
	tenant->line = next->line;
	return n;
}

uint32_t sharing_reload(struct settings *settings, struct settings *next)
{
	struct sharing *sharing = &settings->sharing;
	uint32_t n = 0;

	name_changes(sharing, &next->sharing);
	for (uint32_t i = 0; i < sharing->n_tenants; i++) {
		struct sharing_tenant *other = same_tenant(&next->sharing, &sharing->tenants[i]);

		n += other ? take_over(&sharing->tenants[i], other) : 0;
	}
	for (uint32_t i = 1; i < sharing->n_groups; i++) {
		struct sharing_group *other = find_group(&next->sharing, sharing->groups[i].name);

		n += other ? settings_take_live(sharing->groups[i].settings, other->settings,
						sharing->groups[i].name)
			   : 0;
	}
	return n;
}
