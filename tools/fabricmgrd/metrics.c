// SPDX-License-Identifier: Apache-2.0
/*
 * See metrics.h. libmicrohttpd calls on its one thread, which is a client of the pool. Names are
 * stable: Documentation/metrics.md has them. Invariant: the page and the text for Prometheus come
 * from one table, so that they cannot differ.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include <fabricmgr_messages.h>

#include "command_line.h"
#include "groups.h"
#include "metrics.h"
#include "peer.h"

enum { CONNECTIONS_MAX = 32, IDLE_SECONDS = 10 };

struct metrics {
	struct MHD_Daemon *daemon; /* NULL: stopped */
	struct groups *groups;
	struct ids users;
	bool is_behind_proxy;
	/* Attached by the first request, which meets the pools serving. */
	struct fm_pool *pools[SHARING_GROUPS_MAX];
};

/* Of one sharing group. */
struct figures {
	struct fm_pool_info pool;
	struct fm_resp_info redis;
	bool has_redis;
	const char *group; /* NULL: there is only one */
	struct fm_tenant_info tenants[SHARING_TENANTS_MAX + 1];
	uint32_t n_tenants;
};

struct all_figures {
	struct figures groups[SHARING_GROUPS_MAX];
	uint32_t n;
};

/* ---- the table ------------------------------------------------------------------------------ */

struct metric {
	const char *name, *type, *help;
	const char *label; /* with the text at @text (and @reason, offset 0: none); NULL: none */
	size_t at, text, reason;
	unsigned int bytes;	      /* of the number at @at; 0: it is 1 */
	bool is_of_redis, is_of_nvme; /* only where there is that */
	bool is_of_tenant;	      /* @at is in struct fm_tenant_info */
};

#define POOL(field)                                                                                \
	.at = offsetof(struct figures, pool.field),                                                \
	.bytes = sizeof(((struct figures *)0)->pool.field)
#define REDIS(field)                                                                               \
	.at = offsetof(struct figures, redis.field),                                               \
	.bytes = sizeof(((struct figures *)0)->redis.field), .is_of_redis = true
