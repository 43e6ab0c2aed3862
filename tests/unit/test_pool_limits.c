// SPDX-License-Identifier: Apache-2.0
/*
 * Who may attach to a pool, for which tenant, and what a client and a tenant may have, through the
 * public calls.
 * Users are real ones: children of this process that give up root (skipped without it).
 */
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <fabricmgr.h>

#include "pool_rig.h"

static struct pool_rig rig;

static void start(struct fm_server_options *options)
{
	options->size = sizeof(*options);
	options->pool_bytes = 16 << 20;
	options->socket_mode = 0666;
	pool_rig_start(&rig, options);
}

static void stop(void)
{
	pool_rig_stop(&rig);
}

static struct fm_pool *attach_for(const char *tenant, int *err)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = rig.socket, .fd = -1, .tenant = tenant};
	struct fm_pool *pool = NULL;

	*err = fm_pool_attach(&options, &pool);
	return pool;
}

static struct fm_pool *attach(int *err)
{
	return attach_for(NULL, err);
}

/* What attaching gives a user with one group and one more. */
static int attach_as(uid_t uid, gid_t gid, gid_t more)
{
	int status;
	pid_t child = fork();

	if (!child) {
		int err = 0;

		if (setgroups(1, &more) || setgid(gid) || setuid(uid))
			_exit(100);
		attach(&err);
		if (err && (err != FM_ERR_PERMISSION || !strstr(fm_error_detail(), "may not use")))
			_exit(101);
		_exit(err ? 1 : 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) < 2, "status %x", status);
	return WEXITSTATUS(status);
}

START_TEST(only_named_users_and_groups_attach)
{
	static const uint32_t uids[] = {5001}, gids[] = {6001, 6002};
	struct fm_server_options options = {.uids = uids, .n_uids = 1, .gids = gids, .n_gids = 2};
	int err;

	if (geteuid()) {
		printf("SKIP: only_named_users_and_groups_attach: needs root, to become others\n");
		return;
	}
	start(&options);
	ck_assert_int_eq(attach_as(5001, 7000, 7000), 0);
	ck_assert_int_eq(attach_as(5002, 6002, 7000), 0);
	ck_assert_int_eq(attach_as(5002, 7000, 6001), 0);
	ck_assert_int_eq(attach_as(5002, 7000, 7000), 1);
	ck_assert_int_eq(attach_as(65534, 65534, 65534), 1);
	fm_pool_detach(attach(&err)); /* root, and the server's own user */
	ck_assert_int_eq(err, 0);
	stop();
}
END_TEST

START_TEST(without_names_the_socket_decides)
{
	struct fm_server_options options = {0};

	if (geteuid()) {
		printf("SKIP: without_names_the_socket_decides: needs root, to become others\n");
		return;
	}
	start(&options);
	ck_assert_int_eq(attach_as(5002, 7000, 7000), 0);
	stop();
}
END_TEST

START_TEST(one_client_does_not_stage_the_whole_pool)
{
	struct fm_server_options options = {.client_staging_bytes = 1 << 20};
	struct fm_block blocks[20], more;
	struct fm_pool *greedy, *other;
	struct fm_key id;
	int err;

	start(&options);
	greedy = attach(&err);
	other = attach(&err);
	ck_assert_int_eq(err, 0);
	ck_assert_int_eq(fm_block_stage(greedy, 65536, 16, blocks, 0), 0);
	ck_assert_int_eq(fm_block_stage(greedy, 1, 1, &more, 0), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_block_stage(other, 65536, 16, blocks + 4, 0), 0);
	/* What is given back, sealed or offered counts no more. */
	fm_block_discard(greedy, blocks, 1);
	ck_assert_int_eq(fm_block_stage(greedy, 65536, 1, blocks, 0), 0);
	ck_assert_int_eq(fm_block_offer(greedy, blocks, &id), 0);
	ck_assert_int_eq(fm_block_stage(greedy, 65536, 1, blocks, 0), 0);
	/* A whole batch or nothing. */
	fm_block_discard(greedy, blocks, 1);
	ck_assert_int_eq(fm_block_stage(greedy, 65536, 2, blocks, 0), FM_ERR_LIMIT);
	ck_assert_int_eq(fm_block_stage(greedy, 65536, 1, blocks, 0), 0);
	fm_pool_detach(greedy);
	fm_pool_detach(other);
	stop();
}
END_TEST

