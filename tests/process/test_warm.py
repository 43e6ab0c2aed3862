# SPDX-License-Identifier: Apache-2.0
"""The pool outlives its daemon: killed, upgraded, given another size or spoilt memory, under
fabricmgr-holder and under a service manager that is not ours."""
import array
import contextlib
import ctypes as c
import fcntl
import mmap
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import pool_client
from conftest import BIN, until
from pool_client import DEVICES, DISCONNECTED, MEMBERS, Pool, bytes_of, hello, key_of

KILLS = int(os.environ.get("WARM_KILLS", "12"))
LENGTH = 65536
# Where the kernel module is there, it comes before a manager.
KEEPER = "kernel module" if os.path.exists("/dev/fabricmgr") else "holder"


class Held:
    """A daemon under fabricmgr-holder."""

    def __init__(self, system, *more, holder=(), daemon=f"{BIN}/fabricmgrd", size="64M"):
        self.system = system
        self.process = system.start(f"{BIN}/fabricmgr-holder", "--restarts", "1000", "--pause-max", "0",
                                    *holder, "--",
                                    daemon, "--socket", system.socket, *(["--size", size] if size else []), *more)
        self.starts = 0
        self.wait()

    def lines(self, pattern):
        with self.process.changed:
            return [line for line in self.process.lines if line and re.search(pattern, line)]

    def wait(self, limit=60):
        """Until the next start serves."""
        end = time.monotonic() + limit
        self.starts += 1
        while len(self.lines(r"\bready$")) < self.starts:
            assert time.monotonic() < end and self.process.process.poll() is None, self.process.lines
            time.sleep(0.005)

    @property
    def pid(self):
        return self.system.control("info")["daemon_pid"]

    def kill(self, pid=None):
        os.kill(pid or self.pid, signal.SIGKILL)
        self.wait()

    def upgrade(self):
        self.process.process.send_signal(signal.SIGUSR2)
        self.wait()

    def kept(self):
        return self.system.control("info")["kept"]


def put(pool, numbers, length=LENGTH):
    for n in numbers:
        pool.release(pool.put(n, length))


def check(pool, numbers, length=LENGTH):
    for n in numbers:
        block = pool.acquire(n)
        assert block, n
        assert c.string_at(block.data, block.length) == bytes_of(n, length)
        assert pool.verify(block) == 0
        pool.release(block)


def test_a_killed_daemon_loses_nothing_and_a_reader_notices_nothing(system):
    held = Held(system)
    old = Pool(system.socket)
    put(old, range(40))
    block = old.acquire(7)
    for _ in range(3):
        held.kill()
        new = Pool(system.socket)
        check(new, range(40))
        # Until it asks the daemon for something, the old one finds and holds what is new, too.
        n = 100 + held.starts
        put(new, [n])
        check(old, [n])
        new.detach()
    assert not old.is_connected()
    assert c.string_at(block.data, block.length) == bytes_of(7, LENGTH)
    kept = held.kept()
    assert kept["by"] == KEEPER and not kept["reason"] and not kept["cold_reason"]
    assert kept["resumed_blocks"] == 42 and kept["dropped_blocks"] == 0 and kept["resume_ms"] > 0
    assert kept["clients"] == 1 and kept["leases"] == 1
    # All that nobody holds goes; what the old client holds stays, until it lets go.
    assert system.control("evict")["blocks"] == 42
    assert c.string_at(block.data, block.length) == bytes_of(7, LENGTH)
    old.detach()
    until(lambda: held.kept()["clients"] == 0)
    assert system.control("evict")["blocks"] == 1


