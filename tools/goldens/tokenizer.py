#!/usr/bin/env python3
"""Strings, small vocabularies, and what llama.cpp makes of the strings.

    python3 tokenizer.py [--check] [SMOLLM2.gguf QWEN2.gguf]

Writes tests/golden/tok_strings.bin, vocab_<pre>.gguf and tok_tiny_<pre>.bin for the pre-tokenizers gpt2, smollm, qwen2
and llama-bpe, and, where the two model files are given, tok_real_smollm.bin and tok_real_qwen2.bin. --check also compares
the small vocabularies' plain tokens with those of the package tokenizers, string by string.

Layouts, little-endian:
    tok_strings.bin   "DTS1", u32 n, n x { u32 n_bytes, u8 bytes[n_bytes] }
    tok_*.bin         "DTG1", u32 n, n x { u32 n_plain, i32 plain[n_plain], u32 n_special, i32 special[n_special] }
plain: special tokens in the text are text (parse_special=false); special: they are parsed. No BOS or EOS is added.
n_plain  0xFFFFFFFF  llama.cpp gives no answer (it throws on code points above U+10FFFF); no tokens and no n_special follow
n_special 0xFFFFFFFF  the same tokens as plain; none follow
"""

import struct
import sys
import unicodedata

import numpy as np
from gguf import GGUFWriter, TokenType

import golden_lib as lib

SEED = 20263
N_MERGES = 650
ABSENT = SAME = 0xFFFFFFFF

# Bytes that SmolLM2's own vocabulary lacks; a text with one of them loses it.
SMOLLM_MISSING = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]

# ---------------------------------------------------------------------------------------------------------------------
# Strings

ENGLISH = """
The quick brown fox jumps over the lazy dog.
It was raining when we left the harbour, and nobody had thought to bring an umbrella.
"Who's there?" she asked. "It's only me," he said.
We'd've gone if you'd asked; they'll say we shouldn't have, I'm sure.
I'M SURE THEY'LL SAY WE'D'VE GONE, IT'S WHAT YOU'RE FOR, ISN'T IT?
Don'T mix CaSeS, iT'S hard'Ll read, We'Re fine'D, I'vE 'Tis 'twas
'Twas brillig; rock 'n' roll; the '90s; o'clock; y'all'd've
Dr. Smith (Ph.D.) arrived at 9:30 a.m. on Jan. 3rd, 1999 -- late, as usual...
e-mail: someone@example.org, see https://example.org/a/b?c=d&e=f#g or ftp://x.y
50% of $1,234.56 is $617.28; 3/4 + 1/2 = 1.25; 10^6; 2**16 == 65536
supercalifragilisticexpialidocious antidisestablishmentarianism
ALL CAPS AND camelCase and PascalCase and snake_case and kebab-case and SCREAMING_SNAKE
a b c d e f g
I
A tokenizer splits text; a detokenizer joins tokens.
one  two   three    four     five
tab\there\t\tand there\t
Line one\nLine two\r\nLine three\rLine four
caf\u00e9 na\u00efve r\u00e9sum\u00e9 fa\u00e7ade co\u00f6perate \u00c6on \u0153uvre
\u201cCurly quotes\u201d and \u2018single ones\u2019 \u2014 with a dash \u2013 and an ellipsis\u2026
it\u2019s, don\u2019t, we\u2019ll: the other apostrophe
'\u017f '\u017fa x'\u017f '\u017f\u017f '\u212a'S '\u0130'D
""".strip("\n").split("\n")

