// SPDX-License-Identifier: Apache-2.0
/*
 * The tenants of one pool as the daemon knows them: names, who may act for them, salts, quotas. The
 * accounts themselves are core/tenants.c. Called by server.c and session.c on the serving thread,
 * but for fm_server_set_tenants(). Invariant: a tenant keeps its number and name as long as the
 * server lives; a salt leaves only with the answer to a hello of that tenant.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool/server.h"

/* ---- options ---- */

static int take_ids(const char *name, const uint32_t *from, uint32_t n, uint32_t *to)
{
	if (n > FM_ALLOWED_MAX)
		return fm_fail(FM_ERR_LIMIT,
			       "tenant %s: at most %u users and %u groups may be named", name,
			       FM_ALLOWED_MAX, FM_ALLOWED_MAX);
	for (uint32_t i = 0; i < n; i++)
		to[i] = from[i];
	return 0;
}

static int take_text(const char *tenant, const char *what, const char *from, char *to, size_t size)
{
	if (from && strlen(from) >= size)
		return fm_fail(FM_ERR_LIMIT, "tenant %.64s: its %s has more than %zu bytes", tenant,
			       what, size - 1);
	snprintf(to, size, "%s", from ? from : "");
	return 0;
}

static struct fm_tenant_limits limits_of(const struct fm_tenant_quotas *quotas, uint32_t chunks)
{
	uint64_t guaranteed = quotas->guaranteed_bytes / FM_CHUNK_BYTES +
			      (quotas->guaranteed_bytes % FM_CHUNK_BYTES != 0);
	uint64_t max = quotas->max_bytes / FM_CHUNK_BYTES;

	if (quotas->max_bytes && !max)
		max = 1;
	return (struct fm_tenant_limits){
		/* One more than there are is refused. */
		.guaranteed_chunks = guaranteed > chunks ? chunks + 1 : (uint32_t)guaranteed,
		.max_chunks = max > chunks ? chunks : (uint32_t)max,
		.staging_bytes = quotas->staging_bytes,
	};
}

static int take_tenant(struct fm_server_tenant *tenant, const struct fm_tenant_options *options)
{
	int err;

	if (!options->name || !*options->name || options->size < sizeof(*options))
		return fm_fail(FM_ERR_INVALID, "fm_tenant_options: no name, or size is not of this "
					       "version");
	err = take_text(options->name, "name", options->name, tenant->name, sizeof(tenant->name));
	if (!err)
		err = take_text(options->name, "salt", options->salt, tenant->salt,
				sizeof(tenant->salt));
	if (!err)
		err = take_ids(options->name, options->uids, options->n_uids, tenant->uids);
	if (!err)
		err = take_ids(options->name, options->gids, options->n_gids, tenant->gids);
	tenant->n_uids = options->n_uids;
	tenant->n_gids = options->n_gids;
	tenant->quotas = options->quotas;
	tenant->adopted_max_bytes = options->adopted_bytes;
	return err;
}

int fm_server_tenants_take(const struct fm_server_options *options, uint32_t chunks,
			   struct fm_server_tenant *tenants)
{
	const char *at = (const char *)options->tenants;
	struct fm_tenant_limits limits[FM_TENANTS_MAX] = {{0}};
	int err;

	memset(tenants, 0, FM_TENANTS_MAX * sizeof(*tenants));
	if (options->n_tenants >= FM_TENANTS_MAX)
		return fm_fail(FM_ERR_LIMIT, "a pool has at most %u tenants", FM_TENANTS_MAX - 1);
	snprintf(tenants->name, sizeof(tenants->name), "%s", FM_TENANT_DEFAULT);
	tenants->is_open = !options->n_tenants && !options->n_uids && !options->n_gids;
	tenants->adopted_max_bytes = options->adopted_bytes;
	err = take_ids(tenants->name, options->uids, options->n_uids, tenants->uids);
	if (!err)
		err = take_ids(tenants->name, options->gids, options->n_gids, tenants->gids);
	tenants->n_uids = options->n_uids;
	tenants->n_gids = options->n_gids;
	for (uint32_t i = 1; i <= options->n_tenants && !err; i++) {
		const struct fm_tenant_options *tenant = (const void *)at;

		err = take_tenant(&tenants[i], tenant);
		for (uint32_t j = 0; j < i && !err; j++)
			if (!strcmp(tenants[j].name, tenants[i].name))
				err = fm_fail(FM_ERR_INVALID, "there are two tenants %s",
					      tenants[i].name);
		limits[i] = limits_of(&tenants[i].quotas, chunks);
		at += options->tenants->size;
	}
	return err ? err : fm_tenants_check(limits, options->n_tenants + 1, chunks);
}

