// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: names, owners, permissions, who has them open. Memory is chunk.c's business, staging
 * stage.c's. Called from the table in main.c and by client.c when a file ends.
 * Invariant: a region that is listed and ready holds one reference of the module and its charges;
 * both go when the last page went back.
 */
#include <linux/ctype.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>
#include <linux/vmalloc.h>

#include "internal.h"
#include "peer.h"
#include "pressure.h"
#include "region.h"
#include "trace.h"

DEFINE_MUTEX(fm_objects);
LIST_HEAD(fm_regions);
static u32 fm_region_last_id;

/* ---- references ---- */

static void fm_region_free(struct kref *kref)
{
	struct fm_region *region = container_of(kref, struct fm_region, kref);

	kvfree(region->chunks);
	vfree(region->words);
	xa_destroy(&region->attachments);
	kfree(region);
}

void fm_region_put(struct fm_region *region)
{
	kref_put(&region->kref, fm_region_free);
}

static void fm_attachment_free(struct kref *kref)
{
	struct fm_attachment *attachment = container_of(kref, struct fm_attachment, kref);

	fm_event_free(attachment->died);
	xa_destroy(&attachment->staged);
	fm_region_put(attachment->region);
	kfree(attachment);
}

void fm_attachment_put(struct fm_attachment *attachment)
{
	kref_put(&attachment->kref, fm_attachment_free);
}

/* The caller's hold on region @id, with a reference; NULL: it has none. */
struct fm_attachment *fm_region_attachment(struct fm_client *client, u32 id)
{
	struct fm_attachment *attachment;

	mutex_lock(&fm_objects);
	attachment = xa_load(&client->attachments, id);
	if (attachment)
		kref_get(&attachment->kref);
	mutex_unlock(&fm_objects);
	return attachment;
}

/* fm_objects. */
struct fm_region *fm_region_find(u32 id)
{
	struct fm_region *region;

	list_for_each_entry(region, &fm_regions, link)
		if (region->id == id && region->is_ready)
			return region;
	return NULL;
}

static struct fm_region *fm_region_find_name(const char *name)
{
	struct fm_region *region;

	list_for_each_entry(region, &fm_regions, link)
		if (!strcmp(region->name, name))
			return region;
	return NULL;
}

/* ---- permission ---- */

/* fm_objects. @wanted: MAY_READ, MAY_WRITE; as a file's mode is read. */
bool fm_region_allows(const struct fm_region *region, int wanted)
{
	umode_t mode = region->mode;

	if (uid_eq(current_fsuid(), region->uid))
		mode >>= 6;
	else if (in_group_p(region->gid))
		mode >>= 3;
	return (mode & wanted) == wanted || fm_is_admin();
}

static bool fm_region_is_own(const struct fm_region *region)
{
	return uid_eq(current_fsuid(), region->uid) || fm_is_admin();
}

static int fm_region_check_owner(const struct fm_region_spec *spec, kuid_t *uid, kgid_t *gid)
{
	*uid = current_fsuid();
	*gid = current_fsgid();
	if (spec->uid != FABRICMGR_ID_SAME)
		*uid = make_kuid(current_user_ns(), spec->uid);
	if (spec->gid != FABRICMGR_ID_SAME)
		*gid = make_kgid(current_user_ns(), spec->gid);
	if (!uid_valid(*uid) || !gid_valid(*gid))
		return -EINVAL;
	if ((!uid_eq(*uid, current_fsuid()) || !in_group_p(*gid)) && !fm_is_admin())
		return -EPERM;
	return 0;
}

static int fm_region_check_name(const char *name)
{
	size_t length = strnlen(name, FABRICMGR_NAME_BYTES), i;

	if (!length || length == FABRICMGR_NAME_BYTES)
		return -EINVAL;
	for (i = 0; i < length; i++)
		if (!isascii(name[i]) || !isgraph(name[i]) || name[i] == '/')
			return -EINVAL;
	return 0;
}

