#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_gguf into tests/fuzz/corpus/gguf: small files that open, one for each
value type, tensor type and tokenizer, so that the fuzzer begins behind the header."""
import os
import struct

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "gguf")
U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


def text(value):
    return struct.pack("<Q", len(value)) + value


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def strings(values):
    return struct.pack("<IQ", STRING, len(values)) + b"".join(text(v) for v in values)


def gguf(keys, tensors=(), data=b"", version=3):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data if tensors else body


def write(name, content):
    with open(os.path.join(OUT, name), "wb") as file:
        file.write(content)


def tokenizer(pre):
    """The letters, two merges and a control token."""
    tokens = [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz<|>_"] + ["\u0120".encode()]
    tokens += [b"he", b"hel", b"<|im_start|>", b"<|im_end|>", b"<tool>"]
    types = [1] * (len(tokens) - 3) + [3, 3, 4]
    chat = (b"{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nbe kind<|im_end|>\n'"
            b" }}{% endif %}{# none #}{{ '<|im_start|>assistant\n' }}")
    return gguf([
        key(b"tokenizer.ggml.model", STRING, text(b"gpt2")),
        key(b"tokenizer.ggml.pre", STRING, text(pre)),
        key(b"tokenizer.ggml.tokens", ARRAY, strings(tokens)),
        key(b"tokenizer.ggml.token_type", ARRAY,
            struct.pack(f"<IQ{len(types)}i", 5, len(types), *types)),
        key(b"tokenizer.ggml.merges", ARRAY, strings([b"h e", b"he l"])),
        key(b"tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 33)),
        key(b"tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 34)),
        key(b"tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        key(b"tokenizer.chat_template", STRING, text(chat)),
    ])


def main():
    os.makedirs(OUT, exist_ok=True)
    write("empty", gguf([]))
    write("version2", gguf([key(b"a", U32, struct.pack("<I", 1))], version=2))
    write("scalars", gguf([key(b"k%d" % kind, kind, struct.pack("<" + form, 1))
                           for kind, form in SCALARS.items()]))
    write("arrays", gguf([key(b"k%d" % kind, ARRAY, struct.pack(f"<IQ2{form}", kind, 2, 0, 1))
                          for kind, form in SCALARS.items()] +
                         [key(b"s", ARRAY, strings([b"one", b""]))]))
    tensors, data = [], b""
    for kind, (block, size) in BLOCKS.items():
        tensors.append(text(b"t%d" % kind) + struct.pack("<IQQIQ", 2, block, 2, kind, len(data)))
        data += bytes(2 * size) + bytes(-2 * size % 32)
    write("tensors", gguf([], tensors, data))
    write("alignment", gguf([key(b"general.alignment", U32, struct.pack("<I", 8))], tensors, data))
    for pre in (b"smollm", b"llama-bpe", b"qwen2", b"gpt-2", b"default"):
        write("tokenizer-" + pre.decode(), tokenizer(pre))


if __name__ == "__main__":
    main()
