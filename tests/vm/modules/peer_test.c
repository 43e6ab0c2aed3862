// SPDX-License-Identifier: GPL-2.0
/*
 * The other side of the module's dma-bufs, for tests/vm/tests/dmabuf.c alone: an exporter whose
 * memory moves when told to (or that cannot tell, like NVIDIA's), and an importer on the first NVMe
 * function. Each open file imports at most one buffer.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "peer_test.h"

MODULE_INFO(import_ns, "DMA_BUF");

#define PAGES 16

struct importer {
	struct dma_buf *buffer;
	struct dma_buf_attachment *attachment;
	struct sg_table *table;
	struct pci_dev *function;
	enum dma_data_direction direction;
	atomic_t notified;
};

/* ---- exporting ---- */

static struct sg_table *exporter_map(struct dma_buf_attachment *attachment,
				     enum dma_data_direction direction)
{
	struct page **pages = attachment->dmabuf->priv;
	struct sg_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	int error = -ENOMEM;

	if (!table)
		return ERR_PTR(error);
	/* As NVIDIA's exporter does: it asks nobody whether the importer is on the PCI bus. */
	pci_name(to_pci_dev(attachment->dev));
	error = sg_alloc_table_from_pages(table, pages, PAGES, 0, PAGES << PAGE_SHIFT, GFP_KERNEL);
	if (!error) {
		error = dma_map_sgtable(attachment->dev, table, direction, 0);
		if (!error)
			return table;
		sg_free_table(table);
	}
	kfree(table);
	return ERR_PTR(error);
}

static void exporter_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			   enum dma_data_direction direction)
{
	dma_unmap_sgtable(attachment->dev, table, direction, 0);
	sg_free_table(table);
	kfree(table);
}

static int exporter_pin(struct dma_buf_attachment *attachment)
{
	return 0;
}

static void exporter_unpin(struct dma_buf_attachment *attachment)
{
}

static void exporter_release(struct dma_buf *buffer)
{
	struct page **pages = buffer->priv;
	int i;

	for (i = 0; i < PAGES; i++)
		__free_page(pages[i]);
	kfree(pages);
}

static const struct dma_buf_ops dynamic_operations = {
	.pin = exporter_pin,
	.unpin = exporter_unpin,
	.map_dma_buf = exporter_map,
	.unmap_dma_buf = exporter_unmap,
	.release = exporter_release,
};

static const struct dma_buf_ops static_operations = {
	.map_dma_buf = exporter_map,
	.unmap_dma_buf = exporter_unmap,
	.release = exporter_release,
};

static long export_buffer(bool is_static)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct page **pages = kcalloc(PAGES, sizeof(*pages), GFP_KERNEL);
	struct dma_buf *buffer;
	int i, fd;

	if (!pages)
		return -ENOMEM;
	for (i = 0; i < PAGES; i++)
		pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO | __GFP_NOFAIL);
	info.ops = is_static ? &static_operations : &dynamic_operations;
	info.size = PAGES << PAGE_SHIFT;
	info.flags = O_RDWR;
	info.priv = pages;
	buffer = dma_buf_export(&info);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	fd = dma_buf_fd(buffer, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(buffer);
	return fd;
}

static long move_buffer(int fd)
{
	struct dma_buf *buffer = dma_buf_get(fd);

	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	dma_resv_lock(buffer->resv, NULL);
	dma_buf_move_notify(buffer);
	dma_resv_unlock(buffer->resv);
	dma_buf_put(buffer);
	return 0;
}

/* ---- importing ---- */

static void importer_move_notify(struct dma_buf_attachment *attachment)
{
	struct importer *importer = attachment->importer_priv;

	atomic_inc(&importer->notified);
}

static const struct dma_buf_attach_ops importer_operations = {
	.allow_peer2peer = true,
	.move_notify = importer_move_notify,
};

