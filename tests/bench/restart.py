# SPDX-License-Identifier: Apache-2.0
"""How long a killed daemon is away whose pool is full of 64 KiB blocks, under fabricmgr-holder.

From SIGKILL to the first client that is attached and finds the last block; and of that the part from
the start of the new process on. The peer is the goal of one second. PAIRS restarts are counted.
"""
import ctypes as c
import os
import signal
import subprocess
import sys
import tempfile
import time

import frame

LENGTH, BATCH = 65536, 64


def fill(pool, blocks):
    """Blocks of zeros under keys of their number; a seal reads each, as any seal does."""
    from pool_client import Seal, key_of
    for first in range(0, blocks, BATCH):
        staged = pool.stage(LENGTH, BATCH)
        seals = (Seal * BATCH)(*[Seal(c.pointer(block), key_of(first + i), None, 0)
                                 for i, block in enumerate(staged)])
        pool.check(pool.lib.fm_block_seal(pool.handle, bytes(32), seals, c.c_size_t(BATCH)))
        pool.lib.fm_block_release(pool.handle, staged, c.c_size_t(BATCH))


def started_at(pid):
    """On the monotonic clock, to a hundredth of a second."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks / frame.TICKS


def daemon_of(holder):
    with open(f"/proc/{holder}/task/{holder}/children", encoding="utf-8") as file:
        return int(file.read().split()[0])


def restart(holder, socket, blocks):
    from pool_client import Pool
    start = time.monotonic()
    os.kill(daemon_of(holder), signal.SIGKILL)
    while True:
        try:
            pool = Pool(socket)
            break
        except OSError:
            time.sleep(0.0005)
    found, end = pool.match(blocks - 1), time.monotonic()
    assert found == 1, "the last block is not there"
    from_start = end - (started_at(daemon_of(holder)) + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME))
    pool.detach()
    return end - start, from_start


def main():
    parser = frame.arguments(__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8, help="size of the pool (default 8)")
    options = parser.parse_args()
    os.environ["FABRICMGR_BIN"] = options.bin
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../process"))
    from pool_client import Pool
    bench = frame.Frame("restart")
    size = int(options.gib * 1024)
    blocks = (size << 20) // LENGTH // BATCH * BATCH
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-") as folder:
        socket = f"{folder}/pool.sock"
        holder = subprocess.Popen([f"{options.bin}/fabricmgr-holder", "--restarts", "1000",
                                   "--pause-max", "0", "--",
                                   f"{options.bin}/fabricmgrd", "--socket", socket, "--size",
                                   f"{size}M", "--log-level", "error"], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(socket):
                time.sleep(0.01)
            time.sleep(0.2)
            pool = Pool(socket)
            fill(pool, blocks)
            pool.detach()
            others, runs = frame.Others(), []
            for _ in range(options.pairs):
                runs.append(restart(holder.pid, socket, blocks))
            args = {"gib": options.gib, "blocks": blocks}
            for i, name in enumerate(("from_the_kill", "from_the_start")):
                bench.emit(name, frame.Metric("s", 1.0, smaller=True),
                           [(run[i], 1.0) for run in runs], "one second", None, others.share(), args)
        finally:
            holder.terminate()
            holder.wait()
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
