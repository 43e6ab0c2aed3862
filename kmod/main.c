// SPDX-License-Identifier: GPL-2.0
/*
 * The module: parameters, the device, the table of its calls. The reader's walk starts at fm_calls:
 * each entry leads to the one file that does it.
 * Invariant: every structure comes in and goes out here, by the rule of the header; the functions
 * in the table see kernel memory of the full size and known flags alone.
 */
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/uaccess.h>

#include "internal.h"
#include "peer.h"
#include "pressure.h"
#include "report.h"
#include "ring.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

unsigned long long fm_limit_bytes;
module_param_named(max_bytes, fm_limit_bytes, ullong, 0644);
MODULE_PARM_DESC(max_bytes, "bytes of all regions together (0: three quarters of the memory)");
unsigned int fm_limit_regions = 4096;
module_param_named(max_regions, fm_limit_regions, uint, 0644);
MODULE_PARM_DESC(max_regions, "regions, at most");
unsigned int fm_limit_clients = 16384;
module_param_named(max_clients, fm_limit_clients, uint, 0644);
MODULE_PARM_DESC(max_clients, "open files, at most");
unsigned long long fm_user_bytes = U64_MAX;
module_param_named(user_max_bytes, fm_user_bytes, ullong, 0644);
MODULE_PARM_DESC(user_max_bytes, "bytes of the regions of one uid without a quota of its own");
unsigned int fm_user_regions = 1024;
module_param_named(user_max_regions, fm_user_regions, uint, 0644);
MODULE_PARM_DESC(user_max_regions, "regions of one uid without a quota of its own");
unsigned int fm_user_clients = 4096;
module_param_named(user_max_clients, fm_user_clients, uint, 0644);
MODULE_PARM_DESC(user_max_clients, "open files of one uid without a quota of its own");
module_param_named(pressure_grace_ms, fm_pressure_grace_ms, uint, 0644);
MODULE_PARM_DESC(pressure_grace_ms, "between asking a manager for memory and taking it");
static int fm_admin_gid = -1;
module_param_named(admin_gid, fm_admin_gid, int, 0444);
MODULE_PARM_DESC(admin_gid, "group whose members are administrators (-1: CAP_SYS_ADMIN alone)");

bool fm_is_admin(void)
{
	if (fm_admin_gid >= 0 && in_group_p(make_kgid(&init_user_ns, fm_admin_gid)))
		return true;
	return capable(CAP_SYS_ADMIN);
}

/* ---- the calls ---- */

static long fm_version(struct fm_client *client, void *argument)
{
	struct fabricmgr_version *arg = argument;

	arg->api_major = FABRICMGR_API_MAJOR;
	arg->api_minor = FABRICMGR_API_MINOR;
	arg->features = fm_ring_features() | FABRICMGR_FEATURE_DMABUF;
	if (IS_ENABLED(CONFIG_DMABUF_MOVE_NOTIFY))
		arg->features |= FABRICMGR_FEATURE_MOVE_NOTIFY;
	if (IS_ENABLED(CONFIG_PCI_P2PDMA))
		arg->features |= FABRICMGR_FEATURE_P2PDMA;
	if (IS_ENABLED(CONFIG_HUGETLBFS))
		arg->features |= FABRICMGR_FEATURE_HUGETLB;
	arg->limit_bytes = fm_limit_bytes;
	arg->limit_regions = fm_limit_regions;
	arg->limit_clients = fm_limit_clients;
	arg->order_max = FM_ORDER_MAX;
	arg->order_min = FM_ORDER_MIN;
	arg->page_bytes = PAGE_SIZE;
	return 0;
}

struct fm_call {
	u32 bytes;
	u32 flags; /* that it knows */
	bool may_ring;
	long (*run)(struct fm_client *client, void *argument);
	long (*run_command)(struct fm_client *client, unsigned int command, void *argument);
};

