# SPDX-License-Identifier: Apache-2.0
"""One prompt, the same tokens and the same raw logits however it is served: by run, by serve,
disaggregated, from cache, in any chunk, with any number of threads, beside others, after an
eviction, after the daemon was restarted; on every instruction set, in every precision and KV type.

--logits-log gives the SHA-256 of the logits behind each token. What is expected comes from the
portable C with one thread. The small model does all of it in the default precision; the other
precisions and the real model do a part, and tests/unit/test_same_bits.c every chunk of each.
"""
import random
import subprocess
import tempfile
import threading

import pytest

import conftest
from conftest import BIN, MODEL, System, needs_model, post

N = 6
PROMPT = [(7 * i * i + 3 * i + 11) % 250 for i in range(67)]  # ends within its fifth block
ISAS = ("portable", "avx2", "avx512", "amx")
KINDS = [(precision, kv) for precision in ("q16", "q8", "f32") for kv in ("f16", "f32")]


class Log:
    """What programs append to one --logits-log: read by what came since the last look."""

    def __init__(self, folder):
        self.path = f"{folder}/logits"
        self.seen = 0

    def lines(self):
        """[(request, position, digest, token)] that are new."""
        with open(self.path, encoding="ascii") as file:
            lines = file.read().splitlines()
        new, self.seen = lines[self.seen:], len(lines)
        return [(int(a), int(b), c, int(d)) for a, b, c, d in (line.split() for line in new)]

    def answer(self):
        """{position: (digest, token)} of all that is new: one request's, maybe of two workers."""
        out = {}
        for _, position, digest, token in self.lines():
            assert out.setdefault(position, (digest, token)) == (digest, token)
        return out

    def answer_of(self, length):
        """The same of the request whose prompt has this length, among others."""
        lines = self.lines()
        mine = [line[0] for line in lines if line[1] == length]
        assert len(mine) == 1
        return {position: (digest, token) for request, position, digest, token in lines
                if request == mine[0]}


def run(log, model, prompt, *arguments):
    command = [f"{BIN}/fabric-engine", "run", "-m", model, "--tokens", ",".join(map(str, prompt)),
               "-n", str(N), "--ignore-end", "--pool-size", "64M", "--logits-log", log.path,
               *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert out.returncode == 0, out.stderr
    return log.answer()


def has(isa, model):
    """Whether this machine has the instruction set; says so when not."""
    out = subprocess.run([f"{BIN}/fabric-engine", "run", "-m", model, "--tokens", "1", "-n", "1",
                          "--isa", isa, "--pool-size", "16M"], capture_output=True, text=True,
                         check=False, timeout=60)
    assert out.returncode == 0 or "instruction set" in out.stderr, out.stderr
    return out.returncode == 0


def ask(port, prompt, n=N):
    """The answer's usage."""
    status, body = post(port, "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": n,
                                                  "temperature": 0})
    assert status == 200, body
    return body


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def log():
    with tempfile.TemporaryDirectory(prefix="fabricmgr-test-") as folder:
        yield Log(folder)


@pytest.fixture
def small(monkeypatch, tiny_model):
    """The small model, for every program of the test."""
    monkeypatch.setattr(conftest, "MODEL", tiny_model)
    return tiny_model


