#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""The package tokenizers on the text of bench_tokenize, in one thread, with the vocabulary of a GGUF file (byte-level BPE).

    build/bench_tokenize -o build/bench_text.txt
    python3 bench/tokenize_peer.py build/bench_text.txt MODEL.gguf ...     (packages gguf and tokenizers)

The text is given whole, and line by line, which lets the package's cache of words work. Prints the best of five each.
"""

import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from gguf import GGUFReader  # noqa: E402
from tokenizers import Regex, Tokenizer, models, pre_tokenizers as P  # noqa: E402

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def load(path):
    fields = GGUFReader(path).fields
    pre = fields["tokenizer.ggml.pre"].contents()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges))
    steps = {"smollm": [P.Digits(individual_digits=True), P.Split(Regex(GPT2), "isolated")],
             "qwen2": [P.Split(Regex(QWEN2), "isolated")]}[pre]
    t.pre_tokenizer = P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def main():
    text = open(sys.argv[1], encoding="utf-8", newline="").read()
    n = len(text.encode())
    lines = text.splitlines(keepends=True)
    for path in sys.argv[2:]:
        t = load(path)
        best = [1e9, 1e9]
        for _ in range(5):
            start = time.process_time()
            count = len(t.encode(text).ids)
            middle = time.process_time()
            for line in lines:
                t.encode(line)
            best = [min(best[0], middle - start), min(best[1], time.process_time() - middle)]
        print(f"{path}: {count} tokens, whole {n / best[0] / 1e6:.2f} MB/s, line by line {n / best[1] / 1e6:.2f} MB/s")


if __name__ == "__main__":
    main()
