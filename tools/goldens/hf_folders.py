#!/usr/bin/env python3
"""Tiny random models as folders of safetensors, as the package transformers saves them, with the GGUF file of the
same weights and the logits of transformers.

    pip install -r tools/goldens/requirements-check.txt
    python3 tools/goldens/hf_folders.py [NAME...]

Writes tests/golden/hf_NAME/: config.json, model.safetensors or an index and several files, model.gguf, and
logits.bin (float32, of the weights as they are stored). Where a model says so, q8_0.gguf and q4_0.gguf hold its
matrices quantised by the package gguf. What a converter changes is done here once more, in numpy, by its formulas:
rows of Q and K reordered for llama's graph, 1 added to Gemma's norms, norms and biases in F32, Llama 3's divisors.

Layout of logits.bin: as of tiny_*.bin, see tiny_models.py.

Also writes the seeds of fuzz/fuzz_safetensors.c, smaller still: u32 n, config.json of n bytes, safetensors.
"""

import json
import math
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from gguf import GGMLQuantizationType as T, GGUFWriter
from gguf.quants import quantize
from safetensors import safe_open
from safetensors.torch import save_file

import golden_lib as lib

SEED = 20266
N_TOKENS = 40
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

BASE = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
            attn_implementation="eager")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0}

#          class of the model       configuration                                  dtype  bytes of a file  quantised
MODELS = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**BASE, rope_theta=500000.0, rope_scaling=LLAMA3), "F32", None, True),
    "llama_biases": (hf.LlamaForCausalLM,
                     hf.LlamaConfig(**BASE, head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                    rope_scaling={"rope_type": "linear", "factor": 2.0}), "F16", 15000, False),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**BASE, head_dim=8, sliding_window=9, rope_scaling=YARN), "F16", None, False),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**BASE, tie_word_embeddings=True, rope_theta=1000000.0), "BF16", 9000,
              True),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**BASE, head_dim=16, tie_word_embeddings=False), "F32", 40000, False),
    "gemma3": (hf.Gemma3ForCausalLM,
               hf.Gemma3TextConfig(**{**BASE, "num_hidden_layers": 3}, head_dim=16, query_pre_attn_scalar=16,
                                   sliding_window=9,
                                   layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                   rope_theta=1000000.0, rope_local_base_freq=10000.0,
                                   rope_scaling={"rope_type": "linear", "factor": 8.0}), "BF16", None, False),
}

ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm"}
GEMMA_NAMES = {**NAMES, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}


