# SPDX-License-Identifier: Apache-2.0
"""The Redis front end against redis-server: GET and SET of values of KV size by redis-benchmark and by a
client that works as LMCache's native one (a connection for each worker, one request at a time, values
sent from and received into their places), each server alone on the machine while it is measured, over a
Unix socket and over loopback TCP. Both clients also against a server that only moves bytes, which shows
how much of a ratio is the client's and the kernel's (Documentation/design/redis-values.md).
"""
import csv
import io
import json
import socket
import subprocess
import sys
import tempfile
import time

from frame import Frame, Metric, arguments

VALUE = 2 << 20


class Server:
    """A started server; stopped while the other one is measured, so that neither pays for both."""

    def __init__(self, command, path, port=0):
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

    def as_lmcache(self, figures, transport, workers):
        """Bytes a second, by test."""
        where = self.path if transport == "unix" else f"127.0.0.1:{self.port}"
        out = subprocess.run([figures, "client", where, str(workers), str(VALUE), "512"],
                             capture_output=True, text=True, check=True).stdout
        return json.loads(out)

    def stop(self):
        self.process.terminate()
        self.process.wait()

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


def compare(frame, pairs, figures, ours, theirs, bare):
    def both(run, peer, goal, unit, **args):
        frame.pairs(lambda: run(ours), lambda: run({"redis-server": theirs, "bare": bare}[peer]),
                    {name: Metric(unit, goal) for name in ("set", "get")}, peer, n=pairs, **args)

    for transport, size, clients, pipeline, n, goal, peers in (
            ("unix", VALUE, 1, 1, 300, 1.5, ("redis-server", "bare")),
            ("unix", VALUE, 4, 1, 300, 1.5, ("redis-server", "bare")),
            ("tcp", VALUE, 1, 1, 300, None, ("redis-server",)),
            ("tcp", VALUE, 4, 1, 300, None, ("redis-server",)),
            ("unix", 1024, 4, 16, 20000, None, ("redis-server",))):
        factor = size / 1e9 if size >= VALUE else 1

        def run(server):
            rates = server.measure(transport, size, clients, pipeline, n)
            return {name: rate * factor for name, rate in rates.items()}

        for peer in peers:
            both(run, peer, goal if peer == "redis-server" else None,
                 "GB/s" if size >= VALUE else "1/s", client="redis-benchmark",
                 transport=transport, bytes=size, clients=clients, pipeline=pipeline)
    for transport, peers in (("unix", ("redis-server", "bare")), ("tcp", ("redis-server",))):
        def run(server):
            return {name: rate / 1e9
                    for name, rate in server.as_lmcache(figures, transport, 2).items()}

        for peer in peers:
            both(run, peer, 1.5 if peer == "redis-server" else None, "GB/s", client="as LMCache",
                 transport=transport, bytes=VALUE, workers=2)


def main():
    options = arguments(__doc__.splitlines()[0], peers=True).parse_args()
    frame, figures = Frame("resp"), f"{options.bin}/../tests/bench/resp_figures"
    with tempfile.TemporaryDirectory(prefix="fabricmgr-bench-") as folder:
        ports = free_port(), free_port()
        ours = Server([f"{options.bin}/fabricmgrd", "--socket", f"{folder}/pool", "--size", "768M",
                       "--redis", f"unix:{folder}/ours", "--redis", f"127.0.0.1:{ports[0]}"],
                      f"{folder}/ours", ports[0])
        theirs = Server([f"{options.peers}/bin/redis-server", "--unixsocket", f"{folder}/theirs", "--port",
                         str(ports[1]), "--save", "", "--appendonly", "no", "--dir", folder,
                         "--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru"],
                        f"{folder}/theirs", ports[1])
        bare = Server([figures, "bare", f"{folder}/bare", str(VALUE)], f"{folder}/bare")
        try:
            compare(frame, options.pairs, figures, ours, theirs, bare)
        finally:
            for server in (ours, theirs, bare):
                server.stop()
    return frame.finish()


if __name__ == "__main__":
    sys.exit(main())
