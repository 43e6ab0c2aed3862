// SPDX-License-Identifier: Apache-2.0
/*
 * The HTTP thread: libmicrohttpd calls on_request() with each request and content() for each piece
 * of a stream. Calls the parser, tokenizer and template; nothing here waits for a worker.
 * Invariant: a connection is suspended only after its exchange was handed over, with its lock held.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "command_line.h"
#include "http/server.h"
#include "json_memory.h"

#define BODIES_MAX     (256u << 20) /* bytes of unfinished bodies of all connections */
#define REQUEST_ID     "X-Request-Id"
#define STOP_TRIES     200 /* of 10 ms: how long clients may take to read their end */
#define IDLE_TIMEOUT_S 15  /* without a byte either way; not while a request runs */

struct fm_http_server {
	struct fm_http_options options;
	struct MHD_Daemon *daemon;
	struct MHD_Response *short_of_memory; /* made before memory was short */
	size_t longest_piece;		      /* bytes of the vocabulary's longest token */
	size_t body_bytes;		      /* HTTP thread only */
	/* Exchanges whose connection still waits or sends; a count alone, it orders nothing. */
	_Atomic uint32_t unanswered;
};

/* One request of a connection, from its head to its end. */
struct call {
	struct fm_http_server *server;
	const struct route *route;
	struct fm_bytes body;
	size_t discarded;
	bool is_short; /* of memory for its body */
	bool is_counted;
	char request_id[FM_REQUEST_ID_MAX + 1]; /* the client's, or one of ours */
	struct fm_exchange *exchange;		/* handed over */
};

typedef enum MHD_Result handler(struct call *call, struct MHD_Connection *connection);

struct route {
	const char *path, *method;
	handler *handle;
	bool is_quiet; /* not counted: asked every few seconds */
};

/* ---- answers ------------------------------------------------------------------------------ */

#define SHORT_OF_MEMORY                                                                            \
	"{\"error\":{\"message\":\"the server is out of memory\",\"type\":\"server_error\","       \
	"\"param\":null,\"code\":null}}"

/* 503 without an allocation of ours. */
static enum MHD_Result reply_short(struct fm_http_server *server, struct MHD_Connection *connection)
{
	fm_metrics_count_code(server->options.metrics, 503);
	return MHD_queue_response(connection, 503, server->short_of_memory);
}

/* Header fields that carry meaning: an answer without one of them would be another answer. */
static bool add_headers(struct MHD_Response *response, const char *const (*fields)[2], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fields[i][1] &&
		    MHD_add_response_header(response, fields[i][0], fields[i][1]) != MHD_YES)
			return false;
	return true;
}