#define NVME(field)                                                                                \
	.at = offsetof(struct figures, pool.nvme_##field),                                         \
	.bytes = sizeof(((struct figures *)0)->pool.nvme_##field), .is_of_nvme = true
#define NVME_TEXT(field, why)                                                                      \
	.text = offsetof(struct figures, pool.nvme_##field),                                       \
	.reason = offsetof(struct figures, pool.nvme_##why), .is_of_nvme = true
#define TENANT(field)                                                                              \
	.at = offsetof(struct fm_tenant_info, field),                                              \
	.bytes = sizeof(((struct fm_tenant_info *)0)->field), .is_of_tenant = true
#define TEXT(field)   .text = offsetof(struct figures, pool.field)
#define REASON(field) .reason = offsetof(struct figures, pool.field)

#define BLOCKS	      "Blocks by state; offered ones are staging ones, too."

static const struct metric table[] = {
	{"pool_bytes", "gauge", "What the pool may hold.", POOL(total_bytes)},
	{"pool_used_bytes", "gauge", "In staged and sealed blocks, as allocated.",
	 POOL(used_bytes)},
	{"pool_adopted_regions", "gauge", "Of memory of clients' own.", POOL(adopted_regions)},
	{"pool_adopted_region_bytes", "gauge", "Of that memory.", POOL(adopted_region_bytes)},
	{"pool_adopted_bytes", "gauge", "Of it in staged and sealed blocks.", POOL(adopted_bytes)},
	{"pool_adopted_blocks", "gauge", "Those blocks.", POOL(adopted_blocks)},
	{"pool_blocks", "gauge", BLOCKS, "state=\"sealed\"", POOL(blocks_sealed)},
	{"pool_blocks", "gauge", BLOCKS, "state=\"staging\"", POOL(blocks_staging)},
	{"pool_blocks", "gauge", BLOCKS, "state=\"offered\"", POOL(blocks_offered)},
	{"pool_blocks", "gauge", BLOCKS, "state=\"quarantine\"", POOL(blocks_quarantine)},
	{"pool_blocks", "gauge", BLOCKS, "state=\"removed\"", POOL(blocks_removed)},
	{"pool_entries_max", "gauge", "Blocks that the index may hold.", POOL(entries_max)},
	{"pool_clients", "gauge", "Attached clients, the daemon's own among them.", POOL(clients)},
	{"pool_is_draining", "gauge", "1 while it takes no new blocks and clients.",
	 POOL(is_draining)},
	{"pool_stages_total", "counter", "Blocks given to clients to fill.", POOL(stages)},
	{"pool_seals_total", "counter", "Blocks published.", POOL(seals)},
	{"pool_duplicates_total", "counter", "Seals of a key that was there already.",
	 POOL(duplicates)},
	{"pool_discards_total", "counter", "Staged blocks given back unseen.", POOL(discards)},
	{"pool_evictions_total", "counter", "Sealed blocks freed to make room.", POOL(evictions)},
	{"pool_memory_info", "gauge", "1; what the pool's memory stands on, and why not on better.",
	 "rung", TEXT(rung), REASON(rung_reason)},
	{"pool_loop_info", "gauge", "1; what the daemon waits with, and why not io_uring.", "loop",
	 TEXT(loop), REASON(loop_reason)},
	{"pool_policy_info", "gauge", "1; the eviction policy.", "policy", TEXT(policy)},
	{"pool_kept_info", "gauge", "1; who keeps the pool beyond the daemon's end, or why nobody.",
	 "by", TEXT(kept_by), REASON(kept_reason)},
	{"pool_resumed_blocks", "gauge", "Blocks taken over from the daemon before.",
	 POOL(resumed_blocks)},
	{"pool_resume_dropped_blocks", "gauge", "Of that daemon's, what was not believed.",
	 POOL(resume_dropped)},
	{"pool_resume_nanoseconds", "gauge", "That taking over took.", POOL(resume_ns)},
	{"pool_kept_clients", "gauge", "Clients of daemons before that still hold on.",
	 POOL(kept_clients)},
	{"pool_kept_leases", "gauge", "Leases of theirs.", POOL(kept_leases)},
	{"redis_connections", "gauge", "Open connections of Redis clients.", REDIS(connections)},
	{"redis_accepted_total", "counter", "Connections accepted.", REDIS(accepted)},
	{"redis_refused_total", "counter", "Connections refused: too many.", REDIS(refused)},
	{"redis_commands_total", "counter", "Commands of Redis clients.", REDIS(commands)},
	{"redis_hits_total", "counter", "Values that GET and MGET found.", REDIS(hits)},
	{"redis_misses_total", "counter", "Values that GET and MGET did not find.", REDIS(misses)},
	{"redis_held_bytes", "gauge", "Of values that an EXISTS promised.", REDIS(held_bytes)},
	{"redis_name_bytes", "gauge", "Of the names that SCAN lists.", REDIS(name_bytes)},
	{"redis_names_missing", "gauge", "Names that found no room for SCAN.",
	 REDIS(names_missing)},
	{"nvme_bytes", "gauge", "Of the file or device.", NVME(bytes)},
	{"nvme_used_bytes", "gauge", "Of blocks that can be fetched.", NVME(block_bytes)},
	{"nvme_blocks", "gauge", "Blocks that can be fetched.", NVME(blocks)},
	{"nvme_reading_bytes", "gauge", "Being read.", NVME(reading_bytes)},
	{"nvme_writing_bytes", "gauge", "Being written.", NVME(writing_bytes)},
	{"nvme_segments", "gauge", "Segments of the log.", NVME(segments)},
	{"nvme_segments_bad", "gauge", "Segments given up after an error.", NVME(segments_bad)},
	{"nvme_is_dead", "gauge", "1 when it takes no more blocks after errors.", NVME(is_dead)},
	{"nvme_recovered", "gauge", "Blocks that were there at the start.", NVME(recovered)},
	{"nvme_stored_total", "counter", "Blocks stored.", NVME(stored)},
	{"nvme_stored_bytes_total", "counter", "Bytes of them.", NVME(stored_bytes)},
	{"nvme_fetched_total", "counter", "Blocks brought back.", NVME(fetched)},
	{"nvme_fetch_misses_total", "counter", "Wishes for blocks that were not there in time.",
	 NVME(fetch_misses)},
	{"nvme_reclaimed_total", "counter", "Blocks given up for space.", NVME(reclaimed)},
	{"nvme_skipped_total", "counter", "Sealed blocks that went before they were written.",
	 NVME(skipped)},
	{"nvme_read_errors_total", "counter", "Reads that failed.", NVME(read_errors)},
	{"nvme_write_errors_total", "counter", "Writes that failed.", NVME(write_errors)},
	{"nvme_flush_errors_total", "counter", "Flushes that failed.", NVME(flush_errors)},
	{"nvme_checksum_errors_total", "counter", "Blocks that came back with other bytes.",
	 NVME(checksum_errors)},
	{"nvme_info", "gauge", "1; how the device is spoken to, and why not better.", "rung",
	 NVME_TEXT(rung, rung_reason)},
	{"tenant_held_bytes", "gauge", "Memory of the tenant, in whole chunks: what quotas count.",
	 TENANT(held_bytes)},
	{"tenant_used_bytes", "gauge", "Of it in blocks.", TENANT(used_bytes)},
	{"tenant_guaranteed_bytes", "gauge", "Memory that no other tenant takes away.",
	 TENANT(quotas.guaranteed_bytes)},
	{"tenant_max_bytes", "gauge", "Memory beyond which its own blocks go; 0: no limit.",
	 TENANT(quotas.max_bytes)},
	{"tenant_staged_bytes", "gauge", "In blocks being filled.", TENANT(staged_bytes)},
	{"tenant_staging_max_bytes", "gauge", "That may be; 0: what others are not guaranteed.",
	 TENANT(quotas.staging_bytes)},
	{"tenant_requests", "gauge", "Requests that wait for room or for NVMe.", TENANT(requests)},
	{"tenant_requests_max", "gauge", "That may; 0: no limit.", TENANT(quotas.requests)},
	{"tenant_nvme_bytes", "gauge", "Of its blocks on NVMe, in whole pages.",
	 TENANT(nvme_bytes)},
	{"tenant_nvme_max_bytes", "gauge", "Beyond which the oldest of them go; 0: no limit.",
	 TENANT(quotas.nvme_bytes)},
	{"tenant_adopted_bytes", "gauge", "Of memory of its clients' own.", TENANT(adopted_bytes)},
	{"tenant_adopted_max_bytes", "gauge", "That may be; 0: none.", TENANT(adopted_max_bytes)},
	{"tenant_blocks", "gauge", "Blocks of the tenant, in any state.", TENANT(blocks)},
	{"tenant_clients", "gauge", "Its attached clients.", TENANT(clients)},
	{"tenant_evictions_total", "counter", "Its blocks freed for room of its own.",
	 TENANT(evictions)},
	{"tenant_taken_total", "counter", "Its blocks freed for room of another tenant.",
	 TENANT(taken)},
	{"tenant_refused_total", "counter", "Its requests that a quota refused.", TENANT(refused)},
};

enum { N_METRICS = sizeof(table) / sizeof(table[0]) };

/* @from: figures, or those of a tenant. */
static unsigned long long number(const struct metric *metric, const void *from)
{
	const char *at = (const char *)from + metric->at;
	uint64_t wide;
	uint32_t narrow;

	if (!metric->bytes)
		return 1;
	if (metric->bytes == sizeof(narrow)) {
		memcpy(&narrow, at, sizeof(narrow));
		return narrow;
	}
	memcpy(&wide, at, sizeof(wide));
	return wide;
}

/* A label's value, or text of the page (@is_html). */
static void put_escaped(FILE *out, const char *text, bool is_html)
{
	for (; *text; text++) {
		if (is_html && strchr("<>&\"", *text))
			fprintf(out, "&#%d;", *text);
		else if (!is_html && strchr("\"\\", *text))
			fprintf(out, "\\%c", *text);
		else
			fputc(*text == '\n' ? ' ' : *text, out);
	}
}

static void put_label(FILE *out, const char *name, const char *value, bool is_html, int *n)
{
	const char *mark = is_html ? "&#34;" : "\"";

	fprintf(out, "%c%s=%s", (*n)++ ? ',' : '{', name, mark);
	put_escaped(out, value, is_html);
	fputs(mark, out);
}

static void put_labels(FILE *out, const struct metric *metric, const struct figures *figures,
		       const struct fm_tenant_info *tenant, bool is_html)
{
	const char *base = (const char *)figures;
	int n = 0;

	if (figures->group)
		put_label(out, "group", figures->group, is_html, &n);
	if (tenant)
		put_label(out, "tenant", tenant->name, is_html, &n);
	if (metric->label && metric->text) {
		put_label(out, metric->label, base + metric->text, is_html, &n);
	} else if (metric->label) {
		fputc(n++ ? ',' : '{', out);
		if (is_html)
			put_escaped(out, metric->label, true);
		else
			fputs(metric->label, out);
	}
	if (metric->reason)
		put_label(out, "reason", base + metric->reason, is_html, &n);
	if (n)
		fputc('}', out);
}

/* Whether the group has what the figure is of. */
static bool is_there(const struct metric *metric, const struct figures *figures)
{
	return (figures->has_redis || !metric->is_of_redis) &&
	       (*figures->pool.nvme_path || !metric->is_of_nvme);
}

/* One figure of one group, of each of its tenants or of none: calls @put for each sample. */
static void each_sample(FILE *out, const struct metric *metric, const struct all_figures *all,
			void (*put)(FILE *out, const struct metric *metric,
				    const struct figures *figures,
				    const struct fm_tenant_info *tenant))
{
	for (uint32_t i = 0; i < all->n; i++) {
		const struct figures *figures = &all->groups[i];

		if (!metric->is_of_tenant && is_there(metric, figures))
			put(out, metric, figures, NULL);
		for (uint32_t t = 0; metric->is_of_tenant && t < figures->n_tenants; t++)
			put(out, metric, figures, &figures->tenants[t]);
	}
}

static bool is_shown(const struct metric *metric, const struct all_figures *all)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (is_there(metric, &all->groups[i]))
			return true;
	return false;
}

static void put_prometheus(FILE *out, const struct metric *metric, const struct figures *figures,
			   const struct fm_tenant_info *tenant)
{
	const void *from = tenant ? (const void *)tenant : figures;

	fprintf(out, "fabricmgr_%s", metric->name);
	put_labels(out, metric, figures, tenant, false);
	fprintf(out, " %llu\n", number(metric, from));
}

/* All samples of a name stand together, as the format wants it: also of several labels. */
static void write_prometheus(FILE *out, const struct all_figures *all)
{
	int i = 0;

	fprintf(out,
		"# HELP fabricmgr_build_info 1; the daemon's version.\n"
		"# TYPE fabricmgr_build_info gauge\nfabricmgr_build_info{version=\"%s\"} 1\n",
		fm_version());
	while (i < N_METRICS) {
		const struct metric *metric = &table[i];

		if (is_shown(metric, all))
			fprintf(out, "# HELP fabricmgr_%s %s\n# TYPE fabricmgr_%s %s\n",
				metric->name, metric->help, metric->name, metric->type);
		for (; i < N_METRICS && !strcmp(table[i].name, metric->name); i++)
			each_sample(out, &table[i], all, put_prometheus);
	}
}

static void put_row(FILE *out, const struct metric *metric, const struct figures *figures,
		    const struct fm_tenant_info *tenant)
{
	const void *from = tenant ? (const void *)tenant : figures;

	fprintf(out, "<tr><td>%s", metric->name);
	put_labels(out, metric, figures, tenant, true);
	fprintf(out, "</td><td class=\"n\">%llu</td><td>", number(metric, from));
	put_escaped(out, metric->help, true);
	fputs("</td></tr>\n", out);
}

static void write_page(FILE *out, const struct all_figures *all)
{
	uint64_t used = 0, total = 0;
	double percent;

	for (uint32_t i = 0; i < all->n; i++) {
		used += all->groups[i].pool.used_bytes;
		total += all->groups[i].pool.total_bytes;
	}
	percent = total ? 100.0 * (double)used / (double)total : 0;
	fprintf(out,
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
		"<meta http-equiv=\"refresh\" content=\"5\"><title>fabricmgrd</title><style>"
		"body{font:15px sans-serif;margin:2em}td,th{padding:.2em 1em .2em 0;text-align:"
		"left}td.n{text-align:right;font-variant-numeric:tabular-nums}"
		"progress{width:20em}</style></head><body>\n<h1>fabricmgrd %s</h1>\n"
		"<p><progress max=\"100\" value=\"%.1f\"></progress> %.1f %% of %.1f MiB in use"
		"</p>\n<table><tr><th>figure</th><th>value</th><th>what it is</th></tr>\n",
		fm_version(), percent, percent, (double)total / 1048576.0);
	for (int i = 0; i < N_METRICS; i++)
		each_sample(out, &table[i], all, put_row);
	fputs("</table>\n<p><a href=\"/metrics\">for Prometheus</a></p></body></html>\n", out);
}

/* ---- HTTP ----------------------------------------------------------------------------------- */

static int load_one(struct metrics *metrics, uint32_t number, struct figures *figures)
{
	struct pool_run *run = &metrics->groups->list[number];
	struct fm_pool **pool = &metrics->pools[number];
	struct fm_attach_options options = {
		.size = sizeof(options),
		.flags = FM_ATTACH_READ_ONLY,
		.leases = 1,
		.name = "metrics",
		.tenant = FM_TENANT_DEFAULT,
	};
	int64_t n;
	int err = 0;

	figures->pool.size = sizeof(figures->pool);
	figures->tenants[0].size = sizeof(figures->tenants[0]);
	figures->group = metrics->groups->n > 1 ? run->name : NULL;
	if (!*pool)
		err = fm_server_connect(run->server, &options.fd);
	if (!*pool && !err)
		err = fm_pool_attach(&options, pool);
	if (!err)
		err = fm_pool_info(*pool, &figures->pool);
	if (err)
		return err;
	n = fm_pool_tenants(*pool, figures->tenants, SHARING_TENANTS_MAX + 1);
	figures->n_tenants = n > 0 ? (uint32_t)n : 0;
	figures->has_redis = redis_info(run->redis, &figures->redis);
	return n < 0 ? (int)n : 0;
}

static int load(struct metrics *metrics, struct all_figures *all)
{
	int err = 0;

	for (all->n = 0; all->n < metrics->groups->n && !err; all->n++)
		err = load_one(metrics, all->n, &all->groups[all->n]);
	return err;
}

/* A tenant must not learn another's figures. Behind a proxy, who asks from elsewhere is its affair.
 */
static bool may_see(const struct metrics *metrics, struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	uint32_t uid;

	if (!metrics->groups->list[0].settings->sharing.n_tenants)
		return true;
	if (!info)
		return false;
	if (!peer_user(info->connect_fd, &uid))
		return metrics->is_behind_proxy && peer_is_far(info->connect_fd);
	for (uint32_t i = 0; i < metrics->users.n; i++)
		if (metrics->users.list[i] == uid)
			return true;
	return uid == 0 || uid == geteuid();
}

/* @text is freed. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned int status,
			      const char *type, char *text, size_t length)
{
	static const char *const fields[][2] = {
		{MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
		{"X-Content-Type-Options", "nosniff"},
		{"Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"},
	};
	struct MHD_Response *response =
		MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_FREE);
	enum MHD_Result result;

	if (!response) {
		free(text);
		return MHD_NO;
	}
	result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && result == MHD_YES; i++)
		result = MHD_add_response_header(response, fields[i][0], fields[i][1]);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED && result == MHD_YES)
		result = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	if (result == MHD_YES)
		result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned int status,
				   const char *format, const char *detail)
{
	char *text = NULL;
	int length = asprintf(&text, format, detail);

	return length < 0 ? MHD_NO
			  : answer(connection, status, "text/plain; charset=utf-8", text,
				   (size_t)length);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
				  const char *path, const char *method, const char *version,
				  const char *body, size_t *body_length, void **state)
{
	bool is_page = !strcmp(path, "/"), is_metrics = !strcmp(path, "/metrics");
	struct all_figures *all;
	char *text = NULL;
	size_t length;
	FILE *out;

	(void)version;
	(void)body;
	(void)state;
	*body_length = 0; /* whatever it is, it is not looked at */
	if (strcmp(method, "GET") && strcmp(method, "HEAD"))
		return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "%s: only GET\n",
				   method);
	if (!is_page && !is_metrics && strcmp(path, "/healthz"))
		return answer_text(connection, MHD_HTTP_NOT_FOUND,
				   "there are /, /metrics and /healthz%s\n", "");
	if ((is_page || is_metrics) && !may_see(context, connection))
		return answer_text(connection, MHD_HTTP_FORBIDDEN,
				   "figures of tenants are for root, the daemon's user and those "
				   "whom [metrics] users names%s\n",
				   "");
	all = calloc(1, sizeof(*all));
	if (!all)
		return MHD_NO;
	if (load(context, all)) {
		free(all);
		return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				   "the pool does not answer: %s\n", fm_error_detail());
	}
	out = is_page || is_metrics ? open_memstream(&text, &length) : NULL;
	if (out && is_page)
		write_page(out, all);
	else if (out)
		write_prometheus(out, all);
	free(all);
	if (!is_page && !is_metrics)
		return answer_text(connection, MHD_HTTP_OK, "ok%s\n", "");
	if (!out)
		return MHD_NO;
	if (ferror(out) | fclose(out)) {
		free(text);
		return MHD_NO;
	}
	return answer(connection, MHD_HTTP_OK,
		      is_page ? "text/html; charset=utf-8"
			      : "text/plain; version=0.0.4; charset=utf-8",
		      text, length);
}

