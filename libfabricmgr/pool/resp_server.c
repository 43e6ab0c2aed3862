// SPDX-License-Identifier: Apache-2.0
/*
 * The Redis front end's life and its bytes: listening, receiving, sending, all on one io_uring.
 * Long values are received into their blocks and sent from them. Called through fabricmgr.h.
 * Invariant: a connection is freed when the kernel holds neither a receive nor a send of it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/sha.h>

#include <fabricmgr_messages.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "core/index.h"
#include "pool/resp_front.h"

#define RING_ENTRIES   1024u
#define IN_BYTES       65536u
#define SCRATCH_BYTES  (1u << 20)
/* Of a value at a time: it is still in the cache when its checksum is taken. */
#define PIECE_BYTES    (512u << 10)
#define SKIP_MAX       (64ull << 20) /* of a refused value; more ends the connection */
#define OUT_BYTES_MAX  (64ull << 20) /* answers waiting, before more commands are taken */
/* Our memory in answers, over all connections: beyond, each waits for what is on its way to it. */
#define TEXT_BYTES_MAX	(256u << 20)
#define OUT_BYTES_SHARE (64u << 10)
#define OUT_PIECES_MAX 4096u
#define STALLED_NS     (30 * FM_NS_PER_S) /* for the rest of a command that has begun */
#define TICK_NS	       (100 * FM_NS_PER_MS)
#define LEASES	       32768u
#define HOLD_NS	       (10 * FM_NS_PER_S)

/* What a completion is of, in the low bits of its user data. */
enum { TAG_ACCEPT, TAG_STOP, TAG_RECEIVE, TAG_SEND, TAG_MASK = 3 };

/* ---- requests to the kernel ---- */

static struct io_uring_sqe *next_sqe(struct fm_resp *front)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&front->ring);

	if (!sqe) {
		io_uring_submit(&front->ring);
		sqe = io_uring_get_sqe(&front->ring);
	}
	return sqe;
}

static void set_tag(struct io_uring_sqe *sqe, void *what, unsigned int tag)
{
	io_uring_sqe_set_data64(sqe, (uint64_t)(uintptr_t)what | tag);
}

static void start_accept(struct fm_resp *front, struct resp_listener *listener)
{
	struct io_uring_sqe *sqe = next_sqe(front);

	io_uring_prep_accept(sqe, listener->fd, NULL, NULL, SOCK_CLOEXEC);
	set_tag(sqe, listener, TAG_ACCEPT);
}

static void start_stop_read(struct fm_resp *front)
{
	struct io_uring_sqe *sqe = next_sqe(front);

	io_uring_prep_read(sqe, front->stop_event, &front->stop_count, sizeof(front->stop_count),
			   0);
	set_tag(sqe, front, TAG_STOP);
}

static void start_send(struct resp_connection *connection)
{
	struct resp_out *out = &connection->out;
	struct io_uring_sqe *sqe;
	uint32_t n = out->end - out->first;

	if (connection->is_sending || connection->is_dead || !n)
		return;
	if (n > 64)
		n = 64;
	for (uint32_t i = 0; i < n; i++)
		connection->send_iov[i] = (struct iovec){
			.iov_base = (void *)out->pieces[out->first + i].data,
			.iov_len = out->pieces[out->first + i].length,
		};
	out->in_flight = n;
	connection->send_message =
		(struct msghdr){.msg_iov = connection->send_iov, .msg_iovlen = n};
	sqe = next_sqe(connection->front);
	/* Whatever goes: a client that reads slowly is told from one that does not read. */
	io_uring_prep_sendmsg(sqe, connection->fd, &connection->send_message, MSG_NOSIGNAL);
	set_tag(sqe, connection, TAG_SEND);
	connection->is_sending = true;
	connection->send_ns = fm_clock_ns();
}

/* Whether enough is on its way to this client, who does not read it. */
static bool is_full(const struct resp_connection *connection)
{
	return connection->out.bytes > OUT_BYTES_MAX ||
	       (connection->front->text_bytes > TEXT_BYTES_MAX &&
		connection->out.bytes > OUT_BYTES_SHARE) ||
	       connection->out.end - connection->out.first > OUT_PIECES_MAX;
}

