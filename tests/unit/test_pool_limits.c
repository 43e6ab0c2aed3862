// SPDX-License-Identifier: Apache-2.0
/*
 * Who may attach to a pool, and how much one client may have staged, through the public calls.
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

static struct fm_server *server;
static pthread_t thread;
static char folder[64], socket_path[80];

static void *serve(void *argument)
{
	fm_server_run(argument);
	return NULL;
}

static void start(struct fm_server_options *options)
{
	strcpy(folder, "/tmp/fabricmgr-limits-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	ck_assert_int_eq(chmod(folder, 0755), 0);
	snprintf(socket_path, sizeof(socket_path), "%s/pool", folder);
	options->size = sizeof(*options);
	options->pool_bytes = 16 << 20;
	options->memory = "memfd";
	options->socket = socket_path;
	options->socket_mode = 0666;
	ck_assert_msg(!fm_server_create(options, &server), "%s", fm_error_detail());
	ck_assert_int_eq(pthread_create(&thread, NULL, serve, server), 0);
}

static void stop(void)
{
	char lock[96];

	fm_server_stop(server);
	pthread_join(thread, NULL);
	fm_server_destroy(server);
	snprintf(lock, sizeof(lock), "%s.lock", socket_path);
	unlink(lock);
	rmdir(folder);
}

static struct fm_pool *attach(int *err)
{
	struct fm_attach_options options = {
		.size = sizeof(options), .socket = socket_path, .fd = -1};
	struct fm_pool *pool = NULL;

	*err = fm_pool_attach(&options, &pool);
	return pool;
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
	suite_add_tcase(suite, cases);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
