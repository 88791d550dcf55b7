"""What the golden scripts share: a byte-level BPE vocabulary, a plain forward pass in float64, and llama.cpp.

llama.cpp is reached through the module llama_cpp of the package llama-cpp-python; LLAMA_CPP_LIB_PATH may name a folder
with another build of libllama.so.
"""

import ctypes
import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"


def versions():
    def of(name):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return None
    parts = [f"Python {platform.python_version()}"] + [of(n) for n in ("numpy", "gguf", "tokenizers")]
    try:
        import llama_cpp
        parts.append(f"llama-cpp-python {llama_cpp.__version__}")
    except ImportError:
        pass
    return ", ".join(p for p in parts if p)


# ---------------------------------------------------------------------------------------------------------------------
# Byte-level BPE


def byte_alphabet():
    """The printable stand-in of each byte, in the order of the byte: bytes that print stand for themselves, and the
    other 68 take the code points from U+0100 upwards."""
    chars, spare = [], 0x100
    for b in range(256):
        if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF:
            chars.append(chr(b))
        else:
            chars.append(chr(spare))
            spare += 1
    return chars


BYTE_CHARS = byte_alphabet()
CHAR_BYTES = {c: b for b, c in enumerate(BYTE_CHARS)}


def to_alphabet(raw):
    return "".join(BYTE_CHARS[b] for b in raw)


def from_alphabet(text):
    return bytes(CHAR_BYTES[c] for c in text)


GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NEW_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def pre_tokenizer(pre):
    """The pre-tokenizer that GGUF calls `pre`, as the package tokenizers spells it."""
    from tokenizers import Regex, pre_tokenizers as P
    steps = {
        "gpt-2": [P.Split(Regex(GPT2_SPLIT), "isolated")],
        "smollm": [P.Digits(individual_digits=True), P.Split(Regex(GPT2_SPLIT), "isolated")],
        "qwen2": [P.Split(Regex(NEW_SPLIT % ""), "isolated")],
        "llama-bpe": [P.Split(Regex(NEW_SPLIT % "{1,3}"), "isolated")],
    }[pre]
    return P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


