// SPDX-License-Identifier: GPL-2.0
/*
 * Faults on purpose, one for each kind of thing that the harness must find in a kernel's log.
 * Loaded by check.py after the tests of a machine; never part of the product. Out of line: the
 * text of module_init() is gone when a leak is reported, and its backtrace must name the module.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#define LOST_OBJECTS 8

static char *fault = "";
module_param(fault, charp, 0444);

static noinline void touch_freed(void)
{
	char *object = kmalloc(64, GFP_KERNEL);
	char *volatile later = object;

	kfree(object);
	if (later)
		later[8]++;
}

static noinline void sleep_under_lock(void)
{
	static DEFINE_SPINLOCK(lock);

	spin_lock(&lock);
	msleep(1);
	spin_unlock(&lock);
}

static noinline void lose_objects(void)
{
	int i;

	for (i = 0; i < LOST_OBJECTS; i++)
		memset(kmalloc(96, GFP_KERNEL | __GFP_NOFAIL), 0x5a, 96);
}

static int __init planted_init(void)
{
	if (!strcmp(fault, "warning"))
		WARN(1, "planted");
	else if (!strcmp(fault, "use-after-free"))
		touch_freed();
	else if (!strcmp(fault, "sleep"))
		sleep_under_lock();
	else if (!strcmp(fault, "leak"))
		lose_objects();
	else
		return -EINVAL;
	return 0;
}

static void __exit planted_exit(void)
{
}

module_init(planted_init);
module_exit(planted_exit);
MODULE_DESCRIPTION("Faults that the tests of fabricmgr must find");
MODULE_LICENSE("GPL");
