# SPDX-License-Identifier: Apache-2.0
"""A client of the pool through libfabricmgr.so, for process tests; run as a script it churns.

`pool_client.py SOCKET SEED [devices]` stages, seals, acquires and releases at random, blocks and groups of
them, until it is killed; it prints "churning" once it has begun. A block's bytes follow from its key, so that
whoever acquires it can tell a wrong one; and whoever has one of a group can have all.
"""
import array
import ctypes as c
import fcntl
import hashlib
import os
import random
import socket
import struct
import sys
import time

# FABRICMGR_LIB: this process is not built with the sanitizer that the programs may be built with.
LIB = os.environ.get("FABRICMGR_LIB") or os.path.join(
    os.path.dirname(os.environ["FABRICMGR_BIN"]) if "FABRICMGR_BIN" in os.environ else os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "../../build/release"), "libfabricmgr.so")
READ_ONLY, DEVICES = 1, 2
EXISTS, DISCONNECTED, BUSY = -3, -8, -16
MEMBERS, FIRST_GROUP, GROUPS = 3, 100000, 40


class Key(c.Structure):
    _fields_ = [("bytes", c.c_uint8 * 16)]


class Options(c.Structure):
    _fields_ = [("size", c.c_uint32), ("flags", c.c_uint32), ("socket", c.c_char_p),
                ("fd", c.c_int), ("leases", c.c_uint32), ("name", c.c_char_p),
                ("deadline_ns", c.c_uint64), ("tenant", c.c_char_p)]


class Block(c.Structure):
    _fields_ = [("data", c.c_void_p), ("length", c.c_uint64), ("entry", c.c_uint32),
                ("generation", c.c_uint32), ("lease", c.c_uint32), ("origin", c.c_uint32)]


class Seal(c.Structure):
    _fields_ = [("block", c.POINTER(Block)), ("key", Key), ("parent", c.POINTER(Key)),
                ("result", c.c_int), ("flags", c.c_uint32)]


class StageAt(c.Structure):
    _fields_ = [("offset", c.c_uint64), ("length", c.c_uint64), ("block", Block), ("result", c.c_int)]


def key_of(n):
    return Key((c.c_uint8 * 16)(*hashlib.sha256(b"%d" % n).digest()[:16]))