def random_weights(model, generator):
    """Weights of a size that makes a model of few layers say something, norms and biases included."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = torch.randn(p.shape, generator=generator)
            if name.endswith("norm.weight"):
                centre = 0.0 if "gemma" in model.config.model_type else 1.0
                p.copy_(centre + 0.3 * values)
            elif p.ndim == 1:
                p.copy_(0.7 * values)
            else:
                gain = 3.0 if "embed" in name or "lm_head" in name else 1.5
                p.copy_(values * gain / math.sqrt(p.shape[1]))


def gguf_name(arch, name):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(GEMMA_NAMES if arch == 'gemma3' else NAMES)[stem]}.{kind}"


def reordered(values, heads):
    rest = values.shape[1:]
    return np.ascontiguousarray(values.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(-1, *rest))


def llama3_divisors(c, s):
    width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    freqs = 1.0 / (c["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    old, low, high = s["original_max_position_embeddings"], s["low_freq_factor"], s["high_freq_factor"]
    out = []
    for freq in freqs:
        length = 2 * math.pi / freq
        if length < old / high:
            out.append(1)
        elif length > old / low:
            out.append(s["factor"])
        else:
            smooth = (old / length - low) / (high - low)
            out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return torch.tensor(out, dtype=torch.float32).numpy()


def write_gguf(path, c, tensors, quantised=None):
    arch = ARCH[c["model_type"]]
    w = GGUFWriter(path, arch)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if c["model_type"] in ("mistral", "gemma3_text"):
        w.add_sliding_window(c["sliding_window"])
    if "layer_types" in c and c["model_type"] == "gemma3_text":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
    scaling = c.get("rope_scaling")
    if scaling and scaling["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(c, scaling))
    elif scaling:
        w.add_string(f"{arch}.rope.scaling.type", scaling["rope_type"])
        w.add_rope_scaling_factor(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            w.add_float32(f"{arch}.rope.scaling.yarn_beta_fast", scaling["beta_fast"])
    for name, value in tensors.items():
        values = value.float().numpy()
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if arch == "llama" and "q_proj" in name:
            values = reordered(values, c["num_attention_heads"])
        if arch == "llama" and "k_proj" in name:
            values = reordered(values, c["num_key_value_heads"])
        to = gguf_name(arch, name)
        if values.ndim == 1 or (value.dtype == torch.float32 and not quantised):
            w.add_tensor(to, values)
        elif quantised or value.dtype == torch.bfloat16:
            kind = quantised or T.BF16
            w.add_tensor(to, quantize(values, kind), raw_dtype=kind)
        else:
            w.add_tensor(to, values.astype(np.float16))
    lib.finish(w)


def stored_tensors(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as f:
            out.update({name: f.get_tensor(name) for name in f.keys()})
    return out


def nested(folder, c, tensors):
    """The same model as the text of one that also sees; only what differs from the class's defaults is stated."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    top = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
           "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8}}
    unlike = hf.Gemma3TextConfig().to_dict()
    top["text_config"] = {k: v for k, v in c.items() if k == "model_type" or (k in unlike and v != unlike[k])}
    del top["text_config"]["layer_types"]
    top["text_config"]["sliding_window_pattern"] = 3
    (folder / "config.json").write_text(json.dumps(top, indent=1) + "\n")
    tensors = {"language_model." + name: value for name, value in tensors.items()}
    tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(2, 1, 2, 2)
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(3, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")


def seeds():
    """One layer of width 4, in each way that weights are translated."""
    out = lib.GOLDEN.parents[1] / "fuzz/corpus/safetensors"
    out.mkdir(parents=True, exist_ok=True)
    small = dict(vocab_size=3, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
                 num_key_value_heads=1)
    for name, dtype in (("llama", "F32"), ("qwen2", "BF16"), ("gemma3", "F16")):
        cls, config = MODELS[name][:2]
        more = dict(head_dim=4, query_pre_attn_scalar=4) if name == "gemma3" else {}
        more.update(dict(layer_types=["full_attention"]) if hasattr(config, "layer_types") else {})
        model = cls(type(config)(**{**config.to_diff_dict(), **small, **more}))
        random_weights(model, torch.Generator().manual_seed(SEED))
        with tempfile.TemporaryDirectory() as folder:
            model.to(DTYPES[dtype]).save_pretrained(folder)
            text = (Path(folder) / "config.json").read_bytes()
            weights = (Path(folder) / "model.safetensors").read_bytes()
        (out / name).write_bytes(struct.pack("<I", len(text)) + text + weights)


def main():
    names = sys.argv[1:]
    seeds()
    for i, (name, (cls, config, dtype, file_bytes, quantised)) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        folder = lib.GOLDEN / f"hf_{name}"
        shutil.rmtree(folder, ignore_errors=True)
        generator = torch.Generator().manual_seed(SEED + i)
        model = cls(config)
        random_weights(model, generator)
        model.to(DTYPES[dtype]).save_pretrained(folder, max_shard_size=file_bytes or "1GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        c = json.loads((folder / "config.json").read_text())
        tensors = stored_tensors(folder)
        write_gguf(folder / "model.gguf", c, tensors)
        for kind in (T.Q8_0, T.Q4_0) if quantised else ():
            write_gguf(folder / f"{kind.name.lower()}.gguf", c, tensors, kind)
        tokens = torch.randint(0, c["vocab_size"], (N_TOKENS,), generator=generator)
        with torch.no_grad():
            reference = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            logits = reference(tokens[None]).logits[0].numpy().astype("<f4")
        (folder / "logits.bin").write_bytes(
            b"DTM1" + struct.pack("<I", N_TOKENS) + tokens.numpy().astype("<i4").tobytes()
            + struct.pack("<I", c["vocab_size"]) + logits.tobytes())
        if name == "gemma3":
            nested(lib.GOLDEN / "hf_gemma3_nested", c, tensors)
        print(name, sorted((p.name, p.stat().st_size) for p in folder.iterdir()), "logits rms %.3f" % np.sqrt(
            (logits.astype(float) ** 2).mean()))
    print("transformers", hf.__version__, "torch", torch.__version__, lib.versions())


if __name__ == "__main__":
    main()
