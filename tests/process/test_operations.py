# SPDX-License-Identifier: Apache-2.0
"""fabricctl as an operator uses it: evict, invalidate, drain, snapshot, top; and who may not."""
import json
import os
import pty
import re
import select
import socket
import subprocess
import time

import pytest

import pool_client
from conftest import BIN

MIB = 1 << 20
DRAINING = -17


def ctl(system, *command, status=0, **more):
    out = subprocess.run([f"{BIN}/fabricctl", "--socket", system.socket, *command], text=True,
                         capture_output=True, check=False, timeout=60, **more)
    assert out.returncode == status, out
    return out.stdout if status == 0 else out.stderr


def filled(system, n, length=65536):
    """A pool with @n blocks that nobody holds, and the client that put them."""
    pool = pool_client.Pool(system.socket)
    for i in range(n):
        pool.release(pool.put(i, length))
    return pool


# ---- evict ----

def test_evict_frees_what_is_asked_for_and_the_oldest_first(system):
    system.daemon("64M")
    pool = filled(system, 640)  # 40 MiB, 64 blocks a chunk
    answer = system.control("evict", "10M")
    assert 10 * MIB <= answer["bytes"] <= 14 * MIB and answer["blocks"] == answer["bytes"] // 65536
    gone = [n for n in range(640) if not pool.match(n)]
    assert gone == list(range(answer["blocks"]))
    status = system.control("status")
    assert status["used_bytes"] == 40 * MIB - answer["bytes"]
    assert status["blocks"]["sealed"] == 640 - answer["blocks"]
    assert status["counters"]["evictions"] == answer["blocks"]
    text = ctl(system, "pool", "evict", "1")
    assert re.fullmatch(r"64 blocks evicted, 4\.0 MiB\n", text)
    pool.detach()


@pytest.mark.parametrize("length", [5000, 65536, 4 * MIB])
def test_evict_all_leaves_what_is_held_and_staged(system, length):
    system.daemon("256M")
    pool = filled(system, 50, length)
    held = [pool.acquire(n) for n in (3, 17, 30)]
    staged = pool.stage(length)[0]
    answer = system.control("evict")
    assert answer["blocks"] == 47
    assert [n for n in range(50) if pool.match(n)] == [3, 17, 30]
    for block in held:
        assert pool.verify(block) == 0
        pool.release(block)
    blocks = system.control("status")["blocks"]
    assert (blocks["sealed"], blocks["staging"]) == (3, 1)
    assert pool.seal(staged, 99) == 0
    pool.release(staged)
    assert system.control("evict")["blocks"] == 4
    assert system.control("evict") == {"blocks": 0, "bytes": 0}
    assert system.control("status")["used_bytes"] == 0
    pool.detach()


def test_evict_while_clients_work(system):
    daemon = system.daemon("64M")
    churners = [system.start("/usr/bin/python3", "-B", pool_client.__file__, system.socket, str(seed))
                for seed in range(3)]
    for churner in churners:
        churner.wait_for("churning")
    blocks = 0
    end = time.monotonic() + 3
    while time.monotonic() < end:
        blocks += system.control("evict", "8M")["blocks"]
    assert blocks > 0
    assert all(churner.process.poll() is None for churner in churners), churners[0].lines
    assert system.control("verify")["bad"] == 0
    assert daemon.stop() == 0


# ---- invalidate ----

def test_invalidate_removes_a_namespace(system):
    system.daemon("16M")
    pool = filled(system, 10)
    spaces = {block["namespace"] for block in system.control("ls")}
    assert spaces == {"0" * 32}
    assert system.control("invalidate", "0" * 31 + "1") == {"blocks": 0}
    held = pool.acquire(4)
    assert system.control("invalidate", "0" * 32) == {"blocks": 10}
    assert not any(pool.match(n) for n in range(10)) and pool.verify(held) == 0
    pool.release(held)
    assert ctl(system, "invalidate", "0" * 64).startswith("0 blocks removed")
    pool.detach()


@pytest.mark.parametrize("arguments, words", [
    (("invalidate",), ("invalidate", "32 or 64 hexadecimal")), (("invalidate", "abc"), ("abc", "32 or 64")),
    (("invalidate", "G" * 32), ("GG", "hexadecimal")), (("evict", "x"), ("evict x", "give a size")),
    (("evict", "0"), ("evict 0", "give a size")), (("evict", "1M", "2M"), ('"2M"', "one value")),
    (("drain", "now"), ('"now"', "one command")), (("pool",), ("one command",)),
    (("pool", "pool"), ('"pool"',)), (("pin",), ("pin", "32 hexadecimal", "and a time")),
    (("pin", "G" * 32, "1m"), ("GG", "32 hexadecimal")), (("pin", "0" * 32), ("pin KEY", "30s")),
    (("pin", "0" * 32, "5"), ("pin KEY 5", "30s")), (("pin", "0" * 32, "1000001d"), ("1000001d", "a million")),
    (("pin", "0" * 32, "m"), ("pin KEY m", "30s")), (("pin", "0" * 32, "1m", "x"), ('"x"', "two values"))])
