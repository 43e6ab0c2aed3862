# SPDX-License-Identifier: Apache-2.0
"""The same tokens from every way of serving, and requests that outlive their workers."""
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from conftest import BIN, MODEL, Streamed, frames, needs_model, post, run, until

pytestmark = needs_model

NAME = os.path.basename(MODEL or "").removesuffix(".gguf")
PROMPT = ("The node daemon owns the pool. A block is staged, filled in place and sealed; from then on "
          "it is mapped, never copied. " * 12)


def completion(port, prompt, n=24, **more):
    status, body = post(port, "/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": n,
                                                  "temperature": 0, **more})
    assert status == 200, body
    return body


@pytest.fixture(scope="module")
def alone():
    return run("-p", PROMPT, "-n", "24")["text"]


def test_run_chunks_threads_and_isa_agree(alone):
    for arguments in (("--chunk", "37"), ("--threads", "1"), ("--threads", "3")):
        assert run("-p", PROMPT, "-n", "24", *arguments)["text"] == alone, arguments
    short = ("-p", PROMPT[:200], "-n", "8", "--logprobs", "4")
    expected = run(*short)
    for arguments in (("--chunk", "1"), ("--isa", "portable")):
        assert run(*short, *arguments) == expected, arguments


def test_sampling_depends_on_its_seed_only():
    arguments = ("-p", "Once upon a time", "-n", "16", "--temperature", "1", "--top-k", "40")
    first = run(*arguments, "--seed", "7")["tokens"]
    assert run(*arguments, "--seed", "7", "--threads", "1")["tokens"] == first
    assert run(*arguments, "--seed", "8")["tokens"] != first


def test_serve_and_cache_give_the_tokens_of_run(system, alone):
    server = system.serve("--pool-size", "256M")
    assert completion(server.port, PROMPT)["choices"][0]["text"] == alone
    again = completion(server.port, PROMPT)
    assert again["choices"][0]["text"] == alone
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 200
    assert server.stop() == 0


def test_disaggregated_gives_the_tokens_of_run_and_maps_the_blocks(system, alone):
    system.daemon()
    system.worker("prefill")
    system.worker("decode")
    router = system.router("prefill", "decode", more=("--bypass-tokens", "16"))
    answer = completion(router.port, PROMPT)
    assert answer["choices"][0]["text"] == alone
    assert answer["fabricmgr"]["route"] == "disaggregated"
    assert answer["fabricmgr"]["mapped_blocks"] > 15
    assert answer["fabricmgr"]["computed_decode"] <= 1
    warm = completion(router.port, PROMPT)
    assert warm["choices"][0]["text"] == alone
    assert warm["fabricmgr"]["route"] == "bypass"
    assert system.control("verify")["bad"] == 0


def test_batched_requests_do_not_change_each_other(system, alone):
    server = system.serve("--pool-size", "256M")
    texts = [PROMPT] + [f"Question {i}: " + PROMPT[: 200 + 77 * i] for i in range(7)]
    answers = [None] * len(texts)

    def ask(i):
        answers[i] = completion(server.port, texts[i])["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == alone
    for text, answer in list(zip(texts, answers))[1:3]:
        assert run("-p", text, "-n", "24")["text"] == answer


def test_a_small_pool_evicts_and_the_tokens_stay(system, alone):
    server = system.serve("--pool-size", "16M")
    for i in range(4):
        completion(server.port, f"{i} " + PROMPT, n=4)
    assert completion(server.port, PROMPT)["choices"][0]["text"] == alone


ADJUSTED = {"repetition_penalty": 1.3, "frequency_penalty": 0.8, "presence_penalty": 0.4,
            "min_tokens": 40, "logit_bias": {"28": -100, "732": 3}}
FLAGS = ("--repetition-penalty", "1.3", "--frequency-penalty", "0.8", "--presence-penalty", "0.4",
         "--min-tokens", "40", "--logit-bias", "28:-100,732:3")


def test_penalties_and_bias_change_the_tokens_as_they_say():
    """In words of this model: 28 is a comma, 30 a full stop; "The" begins many sentences."""
    arguments = ("-p", "Once upon a time", "-n", "60")
    plain = run(*arguments)["tokens"]
    assert 28 in plain
    assert 28 not in run(*arguments, "--logit-bias", "28:-100")["tokens"]
    assert run(*arguments, "--logit-bias", "732:100", "--json")["tokens"] == [732] * 60
    strong = run(*arguments, "--repetition-penalty", "100", "--frequency-penalty", "2",
                 "--presence-penalty", "2")["tokens"]
    assert len(set(strong)) > len(set(plain))
    stop = plain[10]
    cut = run(*arguments, "--stop-token-ids", str(stop))
    assert cut["finish_reason"] == "stop" and cut["tokens"] == plain[:plain.index(stop)]
    # Before min_tokens such a token does not come at all; from then on it ends the answer.
    late = run(*arguments, "--stop-token-ids", str(stop), "--min-tokens", "30")
    assert stop not in late["tokens"] and len(late["tokens"]) >= 30


def test_ignoring_the_end_goes_on_to_the_last_token(system):
    server = system.serve("--pool-size", "256M")
    ask = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0,
           "max_tokens": 100, "model": NAME}
    status, body = post(server.port, "/v1/chat/completions", ask)
    assert status == 200 and body["choices"][0]["finish_reason"] == "stop"
    ended = body["usage"]["completion_tokens"]
    status, body = post(server.port, "/v1/chat/completions", {**ask, "ignore_eos": True})
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 100
    status, body = post(server.port, "/v1/chat/completions", {**ask, "min_tokens": ended + 5})
    assert body["usage"]["completion_tokens"] >= ended + 5