/* ---- attaching ---- */

/* fm_objects. Gives @client the region, or more rights to it. */
static int fm_region_attach(struct fm_client *client, struct fm_region *region, bool may_write,
			    bool is_manager)
{
	struct fm_attachment *attachment = xa_load(&client->attachments, region->id);
	int error;

	if (is_manager && region->manager && region->manager != client)
		return -EBUSY;
	if (attachment) {
		if (may_write)
			WRITE_ONCE(attachment->may_write, true);
		if (is_manager)
			region->manager = client;
		return 0;
	}
	if (region->manager && READ_ONCE(region->manager->events.length) >= FM_UNREAD_MAX)
		return -ENOBUFS;
	attachment = kzalloc(sizeof(*attachment), GFP_KERNEL_ACCOUNT);
	if (!attachment)
		return -ENOMEM;
	kref_init(&attachment->kref);
	attachment->client = client;
	attachment->may_write = may_write;
	xa_init(&attachment->staged);
	attachment->region = region;
	kref_get(&region->kref);
	attachment->died = fm_event_alloc(client, region);
	error = attachment->died ? xa_err(xa_store(&client->attachments, region->id, attachment,
						   GFP_KERNEL_ACCOUNT))
				 : -ENOMEM;
	if (error)
		goto fail;
	down_write(&region->lock);
	error = xa_err(
		xa_store(&region->attachments, client->id, attachment, GFP_KERNEL_ACCOUNT));
	up_write(&region->lock);
	if (error)
		goto fail_region;
	kref_get(&attachment->kref);
	if (is_manager)
		region->manager = client;
	return 0;

fail_region:
	xa_erase(&client->attachments, region->id);
fail:
	fm_attachment_put(attachment);
	return error;
}

/* fm_objects. What the client held there is free; the client's own table still names it. */
u64 fm_region_leave_by(struct fm_attachment *attachment)
{
	struct fm_region *region = attachment->region;
	u64 staged;

	down_write(&region->lock);
	attachment->is_closed = true;
	staged = fm_stage_clear(attachment);
	xa_erase(&region->attachments, attachment->client->id);
	up_write(&region->lock);
	if (region->manager == attachment->client) {
		fm_pressure_cancel(region);
		region->manager = NULL;
	}
	fm_event_cancel(attachment->client, &attachment->gone);
	fm_attachment_put(attachment);
	return staged;
}

/* fm_objects. Ends the client's hold altogether. */
void fm_region_detach(struct fm_attachment *attachment)
{
	xa_erase(&attachment->client->attachments, attachment->region->id);
	fm_region_leave_by(attachment);
	fm_attachment_put(attachment);
}

/* ---- creating ---- */

/*
 * A region that has its name, id and charges but nothing else, and that nobody can see. Followed by
 * fm_region_publish() or fm_region_abandon().
 */
struct fm_region *fm_region_reserve(const struct fm_region_spec *spec)
{
	struct fm_region *region;
	int error = fm_region_check_name(spec->name);

