# SPDX-License-Identifier: Apache-2.0
"""The pool's daemon, its command line tool and clients as processes: killed at any moment, nothing
leaks, nothing hangs, no wrong byte."""
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import pool_client
from conftest import forget, until
from pool_client import Pool, bytes_of

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("FABRICMGR_BIN", f"{TOP}/build/release/bin")


class Daemon:
    def __init__(self, folder, *flags):
        self.socket = f"{folder}/sub/pool.sock"
        ready, write = os.pipe()
        self.log = open(f"{folder}/daemon.log", "a+", encoding="utf-8")
        self.process = subprocess.Popen(
            [f"{BIN}/fabricmgrd", "--socket", self.socket, "--size", "32M", "--memory", "memfd",
             "--ready-fd", str(write), *flags], pass_fds=[write], stderr=self.log)
        os.close(write)
        assert os.read(ready, 1) == b"r"
        os.close(ready)

    def ctl(self, *command, status=0):
        done = subprocess.run([f"{BIN}/fabricctl", "--socket", self.socket, *command],
                              capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == status, done
        return json.loads(done.stdout) if "--json" in command else done.stdout + done.stderr

    def status(self):
        return self.ctl("--json", "status")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@pytest.fixture
def daemon():
    with tempfile.TemporaryDirectory() as folder:
        one = Daemon(folder)
        yield one
        one.process.kill()
        one.process.wait()
        one.log.close()
        forget(one.socket)


def test_flags_and_facts(daemon):
    for program in ("fabricmgrd", "fabricctl"):
        for flag, status in (("--help", 0), ("--version", 0), ("--nonsense", 2)):
            done = subprocess.run([f"{BIN}/{program}", flag], capture_output=True, check=False)
            assert done.returncode == status
    for wrong in (("--size", "12Q"), ("--ready-fd", "77"), ("--ready-fd", "x")):
        assert subprocess.run([f"{BIN}/fabricmgrd", *wrong], capture_output=True, check=False,
                              timeout=20).returncode == 2
    text = daemon.ctl("info")
    assert "memfd" in text and "density" in text and re.search(r"loop\s+(io_uring|poll)", text)
    info = daemon.ctl("--json", "info")
    assert info["total_bytes"] == 32 << 20 and info["memory_reason"]
    daemon.log.seek(0)
    assert daemon.log.read().rstrip().endswith("ready")
    missing = subprocess.run([f"{BIN}/fabricctl", "--socket", "/nowhere/x", "info"],
                             capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "/nowhere/x" in missing.stderr and "fabricmgrd" in missing.stderr


def test_a_pool_larger_than_memory_is_refused_with_the_sum():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([f"{BIN}/fabricmgrd", "--socket", f"{folder}/s", "--size", "15T"],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.search(r"\+ .* = .* available", done.stderr)


def test_of_daemons_that_find_a_dead_ones_socket_one_takes_it():
    """Each sees that nobody answers there; without the lock, each would replace what another bound."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/pool.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(path)
        for _ in range(5):  # later: the socket of the one that was killed
            started = [subprocess.Popen(
                [f"{BIN}/fabricmgrd", "--socket", path, "--size", "8M"], stderr=subprocess.PIPE,
                text=True) for _ in range(8)]
            losers = []
            end = time.monotonic() + 30
            while len(losers) < 7:
                assert time.monotonic() < end, "more than one serves"
                losers = [process for process in started if process.poll() is not None]
                time.sleep(0.01)
            for loser in losers:
                text = loser.communicate()[1]
                assert loser.returncode == 1 and path in text, text
            winner, = set(started) - set(losers)
            # Until it listens, a connection may still reach the socket of the one that was killed.
            assert any("ready" in line for line in winner.stderr)
            done = subprocess.run([f"{BIN}/fabricctl", "--socket", path, "--json", "info"],
                                  capture_output=True, text=True, check=True, timeout=20)
            assert json.loads(done.stdout)["daemon_pid"] == winner.pid
            winner.kill()
            winner.communicate()
        assert sorted(os.listdir(folder)) == ["pool.sock", "pool.sock.lock"]
        last = subprocess.Popen([f"{BIN}/fabricmgrd", "--socket", path, "--size", "8M"],
                                stderr=subprocess.PIPE, text=True)
        while "ready" not in last.stderr.readline():
            pass
        last.terminate()
        last.communicate()
        assert os.listdir(folder) == [], "a lock file is removed in order, and not in the way else"


def test_one_daemon_for_a_socket(daemon):
    second = subprocess.run([f"{BIN}/fabricmgrd", "--socket", daemon.socket, "--size", "8M"],
                            capture_output=True, text=True, check=False)
    assert second.returncode == 1 and daemon.socket in second.stderr
    assert daemon.stop() == 0
    assert not os.path.exists(daemon.socket)


def test_a_stale_socket_is_replaced():
    with tempfile.TemporaryDirectory() as folder:
        first = Daemon(folder)
        first.process.kill()
        first.process.wait()
        assert os.path.exists(first.socket)
        second = Daemon(folder)
        assert second.status()["blocks"]["sealed"] == 0
        assert second.stop() == 0


def frames(address):
    """The physical page (or, unprivileged, the file's inode and offset) behind an address."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                fields = line.split()
                return fields[4], int(fields[2], 16) + address - start
    raise AssertionError("not mapped")


def test_two_clients_share_the_same_memory(daemon):
    writer, reader = Pool(daemon.socket), Pool(daemon.socket, pool_client.READ_ONLY)
    written = writer.put(1, 100000)
    read = reader.acquire(1)
    assert frames(written.data) == frames(read.data) and written.data != read.data
    assert ctypes.string_at(read.data, 100000) == bytes_of(1, 100000)
    ls = daemon.ctl("--json", "ls")
    assert [block["bytes"] for block in ls] == [100000]
    clients = {client["id"]: client for client in daemon.status()["clients"]}
    assert sorted(client["leases"] for client in clients.values()) == [0, 1, 1]
    writer.detach()
    assert reader.verify(read) == 0
    reader.detach()


def test_verify_names_what_is_spoilt(daemon):
    pool = Pool(daemon.socket)
    block = pool.put(1, 5000)
    pool.put(2, 5000)
    assert daemon.ctl("--json", "verify")["bad"] == 0
    ctypes.memset(block.data, 0, 10)
    found = daemon.ctl("--json", "verify", status=1)
    assert (found["good"], found["bad"]) == (1, 1) and "CRC32C" in found["bad_blocks"][0]["problem"]
    pool.detach()


def test_clients_killed_at_any_moment_leave_nothing(daemon):
    chance = random.Random(int(os.environ.get("FABRICMGR_TEST_SEED", "1")))
    script = os.path.abspath(pool_client.__file__)
    running = []
    for i in range(30):
        flags = ["devices"] if i % 5 == 0 else []
        running.append(subprocess.Popen(
            [sys.executable, script, daemon.socket, str(i), *flags], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True))
        if len(running) < 3 and i < 29:
            continue
        victim = running.pop(chance.randrange(len(running)))
        assert victim.stdout.readline() == "churning\n", victim.stderr.read()
        time.sleep(chance.random() * 0.1)
        assert victim.poll() is None, victim.stderr.read()
        victim.kill()
        victim.communicate()
    for victim in running:
        assert victim.stdout.readline() == "churning\n", victim.stderr.read()
        victim.kill()
        victim.communicate()
    until(lambda: len(daemon.status()["clients"]) == 1)
    until(lambda: daemon.status()["blocks"]["quarantine"] == 0)
    status = daemon.status()
    assert status["blocks"]["staging"] == 0 and status["blocks"]["sealed"] > 0
    blocks = daemon.ctl("--json", "ls")
    assert len(blocks) == status["blocks"]["sealed"]
    assert status["used_bytes"] == sum((block["bytes"] + 4095) // 4096 * 4096 for block in blocks)
    assert daemon.ctl("--json", "verify")["bad"] == 0
    # Everything may be had again: no lease of the dead holds a block.
    pool = Pool(daemon.socket)
    pool.stage(4 << 20, 8)
    assert daemon.status()["blocks"] == {"sealed": 0, "staging": 8, "quarantine": 0,
                                         "offered": 0, "removed": 0}
    pool.detach()


def test_a_killed_daemon_is_noticed_and_held_memory_stays(daemon):
    pool = Pool(daemon.socket)
    block = pool.put(1, 100000)
    daemon.process.kill()
    daemon.process.wait()
    with pytest.raises(OSError) as failure:
        pool.stage(4096)
    assert failure.value.errno == -pool_client.DISCONNECTED
    assert not pool.lib.fm_pool_is_connected(pool.handle) & 1
    assert pool.verify(block) == 0
    assert ctypes.string_at(block.data, 100000) == bytes_of(1, 100000)
    pool.release(block)
    pool.detach()


def test_a_stopped_daemon_does_not_hold_a_caller_beyond_its_deadline(daemon):
    pool = Pool(daemon.socket)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        blocks = (pool_client.Block * 1)()
        result = pool.lib.fm_block_stage(pool.handle, ctypes.c_uint64(4096), ctypes.c_size_t(1),
                                         blocks, ctypes.c_uint64(100 * 1000 * 1000))
        assert result == -7 and time.monotonic() - start < 3
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    # What the late answer brought is given back, not leaked.
    assert pool.put(1, 4096)
    until(lambda: daemon.status()["blocks"]["staging"] == 0)
    pool.detach()


def test_a_seal_that_was_never_submitted_leaves_its_block_staged(daemon):
    pool = Pool(daemon.socket)
    pool.put(1, 4096)
    block = pool.stage(4096)[0]
    ctypes.memmove(block.data, bytes_of(2, 4096), 4096)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        half = 128  # of FM_RING_ENTRIES
        for _ in range(2):  # nobody takes these from the ring, so nothing else gets in
            blocks = (pool_client.Block * half)()
            assert pool.lib.fm_block_stage(pool.handle, ctypes.c_uint64(4096), ctypes.c_size_t(half),
                                           blocks, ctypes.c_uint64(1)) == -7
        assert pool.seal(block, 2) == -7 and block.data
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert pool.seal(block, 2) == 0 and pool.verify(block) == 0
    assert ctypes.string_at(block.data, 4096) == bytes_of(2, 4096)
    until(lambda: daemon.status()["blocks"]["staging"] == 0)
    daemon.ctl("evict")
    client = [one for one in daemon.status()["clients"] if one["pid"] == os.getpid()]
    assert [one["leases"] for one in client] == [2] and pool.match(1) == 1 and pool.match(2) == 1
    pool.detach()


def test_a_deadline_that_passes_costs_no_lease(daemon):
    """The daemon stands still; the request fails in time, and what is held stays held and whole."""
    pool = Pool(daemon.socket)
    ask = pool.lib.fm_pool_clients
    ask.restype = ctypes.c_int64
    pool.put(1, 100000)
    daemon.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    assert ask(pool.handle, None, ctypes.c_size_t(0)) == -7  # FM_ERR_DEADLINE
    assert 4 < time.monotonic() - start < 30
    assert b"did not answer in time" in pool.lib.fm_error_detail()
    assert b"wait and try again" in pool.lib.fm_error_detail()
    daemon.process.send_signal(signal.SIGCONT)
    # The late reply is not taken for the next one's: another question has another answer.
    assert pool.put(2, 5000) is not None
    assert ask(pool.handle, None, ctypes.c_size_t(0)) == 1
    assert pool.is_connected()
    daemon.ctl("evict")
    client = [one for one in daemon.status()["clients"] if one["pid"] == os.getpid()]
    assert [one["leases"] for one in client] == [2]
    assert pool.match(1) == 1 and pool.match(2) == 1
    pool.detach()
