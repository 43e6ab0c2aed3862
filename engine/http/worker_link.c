// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets to workers; see worker_link.h. Called by the front end's thread; calls sockets and
 * jansson. Invariant: no call here blocks, and no buffer grows beyond its limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fabricmgr_messages.h>

#include "http/worker_link.h"
#include "json_memory.h"
#include "worker/address.h"
#include "worker/protocol.h"

/* ---- life --------------------------------------------------------------------------------- */

int fm_worker_link_init(struct fm_worker_link *link, const char *address)
{
	struct sockaddr_storage ignored;
	socklen_t len;

	memset(link, 0, sizeof(*link));
	link->fd = -1;
	if (strlen(address) >= sizeof(link->address))
		return fm_fail(FM_ERR_INVALID, "worker address of more than %zu bytes",
			       sizeof(link->address) - 1);
	strcpy(link->address, address);
	snprintf(link->reason, sizeof(link->reason), "not connected yet");
	return fm_worker_address_parse("--worker", address, &ignored, &len);
}

void fm_worker_link_init_fd(struct fm_worker_link *link, int fd, size_t number)
{
	memset(link, 0, sizeof(*link));
	snprintf(link->address, sizeof(link->address), "local:%zu", number);
	snprintf(link->reason, sizeof(link->reason), "has not said hello yet");
	link->is_fixed = true;
	link->fd = fd;
	link->state = FM_LINK_HELLO;
	link->due = UINT64_MAX; /* it may be loading its model */
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void fm_worker_link_destroy(struct fm_worker_link *link)
{
	if (link->fd >= 0)
		close(link->fd);
	link->fd = -1;
	fm_bytes_free(&link->in);
	fm_bytes_free(&link->out);
}

void fm_worker_link_close(struct fm_worker_link *link, uint64_t now, uint64_t pause_ns,
			  const char *format, ...)
{
	char reason[sizeof(link->reason)];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	/* A worker that is tried ten times a second is complained about once. */
	if (strcmp(reason, link->reason))
		fm_log(link->state == FM_LINK_CONNECTING ? FM_LOG_INFO : FM_LOG_WARNING,
		       FM2110 "worker %s: %s", link->address, reason);
	snprintf(link->reason, sizeof(link->reason), "%s", reason);
	fm_worker_link_destroy(link);
	link->out_sent = link->in_taken = link->short_tries = 0;
	link->state = FM_LINK_DOWN;
	link->due = link->is_fixed ? UINT64_MAX : now + pause_ns;
	link->running = link->waiting = 0;
}

/* ---- connecting --------------------------------------------------------------------------- */

/* A Unix peer must be ours or root's: whoever answers there reads prompts. */
static int check_peer(const struct fm_worker_link *link)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (strncmp(link->address, "unix:", 5))
		return 0;
	if (getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return fm_fail(FM_ERR_IO, "SO_PEERCRED: %s", strerror(errno));
	if (peer.uid != geteuid() && peer.uid != 0)
		return fm_fail(FM_ERR_PERMISSION,
			       "belongs to user %u, not to user %u or root: not used", peer.uid,
			       geteuid());
	return 0;
}

static void connected(struct fm_worker_link *link, uint64_t now)
{
	int on = 1;

	if (check_peer(link)) {
		fm_worker_link_close(link, now, FM_WORKER_REFUSED_RETRY_NS, "%s",
				     fm_error_detail());
		return;
	}
	if (strncmp(link->address, "unix:", 5))
		setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	link->state = FM_LINK_HELLO;
	link->due = now + FM_WORKER_HELLO_NS;
	/* A worker gives places to those that say something. A failure shows at the next read. */
	fm_worker_link_send(link, json_pack("{s:s, s:i}", "op", "hello", "version",
					    FM_WORKER_PROTOCOL_VERSION));
}

void fm_worker_link_connect(struct fm_worker_link *link, uint64_t now)
{
	struct sockaddr_storage address;
	socklen_t len;

	if (link->state != FM_LINK_DOWN || link->due > now || link->is_fixed)
		return;
	if (fm_worker_address_parse("worker", link->address, &address, &len))
		return; /* cannot be: init checked it */
	link->state = FM_LINK_CONNECTING;
	link->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (link->fd < 0) {
		fm_worker_link_close(link, now, FM_WORKER_RETRY_NS, "socket: %s", strerror(errno));
		return;
	}
	link->due = now + FM_WORKER_HELLO_NS;
	if (!connect(link->fd, (struct sockaddr *)&address, len))
		connected(link, now);
	else if (errno != EINPROGRESS)
		fm_worker_link_close(link, now, FM_WORKER_RETRY_NS, "waiting for it (%s)",
				     strerror(errno));
}

short fm_worker_link_events(const struct fm_worker_link *link)
{
	if (link->state == FM_LINK_CONNECTING)
		return POLLOUT;
	return (short)((link->short_tries ? 0 : POLLIN) |
		       (link->out.len > link->out_sent ? POLLOUT : 0));
}

/* ---- bytes and lines ---------------------------------------------------------------------- */

static int flush(struct fm_worker_link *link)
{
	while (link->out_sent < link->out.len) {
		ssize_t n = send(link->fd, link->out.data + link->out_sent,
				 link->out.len - link->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n < 0)
			return fm_fail(FM_ERR_DISCONNECTED, "lost: %s", strerror(errno));
		link->out_sent += (size_t)n;
	}
	link->out.len = link->out_sent = 0;
	return 0;
}

static int receive(struct fm_worker_link *link)
{
	char buffer[65536];
	int err;

	for (int i = 0; i < 16; i++) { /* others want a turn, too */
		ssize_t n;

		/* Nothing is taken from the socket that could then not be kept. */
		err = fm_bytes_reserve(&link->in, sizeof(buffer));
		if (err)
			return link->short_tries++ < FM_WORKER_SHORT_TRIES_MAX ? 0 : err;
		link->short_tries = 0;
		n = recv(link->fd, buffer, sizeof(buffer), MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n < 0)
			return fm_fail(FM_ERR_DISCONNECTED, "lost: %s", strerror(errno));
		if (!n)
			return fm_fail(FM_ERR_DISCONNECTED, "hung up");
		if (link->in.len + (size_t)n > FM_WORKER_LINE_MAX + sizeof(buffer))
			return fm_fail(FM_ERR_LIMIT, "sent a line of more than %u bytes",
				       FM_WORKER_LINE_MAX);
		fm_bytes_add(&link->in, buffer, (size_t)n);
	}
	return 0;
}

static bool has_line(const struct fm_worker_link *link)
{
	size_t left = link->in.len - link->in_taken;

	return left && memchr(link->in.data + link->in_taken, '\n', left);
}

int fm_worker_link_io(struct fm_worker_link *link, short events, uint64_t now)
{
	int err = 0;

	if (link->state == FM_LINK_CONNECTING) {
		socklen_t len = sizeof(err);

		getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &err, &len);
		if (err)
			return fm_fail(FM_ERR_DISCONNECTED, "waiting for it (%s)", strerror(err));
		connected(link, now);
		return 0;
	}
	if (events & POLLOUT)
		err = flush(link);
	/* What memory lacked for is a whole line, which comes first, or room for more of one. */
	if (!err && (link->short_tries ? !has_line(link) : events & (POLLIN | POLLHUP | POLLERR)))
		err = receive(link);
	return err;
}

