#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_gguf into tests/fuzz/corpus/gguf: small files that open, one for each
value type, tensor type, tokenizer and weight format, so that the fuzzer begins behind the header."""
import os
import struct

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "gguf")
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 30: (1, 2)}


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


def pieces():
    """A SentencePiece vocabulary: letters, pieces, bytes, control tokens; Gemma's template."""
    tokens = [b"<unk>", b"<bos>", b"<start_of_turn>", b"<end_of_turn>", b"\n", b"<0x0A>", b"<0xE2>"]
    types = [2, 3, 3, 3, 4, 6, 6]
    tokens += [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz"] + ["\u2581".encode(), b"he", b"hel"]
    types += [1] * (len(tokens) - len(types))
    scores = [-float(i % 7) for i in range(len(tokens))]
    chat = b"{{ '<start_of_turn>model\n' }}{{ '<end_of_turn>' }}"
    return gguf([
        key(b"tokenizer.ggml.model", STRING, text(b"llama")),
        key(b"tokenizer.ggml.tokens", ARRAY, strings(tokens)),
        key(b"tokenizer.ggml.scores", ARRAY, struct.pack(f"<IQ{len(scores)}f", 6, len(scores), *scores)),
        key(b"tokenizer.ggml.token_type", ARRAY,
            struct.pack(f"<IQ{len(types)}i", 5, len(types), *types)),
        key(b"tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        key(b"tokenizer.ggml.unknown_token_id", U32, struct.pack("<I", 0)),
        key(b"tokenizer.ggml.add_space_prefix", BOOL, b"\1"),
        key(b"tokenizer.chat_template", STRING, text(chat)),
    ])


OWN_KEYS = {
    b"llama": [(b"attention.sliding_window", U32, struct.pack("<I", 3))],
    b"gemma3": [(b"attention.sliding_window", U32, struct.pack("<I", 3)),
                (b"attention.sliding_window_pattern", ARRAY, struct.pack("<IQB", BOOL, 1, 1)),
                (b"rope.freq_base", F32, struct.pack("<f", 1e6)),
                (b"rope.freq_base_swa", F32, struct.pack("<f", 1e4)),
                (b"rope.scaling.type", STRING, text(b"linear")),
                (b"rope.scaling.factor", F32, struct.pack("<f", 8))],
}
OWN_TENSORS = {
    b"qwen2": [b"attn_q.bias", b"attn_k.bias", b"attn_v.bias"],
    b"qwen3": [b"attn_q_norm.weight", b"attn_k_norm.weight"],
    b"gemma3": [b"attn_q_norm.weight", b"attn_k_norm.weight", b"post_attention_norm.weight",
                b"post_ffw_norm.weight"],
}


def model(dim, embedding, matrices, norm, family=b"llama"):
    """A model of one layer whose matrices take the given types in turn; its weights are zeros."""
    sizes = {b"block_count": 1, b"embedding_length": dim, b"feed_forward_length": 32,
             b"attention.head_count": 1, b"attention.head_count_kv": 1, b"attention.key_length": 32,
             b"context_length": 16, b"rope.dimension_count": 32}
    keys = [key(b"general.architecture", STRING, text(family)),
            key(family + b".attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))]
    keys += [key(family + b"." + name, U32, struct.pack("<I", size)) for name, size in sizes.items()]
    if norm == 0:
        keys += [key(family + b"." + name, kind, value)
                 for name, kind, value in OWN_KEYS.get(family, ())]
    shapes = [(b"token_embd.weight", (dim, 3), embedding), (b"output_norm.weight", (dim,), norm),
              (b"blk.0.attn_norm.weight", (dim,), norm), (b"blk.0.ffn_norm.weight", (dim,), norm)]
    shapes += [(b"blk.0." + name, (32,), 0) for name in OWN_TENSORS.get(family, ())]
    shapes += [(b"blk.0." + name, (32, dim), 8) for name in (b"attn_output.weight", b"ffn_down.weight")]
    for i, name in enumerate((b"attn_q", b"attn_k", b"attn_v", b"ffn_gate", b"ffn_up")):
        shapes.append((b"blk.0." + name + b".weight", (dim, 32), matrices[i % len(matrices)]))
    tensors, data = [], b""
    for name, dims, kind in shapes:
        block, size = BLOCKS[kind]
        n = dims[0] // block * (dims[1] if len(dims) > 1 else 1)
        tensors.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                                             kind, len(data)))
        data += bytes(n * size) + bytes(-n * size % 32)
    return gguf(keys, tensors, data)


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
    write("tokenizer-pieces", pieces())
    for family in (b"qwen2", b"qwen3", b"gemma3"):
        write("model-" + family.decode(), model(32, 8, [2, 8], 0, family))
    write("model-4-8", model(32, 8, [2, 3, 8, 20], 0))
    write("model-5", model(32, 6, [6, 7], 1))
    write("model-floats", model(32, 0, [0, 1, 30], 30))
    write("model-k", model(256, 14, [12, 13, 14], 0))


if __name__ == "__main__":
    main()
