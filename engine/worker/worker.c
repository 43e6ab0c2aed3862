// SPDX-License-Identifier: Apache-2.0
/*
 * Driver of a worker: sockets, lines, and the engine's steps between them (see worker.h). One
 * thread. Invariant: between two polls every connection's buffers are within FM_WORKER_LINE_MAX,
 * else it is closed and its requests are forgotten.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <fabricmgr_kill_point.h>
#include <fabricmgr_messages.h>

#include "json_memory.h"
#include "worker/address.h"
#include "worker/protocol.h"
#include "worker/worker.h"

#define CONNECTIONS_MAX FM_WORKER_FRONT_ENDS_MAX
#define STATS_PAUSE_NS	100000000ull
#define RECEIVE_MAX	262144u /* bytes of one front end between two steps of the engine */
#define SHORT_PAUSE_MS	10	/* between tries to read while there is no memory for it */
#define SHORT_TRIES_MAX 500	/* then the connection ends */

struct buffer {
	char *data;
	size_t used, size;
};

struct connection {
	int fd; /* -1: free */
	bool is_broken;
	uint32_t short_tries; /* to read what it sent: there was no memory */
	bool has_greeted;     /* a whole line has come from it */
	uint64_t greet_by_ns; /* else it is closed then */
	struct buffer in, out;
	size_t sent;
};

