/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Faults for the module that its tests must find: check.py builds it once for each FM_PLANT_ name
 * with this header before every file, and the product's own files know nothing of it.
 */
#ifndef FM_PLANTS_H
#define FM_PLANTS_H

#include <linux/cred.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/uidgid.h>

/* Write windows stay open after a seal. */
#ifdef FM_PLANT_NO_ZAP
#define unmap_mapping_range(mapping, start, bytes, even_cows) ((void)(mapping))
#endif

/* Everybody is the owner. */
#ifdef FM_PLANT_ANY_USER
#define uid_eq(left, right) ((void)(left), (void)(right), true)
#endif

/* What was there before is seen by whom gets the memory next. */
#ifdef FM_PLANT_NOT_CLEARED
#undef __GFP_ZERO
#define __GFP_ZERO 0
#define clear_highpage(page) ((void)(page))
#endif

/* Pages never come back. */
#ifdef FM_PLANT_LOST_PAGES
#define __free_pages(page, order) ((void)(page))
#endif

/* Commands that wait in a ring outlive their process, on a kernel that does not cancel them. */
#ifdef FM_PLANT_WAITS_ON
#undef PF_EXITING
#define PF_EXITING 0
#endif

#endif
