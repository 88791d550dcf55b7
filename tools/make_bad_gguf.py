#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Write zoos of small GGUF files, nearly all of them broken, and the seeds of the GGUF fuzz target.

    python3 tools/make_bad_gguf.py           write tests/golden/bad_gguf/, tests/golden/bad_model/ and fuzz/corpus/gguf/
    python3 tools/make_bad_gguf.py --check   compare with what is there, write nothing

Standard library only; the same bytes every time. Each broken file has one fault. The manifest has a line a file:

    FILE STATUS OFFSET REASON

STATUS is the dend_status that opening must give and OFFSET is where the error must point: the first byte of the
field at fault, whose place is known here from building the file, not from reading it. Files named good_* must open.
The corpus holds the same files and two tiny whole models, so that fuzzing starts behind the checks of the container.

tests/golden/bad_model/ holds whole tiny models, each of which contradicts itself in one thing: hyper-parameters,
tensors, tokens, merges. Its manifest.txt ends each line with a part of the message that loading must give.
"""

import os
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZOO = os.path.join(ROOT, "tests", "golden", "bad_gguf")
MODELS = os.path.join(ROOT, "tests", "golden", "bad_model")
CORPUS = os.path.join(ROOT, "fuzz", "corpus", "gguf")

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
          U64: "<Q", I64: "<q", F64: "<d"}

# Tensor types: id, values of a block, bytes of a block.
T_F32, T_F16, T_Q8_0, T_Q4_K = (0, 1, 4), (1, 1, 2), (8, 32, 34), (12, 256, 144)

FORMAT, UNSUPPORTED, OK = "DEND_ERR_FORMAT", "DEND_ERR_UNSUPPORTED", "DEND_OK"


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode("ascii")
    return u64(len(raw)) + raw


def value(kind, v):
    """The bytes of a value; v of an array is (element type, list)."""
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        elem, items = v
        return u32(elem) + u64(len(items)) + b"".join(value(elem, i) for i in items)
    return struct.pack(SCALAR[kind], v)


class Gguf:
    """A file under construction, which remembers where its fields are.

    at["key NAME"], at["kvtype NAME"], at["value NAME"]; at["name T"], at["ndims T"], at["dim0 T"], ...,
    at["type T"], at["offset T"]; at["end"] is the end of the records and at["data"] the start of the data.
    """

    def __init__(self, kvs=(), tensors=(), version=3, align=32, order=None, gap=0, n_tensors=None, n_kvs=None):
        self.at = {}
        self.b = bytearray(b"GGUF" + u32(version) + u64(len(tensors) if n_tensors is None else n_tensors)
                           + u64(len(kvs) if n_kvs is None else n_kvs))
        for key, kind, v in kvs:
            self.field("key " + key, text(key))
            self.field("kvtype " + key, u32(kind))
            self.field("value " + key, value(kind, v))
        places, data = self.place(tensors, align, order, gap)
        for name, (tid, _, _), dims in tensors:
            self.field("name " + name, text(name))
            self.field("ndims " + name, u32(len(dims)))
            for i, d in enumerate(dims):
                self.field(f"dim{i} {name}", u64(d))
            self.field("type " + name, u32(tid))
            self.field("offset " + name, u64(places[name]))
        self.at["end"] = len(self.b)
        if data:
            self.b += bytes(-len(self.b) % align)
            self.at["data"] = len(self.b)
            self.b += data

    @staticmethod
    def place(tensors, align, order, gap):
        """Offsets of the tensors, one behind the other in the given order of names, and the data, a pattern."""
        places, end = {}, 0
        sizes = {name: _size(kind, dims) for name, kind, dims in tensors}
        for name in order or [t[0] for t in tensors]:
            start = -(-end // align) * align + (gap if end else 0)
            places[name], end = start, start + sizes[name]
        return places, bytes((7 * i + 1) & 0x3F for i in range(end))

    def field(self, name, raw):
        self.at.setdefault(name, len(self.b))
        self.b += raw

    def put(self, where, raw):
        """Overwrite; `where` is a field's name or an offset."""
        at = self.at[where] if isinstance(where, str) else where
        self.b[at:at + len(raw)] = raw
        return self

    def cut(self, where, plus=0):
        at = self.at[where] if isinstance(where, str) else where
        del self.b[at + plus:]
        return self


