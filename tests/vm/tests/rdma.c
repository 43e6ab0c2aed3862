// SPDX-License-Identifier: Apache-2.0
/*
 * RDMA on region memory, over soft-RoCE: registrations of both windows, a block read one-sided and
 * compared, and what a registration means for a seal: the writer's holds it off until it is gone,
 * the owner's, once recorded, does not.
 */
#include "rdma.h"

#define BLOCK (256UL << 10)

static struct ibv_qp *near, *far;

static int copy(enum ibv_wr_opcode opcode, struct ibv_mr *local, struct ibv_mr *remote)
{
	struct ibv_sge piece = { (uintptr_t)local->addr, BLOCK, local->lkey };

	return transfer(near, opcode, piece, (uintptr_t)remote->addr, remote->rkey);
}

static void fill(char *memory, char first)
{
	size_t i;

	for (i = 0; i < BLOCK; i++)
		memory[i] = first + i % 251;
}

int main(void)
{
	const int remote =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	struct fabricmgr_client_info info = { 0 };
	struct fabricmgr_region_create region;
	struct fabricmgr_region_open open;
	struct fabricmgr_region_id id = { 0 };
	struct ibv_mr *staged, *all, *private, *read_only;
	char *memory, *reader, *everything, *buffer;
	int owner, writer;

	shell("ip link add fm0 type dummy 2>/dev/null");
	shell("ip addr add 10.9.0.1/24 dev fm0 && ip link set fm0 up");
	rdma_open("fm0");
	start();
	near = queue_pair();
	far = queue_pair();
	connect_pair(near, queue_address(far));
	connect_pair(far, queue_address(near));
	buffer = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	private = ibv_reg_mr(domain, buffer, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	need(private);

	owner = device();
	writer = device();
	region = region_create(owner, "rdma", 2 * CHUNK, 0, 0600);
	id.id = region.id;
	need(!region_open(writer, "rdma", 0, &open) && !call(writer, CLIENT_INFO, &info));
	memory = map_rw(writer, open.write_offset, 2 * CHUNK);
	reader = map(owner, open.map_offset, 2 * CHUNK, PROT_READ);
	everything = map_rw(owner, open.write_offset, 2 * CHUNK);
	check(!ibv_reg_mr(domain, memory, BLOCK, remote), "what is not staged does not register");
	need(!one(owner, FABRICMGR_IOC_STAGE, region.id, info.id, 0, BLOCK, 0));
	staged = ibv_reg_mr(domain, memory, BLOCK, remote);
	if (!check(staged, "a staged block does"))
		return finish();
	fill(buffer, 1);
	check(!copy(IBV_WR_RDMA_WRITE, private, staged) && !memcmp(reader, buffer, BLOCK),
	      "a peer writes it one-sided");
	check(one(owner, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0) == -EBUSY,
	      "while it is registered it is not sealed");
	need(!ibv_dereg_mr(staged));
	check(!one(owner, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0),
	      "when the registration is gone it is");
	check(!ibv_reg_mr(domain, memory, BLOCK, remote), "and does not register any more");

	all = ibv_reg_mr(domain, everything + CHUNK, CHUNK, remote);
	need(all);
	check(one(owner, FABRICMGR_IOC_SEAL, region.id, 0, CHUNK, BLOCK, 0) == -EBUSY,
	      "the owner's own registration holds a seal off");
	need(!call(owner, REGION_BASELINE, &id));
	fill(everything + CHUNK, 7);
	check(!one(owner, FABRICMGR_IOC_SEAL, region.id, 0, CHUNK, BLOCK, 0),
	      "but not when it is recorded");
	memset(buffer, 0, BLOCK);
	check(!copy(IBV_WR_RDMA_READ, private, all) &&
		      !memcmp(reader + CHUNK, buffer, BLOCK),
	      "and a peer reads the sealed block through it");
	check(region_destroy(owner, region.id, 0) == -EBUSY, "what is registered is not destroyed");

	read_only = ibv_reg_mr(domain, reader, BLOCK, IBV_ACCESS_REMOTE_READ);
	if (!read_only)
		check(errno == EFAULT, "this kernel registers no read window # SKIP");
	else
		check(!copy(IBV_WR_RDMA_READ, private, read_only) &&
			      !memcmp(reader, buffer, BLOCK),
		      "a read window registers for reading, and is read");
	if (read_only)
		ibv_dereg_mr(read_only);

	check(!region_destroy(owner, region.id, FABRICMGR_DESTROY_FORCE), "it goes by force");
	check(!copy(IBV_WR_RDMA_READ, private, all), "registered pages stay until then");
	ibv_dereg_mr(all);
	ibv_destroy_qp(near);
	ibv_destroy_qp(far);
	ibv_dereg_mr(private);
	rdma_close();
	shell("ip link delete fm0");
	return finish();
}
