# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with KV pools in the field, a test for each kind (Documentation/field-faults.md).

Here: memory and limits, holds, names and layouts. Of the node's processes, its tiers and its doors:
test_field_faults_node.py. Kinds that other tests prove already stand in the page alone.
"""
import ctypes as c
import hashlib
import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from conftest import BIN
from every_call import EveryCall, Get, GetParts, Iovec, PutParts, chain_of, digest_of
from pool_client import READ_ONLY, Block, Key, Pool, Seal, bytes_of, key_of

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
POOL_FULL, LIMIT = -5, -6
BLOCK = 65536


def own(what="fabricmgr-"):
    """(descriptors, mappings of shared memory) of this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return len(os.listdir("/proc/self/fd")), sum(what in line for line in maps)


def settled(system, claim, seconds=30):
    end = time.monotonic() + seconds
    while not claim(status := system.control("status")):
        assert time.monotonic() < end, status
        time.sleep(0.02)
    return status


def flood(pool, first=10000, n=400):
    for i in range(first, first + n):
        pool.put_copied(i, BLOCK)


def everything(pool, chunks):
    """Stages the whole pool: every chunk is there, once."""
    blocks = pool.stage(4 * MIB, chunks)
    addresses = sorted(block.data for block in blocks)
    assert all(b - a >= 4 * MIB for a, b in zip(addresses, addresses[1:]))
    pool.lib.fm_block_discard(pool.handle, blocks, c.c_size_t(chunks))


# ---- memory and limits ----

def test_a_large_pool_serves_before_its_memory_is_touched(system):
    daemon = system.daemon("2G", "--memory", "memfd")
    with open(f"/proc/{daemon.pid}/status", encoding="utf-8") as status:
        resident = int(re.search(r"^VmRSS:\s+(\d+)", status.read(), re.M)[1])
    assert resident < 128 << 10, f"{resident} KiB are resident of a pool that nobody used"
    pool = EveryCall(system.socket)
    assert pool.put_copied(1, BLOCK) == 0 and pool.get_copied(1) == bytes_of(1, BLOCK)
    pool.detach()
    assert daemon.stop() == 0


def test_starting_and_stopping_twenty_times_leaves_nothing(system):
    before = None
    for life in range(21):
        daemon = system.daemon("16M", "--memory", "memfd")
        pools = [EveryCall(system.socket) for _ in range(2)]
        pools[0].put_copied(life, BLOCK)
        assert pools[1].get_leased(life) == bytes_of(life, BLOCK)
        for pool in pools:
            pool.detach()
        assert daemon.stop() == 0
        assert os.listdir(system.folder) == [], "a socket or its lock is left"
        daemon.reader.join(10)
        daemon.process.stdout.close()
        if life == 0:
            before = own()
    assert own() == before and before[1] == 0


def test_attaching_many_times_leaves_the_daemon_as_it_was(system):
    daemon = system.daemon("16M", "--memory", "memfd")

    def state():
        settled(system, lambda status: len(status["clients"]) == 1)
        with open(f"/proc/{daemon.pid}/maps", encoding="utf-8") as maps:
            n_maps = sum("fabricmgr" in line for line in maps)
        return len(os.listdir(f"/proc/{daemon.pid}/fd")), n_maps

    def use():
        pool = EveryCall(system.socket)
        pool.put_copied(1, BLOCK)
        pool.stage(BLOCK)
        held = pool.acquire(1)
        assert held
        pool.detach()

    use()
    before = min(state() for _ in range(5))  # fabricctl's own session may not be over at a look
    for _ in range(100):
        use()
    end = time.monotonic() + 30
    while (after := state()) > before:
        assert time.monotonic() < end, (before, after)
    assert after == before
    assert system.control("status")["blocks"]["staging"] == 0


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "bind", "listen"])
def test_a_step_of_the_start_that_fails_undoes_the_earlier_ones(system, call):
    """The n-th of the calls fails, for every n up to the start that needs no more of them."""
    for n in range(1, 200):
        trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
                 "-e", f"inject={call}:error=ENOMEM:when={n}"]
        out = subprocess.Popen([*trace, f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M",
                                "--memory", "memfd"], text=True, stderr=subprocess.PIPE)
        lines = []
        for line in out.stderr:
            lines.append(line)
            if line.rstrip().endswith("ready"):
                break
        if lines and lines[-1].rstrip().endswith("ready"):
            with open(f"/proc/{out.pid}/task/{out.pid}/children", encoding="utf-8") as children:
                os.kill(int(children.read()), signal.SIGTERM)
            assert out.wait(30) == 0 and n > 1
            out.stderr.close()
            return
        assert out.wait(30) == 1 and len(lines) == 1, (n, lines)
        out.stderr.close()
        assert os.listdir(system.folder) == [], (n, lines)
    raise AssertionError("it never starts")


