#!/usr/bin/env python3
"""Holds the golden logits of the tiny models against the package transformers, in float64.

    pip install -r tools/goldens/requirements-check.txt
    python3 tools/goldens/check_families.py [NAME...]

The weights of each tests/golden/tiny_*.gguf go into the model class of the original family, with a configuration made
of the file's keys: another forward pass, by other people. Prints how far its logits lie from those of the golden file,
and fails above 1e-4 (rotary angles are single precision there).
"""

import struct
import sys

import numpy as np
import torch
import transformers as hf

import golden_lib as lib
from tiny_models import MODELS

NAMES = {"attn_norm.weight": "input_layernorm.weight", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def config_of(f):
    key = lambda k, default=None: f.get(f"{f.arch}.{k}", default)
    common = dict(vocab_size=f.head().shape[0], hidden_size=f.width, intermediate_size=key("feed_forward_length"),
                  num_hidden_layers=f.n_layers, num_attention_heads=f.n_heads, num_key_value_heads=f.n_kv,
                  head_dim=f.head_dim, max_position_embeddings=key("context_length"), rms_norm_eps=f.eps,
                  rope_theta=key("rope.freq_base"), tie_word_embeddings="output.weight" not in f.tensors,
                  attn_implementation="eager")
    kind = key("rope.scaling.type")
    if kind:
        scaling = {"rope_type": kind, "factor": key("rope.scaling.factor")}
        for ours, theirs in (("original_context_length", "original_max_position_embeddings"),
                             ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow"),
                             ("yarn_attn_factor", "attention_factor")):
            if key(f"rope.scaling.{ours}") is not None:
                scaling[theirs] = key(f"rope.scaling.{ours}")
        common["rope_scaling"] = scaling
    if f.arch in ("llama", "mistral") and f.window:
        return hf.MistralForCausalLM, hf.MistralConfig(**common, sliding_window=f.window)
    if f.arch == "llama":
        return hf.LlamaForCausalLM, hf.LlamaConfig(**common, attention_bias="blk.0.attn_q.bias" in f.tensors,
                                                   mlp_bias="blk.0.ffn_up.bias" in f.tensors)
    if f.arch == "qwen2":
        return hf.Qwen2ForCausalLM, hf.Qwen2Config(**common)
    if f.arch == "qwen3":
        return hf.Qwen3ForCausalLM, hf.Qwen3Config(**common)
    kinds = ["sliding_attention" if slides else "full_attention" for slides in f.slides]
    return hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**common, sliding_window=f.window, layer_types=kinds,
                                                     query_pre_attn_scalar=f.score_width, rope_local_base_freq=10000.0,
                                                     hidden_activation="gelu_pytorch_tanh")


def name_of(f, name):
    if name in ("token_embd.weight", "output.weight", "output_norm.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
                "output_norm.weight": "model.norm.weight"}[name]
    _, layer, rest = name.split(".", 2)
    if f.arch == "gemma3":
        rest = {"ffn_norm.weight": "pre_feedforward_layernorm.weight",
                "post_attention_norm.weight": "post_attention_layernorm.weight",
                "post_ffw_norm.weight": "post_feedforward_layernorm.weight"}.get(rest, rest)
    rest = {"ffn_norm.weight": "post_attention_layernorm.weight", "attn_norm.weight": NAMES["attn_norm.weight"]}.get(
        rest, rest)
    stem, kind = rest.rsplit(".", 1)
    return f"model.layers.{layer}.{NAMES.get(stem, stem)}.{kind}"


def value_of(f, name):
    value = f.weight(name)
    if not f.split_halves and (".attn_q." in name or ".attn_k." in name):  # pairs (2i, 2i + 1) to (i, i + d/2)
        rest = value.shape[1:]
        value = value.reshape(-1, f.head_dim // 2, 2, *rest).swapaxes(1, 2).reshape(-1, *rest)
    if f.arch == "gemma3" and name.endswith("norm.weight"):
        value = value - 1.0  # the converter has added it
    return torch.tensor(value, dtype=torch.float64)


def main():
    failed = False
    for name in sys.argv[1:] or MODELS:
        path = lib.GOLDEN / f"tiny_{name}.gguf"
        f = lib.Forward(path)
        data = path.with_suffix(".bin").read_bytes()
        n, = struct.unpack_from("<I", data, 4)
        tokens = np.frombuffer(data, "<i4", n, 8)
        golden = np.frombuffer(data, "<f4", offset=12 + 4 * n).reshape(n, -1)
        kind, config = config_of(f)
        model = kind(config).double().eval()
        state = {name_of(f, t): value_of(f, t) for t in f.tensors if t != "rope_freqs.weight"}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        if kind is hf.Gemma3ForCausalLM:
            model.model.embed_tokens.embed_scale = torch.tensor(np.sqrt(f.width), dtype=torch.float64)
        if "rope_freqs.weight" in f.tensors:
            model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / torch.tensor(
                f.weight("rope_freqs.weight"))
        with torch.no_grad():
            logits = model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()
        far = np.abs(logits - golden).max()
        failed |= not far < 1e-4
        print(f"{name}: {kind.__name__} is off by {far:.2e}")
    print(f"transformers {hf.__version__}, torch {torch.__version__}, {lib.versions()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
