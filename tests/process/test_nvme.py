# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier of the daemon as a client meets it: more blocks than memory, restarts, kills in the
middle of writes, removals that stay, and a start that is refused with a reason."""
import ctypes as c
import os
import random
import struct
import subprocess

from conftest import BIN, until
from pool_client import MEMBERS, Pool, bytes_of, key_of

LENGTHS = (5000, 70000, 300000)
AT_ONCE = 16


def crc32c(data):
    table = [0] * 256
    for i in range(256):
        value = i
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
        table[i] = value
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xffffffff


def length_of(n):
    return LENGTHS[n % 3]


class Tier(Pool):
    """A client that also fetches."""

    def __init__(self, system):
        super().__init__(system.socket)
        self.lib.fm_pool_fetch.restype = c.c_int64
        self.lib.fm_pool_remove.restype = c.c_int64

    def fetch(self, n):
        return self.check(self.lib.fm_pool_fetch(self.handle, c.byref(key_of(n)), c.c_size_t(1),
                                                 c.c_uint64(60 * 10**9)))

    def remove(self, n):
        return self.check(self.lib.fm_pool_remove(self.handle, c.byref(key_of(n)), c.c_size_t(1)))

    def store(self, n):
        block = self.put(n, length_of(n))
        if block:
            self.release(block)

    def read(self, n):
        """True: found, and every byte is right."""
        block = self.acquire(n) if self.fetch(n) else None
        if not block:
            return False
        assert self.verify(block) == 0
        assert c.string_at(block.data, block.length) == bytes_of(n, length_of(n)), "a wrong byte"
        self.release(block)
        return True


def start(system, size="64M", pool="16M", *more):
    return system.daemon(pool, "--nvme", f"{system.folder}/log", "--nvme-size", size, *more)


def nvme(system):
    return system.control("status")["nvme"]


def fill(system, pool, numbers):
    """Stores blocks that the log has not, and puts again what was evicted before it was written."""
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first:first + AT_ONCE]
        while True:
            before = nvme(system)
            ended = before["stored"] + before["skipped"] + len(some)
            for n in some:
                pool.store(n)
            until(lambda: (now := nvme(system))["stored"] + now["skipped"] >= ended)  # pylint: disable=W0640
            if nvme(system)["stored"] == before["stored"] + len(some):
                break
            for n in some:
                pool.remove(n)
    return nvme(system)


def test_more_blocks_than_memory_come_back_also_after_a_restart(system):
    # 37 MiB of blocks in a pool of 16 and a log of 256.
    numbers = range(300)
    daemon = start(system, "448M")
    pool = Tier(system)
    state = fill(system, pool, numbers)
    assert state["stored"] >= 300 and state["blocks"] == 300, state
    assert state["is_durable"] and "io_uring" in state["rung"]
    stored = [n for n in numbers if pool.read(n)]
    assert len(stored) >= state["blocks"]
    assert nvme(system)["fetched"] > 50
    assert system.control("info")["nvme"]["path"] == f"{system.folder}/log"
    gone = stored[::10]
    assert [pool.remove(n) for n in gone] == [1] * len(gone)
    pool.detach()

    assert daemon.stop() == 0
    start(system, "448M")
    pool = Tier(system)
    found = [n for n in numbers if pool.read(n)]
    assert set(found) == set(stored) - set(gone)
    assert nvme(system)["checksum_errors"] == 0
    pool.detach()


GROUP = 200000  # the length of each member


def read_group(pool, first, asked):
    """How many members of a group are found, after one of them was fetched; their bytes are right."""
    pool.fetch(first + asked)
    n = 0
    for member in range(first, first + MEMBERS):
        if block := pool.acquire(member):
            assert pool.verify(block) == 0
            assert c.string_at(block.data, block.length) == bytes_of(member, GROUP), "a wrong byte"
            pool.release(block)
            n += 1
    return n


def test_groups_come_back_as_wholes_also_after_a_restart(system):
    # 24 MiB of groups and blocks in a pool of 16.
    firsts = range(5000, 5000 + 30 * MEMBERS, MEMBERS)
    daemon = start(system, "448M")
    pool = Tier(system)
    for first in firsts:
        before = nvme(system)["stored"]
        assert pool.put_group(first, GROUP)
        until(lambda: nvme(system)["stored"] >= before + MEMBERS)  # pylint: disable=W0640
    fill(system, pool, range(60))
    assert nvme(system)["blocks"] == 30 * MEMBERS + 60 and nvme(system)["skipped"] == 0
    assert system.control("evict")["blocks"] > 0
    assert [pool.match(n) for first in firsts for n in range(first, first + MEMBERS)] == [0] * (30 * MEMBERS)
    # Whichever member is asked for, all come; and they are a group again: they go together.
    for asked, first in enumerate(firsts):
        assert read_group(pool, first, asked % MEMBERS) == MEMBERS
    assert pool.remove(firsts[3] + 1) == 1
    assert read_group(pool, firsts[3], 0) == 0 and nvme(system)["blocks"] == 29 * MEMBERS + 60
    held = pool.acquire(firsts[29])
    system.control("evict")
    assert [pool.match(n) for n in range(firsts[29], firsts[29] + MEMBERS)] == [1] * MEMBERS
    pool.release(held)
    pool.detach()
    assert daemon.stop() == 0
    start(system, "448M")
    pool = Tier(system)
    for asked, first in enumerate(firsts):
        assert read_group(pool, first, (asked + 1) % MEMBERS) == (MEMBERS if asked != 3 else 0)
    assert all(pool.read(n) for n in range(60))
    assert nvme(system)["checksum_errors"] == 0
    pool.detach()


def test_a_group_with_a_member_that_is_spoilt_is_not_there(system):
    daemon = start(system, "257M")
    pool = Tier(system)
    assert pool.put_group(5000, GROUP)
    until(lambda: nvme(system)["stored"] == MEMBERS)
    pool.detach()
    assert daemon.stop() == 0
    with open(f"{system.folder}/log", "r+b") as log:
        data = log.read(8 << 20)
        at = data.index(bytes_of(5001, GROUP)[:4096])
        log.seek(at + 100000)
        log.write(b"spoilt")
    start(system, "257M")
    pool = Tier(system)
    for asked in range(MEMBERS):
        assert read_group(pool, 5000, asked) == 0
    state = nvme(system)
    assert state["checksum_errors"] == 1 and state["blocks"] == 0
    pool.detach()


def test_a_log_of_the_version_before_is_read(system):
    daemon = start(system, "257M")
    pool = Tier(system)
    fill(system, pool, range(20))
    pool.detach()
    assert daemon.stop() == 0
    # As that version wrote it: its number in both superblocks and in each header page.
    with open(f"{system.folder}/log", "r+b") as log:
        for at in (0, 65536, *(at for at in range(1 << 20, 257 << 20, 4096))):
            log.seek(at)
            page = bytearray(log.read(4096))
            if page[:4] not in (b"FMTV", b"FMLG"):
                continue
            assert page[4:8] == struct.pack("=I", 2)
            checksum = 36 if page[:4] == b"FMTV" else 60
            page[4:8], page[checksum:checksum + 4] = struct.pack("=I", 1), bytes(4)
            page[checksum:checksum + 4] = struct.pack("=I", crc32c(page))
            log.seek(at)
            log.write(page)
    daemon = start(system, "257M")
    pool = Tier(system)
    assert all(pool.read(n) for n in range(20))
    assert pool.put_group(5000, GROUP)
    until(lambda: nvme(system)["blocks"] == 20 + MEMBERS)
    pool.detach()
    assert daemon.stop() == 0
    with open(f"{system.folder}/log", "rb") as log:
        assert struct.unpack("=II", log.read(8))[1] == 2  # so that an earlier version leaves it alone
    start(system, "257M")
    pool = Tier(system)
    assert all(pool.read(n) for n in range(20)) and read_group(pool, 5000, 0) == MEMBERS
    pool.detach()


def test_a_killed_daemon_loses_nothing_that_was_stored(system):
    chance, kept, removed = random.Random(3), set(), set()
    for life in range(6):
        daemon = start(system, "448M", "16M", "--nvme-durable", "yes" if life % 2 else "no")
        pool = Tier(system)
        for n in range(240):
            is_there = pool.read(n)
            assert is_there or n not in kept, (life, n)
            assert not (is_there and n in removed), (life, n)
        for n in chance.sample(sorted(kept), min(5, len(kept))):
            assert pool.remove(n) == 1
            kept.discard(n)
            removed.add(n)
        fresh = range(life * 40, life * 40 + 40)
        state = fill(system, pool, fresh)
        assert state["write_errors"] == 0
        kept |= set(fresh)
        # The kill falls into the middle of these.
        for n in range(1000 + life * 20, 1020 + life * 20):
            pool.store(n)
        daemon.kill()
        daemon.process.wait()
        pool.detach()
    assert len(kept) > 150 and len(removed) >= 15


def test_a_sealed_block_replaces_what_the_log_has(system):
    daemon = start(system, "448M")
    pool = Tier(system)
    fill(system, pool, [3])
    # Another content under the same key, after the first was evicted from memory.
    system.control("evict")
    assert pool.match(3) == 0
    block = pool.stage(6000)[0]
    c.memmove(block.data, bytes_of(77, 6000), 6000)
    assert pool.seal(block, 3) == 0
    pool.release(block)
    daemon.kill()
    daemon.process.wait()
    pool.detach()
    start(system, "448M")
    pool = Tier(system)
    if pool.fetch(3):
        block = pool.acquire(3)
        assert c.string_at(block.data, block.length) == bytes_of(77, 6000)
    pool.detach()


def refused(system, *more):
    out = subprocess.run([f"{BIN}/fabricmgrd", "--socket", f"{system.folder}/other.sock", "--size",
                          "16M", *more], capture_output=True, text=True, check=False, timeout=60)
    assert out.returncode == 1, out.stderr
    return out.stderr


def test_a_start_is_refused_with_a_reason(system):
    start(system, "320M")
    assert "another process uses it" in refused(system, "--nvme", f"{system.folder}/log")
    assert "MiB left" in refused(system, "--nvme", f"{system.folder}/big", "--nvme-size", "900000G")
    assert not os.path.exists(f"{system.folder}/big")
    assert "are needed" in refused(system, "--nvme", f"{system.folder}/small", "--nvme-size", "8M")
    with open(f"{system.folder}/thesis", "wb") as file:
        file.write(b"not a log" * 1000)
    assert "not a log of this program" in refused(system, "--nvme", f"{system.folder}/thesis",
                                                  "--nvme-size", "320M")
    assert os.path.getsize(f"{system.folder}/thesis") == 9000
    open(f"{system.folder}/empty", "wb").close()
    os.mkdir(f"{system.folder}/folder")
    for name, words in (("none", "give --nvme-size"), ("empty", "give --nvme-size"), ("folder", "neither a file nor"),
                        ("missing/log", "No such file or directory"), ("log", "another process uses it")):
        assert words in refused(system, "--nvme", f"{system.folder}/{name}")
        assert name == "log" or "FM1011" in refused(system, "--check", "--nvme", f"{system.folder}/{name}")
    assert not os.path.exists(f"{system.folder}/none") and not os.path.getsize(f"{system.folder}/empty")


def test_memory_that_may_not_be_registered_is_used_without(system):
    """RLIMIT_MEMLOCK without CAP_IPC_LOCK: every chunk is refused, and nothing fails for it."""
    dropped = ("--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock") if os.geteuid() == 0 else ()
    daemon = system.start("setpriv", *dropped, "prlimit", "--memlock=65536", f"{BIN}/fabricmgrd",
                          "--socket", system.socket, "--size", "16M", "--nvme", f"{system.folder}/log",
                          "--nvme-size", "448M")
    daemon.wait_for(r"\bready$")
    pool = Tier(system)
    state = fill(system, pool, range(200))
    daemon.wait_for("FM1402 registering memory with io_uring: .*RLIMIT_MEMLOCK")
    assert state["stored"] >= 200 and not state["write_errors"], state
    assert sum(pool.read(n) for n in range(200)) == 200
    state = nvme(system)
    assert state["fetched"] > 50 and not state["read_errors"], state
    pool.detach()