struct worker {
	const struct fm_worker_options *options;
	struct fm_engine *engine;
	int listen_fd;
	char unix_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct connection connections[CONNECTIONS_MAX];
	struct fm_scheduler_counts told;
	uint64_t told_ns;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static bool grow(struct buffer *buffer, size_t more)
{
	size_t size = buffer->size ? buffer->size : 65536;
	char *data;

	if (buffer->used + more <= buffer->size)
		return true;
	if (buffer->used + more > FM_WORKER_LINE_MAX)
		return false;
	while (size < buffer->used + more)
		size *= 2;
	data = realloc(buffer->data, size);
	if (!data)
		return false;
	buffer->data = data;
	buffer->size = size;
	return true;
}

static bool send_line(struct connection *connection, const char *text, size_t len)
{
	if (!grow(&connection->out, len + 1))
		return false;
	memcpy(connection->out.data + connection->out.used, text, len);
	connection->out.data[connection->out.used + len] = '\n';
	connection->out.used += len + 1;
	return true;
}

/* FM_ERR_NO_MEMORY: nothing was sent. */
static int send_json(struct connection *connection, json_t *object)
{
	char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	bool is_sent = !fm_json_was_short() && text && send_line(connection, text, strlen(text));

	json_decref(object);
	free(text);
	return is_sent ? 0 : fm_fail(FM_ERR_NO_MEMORY, "no memory for a message");
}

/* An event that its front end must get: else it is told, without jansson, that the request failed,
 * and if not even that can be sent, the connection ends. */
static int on_event(void *context, void *owner, const struct fm_engine_event *event)
{
	struct connection *connection = owner;
	int err = send_json(connection,
			    fm_worker_event_json(event, event->sample ? event->sample->n_top : 0));
	char line[160];
	int len;

	(void)context;
	if (!err)
		return 0;
	len = snprintf(line, sizeof(line),
		       "{\"id\":%llu,\"event\":\"error\",\"code\":\"FM_ERR_NO_MEMORY\","
		       "\"message\":\"the worker is out of memory\",\"retry\":false}",
		       (unsigned long long)event->id);
	if (!send_line(connection, line, (size_t)len))
		connection->is_broken = true;
	return err;
}

static void send_error(struct connection *connection, uint64_t id, int err)
{
	struct fm_engine_event event = {.kind = FM_EVENT_ERROR,
					.id = id,
					.error = err,
					.message = fm_error_detail(),
					.retry = err == FM_ERR_BUSY};

	on_event(NULL, connection, &event);
}

static void send_hello(struct worker *worker, struct connection *connection)
{
	const struct fm_model_info *info = fm_model_info(worker->options->engine.model);
	const struct fm_digest *ns = fm_engine_namespace(worker->engine);
	struct fm_pool_info pool = {.size = sizeof(pool)};
	char hex[65], incarnation[17] = "";

	for (int i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", ns->bytes[i]);
	if (fm_engine_pool(worker->engine) && !fm_pool_info(fm_engine_pool(worker->engine), &pool))
		snprintf(incarnation, sizeof(incarnation), "%016llx",
			 (unsigned long long)pool.incarnation);
	/* Without its hello a front end would wait for it: it may connect again. */
	connection->is_broken =
		send_json(connection,
			  json_pack("{s:s,s:i,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:i}", "hello",
				    "fabric-worker", "version", FM_WORKER_PROTOCOL_VERSION, "role",
				    worker->options->role, "model", info->name, "numerics",
				    info->numerics_id, "namespace", hex, "pool", incarnation,
				    "tokens_per_block", (int)info->tokens_per_block, "context",
				    (int)info->context_length, "vocab", (int)info->vocab_size,
				    "pid", (int)getpid(), "max_batch",
				    (int)worker->options->engine.max_batch)) != 0;
}

static void transmit(struct connection *connection)
{
	struct buffer *out = &connection->out;

	while (connection->sent < out->used) {
		ssize_t n = send(connection->fd, out->data + connection->sent,
				 out->used - connection->sent, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			connection->is_broken = true;
		if (n < 0)
			break;
		connection->sent += (size_t)n;
	}
	FM_KILL_POINT("worker: events sent");
	if (connection->sent) {
		out->used -= connection->sent;
		memmove(out->data, out->data + connection->sent, out->used);
		connection->sent = 0;
	}
}

static void close_connection(struct worker *worker, struct connection *connection)
{
	FM_KILL_POINT("worker: before a connection closes");
	fm_engine_forget(worker->engine, connection);
	FM_KILL_POINT("worker: requests forgotten");
	close(connection->fd);
	free(connection->in.data);
	free(connection->out.data);
	*connection = (struct connection){.fd = -1};
}

/* What may be sent without waiting goes, then the end. What came from it is read first: closing a
 * socket with unread bytes would take the message away again. */
static void turn_away(struct worker *worker, struct connection *connection, int err)
{
	char unread[4096];

	fm_log(FM_LOG_WARNING, FM2203 "a front end was turned away: %s", fm_error_detail());
	send_error(connection, 0, err);
	transmit(connection);
	for (int i = 0; i < 16 && recv(connection->fd, unread, sizeof(unread), MSG_DONTWAIT) > 0;
	     i++)
		;
	close_connection(worker, connection);
}

/* Who said nothing within its time holds its place no longer. */
static void close_silent(struct worker *worker, uint64_t now)
{
	for (int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *connection = &worker->connections[i];

		if (connection->fd >= 0 && !connection->has_greeted &&
		    now >= connection->greet_by_ns)
			turn_away(worker, connection,
				  fm_fail(FM_ERR_DEADLINE, "no line came within %u s of connecting",
					  (unsigned int)(FM_WORKER_GREETING_NS / 1000000000u)));
	}
}

/* A free place, or that of the one which has been silent longest; NULL: all are in use. */
static struct connection *find_place(struct worker *worker)
{
	struct connection *silent = NULL;

	for (int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *connection = &worker->connections[i];

		if (connection->fd < 0)
			return connection;
		if (!connection->has_greeted &&
		    (!silent || connection->greet_by_ns < silent->greet_by_ns))
			silent = connection;
	}
	if (silent)
		turn_away(worker, silent,
			  fm_fail(FM_ERR_LIMIT, "nothing came from it, and its place was needed"));
	return silent;
}

static void open_connection(struct worker *worker, int fd)
{
	struct connection *connection = find_place(worker), refused = {.fd = fd};

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	if (!connection) {
		turn_away(
			worker, &refused,
			fm_fail(FM_ERR_LIMIT,
				"%d front ends are connected to this worker already: stop one, or "
				"start another worker",
				CONNECTIONS_MAX));
		return;
	}
	*connection =
		(struct connection){.fd = fd, .greet_by_ns = now_ns() + FM_WORKER_GREETING_NS};
	send_hello(worker, connection);
	FM_KILL_POINT("worker: connection opened");
}

/* False: there is no memory to read it now. */
static bool take_line(struct worker *worker, struct connection *connection, const char *line,
		      size_t len)
{
	struct fm_worker_message message;
	struct fm_engine_stats stats;
	int err = fm_worker_parse(line, len, &message);

	FM_KILL_POINT("worker: line received");
	if (err == FM_ERR_BUSY)
		return false;
	connection->has_greeted |= !err;
	if (err) {
		send_error(connection, message.request.id, err);
	} else if (message.op == FM_WORKER_OP_HELLO) {
		; /* its line is all that is wanted */
	} else if (message.op == FM_WORKER_OP_STATS) {
		fm_engine_stats(worker->engine, &stats);
		send_json(connection, fm_worker_stats_json(&stats));
	} else if (message.op == FM_WORKER_OP_CANCEL) {
		fm_engine_cancel(worker->engine, connection, message.request.id);
		FM_KILL_POINT("worker: request cancelled");
	} else {
		message.request.owner = connection;
		err = fm_engine_submit(worker->engine, &message.request);
		FM_KILL_POINT("worker: request taken");
		if (err)
			send_error(connection, message.request.id, err);
	}
	fm_worker_message_free(&message);
	return true;
}

static void be_short(struct connection *connection)
{
	if (++connection->short_tries == 1)
		fm_log(FM_LOG_WARNING,
		       FM2204 "no memory to read what a front end sent: trying again");
	if (connection->short_tries > SHORT_TRIES_MAX)
		connection->is_broken = true;
}

/* Takes the whole lines of what has come; the first @seen bytes are known to hold no end of one.
 * False: one is left, because there is no memory to read it. */
static bool take_lines(struct worker *worker, struct connection *connection, size_t seen)
{
	struct buffer *in = &connection->in;
	size_t start = 0;
	bool is_short = false;
	char *end;

	while (!connection->is_broken && (end = memchr(in->data + seen, '\n', in->used - seen))) {
		is_short = !take_line(worker, connection, in->data + start,
				      (size_t)(end - in->data) - start);
		if (is_short) {
			be_short(connection);
			break;
		}
		connection->short_tries = 0;
		start = seen = (size_t)(end - in->data) + 1;
	}
	in->used -= start;
	memmove(in->data, in->data + start, in->used);
	return !is_short;
}

static void receive(struct worker *worker, struct connection *connection)
{
	struct buffer *in = &connection->in;
	size_t received = 0;
	ssize_t got;

	/* What memory lacked for is a whole line or room for more of one. */
	if (connection->short_tries && in->used && !take_lines(worker, connection, 0))
		return;
	do {
		if (!grow(in, 65536) && in->used + 65536 <= FM_WORKER_LINE_MAX) {
			be_short(connection);
			return;
		}
		if (in->used + 65536 > FM_WORKER_LINE_MAX) {
			fm_log(FM_LOG_WARNING,
			       FM2205 "a front end sent a line over %u bytes: closed",
			       FM_WORKER_LINE_MAX);
			connection->is_broken = true;
			return;
		}
		connection->short_tries = 0;
		got = recv(connection->fd, in->data + in->used, in->size - in->used, 0);
		if (got > 0) {
			size_t seen = in->used;

			in->used += (size_t)got;
			received += (size_t)got;
			take_lines(worker, connection, seen);
		}
	} while (got > 0 && !connection->is_broken && !connection->short_tries &&
		 received < RECEIVE_MAX);
	if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
		connection->is_broken = true;
}

/* Load changes, at most ten times a second. */
static void tell_stats(struct worker *worker)
{
	struct fm_engine_stats stats;
	uint64_t now = now_ns();

	fm_engine_stats(worker->engine, &stats);
	if ((stats.schedule.running == worker->told.running &&
	     stats.schedule.waiting == worker->told.waiting) ||
	    now - worker->told_ns < STATS_PAUSE_NS)
		return;
	worker->told = stats.schedule;
	worker->told_ns = now;
	for (int i = 0; i < CONNECTIONS_MAX; i++)
		if (worker->connections[i].fd >= 0)
			send_json(&worker->connections[i], fm_worker_stats_json(&stats));
}

/* A socket file that nobody answers on is left over from a killed worker: it goes. */
static int clear_path(const struct sockaddr_un *address)
{
	const char *path = address->sun_path;
	struct stat status;
	int probe, result;

	if (!lstat(path, &status) && !S_ISSOCK(status.st_mode))
		return fm_fail(FM_ERR_EXISTS,
			       "--listen unix:%s: exists and is not a socket: choose another path",
			       path);
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (probe < 0)
		return fm_fail(FM_ERR_IO, "socket: %s", strerror(errno));
	result = connect(probe, (const struct sockaddr *)address, sizeof(*address));
	close(probe);
	if (!result)
		return fm_fail(FM_ERR_BUSY,
			       "--listen unix:%s: another worker serves there: choose another path",
			       path);
	unlink(path);
	return 0;
}

static int listen_on(struct worker *worker, const char *where)
{
	struct sockaddr_storage address;
	struct sockaddr_un *local = (struct sockaddr_un *)&address;
	socklen_t len;
	int on = 1, fd, err;
	bool is_unix;

	err = fm_worker_address_parse("--listen", where, &address, &len);
	if (err)
		return err;
	is_unix = address.ss_family == AF_UNIX;
	if (is_unix && (err = clear_path(local)))
		return err;
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || (!is_unix && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on))) ||
	    bind(fd, (struct sockaddr *)&address, len) ||
	    (is_unix && chmod(local->sun_path, 0600)) || listen(fd, 16)) {
		err = fm_fail(FM_ERR_IO, "--listen %s: cannot listen there: %s: %s", where,
			      strerror(errno),
			      errno == EADDRINUSE ? "another program does: choose another port"
						  : "choose an address that this user may use");
		if (fd >= 0)
			close(fd);
		return err;
	}
	if (is_unix)
		strcpy(worker->unix_path, local->sun_path);
	worker->listen_fd = fd;
	return 0;
}

