#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole system on one machine (launcher.py starts and watches it), and a client that asks it
questions. Run by `make demo`; KEEP=1 leaves it running until Ctrl-C. Python 3 stdlib only.
Invariant: however this program ends, nothing that it started survives it.
"""
import os
import signal

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # before the slower imports

# pylint: disable=wrong-import-position
import argparse
import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launcher import SIGNALS, Failure, System, call

PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 4 << 20   # the arena is cut into chunks of 4 MiB (Documentation/design/pool-memory.md)


class Stop(BaseException):
    """A signal asked for the end."""


def say(text="", end="\n"):
    print(text, end=end, flush=True)


# ---- the client -------------------------------------------------------------------------------

def ask(port, messages, max_tokens, during=None):
    """Streams an answer to the screen; `during` is called once while more tokens are coming."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    start, first, chunks, last = time.monotonic(), None, 0, {}
    say("  ", end="")
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Failure(f"the router answered {response.status}: "
                          f"{json.loads(response.read())['error']['message']}")
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            last = json.loads(line[6:])
            if "error" in last:
                raise Failure(f"the router ended the answer: {last['error']['message']}")
            for choice in last["choices"]:
                first = first or time.monotonic()
                say(choice["delta"].get("content", "").replace("\n", "\n  "), end="")
                chunks += 1
            if chunks == 8 and during:
                during()
                during = None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"the connection to the router broke: {error}") from error
    finally:
        connection.close()
        say()
    if "usage" not in last:
        raise Failure("the answer ended before its usage came")
    if during:
        during()
    return {"ttft_ms": (first - start) * 1e3, **last["usage"], **last["fabricmgr"]}


# ---- evidence: the same physical pages in two processes ----------------------------------------