def test_memory_bound_to_a_numa_node_and_odd_addresses_serve(system):
    """Also from NVMe, whose reads need whole pages: the caller's memory does not."""
    system.daemon("16M", "--nvme", f"{system.folder}/log", "--nvme-size", "320M", "--nvme-durable", "no")
    pool = EveryCall(system.socket)
    memory = mmap.mmap(-1, 2 * MIB)
    address = c.addressof(c.c_char.from_buffer(memory))
    libc = c.CDLL(None, use_errno=True)
    nodes = c.c_ulong(1)
    bind, mbind = 2, 237
    got = libc.syscall(mbind, c.c_void_p(address), c.c_ulong(2 * MIB), bind, c.byref(nodes), c.c_ulong(64), 0)
    if got:
        assert c.get_errno() in (1, 38), "neither forbidden nor absent"
    for n, (length, shift) in enumerate(((1, 1), (4097, 3), (100001, 511), (1 * MIB, 4095))):
        data = bytes_of(n, length)
        c.memmove(address + shift, data, length)
        parts = (Iovec * 1)(Iovec(address + shift, length))
        put = PutParts(key_of(n), None, parts, 1, 0, 0)
        pool.check(pool.lib.fm_pool_put_parts(pool.handle, bytes(32), c.byref(put), c.c_size_t(1), c.c_uint64(0)))
        for from_nvme in (False, True):
            if from_nvme:
                settled(system, lambda status, n=n: status["nvme"]["stored"] > n)
                system.control("evict")
                assert pool.match(n) == 0 and pool.fetch(n) == 1
            c.memset(address, 0, 2 * MIB)
            get = Get(key_of(n), address + shift, length, 0, 0)
            assert pool.lib.fm_pool_get(pool.handle, c.byref(get), c.c_size_t(1)) == 1
            assert c.string_at(address + shift, length) == data
            assert not any(memory[:shift]) and not any(memory[shift + length:shift + length + 4096])
    pool.detach()


# ---- holds ----

def test_above_capacity_with_pins_the_hit_rate_stays(system):
    """Ten times the pool goes through beside held and pinned blocks; nothing is freed twice."""
    system.daemon("16M", "--memory", "memfd")
    pool, chance = EveryCall(system.socket), random.Random(5)
    hot, held, rates = range(40), [], []
    for n in hot:
        block = pool.put(n, BLOCK)
        pool.hint(block, pin_s=3600)
        pool.release(block)
    for quarter in range(4):
        hits = 0
        for i in range(640):
            n = 1000 + quarter * 640 + i
            block = pool.put(n, BLOCK)
            held.append(block)
            if len(held) > 30:
                pool.release(held.pop(chance.randrange(len(held))))
            if i % 4 == 0:
                data = pool.get_leased(chance.choice(hot))
                assert data is None or data in (bytes_of(n, BLOCK) for n in hot)
                hits += data is not None
        rates.append(hits / 160)
    assert rates == [1, 1, 1, 1], f"what was pinned went: {rates}"
    status = system.control("status")
    assert status["counters"]["evictions"] > 2000 and status["blocks"]["sealed"] <= 256
    assert system.control("verify")["bad"] == 0
    for block in held:
        pool.release(block)
    everything(pool, 4)
    pool.detach()