	if (error || !spec->bytes || (spec->mode & ~0666))
		return ERR_PTR(-EINVAL);
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return ERR_PTR(-ENOMEM);
	kref_init(&region->kref);
	region->kind = spec->kind;
	region->bytes = spec->bytes;
	region->mode = spec->mode;
	region->node = NUMA_NO_NODE;
	region->is_discardable = spec->is_discardable;
	strscpy(region->name, spec->name, sizeof(region->name));
	init_rwsem(&region->lock);
	xa_init(&region->attachments);
	INIT_LIST_HEAD(&region->leaving_pages);
	INIT_LIST_HEAD(&region->export_list);
	mutex_init(&region->exports_lock);
	error = fm_region_check_owner(spec, &region->uid, &region->gid);
	if (error)
		goto fail;
	region->charged_uid = region->uid;
	error = fm_quota_charge(region->uid, FM_QUOTA_BYTES, region->bytes);
	if (error)
		goto fail;
	error = fm_quota_charge(region->uid, FM_QUOTA_REGIONS, 1);
	if (error)
		goto fail_bytes;
	mutex_lock(&fm_objects);
	if (fm_region_find_name(region->name))
		error = -EEXIST;
	else if (fm_region_last_id == U32_MAX)
		error = -ENOSPC;
	else
		list_add_tail(&region->link, &fm_regions);
	if (!error)
		region->id = ++fm_region_last_id;
	mutex_unlock(&fm_objects);
	if (error)
		goto fail_count;
	region->lease_region = spec->lease_region ?: region->id;
	__module_get(THIS_MODULE);
	return region;

fail_count:
	fm_quota_uncharge(region->uid, FM_QUOTA_REGIONS, 1);
fail_bytes:
	fm_quota_uncharge(region->uid, FM_QUOTA_BYTES, region->bytes);
fail:
	fm_region_put(region);
	return ERR_PTR(error);
}

/* fm_objects. Takes the region out of every table; its name is free. */
static void fm_region_unlist(struct fm_region *region)
{
	list_del(&region->link);
	region->is_gone = true;
	fm_pressure_cancel(region);
	fm_window_close(&region->read_window);
	fm_window_close(&region->write_window);
	fm_window_close(&region->words_window);
	fm_quota_uncharge(region->charged_uid, FM_QUOTA_REGIONS, 1);
}

/* Undoes fm_region_reserve() and what came to it since. */
void fm_region_abandon(struct fm_region *region)
{
	mutex_lock(&fm_objects);
	fm_region_unlist(region);
	mutex_unlock(&fm_objects);
	fm_region_end(region);
}

static int fm_region_open_windows(struct fm_region *region)
{
	int error;

	if (region->kind != FABRICMGR_REGION_CHUNKS)
		return 0;
	error = fm_window_open(&region->read_window, FM_WINDOW_READ, region, region->bytes);
	if (!error)
		error = fm_window_open(&region->write_window, FM_WINDOW_WRITE, region,
				       region->bytes);
	if (!error && region->words)
		error = fm_window_open(&region->words_window, FM_WINDOW_WORDS, region,
				       region->chunk_count * sizeof(u64));
	return error;
}

/* Makes the region seen, and opens it for its creator. On failure it is abandoned. */
int fm_region_publish(struct fm_client *client, struct fm_region *region, bool is_manager)
{
	int error;

	mutex_lock(&fm_objects);
	error = fm_region_open_windows(region);
	if (!error)
		error = fm_region_attach(client, region, true, is_manager);
	if (!error) {
		region->is_ready = true;
		trace_fabricmgr_region(region->id, 1, region->bytes, region->order);
	}
	mutex_unlock(&fm_objects);
	if (error)
		fm_region_abandon(region);
	return error;
}

static int fm_region_check_memory(const struct fabricmgr_region_create *arg)
{
	u32 order = arg->order ?: FM_ORDER_MAX;

	if (arg->reserved || order < FM_ORDER_MIN || order > FM_ORDER_MAX)
		return -EINVAL;
	if (arg->bytes & ((PAGE_SIZE << order) - 1) ||
	    arg->bytes >> (PAGE_SHIFT + order) > U32_MAX)
		return -EINVAL;
	if (arg->node != FABRICMGR_NODE_ANY &&
	    (arg->node < 0 || arg->node >= MAX_NUMNODES || !node_online(arg->node)))
		return -ENXIO;
	if (arg->flags & FABRICMGR_CREATE_UNCHARGED && !fm_is_admin())
		return -EPERM;
	return 0;
}

