// SPDX-License-Identifier: Apache-2.0
/*
 * Regions: creating with every refusal, mapping both windows, memory that stays when every file is
 * closed and is found again by name, permissions of two users, ending by force and without.
 */
#include "module.h"

#define NOBODY 65534
#define OTHER 1000

static void test_version(int fd)
{
	struct fabricmgr_version version = { 0 };
	struct {
		struct fabricmgr_version known;
		uint64_t later;
	} longer = { .known = { .size = sizeof(longer) } };
	uint64_t shorter[2] = { 8 };

	need(!call(fd, VERSION, &version));
	check(version.api_major == FABRICMGR_API_MAJOR,
	      "version is %u.%u, features %#llx", version.api_major, version.api_minor,
	      version.features);
	check(version.order_max == 10 && version.page_bytes == 4096, "chunks of up to 4 MiB");
	check(!call_raw(fd, FABRICMGR_IOC_VERSION, &longer), "a longer one of zeros is taken");
	longer.later = 1;
	longer.known.size = sizeof(longer);
	check(call_raw(fd, FABRICMGR_IOC_VERSION, &longer) == -E2BIG,
	      "a longer structure with something in it is E2BIG");
	check(!call_raw(fd, FABRICMGR_IOC_VERSION, shorter) && !shorter[1],
	      "of a short structure no more is written than there is");
	shorter[0] = 4;
	check(call_raw(fd, FABRICMGR_IOC_VERSION, shorter) == -EINVAL, "too short is EINVAL");
	version.flags = 1;
	check(call(fd, VERSION, &version) == -EINVAL, "an unknown flag is EINVAL");
	check(call_raw(fd, FABRICMGR_IOC_VERSION, NULL) == -EFAULT, "no structure is EFAULT");
	check(call_raw(fd, _IO(0xFA, 0x7f), &version) == -ENOTTY, "an unknown call is ENOTTY");
}

static int create_error(int fd, void (*change)(struct fabricmgr_region_create *))
{
	struct fabricmgr_region_create create = region_spec("refused", CHUNK, 0);

	change(&create);
	return call(fd, REGION_CREATE, &create);
}

static void no_name(struct fabricmgr_region_create *create)
{
	create->name[0] = 0;
}

static void slash_name(struct fabricmgr_region_create *create)
{
	strcpy(create->name, "a/b");
}

static void long_name(struct fabricmgr_region_create *create)
{
	memset(create->name, 'x', sizeof(create->name));
}

static void no_bytes(struct fabricmgr_region_create *create)
{
	create->bytes = 0;
}

static void odd_bytes(struct fabricmgr_region_create *create)
{
	create->bytes = CHUNK + 4096;
}

static void much(struct fabricmgr_region_create *create)
{
	create->bytes = 1UL << 50;
}

static void low_order(struct fabricmgr_region_create *create)
{
	create->order = 3;
}

static void high_order(struct fabricmgr_region_create *create)
{
	create->order = 11;
}

static void no_node(struct fabricmgr_region_create *create)
{
	create->node = 63;
}

static void execute_mode(struct fabricmgr_region_create *create)
{
	create->mode = 0700;
}

static void not_reserved(struct fabricmgr_region_create *create)
{
	create->reserved = 1;
}

static void unknown_flag(struct fabricmgr_region_create *create)
{
	create->flags = 1U << 31;
}

static void test_refusals(int fd)
{
	static const struct {
		const char *what;
		void (*change)(struct fabricmgr_region_create *);
		int error;
	} cases[] = {
		{ "no name", no_name, -EINVAL },
		{ "a name with a slash", slash_name, -EINVAL },
		{ "a name without an end", long_name, -EINVAL },
		{ "no bytes", no_bytes, -EINVAL },
		{ "bytes that are no chunks", odd_bytes, -EINVAL },
		{ "more than the module may hold", much, -ENOSPC },
		{ "an order below the smallest", low_order, -EINVAL },
		{ "an order above the largest", high_order, -EINVAL },
		{ "a node that is not there", no_node, -ENXIO },
		{ "execute bits", execute_mode, -EINVAL },
		{ "something in reserved", not_reserved, -EINVAL },
		{ "an unknown flag", unknown_flag, -EINVAL },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int error = create_error(fd, cases[i].change);

		check(error == cases[i].error, "create with %s: %s", cases[i].what,
		      strerror(-error));
	}
}

