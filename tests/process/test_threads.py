# SPDX-License-Identifier: Apache-2.0
"""All threads of one server at once: clients that complete, stream, chat, leave early and look at the
metrics, for several numbers of compute threads, in a pool too small for all of them. Everybody gets the
answer that one client alone gets from one thread. Suite `tsan` runs it on programs that watch for races.
"""
import http.client
import json
import threading

import pytest

from conftest import BIN, post

PROMPTS = [f"Block {i} is staged, filled in place and sealed. " * (1 + i % 5) for i in range(8)]


def start(system, model, threads):
    server = system.start(f"{BIN}/fabric-engine", "serve", "-m", model, "--listen", "127.0.0.1:0",
                          "--threads", str(threads), "--pool-size", "8M", "--chunk", "32")
    server.port = int(server.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
    server.wait_for(r"\bready$")
    return server


def body_of(i, **more):
    return {"prompt": PROMPTS[i], "max_tokens": 12, "temperature": 0, "logprobs": 2, **more}


def complete(port, i):
    status, answer = post(port, "/v1/completions", body_of(i))
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]


def stream(port, i):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body_of(i, stream=True)))
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2] == "data: [DONE]"
    return "".join(json.loads(x[6:])["choices"][0]["text"] for x in lines[:-2])


def leave(port, i):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body_of(i, stream=True, max_tokens=400)))
    connection.getresponse().read(10)
    connection.close()


def look(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics")
    assert connection.getresponse().read().startswith(b"# HELP")
    connection.close()


def client(port, i, expected, faults):
    try:
        for turn in range(2):
            n = (i + 3 * turn) % len(PROMPTS)
            if i % 4 == 3:
                leave(port, n)
            look(port)
            assert complete(port, n) == expected[n]
            assert stream(port, n) == expected[n][0]
    except Exception as fault:  # pylint: disable=broad-except
        faults.append(fault)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_disturb_each_other(system, tiny_model, threads):
    alone = start(system, tiny_model, 1)
    expected = [complete(alone.port, i) for i in range(len(PROMPTS))]
    assert alone.stop() == 0
    server, faults = start(system, tiny_model, threads), []
    clients = [threading.Thread(target=client, args=(server.port, i, expected, faults))
               for i in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert not faults, faults
    # Its end while a request runs: nobody is left waiting, nothing is left behind.
    last = threading.Thread(target=leave, args=(server.port, 0))
    last.start()
    last.join()
    assert server.stop() == 0, server.lines[-5:]
