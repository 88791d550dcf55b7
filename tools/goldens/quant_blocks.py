#!/usr/bin/env python3
"""Random blocks of every weight type with the values that gguf.quants.dequantize gives for them.

    python3 quant_blocks.py [OUT]          default OUT: tests/golden/quant_blocks.bin

Layout, little-endian:
    "DQG1", u32 n_types
    n_types x { u32 ggml_type, u32 n_blocks, u32 block_bytes, u32 block_elems,
                u8 raw[n_blocks * block_bytes], f32 values[n_blocks * block_elems] }

The values are those of numpy's f32 arithmetic. All its products are exact in single precision (a scale has 11
significant bits, sub-scale and code at most 12 together), so each value is rounded once, whether or not a compiler
contracts a*b-c into one fused operation.
"""

import platform
import struct
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

SEED = 20261

# Where a block keeps its f16 scales (byte offsets).
F16_FIELDS = {
    T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2), T.Q8_0: (0,),
    T.Q2_K: (80, 82), T.Q3_K: (108,), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,),
    T.IQ4_NL: (0,), T.IQ4_XS: (0,),
}
TYPES = [T.F16, T.BF16, *F16_FIELDS]

# Every block array starts with these scales: +0, -0, the least and the largest subnormal of both signs, the least
# normal, one, the largest finite value of both signs.
EDGE_SCALES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF]


def random_f16_bits(rng, n):
    """Finite f16 bit patterns: a third any, a third the magnitudes of real models, a sixth subnormal, the rest small."""
    kind = rng.integers(0, 6, n)
    sign = rng.integers(0, 2, n) << 15
    mantissa = rng.integers(0, 1024, n)
    exponent = np.select([kind < 2, kind < 4, kind == 4], [rng.integers(0, 31, n), rng.integers(5, 13, n), 0],
                         rng.integers(1, 4, n))
    return (sign | exponent << 10 | mantissa).astype(np.uint16)


def scale_field(rng, n_blocks, shift):
    bits = random_f16_bits(rng, n_blocks)
    edge = np.roll(np.array(EDGE_SCALES, np.uint16), shift)
    bits[:len(edge)] = edge
    return bits


def make_blocks(rng, qtype):
    if qtype == T.F16:  # one value a block: every edge, then any finite pattern
        bits = rng.integers(0, 1 << 16, 512).astype(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0xBFFF
        bits[:len(EDGE_SCALES)] = EDGE_SCALES
        return bits.view(np.uint8).reshape(-1, 2)
    if qtype == T.BF16:
        bits = rng.integers(0, 1 << 16, 512).astype(np.uint16)
        bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF
        bits[:8] = [0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x3F80, 0x7F7F, 0xFF7F]
        return bits.view(np.uint8).reshape(-1, 2)
    elems, nbytes = GGML_QUANT_SIZES[qtype]
    n_blocks = 64 if elems == 32 else 16
    blocks = rng.integers(0, 256, (n_blocks, nbytes)).astype(np.uint8)
    blocks[-1, :] = 0xFF  # all codes at their ends
    blocks[-2, :] = 0x00
    for i, off in enumerate(F16_FIELDS[qtype]):
        blocks[:, off:off + 2] = scale_field(rng, n_blocks, 3 * i).view(np.uint8).reshape(-1, 2)
    return blocks


def main():
    root = Path(__file__).resolve().parents[2]
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/golden/quant_blocks.bin"
    rng = np.random.Generator(np.random.PCG64(SEED))
    data = [b"DQG1", struct.pack("<I", len(TYPES))]
    for qtype in TYPES:
        elems, nbytes = GGML_QUANT_SIZES[qtype]
        blocks = make_blocks(rng, qtype)
        values = dequantize(blocks, qtype).astype("<f4").reshape(len(blocks), elems)
        assert np.isfinite(values).all(), qtype
        data += [struct.pack("<4I", int(qtype), len(blocks), nbytes, elems), blocks.tobytes(), values.tobytes()]
        print(f"{qtype.name:7} id {int(qtype):2}  {len(blocks):4} blocks of {nbytes:3} bytes, {elems:3} values")
    out.write_bytes(b"".join(data))
    print(f"{out.name}: {out.stat().st_size} bytes; gguf {version('gguf')}, numpy {np.__version__}, "
          f"Python {platform.python_version()}")


if __name__ == "__main__":
    main()