int fm_worker_link_next(struct fm_worker_link *link, json_t **out)
{
	char *start = link->in.data + link->in_taken, *end;
	size_t left = link->in.len - link->in_taken;
	json_error_t where;

	end = left ? memchr(start, '\n', left) : NULL;
	if (!end) { /* what is left moves to the front once for all lines before it */
		if (link->in_taken && left)
			memmove(link->in.data, start, left);
		link->in.len = left;
		link->in_taken = 0;
		return left > FM_WORKER_LINE_MAX
			       ? fm_fail(FM_ERR_LIMIT, "sent a line of more than %u bytes",
					 FM_WORKER_LINE_MAX)
			       : 0;
	}
	*out = fm_json_load(start, (size_t)(end - start), 0, &where);
	if (fm_json_was_short()) {
		if (!link->short_tries++)
			fm_log(FM_LOG_WARNING,
			       FM2111 "worker %s: no memory to read what it sent: trying "
				      "again",
			       link->address);
		return link->short_tries > FM_WORKER_SHORT_TRIES_MAX
			       ? fm_fail(FM_ERR_NO_MEMORY, "no memory to read what it sent")
			       : 0;
	}
	link->short_tries = 0;
	link->in_taken += (size_t)(end - start) + 1;
	if (!*out)
		return fm_fail(FM_ERR_INVALID, "sent a line that is not JSON: %s", where.text);
	if (!json_is_object(*out)) {
		json_decref(*out);
		return fm_fail(FM_ERR_INVALID, "sent a line that is not a JSON object");
	}
	return 1;
}