CODE = [
    "#include <stdio.h>\n\nint main(void)\n{\n\tprintf(\"%d\\n\", 42);\n\treturn 0;\n}\n",
    "def f(x, *args, **kw):\n    \"\"\"Doc.\"\"\"\n    return [y ** 2 for y in args if y != x]\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; } /* done */",
    "fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<u8> = vec![0; 16];\n    Ok(())\n}",
    "const f = async (x) => { await g(`${x}`); return x?.y ?? null; };",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 10 GROUP BY 1 ORDER BY 2 DESC;",
    "<!DOCTYPE html>\n<html><body class=\"a b\"><p>Hi &amp; bye</p></body></html>",
    "{\"key\": [1, 2.5, -3e-7, true, null], \"s\": \"\\u00e9\\n\"}",
    "func (s *Server) Run(ctx context.Context) error {\n\treturn nil\n}",
    "template <typename T, int N = 4> struct A : B<T> { T x[N]{}; };",
    "#!/bin/sh\nset -eu\nfor f in *.c; do cc -O2 \"$f\" -o \"${f%.c}\" || exit 1; done",
    "x = lambda a: a if a else -a  # abs\n\n\nclass A(B):\n\n    pass\n",
    "\\documentclass{article}\\begin{document}$\\frac{1}{2}\\alpha_{i}^{2}$\\end{document}",
    "mov rax, [rbx+8*rcx-0x10]\n  jne .L3\n",
    "if(a&&b||!c){d<<=2;e>>>=1;f=~g^h%i;}",
    "std::vector<std::pair<int,int>> v{{1,2},{3,4}};",
    "0x1F 0b1010 0o17 1_000_000 1e-9 .5 5. 0xDEADBEEFull 3.14f",
    "r'^[A-Za-z_][\\w.-]*@(?:\\d{1,3}\\.){3}\\d+$'",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n",
    "        deep indent\n            deeper\n\t\t\ttabs\n \t mixed\n",
    "<?php echo $a['b']->c; ?>\n{{ x|y }} {% if z %}",
    "key: value\nlist:\n  - a\n  - b: {c: d}\n---\n",
    "a->b.c::d[e](f)\n//////////////////////////\n/***********************/\n",
    "=====\n-----\n_____\n*****\n#####\n.....\n",
]

SCRIPTS = """
Die Stra\u00dfe f\u00fchrt \u00fcber die gr\u00fcne Br\u00fccke; \u00dcbergr\u00f6\u00dfentr\u00e4ger f\u00fcr \u00c4pfel.
Le gar\u00e7on a mang\u00e9 une cr\u00eape \u00e0 l\u2019\u0153uf, \u00ab bien s\u00fbr \u00bb, dit-il.
\u00bfD\u00f3nde est\u00e1 el ni\u00f1o? \u00a1Ma\u00f1ana ser\u00e1 otro d\u00eda!
Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144; p\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148
\u0130stanbul'da \u0131\u015f\u0131k, \u011f\u00fcne\u015f ve \u00e7i\u00e7ek
Xin ch\u00e0o, t\u00f4i t\u00ean l\u00e0 Nguy\u1ec5n v\u00e0 t\u00f4i \u1edf H\u00e0 N\u1ed9i.
\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a, \u0434\u0430 \u0432\u044b\u043f\u0435\u0439 \u0447\u0430\u044e.
\u0414\u043e\u0431\u0440\u043e\u0433\u043e \u0440\u0430\u043d\u043a\u0443! \u042f \u0457\u0434\u0443 \u0434\u043e \u041a\u0438\u0454\u0432\u0430.
\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5, \u03c4\u03b9 \u03ba\u03ac\u03bd\u03b5\u03b9\u03c2 \u03c3\u03ae\u03bc\u03b5\u03c1\u03b1;
\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427\u3002
\u4f60\u597d\uff0c\u4e16\u754c\uff01Hello\u4e16\u754c123\u4e2d\u6587
\u53f0\u7063\u7684\u7e41\u9ad4\u5b57\uff1a\u9f98\u9f49\u9f47
\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002\u30b3\u30f3\u30d4\u30e5\u30fc\u30bf\u30fc\u3068\uff8a\uff9d\uff76\uff78
\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u300c\u5f15\u7528\u300d\u3068\u6570\u5b57\uff11\uff12\uff13
\uc548\ub155\ud558\uc138\uc694, \uc138\uacc4! \uc624\ub298\uc740 \ub0a0\uc528\uac00 \uc88b\ub124\uc694.
\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645! \u0643\u064a\u0641 \u062d\u0627\u0644\u0643 \u0627\u0644\u064a\u0648\u0645\u061f
\u0671\u0644\u0652\u062d\u064e\u0645\u0652\u062f\u064f \u0644\u0650\u0644\u0651\u064e\u0647\u0650 \u0661\u0662\u0663\u0664
\u0633\u0644\u0627\u0645 \u062f\u0646\u06cc\u0627\u060c \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u06f1\u06f2\u06f3
\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd! \u05de\u05d4 \u05e0\u05e9\u05de\u05e2?
\u05d1\u05bc\u05b0\u05e8\u05b5\u05d0\u05e9\u05c1\u05b4\u05d9\u05ea \u05d1\u05bc\u05b8\u05e8\u05b8\u05d0
\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e, \u0906\u091c \u0915\u093e \u0926\u093f\u0928 \u0905\u091a\u094d\u091b\u093e \u0939\u0948\u0964 \u0967\u0968\u0969
\u0995\u09cd\u09b7 \u09ac\u09be\u0982\u09b2\u09be \u09ad\u09be\u09b7\u09be \u09e7\u09e8
\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bae\u0bca\u0bb4\u0bbf \u0be7\u0be8
\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35 \u0e51\u0e52\u0e53
\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b \u0f21\u0f22
\u1019\u103c\u1014\u103a\u1019\u102c\u1005\u102c \u17a2\u1780\u17d2\u179f\u179a\u1781\u17d2\u1798\u17c2\u179a
\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u1265\u122d\u1203\u1295 \u13e3\u13b3\u13a9 \u1403\u14c4\u1483
\u0540\u0561\u0575\u0565\u0580\u0565\u0576 \u16a0\u16c7\u16bb \u1820\u1821 \ua015\ua016 \U00010330\U00010331 \U00012000\U00012001
""".strip("\n").split("\n")