/* ---- tenants ---- */

static const uint32_t search_uids[] = {5001}, batch_uids[] = {5002, 5003}, batch_gids[] = {6001};
static const struct fm_tenant_options two_tenants[] = {
	{.size = sizeof(*two_tenants),
	 .name = "search",
	 .salt = "pepper",
	 .uids = search_uids,
	 .n_uids = 1,
	 .quotas = {.guaranteed_bytes = 8 << 20}},
	{.size = sizeof(*two_tenants),
	 .name = "batch",
	 .uids = batch_uids,
	 .n_uids = 2,
	 .gids = batch_gids,
	 .n_gids = 1,
	 .quotas = {.max_bytes = 8 << 20, .staging_bytes = 2 << 20}},
};

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,         \
				fm_error_detail());                                                \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* In a child that has become user 5001. */
static void look_as_search(void)
{
	struct fm_tenant_info tenants[4] = {{.size = sizeof(tenants[0])}};
	struct fm_tenant_quotas quotas = {0};
	struct fm_client_info clients[8];
	struct fm_pool *pool;
	char text[256];
	int err;

	pool = attach(&err);
	MUST(!err && !strcmp(fm_pool_tenant(pool), "search") &&
	     !strcmp(fm_pool_salt(pool), "pepper"));
	/* Root's client is not its to see, nor are other tenants. */
	MUST(fm_pool_clients(pool, clients, 8) == 1 && FM_CLIENT_TENANT(clients[0].flags) == 1);
	MUST(fm_pool_tenants(pool, tenants, 4) == 1 && !strcmp(tenants[0].name, "search"));
	MUST(tenants[0].clients == 1 && tenants[0].quotas.guaranteed_bytes == 8 << 20);
	MUST(fm_pool_set_quotas(pool, "search", &quotas) == FM_ERR_PERMISSION);
	MUST(!attach_for("batch", &err) && err == FM_ERR_PERMISSION);
	strcpy(text, fm_error_detail());
	MUST(!attach_for("nobody", &err) && err == FM_ERR_PERMISSION);
	MUST(!strcmp(text, fm_error_detail()));
	MUST(!attach_for(FM_TENANT_DEFAULT, &err) && err == FM_ERR_PERMISSION);
	_exit(0);
}

