# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier of the daemon as a client meets it: more blocks than memory, restarts, kills in the
middle of writes, removals that stay, and a start that is refused with a reason."""
import ctypes as c
import os
import random
import subprocess

from conftest import BIN, until
from pool_client import Pool, bytes_of, key_of

LENGTHS = (5000, 70000, 300000)
AT_ONCE = 16


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