def test_groups_go_on_as_groups(system):
    held = Held(system)
    old = Pool(system.socket)
    for first in range(1000, 1030, MEMBERS):
        assert old.put_group(first, LENGTH)
    put(old, range(10))
    hold = old.acquire(1001)
    for _ in range(3):
        held.kill()
        new = Pool(system.socket)
        check(new, [*range(1000, 1030), *range(10)])
    assert held.kept()["resumed_blocks"] == 40 and held.kept()["dropped_blocks"] == 0
    # They are groups: what one of them is held for, all stay for, and one that is removed takes the others along.
    assert system.control("evict")["blocks"] == 37
    check(new, range(1000, 1000 + MEMBERS))
    assert [new.match(n) for n in range(1000 + MEMBERS, 1030)] == [0] * (30 - MEMBERS)
    assert new.put_group(1003, LENGTH)
    assert new.lib.fm_pool_remove(new.handle, c.byref(key_of(1004)), c.c_size_t(1)) == 1
    assert [new.match(n) for n in (1003, 1004, 1005)] == [0, 0, 0]
    old.release(hold)


def test_what_was_staged_is_nobody_elses_while_its_writer_lives(system):
    held = Held(system, size="8M")
    plain, devices = Pool(system.socket), Pool(system.socket, DEVICES)
    blocks = [*plain.stage(1 << 20, 3), *devices.stage(1 << 20, 2)]
    held.kill()
    # It may still write there. What a new client gets is elsewhere.
    for block in blocks:
        c.memset(block.data, 0xee, 1 << 20)
    assert system.control("status")["blocks"]["staging"] == 5
    new = Pool(system.socket)
    others = [new.stage(1 << 20)[0] for _ in range(3)]
    for block in others:
        c.memset(block.data, 0x11, 1 << 20)
    for block in blocks:
        c.memset(block.data, 0xee, 1 << 20)
    assert all(c.string_at(block.data, 1 << 20) == b"\x11" * (1 << 20) for block in others)
    with pytest.raises(OSError) as error:
        plain.stage(4096)
    assert error.value.errno == -DISCONNECTED
    plain.detach()
    until(lambda: system.control("status")["blocks"]["staging"] == 5)  # 2 and the new one's 3
    devices.detach()
    until(lambda: system.control("status")["blocks"]["staging"] == 3)
    until(lambda: system.control("status")["blocks"]["quarantine"] == 0)
    new.detach()
    until(lambda: system.control("status")["used_bytes"] == 0)


def test_a_client_that_seals_its_own_table_pins_nothing_beyond_its_end(system):
    """It takes from the daemon the one question by which the end of clients of before is found."""
    held = Held(system, size="8M")
    pool = Pool(system.socket)
    block = pool.put(1, 4 << 20)
    result, fds, link, _ = hello(system.socket)
    assert result == 0
    with mmap.mmap(fds[2], 4096) as table:
        for lease, chunk in enumerate((0, 1)):
            table[lease * 16:lease * 16 + 16] = struct.pack("=IIII", 1, chunk, block.generation, 0)
        fcntl.fcntl(fds[2], 1033, 1)  # F_ADD_SEALS, F_SEAL_SEAL
        held.kill()
    for fd in fds:
        os.close(fd)
    link.close()
    pool.detach()
    until(lambda: held.kept()["clients"] == held.kept()["leases"] == 0)
    put(Pool(system.socket), range(2, 6), 4 << 20)
    held.kill()
    assert not held.kept()["cold_reason"]


SURVIVOR = """
import ctypes as c, os, random, sys, time
sys.path.insert(0, sys.argv[1])
from pool_client import *
chance, old, pool, held, staged, checked = random.Random(int(sys.argv[3])), [], None, [], [], 0
def right(block, n):
    assert c.string_at(block.data, block.length) == bytes_of(n, block.length), f"wrong bytes of {n}"
while not os.path.exists(sys.argv[4]):
    try:
        pool = pool or Pool(sys.argv[2])
        n = chance.randrange(300)
        block = pool.acquire(n) or pool.put(n, (5000, 70000, 400000)[n % 3])
        if chance.random() < 0.1:
            staged.append(pool.stage(70000, 2))
            if len(staged) > 3:
                pool.lib.fm_block_discard(pool.handle, staged.pop(0), c.c_size_t(2))
        if block:
            right(block, n)
            held.append((pool, block, n))
            checked += 1
        if not pool.is_connected():
            raise OSError(-DISCONNECTED, "gone")
    except OSError as error:
        if error.errno not in (-DISCONNECTED, 5):  # POOL_FULL: try again
            raise
        if error.errno == -DISCONNECTED and pool:
            old.append(pool)
            pool, staged = None, []
        time.sleep(0.005)
    while len(held) > 12:
        p, block, n = held.pop(chance.randrange(len(held)))
        right(block, n)
        p.release(block)
    while len(old) > 2:
        held = [h for h in held if h[0] is not old[0]]
        old.pop(0).detach()
for _, block, n in held:
    right(block, n)
print("right", checked, flush=True)
"""