static int as_user(uid_t uid, gid_t gid, void (*act)(void))
{
	int status;
	pid_t child = fork();

	if (!child) {
		if (setgroups(0, NULL) || setgid(gid) || setuid(uid))
			_exit(100);
		act();
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

static void attach_as_batch(void)
{
	int err;
	struct fm_pool *pool = attach(&err);

	_exit(err || strcmp(fm_pool_tenant(pool), "batch") || *fm_pool_salt(pool));
}

static void attach_in_vain(void)
{
	int err;

	attach(&err);
	_exit(err != FM_ERR_PERMISSION);
}

START_TEST(each_user_acts_for_its_tenant_and_sees_no_other)
{
	struct fm_server_options options = {.tenants = two_tenants, .n_tenants = 2};
	struct fm_tenant_info tenants[4] = {{.size = sizeof(tenants[0])}};
	struct fm_pool *pool;
	int err;

	if (geteuid()) {
		printf("SKIP: each_user_acts_for_its_tenant_and_sees_no_other: needs root\n");
		return;
	}
	fm_log_set_level(FM_LOG_ERROR);
	start(&options);
	pool = attach(&err);
	ck_assert_str_eq(fm_pool_tenant(pool), FM_TENANT_DEFAULT);
	ck_assert_int_eq(as_user(5001, 7000, look_as_search), 0);
	ck_assert_int_eq(as_user(5003, 7000, attach_as_batch), 0);
	ck_assert_int_eq(as_user(5009, 6001, attach_as_batch), 0);
	ck_assert_int_eq(as_user(5009, 7000, attach_in_vain), 0);
	ck_assert_int_eq(fm_pool_tenants(pool, tenants, 4), 3);
	ck_assert_str_eq(tenants[2].name, "batch");
	ck_assert_str_eq(tenants[2].group, FM_TENANT_DEFAULT);
	fm_pool_detach(pool);
	stop();
}
END_TEST

static int put(struct fm_pool *pool, uint32_t n, uint64_t length)
{
	static char data[4 << 20];
	struct fm_put one = {.key = {{(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), 1}},
			     .data = data,
			     .length = length};
	static const struct fm_digest ns;
	int err = fm_pool_put(pool, &ns, &one, 1, 1);

	return err ? err : one.result;
}

static struct fm_tenant_info info_of(struct fm_pool *pool, uint32_t number)
{
	struct fm_tenant_info tenants[4] = {{.size = sizeof(tenants[0])}};

	ck_assert_int_eq(fm_pool_tenants(pool, tenants, 4), 3);
	return tenants[number];
}

START_TEST(quotas_hold_and_change_while_it_runs)
{
	struct fm_server_options options = {.tenants = two_tenants, .n_tenants = 2};
	struct fm_tenant_options next[2];
	struct fm_tenant_quotas quotas = {FM_QUOTA_KEEP, 4 << 20, FM_QUOTA_KEEP, FM_QUOTA_KEEP,
					  FM_QUOTA_KEEP};
	struct fm_pool *root, *search, *batch;
	struct fm_block blocks[4];
	int err;

	start(&options);
	root = attach(&err);
	search = attach_for("search", &err);
	batch = attach_for("batch", &err);
	ck_assert_int_eq(err, 0);
	for (uint32_t i = 0; i < 16; i++)
		ck_assert_int_eq(put(search, i, 1 << 20), 0);
	for (uint32_t i = 100; i < 200; i++)
		ck_assert_int_eq(put(batch, i, 1 << 20), 0);
	for (uint32_t i = 200; i < 400; i++)
		ck_assert_int_eq(put(root, i, 512 << 10), 0);
	ck_assert_uint_ge(info_of(root, 1).held_bytes, 8 << 20);
	ck_assert_uint_le(info_of(root, 2).held_bytes, 8 << 20);
	/* A block may be found and not be this tenant's: that is what a group is for. */
	ck_assert_int_eq(put(batch, 15, 1 << 20), FM_ERR_EXISTS);
	/* Staging, with the quota named. */
	ck_assert_int_eq(fm_block_stage(batch, 1 << 20, 2, blocks, 1), 0);
	ck_assert_int_eq(fm_block_stage(batch, 1 << 20, 1, blocks + 2, 1), FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "(staging)"));
	fm_block_discard(batch, blocks, 2);
	ck_assert_int_eq(fm_pool_set_quotas(root, "nobody", &quotas), FM_ERR_NOT_FOUND);
	ck_assert_int_eq(fm_pool_set_quotas(root, "batch", &quotas), 0);
	for (uint32_t i = 400; i < 420; i++)
		ck_assert_int_eq(put(batch, i, 1 << 20), 0);
	ck_assert_uint_le(info_of(root, 2).held_bytes, 4 << 20);
	quotas.guaranteed_bytes = 12 << 20;
	ck_assert_int_eq(fm_pool_set_quotas(root, "batch", &quotas), FM_ERR_LIMIT);
	/* As a reload does it: whole, and refused as a whole. */
	memcpy(next, two_tenants, sizeof(next));
	next[0].quotas.guaranteed_bytes = 100 << 20;
	options.tenants = next;
	ck_assert_int_eq(fm_server_set_tenants(rig.server, &options), FM_ERR_LIMIT);
	next[0].quotas.guaranteed_bytes = 4 << 20;
	next[1].quotas.guaranteed_bytes = 8 << 20;
	next[1].name = "bunch";
	ck_assert_int_eq(fm_server_set_tenants(rig.server, &options), FM_ERR_UNSUPPORTED);
	next[1].name = "batch";
	ck_assert_int_eq(fm_server_set_tenants(rig.server, &options), 0);
	while (info_of(root, 2).quotas.guaranteed_bytes != 8 << 20)
		usleep(1000);
	ck_assert_uint_eq(info_of(root, 1).quotas.guaranteed_bytes, 4 << 20);
	fm_pool_detach(root);
	fm_pool_detach(search);
	fm_pool_detach(batch);
	stop();
}
END_TEST

struct waiting {
	struct fm_pool *pool;
	struct fm_block block;
	int err;
};

static void *stage_patiently(void *argument)
{
	struct waiting *waiting = argument;

	waiting->err = fm_block_stage(waiting->pool, 4 << 20, 1, &waiting->block, 300000000000ull);
	return NULL;
}

START_TEST(only_so_many_requests_of_a_tenant_wait)
{
	struct fm_server_options options = {.tenants = two_tenants, .n_tenants = 2};
	struct fm_tenant_quotas quotas = {FM_QUOTA_KEEP, FM_QUOTA_KEEP, 0, 1, FM_QUOTA_KEEP};
	struct fm_block blocks[2], more;
	struct waiting waiting = {0};
	struct fm_pool *root;
	pthread_t waiter;
	int err;

	start(&options);
	root = attach(&err);
	waiting.pool = attach_for("batch", &err);
	ck_assert_int_eq(fm_pool_set_quotas(root, "batch", &quotas), 0);
	ck_assert_int_eq(fm_block_stage(waiting.pool, 4 << 20, 2, blocks, 1), 0);
	/* All that others are not guaranteed may be staged, which is its maximum here. */
	ck_assert_int_eq(fm_block_stage(waiting.pool, 4096, 1, &more, 1), FM_ERR_LIMIT);
	fm_block_discard(waiting.pool, &blocks[1], 1);
	ck_assert_int_eq(put(waiting.pool, 1, 4 << 20), 0);
	ck_assert_int_eq(fm_pool_acquire(waiting.pool, &(struct fm_key){{1, [3] = 1}}, 1, &more),
			 1);
	/* One block staged, one leased: the next one waits until the lease ends. */
	ck_assert_int_eq(pthread_create(&waiter, NULL, stage_patiently, &waiting), 0);
	while (info_of(root, 2).requests != 1)
		usleep(1000);
	ck_assert_int_eq(fm_block_stage(waiting.pool, 4 << 20, 1, &blocks[1], 300000000000ull),
			 FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "(requests)"));
	fm_block_release(waiting.pool, &more, 1);
	pthread_join(waiter, NULL);
	ck_assert_int_eq(waiting.err, 0);
	ck_assert_uint_eq(info_of(root, 2).requests, 0);
	fm_pool_detach(waiting.pool);
	fm_pool_detach(root);
	stop();
}
END_TEST

