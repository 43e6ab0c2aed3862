// SPDX-License-Identifier: GPL-2.0
/*
 * Vaults: somebody's hugetlb or shmem memfd, kept open under a region's name, and the way back to
 * a descriptor of it or of a peer's dma-buf. Called from the table in main.c.
 * Invariant: only files of hugetlbfs and shmem are kept: a socket, a ring or a file of our own
 * could hold itself open through us.
 */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/shmem_fs.h>

#include "internal.h"
#include "peer.h"
#include "region.h"

/* The seals of a memfd, or none for another file of the same file system. */
static unsigned int fm_vault_seals(struct file *file)
{
	if (file_inode(file)->i_sb->s_magic == TMPFS_MAGIC)
		return SHMEM_I(file_inode(file))->seals;
	return HUGETLBFS_I(file_inode(file))->seals;
}

static int fm_vault_check(struct file *file)
{
	const struct inode *inode = file_inode(file);

	if (!S_ISREG(inode->i_mode) || (inode->i_sb->s_magic != TMPFS_MAGIC &&
					inode->i_sb->s_magic != HUGETLBFS_MAGIC))
		return -EINVAL;
	/* Through /proc whoever may reach its mode reaches the file, whatever our mode says. */
	if (inode->i_mode & 0077 || (file->f_mode & (FMODE_READ | FMODE_WRITE)) !=
					    (FMODE_READ | FMODE_WRITE))
		return -EPERM;
	if (!(fm_vault_seals(file) & F_SEAL_SHRINK))
		return -EINVAL;
	return 0;
}

long fm_vault_create(struct fm_client *client, void *argument)
{
	struct fabricmgr_vault_create *arg = argument;
	struct fm_region_spec spec = {
		.kind = FABRICMGR_REGION_VAULT,
		.name = arg->name,
		.uid = arg->uid,
		.gid = arg->gid,
		.mode = arg->mode,
		.lease_region = arg->lease_region,
	};
	struct file *file = fget(arg->fd);
	struct fm_region *region;
	int error;

	if (!file)
		return -EBADF;
	error = fm_vault_check(file);
	if (error)
		goto fail;
	spec.bytes = i_size_read(file_inode(file));
	region = fm_region_reserve(&spec);
	error = PTR_ERR_OR_ZERO(region);
	if (error)
		goto fail;
	region->vault = file;
	atomic64_set(&region->resident_bytes, region->bytes);
	arg->id = region->id;
	arg->bytes = region->bytes;
	return fm_region_publish(client, region, arg->flags & FABRICMGR_CREATE_MANAGE);

fail:
	fput(file);
	return error;
}

/* What is behind @region for somebody who may write to it or not; a reference. */
static struct file *fm_region_file(struct fm_region *region, bool is_writer, u32 flags)
{
	if (region->kind == FABRICMGR_REGION_PEER && is_writer)
		return fm_peer_file(region);
	if (region->kind == FABRICMGR_REGION_PEER)
		return ERR_PTR(-EACCES);
	if (region->kind != FABRICMGR_REGION_VAULT)
		return ERR_PTR(-EOPNOTSUPP);
	if ((flags & O_ACCMODE) != O_RDONLY && !is_writer)
		return ERR_PTR(-EACCES);
	/* A file of its own: its access mode is the caller's, its position nobody else's. */
	return dentry_open(&region->vault->f_path, (flags & O_ACCMODE) | O_LARGEFILE,
			   current_cred());
}

long fm_region_fd(struct fm_client *client, void *argument)
{
	struct fabricmgr_region_fd *arg = argument;
	struct fm_attachment *attachment;
	struct fm_region *region;
	struct file *file;
	u32 mode = arg->fd_flags & O_ACCMODE;
	int fd;

	if (arg->reserved || arg->fd_flags & ~(O_CLOEXEC | O_ACCMODE) ||
	    (mode != O_RDONLY && mode != O_RDWR))
		return -EINVAL;
	attachment = fm_region_attachment(client, arg->id);
	if (!attachment)
		return -ENOENT;
	region = attachment->region;
	down_read(&region->lock);
	file = region->is_dead ? ERR_PTR(-ENODEV)
			       : fm_region_file(region, READ_ONCE(attachment->may_write), mode);
	up_read(&region->lock);
	fm_attachment_put(attachment);
	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = fm_receive_fd(file, arg->fd_flags & O_CLOEXEC);
	fput(file);
	if (fd < 0)
		return fd;
	arg->fd = fd;
	return 0;
}