static void prepare_receive(struct resp_connection *connection)
{
	struct iovec *iov = connection->receive_iov;
	uint64_t left = connection->wanted - connection->received, body;

	connection->receive_message = (struct msghdr){.msg_iov = iov, .msg_iovlen = 1};
	if (connection->phase == RESP_COMMANDS) {
		iov[0] = (struct iovec){connection->in + connection->used,
					connection->size - connection->used};
		return;
	}
	if (connection->phase == RESP_SKIPPING) {
		iov[0] = (struct iovec){connection->front->scratch,
					left < SCRATCH_BYTES ? left : SCRATCH_BYTES};
		return;
	}
	/* The rest of the value, then its CR LF. */
	body = connection->wanted - 2;
	connection->receive_message.msg_iovlen = 0;
	if (connection->received < body) {
		struct resp_long *value = &connection->longs[connection->n_longs - 1];

		iov[0] = (struct iovec){(char *)value->block.data + connection->received,
					body - connection->received};
		connection->receive_message.msg_iovlen = 1;
		if (iov[0].iov_len > PIECE_BYTES) {
			iov[0].iov_len = PIECE_BYTES;
			return;
		}
	}
	iov[connection->receive_message.msg_iovlen++] = (struct iovec){
		connection->received > body ? &connection->tail[1] : connection->tail,
		connection->received > body ? 1 : 2};
}

static void start_receive(struct resp_connection *connection)
{
	struct io_uring_sqe *sqe;

	if (connection->is_receiving || connection->is_dead || connection->is_ending ||
	    is_full(connection))
		return;
	prepare_receive(connection);
	sqe = next_sqe(connection->front);
	io_uring_prep_recvmsg(sqe, connection->fd, &connection->receive_message,
			      connection->phase == RESP_COMMANDS ? 0 : MSG_WAITALL);
	set_tag(sqe, connection, TAG_RECEIVE);
	connection->is_receiving = true;
}

/* ---- connections ---- */

static void drop_longs(struct resp_connection *connection)
{
	for (uint32_t i = 0; i < connection->n_longs; i++)
		if (connection->longs[i].block.data)
			fm_block_discard(connection->front->pool, &connection->longs[i].block, 1);
	connection->n_longs = 0;
}

static void connection_free(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;

	drop_longs(connection);
	resp_out_destroy(connection);
	close(connection->fd);
	if (connection->prev)
		connection->prev->next = connection->next;
	else
		front->connections = connection->next;
	if (connection->next)
		connection->next->prev = connection->prev;
	front->n_connections--;
	fm_resp_parser_destroy(&connection->parser);
	free(connection->longs);
	free(connection->in);
	free(connection);
}

/* Frees it now, or as soon as the kernel gives its buffers back. */
static void connection_end(struct resp_connection *connection)
{
	connection->is_dead = true;
	if (connection->is_receiving || connection->is_sending)
		shutdown(connection->fd, SHUT_RDWR);
	else
		connection_free(connection);
}

static void connection_create(struct fm_resp *front, int fd)
{
	static const char full[] = "-ERR max number of clients reached\r\n";
	struct resp_connection *connection = NULL;
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* fails on a Unix socket */
	if (front->n_connections < RESP_CONNECTIONS_MAX)
		connection = calloc(1, sizeof(*connection));
	if (connection)
		connection->in = malloc(IN_BYTES);
	if (!connection || !connection->in || fm_resp_parser_create(&connection->parser)) {
		front->n_refused++;
		send(fd, full, sizeof(full) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fd);
		if (connection)
			free(connection->in);
		free(connection);
		return;
	}
	connection->front = front;
	connection->fd = fd;
	connection->id = ++front->next_id;
	connection->size = IN_BYTES;
	connection->protocol = 2;
	connection->is_authenticated = !front->has_password;
	connection->next = front->connections;
	if (connection->next)
		connection->next->prev = connection;
	front->connections = connection;
	front->n_connections++;
	front->n_accepted++;
	start_receive(connection);
}

/* ---- what was received ---- */

