/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Regions and dma-bufs: export.c makes one of a region, peer.c keeps somebody else's. For the table
 * in main.c and for region.c when a region ends.
 */
#ifndef FM_PEER_H
#define FM_PEER_H

#include "internal.h"

struct dma_buf;
struct pci_dev;

long fm_region_export(struct fm_client *client, void *argument);
void fm_exports_revoke(struct fm_region *region);
bool fm_export_is_ours(const struct dma_buf *buffer);

long fm_peer_create(struct fm_client *client, void *argument);
struct file *fm_peer_file(struct fm_region *region);
bool fm_peer_is_revoked(const struct fm_region *region);
void fm_peer_end(struct fm_region *region);
struct pci_dev *fm_pci_find(const struct fabricmgr_pci *address);
void fm_pci_describe(const struct fm_region *region, struct fabricmgr_pci *address);

long fm_peer_distance(struct fm_client *client, void *argument);

#endif
