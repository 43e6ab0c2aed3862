# SPDX-License-Identifier: Apache-2.0
"""Model files made to harm: each is refused with a sentence, by `inspect` or `run`, without a crash
and without more memory than the file's size and 64 MiB.

The limit is the kernel's: RLIMIT_DATA counts every private writable page, so that a program which asks
for more is told that there is no memory, and that answer fails the test."""
import os
import random
import re
import resource
import struct
import subprocess

import pytest

import tiny_gguf
from conftest import BIN
from tiny_gguf import ARRAY, F32, I32, STRING, U32, key, strings, text

MIB = 1 << 20
EXTRA = 64 * MIB
STARVED = re.compile("memory|temporarily unavailable")


def engine(command, path, limit=None):
    """The exit status and what it wrote; @limit: bytes of private memory, or size and 64 MiB."""
    limit = limit or os.stat(path).st_size + EXTRA
    arguments = {"inspect": ["inspect", "--json", path],
                 "run": ["run", "-m", path, "-p", "hello", "-n", "1", "-t", "1", "--pool-size", "8M"]}
    done = subprocess.run([f"{BIN}/fabric-engine", *arguments[command]], capture_output=True,
                          timeout=60, check=False, preexec_fn=lambda: resource.setrlimit(
                              resource.RLIMIT_DATA, (limit, limit)))
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def survives(path):
    """Each command ends by itself, in order, and not for lack of memory. The status of `run`."""
    for command in ("inspect", "run"):
        status, said = engine(command, path)
        assert status in (0, 1), f"{command}: status {status}: {said}"
        assert not STARVED.search(said), f"{command} ran out of memory: {said}"
        assert status == 0 or said.count("\n") < 4 and len(said) < 2000, said
    return status, said


def refused(path, words=""):
    status, said = survives(path)
    assert status == 1 and words in said, said


def gguf(path, keys=(), tensors=(), size=0, n_keys=None, n_tensors=None, version=3):
    """A file of the given parts, then a hole up to @size. Tensors: (name, dims, type, offset)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(keys) if n_keys is None else n_keys) + b"".join(keys)
    head += b"".join(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
                     for name, dims, kind, offset in tensors)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(max(size, len(head)))
    return str(path)


def u32(name, value):
    return key(name, U32, struct.pack("<I", value))


def model_keys(**changed):
    """Metadata of a model; a name's dots are written as __."""
    sizes = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32,
             "attention__head_count": 1, "attention__head_count_kv": 1, "context_length": 64}
    sizes.update(changed)
    out = [key("general.architecture", STRING, text("llama")),
           key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))]
    return out + [u32("llama." + name.replace("__", "."), value) for name, value in sizes.items()]


def token_keys(**changed):
    """A vocabulary of the bytes and "he"; keys that are given stand in others' places or besides."""
    out = {"model": key("tokenizer.ggml.model", STRING, text("gpt2")),
           "pre": key("tokenizer.ggml.pre", STRING, text("smollm")),
           "tokens": key("tokenizer.ggml.tokens", ARRAY, strings(tiny_gguf.byte_names() + ["he"])),
           "merges": key("tokenizer.ggml.merges", ARRAY, strings(["h e"])),
           "eos": u32("tokenizer.ggml.eos_token_id", 0)}
    out.update(changed)
    return list(out.values())


def model_tensors(layers, dim, ffn, vocab, kind=8, heads=1, distinct=True):
    """The tensors of a model, one after the other, or all at the same place. And their end."""
    block = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 2: (32, 18)}
    out, at, end = [], 0, 0

    def add(name, dims, kind):
        nonlocal at, end
        n = 1
        for size in dims:
            n *= size
        size = n // block[kind][0] * block[kind][1]
        out.append((name + ".weight", dims, kind, at))
        end = max(end, at + size)
        if distinct:
            at += (size + 31) // 32 * 32

    add("token_embd", (dim, vocab), kind)
    add("output_norm", (dim,), 0)
    for i in range(layers):
        for name, dims in (("attn_q", (dim, dim)), ("attn_k", (dim, dim)), ("attn_v", (dim, dim)),
                           ("attn_output", (dim, dim)), ("ffn_gate", (dim, ffn)),
                           ("ffn_up", (dim, ffn)), ("ffn_down", (ffn, dim))):
            add(f"blk.{i}.{name}", dims, kind)
        add(f"blk.{i}.attn_norm", (dim,), 0)
        add(f"blk.{i}.ffn_norm", (dim,), 0)
    return out, end


def test_the_limit_is_one(tiny_model):
    """What the other tests lean on: the good file works within it, and the limit can be felt."""
    assert survives(tiny_model)[0] == 0
    status, said = engine("run", tiny_model, limit=2 * MIB)
    assert status != 0 and STARVED.search(said)