/* Two clients of one tenant wait at its maximum, which is tried again and again meanwhile. */
START_TEST(a_request_that_waits_is_refused_once_if_at_all)
{
	struct fm_server_options options = {.tenants = two_tenants, .n_tenants = 2};
	struct fm_tenant_quotas quotas = {FM_QUOTA_KEEP, FM_QUOTA_KEEP, 0, 0, FM_QUOTA_KEEP};
	struct waiting waiting[2] = {{0}};
	struct fm_block held[2], more;
	struct fm_pool *root;
	pthread_t waiters[2];
	uint64_t before;
	int err;

	start(&options);
	root = attach(&err);
	waiting[0].pool = attach_for("batch", &err);
	waiting[1].pool = attach_for("batch", &err);
	ck_assert_int_eq(fm_pool_set_quotas(root, "batch", &quotas), 0);
	for (uint32_t i = 1; i <= 2; i++) {
		ck_assert_int_eq(put(waiting[0].pool, i, 4 << 20), 0);
		ck_assert_int_eq(fm_pool_acquire(waiting[0].pool,
						 &(struct fm_key){{(uint8_t)i, [3] = 1}}, 1,
						 &held[i - 1]),
				 1);
	}
	before = info_of(root, 2).refused;
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&waiters[i], NULL, stage_patiently, &waiting[i]),
				 0);
	while (info_of(root, 2).requests != 2)
		usleep(1000);
	/* One whose time is over, behind many tries of all three. */
	ck_assert_int_eq(fm_block_stage(waiting[0].pool, 4 << 20, 1, &more, 100000000),
			 FM_ERR_LIMIT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "(max)"));
	ck_assert_uint_eq(info_of(root, 2).refused, before + 1);
	fm_block_release(waiting[0].pool, held, 2);
	for (int i = 0; i < 2; i++) {
		pthread_join(waiters[i], NULL);
		ck_assert_int_eq(waiting[i].err, 0);
	}
	ck_assert_uint_eq(info_of(root, 2).refused, before + 1);
	fm_pool_detach(waiting[0].pool);
	fm_pool_detach(waiting[1].pool);
	fm_pool_detach(root);
	stop();
}
END_TEST