EMOJI = """
\U0001f600 \U0001f602\U0001f602\U0001f602 \u2764\ufe0f \u2764 \U0001f44d\U0001f3fd
\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family \U0001f469\U0001f3fe\u200d\U0001f4bb coder
\U0001f3f3\ufe0f\u200d\U0001f308 \U0001f3f4\u200d\u2620\ufe0f \U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea\U0001f1ef\U0001f1f5
\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f
1\ufe0f\u20e3 2\u20e3 #\ufe0f\u20e3 \u00a9\ufe0f \u2122 \u231a\ufe0e
text\U0001f680text \U0001f680 123\U0001f680456 \U0001f680\U0001f680!\U0001f680
\U0001f9d1\u200d\U0001f91d\u200d\U0001f9d1 \U0001f441\ufe0f\u200d\U0001f5e8\ufe0f \U0001fae0\U0001fae8
\u00af\\_(\u30c4)_/\u00af (\u256f\u00b0\u25a1\u00b0)\u256f\ufe35 \u253b\u2501\u253b
\u2192\u2190\u21d2 \u2200x\u2208\u211d: \u221ax\u22650 \u222b\u2211\u220f \u2260\u2248 \u00b1\u00d7\u00f7
\u2500\u2502\u250c\u2510 \u2588\u2593\u2592\u2591 \u25cf\u25cb\u25a0 \u2713\u2717 \u20ac\u00a3\u00a5\u20b9\u20bf
\U0001d400\U0001d401\U0001d552 \U0001d7d8\U0001d7ce \u24b6\u24d0 \u2460\u2461 \uff21\uff42
""".strip("\n").split("\n")

SPACES = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
          "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff"]

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|begin_of_text|>", "<|eot_id|>",
    "a<|im_start|>b", " <|im_end|> ", "\n<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_start|><|im_start|><|im_start|>",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|", "|im_start|>", "<<|im_start|>>", "<|im_<|im_end|>start|>", "<|im_st", "art|>", "<|IM_START|>",
    "<| im_start |>", "<|im_start|>\u200b", "\u4f60<|im_end|>\u597d", "<|im_end|>'s", "don<|im_end|>'t", "1<|im_end|>23",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "x<tool_call>y</tool_call>z", "<tool_call><tool_call>", "<tool_call",
    "<|endoftext|><|endoftext|>text<|endoftext|>", "  <|endoftext|>  ", "<|endoftext|>\xff<|endoftext|>",
    "<|long|><|longer|>", "<|long|>", "<|longer|>", "<|long|><|long|>", "<|long|><|longer|><|longer|>", "<|long|><|long",
    "\u65e5\u672c\u8a9e", "a\u65e5\u672c\u8a9eb", "\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e", "\u65e5\u672c", "x Hello World y", "Hello World", "Hello  World",
    "HelloWorld", "\t\t\t\t", "\t\t\t\t\t", "a\t\t\t\tb", "\t\t\t", "\t\t\t\t\t\t\t\t\t", " \t\t\t\t ", "[PAD0]", "a[PAD0]b",
    "<unk>", "a<unk>b", "<s>", "</s>", "[INST]", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<|file_sep|>", "<repo_name>x<file_sep>",
    "\x00<|im_start|>\x00", "\xe9<|im_end|>\xe9", "<|im_start|>" + "a" * 40 + "<|im_end|>", "<|\u0130m_start|>",
    " telescope", "telescope", " telescopes", "\ntelescope", " conversations", "conversations", "xtelescope", " marmalade!",
]