static enum MHD_Result reply(struct call *call, struct MHD_Connection *connection, int status,
			     const char *type, char *text, size_t len)
{
	const char *const fields[][2] = {
		{MHD_HTTP_HEADER_CONTENT_TYPE, type},
		{MHD_HTTP_HEADER_ALLOW, status == 405 && call->route ? call->route->method : NULL},
		{MHD_HTTP_HEADER_RETRY_AFTER, status == 429 || status == 503 ? "1" : NULL},
		{REQUEST_ID, call->request_id},
	};
	struct MHD_Response *response;
	enum MHD_Result result;

	call->is_counted = true;
	if (!text)
		return reply_short(call->server, connection);
	response = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(text);
		return reply_short(call->server, connection);
	}
	if (!add_headers(response, fields, 4)) {
		MHD_destroy_response(response);
		return reply_short(call->server, connection);
	}
	if (!call->route || !call->route->is_quiet)
		fm_metrics_count_code(call->server->options.metrics, status);
	result = MHD_queue_response(connection, (unsigned int)status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result reply_json(struct call *call, struct MHD_Connection *connection, int status,
				  json_t *root)
{
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (fm_json_was_short()) {
		free(text);
		text = NULL;
	}
	return reply(call, connection, status, "application/json", text, text ? strlen(text) : 0);
}

static enum MHD_Result reply_error(struct call *call, struct MHD_Connection *connection,
				   const struct fm_openai_error *error)
{
	char *text = fm_openai_error_text(error);

	return reply(call, connection, error->status, "application/json", text,
		     text ? strlen(text) : 0);
}

/* An internal failure, as the client may see it. */
static void error_of(int err, struct fm_openai_error *error)
{
	if (err == FM_ERR_NO_MEMORY)
		fm_openai_refuse(error, 500, NULL, NULL, "the server is out of memory");
	else
		fm_openai_refuse(error, err == FM_ERR_INVALID ? 400 : 500, NULL, NULL, "%s",
				 fm_error_detail());
}

/* ---- streams ------------------------------------------------------------------------------ */

static ssize_t content(void *arg, uint64_t position, char *buffer, size_t max)
{
	struct fm_exchange *exchange = arg;
	size_t left;
	ssize_t result = 0;

	(void)position;
	pthread_mutex_lock(&exchange->lock);
	left = exchange->out.len - exchange->sent;
	if (exchange->is_aborted) {
		result = MHD_CONTENT_READER_END_WITH_ERROR;
	} else if (left) {
		result = (ssize_t)(left < max ? left : max);
		memcpy(buffer, exchange->out.data + exchange->sent, (size_t)result);
		exchange->sent += (size_t)result;
	} else if (exchange->is_finished) {
		result = MHD_CONTENT_READER_END_OF_STREAM;
	} else {
		exchange->is_suspended = true;
		MHD_suspend_connection(exchange->connection);
	}
	pthread_mutex_unlock(&exchange->lock);
	return result;
}

static void content_free(void *arg)
{
	fm_exchange_unref(arg);
}

static enum MHD_Result start_stream(struct call *call, struct MHD_Connection *connection)
{
	const char *const fields[][2] = {
		{MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8"},
		{MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"},
		{REQUEST_ID, call->request_id},
	};
	struct MHD_Response *response;
	enum MHD_Result result;

	call->is_counted = true;
	fm_exchange_ref(call->exchange);
	response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, content,
						     call->exchange, content_free);
	if (!response) {
		fm_exchange_unref(call->exchange);
		return reply_short(call->server, connection);
	}
	if (!add_headers(response, fields, 3)) {
		MHD_destroy_response(response);
		return reply_short(call->server, connection);
	}
	fm_metrics_count_code(call->server->options.metrics, 200);
	result = MHD_queue_response(connection, 200, response);
	MHD_destroy_response(response);
	return result;
}

/* The front end's thread has something for us (or MHD called without a reason: suspend again). */
static enum MHD_Result resume(struct call *call, struct MHD_Connection *connection)
{
	struct fm_exchange *exchange = call->exchange;
	enum { CLOSE, WAIT, STREAM, WHOLE } next = WHOLE;
	char *text = NULL;
	size_t len = 0;
	int status;

	pthread_mutex_lock(&exchange->lock);
	status = exchange->status;
	if (exchange->is_aborted) {
		next = CLOSE;
	} else if (status == 200 && exchange->request.stream) {
		next = STREAM;
	} else if (!exchange->is_finished) {
		next = WAIT;
		exchange->is_suspended = true;
		MHD_suspend_connection(connection);
	} else { /* its buffer becomes the response's */
		text = exchange->out.data;
		len = exchange->out.len;
		exchange->out = (struct fm_bytes){0};
	}
	pthread_mutex_unlock(&exchange->lock);
	switch (next) {
	case CLOSE:
		return MHD_NO;
	case WAIT:
		return MHD_YES;
	case STREAM:
		return start_stream(call, connection);
	case WHOLE:
		break;
	}
	return reply(call, connection, status, "application/json", text, len);
}

/* ---- completions -------------------------------------------------------------------------- */

static uint32_t context_of(struct fm_http_server *server)
{
	uint32_t context;

	pthread_mutex_lock(&server->options.metrics->lock);
	context = server->options.metrics->context;
	pthread_mutex_unlock(&server->options.metrics->lock);
	return context ? context : server->options.model_context;
}

/* True when not even the longest tokens could make @request's text fit: megabytes are refused
 * before this thread, which serves everybody, spends seconds on their tokens. */
static bool is_hopeless(struct fm_http_server *server, const struct fm_openai_request *request)
{
	size_t limit = (size_t)context_of(server) * server->longest_piece, bytes = 0;

	for (size_t i = 0; i < request->n_messages; i++)
		bytes += strlen(request->messages[i].content);
	for (size_t i = 0; i < request->n_prompts; i++)
		if (request->prompts[i].len > bytes)
			bytes = request->prompts[i].len;
	return bytes > limit;
}

/* Tokens of prompt @i; @out: owned by the caller. */
static int encode_prompt(struct fm_http_server *server, const struct fm_openai_request *request,
			 size_t i, struct fm_tokens *out, struct fm_openai_error *error)
{
	const struct fm_openai_prompt *prompt = request->prompts ? &request->prompts[i] : NULL;
	uint32_t vocab = fm_tokenizer_vocab_size(server->options.tokenizer);
	int err;

	*out = (struct fm_tokens){0};
	if (request->kind == FM_OPENAI_CHAT) {
		if (!server->options.chat)
			return fm_openai_refuse(error, 400, "messages", "unsupported_parameter",
						"this model has no chat template that the server "
						"knows: use /v1/completions");
		err = fm_chat_template_encode(server->options.chat, server->options.tokenizer,
					      request->messages, request->n_messages, out);
	} else if (prompt->text) {
		err = fm_tokenizer_encode(server->options.tokenizer, prompt->text, prompt->len,
					  true, true, out);
	} else {
		out->ids = malloc(prompt->n_tokens * sizeof(*out->ids));
		err = out->ids ? 0 : fm_fail(FM_ERR_NO_MEMORY, "no memory for a prompt");
		for (size_t t = 0; !err && t < prompt->n_tokens; t++) {
			if (prompt->tokens[t] >= vocab) {
				fm_tokens_free(out);
				return fm_openai_refuse(error, 400, "prompt", "invalid_value",
							"token id %u is not below %u, the size of "
							"the vocabulary",
							prompt->tokens[t], vocab);
			}
			out->ids[t] = prompt->tokens[t];
			out->n = t + 1;
		}
	}
	if (err) {
		fm_tokens_free(out);
		error_of(err, error);
		snprintf(error->param, sizeof(error->param), "%s",
			 request->kind == FM_OPENAI_CHAT ? "messages" : "prompt");
		return err;
	}
	return 0;
}

static int add_prompts(struct fm_http_server *server, struct fm_exchange *exchange,
		       struct fm_openai_error *error)
{
	const struct fm_openai_request *request = &exchange->request;
	size_t n = request->kind == FM_OPENAI_CHAT ? 1 : request->n_prompts;
	const char *param = request->kind == FM_OPENAI_CHAT ? "messages" : "prompt";
	uint32_t context = context_of(server);

	if (is_hopeless(server, request))
		return fm_openai_refuse(error, 400, param, "context_length_exceeded",
					"the prompt is too long for a context of %u tokens",
					context);
	for (size_t i = 0; i < n; i++) {
		struct fm_tokens tokens;
		uint32_t room;
		int err = encode_prompt(server, request, i, &tokens, error);

		if (err)
			return err;
		if (!tokens.n || tokens.n >= context) {
			err = tokens.n
				      ? fm_openai_refuse(
						error, 400, param, "context_length_exceeded",
						"the prompt has %zu tokens; the context is %u, and "
						"the answer needs at least 1",
						tokens.n, context)
				      : fm_openai_refuse(error, 400, param, "invalid_value",
							 "%s must not be empty", param);
			fm_tokens_free(&tokens);
			return err;
		}
		room = context - (uint32_t)tokens.n;
		if (request->max_tokens && request->max_tokens < room)
			room = request->max_tokens;
		err = fm_exchange_add_prompt(exchange, server->options.tokenizer, &tokens, room);
		fm_tokens_free(&tokens);
		if (err) {
			error_of(err, error);
			return err;
		}
	}
	return 0;
}

static int prepare(struct call *call, enum fm_openai_kind kind, struct fm_exchange **out,
		   struct fm_openai_error *error)
{
	struct fm_http_server *server = call->server;
	struct fm_openai_request request;
	struct fm_exchange *exchange;
	uint64_t random[2] = {0};
	int err = fm_openai_parse(kind, call->body.len ? call->body.data : "", call->body.len,
				  &request, error);

	if (!err && request.model && *request.model &&
	    strcmp(request.model, server->options.model_name))
		err = fm_openai_refuse(error, 404, "model", "model_not_found",
				       "the model \"%.100s\" does not exist here; this server has "
				       "\"%.100s\"",
				       request.model, server->options.model_name);
	if (!err && getrandom(random, sizeof(random), 0) < 0)
		random[0] = (uint64_t)time(NULL);
	if (!err && !request.has_seed)
		request.sampling.seed = random[0] & INT64_MAX; /* JSON's integers end there */
	if (!err) {
		err = fm_exchange_create(&request, &exchange);
		if (err)
			error_of(err, error);
	}
	fm_openai_request_free(&request); /* empty once the exchange took it over */
	if (err)
		return err;
	exchange->created = time(NULL);
	memcpy(exchange->request_id, call->request_id, sizeof(exchange->request_id));
	snprintf(exchange->id, sizeof(exchange->id), "%s-%016llx",
		 kind == FM_OPENAI_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)random[1]);
	err = fm_sampling_check_ids(&exchange->request.sampling,
				    fm_tokenizer_vocab_size(server->options.tokenizer));
	if (err)
		fm_openai_refuse(error, 400,
				 strncmp(fm_error_detail(), "logit_bias", 10) ? "stop_token_ids"
									      : "logit_bias",
				 "invalid_value", "%s", fm_error_detail());
	else
		err = add_prompts(server, exchange, error);
	if (err) {
		fm_exchange_unref(exchange);
		return err;
	}
	*out = exchange;
	return 0;
}

static enum MHD_Result complete(struct call *call, struct MHD_Connection *connection,
				enum fm_openai_kind kind)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct fm_exchange *exchange;
	struct fm_openai_error error;
	int err = prepare(call, kind, &exchange, &error);

	if (err)
		return reply_error(call, connection, &error);
	pthread_mutex_lock(&exchange->lock);
	exchange->connection = connection;
	exchange->fd = info ? info->connect_fd : -1;
	fm_exchange_ref(exchange);
	err = call->server->options.submit(call->server->options.arg, exchange);
	if (!err) {
		exchange->is_suspended = true;
		MHD_suspend_connection(connection);
		call->exchange = exchange;
		atomic_fetch_add(&call->server->unanswered, 1);
	}
	pthread_mutex_unlock(&exchange->lock);
	if (!err)
		return MHD_YES;
	fm_exchange_unref(exchange);
	fm_exchange_unref(exchange);
	if (err == FM_ERR_LIMIT)
		fm_openai_refuse(&error, 429, NULL, "too_many_requests",
				 "too many requests are in flight: try again soon");
	else
		fm_openai_refuse(&error, 503, NULL, "shutting_down", "the server is shutting down");
	return reply_error(call, connection, &error);
}

