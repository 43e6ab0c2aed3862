# SPDX-License-Identifier: Apache-2.0
"""Writes families-reference.json.gz: logits that Transformers gives in float32 for the small random
models of tests/unit/test_families.c. `make families-reference` writes those models into a folder,
installs what this needs and runs it: make_family_reference.py FOLDER OUT.
"""
import gzip
import json
import os
import sys

import gguf
import torch
import transformers

POSITIONS = [0, 1, 6, 15, 16, 22, 31, 40, 47]
TOKENS = 48
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA_LAYER = LAYER | {"post_attention_norm": "post_attention_layernorm",
                       "ffn_norm": "pre_feedforward_layernorm",
                       "post_ffw_norm": "post_feedforward_layernorm"}
CLASSES = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
           "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
           "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
           "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
           "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM)}


class File:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.architecture = self.reader.fields["general.architecture"].contents()
        self.tensors = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type))
                        for t in self.reader.tensors}

    def key(self, name, otherwise=None):
        field = self.reader.fields.get(f"{self.architecture}.{name}")
        return field.contents() if field else otherwise


def config_of(file, kind, make):
    dim, heads = file.key("embedding_length"), file.key("attention.head_count")
    layers, theta = file.key("block_count"), file.key("rope.freq_base")
    config = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0], "hidden_size": dim,
        "intermediate_size": file.key("feed_forward_length"), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": file.key("attention.head_count_kv"),
        "head_dim": file.key("attention.key_length", dim // heads),
        "max_position_embeddings": file.key("context_length"),
        "rms_norm_eps": file.key("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True, "attn_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": theta or 10000.0},
    }
    if kind == "mistral":
        config["sliding_window"] = file.key("attention.sliding_window")
    if kind == "gemma3":
        period = file.key("attention.sliding_window_pattern", 6)
        whole = {"rope_type": "default", "rope_theta": theta or 1000000.0}
        if file.key("rope.scaling.type") == "linear":
            whole |= {"rope_type": "linear", "factor": file.key("rope.scaling.factor")}
        config |= {
            "sliding_window": file.key("attention.sliding_window"),
            "query_pre_attn_scalar": config["head_dim"],
            "layer_types": ["full_attention" if (i + 1) % period == 0 else "sliding_attention"
                            for i in range(layers)],
            "rope_parameters": {
                "full_attention": whole,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        }
    return make(**config)


def halves(weight, heads):
    """Files of the llama kind have rotary pairs next to each other, Transformers half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def state_of(file, kind):
    names = GEMMA_LAYER if kind == "gemma3" else LAYER
    state = {}
    for name, tensor in file.tensors.items():
        if kind == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor - 1.0  # stored as what it multiplies with
        if kind in ("llama", "mistral") and ("attn_q." in name or "attn_k." in name):
            which = "attention.head_count" + ("_kv" if "attn_k." in name else "")
            tensor = halves(tensor, file.key(which))
        if name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = tensor
        elif name == "output_norm.weight":
            state["model.norm.weight"] = tensor
        else:
            _, layer, part, end = name.split(".")
            state[f"model.layers.{layer}.{names[part]}.{end}"] = tensor
    return state


def main():
    folder, out = sys.argv[1:]
    reference = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    for name in sorted(os.listdir(folder)):
        name = name.removesuffix(".gguf")
        kind = name.split("-")[0]
        make_config, make_model = CLASSES[kind]
        file = File(f"{folder}/{name}.gguf")
        model = make_model(config_of(file, kind, make_config)).float().eval()
        missing, unexpected = model.load_state_dict(state_of(file, kind), strict=False)
        if missing or unexpected:
            sys.exit(f"{name}: missing {missing}, unexpected {unexpected}")
        tokens = [(i * i * 31 + i * 7 + 5) % model.config.vocab_size for i in range(TOKENS)]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0]
        reference[name] = {"tokens": tokens, "positions": POSITIONS,
                           "logits": [[float(f"{x:.8g}") for x in logits[at].tolist()]
                                      for at in POSITIONS]}
    with open(out, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(json.dumps(reference, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