long fm_region_create(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_create *arg = argument;
	const struct fm_region_spec spec = {
		.kind = FABRICMGR_REGION_CHUNKS,
		.name = arg->name,
		.uid = arg->uid,
		.gid = arg->gid,
		.mode = arg->mode,
		.lease_region = arg->lease_region,
		.bytes = arg->bytes,
		.is_discardable = arg->flags & FABRICMGR_CREATE_DISCARDABLE,
	};
	struct fm_region *region;
	int error = fm_region_check_memory(arg);

	if (error)
		return error;
	region = fm_region_reserve(&spec);
	if (IS_ERR(region))
		return PTR_ERR(region);
	if (arg->node != FABRICMGR_NODE_ANY)
		region->node = arg->node;
	error = fm_chunks_alloc(region, arg->order ?: FM_ORDER_MAX,
				arg->flags & FABRICMGR_CREATE_EXACT_ORDER,
				!(arg->flags & FABRICMGR_CREATE_UNCHARGED));
	if (!error && region->is_discardable) {
		region->words = fm_table_alloc(region->chunk_count * sizeof(u64));
		error = region->words ? 0 : -ENOMEM;
	}
	if (error) {
		fm_region_abandon(region);
		return error;
	}
	arg->id = region->id;
	arg->order = region->order;
	kref_get(&region->kref);
	error = fm_region_publish(client, region, arg->flags & FABRICMGR_CREATE_MANAGE);
	arg->map_offset = fm_window_offset(&region->read_window);
	arg->write_offset = fm_window_offset(&region->write_window);
	arg->words_offset = fm_window_offset(&region->words_window);
	fm_region_put(region);
	return error;
}

/* ---- using ---- */

long fm_region_open(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_open *arg = argument;
	bool is_writer = arg->flags & FABRICMGR_OPEN_WRITE;
	bool is_manager = arg->flags & FABRICMGR_OPEN_MANAGE;
	struct fm_region *region;
	int error = 0;

	if (arg->reserved || (is_manager && !is_writer) ||
	    strnlen(arg->name, sizeof(arg->name)) == sizeof(arg->name))
		return -EINVAL;
	mutex_lock(&fm_objects);
	region = arg->name[0] ? fm_region_find_name(arg->name) : fm_region_find(arg->id);
	if (!region || !region->is_ready)
		error = -ENOENT;
	else if (!fm_region_allows(region, MAY_READ | (is_writer ? MAY_WRITE : 0)))
		error = -EACCES;
	else
		error = fm_region_attach(client, region, is_writer, is_manager);
	if (!error) {
		arg->id = region->id;
		arg->bytes = region->bytes;
		arg->map_offset = fm_window_offset(&region->read_window);
		arg->write_offset = fm_window_offset(&region->write_window);
		arg->words_offset = fm_window_offset(&region->words_window);
	}
	mutex_unlock(&fm_objects);
	return error;
}

long fm_region_close(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_id *arg = argument;
	struct fm_attachment *attachment;
	int error = 0;

	if (arg->reserved)
		return -EINVAL;
	mutex_lock(&fm_objects);
	attachment = xa_load(&client->attachments, arg->id);
	if (!attachment)
		error = -ENOENT;
	else if (atomic_read(&attachment->mappings))
		error = -EBUSY;
	else
		fm_region_detach(attachment);
	mutex_unlock(&fm_objects);
	return error;
}

static u32 fm_region_clients(struct fm_region *region)
{
	unsigned long id;
	void *entry;
	u32 count = 0;

	xa_for_each(&region->attachments, id, entry)
		count++;
	return count;
}

