#!/usr/bin/env python3
"""What llama.cpp's samplers leave of random logits.

    python3 samplers.py

Writes tests/golden/samplers.bin, little-endian:

    "DSG1", u32 n_cases, n_cases x {
        u32 V, f32 logits[V], u32 n_past, i32 past[n_past]
        f32 params[13]: temperature, top_p, min_p, typical_p, top_n_sigma, xtc_threshold (with probability 1),
            mirostat_tau, repeat_penalty, frequency_penalty, presence_penalty, dry_multiplier, dry_base, 0
        u32 ints[4]: top_k, penalty_last_n, dry_allowed_length, dry_last_n;   0 = that stage is not there
        u8 order[16]: stages by the numbers of dend_sample_stage
        u8 kept[V], f32 x[V]: which tokens llama.cpp's chain leaves, and their logits }
    u32 n_breakers, n_breakers x { u32 n_bytes, u8 bytes[n_bytes] }
    u32 n_cases, n_cases x {
        u32 n_past, i32 past[n_past], f32 dry_multiplier, f32 dry_base, u32 dry_allowed_length
        u32 n, n x { i32 token, f32 loss } }

The second part is DRY with breakers, on the vocabulary of vocab_qwen2.gguf. Cases in which a threshold of llama.cpp's
is so near that the order of a sum decides are left out.
"""

import ctypes
import struct

import llama_cpp as L
import numpy as np

import golden_lib as lib

SEED = 20266
BIAS, PENALTIES, DRY, SIGMA, TOP_K, TYPICAL, TOP_P, MIN_P, XTC, MIROSTAT, TEMPERATURE = range(1, 12)
FIELDS = ("temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_threshold", "mirostat_tau",
          "repeat_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base")
INTS = ("top_k", "penalty_last_n", "dry_allowed_length", "dry_last_n")
BREAKERS = [b"\n", b":", b"and", b", the"]


def sampler(stage, p, vocab, n_vocab, breakers=()):
    if stage == PENALTIES:
        return L.llama_sampler_init_penalties(n_vocab, p["penalty_last_n"], p["repeat_penalty"],
                                              p["frequency_penalty"], p["presence_penalty"])
    if stage == DRY:
        strings = (ctypes.c_char_p * max(1, len(breakers)))(*breakers)
        return L.llama_sampler_init_dry(vocab, p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"],
                                        p["dry_last_n"], strings, len(breakers))
    return {
        SIGMA: lambda: L.llama_sampler_init_top_n_sigma(p["top_n_sigma"]),
        TOP_K: lambda: L.llama_sampler_init_top_k(p["top_k"]),
        TYPICAL: lambda: L.llama_sampler_init_typical(p["typical_p"], 1),
        TOP_P: lambda: L.llama_sampler_init_top_p(p["top_p"], 1),
        MIN_P: lambda: L.llama_sampler_init_min_p(p["min_p"], 1),
        XTC: lambda: L.llama_sampler_init_xtc(1.0, p["xtc_threshold"], 1, 1),
        MIROSTAT: lambda: L.llama_sampler_init_mirostat_v2(1, p["mirostat_tau"], 0.1),
        TEMPERATURE: lambda: L.llama_sampler_init_temp(p["temperature"]),
    }[stage]()


def run(order, p, logits, past, vocab, breakers=()):
    """The logits that the chain leaves, NaN where it leaves none. Between stages what has become minus infinity is
    taken out: llama.cpp's typical sampler makes NaN of what its top_n_sigma leaves."""
    left = {i: float(x) for i, x in enumerate(logits)}
    for stage in order:
        data = (L.llama_token_data * len(left))(*[L.llama_token_data(i, x, 0.0) for i, x in left.items()])
        array = L.llama_token_data_array(data, len(left), -1, False)
        smpl = sampler(stage, p, vocab, len(logits), breakers)
        for token in past:
            L.llama_sampler_accept(smpl, int(token))
        L.llama_sampler_apply(smpl, ctypes.byref(array))
        L.llama_sampler_free(smpl)
        kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
        left = dict(sorted((i, x) for i, x in kept if x > -np.inf))
    out = np.full(len(logits), np.nan, np.float32)
    for i, x in left.items():
        out[i] = x
    return out


def random_past(rng, n_vocab, n):
    past = rng.integers(0, min(n_vocab, 12), n)
    for i in range(9, n):
        if rng.random() < 0.8:
            past[i] = past[i - 7]
    return past