# Characters at which pre-tokenizers part ways: white space and what resembles it, marks, numbers and letters of every
# kind, letters of Unicode 15.1 and of 16, what belongs to no class. Each is set beside every neighbour, and small_vocab
# has merges across all these seams, so that a word cut at a wrong place shows in the tokens.
SEAMS = ("\x1c\x1f\x7f\x85\xa0\xad\u1680\u180e\u2003\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"  # spaces or not
         "\u0301\u0903\u20e3\u0488"                                                              # Mn, Mc, Me
         "\u00b2\u00bd\u0663\uff15\u2163\u3007\u2460\U0001d7d8"                                  # No, Nd, Nl
         "\u00aa\u01c5\u02b0\u0130\u017f\u0416\u4e2d\uac00\u0e01\u3005\U00010400\U0001d400\U0002ebf0"  # Lo, Lt, Lm, Lu, Ll
         "\u0378\u1c89\ue000\ufffd\ufdd0\u2014\u20ac\u2192\U0001f600\u200d\ufe0f")                # Cn, Co, P, S, Cf
NEIGHBOURS = " a1!\n"

INVALID = [bytes.fromhex(h) for h in """
80 bf ff fe c0 c1 c3 e2 f0 f4 f5 f8 fc 8080 bfbfbf 6180 8061 618062 c328 c3c3 c3a9c3 e282 e228a1 e28228 e282ac80 e282e282
f09f f09f98 f09f9880f09f f0288c bc f028 8c28 c080 c0af c1bf e08080 e09fbf f0808080 f08fbfbf eda080 edafbf edb080 edbfbf
eda0bdedb880 edad80 f8888080 80 f888808080 fc84808080 80 fe8080 ffff 20ff20 ff20ff 41c3 c341 f09f41 61e4bd 61e4bd62 e4bda0e5a5
e4bda0ffe5a5bd 2780 2773ff ff2773 3031ff3233 0aff0a 0d0aff c2 c2a0 a0 85 c285 e38080 e380 80e3 f48fbfbf f3a08081 efbfbf efbfbe
efb790 eda08061 61edb08062 c39f c4b0 ccff cc81 65cc81 cc8165 edb080eda080 f0 9f f1 f180 f18080 f1808080 f2808080 f3808080
""".split()] + [b"ab\xc3", b"\xc3\xa9\xc3", b"hello \xff\xfe world", b"\xe2\x82\xac\xe2\x82", b"caf\xe9 ol\xe9", b"\x93quoted\x94",
                b"\xff" * 9, b"\x80" * 17, b"\xc3\x28" * 5, b"a\x00b\x00\x00", b"\x00", b"\x00\x00\x00", b"\x00a", b" \x00 "]

ABOVE = [bytes.fromhex(h) for h in "f4908080 61f4908080 f4bfbfbf f5808080 f7bfbfbf 20f690bf8020".split()]


def pieces_for_mixing():
    words = ["the", "The", " and", "of", "'s", "'LL", "'re", "x", "A", "foo", "Bar", "\u00e9", "\u00fc", "\u00df", "\u017f", "\u0416", "\u4e2d", "\u6587", "\u3042", "\uac00",
             "\u0639", "\u05d0", "\u0905", "\u094d", "\u0e01", "\u0301", "\u0308", "\u20e3", "1", "12", "123", "2024", "\u0663", "\uff15", "\u00bd", "\u2163", "\u00b2", ".", ",", "!",
             "...", "?!", "(", ")", "\"", "'", "''", "-", "--", "_", "/", "\\", "#", "@", "$", "%", "&", "*", "+", "=", "<", ">",
             "|", "~", "`", "^", ";", ":", "[]", "{}", "\u2014", "\u2026", "\u201c", "\u3002", "\U0001f600", "\u200d", "\ufe0f", "\x01", "\x7f", "\xad", "\ufffd",
             "\ue000", "\U000f0000", "\u0378", "<|im_end|>", "<|im_start|>", "<tool_call>"]
    return words + SPACES + [" "] * 20 + ["\n"] * 6