/* A whole line or nothing. */
static int send_line(struct fm_worker_link *link, const char *text)
{
	size_t before = link->out.len;
	int err;

	if (link->out.len - link->out_sent + strlen(text) > FM_WORKER_UNSENT_MAX)
		return fm_fail(FM_ERR_LIMIT, "has left %u bytes unread", FM_WORKER_UNSENT_MAX);
	err = fm_bytes_add(&link->out, text, strlen(text));
	if (!err)
		err = fm_bytes_add(&link->out, "\n", 1);
	if (err)
		link->out.len = before;
	return err ? err : flush(link);
}

int fm_worker_link_send(struct fm_worker_link *link, json_t *message)
{
	char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
	int err;

	json_decref(message);
	if (fm_json_was_short() || !text)
		err = fm_fail(FM_ERR_NO_MEMORY, "the server is out of memory");
	else
		err = send_line(link, text);
	free(text);
	return err;
}

int fm_worker_link_cancel(struct fm_worker_link *link, uint64_t id)
{
	char text[64];

	snprintf(text, sizeof(text), "{\"op\":\"cancel\",\"id\":%llu}", (unsigned long long)id);
	return send_line(link, text);
}

/* ---- hello -------------------------------------------------------------------------------- */

static int parse_digest(const char *text, struct fm_digest *out)
{
	if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
		return FM_ERR_INVALID;
	for (int i = 0; i < 32; i++) {
		unsigned int byte;

		sscanf(text + 2 * i, "%2x", &byte);
		out->bytes[i] = (uint8_t)byte;
	}
	return 0;
}

static uint32_t small(json_t *message, const char *name)
{
	json_int_t value = json_integer_value(json_object_get(message, name));

	return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

static const char *string(json_t *message, const char *name)
{
	const char *value = json_string_value(json_object_get(message, name));

	return value ? value : "";
}

int fm_worker_link_take_hello(struct fm_worker_link *link, json_t *message)
{
	struct fm_hello *hello = &link->hello;
	const char *role = string(message, "role");
	json_int_t version = json_integer_value(json_object_get(message, "version"));

	memset(hello, 0, sizeof(*hello));
	if (!strcmp(string(message, "event"), "error"))
		return fm_fail(FM_ERR_LIMIT, "refused by it: %.150s", string(message, "message"));
	if (strcmp(string(message, "hello"), "fabric-worker"))
		return fm_fail(FM_ERR_INVALID, "refused: it is not a fabric worker");
	if (version != FM_WORKER_PROTOCOL_VERSION)
		return fm_fail(FM_ERR_VERSION,
			       "refused: it speaks version %lld of the worker protocol, not %d: "
			       "run the same release everywhere",
			       (long long)version, FM_WORKER_PROTOCOL_VERSION);
	hello->role = !strcmp(role, "prefill")	? FM_ROLE_PREFILL
		      : !strcmp(role, "decode") ? FM_ROLE_DECODE
		      : !strcmp(role, "both")	? FM_ROLE_BOTH
						: 0;
	if (!hello->role)
		return fm_fail(FM_ERR_INVALID, "refused: its role \"%.20s\" is not known", role);
	if (parse_digest(string(message, "namespace"), &hello->ns))
		return fm_fail(FM_ERR_INVALID, "refused: its namespace is not 64 hex digits");
	hello->tokens_per_block = small(message, "tokens_per_block");
	hello->context = small(message, "context");
	hello->vocab = small(message, "vocab");
	hello->pid = small(message, "pid");
	hello->max_batch = small(message, "max_batch");
	snprintf(hello->model, sizeof(hello->model), "%s", string(message, "model"));
	snprintf(hello->numerics, sizeof(hello->numerics), "%s", string(message, "numerics"));
	if (!hello->tokens_per_block || !hello->context || !hello->vocab)
		return fm_fail(FM_ERR_INVALID,
			       "refused: tokens_per_block, context or vocab is missing");
	return 0;
}
