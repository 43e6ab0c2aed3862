# SPDX-License-Identifier: Apache-2.0
"""A request's id, from the client's header through router and workers to the keys of its blocks."""
import contextlib
import http.client
import json
import re

import pytest

import conftest


@pytest.fixture
def node(system, tiny_model, monkeypatch):
    """Daemon, prefill and decode worker, router, on a tiny model; the engine's log level is debug."""
    monkeypatch.setattr(conftest, "MODEL", tiny_model)
    system.started_daemon = system.daemon("16M")
    monkeypatch.setenv("FABRICMGR_LOG", "debug")
    system.prefill, system.decode = system.worker("prefill"), system.worker("decode")
    system.front = system.router("prefill", "decode", more=("--bypass-tokens", "0", "--model-name", "tiny"))
    return system


def ask(port, body, request_id=None, path="/v1/completions", method="POST"):
    """(status, X-Request-Id of the answer, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        headers = {"X-Request-Id": request_id} if request_id is not None else {}
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.headers.get_all("X-Request-Id"), response.read()


def about(process, request_id):
    """{code: [text]} of the lines of a log that name the id."""
    found = {}
    for line in list(process.lines):
        match = re.match(rf"fabric-engine: (FM\d+) request {re.escape(request_id)}: (.*)", line or "")
        if match:
            found.setdefault(match[1], []).append(match[2])
    return found


def blocks(process, request_id, how):
    """Keys, in the order of the blocks."""
    found = [re.fullmatch(rf"block (\d+), {how}: ([0-9a-f]{{32}})", text)
             for text in about(process, request_id).get("FM2211", [])]
    found = sorted((int(match[1]), match[2]) for match in found if match)
    assert [number for number, _ in found] == list(range(found[0][0], found[0][0] + len(found))) if found else True
    return [key for _, key in found]


def test_one_id_leads_from_the_client_to_the_blocks(node):
    status, ids, text = ask(node.front.port, {"model": "tiny", "prompt": "x" * 40, "max_tokens": 20, "ignore_eos": True},
                            "trace/7:a-b_c.d=+@")
    assert status == 200 and ids == ["trace/7:a-b_c.d=+@"], text
    assert json.loads(text)["fabricmgr"]["route"] == "disaggregated"
    name = ids[0]
    for process in (node.front, node.prefill, node.decode):
        process.wait_for(rf"FM(2114|2212) request {re.escape(name)}: over")
    router, prefill, decode = (about(process, name) for process in (node.front, node.prefill, node.decode))
    assert router["FM2112"] == ["taken, 1 choices"]
    routed = [re.fullmatch(r"choice 0 to worker unix:.*/(\w+)\.sock as (\d+): (\w+)", text) for text in router["FM2113"]]
    assert [(match[1], match[3]) for match in routed] == [("prefill", "prefill"), ("decode", "generate")]
    assert re.fullmatch(r"over after [\d.]+ ms: 40 prompt tokens, 0 cached, 20 generated", router["FM2114"][0])
    # The numbers are those of the worker protocol.
    assert prefill["FM2210"] == [f"taken as {routed[0][2]}: prefill, 40 tokens"]
    assert decode["FM2210"] == [f"taken as {routed[1][2]}: generate, 41 tokens"]
    # 40 tokens are two blocks and a tail; 59 with KV in the end are three.
    sealed, read = blocks(node.prefill, name, "sealed"), blocks(node.decode, name, "read")
    assert len(sealed) == 2 and read == sealed
    more = blocks(node.decode, name, "sealed")
    assert len(more) == 1
    assert {block["key"] for block in node.control("ls") if block["state"] == "sealed"} == {*sealed, *more}
    assert decode["FM2212"] == ["over: 1 tokens computed, 40 cached, 19 generated"]
    # Another request on the same prompt reads the same blocks, under its own id.
    ask(node.front.port, {"model": "tiny", "prompt": "x" * 40, "max_tokens": 2}, "second")
    node.decode.wait_for("FM2212 request second: over")
    assert blocks(node.decode, "second", "read")[:2] == sealed
    assert not about(node.decode, "secon") and about(node.decode, "second")["FM2210"]


def test_every_answer_has_one(node):
    port = node.front.port
    seen = set()
    for body in ({"model": "tiny", "prompt": "a", "max_tokens": 2}, {"model": "tiny", "prompt": "a", "stream": True},
                 {"model": "wrong", "prompt": "a"}, {"prompt": 3}):
        for given in (None, "", "has blanks", "x" * 65, "quote\"", "a;b"):
            _, ids, _ = ask(port, body, given)
            assert len(ids) == 1 and re.fullmatch(r"req-[0-9a-f]{24}", ids[0]), (given, ids)
            seen.add(ids[0])
        assert ask(port, body, "mine")[1] == ["mine"]
    assert len(seen) == 24
    for path, method in (("/health", "GET"), ("/none", "GET"), ("/v1/completions", "GET"), ("/v1/models", "GET")):
        assert ask(port, {}, "y" * 64, path, method)[1] == ["y" * 64]


def test_lines_about_a_request_name_it_at_any_level(system, tiny_model, monkeypatch):
    from fake_worker import FakeWorker
    monkeypatch.setattr(conftest, "MODEL", tiny_model)
    worker = FakeWorker(f"{system.folder}/decode.sock")
    try:
        worker.refuse = {"code": "FM_ERR_LIMIT", "message": "no", "retry": False}
        front = system.router("decode", more=("--model-name", "tiny"))
        assert ask(front.port, {"model": "tiny", "prompt": "a"}, "refused-1")[0] == 400
        front.wait_for("FM2106 worker .* refused request refused-1: no")
        assert [message["request"] for _, message in worker.requests] == ["refused-1"]
        assert not any("FM2112" in line for line in front.lines if line)
    finally:
        worker.stop()
