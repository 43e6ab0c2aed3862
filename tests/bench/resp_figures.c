// SPDX-License-Identifier: Apache-2.0
/*
 * For resp.py: a client that works as LMCache's native one ("client"), and a server that does
 * nothing with a value but take it from its socket, or put it there ("bare"). Invariant: neither
 * copies a value in its own memory; the client compares the first and last bytes of what it gets.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "timing.h"

enum { KEYS = 64, WORKERS_MAX = 16, ARGS_MAX = 4 };

static void fail(const char *what)
{
	fprintf(stderr, "resp_figures: %s: %s\n", what, strerror(errno));
	exit(1);
}

static char *new_memory(size_t bytes)
{
	char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (!memory)
		fail("memory");
	for (size_t i = 0; i < bytes; i++)
		memory[i] = (char)(i * 2654435761u >> 13);
	return memory;
}

static void send_all(int fd, struct iovec *parts, int n)
{
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};

	while (message.msg_iovlen) {
		ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);

		if (sent < 0)
			fail("sending");
		while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
			sent -= (ssize_t)message.msg_iov->iov_len;
			message.msg_iov++;
			message.msg_iovlen--;
		}
		if (message.msg_iovlen) {
			message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
			message.msg_iov->iov_len -= (size_t)sent;
		}
	}
}

/* False: the other side has ended. */
static bool take(int fd, char *to, size_t n)
{
	while (n) {
		ssize_t got = recv(fd, to, n, 0);

		if (got < 0)
			fail("receiving");
		if (!got)
			return false;
		to += got;
		n -= (size_t)got;
	}
	return true;
}

/* ---- the client: a connection for each worker, one request at a time ---- */

struct worker {
	pthread_t thread;
	pthread_barrier_t *barrier;
	int fd;
	uint32_t number, workers, count;
	size_t bytes;
	char *value, *room;
};

static int connect_to(const char *address)
{
	const char *colon = strrchr(address, ':');
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	struct sockaddr_in tcp = {.sin_family = AF_INET};
	int fd, on = 1;

	if (address[0] == '/') {
		snprintf(local.sun_path, sizeof(local.sun_path), "%s", address);
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || connect(fd, (struct sockaddr *)&local, sizeof(local)))
			fail(address);
		return fd;
	}
	tcp.sin_port = htons((uint16_t)atoi(colon ? colon + 1 : address));
	tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) ||
	    connect(fd, (struct sockaddr *)&tcp, sizeof(tcp)))
		fail(address);
	return fd;
}

static void set(struct worker *worker, uint32_t key)
{
	char head[96], reply[5];
	int length = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$12\r\nkey:%08u\r\n$%zu\r\n",
			      key, worker->bytes);
	struct iovec parts[3] = {
		{head, (size_t)length}, {worker->value, worker->bytes}, {(void *)"\r\n", 2}};

	memcpy(worker->value, &key, sizeof(key));
	send_all(worker->fd, parts, 3);
	if (!take(worker->fd, reply, 5) || memcmp(reply, "+OK\r\n", 5))
		fail("SET was not answered with OK");
}

static void get(struct worker *worker, uint32_t key)
{
	char head[96], reply[32], end[2];
	int length = snprintf(head, sizeof(head), "*2\r\n$3\r\nGET\r\n$12\r\nkey:%08u\r\n", key);
	int expected = snprintf(reply, sizeof(reply), "$%zu\r\n", worker->bytes);
	struct iovec part = {head, (size_t)length};

	send_all(worker->fd, &part, 1);
	if (!take(worker->fd, head, (size_t)expected) || memcmp(head, reply, (size_t)expected) ||
	    !take(worker->fd, worker->room, worker->bytes) || !take(worker->fd, end, 2))
		fail("GET was not answered with the value");
	if (memcmp(worker->room, &key, sizeof(key)) ||
	    memcmp(worker->room + worker->bytes - 64, worker->value + worker->bytes - 64, 64))
		fail("a wrong value");
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	/* What comes first touches memory for the first time, which nobody does twice. */
	for (uint32_t key = worker->number; key < KEYS; key += worker->workers)
		set(worker, key);
	for (int pass = 0; pass < 2; pass++) {
		pthread_barrier_wait(worker->barrier);
		for (uint32_t i = 0; i < worker->count; i++) {
			uint32_t key = (i * worker->workers + worker->number) % KEYS;

			if (pass)
				get(worker, key);
			else
				set(worker, key);
		}
		pthread_barrier_wait(worker->barrier);
	}
	return NULL;
}