def test_counts_and_lengths(tmp_path):
    path = tmp_path / "m.gguf"
    for huge in (1 << 16, 1 << 20, 1 << 32, (1 << 63) - 1, (1 << 64) - 1):
        refused(gguf(path, n_tensors=huge, size=4096))
        refused(gguf(path, n_keys=huge, size=4096))
        refused(gguf(path, n_tensors=huge, n_keys=huge, size=16 * MIB))
        length = struct.pack("<Q", huge)
        refused(gguf(path, [length + b"name"]))
        refused(gguf(path, [key("a", STRING, length + b"text")]))
        for kind in (*range(13), 13, 1 << 31):
            refused(gguf(path, [key("a", ARRAY, struct.pack("<I", kind) + length)], size=MIB))
        refused(gguf(path, [key("a", ARRAY, struct.pack("<IQ", STRING, 2) + length)], size=MIB))
    nested = struct.pack("<IQ", ARRAY, 1) * 10000
    refused(gguf(path, [key("a", ARRAY, nested)]), "array of arrays")
    refused(gguf(path, [key("a", kind, b"") for kind in (13, 255, 1 << 31)]))
    for size in range(0, 24):
        with open(path, "wb") as file:
            file.write((b"GGUF" + bytes(20))[:size])
        refused(str(path))


def test_names(tmp_path):
    path = tmp_path / "m.gguf"
    refused(gguf(path, [u32("a", 1), u32("a", 1)]), "stands twice")
    refused(gguf(path, [], [("t", (8,), 0, 0), ("t", (8,), 0, 32)], size=4096), "stands twice")
    refused(gguf(path, [u32("", 1)]))
    refused(gguf(path, [u32("n" * 70000, 1)]))
    refused(gguf(path, [u32(f"key {i}", i) for i in range(70000)]), "keys")
    refused(gguf(path, [], [(f"{i}", (1,), 0, 32 * i) for i in range(65537)], size=4 * MIB), "tensors")
    refused(gguf(path, model_keys(), [(f"{i}", (1,), 0, 32 * i) for i in range(60000)], size=4 * MIB))
    refused(gguf(path, model_keys() + token_keys(),
                 [(f"\x1b[2J\n{i}", (1,), 99, 0) for i in range(2)], size=4096))


def test_places_and_shapes(tmp_path):
    path = tmp_path / "m.gguf"
    for alignment in (0, 1, 3, 31, 33, 1 << 31, (1 << 32) - 1):
        refused(gguf(path, [u32("general.alignment", alignment)], [("t", (8,), 0, 0)], size=4096),
                "general.alignment")
    refused(gguf(path, [u32("general.alignment", 1 << 30)], [("t", (8,), 0, 0)], size=4096), "ends at")
    for offset in (1, 31, 4096, 1 << 40, (1 << 64) - 32):
        refused(gguf(path, [], [("t", (8,), 0, offset)], size=4096))
    for dims in ((0,), (1 << 63,), ((1 << 64) - 1,), (1 << 32, 1 << 32), (1 << 21,) * 3,
                 (1 << 31, 1, 1, 1 << 31), (1 << 20, 1 << 20), (), (1,) * 5):
        refused(gguf(path, [], [("t", dims, 0, 0)], size=4096))
    for kind in (4, 5, 9, 10, 15, 31, 41, 1 << 31):
        refused(gguf(path, [], [("t", (256,), kind, 0)], size=4096))
    for kind in (2, 3, 6, 7, 8, 12, 13, 14):
        refused(gguf(path, [], [("t", (48, 256), kind, 0)], size=MIB), "not a multiple")


def test_overlapping_tensors(tmp_path):
    """1024 layers at one place: a file of 5 MB that means 40 GB of weights."""
    tensors, end = model_tensors(1024, 2048, 2048, 300, distinct=False)
    keys = model_keys(block_count=1024, embedding_length=2048, feed_forward_length=2048,
                      attention__head_count=16, attention__head_count_kv=16)
    refused(gguf(tmp_path / "m.gguf", keys + token_keys(), tensors, size=end + MIB), "overlap")


def test_weights_that_lack_something(tmp_path):
    """Everything is checked before anything is packed: a quarter of a gigabyte stays unread."""
    path = tmp_path / "m.gguf"
    sizes = {"embedding_length": 4096, "feed_forward_length": 4096, "attention__head_count": 32,
             "attention__head_count_kv": 32}
    tensors, end = model_tensors(2, 4096, 4096, 257)
    for i in (0, 1, 5, len(tensors) - 1):
        refused(gguf(path, model_keys(block_count=2, **sizes) + token_keys(),
                     tensors[:i] + tensors[i + 1:], size=end + MIB), "is missing")
    refused(gguf(path, model_keys(block_count=2, **sizes) + token_keys(),
                 tensors + [("one_more.bias", (8,), 0, 0)], size=end + MIB), "tensors and the llama graph")
    # The model is whole and its tokenizer is not.
    refused(gguf(path, model_keys(block_count=2, **sizes) + token_keys(eos=u32(
        "tokenizer.ggml.eos_token_id", 1 << 20)), tensors, size=end + MIB), "eos_token_id")


