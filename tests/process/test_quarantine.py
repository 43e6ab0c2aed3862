# SPDX-License-Identifier: Apache-2.0
"""Memory that a device may still write into is nobody else's: a client that attached with devices is killed
while a disk reads into its staged block, and the disk goes on.
"""
import ctypes as c
import mmap
import os
import select
import signal
import struct
import time

import pytest

from conftest import until
from held_device import READ, HeldDevice, can_hold
from pool_client import DEVICES, Pool

MIB = 1 << 20
QUARANTINE_S = 1.0  # FM_QUARANTINE_NS
IO_URING_SETUP, IO_URING_ENTER = 425, 426
MARK = b"from the disk, late "

pytestmark = pytest.mark.skipif(not can_hold(), reason="needs root, /dev/fuse and loop devices")


def start_read(fd, offset, address, length):
    """Submits one read by io_uring, which goes on when the process is gone; returns the ring's descriptor.

    (A read(2) holds its process until it is over, and with it the daemon's idea of its death.)"""
    libc = c.CDLL(None, use_errno=True)
    parameters = c.create_string_buffer(120)
    ring = libc.syscall(IO_URING_SETUP, 4, parameters)
    assert ring >= 0, os.strerror(c.get_errno())
    tail, mask, array = (struct.unpack_from("<I", parameters, 40 + at)[0] for at in (4, 8, 24))
    queue = mmap.mmap(ring, array + 4 * 4, offset=0)
    entries = mmap.mmap(ring, 64 * 4, offset=0x10000000)
    struct.pack_into("<BBHiQQIIQ", entries, 0, 22, 0, 0, fd, offset, address, length, 0, 1)  # IORING_OP_READ
    at, = struct.unpack_from("<I", queue, tail)
    struct.pack_into("<I", queue, array + 4 * (at & struct.unpack_from("<I", queue, mask)[0]), 0)
    struct.pack_into("<I", queue, tail, at + 1)
    assert libc.syscall(IO_URING_ENTER, ring, 1, 0, 0, None, 0) == 1, os.strerror(c.get_errno())
    return ring, queue, entries


def offset_of(address):
    """Where in its arena an address of this process is."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            fields = line.split()
            start, end = (int(part, 16) for part in fields[0].split("-"))
            if start <= address < end:
                assert "fabricmgr-arena" in line and "w" in fields[1]
                return int(fields[2], 16) + address - start
    raise AssertionError("not mapped")


def dead_reader(system, device, flags):
    """A client that staged a block, has the device reading into it, and dies: (offset, when it was killed)."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            pool = Pool(system.socket, flags)
            block = pool.stage(4 * MIB)[0]
            c.memset(block.data, 0x55, 4 * MIB)
            keep = ()
            if device:
                fd = os.open(device, os.O_RDONLY | os.O_DIRECT)
                keep = start_read(fd, 64 * MIB, block.data, 65536)
            os.write(write, b"%d\n" % offset_of(block.data))
            time.sleep(600)
            assert keep is not None
        except BaseException as error:  # pylint: disable=broad-except
            os.write(write, repr(error).encode())
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.readline()
        assert text.strip().isdigit(), text
        yield int(text)
        fd, start = os.pidfd_open(pid), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert select.select([fd], [], [], 30)[0], "it waits for the device"
        os.close(fd)
        os.waitpid(pid, 0)
        yield start


def stage(pool, deadline_s):
    """One more chunk, or None when there is none in that time."""
    from pool_client import Block
    blocks = (Block * 1)()
    result = pool.lib.fm_block_stage(pool.handle, c.c_uint64(4 * MIB), c.c_size_t(1), blocks,
                                     c.c_uint64(int(deadline_s * 10**9)))
    assert result in (0, -5, -7), pool.lib.fm_error_detail()
    return blocks[0] if result == 0 else None


def test_a_kill_during_a_slow_direct_read_keeps_the_memory_in_quarantine(system):
    device = HeldDevice(f"{system.folder}/held", 128 * MIB)
    try:
        os.pwrite(device.data, MARK * 3000, 64 * MIB)
        system.daemon("16M", "--memory", "memfd")
        device.hold(READ)
        reader = dead_reader(system, device.device, DEVICES)
        place = next(reader)
        device.wait_held()
        pool = Pool(system.socket)
        others = [pool.stage(4 * MIB)[0] for _ in range(3)]
        base = others[0].data - offset_of(others[0].data)
        assert place not in [offset_of(block.data) for block in others]
        killed = next(reader)
        # The process is gone, its memory is not free, and the disk has not answered yet.
        end = time.monotonic() + 30
        while not (states := system.control("status")["blocks"])["quarantine"]:
            assert states["staging"] == 4 and time.monotonic() < end, states
        early = stage(pool, 0.05)
        assert early is None or time.monotonic() - killed >= QUARANTINE_S
        assert c.string_at(base + place, 64) == b"\x55" * 64
        device.let_go()
        until(lambda: c.string_at(base + place, len(MARK)) == MARK)  # else nothing was shown
        mine = early or stage(pool, 30)
        assert mine and offset_of(mine.data) == place
        assert time.monotonic() - killed >= QUARANTINE_S, "it was given to another before its time"
        assert system.control("status")["blocks"]["quarantine"] == 0
        pool.detach()
    finally:
        device.let_go()
        for process in system.started:
            process.kill()
            process.process.wait()
        device.end()


def test_without_devices_the_memory_is_free_at_once(system):
    system.daemon("16M", "--memory", "memfd")
    pool = Pool(system.socket)
    for _ in range(10):
        client = dead_reader(system, None, 0)
        place = next(client)
        others = [pool.stage(4 * MIB)[0] for _ in range(3)]
        next(client)
        end = time.monotonic() + 60
        while (states := system.control("status")["blocks"])["staging"] > len(others):
            assert states["quarantine"] == 0 and time.monotonic() < end, states
        assert states["quarantine"] == 0 and states["staging"] == len(others), states
        mine = stage(pool, 30)
        assert mine and offset_of(mine.data) == place
        for block in (*others, mine):
            pool.lib.fm_block_discard(pool.handle, c.byref(block), c.c_size_t(1))
    pool.detach()