static enum MHD_Result post_completions(struct call *call, struct MHD_Connection *connection)
{
	return complete(call, connection, FM_OPENAI_COMPLETION);
}

static enum MHD_Result post_chat(struct call *call, struct MHD_Connection *connection)
{
	return complete(call, connection, FM_OPENAI_CHAT);
}

/* ---- the small endpoints ------------------------------------------------------------------ */

static enum MHD_Result get_models(struct call *call, struct MHD_Connection *connection)
{
	const char *name = call->server->options.model_name;
	json_t *text = fm_json_text(name, strlen(name));

	return reply_json(call, connection, 200,
			  json_pack("{s:s, s:[{s:o, s:s, s:i, s:s, s:i}]}", "object", "list",
				    "data", "id", text, "object", "model", "created", 0, "owned_by",
				    "fabricmgr", "max_model_len", (int)context_of(call->server)));
}

static enum MHD_Result get_health(struct call *call, struct MHD_Connection *connection)
{
	return reply_json(call, connection, 200, json_pack("{s:s}", "status", "ok"));
}

static enum MHD_Result get_ready(struct call *call, struct MHD_Connection *connection)
{
	struct fm_metrics *metrics = call->server->options.metrics;
	struct fm_openai_error error;
	size_t used;
	bool is_ready;

