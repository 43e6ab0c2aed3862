/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts two blocks without waiting, from two halves each, and gets them back while it would do other
 * things: requests go in, completions come out. C and C++; needs a daemon ($FABRICMGR_SOCKET):
 *   cc queue.c $(pkg-config --cflags --libs fabricmgr) -o queue && ./queue
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <fabricmgr.h>

#define N    2
#define HALF 100000

static char halves[N][2][HALF], back[N][2 * HALF];

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fm_error_detail());
	return 1;
}

/* Waits as an event loop does: for the descriptor, among others. The result of the one request. */
static int64_t collect(struct fm_queue *queue)
{
	struct pollfd state;
	struct fm_queue_done done;

	state.fd = fm_queue_fd(queue);
	state.events = POLLIN;
	while (fm_queue_complete(queue, &done, 1) == 0)
		poll(&state, 1, -1);
	return done.result;
}

static int put(struct fm_queue *queue, const struct fm_digest *ns, const struct fm_key *keys)
{
	struct fm_put_parts puts[N];
	struct fm_queue_request request;
	struct iovec parts[N][2];

	memset(puts, 0, sizeof(puts));
	for (int i = 0; i < N; i++) {
		for (int half = 0; half < 2; half++) {
			memset(halves[i][half], 'a' + i, HALF);
			parts[i][half].iov_base = halves[i][half];
			parts[i][half].iov_len = HALF;
		}
		puts[i].key = keys[i];
		puts[i].parts = parts[i];
		puts[i].n_parts = 2;
	}
	memset(&request, 0, sizeof(request));
	request.size = sizeof(request);
	request.op = FM_QUEUE_PUT;
	request.n = N;
	request.puts = puts;
	request.ns = ns;
	if (fm_queue_submit(queue, &request, NULL))
		return fail("submitting a put");
	return collect(queue) != 0; /* what is there already is as good */
}

static int get(struct fm_queue *queue, const struct fm_key *keys)
{
	struct fm_get_parts gets[N];
	struct fm_queue_request request;
	struct iovec parts[N];

	memset(gets, 0, sizeof(gets));
	for (int i = 0; i < N; i++) {
		parts[i].iov_base = back[i];
		parts[i].iov_len = sizeof(back[i]);
		gets[i].key = keys[i];
		gets[i].parts = &parts[i];
		gets[i].n_parts = 1;
	}
	memset(&request, 0, sizeof(request));
	request.size = sizeof(request);
	request.op = FM_QUEUE_GET;
	request.n = N;
	request.gets = gets;
	if (fm_queue_submit(queue, &request, NULL))
		return fail("submitting a get");
	if (collect(queue) != N)
		return 1;
	for (int i = 0; i < N; i++)
		printf("%llu bytes, last '%c'\n", (unsigned long long)gets[i].copied,
		       back[i][sizeof(back[i]) - 1]);
	return 0;
}

int main(void)
{
	struct fm_attach_options options;
	struct fm_key keys[N];
	struct fm_queue *queue;
	struct fm_pool *pool;
	struct fm_digest ns;
	int status;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.fd = -1;
	if (fm_pool_attach(&options, &pool))
		return fail("attach");
	if (fm_queue_create(pool, NULL, &queue))
		return fail("queue");
	memset(&ns, 2, sizeof(ns)); /* a real program: fm_namespace_digest() */
	if (fm_opaque_key(&ns, "one", 3, &keys[0]) || fm_opaque_key(&ns, "two", 3, &keys[1]))
		return fail("key");
	status = put(queue, &ns, keys) || get(queue, keys);
	fm_queue_destroy(queue);
	fm_pool_detach(pool);
	return status;
}