/* The long value that was announced: finds it a place and takes of the buffer what is its. */
static bool begin_long(struct resp_connection *connection)
{
	struct fm_resp_parser *parser = &connection->parser;
	size_t here = connection->used - parser->scanned, take;
	struct resp_long *value;

	if (connection->n_longs == connection->longs_size) {
		uint32_t size = connection->longs_size ? connection->longs_size * 2 : 4;
		struct resp_long *longs = realloc(connection->longs, size * sizeof(*longs));

		if (!longs)
			return false;
		connection->longs = longs;
		connection->longs_size = size;
	}
	value = &connection->longs[connection->n_longs++];
	resp_command_long(connection, value);
	connection->phase = value->block.data ? RESP_IN_PLACE : RESP_SKIPPING;
	connection->wanted = parser->long_length + 2;
	if (!value->block.data && connection->wanted > SKIP_MAX) {
		resp_reply_format(connection, "-ERR %s", value->reason);
		connection->is_ending = true;
		return true;
	}
	take = here < connection->wanted ? here : connection->wanted;
	connection->received = take;
	if (value->block.data) {
		const char *from = connection->in + parser->scanned;
		size_t body = take < parser->long_length ? take : parser->long_length;

		memcpy(value->block.data, from, body);
		value->crc32c = fm_crc32c(value->block.data, body);
		memcpy(connection->tail, from + body, take - body);
	}
	/* The command's text goes on where the value stood. */
	memmove(connection->in + parser->scanned, connection->in + parser->scanned + take,
		here - take);
	connection->used -= take;
	return true;
}

/* True: the value is complete and the parser may go on. */
static bool end_long(struct resp_connection *connection)
{
	if (connection->received < connection->wanted)
		return false;
	if (connection->phase == RESP_IN_PLACE && memcmp(connection->tail, "\r\n", 2)) {
		resp_reply_text(connection,
				"-ERR Protocol error: expected CR LF after a value\r\n");
		connection->is_ending = true;
		return false;
	}
	connection->phase = RESP_COMMANDS;
	fm_resp_long_taken(&connection->parser);
	return true;
}

/* Room for the rest of a command that is longer than the buffer. */
static bool grow_in(struct resp_connection *connection)
{
	size_t size = connection->size * 2;
	char *in;

	if (connection->used < connection->size)
		return true;
	/* One more than a command's text may have: the parser says when that is passed. */
	if (connection->size >= 2 * FM_RESP_TEXT_MAX)
		return false;
	in = realloc(connection->in, size);
	if (!in)
		return false;
	connection->in = in;
	connection->size = size;
	return true;
}

/* Runs the complete commands of the buffer. False: no memory. */
static bool run_commands(struct resp_connection *connection)
{
	size_t start = 0;
	bool may_go_on = true;

	while (may_go_on && !connection->is_ending && !connection->is_dead) {
		char *in = connection->in;
		size_t taken;

		if (is_full(connection))
			break;
		/* Commands stand one behind the other; each is parsed from its own start. */
		connection->in += start;
		connection->used -= start;
		switch (fm_resp_parse(&connection->parser, connection->in, connection->used)) {
		case FM_RESP_COMMAND:
			resp_command_run(connection);
			drop_longs(connection);
			taken = fm_resp_command_taken(&connection->parser);
			connection->begun_ns = 0;
			break;
		case FM_RESP_LONG:
			taken = 0;
			resp_batch_end(connection);
			may_go_on = begin_long(connection) &&
				    (connection->is_ending || end_long(connection));
			if (connection->phase == RESP_COMMANDS && !may_go_on &&
			    !connection->is_ending)
				connection->is_dead = true;
			break;
		case FM_RESP_BROKEN:
			resp_batch_end(connection);
			resp_reply_format(connection, "-ERR Protocol error: %s",
					  connection->parser.error);
			connection->is_ending = true;
			taken = 0;
			break;
		default:
			taken = 0;
			may_go_on = false;
		}
		connection->in = in;
		connection->used += start;
		start += taken;
	}
	resp_batch_end(connection);
	connection->used -= start;
	memmove(connection->in, connection->in + start, connection->used);
	if (connection->used && !connection->begun_ns)
		connection->begun_ns = fm_clock_ns();
	return grow_in(connection);
}

/* Goes on with everything: commands, answers, the next bytes; ends what is to end. */
static void advance(struct resp_connection *connection)
{
	if (!connection->is_dead && connection->phase == RESP_COMMANDS &&
	    !connection->is_receiving && !run_commands(connection))
		connection->is_dead = true;
	start_send(connection);
	start_receive(connection);
	if (connection->is_dead || (connection->is_ending && !connection->is_sending))
		connection_end(connection);
}

