// SPDX-License-Identifier: Apache-2.0
/*
 * Files and block devices on io_uring: exclusive, with O_DIRECT where the file system takes it, the
 * descriptor and the pool's memory registered. nvme.c calls it, on one thread. Invariant: at most
 * depth operations are the kernel's; the others wait here in their order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <linux/fs.h>
#include <liburing.h>

#include <fabricmgr.h>
#include <fabricmgr_messages.h>

#include "tier/uring.h"

#define ZERO_BYTES (4u << 20)
#define ALIGNMENT  4096u
/* Two seconds in all. */
#define LOCK_TRIES   200u
#define LOCK_WAIT_US 10000u

struct uring {
	struct fm_device device;
	struct io_uring ring;
	bool has_ring, has_file, is_direct;
	int fd, event;
	uint32_t depth, in_flight, buffers;
	bool *is_registered; /* of each buffer: the memory of the others is named by address */
	struct fm_device_op *waiting, **waiting_end;
	char *path;
	char rung[64], reason[200];
};

static double mebibytes(uint64_t bytes)
{
	return (double)bytes / 1048576.0;
}

/* ---- the file ---- */

/* @folder: of the same file system. */
static int refuse_space(const char *path, const char *folder, uint64_t have, uint64_t bytes,
			int error)
{
	struct statvfs space;
	double free_space =
		statvfs(folder, &space) ? 0 : mebibytes((uint64_t)space.f_bavail * space.f_frsize);

	return fm_fail(FM_ERR_IO,
		       "%s: %.1f MiB are asked for, it has %.1f MiB, and its file system has "
		       "%.1f MiB left (%s); make room or choose a smaller --nvme-size",
		       path, mebibytes(bytes), mebibytes(have), free_space, strerror(error));
}

/* Makes the file longer, with zeros that were written: later writes change no metadata. Its length
 * grows behind the zeros, so what a kill interrupts goes on from there. */
static int grow(struct uring *u, uint64_t have, uint64_t bytes)
{
	struct statvfs space;
	void *zeros;
	int err = 0;

	if (!fstatvfs(u->fd, &space) && (uint64_t)space.f_bavail * space.f_frsize < bytes - have)
		return refuse_space(u->path, u->path, have, bytes, ENOSPC);
	if (fallocate(u->fd, FALLOC_FL_KEEP_SIZE, (off_t)have, (off_t)(bytes - have)) &&
	    errno != EOPNOTSUPP)
		return refuse_space(u->path, u->path, have, bytes, errno);
	zeros = aligned_alloc(ALIGNMENT, ZERO_BYTES);
	if (!zeros)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to write zeros to %s", u->path);
	memset(zeros, 0, ZERO_BYTES);
	if (bytes - have > 1ull << 30)
		fm_log(FM_LOG_INFO, FM1408 "%s: writing %.1f MiB of zeros, once", u->path,
		       mebibytes(bytes - have));
	for (uint64_t at = have / ALIGNMENT * ALIGNMENT; at < bytes && !err;) {
		size_t length = bytes - at < ZERO_BYTES ? bytes - at : ZERO_BYTES;
		ssize_t put = pwrite(u->fd, zeros, length, (off_t)at);

		if (put <= 0 && errno != EINTR)
			err = refuse_space(u->path, u->path, have, bytes, put ? errno : ENOSPC);
		else if (put > 0)
			at += (uint64_t)put / ALIGNMENT * ALIGNMENT;
	}
	free(zeros);
	if (!err && fsync(u->fd))
		err = fm_fail(FM_ERR_IO, "%s: fsync: %s", u->path, strerror(errno));
	if (err && ftruncate(u->fd, (off_t)have))
		fm_log(FM_LOG_WARNING, FM1409 "%s: giving the space back: %s", u->path,
		       strerror(errno));
	return err;
}

static int size_block_device(const char *path, int fd, uint64_t bytes, uint64_t *out)
{
	uint64_t have = 0;
	int sector = 0;

	if (ioctl(fd, BLKGETSIZE64, &have) || ioctl(fd, BLKSSZGET, &sector))
		return fm_fail(FM_ERR_IO, "%s: asking for its size: %s", path, strerror(errno));
	if (sector > (int)ALIGNMENT)
		return fm_fail(FM_ERR_UNSUPPORTED, "%s has sectors of %d bytes, more than %u", path,
			       sector, ALIGNMENT);
	if (bytes > have)
		return fm_fail(FM_ERR_LIMIT,
			       "%s: %.1f MiB are asked for, the device has %.1f MiB; choose a "
			       "smaller --nvme-size, or none for all of it",
			       path, mebibytes(bytes), mebibytes(have));
	*out = (bytes ? bytes : have) / ALIGNMENT * ALIGNMENT;
	return 0;
}

