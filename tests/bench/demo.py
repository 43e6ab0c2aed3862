# SPDX-License-Identifier: Apache-2.0
"""A disaggregated fleet (daemon, prefill worker, decode worker, router) against one `serve`.

The same prompts of random tokens to both, each with as many threads in every program. The fleet's
router sends every prompt to the prefill worker (no bypass); what that worker itself counted as
computed is part of each line. "cold": nothing of the prompt is cached. "warm": the same prompt with
another question at its end. "cpu": seconds of the CPU that all programs of a side took for the cold
answer, which other work on the machine hardly changes.
"""
import contextlib
import ctypes
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import frame

READY_S = 120
LIBC = ctypes.CDLL(None, use_errno=True)


class Programs:
    """Starts programs in a folder of their own and ends them all, whatever happens to this one."""

    def __init__(self, options):
        self.engine, self.daemon = f"{options.bin}/fabric-engine", f"{options.bin}/fabricmgrd"
        self.model, self.threads = options.model, str(options.threads)
        self.folder = tempfile.TemporaryDirectory(prefix="fabricmgr-bench-")
        self.running = []

    def start(self, name, *command):
        """The program's output file, once a line says that it is ready."""
        path = f"{self.folder.name}/{name}.log"
        with open(path, "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       preexec_fn=lambda: LIBC.prctl(1, signal.SIGKILL, 0, 0, 0))
        self.running.append(process)
        late = time.monotonic() + READY_S
        while True:
            ended = process.poll() is not None
            with open(path, encoding="utf-8", errors="replace") as log:
                text = log.read()
            if re.search(r"\bready$", text, re.M):
                return text
            if ended:
                sys.exit(f"{name} ended with status {process.returncode}:\n{text[-2000:]}")
            if time.monotonic() > late:
                sys.exit(f"{name} was not ready within {READY_S} s:\n{text[-2000:]}")
            time.sleep(0.01)

    def worker_options(self):
        return ["-m", self.model, "-t", self.threads]

    def fleet(self):
        socket, roles = f"{self.folder.name}/pool.sock", ("prefill", "decode")
        addresses = {role: f"unix:{self.folder.name}/{role}.sock" for role in roles}
        self.start("daemon", self.daemon, "--socket", socket, "--size", "512M")
        for role in roles:
            self.start(role, self.engine, "worker", "--role", role, *self.worker_options(),
                       "--pool-socket", socket, "--listen", addresses[role])
        text = self.start("router", self.engine, "router", "-m", self.model, "--listen",
                          "127.0.0.1:0", "--pool-socket", socket, "--bypass-tokens", "0",
                          "--bypass-ratio", "0", *(part for role in roles
                                                   for part in ("--worker", addresses[role])))
        return int(re.search(r"http://127\.0\.0\.1:(\d+)", text)[1])

    def serve(self):
        text = self.start("serve", self.engine, "serve", *self.worker_options(), "--listen",
                          "127.0.0.1:0", "--pool-size", "512M")
        return int(re.search(r"http://127\.0\.0\.1:(\d+)", text)[1])

    def stop(self):
        for process in reversed(self.running):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()


def ask(port, tokens, n_answer):
    """(seconds to the first piece of text, seconds in all, the server's own report)."""
    body = {"prompt": tokens, "max_tokens": n_answer, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        first, last, start = None, {}, time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"port {port} answered {response.status}: {response.read()[:2000]}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            last = json.loads(line[6:])
            if first is None and any(choice["text"] for choice in last.get("choices", [])):
                first = time.monotonic()
        end = time.monotonic()
    if first is None or "usage" not in last or last["usage"]["completion_tokens"] != n_answer:
        sys.exit(f"no whole answer: {last}")
    return first - start, end - start, last["fabricmgr"]


class Side:
    """One of the two systems. Each call asks a new prompt cold and then warm."""

    def __init__(self, port, options, route, programs):
        self.port, self.options, self.route = port, options, route
        self.programs = programs
        self.random = random.Random(1)
        self.reports, self.values = [], []

    def cpu_seconds(self):
        ticks = 0
        for process in self.programs:
            with open(f"/proc/{process.pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / frame.TICKS

    def tokens(self, n):
        return [self.random.randrange(*self.options.ids) for _ in range(n)]

    def measure(self):
        prompt = self.tokens(self.options.prompt)
        before = self.cpu_seconds()
        cold_first, cold_total, cold = ask(self.port, prompt, self.options.answer)
        cold_cpu = self.cpu_seconds() - before
        warm_first, warm_total, warm = ask(self.port, prompt + self.tokens(20), self.options.answer)
        if cold["route"] != self.route or warm["route"] != self.route:
            sys.exit(f"the route was {cold['route']} and {warm['route']}, not {self.route}")
        if cold["cached_tokens"] or warm["cached_tokens"] < self.options.prompt // 16 * 16 - 16:
            sys.exit(f"cached: {cold['cached_tokens']} cold, {warm['cached_tokens']} warm")
        self.reports.append((cold, warm))
        self.values.append({"cold_ttft": cold_first, "cold_total": cold_total,
                            "cold_cpu": cold_cpu,
                            "warm_ttft": warm_first, "warm_total": warm_total})
        return self.values[-1]


def compare(bench, options, programs):
    port = programs.fleet()
    fleet = Side(port, options, "disaggregated", list(programs.running))
    port = programs.serve()
    mono = Side(port, options, "monolithic", programs.running[-1:])
    goal = 1 / 1.05
    bench.pairs(fleet.measure, mono.measure,
                {"cold_ttft": frame.Metric("s", goal, smaller=True),
                 "cold_total": frame.Metric("s", goal, smaller=True),
                 "cold_cpu": frame.Metric("s", goal, smaller=True),
                 "warm_ttft": frame.Metric("s", smaller=True),
                 "warm_total": frame.Metric("s", smaller=True)},
                peer="serve", n=options.pairs, rung="memfd", threads=options.threads,
                prompt=options.prompt, answer=options.answer,
                computed_by_prefill_worker=lambda: fleet.reports[-1][0]["computed_prefill"])
    for name, side in (("fleet", fleet), ("serve", mono)):
        counted = side.values[-options.pairs:]
        bench.emit(f"cold_over_warm_ttft_{name}", frame.Metric("s", smaller=True),
                   [(one["warm_ttft"], one["cold_ttft"]) for one in counted], "itself, cold", "memfd",
                   None, {"threads": options.threads, "prompt": options.prompt})
    cold, warm = fleet.reports[-1]
    bench.note(f"  the prefill worker counted {cold['computed_prefill']} computed tokens of a cold "
               f"prompt and {warm['computed_prefill']} of a warm one, the decode worker "
               f"{cold['computed_decode']}; it mapped {cold['mapped_blocks']} blocks")


def main():
    parser = frame.arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of every program (default 2)")
    parser.add_argument("--prompt", type=int, default=2008, help="tokens (default 2008)")
    parser.add_argument("--answer", type=int, default=48, help="tokens (default 48)")
    parser.add_argument("--ids", type=int, nargs=2, default=(1000, 20000), metavar=("FROM", "TO"),
                        help="of the prompt's random tokens (default 1000 20000)")
    options = parser.parse_args()
    bench = frame.Frame("demo")
    programs = Programs(options)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        compare(bench, options, programs)
    finally:
        programs.stop()
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
