// SPDX-License-Identifier: GPL-2.0
/*
 * What the device shows in its file offsets: a read and a write window of each region, the chunk
 * words of discardable ones, lease tables. All files share one address space of a pseudo file
 * system of the module's own, so that a range can be zapped from every process at once and so that
 * long-term pins are allowed wherever the device node lies.
 * Invariant: a page-table entry of a window is made under region->lock, after the look at the
 * page's state; hence who has changed the state under that lock and then zapped leaves none behind.
 */
#include <linux/maple_tree.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "internal.h"

#define FM_FILESYSTEM_MAGIC 0x666d6772
/* Pages that one fault maps at most, in an aligned range: fewer faults for one more page table. */
#define FM_FAULT_PAGES 512UL

static struct vfsmount *fm_mount;
static struct inode *fm_inode;
struct address_space *fm_mapping;

/* fm_objects. Offsets are never used again: a stale one of a dead region meets nobody. */
static struct maple_tree fm_windows = MTREE_INIT(fm_windows, 0);
static unsigned long fm_window_next = 1;

static int fm_filesystem_context(struct fs_context *context)
{
	return init_pseudo(context, FM_FILESYSTEM_MAGIC) ? 0 : -ENOMEM;
}

/* Without an owner: it would hold the module, and it is mounted as long as that is loaded. */
static struct file_system_type fm_filesystem = {
	.name = "fabricmgr",
	.init_fs_context = fm_filesystem_context,
	.kill_sb = kill_anon_super,
};

int fm_map_init(void)
{
	fm_mount = kern_mount(&fm_filesystem);
	if (IS_ERR(fm_mount))
		return PTR_ERR(fm_mount);
	fm_inode = alloc_anon_inode(fm_mount->mnt_sb);
	if (IS_ERR(fm_inode)) {
		kern_unmount(fm_mount);
		return PTR_ERR(fm_inode);
	}
	fm_mapping = fm_inode->i_mapping;
	return 0;
}

void fm_map_exit(void)
{
	iput(fm_inode);
	kern_unmount(fm_mount);
	mtree_destroy(&fm_windows);
}

/* fm_objects. Between two windows stays an empty page, so that their mappings never merge. */
int fm_window_open(struct fm_window *window, enum fm_window_kind kind, void *object, u64 bytes)
{
	unsigned long pages = DIV_ROUND_UP_ULL(bytes, PAGE_SIZE);
	int error;

	if (pages > (LLONG_MAX >> PAGE_SHIFT) - fm_window_next)
		return -ENOSPC;
	window->kind = kind;
	window->object = object;
	error = mtree_store_range(&fm_windows, fm_window_next, fm_window_next + pages - 1, window,
				  GFP_KERNEL);
	if (error)
		return error;
	window->first = fm_window_next;
	window->last = fm_window_next + pages - 1;
	fm_window_next = window->last + 2;
	return 0;
}

void fm_window_close(struct fm_window *window)
{
	if (window->last)
		mtree_erase(&fm_windows, window->first);
	window->last = 0;
}

u64 fm_window_offset(const struct fm_window *window)
{
	return window->last ? (u64)window->first << PAGE_SHIFT : 0;
}

u64 fm_window_bytes(const struct fm_window *window)
{
	return window->last ? (u64)(window->last - window->first + 1) << PAGE_SHIFT : 0;
}

/* Takes pages @first to @first + @count of a region out of every page table of @window. */
void fm_map_zap(struct fm_region *region, const struct fm_window *window, u64 first, u64 count)
{
	unmap_mapping_range(fm_mapping, (loff_t)(window->first + first) << PAGE_SHIFT,
			    (loff_t)count << PAGE_SHIFT, 1);
}

static struct fm_attachment *fm_vma_attachment(const struct vm_area_struct *vma)
{
	return vma->vm_private_data;
}

static void fm_vma_open(struct vm_area_struct *vma)
{
	struct fm_attachment *attachment = fm_vma_attachment(vma);

	kref_get(&attachment->kref);
	atomic_inc(&attachment->mappings);
	atomic_inc(&attachment->region->mappings);
}

static void fm_vma_close(struct vm_area_struct *vma)
{
	struct fm_attachment *attachment = fm_vma_attachment(vma);

	atomic_dec(&attachment->region->mappings);
	atomic_dec(&attachment->mappings);
	fm_attachment_put(attachment);
}

/* region->lock. Whether the client of @attachment may write to page @index. */
static bool fm_page_is_writable(const struct fm_attachment *attachment, unsigned long index)
{
	const struct fm_region *region = attachment->region;
	const u32 *states = region->chunks[index >> region->order].states;
	u32 state = states ? states[index & ((1UL << region->order) - 1)] : FM_STATE_FREE;

	if (state == FM_STATE_SEALED)
		return false;
	return READ_ONCE(attachment->may_write) || state == attachment->client->id;
}

/* region->lock. Page @index, or NULL when it is gone or not for this window. */
static struct page *fm_page_reachable(const struct fm_attachment *attachment, unsigned long index,
				      bool is_write_window)
{
	const struct fm_region *region = attachment->region;
	struct page *page = region->chunks[index >> region->order].page;

	if (!page || (is_write_window && !fm_page_is_writable(attachment, index)))
		return NULL;
	return nth_page(page, index & ((1UL << region->order) - 1));
}

