# SPDX-License-Identifier: Apache-2.0
"""A pool that is smaller than one context: what cannot fit is refused at once, what outgrows it ends."""
import subprocess

import pytest

import conftest
import tiny_gguf
from conftest import BIN, post


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """128 KiB a block, so that 8 MiB hold 64 blocks, 1,024 of its 2,048 tokens."""
    path = str(tmp_path_factory.mktemp("model") / "wide.gguf")
    return tiny_gguf.write(path, layers=8, dim=256, heads=4, kv_heads=4)


def test_a_server_with_a_small_pool(system, wide_model, monkeypatch):
    monkeypatch.setattr(conftest, "MODEL", wide_model)
    server = system.serve("--pool-size", "8M", "--model-name", "wide")
    server.wait_for("room for the KV of 1024 tokens")
    status, answer = post(server.port, "/v1/completions", {"model": "wide", "prompt": "a" * 1100,
                                                          "max_tokens": 5})
    assert status == 400 and "1100 tokens: the whole pool" in answer["error"]["message"], answer
    status, answer = post(server.port, "/v1/completions", {"model": "wide", "prompt": "a" * 1000,
                                                          "max_tokens": 100, "ignore_eos": True})
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 24
    # And the pool serves on.
    status, answer = post(server.port, "/v1/completions", {"model": "wide", "prompt": "hello",
                                                          "max_tokens": 5})
    assert status == 200


def test_run_with_a_small_pool(wide_model):
    out = subprocess.run([f"{BIN}/fabric-engine", "run", "-m", wide_model, "--pool-size", "8M", "-p",
                          "a" * 1100], capture_output=True, text=True, check=False, timeout=60)
    assert out.returncode == 1 and "enlarge the pool" in out.stderr, out
