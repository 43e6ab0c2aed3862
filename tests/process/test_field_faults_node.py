# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with KV pools in the field, a test for each kind (Documentation/field-faults.md).

Here: the processes of a node, its NVMe tier and its doors. Memory, holds, names and layouts:
test_field_faults.py.
"""
import ctypes as c
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

import pytest

from conftest import BIN, until
from every_call import GET, LONGEST, SECONDS, EveryCall
from held_device import FSYNC, READ, WRITE, HeldDevice, can_hold
from pool_client import DISCONNECTED, LIB, READ_ONLY, Block, Options, Pool, bytes_of, key_of

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
BLOCK = 65536
DEADLINE, VERSION, CANCELLED = -7, -10, -15


def nvme(system):
    return system.control("status")["nvme"]


def child(work):
    """Runs work(write) in a forked child; what it wrote, as text, and its pid."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            work(lambda text: os.write(write, text.encode()))
        except BaseException:  # pylint: disable=broad-except
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    return pid, os.fdopen(read, encoding="utf-8")


# ---- the NVMe tier ----

def settled(system):
    """How many blocks the log took or skipped."""
    state = nvme(system)
    return state["stored"] + state["skipped"]


def store(system, pool, n, length):
    """Puts it until the log has it: what is not written in time is skipped, not waited for."""
    before = nvme(system)["stored"]
    while True:
        ended = settled(system)
        assert pool.put_copied(n, length) == 0
        until(lambda: settled(system) > ended)
        if nvme(system)["stored"] > before:
            return
        assert pool.remove(n) == 1


def test_a_full_nvme_tier_makes_room_and_takes_on(system):
    """More than the log holds: every put goes through, the oldest make room, the newest are there."""
    system.daemon("16M", "--nvme", f"{system.folder}/log", "--nvme-size", "320M", "--nvme-durable", "no")
    pool, length = EveryCall(system.socket), 4 * MIB
    n = nvme(system)["segments"] * 64 // 4 + 20
    for i in range(n):
        store(system, pool, i, length)
    state = nvme(system)
    assert state["reclaimed"] > 0 and not state["is_dead"] and state["write_errors"] == 0, state
    assert pool.get_fetched(n - 1) == bytes_of(n - 1, length)
    found = [i for i in range(n - 20, n) if pool.get_fetched(i) == bytes_of(i, length)]
    assert len(found) == 20
    assert pool.get_fetched(0) is None
    pool.detach()


@pytest.fixture
def held(system):
    if not can_hold():
        pytest.skip("needs root, /dev/fuse and loop devices, for a device that stands still")
    device = HeldDevice(f"{system.folder}/held", 320 * MIB)
    yield device
    # Before the daemon is killed: it could not end while the device has its requests.
    device.let_go()
    for process in system.started:
        process.kill()
        process.process.wait()
    device.end()


@pytest.mark.parametrize("length", [BLOCK, 4 * MIB])
def test_while_the_nvme_device_is_stuck_puts_and_hits_go_on(system, held, length):
    """Above the pool's capacity, with a device that answers nothing; and then it answers again."""
    system.daemon("16M", "--nvme", held.device)
    pool = EveryCall(system.socket)
    assert "io_uring" in nvme(system)["rung"]
    pool.put_copied(0, length)
    until(lambda: nvme(system)["stored"] == 1)
    held.hold(WRITE, FSYNC)
    n = 5 * 16 * MIB // length
    for i in range(1, n):
        assert pool.put_copied(i, length) == 0
        assert pool.get_copied(i) == bytes_of(i, length)
    held.wait_held()
    state = nvme(system)
    assert state["stored"] == 1 and state["writing_bytes"] > 0
    held.let_go()
    until(lambda: settled(system) == n and not nvme(system)["writing_bytes"])
    stored = nvme(system)["stored"]
    assert pool.put_copied(n, length) == 0
    until(lambda: nvme(system)["stored"] > stored)
    state = nvme(system)
    assert state["write_errors"] == 0 and not state["is_dead"], state
    system.control("evict")
    assert pool.match(n) == 0 and pool.get_fetched(n) == bytes_of(n, length)
    pool.detach()


