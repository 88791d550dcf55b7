#!/usr/bin/env python3
"""Tiny random models with the logits of a plain float64 forward pass.

    python3 tiny_models.py [--check]       writes tests/golden/tiny_*.gguf and tests/golden/tiny_*.bin

--check also runs llama.cpp on each model and prints how far its logits lie.

Layout of tiny_*.bin, little-endian:
    "DTM1", u32 n_tokens, i32 tokens[n_tokens], u32 V, f32 logits[n_tokens][V]
"""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter, TokenType
from gguf.quants import quantize

import golden_lib as lib

SEED = 20262

#   name            arch     D    d  H  G  F   L  rope base  eps    tied   types by tensor (default first)        pre
MODELS = {
    "llama_f32": ("llama", 32, 8, 4, 2, 56, 2, 10000.0, 1e-5, True, {"": T.F32}, "smollm"),
    "llama_f16": ("llama", 120, 20, 6, 2, 36, 1, 500000.0, 1e-3, True, {"": T.F16}, "llama-bpe"),
    "qwen2_q8_q5": ("qwen2", 64, 16, 4, 2, 96, 2, 1000000.0, 1e-6, False,
                    {"": T.Q5_0, "token_embd": T.Q8_0, "attn_v": T.Q8_0, "ffn_down": T.Q8_0}, "qwen2"),
}

WORDS = ["the cat and the dog and the hen", "in the tent at ten then", "an end, a hand, a sand", "on and on he ran"]


def tiny_vocab(pre):
    v = lib.Vocab(pre)
    for c in lib.BYTE_CHARS:
        v.add(c)
    v.train(WORDS, 24)
    for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        v.add(t, TokenType.CONTROL)
    v.add("<tool_call>", TokenType.USER_DEFINED)
    v.ids = {"bos": "<|im_start|>", "eos": "<|im_end|>"}
    return v


def build(name, rng):
    arch, D, d, H, G, F, L, base, eps, tied, types, pre = MODELS[name]
    vocab = tiny_vocab(pre)
    V = len(vocab.tokens)
    path = lib.GOLDEN / f"tiny_{name}.gguf"
    w = GGUFWriter(path, arch)
    w.add_name(f"tiny {name}")
    w.add_context_length(64)
    w.add_embedding_length(D)
    w.add_feed_forward_length(F)
    w.add_block_count(L)
    w.add_head_count(H)
    w.add_head_count_kv(G)
    w.add_rope_freq_base(base)
    w.add_layer_norm_rms_eps(eps)
    if arch == "llama":
        w.add_vocab_size(V)
        w.add_rope_dimension_count(d)
    vocab.write(w)

    def matrix(tensor, rows, cols, gain):
        kind = next((types[k] for k in types if k and k in tensor), types[""])
        values = (rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)).astype(np.float32)
        if kind == T.F32:
            w.add_tensor(tensor + ".weight", values)
        elif kind == T.F16:
            w.add_tensor(tensor + ".weight", values.astype(np.float16))
        else:
            w.add_tensor(tensor + ".weight", quantize(values, kind), raw_dtype=kind)

    def vector(tensor, n, centre, spread):
        w.add_tensor(tensor, (centre + spread * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd", V, D, 3.0)
    for layer in range(L):
        b = f"blk.{layer}."
        vector(b + "attn_norm.weight", D, 1.0, 0.3)
        for part, rows in (("q", H * d), ("k", G * d), ("v", G * d)):
            matrix(b + "attn_" + part, rows, D, 1.0 if part == "v" else 1.6)
            if arch == "qwen2":
                vector(b + f"attn_{part}.bias", rows, 0.0, 0.7)
        matrix(b + "attn_output", D, H * d, 1.5)
        vector(b + "ffn_norm.weight", D, 1.0, 0.3)
        matrix(b + "ffn_gate", F, D, 1.5)
        matrix(b + "ffn_up", F, D, 1.5)
        matrix(b + "ffn_down", D, F, 1.5)
    vector("output_norm.weight", D, 1.0, 0.3)
    if not tied:
        matrix("output", V, D, 3.0)
    lib.finish(w)
    return path, V


def main():
    check = "--check" in sys.argv[1:]
    for i, name in enumerate(MODELS):
        rng = np.random.Generator(np.random.PCG64(SEED + i))
        path, V = build(name, rng)
        tokens = rng.integers(0, V, 18)
        tokens[5] = tokens[2]  # a token that comes again, so that only its position and past differ
        fwd = lib.Forward(path)
        logits = (fwd.hidden([tokens])[0] @ fwd.head().T).astype("<f4")
        out = path.with_suffix(".bin")
        out.write_bytes(b"DTM1" + struct.pack("<I", len(tokens)) + tokens.astype("<i4").tobytes()
                        + struct.pack("<I", V) + logits.tobytes())
        print(f"{path.name}: {path.stat().st_size} bytes, {out.name}: {out.stat().st_size} bytes, V {V}, "
              f"logits rms {np.sqrt((logits.astype(float) ** 2).mean()):.3f}, greatest {np.abs(logits).max():.3f}")
        if check:
            for kv_f32 in (True, False):
                other = lib.Llama(path, n_ctx=64, kv_f32=kv_f32).decode(tokens)
                print(f"    llama.cpp with {'f32' if kv_f32 else 'f16'} KV: greatest difference "
                      f"{np.abs(other - logits).max():.2e}")
    print(lib.versions())


if __name__ == "__main__":
    main()