/* The checksum of @n bytes that have come, now that they are in the cache. */
static void sum_received(struct resp_connection *connection, uint64_t n)
{
	struct resp_long *value = &connection->longs[connection->n_longs - 1];
	uint64_t body = connection->wanted - 2, from = connection->received;

	if (connection->phase != RESP_IN_PLACE || from >= body)
		return;
	value->crc32c = fm_crc32c_extend(value->crc32c, (char *)value->block.data + from,
					 n < body - from ? n : body - from);
}

static void on_receive(struct resp_connection *connection, int result)
{
	connection->is_receiving = false;
	if (result == -EINTR || result == -EAGAIN) {
		start_receive(connection);
		return;
	}
	if (result <= 0) {
		/* Its end. What it asked for before is still answered. */
		connection->is_ending = true;
	} else if (connection->phase == RESP_COMMANDS) {
		connection->used += (size_t)result;
	} else {
		sum_received(connection, (uint64_t)result);
		connection->received += (uint64_t)result;
		end_long(connection);
	}
	advance(connection);
}

static void on_send(struct resp_connection *connection, int result)
{
	connection->is_sending = false;
	if (result < 0 && result != -EINTR && result != -EAGAIN)
		connection->is_dead = true;
	resp_out_sent(connection, result > 0 ? (size_t)result : 0);
	if (connection->is_receiving && !connection->is_dead) {
		start_send(connection);
		return;
	}
	advance(connection);
}

static bool is_of_one_connection(int error)
{
	return error == EINTR || error == EAGAIN || error == ECONNABORTED;
}

/* Again at the next tick: at once it would only fail again. */
static void pause_accepting(struct fm_resp *front, struct resp_listener *listener, int error)
{
	uint64_t now = fm_clock_ns();

	listener->is_paused = true;
	if (now < front->accept_said_at)
		return;
	front->accept_said_at = now + FM_ACCEPT_SAID_NS;
	fm_log(FM_LOG_WARNING, FM1203 "Redis clients wait, since none can be accepted: %s",
	       strerror(error));
}

static void accept_again(struct fm_resp *front)
{
	for (uint32_t i = 0; i < front->n_listeners; i++)
		if (front->listeners[i].is_paused) {
			front->listeners[i].is_paused = false;
			start_accept(front, &front->listeners[i]);
		}
}

static void on_completion(struct fm_resp *front, uint64_t data, int result)
{
	void *what = (void *)(uintptr_t)(data & ~(uint64_t)TAG_MASK);
	struct resp_connection *connection = what;

	switch (data & TAG_MASK) {
	case TAG_ACCEPT:
		if (result >= 0)
			connection_create(front, result);
		if (result < 0 && !is_of_one_connection(-result))
			pause_accepting(front, what, -result);
		else if (!front->is_stopping)
			start_accept(front, what);
		return;
	case TAG_STOP:
		front->is_stopping = true;
		return;
	case TAG_RECEIVE:
		on_receive(connection, result);
		return;
	default:
		on_send(connection, result);
	}
}

/* ---- the loop ---- */

/*
 * A client that began a command and does not go on keeps memory, perhaps a staged block; one that
 * does not read its answers keeps leases.
 */
static void end_stalled(struct fm_resp *front, uint64_t now)
{
	struct resp_connection *connection, *next;

	for (connection = front->connections; connection; connection = next) {
		next = connection->next;
		if (connection->is_dead)
			continue;
		if (connection->is_sending
			    ? now - connection->send_ns > STALLED_NS
			    : connection->begun_ns && now - connection->begun_ns > STALLED_NS)
			connection_end(connection);
	}
}

/* For fm_resp_info(). */
static void show(struct fm_resp *front)
{
	pthread_mutex_lock(&front->lock);
	front->shown = (struct fm_resp_info){
		.size = sizeof(front->shown),
		.connections = front->n_connections,
		.accepted = front->n_accepted,
		.refused = front->n_refused,
		.commands = front->n_commands,
		.hits = front->n_hits,
		.misses = front->n_misses,
		.held_bytes = front->holds.bytes,
		.name_bytes = front->names.bytes,
		.names_missing = front->names.n_missing,
	};
	for (uint32_t i = 0; i < front->n_listeners; i++)
		front->shown.ports[i] = front->listeners[i].port;
	pthread_mutex_unlock(&front->lock);
}