def build_strings():
    rng = np.random.Generator(np.random.PCG64(SEED))
    text = ENGLISH + CODE + SCRIPTS + EMOJI
    out = [""]
    add = out.append
    out += text
    # decomposed and composed forms, and stacked marks
    for s in ENGLISH[18:20] + SCRIPTS[:8] + SCRIPTS[14:15] + SCRIPTS[19:21]:
        add(unicodedata.normalize("NFD", s))
    out += ["e\u0301", "e\u0301\u0302\u0303", "\u0301", " \u0301", "a\u0301 b\u0308", "\u0301\u0301\u0301", "x\u20e3y", "\u0915\u094d\u0937\u093f", "Z\u0351\u034c\u0300a\u0320l\u0316g\u0334o\u0337",
            "1\u0301", "!\u0301", "\n\u0301", "n\u0303o\u0301n"]
    # whitespace: each kind alone, in runs, before and after a word, before a break, at the end
    for c in SPACES:
        out += [c, c * 3, "a" + c + "b", c + "a" + c * 2, c + " b", "a " + c, c + "1" + c + ".", "\n" + c + "\n"]
    for n in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31):
        out += [" " * n, " " * n + "a", "a" + " " * n, "a" + " " * n + "b", "\n" * n, " " * n + "\n", "\n" + " " * n + "x"]
    out += ["\r\n\r\n", "a\r\n\r\nb", "\n\r", " \r\n ", "a \n b", "a  \n\n  b", "\n \n \n", " \n", "\n ", "  \n  \n", "x\n\n\n", "!\n\n",
            "!\r\n x", " !\n", ". \n", ".\n.", "a.\n\n\tb", "\t \t", " \t\n", "\t\n\t", "\xa0\xa0a", " \xa0a", "\u3000\u3000a", "\u3000\n", "\u2028a"]
    # numbers
    for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 13, 20):
        digits = "".join(chr(48 + int(d)) for d in rng.integers(0, 10, n))
        out += [digits, " " + digits, "a" + digits + "b"]
    out += ["3.14159", "-1", "1,000,000", "1.5e-10", "+1 (555) 010-9999", "12:34:56.789", "2026-01-31T23:59:59Z", "192.168.0.1", "v1.2.3-rc4",
            "1st 2nd 3rd", "0x7fff", "\u0661\u0662\u0663\u0664\u0665", "\u0967\u0968\u0969\u096a", "\uff11\uff12\uff13\uff14", "1\u0662\uff13", "\u00bd\u00bc\u2153", "x\u00b2+y\u00b3", "\u2160\u2161\u2162\u2163", "\u2460\u2461\u2462\u2463",
            "\u4e00\u4e8c\u4e09", "\U0001d7d8\U0001d7d9\U0001d7da\U0001d7db", "\u0bf0\u0bf1", "12\u00bd34", "\u3007", " \u00bd", "100%", "#1", "1a2b3c", "\U00010107\U00010108"]
    # contractions
    for c in ("s", "t", "re", "ve", "m", "ll", "d"):
        out += [f"x'{c}a", f"x'{c.upper()}a", f"x'{c.capitalize()}a 'a{c}", f"1'{c}1 '{c.upper()}1"]
        out += [f"'{c}", f"'{c.upper()}", f"it'{c}", f"IT'{c.upper()}", f" '{c}x", f"''{c}", f"1'{c}", f"'{c.capitalize()}'{c}"]
    out += ["x'\u017fa", "'\u017fa\u017f", "x'\u017f1"]
    out += ["'", "''", "'x", "' s", "'\ts", "'l", "'lL", "'r", "'v", "'rE", "'vE", "'\u017f", "'S\u017f", "'\u0455", "\u2019s", "`s", "\"s", "'sure", "'lly", "'\n", "'1", "'\u00e9", "'\u4e2d"]
    # punctuation
    out += ["!!!", "?!?!", "...", "....", "-->", "<--", "==>", "!=", "===", "&&", "||", "::", "//", "/*", "*/", "{{", "}}", "(((", ")))",
            "[]()", "#$%^&*", "~`", "@@@", " !!!", " ...a", "a...", "a.b.c", "(a)", "\"a\"", "a's\"", "...\n", "}\n\n", ");\n", "{\r\n", "};\n\n\n}", "_a_", "__init__", "-a",
            "\u00bfqu\u00e9?", "\u00aba\u00bb", "\u3001\u3002", "\uff01\uff1f", "\u2014a", "a\u2014b", "\u2026a", "\u00a7 1", "\u00b6", "\u2022 a", "\u20ac5", "\u00a35", "5\u20ac", "\xad", "a\xadb", "\u200b", "a\u200bb", "\u200d", "\ufeffa", "\ufffd"]
    # controls, unassigned, private use, noncharacters
    out += [chr(c) for c in range(1, 32) if chr(c) not in "\t\n\v\f\r\x1c\x1f"] + ["\x7f", "a\x01b", "\x1b[31mred\x1b[0m", "\x80", "\x9f", "a\x85b"]
    out += ["\u0378", "\ue000", "\uf8ff", "\ufdd0", "\uffff", "\U0001ffff", "\U000e0001", "\U000f1234", "\U0010ffff", "\U00040000", "\U00030000", "\U0002ebf0", "\u0897", "\u1c89",
            "\u31f0\U0001b000", "a\u0378b", "\u0378 \u0378", "\ue000\ue001 \ue002"]
    # letters with odd cases, marks that are numbers, letters that look like marks
    out += ["\u01c5\u01c8", "\u0130\u0131", "\u1e9e", "\ufb01\ufb02", "\u2126\u212a\u212b", "\u02b0\u02bc\u02c6", "\u2071\u207f", "\u0e33\u0eb3", "\u0f40\u0fb5", "\u2c00", "\ua640", "\uab30", "\U00010400", "\U0001e900", "\u3131", "\u1100\u1161\u11a8",
            "\u2e80\u2f00\u3005\u3006", "\U00020000\U0002a6d6", "\u0488\u0489", "\u3099\u309a", "\u302a", "\ua9c0", "\U0001d165", "\u16ee\u16ef", "\u3021", "\U00012400"]
    for x in SEAMS:
        out += [f"a{x}a 1{x}1!{x}! {x} {x}\n{x}\n", x + "a" + x + x + "1"]
    out += SPECIALS
    out = [s if isinstance(s, bytes) else s.encode("utf-8", "surrogatepass") for s in out]
    out += INVALID + ABOVE
    # random mixtures, code points, bytes
    mix = pieces_for_mixing()
    for _ in range(90):
        out.append("".join(mix[i] for i in rng.integers(0, len(mix), rng.integers(2, 16))).encode())
    for _ in range(30):
        plane = rng.choice([0x80, 0x800, 0x3100, 0x10000, 0x20000], rng.integers(1, 10))
        points = [int(rng.integers(0, p)) for p in plane]
        out.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000).encode())
    for _ in range(40):
        raw = rng.integers(0, 256, rng.integers(1, 24)).astype(np.uint8).tobytes()
        out.append(raw)
    for _ in range(20):  # valid text with a byte changed, taken out or put in
        raw = bytearray(text[rng.integers(0, len(text))].encode()[:40])
        at = int(rng.integers(0, len(raw)))
        raw[at:at + int(rng.integers(0, 2))] = rng.integers(0, 256, rng.integers(0, 3)).astype(np.uint8).tobytes()
        out.append(bytes(raw))
    unique = list(dict.fromkeys(out))
    unique.append(long_string(text))
    return unique


