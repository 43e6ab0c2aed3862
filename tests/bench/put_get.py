# SPDX-License-Identifier: Apache-2.0
"""Put and verified get of 2 MiB by copy, against a copy of the same size (plain or streaming, the
faster), one core, and against Mooncake Store, which copies within its own segment or over loopback
from another process's (and checks nothing). The time from acquire to the first byte of a block that
is only mapped, by a client that mapped its pages as it attached, and by one that did not. A seal.
"""
import json
import os
import subprocess
import sys

from frame import Frame, Metric, arguments

VALUE, HERE = 2 << 20, os.path.dirname(os.path.abspath(__file__))


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--peers", help="folder of the peers' programs (default: no peers)")
    options = parser.parse_args()
    frame = Frame("put_get")
    figures = f"{options.bin}/../tests/bench/pool_figures"
    last = {}

    def run(*what):
        out = subprocess.run([figures, *what], check=True, capture_output=True).stdout
        return json.loads(out)

    def ours():
        last.update(run("put_get"))
        return {name: VALUE / last[name] / 1e9 for name in ("put", "get")}

    def limit():  # measured in turns within the same run
        return {name: VALUE / last["limit"] / 1e9 for name in ("put", "get")}

    frame.pairs(ours, limit, {name: Metric("GB/s", 0.9) for name in ("put", "get")}, "memcpy",
                n=options.pairs, bytes=VALUE)

    def mooncake(where):
        out = json.loads(subprocess.run(
            [f"{options.peers}/mooncake/bin/python", f"{HERE}/mooncake_store.py", where, "put_get"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        return {name: VALUE / out[name] / 1e9 for name in ("put", "get")}

    for where, goal in (("own", 1.3), ("loopback", 5)) if options.peers else ():
        frame.pairs(ours, lambda: mooncake(where), {name: Metric("GB/s", goal) for name in
                                                    ("put", "get")},
                    f"mooncake-{where}", n=options.pairs, bytes=VALUE)

    # Goals in microseconds: the ratio is that of the goal to the time.
    for prefault in (1, 0):
        def mapped():
            out = run("get", str(prefault))
            last["attach"] = round(out["attach"] * 1e3, 1)
            return {"acquire_median": out["median"] * 1e6, "acquire_p99": out["p99"] * 1e6}

        frame.pairs(mapped, lambda: {"acquire_median": 2.0, "acquire_p99": 10.0},
                    {name: Metric("us", prefault, smaller=True)
                     for name in ("acquire_median", "acquire_p99")},
                    "goal", n=options.pairs, bytes=VALUE, prefaulted=bool(prefault),
                    attach_ms_of_128_mib=lambda: last["attach"])

    def seal():
        out = run("seal")
        return {"checksum": out["checksum"] / 1e9, "seal_besides": out["besides"] * 1e6}

    frame.pairs(seal, lambda: {"checksum": 20.0, "seal_besides": 3.0},
                {"checksum": Metric("GB/s", 1), "seal_besides": Metric("us", 1, smaller=True)},
                "goal", n=options.pairs)
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
