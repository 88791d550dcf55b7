# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Writes a trained model as a GGUF file: llama, matrices Q8_0, one token a character."""

from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType
from gguf.quants import quantize

import countdown


class Writer(GGUFWriter):
    """GGUFWriter that also takes empty arrays, as tokenizers without merges need them."""

    def _pack_val(self, val, vtype, add_vtype, sub_type=None):
        if vtype == GGUFValueType.ARRAY and len(val) == 0:
            kind = self._pack("I", vtype) if add_vtype else b""
            return kind + self._pack("I", sub_type) + self._pack("Q", 0)
        return super()._pack_val(val, vtype, add_vtype, sub_type)


def write(model, path):
    c = model.c
    w = Writer(path, "llama")
    w.add_name("dendrite countdown")
    w.add_license("MIT")
    w.add_context_length(c.context)
    w.add_embedding_length(c.width)
    w.add_feed_forward_length(c.ff)
    w.add_block_count(c.layers)
    w.add_head_count(c.width // c.head)
    w.add_head_count_kv(c.width // c.head)
    w.add_rope_dimension_count(c.head)
    w.add_rope_freq_base(c.rope_base)
    w.add_layer_norm_rms_eps(c.norm_eps)
    w.add_vocab_size(c.vocab)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(["<end>"] + [{" ": "\u0120"}.get(ch, ch) for ch in countdown.CHARACTERS])
    w.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * len(countdown.CHARACTERS))
    w.add_key_value("tokenizer.ggml.merges", [], GGUFValueType.ARRAY, GGUFValueType.STRING)
    w.add_eos_token_id(0)
    w.add_add_bos_token(False)

    def matrix(name, values):
        data = values.detach().numpy()
        w.add_tensor(name, quantize(data, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)

    def vector(name, values):
        w.add_tensor(name, values.detach().numpy())

    matrix("token_embd.weight", model.embed)
    vector("output_norm.weight", model.out_norm)
    for i, block in enumerate(model.blocks):
        vector(f"blk.{i}.attn_norm.weight", block.attn_norm)
        vector(f"blk.{i}.ffn_norm.weight", block.ffn_norm)
        for name, part in zip("qkv", block.qkv.weight.chunk(3)):
            matrix(f"blk.{i}.attn_{name}.weight", part)
        matrix(f"blk.{i}.attn_output.weight", block.o.weight)
        gate, up = block.gate_up.weight.chunk(2)
        matrix(f"blk.{i}.ffn_gate.weight", gate)
        matrix(f"blk.{i}.ffn_up.weight", up)
        matrix(f"blk.{i}.ffn_down.weight", block.down.weight)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