def long_string(text):
    """20,000 bytes without special tokens: runs first, then prose, then every text of the lists in turn."""
    parts = ["a" * 700, " " * 500, "\n" * 100, "ab" * 200, "0" * 300, "!" * 200, "\u00e9" * 100, "\u4e2d" * 100, " x" * 150]
    parts += [(lib.GOLDEN / "ppl_text.txt").read_text(), "\n".join(text)]
    raw = "".join(parts).encode()
    raw += raw[2500:]
    cut = raw[:20000]
    return cut.decode("utf-8", "ignore").encode()


def above_unicode(raw):
    """Whether a lenient four-byte decoder meets a code point above U+10FFFF: llama.cpp then throws out of its C API."""
    i = 0
    while i < len(raw):
        b = raw[i]
        need = 0 if b < 0x80 else 1 if 0xC0 <= b < 0xE0 else 2 if 0xE0 <= b < 0xF0 else 3 if 0xF0 <= b < 0xF8 else -1
        tail = raw[i + 1:i + 1 + max(need, 0)]
        if need < 0 or len(tail) < need or any(c & 0xC0 != 0x80 for c in tail):
            i += 1
            continue
        if need == 3 and (b & 7) << 18 | (tail[0] & 63) << 12 > 0x10FFFF:
            return True
        i += need + 1
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Vocabularies