	pthread_mutex_lock(&metrics->lock);
	is_ready = metrics->is_ready;
	if (metrics->is_stopping)
		fm_openai_refuse(&error, 503, NULL, "shutting_down", "the server is shutting down");
	else
		fm_openai_refuse(&error, 503, NULL, "not_ready",
				 "no worker that can decode is connected");
	used = strlen(error.message);
	for (size_t i = 0; i < metrics->n_workers && used < sizeof(error.message); i++) {
		if (metrics->workers[i].is_up)
			continue;
		snprintf(error.message + used, sizeof(error.message) - used, "; worker %s: %s",
			 metrics->workers[i].address, metrics->workers[i].state);
		used = strlen(error.message);
	}
	pthread_mutex_unlock(&metrics->lock);
	if (is_ready)
		return reply_json(call, connection, 200, json_pack("{s:s}", "status", "ready"));
	return reply_error(call, connection, &error);
}

static enum MHD_Result get_metrics(struct call *call, struct MHD_Connection *connection)
{
	size_t len = 0;
	char *text = fm_metrics_text(call->server->options.metrics, &len);

	return reply(call, connection, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
}

static enum MHD_Result post_tokenize(struct call *call, struct MHD_Connection *connection)
{
	struct fm_openai_tokenize wanted;
	struct fm_openai_error error;
	struct fm_tokens tokens;
	json_t *list;
	int err = fm_openai_parse_tokenize(call->body.len ? call->body.data : "", call->body.len,
					   &wanted, &error);