def _size(kind, dims):
    n = 1
    for d in dims:
        n *= d
    return n // kind[1] * kind[2]


# ---- the files ------------------------------------------------------------------------------------

KVS = [("general.architecture", STRING, "test"),
       ("a.number", U32, 7),
       ("a.flag", BOOL, 1),
       ("a.wide", F64, 0.5),
       ("a.words", ARRAY, (STRING, ["ab", "", "cde"])),
       ("a.flags", ARRAY, (BOOL, [1, 0, 1])),
       ("a.longs", ARRAY, (U64, [1, 2]))]
TENSORS = [("x", T_F32, [8, 2]), ("y", T_Q8_0, [32, 3]), ("z", T_F16, [4])]

# Every type with its extremes; a string with a zero byte inside; arrays of several kinds, also empty ones.
GOOD_KVS = [("general.architecture", STRING, "test"),
            ("t.u8", U8, 255), ("t.i8", I8, -128), ("t.u16", U16, 65535), ("t.i16", I16, -32768),
            ("t.u32", U32, 4294967295), ("t.i32", I32, -2147483648), ("t.f32", F32, -1.5), ("t.true", BOOL, 1),
            ("t.false", BOOL, 0), ("t.u64", U64, 18446744073709551615), ("t.i64", I64, -9223372036854775808),
            ("t.f64", F64, 0.1), ("t.small", I64, 41), ("t.empty", STRING, ""), ("t.nul", STRING, b"a\0b"),
            ("a.u8", ARRAY, (U8, [1, 2, 3])), ("a.i16", ARRAY, (I16, [-1, 300])), ("a.f32", ARRAY, (F32, [0.25])),
            ("a.bool", ARRAY, (BOOL, [1, 0])), ("a.none", ARRAY, (I32, [])),
            ("a.str", ARRAY, (STRING, ["one", "", b"\xc3\xa9\0"])), ("a.nostr", ARRAY, (STRING, []))]


def base(**more):
    return Gguf(KVS, TENSORS, **more)


def last(kind, v):
    """One value at the end of a file: cut there, the counts at the head stay plausible."""
    return Gguf([("some.key.x", kind, v)])


def with_kv(key, kind, v, **more):
    return Gguf(KVS + [(key, kind, v)], TENSORS, **more)