/* A queue's put waits where it can be cancelled, in its turn, and as one request. */
START_TEST(a_queued_put_keeps_its_turn)
{
	struct fm_server_options options = {.tenants = two_tenants, .n_tenants = 2};
	struct fm_tenant_quotas quotas = {FM_QUOTA_KEEP, FM_QUOTA_KEEP, 0, 0, FM_QUOTA_KEEP};
	struct fm_queue_options few = {.size = sizeof(few), .workers = 2};
	const struct fm_digest nobody = {{0}};
	char *data = calloc(1, 4 << 20);
	struct iovec part = {data, 4 << 20};
	struct fm_put_parts puts[2] = {
		{.key = {{9, 9}}, .parts = &part, .n_parts = 1},
		{.key = {{9, 8}}, .parts = &part, .n_parts = 1},
	};
	struct fm_queue_request request = {.size = sizeof(request),
					   .op = FM_QUEUE_PUT,
					   .n = 1,
					   .puts = &puts[0],
					   .ns = &nobody,
					   .deadline_ns = 300000000000ull};
	struct waiting second = {0};
	struct fm_queue *queue;
	struct fm_queue_done done;
	struct fm_block held[2];
	struct fm_pool *root;
	pthread_t waiter;
	uint64_t before, id;
	int err;

	start(&options);
	root = attach(&err);
	second.pool = attach_for("batch", &err);
	ck_assert_int_eq(fm_pool_set_quotas(root, "batch", &quotas), 0);
	for (uint32_t i = 1; i <= 2; i++) {
		ck_assert_int_eq(put(second.pool, i, 4 << 20), 0);
		ck_assert_int_eq(fm_pool_acquire(second.pool,
						 &(struct fm_key){{(uint8_t)i, [3] = 1}}, 1,
						 &held[i - 1]),
				 1);
	}
	before = info_of(root, 2).refused;
	ck_assert_int_eq(fm_queue_create(second.pool, &few, &queue), 0);
	ck_assert_int_eq(fm_queue_submit(queue, &request, &id), 0);
	while (info_of(root, 2).requests != 1)
		usleep(1000);
	/* One that is cancelled is not waited for by the daemon either. */
	ck_assert_int_eq(fm_queue_cancel(queue, id), 0);
	ck_assert_int_eq(fm_queue_wait(queue, &done, 1, 60000000000ull), 1);
	ck_assert_int_eq(done.result, FM_ERR_CANCELLED);
	while (info_of(root, 2).requests != 0)
		usleep(1000);
	request.puts = &puts[1];
	ck_assert_int_eq(fm_queue_submit(queue, &request, &id), 0);
	while (info_of(root, 2).requests != 1)
		usleep(1000);
	ck_assert_int_eq(pthread_create(&waiter, NULL, stage_patiently, &second), 0);
	while (info_of(root, 2).requests != 2)
		usleep(1000);
	usleep(500000); /* longer than it goes without a look at whether it is wanted */
	ck_assert_uint_eq(info_of(root, 2).refused, before);
	fm_block_release(second.pool, &held[0], 1);
	ck_assert_int_eq(fm_queue_wait(queue, &done, 1, 60000000000ull), 1);
	ck_assert_int_eq(done.result, 0);
	fm_block_release(second.pool, &held[1], 1);
	pthread_join(waiter, NULL);
	ck_assert_int_eq(second.err, 0);
	ck_assert_uint_eq(info_of(root, 2).refused, before);
	fm_queue_destroy(queue);
	fm_pool_detach(second.pool);
	fm_pool_detach(root);
	stop();
	free(data);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pool_limits");
	TCase *cases = tcase_create("all");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(cases, 300);
	tcase_add_test(cases, only_named_users_and_groups_attach);
	tcase_add_test(cases, without_names_the_socket_decides);
	tcase_add_test(cases, one_client_does_not_stage_the_whole_pool);
	tcase_add_test(cases, each_user_acts_for_its_tenant_and_sees_no_other);
	tcase_add_test(cases, quotas_hold_and_change_while_it_runs);
	tcase_add_test(cases, only_so_many_requests_of_a_tenant_wait);
	tcase_add_test(cases, a_request_that_waits_is_refused_once_if_at_all);
	tcase_add_test(cases, a_queued_put_keeps_its_turn);
	suite_add_tcase(suite, cases);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