def test_while_the_nvme_device_is_stuck_a_fetch_ends_at_its_deadline(system, held):
    """And neither it nor a cancelled one writes into the caller's memory, however late the device answers."""
    system.daemon("16M", "--nvme", held.device)
    pool = EveryCall(system.socket)
    for i in range(8):
        pool.put_copied(i, BLOCK)
    until(lambda: nvme(system)["stored"] == 8)
    system.control("evict")
    held.hold(READ)
    start = time.monotonic()
    got = pool.lib.fm_pool_fetch(pool.handle, c.byref(key_of(0)), c.c_size_t(1), c.c_uint64(300 * 10**6))
    assert got in (0, -7) and time.monotonic() - start < 20, got
    held.wait_held()
    assert pool.get_copied(0) is None
    # Others are served meanwhile.
    assert pool.put_copied(100, BLOCK) == 0 and pool.get_copied(100) == bytes_of(100, BLOCK)
    c.memset(pool.room, 0xa5, LONGEST)
    gets = [pool.parts_of(i) for i in (1, 2)]
    late = pool.submit(GET, deadline_ns=300 * 10**6, gets=c.pointer(gets[0]))
    done = pool.collect()
    assert done.id == late and done.result in (0, DEADLINE) and gets[0].copied == 0
    reading = nvme(system)["reading_bytes"]
    cancelled = pool.submit(GET, gets=c.pointer(gets[1]), deadline_ns=60 * SECONDS)
    until(lambda: nvme(system)["reading_bytes"] > reading)
    assert pool.lib.fm_queue_cancel(pool.queue, c.c_uint64(cancelled)) == 0
    done = pool.collect()
    assert (done.id, done.result, gets[1].copied) == (cancelled, CANCELLED, 0)
    held.let_go()
    until(lambda: pool.match(0) == 1)
    assert [pool.fetch(i) for i in (1, 2)] == [1, 1]
    pool.end_queue()
    assert pool.room.raw == b"\xa5" * LONGEST
    # And it is where a get writes.
    pool.begin_queue()
    assert [pool.get_queued(i) for i in range(3)] == [bytes_of(i, BLOCK) for i in range(3)]
    pool.detach()


# ---- the daemon goes, stops, returns ----

def test_a_client_finds_the_daemon_again_on_the_same_socket(system):
    daemon, other = system.daemon("16M"), None
    pool = EveryCall(system.socket)
    pool.put_copied(1, BLOCK)
    for life in range(3):
        daemon.kill()
        daemon.process.wait()
        until(lambda: not pool.lib.fm_pool_is_connected(pool.handle) & 1)
        with pytest.raises(OSError, match="attach again") as caught:
            pool.put_copied(2, BLOCK)
        assert caught.value.errno == -DISCONNECTED
        # For a moment the kernel may still take connections for the dead one.
        with pytest.raises(OSError, match="start fabricmgrd|attach again"):
            Pool(system.socket)
        daemon = system.daemon("16M")
        pool.detach()
        pool = EveryCall(system.socket)
        assert pool.put_copied(10 + life, BLOCK) == 0 and pool.get_copied(10 + life)
    other = EveryCall(system.socket, READ_ONLY)
    assert other.get_copied(12) == bytes_of(12, BLOCK)
    for each in (pool, other):
        each.detach()


def test_a_restarted_daemon_reuses_no_memory_that_a_reader_holds(system):
    """The reader keeps its bytes while the next daemon fills all that it has with others."""
    daemon = system.daemon("16M")
    reader = EveryCall(system.socket)
    blocks = [reader.put(n, BLOCK) for n in range(100)]
    daemon.kill()
    daemon.process.wait()
    daemon = system.daemon("16M")
    writer = EveryCall(system.socket)
    for n in range(1000, 1600):
        writer.put_copied(n, BLOCK)
    for n, block in enumerate(blocks):
        assert reader.verify(block) == 0 and c.string_at(block.data, BLOCK) == bytes_of(n, BLOCK)
        reader.release(block)
    for pool in (reader, writer):
        pool.detach()


