#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole system on one machine: daemon, prefill worker, decode worker, router, and a client that
asks it questions. Run by `make demo`; KEEP=1 leaves it running until Ctrl-C. Python 3 stdlib only.
Invariant: however this program ends, nothing that it started survives it.
"""
import os
import signal

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # before the slower imports

# pylint: disable=wrong-import-position
import argparse
import ctypes
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

RESTARTS_MAX = 3  # of one program
READY_S = 120     # loading a model from a cold disk
PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 4 << 20   # the arena is cut into chunks of 4 MiB (Documentation/design/pool-memory.md)
LIBC = ctypes.CDLL(None, use_errno=True)
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Stop(BaseException):
    """A signal asked for the end."""


class Failure(Exception):
    """Something went wrong; the text says what, for a reader."""


def say(text="", end="\n"):
    print(text, end=end, flush=True)


# ---- programs ---------------------------------------------------------------------------------

class Program:
    """One started program: its log is a file, and it dies with this process."""

    def __init__(self, name, command, folder):
        self.name, self.command = name, command
        self.log = os.path.join(folder, name.replace(" ", "-") + ".log")
        self.process, self.restarts = None, 0

    def start(self):
        parent = os.getpid()

        def in_child():
            LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)  # it died before the line above
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

        # A signal between fork and the assignment would leave a child that nobody knows.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with open(self.log, "ab") as log:
                self.offset = log.tell()
                self.started = time.monotonic()
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                                stderr=log, start_new_session=True,
                                                preexec_fn=in_child)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            log.seek(self.offset)
            return log.read()

    def wait_for(self, pattern):
        """The match of a line of its output; Failure when it ends first."""
        while True:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.output(), re.M)
            if match:
                return match
            if ended:
                raise Failure(f"{self.name} ended with status {self.process.returncode}:\n"
                              f"{self.tail()}")
            if time.monotonic() - self.started > READY_S:
                raise Failure(f"{self.name} was not ready within {READY_S} s:\n{self.tail()}")
            time.sleep(0.01)

    def tail(self):
        lines = self.output().splitlines()[-8:]
        return "\n".join("    " + line for line in lines) or "    (it said nothing)"

    def announce(self, note=""):
        say(f"  {self.name:15} pid {self.process.pid:<8} ready in "
            f"{time.monotonic() - self.started:4.1f} s  {note}".rstrip())


class System:
    """The programs in the order of their start, watched by a thread that restarts the dead."""

    def __init__(self, bin_folder, model, folder):
        self.folder, self.stopping, self.failure = folder, threading.Event(), None
        self.model = model
        self.socket = f"{folder}/pool.sock"
        engine = f"{bin_folder}/fabric-engine"
        workers = {role: f"unix:{folder}/{role}.sock" for role in ("prefill", "decode")}
        self.control = [f"{bin_folder}/fabricctl", "--socket", self.socket, "--json"]
        self.daemon = Program("fabricmgrd", [f"{bin_folder}/fabricmgrd", "--socket", self.socket,
                                             "--size", "512M"], folder)
        self.prefill, self.decode = (
            Program(f"{role} worker", [engine, "worker", "--role", role, "-m", model,
                                       "--pool-socket", self.socket, "--listen", address], folder)
            for role, address in workers.items())
        self.router = Program("router", [engine, "router", "-m", model, "--listen", "127.0.0.1:0",
                                         "--pool-socket", self.socket, "--worker",
                                         workers["prefill"], "--worker", workers["decode"]], folder)
        self.programs = [self.daemon, self.prefill, self.decode, self.router]
        self.port = 0
        for program in (self.daemon.command[0], engine, self.control[0]):
            if not os.access(program, os.X_OK):
                raise Failure(f"{program} is not there: run make first")
        if not os.path.exists(model):
            raise Failure(f"{model} is not there: run make model, or give MODEL=/path/x.gguf")

    def start(self):
        self.daemon.start()
        self.daemon.wait_for(r"(^|: )ready$")
        memory = re.search(r"memory: ([^;\n]*)", self.daemon.output())
        self.daemon.announce("512 MiB pool" + (f" on {memory[1].strip()}" if memory else ""))
        self.prefill.start()
        self.decode.start()
        for program in (self.prefill, self.decode):
            program.wait_for("^ready$")
            program.announce()
        self.router.start()
        self.port = int(self.router.wait_for(r"^listening on http://127\.0\.0\.1:(\d+)")[1])
        self.router.wait_for("^ready$")
        self.router.announce(f"http://127.0.0.1:{self.port}")
        # A router that is started again must be found where it was.
        self.router.command = [f"127.0.0.1:{self.port}" if part == "127.0.0.1:0" else part
                               for part in self.router.command]
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while not self.stopping.wait(0.2):
            for program in self.programs:
                if program.process.poll() is None or self.stopping.is_set():
                    continue
                program.restarts += 1
                if program.restarts > RESTARTS_MAX:
                    self.failure = (f"{program.name} ended {program.restarts} times:\n"
                                    f"{program.tail()}")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                say(f"\n  {program.name} (pid {program.process.pid}) ended; it is started again")
                program.start()

    def stop(self):
        """SIGTERM from the door inwards, then SIGKILL to what is left of each process group."""
        self.stopping.set()
        for program in reversed(self.programs):
            if program.process and program.process.poll() is None:
                program.process.terminate()
        end = time.monotonic() + 5
        for program in reversed(self.programs):
            if not program.process:
                continue
            try:
                program.process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(program.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            program.process.wait()


# ---- the client -------------------------------------------------------------------------------

def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


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
