/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where kernels differ: every file sees one spelling. What this kernel has is found by compiling
 * (conftest.sh writes fm_config.h at build), never by its version: distributions carry backports.
 * Invariant: no other file of the module mentions an FM_HAVE_ macro to choose a spelling.
 */
#ifndef FM_COMPAT_H
#define FM_COMPAT_H

#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/file.h>

#include <fm_config.h>

#ifdef FM_HAVE_URING_CMD_H
#include <linux/io_uring/cmd.h>
#else
#include <linux/io_uring.h>
#endif

#ifndef FM_HAVE_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/*
 * Where O_DIRECT takes plain page references and no pins, a transfer in flight shows only as a
 * reference too many.
 */
#ifdef FM_HAVE_IOV_EXTRACT_PAGES
#define FM_DIRECT_IO_PINS 1
#else
#define FM_DIRECT_IO_PINS 0
#endif

static inline int fm_receive_fd(struct file *file, unsigned int flags)
{
#ifdef FM_HAVE_RECEIVE_FD_USER
	return receive_fd(file, NULL, flags);
#else
	return receive_fd(file, flags);
#endif
}

/* ---- the shrinker ---- */

typedef unsigned long (*fm_shrinker_call)(struct shrinker *, struct shrink_control *);

static inline struct shrinker *fm_shrinker_create(fm_shrinker_call count, fm_shrinker_call scan)
{
	struct shrinker *shrinker;
#ifdef FM_HAVE_SHRINKER_ALLOC
	shrinker = shrinker_alloc(0, "fabricmgr");
#else
	int error;

	shrinker = kzalloc(sizeof(*shrinker), GFP_KERNEL);
#endif
	if (!shrinker)
		return ERR_PTR(-ENOMEM);
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker->seeks = DEFAULT_SEEKS;
#ifdef FM_HAVE_SHRINKER_ALLOC
	shrinker_register(shrinker);
#else
	error = register_shrinker(shrinker, "fabricmgr");
	if (error) {
		kfree(shrinker);
		return ERR_PTR(error);
	}
#endif
	return shrinker;
}

static inline void fm_shrinker_destroy(struct shrinker *shrinker)
{
#ifdef FM_HAVE_SHRINKER_ALLOC
	shrinker_free(shrinker);
#else
	unregister_shrinker(shrinker);
	kfree(shrinker);
#endif
}

/* ---- io_uring commands ---- */

static inline const void *fm_uring_payload(const struct io_uring_cmd *command)
{
#ifdef FM_HAVE_URING_SQE_CMD
	return io_uring_sqe_cmd(command->sqe);
#else
	return command->cmd;
#endif
}

static inline void fm_uring_done(struct io_uring_cmd *command, long result, unsigned int flags)
{
#ifdef FM_HAVE_URING_DONE_RES2
	io_uring_cmd_done(command, result, 0, flags);
#else
	io_uring_cmd_done(command, result, flags);
#endif
}

#ifdef FM_HAVE_URING_CANCEL
#define FM_RING_CANCEL 1

static inline void fm_uring_mark_cancelable(struct io_uring_cmd *command, unsigned int flags)
{
	io_uring_cmd_mark_cancelable(command, flags);
}

static inline bool fm_uring_is_cancel(unsigned int flags)
{
	return flags & IO_URING_F_CANCEL;
}
#else
#define FM_RING_CANCEL 0

static inline void fm_uring_mark_cancelable(struct io_uring_cmd *command, unsigned int flags)
{
}

static inline bool fm_uring_is_cancel(unsigned int flags)
{
	return false;
}
#endif

/* Defines @name, the form in which this kernel wants the callback @function(command, flags). */
#define FM_URING_TASK(name, function)                                                              \
	static void name(struct io_uring_cmd *command, unsigned int flags)                         \
	{                                                                                          \
		function(command, flags);                                                          \
	}

#endif