static void fm_region_describe(struct fm_region *region, struct fabricmgr_region_info *arg)
{
	u32 size = arg->size;

	memset(arg, 0, sizeof(*arg));
	arg->size = size;
	arg->id = region->id;
	arg->kind = region->kind;
	arg->order = region->order;
	arg->node = region->node == NUMA_NO_NODE ? FABRICMGR_NODE_ANY : region->node;
	arg->uid = from_kuid_munged(current_user_ns(), region->uid);
	arg->gid = from_kgid_munged(current_user_ns(), region->gid);
	arg->mode = region->mode;
	arg->lease_region = region->lease_region;
	arg->manager = region->manager ? region->manager->id : 0;
	arg->bytes = region->bytes;
	arg->resident_bytes = atomic64_read(&region->resident_bytes);
	arg->map_offset = fm_window_offset(&region->read_window);
	arg->write_offset = fm_window_offset(&region->write_window);
	arg->words_offset = fm_window_offset(&region->words_window);
	arg->mappings = atomic_read(&region->mappings);
	arg->exports = atomic_read(&region->exports);
	strscpy(arg->name, region->name, sizeof(arg->name));
	down_read(&region->lock);
	arg->clients = fm_region_clients(region);
	arg->state = (region->is_discardable ? FABRICMGR_REGION_IS_DISCARDABLE : 0) |
		     (region->manager ? FABRICMGR_REGION_IS_MANAGED : 0) |
		     (region->is_baselined ? FABRICMGR_REGION_IS_BASELINED : 0);
	if (region->peer) {
		arg->state |= fm_peer_is_revoked(region) ? FABRICMGR_REGION_IS_REVOKED : 0;
		fm_pci_describe(region, &arg->pci);
	}
	up_read(&region->lock);
}

static bool fm_region_is_visible(const struct fm_region *region)
{
	return region->is_ready && (uid_eq(current_fsuid(), region->uid) ||
				    fm_region_allows(region, MAY_READ));
}

long fm_region_info(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_info *arg = argument;
	bool is_next = arg->flags & FABRICMGR_NEXT;
	struct fm_region *region;
	int error = -ENOENT;

	mutex_lock(&fm_objects);
	list_for_each_entry(region, &fm_regions, link) { /* in the order of their ids */
		if (is_next ? region->id <= arg->id : region->id != arg->id)
			continue;
		if (fm_region_is_visible(region)) {
			fm_region_describe(region, arg);
			error = 0;
			break;
		}
		if (!is_next)
			break;
	}
	mutex_unlock(&fm_objects);
	return error;
}

long fm_region_baseline(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_id *arg = argument;
	struct fm_attachment *attachment;
	struct fm_region *region;
	int error = 0;
	u32 i;

	if (arg->reserved)
		return -EINVAL;
	attachment = fm_region_attachment(client, arg->id);
	if (!attachment)
		return -ENOENT;
	region = attachment->region;
	down_write(&region->lock);
	if (!attachment->may_write)
		error = -EACCES;
	else if (region->is_dead)
		error = -ENOENT;
	for (i = 0; i < region->chunk_count && !error; i++)
		if (region->chunks[i].page)
			region->chunks[i].baseline = fm_chunk_pins(&region->chunks[i]);
	region->is_baselined |= !error;
	up_write(&region->lock);
	fm_attachment_put(attachment);
	return error;
}

long fm_region_own(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_own *arg = argument;
	struct fm_region *region;
	kuid_t uid = INVALID_UID;
	kgid_t gid = INVALID_GID;
	int error = 0;

	if (arg->uid != FABRICMGR_ID_SAME)
		uid = make_kuid(current_user_ns(), arg->uid);
	if (arg->gid != FABRICMGR_ID_SAME)
		gid = make_kgid(current_user_ns(), arg->gid);
	if ((arg->uid != FABRICMGR_ID_SAME && !uid_valid(uid)) ||
	    (arg->gid != FABRICMGR_ID_SAME && !gid_valid(gid)) ||
	    (arg->mode != FABRICMGR_ID_SAME && arg->mode & ~0666))
		return -EINVAL;
	mutex_lock(&fm_objects);
	region = fm_region_find(arg->id);
	if (!region)
		error = -ENOENT;
	else if (!fm_region_is_own(region) ||
		 ((uid_valid(uid) || (gid_valid(gid) && !in_group_p(gid))) && !fm_is_admin()))
		error = -EPERM;
	if (!error) {
		region->uid = uid_valid(uid) ? uid : region->uid;
		region->gid = gid_valid(gid) ? gid : region->gid;
		region->mode = arg->mode == FABRICMGR_ID_SAME ? region->mode : arg->mode;
	}
	mutex_unlock(&fm_objects);
	return error;
}