static int refuse_open(const char *path)
{
	return fm_fail(errno == EBUSY ? FM_ERR_BUSY : FM_ERR_IO, "opening %s: %s%s", path,
		       strerror(errno),
		       errno == EBUSY ? " (mounted, or in use by another program)" : "");
}

/*
 * The ring of a daemon that was killed keeps the file, and so the lock, until the last of its
 * writes is over. That is waited for: no write of the dead one may meet one of ours.
 */
static int take_lock(struct uring *u)
{
	for (uint32_t waited = 0; flock(u->fd, LOCK_EX | LOCK_NB); waited++) {
		if (errno != EWOULDBLOCK)
			return fm_fail(FM_ERR_IO, "%s: flock: %s", u->path, strerror(errno));
		if (waited == LOCK_TRIES)
			return fm_fail(FM_ERR_BUSY,
				       "%s: another process uses it; each daemon needs a file or "
				       "a device of its own",
				       u->path);
		usleep(LOCK_WAIT_US);
	}
	return 0;
}

/* Whether a file can be made, or be made longer, to have @bytes. @folder: one that is there. */
static int check_room(const char *path, const char *folder, uint64_t have, uint64_t bytes)
{
	struct statvfs space;

	if (!bytes && !have)
		return fm_fail(FM_ERR_INVALID,
			       "%s: there is no such file, or it is empty: give --nvme-size, how "
			       "long it shall be",
			       path);
	if (bytes > have && !statvfs(folder, &space) &&
	    (uint64_t)space.f_bavail * space.f_frsize < bytes - have)
		return refuse_space(path, folder, have, bytes, ENOSPC);
	return 0;
}

static int check_new(const char *path, uint64_t bytes)
{
	const char *slash = strrchr(path, '/');
	char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int err;

	if (!folder)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for a path");
	err = access(folder, W_OK | X_OK) ? refuse_open(path) : check_room(path, folder, 0, bytes);
	free(folder);
	return err;
}

