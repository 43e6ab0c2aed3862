# SPDX-License-Identifier: Apache-2.0
"""The probes of Documentation/probes.md are in the programs, with as many arguments, and gdb reads the right
values from them while blocks come and go and a request runs."""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess

import pytest

import pool_client
from conftest import BIN, TOP, until

KINDS = {"text": '%s', "key": "%016lx%016lx"}


def documented():
    """{section: {probe: [kind of each argument]}}"""
    with open(f"{TOP}/Documentation/probes.md", encoding="utf-8") as file:
        sections = re.split(r"^## ", file.read(), flags=re.M)
    found = {}
    for section in sections[1:]:
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.M)
        # A comma inside brackets does not part arguments.
        split = {name: re.sub(r"\([^)]*,[^)]*\)", "", text).split(", ") for name, text in rows}
        found[section.split("\n")[0].split(":")[0]] = {
            name: ["text" if "(text)" in word else "key" if word == "key" else "number" for word in words]
            for name, words in split.items()}
    return found


PROBES = documented()


def notes(path):
    """{probe: {number of arguments}} of a program or library."""
    text = subprocess.run(["readelf", "-n", "--wide", path], text=True, capture_output=True, check=True).stdout
    found = {}
    for name, arguments in re.findall(r"Provider: fabricmgr\n\s+Name: (\w+)\n[^\n]*\n\s+Arguments: ?(.*)", text):
        found.setdefault(name, set()).add(len(arguments.split()))
    return found


def has_probes():
    if not any(os.path.exists(f"/usr/include/{folder}sys/sdt.h") for folder in ("", "x86_64-linux-gnu/")):
        pytest.skip("SKIP: built without probes: systemtap-sdt-dev is not installed")


def test_programs_have_the_documented_probes():
    has_probes()
    pool, engine = PROBES["fabricmgrd"], PROBES["fabric-engine"]
    assert len(pool) == 9 and len(engine) == 4
    counts = {name: {len(kinds)} for name, kinds in {**pool, **engine}.items()}
    assert notes(f"{BIN}/fabricmgrd") == {name: counts[name] for name in pool}
    found = notes(f"{BIN}/fabric-engine")
    assert {name: found[name] for name in engine} == {name: counts[name] for name in engine}
    assert found.items() <= counts.items()


# ---- values ----