NAMES = {"gpt2": "gpt-2", "smollm": "smollm", "qwen2": "qwen2", "llama-bpe": "llama-bpe"}


def small_vocab(pre):
    v = lib.Vocab(pre)
    C, U = TokenType.CONTROL, TokenType.USER_DEFINED
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if pre == "smollm":
        for t in control:
            v.add(t, C)
    order = [c for c in range(256) if lib.BYTE_CHARS[c] == chr(c)] + [c for c in range(256) if lib.BYTE_CHARS[c] != chr(c)]
    missing = {lib.BYTE_CHARS[b] for b in SMOLLM_MISSING} if pre == "smollm" else set()
    for b in order:
        if lib.BYTE_CHARS[b] not in missing:
            v.add(lib.BYTE_CHARS[b])
    text = [(lib.GOLDEN / "ppl_text.txt").read_text()] + (ENGLISH + CODE + SCRIPTS + EMOJI) * 2
    v.train(text, N_MERGES)
    seam_merges(v)
    # whole words that no chain of merges reaches: llama-bpe takes them nevertheless, the others never do
    for word in (" telescope", " conversations", " marmalade", "\ntelescope", "telescope"):
        if lib.to_alphabet(word.encode()) not in v.tokens:
            v.add(lib.to_alphabet(word.encode()))
    if pre == "llama-bpe":
        control = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"] + control
    for t in control:
        if t not in v.tokens:
            v.add(t, C)
    v.add("<|long|>", C)
    v.add("<|long|><|longer|>", C)
    v.add("<unk>", TokenType.UNKNOWN)
    v.add("[PAD0]", TokenType.UNUSED)
    for t in ("<tool_call>", "</tool_call>", "\u65e5\u672c\u8a9e", "Hello World", "\t\t\t\t"):  # verbatim, not in the byte alphabet
        v.add(t, U)
    if pre == "llama-bpe":
        v.ids = {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>"}
    elif pre == "gpt-2":
        v.ids = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
    elif pre == "smollm":
        v.ids = {"bos": "<|im_start|>", "eos": "<|im_end|>", "unknown": "<|endoftext|>"}
    else:
        v.ids = {"bos": "<|endoftext|>", "eos": "<|im_end|>"}
    return v


def seam_merges(v):
    """Tokens for the characters of SEAMS, and for each of them joined with itself and its neighbours on either side;
    and for a contraction's last letter joined with the letter after it."""
    def join(a, b):
        pair = f"{a} {b}"
        if a in v.tokens and b in v.tokens and pair not in v.merges:
            v.merges.append(pair)
            if a + b not in v.tokens:
                v.add(a + b)
    for c in SEAMS:
        x = lib.to_alphabet(c.encode())
        for i in range(1, len(x)):
            join(x[:i], x[i])
    for c in SEAMS:
        x = lib.to_alphabet(c.encode())
        for n in NEIGHBOURS:
            join(lib.to_alphabet(n.encode()), x)
            join(x, lib.to_alphabet(n.encode()))
        join(x, x)
    for a in "sStTeEmMlLdD":
        join(a, "a")
        join(a, "1")
        join("'", a)
    for c in ("s", "S", "t", "T", "re", "RE", "ve", "VE", "m", "M", "ll", "LL", "d", "D", "\u017f"):
        join("'" + lib.to_alphabet(c.encode()), "a")
    for a in NEIGHBOURS:
        for b in NEIGHBOURS:
            join(lib.to_alphabet(a.encode()), lib.to_alphabet(b.encode()))


def write_vocab(v, path):
    w = GGUFWriter(path, "llama")
    w.add_name(f"vocabulary only, {v.pre}")
    w.add_vocab_size(len(v.tokens))
    v.write(w)
    lib.finish(w)


# ---------------------------------------------------------------------------------------------------------------------
# Reference


def reference(model, strings, out):
    data = [b"DTG1", struct.pack("<I", len(strings))]
    plain_of, lossy, same, n_tokens = [], 0, 0, 0
    for raw in strings:
        if above_unicode(raw):
            data.append(struct.pack("<I", ABSENT))
            plain_of.append(None)
            continue
        plain, special = model.tokenize(raw, False), model.tokenize(raw, True)
        plain_of.append(plain)
        n_tokens += len(plain)
        data.append(struct.pack(f"<I{len(plain)}i", len(plain), *plain))
        if special == plain:
            same += 1
            data.append(struct.pack("<I", SAME))
        else:
            data.append(struct.pack(f"<I{len(special)}i", len(special), *special))
        back = b"".join(model.piece(t) for t in plain)
        if back != raw:
            lossy += 1
            try:
                raw.decode()
                if not any(b in SMOLLM_MISSING for b in raw):
                    print(f"    valid text, not given back: {raw[:60]!r} -> {back[:60]!r}")
            except UnicodeDecodeError:
                pass
    out.write_bytes(b"".join(data))
    print(f"{out.name}: {out.stat().st_size} bytes, {n_tokens} plain tokens, {len(strings) - same} strings with special "
          f"tokens or none, {lossy} not given back by detokenising")
    return plain_of


def compare_with_tokenizers(v, strings, plain_of):
    """The same vocabulary in the package tokenizers, over the strings that are valid UTF-8 and free of added tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    normal = {t: i for i, (t, k) in enumerate(zip(v.tokens, v.types)) if k == TokenType.NORMAL}
    merges = [tuple(m.split(" ")) for m in v.merges]
    t = Tokenizer(BPE(vocab=normal, merges=merges, ignore_merges=v.pre == "llama-bpe"))
    t.pre_tokenizer = lib.pre_tokenizer(v.pre)
    added = [x.encode() for x, k in zip(v.tokens, v.types) if k == TokenType.USER_DEFINED]
    tried = 0
    for raw, plain in zip(strings, plain_of):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            continue
        if plain is None or any(a in raw for a in added):
            continue
        tried += 1
        got = t.encode(text, add_special_tokens=False).ids
        if got != plain:
            print(f"    tokenizers differs: {text[:50]!r}")
            print(f"        {[v.tokens[i] for i in got][:14]} against {[v.tokens[i] for i in plain][:14]}")
    print(f"    tokenizers compared on {tried} strings")


def main():
    args = [a for a in sys.argv[1:] if a != "--check"]
    strings = build_strings()
    out = lib.GOLDEN / "tok_strings.bin"
    out.write_bytes(b"DTS1" + struct.pack("<I", len(strings)) + b"".join(struct.pack("<I", len(s)) + s for s in strings))
    print(f"{out.name}: {out.stat().st_size} bytes, {len(strings)} strings, {sum(map(above_unicode, strings))} above U+10FFFF")
    for short, pre in NAMES.items():
        v = small_vocab(pre)
        path = lib.GOLDEN / f"vocab_{short}.gguf"
        write_vocab(v, path)
        print(f"{path.name}: {path.stat().st_size} bytes, {len(v.tokens)} tokens, {len(v.merges)} merges")
        plain_of = reference(lib.Llama(path, vocab_only=True), strings, lib.GOLDEN / f"tok_tiny_{short}.bin")
        if "--check" in sys.argv[1:]:
            compare_with_tokenizers(v, strings, plain_of)
    for short, path in zip(("smollm", "qwen2"), args):
        reference(lib.Llama(path, vocab_only=True), strings, lib.GOLDEN / f"tok_real_{short}.bin")
    print(lib.versions())


if __name__ == "__main__":
    main()