def test_wrong_values_are_named(system, arguments, words):
    """Without a daemon, too: the words are looked at first."""
    said = ctl(system, *arguments, status=2)
    assert said.count("\n") == 1 and all(word in said for word in words), said


# ---- ls, pin ----

def test_ls_names_who_holds_a_block(system):
    system.daemon("64M")
    pool = filled(system, 400, 5000)
    reader = pool_client.Pool(system.socket, pool_client.READ_ONLY)
    held = [pool.acquire(n) for n in range(300)] + [reader.acquire(7), reader.acquire(399)]
    keys = [bytes(pool_client.key_of(n).bytes).hex() for n in range(400)]
    ids = {name: c.lib.fm_pool_client_id(c.handle) for name, c in (("pool", pool), ("reader", reader))}
    found = {block["key"]: block["held_by"] for block in system.control("ls")}
    for n, key in enumerate(keys):
        expected = [ids["pool"]] * (n < 300) + [ids["reader"]] * (n in (7, 399))
        assert found[key] == [{"client": client, "pid": os.getpid()} for client in expected], n
    text = ctl(system, "ls")
    assert re.search(rf"^{keys[7]} .* {ids['pool']}/{os.getpid()},{ids['reader']}/{os.getpid()}$", text, re.M)
    assert re.search(rf"^{keys[398]} .* -$", text, re.M)
    pool.lib.fm_pool_leases.restype = pool_client.c.c_int64
    count = [pool.lib.fm_pool_leases(pool.handle, number, None, pool_client.c.c_size_t(0)) for number in (ids["pool"], 9999)]
    assert count == [300, -2] and "no client 9999" in pool.lib.fm_error_detail().decode()
    for block in held[:300]:
        pool.release(block)
    for block in held[300:]:
        reader.release(block)
    assert not any(block["held_by"] for block in system.control("ls"))
    reader.detach()
    pool.detach()


def test_a_pinned_block_goes_last(system):
    system.daemon("16M", "--policy", "lru")
    pool = filled(system, 100)
    key = bytes(pool_client.key_of(3).bytes).hex()
    assert system.control("pin", key, "10m") == {"key": key, "seconds": 600}
    for n in range(100, 400):  # the pool has room for 256
        pool.release(pool.put(n, 65536))
    assert pool.match(3) and not pool.match(4) and not pool.match(99)
    assert ctl(system, "pool", "pin", key, "0").endswith("no longer pinned\n")
    for n in range(400, 700):
        pool.release(pool.put(n, 65536))
    assert not pool.match(3)
    key = bytes(pool_client.key_of(650).bytes).hex()
    system.control("pin", key, "2h")
    sealed = system.control("status")["blocks"]["sealed"]
    assert system.control("evict")["blocks"] == sealed > 100  # an order is above a wish
    assert "there is no block" in ctl(system, "pin", key, "1m", status=1)
    pool.detach()


# ---- drain ----

def test_drain_takes_nothing_new_and_lets_the_rest_go_on(system):
    daemon = system.daemon("16M", "--metrics", "127.0.0.1:0", "--redis", f"unix:{system.folder}/redis.sock")
    pool = filled(system, 10)
    staged, offered = pool.stage(5000, 2)
    assert system.control("drain") == {"is_draining": True}
    assert system.control("status")["is_draining"] is True
    assert ctl(system, "status").startswith("draining ")
    with pytest.raises(OSError, match="being drained and gives no new blocks") as caught:
        pool.stage(5000)
    assert caught.value.errno == -DRAINING
    with pytest.raises(OSError, match="takes no new clients.*fabricctl undrain") as caught:
        pool_client.Pool(system.socket)
    assert caught.value.errno == -DRAINING
    # What was there goes on.
    assert pool.seal(staged, 77) == 0 and pool.match(77) == 1
    block = pool.acquire(3)
    assert pool.verify(block) == 0
    pool.release(block)
    pool.lib.fm_block_discard(pool.handle, pool_client.c.byref(offered), pool_client.c.c_size_t(1))
    reader = pool_client.Pool(system.socket, pool_client.READ_ONLY)
    assert reader.match(77) == 1
    assert system.control("verify")["bad"] == 0
    assert "being drained" in ctl(system, "invalidate", "0" * 32, status=1)
    from test_redis import Wire
    wire = Wire(f"{system.folder}/redis.sock")
    assert isinstance(wire.ask("SET", "a", "b"), ValueError)
    port = int(daemon.wait_for(r"metrics: http://127\.0\.0\.1:(\d+)$")[1])
    import test_metrics
    assert test_metrics.values(port)["fabricmgr_pool_is_draining"] == 1
    assert system.control("undrain") == {"is_draining": False}
    assert wire.ask("SET", "a", "b") == "OK"
    pool.release(pool.put(100, 5000))
    pool_client.Pool(system.socket).detach()
    assert system.control("status")["is_draining"] is False
    wire.close()
    reader.detach()
    pool.detach()
    assert daemon.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_user_may_look_but_not_operate(system):
    os.chmod(system.folder, 0o755)
    system.daemon("16M", "--socket-mode", "0666")
    pool = filled(system, 5)
    other = {"user": 65534, "group": 65534, "extra_groups": []}
    for command in (("evict",), ("drain",), ("undrain",)):
        assert "root and the daemon's own user (uid 0), not for uid 65534" in \
            ctl(system, *command, status=1, **other)
    assert "5 sealed" in ctl(system, "status", **other)
    # Who does what is not everybody's to know.
    assert [block["held_by"] for block in json.loads(ctl(system, "ls", "--json", **other))] == [None] * 5
    assert ctl(system, "ls", **other).count(" ?\n") == 5
    assert system.control("status")["is_draining"] is False
    system.control("drain")
    assert "takes no new clients" in ctl(system, "status", status=1, **other)
    assert sum(pool.match(n) for n in range(5)) == 5
    pool.detach()