def test_a_frozen_daemon_delays_no_hit(system):
    """More than a ring holds: what tells the daemon of uses may be lost, not waited for."""
    daemon = system.daemon("16M")
    pool = EveryCall(system.socket)
    for n in range(100):
        pool.put_copied(n, BLOCK)
    daemon.kill(signal.SIGSTOP)
    try:
        start = time.monotonic()
        for n in range(3000):
            assert pool.match(n % 100) == 1
            block = pool.acquire(n % 100)
            assert block
            pool.release(block)
        assert pool.get_copied(7) == bytes_of(7, BLOCK)
        assert pool.match(1234) == 0 and pool.get_copied(1234) is None
        assert time.monotonic() - start < 60  # a wait for the daemon is 5 s each
    finally:
        daemon.kill(signal.SIGCONT)
    assert pool.put_copied(500, BLOCK) == 0
    pool.detach()


EVERY_FUNCTION = """
fm_pool_match fm_pool_acquire fm_group_acquire fm_pool_fetch fm_pool_get fm_pool_get_parts fm_pool_put
fm_pool_put_parts fm_pool_remove fm_pool_invalidate fm_block_stage fm_block_seal fm_group_seal
fm_block_verify fm_block_offer fm_block_adopt fm_block_hint fm_pool_info fm_pool_walk fm_pool_clients
fm_pool_leases fm_pool_evict fm_pool_drain fm_pool_tenants fm_queue_create fm_layers_begin fm_layers_seal
fm_layers_join fm_layers_wait fm_pool_match_tokens fm_pool_set_quotas
""".split()


def test_a_library_without_a_daemon_gives_named_errors(system):
    """No daemon, no pool, a pool whose daemon died: every call says so; none crashes."""
    lib = c.CDLL(LIB)
    lib.fm_error_detail.restype = lib.fm_error_name.restype = c.c_char_p
    zeros = [c.c_uint64(0)] * 8
    for name in EVERY_FUNCTION:
        result = c.c_int32(getattr(lib, name)(None, *zeros)).value
        assert result == -1 and "no pool was given" in lib.fm_error_detail().decode(), name
    for nothing in ("fm_pool_detach", "fm_block_release", "fm_block_discard", "fm_queue_destroy"):
        getattr(lib, nothing)(None, *zeros)
    handle = c.c_void_p()
    options = Options(Options.tenant.offset, 0, f"{system.folder}/none".encode(), -1, 0, None, 0)
    assert lib.fm_pool_attach(c.byref(options), c.byref(handle)) == DISCONNECTED
    assert lib.fm_error_name(DISCONNECTED) == b"FM_ERR_DISCONNECTED"
    assert "start fabricmgrd or name another socket" in lib.fm_error_detail().decode()
    assert not handle.value

    daemon = system.daemon("16M")
    pool = EveryCall(system.socket)
    held = pool.put(1, BLOCK)
    staged = pool.stage(BLOCK)[0]
    daemon.kill()
    daemon.process.wait()
    for way, write in pool.put_by.items():
        with pytest.raises(OSError) as caught:
            write(5, BLOCK)
        assert caught.value.errno == -DISCONNECTED, way
    for way, read in pool.get_by.items():
        with pytest.raises(OSError) as caught:
            read(1)
        assert caught.value.errno == -DISCONNECTED, way
    assert pool.seal(staged, 9) == DISCONNECTED
    pool.lib.fm_block_discard(pool.handle, c.byref(staged), c.c_size_t(1))
    assert pool.verify(held) == 0
    pool.release(held)
    pool.detach()


HEAD = struct.Struct("<IIIIiI")
MAGIC = 0x31504d46


