// SPDX-License-Identifier: Apache-2.0
/*
 * A hostile client: any packets on the socket, any bytes in its ring and its lease table,
 * submissions of any content, and hanging up in the middle. The server must go on: an honest client
 * beside it reads its block unchanged after each input, and now and then puts, gets and looks at
 * what is left.
 *
 * An input is a row of steps: a byte that chooses, and what that step takes of the bytes behind it.
 */
/* tests/suites/fuzz.py reads these, each in one line. */
// clang-format off
// FUZZ_SOURCES: libfabricmgr/base/*.c libfabricmgr/core/*.c libfabricmgr/mem/*.c libfabricmgr/tier/*.c libfabricmgr/pool/*.c
// FUZZ_LIBS: -luring -lcrypto -lisal -lnuma -lpthread
// clang-format on
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "core/ring.h"
#include "mem/region.h"
#include "pool/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fm_server *server;
static struct fm_pool *honest;
static struct fm_block held, own; /* in the pool, in memory of its own */
static const struct fm_digest ns = {{1}};

static void must(int good)
{
	if (!good)
		abort();
}

static int some_descriptor(const uint8_t choice[4]);

static void *serve(void *argument)
{
	(void)argument;
	must(!fm_server_run(server));
	abort(); /* nobody asked it to stop */
}

static void set_up(void)
{
	static const struct fm_tenant_options tenant = {
		.size = sizeof(tenant), .name = "a", .quotas.requests = 8};
	struct fm_server_options options = {.size = sizeof(options),
					    .n_tenants = 1,
					    .tenants = &tenant,
					    .pool_bytes = 16 << 20,
					    .adopted_bytes = 64 << 20,
					    .memory = "memfd",
					    .quarantine_ns = 1000000};
	struct fm_attach_options attach = {.size = sizeof(attach), .leases = 64};
	struct fm_seal seal = {.block = &held, .key = {{9}}};
	struct fm_stage_at stage = {.offset = 4096, .length = 10000};
	struct fm_region *region;
	pthread_t thread;

	fm_log_set_level(FM_LOG_ERROR);
	must(!fm_server_create(&options, &server));
	must(!pthread_create(&thread, NULL, serve, NULL));
	must(!fm_server_connect(server, &attach.fd));
	must(!fm_pool_attach(&attach, &honest));
	must(!fm_block_stage(honest, 10000, 1, &held, 0));
	memset(held.data, 0x5a, held.length);
	must(!fm_block_seal(honest, &ns, &seal, 1));
	must(!fm_region_adopt(honest, some_descriptor((uint8_t[]){3, 1, 2, 0}), 0, &region));
	must(!fm_block_stage_at(honest, region, &stage, 1, 0));
	own = stage.block;
	seal = (struct fm_seal){.block = &own, .key = {{8}}};
	memset(own.data, 0x5b, own.length);
	must(!fm_block_seal(honest, &ns, &seal, 1));
}

/* ---- the hostile one ---- */

struct hostile {
	int socket, submitted;
	struct fm_ring_shared *ring;
	char *leases;
	uint64_t ring_bytes, lease_bytes;
	const uint8_t *data;
	size_t size;
};

/* The next @n bytes of the input, filled up with zeros. */
static void take(struct hostile *hostile, void *to, size_t n)
{
	size_t here = n < hostile->size ? n : hostile->size;

	memset(to, 0, n);
	if (here)
		memcpy(to, hostile->data, here);
	hostile->data += here;
	hostile->size -= here;
}

