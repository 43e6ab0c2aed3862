// SPDX-License-Identifier: GPL-2.0
/*
 * A region, or a range of it, as a dma-buf for devices. Called from the table in main.c, by the
 * dma-buf core, and by region.c when the region ends.
 * Invariant: while a device has a range mapped, its chunks carry a reference and a count for it, so
 * that neither reclaim nor the region's end gives them back. Memory never moves, so pinning is
 * nothing to do; what an importer has not pinned is revoked when the region ends.
 *
 * Locks: exports_lock, then the buffer's reservation, then region->lock.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "internal.h"
#include "peer.h"

struct fm_export {
	struct list_head link; /* region->exports_lock */
	struct fm_region *region;
	struct dma_buf *buffer;
	u64 first; /* pages */
	u64 count;
	bool is_writable;
	bool is_revoked;   /* the reservation */
	unsigned int pins; /* the reservation */
};

static int fm_export_pin(struct dma_buf_attachment *attachment)
{
	struct fm_export *export = attachment->dmabuf->priv;

	if (export->is_revoked)
		return -ENODEV;
	export->pins++;
	return 0;
}

static void fm_export_unpin(struct dma_buf_attachment *attachment)
{
	struct fm_export *export = attachment->dmabuf->priv;

	export->pins--;
}

/* Drops the hold of the first @entries of @table. */
static void fm_export_drop(struct fm_export *export, struct sg_table *table, unsigned int entries)
{
	struct fm_region *region = export->region;
	struct scatterlist *entry;
	u64 at = export->first;
	unsigned int i;

	for_each_sg(table->sgl, entry, entries, i) {
		atomic_dec(&region->chunks[at >> region->order].exported);
		put_page(compound_head(sg_page(entry)));
		at += entry->length >> PAGE_SHIFT;
	}
}

/* region->lock. One entry for each piece of a chunk that the device takes at once. */
static int fm_export_fill(struct fm_export *export, struct sg_table *table, u32 piece)
{
	struct fm_region *region = export->region;
	u64 at = export->first, end = export->first + export->count, pages = 1ULL << region->order;
	struct scatterlist *entry;
	unsigned int i;

	for_each_sg(table->sgl, entry, table->orig_nents, i) {
		struct fm_chunk *chunk = &region->chunks[at >> region->order];
		u64 within = at & (pages - 1), count = min3(pages - within, end - at, (u64)piece);

		if (!chunk->page) {
			fm_export_drop(export, table, i);
			return -ENXIO;
		}
		get_page(chunk->page);
		atomic_inc(&chunk->exported);
		sg_set_page(entry, nth_page(chunk->page, within), count << PAGE_SHIFT, 0);
		at += count;
	}
	return 0;
}

static unsigned int fm_export_entries(const struct fm_export *export, u32 piece)
{
	u64 at = export->first, end = export->first + export->count;
	u64 pages = 1ULL << export->region->order;
	unsigned int entries = 0;

	while (at < end) {
		u64 count = min(pages - (at & (pages - 1)), end - at);

		entries += DIV_ROUND_UP_ULL(count, piece);
		at += count;
	}
	return entries;
}

static struct sg_table *fm_export_map(struct dma_buf_attachment *attachment,
				      enum dma_data_direction direction)
{
	struct fm_export *export = attachment->dmabuf->priv;
	struct fm_region *region = export->region;
	u32 piece = max_t(u32, dma_get_max_seg_size(attachment->dev) >> PAGE_SHIFT, 1);
	struct sg_table *table;
	int error;

	if (export->is_revoked)
		return ERR_PTR(-ENODEV);
	if (!export->is_writable && direction != DMA_TO_DEVICE)
		return ERR_PTR(-EACCES);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return ERR_PTR(-ENOMEM);
	error = sg_alloc_table(table, fm_export_entries(export, piece), GFP_KERNEL);
	if (error)
		goto fail;
	down_read(&region->lock);
	error = region->is_dead ? -ENODEV : fm_export_fill(export, table, piece);
	up_read(&region->lock);
	if (error)
		goto fail_table;
	error = dma_map_sgtable(attachment->dev, table, direction, 0);
	if (!error)
		return table;
	fm_export_drop(export, table, table->orig_nents);
fail_table:
	sg_free_table(table);
fail:
	kfree(table);
	return ERR_PTR(error);
}

