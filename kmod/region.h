/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How a region of any kind comes to be: reserve its name and charges, give it memory, publish it.
 * For region.c, vault.c and peer.c.
 */
#ifndef FM_REGION_H
#define FM_REGION_H

#include "internal.h"

struct fm_region_spec {
	enum fabricmgr_region_kind kind;
	const char *name;
	u32 uid, gid, mode, lease_region; /* as user space gives them */
	u64 bytes;
	bool is_discardable;
};

struct fm_region *fm_region_reserve(const struct fm_region_spec *spec);
int fm_region_publish(struct fm_client *client, struct fm_region *region, bool is_manager);
void fm_region_abandon(struct fm_region *region);
u64 fm_region_leave_by(struct fm_attachment *attachment);
void fm_region_tell(struct fm_region *region, struct fm_client *client, u32 kind);

#endif