static void send_bytes(struct hostile *hostile, const void *data, size_t n)
{
	send(hostile->socket, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* None, one that is there, one that is not, and what does not end. */
static void choose_tenant(char tenant[32], uint8_t choice)
{
	switch (choice % 4) {
	case 1:
		strcpy(tenant, "a");
		break;
	case 2:
		strcpy(tenant, "b");
		break;
	case 3:
		memset(tenant, 'a', 32);
	}
}

/* A hello that is right but for what the input says; then the memory that came is ours to spoil. */
static void hello(struct hostile *hostile)
{
	struct fm_wire_request request = {.head = {.magic = FM_WIRE_MAGIC,
						   .version = FM_WIRE_VERSION,
						   .type = FM_WIRE_HELLO,
						   .size = sizeof(request)}};
	int fds[FM_WIRE_FDS], n_fds = FM_WIRE_FDS;
	struct pollfd state = {.fd = hostile->socket, .events = POLLIN};
	struct fm_wire_reply reply;
	uint8_t choice[2];

	take(hostile, choice, sizeof(choice));
	choose_tenant(request.tenant, choice[0] >> 2);
	request.flags = choice[0] & 3;
	request.leases = choice[1] + 1u;
	send_bytes(hostile, &request, sizeof(request));
	if (hostile->ring || poll(&state, 1, 200) != 1 ||
	    fm_wire_receive(hostile->socket, &reply, sizeof(reply), fds, &n_fds) <= 0)
		return;
	if (!reply.head.result && n_fds == FM_WIRE_FDS) {
		hostile->ring_bytes = reply.hello.ring_bytes;
		hostile->lease_bytes = reply.hello.lease_bytes;
		hostile->ring = fm_region_map(fds[FM_FD_RING], hostile->ring_bytes, true);
		hostile->leases = fm_region_map(fds[FM_FD_LEASES], hostile->lease_bytes, true);
		hostile->submitted = dup(fds[FM_FD_SUBMITTED]);
		must(hostile->ring && hostile->leases && hostile->submitted >= 0);
		/* What it must not be able to write. */
		must(!fm_region_map(fds[FM_FD_INDEX], 4096, true));
		must(!fm_region_map(fds[FM_FD_HEADERS], 4096, true));
	}
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
}

static void raw_packet(struct hostile *hostile)
{
	uint8_t packet[256], length;

	take(hostile, &length, 1);
	take(hostile, packet, length);
	send_bytes(hostile, packet, length);
}

static void request(struct hostile *hostile)
{
	struct fm_wire_request packet = {.head = {.magic = FM_WIRE_MAGIC,
						  .version = FM_WIRE_VERSION,
						  .size = sizeof(packet)}};
	uint8_t choice[6];

	take(hostile, choice, sizeof(choice));
	packet.head.type = choice[0];
	memcpy(&packet.argument, choice + 1, 4);
	packet.reserved = choice[5] & 1;
	choose_tenant(packet.tenant, choice[5] >> 1);
	for (uint32_t i = 0; i < FM_WIRE_VALUES; i++)
		packet.values[i] = (uint64_t)choice[1] << (choice[2] % 64);
	send_bytes(hostile, &packet, sizeof(packet));
}

static void spoil(struct hostile *hostile, char *memory, uint64_t bytes)
{
	uint8_t length, junk[256];
	uint16_t at;

	take(hostile, &at, sizeof(at));
	take(hostile, &length, 1);
	take(hostile, junk, length);
	for (uint32_t i = 0; memory && i < length; i++)
		__atomic_store_n(&memory[(at * 4ull + i) % bytes], (char)junk[i], __ATOMIC_RELAXED);
}

/* A submission whose fields the input chose, in its place and announced. */
static void submit(struct hostile *hostile)
{
	struct fm_submission s = {0};
	uint32_t tail;
	uint8_t fields[12];

	take(hostile, fields, sizeof(fields));
	if (!hostile->ring)
		return;
	s.op = fields[0] % 16;
	s.flags = fields[1] | (fields[3] & 0x80 ? FM_SUBMIT_MORE : 0);
	s.length = (uint64_t)fields[2] << (fields[3] % 32);
	s.entry = fields[4] | (uint32_t)fields[5] << 8;
	s.generation = fields[6] | (uint32_t)fields[7] << 8;
	s.key.bytes[0] = fields[8];
	s.parent.bytes[0] = fields[9];
	s.has_parent = fields[9] & 1;
	s.ns[0] = fields[10];
	s.deadline_ns = (uint64_t)fields[11] << 12;
	s.reserved[0] = (uint64_t)fields[10] << (fields[11] % 40);
	tail = __atomic_load_n(&hostile->ring->sq_tail.value, __ATOMIC_RELAXED);
	hostile->ring->sq[tail % FM_RING_ENTRIES] = s;
	__atomic_store_n(&hostile->ring->sq_tail.value, tail + 1, __ATOMIC_RELEASE);
}

/* Memory to be adopted, or what only looks like it: sealed, open, owned and long as the input says.
 */
static int some_descriptor(const uint8_t choice[4])
{
	char path[40];
	int ends[2], fd, copy;

	switch (choice[0] % 8) {
	case 0:
		return -1;
	case 1:
		return open("/dev/null", O_RDONLY | O_CLOEXEC);
	case 2:
		must(!pipe2(ends, O_CLOEXEC));
		close(ends[1]);
		return ends[0];
	}
	fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	must(fd >= 0);
	must(!ftruncate(fd, (off_t)((choice[1] % 8 ? choice[1] % 8 : 9ull << 20) << 22) -
				    (choice[1] >> 3 == 31)));
	must(!fchmod(fd, choice[2] & 1 ? 0666 : 0600));
	/* All that is asked for, most of the time. */
	must(!fcntl(fd, F_ADD_SEALS, choice[3] & 0x80 ? choice[3] & 0x1f : 7));
	if (choice[2] & 2)
		return fd;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, O_RDONLY | O_CLOEXEC);
	close(fd);
	return copy;
}

/* More or fewer descriptors than one, too. */
static void adopt(struct hostile *hostile)
{
	struct fm_wire_request packet = {.head = {.magic = FM_WIRE_MAGIC,
						  .version = FM_WIRE_VERSION,
						  .type = FM_WIRE_ADOPT,
						  .size = sizeof(packet)}};
	uint8_t choice[5];
	int fds[2];

	take(hostile, choice, sizeof(choice));
	packet.head.type += choice[4] & 1;
	packet.argument = 65 + choice[4] % 8;
	packet.leases = choice[3] % 32;
	fds[0] = fds[1] = some_descriptor(choice);
	fm_wire_send(hostile->socket, &packet, sizeof(packet), fds,
		     fds[0] < 0 ? 0 : 1 + (choice[2] == 255));
	if (fds[0] >= 0)
		close(fds[0]);
}

static void kick(struct hostile *hostile)
{
	uint64_t one = 1;

	if (hostile->submitted >= 0 && write(hostile->submitted, &one, sizeof(one)) < 0)
		return;
	sched_yield();
}

static void attack(struct hostile *hostile)
{
	hello(hostile);
	for (int steps = 0; hostile->size && steps < 64; steps++) {
		uint8_t step;

		take(hostile, &step, 1);
		switch (step % 10) {
		case 0:
			raw_packet(hostile);
			break;
		case 1:
			request(hostile);
			break;
		case 2:
			spoil(hostile, (char *)hostile->ring, hostile->ring_bytes);
			break;
		case 3:
			spoil(hostile, hostile->leases, hostile->lease_bytes);
			break;
		case 4:
			hello(hostile);
			break;
		case 5:
			kick(hostile);
			break;
		case 6:
			adopt(hostile);
			break;
		default:
			submit(hostile);
		}
	}
	kick(hostile);
}

/* ---- the honest one ---- */

static void look_at_block(void)
{
	const unsigned char *bytes = held.data, *own_bytes = own.data;

	for (uint64_t i = 0; i < held.length; i += 997)
		must(bytes[i] == 0x5a && own_bytes[i] == 0x5b);
}

static void put_and_get(uint32_t n)
{
	static unsigned char data[20000], back[20000];
	struct fm_put put = {.key = {{(uint8_t)n, 7, 7}},
			     .data = data,
			     .length = sizeof(data),
			     .flags = FM_SEAL_REPLACE};
	struct fm_get get = {.key = put.key, .data = back, .capacity = sizeof(back)};
	struct fm_pool_info info = {.size = sizeof(info)};

	must(!fm_block_verify(honest, &held) && !fm_block_verify(honest, &own));
	memset(data, (int)n, sizeof(data));
	must(!fm_pool_put(honest, &ns, &put, 1, 0));
	/* Another client of the same uid may have removed it: then it is not there. */
	must(fm_pool_get(honest, &get, 1) == 1 ? !memcmp(data, back, sizeof(data))
					       : get.result == FM_ERR_NOT_FOUND);
	must(!fm_pool_info(honest, &info));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint32_t n;
	struct hostile hostile = {.submitted = -1, .data = data, .size = size};

	if (!server)
		set_up();
	must(!fm_server_connect(server, &hostile.socket));
	attack(&hostile);
	close(hostile.socket);
	if (hostile.ring) {
		fm_region_unmap(hostile.ring, hostile.ring_bytes);
		fm_region_unmap(hostile.leases, hostile.lease_bytes);
		close(hostile.submitted);
	}
	look_at_block();
	/* It runs as the same user, and so may drain the pool. */
	must(!fm_pool_drain(honest, false));
	must(!fm_pool_set_quotas(honest, "a", &(struct fm_tenant_quotas){0}));
	if (++n % 16 == 0)
		put_and_get(n / 16);
	return 0;
}
