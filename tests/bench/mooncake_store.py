# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store as a peer, in the interpreter of build/peers/mooncake (make peers): a master and a
client. Started as a program with "own" (a copy within the client's own segment) or "loopback" (the
segment is another process's: its TCP transport), and "put_get" or "exist": prints one JSON object,
seconds for 2 MiB (put, get), or keys a second that batch_is_exist(512) looks up.
"""
import contextlib
import ctypes
import json
import mmap
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

VALUE, VALUES, ROUNDS, KEYS, SEGMENT = 2 << 20, 64, 6, 512, 1 << 30


def measure(store, what):
    source, target = (mmap.mmap(-1, VALUE * VALUES) for _ in range(2))
    for i in range(VALUES):
        source[i * VALUE:(i + 1) * VALUE] = random.Random(i).randbytes(4096) * (VALUE // 4096)
    target[:] = b"\1" * len(target)
    at = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (source, target)]
    for address in at:
        if store.register_buffer(address, VALUE * VALUES):
            sys.exit("mooncake: register_buffer failed")
    put, get, exist = [], [], []
    for turn in range(ROUNDS if what == "put_get" else 1):
        for i in range(VALUES):
            begin = time.perf_counter()
            if store.upsert_from(f"{i}", at[0] + i * VALUE, VALUE):
                sys.exit("mooncake: put_from failed")
            put.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            if store.get_into(f"{i}", at[1] + i * VALUE, VALUE) != VALUE:
                sys.exit("mooncake: get_into failed")
            get.append(time.perf_counter() - begin)
    if source[:] != target[:]:
        sys.exit("mooncake: other bytes came back")
    if what == "put_get":  # the first round touches memory for the first time
        return {"put": statistics.median(put[VALUES:]), "get": statistics.median(get[VALUES:])}
    keys = [f"{i % VALUES}" for i in range(KEYS)]
    for _ in range(100):
        begin = time.perf_counter()
        if store.batch_is_exist(keys) != [1] * KEYS:
            sys.exit("mooncake: batch_is_exist does not find all")
        exist.append(KEYS / (time.perf_counter() - begin))
    return {"exist": statistics.median(exist)}


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def attach(port, segment_bytes):
    """A client of the master at @port; the master may still be starting."""
    from mooncake.store import MooncakeDistributedStore
    store, late = MooncakeDistributedStore(), time.monotonic() + 30
    while store.setup(f"127.0.0.1:{free_ports(1)[0]}", "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp",
                      "", f"127.0.0.1:{port}"):
        if time.monotonic() > late:
            sys.exit("mooncake: the client does not come up")
        time.sleep(0.2)
    return store


def hold(port):
    """The other process: a segment, until standard input ends."""
    store = attach(port, SEGMENT)
    print("holding", flush=True)
    sys.stdin.read()
    store.close()


def main():
    import mooncake
    where, what = sys.argv[1:3]
    if where == "hold":
        return hold(int(what))
    os.environ["MC_STORE_MEMCPY"] = "1" if where == "own" else "0"
    rpc, metrics = free_ports(2)
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        def start(command, **more):
            process = subprocess.Popen(command, stderr=log, **more)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        start([f"{os.path.dirname(mooncake.__file__)}/mooncake_master", "--rpc_port", str(rpc),
               "--metrics_port", str(metrics)], stdout=log)
        if where == "loopback":
            holder = start([sys.executable, __file__, "hold", str(rpc)], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
            while holder.stdout.readline().strip() not in ("holding", ""):
                pass
        store = attach(rpc, SEGMENT if where == "own" else 0)
        try:
            print(json.dumps(measure(store, what)), flush=True)
        finally:
            store.close()


if __name__ == "__main__":
    main()
