# SPDX-License-Identifier: Apache-2.0
"""Pool clients that are killed beside NVMe traffic, forked from one process that has loaded everything.

`nvme_clients.py SOCKET BEATS FAULTS` reads "SLOT SEED KIND" lines and answers each with the pid of a new
client, which puts, fetches and checks until it is killed; KIND: plain, devices (it says that devices write for
it), or adopter (it seals in memory of its own). It counts its calls in its slot of BEATS and the longest of
them, and writes what it finds wrong into FAULTS. A block's bytes follow from its number.
"""
import ctypes as c
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../process")

from every_call import EveryCall  # noqa: E402
from pool_client import DEVICES, Adopter, bytes_of  # noqa: E402

BEAT = struct.Struct("QQQ")  # calls, nanoseconds of the longest, bytes that were checked
SLOTS = 64
NUMBERS = 400
EXISTS, FULL, LIMIT, DEADLINE, DISCONNECTED, BUSY = 3, 5, 6, 7, 8, 16
OWN_CHUNKS, OWN_STEP = 2, 256 << 10


def length_of(n):
    return (3000, 30000, 200000)[n % 3]


class Client:
    def __init__(self, socket, slot, seed, flags, beats):
        self.socket, self.flags, self.beats, self.slot = socket, flags, beats, slot
        self.chance, self.pool, self.held, self.staged = random.Random(seed), None, [], []

    def timed(self, call, *arguments):
        start = time.monotonic_ns()
        try:
            return call(*arguments)
        finally:
            at = self.slot * BEAT.size
            calls, longest, checked = BEAT.unpack_from(self.beats, at)
            BEAT.pack_into(self.beats, at, calls + 1, max(longest, time.monotonic_ns() - start), checked)

    def attach(self):
        while True:
            try:
                self.pool = self.timed(EveryCall, self.socket, self.flags)
                return
            except OSError as error:
                if error.errno not in (DISCONNECTED, DEADLINE):
                    raise
                time.sleep(0.005)

    def leave(self):
        self.pool.detach()
        self.held, self.staged = [], []

    def check(self, n, data):
        if data is None:
            return
        if data != bytes_of(n, length_of(n)):
            raise AssertionError(f"a wrong byte in block {n}")
        calls, longest, checked = BEAT.unpack_from(self.beats, self.slot * BEAT.size)
        BEAT.pack_into(self.beats, self.slot * BEAT.size, calls, longest, checked + len(data))

    def step(self):
        n, what, pool = self.chance.randrange(NUMBERS), self.chance.random(), self.pool
        if what < 0.35:
            self.timed(self.chance.choice(list(pool.put_by.values())), n, length_of(n))
        elif what < 0.8:
            self.check(n, self.timed(self.chance.choice(list(pool.get_by.values())), n))
        elif what < 0.9:
            block = self.timed(pool.acquire, n)
            if block:
                self.held.append((n, block))
            if len(self.held) > 6:
                m, block = self.held.pop(self.chance.randrange(len(self.held)))
                self.check(m, c.string_at(block.data, block.length))
                pool.release(block)
        elif what < 0.997:
            self.staged.append(self.timed(pool.stage, length_of(n), self.chance.randrange(1, 4)))
            if len(self.staged) > 3:
                blocks = self.staged.pop(0)
                pool.lib.fm_block_discard(pool.handle, blocks, c.c_size_t(len(blocks)))
        else:
            self.timed(pool.remove, n)

    def run(self):
        self.attach()
        while True:
            time.sleep(0.0005)  # the tester needs a processor, too
            try:
                self.step()
            except OSError as error:
                if error.errno == DISCONNECTED:
                    self.leave()
                    self.attach()
                elif error.errno not in (FULL, DEADLINE):
                    raise


class OwnMemory(Client):
    """Seals over what lies in memory of its own; who reads there keeps a place from being written."""

    def attach(self):
        while True:
            try:
                self.pool = self.timed(Adopter, self.socket, OWN_CHUNKS)
                return
            except OSError as error:
                # Regions of the dead that somebody still reads in count, too.
                if error.errno not in (DISCONNECTED, DEADLINE, LIMIT):
                    raise
                time.sleep(0.005)

    def leave(self):
        super().leave()
        os.close(self.pool.fd)

    def step(self):
        n, pool = self.chance.randrange(NUMBERS), self.pool
        if self.chance.random() < 0.02:
            self.leave()
            self.attach()
            return
        offset = self.chance.randrange((OWN_CHUNKS << 22) // OWN_STEP) * OWN_STEP
        try:
            self.timed(pool.put_at, offset, n, length_of(n))
        except OSError as error:
            if error.errno == EXISTS:
                pool.discard()
            elif error.errno != BUSY:
                raise


KINDS = {"plain": (Client, 0), "devices": (Client, DEVICES), "adopter": (OwnMemory, 0)}


def main():
    socket, path, faults = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    with open(path, "r+b") as file:
        beats = mmap.mmap(file.fileno(), BEAT.size * SLOTS)
    for line in sys.stdin:
        slot, seed, kind = line.split()
        client, flags = KINDS[kind]
        pid = os.fork()
        if not pid:
            try:
                client(socket, int(slot), int(seed), flags, beats).run()
            except BaseException:  # pylint: disable=broad-except
                with open(faults, "a", encoding="utf-8") as file:
                    file.write(traceback.format_exc())
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