def check_serve(system, log, expected, flags, fill=1100):
    """First, from cache, beside seven others, evicted by prompts of @fill and computed again."""
    server = system.serve("--pool-size", "8M", "--model-name", "m", "--logits-log", log.path,
                          *flags)
    assert cached(ask(server.port, PROMPT)) == 0
    assert log.answer() == expected
    assert cached(ask(server.port, PROMPT)) == len(PROMPT) // 16 * 16
    assert log.answer() == expected
    # Equal blocks behind another first one, and prefixes of the prompt itself.
    others = [[i] + PROMPT[1:10 + 8 * i] for i in range(4)] + [PROMPT[:n] for n in (1, 16, 33)]
    threads = [threading.Thread(target=ask, args=(server.port, x)) for x in [*others, PROMPT]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.answer_of(len(PROMPT)) == expected
    chance = random.Random(1)
    # The policy keeps what was used often: others have to be used as often before it lets go.
    for burst in (2, 4, 8, 16):
        for _ in range(burst):
            prompt = [chance.randrange(250) for _ in range(fill)]
            for _ in range(3):
                ask(server.port, prompt, 1)
        log.lines()
        n_cached = cached(ask(server.port, PROMPT))
        assert log.answer() == expected
        if n_cached < len(PROMPT) // 16 * 16:
            break
    else:
        pytest.fail("nothing of the prompt was evicted")
    assert server.stop() == 0


def check_fleet(system, log, expected, flags):
    """Disaggregated, from the decode worker's cache, and after the daemon was restarted."""
    flags = ("--logits-log", log.path, *flags)
    daemon = system.daemon("16M")
    system.worker("prefill", *flags)
    system.worker("decode", *flags)
    router = system.router("prefill", "decode", more=("--model-name", "m", "--bypass-tokens", "16"))
    body = ask(router.port, PROMPT)
    assert body["fabricmgr"]["route"] == "disaggregated"
    assert log.answer() == expected
    body = ask(router.port, PROMPT)
    assert body["fabricmgr"]["route"] == "bypass" and cached(body) > 0
    assert log.answer() == expected
    daemon.kill()
    daemon.process.wait()
    system.daemon("16M")
    body = ask(router.port, PROMPT)
    assert cached(body) == 0
    assert log.answer() == expected


@pytest.mark.parametrize("precision,kv", KINDS)
def test_the_small_model_in_every_way(small, log, precision, kv):
    kind = ("--precision", precision, "--kv", kv)
    expected = run(log, small, PROMPT, "--isa", "portable", "--threads", "1", *kind)
    assert sorted(expected) == list(range(len(PROMPT), len(PROMPT) + N))
    every, turn = (precision, kv) == KINDS[0], KINDS.index((precision, kv))
    isas = [isa for isa in ISAS if has(isa, small)]
    for number, isa in enumerate(isas):
        for chunk in range(1, 65) if every else (1, 16, 17, 64):
            threads = (1, 2, 4)[chunk % 3]
            assert run(log, small, PROMPT, "--isa", isa, "--chunk", str(chunk), "--threads",
                       str(threads), *kind) == expected, (isa, chunk, threads)
        flags = ("--isa", isa, "--threads", "2", *kind)
        for i, check in enumerate((check_serve, check_fleet)):
            if not every and (number + i) % len(isas) != turn % len(isas):
                continue
            with tempfile.TemporaryDirectory(prefix="fabricmgr-test-") as folder:
                system = System(folder)
                try:
                    check(system, log, expected, flags)
                finally:
                    for process in reversed(system.started):
                        process.kill()
                        process.process.wait()


def test_each_arithmetic_has_bits_of_its_own(small, log):
    """The comparison could tell: precisions and KV types differ in their first digest."""
    first = {kind: run(log, small, PROMPT, "--precision", kind[0], "--kv", kind[1])[len(PROMPT)][0]
             for kind in KINDS}
    assert len(set(first.values())) == len(KINDS), first


@needs_model
def test_the_real_model_in_every_way(system, log):
    expected = run(log, MODEL, PROMPT, "--isa", "portable", "--threads", "2")
    for isa in (isa for isa in ISAS[1:] if has(isa, MODEL)):
        for chunk, threads in ((16, 1), (17, 4)):
            assert run(log, MODEL, PROMPT, "--isa", isa, "--chunk", str(chunk), "--threads",
                       str(threads)) == expected, (isa, chunk, threads)
    check_serve(system, log, expected, (), fill=200)
    check_fleet(system, log, expected, ())


@needs_model
@pytest.mark.parametrize("precision,kv", (("q8", "f32"), ("f32", "f16")))
def test_the_real_model_in_other_precisions(log, precision, kv):
    kind = ("--precision", precision, "--kv", kv)
    expected = run(log, MODEL, PROMPT, "--chunk", "64", "--isa", "avx2", *kind)
    assert run(log, MODEL, PROMPT, "--chunk", "29", "--threads", "1", *kind) == expected