	if (err)
		return reply_error(call, connection, &error);
	err = fm_tokenizer_encode(call->server->options.tokenizer, wanted.content, wanted.len,
				  wanted.parse_special, wanted.add_special, &tokens);
	free(wanted.content);
	if (err) {
		error_of(err, &error);
		snprintf(error.param, sizeof(error.param), "content");
		return reply_error(call, connection, &error);
	}
	list = json_array();
	for (size_t i = 0; i < tokens.n; i++)
		json_array_append_new(list, json_integer(tokens.ids[i]));
	fm_tokens_free(&tokens);
	return reply_json(call, connection, 200, json_pack("{s:o}", "tokens", list));
}

static enum MHD_Result post_detokenize(struct call *call, struct MHD_Connection *connection)
{
	const struct fm_tokenizer *tokenizer = call->server->options.tokenizer;
	struct fm_openai_error error;
	struct fm_bytes text = {0};
	json_t *content = NULL;
	uint32_t *tokens;
	size_t n, len;
	int err = fm_openai_parse_detokenize(call->body.len ? call->body.data : "", call->body.len,
					     &tokens, &n, &error);

	if (err)
		return reply_error(call, connection, &error);
	for (size_t i = 0; i < n && !err; i++) {
		const char *piece;

		if (tokens[i] >= fm_tokenizer_vocab_size(tokenizer)) {
			err = fm_openai_refuse(&error, 400, "tokens", "invalid_value",
					       "tokens[%zu] is %u; the vocabulary has %u", i,
					       tokens[i], fm_tokenizer_vocab_size(tokenizer));
			break;
		}
		piece = fm_tokenizer_piece(tokenizer, tokens[i], true, &len);
		err = fm_bytes_add(&text, piece ? piece : "", piece ? len : 0);
		if (err)
			error_of(err, &error);
	}
	free(tokens);
	if (!err)
		content = fm_json_text(text.len ? text.data : "", text.len);
	fm_bytes_free(&text);
	if (err)
		return reply_error(call, connection, &error);
	return reply_json(call, connection, 200, json_pack("{s:o}", "content", content));
}

static const struct route routes[] = {
	{"/v1/chat/completions", "POST", post_chat, false},
	{"/v1/completions", "POST", post_completions, false},
	{"/v1/models", "GET", get_models, false},
	{"/tokenize", "POST", post_tokenize, false},
	{"/detokenize", "POST", post_detokenize, false},
	{"/health", "GET", get_health, true},
	{"/ready", "GET", get_ready, true},
	{"/metrics", "GET", get_metrics, true},
};

/* ---- libmicrohttpd ------------------------------------------------------------------------ */

/* What the client calls its request, or a name that no other has. */
static void name_call(struct call *call, struct MHD_Connection *connection)
{
	const char *given = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, REQUEST_ID);
	uint64_t random[2] = {0};