static void test_windows(void)
{
	struct fabricmgr_region_create create;
	int fd = device(), second = device();
	struct fabricmgr_region_open open;
	char *reader, *writer;

	create = region_create(fd, "windows", 2 * CHUNK, 0, 0600);
	check(create.order == 10 || create.order == 9, "chunks are of order %u", create.order);
	writer = map_rw(fd, create.write_offset, 2 * CHUNK);
	reader = map(fd, create.map_offset, 2 * CHUNK, PROT_READ);
	check(reader != MAP_FAILED, "the read window maps");
	check(is_all(reader, 2 * CHUNK, 0), "new memory is zero");
	memset(writer, 'a', 2 * CHUNK);
	check(is_all(reader, 2 * CHUNK, 'a'), "both windows show the same");
	check(map(fd, create.map_offset, CHUNK, PROT_READ | PROT_WRITE) == MAP_FAILED &&
		      errno == EACCES,
	      "the read window does not map for writing");
	check(mprotect(reader, CHUNK, PROT_READ | PROT_WRITE) && errno == EACCES,
	      "nor does it become writable");
	check(mmap(NULL, CHUNK, PROT_READ, MAP_PRIVATE, fd, create.map_offset) == MAP_FAILED &&
		      errno == EINVAL,
	      "a private mapping is refused");
	check(map(fd, create.map_offset, CHUNK, PROT_READ | PROT_EXEC) == MAP_FAILED,
	      "an executable mapping is refused");
	check(map(fd, create.map_offset + CHUNK, 2 * CHUNK, PROT_READ) == MAP_FAILED &&
		      errno == EINVAL,
	      "more than the window is refused");
	check(map(fd, 1UL << 50, 4096, PROT_READ) == MAP_FAILED && errno == ENXIO,
	      "an offset that shows nothing is ENXIO");
	check(map(second, create.map_offset, CHUNK, PROT_READ) == MAP_FAILED && errno == EACCES,
	      "a file that has not opened the region does not map it");
	check(!region_open(second, "windows", 0, &open) && open.map_offset == create.map_offset &&
		      open.bytes == 2 * CHUNK,
	      "it opens by name");
	check(map(second, open.map_offset + CHUNK, CHUNK, PROT_READ) != MAP_FAILED,
	      "a part of it maps");
	check(region_destroy(fd, create.id, 0) == -EBUSY, "what is mapped is not destroyed");
	check(!region_destroy(fd, create.id, FABRICMGR_DESTROY_FORCE), "but by force");
	check(access_fails(reader, false) == SIGBUS && access_fails(writer, true) == SIGBUS,
	      "its mappings are SIGBUS then");
	munmap(reader, 2 * CHUNK);
	munmap(writer, 2 * CHUNK);
	close(fd);
	close(second);
}

static int fork_reads(void *memory)
{
	return access_fails(memory, false);
}

static void test_persistence(void)
{
	struct fabricmgr_region_create create;
	struct fabricmgr_region_open open;
	int fd = device();
	char *memory;

	create = region_create(fd, "stays", CHUNK, 0, 0600);
	memory = map_rw(fd, create.write_offset, CHUNK);
	memset(memory, 'p', CHUNK);
	check(in_child(0, 0, fork_reads, memory) == SIGSEGV, "a child does not inherit a mapping");
	munmap(memory, CHUNK);
	close(fd);

	fd = device();
	check(!region_open(fd, "stays", FABRICMGR_OPEN_WRITE, &open) && open.id == create.id,
	      "the region is there when every file was closed");
	memory = map_rw(fd, open.write_offset, CHUNK);
	check(is_all(memory, CHUNK, 'p'), "with what was in it");
	munmap(memory, CHUNK);
	check(syscall(SYS_delete_module, "fabricmgr", O_NONBLOCK) < 0 && errno == EWOULDBLOCK,
	      "the module does not unload");
	check(!region_destroy(fd, open.id, 0), "it is destroyed");
	check(region_open(fd, "stays", 0, &open) == -ENOENT, "and its name is free");
	create = region_create(fd, "stays", CHUNK, 0, 0600);
	memory = map_rw(fd, create.write_offset, CHUNK);
	check(is_all(memory, CHUNK, 0), "a new one of the name is zero");
	munmap(memory, CHUNK);
	need(!region_destroy(fd, create.id, 0));
	close(fd);
}

