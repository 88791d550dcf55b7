#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Write the table of character classes into the room of words.

    python3 tools/make_unicode_tables.py            replace the table in src/02_model/10_words.c
    python3 tools/make_unicode_tables.py --check    compare with it, write nothing

The pre-tokenizers ask three things of a code point: is it a letter (general category L*), a number (N*), white space
(property White_Space)? Each code point answers yes at most once, so that one table of runs holds it all. A run is a
word: its first code point times 4, plus its class. It ends where the next one begins.

The table is that of one version of Unicode, UNICODE below, so that a newer Python does not move it. That version comes
with Python 3.13, or with the package unicodedata2 for any other Python. Version 15.1 is the one that the tokenizers of
the reference use, on which the goldens were made.

Exit status: 0 done, 1 different, 2 wrong usage or no module of that version.
"""

import importlib
import os
import sys

UNICODE = "15.1.0"
ROOM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src/02_model/10_words.c")
BEGIN = "/* -- table made by tools/make_unicode_tables.py: do not edit ---------------- */\n"
END = "/* -- end of the table ------------------------------------------------------ */\n"
OTHER, LETTER, NUMBER, SPACE = range(4)
LAST = 0x10FFFF


def unicodedata():
    """A module that knows the version, or None."""
    for name in ("unicodedata", "unicodedata2"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if module.unidata_version == UNICODE:
            return module
    return None


def class_of(module, cp):
    """White_Space is not among the module's data: it is all separators (Z*) and six controls."""
    category = module.category(chr(cp))
    if category[0] == "Z" or 0x09 <= cp <= 0x0D or cp == 0x85:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def table(module):
    classes = [class_of(module, cp) for cp in range(LAST + 1)]
    runs = [cp << 2 | classes[cp] for cp in range(LAST + 1) if cp == 0 or classes[cp] != classes[cp - 1]]
    count = {c: classes.count(c) for c in (LETTER, NUMBER, SPACE)}
    lines = [BEGIN.rstrip("\n"),
             "/* Unicode %s: %d letters, %d numbers, %d white spaces. */"
             % (UNICODE, count[LETTER], count[NUMBER], count[SPACE]),
             "#define DENDP_UNI_RUNS %du" % len(runs),
             "/* clang-format off */",
             "static const uint32_t dendp_uni_runs[DENDP_UNI_RUNS] = {"]
    line = "   "
    for i, run in enumerate(runs):
        word = " 0x%x%s" % (run, "," if i + 1 < len(runs) else "")
        if len(line + word) > 110:
            lines.append(line)
            line = "   "
        line += word
    return "\n".join(lines + [line, "};", "/* clang-format on */", END])


def main():
    args = sys.argv[1:]
    if args not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    module = unicodedata()
    if module is None:
        print("no unicodedata of Unicode %s: use Python 3.13, or install unicodedata2 of that version" % UNICODE,
              file=sys.stderr)
        return 2
    with open(ROOM, encoding="ascii", newline="") as f:
        text = f.read()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print("%s: the lines that mark the table are not there" % ROOM, file=sys.stderr)
        return 2
    made = before + table(module) + after
    if args:
        print("the table is %s" % ("as made" if made == text else "different: run tools/make_unicode_tables.py"))
        return 0 if made == text else 1
    with open(ROOM, "w", encoding="ascii", newline="") as f:
        f.write(made)
    print("%s: table of Unicode %s written" % (os.path.relpath(ROOM), UNICODE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
