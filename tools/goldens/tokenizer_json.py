#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Small tokenizer.json files, and what the package tokenizers makes of the strings of tok_strings.bin.

    python3 tokenizer_json.py

Writes tests/golden/tokjson_NAME.json and tok_json_NAME.bin (layout: tokenizer.py; `plain` with encode_special_tokens, so
that texts of special tokens are text). Run tokenizer.py first. The vocabularies are those of tokenizer.py and pieces.py:

    smollm, qwen2, llama3   byte-level BPE, with the pre_tokenizers of SmolLM2, Qwen2 and Llama 3
    llama2                  pieces, spaces by a normalizer with Prepend; merges written "a b"
    gemma                   pieces, spaces by a normalizer; added tokens with spaces and U+2581
    mistral                 pieces, spaces by a Metaspace

Strings that are not valid UTF-8 have no reference, nor have two at which the library and llama.cpp part: it folds U+017F to
s, and knows U+1C89 for a letter.
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from gguf import TokenType

import golden_lib as lib
import pieces as P
import tokenizer as T

BAR = "\u2581"


def byte_level(pre):
    v = T.small_vocab(pre)
    vocab = {t: i for i, t in enumerate(v.tokens)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in v.merges],
                             ignore_merges=pre == "llama-bpe"))
    t.pre_tokenizer = lib.pre_tokenizer(pre)
    if pre == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre == "qwen2":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    added = [(i, x, k) for i, (x, k) in enumerate(zip(v.tokens, v.types)) if k != TokenType.NORMAL]
    if pre == "llama-bpe":
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                          special_tokens=[("<|begin_of_text|>", v.tokens.index("<|begin_of_text|>"))])])
    return t, added, v.ids


def merges_of(vocab, scores):
    """All ways to make a piece of two others, in the order in which the library transformers writes them."""
    merges = []
    for piece, score in scores.items():
        local = [(piece[:i], piece[i:], score) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    return [(a, b) for a, b, _ in sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)]


def sentence_pieces(name):
    sp = P.train("plain" if name == "gemma" else "prefix")
    vocab = {sp.id_to_piece(i): i for i in range(sp.vocab_size())}
    normal = {sp.id_to_piece(i): sp.get_score(i) for i in range(sp.vocab_size())
              if not (sp.is_unknown(i) or sp.is_control(i) or sp.is_byte(i))}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges_of(vocab, normal), unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    if name == "llama2":
        t.normalizer = normalizers.Sequence([normalizers.Prepend(BAR), normalizers.Replace(" ", BAR)])
    elif name == "gemma":
        t.normalizer = normalizers.Replace(" ", BAR)
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BAR, prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace(BAR, " "), decoders.ByteFallback(), decoders.Fuse()])
    added = [(i, p, TokenType.CONTROL) for p, i in vocab.items() if sp.is_unknown(i) or sp.is_control(i)]
    if name == "gemma":
        added += [(vocab[p], p, TokenType.USER_DEFINED) for p in ["\n\n", "\t\t\t\t", "<tool_call>", "\u65e5\u672c\u8a9e", BAR * 2]]
    else:
        t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", sp.bos_id())])
    return t, sorted(added), {"bos": sp.id_to_piece(sp.bos_id()), "eos": sp.id_to_piece(sp.eos_id())}


def main():
    strings = T.build_strings()
    for name, pre in (("smollm", "smollm"), ("qwen2", "qwen2"), ("llama3", "llama-bpe"), ("llama2", 0), ("gemma", 0), ("mistral", 0)):
        t, added, ids = byte_level(pre) if pre else sentence_pieces(name)
        for i, text, kind in added:
            token = AddedToken(text, normalized=False, special=kind != TokenType.USER_DEFINED)
            (t.add_special_tokens if token.special else t.add_tokens)([token])
        at = {text: t.token_to_id(text) for _, text, _ in added}
        spec = json.loads(t.to_str())
        if name == "llama2":
            spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
        path = lib.GOLDEN / f"tokjson_{name}.json"
        path.write_text(json.dumps(spec, ensure_ascii=name == "qwen2", separators=(",", ":")), encoding="utf-8")
        t = Tokenizer.from_file(str(path))
        assert all(t.token_to_id(x) == i for x, i in at.items())
        print(f"{path.name}: {path.stat().st_size} bytes, {t.get_vocab_size()} tokens, bos {ids['bos']}, eos {ids['eos']}")

        def answer(raw):
            text = raw.decode()
            if pre and ("'\u017f" in text or "\u1c89" in text):
                return None
            if name == "qwen2" and t.normalizer.normalize_str(text) != text:
                return None
            t.encode_special_tokens = True
            plain = t.encode(text, add_special_tokens=False).ids
            t.encode_special_tokens = False
            return plain, t.encode(text, add_special_tokens=False).ids

        P.put(lib.GOLDEN / f"tok_json_{name}.bin", strings, answer)
    print(lib.versions())


if __name__ == "__main__":
    main()