/* One wait for whatever happens; does not sleep while the engine has work. Returns false to stop.
 */
static bool wait_and_serve(struct worker *worker, bool has_work)
{
	struct pollfd fds[CONNECTIONS_MAX + 2];
	int n = CONNECTIONS_MAX + 2, pause = has_work ? 0 : 1000, fd;

	fds[0] = (struct pollfd){.fd = worker->options->stop_fd, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = worker->listen_fd, .events = POLLIN};
	for (int i = 0; i < CONNECTIONS_MAX; i++) {
		const struct connection *connection = &worker->connections[i];

		fds[i + 2] =
			(struct pollfd){.fd = connection->fd,
					.events = (short)((connection->short_tries ? 0 : POLLIN) |
							  (connection->out.used ? POLLOUT : 0))};
		if (connection->fd >= 0 && connection->short_tries && pause)
			pause = SHORT_PAUSE_MS;
	}
	if (poll(fds, (nfds_t)n, pause) < 0)
		return errno == EINTR;
	if (fds[0].revents)
		return false;
	for (int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *connection = &worker->connections[i];

		if (connection->fd >= 0 &&
		    (fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR) || connection->short_tries))
			receive(worker, connection);
	}
	if (fds[1].revents & POLLIN &&
	    (fd = accept4(worker->listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		open_connection(worker, fd);
	return true;
}

static void serve(struct worker *worker)
{
	bool has_work = false;

	while (wait_and_serve(worker, has_work)) {
		int n_open = 0;

		close_silent(worker, now_ns());
		has_work = fm_engine_step(worker->engine);
		tell_stats(worker);
		for (int i = 0; i < CONNECTIONS_MAX; i++) {
			struct connection *connection = &worker->connections[i];

			if (connection->fd >= 0)
				transmit(connection);
			if (connection->fd >= 0 && connection->is_broken)
				close_connection(worker, connection);
			n_open += connection->fd >= 0;
		}
		if (worker->listen_fd < 0 && !n_open)
			return;
	}
}

int fm_worker_run(const struct fm_worker_options *options)
{
	struct worker worker = {.options = options, .listen_fd = -1};
	int err;

	for (int i = 0; i < CONNECTIONS_MAX; i++)
		worker.connections[i].fd = -1;
	err = fm_engine_create(&options->engine, on_event, &worker, &worker.engine);
	if (err)
		return err;
	if (options->listen)
		err = listen_on(&worker, options->listen);
	if (!err) {
		if (options->fd >= 0) {
			open_connection(&worker, options->fd);
			worker.connections[0].has_greeted = true; /* ours: it needs no greeting */
		}
		if (options->say_ready) {
			puts("ready");
			fflush(stdout);
		}
		serve(&worker);
		fm_engine_refuse_all(worker.engine, "the worker is shutting down");
	}
	for (int i = 0; i < CONNECTIONS_MAX; i++)
		if (worker.connections[i].fd >= 0) {
			transmit(&worker.connections[i]);
			close_connection(&worker, &worker.connections[i]);
		}
	if (worker.listen_fd >= 0)
		close(worker.listen_fd);
	if (*worker.unix_path)
		unlink(worker.unix_path);
	fm_engine_destroy(worker.engine);
	return err;
}
