# SPDX-License-Identifier: Apache-2.0
"""A process's own memory as a region of the pool: others read the very pages, also those of another user, and also
when its owner is killed; a daemon that takes the pool over takes none of it on trust."""
import ctypes as c
import fcntl
import os
import random
import signal
import socket as socketlib
import struct
import subprocess
import sys

import pytest

from conftest import BIN, TOP, frames, until
from pool_client import BUSY, DISCONNECTED, Adopter, Pool, bytes_of, hello

CHUNK = 4 << 20
LENGTH = 300000
OWNER = f"""
import sys; sys.path.insert(0, "{TOP}/tests/process")
from pool_client import Adopter, bytes_of
pool = Adopter(sys.argv[1], 2)
for n in range(8):
    pool.put_at(n * 524288, n, {LENGTH})
print("sealed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(name="daemon")
def fixture_daemon(system):
    return system.daemon("16M", "--memory", "memfd", "--adopted", "64M")


@pytest.fixture(name="owner")
def fixture_owner(system, daemon):
    assert daemon.pid
    process = subprocess.Popen([sys.executable, "-c", OWNER, system.socket], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "sealed\n"
    yield process
    process.kill()
    process.communicate()


def region_descriptor(socket, region):
    """What the daemon gives whoever asks for a region, by the protocol itself."""
    _, fds, link, _ = hello(socket)
    link.send(struct.pack("=IIIIiI IIII 48s 32s 64x", 0x31504d46, 1, 2, 184, 0, 0, 0, 0, region, 0, b"", b""))
    _, control, _, _ = link.recvmsg(65536, socketlib.CMSG_SPACE(64))
    for fd in fds:
        os.close(fd)
    assert control[0][1] == socketlib.SCM_RIGHTS
    return struct.unpack_from("=i", control[0][2])[0]


def mapped(pid="self"):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum("engine-kv" in line for line in maps)


def attaches(socket):
    try:
        return Pool(socket)
    except OSError:
        return None


def look(pool, n):
    block = pool.acquire(n)
    assert block and pool.verify(block) == 0
    assert c.string_at(block.data, block.length) == bytes_of(n, LENGTH)
    return block


def test_others_read_the_very_pages(system, owner):
    reader = Pool(system.socket)
    blocks = [look(reader, n) for n in range(8)]
    assert mapped() == 1
    if os.geteuid() == 0:
        for n in range(8):
            here, there = (frames(pid, n * 524288, LENGTH, "engine-kv") for pid in (os.getpid(), owner.pid))
            assert all(here) and here == there
    found = system.control("status")
    assert found["adopted"] == {"regions": 1, "region_bytes": 2 * CHUNK, "blocks": 8,
                                "bytes": 8 * ((LENGTH + 4095) // 4096 * 4096)}
    assert found["used_bytes"] == 0 and found["tenants"][0]["adopted_bytes"] == 2 * CHUNK
    text = subprocess.run([f"{BIN}/fabricctl", "--socket", system.socket, "status"], capture_output=True, text=True,
                          timeout=60, check=True).stdout
    assert "8.0 MiB in 1 regions of clients' own; 8 blocks" in text
    for block in blocks:
        reader.release(block)
    assert mapped() == 0


def test_an_owner_is_killed(system, owner):
    reader = Pool(system.socket)
    blocks = [look(reader, n) for n in (1, 5)]
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: reader.match(0) == 0)
    for block, n in zip(blocks, (1, 5)):
        assert reader.verify(block) == 0 and c.string_at(block.data, block.length) == bytes_of(n, LENGTH)
        assert reader.match(n) == 0
    assert system.control("status")["adopted"]["blocks"] == 2
    reader.release(blocks[0])
    until(lambda: system.control("status")["adopted"]["blocks"] == 1)
    assert mapped() == 1
    reader.release(blocks[1])
    assert mapped() == 0
    until(lambda: system.control("status")["adopted"]["regions"] == 0)
    daemon = system.started[0].pid
    until(lambda: not any("engine-kv" in os.readlink(f"/proc/{daemon}/fd/{fd}")
                          for fd in os.listdir(f"/proc/{daemon}/fd")
                          if os.path.lexists(f"/proc/{daemon}/fd/{fd}")))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_write_there(tmp_path, system):
    os.chmod(tmp_path.parent, 0o755)
    system.daemon("16M", "--memory", "memfd", "--adopted", "64M", "--socket-mode", "0666")
    os.chmod(os.path.dirname(system.socket), 0o755)
    os.seteuid(5001)
    try:
        owner = Adopter(system.socket, 1)
        owner.put_at(0, 1, LENGTH)
        os.seteuid(0)
        os.seteuid(5002)
        reader = Pool(system.socket)
        block = look(reader, 1)
        fd = region_descriptor(system.socket, 65)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
        os.close(fd)
        reader.release(block)
        # Nor can it have adopted what is another's.
        with pytest.raises(OSError, match="its owner adopts it"):
            Adopter(system.socket, 1, fd=owner.fd)
    finally:
        os.seteuid(0)


# Adopts, stages over what lies there, seals and releases until it is killed; each block's bytes follow from its key.
CHURN = f"""
import random, sys; sys.path.insert(0, "{TOP}/tests/process")
from pool_client import Adopter
chance = random.Random(int(sys.argv[2]))
while True:
    try:
        pool = Adopter(sys.argv[1], 2)
    except OSError as error:
        if error.errno != 6:  # regions that ended and are still read count, too
            raise
        continue
    print("adopted", flush=True)
    for _ in range(60):
        offset, n = chance.randrange(14) * 524288, chance.randrange(1000)
        try:
            pool.put_at(offset, n, {LENGTH})
        except OSError as error:
            if error.errno not in (3, 16):  # there already, held by a reader
                raise
            if error.errno == 3:
                pool.discard()
    pool.detach()
