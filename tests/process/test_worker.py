# SPDX-License-Identifier: Apache-2.0
"""A worker's places for front ends: who says nothing loses its own, who talks keeps it, and one too
many is told so. The model has random weights: nothing here looks at its answers.
"""
import json
import socket
import subprocess
import time

import pytest

from conftest import BIN

PLACES = 8
HELLO = b'{"op":"hello","version":2}\n'


@pytest.fixture
def worker(system, tiny_model):
    system.daemon("16M")
    path = f"{system.folder}/w.sock"
    process = system.start(f"{BIN}/fabric-engine", "worker", "-m", tiny_model, "--pool-socket",
                           system.socket, "--listen", f"unix:{path}")
    process.wait_for(r"\bready$")
    process.path = path
    return process


class FrontEnd:
    def __init__(self, worker, first=b""):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(worker.path)
        self.lines = self.socket.makefile("rb")
        self.say(first)

    def say(self, line):
        try:
            self.socket.sendall(line)
        except BrokenPipeError:  # turned away already: what it said about it is there to be heard
            pass

    def hear(self):
        """The next message that is not about load; None at the end."""
        try:
            for line in self.lines:
                message = json.loads(line)
                if message.get("event") != "stats":
                    return message
        except ConnectionResetError:  # it ended without reading all that we said
            pass
        return None

    def serves(self):
        self.say(b'{"op":"generate","id":7,"tokens":[1,2,3],"max_tokens":2}\n')
        while True:
            event = self.hear()
            if event is None or event.get("event") in ("done", "error"):
                return event and event["event"] == "done"


def test_silence_loses_its_place_to_the_next(worker):
    silent = [FrontEnd(worker) for _ in range(PLACES)]
    assert all(front.hear()["hello"] == "fabric-worker" for front in silent)
    fronts = [FrontEnd(worker, HELLO) for _ in range(3)]
    assert all(front.serves() for front in fronts)
    gone = [front.hear() for front in silent[:3]]
    assert all(event["code"] == "FM_ERR_LIMIT" and "place" in event["message"] for event in gone)
    # The others go when their time is over; who has spoken stays.
    left = [front.hear() for front in silent[3:]]
    assert all(event["code"] == "FM_ERR_DEADLINE" and "5 s" in event["message"] for event in left)
    assert all(front.hear() is None for front in silent)
    assert all(front.serves() for front in fronts)


def test_one_too_many_is_told_so(worker):
    fronts = [FrontEnd(worker, HELLO) for _ in range(PLACES)]
    assert all(front.hear()["hello"] == "fabric-worker" for front in fronts)
    assert fronts[0].serves()
    extra = FrontEnd(worker, HELLO)
    event = extra.hear()
    assert event["event"] == "error" and event["code"] == "FM_ERR_LIMIT"
    assert "8 front ends" in event["message"] and extra.hear() is None
    fronts.pop().socket.close()
    end = time.monotonic() + 60
    while not (extra := FrontEnd(worker, HELLO)).serves():
        assert time.monotonic() < end
    assert all(front.serves() for front in fronts)


def test_a_router_says_why_it_is_refused(system, worker, tiny_model):
    fronts = [FrontEnd(worker, HELLO) for _ in range(PLACES)]
    assert all(front.serves() for front in fronts)
    router = system.start(f"{BIN}/fabric-engine", "router", "-m", tiny_model, "--listen",
                          "127.0.0.1:0", "--worker", f"unix:{worker.path}")
    router.wait_for(r"refused by it: 8 front ends are connected")
    fronts.pop().lines.close()
    fronts[0].socket.close()
    fronts[0].lines.close()
    router.wait_for(r"\bready$")


def test_another_version_is_named(worker):
    front = FrontEnd(worker, b'{"op":"hello","version":1}\n')
    assert front.hear()["version"] == 2
    event = front.hear()
    assert event["code"] == "FM_ERR_VERSION" and "speaks 2" in event["message"]


def test_a_worker_that_cannot_start_says_why(tiny_model):
    out = subprocess.run([f"{BIN}/fabric-engine", "serve", "-m", tiny_model, "--listen", "127.0.0.1:0",
                          "--logits-log", "/sys/x"], capture_output=True, text=True, check=False,
                         timeout=60)
    assert out.returncode == 1 and "/sys/x: cannot be written" in out.stderr.splitlines()[-1], out