#define FM_CALL(name, type, known, function)                                                       \
	[_IOC_NR(FABRICMGR_IOC_##name)] = {                                                        \
		.bytes = sizeof(struct type), .flags = known, .run = function                      \
	}
#define FM_LONG_CALL(name, type, known, function)                                                  \
	[_IOC_NR(FABRICMGR_IOC_##name)] = {                                                        \
		.bytes = sizeof(struct type), .flags = known, .may_ring = true, .run = function    \
	}
#define FM_BATCH(name, known)                                                                      \
	[_IOC_NR(FABRICMGR_IOC_##name)] = {                                                        \
		.bytes = sizeof(struct fabricmgr_batch), .flags = known, .may_ring = true,         \
		.run_command = fm_batch_run                                                        \
	}

static const struct fm_call fm_calls[] = {
	FM_CALL(VERSION, fabricmgr_version, 0, fm_version),
	FM_CALL(REGION_INFO, fabricmgr_region_info, FABRICMGR_NEXT, fm_region_info),
	FM_LONG_CALL(REGION_CREATE, fabricmgr_region_create, 0xf, fm_region_create),
	FM_CALL(REGION_OPEN, fabricmgr_region_open, 0x3, fm_region_open),
	FM_CALL(REGION_CLOSE, fabricmgr_region_id, 0, fm_region_close),
	FM_LONG_CALL(REGION_DESTROY, fabricmgr_region_id, FABRICMGR_DESTROY_FORCE,
		     fm_region_destroy),
	FM_CALL(REGION_BASELINE, fabricmgr_region_id, 0, fm_region_baseline),
	FM_CALL(REGION_OWN, fabricmgr_region_own, 0, fm_region_own),
	FM_CALL(REGION_EXPORT, fabricmgr_region_export, 0, fm_region_export),
	FM_CALL(VAULT_CREATE, fabricmgr_vault_create, FABRICMGR_CREATE_MANAGE, fm_vault_create),
	FM_CALL(REGION_FD, fabricmgr_region_fd, 0, fm_region_fd),
	FM_CALL(PEER_CREATE, fabricmgr_peer_create, FABRICMGR_CREATE_MANAGE, fm_peer_create),
	FM_CALL(PEER_DISTANCE, fabricmgr_peer_distance, 0, fm_peer_distance),
	FM_CALL(CLIENT_SETUP, fabricmgr_client_setup, 0, fm_client_setup),
	FM_CALL(CLIENT_INFO, fabricmgr_client_info, FABRICMGR_NEXT, fm_client_info),
	FM_BATCH(STAGE, FABRICMGR_BATCH_ZERO),
	FM_BATCH(UNSTAGE, FABRICMGR_BATCH_ZERO),
	FM_BATCH(SEAL, 0),
	FM_BATCH(UNSEAL, FABRICMGR_BATCH_ZERO),
	FM_BATCH(PINS, 0),
	FM_BATCH(REFILL, 0),
	FM_CALL(EVENTS, fabricmgr_events, 0, fm_events_wait),
	FM_CALL(QUOTA_GET, fabricmgr_quota, 0, fm_quota_get),
	FM_CALL(QUOTA_SET, fabricmgr_quota, 0, fm_quota_set),
};

#define FM_CALL_BYTES_MAX 192 /* of the largest structure */

static const struct fm_call *fm_call_find(unsigned int command)
{
	const struct fm_call *call;

	if (_IOC_TYPE(command) != _IOC_TYPE(FABRICMGR_IOC_VERSION) || _IOC_SIZE(command) ||
	    _IOC_DIR(command) || _IOC_NR(command) >= ARRAY_SIZE(fm_calls))
		return NULL;
	call = &fm_calls[_IOC_NR(command)];
	return call->bytes ? call : NULL;
}

bool fm_call_may_ring(unsigned int command)
{
	const struct fm_call *call = fm_call_find(command);

	return call && call->may_ring;
}

/* @argument as this module knows it; its member size is what the caller said. */
long fm_call_copy_in(void *argument, size_t bytes, const void __user *from)
{
	u32 size;
	int error;

	if (get_user(size, (const u32 __user *)from))
		return -EFAULT;
	if (size < 2 * sizeof(u32))
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	error = copy_struct_from_user(argument, bytes, from, size);
	*(u32 *)argument = size;
	return error;
}

long fm_call_run(struct fm_client *client, unsigned int command, void __user *argument)
{
	u64 buffer[FM_CALL_BYTES_MAX / sizeof(u64)];
	const struct fm_call *call = fm_call_find(command);
	u32 *header = (u32 *)buffer;
	size_t bytes;
	long result;

	if (!call)
		return -ENOTTY;
	result = fm_call_copy_in(buffer, call->bytes, argument);
	if (result)
		return result;
	if (header[1] & ~call->flags)
		return -EINVAL;
	/* What cannot be told its result had better not be done. */
	bytes = min_t(size_t, header[0], call->bytes);
	if (copy_to_user(argument, buffer, bytes))
		return -EFAULT;
	if (call->run)
		result = call->run(client, buffer);
	else
		result = call->run_command(client, command, buffer);
	if (result >= 0 && copy_to_user(argument, buffer, bytes))
		return -EFAULT;
	return result;
}

static long fm_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	return fm_call_run(file->private_data, command, (void __user *)argument);
}

static const struct file_operations fm_operations = {
	.owner = THIS_MODULE,
	.open = fm_client_open,
	.flush = fm_client_flush,
	.release = fm_client_release,
	.read = fm_events_read,
	.poll = fm_events_poll,
	.mmap = fm_map,
	.unlocked_ioctl = fm_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.uring_cmd = fm_ring_command,
};

static struct miscdevice fm_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fabricmgr",
	.mode = 0660,
	.fops = &fm_operations,
	.groups = fm_attribute_groups,
};

static int __init fm_init(void)
{
	int error;

	BUILD_BUG_ON(sizeof(struct fabricmgr_region_info) > FM_CALL_BYTES_MAX);
	BUILD_BUG_ON(sizeof(struct fabricmgr_peer_distance) > FM_CALL_BYTES_MAX);
	if (!fm_limit_bytes)
		fm_limit_bytes = ((u64)totalram_pages() << PAGE_SHIFT) / 4 * 3;
	if (fm_admin_gid < -1 || !fm_limit_regions || !fm_limit_clients) {
		pr_err("fabricmgr: a parameter is out of range: see Documentation/kmod.md\n");
		return -EINVAL;
	}
	error = fm_map_init();
	if (error)
		return error;
	error = fm_pressure_init();
	if (error)
		goto fail;
	error = misc_register(&fm_device);
	if (error)
		goto fail_pressure;
	fm_report_init();
	return 0;

fail_pressure:
	fm_pressure_exit();
fail:
	fm_map_exit();
	return error;
}

/* Never runs while a file is open or a region, or a page of one, is left: they hold the module. */
static void __exit fm_exit(void)
{
	fm_report_exit();
	misc_deregister(&fm_device);
	fm_pressure_exit();
	fm_chunks_exit();
	fm_map_exit();
	fm_quota_exit();
}

module_init(fm_init);
module_exit(fm_exit);
MODULE_DESCRIPTION("Pinned memory that outlives processes, with leases that do not");
MODULE_AUTHOR("fabricmgr developers");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