static void apply(struct fm_server *server)
{
	struct fm_tenants *accounts = &server->store.slots.tenants;
	struct fm_tenant_limits limits;

	/* First without guarantees: on the way from old to new their sum may be above the pool. */
	for (uint32_t pass = 0; pass < 2; pass++)
		for (uint32_t i = 0; i < server->tenant_count; i++) {
			limits = limits_of(&server->tenants[i].quotas, server->chunks);
			if (!pass)
				limits.guaranteed_chunks = 0;
			fm_tenants_set(accounts, i, &limits);
		}
}

void fm_server_tenants_start(struct fm_server *server, const struct fm_server_options *options)
{
	server->tenant_count = options->n_tenants + 1;
	snprintf(server->group, sizeof(server->group), "%s",
		 options->group ? options->group : FM_TENANT_DEFAULT);
	apply(server);
}

/* ---- changes while it runs ---- */

int fm_server_set_tenants(struct fm_server *server, const struct fm_server_options *options)
{
	struct fm_server_tenant *next, *old;
	int err = FM_ERR_NO_MEMORY, wake = FM_HANDOVER_TENANTS;

	if (!options || options->size < sizeof(*options) ||
	    (options->n_tenants && options->tenants->size < sizeof(*options->tenants)))
		return fm_fail(FM_ERR_INVALID, "fm_server_options: size is not of this version");
	next = malloc(FM_TENANTS_MAX * sizeof(*next));
	if (next)
		err = fm_server_tenants_take(options, server->chunks, next);
	if (!err && options->n_tenants + 1 != server->tenant_count)
		err = FM_ERR_UNSUPPORTED;
	/* Names do not change while the server lives: any thread may read them. */
	for (uint32_t i = 0; i < server->tenant_count && !err; i++)
		if (strcmp(next[i].name, server->tenants[i].name))
			err = FM_ERR_UNSUPPORTED;
	if (err) {
		free(next);
		return err == FM_ERR_UNSUPPORTED
			       ? fm_fail(err, "a tenant came, went or moved: that needs a restart")
		       : err == FM_ERR_NO_MEMORY ? fm_fail(err, "no memory for tenants")
						 : err;
	}
	/* Acquire and release: pairs with the exchange in fm_server_tenants_changed(). */
	old = atomic_exchange_explicit(&server->next_tenants, next, memory_order_acq_rel);
	free(old);
	if (write(server->handover[1], &wake, sizeof(wake)) != sizeof(wake))
		return fm_fail(FM_ERR_BUSY, "the server does not take new quotas now");
	return 0;
}

void fm_server_tenants_changed(struct fm_server *server)
{
	/* Acquire and release: pairs with the exchange in fm_server_set_tenants(). */
	struct fm_server_tenant *next =
		atomic_exchange_explicit(&server->next_tenants, NULL, memory_order_acq_rel);

	if (!next)
		return;
	for (uint32_t i = 0; i < server->tenant_count; i++) {
		struct fm_server_tenant *tenant = &server->tenants[i];

		memcpy(tenant->uids, next[i].uids, sizeof(tenant->uids));
		memcpy(tenant->gids, next[i].gids, sizeof(tenant->gids));
		tenant->n_uids = next[i].n_uids;
		tenant->n_gids = next[i].n_gids;
		tenant->is_open = next[i].is_open;
		tenant->quotas = next[i].quotas;
		tenant->adopted_max_bytes = next[i].adopted_max_bytes;
	}
	apply(server);
	free(next);
}

static void keep(uint64_t *value, uint64_t wanted)
{
	if (wanted != FM_QUOTA_KEEP)
		*value = wanted;
}

int fm_server_set_quotas(struct fm_server *server, const char *name, const uint64_t *values)
{
	for (uint32_t i = 0; i < server->tenant_count; i++) {
		struct fm_server_tenant *tenant = &server->tenants[i];
		struct fm_tenant_quotas quotas = tenant->quotas;
		struct fm_tenant_limits limits;
		int err;

		if (strcmp(tenant->name, name))
			continue;
		keep(&quotas.guaranteed_bytes, values[0]);
		keep(&quotas.max_bytes, values[1]);
		keep(&quotas.staging_bytes, values[2]);
		keep(&quotas.requests, values[3]);
		keep(&quotas.nvme_bytes, values[4]);
		limits = limits_of(&quotas, server->chunks);
		err = fm_tenants_set(&server->store.slots.tenants, i, &limits);
		if (!err)
			tenant->quotas = quotas;
		return err;
	}
	return fm_fail(FM_ERR_NOT_FOUND, "sharing group %s has no tenant %.32s", server->group,
		       name);
}

/* ---- who may be whom ---- */

struct peer {
	uint32_t uid;
	uint32_t n_gids;
	gid_t gids[NGROUPS_MAX + 1];
};