static void fm_export_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			    enum dma_data_direction direction)
{
	struct fm_export *export = attachment->dmabuf->priv;

	dma_unmap_sgtable(attachment->dev, table, direction, 0);
	fm_export_drop(export, table, table->orig_nents);
	sg_free_table(table);
	kfree(table);
}

static void fm_export_release(struct dma_buf *buffer)
{
	struct fm_export *export = buffer->priv;
	struct fm_region *region = export->region;

	mutex_lock(&region->exports_lock);
	list_del(&export->link);
	mutex_unlock(&region->exports_lock);
	atomic_dec(&region->exports);
	fm_region_put(region);
	kfree(export);
}

static const struct dma_buf_ops fm_export_operations = {
	.pin = fm_export_pin,
	.unpin = fm_export_unpin,
	.map_dma_buf = fm_export_map,
	.unmap_dma_buf = fm_export_unmap,
	.release = fm_export_release,
};

bool fm_export_is_ours(const struct dma_buf *buffer)
{
	return buffer->ops == &fm_export_operations;
}

/* Nothing more is mapped from here on, and who can let go is asked to. */
void fm_exports_revoke(struct fm_region *region)
{
	struct fm_export *export;

	mutex_lock(&region->exports_lock);
	list_for_each_entry(export, &region->export_list, link) {
		dma_resv_lock(export->buffer->resv, NULL);
		export->is_revoked = true;
		if (!export->pins)
			dma_buf_move_notify(export->buffer);
		dma_resv_unlock(export->buffer->resv);
	}
	mutex_unlock(&region->exports_lock);
}

static int fm_export_check(struct fm_attachment *attachment, struct fabricmgr_region_export *arg)
{
	const struct fm_region *region = attachment->region;

	if (region->kind != FABRICMGR_REGION_CHUNKS)
		return -EOPNOTSUPP;
	if (!PAGE_ALIGNED(arg->offset) || !PAGE_ALIGNED(arg->bytes))
		return -EINVAL;
	if (arg->offset >= region->bytes)
		return -ERANGE;
	arg->bytes = arg->bytes ?: region->bytes - arg->offset;
	if (arg->bytes > region->bytes - arg->offset)
		return -ERANGE;
	if ((arg->fd_flags & O_ACCMODE) == O_RDWR && !READ_ONCE(attachment->may_write))
		return -EACCES;
	return 0;
}

static struct dma_buf *fm_export_create(struct fm_region *region,
					const struct fabricmgr_region_export *arg)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct fm_export *export = kzalloc(sizeof(*export), GFP_KERNEL_ACCOUNT);
	struct dma_buf *buffer;

	if (!export)
		return ERR_PTR(-ENOMEM);
	export->region = region;
	export->first = arg->offset >> PAGE_SHIFT;
	export->count = arg->bytes >> PAGE_SHIFT;
	export->is_writable = (arg->fd_flags & O_ACCMODE) == O_RDWR;
	info.ops = &fm_export_operations;
	info.size = arg->bytes;
	info.flags = arg->fd_flags & O_ACCMODE;
	info.priv = export;
	mutex_lock(&region->exports_lock);
	buffer = dma_buf_export(&info);
	if (IS_ERR(buffer)) {
		mutex_unlock(&region->exports_lock);
		kfree(export);
		return buffer;
	}
	export->buffer = buffer;
	export->is_revoked = READ_ONCE(region->is_dead);
	kref_get(&region->kref);
	atomic_inc(&region->exports);
	list_add_tail(&export->link, &region->export_list);
	mutex_unlock(&region->exports_lock);
	return buffer;
}

long fm_region_export(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_export *arg = argument;
	struct fm_attachment *attachment;
	struct dma_buf *buffer;
	u32 mode = arg->fd_flags & O_ACCMODE;
	int error;

	if (arg->reserved || arg->fd_flags & ~(O_CLOEXEC | O_ACCMODE) ||
	    (mode != O_RDONLY && mode != O_RDWR))
		return -EINVAL;
	attachment = fm_region_attachment(client, arg->id);
	if (!attachment)
		return -ENOENT;
	error = fm_export_check(attachment, arg);
	if (error)
		goto out;
	buffer = fm_export_create(attachment->region, arg);
	error = PTR_ERR_OR_ZERO(buffer);
	if (error)
		goto out;
	error = dma_buf_fd(buffer, arg->fd_flags & O_CLOEXEC);
	if (error < 0) {
		dma_buf_put(buffer);
		goto out;
	}
	arg->fd = error;
	error = 0;
out:
	fm_attachment_put(attachment);
	return error;
}
