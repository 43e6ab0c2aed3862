# SPDX-License-Identifier: Apache-2.0
"""Looking up prehashed chains of 512 keys, and chains from token ids, against a variadic EXISTS of
512 keys of redis-server; both hot, one core each.
"""
import json
import socket
import subprocess
import sys
import tempfile
import time

from frame import Frame, Metric, arguments

KEYS = 512


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

            for chains, note in ((16, "hot"), (512, "262,144 blocks in random order")):
                def ours():
                    out = json.loads(subprocess.run([figures, "match", str(chains)], check=True,
                                                    capture_output=True).stdout)
                    return {"blocks_per_s_core": out["match"],
                            "blocks_per_s_core_tokens": out["match_tokens"]}

                frame.pairs(ours, exists, {"blocks_per_s_core": Metric("1/s", 2),
                                           "blocks_per_s_core_tokens": Metric("1/s")},
                            "redis-exists-512", n=options.pairs, index=note)
        finally:
            redis.terminate()
            redis.wait()
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
