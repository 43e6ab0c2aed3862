# SPDX-License-Identifier: Apache-2.0
"""Integer matrix products of each instruction-set path on one core, in multiply-adds a second, and as
a share of what the path's multiply instruction alone does in the same process.
"""
import json
import subprocess
import sys

from frame import Frame, Metric, arguments


def name(row):
    return f"{row['format']}_{row['rows']}x{row['columns']}_of_{row['tokens']}_{row['bits']}_bits"


class Path:
    """One path's figures; peak() is that of the run before."""

    def __init__(self, options, isa):
        self.command, self.last = [f"{options.bin}/../tests/bench/product_figures", isa], None

    def products(self):
        out = subprocess.run(self.command, check=False, capture_output=True, text=True)
        if out.returncode == 77:
            return None
        if out.returncode:
            sys.exit(out.stderr)
        self.last = json.loads(out.stdout)
        return {name(row): row["gmac"] for row in self.last["products"]}

    def peak(self):
        return {name(row): self.last["peak"] for row in self.last["products"]}


def main():
    options = arguments(__doc__.splitlines()[0]).parse_args()
    frame = Frame("products")
    for isa in ("avx512", "amx"):
        path = Path(options, isa)
        first = path.products()
        if first is None:
            frame.note(f"  SKIP: {isa}: not on this machine")
            continue
        frame.pairs(path.products, path.peak, {metric: Metric("GMAC/s") for metric in first},
                    "instruction alone", n=options.pairs, warm_up=0, isa=isa)
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