def animals():
    """Yields name, file, status, offset (a number or a field's name), reason."""
    def bad(name, gguf, where, reason, status=FORMAT, plus=0):
        return name, gguf, status, (gguf.at[where] if isinstance(where, str) else where) + plus, reason

    def patched(name, where, raw, reason, at=None, status=FORMAT, plus=0, at_plus=0):
        g = base()
        g.put(g.at[where] + plus if isinstance(where, str) else where + plus, raw)
        return bad(name, g, where if at is None else at, reason, status, at_plus)

    def good(name, gguf):
        return name, gguf, OK, 0, "good"

    yield good("good_all_types", Gguf(GOOD_KVS, TENSORS))
    yield good("good_base", base())
    yield good("good_version_2", base(version=2))
    yield good("good_nothing", Gguf())
    yield good("good_no_tensors", Gguf(KVS))
    yield good("good_align_8", with_kv("general.alignment", U32, 8, align=8))
    yield good("good_align_64", with_kv("general.alignment", U32, 64, align=64))
    yield good("good_align_65536", Gguf(KVS + [("general.alignment", U32, 65536)]))
    yield good("good_gap", base(gap=32))
    yield good("good_data_backwards", base(order=["z", "y", "x"]))
    yield good("good_four_dims", Gguf(KVS, [("x", T_F32, [2, 3, 2, 2])]))
    yield good("good_name_64", Gguf(KVS, [("n" * 64, T_F32, [2])]))
    yield good("good_string_ends_file", last(STRING, "tail"))
    yield good("good_strings_end_file", last(ARRAY, (STRING, ["ab", "tail"])))
    yield good("good_super_block", Gguf([], [("k", T_Q4_K, [512])]))

    # the head
    yield bad("empty", base().cut(0), 0, "empty")
    yield bad("magic_cut", base().cut(3), 0, "cut")
    yield bad("magic_wrong", base().put(0, b"GGML"), 0, "magic")
    yield bad("magic_reversed", base().put(0, b"FUGG"), 0, "magic")
    yield bad("version_cut", base().cut(7), 4, "cut")
    yield bad("version_0", base().put(4, u32(0)), 4, "version")
    yield bad("version_1", base().put(4, u32(1)), 4, "version", UNSUPPORTED)
    yield bad("version_4", base().put(4, u32(4)), 4, "version", UNSUPPORTED)
    yield bad("version_max", base().put(4, u32(0xFFFFFFFF)), 4, "version", UNSUPPORTED)
    yield bad("version_big_endian", base().put(4, b"\0\0\0\3"), 4, "endian", UNSUPPORTED)
    yield bad("counts_absent", base().cut(8), 8, "cut")
    yield bad("tensor_count_cut", base().cut(15), 8, "cut")
    yield bad("kv_count_cut", base().cut(23), 16, "cut")
    yield bad("tensor_count_max", base().put(8, u64(2**64 - 1)), 8, "count")
    yield bad("tensor_count_2_63", base().put(8, u64(2**63)), 8, "count")
    g = base()
    yield bad("tensor_count_no_room", g.put(8, u64((len(g.b) - 24) // 33 + 1)), 8, "count")
    yield bad("kv_count_max", base().put(16, u64(2**64 - 1)), 16, "count")
    g = base()
    yield bad("kv_count_no_room", g.put(16, u64((len(g.b) - 24 - 3 * 33) // 14 + 1)), 16, "count")
    yield bad("tensor_count_one_more", base(n_tensors=4), "end", "empty")
    g = Gguf(KVS, n_kvs=len(KVS) + 1)
    g.b += bytes(32)
    yield bad("kv_count_one_more", g, "end", "empty")

    # keys
    yield patched("key_empty", "key a.number", u64(0), "empty")
    yield patched("key_longer_than_file", "key a.number", u64(4096), "length")
    yield patched("key_length_max", "key a.number", u64(2**64 - 1), "length")
    g = Gguf(KVS[:2])
    yield bad("key_length_cut", g.cut("key a.number", 7), "key a.number", "cut")
    yield bad("key_cut", Gguf(KVS[:2]).cut("key a.number", 10), "key a.number", "length")
    yield patched("key_zero_byte", "key a.number", b"\0", "zero", plus=10)
    yield bad("key_zero_at_end", with_kv("k\0", U8, 1), "key k\0", "zero")
    g = Gguf(KVS + [("a.numbes", U32, 8)], TENSORS)
    yield bad("key_duplicate", g.put(g.at["key a.numbes"] + 15, b"r"), "key a.numbes", "duplicate")
    g = Gguf([("p", U8, 1), ("q", U8, 1), ("r", U8, 1)], TENSORS)
    yield bad("key_duplicate_far", g.put(g.at["key r"] + 8, b"p"), "key r", "duplicate")

    # scalars
    yield patched("value_type_13", "kvtype a.number", u32(13), "type")
    yield patched("value_type_max", "kvtype a.number", u32(0xFFFFFFFF), "type")
    yield patched("value_type_high_byte", "kvtype a.number", b"\4\0\0\1", "type")
    yield bad("value_type_cut", last(U8, 1).cut("kvtype some.key.x", 3), "kvtype some.key.x", "cut")
    for kind, word in ((U8, "u8"), (I8, "i8"), (U16, "u16"), (I16, "i16"), (U32, "u32"), (I32, "i32"), (F32, "f32"),
                       (BOOL, "bool"), (U64, "u64"), (I64, "i64"), (F64, "f64")):
        n = struct.calcsize(SCALAR[kind])
        yield bad(f"value_{word}_cut", last(kind, 1).cut("value some.key.x", n - 1), "value some.key.x", "cut")
    yield patched("bool_2", "value a.flag", b"\2", "bool")
    yield patched("bool_255", "value a.flag", b"\xff", "bool")

    # strings
    yield patched("string_longer_than_file", "value general.architecture", u64(2000), "length")
    yield patched("string_length_max", "value general.architecture", u64(2**64 - 1), "length")
    yield patched("string_length_2_63", "value general.architecture", u64(2**63), "length")
    yield bad("string_length_cut", last(STRING, "tail").cut("value some.key.x", 7), "value some.key.x",
              "cut")
    yield bad("string_cut_by_one", last(STRING, "tail").cut("value some.key.x", 11), "value some.key.x", "length")

    # arrays
    yield patched("array_type_13", "value a.longs", u32(13), "type")
    yield patched("array_type_max", "value a.longs", u32(0xFFFFFFFF), "type")
    yield patched("array_nested", "value a.longs", u32(ARRAY), "nested", status=UNSUPPORTED)
    yield patched("array_overflow", "value a.longs", u64(2**61), "count", plus=4, at_plus=4)
    yield patched("array_overflow_wraps", "value a.longs", u64(2**61 + 2), "count", plus=4, at_plus=4)
    yield patched("array_count_max", "value a.flags", u64(2**64 - 1), "count", plus=4, at_plus=4)
    longs = (U64, [1, 2])
    yield bad("array_type_cut", last(ARRAY, longs).cut("value some.key.x", 3), "value some.key.x", "cut")
    yield bad("array_count_cut", last(ARRAY, longs).cut("value some.key.x", 11), "value some.key.x", "cut",
              plus=4)
    yield bad("array_cut_by_one", last(ARRAY, longs).cut("value some.key.x", 27), "value some.key.x", "count",
              plus=4)
    yield patched("array_bool_2", "value a.flags", b"\2", "bool", plus=4 + 8 + 2, at_plus=4 + 8 + 2)
    yield patched("strings_count_max", "value a.words", u64(2**64 - 1), "count", plus=4, at_plus=4)
    yield patched("strings_count_2_61", "value a.words", u64(2**61), "count", plus=4, at_plus=4)
    g = base()
    first = g.at["value a.words"] + 12  # then 8 + 2 bytes of "ab", 8 of "", 8 + 3 of "cde"
    yield bad("strings_length_max", g.put(first, u64(2**64 - 1)), first, "length")
    yield bad("strings_length_past_end", base().put(first + 18, u64(1 << 20)), first + 18, "length")
    words = (STRING, ["abcdefgh", "ij"])  # the second length stands 12 + 16 bytes behind the value's start
    yield bad("strings_cut_by_one", last(ARRAY, words).cut("value some.key.x", 28 + 9), "value some.key.x", "length",
              plus=28)
    yield bad("strings_second_length_cut", last(ARRAY, words).cut("value some.key.x", 28 + 7), "value some.key.x",
              "cut", plus=28)

    # tensor records
    yield patched("tensor_name_empty", "name y", u64(0), "empty")
    yield bad("tensor_name_65", Gguf(KVS, [("n" * 65, T_F32, [2])]), "name " + "n" * 65, "length")
    yield patched("tensor_name_zero", "name y", b"\0", "zero", plus=8)
    yield patched("tensor_name_length_max", "name y", u64(2**64 - 1), "length")
    yield bad("tensor_name_cut", base().cut("name z", 8), "name z", "length")
    yield patched("tensor_duplicate", "name z", b"x", "duplicate", plus=8)
    yield bad("n_dims_cut", base().cut("ndims z", 2), "ndims z", "cut")
    yield patched("n_dims_0", "ndims y", u32(0), "dims")
    yield patched("n_dims_5", "ndims y", u32(5), "dims", status=UNSUPPORTED)
    yield patched("n_dims_max", "ndims y", u32(0xFFFFFFFF), "dims", status=UNSUPPORTED)
    yield bad("dim_cut", base().cut("dim1 y", 7), "dim1 y", "cut")
    yield patched("dim_first_0", "dim0 x", u64(0), "0")
    yield patched("dim_second_0", "dim1 y", u64(0), "0")
    yield patched("dims_overflow", "dim1 x", u64(2**61), "overflow")
    yield bad("dims_overflow_to_one", Gguf(KVS, [("x", T_F32, [4, 4])]).put("dim0 x", u64(2**63 + 1))
              .put("dim1 x", u64(2**63 + 1)), "dim1 x", "overflow")
    yield bad("bytes_overflow", base().put("dim1 x", u64(2**60)), "dim0 x", "overflow")
    yield patched("row_of_33", "dim0 y", u64(33), "block")
    yield patched("row_of_31", "dim0 y", u64(31), "block")
    yield bad("row_of_half_super_block", Gguf([], [("k", T_Q4_K, [256, 2])]).put("dim0 k", u64(128)), "dim0 k",
              "block")
    yield bad("tensor_type_cut", base().cut("type z", 3), "type z", "cut")
    for tid, word in ((4, "removed"), (16, "iq2_xxs"), (28, "f64"), (39, "mxfp4"), (0xFFFFFFFF, "max")):
        yield patched("tensor_type_" + word, "type y", u32(tid), "type", status=UNSUPPORTED)
    yield bad("tensor_offset_cut", base().cut("offset z", 7), "offset z", "cut")

    # where the data is
    yield patched("offset_unaligned", "offset y", u64(65), "align")
    yield patched("offset_half_aligned", "offset y", u64(80), "align")
    yield patched("offset_past_end", "offset z", u64(4096), "outside")
    yield patched("offset_max", "offset z", u64(2**64 - 32), "outside")
    yield patched("offset_same", "offset y", u64(0), "overlap")
    yield patched("offset_overlap", "offset y", u64(32), "overlap")
    g = base(order=["z", "y", "x"])
    yield bad("offset_overlap_backwards", g.put("offset x", u64(g.place(TENSORS, 32, ["z", "y", "x"], 0)[0]["y"] + 32)),
              "offset x", "overlap")
    g = base()
    yield bad("data_cut_by_one", g.cut(len(g.b) - 1), "offset z", "outside")
    yield bad("data_absent", base().cut("end"), "offset x", "outside")
    yield bad("data_absent_after_padding", base().cut("data"), "offset x", "outside")
    yield patched("row_too_many", "dim1 y", u64(1000), "outside", at="offset y")

    # general.alignment
    for v, word in ((0, "0"), (1, "1"), (4, "4"), (33, "33"), (48, "48"), (131072, "131072"), (2**31, "2_31")):
        yield bad("alignment_" + word, with_kv("general.alignment", U32, v), "value general.alignment", "align")
    yield bad("alignment_u64", with_kv("general.alignment", U64, 32), "value general.alignment", "align")
    yield bad("alignment_string", with_kv("general.alignment", STRING, "32"), "value general.alignment", "align")
    yield bad("alignment_array", with_kv("general.alignment", ARRAY, (U32, [32])), "value general.alignment", "align")
    g = with_kv("general.alignment", U32, 64, align=64)
    yield bad("alignment_64_offset_96", g.put("offset y", u64(96)), "offset y", "align")


def tiny_model(arch, bias, tied, change=None):
    """A whole model of one layer that any loader must take; change(kvs, tensors) may spoil it first."""
    D, H, G, d, F, V = 8, 2, 1, 4, 8, 4
    key = lambda k: arch + "." + k
    kvs = [("general.architecture", STRING, arch), ("general.alignment", U32, 8),
           (key("block_count"), U32, 1), (key("embedding_length"), U32, D), (key("feed_forward_length"), U32, F),
           (key("context_length"), U32, 64), (key("attention.head_count"), U32, H),
           (key("attention.head_count_kv"), U32, G), (key("attention.layer_norm_rms_epsilon"), F32, 1e-5),
           ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
           ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "ab", "<e>"])),
           ("tokenizer.ggml.token_type", ARRAY, (I32, [1, 1, 1, 3])),
           ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])), ("tokenizer.ggml.eos_token_id", U32, 3)]
    b = "blk.0."
    tensors = [("token_embd.weight", T_F16, [D, V]), ("output_norm.weight", T_F32, [D]),
               (b + "attn_norm.weight", T_F32, [D]), (b + "attn_q.weight", T_F16, [D, H * d]),
               (b + "attn_k.weight", T_F16, [D, G * d]), (b + "attn_v.weight", T_F16, [D, G * d]),
               (b + "attn_output.weight", T_F16, [H * d, D]), (b + "ffn_norm.weight", T_F32, [D]),
               (b + "ffn_gate.weight", T_F16, [D, F]), (b + "ffn_up.weight", T_F16, [D, F]),
               (b + "ffn_down.weight", T_F16, [F, D])]
    if bias:
        tensors += [(b + "attn_q.bias", T_F32, [H * d]), (b + "attn_k.bias", T_F32, [G * d]),
                    (b + "attn_v.bias", T_F32, [G * d])]
    if not tied:
        tensors.append(("output.weight", T_F16, [D, V]))
    if change:
        change(kvs, tensors)
    return Gguf(kvs, tensors, align=8)


