// SPDX-License-Identifier: Apache-2.0
/*
 * Vaults: a memfd of huge pages, or of small ones, that lives on under a name; which files are
 * refused; what a reader gets of it.
 */
#include "module.h"

#define HUGE (2 * MIB)

static int memory_file(unsigned int flags, int seals)
{
	int fd = syscall(SYS_memfd_create, "vault", 1U | 2U | flags);

	if (fd < 0 || ftruncate(fd, HUGE) || fchmod(fd, 0600) || fcntl(fd, F_ADD_SEALS, seals))
		return -1;
	return fd;
}

static struct fabricmgr_vault_create vault_spec(int fd)
{
	return (struct fabricmgr_vault_create){
		.fd = fd, .uid = FABRICMGR_ID_SAME, .gid = FABRICMGR_ID_SAME, .mode = 0644,
		.name = "vault",
	};
}

static int vault_fd(int fd, uint32_t id, uint32_t flags)
{
	struct fabricmgr_region_fd argument = { .id = id, .fd_flags = flags | O_CLOEXEC };
	int error = call(fd, REGION_FD, &argument);

	return error ?: argument.fd;
}

static int as_reader(void *context)
{
	struct fabricmgr_region_open open;
	int fd = device(), vault;
	char path[64];

	(void)context;
	test_failures = 0;
	need(!region_open(fd, "vault", 0, &open));
	check(vault_fd(fd, open.id, O_RDWR) == -EACCES, "a reader gets nothing to write to");
	vault = vault_fd(fd, open.id, O_RDONLY);
	check(vault >= 0, "but to read");
	check(map(vault, 0, HUGE, PROT_READ)[5] == 'v', "which he maps");
	check(map(vault, 0, HUGE, PROT_READ | PROT_WRITE) == MAP_FAILED, "for reading alone");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", vault);
	check(open64(path, O_RDWR) < 0 && errno == EACCES, "nor opens it again for writing");
	return test_failures != 0;
}

static void test_life(const char *what, unsigned int flags)
{
	int fd = device(), memory = memory_file(flags, F_SEAL_SHRINK), vault;
	struct fabricmgr_vault_create create = vault_spec(memory);
	struct fabricmgr_region_open open;
	char *mapped;

	if (memory < 0) {
		check(true, "%s: there is no such memory # SKIP", what);
		close(fd);
		return;
	}
	mapped = map_rw(memory, 0, HUGE);
	memset(mapped, 'v', HUGE);
	munmap(mapped, HUGE);
	check(!call(fd, VAULT_CREATE, &create) && create.bytes == HUGE, "%s: a vault", what);
	close(memory);
	close(fd);
	fd = device();
	check(!region_open(fd, "vault", FABRICMGR_OPEN_WRITE, &open) && !open.map_offset,
	      "%s: is found again when all is closed", what);
	vault = vault_fd(fd, open.id, O_RDWR);
	check(vault >= 0, "%s: with its descriptor", what);
	mapped = map_rw(vault, 0, HUGE);
	check(is_all(mapped, HUGE, 'v'), "%s: and what was in it", what);
	munmap(mapped, HUGE);
	check(one(fd, FABRICMGR_IOC_SEAL, open.id, 0, 0, 4096, 0) == -EOPNOTSUPP,
	      "%s: it is not sealed", what);
	check(!in_child(1000, 1000, as_reader, NULL), "%s: a reader reads", what);
	test_count += 5;
	check(!region_destroy(fd, open.id, 0), "%s: it is destroyed", what);
	mapped = map_rw(vault, 0, HUGE);
	check(mapped[5] == 'v', "%s: whoever has it keeps it", what);
	munmap(mapped, HUGE);
	close(vault);
	close(fd);
}

static int create_error(int fd, int memory)
{
	struct fabricmgr_vault_create create = vault_spec(memory);
	int error = call(fd, VAULT_CREATE, &create);

	close(memory);
	return error;
}

static void test_refusals(void)
{
	int fd = device(), memory, sockets[2];

	check(create_error(fd, memory_file(0, F_SEAL_GROW)) == -EINVAL,
	      "a file that can shrink is refused");
	memory = memory_file(0, F_SEAL_SHRINK);
	need(!fchmod(memory, 0644));
	check(create_error(fd, memory) == -EPERM, "one that others can open, too");
	need(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	check(create_error(fd, sockets[0]) == -EINVAL, "a socket");
	check(create_error(fd, device()) == -EINVAL, "a file of ours");
	check(create_error(fd, open("/proc/self/maps", O_RDONLY)) == -EINVAL, "a file elsewhere");
	check(create_error(fd, -1) == -EBADF, "none");
	close(sockets[1]);
	close(fd);
}

int main(void)
{
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "w");

	start();
	need(file);
	fprintf(file, "4\n");
	fclose(file);
	need(!chmod(DEVICE, 0666));
	test_refusals();
	test_life("huge pages", 4U);
	test_life("small pages", 0);
	file = fopen("/proc/sys/vm/nr_hugepages", "w");
	need(file);
	fprintf(file, "0\n");
	fclose(file);
	return finish();
}
