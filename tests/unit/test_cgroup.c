// SPDX-License-Identifier: Apache-2.0
/*
 * What a control group leaves of memory, read from a made-up hierarchy: the tightest group counts,
 * cache that can go does not, and what is not there limits nothing.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <fabricmgr.h>

#include "mem/cgroup.h"
#include "mem/region.h"
#include "scratch.h"

static char folder[SCRATCH_MAX], root[SCRATCH_MAX + 8], self[SCRATCH_MAX + 8];

static void put(const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_ge(fputs(text, file), 0);
	ck_assert_int_eq(fclose(file), 0);
}

static void make(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void set_up(void)
{
	scratch_folder(folder);
	snprintf(root, sizeof(root), "%s/root", folder);
	snprintf(self, sizeof(self), "%s/self", folder);
	make("root");
	make("root/a");
	make("root/a/b");
	put("self", "4:memory:/elsewhere\n0::/a/b\n");
}

static void tear_down(void)
{
	scratch_remove(folder);
}

START_TEST(without_a_limit_there_is_none)
{
	struct fm_cgroup_memory memory;

	ck_assert(!fm_cgroup_memory("/nowhere/self", root, &memory));
	ck_assert(!fm_cgroup_memory(self, "/nowhere", &memory));
	ck_assert(!fm_cgroup_memory(self, root, &memory));
	put("root/a/b/memory.max", "max\n");
	put("root/a/b/memory.current", "4096\n");
	ck_assert(!fm_cgroup_memory(self, root, &memory));
	put("self", "4:memory:/a\n"); /* the old hierarchy alone */
	ck_assert(!fm_cgroup_memory(self, root, &memory));
}
END_TEST

START_TEST(the_tightest_group_counts)
{
	struct fm_cgroup_memory memory;

	put("root/a/b/memory.max", "1000000\n");
	put("root/a/b/memory.current", "300000\n");
	ck_assert(fm_cgroup_memory(self, root, &memory));
	ck_assert_str_eq(memory.path, "/a/b");
	ck_assert_uint_eq(memory.limit, 1000000);
	ck_assert_uint_eq(memory.used, 300000);
	/* The group above has a larger limit, but less is left of it. */
	put("root/a/memory.max", "2000000\n");
	put("root/a/memory.current", "1900000\n");
	put("root/a/memory.stat", "anon 5\ninactive_anon 7\ninactive_file 500000\nfile 9\n");
	ck_assert(fm_cgroup_memory(self, root, &memory));
	ck_assert_str_eq(memory.path, "/a");
	ck_assert_uint_eq(memory.limit - memory.used, 600000);
	/* Over its limit: nothing is left, not a huge number. */
	put("root/a/b/memory.current", "1500000\n");
	ck_assert(fm_cgroup_memory(self, root, &memory));
	ck_assert_str_eq(memory.path, "/a/b");
	ck_assert_uint_eq(memory.limit, memory.used);
	put("self", "0::/\n");
	put("root/memory.max", "77\n");
	put("root/memory.current", "7\n");
	ck_assert(fm_cgroup_memory(self, root, &memory));
	ck_assert_str_eq(memory.path, "/");
	ck_assert_uint_eq(memory.limit - memory.used, 70);
}
END_TEST

START_TEST(a_pool_beyond_the_limit_is_refused_with_the_sum)
{
	struct fm_memory memory = {.rung = FM_RUNG_MEMFD};
	struct fm_cgroup_memory group = {"/a", 100u << 20, 40u << 20};

	ck_assert_int_eq(fm_memory_check(&memory, &group, 50u << 20, 10u << 20, 0), 0);
	ck_assert_int_eq(fm_memory_check(&memory, &group, 51u << 20, 10u << 20, 0),
			 FM_ERR_NO_MEMORY);
	ck_assert_msg(strstr(fm_error_detail(), "51.0 MiB + tables 10.0 MiB = 61.0 MiB") &&
			      strstr(fm_error_detail(), "100.0 MiB") &&
			      strstr(fm_error_detail(), "40.0 MiB") &&
			      strstr(fm_error_detail(), "/a"),
		      "%s", fm_error_detail());
	ck_assert_int_eq(fm_memory_check(&memory, NULL, 51u << 20, 10u << 20, 0), 0);
	ck_assert_int_eq(fm_memory_check(&memory, &group, 40u << 20, 10u << 20, 11u << 20),
			 FM_ERR_NO_MEMORY);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "+ other groups 11.0 MiB = 61.0 MiB"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cgroup");
	TCase *tests = tcase_create("cgroup");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_checked_fixture(tests, set_up, tear_down);
	tcase_add_test(tests, without_a_limit_there_is_none);
	tcase_add_test(tests, the_tightest_group_counts);
	tcase_add_test(tests, a_pool_beyond_the_limit_is_refused_with_the_sum);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
