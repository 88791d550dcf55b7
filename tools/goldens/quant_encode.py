#!/usr/bin/env python3
"""Blocks of floats and what the package gguf makes of them.

    python3 quant_encode.py       writes tests/golden/quant_encode.bin

Layout, little-endian: "DQE1", u32 n_blocks, f32 values[n_blocks][32], Q8_0 blocks of 34 bytes, Q4_0 blocks of 18.
"""

import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize

import golden_lib as lib


def blocks():
    rng = np.random.Generator(np.random.PCG64(20267))
    out = [rng.standard_normal(32) * 10.0 ** rng.uniform(-6, 3) for _ in range(80)]
    out += [np.zeros(32), -np.zeros(32), np.full(32, 0.1), np.full(32, -0.1)]
    out += [np.where(np.arange(32) == 7, v, 0.0) for v in (1.0, -1.0, 3e-5, 65504.0 * 7, -65504.0 * 7)]
    out += [np.arange(32) - 16.0, 15.0 - np.arange(32), (np.arange(32) - 16) * 0.5]
    for top in (127.0, -127.0, 8.0, -8.0):  # quotients that lie halfway between two integers, or beside that
        halves = rng.integers(-8, 8, 32) + 0.5
        halves[0] = top
        out += [halves, np.nextafter(halves.astype(np.float32), np.float32(0)),
                np.nextafter(halves.astype(np.float32), np.float32(1e9))]
    twice = rng.standard_normal(32)  # the greatest magnitude twice, with both signs: the first counts
    twice[5], twice[20] = 4.0, -4.0
    out += [twice, -twice, rng.standard_normal(32) * 1e-7, rng.standard_normal(32) * 1e-5]
    return np.array(out, np.float32)


def main():
    values = blocks()
    path = lib.GOLDEN / "quant_encode.bin"
    path.write_bytes(b"DQE1" + struct.pack("<I", len(values)) + values.astype("<f4").tobytes()
                     + quantize(values, T.Q8_0).tobytes() + quantize(values, T.Q4_0).tobytes())
    print(f"{path.name}: {path.stat().st_size} bytes, {len(values)} blocks")
    print(lib.versions())


if __name__ == "__main__":
    main()
