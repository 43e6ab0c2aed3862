# SPDX-License-Identifier: Apache-2.0
"""A block device whose reads and writes wait until the test lets them go: slow, or stuck.

HeldDevice is a loop device on a file that it serves itself by FUSE, from nothing but /dev/fuse, with a
thread that answers the kernel; the bytes stand in a file beside. (Not the file itself: the kernel waits for
FUSE where it would not wait for a disk.) can_hold() says whether this machine can. Invariant: what is held
is answered by let_go() or by end(), in order.
"""
import ctypes
import errno
import fcntl
import os
import struct
import threading

HEADER = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, GETXATTR, FLUSH, INIT, INTERRUPT, DESTROY, FALLOCATE = 18, 20, 22, 25, 26, 36, 38, 43
ASYNC_READ, BIG_WRITES, MAX_PAGES = 1 << 0, 1 << 5, 1 << 22
LONGEST = 1 << 20
DETACH = 2
LOOP_SET_FD, LOOP_CLR_FD, LOOP_CTL_GET_FREE = 0x4c00, 0x4c01, 0x4c82

libc = ctypes.CDLL(None, use_errno=True)


def can_hold():
    return os.geteuid() == 0 and all(os.access(path, os.R_OK | os.W_OK)
                                     for path in ("/dev/fuse", "/dev/loop-control"))


class HeldDevice:
    def __init__(self, path, size):
        """@path: a new file in a folder of the test; self.device is the block device."""
        self.path, self.size = path, size
        self.data = os.open(f"{path}.bytes", os.O_RDWR | os.O_CREAT)
        os.truncate(self.data, size)
        with open(path, "wb"):
            pass
        self.fuse = os.open("/dev/fuse", os.O_RDWR)
        self.news = threading.Condition()
        self.holds, self.held = set(), []
        options = f"fd={self.fuse},rootmode=100000,user_id=0,group_id=0".encode()
        if libc.mount(b"fabricmgr-held", path.encode(), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount of a FUSE file")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        try:
            self.device = self.attach()
        except BaseException:
            self.loop = None
            self.end()
            raise

    def attach(self):
        control, file = os.open("/dev/loop-control", os.O_RDWR), os.open(self.path, os.O_RDWR)
        try:
            while True:  # somebody else may take the free one first
                device = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
                self.loop = os.open(device, os.O_RDWR)
                try:
                    fcntl.ioctl(self.loop, LOOP_SET_FD, file)
                    return device
                except OSError as error:
                    os.close(self.loop)
                    if error.errno != errno.EBUSY:
                        raise
        finally:
            os.close(control)
            os.close(file)

    # ---- what a test does ----

    def hold(self, *kinds):
        """From now on these (READ, WRITE, FSYNC) wait."""
        if READ in kinds:  # what was written stands in the page cache of the file
            file = os.open(self.path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
        with self.news:
            self.holds = set(kinds)

    def wait_held(self, n=1, timeout=30):
        """Returns when @n requests wait."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.held) >= n, timeout), "nothing waits"

    def let_go(self):
        with self.news:
            self.holds, held, self.held = set(), self.held, []
            for request in held:
                self.answer(*request)

    def end(self):
        self.let_go()
        if self.loop is not None:
            fcntl.ioctl(self.loop, LOOP_CLR_FD)
            os.close(self.loop)
        libc.umount2(self.path.encode(), DETACH)
        self.thread.join(20)
        os.close(self.fuse)
        os.close(self.data)

    # ---- the kernel's side ----

    def serve(self):
        while True:
            try:
                packet = os.read(self.fuse, LONGEST + 65536)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            _, kind, unique = HEADER.unpack_from(packet)[:3]
            if kind in (FORGET, INTERRUPT):
                continue
            with self.news:
                if kind in self.holds:
                    self.held.append((kind, unique, packet[HEADER.size:]))
                    self.news.notify_all()
                else:
                    self.answer(kind, unique, packet[HEADER.size:])
            if kind == DESTROY:
                return

    def answer(self, kind, unique, body):
        try:
            out, code = self.result(kind, body), 0
        except OSError as error:
            out, code = b"", -error.errno
        try:
            os.write(self.fuse, struct.pack("<IiQ", 16 + len(out), code, unique) + out)
        except OSError:
            pass  # who asked is gone

    def attributes(self):
        return struct.pack("<QII", 1, 0, 0) + struct.pack(
            "<QQQQQQIIIIIIIIII", 1, self.size, self.size // 512, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0,
            4096, 0)

    def result(self, kind, body):
        if kind == INIT:
            return struct.pack("<IIIIHHIIHHI", 7, 31, 1 << 17, ASYNC_READ | BIG_WRITES | MAX_PAGES, 64, 48,
                               LONGEST, 1, LONGEST // 4096, 0, 0) + bytes(28)
        if kind in (GETATTR, SETATTR):
            return self.attributes()
        if kind == OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if kind == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(self.data, min(size, max(0, self.size - offset)), offset)
        if kind == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            return struct.pack("<II", os.pwrite(self.data, body[40:40 + size], offset), 0)
        if kind == STATFS:
            return struct.pack("<QQQQQIII", 1 << 20, 1 << 20, 1 << 20, 1, 1, 4096, 255, 4096) + bytes(28)
        if kind in (RELEASE, FLUSH, FSYNC, FALLOCATE, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not served")