def test_odd_shapes(tmp_path):
    """One row that is padded to 16, of the widest model there may be; then more than that."""
    path = tmp_path / "m.gguf"
    tensors, end = model_tensors(1, 32, 32, 1, kind=0)
    refused(gguf(path, model_keys() + token_keys(), tensors[:-1], size=end + MIB), "is missing")
    for name in ("block_count", "embedding_length", "feed_forward_length", "attention__head_count",
                 "attention__head_count_kv", "context_length"):
        for value in (0, 33, 65536, 65537, 1 << 24, 1 << 31, (1 << 32) - 1):
            if (name, value) not in (("context_length", 33), ("context_length", 65536),
                                     ("context_length", 65537), ("context_length", 1 << 24)):
                refused(gguf(path, model_keys(**{name: value}) + token_keys(), tensors, size=end + MIB))
    for name in ("attention__key_length", "attention__value_length", "rope__dimension_count"):
        for value in (0, 31, 96, 1 << 20, (1 << 32) - 1):
            refused(gguf(path, model_keys(**{name: value}) + token_keys(), tensors, size=end + MIB))


def test_keys_of_architectures(tmp_path):
    """Windows, patterns, rotary scaling and caps: of another type, beyond limits, or not there to do."""
    path = tmp_path / "m.gguf"
    tensors, end = model_tensors(1, 32, 32, 1, kind=0)

    def with_key(architecture, name, kind, value, words=""):
        keys = [key("general.architecture", STRING, text(architecture)),
                key(architecture + ".attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))]
        keys += [u32(f"{architecture}.{size}", number) for size, number in (
            ("block_count", 1), ("embedding_length", 32), ("feed_forward_length", 32),
            ("attention.head_count", 1), ("attention.head_count_kv", 1), ("context_length", 64))]
        keys.append(key(f"{architecture}.{name}", kind, value))
        refused(gguf(path, keys + token_keys(), tensors, size=end + 4 * MIB),
                words or f"{architecture}.{name}")

    def number(value):
        return struct.pack("<I", value)

    def array(kind, count, data=b""):
        return struct.pack("<IQ", kind, count) + data

    for architecture in ("llama", "qwen2", "qwen3", "gemma3"):
        for value in ((1 << 24) + 1, 1 << 31, (1 << 32) - 1):
            with_key(architecture, "attention.sliding_window", U32, number(value))
        with_key(architecture, "attention.sliding_window", STRING, text("x" * MIB))
        with_key(architecture, "rope.freq_base", F32, struct.pack("<f", float("nan")))
        with_key(architecture, "rope.freq_base", F32, struct.pack("<f", -1))
        with_key(architecture, "rope.scaling.type", STRING, text("\x1b[31m" * 1000))
        with_key(architecture, "rope.scaling.type", STRING, text("linear"), "rope.scaling.factor")
        with_key(architecture, "attention.head_count_kv", ARRAY, array(U32, 1, number(1)), "stands twice")
        with_key(architecture, "expert_count", U32, number(8))
    with_key("qwen2", "attention.sliding_window", U32, number(8))
    with_key("gemma3", "attention.sliding_window", U32, number(0))
    with_key("gemma3", "attention.sliding_window_pattern", U32, number(0))
    with_key("gemma3", "attention.sliding_window_pattern", U32, number(1 << 30))
    with_key("gemma3", "attention.sliding_window_pattern", ARRAY, array(U32, 0))
    with_key("gemma3", "attention.sliding_window_pattern", ARRAY, array(STRING, 1, text("x")))
    with_key("gemma3", "attention.sliding_window_pattern", F32, struct.pack("<f", 6))
    with_key("gemma3", "rope.freq_base_swa", F32, struct.pack("<f", float("inf")))
    with_key("gemma3", "rope.freq_base_swa", STRING, text(""))
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        with_key("gemma3", name, F32, struct.pack("<f", 30))
        with_key("gemma3", name, STRING, text("30"))
    with_key("phi3", "x", U32, number(1), "general.architecture")


def test_piece_vocabularies(tmp_path):
    """SentencePiece: the largest tables, and scores that are none."""
    path = tmp_path / "m.gguf"
    tensors, end = model_tensors(1, 32, 32, 257)
    n = 1 << 20

    def with_keys(words, tokens, scores, kind=F32):
        keys = model_keys() + [
            key("tokenizer.ggml.model", STRING, text("llama")),
            key("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, len(tokens) // 8) + tokens),
            key("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ", kind, len(scores) // 4) + scores)]
        refused(gguf(path, keys, tensors, size=end + sum(map(len, keys)) + 65536), words)

    with_keys("tokens, at most", bytes(8 * n + 8), bytes(4 * n + 4))
    with_keys("scores", bytes(8 * n), bytes(4 * n - 4))
    with_keys("is no number", bytes(8 * n), bytes(4 * n - 4) + struct.pack("<f", float("nan")))
    with_keys("is no number", bytes(8 * 300), bytes(4 * 300), U32)


def test_vocabularies(tmp_path):
    """The largest tables that a vocabulary may ask for, of strings that take 8 bytes in the file."""
    path = tmp_path / "m.gguf"
    tensors, end = model_tensors(1, 32, 32, 257)

    def with_keys(words, **changed):
        keys = model_keys() + token_keys(**changed)
        refused(gguf(path, keys, tensors, size=end + sum(map(len, keys)) + 65536), words)

    def array(name, kind, count, data):
        return key(f"tokenizer.ggml.{name}", ARRAY, struct.pack("<IQ", kind, count) + data)

    n = 1 << 20
    names = strings(tiny_gguf.byte_names())[12:]
    with_keys("tokens, at most", tokens=array("tokens", STRING, n + 1, bytes(8 * n + 8)))
    with_keys("merges, at most", merges=array("merges", STRING, n + 1, bytes(8 * n + 8)))
    with_keys("merge 0", tokens=array("tokens", STRING, n, bytes(8 * n)),
              merges=array("merges", STRING, n, bytes(8 * n)))
    # Merges that are right, all the same, but the last.
    with_keys(f"merge {n - 1} ",
              tokens=array("tokens", STRING, n, names + text("he") * (n - 256)),
              merges=array("merges", STRING, n, text("h e") * (n - 1) + text("x")))
    # Everything at once: as many keys and tensors as there may be besides.
    keys = model_keys() + token_keys(tokens=array("tokens", STRING, n, bytes(8 * n)),
                                     merges=array("merges", STRING, n, bytes(8 * n)))
    keys += [u32(f"{i}", i) for i in range(65536 - len(keys))]
    refused(gguf(path, keys, [(f"{i}", (1,), 0, 32 * i) for i in range(65536)], size=32 * MIB))
    with_keys("token types", types=array("token_type", I32, 3, bytes(12)))
    with_keys("no vocabulary", tokens=array("tokens", I32, 300, bytes(1200)))
    with_keys("no vocabulary", tokens=array("tokens", STRING, 0, b""))
    with_keys("no merges", merges=array("merges", I32, 1, bytes(4)))
    with_keys("is 257 but", eos=u32("tokenizer.ggml.eos_token_id", 257))
    with_keys("is not supported", model=key("tokenizer.ggml.model", STRING, text("x" * MIB)))
    with_keys("is not supported", pre=key("tokenizer.ggml.pre", STRING, text("\x1b[31m" * 1000)))
    with_keys("merge 0", tokens=array("tokens", STRING, 1, text("x" * (30 * MIB))))


def test_truncated_anywhere(tmp_path, tiny_model):
    with open(tiny_model, "rb") as file:
        whole = file.read()
    header = whole.index(b"tokenizer.ggml.tokens")
    chance = random.Random(1)
    sizes = set(range(0, header, 37)) | {chance.randrange(len(whole)) for _ in range(60)}
    path = str(tmp_path / "m.gguf")
    for size in sorted(sizes | {len(whole) - 1}):
        with open(path, "wb") as file:
            file.write(whole[:size])
        refused(path)


def test_flipped_bytes(tmp_path, tiny_model):
    """A file that still opens may be used; no flip crashes or makes anything grow."""
    with open(tiny_model, "rb") as file:
        whole = file.read()
    header = whole.index(b"output_norm.weight") + 2000  # the keys, and most tensors' entries
    path = str(tmp_path / "m.gguf")
    seed = int(os.environ.get("FLIP_SEED", random.randrange(1 << 32)))
    print(f"FLIP_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(min(header, len(whole)))] ^= 1 << chance.randrange(8)
        with open(path, "wb") as file:
            file.write(damaged)
        survives(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "/nowhere.gguf"])
def test_what_is_no_file(path):
    for command in ("inspect", "run"):
        status, said = engine(command, path, limit=EXTRA)
        assert status == 1 and path in said and not STARVED.search(said), said