/* The device's bytes, of what is there. */
static int check_there(const char *path, const struct stat *status, uint64_t bytes, uint64_t *have)
{
	int fd, err;

	if (!S_ISBLK(status->st_mode) && !S_ISREG(status->st_mode))
		return fm_fail(FM_ERR_INVALID, "%s is neither a file nor a block device", path);
	if (access(path, R_OK | W_OK))
		return refuse_open(path);
	if (S_ISREG(status->st_mode)) {
		*have = (uint64_t)status->st_size / ALIGNMENT * ALIGNMENT;
		err = check_room(path, path, *have, bytes);
		*have = bytes ? bytes : *have;
		return err;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return refuse_open(path);
	err = size_block_device(path, fd, bytes, have);
	close(fd);
	return err;
}

static int open_file(struct uring *u, uint64_t bytes)
{
	int flags = O_RDWR | O_CLOEXEC;
	struct stat status;
	bool is_there = !stat(u->path, &status), is_new = !is_there && errno == ENOENT;
	int err;

	if (!is_there && !is_new)
		return fm_fail(FM_ERR_IO, "opening %s: %s", u->path, strerror(errno));
	if (is_new)
		flags |= O_CREAT;
	else if (S_ISBLK(status.st_mode))
		flags |= O_EXCL; /* refused while it is mounted */
	u->fd = open(u->path, flags | O_DIRECT, 0600);
	u->is_direct = u->fd >= 0;
	if (u->fd < 0 && errno == EINVAL)
		u->fd = open(u->path, flags, 0600);
	if (u->fd < 0)
		return refuse_open(u->path);
	err = take_lock(u);
	if (err)
		return err;
	if (fstat(u->fd, &status))
		return fm_fail(FM_ERR_IO, "%s: %s", u->path, strerror(errno));
	if (S_ISBLK(status.st_mode))
		return size_block_device(u->path, u->fd, bytes, &u->device.bytes);
	if (!S_ISREG(status.st_mode))
		return fm_fail(FM_ERR_INVALID, "%s is neither a file nor a block device", u->path);
	bytes = bytes / ALIGNMENT * ALIGNMENT;
	u->device.bytes = (uint64_t)status.st_size / ALIGNMENT * ALIGNMENT;
	if (bytes <= u->device.bytes) {
		u->device.bytes = bytes ? bytes : u->device.bytes;
		return 0;
	}
	err = grow(u, u->device.bytes, bytes);
	if (err) {
		if (is_new)
			unlink(u->path);
		return err;
	}
	u->device.bytes = bytes;
	return 0;
}

/* ---- the ring ---- */

static int create_ring(const char *path, uint32_t depth, struct io_uring *ring)
{
	int err = io_uring_queue_init(depth, ring, IORING_SETUP_CLAMP);

	return err ? fm_fail(FM_ERR_UNSUPPORTED,
			     "%s: io_uring_setup: %s; the NVMe tier needs io_uring: allow it "
			     "(kernel.io_uring_disabled, seccomp profile of the container) or "
			     "leave --nvme out",
			     path, strerror(-err))
		   : 0;
}

static int open_ring(struct uring *u)
{
	const char *buffers = "", *direct = "";
	int err = create_ring(u->path, u->depth, &u->ring);

	if (err)
		return err;
	u->has_ring = true;
	u->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->event < 0)
		return fm_fail(FM_ERR_IO, "eventfd: %s", strerror(errno));
	err = io_uring_register_eventfd(&u->ring, u->event);
	if (err)
		return fm_fail(FM_ERR_IO, "io_uring_register_eventfd: %s", strerror(-err));
	u->has_file = !io_uring_register_files(&u->ring, &u->fd, 1);
	if (u->buffers && io_uring_register_buffers_sparse(&u->ring, u->buffers)) {
		u->buffers = 0;
		buffers = "memory cannot be registered (Linux before 5.19?)";
	}
	if (!u->is_direct)
		direct = "its file system refuses O_DIRECT: every byte is copied through the page "
			 "cache";
	snprintf(u->rung, sizeof(u->rung), "io_uring%s%s", u->is_direct ? ", O_DIRECT" : "",
		 u->buffers ? ", registered memory" : "");
	snprintf(u->reason, sizeof(u->reason), "%s%s%s", direct, *direct && *buffers ? "; " : "",
		 buffers);
	return 0;
}

static void start(struct uring *u, struct fm_device_op *op)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	char *memory = (char *)op->memory + op->moved;
	bool is_fixed = op->buffer < u->buffers && u->is_registered[op->buffer];
	int fd = u->has_file ? 0 : u->fd;

	if (!sqe) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring); /* depth entries are never all in use */
	}
	if (op->kind == FM_DEVICE_FLUSH)
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	else if (!is_fixed && op->kind == FM_DEVICE_READ)
		io_uring_prep_read(sqe, fd, memory, (unsigned)(op->length - op->moved),
				   op->offset + op->moved);
	else if (!is_fixed)
		io_uring_prep_write(sqe, fd, memory, (unsigned)(op->length - op->moved),
				    op->offset + op->moved);
	else if (op->kind == FM_DEVICE_READ)
		io_uring_prep_read_fixed(sqe, fd, memory, (unsigned)(op->length - op->moved),
					 op->offset + op->moved, (int)op->buffer);
	else
		io_uring_prep_write_fixed(sqe, fd, memory, (unsigned)(op->length - op->moved),
					  op->offset + op->moved, (int)op->buffer);
	if (u->has_file)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, op);
	u->in_flight++;
}

static void start_waiting(struct uring *u)
{
	while (u->waiting && u->in_flight < u->depth) {
		struct fm_device_op *op = u->waiting;

		u->waiting = op->next;
		if (!u->waiting)
			u->waiting_end = &u->waiting;
		start(u, op);
	}
}

static void uring_submit(struct fm_device *device, struct fm_device_op *op)
{
	struct uring *u = (struct uring *)device;

	op->moved = 0;
	op->next = NULL;
	*u->waiting_end = op;
	u->waiting_end = &op->next;
}

