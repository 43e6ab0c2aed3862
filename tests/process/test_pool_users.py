# SPDX-License-Identifier: Apache-2.0
"""Two users of one pool: what another uid writes can be read and never changed (pool-memory.md, "Trust")."""
import ctypes
import mmap
import os
import tempfile
import traceback

import pytest

import pool_client
from pool_client import Pool, bytes_of
from test_pool import Daemon

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def as_nobody(claims):
    """Runs @claims in a child under another uid; its traceback when one of them does not hold."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            ctypes.CDLL(pool_client.LIB)  # while its path can still be read
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            claims()
            status = 0
        except BaseException:  # pylint: disable=broad-except
            os.write(write, traceback.format_exc().encode())
        os._exit(status)
    os.close(write)
    text = b""
    while part := os.read(read, 65536):
        text += part
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0, text.decode()


@pytest.fixture
def shared():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        daemon = Daemon(folder, "--socket-mode", "0666")
        yield daemon
        daemon.process.kill()
        daemon.process.wait()
        daemon.log.close()


def arena_descriptors():
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "fabricmgr-" in target:
            yield int(name), target


def cannot_write(descriptor):
    with pytest.raises(OSError):
        os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    with pytest.raises(OSError):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(OSError):
        mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def cannot_unprotect(address):
    """A mapping of a read-only descriptor stays read-only, whatever its owner asks."""
    libc = ctypes.CDLL(None, use_errno=True)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    return libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), both) == -1


def test_another_user_reads_and_cannot_change(shared):
    owner = Pool(shared.socket)
    assert owner.put(1, 100000)

    def claims():
        pool = Pool(shared.socket)
        block = pool.acquire(1)
        assert ctypes.string_at(block.data, 100000) == bytes_of(1, 100000)
        writable = 0
        for descriptor, target in arena_descriptors():
            if "index" in target or "headers" in target:
                cannot_write(descriptor)
        mine = pool.put(2, 50000)
        assert mine and ctypes.string_at(mine.data, 50000) == bytes_of(2, 50000)
        for descriptor, target in arena_descriptors():
            if "arena" in target:
                try:
                    os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR))
                    writable += 1
                except OSError:
                    cannot_write(descriptor)
        assert writable <= 1, "only the arena of our own uid may be written"
        refused = 0
        with open("/proc/self/maps", encoding="ascii") as maps:
            for line in maps:
                if " r--s " in line and "fabricmgr-" in line:
                    refused += cannot_unprotect(int(line.split("-")[0], 16))
        assert refused >= 3, "the other user's arena, the index and the headers"
        pool.release(block)
        pool.detach()

    as_nobody(claims)
    assert owner.acquire(1)
    assert shared.ctl("--json", "verify")["bad"] == 0


def test_a_socket_with_the_default_mode_is_closed_to_others():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        daemon = Daemon(folder)

        def claims():
            with pytest.raises(OSError):
                Pool(daemon.socket)

        try:
            as_nobody(claims)
        finally:
            daemon.process.kill()
            daemon.process.wait()
            daemon.log.close()

