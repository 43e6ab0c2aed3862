# SPDX-License-Identifier: Apache-2.0
"""Writes a small Llama GGUF with random weights and a byte-level vocabulary: a model that loads in
milliseconds, for tests of everything but the model. `tiny_gguf.py FILE` writes one for a person.

Same arguments, same bytes. Its text is noise: compare it, do not read it.
"""
import random
import struct
import sys

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
TYPE_F32, TYPE_Q8_0 = 0, 8
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
          "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\\n' }}{% endif %}")
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def byte_names():
    """The character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    names, other = [], 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7e or 0xa1 <= byte <= 0xac or byte >= 0xae:
            names.append(chr(byte))
        else:
            names.append(chr(other))
            other += 1
    return names


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def strings(values):
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def write(path, layers=2, dim=64, heads=2, kv_heads=1, feed_forward=128, context=2048, seed=1):
    """A KV block of 16 tokens has layers * 2 * kv_heads * (dim / heads) * 16 elements."""
    chance = random.Random(seed)
    tokens = byte_names() + ["he", "ll", "hell"] + CONTROL
    end = len(tokens) - 2
    keys = [
        key("general.architecture", STRING, text("llama")),
        key("general.name", STRING, text("tiny")),
        key("llama.block_count", U32, struct.pack("<I", layers)),
        key("llama.embedding_length", U32, struct.pack("<I", dim)),
        key("llama.feed_forward_length", U32, struct.pack("<I", feed_forward)),
        key("llama.attention.head_count", U32, struct.pack("<I", heads)),
        key("llama.attention.head_count_kv", U32, struct.pack("<I", kv_heads)),
        key("llama.context_length", U32, struct.pack("<I", context)),
        key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        key("tokenizer.ggml.model", STRING, text("gpt2")),
        key("tokenizer.ggml.pre", STRING, text("smollm")),
        key("tokenizer.ggml.tokens", ARRAY, strings(tokens)),
        key("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ", I32, len(tokens)) + b"".join(
            struct.pack("<i", 3 if t in CONTROL else 1) for t in tokens)),
        key("tokenizer.ggml.merges", ARRAY, strings(["h e", "l l", "he ll"])),
        key("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", end)),
        key("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", end + 1)),
        key("tokenizer.chat_template", STRING, text(CHATML)),
    ]

    def norm():
        return b"".join(struct.pack("<f", 0.5 + chance.random()) for _ in range(dim))

    def matrix(rows, columns, scale):
        # Q8_0: a half-float scale and 32 signed bytes.
        return b"".join(struct.pack("<e", scale) + chance.randbytes(32)
                        for _ in range(rows * columns // 32))

    kv = dim // heads * kv_heads
    tensors = [("token_embd", TYPE_Q8_0, (dim, len(tokens)),
                matrix(len(tokens), dim, 0.002)),
               ("output_norm", TYPE_F32, (dim,), norm())]
    for i in range(layers):
        tensors += [(f"blk.{i}.attn_norm", TYPE_F32, (dim,), norm()),
                    (f"blk.{i}.ffn_norm", TYPE_F32, (dim,), norm())]
        for name, rows, columns in (("attn_q", dim, dim), ("attn_k", kv, dim), ("attn_v", kv, dim),
                                    ("attn_output", dim, dim), ("ffn_gate", feed_forward, dim),
                                    ("ffn_up", feed_forward, dim), ("ffn_down", dim, feed_forward)):
            tensors.append((f"blk.{i}.{name}", TYPE_Q8_0, (columns, rows),
                            matrix(rows, columns, 0.003)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, kind, dims, content in tensors:
        head += text(name + ".weight") + struct.pack("<I", len(dims))
        head += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
    return path


if __name__ == "__main__":
    write(sys.argv[1])
