#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of Documentation/sizing.md (`make sizing`): what a block costs besides its bytes, and what a
pool of some size brings.

Overheads are measured on daemons that it starts (as root); hit rates come from `fabric-sim replay`, which runs
the pool's own eviction core over recorded requests. Prints Markdown tables. Nothing here decides:
people do, with the formulae of the page.
"""
import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CHUNK, GRAIN = 4 * MIB, 4 * KIB
# Layers, KV heads, numbers a head, bytes a number: from each model's config.json.
MODELS = {
    "SmolLM2-135M, f16": (30, 3, 64, 2),
    "Llama-3.1-8B, f16": (32, 8, 128, 2),
    "Llama-3.1-8B, 8-bit KV": (32, 8, 128, 1),
    "Qwen2.5-7B, f16": (28, 4, 128, 2),
    "Llama-3.1-70B, 8-bit KV": (80, 8, 128, 1),
}
TRACES = {"conversation-first-6000": 512, "synthetic": 512, "agentic": 64}  # tokens of a block
TOKENS = (1_000_000, 3_000_000, 10_000_000, 30_000_000)


def token_bytes(layers, kv_heads, head_dim, element):
    return 2 * layers * kv_heads * head_dim * element


def slot_bytes(block):
    """What a block takes of a chunk: it begins at a multiple of 4 KiB."""
    return math.ceil(block / GRAIN) * GRAIN


def per_chunk(block):
    return CHUNK // slot_bytes(block)


def memory_bytes(block):
    """Of the pool, for one block, with the end of a chunk that no block fills."""
    return CHUNK / per_chunk(block)


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def size(number):
    for unit, bytes_ in (("TiB", GIB << 10), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if number >= bytes_:
            return f"{number / bytes_:.3g} {unit}"
    return f"{number:.0f} B"


# ---- measured: what a pool takes besides the blocks' bytes ------------------------------------

@contextlib.contextmanager
def daemon(program, folder, *flags):
    read, write = os.pipe()
    socket = f"{folder}/pool.sock"
    process = subprocess.Popen([program, "--config", "/dev/null", "--socket", socket, "--memory", "memfd", "--ready-fd",
                                str(write), *flags], pass_fds=[write], stderr=subprocess.PIPE)
    os.close(write)
    try:
        if not os.read(read, 1):
            sys.exit(f"the daemon did not start: {process.stderr.read().decode()}")
        yield socket, process.pid
    finally:
        os.close(read)
        process.terminate()
        process.communicate()


def taken(pid):
    """Bytes of the process's own memory and of the shared tables that it maps; not of the blocks."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        own = int(next(line for line in file if line.startswith("Anonymous:")).split()[1]) * KIB
    shared = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        for line in file:
            if "/memfd:" in line and "fabricmgr-arena" not in line:
                fields = line.split()
                shared[fields[4]] = os.stat(f"/proc/{pid}/map_files/{fields[0]}").st_blocks * 512
    return own + sum(shared.values())


def measure(binaries):
    """{what: bytes} of this build."""
    os.environ["FABRICMGR_BIN"] = binaries
    sys.path.insert(0, f"{TOP}/tests/process")
    import pool_client  # pylint: disable=import-outside-toplevel
    program, found = f"{binaries}/fabricmgrd", {}
    with tempfile.TemporaryDirectory(prefix="fabricmgr-sizing-") as folder:
        few, many, sizes = 10_000, 510_000, []
        for entries in (few, many):
            with daemon(program, folder, "--size", "16M", "--entries", str(entries)) as (_, pid):
                sizes.append(taken(pid))
        found["entry"] = (sizes[1] - sizes[0]) / (many - few)
        found["daemon"] = sizes[0] - few * found["entry"]
        with daemon(program, folder, "--size", "256M", "--entries", "65536") as (socket, pid):
            pool, sizes = pool_client.Pool(socket), []
            for first, last in ((0, 10_000), (10_000, 60_000)):
                for n in range(first, last):
                    pool.release(pool.put(n, 4096))
                sizes.append(taken(pid))
            found["block"] = (sizes[1] - sizes[0]) / 50_000
            pool.detach()
        with daemon(program, folder, "--size", "16M") as (socket, pid):
            before = taken(pid)
            clients = [pool_client.Pool(socket) for _ in range(20)]
            found["client"] = (taken(pid) - before) / 20
            for client in clients:
                client.detach()
        tables = []
        for length in ("512M", "2560M"):
            with daemon(program, folder, "--size", "16M", "--nvme", f"{folder}/log", "--nvme-size", length) as (socket, _):
                out = subprocess.run([f"{binaries}/fabricctl", "--socket", socket, "--json", "info"], text=True,
                                     stdout=subprocess.PIPE, check=True).stdout
                tables.append((json.loads(out)["nvme"]["bytes"], json.loads(out)["nvme"]["table_bytes"]))
            os.unlink(f"{folder}/log")
        found["nvme_gib"] = (tables[1][1] - tables[0][1]) / (tables[1][0] - tables[0][0]) * GIB
        found["nvme"] = tables[0][1] - found["nvme_gib"] * tables[0][0] / GIB
        for entries in ("1000000", "2000000"):
            out = subprocess.run([program, "--config", "/dev/null", "--check", "--size", "16M", "--entries", entries], text=True,
                                 stdout=subprocess.PIPE, check=True).stdout
            found["reserved"] = float(out.split(" MiB + tables ")[1].split()[0]) * MIB / int(entries)
    return found


