/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory pressure: for main.c, and for region.c and chunk.c, which tell what could be taken.
 */
#ifndef FM_PRESSURE_H
#define FM_PRESSURE_H

#include "internal.h"

extern unsigned int fm_pressure_grace_ms;

int fm_pressure_init(void);
void fm_pressure_exit(void);
void fm_pressure_account(const struct fm_region *region, s64 bytes);
void fm_pressure_cancel(struct fm_region *region);

#endif