class Vocab:
    """A vocabulary under construction: tokens in the byte alphabet (special ones verbatim), types, merges, ids."""

    def __init__(self, pre):
        self.pre, self.tokens, self.types, self.merges, self.ids = pre, [], [], [], {}

    def add(self, token, kind=TokenType.NORMAL):
        assert token not in self.tokens, token
        self.tokens.append(token)
        self.types.append(kind)

    def train(self, texts, n_merges):
        """Learn merges: the commonest neighbouring pair first, ties to the smaller pair of byte strings."""
        import itertools
        words = {}
        splitter = pre_tokenizer(self.pre)
        for text in texts:
            for word, _ in splitter.pre_tokenize_str(text):
                words[word] = words.get(word, 0) + 1
        words = [(list(w), n) for w, n in sorted(words.items())]
        counts, where = {}, {}
        for i, (symbols, n) in enumerate(words):
            for pair in itertools.pairwise(symbols):
                counts[pair] = counts.get(pair, 0) + n
                where.setdefault(pair, set()).add(i)
        for _ in range(n_merges):
            best = min((p for p in counts if counts[p] > 0), key=lambda p: (-counts[p], p))
            joined = best[0] + best[1]
            self.merges.append(" ".join(best))
            if joined not in self.tokens:
                self.add(joined)
            for i in sorted(where[best]):
                symbols, n = words[i]
                for pair in itertools.pairwise(symbols):
                    counts[pair] -= n
                k = 0
                while k + 1 < len(symbols):
                    if (symbols[k], symbols[k + 1]) == best:
                        symbols[k:k + 2] = [joined]
                    k += 1
                for pair in itertools.pairwise(symbols):
                    counts[pair] = counts.get(pair, 0) + n
                    where.setdefault(pair, set()).add(i)
            counts[best] = 0

    def write(self, writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        for key, token in self.ids.items():
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", self.tokens.index(token))
        writer.add_add_bos_token(self.pre == "llama-bpe")


# ---------------------------------------------------------------------------------------------------------------------
# The forward pass of the dense families, in float64 on the exact values of the weights


class Forward:
    """Reads one GGUF file. Everything after dequantisation is float64; only the results are rounded."""

    def __init__(self, path):
        self.path = Path(path)
        self.reader = GGUFReader(self.path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.arch = self.get("general.architecture")
        assert self.arch in ("llama", "mistral", "qwen2", "qwen3", "gemma3"), self.arch
        gemma = self.arch == "gemma3"
        key = lambda k, default=None: self.get(f"{self.arch}.{k}", default)
        self.n_layers = key("block_count")
        self.n_heads = key("attention.head_count")
        self.n_kv = key("attention.head_count_kv", self.n_heads)
        self.width = key("embedding_length")
        self.head_dim = key("attention.key_length", self.width // self.n_heads)
        self.n_rot = key("rope.dimension_count", self.head_dim)
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.split_halves = self.arch not in ("llama", "mistral")  # rotate (i, i + n_rot/2), not (2i, 2i + 1)
        self.embd_scale = np.sqrt(self.width) if gemma else 1.0
        self.score_width = self.width / self.n_heads if gemma and self.n_layers == 62 else self.head_dim
        self.window = key("attention.sliding_window", 0)
        pattern = key("attention.sliding_window_pattern", 6 if gemma else 0)
        self.slides = [bool(pattern[i]) if isinstance(pattern, list) else pattern == 0 or i % pattern != pattern - 1
                       for i in range(self.n_layers)] if self.window else [False] * self.n_layers
        self.freqs, self.magnitude = self.frequencies(key)
        pairs = np.arange(self.n_rot // 2) * 2.0 / self.n_rot
        self.local_freqs = key("rope.freq_base_swa", 10000.0) ** -pairs if gemma else self.freqs

    def get(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def frequencies(self, key):
        """Radians a position of each pair, and what cos and sin are multiplied by (YaRN: Peng et al., 2023)."""
        base, pairs = key("rope.freq_base", 10000.0), np.arange(self.n_rot // 2)
        freqs = base ** (-2.0 * pairs / self.n_rot)
        kind, factor = key("rope.scaling.type", "none"), key("rope.scaling.factor", 1.0)
        magnitude = key("rope.scaling.attn_factor", 1.0)
        if "rope_freqs.weight" in self.tensors:
            freqs = freqs / self.weight("rope_freqs.weight")
        if kind == "linear":
            freqs = freqs / factor
        elif kind == "yarn":
            length = key("rope.scaling.original_context_length", key("context_length"))
            bound = [self.n_rot * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base))
                     for turns in (key("rope.scaling.yarn_beta_fast", 32.0), key("rope.scaling.yarn_beta_slow", 1.0))]
            low, high = max(np.floor(bound[0]), 0), min(np.ceil(bound[1]), self.n_rot - 1)
            slow = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
            freqs = freqs / factor * slow + freqs * (1 - slow)
            magnitude *= key("rope.scaling.yarn_attn_factor", 0.1 * np.log(factor) + 1 if factor > 1 else 1.0)
        else:
            assert kind == "none", kind
        return freqs, magnitude

    def weight(self, name):
        t = self.tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float64).reshape(tuple(int(n) for n in reversed(t.shape)))

    def linear(self, name, x):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name + ".weight")

    def norm_if(self, name, x):
        return self.norm(name, x) if name + ".weight" in self.tensors else x

    def act(self, x):
        if self.arch == "gemma3":
            return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x ** 3)))
        return x / (1.0 + np.exp(-x))

    def rope(self, x, layer):
        """x [T, heads, head_dim], rows at positions 0..T-1."""
        half = self.n_rot // 2
        local = self.slides[layer]
        angle = np.arange(len(x))[:, None] * (self.local_freqs if local else self.freqs)
        magnitude = self.magnitude if not local or self.local_freqs is self.freqs else 1.0
        cos, sin = np.cos(angle)[:, None, :] * magnitude, np.sin(angle)[:, None, :] * magnitude
        first, second = ((slice(0, half), slice(half, self.n_rot)) if self.split_halves
                         else (slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)))
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def attend(self, q, k, v, layer):
        """q [T, H, d], k and v [T, G, d]; query head h reads kv head h * G / H; causal, in sliding layers not beyond
        the window."""
        n, group = len(q), self.n_heads // self.n_kv
        mask = np.triu(np.full((n, n), -np.inf), 1)
        if self.slides[layer]:
            mask += np.tril(np.full((n, n), -np.inf), -self.window)
        out = np.empty_like(q)
        for h in range(self.n_heads):
            s = q[:, h] @ k[:, h // group].T / np.sqrt(self.score_width) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = s @ v[:, h // group] / s.sum(-1, keepdims=True)
        return out.reshape(n, -1)

    def hidden(self, sequences):
        """Final normed states of several sequences, so that each weight is dequantised once."""
        cuts = np.cumsum([len(s) for s in sequences])[:-1]
        x = self.weight("token_embd.weight")[np.concatenate(sequences)] * self.embd_scale
        for layer in range(self.n_layers):
            b = f"blk.{layer}."
            a = self.norm(b + "attn_norm", x)
            q, k, v = (self.linear(b + n, a).reshape(len(x), -1, self.head_dim) for n in ("attn_q", "attn_k", "attn_v"))
            q, k = self.norm_if(b + "attn_q_norm", q), self.norm_if(b + "attn_k_norm", k)
            parts = zip(*(np.split(t, cuts) for t in (q, k, v)))
            mixed = np.concatenate([self.attend(self.rope(qs, layer), self.rope(ks, layer), vs, layer)
                                    for qs, ks, vs in parts])
            x = x + self.norm_if(b + "post_attention_norm", self.linear(b + "attn_output", mixed))
            a = self.norm(b + "ffn_norm", x)
            gate = self.act(self.linear(b + "ffn_gate", a)) * self.linear(b + "ffn_up", a)
            x = x + self.norm_if(b + "post_ffw_norm", self.linear(b + "ffn_down", gate))
        return np.split(self.norm("output_norm", x), cuts)

    def head(self):
        return self.weight("output.weight" if "output.weight" in self.tensors else "token_embd.weight")


def log_softmax(logits):
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


# ---------------------------------------------------------------------------------------------------------------------
# llama.cpp


class Llama:
    """One model in llama.cpp on the CPU: f16 KV cache unless asked for f32, no flash attention, two threads."""

    def __init__(self, path, vocab_only=False, n_ctx=2048, n_threads=2, kv_f32=False):
        import llama_cpp as L
        self.L = L
        self._quiet = L.llama_log_callback(lambda level, text, user: None)
        L.llama_log_set(self._quiet, ctypes.c_void_p())
        L.llama_backend_init()
        mp = L.llama_model_default_params()
        mp.vocab_only, mp.n_gpu_layers = vocab_only, 0
        self.model = L.llama_model_load_from_file(str(path).encode(), mp)
        assert self.model, path
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        if not vocab_only:
            cp = L.llama_context_default_params()
            cp.n_ctx = cp.n_batch = n_ctx
            cp.n_ubatch = 512
            cp.n_threads = cp.n_threads_batch = n_threads
            cp.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED
            cp.type_k = cp.type_v = L.GGML_TYPE_F32 if kv_f32 else L.GGML_TYPE_F16
            self.ctx = L.llama_init_from_model(self.model, cp)
            assert self.ctx

    def tokenize(self, raw, special, add_special=False):
        room = 4 * len(raw) + 16  # a byte that is no UTF-8 becomes U+FFFD, three tokens at most
        out = (self.L.llama_token * room)()
        n = self.L.llama_tokenize(self.vocab, raw, len(raw), out, room, add_special, special)
        assert n >= 0
        return list(out[:n])

    def piece(self, token):
        buf = ctypes.create_string_buffer(512)
        n = self.L.llama_token_to_piece(self.vocab, token, buf, len(buf), 0, True)
        assert n >= 0
        return buf.raw[:n]

    def reset(self):
        self.L.llama_memory_clear(self.L.llama_get_memory(self.ctx), True)

    def decode(self, tokens, past=0):
        """Logits [T, V] (float32) of all rows of one batch that follows `past` cached tokens."""
        batch = self.L.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(t), past + i, 1, 1
            batch.seq_id[i][0] = 0
        status = self.L.llama_decode(self.ctx, batch)
        assert status == 0, status
        rows = np.ctypeslib.as_array(self.L.llama_get_logits(self.ctx), (len(tokens), self.n_vocab)).copy()
        self.L.llama_batch_free(batch)
        return rows


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for part in iter(lambda: f.read(1 << 20), b""):
            digest.update(part)
    return digest.digest()


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
