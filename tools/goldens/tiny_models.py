#!/usr/bin/env python3
"""Tiny random models with the logits of a plain float64 forward pass.

    python3 tiny_models.py [--check] [NAME...]     writes tests/golden/tiny_*.gguf and tests/golden/tiny_*.bin

--check also runs llama.cpp on each model that it computes alike, and prints how far its logits lie;
check_families.py does the same with the package transformers.

Layout of tiny_*.bin, little-endian:
    "DTM1", u32 n_tokens, i32 tokens[n_tokens], u32 V, f32 logits[n_tokens][V]
"""

import ctypes
import sys
import struct
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter, TokenType
from gguf.quants import quantize

import golden_lib as lib

SEED = 20262


def spec(arch, D, d, H, G, F, L, base, eps, tied, types, **more):
    """types: by parts of the tensor's name, the default under "". more: pre (a tokenizer; else there is none, and V
    tokens), n_tokens, keys (behind "<arch>."), biases (of which matrices), qk_norms, post_norms, rope_freqs; check
    (False where llama.cpp computes something else)."""
    m = dict(arch=arch, D=D, d=d, H=H, G=G, F=F, L=L, base=base, eps=eps, tied=tied, types=types, pre=None, V=64,
             n_tokens=18, keys={}, biases=(), qk_norms=False, post_norms=False, rope_freqs=False, check=True)
    assert set(more) <= set(m)
    m.update(more)
    return m


OWN_WIDTH = lambda d: {"attention.key_length": d, "attention.value_length": d}
ALL_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

