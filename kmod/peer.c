// SPDX-License-Identifier: GPL-2.0
/*
 * Peer regions: a dma-buf that somebody else exports, attached for a PCI function and kept under a
 * region's name. Called from the table in main.c, by region.c when the region ends, and by the
 * exporter when its memory goes.
 * Invariant: the importing device is a PCI function (NVIDIA's exporter takes it for one unasked).
 * A peer ends with its creator's file: a static exporter cannot tell us that its memory went.
 */
#include <linux/capability.h>
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "internal.h"
#include "peer.h"
#include "region.h"

/* MODULE_IMPORT_NS() has two spellings, of which each kernel knows one. */
MODULE_INFO(import_ns, "DMA_BUF");

struct fm_peer {
	struct fm_region *region; /* which owns this */
	struct dma_buf *buffer;
	struct dma_buf_attachment *attachment;
	struct sg_table *table; /* the reservation; NULL: not mapped */
	struct pci_dev *function;
	bool is_revoked; /* the reservation; once */
	struct work_struct revoked;
};

struct pci_dev *fm_pci_find(const struct fabricmgr_pci *address)
{
	return pci_get_domain_bus_and_slot(address->domain, address->bus,
					   PCI_DEVFN(address->device & 31, address->function & 7));
}

void fm_pci_describe(const struct fm_region *region, struct fabricmgr_pci *address)
{
	const struct pci_dev *function = region->peer->function;

	address->domain = pci_domain_nr(function->bus);
	address->bus = function->bus->number;
	address->device = PCI_SLOT(function->devfn);
	address->function = PCI_FUNC(function->devfn);
}

bool fm_peer_is_revoked(const struct fm_region *region)
{
	return READ_ONCE(region->peer->is_revoked);
}

static void fm_peer_unmap(struct fm_peer *peer)
{
	dma_resv_lock(peer->buffer->resv, NULL);
	if (peer->table)
		dma_buf_unmap_attachment(peer->attachment, peer->table, DMA_BIDIRECTIONAL);
	peer->table = NULL;
	dma_resv_unlock(peer->buffer->resv);
}

/* The exporter holds the reservation: the rest is done without it. */
static void fm_peer_move_notify(struct dma_buf_attachment *attachment)
{
	struct fm_peer *peer = attachment->importer_priv;

	if (peer->is_revoked || !peer->table)
		return;
	WRITE_ONCE(peer->is_revoked, true);
	schedule_work(&peer->revoked);
}

static const struct dma_buf_attach_ops fm_peer_attach_operations = {
	.allow_peer2peer = true,
	.move_notify = fm_peer_move_notify,
};

static void fm_peer_revoked(struct work_struct *work)
{
	struct fm_peer *peer = container_of(work, struct fm_peer, revoked);

	fm_peer_unmap(peer);
	mutex_lock(&fm_objects);
	if (peer->region->is_ready && !peer->region->is_gone)
		fm_region_tell(peer->region, NULL, FABRICMGR_EVENT_PEER_REVOKED);
	mutex_unlock(&fm_objects);
}

static int fm_peer_attach(struct fm_peer *peer, u32 *segments)
{
	struct sg_table *table;
	int error;

	peer->attachment = dma_buf_dynamic_attach(peer->buffer, &peer->function->dev,
						  &fm_peer_attach_operations, peer);
	if (IS_ERR(peer->attachment))
		return PTR_ERR(peer->attachment);
	dma_resv_lock(peer->buffer->resv, NULL);
	table = dma_buf_map_attachment(peer->attachment, DMA_BIDIRECTIONAL);
	error = PTR_ERR_OR_ZERO(table);
	if (!error) {
		peer->table = table;
		*segments = table->nents;
	}
	dma_resv_unlock(peer->buffer->resv);
	if (error)
		dma_buf_detach(peer->buffer, peer->attachment);
	return error;
}

static void fm_peer_free(struct fm_peer *peer)
{
	pci_dev_put(peer->function);
	dma_buf_put(peer->buffer);
	kfree(peer);
}

/* The region is dead and listed nowhere. Nothing is told of it after this. */
void fm_peer_end(struct fm_region *region)
{
	struct fm_peer *peer = region->peer;

	fm_peer_unmap(peer);
	cancel_work_sync(&peer->revoked);
	dma_buf_detach(peer->buffer, peer->attachment);
	region->peer = NULL;
	fm_peer_free(peer);
}

/* region->lock. A reference to the dma-buf's file. */
struct file *fm_peer_file(struct fm_region *region)
{
	if (fm_peer_is_revoked(region))
		return ERR_PTR(-ENODEV);
	return get_file(region->peer->buffer->file);
}

static struct fm_peer *fm_peer_alloc(const struct fabricmgr_peer_create *arg)
{
	struct fm_peer *peer = kzalloc(sizeof(*peer), GFP_KERNEL_ACCOUNT);
	int error;

	if (!peer)
		return ERR_PTR(-ENOMEM);
	INIT_WORK(&peer->revoked, fm_peer_revoked);
	peer->buffer = dma_buf_get(arg->fd);
	if (IS_ERR(peer->buffer)) {
		error = PTR_ERR(peer->buffer);
		goto fail;
	}
	peer->function = fm_pci_find(&arg->pci);
	/* Without a driver nobody has said what addresses the function can reach. */
	error = peer->function && peer->function->dev.driver ? 0 : -ENODEV;
	if (!error && fm_export_is_ours(peer->buffer))
		error = -EINVAL;
	if (!error)
		return peer;
	pci_dev_put(peer->function);
	dma_buf_put(peer->buffer);
fail:
	kfree(peer);
	return ERR_PTR(error);
}

long fm_peer_create(struct fm_client *client, void *argument)
{
	struct fabricmgr_peer_create *arg = argument;
	struct fm_region_spec spec = {
		.kind = FABRICMGR_REGION_PEER,
		.name = arg->name,
		.uid = arg->uid,
		.gid = arg->gid,
		.mode = arg->mode,
		.lease_region = arg->lease_region,
	};
	struct fm_region *region;
	struct fm_peer *peer;
	int error;

	if (arg->reserved || arg->pci.reserved)
		return -EINVAL;
	if (!fm_is_admin())
		return -EPERM;
	peer = fm_peer_alloc(arg);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	spec.bytes = peer->buffer->size;
	region = fm_region_reserve(&spec);
	if (IS_ERR(region)) {
		fm_peer_free(peer);
		return PTR_ERR(region);
	}
	peer->region = region;
	error = fm_peer_attach(peer, &arg->segments);
	if (error) {
		fm_peer_free(peer);
		fm_region_abandon(region);
		return error;
	}
	region->peer = peer;
	region->creator = client;
	arg->id = region->id;
	arg->bytes = region->bytes;
	return fm_region_publish(client, region, arg->flags & FABRICMGR_CREATE_MANAGE);
}
