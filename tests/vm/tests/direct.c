// SPDX-License-Identifier: Apache-2.0
/*
 * Devices on region memory: an NVMe drive reads and writes it by O_DIRECT, and as a fixed buffer of
 * a ring where the kernel takes one; a reader's window serves as source; a transfer's hold keeps a
 * seal off where it shows.
 */
#include <linux/fs.h>

#include "uring.h"

#define BYTES (1 * MIB)

static int drive(void)
{
	int fd = open("/dev/nvme0n1", O_RDWR | O_DIRECT | O_CLOEXEC);
	uint64_t bytes = 0;

	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &bytes) || bytes < 4 * BYTES)
		skip_all("there is no NVMe drive");
	return fd;
}

static void fill(char *memory, unsigned int value)
{
	size_t i;

	for (i = 0; i < BYTES / sizeof(int); i++)
		((unsigned int *)memory)[i] = value = value * 1664525 + 1013904223;
}

static bool is_filled(const char *memory, unsigned int value)
{
	size_t i;

	for (i = 0; i < BYTES / sizeof(int); i++)
		if (((const unsigned int *)memory)[i] !=
		    (value = value * 1664525 + 1013904223))
			return false;
	return true;
}

static void test_direct(int disk, char *writer, const char *reader)
{
	fill(writer, 1);
	check(pwrite(disk, writer, BYTES, 0) == BYTES, "written from the write window");
	check(pwrite(disk, reader, BYTES, BYTES) == BYTES, "and from the read window");
	memset(writer, 0, BYTES);
	check(pread(disk, writer, BYTES, 0) == BYTES && is_filled(reader, 1), "read back");
	memset(writer, 0, BYTES);
	check(pread(disk, writer, BYTES, BYTES) == BYTES && is_filled(reader, 1), "both");
	check(pread(disk, (char *)reader, BYTES, 0) < 0 && errno == EFAULT,
	      "nothing is read into the read window");
}

static void submit_fixed(struct uring *ring, int fd, int opcode, char *memory, uint64_t offset)
{
	uint32_t tail = *uring_word(ring, ring->params.sq_off.tail);
	uint32_t slot = tail & *uring_word(ring, ring->params.sq_off.ring_mask);
	struct io_uring_sqe *entry = &ring->entries[slot];

	memset(entry, 0, sizeof(*entry));
	entry->opcode = opcode;
	entry->fd = fd;
	entry->addr = (uintptr_t)memory;
	entry->len = BYTES;
	entry->off = offset;
	uring_word(ring, ring->params.sq_off.array)[slot] = slot;
	__atomic_store_n(uring_word(ring, ring->params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	need(syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) == 1);
}

static void test_fixed(int disk, char *writer, const char *reader)
{
	struct io_uring_cqe completion;
	struct uring ring;
	int error;

	uring_open(&ring, 4, 0);
	error = uring_register_buffer(&ring, writer, BYTES);
	if (error == -EOPNOTSUPP) {
		check(true, "this kernel registers no buffer of such a mapping # SKIP");
	} else {
		check(!error, "a ring registers it");
		fill(writer, 2);
		submit_fixed(&ring, disk, IORING_OP_WRITE_FIXED, writer, 2 * BYTES);
		check(uring_wait(&ring, &completion) && completion.res == BYTES,
		      "a fixed buffer is written");
		memset(writer, 0, BYTES);
		submit_fixed(&ring, disk, IORING_OP_READ_FIXED, writer, 2 * BYTES);
		check(uring_wait(&ring, &completion) && completion.res == BYTES &&
			      is_filled(reader, 2),
		      "and read, the same bytes");
	}
	uring_close(&ring);
}

/* A pipe holds a page as O_DIRECT does on kernels where that takes references and no pins. */
static void test_held(int fd, uint32_t id, char *writer)
{
	struct iovec vector = { writer, 4096 };
	char byte[4096];
	int ends[2], error;

	/* A closed ring lets go of its buffers behind us. */
	while (one(fd, FABRICMGR_IOC_PINS, id, 0, 0, 4096, 0) == -EBUSY)
		usleep(1000);
	need(!pipe2(ends, O_CLOEXEC));
	need(vmsplice(ends[1], &vector, 1, 0) == 4096);
	error = one(fd, FABRICMGR_IOC_SEAL, id, 0, 0, 4096, 0);
	if (error)
		check(error == -EBUSY, "a page that is held is not sealed");
	else
		check(true, "what holds a page here writes nothing # SKIP");
	need(read(ends[0], byte, sizeof(byte)) == sizeof(byte));
	close(ends[0]);
	close(ends[1]);
	if (error)
		check(!one(fd, FABRICMGR_IOC_SEAL, id, 0, 0, 4096, 0), "but when it is let go");
}

int main(void)
{
	struct fabricmgr_region_create region;
	char *writer, *reader;
	int disk = drive(), fd;

	start();
	fd = device();
	region = region_create(fd, "direct", CHUNK, 0, 0600);
	writer = map_rw(fd, region.write_offset, CHUNK);
	reader = map(fd, region.map_offset, CHUNK, PROT_READ);
	need(reader != MAP_FAILED);
	test_direct(disk, writer, reader);
	test_fixed(disk, writer, reader);
	test_held(fd, region.id, writer);
	check(access_fails(writer, true) == SIGBUS, "and then nobody writes to it");
	check(pread(disk, writer, 4096, 0) < 0 && errno == EFAULT, "no drive either");
	munmap(writer, CHUNK);
	munmap(reader, CHUNK);
	need(!region_destroy(fd, region.id, FABRICMGR_DESTROY_FORCE));
	close(fd);
	close(disk);
	return finish();
}
