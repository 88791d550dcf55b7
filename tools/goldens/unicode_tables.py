#!/usr/bin/env python3
"""Print the Unicode ranges that the pre-tokenizers need, as C, to stdout.

Four tables of inclusive code-point ranges, {first, last} in rising order, none touching the next:

    dendp_uni_letter   general category L*   (\\p{L})
    dendp_uni_number   general category N*   (\\p{N})
    dendp_uni_mark     general category M*   (\\p{M})
    dendp_uni_space    property White_Space  (\\s)

The categories come from a unicodedata module. The standard library's version follows the interpreter, so where the
package unicodedata2 is installed (requirements.txt pins it) that one is taken, and the output names the version.

    python3 unicode_tables.py > unicode_tables.inc
"""

import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

LAST = 0x10FFFF


def ranges_of(belongs):
    """Inclusive ranges of the code points for which belongs() holds."""
    out = []
    start = None
    for cp in range(LAST + 2):
        inside = cp <= LAST and belongs(cp)
        if inside and start is None:
            start = cp
        elif not inside and start is not None:
            out.append((start, cp - 1))
            start = None
    return out


def is_space(cp):
    """White_Space is all separators plus six controls; unicodedata carries no properties, so the controls are named."""
    return 0x09 <= cp <= 0x0D or cp == 0x85 or unicodedata.category(chr(cp)).startswith("Z")


def table(name, note, ranges):
    lines = [f"/* {note}: {len(ranges)} ranges, {sum(b - a + 1 for a, b in ranges)} code points */",
             f"static const uint32_t {name}[{len(ranges)}][2] = {{"]
    per_line = 6
    for i in range(0, len(ranges), per_line):
        cells = ", ".join(f"{{0x{a:04X}, 0x{b:04X}}}" for a, b in ranges[i:i + per_line])
        lines.append(f"    {cells},")
    lines.append("};")
    return "\n".join(lines)


def main():
    category = [unicodedata.category(chr(cp))[0] for cp in range(LAST + 1)]
    print(f"/* Made by tools/goldens/unicode_tables.py from {unicodedata.__name__}, "
          f"Unicode {unicodedata.unidata_version}. Do not edit. */")
    print(table("dendp_uni_letter", "\\p{L}", ranges_of(lambda c: category[c] == "L")))
    print(table("dendp_uni_number", "\\p{N}", ranges_of(lambda c: category[c] == "N")))
    print(table("dendp_uni_mark", "\\p{M}", ranges_of(lambda c: category[c] == "M")))
    print(table("dendp_uni_space", "White_Space", ranges_of(is_space)))
    print(f"{unicodedata.__name__} (Unicode {unicodedata.unidata_version}), Python {sys.version.split()[0]}",
          file=sys.stderr)


if __name__ == "__main__":
    main()