static void peer_of(const struct fm_session *session, struct peer *peer)
{
	socklen_t size = sizeof(peer->gids) - sizeof(peer->gids[0]);
	struct ucred credentials;
	socklen_t credentials_size = sizeof(credentials);

	peer->uid = session->uid;
	peer->n_gids = 0;
	if (!getsockopt(session->socket, SOL_SOCKET, SO_PEERCRED, &credentials, &credentials_size))
		peer->gids[peer->n_gids++] = credentials.gid;
	if (!getsockopt(session->socket, SOL_SOCKET, SO_PEERGROUPS, peer->gids + peer->n_gids,
			&size))
		peer->n_gids += size / (uint32_t)sizeof(peer->gids[0]);
}

static bool is_in(const uint32_t *list, uint32_t n, uint32_t id)
{
	for (uint32_t i = 0; i < n; i++)
		if (list[i] == id)
			return true;
	return false;
}

static bool is_named(const struct fm_server_tenant *tenant, const struct peer *peer)
{
	if (is_in(tenant->uids, tenant->n_uids, peer->uid))
		return true;
	for (uint32_t i = 0; i < peer->n_gids; i++)
		if (is_in(tenant->gids, tenant->n_gids, peer->gids[i]))
			return true;
	return false;
}

int fm_session_choose_tenant(struct fm_session *session, const char *name)
{
	const struct fm_server *server = session->server;
	bool may_be_any = fm_session_may_operate(session);
	struct peer peer;

	peer_of(session, &peer);
	/* Those of the configuration first; number 0 is for who is nobody's. */
	for (uint32_t n = 1; n <= server->tenant_count; n++) {
		uint32_t i = n % server->tenant_count;
		const struct fm_server_tenant *tenant = &server->tenants[i];

		if (*name && strcmp(name, tenant->name))
			continue;
		if (is_named(tenant, &peer) || tenant->is_open || (may_be_any && (*name || !i))) {
			session->tenant = i;
			return 0;
		}
	}
	if (!*name)
		return fm_fail(FM_ERR_PERMISSION,
			       "user %u may not use this pool: ask its administrator to name the "
			       "user or one of its groups",
			       session->uid);
	/* The same whether there is such a tenant or not. */
	return fm_fail(FM_ERR_PERMISSION,
		       "user %u may not use this pool as the tenant that was asked for: ask its "
		       "administrator to name the user or one of its groups",
		       session->uid);
}

bool fm_session_may_change(const struct fm_session *session, const struct fm_key *key)
{
	const struct fm_store *store = &session->server->store;
	uint64_t word;
	uint32_t entry = fm_index_find(&store->index, key, &word);

	if (fm_session_may_operate(session))
		return true;
	return (entry == FM_NO_ENTRY || fm_store_tenant(store, entry) == session->tenant) &&
	       !fm_tiering_is_others(session->server->tiering, key, session->tenant);
}

/* ---- requests in flight, figures ---- */

static uint64_t requests_of(const struct fm_server *server, uint32_t tenant)
{
	uint64_t n = 0;

	for (const struct fm_session *s = server->sessions; s; s = s->next)
		if (s->is_attached && s->tenant == tenant)
			n += s->waiting;
	return n;
}

bool fm_session_may_wait(struct fm_session *session)
{
	struct fm_server *server = session->server;
	uint64_t max = server->tenants[session->tenant].quotas.requests;

	if (!max || requests_of(server, session->tenant) < max)
		return true;
	session->owner.over = FM_QUOTA_REQUESTS;
	return false;
}

void fm_server_tenant_info(const struct fm_server *server, uint32_t number,
			   struct fm_tenant_info *info)
{
	const struct fm_tenant *account = &server->store.slots.tenants.list[number];
	const struct fm_server_tenant *tenant = &server->tenants[number];

	*info = (struct fm_tenant_info){
		.size = sizeof(*info),
		.number = number,
		.quotas = tenant->quotas,
		.held_bytes = (uint64_t)account->chunks * FM_CHUNK_BYTES,
		.used_bytes = account->used_bytes,
		.staged_bytes = account->staged_bytes,
		.requests = requests_of(server, number),
		.blocks = account->entries,
		.nvme_bytes = fm_tiering_tenant_bytes(server->tiering, number),
		.evictions = account->evictions,
		.taken = account->taken,
		.refused = account->refused,
		.adopted_max_bytes = tenant->adopted_max_bytes,
		.adopted_bytes = fm_server_adopted_bytes(server, number),
	};
	for (const struct fm_session *s = server->sessions; s; s = s->next)
		info->clients += s->is_attached && s->tenant == number;
	snprintf(info->name, sizeof(info->name), "%s", tenant->name);
	snprintf(info->group, sizeof(info->group), "%s", server->group);
}