	if (given && fm_request_id_is_valid(given)) {
		snprintf(call->request_id, sizeof(call->request_id), "%s", given);
		return;
	}
	if (getrandom(random, sizeof(random), 0) < 0)
		random[0] = (uint64_t)time(NULL);
	snprintf(call->request_id, sizeof(call->request_id), "req-%016llx%08x",
		 (unsigned long long)random[0], (uint32_t)random[1]);
}

static enum MHD_Result answer_head(struct call *call, struct MHD_Connection *connection,
				   const char *path, const char *method, bool *is_answered)
{
	const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
							 MHD_HTTP_HEADER_CONTENT_LENGTH);
	struct fm_openai_error error;

	for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++)
		if (!strcmp(path, routes[i].path))
			call->route = &routes[i];
	*is_answered = true;
	if (!call->route)
		fm_openai_refuse(&error, 404, NULL, "not_found", "there is no %.200s here", path);
	else if (strcmp(method, call->route->method) &&
		 !(!strcmp(method, "HEAD") && !strcmp(call->route->method, "GET")))
		fm_openai_refuse(&error, 405, NULL, "method_not_allowed", "%s takes %s, not %.20s",
				 call->route->path, call->route->method, method);
	else if (length && strtoull(length, NULL, 10) > FM_FRONT_END_BODY_MAX)
		fm_openai_refuse(&error, 413, NULL, "body_too_large",
				 "the body may have at most %u bytes", FM_FRONT_END_BODY_MAX);
	else {
		*is_answered = false;
		return MHD_YES;
	}
	return reply_error(call, connection, &error);
}

static enum MHD_Result add_body(struct call *call, const char *data, size_t *len)
{
	struct fm_http_server *server = call->server;
	size_t n = *len;

	*len = 0;
	if (call->body.len + n > FM_FRONT_END_BODY_MAX || call->discarded || call->is_short) {
		call->discarded += n; /* no answer may be given before the end */
		return call->discarded > 4 * FM_FRONT_END_BODY_MAX ? MHD_NO : MHD_YES;
	}
	if (server->body_bytes + n > BODIES_MAX)
		return MHD_NO;
	call->is_short = fm_bytes_add(&call->body, data, n) != 0;
	if (!call->is_short)
		server->body_bytes += n;
	return MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
				  const char *method, const char *version, const char *data,
				  size_t *len, void **state)
{
	struct fm_http_server *server = arg;
	struct call *call = *state;
	struct fm_openai_error error;
	enum MHD_Result result;
	bool is_answered;

	(void)version;
	if (!call) {
		call = calloc(1, sizeof(*call));
		if (!call)
			return reply_short(server, connection);
		call->server = server;
		*state = call;
		name_call(call, connection);
		return answer_head(call, connection, path, method, &is_answered);
	}
	if (*len)
		return add_body(call, data, len);
	if (call->exchange)
		return resume(call, connection);
	if (call->is_short)
		return reply_short(server, connection);
	if (call->discarded) {
		fm_openai_refuse(&error, 413, NULL, "body_too_large",
				 "the body may have at most %u bytes", FM_FRONT_END_BODY_MAX);
		return reply_error(call, connection, &error);
	}
	result = call->route->handle(call, connection);
	server->body_bytes -= call->body.len;
	fm_bytes_free(&call->body);
	return result;
}

static void completed(void *arg, struct MHD_Connection *connection, void **state,
		      enum MHD_RequestTerminationCode code)
{
	struct fm_http_server *server = arg;
	struct call *call = *state;
	bool is_early = false;