/* ---- ending ---- */

static bool fm_region_has_pins(struct fm_region *region)
{
	u32 i;

	for (i = 0; i < region->chunk_count; i++)
		if (region->chunks[i].page && fm_chunk_pins(&region->chunks[i]))
			return true;
	return false;
}

/* fm_objects, region->lock. Whether anybody but @client would notice that the region goes. */
static bool fm_region_is_busy(struct fm_region *region, struct fm_client *client)
{
	u32 others = fm_region_clients(region) - !!xa_load(&region->attachments, client->id);

	return others || atomic_read(&region->mappings) || atomic_read(&region->exports) ||
	       fm_region_has_pins(region);
}

/* fm_objects. Tells those who have it open, but @client. */
void fm_region_tell(struct fm_region *region, struct fm_client *client, u32 kind)
{
	struct fm_attachment *attachment;
	unsigned long id;

	xa_for_each(&region->attachments, id, attachment) {
		if (attachment->client == client)
			continue;
		attachment->gone.record.kind = kind;
		attachment->gone.record.region = region->id;
		attachment->gone.record.bytes = region->bytes;
		attachment->gone.record.time_ns = ktime_get_ns();
		fm_event_post(attachment->client, &attachment->gone);
	}
}

/*
 * Ends an unlisted region: nobody reaches its memory from here on, and the memory goes back as soon
 * as no device holds it. Takes over the reference of the list.
 */
void fm_region_end(struct fm_region *region)
{
	down_write(&region->lock);
	region->is_dead = true;
	up_write(&region->lock);
	if (region->kind == FABRICMGR_REGION_CHUNKS && region->read_window.first) {
		fm_map_zap(region, &region->read_window, 0, region->bytes >> PAGE_SHIFT);
		fm_map_zap(region, &region->write_window, 0, region->bytes >> PAGE_SHIFT);
	}
	trace_fabricmgr_region(region->id, 2, region->bytes, region->order);
	fm_exports_revoke(region);
	if (region->peer)
		fm_peer_end(region);
	if (region->vault)
		fput(region->vault);
	fm_chunks_free(region);
}

/* fm_objects. Unlists the peers that @client made, onto @ending. */
void fm_region_end_created(struct fm_client *client, struct list_head *ending)
{
	struct fm_region *region, *next;

	list_for_each_entry_safe(region, next, &fm_regions, link) {
		if (region->creator != client)
			continue;
		fm_region_unlist(region);
		fm_region_tell(region, client, FABRICMGR_EVENT_PEER_REVOKED);
		list_add(&region->link, ending);
	}
}

void fm_region_end_all(struct list_head *ending)
{
	struct fm_region *region, *next;

	list_for_each_entry_safe(region, next, ending, link)
		fm_region_end(region);
}

long fm_region_destroy(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_id *arg = argument;
	struct fm_region *region;
	int error = 0;

	if (arg->reserved)
		return -EINVAL;
	mutex_lock(&fm_objects);
	region = fm_region_find(arg->id);
	if (!region) {
		error = -ENOENT;
	} else if (!fm_region_is_own(region)) {
		error = -EPERM;
	} else if (!(arg->flags & FABRICMGR_DESTROY_FORCE)) {
		down_read(&region->lock);
		if (fm_region_is_busy(region, client))
			error = -EBUSY;
		up_read(&region->lock);
	}
	if (!error) {
		fm_region_unlist(region);
		fm_region_tell(region, client, FABRICMGR_EVENT_REGION_GONE);
	}
	mutex_unlock(&fm_objects);
	if (!error)
		fm_region_end(region);
	return error;
}
