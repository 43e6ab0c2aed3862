# SPDX-License-Identifier: Apache-2.0
"""The n-th allocation fails, for every n: during a request to a running server, while a client attaches
to a daemon, puts and gets, and at the start of every program. Whoever fails says so by name, and goes on.

`make check` takes every k-th point, as many as fit into ALLOC_SECONDS a test, and prints how many;
`make check-alloc` takes them all.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from conftest import BIN, until
from fail_alloc import FailAlloc

LIMIT = float(os.environ.get("ALLOC_SECONDS", "4"))
TAKES_ALL = bool(os.environ.get("ALLOC_ALL"))
NEVER = 1 << 63
WORDS = "A block is staged, filled in place and sealed. "


def points(total, seconds_each):
    """The numbers to fail: all, or spread over the whole range so that LIMIT holds."""
    step = 1 if TAKES_ALL else max(1, int(total * seconds_each / LIMIT + 0.999))
    return range(1, total + 1, step)


def note(capsys, text):
    with capsys.disabled():
        print(f"\nNOTE: {text}", flush=True)


def exchange(port, method, path, body=None, timeout=20):
    """(status, body bytes); (None, why) when the connection ended before the answer was whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionError) as error:
        return None, repr(error).encode()
    finally:
        connection.close()


def plain(answer):
    """Without what differs from request to request: id, times, and what was cached."""
    if isinstance(answer, list):
        return [plain(x) for x in answer]
    if isinstance(answer, dict):
        return {k: plain(v) for k, v in answer.items()
                if k not in ("id", "created", "fabricmgr", "prompt_tokens_details")}
    return answer


def events(data):
    lines = [x[6:] for x in data.decode().split("\n\n") if x.startswith("data: ")]
    return [x if x == "[DONE]" else plain(json.loads(x)) for x in lines]


def is_error(answer):
    return isinstance(answer, dict) and set(answer) == {"error"} and answer["error"]["message"]


class Call:
    def __init__(self, name, method, path, body=None):
        self.name, self.method, self.path, self.body = name, method, path, body
        self.streams = bool(body and body.get("stream"))

    def send(self, port):
        status, data = exchange(port, self.method, self.path, self.body)
        if status == 200 and self.path == "/metrics":
            return status, b"# HELP" in data
        if status == 200 and self.streams:
            return status, events(data)
        return status, plain(json.loads(data)) if status else data

    def verdict(self, answer, expected):
        """What became of it: "same", "named", "cut"; anything else is a fault."""
        status, body = answer
        if answer == expected:
            return "same"
        if status in (500, 503) and is_error(body):
            return "named"
        if status is None:
            return "cut"
        if status == 200 and self.streams and body and is_error(body[-1]):
            # What came before the error is the beginning of the answer.
            seen = body[:-1]
            return "named" if seen == expected[1][:len(seen)] else f"wrong stream: {body}"
        return f"wrong: {answer}"


CALLS = [
    Call("completion", "POST", "/v1/completions",
         {"prompt": WORDS * 2, "max_tokens": 4, "temperature": 0, "logprobs": 2, "stop": ["\x01\x02"]}),
    Call("two choices", "POST", "/v1/completions",
         {"prompt": [WORDS, [70, 71, 72]], "max_tokens": 2, "n": 2, "seed": 7}),
    Call("stream", "POST", "/v1/completions",
         {"prompt": WORDS, "max_tokens": 4, "temperature": 0, "stream": True,
          "stream_options": {"include_usage": True}}),
    Call("chat", "POST", "/v1/chat/completions",
         {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": WORDS}],
          "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}),
    Call("chat stream", "POST", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}],
          "max_tokens": 4, "temperature": 0, "stream": True, "logprobs": True}),
    Call("tokenize", "POST", "/tokenize", {"content": WORDS}),
    Call("detokenize", "POST", "/detokenize", {"tokens": [70, 71, 72, 300 - 41]}),
    Call("models", "GET", "/v1/models"),
    Call("ready", "GET", "/ready"),
    Call("metrics", "GET", "/metrics"),
]


def leases_and_staged(system):
    found = [(c["leases"], c["staged"]) for c in system.control("status")["clients"]
             if c["name"] == "serve"]
    return found[0] if found else None