	(void)connection;
	(void)code;
	if (!call)
		return;
	*state = NULL;
	if (call->exchange) {
		pthread_mutex_lock(&call->exchange->lock);
		call->exchange->connection = NULL;
		call->exchange->fd = -1;
		is_early = !call->exchange->is_finished;
		pthread_mutex_unlock(&call->exchange->lock);
		if (!call->is_counted)
			fm_metrics_count_code(server->options.metrics, 499);
		fm_exchange_unref(call->exchange);
		atomic_fetch_sub(&server->unanswered, 1);
	}
	if (is_early)
		server->options.left(server->options.arg);
	server->body_bytes -= call->body.len;
	fm_bytes_free(&call->body);
	free(call);
}

/* ---- start and stop ----------------------------------------------------------------------- */

static int parse_listen(const char *text, bool tls_by_proxy, struct sockaddr_storage *out,
			char *host, size_t host_size)
{
	return fm_parse_listen("--listen", text, tls_by_proxy,
			       "put a TLS proxy with keys in front and say --tls "
			       "terminated-by-proxy",
			       out, host, host_size);
}

int fm_http_listen_check(const char *listen, bool tls_by_proxy)
{
	struct sockaddr_storage address;
	char host[64];

	return parse_listen(listen, tls_by_proxy, &address, host, sizeof(host));
}

int fm_http_server_start(const struct fm_http_options *options, char *origin, size_t origin_size,
			 struct fm_http_server **out)
{
	static const char *const short_fields[][2] = {
		{MHD_HTTP_HEADER_CONTENT_TYPE, "application/json"},
		{MHD_HTTP_HEADER_RETRY_AFTER, "1"},
	};
	struct fm_http_server *server;
	struct sockaddr_storage address;
	const union MHD_DaemonInfo *info;
	char host[64];
	unsigned int flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
	int err =
		parse_listen(options->listen, options->tls_by_proxy, &address, host, sizeof(host));

	if (err)
		return err;
	server = calloc(1, sizeof(*server));
	if (!server)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the HTTP server");
	server->options = *options;
	for (uint32_t id = 0; id < fm_tokenizer_vocab_size(options->tokenizer); id++) {
		size_t len = 0;

		if (fm_tokenizer_piece(options->tokenizer, id, true, &len) &&
		    len > server->longest_piece)
			server->longest_piece = len;
	}
	server->short_of_memory = MHD_create_response_from_buffer(
		strlen(SHORT_OF_MEMORY), SHORT_OF_MEMORY, MHD_RESPMEM_PERSISTENT);
	if (!server->short_of_memory || !add_headers(server->short_of_memory, short_fields, 2)) {
		if (server->short_of_memory)
			MHD_destroy_response(server->short_of_memory);
		free(server);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the HTTP server");
	}
	if (address.ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	errno = 0;
	server->daemon = MHD_start_daemon(
		flags, 0, NULL, NULL, on_request, server, MHD_OPTION_SOCK_ADDR, &address,
		MHD_OPTION_NOTIFY_COMPLETED, completed, server, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned int)FM_FRONT_END_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
		(unsigned int)IDLE_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
		MHD_OPTION_END);
	if (!server->daemon) {
		MHD_destroy_response(server->short_of_memory);
		free(server);
		return fm_listen_failed("--listen", options->listen, errno ? errno : EADDRINUSE);
	}
	info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
	snprintf(origin, origin_size,
		 address.ss_family == AF_INET6 ? "http://[%s]:%u" : "http://%s:%u", host,
		 info ? info->port : 0);
	*out = server;
	return 0;
}

void fm_http_server_stop(struct fm_http_server *server)
{
	MHD_socket listener = MHD_quiesce_daemon(server->daemon); /* takes no new connections */
	struct timespec pause = {.tv_nsec = 10 * 1000000};

	/* The ends are written, but not yet sent. A client that does not read gets no longer. */
	for (int i = 0; atomic_load(&server->unanswered) && i < STOP_TRIES; i++)
		nanosleep(&pause, NULL);
	MHD_stop_daemon(server->daemon);
	MHD_destroy_response(server->short_of_memory);
	if (listener != MHD_INVALID_SOCKET)
		close(listener);
	free(server);
}
