# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by the process tests: the built programs, a daemon, workers, a front end.

Every process started here is killed when its test ends; nothing listens anywhere but in the test's
own folder and on loopback.
"""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import pytest

import tiny_gguf

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("FABRICMGR_BIN", f"{TOP}/build/release/bin")
MODEL = os.environ.get("FABRICMGR_TEST_MODEL")
REPORTS = os.environ.get("FABRICMGR_REPORTS")


def until(claim, limit=60):
    """Returns when @claim() holds; the limit ends a test that waits in vain, and decides no other."""
    end = time.monotonic() + limit
    while not claim():
        assert time.monotonic() < end, f"it did not become true in {limit} s"
        time.sleep(0.01)


class Process:
    """A program whose output lines are collected, and which can be waited on for one of them."""

    def __init__(self, *command, env=None):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env={**os.environ, **(env or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def wait_for(self, pattern, timeout=60):
        """The match of the first line with @pattern; fails when the program ends or time is up."""
        end = time.monotonic() + timeout
        seen = 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    if line is None:
                        raise AssertionError(f"ended before {pattern!r}: {self.lines}")
                    match = re.search(pattern, line)
                    if match:
                        return match
                seen = len(self.lines)
                if not self.changed.wait(max(0, end - time.monotonic())):
                    raise AssertionError(f"no {pattern!r} in {timeout} s: {self.lines}")

    @property
    def pid(self):
        return self.process.pid

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self):
        self.kill(signal.SIGTERM)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            raise


class System:
    """Starts programs of one test and stops them in reverse order."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []

    def start(self, *command, env=None):
        process = Process(*command, env=env)
        self.started.append(process)
        return process

    @property
    def socket(self):
        return f"{self.folder}/pool.sock"

    def daemon(self, size="256M", *more):
        process = self.start(f"{BIN}/fabricmgrd", "--socket", self.socket, "--size", size, *more)
        process.wait_for(r"\bready$")
        return process

    def worker(self, role, *more):
        process = self.start(f"{BIN}/fabric-engine", "worker", "--role", role, "-m", MODEL,
                             "--pool-socket", self.socket, "--listen",
                             f"unix:{self.folder}/{role}.sock", *more)
        process.wait_for(r"\bready$")
        return process

    def router(self, *roles, more=()):
        workers = [x for role in roles for x in ("--worker", f"unix:{self.folder}/{role}.sock")]
        process = self.start(f"{BIN}/fabric-engine", "router", "-m", MODEL, "--listen",
                             "127.0.0.1:0", "--pool-socket", self.socket, *workers, *more)
        process.port = int(process.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
        process.wait_for(r"\bready$")
        return process

    def serve(self, *more):
        process = self.start(f"{BIN}/fabric-engine", "serve", "-m", MODEL, "--listen",
                             "127.0.0.1:0", *more)
        process.port = int(process.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
        process.wait_for(r"\bready$")
        return process

    def control(self, *command):
        out = subprocess.run([f"{BIN}/fabricctl", *command, "--socket", self.socket, "--json"],
                             capture_output=True, text=True, check=False, timeout=60)
        assert out.returncode == 0, out.stderr + out.stdout
        return json.loads(out.stdout)


def post(port, path, body, timeout=120):
    """(status, parsed JSON) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


class Streamed(threading.Thread):
    """A completion on its way: pieces() can be waited for, result() is what became of it."""

    def __init__(self, port, body):
        super().__init__(daemon=True)
        self.text, self.fabricmgr, self.error = "", None, None
        self.n_pieces, self.news = 0, threading.Condition()
        self.port = port
        self.body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps(self.body),
                                   {"Content-Type": "application/json"})
                for line in connection.getresponse():
                    if line.startswith(b"data: {"):
                        self.take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException) as error:
            self.error = error

    def take(self, event):
        with self.news:
            self.error = event.get("error")
            self.fabricmgr = event.get("fabricmgr") or self.fabricmgr
            self.text += "".join(choice["text"] for choice in event.get("choices", ()))
            self.n_pieces += bool(event.get("choices"))
            self.news.notify_all()

    def pieces(self, n, timeout=60):
        """Returns when @n pieces of the text have come: much of it has not, whatever the speed."""
        with self.news:
            assert self.news.wait_for(lambda: self.n_pieces >= n, timeout), (self.n_pieces, self.error)

    def result(self, timeout=100):
        self.join(timeout)
        assert not self.is_alive() and not self.error, self.error
        return self.text, self.fabricmgr


def run(*arguments, check=True):
    """fabric-engine run --json …"""
    out = subprocess.run([f"{BIN}/fabric-engine", "run", "-m", MODEL, "--json",
                          "--pool-size", "256M", *arguments],
                         capture_output=True, text=True, check=False, timeout=300)
    if not check:
        return out
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


@pytest.fixture(autouse=True)
def no_reports():
    """Under sanitizers: no program wrote a report during the test."""
    yield
    for name in sorted(os.listdir(REPORTS)) if REPORTS else ():
        with open(f"{REPORTS}/{name}", encoding="utf-8", errors="replace") as file:
            text = file.read()
        os.unlink(f"{REPORTS}/{name}")
        pytest.fail(f"{name}:\n{text[:6000]}", pytrace=False)


@pytest.fixture
def system():
    with tempfile.TemporaryDirectory(prefix="fabricmgr-test-") as folder:
        system = System(folder)
        try:
            yield system
        finally:
            for process in reversed(system.started):
                if REPORTS:  # an orderly end tells of leaks
                    process.stop()
                process.kill()
                process.process.wait()
            forget(system.socket)


def forget(socket):
    """What the kernel module keeps of a daemon that ended."""
    if os.path.exists("/dev/fabricmgr"):
        subprocess.run([f"{BIN}/fabricmgrd", "--config", "/dev/null", "--socket", socket, "--forget"],
                       stdout=subprocess.DEVNULL, check=True, timeout=60)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The path of a model of random weights that loads in milliseconds (tiny_gguf.py)."""
    return tiny_gguf.write(str(tmp_path_factory.mktemp("model") / "tiny.gguf"))


needs_model = pytest.mark.skipif(not MODEL, reason="FABRICMGR_TEST_MODEL names no model file")


def frames(pid, offset, length, name="fabricmgr-arena"):
    """Physical frame numbers behind [offset, offset + length) of the arena as @pid maps it; 0 where it
    has not touched a page. Needs root: the kernel shows others only zeros."""
    best = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, \
            open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for line in maps:
            if name not in line:
                continue
            fields = line.split()
            start, end = (int(x, 16) for x in fields[0].split("-"))
            base = int(fields[2], 16)
            if not base <= offset or offset + length > base + end - start:
                continue
            pagemap.seek((start + offset - base) // 4096 * 8)
            data = pagemap.read(length // 4096 * 8)
            found = [int.from_bytes(data[i:i + 8], "little") for i in range(0, len(data), 8)]
            found = [x & ((1 << 55) - 1) if x >> 63 else 0 for x in found]
            # A process may map the arena twice (read-only, and for its own staging).
            if sum(map(bool, found)) > sum(map(bool, best)):
                best = found
    return best
