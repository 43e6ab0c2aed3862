// SPDX-License-Identifier: GPL-2.0
/*
 * Clients: one for each open file of the device, with a lease table and what they stage. Called by
 * the file operations in main.c and from its table of calls.
 * Invariant: when release() returns, nothing that the client held is held any more. It runs in
 * whatever context drops the last reference: who the client was is stored, never asked of current.
 */
#include <linux/pid_namespace.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/user_namespace.h>
#include <linux/vmalloc.h>

#include "internal.h"
#include "region.h"
#include "ring.h"
#include "trace.h"

DEFINE_XARRAY_ALLOC1(fm_clients);
static u32 fm_client_next;

int fm_client_open(struct inode *inode, struct file *file)
{
	struct fm_client *client;
	int error;

	client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	client->uid = current_euid();
	client->gid = current_egid();
	error = fm_quota_charge(client->uid, FM_QUOTA_CLIENTS, 1);
	if (error)
		goto fail;
	client->opened_ns = ktime_get_ns();
	xa_init(&client->attachments);
	fm_events_init(&client->events);
	fm_ring_init(client);
	mutex_lock(&fm_objects);
	/* Ids go round before one is used again; the last one is FM_STATE_SEALED. */
	error = xa_alloc_cyclic(&fm_clients, &client->id, client, XA_LIMIT(1, U32_MAX - 1),
				&fm_client_next, GFP_KERNEL_ACCOUNT);
	mutex_unlock(&fm_objects);
	if (error < 0)
		goto fail_quota;
	client->pid = get_task_pid(current, PIDTYPE_TGID);
	/* One address space for all, wherever the device node lies: see map.c. */
	file->f_mapping = fm_mapping;
	file->private_data = client;
	trace_fabricmgr_client(client->id, 1, 0, 0);
	return nonseekable_open(inode, file);

fail_quota:
	fm_quota_uncharge(client->uid, FM_QUOTA_CLIENTS, 1);
fail:
	kfree(client);
	return error;
}

/* Runs at every close of every duplicate of the descriptor, in the closing task. */
int fm_client_flush(struct file *file, fl_owner_t id)
{
	fm_ring_flush(file->private_data);
	return 0;
}

/* Entries in use; the client writes them as it likes. */
u32 fm_client_leases(const struct fm_client *client)
{
	u32 count = 0, i;

	for (i = 0; i < client->entries; i++)
		count += READ_ONCE(client->leases[i].region) != 0;
	return count;
}

/* fm_objects. Tells the manager of the region, unless another of the client's regions has it, too.
 */
static void fm_client_report(struct fm_client *client, struct fm_attachment *attachment,
			     struct fm_client *manager, u32 leases, u64 staged)
{
	struct fm_attachment *before;
	struct fm_event *died;
	unsigned long id;

	if (!manager || manager == client)
		return;
	xa_for_each(&client->attachments, id, before) {
		if (before == attachment)
			break;
		if (before->region->manager == manager)
			return;
	}
	died = attachment->died;
	attachment->died = NULL;
	died->record.time_ns = ktime_get_ns();
	died->record.value = leases;
	died->record.bytes = staged;
	fm_event_post(manager, died);
}

/* fm_objects. Everything the client held is free when this returns, and its managers know. */
static void fm_client_clear(struct fm_client *client, u32 leases)
{
	struct fm_attachment *attachment;
	unsigned long id;
	u64 staged = 0;

	xa_for_each(&client->attachments, id, attachment) {
		kref_get(&attachment->kref);
		staged += fm_region_leave_by(attachment);
	}
	xa_for_each(&client->attachments, id, attachment)
		fm_client_report(client, attachment, attachment->region->manager, leases, staged);
	xa_for_each(&client->attachments, id, attachment) {
		xa_erase(&client->attachments, id);
		fm_attachment_put(attachment); /* the table's */
		fm_attachment_put(attachment);
	}
	trace_fabricmgr_client(client->id, 2, leases, staged);
}

