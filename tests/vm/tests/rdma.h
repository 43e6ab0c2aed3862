/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Soft-RoCE for the tests of the kernel module: a device on a network interface, reliable queue
 * pairs, one-sided transfers of one piece. Used by rdma.c (both ends here) and rdma_pair.c (the
 * other end in another machine); each completion is waited for.
 */
#ifndef FM_TEST_RDMA_H
#define FM_TEST_RDMA_H

#include <infiniband/verbs.h>

#include "module.h"

/* What the other end has to know of a queue pair. */
struct rdma_address {
	uint32_t number;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *completions;

static inline void shell(const char *command)
{
	if (system(command))
		printf("# %s: failed\n", command);
}

/* The RDMA device "fmrxe" on @interface, which is up and has an IPv4 address. */
static inline void rdma_open(const char *interface)
{
	struct ibv_device **list;
	char command[96];
	int count = 0;

	snprintf(command, sizeof(command), "/usr/bin/rdma link add fmrxe type rxe netdev %s",
		 interface);
	shell(command);
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

static inline void rdma_close(void)
{
	ibv_destroy_cq(completions);
	ibv_dealloc_pd(domain);
	ibv_close_device(context);
	shell("/usr/bin/rdma link delete fmrxe");
}

static inline struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr initial = {
		.send_cq = completions,
		.recv_cq = completions,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp_attr attribute = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp *pair = ibv_create_qp(domain, &initial);

	need(pair &&
	     !ibv_modify_qp(pair, &attribute,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return pair;
}

/* GID 1 is the IPv4 address. */
static inline struct rdma_address queue_address(struct ibv_qp *pair)
{
	struct rdma_address address = {.number = pair->qp_num};

	need(!ibv_query_gid(context, 1, 1, &address.gid));
	return address;
}

static inline void connect_pair(struct ibv_qp *pair, struct rdma_address peer)
{
	struct ibv_qp_attr attribute = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer.number,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = peer.gid, .sgid_index = 1, .hop_limit = 8}},
	};

	need(!ibv_modify_qp(pair, &attribute,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER));
	attribute = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
					 .timeout = 14,
					 .retry_cnt = 7,
					 .rnr_retry = 7,
					 .max_rd_atomic = 1};
	need(!ibv_modify_qp(pair, &attribute,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One-sided: the far end's program takes no part. Returns the status of the completion. */
static inline int transfer(struct ibv_qp *pair, enum ibv_wr_opcode opcode, struct ibv_sge piece,
			   uint64_t address, uint32_t key)
{
	struct ibv_send_wr request =
				   {
					   .sg_list = &piece,
					   .num_sge = 1,
					   .opcode = opcode,
					   .send_flags = IBV_SEND_SIGNALED,
					   .wr.rdma = {address, key},
				   },
			   *bad;
	struct ibv_wc done;
	uint64_t until = now_ns() + 20000000000UL;

	need(!ibv_post_send(pair, &request, &bad));
	while (ibv_poll_cq(completions, 1, &done) != 1)
		need(now_ns() < until);
	return done.status;
}

#endif
