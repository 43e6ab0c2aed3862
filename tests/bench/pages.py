# SPDX-License-Identifier: Apache-2.0
"""What a reader gains by page-table entries of 2 MiB (hugetlb memfd, or a vault of one in the kernel module) over those of
4 KiB (memfd, or the module's chunks): match in an index, attention over KV blocks. Needs free huge pages, for the whole of it.
"""
import json
import subprocess
import sys

from frame import Frame, Metric, arguments


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="KV blocks of each kind")
    options = parser.parse_args()
    frame = Frame("pages")
    seen = {}

    def measure():
        out = subprocess.run([f"{options.bin}/../tests/bench/page_figures", str(options.mib)], check=True,
                             capture_output=True, text=True).stdout
        seen.update((row["kind"], row) for row in map(json.loads, out.splitlines()))

    def values(kind):
        return {name: seen[kind][name] for name in ("keys_per_s", "attention_us")}

    measure()
    metrics = {"keys_per_s": Metric("1/s", 1), "attention_us": Metric("us", smaller=True)}
    for huge, small in (("hugetlb", "memfd"), ("vault", "chunks")):
        if huge not in seen or small not in seen:
            frame.note(f"pages: not here: {huge} against {small} (sysctl vm.nr_hugepages; /dev/fabricmgr)")
            continue

        def ours(huge=huge):
            measure()
            return values(huge)

        frame.pairs(ours, lambda small=small: values(small), metrics, small, warm_up=0, rung=huge, kv_mib=options.mib,
                    index_mib=seen[huge]["index_mib"])
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