def script(probes, path):
    """Commands of gdb that write "name|argument|argument…" for each passing, and go on."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("set pagination off\nset breakpoint pending off\nset debuginfod enabled off\nset confirm off\n"
                   "handle SIGTERM SIGHUP SIGPIPE nostop noprint pass\n")
        for name, kinds in probes.items():
            values = [f"*(unsigned long *)$_probe_arg{i}, *((unsigned long *)$_probe_arg{i} + 1)" if kind == "key"
                      else f"(char *)$_probe_arg{i}" if kind == "text" else f"(long)$_probe_arg{i}"
                      for i, kind in enumerate(kinds)]
            form = "|".join(["probe", name] + [KINDS.get(kind, "%ld") for kind in kinds])
            file.write(f"break -probe-stap fabricmgr:{name}\ncommands\nsilent\n"
                       f"printf \"{form}\\n\", {', '.join(values)}\ncontinue\nend\n")
        file.write("run\n")


def under_gdb(system, probes, *command):
    has_probes()
    if not shutil.which("gdb"):
        pytest.skip("SKIP: gdb is not installed: the probes' values are not looked at")
    path = f"{system.folder}/gdb"
    script(probes, path)
    process = system.start("gdb", "-nx", "-batch", "-x", path, "--args", *command)
    process.wait_for(r"\bready$", 120)
    return process


def passings(process, probes):
    """[(name, argument, …)] of what was printed, once the program has ended."""
    process.process.wait(60)
    process.reader.join(20)
    found = []
    for line in process.lines:
        if not (line or "").startswith("probe|"):
            continue
        name, *values = line.split("|")[1:]
        kinds = probes[name]
        assert len(values) == len(kinds), line
        found.append((name, *(value if kind == "text" else int(value) if kind == "number" else
                              struct.pack("<QQ", int(value[:16], 16), int(value[16:], 16)).hex()
                              for kind, value in zip(kinds, values))))
    return found


def key(n):
    return bytes(pool_client.key_of(n).bytes).hex()


def test_gdb_reads_what_the_pool_did(system):
    from test_redis import Wire
    probes = PROBES["fabricmgrd"]
    process = under_gdb(system, probes, f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M", "--memory", "memfd",
                        "--nvme", f"{system.folder}/log", "--nvme-size", "257M", "--redis", f"unix:{system.folder}/redis.sock")
    daemon = system.control("info")["daemon_pid"]
    pool = pool_client.Pool(system.socket)
    me = pool.lib.fm_pool_client_id(pool.handle)
    first = pool.put(1, 5000)
    pool.release(first)
    keys = (pool_client.Key * 1)(pool_client.key_of(1))
    # On NVMe only, then read back.
    until(lambda: system.control("status")["nvme"]["stored"])
    assert system.control("evict")["blocks"] == 1
    pool.lib.fm_pool_fetch.restype = pool_client.c.c_int64
    assert pool.lib.fm_pool_fetch(pool.handle, keys, pool_client.c.c_size_t(1), pool_client.c.c_uint64(0)) == 1
    pool.lib.fm_pool_remove.restype = pool_client.c.c_int64
    assert pool.lib.fm_pool_remove(pool.handle, keys, pool_client.c.c_size_t(1)) == 1
    staged = pool.stage(7000)[0]
    pool.detach()
    wire = Wire(f"{system.folder}/redis.sock")
    assert wire.ask("ECHO", "x") == b"x"
    wire.close()
    until(lambda: all(client["id"] != me for client in system.control("status")["clients"]))
    os.kill(daemon, signal.SIGTERM)
    seen = passings(process, probes)
    mine = [event for event in seen if event[0] in ("attach", "detach", "stage", "fetch", "seal") and event[1] == me]
    assert mine == [("attach", me, os.getpid(), os.geteuid(), "python3"),
                    ("stage", me, first.entry, 5000), ("seal", me, first.entry, key(1), 5000),
                    ("fetch", me, key(1), 0), ("stage", me, staged.entry, 7000), ("detach", me, os.getpid(), 1)], seen
    assert ("evict", first.entry, key(1), 5000) in seen
    back = [event for event in seen if event[0] == "seal" and event[1] != me]
    assert [(event[3], event[4]) for event in back] == [(key(1), 5000)]
    assert ("remove", back[0][2], key(1)) in seen
    assert [event[2:] for event in seen if event[0] == "redis_command"] == [("ECHO", 2)]


def test_gdb_reads_what_a_request_did(system, tiny_model):
    probes = PROBES["fabric-engine"]
    system.daemon("16M")
    path = f"{system.folder}/worker.sock"
    process = under_gdb(system, probes, f"{BIN}/fabric-engine", "worker", "--role", "both", "-m", tiny_model,
                        "--pool-socket", system.socket, "--listen", f"unix:{path}", "-t", "1")
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(120)
        wire.connect(path)
        lines = wire.makefile("rw", encoding="utf-8")
        worker = json.loads(lines.readline())["pid"]
        for message in ({"op": "hello", "version": 2},
                        {"op": "generate", "id": 1, "request": "a-1", "tokens": [5] * 33, "max_tokens": 3},
                        {"op": "generate", "id": 2, "tokens": [5] * 33, "max_tokens": 1}):
            lines.write(json.dumps(message) + "\n")
            lines.flush()
            while message.get("id") and json.loads(lines.readline()).get("event") != "done":
                pass
    os.kill(worker, signal.SIGTERM)
    seen = passings(process, probes)
    keys = [block["key"] for block in sorted(system.control("ls"), key=lambda block: block["parent"] != "0" * 32)]
    assert len(keys) == 2
    assert seen == [("request_begin", "a-1", 1, 33), ("request_block", "a-1", keys[0], 0, 0),
                    ("request_block", "a-1", keys[1], 1, 0), ("first_token", "a-1", 33), ("request_end", "a-1", 33, 0, 3),
                    ("request_begin", "-", 1, 33), ("request_block", "-", keys[0], 0, 1), ("request_block", "-", keys[1], 1, 1),
                    ("first_token", "-", 33), ("request_end", "-", 1, 32, 1)]