/* ---- life ----------------------------------------------------------------------------------- */

static int parse(const char *what, const struct metrics_flags *flags,
		 struct sockaddr_storage *address, char host[64])
{
	return fm_parse_listen(what, flags->listen, flags->is_behind_proxy,
			       "put a proxy with TLS and keys in front and say "
			       "--metrics-behind-proxy",
			       address, host, 64);
}

int metrics_check(const char *what, const struct metrics_flags *flags)
{
	struct sockaddr_storage address;
	char host[64];

	return flags->listen ? parse(what, flags, &address, host) : 0;
}

int metrics_start(const struct metrics_flags *flags, const struct ids *users, struct groups *groups,
		  struct metrics **out)
{
	unsigned int mode = MHD_USE_EPOLL_INTERNAL_THREAD;
	const union MHD_DaemonInfo *info;
	struct sockaddr_storage address;
	struct metrics *metrics;
	char host[64];
	int err;

	*out = NULL;
	if (!flags->listen)
		return 0;
	err = parse("--metrics", flags, &address, host);
	if (err)
		return err;
	metrics = calloc(1, sizeof(*metrics));
	if (!metrics)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the metrics");
	*metrics = (struct metrics){
		.groups = groups, .users = *users, .is_behind_proxy = flags->is_behind_proxy};
	if (address.ss_family == AF_INET6)
		mode |= MHD_USE_IPv6;
	errno = 0;
	metrics->daemon = MHD_start_daemon(
		mode, 0, NULL, NULL, on_request, metrics, MHD_OPTION_SOCK_ADDR, &address,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)CONNECTIONS_MAX,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)IDLE_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)16384, MHD_OPTION_END);
	if (!metrics->daemon) {
		err = fm_listen_failed("--metrics", flags->listen, errno ? errno : EADDRINUSE);
		free(metrics);
		return err;
	}
	info = MHD_get_daemon_info(metrics->daemon, MHD_DAEMON_INFO_BIND_PORT);
	fm_log(FM_LOG_INFO, FM1012 "metrics: http://%s%s%s:%u",
	       address.ss_family == AF_INET6 ? "[" : "", host,
	       address.ss_family == AF_INET6 ? "]" : "", info ? info->port : 0);
	*out = metrics;
	return 0;
}

void metrics_stop(struct metrics *metrics)
{
	if (!metrics || !metrics->daemon)
		return;
	MHD_stop_daemon(metrics->daemon);
	metrics->daemon = NULL;
	for (uint32_t i = 0; i < metrics->groups->n; i++) {
		fm_pool_detach(metrics->pools[i]);
		metrics->pools[i] = NULL;
	}
}

void metrics_finish(struct metrics *metrics)
{
	metrics_stop(metrics);
	free(metrics);
}
