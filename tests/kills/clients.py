# SPDX-License-Identifier: Apache-2.0
"""The users of a node under test: HTTP clients that know the right answers, and pool clients in
processes of their own. A Users object counts what they saw; its `faults` must stay empty.
"""
import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE_S = 40  # the router's --deadline plus what a busy machine needs
REFUSALS = {503, 429}


class Users:
    """@prompts: list of (body, expected text). A request may be refused with a named error, or broken
    off when the router was killed under it; answered wrongly or not at all it may not be."""

    def __init__(self, system, prompts, seed, n_threads):
        self.system, self.prompts = system, prompts
        self.router_deaths = 0
        self.counts = {"answered": 0, "refused": 0, "left": 0, "broken by a router's death": 0,
                       "not begun": 0}
        self.faults, self.lock = [], threading.Lock()
        self.running, self.ending, self.active = threading.Event(), threading.Event(), 0
        self.running.set()
        self.threads = [threading.Thread(target=self.use, args=(random.Random(seed + i),),
                                         daemon=True) for i in range(n_threads)]
        for thread in self.threads:
            thread.start()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def use(self, chance):
        while not self.ending.is_set():
            with self.lock:
                go = self.running.is_set()
                self.active += go
            if not go:
                time.sleep(0.005)
                continue
            try:
                self.request(chance)
            except Exception as error:  # a fault of this test must not end a thread unseen
                with self.lock:
                    self.faults.append(f"the client itself failed: {error!r}")
            finally:
                with self.lock:
                    self.active -= 1

    def request(self, chance):
        body, expected = chance.choice(self.prompts)
        leaves = chance.random() < 0.1
        streams = leaves or chance.random() < 0.5
        deaths, start = self.router_deaths, time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.system.port, timeout=DEADLINE_S)
        try:
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions",
                                   json.dumps({**body, "stream": streams}),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200:
                    self.refused(response.status, response.read())
                    return
                text, error = (self.stream(response, leaves) if streams else
                               (json.loads(response.read())["choices"][0]["text"], None))
        except ConnectionRefusedError:
            # The router is being started again (that it comes back is the node's to see).
            self.count("not begun")
            time.sleep(0.05)
            return
        except (OSError, http.client.HTTPException) as problem:
            took = time.monotonic() - start
            # The watcher notices a death a moment after the client does.
            for _ in range(20):
                if self.router_deaths != deaths:
                    self.count("broken by a router's death")
                    time.sleep(0.05)
                    return
                time.sleep(0.05)
            with self.lock:
                self.faults.append(f"neither answered nor refused after {took:.1f} s: {problem!r}")
            return
        if text is None:
            self.count("left")
        elif error:
            self.refused(503, json.dumps({"error": error}).encode())
        elif text == expected:
            self.count("answered")
        else:
            with self.lock:
                self.faults.append(f"a wrong answer to {body}: {text!r} instead of {expected!r}")

    def refused(self, status, answer):
        self.count("refused")
        try:
            named = bool(json.loads(answer)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            named = False
        if status not in REFUSALS or not named:
            with self.lock:
                self.faults.append(f"refused with status {status}: {answer[:300]!r}")

    @staticmethod
    def stream(response, leaves):
        """(text, error); text None when the client left."""
        text, pieces = "", 0
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return text, None
            event = json.loads(line[6:])
            if "error" in event:
                return text, event["error"]
            text += "".join(choice["text"] for choice in event["choices"])
            pieces += 1
            if leaves and pieces == 3:
                return None, None
        raise http.client.IncompleteRead(text.encode())

    def pause(self, limit=DEADLINE_S):
        """Returns when no request is on its way; False when one does not end."""
        self.running.clear()
        end = time.monotonic() + limit
        while self.active:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def go_on(self):
        self.running.set()

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(DEADLINE_S)


class PoolClients:
    """Processes that stage, seal, read and check through the library; started again when they die."""

    def __init__(self, folder, socket, environment, seed, n):
        self.folder, self.socket, self.seed, self.faults = folder, socket, seed, []
        self.environment = environment
        self.processes = [None] * n
        self.n_started = 0

    def start(self):
        for i, process in enumerate(self.processes):
            if process is None or process.poll() is not None:
                self.check(process)
                self.n_started += 1
                log = open(f"{self.folder}/client-{self.n_started}.log", "wb")
                self.processes[i] = subprocess.Popen(
                    [sys.executable, f"{HERE}/../process/pool_client.py", self.socket,
                     str(self.seed + self.n_started)], stdout=log, stderr=log,
                    env={**os.environ, **self.environment})
                self.processes[i].log = log.name
                log.close()

    def check(self, process):
        """A client may be killed, and may find no daemon; a wrong byte is a fault."""
        if process is None or process.poll() in (None, -9):
            return
        with open(process.log, encoding="utf-8", errors="replace") as log:
            text = log.read()
        if "OSError" not in text or process.returncode != 1:
            self.faults.append(f"a pool client ended with status {process.returncode}: {text[-600:]}")

    def stop(self):
        for process in self.processes:
            if process:
                process.kill()
                process.wait()
                self.check(process)
        self.processes = [None] * len(self.processes)
