// SPDX-License-Identifier: Apache-2.0
/*
 * The front end's counters as Prometheus text (exposition format 0.0.4); see metrics.h. Names are
 * stable: Documentation/api.md lists them. Invariant: one consistent snapshot a scrape.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/metrics.h"

static const double bounds[FM_METRICS_BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
						  1,	2.5,   5,    10,  30,	120};

void fm_metrics_init(struct fm_metrics *metrics)
{
	memset(metrics, 0, sizeof(*metrics));
	pthread_mutex_init(&metrics->lock, NULL);
}

void fm_metrics_destroy(struct fm_metrics *metrics)
{
	pthread_mutex_destroy(&metrics->lock);
}

void fm_metrics_count_code(struct fm_metrics *metrics, int code)
{
	pthread_mutex_lock(&metrics->lock);
	for (int i = 0; i < FM_METRICS_CODES; i++) {
		if (metrics->codes[i].code != code && metrics->codes[i].code)
			continue;
		metrics->codes[i].code = code;
		metrics->codes[i].count++;
		break;
	}
	pthread_mutex_unlock(&metrics->lock);
}

void fm_metrics_count_tokens(struct fm_metrics *metrics, uint64_t prompt, uint64_t cached,
			     uint64_t generated)
{
	pthread_mutex_lock(&metrics->lock);
	metrics->prompt_tokens += prompt;
	metrics->cached_tokens += cached;
	metrics->generated_tokens += generated;
	pthread_mutex_unlock(&metrics->lock);
}

void fm_metrics_observe_ttft(struct fm_metrics *metrics, double seconds)
{
	int bucket = 0;

	while (bucket < FM_METRICS_BUCKETS && seconds > bounds[bucket])
		bucket++;
	pthread_mutex_lock(&metrics->lock);
	metrics->buckets[bucket]++;
	metrics->ttft_count++;
	metrics->ttft_sum += seconds;
	pthread_mutex_unlock(&metrics->lock);
}

static void head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP fabric_engine_%s %s\n# TYPE fabric_engine_%s %s\n", name, help, name,
		type);
}

static void one(FILE *out, const char *name, const char *type, const char *help, uint64_t value)
{
	head(out, name, type, help);
	fprintf(out, "fabric_engine_%s %llu\n", name, (unsigned long long)value);
}

/* A label's value: the characters that would end it are escaped. */
static void label(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', out);
		fputc(*text == '\n' ? ' ' : *text, out);
	}
}

static const char *role_name(enum fm_role role)
{
	return role == FM_ROLE_PREFILL	? "prefill"
	       : role == FM_ROLE_DECODE ? "decode"
	       : role == FM_ROLE_BOTH	? "both"
					: "";
}

static void write_workers(FILE *out, const struct fm_metrics *metrics)
{
	static const struct {
		const char *name, *help;
	} gauges[] = {{"worker_up", "1 while the worker is connected."},
		      {"worker_running", "Requests that the worker says it runs."},
		      {"worker_waiting", "Requests that the worker says wait in it."}};

	for (int g = 0; g < 3; g++) {
		head(out, gauges[g].name, "gauge", gauges[g].help);
		for (size_t i = 0; i < metrics->n_workers; i++) {
			const struct fm_worker_state *worker = &metrics->workers[i];
			uint32_t value = g == 0	  ? worker->is_up
					 : g == 1 ? worker->running
						  : worker->waiting;

			fprintf(out, "fabric_engine_%s{worker=\"", gauges[g].name);
			label(out, worker->address);
			fprintf(out, "\",role=\"%s\"} %u\n", role_name(worker->role), value);
		}
	}
}

static void write_ttft(FILE *out, const struct fm_metrics *metrics)
{
	uint64_t below = 0;

	head(out, "time_to_first_token_seconds", "histogram",
	     "From the request's last byte to its first token.");
	for (int i = 0; i <= FM_METRICS_BUCKETS; i++) {
		below += metrics->buckets[i];
		if (i < FM_METRICS_BUCKETS)
			fprintf(out,
				"fabric_engine_time_to_first_token_seconds_bucket{le=\"%g\"} "
				"%llu\n",
				bounds[i], (unsigned long long)below);
	}
	fprintf(out,
		"fabric_engine_time_to_first_token_seconds_bucket{le=\"+Inf\"} %llu\n"
		"fabric_engine_time_to_first_token_seconds_sum %.6f\n"
		"fabric_engine_time_to_first_token_seconds_count %llu\n",
		(unsigned long long)below, metrics->ttft_sum,
		(unsigned long long)metrics->ttft_count);
}

char *fm_metrics_text(struct fm_metrics *metrics, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);
	bool is_short;

	if (!out)
		return NULL;
	pthread_mutex_lock(&metrics->lock);
	head(out, "requests_total", "counter",
	     "API requests by HTTP status; 499: the client left.");
	for (int i = 0; i < FM_METRICS_CODES && metrics->codes[i].code; i++)
		fprintf(out, "fabric_engine_requests_total{code=\"%d\"} %llu\n",
			metrics->codes[i].code, (unsigned long long)metrics->codes[i].count);
	one(out, "requests_running", "gauge", "Requests that are with a worker.",
	    metrics->counts.running);
	one(out, "requests_waiting", "gauge", "Requests that wait for a worker.",
	    metrics->counts.waiting);
	one(out, "prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
	    metrics->prompt_tokens);
	one(out, "cached_prompt_tokens_total", "counter",
	    "Of them, tokens whose KV was in the pool already.", metrics->cached_tokens);
	one(out, "generated_tokens_total", "counter", "Tokens generated for clients.",
	    metrics->generated_tokens);
	head(out, "routes_total", "counter", "Requests by the way they took.");
	for (int i = FM_ROUTE_MONOLITHIC; i <= FM_ROUTE_DISAGGREGATED; i++)
		fprintf(out, "fabric_engine_routes_total{route=\"%s\"} %llu\n", fm_route_name(i),
			(unsigned long long)metrics->counts.routes[i]);
	one(out, "retries_total", "counter", "Requests taken from one worker and given to another.",
	    metrics->counts.retries);
	one(out, "pool_attached", "gauge", "1 while the node's pool is attached.",
	    metrics->pool_attached);
	write_ttft(out, metrics);
	write_workers(out, metrics);
	pthread_mutex_unlock(&metrics->lock);
	is_short = ferror(out) != 0;
	if (fclose(out) || is_short) {
		free(text);
		return NULL;
	}
	return text;
}