@pytest.mark.parametrize("answer, code, words", [
    (b"", DISCONNECTED, "gone"),
    (b"hello", VERSION, "not a fabricmgr daemon"),
    (bytes(600), VERSION, "not a fabricmgr daemon"),
    (HEAD.pack(MAGIC, 2, 1, 24, 0, 0), VERSION, "version 2 of the protocol"),
    (HEAD.pack(MAGIC, 1, 1, 24, 0, 0), VERSION, "the protocol"),
    (HEAD.pack(MAGIC, 1, 1, 280, -10, 0) + b"this daemon speaks versions 3 to 4".ljust(256, b"\0"), VERSION,
     "speaks versions 3 to 4"),
    (None, -7, "did not answer in time"),
], ids=["closes", "text", "zeros", "version-2", "short", "refuses", "silent"])
def test_a_stranger_on_the_socket_or_another_version_is_named(system, answer, code, words):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(system.socket)
    listener.listen()
    links = []

    def serve():
        link = listener.accept()[0]
        links.append(link)
        link.recv(65536)
        if answer is None:
            return
        if answer:
            link.send(answer)
        link.close()

    thread = threading.Thread(target=serve)
    thread.start()
    lib = c.CDLL(LIB)
    lib.fm_error_detail.restype = c.c_char_p
    handle = c.c_void_p()
    options = Options(Options.tenant.offset, 0, system.socket.encode(), -1, 0, None, 300 * 10**6)
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    got = lib.fm_pool_attach(c.byref(options), c.byref(handle))
    for descriptor in spare:
        os.close(descriptor)  # none of ours was closed with the attachment
    assert os.fstat(0) and os.fstat(1) and os.fstat(2)
    assert got == code and words in lib.fm_error_detail().decode(), (got, lib.fm_error_detail())
    thread.join()
    for link in links:
        link.close()
    listener.close()


@pytest.mark.parametrize("size", [0, 4, 12])
def test_structures_of_an_unknown_size_are_refused(system, size):
    system.daemon("16M")
    pool = Pool(system.socket)
    info = (c.c_uint32 * 512)(size)
    assert pool.lib.fm_pool_info(pool.handle, info) == -1
    handle = c.c_void_p()
    options = Options(size, 0, system.socket.encode(), -1, 0, None, 0)
    assert pool.lib.fm_pool_attach(c.byref(options), c.byref(handle)) == -1 and not handle.value
    assert "size" in pool.lib.fm_error_detail().decode()
    pool.detach()


# ---- clients come and go ----

def test_sixty_four_clients_at_once_have_ids_and_answers_of_their_own(system):
    daemon = system.daemon("64M", "--entries", "4096")
    start_read, start_write = os.pipe()

    def work(tell):
        os.close(start_write)
        os.read(start_read, 1)  # until all are there
        pool = EveryCall(system.socket)
        number = pool.lib.fm_pool_client_id(pool.handle)
        for i in range(20):
            assert pool.put_copied(number * 1000 + i, 3000 + number) == 0
        for i in range(20):
            n = number * 1000 + i
            for way in ("get", "acquire", "queue get"):
                assert pool.get_by[way](n) == bytes_of(n, 3000 + number)
        block = pool.acquire(number * 1000)
        assert block.origin == number
        tell(str(number))
        pool.detach()

    children = [child(work) for _ in range(64)]
    os.close(start_read)
    os.close(start_write)
    ids = []
    for pid, pipe in children:
        with pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        assert text.isdigit(), text
        ids.append(int(text))
    assert len(set(ids)) == 64
    until(lambda: len(system.control("status")["clients"]) == 1)
    assert system.control("verify")["bad"] == 0 and daemon.process.poll() is None


def test_what_a_dead_writer_had_staged_keeps_nobody_from_putting_it(system):
    """The next put of that key is stored, and found: at once, not when a time has passed."""
    system.daemon("16M")

    def work(tell):
        pool = EveryCall(system.socket)
        block = pool.stage(BLOCK)[0]
        c.memmove(block.data, b"half", 4)
        tell("staged\n")
        time.sleep(600)

    pid, pipe = child(work)
    with pipe:
        assert pipe.readline() == "staged\n"
    pool = EveryCall(system.socket)
    assert pool.get_copied(5) is None
    os.kill(pid, signal.SIGKILL)
    assert pool.put_copied(5, BLOCK) == 0
    assert pool.get_copied(5) == bytes_of(5, BLOCK)
    os.waitpid(pid, 0)
    until(lambda: system.control("status")["blocks"]["staging"] == 0)
    pool.detach()