# ---- snapshot and top ----

def test_snapshot_has_it_all(system):
    system.daemon("16M")
    pool = filled(system, 3)
    found = system.control("snapshot")
    assert set(found) == {"time", "info", "status", "blocks"}
    assert abs(found["time"] - time.time()) < 60
    assert found["info"] == system.control("info") and len(found["blocks"]) == 3
    assert found["status"]["counters"] == system.control("status")["counters"]
    assert json.loads(ctl(system, "snapshot"))["blocks"] == found["blocks"]  # JSON without --json, too
    pool.detach()


def test_top_once_counts_what_happens_meanwhile(system):
    system.daemon("64M")
    pool = filled(system, 5)
    watcher = subprocess.Popen([f"{BIN}/fabricctl", "--socket", system.socket, "top", "--once", "--json"],
                               stdout=subprocess.PIPE, text=True)
    n = 1000
    while watcher.poll() is None:
        pool.release(pool.put(n, 5000))
        n += 1
        time.sleep(0.005)
    found = json.loads(watcher.stdout.read())
    watcher.stdout.close()
    assert 0.9 < found["seconds"] < 5
    assert 0 < found["each_second"]["seals"] * found["seconds"] <= n - 1000
    assert found["each_second"]["evictions"] == 0
    assert found["status"]["blocks"]["sealed"] >= 5
    text = ctl(system, "top", "--once")
    assert "each s" in text and re.search(r"plain +default +python3", text), text
    pool.detach()


class Screen:
    """fabricctl top on a terminal of its own."""

    def __init__(self, socket, term="xterm"):
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.execve(f"{BIN}/fabricctl", ["fabricctl", "--socket", socket, "top"],
                      {**os.environ, "TERM": term, "LINES": "24", "COLUMNS": "120"})
        self.text = ""

    def read_until(self, pattern, timeout=20):
        end = time.monotonic() + timeout
        while not re.search(pattern, self.text):
            assert select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0], self.text
            self.text += os.read(self.terminal, 65536).decode("utf-8", "replace")

    def end(self):
        """(exit status, what came last)"""
        rest = ""
        try:
            while data := os.read(self.terminal, 65536):
                rest += data.decode("utf-8", "replace")
        except OSError:
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), rest


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_is_a_screen_that_a_key_ends(system, key):
    system.daemon("16M")
    pool = filled(system, 5)
    screen = Screen(system.socket)
    screen.read_until(r"5 sealed")
    screen.read_until(r"q: end")
    pool.release(pool.put(50, 5000))
    screen.read_until(r"(?s)5 sealed.*6")
    os.write(screen.terminal, key)
    status, rest = screen.end()
    assert status == 0 and "\x1b[?1049l" in screen.text + rest  # the screen from before is back
    pool.detach()


def test_top_says_when_the_daemon_is_gone(system):
    daemon = system.daemon("16M")
    screen = Screen(system.socket)
    screen.read_until(r"q: end")
    assert daemon.stop() == 0
    status, rest = screen.end()
    assert status == 1 and "fabricctl: top: " in rest and "\x1b[?1049l" in rest


def test_top_without_a_terminal(system):
    system.daemon("16M")
    assert "--once" in ctl(system, "top", status=1, stdin=subprocess.DEVNULL)
    screen = Screen(system.socket, term="no-such-terminal")
    status, rest = screen.end()
    assert status == 1 and "--once" in rest


def test_nobody_fills_the_log(system):
    daemon = system.daemon("64M")
    for _ in range(300):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wire:
            wire.connect(system.socket)
            wire.send(b"nonsense")
            wire.recv(100)  # until it is turned away
    lines = [line for line in daemon.lines if line and "FM1106" in line]
    # A minute may have ended in between; each has its sixty.
    assert 60 <= len(lines) <= 120 and "left out until the minute is over" in lines[59], lines[55:]
    assert ctl(system, "status", "--json")
