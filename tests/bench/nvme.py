# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier against fio on the same file system: blocks of 2 MiB, written behind a put and fetched
back, checksums included, with durability (fio: fdatasync as often as the tier) and without.

fio runs with io_uring, O_DIRECT, registered buffers and files, at depth 8 and 16, on a file that is
allocated and written before; the faster counts. --folder chooses the device.
"""
import json
import os
import subprocess
import sys
import tempfile

from frame import Frame, Metric, arguments

VALUE, BLOCKS, SEGMENT = 2 << 20, 256, 32


def fio(path, direction, depth, is_durable):
    more = ["--fdatasync", str(SEGMENT), "--end_fsync", "1"] if is_durable and direction == "write" else []
    out = subprocess.run(["fio", "--name=x", f"--filename={path}", f"--rw={direction}", "--bs=2M",
                          f"--size={VALUE * BLOCKS}", f"--iodepth={depth}", "--ioengine=io_uring",
                          "--direct=1", "--fixedbufs=1", "--registerfiles=1", "--overwrite=1",
                          "--output-format=json", *more],
                         capture_output=True, text=True, check=True).stdout
    job = json.loads(out[out.index("{"):])["jobs"][0]
    return job[direction]["bw_bytes"] / 1e9


def main():
    parser = arguments(__doc__.splitlines()[0], peers=True)
    parser.add_argument("--folder", default=".", help="on the device to measure (default: here)")
    options = parser.parse_args()
    frame = Frame("nvme")
    figures, rung = f"{options.bin}/../tests/bench/nvme_figures", None
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-", dir=options.folder) as folder:
        log, file = f"{folder}/log", f"{folder}/fio"
        for is_durable in (True, False):
            def ours():
                nonlocal rung
                out = json.loads(subprocess.run([figures, log, str(BLOCKS), str(int(is_durable))],
                                                check=True, capture_output=True).stdout)
                os.unlink(log)
                rung = out["rung"]
                return {name: out["bytes"] / out[name] / 1e9 for name in ("write", "read")}

            def theirs():
                return {name: max(fio(file, name, depth, is_durable) for depth in (8, 16))
                        for name in ("write", "read")}

            frame.pairs(ours, theirs, {"write": Metric("GB/s", 0.9), "read": Metric("GB/s", 0.95)},
                        "fio", n=options.pairs, rung=rung, durable=is_durable, bytes=VALUE)
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