@pytest.mark.parametrize("flag, address, words", [
    *(("--redis", address, "IPv4 address and port, as 127.0.0.1:6379") for address in (
        "[::1]:6379", "::1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0x50", "127.0.0.1:65536", "no.such.host:1")),
    *(("--metrics", address, "give host:port, such as 127.0.0.1:8080") for address in (
        "127.0.0.1", "127.0.0.1:", "127.0.0.1:0x50", "127.0.0.1:65536", ":")),
    *((flag, f"{host}:9464", "not loopback") for flag, hosts in (
        ("--redis", ("0.0.0.0",)), ("--metrics", ("0.0.0.0", "[::]"))) for host in hosts),
])
def test_addresses_that_cannot_be_are_refused_with_words(system, flag, address, words):
    out = subprocess.run([f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M", flag, address],
                         capture_output=True, text=True, check=False, timeout=30)
    assert out.returncode in (1, 2) and address in out.stderr and words in out.stderr, out.stderr
    assert out.stderr.count("\n") == 1 and os.listdir(system.folder) == []


def test_addresses_by_name_and_of_either_family_serve(system):
    """A port of 0 is any free one, and told: nobody has to look for one and lose it."""
    for host in ("localhost", "127.0.0.1", "[::1]"):
        daemon = system.daemon("16M", "--metrics", f"{host}:0")
        port = int(daemon.wait_for(r"metrics: .*:(\d+)$")[1])
        with socket.create_connection((host.strip("[]"), port), timeout=20) as link:
            link.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert link.recv(5) == b"HTTP/"
        assert daemon.stop() == 0


LOOK_UP = """
import ctypes as c, os, sys
sys.path.insert(0, sys.argv[1])
from pool_client import Key, Pool, READ_ONLY, key_of, Block
pool = Pool(sys.argv[2], READ_ONLY)
keys, blocks, n = (Key * 512)(*(key_of(i) for i in range(512))), (Block * 512)(), c.c_size_t(512)
match, acquire, release = pool.lib.fm_pool_match, pool.lib.fm_pool_acquire, pool.lib.fm_block_release
def work():
    for _ in range(50):
        assert match(pool.handle, keys, n) == 512 == acquire(pool.handle, keys, n, blocks)
        release(pool.handle, blocks, n)
work()
os.getppid()
work()
os.getppid()
"""


def test_a_look_up_waits_for_nobody(system):
    """So no server limits how many there are a second: 50 times 512 blocks, matched, leased, released. The only
    system call is the one that wakes a daemon that sleeps, for it to learn what was used: at most one a lease."""
    system.daemon("64M")
    pool = EveryCall(system.socket)
    for n in range(512):
        block = pool.stage(4096)[0]
        assert pool.seal(block, n) == 0
        pool.release(block)
    trace = f"{system.folder}/trace"
    subprocess.run(["strace", "-f", "-o", trace, sys.executable, "-B", "-c", LOOK_UP, HERE, system.socket],
                   check=True, timeout=120, env={**os.environ, "FABRICMGR_BIN": BIN})
    with open(trace, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    first, last = (i for i, line in enumerate(lines) if re.search(r"\bgetppid\(", line))
    ours = [line for line in lines[first + 1:last] if not re.search(r"\b(brk|mmap|munmap|madvise)\(", line)]
    # Of an eventfd, whose counter never comes near its end.
    assert all(re.search(r"\bwrite\(\d+, .*, 8\) += 8$", line) for line in ours) and len(ours) <= 50, ours[:5]
    pool.detach()


def test_a_second_reader_of_the_same_address_space_is_told_from_the_first(system):
    """Two attachments of one process: what one gives back stays the other's."""
    system.daemon("16M")
    first, second = EveryCall(system.socket), EveryCall(system.socket)
    first.put_copied(1, BLOCK)
    a, b = first.acquire(1), second.acquire(1)
    first.release(a)
    holders = system.control("ls")[0]["held_by"]
    assert [who["client"] for who in holders] == [second.lib.fm_pool_client_id(second.handle)]
    assert isinstance(b, Block) and second.verify(b) == 0
    second.release(b)
    for pool in (first, second):
        pool.detach()
