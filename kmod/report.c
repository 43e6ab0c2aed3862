// SPDX-License-Identifier: GPL-2.0
/*
 * What a person can read: values in sysfs, lists in debugfs (Documentation/abi/fabricmgr.md). Only
 * looks; called from main.c at loading and unloading.
 */
#include <linux/debugfs.h>
#include <linux/device.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>

#include "internal.h"
#include "peer.h"
#include "report.h"

/* ---- sysfs: one value each ---- */

#define FM_VALUE(name, format, value)                                                              \
	static ssize_t name##_show(struct device *device, struct device_attribute *attribute,      \
				   char *buffer)                                                   \
	{                                                                                          \
		return sysfs_emit(buffer, format "\n", value);                                     \
	}                                                                                          \
	static DEVICE_ATTR_RO(name)

FM_VALUE(api_major, "%u", FABRICMGR_API_MAJOR);
FM_VALUE(api_minor, "%u", FABRICMGR_API_MINOR);
FM_VALUE(bytes, "%llu", fm_quota_used(FM_QUOTA_BYTES));
FM_VALUE(regions, "%llu", fm_quota_used(FM_QUOTA_REGIONS));
FM_VALUE(clients, "%llu", fm_quota_used(FM_QUOTA_CLIENTS));
FM_VALUE(leaving_bytes, "%llu", fm_chunks_leaving_bytes());

static struct attribute *fm_attributes[] = {
	&dev_attr_api_major.attr, &dev_attr_api_minor.attr, &dev_attr_bytes.attr,
	&dev_attr_regions.attr,	  &dev_attr_clients.attr,   &dev_attr_leaving_bytes.attr,
	NULL,
};

static const struct attribute_group fm_attribute_group = { .attrs = fm_attributes };

const struct attribute_group *fm_attribute_groups[] = { &fm_attribute_group, NULL };

/* ---- debugfs: lists, for administrators alone ---- */

static int fm_list_regions_show(struct seq_file *file, void *unused)
{
	static const char *const kinds[] = { "?", "chunks", "vault", "peer" };
	const struct fm_region *region;

	seq_puts(file, "id name kind uid gid mode bytes resident order node ");
	seq_puts(file, "manager mappings exports\n");
	mutex_lock(&fm_objects);
	list_for_each_entry(region, &fm_regions, link)
		seq_printf(file, "%u %s %s %u %u %04o %llu %llu %u %d %u %d %d\n", region->id,
			   region->name, kinds[region->kind],
			   from_kuid_munged(&init_user_ns, region->uid),
			   from_kgid_munged(&init_user_ns, region->gid), region->mode,
			   region->bytes, (u64)atomic64_read(&region->resident_bytes),
			   region->order, region->node, region->manager ? region->manager->id : 0,
			   atomic_read(&region->mappings), atomic_read(&region->exports));
	mutex_unlock(&fm_objects);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(fm_list_regions);

static int fm_list_clients_show(struct seq_file *file, void *unused)
{
	struct fm_attachment *attachment;
	struct fm_client *client;
	unsigned long id, region;

	seq_puts(file, "id pid uid age_ms leases/entries region:staged_bytes...\n");
	mutex_lock(&fm_objects);
	xa_for_each(&fm_clients, id, client) {
		seq_printf(file, "%u %d %u %llu %u/%u", client->id, pid_nr(client->pid),
			   from_kuid_munged(&init_user_ns, client->uid),
			   div_u64(ktime_get_ns() - client->opened_ns, NSEC_PER_MSEC),
			   fm_client_leases(client), client->entries);
		xa_for_each(&client->attachments, region, attachment)
			seq_printf(file, " %lu:%llu", region,
				   (u64)atomic64_read(&attachment->staged_pages) << PAGE_SHIFT);
		seq_putc(file, '\n');
	}
	mutex_unlock(&fm_objects);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(fm_list_clients);

static void fm_list_client_leases(struct seq_file *file, const struct fm_client *client)
{
	u32 i;

	for (i = 0; i < client->entries; i++) {
		const struct fabricmgr_lease *lease = &client->leases[i];
		u32 region = READ_ONCE(lease->region);

		if (region)
			seq_printf(file, "%u %d %u %u %u %u\n", client->id, pid_nr(client->pid),
				   region, READ_ONCE(lease->chunk), READ_ONCE(lease->slot),
				   READ_ONCE(lease->generation));
	}
}

static int fm_list_leases_show(struct seq_file *file, void *unused)
{
	struct fm_client *client;
	unsigned long id;

	seq_puts(file, "client pid region chunk slot generation\n");
	mutex_lock(&fm_objects);
	xa_for_each(&fm_clients, id, client)
		fm_list_client_leases(file, client);
	mutex_unlock(&fm_objects);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(fm_list_leases);

static struct dentry *fm_report_folder;

/* Without debugfs there are no lists, and nothing else is missing. */
void fm_report_init(void)
{
	fm_report_folder = debugfs_create_dir("fabricmgr", NULL);
	debugfs_create_file("regions", 0400, fm_report_folder, NULL, &fm_list_regions_fops);
	debugfs_create_file("clients", 0400, fm_report_folder, NULL, &fm_list_clients_fops);
	debugfs_create_file("leases", 0400, fm_report_folder, NULL, &fm_list_leases_fops);
}

void fm_report_exit(void)
{
	debugfs_remove_recursive(fm_report_folder);
}