/* Maps the page of the fault and those around it that may be mapped, as far as memory allows. */
static vm_fault_t fm_fault(struct vm_fault *vmf, bool is_write_window)
{
	struct vm_area_struct *vma = vmf->vma;
	struct fm_attachment *attachment = fm_vma_attachment(vma);
	struct fm_region *region = attachment->region;
	const struct fm_window *window =
		is_write_window ? &region->write_window : &region->read_window;
	unsigned long index = vmf->pgoff - window->first;
	unsigned long first = max(vma->vm_pgoff, vmf->pgoff & ~(FM_FAULT_PAGES - 1));
	unsigned long end = min(vma->vm_pgoff + vma_pages(vma),
				(vmf->pgoff & ~(FM_FAULT_PAGES - 1)) + FM_FAULT_PAGES);
	vm_fault_t result = VM_FAULT_NOPAGE;
	struct page *page;
	unsigned long at;
	int error;

	down_read(&region->lock);
	page = region->is_dead ? NULL : fm_page_reachable(attachment, index, is_write_window);
	if (!page) {
		up_read(&region->lock);
		return VM_FAULT_SIGBUS;
	}
	error = vm_insert_page(vma, vmf->address & PAGE_MASK, page);
	if (error == -ENOMEM)
		result = VM_FAULT_OOM;
	else if (error && error != -EBUSY)
		result = VM_FAULT_SIGBUS;
	for (at = first; at < end && !error; at++) {
		page = fm_page_reachable(attachment, at - window->first, is_write_window);
		if (page && at != vmf->pgoff)
			error = vm_insert_page(
				vma, vma->vm_start + ((at - vma->vm_pgoff) << PAGE_SHIFT), page);
		if (error == -EBUSY)
			error = 0;
	}
	up_read(&region->lock);
	return result;
}

static vm_fault_t fm_read_fault(struct vm_fault *vmf)
{
	return fm_fault(vmf, false);
}

static vm_fault_t fm_write_fault(struct vm_fault *vmf)
{
	return fm_fault(vmf, true);
}

static const struct vm_operations_struct fm_read_operations = {
	.open = fm_vma_open,
	.close = fm_vma_close,
	.fault = fm_read_fault,
};

static const struct vm_operations_struct fm_write_operations = {
	.open = fm_vma_open,
	.close = fm_vma_close,
	.fault = fm_write_fault,
};

static const struct vm_operations_struct fm_table_operations = {
	.open = fm_vma_open,
	.close = fm_vma_close,
};

/* A table that is shared with user space: lease tables, chunk words. Freed with vfree(). */
void *fm_table_alloc(u64 bytes)
{
	return __vmalloc(PAGE_ALIGN(bytes), GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
}

/* All of the mapping at once; its pages hold themselves for as long as they are mapped. */
static int fm_map_table(struct vm_area_struct *vma, void *table, unsigned long first)
{
	char *from = (char *)table + ((vma->vm_pgoff - first) << PAGE_SHIFT);
	unsigned long i;
	int error = 0;

	for (i = 0; i < vma_pages(vma) && !error; i++)
		error = vm_insert_page(vma, vma->vm_start + (i << PAGE_SHIFT),
				       vmalloc_to_page(from + (i << PAGE_SHIFT)));
	return error;
}

static void fm_vma_forbid_writing(struct vm_area_struct *vma)
{
	vm_flags_clear(vma, VM_MAYWRITE);
}

static int fm_map_region(struct fm_client *client, struct fm_region *region,
			 enum fm_window_kind kind, struct vm_area_struct *vma)
{
	struct fm_attachment *attachment = xa_load(&client->attachments, region->id);
	int error = 0;

	if (!attachment)
		return -EACCES;
	if (kind == FM_WINDOW_READ && (vma->vm_flags & VM_WRITE))
		return -EACCES;
	if (kind == FM_WINDOW_WORDS && (vma->vm_flags & VM_WRITE) && !attachment->may_write)
		return -EACCES;
	if (kind == FM_WINDOW_READ || (kind == FM_WINDOW_WORDS && !attachment->may_write))
		fm_vma_forbid_writing(vma);
	vma->vm_private_data = attachment;
	if (kind == FM_WINDOW_WORDS) {
		vma->vm_ops = &fm_table_operations;
		error = fm_map_table(vma, region->words, region->words_window.first);
	} else {
		vma->vm_ops = kind == FM_WINDOW_READ ? &fm_read_operations : &fm_write_operations;
	}
	if (!error)
		fm_vma_open(vma);
	return error;
}

/* The pages of a lease table outlive its client while a manager maps them; they read as zero. */
static int fm_map_leases(struct fm_client *client, struct fm_client *owner,
			 struct vm_area_struct *vma)
{
	if (client != owner) {
		if (!fm_client_is_visible(client, owner) || (vma->vm_flags & VM_WRITE))
			return -EACCES;
		fm_vma_forbid_writing(vma);
	}
	return fm_map_table(vma, owner->leases, owner->leases_window.first);
}

int fm_map(struct file *file, struct vm_area_struct *vma)
{
	struct fm_client *client = file->private_data;
	const struct fm_window *window;
	int error;

	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	vm_flags_clear(vma, VM_MAYEXEC);
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY | VM_MIXEDMAP);
	mutex_lock(&fm_objects);
	window = mtree_load(&fm_windows, vma->vm_pgoff);
	if (!window)
		error = -ENXIO;
	else if (vma_pages(vma) > window->last - vma->vm_pgoff + 1)
		error = -EINVAL;
	else if (window->kind == FM_WINDOW_LEASES)
		error = fm_map_leases(client, window->object, vma);
	else
		error = fm_map_region(client, window->object, window->kind, vma);
	mutex_unlock(&fm_objects);
	return error;
}
