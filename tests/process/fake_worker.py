# SPDX-License-Identifier: Apache-2.0
"""A worker without a model, for tests of the front door. It speaks Documentation/worker-protocol.md
and answers with a fixed function of (tokens so far), so that any takeover must give the same text.
Invariant: what it received and how it misbehaves is in plain attributes, read and set by the tests.
"""
import json
import os
import socket
import threading
import time

NAMESPACE = "ab" * 32


def next_token(tokens, low=1000, high=40000):
    """The "model": a function of all the tokens before."""
    value = len(tokens) * 2654435761
    for token in tokens[-8:]:
        value = (value * 31 + token) & 0xffffffff
    return low + value % (high - low)


class FakeWorker:
    def __init__(self, path, role="both", namespace=NAMESPACE, version=2, delay=0.0, **hello):
        self.path, self.role, self.delay = path, role, delay
        self.hello = {"hello": "fabric-worker", "version": version, "role": role, "model": "fake",
                      "numerics": "fake", "namespace": namespace, "pool": "0" * 16,
                      "tokens_per_block": 16, "context": 8192, "vocab": 49152, "pid": os.getpid(),
                      "max_batch": 16, **hello}
        self.requests = []        # (op, message)
        self.cancelled = []
        self.greetings = []       # the first line of each front end
        self.die_after = None     # tokens of one request, then the connection drops
        self.refuse = None        # an error event instead of an answer
        self.choose = next_token
        self.end_after = None     # "stop" after so many generated tokens in all
        self.silent = False
        self.raw = None           # bytes sent instead of answers
        self.lock = threading.Lock()
        self.listener = None
        self.connections = []
        self.start()

    def start(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(4)
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        self.listener.close()
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.drop()

    def drop(self):
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.connections = []

    def accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def send(self, connection, message):
        try:
            with self.lock:
                connection.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

    def serve(self, connection):
        self.send(connection, self.hello)
        cancels = set()
        try:
            for line in connection.makefile("rb"):
                message = json.loads(line)
                if message["op"] == "hello":
                    self.greetings.append(message)
                    continue
                if message["op"] == "cancel":
                    self.cancelled.append(message["id"])
                    cancels.add(message["id"])
                    continue
                self.requests.append((message["op"], message))
                threading.Thread(target=self.answer, args=(connection, message, cancels),
                                 daemon=True).start()
        except OSError:
            pass

    def answer(self, connection, message, cancels):
        number, tokens = message["id"], list(message["tokens"])
        if self.silent:
            return
        if self.raw is not None:
            with self.lock:
                connection.sendall(self.raw)
            return
        if self.refuse:
            self.send(connection, {"id": number, "event": "error", **self.refuse})
            return
        n_top = message.get("top_logprobs", 0)

        def token_event(event, token, **more):
            report = {"id": number, "event": event, "token": token, "logprob": -0.5, **more}
            if n_top:
                report["top"] = [[token, -0.5]] + [[t, -1.0 - t] for t in range(100, 99 + n_top)]
            return report

        if message["op"] == "prefill":
            time.sleep(self.delay)
            token = self.choose(tokens)
            self.send(connection, token_event("prefilled", token, computed=len(tokens), cached=0,
                                              sealed=len(tokens) // 16, ms=1.0, tail="5a" * 16))
            return
        prompt, finish, made = message["n_prompt"], "length", 0
        for made in range(message["max_tokens"] + 1):
            if made == message["max_tokens"]:
                break
            if number in cancels:
                finish = "cancelled"
                break
            if self.end_after is not None and len(tokens) - prompt >= self.end_after:
                finish = "stop"
                break
            if self.die_after is not None and made >= self.die_after:
                self.die_after = None
                self.drop()
                return
            token = self.choose(tokens)
            tokens.append(token)
            if not self.send(connection, token_event("token", token)):
                return
            time.sleep(self.delay)
        self.send(connection, {"id": number, "event": "done", "finish": finish, "computed": 5,
                               "cached": 16, "mapped": 1, "generated": made, "prefill_ms": 1.0,
                               "decode_ms": 2.0})
