# SPDX-License-Identifier: Apache-2.0
"""What a block costs in index and header, and the daemon's own memory (without the pool's) before and
after 10 million operations of a client on more blocks than the pool holds.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from frame import Frame, Metric, arguments

ENTRIES = 2048


def own_bytes(pid):
    """What a process has for itself alone: not the pool, its index and headers, which are shared."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return int(re.search(r"^RssAnon:\s+(\d+) kB", file.read(), re.M)[1]) << 10


def shared_bytes(pid, *names):
    found = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            found += any(f"memfd:{name}" in line for name in names) and end - start
    return found


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10_000_000)
    options = parser.parse_args()
    frame = Frame("memory")
    figures = f"{options.bin}/../tests/bench/memory_figures"
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-") as folder:
        path, (ready, write) = f"{folder}/pool.sock", os.pipe()
        daemon = subprocess.Popen(
            [f"{options.bin}/fabricmgrd", "--socket", path, "--size", "8M", "--memory", "memfd", "--entries",
             str(ENTRIES), "--ready-fd", str(write)], pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        try:
            if os.read(ready, 1) != b"r":
                raise SystemExit("fabricmgrd did not start")

            def block():
                return {"index_and_header": shared_bytes(daemon.pid, "fabricmgr-index", "fabricmgr-headers") /
                        ENTRIES}

            frame.pairs(block, lambda: {"index_and_header": 160.0},
                        {"index_and_header": Metric("B", 1, smaller=True)}, "goal", n=1, warm_up=0,
                        entries=ENTRIES)
            total, seen = {}, []

            def work(n, seed):
                out = json.loads(subprocess.run([figures, path, str(n), str(seed)], check=True,
                                                capture_output=True).stdout)
                for name, value in out.items():
                    total[name] = total.get(name, 0) + value
                seen.append(own_bytes(daemon.pid))
                frame.note(f"  {seen[-1]} bytes")

            # Warm: every entry was used, and what the policy remembers of others is full.
            work(max(options.operations // 10, 200_000), 1)
            pieces = 5
            for seed in range(pieces):
                work(options.operations // pieces, seed + 2)
            frame.pairs(lambda: {"daemon_own": seen[-1]}, lambda: {"daemon_own": seen[0]},
                        {"daemon_own": Metric("B", 0.99, smaller=True)}, "after the warm-up", n=1, warm_up=0,
                        operations=options.operations, most=max(seen), **total)
        finally:
            os.close(ready)
            daemon.terminate()
            daemon.wait()
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
