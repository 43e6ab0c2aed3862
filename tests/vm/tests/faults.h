/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of a call fails once, for faults*.c: the n-th, for n from 1 until the call needs
 * no more. Each time the call succeeds or gives an error, nothing of it is left, and without the
 * fault it works. Copies from and to user memory fail in the same way. Needs a kernel with fault
 * injection.
 */
#ifndef FM_TEST_FAULTS_H
#define FM_TEST_FAULTS_H

#include "uring.h"

#define TURNS_MAX 400

struct scene {
	int fd, client;
	uint32_t arena, client_id;
	uint64_t write_offset;
	int result; /* of what is tried */
};

struct fault_case {
	const char *what;
	void (*attempt)(struct scene *scene);
	bool is_infallible; /* it needs no memory, or has to do without */
};

static inline void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		skip_all("the kernel injects no faults");
	close(fd);
}

static int fail_fd, nth;
static bool is_over; /* the call needed less than nth allocations and copies */

/* From here on the nth allocation, or copy from or to user memory, of this thread fails. */
static inline void arm(void)
{
	char text[16];
	int bytes = snprintf(text, sizeof(text), "%d", nth);

	need(pwrite(fail_fd, text, bytes, 0) == bytes);
}

/* Looking may be what fails: then the call has not. */
static inline void disarm(void)
{
	char text[16] = "0";

	is_over = pread(fail_fd, text, sizeof(text) - 1, 0) <= 0 || atoi(text);
	while (pwrite(fail_fd, "0", 1, 0) != 1)
		;
}

/* The descriptor that a call made and could not tell: the highest one, of that @kind. */
static inline bool lost_descriptor(const char *kind, int *fd)
{
	char path[32], target[64];
	ssize_t bytes;

	for (*fd = 64; *fd > 2; (*fd)--) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
		bytes = readlink(path, target, sizeof(target) - 1);
		if (bytes > 0)
			return !strncmp(target, kind, strlen(kind));
	}
	return false;
}

static inline uint64_t used(int fd)
{
	struct fabricmgr_quota quota = {.uid = FABRICMGR_ID_SAME};

	need(!call(fd, QUOTA_GET, &quota));
	return quota.bytes + quota.regions + quota.clients;
}

static inline void test_case(struct scene *scene, const struct fault_case *tried)
{
	uint64_t before = used(scene->fd);
	int failures = 0, wait;

	for (nth = 1, is_over = false; nth < TURNS_MAX && !is_over; nth++) {
		tried->attempt(scene);
		failures += scene->result != 0;
	}
	check(is_over && (failures || tried->is_infallible), "%s: %d faults, of which it told %d",
	      tried->what, nth - 2, failures);
	nth = 100000;
	tried->attempt(scene);
	check(!scene->result, "%s: works without", tried->what);
	for (wait = 0; wait < 1000 && used(scene->fd) != before; wait++)
		usleep(10000); /* files close behind us */
	check(used(scene->fd) == before, "%s: leaves nothing", tried->what);
}

/* A memfd of a page that the module takes as a vault; its descriptor is to be closed. */
static inline struct fabricmgr_vault_create vault_of_a_page(void)
{
	struct fabricmgr_vault_create vault = {
		.uid = FABRICMGR_ID_SAME,
		.gid = FABRICMGR_ID_SAME,
		.mode = 0600,
		.name = "vault",
	};

	vault.fd = syscall(SYS_memfd_create, "vault", 3U);
	need(!ftruncate(vault.fd, 4096) && !fchmod(vault.fd, 0600) &&
	     !fcntl(vault.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return vault;
}

/* Runs @count cases on a region "arena" of four chunks, which a second client has open, too. */
static inline int run_cases(const struct fault_case *cases, size_t count)
{
	struct fabricmgr_client_info info = {0};
	struct fabricmgr_region_create arena;
	struct fabricmgr_region_open open_arena;
	struct scene scene;
	size_t i;

	write_to("/sys/kernel/debug/failslab/ignore-gfp-wait", "N");
	write_to("/sys/kernel/debug/failslab/verbose", "0");
	write_to("/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N");
	write_to("/sys/kernel/debug/fail_page_alloc/min-order", "0");
	write_to("/sys/kernel/debug/fail_page_alloc/verbose", "0");
	write_to("/sys/kernel/debug/fail_usercopy/verbose", "0");
	fail_fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_fd < 0)
		skip_all("the kernel cannot fail the n-th allocation");
	start();
	scene.fd = device();
	scene.client = device();
	arena = region_create(scene.fd, "arena", 4 * CHUNK, 0, 0600);
	scene.arena = arena.id;
	scene.write_offset = arena.write_offset;
	need(!region_open(scene.client, "arena", 0, &open_arena));
	need(!call(scene.client, CLIENT_INFO, &info));
	scene.client_id = info.id;
	for (i = 0; i < count; i++)
		test_case(&scene, &cases[i]);
	close(scene.client);
	need(!region_destroy(scene.fd, arena.id, FABRICMGR_DESTROY_FORCE));
	close(scene.fd);
	return finish();
}

#endif