static void importer_let_go(struct importer *importer)
{
	if (importer->attachment) {
		dma_resv_lock(importer->buffer->resv, NULL);
		if (importer->table)
			dma_buf_unmap_attachment(importer->attachment, importer->table,
						 importer->direction);
		dma_resv_unlock(importer->buffer->resv);
		dma_buf_detach(importer->buffer, importer->attachment);
	}
	if (importer->buffer)
		dma_buf_put(importer->buffer);
	pci_dev_put(importer->function);
	importer->function = NULL;
	importer->buffer = NULL;
	importer->attachment = NULL;
	importer->table = NULL;
}

static long import_buffer(struct importer *importer, int fd, enum dma_data_direction direction)
{
	long error = -EBUSY;

	if (importer->buffer)
		return error;
	importer->direction = direction;
	importer->function = pci_get_class(PCI_CLASS_STORAGE_EXPRESS, NULL);
	if (!importer->function)
		return -ENODEV;
	importer->buffer = dma_buf_get(fd);
	error = PTR_ERR_OR_ZERO(importer->buffer);
	if (error) {
		importer->buffer = NULL;
		goto fail;
	}
	importer->attachment = dma_buf_dynamic_attach(importer->buffer, &importer->function->dev,
						      &importer_operations, importer);
	error = PTR_ERR_OR_ZERO(importer->attachment);
	if (error) {
		importer->attachment = NULL;
		goto fail;
	}
	dma_resv_lock(importer->buffer->resv, NULL);
	importer->table = dma_buf_map_attachment(importer->attachment, direction);
	dma_resv_unlock(importer->buffer->resv);
	error = PTR_ERR_OR_ZERO(importer->table);
	if (!error)
		return 0;
	importer->table = NULL;
fail:
	importer_let_go(importer);
	return error;
}

/*
 * What a device would do: bytes into all of the buffer, by device addresses, which are physical
 * ones in a machine without IOMMU. (A debugging dma-buf core hides the pages of the table.)
 */
static long fill_buffer(struct importer *importer, u8 value)
{
	struct sg_dma_page_iter at;
	long pages = 0;

	if (!importer->table)
		return -EINVAL;
	for_each_sgtable_dma_page(importer->table, &at, 0) {
		memset(phys_to_virt(sg_page_iter_dma_address(&at)), value, PAGE_SIZE);
		pages++;
	}
	return pages;
}

static int peer_test_open(struct inode *inode, struct file *file)
{
	file->private_data = kzalloc(sizeof(struct importer), GFP_KERNEL);
	return file->private_data ? 0 : -ENOMEM;
}

static int peer_test_release(struct inode *inode, struct file *file)
{
	importer_let_go(file->private_data);
	kfree(file->private_data);
	return 0;
}

static long peer_test_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct importer *importer = file->private_data;

	switch (command) {
	case PEER_TEST_EXPORT:
		return export_buffer(false);
	case PEER_TEST_EXPORT_STATIC:
		return export_buffer(true);
	case PEER_TEST_MOVE:
		return move_buffer(argument);
	case PEER_TEST_IMPORT:
		return import_buffer(importer, argument, DMA_BIDIRECTIONAL);
	case PEER_TEST_IMPORT_TO_READ:
		return import_buffer(importer, argument, DMA_TO_DEVICE);
	case PEER_TEST_FILL:
		return fill_buffer(importer, argument);
	case PEER_TEST_NOTIFIED:
		return atomic_read(&importer->notified);
	case PEER_TEST_LET_GO:
		importer_let_go(importer);
		return 0;
	default:
		return -ENOTTY;
	}
}

static const struct file_operations peer_test_operations = {
	.owner = THIS_MODULE,
	.open = peer_test_open,
	.release = peer_test_release,
	.unlocked_ioctl = peer_test_ioctl,
};

static struct miscdevice peer_test_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fabricmgr_peer_test",
	.fops = &peer_test_operations,
};

module_misc_device(peer_test_device);
MODULE_DESCRIPTION("A dma-buf exporter and importer for the tests of fabricmgr");
MODULE_LICENSE("GPL");
