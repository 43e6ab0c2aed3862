# SPDX-License-Identifier: Apache-2.0
"""Looking up prehashed chains of 512 keys, and chains from token ids, against a variadic EXISTS of
512 keys of redis-server and batch_is_exist of 512 keys of Mooncake Store, both hot; one core each.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

from frame import Frame, Metric, arguments

KEYS, HERE = 512, os.path.dirname(os.path.abspath(__file__))


def main():
    options = arguments(__doc__.splitlines()[0], peers=True).parse_args()
    frame = Frame("match")
    figures = f"{options.bin}/../tests/bench/pool_figures"
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-") as folder:
        path = f"{folder}/redis"
        redis = subprocess.Popen([f"{options.peers}/bin/redis-server", "--unixsocket", path, "--port", "0",
                                  "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            for _ in range(200):
                try:
                    with socket.socket(socket.AF_UNIX) as wire:
                        wire.connect(path)
                        wire.sendall(b"".join(b"SET key:%d x\r\n" % i for i in range(KEYS)))
                        answer = b""
                        while answer.count(b"OK") < KEYS:
                            answer += wire.recv(65536)
                    break
                except OSError:
                    time.sleep(0.05)

            def exists():
                out = subprocess.run(["redis-benchmark", "-s", path, "-n", "4000", "-c", "2", "-P", "4",
                                      "--csv", "EXISTS", *(f"key:{i}" for i in range(KEYS))],
                                     capture_output=True, text=True, check=True).stdout
                rate = float(out.splitlines()[-1].split('","')[1].strip('"')) * KEYS
                return {"blocks_per_s_core": rate, "blocks_per_s_core_tokens": rate}

            def mooncake():
                out = subprocess.run([f"{options.peers}/mooncake/bin/python",
                                      f"{HERE}/mooncake_store.py", "own", "exist"], check=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
                rate = json.loads(out.splitlines()[-1])["exist"]
                return {"blocks_per_s_core": rate, "blocks_per_s_core_tokens": rate}

            def ours(chains):
                out = json.loads(subprocess.run([figures, "match", str(chains)], check=True,
                                                capture_output=True).stdout)
                return {"blocks_per_s_core": out["match"],
                        "blocks_per_s_core_tokens": out["match_tokens"]}

            def compare(chains, note, theirs, name, goals):
                frame.pairs(lambda: ours(chains), theirs,
                            {metric: Metric("1/s", goal) for metric, goal in
                             zip(("blocks_per_s_core", "blocks_per_s_core_tokens"), goals)},
                            name, n=options.pairs, index=note)

            compare(16, "hot", exists, "redis-exists-512", (2, None))
            compare(16, "hot", mooncake, "mooncake-batch-is-exist-512", (7, None))
            compare(16, "hot", lambda: {"blocks_per_s_core": 20e6, "blocks_per_s_core_tokens": 3e6},
                    "goal", (1, 1))

            def large():
                return {"blocks_per_s_core": json.loads(subprocess.run(
                    [f"{options.bin}/../tests/bench/index_figures", "8192"], check=True,
                    capture_output=True).stdout)["match"]}

            frame.pairs(large, lambda: {"blocks_per_s_core": 5e6},
                        {"blocks_per_s_core": Metric("1/s", 1)}, "goal", n=options.pairs,
                        index="4,194,304 blocks in random order")
        finally:
            redis.terminate()
            redis.wait()
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
