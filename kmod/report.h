/* SPDX-License-Identifier: GPL-2.0 */
/* What a person can read of the module: for main.c. */
#ifndef FM_REPORT_H
#define FM_REPORT_H

struct attribute_group;

extern const struct attribute_group *fm_attribute_groups[];

void fm_report_init(void);
void fm_report_exit(void);

#endif