def bytes_of(n, length):
    return (hashlib.sha256(b"data %d" % n).digest() * (length // 32 + 1))[:length]


def hello(path, tenant=b""):
    """The descriptors that a hello brings, by the protocol itself: (result, descriptors, connection, answer)."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(path)
    size = 24 + 16 + 48 + 32 + 64
    link.send(struct.pack("=IIIIiI IIII 48s 32s 64x", 0x31504d46, 1, 1, size, 0, 0, 0, 16, 0, 0, b"test",
                          tenant))
    answer, control, _, _ = link.recvmsg(65536, socket.CMSG_SPACE(64))
    fds = array.array("i")
    for _, kind, data in control:
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
    return struct.unpack_from("=i", answer, 16)[0], fds, link, answer


class Pool:
    def __init__(self, socket, flags=0, tenant=None):
        self.lib = c.CDLL(LIB)
        self.lib.fm_error_detail.restype = c.c_char_p
        self.lib.fm_pool_acquire.restype = c.c_int64
        self.lib.fm_pool_match.restype = c.c_int64
        self.handle = c.c_void_p()
        self.lib.fm_pool_tenant.restype = self.lib.fm_pool_salt.restype = c.c_char_p
        self.lib.fm_pool_remove.restype = self.lib.fm_pool_invalidate.restype = c.c_int64
        # Without a tenant as a program that was built before there were any.
        size = c.sizeof(Options) if tenant else Options.tenant.offset
        options = Options(size, flags, socket.encode(), -1, 0, None, 0, tenant and tenant.encode())
        self.check(self.lib.fm_pool_attach(c.byref(options), c.byref(self.handle)))

    def check(self, result):
        if result < 0:
            raise OSError(-result, self.lib.fm_error_detail().decode())
        return result

    def tenant(self):
        return (self.lib.fm_pool_tenant(self.handle).decode(), self.lib.fm_pool_salt(self.handle).decode())

    def stage(self, length, n=1):
        blocks = (Block * n)()
        self.check(self.lib.fm_block_stage(self.handle, c.c_uint64(length), c.c_size_t(n), blocks,
                                           c.c_uint64(0)))
        return blocks

    def seal(self, block, n):
        seal = Seal(c.pointer(block), key_of(n), None, 0, 0)
        return self.lib.fm_block_seal(self.handle, bytes(32), c.byref(seal), c.c_size_t(1))

    def put(self, n, length):
        block = self.stage(length)[0]
        c.memmove(block.data, bytes_of(n, length), length)
        if self.seal(block, n):
            self.lib.fm_block_discard(self.handle, c.byref(block), c.c_size_t(1))
            return None
        return block

    def put_group(self, first, length):
        """Members first, first + 1, ... as one; False: they are there, as one or as another's."""
        blocks, seals = self.stage(length, MEMBERS), (Seal * MEMBERS)()
        for i, (block, seal) in enumerate(zip(blocks, seals)):
            c.memmove(block.data, bytes_of(first + i, length), length)
            seal.block, seal.key = c.pointer(block), key_of(first + i)
        result = self.lib.fm_group_seal(self.handle, bytes(32), seals, c.c_size_t(MEMBERS))
        self.lib.fm_block_release(self.handle, blocks, c.c_size_t(MEMBERS))
        self.lib.fm_block_discard(self.handle, blocks, c.c_size_t(MEMBERS))
        return result == 0 or self.check(0 if result == EXISTS else result) != 0

    def acquire(self, n):
        block = Block()
        got = self.lib.fm_pool_acquire(self.handle, c.byref(key_of(n)), c.c_size_t(1),
                                       c.byref(block))
        return block if self.check(got) else None

    def release(self, block):
        self.lib.fm_block_release(self.handle, c.byref(block), c.c_size_t(1))

    def verify(self, block):
        return self.lib.fm_block_verify(self.handle, c.byref(block))

    def match(self, n):
        return self.lib.fm_pool_match(self.handle, c.byref(key_of(n)), c.c_size_t(1))

    def is_connected(self):
        self.lib.fm_pool_is_connected.restype = c.c_bool
        return self.lib.fm_pool_is_connected(self.handle)

    def detach(self):
        self.lib.fm_pool_detach(self.handle)


class Adopter(Pool):
    """A client with memory of its own (@chunks of 4 MiB, or @fd) that the pool has adopted."""

    def __init__(self, path, chunks, fd=None, **more):
        super().__init__(path, **more)
        self.fd = memory(chunks) if fd is None else fd
        self.region, self.staged = c.c_void_p(), None
        self.check(self.lib.fm_region_adopt(self.handle, self.fd, 0, c.byref(self.region)))

    def stage_at(self, offset, length):
        stage = StageAt(offset, length)
        self.check(self.lib.fm_block_stage_at(self.handle, self.region, c.byref(stage), c.c_size_t(1),
                                              c.c_uint64(0)))
        return stage.block

    def seal_at(self, offset, n, length):
        block = self.stage_at(offset, length)
        self.check(self.seal(block, n))
        self.release(block)

    def put_at(self, offset, n, length):
        self.staged = block = self.stage_at(offset, length)
        c.memmove(block.data, bytes_of(n, length), length)
        self.check(self.seal(block, n))
        self.release(block)

    def discard(self):
        """What put_at() could not seal."""
        self.lib.fm_block_discard(self.handle, c.byref(self.staged), c.c_size_t(1))


def memory(chunks, seals=7):
    fd = os.memfd_create("engine-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, chunks << 22)
    os.fchmod(fd, 0o600)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def look_at_group(pool, first, length):
    """Whoever has leased one member leases the others, as long as that one is found."""
    last = first + MEMBERS - 1
    one = pool.acquire(last)
    if not one:
        return False
    for i in range(MEMBERS - 1):
        deadline = time.monotonic() + 30
        # It looks again while an eviction is being thought about, but not for ever.
        while not (other := pool.acquire(first + i)):
            if not pool.is_connected():
                raise OSError(-DISCONNECTED, "the daemon is gone, perhaps in the middle of an eviction")
            if not (again := pool.acquire(last)):
                break
            pool.release(again)
            assert time.monotonic() < deadline, f"half a group: {first + i} is not there"
        if other:
            assert c.string_at(other.data, other.length) == bytes_of(first + i, length), "a wrong byte"
            pool.release(other)
    pool.release(one)
    return True


def churn(socket, seed, flags):
    pool, chance, held = Pool(socket, flags), random.Random(seed), []
    print("churning", flush=True)
    while True:
        n = chance.randrange(300)
        length = (5000, 70000, 400000)[n % 3]
        if chance.random() < 0.2:
            first = FIRST_GROUP + chance.randrange(GROUPS) * MEMBERS
            if not look_at_group(pool, first, (3000, 50000)[first % 2]):
                pool.put_group(first, (3000, 50000)[first % 2])
        if chance.random() < 0.3:
            pool.stage(length, chance.randrange(1, 5))[0]  # left staged, until the end of us
        block = pool.acquire(n) or pool.put(n, length)
        if block:
            assert c.string_at(block.data, block.length) == bytes_of(n, length), "a wrong byte"
            held.append(block)
        while len(held) > 8:
            pool.release(held.pop(chance.randrange(len(held))))


if __name__ == "__main__":
    churn(sys.argv[1], int(sys.argv[2]), DEVICES if "devices" in sys.argv[3:] else 0)
