#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Small SentencePiece vocabularies, and what their own library and llama.cpp make of the strings of tok_strings.bin.

    python3 pieces.py [GEMMA3.gguf]

Trains three vocabularies of about a thousand pieces with the package sentencepiece and writes each to
tests/golden/vocab_sp_NAME.gguf, and the tokens of every string to tok_sp_NAME.bin; with the model file also
tok_real_gemma.bin. Run tokenizer.py first: it writes the strings.

    prefix    as Llama 2, TinyLlama and Mistral: a space in front, tokens for bytes
    plain     as Gemma: no space in front, runs of spaces, user-defined tokens, tokens for bytes
    unknown   no tokens for bytes: a character without a piece is unknown

The layout of tok_*.bin is that of tokenizer.py. The reference is llama.cpp; for `unknown`, on which llama.cpp throws, it
is sentencepiece. Where both can be asked (valid UTF-8 without texts of special tokens) they are compared here, and must
agree. Strings that are not valid UTF-8 have no reference: both libraries change or merge bytes that belong to no
character, where dendrite keeps each.
"""

import io
import struct
import sys

import sentencepiece as spm
from gguf import GGUFWriter, TokenType

import golden_lib as lib
import tokenizer as T

ABSENT = SAME = 0xFFFFFFFF
CONTROL = ["<start_of_turn>", "<end_of_turn>", "<|long|>", "<|long|><|longer|>"]
USER = ["\n\n", "\t\t\t\t", "<tool_call>", "\u65e5\u672c\u8a9e", "Hello World", "[multimodal]"]


def train(name):
    text = [(lib.GOLDEN / "ppl_text.txt").read_text()] + (T.ENGLISH + T.CODE + T.SCRIPTS + T.EMOJI) * 2
    lines = [line for t in text for line in t.split("\n") if line]
    model = io.BytesIO()
    options = dict(model_type="bpe", vocab_size=1000, num_threads=1, normalization_rule_name="identity",
                   remove_extra_whitespaces=False, byte_fallback=name != "unknown", character_coverage=0.98,
                   add_dummy_prefix=name != "plain", split_digits=name != "unknown", max_sentence_length=100000,
                   allow_whitespace_only_pieces=name == "plain", minloglevel=2)
    if name == "plain":
        options.update(control_symbols=CONTROL, user_defined_symbols=USER, pad_id=0, eos_id=1, bos_id=2, unk_id=3)
    else:
        options.update(control_symbols=CONTROL[2:])
    if name == "unknown":
        options.update(vocab_size=800)
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return spm.SentencePieceProcessor(model_proto=model.getvalue())


def write_vocab(sp, name, path):
    tokens, scores, types = [], [], []
    for i in range(sp.vocab_size()):
        text, kind = sp.id_to_piece(i), TokenType.NORMAL
        if sp.is_unknown(i):
            kind = TokenType.UNKNOWN
        elif sp.is_control(i):
            kind = TokenType.CONTROL
        elif sp.is_byte(i):
            kind = TokenType.BYTE
        elif sp.is_unused(i):
            kind = TokenType.UNUSED
        elif text in USER:
            kind = TokenType.USER_DEFINED
        if name == "plain" and text == "[multimodal]":
            kind = TokenType.UNUSED  # as a file may say of one that is never looked for
        tokens.append(text.replace("\u2581", " ") if kind == TokenType.USER_DEFINED else text)
        scores.append(sp.get_score(i))
        types.append(kind)
    w = GGUFWriter(path, "llama")
    w.add_name(f"vocabulary only, pieces, {name}")
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_unk_token_id(sp.unk_id())
    if name == "plain":
        w.add_add_space_prefix(False)
        w.add_add_bos_token(False)
    lib.finish(w)
    return tokens, types


def is_utf8(raw):
    try:
        raw.decode()
        return True
    except UnicodeDecodeError:
        return False


def put(out, strings, answer):
    """answer(raw) gives (plain, special) or None."""
    data, n_tokens, absent = [b"DTG1", struct.pack("<I", len(strings))], 0, 0
    for raw in strings:
        both = answer(raw) if is_utf8(raw) else None
        if both is None:
            absent += 1
            data.append(struct.pack("<I", ABSENT))
            continue
        plain, special = both
        n_tokens += len(plain)
        data.append(struct.pack(f"<I{len(plain)}i", len(plain), *plain))
        data.append(struct.pack("<I", SAME) if special == plain
                    else struct.pack(f"<I{len(special)}i", len(special), *special))
    out.write_bytes(b"".join(data))
    print(f"{out.name}: {out.stat().st_size} bytes, {n_tokens} plain tokens, {absent} strings without a reference")


def main():
    strings = T.build_strings()
    for name in ("prefix", "plain", "unknown"):
        sp = train(name)
        path = lib.GOLDEN / f"vocab_sp_{name}.gguf"
        tokens, types = write_vocab(sp, name, path)
        print(f"{path.name}: {path.stat().st_size} bytes, {len(tokens)} tokens")
        special = [t.encode() for t, k in zip(tokens, types)
                   if k in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN, TokenType.UNUSED)]

        def by_library(raw):
            if any(t in raw for t in special) or raw == b"":
                return None
            ids = sp.encode(raw.decode())
            return ids, ids

        if name == "unknown":
            put(lib.GOLDEN / f"tok_sp_{name}.bin", strings, by_library)
            continue
        model = lib.Llama(path, vocab_only=True)
        n = wrong = 0
        for raw in strings:
            both = by_library(raw) if is_utf8(raw) else None
            if both:
                n += 1
                wrong += both[0] != model.tokenize(raw, False)
        print(f"    sentencepiece and llama.cpp compared on {n} strings, {wrong} differ")
        assert wrong == 0
        put(lib.GOLDEN / f"tok_sp_{name}.bin", strings, lambda raw: (model.tokenize(raw, False), model.tokenize(raw, True)))
    for path in sys.argv[1:]:
        model = lib.Llama(path, vocab_only=True)
        put(lib.GOLDEN / "tok_real_gemma.bin", strings, lambda raw: (model.tokenize(raw, False), model.tokenize(raw, True)))
    print(lib.versions())


if __name__ == "__main__":
    main()