def frames(pid, offset, length):
    """Frame numbers behind [offset, offset + length) of the arena as @pid maps it; 0: not touched."""
    best = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, \
            open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        for line in maps:
            if "/memfd:fabricmgr-arena" not in line:
                continue
            fields = line.split()
            low, high = (int(x, 16) for x in fields[0].split("-"))
            base = int(fields[2], 16)
            if not base <= offset <= offset + length <= base + high - low:
                continue
            pagemap.seek((low + offset - base) // PAGE * 8)
            data = pagemap.read(length // PAGE * 8)
            words = [int.from_bytes(data[i:i + 8], "little") for i in range(0, len(data), 8)]
            found = [word & ((1 << 55) - 1) if word >> 63 else 0 for word in words]
            # A worker may map the arena twice: to read, and to write what it stages.
            if sum(map(bool, found)) > sum(map(bool, best)):
                best = found
    return best


def compare_frames(system):
    """A sentence about the blocks that the prefill worker wrote, as both workers see them."""
    if os.geteuid() != 0:
        return "frames: NOT COMPARED, /proc/PID/pagemap shows frame numbers to root only"
    try:
        blocks = json.loads(subprocess.run([*system.control, "ls"], capture_output=True, check=True,
                                           timeout=20).stdout)
        status = json.loads(subprocess.run([*system.control, "status"], capture_output=True,
                                           check=True, timeout=20).stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        return f"frames: NOT COMPARED, fabricctl failed: {error}"
    writers = {client["id"] for client in status["clients"]
               if client["pid"] == system.prefill.process.pid}
    same = total = n_blocks = 0
    for block in blocks:
        if block["origin"] not in writers or block["state"] != "sealed":
            continue
        slot = -(-block["bytes"] // PAGE) * PAGE
        place = (block["chunk"] * CHUNK + block["slot"] * slot, slot)
        theirs, ours = (frames(worker.process.pid, *place)
                        for worker in (system.prefill, system.decode))
        n_blocks += 1
        total += slot // PAGE
        same += sum(1 for a, b in zip(theirs, ours) if a and a == b)
    if not total:
        return "frames: NOT COMPARED, the prefill worker has no sealed block"
    return (f"{same} of {total} frames are the same physical pages in both workers "
            f"({n_blocks} blocks, {total * PAGE >> 20} MiB, no copy)")


# ---- the conversation -------------------------------------------------------------------------

def handbook(port, wanted):
    """An operations handbook of about @wanted tokens."""
    areas = ("storage", "network", "cooling", "power", "scheduling", "backup", "security", "database",
             "monitoring", "build", "release", "billing", "archive", "gateway", "inference", "cache")
    words = ("north", "south", "east", "west", "upper", "lower", "inner", "outer")
    parts = ["You are the assistant of the operations team of a data centre. Answer in one or two "
             "sentences, from this handbook only.\n\nOPERATIONS HANDBOOK\n"]
    count = 0
    for number in range(1, 200):
        area = areas[(number - 1) % len(areas)]
        hall = words[number % len(words)]
        parts.append(
            f"\n{number}. The {area} service runs in the {hall} hall on {number % 7 + 2} machines. "
            f"Its owner is team {area.capitalize()}, on call from {number % 12 + 6} o'clock. When an "
            f"alarm for {area} stays red for {number % 5 * 5 + 10} minutes, drain one machine, look at "
            f"its log, and restart the service there before touching any other. Never restart more "
            f"than {number % 3 + 1} machines at once, and write down what was done.")
        tokens = call(port, "POST", "/tokenize", {"content": "".join(parts)})[1]["tokens"]
        if len(tokens) > wanted:
            parts.pop()
            break
        count = len(tokens)
    return "".join(parts) + "\n", count


def table(rows):
    say("  {:14} {:>7} {:>7} {:>9} {:>8} {:>12} {:>9}  {}".format(
        "request", "prompt", "cached", "computed", "mapped", "first token", "tokens/s", "route"))
    say("  {:14} {:>7} {:>7} {:>9} {:>8} {:>12} {:>9}".format(
        "", "tokens", "tokens", "tokens", "blocks", "ms", ""))
    for name, row in rows:
        tokens = row["completion_tokens"]
        rate = (tokens - 1) / row["decode_ms"] * 1e3 if tokens > 1 and row["decode_ms"] else 0
        computed = (row["computed_prefill"] or 0) + (row["computed_decode"] or 0)
        say(f"  {name:14} {row['prompt_tokens']:7} {row['cached_tokens']:7} {computed:9} "
            f"{row['mapped_blocks'] or 0:8} {row['ttft_ms']:12.1f} {rate:9.1f}  {row['route']}")


def converse(system):
    port, rows, evidence = system.port, [], []
    context = call(port, "GET", "/v1/models")[1]["data"][0]["max_model_len"]
    text, count = handbook(port, max(256, min(2000, context - 400)))
    long_prompt = {"role": "system", "content": text}

    def question(name, words, messages, during=None):
        say(f"\n> {words}")
        messages = [*messages, {"role": "user", "content": words}]
        rows.append((name, ask(port, messages, 48, during)))

    say("\nA short question: little to compute, so the decode worker does all of it.")
    question("short", "Why is the sky blue?", [])
    say(f"\nA handbook of {count} tokens comes before the next question. Nothing of it is cached: the\n"
        "prefill worker computes it, and the decode worker goes on from the same memory.")
    question("cold", "Who owns the storage service?", [long_prompt],
             lambda: evidence.append(compare_frames(system)))
    say("\nThe same handbook, other questions: it is in the pool, only the question is computed.")
    question("warm", "What do I do first when an alarm for cooling stays red?", [long_prompt])
    question("warm again", "How many machines does the network service have?", [long_prompt])

    cold, warm = rows[1][1], min(rows[2:], key=lambda row: row[1]["ttft_ms"])[1]
    say("\nWhat happened")
    table(rows)
    say()
    say(f"  first token: cold {cold['ttft_ms']:.0f} ms, warm {warm['ttft_ms']:.0f} ms; "
        f"warm/cold {warm['ttft_ms'] / cold['ttft_ms']:.3f} "
        f"({cold['ttft_ms'] / warm['ttft_ms']:.1f} times sooner)")
    say(f"  the decode worker mapped {cold['mapped_blocks'] or 0} blocks that the prefill worker "
        "wrote")
    for sentence in evidence:
        say(f"  {sentence}")
    if cold["route"] != "disaggregated" or not cold["mapped_blocks"]:
        raise Failure(f"the cold question went the way \"{cold['route']}\" with "
                      f"{cold['mapped_blocks']} mapped blocks: it should have used both workers")
    if not warm["cached_tokens"]:
        raise Failure("the warm questions found nothing in the pool")


def keep(system):
    say(f"""
It stays up (KEEP=1).
  base URL  http://127.0.0.1:{system.port}/v1
  ask       curl -N http://127.0.0.1:{system.port}/v1/chat/completions -H 'Content-Type: application/json' \\
              -d '{{"messages":[{{"role":"user","content":"Hello!"}}],"max_tokens":64,"stream":true}}'
  metrics   curl http://127.0.0.1:{system.port}/metrics
  pool      {" ".join(part for part in system.control if part != "--json")} status
  logs      {system.folder}/*.log
  stop      Ctrl-C, or: kill {os.getpid()}""")
    while True:
        signal.pause()


def stop_on_signals():
    def stop(number, _frame):
        for one in SIGNALS:  # once is enough: what follows is the way out
            signal.signal(one, signal.SIG_IGN)
        raise Stop(number)

    for number in SIGNALS:
        signal.signal(number, stop)


def main():
    parser = argparse.ArgumentParser(description="fabricmgr on one machine, answering questions")
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("--model", required=True, help="a GGUF file")
    arguments = parser.parse_args()
    folder = system = None
    status = 0
    try:
        stop_on_signals()
        folder = tempfile.mkdtemp(prefix=f"fabricmgr-demo-{os.getpid()}-", dir="/tmp")
        say("fabricmgr: one KV cache in shared memory under separate prefill and decode workers")
        say(f"  model {os.path.basename(arguments.model)}\n\nStarting")
        system = System(arguments.bin, arguments.model, folder)
        system.start()
        converse(system)
        if os.environ.get("KEEP", "0") not in ("", "0"):
            keep(system)
    except Stop:
        status = 130
        say("\nstopping …")
        if system and system.failure:
            say(f"demo: {system.failure}")
            status = 1
    except (Failure, OSError, ValueError, KeyError, http.client.HTTPException) as error:
        say(f"\ndemo: {error}" if isinstance(error, (Failure, OSError))
            else f"\ndemo: an answer was not understood: {error!r}")
        status = 1
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if system:
            system.stop()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if status == 0:
        say("\nEverything that was started has been stopped.")
    return status


if __name__ == "__main__":
    sys.exit(main())
