# SPDX-License-Identifier: Apache-2.0
"""Put and verified get of 2 MiB by copy, against a copy of the same size (plain or streaming, the
faster), one core; and the time from acquire to the first byte of a block that is only mapped.
"""
import json
import subprocess
import sys

from frame import Frame, Metric, arguments

VALUE = 2 << 20


def main():
    options = arguments(__doc__.splitlines()[0]).parse_args()
    frame = Frame("put_get")
    figures = f"{options.bin}/../tests/bench/pool_figures"
    last = {}

    def run(what):
        out = subprocess.run([figures, what], check=True, capture_output=True).stdout
        return json.loads(out)

    def ours():
        last.update(run("put_get"))
        return {name: VALUE / last[name] / 1e9 for name in ("put", "get")}

    def limit():  # measured in turns within the same run
        return {name: VALUE / last["limit"] / 1e9 for name in ("put", "get")}

    frame.pairs(ours, limit, {name: Metric("GB/s", 0.9) for name in ("put", "get")}, "memcpy",
                n=options.pairs, bytes=VALUE)

    def mapped():
        out = run("get")
        return {"acquire_median": out["median"] * 1e6, "acquire_p99": out["p99"] * 1e6}

    # Goals in microseconds: the ratio is that of the goal to the time.
    frame.pairs(mapped, lambda: {"acquire_median": 2.0, "acquire_p99": 10.0},
                {name: Metric("us", 1, smaller=True) for name in ("acquire_median", "acquire_p99")},
                "goal", n=options.pairs, bytes=VALUE)
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
