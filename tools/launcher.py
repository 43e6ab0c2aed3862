# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of one node (daemon, prefill worker, decode worker, router) in their order and
starts again what died. Used by demo.py and by the crash tests. Python 3 stdlib only.
Invariant: a program that was started here dies with the process that started it.
"""
import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time

RESTARTS_MAX = 3     # of one program within RESTARTS_S: more is a fault that restarting does not mend
RESTARTS_S = 60
READY_S = 120        # loading a model from a cold disk
LIBC = ctypes.CDLL(None, use_errno=True)
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Failure(Exception):
    """Something went wrong; the text says what, for a reader."""


def say(text):
    print(text, flush=True)


def call(port, method, path, body=None):
    """(status, parsed answer) of one HTTP request to the router."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Program:
    """One started program: its log is a file, and it dies with this process."""

    def __init__(self, name, command, folder, environment=None):
        self.name, self.command = name, command
        self.environment = {**os.environ, **(environment or {})}
        self.log = os.path.join(folder, name.replace(" ", "-") + ".log")
        self.process, self.restarts = None, []  # the times of the latest ones

    def start(self):
        parent = os.getpid()

        def in_child():
            LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)  # it died before the line above
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

        # A signal between fork and the assignment would leave a child that nobody knows.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with open(self.log, "ab") as log:
                self.offset = log.tell()
                self.started = time.monotonic()
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                                stderr=log, start_new_session=True,
                                                env=self.environment, preexec_fn=in_child)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            log.seek(self.offset)
            return log.read()

    def wait_for(self, pattern):
        """The match of a line of its output; Failure when it ends first."""
        while True:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.output(), re.M)
            if match:
                return match
            if ended:
                raise Failure(f"{self.name} ended with status {self.process.returncode}:\n"
                              f"{self.tail()}")
            if time.monotonic() - self.started > READY_S:
                raise Failure(f"{self.name} was not ready within {READY_S} s:\n{self.tail()}")
            time.sleep(0.01)

    def tail(self):
        lines = self.output().splitlines()[-8:]
        return "\n".join("    " + line for line in lines) or "    (it said nothing)"

    def announce(self, note=""):
        say(f"  {self.name:15} pid {self.process.pid:<8} ready in "
            f"{time.monotonic() - self.started:4.1f} s  {note}".rstrip())


class System:
    """The programs in the order of their start, watched by a thread that restarts the dead.

    @environments: variables by program name. @more: flags by program name. @restarts_max: for each
    program, within RESTARTS_S.
    """

    def __init__(self, bin_folder, model, folder, size="512M", more=None, environments=None,
                 restarts_max=RESTARTS_MAX):
        more, environments = more or {}, environments or {}
        self.restarts_max, self.size, self.n_restarts = restarts_max, size, 0
        self.folder, self.stopping, self.failure = folder, threading.Event(), None
        self.model = model
        self.socket = f"{folder}/pool.sock"
        engine = f"{bin_folder}/fabric-engine"
        workers = {role: f"unix:{folder}/{role}.sock" for role in ("prefill", "decode")}
        self.control = [f"{bin_folder}/fabricctl", "--socket", self.socket, "--json"]

        def program(name, *command):
            return Program(name, [*command, *more.get(name, ())], folder, environments.get(name))

        self.daemon = program("fabricmgrd", f"{bin_folder}/fabricmgrd", "--socket", self.socket,
                              "--size", size)
        self.prefill, self.decode = (
            program(f"{role} worker", engine, "worker", "--role", role, "-m", model,
                    "--pool-socket", self.socket, "--listen", address)
            for role, address in workers.items())
        self.router = program("router", engine, "router", "-m", model, "--listen", "127.0.0.1:0",
                              "--pool-socket", self.socket, "--worker", workers["prefill"],
                              "--worker", workers["decode"])
        self.programs = [self.daemon, self.prefill, self.decode, self.router]
        self.port = 0
        for program in (self.daemon.command[0], engine, self.control[0]):
            if not os.access(program, os.X_OK):
                raise Failure(f"{program} is not there: run make first")
        if not os.path.exists(model):
            raise Failure(f"{model} is not there: run make model, or give MODEL=/path/x.gguf")

    def start(self):
        self.daemon.start()
        self.daemon.wait_for(r"(^|: )(FM\d+ )?ready$")
        memory = re.search(r"memory: ([^;\n]*)", self.daemon.output())
        self.daemon.announce(f"{self.size} pool" + (f" on {memory[1].strip()}" if memory else ""))
        self.prefill.start()
        self.decode.start()
        for program in (self.prefill, self.decode):
            program.wait_for("^ready$")
            program.announce()
        self.router.start()
        self.port = int(self.router.wait_for(r"^listening on http://127\.0\.0\.1:(\d+)")[1])
        self.router.wait_for("^ready$")
        self.router.announce(f"http://127.0.0.1:{self.port}")
        # A router that is started again must be found where it was.
        self.router.command = [f"127.0.0.1:{self.port}" if part == "127.0.0.1:0" else part
                               for part in self.router.command]
        threading.Thread(target=self.watch, daemon=True).start()

    def on_death(self, program):
        """Called by the watching thread before @program is started again; for subclasses."""

    def watch(self):
        while not self.stopping.wait(0.05):
            for program in self.programs:
                if program.process.poll() is None or self.stopping.is_set():
                    continue
                self.on_death(program)
                now = time.monotonic()
                program.restarts = [at for at in program.restarts if now - at < RESTARTS_S]
                program.restarts.append(now)
                if len(program.restarts) > self.restarts_max:
                    self.failure = (f"{program.name} ended {len(program.restarts)} times within "
                                    f"{RESTARTS_S} s:\n{program.tail()}")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                say(f"\n  {program.name} (pid {program.process.pid}) ended; it is started again")
                program.start()
                self.n_restarts += 1

    def stop(self):
        """SIGTERM from the door inwards, then SIGKILL to what is left of each process group."""
        self.stopping.set()
        for program in reversed(self.programs):
            if program.process and program.process.poll() is None:
                program.process.terminate()
        end = time.monotonic() + 5
        for program in reversed(self.programs):
            if not program.process:
                continue
            try:
                program.process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(program.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            program.process.wait()
