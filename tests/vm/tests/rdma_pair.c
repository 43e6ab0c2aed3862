// SPDX-License-Identifier: Apache-2.0
/*
 * RDMA between two machines, each with the module: one seals a block and lends it, the other reads
 * it one-sided straight into a block that it has staged, seals that, and has the same bytes. What
 * is not lent any more cannot be read. FABRICMGR_SIDE says which machine this is.
 *
 * VM: pair, limit 90
 */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/crc32c.h"
#include "rdma.h"

#define BLOCK (1UL << 20)
#define PORT  7471

struct loan {
	struct rdma_address pair;
	uint64_t address;
	uint32_t key, checksum;
};

static int owner;
static struct fabricmgr_region_create region;
static char *everything, *reader; /* the window that may write, and the other */

static const struct sockaddr_in *lender(void)
{
	static struct sockaddr_in address = {.sin_family = AF_INET};

	address.sin_port = htons(PORT);
	address.sin_addr.s_addr = inet_addr("10.9.1.1");
	return &address;
}

static int wait_for_borrower(void)
{
	int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), link;

	need(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	need(!bind(listener, (const struct sockaddr *)lender(), sizeof(*lender())));
	need(!listen(listener, 1));
	link = accept(listener, NULL, NULL);
	need(link >= 0);
	close(listener);
	return link;
}

/* The other machine may still be on its way. */
static int connect_to_lender(void)
{
	uint64_t until = now_ns() + 60000000000UL;

	for (;;) {
		int link = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		need(link >= 0);
		if (!connect(link, (const struct sockaddr *)lender(), sizeof(*lender())))
			return link;
		close(link);
		need(now_ns() < until);
		usleep(100000);
	}
}

static void tell(int link, const void *data, size_t bytes)
{
	need(send(link, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static void hear(int link, void *data, size_t bytes)
{
	need(recv(link, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static void fill(char *memory)
{
	size_t i;

	for (i = 0; i < BLOCK; i++)
		memory[i] = (char)(i * 2654435761u >> 13);
}

static int stage(void)
{
	struct fabricmgr_client_info info = {0};

	need(!call(owner, CLIENT_INFO, &info));
	return one(owner, FABRICMGR_IOC_STAGE, region.id, info.id, 0, BLOCK, 0);
}

/* Sealed memory is lent by the owner's own registration, recorded before the seal. */
static void lend(int link)
{
	struct fabricmgr_region_id id = {.id = region.id};
	struct ibv_mr *mr = ibv_reg_mr(domain, everything, BLOCK,
				       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *pair = queue_pair();
	struct loan loan = {.pair = queue_address(pair), .address = (uintptr_t)everything};
	struct rdma_address borrower;
	char done;

	need(mr && !call(owner, REGION_BASELINE, &id) && !stage());
	fill(everything);
	check(!one(owner, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0), "the block is sealed");
	loan.key = mr->rkey;
	loan.checksum = fm_crc32c(reader, BLOCK);
	hear(link, &borrower, sizeof(borrower));
	connect_pair(pair, borrower);
	tell(link, &loan, sizeof(loan));
	hear(link, &done, 1);
	check(fm_crc32c(reader, BLOCK) == loan.checksum, "having been read it is unchanged");
	check(region_destroy(owner, region.id, 0) == -EBUSY, "what is lent is not destroyed");
	need(!ibv_dereg_mr(mr));
	tell(link, &done, 1);
	hear(link, &done, 1);
	ibv_destroy_qp(pair);
}

static void borrow(int link)
{
	struct ibv_qp *pair = queue_pair();
	struct rdma_address here = queue_address(pair);
	struct loan loan;
	struct ibv_sge piece = {(uintptr_t)everything, BLOCK, 0};
	struct ibv_mr *mr;
	char done = 1;
	int status;

	tell(link, &here, sizeof(here));
	hear(link, &loan, sizeof(loan));
	connect_pair(pair, loan.pair);
	need(!stage());
	mr = ibv_reg_mr(domain, everything, BLOCK, IBV_ACCESS_LOCAL_WRITE);
	need(mr);
	piece.lkey = mr->lkey;
	check(!transfer(pair, IBV_WR_RDMA_READ, piece, loan.address, loan.key),
	      "the other machine's block is read one-sided into a staged one");
	check(one(owner, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0) == -EBUSY,
	      "while the device may write it is not sealed");
	tell(link, &done, 1);
	hear(link, &done, 1);
	status = transfer(pair, IBV_WR_RDMA_READ, piece, loan.address, loan.key);
	check(status == IBV_WC_REM_ACCESS_ERR, "what is no longer lent cannot be read: %s",
	      ibv_wc_status_str(status));
	tell(link, &done, 1);
	ibv_destroy_qp(pair);
	need(!ibv_dereg_mr(mr));
	check(!one(owner, FABRICMGR_IOC_SEAL, region.id, 0, 0, BLOCK, 0), "then it is");
	check(fm_crc32c(reader, BLOCK) == loan.checksum, "and has the other machine's bytes");
	check(access_fails(everything, true), "which its writer cannot change");
}

int main(void)
{
	const char *side = getenv("FABRICMGR_SIDE");
	bool lends = side && !strcmp(side, "lender");
	int link;

	if (!side)
		skip_all("it needs two machines");
	shell(lends ? "ip addr add 10.9.1.1/24 dev eth0" : "ip addr add 10.9.1.2/24 dev eth0");
	shell("ip link set eth0 mtu 4200 up");
	rdma_open("eth0");
	start();
	owner = device();
	region = region_create(owner, "pair", CHUNK, 0, 0600);
	everything = map_rw(owner, region.write_offset, CHUNK);
	reader = map(owner, region.map_offset, CHUNK, PROT_READ);
	need(reader != MAP_FAILED);
	link = lends ? wait_for_borrower() : connect_to_lender();
	if (lends)
		lend(link);
	else
		borrow(link);
	close(link);
	munmap(everything, CHUNK);
	munmap(reader, CHUNK);
	check(!region_destroy(owner, region.id, 0), "nothing of it is in use in the end");
	rdma_close();
	shell("ip link set eth0 down");
	return finish();
}
