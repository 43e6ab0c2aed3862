# SPDX-License-Identifier: Apache-2.0
"""Writes gemma3-270m-q4_k_m-reference.json.gz: make_gemma_reference.py GGUF OUT (make gemma-reference).

"texts" are token ids by the sentencepiece library from the vocabulary in the file; "prompts" the best
logits by Transformers in float32 on its dequantised weights, for prompts and greedy continuations.
"""
import gzip
import json
import sys

import sentencepiece
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2

from make_family_reference import File, config_of, state_of

BEST, STEPS = 32, 24
TEXTS = [
    "", " ", "a", " a", "  a", "Hello world", "The capital of France is", "hello  world   again\n\n\tend",
    "def f(x):\n    if x > 1:\n        return x * 2\n    return None\n", "3.14159 and 1,000,000 or 0x7fff",
    "caf\u00e9 na\u00efve \u2014 \u4f60\u597d\uff0c\u4e16\u754c! \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4",
    "\U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467 \U000e0041 \u0378", "<bos>not a token<eos>",
    "\u2581already\u2581escaped", "\n" * 40 + " " * 45 + "x", "<h1>Title</h1><p>text</p>",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "l" * 200, "\r\n\x00\x7f\u00a0\u3000",
    "It's the dog's; they'll say \u201cwe're fine\u201d\u2026",
]
PROMPTS = ["The capital of France is", "Once upon a time, in a village by the sea,",
           "def fibonacci(n):\n    \"\"\"Return the n-th number.\"\"\"\n",
           "Water boils at 100 degrees. " * 60 + "It freezes at"]  # beyond the window


def vocabulary(reader):
    """The file's pieces as a model of the sentencepiece library."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    scores = reader.fields["tokenizer.ggml.scores"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    model = sentencepiece_model_pb2.ModelProto()
    unknown = reader.fields["tokenizer.ggml.unknown_token_id"].contents()
    for i, (token, score, kind) in enumerate(zip(tokens, scores, types)):
        model.pieces.add(piece=token.replace(" ", "\u2581"), score=score, type=2 if i == unknown else kind)
    spec = model.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = 2, True, len(tokens)
    spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = unknown, 2, 1, 0
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def score(model, tokens):
    """A prompt, its greedy continuation, and the best logits from its last 24 tokens on."""
    with torch.no_grad():
        ids = model.generate(torch.tensor([tokens]), max_new_tokens=STEPS, do_sample=False,
                             eos_token_id=None, pad_token_id=0)[0].tolist()
        logits = model(torch.tensor([ids[:-1]])).logits[0]
    first = max(0, len(tokens) - 24)
    positions = []
    for row in logits[first:]:
        best = torch.topk(row, BEST)
        positions.append({"ids": best.indices.tolist(),
                          "logits": [float(f"{x:.7g}") for x in best.values.tolist()],
                          "logsumexp": float(torch.logsumexp(row.double(), 0))})
    return {"prompt_tokens": tokens, "greedy": ids[len(tokens):], "first_position": first,
            "positions": positions}


def main():
    path, out = sys.argv[1:]
    file = File(path)
    pieces = vocabulary(file.reader)
    model = transformers.Gemma3ForCausalLM(config_of(file, "gemma3", transformers.Gemma3TextConfig))
    model = model.float().eval()
    missing, unexpected = model.load_state_dict(state_of(file, "gemma3"), strict=False)
    if missing or unexpected:
        sys.exit(f"missing {missing}, unexpected {unexpected}")
    reference = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, "
                     f"sentencepiece {sentencepiece.__version__}",
        "texts": [{"text": text, "ids": pieces.encode(text)} for text in TEXTS],
        "prompts": [score(model, [2, *pieces.encode(prompt)]) for prompt in PROMPTS]}
    with open(out, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(json.dumps(reference, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