"""


def test_owners_that_are_killed_leave_nothing(system, daemon):
    reader, chance = Pool(system.socket), random.Random(5)
    owners, held, looks, before = [], {}, 0, mapped()
    for kills in range(24):
        while len(owners) < 2:
            process = subprocess.Popen([sys.executable, "-c", CHURN, system.socket, str(kills * 2 + len(owners))],
                                       stdout=subprocess.PIPE, text=True)
            assert process.stdout.readline() == "adopted\n"
            owners.append(process)
        for _ in range(chance.randrange(400)):
            n = chance.randrange(1000)
            if n in held:
                assert c.string_at(held[n].data, LENGTH) == bytes_of(n, LENGTH), "a wrong byte"
                reader.release(held.pop(n))
            elif block := reader.acquire(n):
                assert c.string_at(block.data, LENGTH) == bytes_of(n, LENGTH), "a wrong byte"
                held[n] = block
                looks += 1
            while len(held) > 3:
                reader.release(held.pop(next(iter(held))))
        victim = owners.pop(chance.randrange(2))
        assert victim.poll() is None
        victim.kill()
        victim.communicate()
    for process in owners:
        process.kill()
        process.communicate()
    for n, block in held.items():
        assert c.string_at(block.data, LENGTH) == bytes_of(n, LENGTH), "a wrong byte"
        reader.release(block)
    assert looks > 20 and mapped() == before
    until(lambda: system.control("status")["adopted"] == {"regions": 0, "region_bytes": 0, "blocks": 0, "bytes": 0})
    blocks = system.control("status")["blocks"]
    assert [blocks[state] for state in ("sealed", "staging", "removed", "quarantine")] == [0] * 4
    assert daemon.process.poll() is None


def test_a_daemon_that_is_restarted_knows_who_still_reads(system):
    holder = system.start(f"{BIN}/fabricmgr-holder", "--restarts", "100", "--", f"{BIN}/fabricmgrd", "--socket",
                          system.socket, "--size", "16M", "--memory", "memfd", "--adopted", "64M")
    holder.wait_for(r"\bready$")
    owner, reader = Adopter(system.socket, 2), Pool(system.socket)
    for n in range(4):
        owner.put_at(n * 524288, n, LENGTH)
    reader.put(100, LENGTH)
    block = look(reader, 2)
    os.kill(system.control("info")["daemon_pid"], signal.SIGKILL)
    until(lambda: not reader.is_connected())
    until(lambda: attaches(system.socket))
    again = Pool(system.socket)
    # What lay there is not believed, whoever asks; who holds some of it keeps that.
    assert [again.match(n) for n in range(4)] == [0] * 4 and again.match(100) == 1
    assert reader.verify(block) == 0 and c.string_at(block.data, block.length) == bytes_of(2, LENGTH)
    with pytest.raises(OSError) as gone:
        owner.put_at(0, 50, LENGTH)
    assert gone.value.errno == -DISCONNECTED
    # The same memory is not adopted again before, and other memory is.
    other = Adopter(system.socket, 1)
    other.put_at(0, 60, LENGTH)
    assert again.match(60) == 1
    with pytest.raises(OSError, match="still held") as busy:
        Adopter(system.socket, 2, fd=owner.fd)
    assert busy.value.errno == -BUSY
    reader.release(block)
    until(lambda: system.control("status")["adopted"]["regions"] == 1)
    back = Adopter(system.socket, 2, fd=owner.fd)
    # What lies there is sealed anew, without being written.
    back.seal_at(2 * 524288, 2, LENGTH)
    again.release(look(again, 2))

