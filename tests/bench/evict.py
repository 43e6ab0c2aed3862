# SPDX-License-Identifier: Apache-2.0
"""Token hit rate of the default policy against LRU and S3-FIFO on the committed traces.

`fabric-sim replay` is deterministic, so one run is one figure. The peer is the better of the two;
the goal closes 15 % of the way from it to the clairvoyant optimum. Where LRU reaches 0.98 of the
optimum there is nothing to win, and no goal.
"""
import json
import os
import subprocess
import sys

import frame

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data/traces")
TRACES = ("conversation-first-6000", "synthetic", "agentic")
SHARE, ENOUGH = 0.15, 0.98


def rows_of(program, trace, rooms):
    """{room: {policy: row}}"""
    out = subprocess.run([program, "replay", "--json", "--blocks", rooms, "--trace",
                          os.path.join(FOLDER, f"{trace}.jsonl.xz")], text=True, check=True,
                         stdout=subprocess.PIPE).stdout
    found = {}
    for line in out.splitlines():
        row = json.loads(line)
        found.setdefault(row["room"], {})[row["policy"]] = row
    return found


def main():
    parser = frame.arguments(__doc__.splitlines()[0])
    parser.add_argument("--traces", default=",".join(TRACES), help="which of the traces")
    parser.add_argument("--blocks", default="1000,10000,50000", help="rooms")
    options = parser.parse_args()
    bench = frame.Frame("evict")
    for trace in options.traces.split(","):
        for room, rows in rows_of(f"{options.bin}/fabric-sim", trace, options.blocks).items():
            rates = {policy: row["token_hit_rate"] for policy, row in rows.items()}
            ours, optimum = rates["density"], rates["optimum"]
            peer = max("lru", "s3fifo", key=rates.get)
            goal = None
            if rates["lru"] < ENOUGH * optimum:
                goal = 1 + SHARE * (optimum - rates[peer]) / rates[peer]
            metric = frame.Metric("of tokens", goal and float(f"{goal:.4g}"))
            bench.emit("token_hit_rate", metric, [(ours, rates[peer])], peer, None,
                       bench.others.share(),
                       {"trace": trace, "blocks": room, "optimum": optimum,
                        "gap_closed": rows["density"]["gap_closed"]})
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