@pytest.mark.parametrize("seed", [None, 11])
def test_adjusted_sampling_is_the_same_everywhere_and_after_a_kill(system, seed):
    prompt, n = "Once upon a time, in a small village by the sea, there lived", 200
    more = ("--temperature", "0.9", "--top-p", "0.95", "--seed", str(seed)) if seed else ()
    asked = {"temperature": 0.9, "top_p": 0.95, "seed": seed} if seed else {}
    expected = run("-p", prompt, "-n", str(n), *FLAGS, *more)
    assert run("-p", prompt, "-n", str(n), *more)["text"] != expected["text"]
    server = system.serve("--pool-size", "256M")
    assert completion(server.port, prompt, n, **ADJUSTED, **asked)["choices"][0]["text"] == \
        expected["text"]
    server.stop()
    system.daemon()
    system.worker("prefill")
    decode = system.worker("decode")
    router = system.router("prefill", "decode", more=("--bypass-tokens", "0"))
    answer = completion(router.port, prompt, n, **ADJUSTED, **asked)
    assert answer["fabricmgr"]["route"] == "disaggregated"
    assert answer["choices"][0]["text"] == expected["text"]
    streamed = Streamed(router.port, {"model": NAME, "prompt": prompt, "max_tokens": n,
                                      "temperature": 0, **ADJUSTED, **asked})
    streamed.pieces(5)
    decode.kill()
    decode.process.wait()
    system.worker("decode")
    text, route = streamed.result()
    assert text == expected["text"]
    assert route["retries"] >= 1


@pytest.mark.parametrize("victim", ["prefill", "decode", "daemon"])
def test_a_request_outlives_a_killed_process(system, victim):
    prompt, n = "Once upon a time, in a small village by the sea, there lived", 300
    expected = run("-p", prompt, "-n", str(n))["text"]
    daemon = system.daemon()
    processes = {"daemon": daemon, "prefill": system.worker("prefill"),
                 "decode": system.worker("decode")}
    router = system.router("prefill", "decode", more=("--bypass-tokens", "0"))
    streamed = Streamed(router.port, {"model": NAME, "prompt": prompt, "max_tokens": n,
                                      "temperature": 0})
    streamed.pieces(5)
    processes[victim].kill()
    processes[victim].process.wait()
    if victim == "daemon":
        system.daemon()
    else:
        system.worker(victim)
    text, route = streamed.result()
    assert text == expected
    assert victim != "decode" or route["retries"] >= 1
    status = system.control("status")
    assert status["blocks"]["staging"] == 0


def test_a_flood_of_lines_leaves_a_worker_to_the_others(system):
    system.daemon()
    system.worker("both")
    path = f"{system.folder}/both.sock"
    ends = threading.Event()

    def flood():
        """Answers are never read; connects again when the worker has had enough of it."""
        while not ends.is_set():
            with socket.socket(socket.AF_UNIX) as mad:
                mad.settimeout(30)
                try:
                    mad.connect(path)
                    while not ends.is_set():
                        mad.sendall(b"\n" * 65536)
                except OSError:
                    pass

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        time.sleep(0.5)
        with socket.socket(socket.AF_UNIX) as sane:
            sane.settimeout(15)
            sane.connect(path)
            sane.sendall(b'{"op":"generate","id":1,"tokens":[504,3575],"max_tokens":3}\n')
            for line in sane.makefile("rb"):
                event = json.loads(line)
                if event.get("event") in ("done", "error"):
                    break
        assert event["event"] == "done" and event["generated"] == 3
    finally:
        ends.set()
        thread.join()


def test_a_worker_does_not_listen_where_it_must_not(system, tmp_path):
    system.daemon("16M")
    file = tmp_path / "precious"
    file.write_text("kept")
    for where, why, status in (
            (f"unix:{file}", "not a socket", 1), ("unix:", "1 to 107 bytes", 2),
            ("127.0.0.1:65536", "port", 2), ("127.0.0.1:0", "port", 2), ("x", "127.0.0.1:port", 2),
            ("0.0.0.0:9", "loopback", 2), ("127.example:9", "loopback", 2)):
        out = subprocess.run([f"{BIN}/fabric-engine", "worker", "-m", MODEL,
                              "--pool-socket", system.socket, "--listen", where],
                             capture_output=True, text=True, check=False, timeout=60)
        assert out.returncode == status and why in out.stderr, (where, out)
    assert file.read_text() == "kept"


