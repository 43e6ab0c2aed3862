# SPDX-License-Identifier: Apache-2.0
"""The front door as a process, against fake workers (fake_worker.py): API, routes, failures.
Needs FABRICMGR_BIN (folder of the programs) and FABRICMGR_TEST_MODEL (a GGUF file; only its
tokenizer and template are used). Nothing here decides by elapsed time but the limits of waits.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

from conftest import until
from fake_worker import FakeWorker, next_token

BIN = os.environ.get("FABRICMGR_BIN", "build/release/bin")
MODEL = os.environ.get("FABRICMGR_TEST_MODEL") or os.path.expanduser(
    "~/.cache/fabricmgr/SmolLM2-135M-Instruct.Q4_1.gguf")
pytestmark = pytest.mark.skipif(not os.path.exists(MODEL), reason="no model file: run make model")
IDS = list(range(1000, 1040))  # a prompt of 40 tokens


class Router:
    def __init__(self, *workers, options=()):
        self.errors = tempfile.TemporaryFile()
        command = [os.path.join(BIN, "fabric-engine"), "router", "-m", MODEL, "--listen",
                   "127.0.0.1:0", "--model-name", "test", *options]
        for worker in workers:
            command += ["--worker", worker if isinstance(worker, str) else "unix:" + worker.path]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors)
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on http://127.0.0.1:"), self.log()
        self.port = int(line.rsplit(":", 1)[1])

    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def request(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if "json" in answer.headers.get("Content-Type", "") and method != "HEAD":
            data = json.loads(data)
        return answer.status, data

    def post(self, path, **body):
        return self.request("POST", path, body)

    def complete(self, **body):
        return self.post("/v1/completions", **{"prompt": IDS, "seed": 1, **body})

    def stream(self, path, **body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events, raw = [], answer.read().decode()
        connection.close()
        for event in raw.split("\n\n"):
            if event:
                assert event.startswith("data: ")
                events.append(event[6:])
        return events

    def wait(self, path, status=200, limit=20):
        end = time.monotonic() + limit
        while self.request("GET", path)[0] != status:
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def metric(self, name):
        for line in self.request("GET", "/metrics")[1].decode().splitlines():
            if line.startswith("fabric_engine_" + name + " "):
                return float(line.split()[-1])
        raise AssertionError(name)

    def until(self, name, value, limit=20):
        end = time.monotonic() + limit
        while self.metric(name) != value:
            assert time.monotonic() < end, (name, self.metric(name))
            time.sleep(0.02)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        log = self.log()
        assert status == 0, log
        assert "Sanitizer" not in log, log


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fm-router-") as path:
        yield path


@pytest.fixture
def fleet(folder):
    """start(prefill=…, decode=…) gives a router, ready, and its fake workers by name."""
    made = []

    def start(roles=("prefill", "decode"), options=(), ready=True, **worker_options):
        workers = [FakeWorker(f"{folder}/{i}.sock", role, **worker_options)
                   for i, role in enumerate(roles)]
        router = Router(*workers, options=options)
        made.append((router, workers))
        if ready:
            router.wait("/ready")
            until(lambda: router.request("GET", "/metrics")[1].count(b"} 1\n") >= len(workers))
        return (router, *workers)

    yield start
    for router, workers in made:
        router.close()
        for worker in workers:
            worker.stop()


def expected(n, prompt=IDS):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens))
    return tokens[len(prompt):]


def text_of(router, tokens):
    return router.post("/detokenize", tokens=tokens)[1]["content"]


DISAGGREGATE = ("--bypass-tokens", "0", "--bypass-ratio", "0")


# ---- the API ----------------------------------------------------------------------------------

def test_small_endpoints(fleet):
    router, _ = fleet(("both",))
    assert router.request("GET", "/health") == (200, {"status": "ok"})
    assert router.request("GET", "/ready")[0] == 200
    status, models = router.request("GET", "/v1/models")
    assert status == 200 and models["data"][0]["id"] == "test"
    status, tokens = router.post("/tokenize", content="Hello world")
    assert status == 200 and len(tokens["tokens"]) == 2
    assert router.post("/detokenize", **tokens)[1]["content"] == "Hello world"
    for method, path, wanted in (("GET", "/nothing", 404), ("GET", "/v1/completions", 405),
                                 ("POST", "/health", 405), ("HEAD", "/health", 200)):
        status, body = router.request(method, path)
        assert status == wanted
        if wanted != 200:
            assert set(body["error"]) == {"message", "type", "param", "code"}
    status, text = router.request("GET", "/metrics")
    assert b'fabric_engine_worker_up{worker="unix:' in text


def test_completion_whole(fleet):
    router, _ = fleet(("both",))
    status, body = router.complete(max_tokens=7)
    assert status == 200 and body["object"] == "text_completion" and body["model"] == "test"
    assert body["choices"] == [{"index": 0, "text": text_of(router, expected(7)), "logprobs": None,
                                "finish_reason": "length"}]
    assert body["usage"] == {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47,
                             "prompt_tokens_details": {"cached_tokens": 16}}
    assert body["fabricmgr"]["route"] == "monolithic"
    assert body["fabricmgr"]["mapped_blocks"] == 1 and body["fabricmgr"]["ttft_ms"] > 0


def test_chat_stream(fleet):
    router, worker = fleet(("both",))
    worker.end_after = 5
    events = router.stream("/v1/chat/completions", messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        stream_options={"include_usage": True}, max_tokens=20)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 5
    prompt = worker.requests[0][1]["tokens"]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == text_of(router, expected(5, prompt))
    assert chunks[-1]["fabricmgr"]["route"] == "monolithic"
    # Without include_usage there is no such chunk.
    events = router.stream("/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    assert all("usage" not in json.loads(event) for event in events[:-1])


def test_several_choices_and_prompts(fleet):
    router, worker = fleet(("both",))
    status, body = router.complete(prompt=["one", "two"], n=2, max_tokens=3)
    assert status == 200 and [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert sorted(m["sampling"]["choice"] for _, m in worker.requests) == [0, 0, 1, 1]
    assert body["usage"]["completion_tokens"] == 12
    events = router.stream("/v1/completions", prompt="x", n=3, max_tokens=2)
    ends = [c["choices"][0]["index"] for c in map(json.loads, events[:-1])
            if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


def test_logprobs(fleet):
    router, *_ = fleet(options=DISAGGREGATE)
    status, body = router.post("/v1/chat/completions", max_tokens=4, logprobs=True, top_logprobs=2,
                               messages=[{"role": "user", "content": "x"}])
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(t["top_logprobs"]) == 2 for t in content)
    joined = b"".join(bytes(t["bytes"]) for t in content).decode("utf-8", "replace")
    assert joined == body["choices"][0]["message"]["content"]
    status, body = router.complete(max_tokens=3, logprobs=1)
    report = body["choices"][0]["logprobs"]
    assert status == 200 and len(report["tokens"]) == len(report["text_offset"]) == 3
    assert report["token_logprobs"] == [-0.5] * 3


def test_parameters_reach_the_worker(fleet):
    router, worker = fleet(("both",))
    router.complete(max_tokens=1, temperature=0.5, top_p=0.5, top_k=7, min_p=0.25, seed=99)
    assert worker.requests[0][1]["sampling"] == {"temperature": 0.5, "top_p": 0.5, "min_p": 0.25,
                                                 "top_k": 7, "seed": 99, "choice": 0}
    router.post("/v1/completions", prompt=IDS, max_tokens=1)
    router.post("/v1/completions", prompt=IDS, max_tokens=1)
    seeds = [m["sampling"]["seed"] for _, m in worker.requests[1:]]
    assert seeds[0] != seeds[1] and worker.requests[1][1]["sampling"]["temperature"] == 1


def test_penalties_and_ends_reach_both_workers(fleet):
    router, prefill, decode = fleet(options=DISAGGREGATE)
    asked = {"repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 0.25,
             "min_tokens": 2, "stop_token_ids": [7, 9]}
    status, _ = router.complete(max_tokens=4, ignore_eos=True, logit_bias={"5": -100, "0": 2.5},
                                temperature=0, **asked)
    assert status == 200
    for worker in (prefill, decode):
        message = worker.requests[0][1]
        assert message["ends"] is False and message["n_prompt"] == 40
        sampling = message["sampling"]
        assert {name: sampling[name] for name in asked} == asked
        assert sorted(sampling["logit_bias"]) == [[0, 2.5], [5, -100.0]]


def test_an_end_at_prefill_is_what_the_request_says(fleet):
    router, prefill, decode = fleet(options=DISAGGREGATE)
    prefill.choose = lambda tokens: 2  # <|im_end|>
    status, body = router.complete(max_tokens=3, ignore_eos=True)
    assert status == 200 and body["usage"]["completion_tokens"] == 3
    prefill.choose = lambda tokens: 3000
    status, body = router.complete(max_tokens=3, stop_token_ids=[3000], ignore_eos=True)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 0 and len(decode.requests) == 1


@pytest.mark.parametrize("body, param", [
    ({"temperature": "hot"}, "temperature"), ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"min_p": 2}, "min_p"), ({"top_k": -2}, "top_k"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"n": 0}, "n"),
    ({"n": 17}, "n"), ({"stop": ""}, "stop"), ({"stop": [1]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"), ({"echo": True}, "echo"), ({"logprobs": 99}, "logprobs"),
    ({"stream": 1}, "stream"), ({"stream_options": {}}, "stream_options"),
    ({"prompt": []}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": [[]]}, "prompt"),
    ({"prompt": None}, "prompt"), ({"prompt": {}}, "prompt"), ({"prompt": [1 << 40]}, "prompt"),
    ({"prompt": [49152]}, "prompt"), ({"prompt": [1, "x"]}, "prompt"),
    ({"prompt": ["x"] * 17}, "prompt"), ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"49152": 1}}, "logit_bias"), ({"stop_token_ids": [49152]}, "stop_token_ids"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"seed": "x"}, "seed"),
    ({"frequency_penalty": 3}, "frequency_penalty"), ({"min_tokens": 17}, "min_tokens"), ({"prompt": [5] * 8192}, "prompt")])
def test_refusals_name_the_parameter(refusing_router, body, param):
    status, answer = refusing_router.complete(**body)
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"
    if body == {"prompt": [5] * 8192}:
        assert answer["error"]["code"] == "context_length_exceeded"


@pytest.fixture(scope="module")
def refusing_router():
    with tempfile.TemporaryDirectory(prefix="fm-router-") as path:
        worker = FakeWorker(path + "/w.sock")
        router = Router(worker)
        router.wait("/ready")
        yield router
        router.close()
        worker.stop()


def test_bad_bodies_and_then_a_good_one(refusing_router):
    router = refusing_router
    for body in (b"{not json", b"[]", b"", b'{"prompt":"\xff\xfe"}', b"{" * 5000, b'{"prompt":"a\\u0000"}',
                 b'{"prompt":"\\ud800"}'):
        status, answer = router.request("POST", "/v1/completions", body)
        assert status == 400 and answer["error"]["message"], body
    for messages in (None, [], "x", [1], [{"role": "tool", "content": "x"}], [{"role": "user"}],
                     [{"role": "user", "content": [{"type": "image_url"}]}]):
        status, answer = router.post("/v1/chat/completions", messages=messages)
        assert status == 400 and answer["error"]["param"].startswith("messages")
    assert router.complete(model="other")[0] == 404
    assert router.complete(max_tokens=2, model="test", echo=False, user="x")[0] == 200


def test_body_limit(refusing_router):
    router = refusing_router
    with socket.create_connection(("127.0.0.1", router.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Content-Length: 9000000\r\n\r\n")
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", router.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(9):  # its length is known only at the end
            connection.sendall(b"f4240\r\n" + b"x" * 1000000 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    assert router.complete(max_tokens=1)[0] == 200


def test_context_clips_max_tokens(fleet):
    router, worker = fleet(("both",), context=64)
    status, body = router.complete(max_tokens=1000)
    assert status == 200 and body["usage"]["completion_tokens"] == 24
    assert body["choices"][0]["finish_reason"] == "length"
    assert router.complete(prompt=[5] * 64)[1]["error"]["code"] == "context_length_exceeded"
    assert router.complete(prompt=[5] * 63)[1]["usage"]["completion_tokens"] == 1


# ---- routes -----------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [1, 2, 6])
def test_disaggregated_gives_the_same_text(fleet, n):
    router, prefill, decode = fleet(options=DISAGGREGATE)
    status, body = router.complete(max_tokens=n)
    assert status == 200 and body["choices"][0]["text"] == text_of(router, expected(n))
    assert body["usage"]["completion_tokens"] == n
    assert body["fabricmgr"]["route"] == "disaggregated"
    assert [op for op, _ in prefill.requests] == ["prefill"]
    if n == 1:
        assert not decode.requests and body["choices"][0]["finish_reason"] == "length"
        return
    message = decode.requests[0][1]
    assert message["tokens"] == IDS + expected(1) and message["n_prompt"] == 40
    assert message["max_tokens"] == n - 1 and message["tail"] == "5a" * 16
    assert body["fabricmgr"]["computed_prefill"] == 40 and body["fabricmgr"]["computed_decode"] == 5


def test_end_token_and_stop_string_at_prefill(fleet):
    router, prefill, decode = fleet(options=DISAGGREGATE)
    prefill.choose = lambda tokens: 2  # <|im_end|>
    status, body = router.complete(max_tokens=5)
    assert status == 200 and body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["text"] == "" and body["usage"]["completion_tokens"] == 0
    prefill.choose = next_token
    status, body = router.complete(max_tokens=5, stop=text_of(router, expected(1)))
    assert body["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    assert not decode.requests


def test_short_prompts_bypass(fleet):
    router, prefill, decode = fleet(options=("--bypass-tokens", "40", "--bypass-ratio", "0"))
    assert router.complete(max_tokens=3)[1]["fabricmgr"]["route"] == "bypass"
    assert not prefill.requests and len(decode.requests) == 1
    assert router.complete(prompt=IDS + [7], max_tokens=3)[1]["fabricmgr"]["route"] == "disaggregated"


def test_stop_string_over_tokens_cancels(fleet):
    router, worker = fleet(("both",), delay=0.02)
    words = router.post("/tokenize", content=" one two three four five six")[1]["tokens"]
    worker.choose = lambda tokens: words[(len(tokens) - 40) % len(words)]
    events = router.stream("/v1/completions", prompt=IDS, stop=["ee fo"], max_tokens=500)
    text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
    assert text == " one two thr"
    until(lambda: worker.cancelled)
    router.until("requests_running", 0)


# ---- failures ---------------------------------------------------------------------------------

@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_decode_worker_dies_another_goes_on(fleet, after):
    router, _, first, second = fleet(("prefill", "decode", "decode"), options=DISAGGREGATE)
    first.die_after = second.die_after = None
    first.die_after = after
    status, body = router.complete(max_tokens=10)
    assert status == 200 and body["choices"][0]["text"] == text_of(router, expected(10))
    assert body["usage"]["completion_tokens"] == 10
    assert body["fabricmgr"]["retries"] <= 1
    taken = [m for _, m in first.requests + second.requests]
    assert all(m["n_prompt"] == 40 for m in taken)


def test_the_only_worker_dies_and_comes_back(fleet):
    router, worker = fleet(("both",), delay=0.01)
    worker.die_after = 4
    events = router.stream("/v1/completions", prompt=IDS, max_tokens=12)
    text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
    assert text == text_of(router, expected(12))
    assert len(worker.requests) == 2 and len(worker.requests[1][1]["tokens"]) == 44
    assert worker.requests[1][1]["max_tokens"] == 8


def test_prefill_worker_dies_decode_does_it(fleet):
    router, prefill, decode = fleet(options=DISAGGREGATE)
    prefill.silent = True
    result = []
    thread = threading.Thread(target=lambda: result.append(router.complete(max_tokens=6)))
    thread.start()
    until(lambda: prefill.requests)
    prefill.stop()
    thread.join()
    prefill.start()
    status, body = result[0]
    assert status == 200 and body["choices"][0]["text"] == text_of(router, expected(6))
    assert len(decode.requests) == 1 and body["fabricmgr"]["route"] == "monolithic"


def test_a_retryable_error_goes_elsewhere(fleet):
    router, first, second = fleet(("both", "both"))
    first.refuse = {"code": "FM_ERR_POOL_FULL", "message": "full", "retry": True}
    for _ in range(3):
        status, body = router.complete(max_tokens=5)
        assert status == 200 and body["choices"][0]["text"] == text_of(router, expected(5))
    first.refuse = second.refuse = {"code": "FM_ERR_LIMIT", "message": "too long", "retry": False}
    status, body = router.complete(max_tokens=5)
    assert status == 400 and body["error"]["message"] == "too long"


def test_no_worker_until_the_deadline(folder):
    router = Router(f"unix:{folder}/none.sock", options=("--deadline", "1"))
    try:
        assert router.request("GET", "/health")[0] == 200
        status, body = router.request("GET", "/ready")
        assert status == 503 and "none.sock" in body["error"]["message"]
        status, body = router.complete(max_tokens=2)
        assert status == 503 and body["error"]["code"] == "deadline"
        assert "no worker that can decode" in body["error"]["message"]
        worker = FakeWorker(f"{folder}/none.sock")
        assert router.complete(max_tokens=2)[0] == 200
        worker.stop()
    finally:
        router.close()


def test_a_frozen_worker_meets_the_deadline(fleet):
    router, worker = fleet(("both",), options=("--deadline", "1"))
    worker.silent = True
    assert router.complete(max_tokens=2)[0] == 503
    router.until("requests_running", 0)
    worker.silent = False
    assert router.complete(max_tokens=2)[0] == 200


@pytest.mark.parametrize("raw", [b"nonsense\n", b"[1]\n", b"{}\n",
                                 b'{"id":1,"event":"token","token":99999999}\n', b"\xff\xfe\n"])
def test_a_worker_that_talks_nonsense_is_dropped(fleet, raw):
    router, first, second = fleet(("both", "both"))
    first.raw = raw
    for _ in range(2):
        status, body = router.complete(max_tokens=5)
        assert status == 200 and body["choices"][0]["text"] == text_of(router, expected(5))


@pytest.mark.parametrize("hello", [{"namespace": "cd" * 32}, {"version": 1}, {"vocab": 10}])
def test_a_worker_of_another_kind_is_refused(folder, hello):
    good = FakeWorker(f"{folder}/good.sock")
    router = Router(good, f"unix:{folder}/bad.sock")
    router.wait("/ready")
    bad = FakeWorker(f"{folder}/bad.sock", **hello)
    try:
        until(lambda: "refused" in router.log())
        assert router.complete(max_tokens=2)[0] == 200 and not bad.requests
    finally:
        router.close()
        good.stop()
        bad.stop()


# ---- clients ----------------------------------------------------------------------------------

@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(fleet, stream):
    router, worker = fleet(("both",), delay=0.02)
    body = json.dumps({"prompt": IDS, "max_tokens": 4000, "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", router.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
    if stream:
        assert connection.recv(4096)
    router.until("requests_running", 1)
    connection.close()
    router.until("requests_running", 0)
    until(lambda: worker.cancelled)
    assert router.complete(max_tokens=2)[0] == 200


def test_a_client_that_never_reads_is_dropped(fleet):
    router, worker = fleet(("both",))
    body = json.dumps({"prompt": IDS, "max_tokens": 8000, "stream": True, "n": 8}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", router.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
    router.until("requests_running", 8)
    router.until("requests_running", 0, limit=120)
    assert router.complete(max_tokens=2)[0] == 200
    connection.close()


def test_too_many_requests(fleet):
    router, worker = fleet(("both",), options=("--max-requests", "2"))
    worker.silent = True
    threads = [threading.Thread(target=router.complete) for _ in range(2)]
    for thread in threads:
        thread.start()
    router.until("requests_running", 2)
    status, body = router.complete()
    assert status == 429 and body["error"]["type"] == "rate_limit_error"
    assert router.request("GET", "/health")[0] == 200
    worker.drop()
    worker.silent = False
    for thread in threads:
        thread.join()
    assert router.complete(max_tokens=1)[0] == 200


def test_many_at_once_with_dying_workers(fleet):
    router, _, first, second = fleet(("prefill", "decode", "decode"), options=DISAGGREGATE,
                                     delay=0.001)
    results = {}

    def ask(i):
        prompt = [2000 + i] * (20 + i)
        results[i] = (router.complete(prompt=prompt, max_tokens=30), prompt)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
    for number, thread in enumerate(threads):
        thread.start()
        if number % 6 == 5:
            (first if number % 12 == 5 else second).drop()
            time.sleep(0.02)
    for thread in threads:
        thread.join()
    for i in range(24):
        (status, body), prompt = results[i]
        assert status == 200, body
        assert body["choices"][0]["text"] == text_of(router, expected(30, prompt))
    assert router.metric("requests_running") == 0


def sleeper(router, results):
    thread = threading.Thread(target=lambda: results.append(router.complete(max_tokens=40)))
    thread.start()
    router.until("requests_running", 1)
    return thread


def test_sigterm_lets_what_runs_finish_and_refuses_the_rest(folder):
    worker = FakeWorker(f"{folder}/w.sock", delay=0.05)
    router = Router(worker)
    router.wait("/ready")
    result = []
    thread = sleeper(router, result)
    router.process.send_signal(signal.SIGTERM)
    router.wait("/ready", 503)
    status, body = router.request("GET", "/ready")
    assert status == 503 and body["error"]["code"] == "shutting_down"
    assert router.request("GET", "/health")[0] == 200
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": IDS}))
    answer = connection.getresponse()
    assert answer.status == 503 and answer.headers["Retry-After"]
    assert json.loads(answer.read())["error"]["code"] == "shutting_down"
    connection.close()
    assert not result
    thread.join()
    assert result[0][0] == 200 and result[0][1]["choices"][0]["finish_reason"] == "length"
    assert router.process.wait(20) == 0
    assert "a second signal ends them" in router.log()
    worker.stop()


@pytest.mark.parametrize("options, signals, least", [
    ((), 2, 0), (("--drain-seconds", "0"), 1, 0), (("--drain-seconds", "1"), 1, 1.0)])
def test_what_does_not_finish_is_answered_with_503(folder, options, signals, least):
    worker = FakeWorker(f"{folder}/w.sock")
    router = Router(worker, options=options)
    router.wait("/ready")
    worker.silent = True
    result = []
    thread = sleeper(router, result)
    start = time.monotonic()
    router.process.send_signal(signal.SIGTERM)
    if signals == 2:
        router.wait("/ready", 503)
        assert not result
        router.process.send_signal(signal.SIGTERM)
    assert router.process.wait(15) == 0, router.log()
    assert time.monotonic() - start >= least
    thread.join()
    assert result[0][0] == 503 and result[0][1]["error"]["code"] == "shutting_down"
    worker.stop()


def test_without_requests_sigterm_is_the_end(folder):
    worker = FakeWorker(f"{folder}/w.sock")
    router = Router(worker)
    router.wait("/ready")
    router.close()
    assert [greeting["version"] for greeting in worker.greetings] == [2]
    worker.stop()


def test_unfinished_requests_are_closed_and_a_slow_answer_is_not(fleet):
    """15 s without a byte; a request that waits for its worker does not count."""
    router, worker = fleet(("both",))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    halves = {}
    for name, text in (("nothing", b""), ("head", head), ("body", head + b'\r\n{"prompt":'),
                       ("half-closed", head)):
        halves[name] = socket.create_connection(("127.0.0.1", router.port))
        halves[name].sendall(text)
        if name == "half-closed":
            halves[name].shutdown(socket.SHUT_WR)
    worker.delay = 18
    worker.choose = lambda tokens: 3000
    result = []
    thread = threading.Thread(target=lambda: result.append(router.complete(max_tokens=1)))
    thread.start()
    start = time.monotonic()
    for name, half in halves.items():
        half.settimeout(20)
        try:
            assert half.recv(1) == b"", name
        except ConnectionResetError:
            pass
        half.close()
    assert time.monotonic() - start < 20
    thread.join()
    assert result[0][0] == 200 and result[0][1]["usage"]["completion_tokens"] == 1


def test_command_line():
    def run(*arguments):
        return subprocess.run([os.path.join(BIN, "fabric-engine"), "router", *arguments],
                              capture_output=True, text=True, timeout=20, check=False)

    assert "usage:" in run("--help").stdout
    assert run().returncode == 2
    for wrong in (("--listen", "0.0.0.0:0"), ("--worker", "10.0.0.1:80"), ("--worker", "x")):
        result = run("-m", MODEL, "--worker", "unix:/tmp/x", *wrong)
        assert result.returncode == 2 and wrong[1] in result.stderr
    twice = run("-m", MODEL, "--worker", "unix:/tmp/x", "--worker", "unix:/tmp/x")
    assert twice.returncode == 2 and "given twice" in twice.stderr
    for wrong in (("--deadline", "0"), ("--bypass-ratio", "2"), ("--tls", "none"), ("extra",)):
        assert run("-m", MODEL, "--worker", "unix:/tmp/x", *wrong).returncode == 2