def overheads(binaries):
    found = measure(binaries)
    head("what", "memory")
    row("the daemon itself", size(found["daemon"]))
    row("each entry of the index (`entries`), as the start counts it", f"{found['reserved']:.0f} B")
    row("of that, taken at once: index, header, lists", f"{found['entry']:.0f} B")
    row("of that, taken with the first block in it: what eviction knows", f"{found['block']:.0f} B")
    row("each attached client", size(found["client"]))
    row("an NVMe tier", size(found["nvme"]))
    row("each GiB of its file", size(found["nvme_gib"]))


# ---- computed: blocks ----------------------------------------------------------------------------

def blocks():
    head("model", "KV a token", "block of 16 tokens", "in a chunk", "memory a block", "lost", "tokens a GiB")
    for name, shape in MODELS.items():
        token = token_bytes(*shape)
        block = 16 * token
        if block > CHUNK:
            row(name, size(token), f"{size(block)}: more than a chunk", "", "", "", "")
            continue
        memory = memory_bytes(block)
        row(name, size(token), size(block), per_chunk(block), size(memory), f"{100 * (1 - block / memory):.1f} %",
            f"{int(GIB / memory * 16):,}")


# ---- replayed: hit rates ----------------------------------------------------------------------------

def replay(binaries, path, tokens_per_block, rooms):
    command = [f"{binaries}/fabric-sim", "replay", "--json", "--policy", "density,lru", "--blocks",
               ",".join(str(room // tokens_per_block) for room in rooms), "--trace", path]
    found = {}
    for line in subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines():
        one = json.loads(line)
        found.setdefault(one["room"], {})[one["policy"]] = one
    return found


def hit_rates(binaries, traces, rooms):
    head("trace", "pool, tokens", "of an 8B model, f16", "hit rate", "LRU", "best possible", "computed tokens saved")
    for name in traces:
        path = os.path.join(TOP, "tests/data/traces", f"{name}.jsonl.xz")
        for room, rows in replay(binaries, path, TRACES[name], rooms).items():
            tokens = room * TRACES[name]
            ours = rows["density"]
            row(name, f"{tokens / 1e6:.1f} M", size(tokens / 16 * memory_bytes(16 * token_bytes(*MODELS["Llama-3.1-8B, f16"]))),
                *(f"{100 * rows[policy]['token_hit_rate']:.1f} %" for policy in ("density", "lru", "optimum")),
                f"{ours['token_hits'] / 1e6:.0f} M of {ours['tokens'] / 1e6:.0f} M")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=f"{TOP}/build/release/bin", help="folder of the programs")
    parser.add_argument("--only", choices=("overheads", "blocks", "hit-rates"))
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="sizes of the pool")
    options = parser.parse_args()
    parts = {
        "overheads": lambda: overheads(options.bin),
        "blocks": blocks,
        "hit-rates": lambda: hit_rates(options.bin, options.traces.split(","), [int(n) for n in options.tokens.split(",")]),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()
            print(flush=True)


if __name__ == "__main__":
    main()
