// SPDX-License-Identifier: Apache-2.0
/*
 * What tests in a virtual machine stand on: the kernel asked for, two nodes of memory, two drives,
 * RDMA. Run by check.py as every program of this folder; needs nothing of the module.
 * VM: unloaded, limit 60
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int count, failures;

static void check(int is_good, const char *what)
{
	printf("%s %d - %s\n", is_good ? "ok" : "not ok", ++count, what);
	failures += !is_good;
}

static int is_line(const char *path, const char *start)
{
	FILE *file = fopen(path, "re");
	char line[64] = "";
	int is_same;

	if (!file)
		return 0;
	is_same = fgets(line, sizeof(line), file) && !strncmp(line, start, strlen(start));
	fclose(file);
	return is_same;
}

int main(void)
{
	const char *kernel = getenv("FABRICMGR_KERNEL") ?: "";
	int is_debug = !strcmp(kernel, "debug");
	char series[16];

	printf("TAP version 13\n");
	snprintf(series, sizeof(series), "%s.", is_debug ? "6.1" : kernel);
	check(is_line("/proc/sys/kernel/osrelease", series), "the kernel is the one asked for");
	check(is_debug == !access("/sys/kernel/debug/kmemleak", F_OK),
	      "leaks are looked for on the debug kernel");
	check(is_line("/sys/devices/system/node/online", "0-1"), "two nodes of memory");
	check(!access("/dev/nvme0n1", F_OK) && !access("/dev/nvme1n1", F_OK), "two drives");
	check(!access("/sys/class/infiniband", F_OK), "RDMA");
	printf("1..%d\n", count);
	return failures != 0;
}