/* True: it is over. Else it goes on where a short transfer ended, or once more. */
static bool finish(struct uring *u, struct fm_device_op *op, int result)
{
	if (result == -EINTR || result == -EAGAIN)
		result = 0;
	else if (result <= 0 || op->kind == FM_DEVICE_FLUSH)
		return true; /* none moved: the end of the file */
	op->moved += (uint64_t)result;
	if (op->moved == op->length && op->length)
		return true;
	start(u, op);
	return false;
}

static bool uring_reap(struct fm_device *device, bool waits)
{
	struct uring *u = (struct uring *)device;
	struct io_uring_cqe *cqe;
	bool has_come = false;
	uint64_t count;

	if (read(u->event, &count, sizeof(count)) < 0 && errno != EAGAIN)
		fm_log(FM_LOG_WARNING, FM1410 "%s: eventfd: %s", u->path, strerror(errno));
	start_waiting(u);
	if (waits && u->in_flight)
		io_uring_submit_and_wait(&u->ring, 1);
	else
		io_uring_submit(&u->ring);
	while (!io_uring_peek_cqe(&u->ring, &cqe)) {
		struct fm_device_op *op = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&u->ring, cqe);
		u->in_flight--;
		has_come = true;
		if (finish(u, op, result))
			op->done(op, result < 0 ? result : (int64_t)op->moved);
	}
	start_waiting(u);
	io_uring_submit(&u->ring);
	return has_come;
}

static int uring_set_buffer(struct fm_device *device, uint32_t buffer, void *memory, size_t length)
{
	struct uring *u = (struct uring *)device;
	struct iovec vector = {.iov_base = memory, .iov_len = memory ? length : 0};
	__u64 tag = 0;
	int done;

	if (buffer >= u->buffers)
		return FM_ERR_LIMIT;
	u->is_registered[buffer] = false;
	done = io_uring_register_buffers_update_tag(&u->ring, buffer, &vector, &tag, 1);
	u->is_registered[buffer] = done == 1 && memory;
	return done == 1
		       ? 0
		       : fm_fail(FM_ERR_NO_MEMORY, "registering memory with io_uring: %s%s",
				 strerror(-done), done == -ENOMEM ? " (raise RLIMIT_MEMLOCK)" : "");
}

static void uring_close(struct fm_device *device)
{
	struct uring *u = (struct uring *)device;

	while (u->in_flight || u->waiting)
		uring_reap(device, true);
	if (u->has_ring)
		io_uring_queue_exit(&u->ring);
	if (u->event >= 0)
		close(u->event);
	if (u->fd >= 0)
		close(u->fd);
	free(u->is_registered);
	free(u->path);
	free(u);
}

int fm_uring_event(const struct fm_device *device)
{
	return ((const struct uring *)device)->event;
}

int fm_uring_check(const char *path, uint64_t bytes, uint64_t *have, bool *is_new)
{
	struct io_uring ring;
	struct stat status;
	int err;

	*have = bytes = bytes / ALIGNMENT * ALIGNMENT;
	*is_new = stat(path, &status);
	if (*is_new)
		err = errno == ENOENT ? check_new(path, bytes) : refuse_open(path);
	else
		err = check_there(path, &status, bytes, have);
	if (!err)
		err = create_ring(path, 1, &ring);
	if (!err)
		io_uring_queue_exit(&ring);
	return err;
}

int fm_uring_open(const char *path, uint64_t bytes, uint32_t depth, uint32_t buffers,
		  struct fm_device **out)
{
	struct uring *u = calloc(1, sizeof(*u));
	int err;

	if (!u)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to open %s", path);
	u->device = (struct fm_device){
		.rung = u->rung,
		.reason = u->reason,
		.submit = uring_submit,
		.reap = uring_reap,
		.set_buffer = uring_set_buffer,
		.close = uring_close,
	};
	u->fd = u->event = -1;
	u->waiting_end = &u->waiting;
	u->depth = depth;
	u->buffers = buffers;
	u->path = strdup(path);
	u->device.name = u->path;
	u->is_registered = calloc(buffers ? buffers : 1, sizeof(bool));
	err = u->path && u->is_registered ? open_file(u, bytes)
					  : fm_fail(FM_ERR_NO_MEMORY, "no memory to open %s", path);
	if (!err)
		err = open_ring(u);
	if (err) {
		uring_close(&u->device);
		return err;
	}
	*out = &u->device;
	return 0;
}