@pytest.fixture(name="failer")
def failer_fixture(tmp_path):
    return FailAlloc(str(tmp_path / "fail_alloc"))


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.name)
def test_a_request_survives_every_failed_allocation(system, tiny_model, failer, call, capsys):
    system.daemon("64M")
    server = system.start(f"{BIN}/fabric-engine", "serve", "-m", tiny_model, "--listen",
                          "127.0.0.1:0", "--pool-socket", system.socket, "--threads", "2",
                          env=failer.environment)
    port = int(server.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
    server.wait_for(r"\bready$")
    until(lambda: exchange(port, "GET", "/ready")[0] == 200)
    expected = call.send(port)
    assert expected[0] == 200, expected
    start = time.monotonic()
    assert call.send(port) == expected
    failer.arm(NEVER)
    assert call.send(port) == expected
    each, total = time.monotonic() - start, failer.count
    tried, became, n = 0, {}, 0
    for n in points(total + total // 10, each):
        failer.arm(n)
        answer = call.send(port)
        failed = failer.has_failed
        failer.disarm()
        verdict = call.verdict(answer, expected)
        after = call.send(port)
        if verdict not in ("same", "named", "cut") or after != expected or \
                (verdict == "cut" and not failer.is_in("libmicrohttpd")):
            where = failer.where(f"{BIN}/fabric-engine") if failed else "nothing failed"
            pytest.fail(f"{verdict}, afterwards {after}\n{n}: {where}\n{server.lines[-5:]}")
        tried += failed
        became[verdict] = became.get(verdict, 0) + failed
    until(lambda: leases_and_staged(system) == (0, 0))
    assert server.stop() == 0
    note(capsys, f"{call.name}: {tried} of about {total} allocations failed, one by one: {became}")


def test_a_server_outlives_a_lasting_shortage(system, tiny_model, failer, capsys):
    """No memory at all for a while, from somewhere within a request on: it ends, and the next is as if
    nothing had been."""
    seconds = 0.1
    server = system.start(f"{BIN}/fabric-engine", "serve", "-m", tiny_model, "--listen",
                          "127.0.0.1:0", "--pool-size", "64M", "--threads", "2",
                          env=failer.environment)
    port = int(server.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
    server.wait_for(r"\bready$")
    call = Call("", "POST", "/v1/completions", {"prompt": [7] * 40, "max_tokens": 4, "temperature": 0})
    expected = call.send(port)
    assert expected[0] == 200, expected
    failer.arm(NEVER)
    assert call.send(port) == expected
    total, became = failer.count, {}
    for n in points(total, 3 * seconds):
        failer.arm(n, lasts=True)
        end = threading.Timer(seconds, failer.disarm)
        end.start()
        verdict = call.verdict(call.send(port), expected)
        end.join()
        where = failer.where(f"{BIN}/fabric-engine")
        assert verdict in ("same", "named", "cut"), f"{n}: {verdict}\n{where}"
        became[verdict] = became.get(verdict, 0) + 1
        until(lambda: exchange(port, "GET", "/ready")[0] == 200)
        assert call.send(port) == expected, f"{n}: {where}\n{server.lines[-5:]}"
    assert server.stop() == 0
    note(capsys, f"no memory for {seconds} s from {sum(became.values())} of about {total} points of a "
         f"request on: {became}")


def client_cycle(socket):
    """What a client does in its life, in a process of its own: (exit status, what it said)."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pool_client import Pool, bytes_of\n"
        "import ctypes as c\n"
        "pool = Pool(sys.argv[2])\n"
        "for n in range(4):\n"
        "    block = pool.acquire(n) or pool.put(n, 70000)\n"
        "    assert c.string_at(block.data, block.length) == bytes_of(n, 70000), 'a wrong byte'\n"
        "    pool.release(block)\n"
        "pool.stage(5000, 2)\n"
        "pool.detach()\n")
    done = subprocess.run(["/usr/bin/python3", "-c", script, os.path.dirname(__file__), socket],
                          capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


def test_a_daemon_survives_every_failed_allocation(system, failer, capsys):
    daemon = system.start(f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "32M",
                          env=failer.environment)
    daemon.wait_for(r"\bready$")
    assert client_cycle(system.socket) == (0, "")
    start = time.monotonic()
    failer.arm(NEVER)
    assert client_cycle(system.socket) == (0, "")
    system.control("status")
    each, total = time.monotonic() - start, failer.count
    tried, became = 0, {"same": 0, "named": 0}
    for n in points(total + 2, 2 * each):
        failer.arm(n)
        status, said = client_cycle(system.socket)
        if failer.has_failed:
            tried += 1
            became["named" if status else "same"] += 1
        failer.disarm()
        if status and "Error: [Errno " not in said:
            pytest.fail(f"{n}: {said}\n{failer.where(f'{BIN}/fabricmgrd')}\n{daemon.lines[-5:]}")
        assert client_cycle(system.socket) == (0, ""), failer.where(f"{BIN}/fabricmgrd")
    until(lambda: len(system.control("status")["clients"]) == 1)  # who asks
    blocks = system.control("status")["blocks"]
    assert (blocks["staging"], blocks["quarantine"]) == (0, 0)
    assert system.control("verify")["bad"] == 0
    assert daemon.stop() == 0
    note(capsys, f"fabricmgrd: {tried} of {total} allocations failed, one by one: {became}")


def starts(model, folder):
    """name, command, line that says it is up (None: it ends by itself)."""
    engine = f"{BIN}/fabric-engine"
    return {
        "fabricmgrd": ([f"{BIN}/fabricmgrd", "--socket", f"{folder}/new.sock", "--size", "32M"],
                       r"\bready$"),
        "fabricctl": ([f"{BIN}/fabricctl", "--socket", f"{folder}/pool.sock", "--json", "ls"], None),
        "serve": ([engine, "serve", "-m", model, "--listen", "127.0.0.1:0", "--pool-size", "32M",
                   "--threads", "2"], r"\bready$"),
        "worker": ([engine, "worker", "--role", "both", "-m", model, "--pool-socket",
                    f"{folder}/pool.sock", "--listen", f"unix:{folder}/worker.sock"], r"\bready$"),
        "router": ([engine, "router", "-m", model, "--listen", "127.0.0.1:0", "--pool-socket",
                    f"{folder}/pool.sock", "--worker", f"unix:{folder}/none.sock"],
                   r"listening on http"),
        "run": ([engine, "run", "-m", model, "--json", "-p", "hello", "-n", "2", "--pool-size", "32M",
                 "--logprobs", "2"], None),
        "inspect": ([engine, "inspect", "--json", model], None),
    }


def start_once(system, command, up, environment):
    """(exit status, output); a program that came up is stopped and must end well."""
    process = system.start(*command, env=environment)
    try:
        if up:
            try:
                process.wait_for(up, 20)
                process.kill(signal.SIGTERM)
            except AssertionError:
                pass
        status = process.process.wait(20)
        process.reader.join()
    finally:
        process.kill()
        process.process.wait()
        system.started.remove(process)
    return status, "\n".join(x for x in process.lines if x is not None)


@pytest.mark.parametrize("name", ["fabricmgrd", "fabricctl", "serve", "worker", "router", "run",
                                  "inspect"])
def test_a_start_survives_every_failed_allocation(system, tiny_model, failer, name, capsys):
    system.daemon("64M")
    command, up = starts(tiny_model, system.folder)[name]
    failer.arm(NEVER)
    start = time.monotonic()
    status, expected = start_once(system, command, up, failer.environment)
    assert status == 0, expected
    each, total = time.monotonic() - start, failer.count
    tried, became = 0, {"came up": 0, "refused": 0}
    for n in points(total, each):
        failer.arm(n)
        status, said = start_once(system, command, up, failer.environment)
        tried += failer.has_failed
        became["refused" if status else "came up"] += failer.has_failed
        is_good = status == 0 and (up or said == expected) or \
            status in (1, 2) and re.search(r"^(fabric\S*)( \w+)?: ", said, re.M)
        if not is_good:
            pytest.fail(f"{name}: exit status {status}\n{said[-1000:]}\n{n}: "
                        f"{failer.where(command[0])}")
    note(capsys, f"start of {name}: {tried} of {total} allocations failed, one by one: {became}")