def test_a_prefill_worker_killed_while_it_computes_the_prompt(system):
    """It has sealed some blocks and staged others when it dies; the answer is the undisturbed one."""
    expected = run("-p", PROMPT * 3, "-n", "16")["text"]
    system.daemon()
    prefill = system.worker("prefill")
    system.worker("decode")
    router = system.router("prefill", "decode", more=("--bypass-tokens", "16"))
    result = {}
    thread = threading.Thread(
        target=lambda: result.update(completion(router.port, PROMPT * 3, 16)))
    thread.start()
    until(lambda: system.control("status")["blocks"]["sealed"])
    assert "choices" not in result and thread.is_alive()
    prefill.kill()
    prefill.process.wait()
    system.worker("prefill")
    thread.join(100)
    assert result["choices"][0]["text"] == expected
    assert system.control("verify")["bad"] == 0


def test_bad_models_are_refused_with_cause_and_offset(tmp_path):
    with open(MODEL, "rb") as file:
        head = file.read(1 << 20)
    (tmp_path / "short.gguf").write_bytes(head)
    (tmp_path / "magic.gguf").write_bytes(b"GGML" + head[4:])
    (tmp_path / "empty.gguf").write_bytes(b"")
    for name in ("short", "magic", "empty", "absent"):
        out = subprocess.run([f"{BIN}/fabric-engine", "run", "-m", f"{tmp_path}/{name}.gguf",
                              "-p", "x"], capture_output=True, text=True, check=False, timeout=60)
        assert out.returncode == 1
        assert f"{name}.gguf" in out.stderr
        if name in ("short", "magic"):
            assert any(c.isdigit() for c in out.stderr), out.stderr


def test_run_json_scores_a_teacher():
    out = run("--tokens", "504,3575,282,4649,314", "--teacher", "7042,30", "--logprobs", "3")
    assert out["prompt_tokens"] == [504, 3575, 282, 4649, 314]
    assert out["tokens"] == [7042, 30] and out["text"] == " Paris."
    assert [step["token"] for step in out["steps"]] == [7042, 30]
    assert all(len(step["top"]) == 3 for step in out["steps"])
    assert out["steps"][0]["top"][0][0] == 7042
    assert json.dumps(out)


def wait_for_tracer(pid, limit=30):
    end = time.monotonic() + limit
    for thread in os.listdir(f"/proc/{pid}/task"):
        while True:
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
                if "TracerPid:\t0\n" not in file.read():
                    break
            assert time.monotonic() < end, "strace does not trace"
            time.sleep(0.01)


def test_a_hand_over_copies_no_byte(system, tmp_path):
    """Shown from outside: the same frames in both workers, and no large transfer by any call."""
    system.daemon()
    prefill, decode = system.worker("prefill"), system.worker("decode")
    router = system.router("prefill", "decode", more=("--bypass-tokens", "16"))
    trace = tmp_path / "trace"
    strace = subprocess.Popen(["strace", "-f", "-qq", "-o", trace, "-e",
                               "trace=read,write,readv,writev,pread64,pwrite64,recvfrom,sendto,"
                               "recvmsg,sendmsg,splice,tee,vmsplice,sendfile,process_vm_readv,"
                               "copy_file_range", "-p", str(decode.pid)],
                              stderr=subprocess.DEVNULL)
    wait_for_tracer(decode.pid)
    answer = completion(router.port, PROMPT, n=40)
    sealed = [b for b in system.control("ls") if b["state"] == "sealed"]
    mine = [b for b in sealed if b["bytes"] and b["parent"] is not None]
    strace.terminate()
    strace.wait()
    assert answer["fabricmgr"]["route"] == "disaggregated"

    moved = 0
    for line in trace.read_text().splitlines():
        value = line.rsplit("= ", 1)[-1].split()
        moved += int(value[0]) if value and value[0].isdigit() else 0
    kv_bytes = sum(b["bytes"] for b in sealed)
    assert kv_bytes > 5 << 20
    assert moved < 256 << 10, moved

    shared = 0
    for block in mine:
        length = block["bytes"] // 4096 * 4096
        slot = (block["bytes"] + 4095) // 4096 * 4096
        offset = block["chunk"] * (4 << 20) + block["slot"] * slot
        ours, theirs = frames(decode.pid, offset, length), frames(prefill.pid, offset, length)
        if ours and theirs and all(ours) and all(theirs):
            assert ours == theirs
            shared += 1
    assert shared >= answer["fabricmgr"]["mapped_blocks"] - 1