static int as_other(void *context)
{
	struct fabricmgr_region_create create = region_spec("others", CHUNK, 0);
	struct fabricmgr_region_info info = { 0 };
	struct fabricmgr_region_own own = { 0 };
	struct fabricmgr_region_open open;
	uint32_t *ids = context;
	int fd = device();
	char *memory;

	test_failures = 0;
	check(region_open(fd, "private", 0, &open) == -EACCES, "another user opens no 0600");
	check(region_open(fd, "public", FABRICMGR_OPEN_WRITE, &open) == -EACCES,
	      "nor writes a 0644");
	check(!region_open(fd, "public", 0, &open), "which he reads");
	memory = map_rw(fd, open.write_offset, CHUNK);
	check(access_fails(memory, false) == SIGBUS && access_fails(memory, true) == SIGBUS,
	      "nor reach by the write window");
	check(region_destroy(fd, ids[1], FABRICMGR_DESTROY_FORCE) == -EPERM, "nor destroy");
	own = (struct fabricmgr_region_own){ .id = ids[1], .uid = OTHER, .gid = FABRICMGR_ID_SAME,
					     .mode = FABRICMGR_ID_SAME };
	check(call(fd, REGION_OWN, &own) == -EPERM, "nor take");
	info.id = ids[0];
	check(call(fd, REGION_INFO, &info) == -ENOENT, "he does not even hear of the private one");
	create.uid = NOBODY;
	check(call(fd, REGION_CREATE, &create) == -EPERM, "he makes none for somebody else");
	create.uid = FABRICMGR_ID_SAME;
	create.flags = FABRICMGR_CREATE_UNCHARGED;
	check(call(fd, REGION_CREATE, &create) == -EPERM, "nor one that is not charged to him");
	create.flags = 0;
	check(!call(fd, REGION_CREATE, &create), "but his own");
	check(!region_destroy(fd, create.id, 0), "which he destroys");
	check(!region_open(fd, "given", FABRICMGR_OPEN_WRITE, &open), "what was given him is his");
	fflush(stdout);
	return test_failures ? 1 : 0;
}

static void test_permission(void)
{
	int fd = device(), status;
	uint32_t ids[3];
	struct fabricmgr_region_own own = { .uid = OTHER, .gid = FABRICMGR_ID_SAME, .mode = 0600 };

	need(!chmod(DEVICE, 0666));
	ids[0] = region_create(fd, "private", CHUNK, 0, 0600).id;
	ids[1] = region_create(fd, "public", CHUNK, 0, 0644).id;
	ids[2] = region_create(fd, "given", CHUNK, 0, 0600).id;
	own.id = ids[2];
	check(!call(fd, REGION_OWN, &own), "an administrator gives a region away");
	status = in_child(OTHER, OTHER, as_other, ids);
	test_count += 12; /* the child counted on from here */
	check(!status, "all of another user's calls went as they should");
	need(!region_destroy(fd, ids[0], 0) && !region_destroy(fd, ids[1], 0) &&
	     !region_destroy(fd, ids[2], 0));
	need(!chmod(DEVICE, 0660));
	close(fd);
}

static void test_information(int fd)
{
	struct fabricmgr_region_create first, second;
	struct fabricmgr_region_info info = { .flags = FABRICMGR_NEXT };
	int seen = 0;

	first = region_create(fd, "first", CHUNK, 0, 0640);
	second = region_create(fd, "second", 4 * MIB, FABRICMGR_CREATE_MANAGE, 0600);
	check(call(fd, REGION_CREATE, &second) == -EEXIST, "a name is there once");
	while (!call(fd, REGION_INFO, &info)) {
		seen++;
		if (info.id == first.id)
			check(!strcmp(info.name, "first") && info.mode == 0640 && !info.manager &&
				      info.bytes == CHUNK && info.resident_bytes == CHUNK &&
				      info.clients == 1 && info.kind == FABRICMGR_REGION_CHUNKS,
			      "the first is described");
		else if (info.id == second.id)
			check(info.manager && info.state & FABRICMGR_REGION_IS_MANAGED,
			      "the second has a manager");
		info.flags = FABRICMGR_NEXT;
	}
	check(seen == 2, "iterating finds both");
	need(!region_destroy(fd, first.id, 0) && !region_destroy(fd, second.id, 0));
}

static void test_small_chunks(int fd)
{
	struct fabricmgr_region_create create = region_spec("small", 64 << 10, 0);
	char *memory;

	create.order = 4;
	check(!call(fd, REGION_CREATE, &create) && create.order == 4,
	      "chunks of 64 KiB when asked for");
	memory = map_rw(fd, create.write_offset, 64 << 10);
	memset(memory, 1, 64 << 10);
	munmap(memory, 64 << 10);
	need(!region_destroy(fd, create.id, 0));
}

int main(void)
{
	int fd;

	start();
	fd = device();
	test_version(fd);
	test_refusals(fd);
	test_information(fd);
	test_small_chunks(fd);
	test_windows();
	test_persistence();
	test_permission();
	close(fd);
	return finish();
}