static int loop(struct fm_resp *front)
{
	uint64_t next_tick = 0;

	while (!front->is_stopping) {
		struct __kernel_timespec wait = {.tv_nsec = (long long)TICK_NS};
		struct io_uring_cqe *cqe;
		unsigned int head, n = 0;
		uint64_t now;
		int err = io_uring_submit_and_wait_timeout(&front->ring, &cqe, 1, &wait, NULL);

		if (err < 0 && err != -ETIME && err != -EINTR && err != -EAGAIN && err != -EBUSY)
			return fm_fail(FM_ERR_IO, "Redis front end: io_uring: %s", strerror(-err));
		io_uring_for_each_cqe(&front->ring, head, cqe)
		{
			on_completion(front, cqe->user_data, cqe->res);
			n++;
		}
		io_uring_cq_advance(&front->ring, n);
		now = fm_clock_ns();
		if (now >= next_tick) {
			next_tick = now + TICK_NS;
			resp_holds_expire(front, now);
			end_stalled(front, now);
			accept_again(front);
		}
		show(front);
	}
	return 0;
}

/* ---- listening ---- */

static int add_listener(struct fm_resp *front, int fd, const char *path)
{
	struct resp_listener *listener = &front->listeners[front->n_listeners++];

	listener->fd = fd;
	listener->path = path ? strdup(path) : NULL;
	return path && !listener->path ? fm_fail(FM_ERR_NO_MEMORY, "no memory for a path") : 0;
}

static int listen_failed(const char *where)
{
	int error = errno;

	return fm_fail(error == EADDRINUSE ? FM_ERR_EXISTS : FM_ERR_IO,
		       "Redis address %s: cannot listen there: %s: %s", where, strerror(error),
		       error == EADDRINUSE ? "another program does: choose another port"
					   : "choose an address or folder that this user may use");
}

static int parse_unix(const char *path, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (!*path || strlen(path) >= sizeof(address->sun_path))
		return fm_fail(FM_ERR_INVALID, "Redis socket unix:%s: the path has 1 to %zu bytes",
			       path, sizeof(address->sun_path) - 1);
	strcpy(address->sun_path, path);
	return 0;
}

static int parse_tcp(const struct fm_resp_options *options, const char *where,
		     struct sockaddr_in *address)
{
	const char *colon = strrchr(where, ':');
	char host[64] = "";
	uint64_t port;

	*address = (struct sockaddr_in){.sin_family = AF_INET};
	if (colon && (size_t)(colon - where) < sizeof(host))
		memcpy(host, where, (size_t)(colon - where));
	if (!colon || !fm_resp_number(colon + 1, strlen(colon + 1), &port) || port > 65535 ||
	    inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1",
		      &address->sin_addr) != 1)
		return fm_fail(FM_ERR_INVALID,
			       "Redis address %s: give unix:/path or an IPv4 address and port, as "
			       "127.0.0.1:6379",
			       where);
	address->sin_port = htons((uint16_t)port);
	if (ntohl(address->sin_addr.s_addr) >> 24 == 127 ||
	    (options->is_behind_proxy && options->password))
		return 0;
	return fm_fail(FM_ERR_PERMISSION,
		       "Redis address %s is not loopback: that needs a password "
		       "(--redis-password-file%s) and a proxy that ends TLS before it "
		       "(--redis-behind-proxy%s)",
		       where, options->password ? "" : ": missing",
		       options->is_behind_proxy ? "" : ": missing");
}

static int listen_unix(struct fm_resp *front, const char *path)
{
	struct sockaddr_un address;
	struct stat status;
	int fd, err = parse_unix(path, &address);

	if (err)
		return err;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fm_fail(FM_ERR_IO, "socket: %s", strerror(errno));
	if (!lstat(path, &status)) {
		if (!S_ISSOCK(status.st_mode)) {
			close(fd);
			return fm_fail(FM_ERR_INVALID, "%s exists and is not a socket", path);
		}
		if (!connect(fd, (struct sockaddr *)&address, sizeof(address))) {
			close(fd);
			return fm_fail(FM_ERR_EXISTS, "another program serves %s", path);
		}
		unlink(path); /* left by a program that was killed */
	}
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    chmod(path, 0600) || listen(fd, FM_BACKLOG)) {
		err = listen_failed(path);
		close(fd);
		return err;
	}
	return add_listener(front, fd, path);
}