def models():
    """Yields name, file, status, offset, part of the message."""
    L = "llama."

    def model(change=None):
        return tiny_model("llama", False, True, change)

    def bad(name, gguf, where, message, status=FORMAT, plus=0):
        return name, gguf, status, (gguf.at[where] if isinstance(where, str) else where) + plus, message

    def kv(name, key, kind, v, message, status=FORMAT, where=None, plus=0):
        """One value replaced, or added where there is none of that name."""
        def change(kvs, tensors):
            at = next((i for i, k in enumerate(kvs) if k[0] == key), None)
            if at is None:
                kvs.append((key, kind, v))
            else:
                kvs[at] = (key, kind, v)
        return bad(name, model(change), "value " + (where or key), message, status, plus)

    def absent(name, key, message, where=0, plus=0):
        return bad(name, model(lambda kvs, _: kvs.remove(next(k for k in kvs if k[0] == key))), where, message,
                   plus=plus)

    def tensor(name, which, kind, dims, message, status=FORMAT):
        def change(_, tensors):
            at = next(i for i, t in enumerate(tensors) if t[0] == which)
            tensors[at] = (which, kind or tensors[at][1], dims or tensors[at][2])
        return bad(name, model(change), "name " + which, message, status)

    yield "good_model", model(), OK, 0, "good"

    # hyper-parameters at and beyond the ends of their types, and of other types
    for suffix, word in (("block_count", "layers"), ("embedding_length", "embd"), ("feed_forward_length", "ff"),
                         ("context_length", "ctx"), ("attention.head_count", "heads")):
        yield absent(word + "_absent", L + suffix, suffix + " is missing")
        yield kv(word + "_0", L + suffix, U32, 0, suffix + " is no positive integer")
        yield kv(word + "_int_min", L + suffix, I32, -2**31, suffix + " is no positive integer")
        yield kv(word + "_u64_max", L + suffix, U64, 2**64 - 1, suffix + " is above", UNSUPPORTED)
    yield kv("layers_int_max", L + "block_count", I32, 2**31 - 1, "block_count is above", UNSUPPORTED)
    yield kv("layers_i64_min", L + "block_count", I64, -2**63, "block_count is no positive integer")
    yield kv("embd_float", L + "embedding_length", F32, 8.0, "embedding_length is no positive integer")
    yield kv("embd_string", L + "embedding_length", STRING, "8", "embedding_length is no positive integer")
    yield kv("ff_bool", L + "feed_forward_length", BOOL, 1, "feed_forward_length is no positive integer")
    yield kv("kv_heads_uint_max", L + "attention.head_count_kv", U32, 2**32 - 1, "head_count_kv is above", UNSUPPORTED)
    yield absent("eps_absent", L + "attention.layer_norm_rms_epsilon", "epsilon is missing")
    for v, word in ((float("nan"), "nan"), (float("inf"), "inf"), (-1e-5, "negative"), (0.0, "0"), (2.0, "2")):
        yield kv("eps_" + word, L + "attention.layer_norm_rms_epsilon", F32, v, "epsilon is no number")
    yield kv("eps_string", L + "attention.layer_norm_rms_epsilon", STRING, "1e-5", "epsilon is no number")

    # hyper-parameters that disagree among themselves
    yield kv("heads_not_multiple", L + "attention.head_count_kv", U32, 3, "no multiple of head_count_kv",
             where=L + "attention.head_count")
    yield kv("embd_not_multiple", L + "attention.head_count", U32, 3, "is no multiple of attention.head_count")
    yield kv("rot_odd", L + "rope.dimension_count", U32, 3, "odd or wider")
    yield kv("rot_wide", L + "rope.dimension_count", U32, 6, "odd or wider")

    # hyper-parameters that disagree with the tensors
    yield kv("ff_other", L + "feed_forward_length", U32, 16, "x")[:3] + (
        model().at["name blk.0.ffn_gate.weight"], "ffn_gate.weight has the wrong shape")
    yield kv("layers_2", L + "block_count", U32, 2, "attn_norm.weight is missing")[:3] + (
        0, "attn_norm.weight is missing")
    yield kv("kv_heads_2", L + "attention.head_count_kv", U32, 2, "x")[:3] + (
        model().at["name blk.0.attn_k.weight"], "attn_k.weight has the wrong shape")
    yield kv("embd_16", L + "embedding_length", U32, 16, "x")[:3] + (
        model().at["name token_embd.weight"], "token_embd.weight has the wrong shape")
    which = "blk.0.attn_q.weight"
    yield tensor("q_transposed", "blk.0.attn_k.weight", None, [4, 8], "attn_k.weight has the wrong shape")
    yield tensor("q_three_dims", which, None, [8, 4, 2], "attn_q.weight has the wrong shape")
    yield tensor("q_one_row_more", which, None, [8, 9], "attn_q.weight has the wrong shape")
    yield tensor("norm_short", "output_norm.weight", None, [7], "output_norm.weight has the wrong shape")
    yield tensor("norm_two_dims", "output_norm.weight", None, [8, 2], "output_norm.weight has the wrong shape")
    yield tensor("norm_bf16", "output_norm.weight", (30, 1, 2), None, "neither F32 nor F16", UNSUPPORTED)
    yield bad("tensor_down_absent", model(lambda _, ts: ts.pop()), 0, "ffn_down.weight is missing")
    yield bad("tensor_embd_absent", model(lambda _, ts: ts.pop(0)), 0, "token_embd.weight is missing")
    yield bad("tensor_unknown", model(lambda _, ts: ts.append(("blk.0.extra.weight", T_F32, [8]))),
              "name blk.0.extra.weight", "does not use", UNSUPPORTED)
    yield bad("tensor_of_layer_1", model(lambda _, ts: ts.append(("blk.1.attn_norm.weight", T_F32, [8]))),
              "name blk.1.attn_norm.weight", "does not use", UNSUPPORTED)
    yield bad("tensor_of_layer_00", model(lambda _, ts: ts.append(("blk.00.attn_norm.weight", T_F32, [8]))),
              "name blk.00.attn_norm.weight", "does not use", UNSUPPORTED)

    # tokens and merges
    T = "tokenizer.ggml."
    tokens = ["a", "b", "ab", "<e>"]

    def item(strings, i):
        """Where the i-th string of an array stands, from the array's value."""
        return 12 + sum(8 + len(x) for x in strings[:i])

    yield absent("tokens_absent", T + "tokens", "tokens is missing", "value " + T + "model")
    yield kv("tokens_not_strings", T + "tokens", ARRAY, (I32, [1, 2, 3, 4]), "no array of strings")
    yield bad("tokens_five", model(lambda kvs, _: kvs.__setitem__(slice(11, 13), [
        (T + "tokens", ARRAY, (STRING, tokens + ["c"])), (T + "token_type", ARRAY, (I32, [1, 1, 1, 3, 1]))])),
              "value " + T + "tokens", "more tokens")
    twice = ["a", "b", "a", "<e>"]
    yield kv("tokens_twice", T + "tokens", ARRAY, (STRING, twice), "two tokens have one text", plus=item(twice, 2))
    yield kv("types_short", T + "token_type", ARRAY, (I32, [1, 1, 1]), "not as long as the tokens")
    yield kv("types_of_bytes", T + "token_type", ARRAY, (U8, [1, 1, 1, 3]), "no array of 32-bit integers")
    yield kv("type_int_min", T + "token_type", ARRAY, (I32, [1, 1, -2**31, 3]), "unknown token type", plus=12 + 8)
    yield kv("type_7", T + "token_type", ARRAY, (I32, [1, 1, 1, 7]), "unknown token type", plus=12 + 12)
    yield absent("merges_absent", T + "merges", "merges is missing", "value " + T + "model")
    yield kv("merges_not_strings", T + "merges", ARRAY, (U8, [97, 32, 98]), "no array of strings")
    for merges, i, word, message in ((["a b", "ab"], 1, "one_word", "not two texts"),
                                     (["", "a b"], 0, "empty", "not two texts"),
                                     (["a "], 0, "nothing_right", "not two texts"),
                                     (["a b", "a c"], 1, "unknown_right", "no tokens"),
                                     (["b a"], 0, "unknown_result", "no tokens"),
                                     (["a  b"], 0, "two_spaces", "no tokens")):
        yield kv("merge_" + word, T + "merges", ARRAY, (STRING, merges), message, plus=item(merges, i))
    for v, kind, word in ((4, U32, "outside"), (2**31 - 1, I32, "int_max"), (-2**31, I32, "int_min"),
                          (2**63, U64, "2_63"), (-2, I32, "minus_2")):
        yield kv("eos_" + word, T + "eos_token_id", kind, v, "outside the vocabulary")
    yield kv("bos_float", T + "bos_token_id", F32, 1.0, "no integer")
    yield kv("add_bos_integer", T + "add_bos_token", U32, 1, "no bool")
    yield kv("add_bos_without_bos", T + "add_bos_token", BOOL, 1, "without bos_token_id")
    yield kv("model_integer", T + "model", U32, 1, "model is no string")
    yield kv("pre_integer", T + "pre", U32, 1, "pre is no string")
    yield kv("architecture_integer", "general.architecture", U32, 1, "architecture is missing or no string")
    yield kv("architecture_unknown", "general.architecture", STRING, "mystery", "architecture is not supported",
             UNSUPPORTED)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    files = {}
    manifest = ["# file, status, offset, reason; written by tools/make_bad_gguf.py"]
    for name, gguf, status, where, reason in animals():
        raw = bytes(gguf.b)
        assert len(raw) <= 1024 and name not in files and where <= len(raw), name
        files[name] = raw
        manifest.append(f"{name}.gguf {status} {where} {reason}")
    wanted = {os.path.join(ZOO, n + ".gguf"): raw for n, raw in files.items()}
    wanted[os.path.join(ZOO, "manifest.txt")] = ("\n".join(manifest) + "\n").encode("ascii")
    wanted.update({os.path.join(CORPUS, n + ".gguf"): raw for n, raw in files.items() if raw})
    wanted[os.path.join(CORPUS, "model_llama.gguf")] = bytes(tiny_model("llama", False, True).b)
    wanted[os.path.join(CORPUS, "model_qwen2.gguf")] = bytes(tiny_model("qwen2", True, False).b)
    lines = ["# file, status, offset, part of the message; written by tools/make_bad_gguf.py"]
    for name, gguf, status, where, message in models():
        raw = bytes(gguf.b)
        path = os.path.join(MODELS, name + ".gguf")
        assert len(raw) <= 4096 and path not in wanted and where <= len(raw), name
        wanted[path] = raw
        lines.append(f"{name}.gguf {status} {where} {message}")
    wanted[os.path.join(MODELS, "manifest.txt")] = ("\n".join(lines) + "\n").encode("ascii")
    folders = (ZOO, MODELS, CORPUS)
    present = {os.path.join(folder, n) for folder in folders if os.path.isdir(folder) for n in os.listdir(folder)}
    if check:
        wrong = sorted(present ^ set(wanted))
        for path in sorted(present & set(wanted)):
            with open(path, "rb") as f:
                if f.read() != wanted[path]:
                    wrong.append(path)
        for path in wrong:
            print("differs:", os.path.relpath(path, ROOT))
        sys.exit(1 if wrong else 0)
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    for path in sorted(present - set(wanted)):
        print("not of this script:", os.path.relpath(path, ROOT))
    for path, raw in wanted.items():
        with open(path, "wb") as f:
            f.write(raw)
    n_bad = sum(1 for line in manifest if "DEND_ERR" in line)
    print(f"{n_bad} broken and {len(files) - n_bad} good files, {sum(map(len, files.values()))} bytes;",
          f"{sum('DEND_ERR' in line for line in lines)} broken models")


if __name__ == "__main__":
    main()