/* Bytes a second of all workers together. */
static int client(const char *address, uint32_t workers, size_t bytes, uint32_t count)
{
	struct worker all[WORKERS_MAX];
	pthread_barrier_t barrier;
	double begin, setting;

	if (!workers || workers > WORKERS_MAX || KEYS % workers || bytes < 64)
		return 2;
	pthread_barrier_init(&barrier, NULL, workers + 1);
	for (uint32_t i = 0; i < workers; i++) {
		all[i] = (struct worker){.barrier = &barrier,
					 .fd = connect_to(address),
					 .number = i,
					 .workers = workers,
					 .count = count / workers,
					 .bytes = bytes,
					 .value = new_memory(bytes),
					 .room = new_memory(bytes)};
		if (pthread_create(&all[i].thread, NULL, work, &all[i]))
			fail("a thread");
	}
	pthread_barrier_wait(&barrier);
	begin = now();
	pthread_barrier_wait(&barrier);
	setting = now() - begin;
	pthread_barrier_wait(&barrier);
	begin = now();
	pthread_barrier_wait(&barrier);
	begin = now() - begin;
	printf("{\"set\": %.6g, \"get\": %.6g}\n",
	       (double)(count / workers * workers * bytes) / setting,
	       (double)(count / workers * workers * bytes) / begin);
	for (uint32_t i = 0; i < workers; i++)
		pthread_join(all[i].thread, NULL);
	return 0;
}

/* ---- the bare server: a thread for each connection ---- */

static size_t bare_bytes;
static char *bare_values; /* KEYS of them: as much memory as a server that keeps them uses */

struct reader {
	int fd;
	size_t at, end;
	char data[16384];
};

static bool fill(struct reader *reader)
{
	ssize_t got = recv(reader->fd, reader->data, sizeof(reader->data), 0);

	reader->at = 0;
	reader->end = got > 0 ? (size_t)got : 0;
	return got > 0;
}

static bool read_line(struct reader *reader, char *line, size_t size)
{
	size_t length = 0;

	for (;;) {
		char c;

		if (reader->at == reader->end && !fill(reader))
			return false;
		c = reader->data[reader->at++];
		if (c == '\n') {
			line[length] = '\0';
			return true;
		}
		if (c != '\r' && length + 1 < size)
			line[length++] = c;
	}
}

/* @n bytes and their CR LF. */
static bool read_bytes(struct reader *reader, char *to, size_t n)
{
	size_t here = reader->end - reader->at < n ? reader->end - reader->at : n;
	char end[8];

	memcpy(to, reader->data + reader->at, here);
	reader->at += here;
	return take(reader->fd, to + here, n - here) && read_line(reader, end, sizeof(end));
}

static bool serve_one(struct reader *reader, uint32_t *turn)
{
	char line[64], args[ARGS_MAX][64] = {{0}}, head[32];
	char *value = bare_values + (size_t)(*turn)++ % KEYS * bare_bytes;
	int n;

	if (!read_line(reader, line, sizeof(line)))
		return false;
	n = atoi(line + 1);
	for (int i = 0; i < n; i++) {
		size_t length;

		if (i >= ARGS_MAX || !read_line(reader, line, sizeof(line)))
			return false;
		length = (size_t)atoll(line + 1);
		if (length > bare_bytes || (length >= sizeof(args[i]) && i != 2) ||
		    !read_bytes(reader, i == 2 ? value : args[i], length))
			return false;
	}
	if (!strcmp(args[0], "GET")) {
		uint32_t key = (uint32_t)atoi(args[1] + 4); /* behind "key:" */
		int length = snprintf(head, sizeof(head), "$%zu\r\n", bare_bytes);
		struct iovec parts[4] = {{head, (size_t)length},
					 {&key, sizeof(key)},
					 {value + sizeof(key), bare_bytes - sizeof(key)},
					 {(void *)"\r\n", 2}};

		send_all(reader->fd, parts, 4);
	} else {
		struct iovec part = {(void *)(strcmp(args[0], "SET") ? "*0\r\n" : "+OK\r\n"),
				     strcmp(args[0], "SET") ? 4 : 5};

		send_all(reader->fd, &part, 1);
	}
	return true;
}

static void *serve_bare(void *argument)
{
	struct reader *reader = argument;
	uint32_t turn = (uint32_t)reader->fd * 16;

	while (serve_one(reader, &turn))
		;
	close(reader->fd);
	free(reader);
	return NULL;
}

static int bare(const char *path, size_t bytes)
{
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	bare_bytes = bytes;
	bare_values = new_memory(KEYS * bytes);
	for (uint32_t i = 1; i < KEYS; i++)
		memcpy(bare_values + i * bytes, bare_values, bytes);
	snprintf(local.sun_path, sizeof(local.sun_path), "%s", path);
	if (listener < 0 || bind(listener, (struct sockaddr *)&local, sizeof(local)) ||
	    listen(listener, 16))
		fail(path);
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		struct reader *reader = calloc(1, sizeof(*reader));
		pthread_t thread;

		if (!reader)
			fail("memory");
		reader->fd = fd;
		if (pthread_create(&thread, NULL, serve_bare, reader))
			fail("a thread");
		pthread_detach(thread);
	}
	fail("accepting");
	return 1;
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "client"))
		return client(argv[2], (uint32_t)atoi(argv[3]), (size_t)atoll(argv[4]),
			      (uint32_t)atoi(argv[5]));
	if (argc == 4 && !strcmp(argv[1], "bare"))
		return bare(argv[2], (size_t)atoll(argv[3]));
	fprintf(stderr,
		"usage: resp_figures client ADDRESS WORKERS BYTES COUNT | bare PATH BYTES\n");
	return 2;
}