MODELS = {
    #                 arch     D   d   H  G  F   L  rope base  eps  tied  types by tensor
    "llama_f32": spec("llama", 32, 8, 4, 2, 56, 2, 10000.0, 1e-5, True, {"": T.F32}, pre="smollm"),
    "llama_f16": spec("llama", 120, 20, 6, 2, 36, 1, 500000.0, 1e-3, True, {"": T.F16}, pre="llama-bpe"),
    "qwen2_q8_q5": spec("qwen2", 64, 16, 4, 2, 96, 2, 1000000.0, 1e-6, False,
                        {"": T.Q5_0, "token_embd": T.Q8_0, "attn_v": T.Q8_0, "ffn_down": T.Q8_0}, pre="qwen2",
                        biases=("attn_q", "attn_k", "attn_v")),
    # Llama 3's divisors of frequencies, and every bias that a llama may have
    "llama_biases": spec("llama", 60, 20, 3, 1, 44, 2, 500000.0, 1e-5, False, {"": T.F16, "ffn": T.BF16}, n_tokens=40,
                         biases=ALL_BIASES, rope_freqs=True),
    "llama_linear": spec("llama", 40, 10, 4, 2, 48, 1, 10000.0, 1e-5, True, {"": T.F32}, n_tokens=40,
                         keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama_yarn": spec("llama", 40, 40, 3, 1, 36, 1, 10000.0, 1e-5, True, {"": T.F32}, n_tokens=40,
                       keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, **OWN_WIDTH(40),
                             "rope.scaling.original_context_length": 16}),
    # the pairs between which YaRN mixes moved, and its attention factor stated: llama.cpp reads neither for qwen2
    "qwen2_yarn": spec("qwen2", 36, 12, 3, 3, 40, 1, 1000000.0, 1e-6, False, {"": T.F32}, n_tokens=40, check=False,
                       biases=("attn_q", "attn_k", "attn_v"),
                       keys={"rope.scaling.type": "yarn", "rope.scaling.factor": 2.5,
                             "rope.scaling.original_context_length": 24, "rope.scaling.yarn_beta_fast": 8.0,
                             "rope.scaling.yarn_beta_slow": 0.5, "rope.scaling.yarn_attn_factor": 1.25}),
    # a window in every layer, which llama.cpp does not look for under this name
    "mistral": spec("llama", 64, 72, 4, 2, 96, 1, 10000.0, 1e-5, False,
                    {"": T.F16, "attn_q": T.Q4_0, "attn_k": T.Q4_1, "attn_v": T.Q5_1, "ffn": T.IQ4_NL}, n_tokens=40,
                    pre="smollm", check=False, keys={"attention.sliding_window": 20, **OWN_WIDTH(72)}),
    "mistral_f32": spec("mistral", 36, 12, 3, 1, 40, 2, 10000.0, 1e-5, False, {"": T.F32}, n_tokens=56, check=False,
                        keys={"attention.sliding_window": 11}),
    "qwen3": spec("qwen3", 32, 48, 2, 1, 256, 6, 1000000.0, 1e-6, True,
                  {"": T.Q8_0, "blk.0.ffn_down": T.Q2_K, "blk.1.ffn_down": T.Q3_K, "blk.2.ffn_down": T.Q4_K,
                   "blk.3.ffn_down": T.Q5_K, "blk.4.ffn_down": T.Q6_K, "blk.5.ffn_down": T.IQ4_XS},
                  n_tokens=30, qk_norms=True, keys=OWN_WIDTH(48)),
    "qwen3_f32": spec("qwen3", 24, 20, 3, 1, 36, 2, 1000000.0, 1e-6, False, {"": T.F32}, n_tokens=30, qk_norms=True,
                      keys=OWN_WIDTH(20)),
    # sliding, sliding, global, sliding; positions scaled in the global layer alone
    "gemma3_f32": spec("gemma3", 36, 20, 3, 1, 40, 4, 1000000.0, 1e-6, True, {"": T.F32}, n_tokens=56, qk_norms=True,
                       post_norms=True,
                       keys={"attention.sliding_window": 9, "attention.sliding_window_pattern": 3, **OWN_WIDTH(20),
                             "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    # the pattern of the family, in which the sixth of seven layers sees everything
    "gemma3": spec("gemma3", 32, 96, 2, 1, 64, 7, 1000000.0, 1e-6, True, {"": T.Q8_0, "ffn": T.Q4_0}, n_tokens=40,
                   pre="smollm", qk_norms=True, post_norms=True, keys={"attention.sliding_window": 16, **OWN_WIDTH(96)}),
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


def k_quantize(values, kind):
    """The types that the package gguf only reads, packed by ggml itself."""
    import llama_cpp
    ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib/libggml-base.so"))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    rows, cols = values.shape
    out = np.zeros(values.nbytes, np.uint8)
    weight = np.ones(cols, np.float32)
    n = ggml.ggml_quantize_chunk(int(kind), values.ctypes.data, out.ctypes.data, 0, rows, cols, weight.ctypes.data)
    return out[:n].reshape(rows, -1)


def build(name, rng, path, more_keys=()):
    m = MODELS[name]
    arch, D, d, H, G, F, types = (m[k] for k in ("arch", "D", "d", "H", "G", "F", "types"))
    vocab = tiny_vocab(m["pre"]) if m["pre"] else None
    V = len(vocab.tokens) if vocab else m["V"]
    w = GGUFWriter(path, arch)
    w.add_name(f"tiny {name}")
    w.add_context_length(64)
    w.add_embedding_length(D)
    w.add_feed_forward_length(F)
    w.add_block_count(m["L"])
    w.add_head_count(H)
    w.add_head_count_kv(G)
    w.add_rope_freq_base(m["base"])
    w.add_layer_norm_rms_eps(m["eps"])
    if arch == "llama":
        w.add_vocab_size(V)
        w.add_rope_dimension_count(d)
    for key, value in m["keys"].items():
        add = {int: w.add_uint32, float: w.add_float32, str: w.add_string}[type(value)]
        add(f"{arch}.{key}", value)
    if vocab:
        vocab.write(w)
    for key, value in more_keys:
        (w.add_string if isinstance(value, str) else w.add_uint32)(key.replace("*", arch), value)

    def matrix(tensor, rows, cols, gain):
        kind = next((types[k] for k in types if k and k in tensor), types[""])
        values = (rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)).astype(np.float32)
        if kind == T.F32:
            w.add_tensor(tensor + ".weight", values)
        elif kind == T.F16:
            w.add_tensor(tensor + ".weight", values.astype(np.float16))
        elif kind in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS):
            w.add_tensor(tensor + ".weight", k_quantize(values, kind), raw_dtype=kind)
        else:
            w.add_tensor(tensor + ".weight", quantize(values, kind), raw_dtype=kind)
        if tensor.split(".")[-1] in m["biases"]:
            vector(tensor + ".bias", rows, 0.0, 0.7)

    def vector(tensor, n, centre, spread):
        w.add_tensor(tensor, (centre + spread * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd", V, D, 3.0)
    if m["rope_freqs"]:
        w.add_tensor("rope_freqs.weight", np.geomspace(1.0, 8.0, d // 2).astype(np.float32))
    for layer in range(m["L"]):
        b = f"blk.{layer}."
        vector(b + "attn_norm.weight", D, 1.0, 0.3)
        for part, rows in (("q", H * d), ("k", G * d), ("v", G * d)):
            matrix(b + "attn_" + part, rows, D, 1.0 if part == "v" else 1.6)
        if m["qk_norms"]:
            vector(b + "attn_q_norm.weight", d, 1.3, 0.4)
            vector(b + "attn_k_norm.weight", d, 1.3, 0.4)
        matrix(b + "attn_output", D, H * d, 1.5)
        if m["post_norms"]:
            vector(b + "post_attention_norm.weight", D, 1.0, 0.3)
        vector(b + "ffn_norm.weight", D, 1.0, 0.3)
        matrix(b + "ffn_gate", F, D, 1.5)
        matrix(b + "ffn_up", F, D, 1.5)
        matrix(b + "ffn_down", D, F, 1.5)
        if m["post_norms"]:
            vector(b + "post_ffw_norm.weight", D, 1.0, 0.3)
    vector("output_norm.weight", D, 1.0, 0.3)
    if not m["tied"]:
        matrix("output", V, D, 3.0)
    lib.finish(w)
    return V


def rng_of(name):
    return np.random.Generator(np.random.PCG64(SEED + list(MODELS).index(name)))


def check(name, path, tokens, logits):
    """How far llama.cpp lies. A model without a tokenizer is written again with a note that it has none."""
    with tempfile.TemporaryDirectory() as folder:
        if not MODELS[name]["pre"]:
            path = Path(folder) / "model.gguf"
            keys = [("tokenizer.ggml.model", "no_vocab")]
            keys += [("*.vocab_size", MODELS[name]["V"])] if MODELS[name]["arch"] != "llama" else []
            build(name, rng_of(name), path, keys)
        for kv_f32 in (True, False):
            other = lib.Llama(path, n_ctx=64, kv_f32=kv_f32).decode(tokens)
            print(f"    llama.cpp with {'f32' if kv_f32 else 'f16'} KV: greatest difference "
                  f"{np.abs(other - logits).max():.2e}")


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    for name, m in MODELS.items():
        if names and name not in names:
            continue
        rng = rng_of(name)
        path = lib.GOLDEN / f"tiny_{name}.gguf"
        V = build(name, rng, path)
        tokens = rng.integers(0, V, m["n_tokens"])
        tokens[5] = tokens[2]  # a token that comes again, so that only its position and past differ
        fwd = lib.Forward(path)
        logits = (fwd.hidden([tokens])[0] @ fwd.head().T).astype("<f4")
        out = path.with_suffix(".bin")
        out.write_bytes(b"DTM1" + struct.pack("<I", len(tokens)) + tokens.astype("<i4").tobytes()
                        + struct.pack("<I", V) + logits.tobytes())
        print(f"{path.name}: {path.stat().st_size} bytes, {out.name}: {out.stat().st_size} bytes, V {V}, "
              f"logits rms {np.sqrt((logits.astype(float) ** 2).mean()):.3f}, greatest {np.abs(logits).max():.3f}")
        if "--check" in sys.argv[1:] and m["check"]:
            check(name, path, tokens, logits)
    print(lib.versions())


if __name__ == "__main__":
    main()