def random_params(rng, stages):
    p = dict.fromkeys(FIELDS, 0.0) | dict.fromkeys(INTS, 0)
    p["temperature"] = 1.0
    if PENALTIES in stages:
        p["penalty_last_n"] = int(rng.integers(1, 40))
        p["repeat_penalty"] = float(np.float32(rng.uniform(0.8, 1.6)))
        p["frequency_penalty"] = float(np.float32(rng.uniform(-0.5, 1.0)))
        p["presence_penalty"] = float(np.float32(rng.uniform(-0.5, 1.0)))
    if DRY in stages:
        p["dry_multiplier"] = float(np.float32(rng.uniform(0.1, 2.0)))
        p["dry_base"] = float(np.float32(rng.uniform(1.1, 2.5)))
        p["dry_allowed_length"] = int(rng.integers(1, 5))
        p["dry_last_n"] = int(rng.integers(5, 60))
    for stage, name, low, high in ((SIGMA, "top_n_sigma", 0.3, 2.5), (TYPICAL, "typical_p", 0.2, 0.95),
                                   (TOP_P, "top_p", 0.2, 0.98), (MIN_P, "min_p", 0.01, 0.3),
                                   (XTC, "xtc_threshold", 0.02, 0.3), (MIROSTAT, "mirostat_tau", 0.5, 3.0),
                                   (TEMPERATURE, "temperature", 0.4, 2.0)):
        if stage in stages:
            p[name] = float(np.float32(rng.uniform(low, high)))
    if TOP_K in stages:
        p["top_k"] = int(rng.integers(1, 40))
    return p


def steady(order, p, logits, past, vocab):
    """False when a change of a parameter by a hundred-thousandth changes what is left."""
    kept = [np.isnan(run(order, p, logits, past, vocab))]
    for name in ("top_p", "min_p", "typical_p", "top_n_sigma", "xtc_threshold", "mirostat_tau"):
        for factor in (1 - 1e-5, 1 + 1e-5):
            kept.append(np.isnan(run(order, p | {name: p[name] * factor}, logits, past, vocab)))
    return all((k == kept[0]).all() for k in kept)


def first_part(rng, vocab):
    usual = (PENALTIES, DRY, SIGMA, TOP_K, TYPICAL, TOP_P, MIN_P, XTC)
    orders = [(s,) for s in usual + (MIROSTAT,) for _ in range(6)]
    orders += [usual] * 10 + [tuple(rng.permutation(usual[2:])) for _ in range(10)]
    orders += [(TEMPERATURE,) + tuple(rng.permutation(usual[2:])[:3]) for _ in range(10)]
    orders += [(TEMPERATURE, MIROSTAT)] * 4
    out = []
    for order in orders:
        order = tuple(int(s) for s in order)
        while True:
            logits = (rng.standard_normal(64) * 3).astype(np.float32)
            past = random_past(rng, 64, int(rng.integers(20, 60)))
            p = random_params(rng, order)
            if steady(order, p, logits, past, vocab):
                break
        x = run(order, p, logits, past, vocab)
        stages = order if TEMPERATURE in order else order + (TEMPERATURE,)  # at 1 it changes nothing
        out.append(struct.pack("<I", 64) + logits.tobytes() + struct.pack("<I", len(past))
                   + past.astype(np.int32).tobytes() + struct.pack("<13f", *(p[f] for f in FIELDS), 0.0)
                   + struct.pack("<4I", *(p[i] for i in INTS)) + bytes(stages).ljust(16, b"\0")
                   + (~np.isnan(x)).astype(np.uint8).tobytes() + np.nan_to_num(x).tobytes())
    return struct.pack("<I", len(out)) + b"".join(out)


def second_part(rng, vocab):
    n_vocab = L.llama_vocab_n_tokens(vocab)
    text = b"one and two, the three: four\nfive and six, the seven"
    buffer = (L.llama_token * 64)()
    n = L.llama_tokenize(vocab, text, len(text), buffer, 64, False, False)
    words = [buffer[i] for i in range(n)]
    out = []
    for _ in range(24):
        past = [words[int(rng.integers(0, n))] for _ in range(60)]
        period = int(rng.integers(3, 12))
        for i in range(period, 60):
            if rng.random() < 0.9:
                past[i] = past[i - period]
        p = random_params(rng, (DRY,)) | {"dry_last_n": 60}
        loss = -run((DRY,), p, np.zeros(n_vocab, np.float32), past, vocab, BREAKERS)
        tokens = np.flatnonzero(loss)
        out.append(struct.pack("<I", 60) + np.array(past, np.int32).tobytes()
                   + struct.pack("<ffII", p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"], len(tokens))
                   + b"".join(struct.pack("<if", t, loss[t]) for t in tokens))
    return (struct.pack("<I", len(BREAKERS)) + b"".join(struct.pack("<I", len(b)) + b for b in BREAKERS)
            + struct.pack("<I", len(out)) + b"".join(out))


def main():
    rng = np.random.default_rng(SEED)
    vocab = lib.Llama(lib.GOLDEN / "vocab_qwen2.gguf", vocab_only=True).vocab
    data = b"DSG1" + first_part(rng, vocab) + second_part(rng, vocab)
    (lib.GOLDEN / "samplers.bin").write_bytes(data)
    print(f"samplers.bin: {len(data)} bytes; {lib.versions()}")


main()
