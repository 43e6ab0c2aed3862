// SPDX-License-Identifier: Apache-2.0
/*
 * RDMA on region memory, over soft-RoCE: registrations of both windows, a block read one-sided and
 * compared, and what a registration means for a seal: the writer's holds it off until it is gone,
 * the owner's, once recorded, does not.
 */
#include <infiniband/verbs.h>

#include "module.h"

#define BLOCK (256UL << 10)

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *completions;
static struct ibv_qp *near, *far;

static void shell(const char *command)
{
	if (system(command))
		printf("# %s: failed\n", command);
}

static void open_device(void)
{
	struct ibv_device **list;
	int count = 0;

	shell("ip link add fm0 type dummy 2>/dev/null");
	shell("ip addr add 10.9.0.1/24 dev fm0 && ip link set fm0 up");
	shell("/usr/bin/rdma link add fmrxe type rxe netdev fm0");
	list = ibv_get_device_list(&count);
	if (!list || !count)
		skip_all("there is no RDMA device");
	context = ibv_open_device(list[0]);
	need(context);
	ibv_free_device_list(list);
	domain = ibv_alloc_pd(context);
	completions = ibv_create_cq(context, 16, NULL, NULL, 0);
	need(domain && completions);
}

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr initial = {
		.send_cq = completions,
		.recv_cq = completions,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attribute = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp *pair = ibv_create_qp(domain, &initial);

	need(pair && !ibv_modify_qp(pair, &attribute,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					    IBV_QP_ACCESS_FLAGS));
	return pair;
}

static void connect_pair(struct ibv_qp *pair, uint32_t peer)
{
	struct ibv_qp_attr attribute = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .sgid_index = 1, .hop_limit = 8 } },
	};

	need(!ibv_query_gid(context, 1, 1, &attribute.ah_attr.grh.dgid));
	need(!ibv_modify_qp(pair, &attribute,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER));
	attribute = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
					  .rnr_retry = 7, .max_rd_atomic = 1 };
	need(!ibv_modify_qp(pair, &attribute,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One-sided: the far end's program takes no part. Returns the status of the completion. */
static int transfer(enum ibv_wr_opcode opcode, struct ibv_mr *local, struct ibv_mr *remote,
		    uint64_t offset)
{
	struct ibv_sge piece = { (uintptr_t)local->addr, BLOCK, local->lkey };
	struct ibv_send_wr request = {
		.sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)remote->addr + offset, remote->rkey },
	}, *bad;
	struct ibv_wc done;
	uint64_t until = now_ns() + 20000000000UL;

	need(!ibv_post_send(near, &request, &bad));
	while (ibv_poll_cq(completions, 1, &done) != 1)
		need(now_ns() < until);
	return done.status;
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

	open_device();
	start();
	near = queue_pair();
	far = queue_pair();
	connect_pair(near, far->qp_num);
	connect_pair(far, near->qp_num);
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
	check(!transfer(IBV_WR_RDMA_WRITE, private, staged, 0) && !memcmp(reader, buffer, BLOCK),
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
	check(!transfer(IBV_WR_RDMA_READ, private, all, 0) &&
		      !memcmp(reader + CHUNK, buffer, BLOCK),
	      "and a peer reads the sealed block through it");
	check(region_destroy(owner, region.id, 0) == -EBUSY, "what is registered is not destroyed");

	read_only = ibv_reg_mr(domain, reader, BLOCK, IBV_ACCESS_REMOTE_READ);
	if (!read_only)
		check(errno == EFAULT, "this kernel registers no read window # SKIP");
	else
		check(!transfer(IBV_WR_RDMA_READ, private, read_only, 0) &&
			      !memcmp(reader, buffer, BLOCK),
		      "a read window registers for reading, and is read");
	if (read_only)
		ibv_dereg_mr(read_only);

	check(!region_destroy(owner, region.id, FABRICMGR_DESTROY_FORCE), "it goes by force");
	check(!transfer(IBV_WR_RDMA_READ, private, all, 0), "registered pages stay until then");
	ibv_dereg_mr(all);
	ibv_destroy_qp(near);
	ibv_destroy_qp(far);
	ibv_dereg_mr(private);
	ibv_destroy_cq(completions);
	ibv_dealloc_pd(domain);
	ibv_close_device(context);
	shell("/usr/bin/rdma link delete fmrxe; ip link delete fm0");
	return finish();
}