int fm_client_release(struct inode *inode, struct file *file)
{
	struct fm_client *client = file->private_data;
	u32 leases = fm_client_leases(client);
	LIST_HEAD(ending);

	if (client->leases)
		memset(client->leases, 0, client->entries * sizeof(*client->leases));
	mutex_lock(&fm_objects);
	xa_erase(&fm_clients, client->id);
	fm_region_end_created(client, &ending);
	fm_client_clear(client, leases);
	fm_window_close(&client->leases_window);
	mutex_unlock(&fm_objects);
	fm_region_end_all(&ending);
	fm_events_close(&client->events);
	fm_ring_exit(client);
	fm_quota_uncharge(client->uid, FM_QUOTA_CLIENTS, 1);
	vfree(client->leases);
	xa_destroy(&client->attachments);
	put_pid(client->pid);
	kfree(client);
	return 0;
}

long fm_client_setup(struct fm_client *client, void *argument)
{
	struct fabricmgr_client_setup *arg = argument;
	struct fabricmgr_lease *leases;
	u64 bytes = PAGE_ALIGN(arg->entries * sizeof(*leases));
	int error;

	if (!arg->entries || arg->entries > FABRICMGR_LEASES_MAX)
		return -EINVAL;
	leases = fm_table_alloc(bytes);
	if (!leases)
		return -ENOMEM;
	mutex_lock(&fm_objects);
	error = client->entries ? -EEXIST
				: fm_window_open(&client->leases_window, FM_WINDOW_LEASES, client,
						 bytes);
	if (!error) {
		client->leases = leases;
		client->entries = arg->entries;
		arg->id = client->id;
		arg->leases_offset = fm_window_offset(&client->leases_window);
		arg->leases_bytes = bytes;
	}
	mutex_unlock(&fm_objects);
	if (error)
		vfree(leases);
	return error;
}

static bool fm_client_is_managed(const struct fm_client *viewer, struct fm_client *client)
{
	struct fm_attachment *attachment;
	unsigned long id;

	xa_for_each(&client->attachments, id, attachment)
		if (attachment->region->manager == viewer)
			return true;
	return false;
}

/* fm_objects. Whether @viewer may read the lease table of @client. */
bool fm_client_is_visible(struct fm_client *viewer, struct fm_client *client)
{
	return viewer == client || fm_client_is_managed(viewer, client) || fm_is_admin();
}

static u64 fm_client_staged(struct fm_client *client)
{
	struct fm_attachment *attachment;
	unsigned long id;
	u64 pages = 0;

	xa_for_each(&client->attachments, id, attachment)
		pages += atomic64_read(&attachment->staged_pages);
	return pages << PAGE_SHIFT;
}

static void fm_client_describe(struct fm_client *viewer, struct fm_client *client,
			       struct fabricmgr_client_info *arg)
{
	u32 size = arg->size;
	unsigned long id;
	void *entry;

	memset(arg, 0, sizeof(*arg));
	arg->size = size;
	arg->id = client->id;
	arg->uid = from_kuid_munged(current_user_ns(), client->uid);
	arg->gid = from_kgid_munged(current_user_ns(), client->gid);
	arg->pid = pid_nr_ns(client->pid, task_active_pid_ns(current));
	arg->entries = client->entries;
	arg->leases = fm_client_leases(client);
	if (fm_client_is_visible(viewer, client))
		arg->leases_offset = fm_window_offset(&client->leases_window);
	arg->staged_bytes = fm_client_staged(client);
	arg->opened_ns = client->opened_ns;
	xa_for_each(&client->attachments, id, entry)
		arg->regions++;
}

long fm_client_info(struct fm_client *viewer, void *argument)
{
	struct fabricmgr_client_info *arg = argument;
	bool is_next = arg->flags & FABRICMGR_NEXT;
	unsigned long id = arg->id;
	struct fm_client *client;
	int error = -ENOENT;

	mutex_lock(&fm_objects);
	if (is_next)
		client = xa_find_after(&fm_clients, &id, U32_MAX, XA_PRESENT);
	else
		client = id ? xa_load(&fm_clients, id) : viewer;
	while (client && error) {
		if (uid_eq(client->uid, current_fsuid()) || fm_client_is_visible(viewer, client)) {
			fm_client_describe(viewer, client, arg);
			error = 0;
		} else {
			client = is_next ? xa_find_after(&fm_clients, &id, U32_MAX, XA_PRESENT)
					 : NULL;
		}
	}
	mutex_unlock(&fm_objects);
	return error;
}
