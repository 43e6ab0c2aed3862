# SPDX-License-Identifier: Apache-2.0
"""The Redis front end against redis-server: GET and SET of values of KV size by redis-benchmark, each
server alone on the machine while it is measured, over a Unix socket and over loopback TCP.
"""
import csv
import io
import socket
import subprocess
import sys
import tempfile
import time

from frame import Frame, Metric, arguments

VALUE = 2 << 20


class Server:
    """A started server; stopped while the other one is measured, so that neither pays for both."""

    def __init__(self, command, path, port):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.path, self.port = path, port
        end = time.monotonic() + 20
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(path)
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def where(self, transport):
        return ["-s", self.path] if transport == "unix" else ["-h", "127.0.0.1", "-p", str(self.port)]

    def measure(self, transport, size, clients, pipeline, n):
        """Requests a second, by test."""
        out = subprocess.run(["redis-benchmark", *self.where(transport), "-t", "set,get", "-n", str(n),
                              "-d", str(size), "-c", str(clients), "-P", str(pipeline), "-r", "64",
                              "--csv"], capture_output=True, text=True, check=True).stdout
        rows = list(csv.DictReader(io.StringIO(out)))
        return {row["test"].lower(): float(row["rps"]) for row in rows}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    options = arguments(__doc__.splitlines()[0], peers=True).parse_args()
    frame = Frame("resp")
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-") as folder:
        ports = free_port(), free_port()
        ours = Server([f"{options.bin}/fabricmgrd", "--socket", f"{folder}/pool", "--size", "768M",
                       "--redis", f"unix:{folder}/ours", "--redis", f"127.0.0.1:{ports[0]}"],
                      f"{folder}/ours", ports[0])
        theirs = Server([f"{options.peers}/bin/redis-server", "--unixsocket", f"{folder}/theirs", "--port",
                         str(ports[1]), "--save", "", "--appendonly", "no", "--dir", folder,
                         "--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru"],
                        f"{folder}/theirs", ports[1])
        try:
            for transport, size, clients, pipeline, n, goal in (
                    ("unix", VALUE, 1, 1, 300, 1.5), ("unix", VALUE, 4, 1, 300, 1.5),
                    ("tcp", VALUE, 1, 1, 300, None), ("tcp", VALUE, 4, 1, 300, None),
                    ("unix", 1024, 4, 16, 20000, None)):
                scale = size / 1e9
                unit = "GB/s" if size >= VALUE else "1/s"
                factor = scale if size >= VALUE else 1

                def run(server):
                    rates = server.measure(transport, size, clients, pipeline, n)
                    return {name: rate * factor for name, rate in rates.items()}

                frame.pairs(lambda: run(ours), lambda: run(theirs),
                            {name: Metric(unit, goal) for name in ("set", "get")}, "redis-server",
                            n=options.pairs, transport=transport, bytes=size, clients=clients,
                            pipeline=pipeline)
        finally:
            for server in (ours, theirs):
                server.process.terminate()
                server.process.wait()
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
