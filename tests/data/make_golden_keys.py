#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes golden_keys.json from Documentation/abi.md's text alone, with hashlib; it shares no code
with the library. Run it and compare: a difference means that the key format changed."""
import hashlib
import json
import struct


def field(kind, data):
    return bytes([kind]) + struct.pack("<I", len(data)) + data


def number(value):
    return field(2, struct.pack("<I", value))


def text(value):
    return field(3, value.encode())


def namespace(ns):
    data = field(1, b"fabricmgr/namespace") + number(1) + field(4, bytes.fromhex(ns["weights"]))
    for name in ("layers", "kv_heads", "head_dim", "tokens_per_block", "element", "flags"):
        data += number(ns["layout"][name])
    for name in ("numerics_id", "position_encoding", "quantisation", "adapter", "tenant_salt"):
        data += text(ns[name])
    return hashlib.sha256(data).digest()


def chain(parent, tokens, per_block, extras):
    keys, digest = [], parent
    for start in range(0, len(tokens), per_block):
        block = tokens[start:start + per_block]
        digest = hashlib.sha256(digest + struct.pack(f"<{len(block)}I", *block) + extras).digest()
        keys.append(digest[:16].hex())
    return keys, digest.hex()


def main():
    cases = []
    base = {"weights": hashlib.sha256(b"weights").hexdigest(),
            "layout": {"layers": 28, "kv_heads": 8, "head_dim": 128, "tokens_per_block": 16,
                       "element": 1, "flags": 0},
            "numerics_id": "portable-16/1", "position_encoding": "rope/theta=1000000/dims=128",
            "quantisation": "", "adapter": "", "tenant_salt": ""}
    other = dict(base, quantisation="q8_0", adapter="lora-a", tenant_salt="bc")
    moved = dict(base, quantisation="q8_0", adapter="lora-ab", tenant_salt="c")
    tokens = [(i * 2654435761) & 0xffffffff for i in range(64)]
    for ns, extras in ((base, b""), (other, field(3, b"image:1234")), (moved, b"")):
        digest = namespace(ns)
        keys, last = chain(digest, tokens, ns["layout"]["tokens_per_block"], extras)
        cases.append({"namespace": ns, "digest": digest.hex(), "tokens": tokens,
                      "extras": extras.hex(), "keys": keys, "last": last})
    opaque = []
    for key in (b"", b"a", b"vllm:block:42", bytes(range(256))):
        ns = hashlib.sha256(b"client").digest()
        data = field(1, b"fabricmgr/opaque-key") + field(4, ns) + field(4, key)
        opaque.append({"namespace": ns.hex(), "key": key.hex(),
                       "result": hashlib.sha256(data).digest()[:16].hex()})
    print(json.dumps({"chains": cases, "opaque": opaque}, indent=1))


main()
