// SPDX-License-Identifier: Apache-2.0
/*
 * dma-bufs: regions as such, for a device to write to; others' as peer regions, with revocation;
 * distances between functions. The other side is tests/vm/modules/peer_test.c, vgem and udmabuf.
 */
#include <dirent.h>
#include <linux/udmabuf.h>

#include "../modules/peer_test.h"
#include "module.h"

#define TEST_DEVICE "/dev/fabricmgr_peer_test"

static struct fabricmgr_pci nvme[2];
static int nvme_count;

static void load_other_side(void)
{
	int fd = open("/modules/peer_test.ko", O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
		syscall(SYS_finit_module, fd, "", 0);
	close(fd);
	if (access(TEST_DEVICE, F_OK))
		skip_all("there is no module peer_test");
}

static void find_functions(void)
{
	DIR *folder = opendir("/sys/bus/pci/drivers/nvme");
	unsigned int domain, bus, slot, function;
	struct dirent *entry;

	while (folder && (entry = readdir(folder)))
		if (nvme_count < 2 && sscanf(entry->d_name, "%x:%x:%x.%x", &domain, &bus, &slot,
					     &function) == 4)
			nvme[nvme_count++] =
				(struct fabricmgr_pci){ domain, bus, slot, function, 0 };
	if (folder)
		closedir(folder);
	if (!nvme_count)
		skip_all("there is no NVMe drive to import for");
}

static int other_side(void)
{
	int fd = open(TEST_DEVICE, O_RDWR | O_CLOEXEC);

	need(fd >= 0);
	return fd;
}

static int export_fd(int fd, uint32_t id, uint64_t offset, uint64_t bytes, uint32_t flags)
{
	struct fabricmgr_region_export argument = {
		.id = id, .fd_flags = flags | O_CLOEXEC, .offset = offset, .bytes = bytes
	};
	int error = call(fd, REGION_EXPORT, &argument);

	return error ?: argument.fd;
}

static void test_export(void)
{
	int fd = device(), importer = other_side(), buffer, reader = device();
	struct fabricmgr_region_create create = region_create(fd, "export", 2 * CHUNK, 0, 0644);
	struct fabricmgr_region_open open;
	char *memory = map_rw(fd, create.write_offset, 2 * CHUNK);

	check(export_fd(fd, create.id, 1, 4096, O_RDWR) == -EINVAL, "exports are whole pages");
	check(export_fd(fd, create.id, 2 * CHUNK, 4096, O_RDWR) == -ERANGE, "of the region");
	check(export_fd(fd, create.id, 0, 0, O_WRONLY) == -EINVAL, "for reading or both");
	need(!region_open(reader, "export", 0, &open));
	buffer = export_fd(fd, create.id, CHUNK - 8192, 16384, O_RDWR);
	check(buffer >= 0, "a range over a chunk's edge is exported");
	check(lseek(buffer, 0, SEEK_END) == 16384, "of its size");
	check(region_destroy(fd, create.id, 0) == -EBUSY, "what is exported is not destroyed");
	check(!ioctl(importer, PEER_TEST_IMPORT, buffer), "a device maps it");
	check(ioctl(importer, PEER_TEST_FILL, 'd') == 4, "and writes four pages");
	check(is_all(memory + CHUNK - 8192, 16384, 'd') && !memory[CHUNK - 8193] &&
		      !memory[CHUNK + 8192],
	      "which are those of the range");
	munmap(memory, 2 * CHUNK);
	check(!region_destroy(fd, create.id, FABRICMGR_DESTROY_FORCE), "it is destroyed by force");
	check(ioctl(importer, PEER_TEST_FILL, 'e') == 4, "the device's mapping is still memory");
	check(syscall(SYS_delete_module, "fabricmgr", O_NONBLOCK) < 0, "the module stays for it");
	ioctl(importer, PEER_TEST_LET_GO, 0);
	check(ioctl(importer, PEER_TEST_IMPORT, buffer) < 0 && errno == ENODEV,
	      "let go, it is not mapped again");
	close(buffer);
	create = region_create(fd, "export", CHUNK, 0, 0644);
	need(!region_open(reader, "export", 0, &open));
	check(export_fd(reader, create.id, 0, 0, O_RDWR) == -EACCES,
	      "a reader exports nothing to write to");
	buffer = export_fd(reader, create.id, 0, 0, O_RDONLY);
	check(buffer >= 0, "but to read");
	check(ioctl(importer, PEER_TEST_IMPORT, buffer) < 0 && errno == EACCES,
	      "which no device maps for writing");
	check(!ioctl(importer, PEER_TEST_IMPORT_TO_READ, buffer), "but for reading");
	close(buffer);
	close(importer);
	close(reader);
	usleep(50000);
	need(!region_destroy(fd, create.id, FABRICMGR_DESTROY_FORCE));
	close(fd);
}

static struct fabricmgr_peer_create peer_spec(const char *name, int buffer)
{
	struct fabricmgr_peer_create peer = {
		.fd = buffer, .uid = FABRICMGR_ID_SAME, .gid = FABRICMGR_ID_SAME, .mode = 0600,
		.pci = nvme[0],
	};

	snprintf(peer.name, sizeof(peer.name), "%s", name);
	return peer;
}

static int peer_fd(int fd, uint32_t id)
{
	struct fabricmgr_region_fd argument = { .id = id, .fd_flags = O_RDWR | O_CLOEXEC };
	int error = call(fd, REGION_FD, &argument);

	return error ?: argument.fd;
}

/* One exporter's buffer as a peer region, from creating to the end of its creator. */
static void test_peer(const char *what, int buffer)
{
	struct fabricmgr_peer_create peer = peer_spec("peer", buffer);
	struct fabricmgr_region_info info = { 0 };
	struct fabricmgr_region_open open;
	struct fabricmgr_event event;
	int fd = device(), client = device(), again;
	off_t bytes = lseek(buffer, 0, SEEK_END);

	peer.flags = FABRICMGR_CREATE_MANAGE;
	if (!check(!call(fd, PEER_CREATE, &peer), "%s: a peer region", what))
		return;
	check((off_t)peer.bytes == bytes && peer.segments, "%s: of its size", what);
	info.id = peer.id;
	check(!call(fd, REGION_INFO, &info) && info.kind == FABRICMGR_REGION_PEER &&
		      !memcmp(&info.pci, &nvme[0], sizeof(info.pci)),
	      "%s: described with its function", what);
	need(!region_open(client, "peer", FABRICMGR_OPEN_WRITE, &open));
	check(!open.map_offset, "%s: it has no window", what);
	again = peer_fd(client, peer.id);
	check(again >= 0 && lseek(again, 0, SEEK_END) == bytes, "%s: its descriptor is handed out",
	      what);
	close(again);
	check(export_fd(client, peer.id, 0, 0, O_RDWR) == -EOPNOTSUPP, "%s: no export of ours",
	      what);
	close(fd);
	check(event_next(client, &event) && event.kind == FABRICMGR_EVENT_PEER_REVOKED &&
		      event.region == peer.id,
	      "%s: it ends with its creator, and its client hears of it", what);
	check(peer_fd(client, peer.id) == -ENODEV, "%s: and gets no descriptor any more", what);
	close(client);
}

static void test_refusals(int other)
{
	int fd = device(), buffer = ioctl(other, PEER_TEST_EXPORT, 0);
	struct fabricmgr_peer_create peer = peer_spec("refused", fd);
	uint32_t id = region_create(fd, "own", CHUNK, 0, 0600).id;

	check(call(fd, PEER_CREATE, &peer) == -EINVAL, "a peer is a dma-buf");
	peer.fd = buffer;
	peer.pci.bus = 0xee;
	check(call(fd, PEER_CREATE, &peer) == -ENODEV, "for a function that is there");
	peer = peer_spec("refused", export_fd(fd, id, 0, 0, O_RDWR));
	check(call(fd, PEER_CREATE, &peer) == -EINVAL, "and not one of our own");
	close(peer.fd);
	close(buffer);
	usleep(50000);
	need(!region_destroy(fd, id, FABRICMGR_DESTROY_FORCE));
	close(fd);
}

static void test_revoked(int other)
{
	int fd = device(), client = device(), buffer = ioctl(other, PEER_TEST_EXPORT, 0);
	struct fabricmgr_peer_create peer = peer_spec("moves", buffer);
	struct fabricmgr_region_info info = { 0 };
	struct fabricmgr_region_open open;
	struct fabricmgr_event event;

	need(!call(fd, PEER_CREATE, &peer));
	need(!region_open(client, "moves", FABRICMGR_OPEN_WRITE, &open));
	need(!ioctl(other, PEER_TEST_MOVE, buffer));
	check(event_next(fd, &event) && event.kind == FABRICMGR_EVENT_PEER_REVOKED &&
		      event_next(client, &event) && event.kind == FABRICMGR_EVENT_PEER_REVOKED,
	      "when the exporter moves its memory, all hear of it");
	info.id = peer.id;
	check(!call(fd, REGION_INFO, &info) && info.state & FABRICMGR_REGION_IS_REVOKED,
	      "the region is marked");
	check(peer_fd(client, peer.id) == -ENODEV, "and hands out nothing");
	need(!ioctl(other, PEER_TEST_MOVE, buffer));
	check(event_none(fd), "a second time is no news");
	check(!region_destroy(fd, peer.id, FABRICMGR_DESTROY_FORCE), "it is destroyed");
	close(buffer);
	close(client);
	close(fd);
}

static int udmabuf(void)
{
	int fd = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int memory = syscall(SYS_memfd_create, "udmabuf", 3U /* CLOEXEC | ALLOW_SEALING */);
	struct udmabuf_create create = { .memfd = memory, .size = 1 << 20 };
	int buffer;

	need(memory >= 0 && !ftruncate(memory, 1 << 20) &&
	     !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
	buffer = fd < 0 ? -1 : ioctl(fd, UDMABUF_CREATE, &create);
	close(memory);
	close(fd);
	return buffer;
}

/* A buffer of vgem, by the ioctls of DRM. */
static int vgem(void)
{
	struct {
		uint32_t height, width, bits, flags, handle, pitch;
		uint64_t size;
	} dumb = { .height = 256, .width = 256, .bits = 32 };
	struct {
		uint32_t handle, flags;
		int32_t fd;
	} prime = { .flags = O_CLOEXEC | O_RDWR };
	int fd = open("/dev/dri/card0", O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, _IOWR('d', 0xB2, dumb), &dumb))
		return -1;
	prime.handle = dumb.handle;
	if (ioctl(fd, _IOWR('d', 0x2d, prime), &prime))
		return -1;
	close(fd);
	return prime.fd;
}

static void test_exporters(int other)
{
	const struct {
		const char *what;
		int fd;
	} cases[] = {
		{ "a dynamic exporter", ioctl(other, PEER_TEST_EXPORT, 0) },
		{ "a static exporter", ioctl(other, PEER_TEST_EXPORT_STATIC, 0) },
		{ "udmabuf", udmabuf() },
		{ "vgem", vgem() },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (cases[i].fd < 0) {
			check(true, "%s is not in this kernel # SKIP", cases[i].what);
			continue;
		}
		test_peer(cases[i].what, cases[i].fd);
		close(cases[i].fd);
	}
}

static void test_distance(void)
{
	struct fabricmgr_peer_distance distance = { .provider = nvme[0], .requester = nvme[0] };
	struct fabricmgr_version version = { 0 };
	int fd = device();
	bool has_p2p;

	need(!call(fd, VERSION, &version));
	has_p2p = version.features & FABRICMGR_FEATURE_P2PDMA;
	check(!call(fd, PEER_DISTANCE, &distance) && !distance.hops && !distance.distance,
	      "a function is at its own place");
	check(has_p2p ? distance.reason == FABRICMGR_DISTANCE_OK :
			distance.reason == FABRICMGR_DISTANCE_NO_KERNEL_SUPPORT,
	      "%s", has_p2p ? "which the kernel confirms" : "for all that the kernel knows");
	printf("# %s\n", distance.text);
	distance.requester.bus = 0xee;
	check(!call(fd, PEER_DISTANCE, &distance) && distance.distance == -1 &&
		      distance.reason == FABRICMGR_DISTANCE_NO_SUCH_DEVICE && distance.text[0],
	      "one that is not there is said to be so");
	if (nvme_count == 2) {
		distance.requester = nvme[1];
		check(!call(fd, PEER_DISTANCE, &distance) && distance.text[0],
		      "two drives have a distance, or a reason");
		printf("# distance %d, %d hops: %s\n", distance.distance, distance.hops,
		       distance.text);
	}
	close(fd);
}

int main(void)
{
	int other;

	load_other_side();
	find_functions();
	start();
	other = other_side();
	test_export();
	test_refusals(other);
	test_exporters(other);
	test_revoked(other);
	test_distance();
	close(other);
	return finish();
}