def test_many_kills_under_load(system):
    held = Held(system, size="32M")
    stop = f"{system.folder}/stop"
    clients = [subprocess.Popen([sys.executable, "-c", SURVIVOR, os.path.dirname(pool_client.__file__),
                                 system.socket, str(i), stop], stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.STDOUT) for i in range(2)]
    try:
        for _ in range(KILLS):
            seals = system.control("status")["counters"]["seals"]
            until(lambda: system.control("status")["counters"]["seals"] > seals + 30)
            held.kill()
            assert not held.kept()["cold_reason"], held.process.lines
        assert held.kept()["resumed_blocks"] > 10
        assert not held.lines("FM150[2356]")
        assert not system.control("verify")["bad"]
    finally:
        open(stop, "w", encoding="utf-8").close()
        told = [client.communicate(timeout=60)[0] for client in clients]
    assert all(re.fullmatch(r"right \d+\n", text) for text in told), told
    until(lambda: held.kept()["clients"] == 0)
    until(lambda: system.control("status")["blocks"]["staging"] == 0)
    system.control("evict")
    until(lambda: system.control("status")["used_bytes"] == 0)  # given up ones are freed a moment later


def test_an_upgrade_starts_what_stands_at_the_path_now(system):
    program = f"{system.folder}/fabricmgrd"
    shutil.copy(f"{BIN}/fabricmgrd", program)
    held = Held(system, daemon=program)
    pool = Pool(system.socket)
    put(pool, range(5))
    before = held.pid
    os.unlink(program)
    with open(program, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\necho "the new one" >&2\nexec {BIN}/fabricmgrd "$@"\n')
    os.chmod(program, 0o755)
    held.upgrade()
    assert held.lines("^the new one$") and held.pid != before
    new = Pool(system.socket)
    check(new, range(5))
    assert held.kept()["resumed_blocks"] == 5
    held.process.process.send_signal(signal.SIGHUP)
    held.process.wait_for("FM1303")
    assert held.process.stop() == 0
    assert not os.path.exists(system.socket)


def test_another_size_starts_empty_and_says_why(system):
    config = f"{system.folder}/conf"
    with open(config, "w", encoding="utf-8") as file:
        file.write("[pool]\nsize = 32M\n")
    held = Held(system, "--config", config, size=None)
    pool = Pool(system.socket)
    put(pool, range(5))
    block = pool.acquire(3)
    with open(config, "w", encoding="utf-8") as file:
        file.write("[pool]\nsize = 48M\n")
    held.upgrade()
    assert held.lines("FM1502.*it has 32 MiB and 512 entries, this one shall have 48 MiB and 768")
    kept = held.kept()
    assert "32 MiB" in kept["cold_reason"] and kept["resumed_blocks"] == 0
    assert system.control("status")["blocks"]["sealed"] == 0
    assert c.string_at(block.data, block.length) == bytes_of(3, LENGTH)
    # The new one is kept in its turn.
    new = Pool(system.socket)
    put(new, range(8))
    held.kill()
    assert held.kept()["resumed_blocks"] == 8


def of_holder(held, name):
    """The file behind a descriptor that the holder keeps, open for writing (root's way)."""
    folder = f"/proc/{held.process.pid}/fd"
    for fd in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{fd}").startswith(f"/memfd:{name}"):
                return open(f"{folder}/{fd}", "r+b", buffering=0)
    raise AssertionError(f"the holder has no {name}")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root opens another's memfd")


@needs_root
def test_a_spoilt_index_is_rebuilt_and_what_is_spoilt_is_dropped(system):
    held = Held(system, size="32M")
    pool = Pool(system.socket)
    put(pool, range(30))
    pool.detach()
    # One header is spoilt: that block is dropped, and no other.
    with of_holder(held, "fabricmgr-headers") as file:
        file.seek(64 * 4 + 20)
        file.write(b"spoilt")
    held.kill()
    assert held.kept()["resumed_blocks"] == 29 and held.kept()["dropped_blocks"] == 1
    # One block's bytes: without an index every block is read.
    pool = Pool(system.socket)
    lost = [n for n in range(30) if not pool.match(n)]
    put(pool, lost)
    pool.detach()
    pid = held.pid
    with of_holder(held, "fabricmgr-arena") as file:
        file.seek(7 * LENGTH + 100)
        file.write(b"spoilt")
    with of_holder(held, "fabricmgr-index") as file:
        file.write(os.urandom(6000))
    held.kill(pid)
    assert held.lines("FM1505.*index") and held.lines("FM1506.* 1 block")
    kept = held.kept()
    assert kept["resumed_blocks"] == 29 and kept["dropped_blocks"] == 1
    pool = Pool(system.socket)
    assert [n for n in range(30) if not pool.match(n)] == [7]
    check(pool, [n for n in range(30) if n != 7])
    # Who reads by an index keeps it; a new daemon cannot write it anew under its eyes.
    block = pool.acquire(3)
    pid = held.pid
    with of_holder(held, "fabricmgr-index") as file:
        file.write(b"nothing")
    held.kill(pid)
    assert re.search(r"cannot be trusted, and client \d+ reads by it", held.kept()["cold_reason"])
    assert c.string_at(block.data, block.length) == bytes_of(3, LENGTH)


@needs_root
def test_a_state_that_is_spoilt_or_of_another_version_is_named(system):
    held = Held(system, size="32M")
    for at, value, said in ((4, b"\x09", r"fabricmgrd \S+ left version 9 \(index 1, headers 1, \d+ bytes\); this one, "
                                         r"\S+, reads version 1"),
                            (0, b"?", "its state is not one of ours"),
                            (40, b"\x77", "its state fails its checksum")):
        pool = Pool(system.socket)
        put(pool, range(3))
        pool.detach()
        with of_holder(held, "fabricmgr-state") as file:
            file.seek(at)
            file.write(value)
        held.kill()
        assert re.search(said, held.kept()["cold_reason"]), held.kept()
        assert system.control("status")["blocks"]["sealed"] == 0


def test_blocks_on_nvme_go_on(system):
    held = Held(system, "--nvme", f"{system.folder}/log", "--nvme-size", "300M", size="16M")
    pool = Pool(system.socket)
    for n in range(60):  # more than memory holds
        put(pool, [n], 400000)
        until(lambda: system.control("status")["nvme"]["stored"] == n + 1)
    for _ in range(2):
        held.kill()
        pool = Pool(system.socket)
        pool.lib.fm_pool_fetch.restype = c.c_int64
        for n in range(60):
            assert pool.lib.fm_pool_fetch(pool.handle, c.byref(pool_client.key_of(n)), c.c_size_t(1),
                                          c.c_uint64(20 * 10**9)) == 1
            check(pool, [n], 400000)
        assert held.kept()["resumed_blocks"] > 10
    # A group that was not written yet when the daemon was killed is, by the next one, as one.
    for first in range(1000, 1000 + 5 * MEMBERS, MEMBERS):
        assert pool.put_group(first, 400000)
    held.kill()
    until(lambda: system.control("status")["nvme"]["blocks"] == 60 + 5 * MEMBERS)
    pool = Pool(system.socket)
    system.control("evict")
    assert pool.match(1000) == 0
    for first in range(1000, 1000 + 5 * MEMBERS, MEMBERS):
        assert pool.lib.fm_pool_fetch(pool.handle, c.byref(pool_client.key_of(first + 1)), c.c_size_t(1),
                                      c.c_uint64(20 * 10**9)) == 1
        check(pool, range(first, first + MEMBERS), 400000)
    # What was removed comes back from neither.
    key = pool_client.key_of(59)
    pool.lib.fm_pool_remove.restype = c.c_int64
    assert pool.lib.fm_pool_remove(pool.handle, c.byref(key), c.c_size_t(1)) == 1
    held.kill()
    pool = Pool(system.socket)
    assert pool.lib.fm_pool_fetch(pool.handle, c.byref(key), c.c_size_t(1), c.c_uint64(10**9)) == 0


def test_the_holder_gives_up_where_it_should(system):
    out = subprocess.run([f"{BIN}/fabricmgr-holder", "--", f"{BIN}/fabricmgrd", "--size", "nonsense"],
                         capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 2 and "FM1602" in out.stderr and "--size nonsense" in out.stderr
    out = subprocess.run([f"{BIN}/fabricmgr-holder"], capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 2 and "no command was given" in out.stderr
    out = subprocess.run([f"{BIN}/fabricmgr-holder", "--", f"{system.folder}/nothing"], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 2 and "FM1604" in out.stderr
    reader, writer = os.pipe()
    process = subprocess.Popen([f"{BIN}/fabricmgr-holder", "--restarts", "2", "--within", "3600",
                                "--ready-fd", str(writer), "--", f"{BIN}/fabricmgrd", "--socket", system.socket,
                                "--size", "16M"], stderr=subprocess.PIPE, text=True, pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 1) == b"r" and os.read(reader, 1) == b""
    os.close(reader)
    before = None
    for _ in range(3):
        def pid():
            out = subprocess.run([f"{BIN}/fabricctl", "info", "--socket", system.socket, "--json"],
                                 capture_output=True, text=True, check=False)
            found = re.search(r'"daemon_pid": (\d+)', out.stdout)
            return int(found[1]) if found else before
        until(lambda: pid() != before)
        before = pid()
        os.kill(before, signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and "2 restarts in 3600 s are the limit (--restarts, --within)" in errors


SOMETIMES = """#!/bin/sh
# As fabricmgrd, and ends with a status while a file names one.
[ -e {folder}/status ] && exit $(cat {folder}/status)
exec {bin}/fabricmgrd "$@"
"""


@pytest.mark.parametrize("status", (1, 2))
def test_what_stands_in_the_way_for_a_while_costs_no_pool(system, status):
    program = f"{system.folder}/sometimes"
    with open(program, "w", encoding="utf-8") as file:
        file.write(SOMETIMES.format(folder=system.folder, bin=BIN))
    os.chmod(program, 0o755)
    held = Held(system, holder=("--restarts", "30", "--pause-max", "2"), daemon=program)
    pool = Pool(system.socket)
    put(pool, range(5))
    pid = held.pid
    with open(f"{system.folder}/status", "w", encoding="utf-8") as file:
        file.write(str(status))
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(held.lines("FM1603.*ended with status")) >= 4)
    assert time.monotonic() - begun > 0.35  # at least 50 ms, 100 ms and 200 ms
    os.unlink(f"{system.folder}/status")
    held.wait()
    assert held.kept()["resumed_blocks"] == 5
    pauses = [float(re.search(r"again in ([0-9.]+) s", line)[1]) for line in held.lines("FM1603")]
    assert pauses[0] in (0, 0.05) and all(later in (2 * sooner, 0.05, 2)
                                          for sooner, later in zip(pauses, pauses[1:])), pauses
    check(Pool(system.socket), range(5))
    # Asked to end while it waits, it does not wait.
    pid = held.pid
    with open(f"{system.folder}/status", "w", encoding="utf-8") as file:
        file.write(str(status))
    os.kill(pid, signal.SIGKILL)
    until(lambda: any("again in 2" in line for line in held.lines("FM1603")))
    assert held.process.stop() == 1


def test_an_upgrade_that_would_fail_is_refused(system):
    config = f"{system.folder}/conf"
    with open(config, "w", encoding="utf-8") as file:
        file.write("[pool]\nsize = 16M\n")
    held = Held(system, "--config", config, size=None)
    pool = Pool(system.socket)
    put(pool, range(5))
    pid = held.pid
    for text, words in (("[pool]\nsize = lots\n", "size lots"), ("[pool]\nsize = 900T\n", "FM1011")):
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        refused = len(held.lines("FM1610"))
        held.process.process.send_signal(signal.SIGUSR2)
        until(lambda n=refused: len(held.lines("FM1610.*the daemon that runs stays")) > n)
        assert held.lines(words) and held.pid == pid and pool.is_connected()
    with open(config, "w", encoding="utf-8") as file:
        file.write("[pool]\nsize = 16M\n[log]\nlevel = debug\n")
    held.upgrade()
    assert held.pid != pid and held.kept()["resumed_blocks"] == 5 and not held.lines("FM160[23]")


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def test_a_port_that_is_free_in_a_moment_is_waited_for(system):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        trace = f"{system.folder}/trace"
        other = system.start("strace", "-D", "-f", "-qq", "-o", trace, "-e", "trace=bind,listen",
                             f"{BIN}/fabricmgrd", "--socket", f"{system.folder}/other", "--size", "16M",
                             "--redis", f"127.0.0.1:{port}")
        until(lambda: "EADDRINUSE" in read(trace))
    other.wait_for("ready")
    assert other.stop() == 0


def test_a_daemon_that_hangs_is_killed_and_the_pool_is_kept(system):
    held = Held(system, holder=("--watchdog", "2"))
    pool = Pool(system.socket)
    put(pool, range(5))
    os.kill(held.pid, signal.SIGSTOP)
    held.wait()
    assert held.lines("FM1606.*does not say that it lives")
    check(Pool(system.socket), range(5))


SLOW = """#!/bin/sh
# As fabricmgrd, which starts when nothing holds it up.
while [ -e {folder}/slow ]; do sleep 0.05; done
exec {bin}/fabricmgrd "$@"
"""


def test_the_watchdog_waits_for_a_daemon_that_starts_again(system):
    program, slow = f"{system.folder}/slowly", f"{system.folder}/slow"
    with open(program, "w", encoding="utf-8") as file:
        file.write(SLOW.format(folder=system.folder, bin=BIN))
    os.chmod(program, 0o755)
    held = Held(system, holder=("--watchdog", "3"), daemon=program)
    pool = Pool(system.socket)
    put(pool, range(5))
    pid = held.pid
    with open(slow, "w", encoding="utf-8"):
        pass
    killed, starts = len(held.lines("FM1606")), len(held.lines("FM1601"))
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(held.lines("FM1601")) > starts)
    time.sleep(5)  # longer than the watchdog would wait
    assert len(held.lines("FM1606")) == killed
    os.unlink(slow)
    held.wait()
    assert held.kept()["resumed_blocks"] == 5
    check(Pool(system.socket), range(5))
    # One that serves is looked after again.
    os.kill(held.pid, signal.SIGSTOP)
    held.wait()
    assert len(held.lines("FM1606.*does not say that it lives")) > killed


def test_a_holder_that_hangs_is_told_no_more_and_stops_nobody(system):
    held = Held(system)
    pool = Pool(system.socket)
    daemon = held.pid
    held.process.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(2000):  # so much does no queue of datagrams hold
            Pool(system.socket).detach()
            if held.lines("FM1503"):
                break
        for n in range(20):
            Pool(system.socket).detach()
            put(pool, [n])
        assert len(held.lines("FM1503.*did not read")) == 1
        assert held.kept()["by"] == "nothing"
    finally:
        held.process.process.send_signal(signal.SIGCONT)
    held.kill(daemon)
    assert held.kept()["cold_reason"]


def test_the_pool_says_that_nobody_keeps_it(system):
    system.daemon("16M")
    kept = system.control("info")["kept"]
    assert kept["by"] == "nothing" and "neither systemd nor fabricmgr-holder" in kept["reason"]


class Between(threading.Thread):
    """Between clients and their daemon: every reply gets @more zero bytes at its end, or loses them, as
    if the daemon were of a later or an earlier version than the clients' library."""

    def __init__(self, system, more):
        super().__init__(daemon=True)
        self.daemon_path, self.path, self.more = system.socket, f"{system.folder}/between", more
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.connect(self.daemon_path)
            while data := client.recv(65536):
                daemon.send(data)
                reply, fds, _, _ = socket.recv_fds(daemon, 65536, 8)
                reply = reply + bytes(self.more) if self.more > 0 else reply[:self.more]
                socket.send_fds(client, [reply], fds)
                for fd in fds:
                    os.close(fd)


@pytest.mark.parametrize("more", [400, -200])
def test_clients_attach_to_a_daemon_that_was_upgraded_without_them(system, more):
    system.daemon("16M")
    pool = Pool(Between(system, more).path)
    put(pool, range(3))
    check(pool, range(3))
    out = subprocess.run([f"{BIN}/fabricctl", "status", "--socket", f"{system.folder}/between"],
                         capture_output=True, text=True, check=False, timeout=60)
    assert "3 sealed" in out.stdout, out.stderr


class Manager:
    """What systemd does for a unit with FileDescriptorStoreMax=, as its manual says."""

    def __init__(self, folder, most=1000):
        self.path, self.most, self.store, self.heard = f"{folder}/notify", most, [], []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.n_synced = 0
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(64))
            fds = array.array("i", b"".join(x for _, _, x in ancillary)).tolist()
            message = dict(line.split("=", 1) for line in data.decode().split("\n"))
            if message.get("FDSTOREREMOVE") == "1":
                self.store = [kept for kept in self.store if kept[0] != message["FDNAME"]]
            if message.get("FDSTORE") == "1" and len(self.store) < self.most:
                self.store += [(message["FDNAME"], fd) for fd in fds]
            self.heard.append(message)

    def sync(self):
        """All that was said before is heard."""
        self.n_synced += 1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"SYNC=%d" % self.n_synced, self.path)
        until(lambda: {"SYNC": str(self.n_synced)} in self.heard)

    def start(self, system):
        self.sync()
        n = len(self.store)
        opens = " ".join(f"{3 + i}<>/proc/{os.getpid()}/fd/{fd}" for i, (_, fd) in enumerate(self.store))
        process = system.start("bash", "-c", f"exec {opens}; export LISTEN_PID=$$; exec \"$@\"", "bash",
                               f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "32M", env={
                                   "NOTIFY_SOCKET": self.path, "LISTEN_FDS": str(n),
                                   "LISTEN_FDNAMES": ":".join(name for name, _ in self.store),
                                   "WATCHDOG_USEC": "2000000"})
        process.wait_for(r"\bready$")
        return process


def test_groups_are_kept_apart(system):
    config = f"{system.folder}/conf"

    def write(*groups):
        with open(config, "w", encoding="utf-8") as file:
            file.write("[pool]\nsize = 16M\n" + "".join(
                f"[group {name}]\nsize = 32M\n[tenant {name}1]\ngroup = {name}\nusers = {os.geteuid()}\n"
                for name in groups))

    write("a.b", "c")
    held = Held(system, "--config", config, size=None)
    numbers = {"pool": range(4), "a.b": range(10, 15), "c": range(20, 26)}
    for name, group in numbers.items():
        pool = Pool(f"{system.folder}/{name}.sock")
        put(pool, group)
        pool.detach()
    held.kill()
    for name, group in numbers.items():
        pool = Pool(f"{system.folder}/{name}.sock")
        check(pool, group)
        assert not any(pool.match(n) for n in {*range(30)} - {*group})
        pool.detach()
    # A group that is not there any more is kept no longer.
    write("c")
    held.upgrade()
    check(Pool(f"{system.folder}/c.sock"), numbers["c"])
    write("a.b", "c")
    held.upgrade()
    check(Pool(f"{system.folder}/c.sock"), numbers["c"])
    assert Pool(f"{system.folder}/a.b.sock").match(10) == 0


def test_any_manager_that_keeps_descriptors_will_do(system):
    manager = Manager(system.folder)
    daemon = manager.start(system)
    pool = Pool(system.socket)
    put(pool, range(9))
    block = pool.acquire(2)
    manager.sync()
    names = [name for name, _ in manager.store]
    assert len(set(names)) == len(names)
    assert {f"fm.default.{name}" for name in ("state", "index", "headers", "arena-1")} < set(names)
    until(lambda: any(message.get("WATCHDOG") == "1" for message in manager.heard))
    assert any(message.get("READY") == "1" and "STATUS" in message for message in manager.heard)
    daemon.kill()
    daemon.process.wait()
    daemon = manager.start(system)
    new = Pool(system.socket)
    check(new, range(9))
    kept = system.control("info")["kept"]
    assert kept["by"] == "service manager" and kept["resumed_blocks"] == 9 and kept["clients"] == 1
    assert c.string_at(block.data, block.length) == bytes_of(2, LENGTH)
    # An orderly end keeps it as well.
    pool.detach()
    assert daemon.stop() == 0
    manager.sync()
    assert any(message.get("STOPPING") == "1" for message in manager.heard)
    manager.start(system)
    check(Pool(system.socket), range(9))


def test_a_manager_that_keeps_too_few_is_found_out(system):
    manager = Manager(system.folder, most=5)
    daemon = manager.start(system)
    first, second = Pool(system.socket), Pool(system.socket)
    put(first, range(3))
    daemon.kill()
    daemon.process.wait()
    manager.start(system)
    reason = system.control("info")["kept"]["cold_reason"]
    assert re.search(r"the leases of client \d+ .* were not kept: .*FileDescriptorStoreMax=", reason), reason
    assert second.match(0) == 1 and system.control("status")["blocks"]["sealed"] == 0


def test_quotas_count_what_was_kept(system):
    config = f"{system.folder}/conf"
    with open(config, "w", encoding="utf-8") as file:
        file.write("[pool]\nsize = 32M\nmemory = memfd\n[tenant a]\ngroup = default\nusers = 5001\nguaranteed = 16M\n"
                   "[tenant b]\ngroup = default\nusers = 5002\nmax = 12M\n")
    held = Held(system, "--config", config, size=None)
    pool = {name: Pool(system.socket, tenant=name) for name in "ab"}
    put(pool["a"], range(16), 1 << 20)
    put(pool["b"], range(100, 112), 1 << 20)
    staged = pool["b"].stage(4096)

    def accounts():
        return {tenant["name"]: {key: tenant[key] for key in ("held_bytes", "used_bytes", "staged_bytes", "blocks")}
                for tenant in system.control("quota")}
    before = accounts()
    assert before["a"]["held_bytes"] == 16 << 20 and before["b"]["staged_bytes"] == 4096
    held.kill()
    assert accounts() == before
    noisy = Pool(system.socket, tenant="b")
    put(noisy, range(200, 260), 1 << 20)
    after = accounts()
    assert after["a"] == before["a"] and after["b"]["held_bytes"] <= 12 << 20
    check(noisy, range(16), 1 << 20)
    assert staged[0].length == 4096
    for one in (*pool.values(), noisy):
        one.detach()
    until(lambda: accounts()["b"]["staged_bytes"] == 0)