static int listen_tcp(struct fm_resp *front, const struct fm_resp_options *options,
		      const char *where)
{
	struct sockaddr_in address;
	socklen_t length = sizeof(address);
	int fd, on = 1, err = parse_tcp(options, where, &address);

	if (err)
		return err;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, FM_BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&address, &length)) {
		err = listen_failed(where);
		if (fd >= 0)
			close(fd);
		return err;
	}
	front->listeners[front->n_listeners].port = ntohs(address.sin_port);
	return add_listener(front, fd, NULL);
}

/*
 * The ring of a daemon that was killed listens until the kernel has torn it down, which takes a
 * moment: so long a busy address is waited for.
 */
static int listen_at(struct fm_resp *front, const struct fm_resp_options *options,
		     const char *where)
{
	uint64_t until = fm_clock_ns() + FM_BUSY_ADDRESS_NS;
	int err;

	for (;;) {
		err = strncmp(where, "unix:", 5) ? listen_tcp(front, options, where)
						 : listen_unix(front, where + 5);
		if (err != FM_ERR_EXISTS || fm_clock_ns() >= until)
			return err;
		usleep(FM_BUSY_RETRY_US);
	}
}

/* ---- life ---- */

static int create_ring(struct io_uring *ring)
{
	int failed = io_uring_queue_init(RING_ENTRIES, ring, 0);

	return failed ? fm_fail(FM_ERR_UNSUPPORTED,
				"the Redis front end needs io_uring, which this kernel or "
				"container refuses: %s",
				strerror(-failed))
		      : 0;
}

static int check(const struct fm_resp_options *options)
{
	struct sockaddr_in tcp;
	struct sockaddr_un local;
	int err = 0;

	if (!options || options->size < sizeof(*options))
		return fm_fail(FM_ERR_INVALID, "fm_resp_options: size is not of this version");
	if (!options->n_listen || options->n_listen > RESP_LISTENERS_MAX)
		return fm_fail(FM_ERR_INVALID, "a Redis front end listens on 1 to %d addresses",
			       RESP_LISTENERS_MAX);
	for (uint32_t i = 0; !err && i < options->n_listen; i++)
		err = strncmp(options->listen[i], "unix:", 5)
			      ? parse_tcp(options, options->listen[i], &tcp)
			      : parse_unix(options->listen[i] + 5, &local);
	return err;
}

int fm_resp_check(const struct fm_resp_options *options)
{
	struct io_uring ring;
	int err = check(options);

	if (!err)
		err = create_ring(&ring);
	if (!err)
		io_uring_queue_exit(&ring);
	return err;
}

static void make_namespace(const char *tenant, struct fm_digest *ns)
{
	char text[256];

	snprintf(text, sizeof(text), "fabricmgr redis front end, version 1, tenant %s", tenant);
	SHA256((const unsigned char *)text, strlen(text), ns->bytes);
}

int fm_resp_create(const struct fm_resp_options *options, struct fm_resp **out)
{
	struct fm_resp *front;
	int err = check(options);

	if (err)
		return err;
	front = calloc(1, sizeof(*front));
	if (!front)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a Redis front end");
	pthread_mutex_init(&front->lock, NULL);
	front->stop_event = eventfd(0, EFD_CLOEXEC);
	front->attach = options->attach;
	front->hold_ns = options->hold_ns ? options->hold_ns : HOLD_NS;
	front->hold_bytes = options->hold_bytes;
	front->started_ns = fm_clock_ns();
	front->scratch = malloc(SCRATCH_BYTES);
	front->password = options->password ? strdup(options->password) : NULL;
	front->has_password = options->password;
	front->tenant = options->tenant ? strdup(options->tenant) : NULL;
	if (!front->scratch || (options->password && !front->password) ||
	    (options->tenant && !front->tenant))
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory for a Redis front end");
	if (!err)
		err = resp_holds_create(&front->holds);
	if (!err)
		err = resp_names_create(&front->names, options->name_bytes);
	if (!err) {
		err = create_ring(&front->ring);
		front->has_ring = !err;
	}
	for (uint32_t i = 0; !err && i < options->n_listen; i++)
		err = listen_at(front, options, options->listen[i]);
	if (err) {
		fm_resp_destroy(front);
		return err;
	}
	show(front);
	*out = front;
	return 0;
}