def test_release_and_unpin_in_either_order_free_the_block(system):
    system.daemon("16M", "--memory", "memfd", "--policy", "lru")
    pool = EveryCall(system.socket)
    for turn, unpin_first in enumerate((True, False)):
        block = pool.put(turn, BLOCK)
        other = pool.acquire(turn)
        pool.hint(block, pin_s=3600)
        if unpin_first:
            pool.hint(block, 0)
            pool.release(block)
            pool.release(other)
        else:
            pool.release(other)
            pool.release(block)
            flood(pool)
            assert pool.match(turn) == 1, "a pinned block went while others could"
            block = pool.acquire(turn)
            pool.hint(block, 0)
            pool.release(block)
        flood(pool, 20000)
        assert pool.match(turn) == 0, "neither held nor pinned, but it stayed"
    pool.detach()


def test_a_second_release_takes_nobody_elses_hold(system):
    """Of the same handle, of a copy of it, from two threads: what another reader holds stays held."""
    system.daemon("16M", "--memory", "memfd", "--policy", "lru")
    pool = EveryCall(system.socket)
    for n in range(3):
        pool.put_copied(n, BLOCK)
    block = pool.acquire(0)
    copies = [Block.from_buffer_copy(block) for _ in range(4)]
    pool.release(block)
    pool.release(block)
    held = pool.acquire(1)  # takes the place that the first one had
    assert held.lease & 0xffff == copies[0].lease & 0xffff
    pool.release(copies[0])
    same = pool.acquire(1)
    assert same.lease & 0xffff != held.lease & 0xffff, "a place in the table was given out twice"
    pool.release(same)
    threads = [threading.Thread(target=pool.release, args=(copy,)) for copy in copies[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flood(pool)
    assert pool.match(0) == 0
    assert pool.verify(held) == 0 and c.string_at(held.data, BLOCK) == bytes_of(1, BLOCK)
    clients = {client["id"]: client for client in system.control("status")["clients"]}
    assert clients[pool.lib.fm_pool_client_id(pool.handle)]["leases"] == 1
    pool.release(held)
    flood(pool, 20000)
    assert pool.match(1) == 0
    pool.detach()


def test_a_pool_full_of_held_blocks_says_so_and_who_holds_them(system):
    system.daemon("16M", "--memory", "memfd")
    holder, other = EveryCall(system.socket), EveryCall(system.socket)
    held = [holder.put(n, 4 * MIB) for n in range(4)]
    with pytest.raises(OSError) as caught:
        blocks = (Block * 1)()
        other.check(other.lib.fm_block_stage(other.handle, c.c_uint64(BLOCK), c.c_size_t(1), blocks,
                                             c.c_uint64(10**8)))
    assert caught.value.errno in (-POOL_FULL, 7)
    assert re.search(r"held|leased|hold", str(caught.value)), caught.value
    listed = system.control("ls")
    assert len(listed) == 4
    for block in listed:
        assert [who["pid"] for who in block["held_by"]] == [os.getpid()]
        assert {who["client"] for who in block["held_by"]} == {holder.lib.fm_pool_client_id(holder.handle)}
    holder.release(held[2])
    assert other.put_copied(9, BLOCK) == 0
    for pool in (holder, other):
        pool.detach()


def test_a_lease_has_no_time_limit(system):
    """Held while many times the pool's size goes through, by every way that leases."""
    system.daemon("16M", "--memory", "memfd", "--policy", "lru")
    reader, writer = EveryCall(system.socket, READ_ONLY), EveryCall(system.socket)
    held = []
    for n in range(8):
        writer.put_copied(n, BLOCK)
    for n in range(4):
        held.append((n, reader.acquire(n)))
    for n in range(4, 8):
        block = Block()
        assert reader.lib.fm_group_acquire(reader.handle, c.byref(key_of(n)), c.c_size_t(1), c.byref(block)) == 0
        held.append((n, block))
    flood(writer, n=1500)
    for n, block in held:
        assert reader.verify(block) == 0 and c.string_at(block.data, BLOCK) == bytes_of(n, BLOCK)
        reader.release(block)
    flood(writer, 20000)
    assert not any(writer.match(n) for n in range(8))
    for pool in (reader, writer):
        pool.detach()


def length_of(n):
    return (5000, 70000, 400000)[n % 3]


def evictions_and_fetches(system, evictions, fetches):
    status = system.control("status")
    return status["counters"]["evictions"] >= evictions and status["nvme"]["fetched"] >= fetches


CHURN = """
import random, sys
sys.path.insert(0, sys.argv[1])
from every_call import EveryCall
pool, chance = EveryCall(sys.argv[2]), random.Random(int(sys.argv[3]))
print("churning", flush=True)
while True:
    n = chance.randrange(300)
    pool.put_by[chance.choice(sorted(pool.put_by))](n, (5000, 70000, 400000)[n % 3])
    if chance.random() < 0.1:
        pool.remove(chance.randrange(300))
"""


def test_no_way_of_reading_serves_stale_bytes_under_eviction(system):
    """Two writers keep 47 MiB of blocks moving through 16; every way reads what the key says."""
    system.daemon("16M", "--nvme", f"{system.folder}/log", "--nvme-size", "320M", "--nvme-durable", "no")
    churners = [system.start("/usr/bin/python3", "-B", "-c", CHURN, f"{TOP}/tests/process",
                             system.socket, str(seed)) for seed in (1, 2)]
    for churner in churners:
        churner.wait_for("churning")
    pool, chance = EveryCall(system.socket), random.Random(7)
    hits = dict.fromkeys(pool.get_by, 0)
    end = time.monotonic() + 60
    while min(hits.values()) < 60 or not evictions_and_fetches(system, 200, 20):
        assert time.monotonic() < end, hits
        way = min(hits, key=hits.get) if chance.random() < 0.5 else chance.choice(sorted(hits))
        n = chance.randrange(300)
        data = pool.get_by[way](n)
        if data is None:
            continue
        assert data == bytes_of(n, length_of(n)), f"{way} read wrong bytes"
        hits[way] += 1
    assert all(churner.process.poll() is None for churner in churners)
    pool.detach()


def test_a_buffer_of_another_length_is_told_and_the_next_call_is_good(system):
    system.daemon("16M")
    pool = EveryCall(system.socket)
    pool.put_copied(1, 5000)
    guard = c.create_string_buffer(b"g" * 8192, 8192)
    get = Get(key_of(1), c.addressof(guard), 4999, 0, 0)
    assert pool.lib.fm_pool_get(pool.handle, c.byref(get), c.c_size_t(1)) == 0
    assert get.result == LIMIT and get.length == 5000
    assert guard.raw[4999:] == b"g" * (8192 - 4999)
    get.capacity = 8192
    assert pool.lib.fm_pool_get(pool.handle, c.byref(get), c.c_size_t(1)) == 1
    assert guard.raw[:5000] == bytes_of(1, 5000) and guard.raw[5000:] == b"g" * 3192
    pool.detach()


# ---- names and layouts ----

GOLDEN = f"{TOP}/tests/data/golden_keys.json"

SHOW_KEYS = """
import ctypes as c, json, sys, threading
sys.path.insert(0, sys.argv[1])
from every_call import chain_of, digest_of
from pool_client import LIB
lib = c.CDLL(LIB)
cases = json.load(open(sys.argv[2], encoding="utf-8"))["chains"]
def keys():
    out = []
    for case in cases:
        ns = case["namespace"]
        texts = {k: v.encode() for k, v in ns.items() if isinstance(v, str) and k != "weights"}
        digest = digest_of(lib, weights=bytes.fromhex(ns["weights"]), **texts, **ns["layout"])
        assert digest.hex() == case["digest"]
        if not case["extras"]:
            per_block = ns["layout"]["tokens_per_block"]
            found = chain_of(lib, digest, case["tokens"], per_block)
            assert [bytes(key.bytes).hex() for key in found] == case["keys"]
            out += [bytes(key.bytes).hex() for key in found]
    results.append(out)
results = []
threads = [threading.Thread(target=keys) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(results) == 4
print(json.dumps(results))
"""


def test_keys_are_equal_in_every_process_hash_seed_and_thread():
    said = set()
    for seed in ("0", "1", "4294967295", "random"):
        out = subprocess.run([sys.executable, "-B", "-c", SHOW_KEYS, f"{TOP}/tests/process", GOLDEN],
                             env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
                             check=False, timeout=60)
        assert out.returncode == 0, out.stderr
        said.update(json.dumps(keys) for keys in json.loads(out.stdout))
    assert len(said) == 1 and len(json.loads(said.pop())) >= 8


OTHERS = {"weights": b"v" * 32, "adapter": b"lora-a", "tenant_salt": b"s", "quantisation": b"q4_1",
          "position_encoding": b"rope/theta=500000/dims=64/norm", "numerics_id": b"amx-int8/1",
          "layers": 5, "kv_heads": 4, "head_dim": 128, "tokens_per_block": 32, "element": 3}


def test_equal_tokens_of_another_model_adapter_salt_or_layout_miss(system):
    system.daemon("16M")
    pool = EveryCall(system.socket)
    tokens = list(range(64))
    names = {"": digest_of(pool.lib), **{field: digest_of(pool.lib, **{field: value})
                                         for field, value in OTHERS.items()}}
    assert len(set(names.values())) == len(OTHERS) + 1
    # Length-prefixed: what moves from one field into the next is another name.
    names["moved"] = digest_of(pool.lib, adapter=b"lora-", tenant_salt=b"a")
    assert names["moved"] != digest_of(pool.lib, adapter=b"lora-a", tenant_salt=b"")

    def matched(field):
        per_block = OTHERS["tokens_per_block"] if field == "tokens_per_block" else 16
        return pool.check(pool.lib.fm_pool_match_tokens(
            pool.handle, names[field], (c.c_uint32 * 64)(*tokens), c.c_size_t(64), c.c_uint32(per_block),
            None, c.c_size_t(0)))

    written = set()
    for field, digest in names.items():
        assert matched(field) == 0, f"{field}: found what another namespace wrote"
        keys = chain_of(pool.lib, digest, tokens, 32 if field == "tokens_per_block" else 16)
        for i, key in enumerate(keys):
            block = pool.stage(4096)[0]
            seal = Seal(c.pointer(block), key, c.pointer(Key(keys[i - 1].bytes)) if i else None, 0)
            pool.check(pool.lib.fm_block_seal(pool.handle, digest, c.byref(seal), c.c_size_t(1)))
            pool.release(block)
        assert matched(field) == len(keys)
        written.update(bytes(key.bytes) for key in keys)
    assert len(written) == sum(2 if field == "tokens_per_block" else 4 for field in names)
    pool.detach()


def test_two_readers_of_one_snapshot_see_the_same(system):
    """Ranks that decide together need equal answers: of every chain, in two processes, by two calls."""
    system.daemon("16M")
    pool, chance = EveryCall(system.socket), random.Random(11)
    digest = digest_of(pool.lib)
    chains = []
    for i in range(40):
        keys = chain_of(pool.lib, digest, [i * 1000 + k for k in range(256)])
        chains.append([bytes(key.bytes) for key in keys])
        for k in range(chance.randrange(17)):
            block = pool.stage(4096)[0]
            seal = Seal(c.pointer(block), keys[k], c.pointer(Key(keys[k - 1].bytes)) if k else None, 0)
            pool.check(pool.lib.fm_block_seal(pool.handle, digest, c.byref(seal), c.c_size_t(1)))
            pool.release(block)
    answers = []
    for rank in range(2):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                reader = Pool(system.socket, READ_ONLY)
                found = []
                for chain in chains:
                    keys = (Key * len(chain)).from_buffer_copy(b"".join(chain))
                    n = reader.lib.fm_pool_match(reader.handle, keys, c.c_size_t(len(chain)))
                    blocks = (Block * len(chain))()
                    leased = reader.lib.fm_pool_acquire(reader.handle, keys, c.c_size_t(len(chain)), blocks)
                    reader.lib.fm_block_release(reader.handle, blocks, c.c_size_t(leased))
                    found.append((n, leased))
                os.write(write, json.dumps(found).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answers.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
        assert rank or answers
    assert answers[0] == answers[1]
    assert all(n == leased for n, leased in answers[0]) and 0 < sum(n for n, _ in answers[0]) < 40 * 16
    pool.detach()


def test_what_one_call_wrote_every_other_reads(system):
    system.daemon("64M", "--nvme", f"{system.folder}/log", "--nvme-size", "320M", "--nvme-durable", "no")
    writer, reader = EveryCall(system.socket), EveryCall(system.socket, READ_ONLY)
    number = 0
    for length in (1, 5000, 300000):
        for name, write in writer.put_by.items():
            number += 1
            write(number, length)
            for way, read in reader.get_by.items():
                assert read(number) == bytes_of(number, length), f"written by {name}, read by {way}"
            assert reader.match(number) == 1 == reader.fetch(number)
            assert writer.remove(number) == 1
            for way, read in reader.get_by.items():
                assert read(number) is None, f"removed, but {way} reads it"
    for pool in (writer, reader):
        pool.detach()


def test_consumers_with_other_ranks_read_head_ranges(system):
    """TP=4 writes, TP=2 and TP=8 read: the canonical order is [layer][k|v][head][token][dim]."""
    system.daemon("16M")
    pool = EveryCall(system.socket)
    layers, heads, head_bytes = 3, 8, 16 * 64 * 2
    whole = b"".join(hashlib.sha256(b"%d %d %d" % (layer, kv, head)).digest() * (head_bytes // 32)
                     for layer in range(layers) for kv in range(2) for head in range(heads))

    def piece(layer, kv, first, n):
        at = ((layer * 2 + kv) * heads + first) * head_bytes
        return at, n * head_bytes

    producers, memories, parts = 4, [], []
    per = heads // producers
    for rank in range(producers):  # each rank has its heads of every layer, one after the other
        mine = b"".join(whole[at:at + n] for layer in range(layers) for kv in range(2)
                        for at, n in [piece(layer, kv, rank * per, per)])
        memories.append(c.create_string_buffer(mine, len(mine)))
    for layer in range(layers):
        for kv in range(2):
            for rank in range(producers):
                parts.append(Iovec(c.addressof(memories[rank]) + (layer * 2 + kv) * per * head_bytes,
                                   per * head_bytes))
    put = PutParts(key_of(1), None, (Iovec * len(parts))(*parts), len(parts), 0, 0)
    pool.check(pool.lib.fm_pool_put_parts(pool.handle, bytes(32), c.byref(put), c.c_size_t(1), c.c_uint64(0)))
    assert pool.get_copied(1) == whole
    for consumers in (1, 2, 8):
        per = heads // consumers
        for rank in range(consumers):
            room = c.create_string_buffer(layers * 2 * per * head_bytes)
            gets, keep = (GetParts * (layers * 2))(), []
            for i in range(layers * 2):
                at, n = piece(i // 2, i % 2, rank * per, per)
                keep.append((Iovec * 1)(Iovec(c.addressof(room) + i * n, n)))
                gets[i] = GetParts(key_of(1), keep[-1], 1, rank % 2, at, 0, 0, 0, 0)
            assert pool.lib.fm_pool_get_parts(pool.handle, gets, c.c_size_t(layers * 2)) == layers * 2
            expected = b"".join(whole[at:at + n] for layer in range(layers) for kv in range(2)
                                for at, n in [piece(layer, kv, rank * per, per)])
            assert room.raw == expected, (consumers, rank)
            assert all(get.copied == per * head_bytes for get in gets)
    pool.detach()