/* The kernel gives back what it holds of each connection, then they are freed. */
static void end_connections(struct fm_resp *front)
{
	struct resp_connection *connection, *next;

	for (connection = front->connections; connection; connection = next) {
		next = connection->next;
		connection_end(connection);
	}
	while (front->connections) {
		struct io_uring_cqe *cqe;

		if (io_uring_submit_and_wait(&front->ring, 1) < 0)
			break;
		while (!io_uring_peek_cqe(&front->ring, &cqe)) {
			uint64_t data = cqe->user_data;
			int result = cqe->res;

			io_uring_cqe_seen(&front->ring, cqe);
			if ((data & TAG_MASK) == TAG_RECEIVE || (data & TAG_MASK) == TAG_SEND)
				on_completion(front, data, result);
			else if ((data & TAG_MASK) == TAG_ACCEPT && result >= 0)
				close(result);
		}
	}
}

int fm_resp_run(struct fm_resp *front)
{
	int err;

	front->attach.leases = LEASES;
	if (!front->attach.name)
		front->attach.name = "redis";
	err = fm_pool_attach(&front->attach, &front->pool);
	if (err)
		return err;
	make_namespace(front->tenant ? front->tenant : fm_pool_salt(front->pool), &front->ns);
	if (!front->hold_bytes) {
		struct fm_pool_info info = {.size = sizeof(info)};

		/* What is held cannot be evicted: a quarter of the pool, unless told. */
		if (!fm_pool_info(front->pool, &info))
			front->hold_bytes = info.total_bytes / 4;
	}
	for (uint32_t i = 0; i < front->n_listeners; i++)
		start_accept(front, &front->listeners[i]);
	start_stop_read(front);
	err = loop(front);
	front->is_stopping = true;
	end_connections(front);
	resp_holds_expire(front, UINT64_MAX);
	fm_pool_detach(front->pool);
	front->pool = NULL;
	return err;
}

void fm_resp_stop(struct fm_resp *front)
{
	uint64_t one = 1;

	/* eventfd: allowed in a signal handler, and it cannot be full. */
	if (write(front->stop_event, &one, sizeof(one)) < 0)
		return;
}

static void drop_password(char *password)
{
	if (password)
		explicit_bzero(password, strlen(password));
	free(password);
}

int fm_resp_set_password(struct fm_resp *front, const char *password)
{
	char *copy, *before;

	if (!front->has_password || !password)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "a Redis front end takes another password, but with one or without "
			       "is decided at its start: restart it");
	copy = strdup(password);
	if (!copy)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a password");
	pthread_mutex_lock(&front->lock);
	before = front->password;
	front->password = copy;
	pthread_mutex_unlock(&front->lock);
	drop_password(before);
	return 0;
}

int fm_resp_info(struct fm_resp *front, struct fm_resp_info *info)
{
	uint32_t size = info->size;

	/* Structures grow at their end only: an older caller gets what it knows. */
	if (size < offsetof(struct fm_resp_info, ports))
		return fm_fail(FM_ERR_INVALID, "fm_resp_info: size is not of this version");
	if (size > sizeof(*info))
		size = sizeof(*info);
	pthread_mutex_lock(&front->lock);
	memcpy(info, &front->shown, size);
	pthread_mutex_unlock(&front->lock);
	info->size = size;
	return 0;
}

void fm_resp_destroy(struct fm_resp *front)
{
	if (!front)
		return;
	if (front->has_ring)
		io_uring_queue_exit(&front->ring);
	for (uint32_t i = 0; i < front->n_listeners; i++) {
		close(front->listeners[i].fd);
		if (front->listeners[i].path)
			unlink(front->listeners[i].path);
		free(front->listeners[i].path);
	}
	if (front->stop_event >= 0)
		close(front->stop_event);
	free(front->tenant);
	resp_holds_destroy(&front->holds, NULL);
	resp_names_destroy(&front->names);
	drop_password(front->password);
	pthread_mutex_destroy(&front->lock);
	free(front->scratch);
	free(front);
}
