#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Join the rooms of src/ into dendrite.h.

    python3 tools/amalgamate.py                      write dendrite.h
    python3 tools/amalgamate.py --check              compare with dendrite.h, write nothing
    python3 tools/amalgamate.py --dev build/dev.c    write a file that includes the rooms instead

src/ is a book. Its folders are parts (00_front, 01_ground, ...), its files are rooms (01_base.c, ...),
and the order of their paths is the order in which they are joined: there is no other list of files.
The rooms of part 00 are the declarations and stand inside the include guard. The rooms of all later
parts are the implementation and stand inside #ifdef DENDRITE_IMPLEMENTATION.

The result, from top to bottom: the title room, the contents with line numbers, the table of config
switches, the other rooms between begin and end comments, the licence. It depends on src/ and LICENSE
alone (no date, no path, no #line), so equal sources give equal bytes.

Because a room may call only rooms above it, a room needs no prototype of a private function, and a
reader needs to know nothing of what follows. The rules below keep it so. A broken rule is refused with
its name, file, line and fix:

    name         parts are NN_name, rooms are NN_name.h or NN_name.c
    number       no two parts, and no two rooms of a part, have one number
    banner       a room opens with a banner whose number is that of its part and file
    title        no two rooms have one title
    bytes        no tab, CR, byte outside ASCII or trailing whitespace; the file ends with one newline
    include      a room includes system headers only, in angle brackets
    word         no identifier is near, far or small, which Windows' headers define as macros
    prototype    a private function is defined before its use, never declared
    definition   a private function is defined in one room only
    order        no room calls a function that is defined only in a later room
    switch       the switch lines of the config room are well formed and name each switch once
    version      one room of part 00 defines DEND_VERSION_STRING
    licence      LICENSE is there and can stand inside a comment

Exit status: 0 done, 1 refused or different, 2 wrong usage.
"""

import argparse
import hashlib
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FRONT = 0  # the part whose rooms are declarations
RULE = "=" * 74

PART_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\Z")
ROOM_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\.[hc]\Z")
BANNER = re.compile(r" \* >>(\d\d)\.(\d\d) ([^:]*[^: ]): (\S.*)\Z")
VERSION = re.compile(r'#define DEND_VERSION_STRING "([^"]*)"', re.ASCII)
SWITCH = re.compile(r"/\* switch: (DEND_[A-Z0-9_]+) +(\S.*?) \*/\Z")
INCLUDE = re.compile(r"[ ]*#[ ]*include\b[ ]*(.*)")
COMMENT_OR_LITERAL = re.compile(r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""",
                                re.DOTALL | re.VERBOSE)
TOKEN = re.compile(r"[A-Za-z_]\w*|[(){};=]", re.ASCII)
CALL = re.compile(r"\b(dendp?_\w+)[ \n]*\((?![ \n]*\*)", re.ASCII)


class Refusal:
    """One broken rule."""

    def __init__(self, rule, path, line, text, fix):
        self.rule, self.path, self.line, self.text, self.fix = rule, path, line, text, fix

    def __str__(self):
        return "%s:%d: [%s] %s. Fix: %s." % (self.path, self.line, self.rule, self.text, self.fix)


class Room:
    """One file of src/: its place, its text and what the rules need to know of it."""

    def __init__(self, path, part, number, data):
        self.path = path          # from the root, with slashes: src/04_cache/02_block_table.c
        self.part = part
        self.number = number
        self.data = data
        self.text = data.decode("latin-1")
        self.lines = self.text.split("\n")[:-1] if self.text.endswith("\n") else self.text.split("\n")
        self.title = None         # of the banner: (name, what it is about)
        self.banner_line = 0      # counted from 0
        self.definitions = []     # (function, line)
        self.prototypes = []      # (private function, line)
        self.calls = []           # (function, line)

    def label(self):
        return "%02d.%02d" % (self.part, self.number)


# ---- reading C, as far as the rules need it -----------------------------------------------------

def blank(text):
    """The same length and lines as `text`, but only spaces."""
    return re.sub(r"[^\n]", " ", text)


def strip_comments(text):
    """Comments become spaces. Literals stay, and a // inside of one is not taken for a comment."""
    return COMMENT_OR_LITERAL.sub(lambda m: blank(m.group()) if m.group()[0] == "/" else m.group(), text)


def strip_all(text):
    """Comments, the contents of literals and preprocessor lines become spaces; offsets are kept."""
    def replace(m):
        s = m.group()
        return blank(s) if s[0] == "/" else s[0] + blank(s[1:-1]) + s[-1]
    text = COMMENT_OR_LITERAL.sub(replace, text)
    return re.sub(r"^[ ]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: blank(m.group()), text, flags=re.MULTILINE)


def declared_function(chunk):
    """The dend_/dendp_ function that a declaration outside all braces declares or defines, else None.

    The name stands outside parentheses, or inside the first pair of a function that returns a function
    pointer: static void (*dendp_pick(int n))(float *). `static void (*dendp_hook)(int)` is a variable.
    """
    if re.search(r"\btypedef\b", chunk):
        return None
    depth = 0
    for m in re.finditer(r"[()=]|\bdendp?_\w+(?=[ \n]*\((?![ \n]*\*))", chunk, re.ASCII):
        s = m.group()
        if s == "(":
            depth += 1
        elif s == ")":
            depth -= 1
        elif s == "=" and depth == 0:
            return None
        elif s != "=" and (depth == 0 or (depth == 1 and chunk[:m.start()].rstrip().endswith("*"))):
            return s, m.start()
    return None


def read_c(room):
    """Fill in definitions, prototypes and calls of a room."""
    code = strip_all(room.text)

    def line_of(offset):
        return code.count("\n", 0, offset) + 1

    braces = parens = 0
    start = 0           # of the declaration outside all braces that is being read
    in_body = False     # the braces that are open are a function's body
    for m in TOKEN.finditer(code):
        s = m.group()
        at_left = m.start() == 0 or code[m.start() - 1] == "\n"
        if s == "(":
            parens += 1
        elif s == ")":
            parens = max(0, parens - 1)
        elif s == "{":
            chunk = code[start:m.start()]
            if braces == 0 and parens == 0:
                if re.match(r'\s*extern "[^"]*"\s*\Z', chunk):
                    start = m.end()
                    continue
                lead = len(chunk) - len(chunk.lstrip())
                found = declared_function(chunk.lstrip())
                in_body = found is not None
                if found:
                    room.definitions.append((found[0], line_of(start + lead + found[1])))
            braces += 1
        elif s == "}":
            if braces == 0:  # of an extern "C" block
                start = m.end()
            # A brace in column 0 closes everything: conditional code may have opened one brace twice.
            braces = 0 if at_left else max(0, braces - 1)
            if braces == 0:
                parens = 0
                if in_body:
                    start = m.end()
                    in_body = False
        elif s == ";" and braces == 0 and parens == 0:
            chunk = code[start:m.start()]
            lead = len(chunk) - len(chunk.lstrip())
            found = declared_function(chunk.lstrip())
            if found and found[0].startswith("dendp_"):
                room.prototypes.append((found[0], line_of(start + lead + found[1])))
            start = m.end()
    room.calls = [(m.group(1), line_of(m.start())) for m in CALL.finditer(code)]


# ---- reading src/ -------------------------------------------------------------------------------

def load_rooms(root):
    """All rooms in path order, and the refusals of names and numbers."""
    rooms, refusals = [], []
    src = os.path.join(root, "src")
    seen_parts = {}
    for part_name in sorted(os.listdir(src)):
        part_path = "src/" + part_name
        match = PART_NAME.match(part_name)
        if not match or not os.path.isdir(os.path.join(src, part_name)):
            refusals.append(Refusal("name", part_path, 1, "this is not a part", "call it NN_name or move it out of src"))
            continue
        part = int(match.group(1))
        if part in seen_parts:
            refusals.append(Refusal("number", part_path, 1, "part number %02d is taken by %s" % (part, seen_parts[part]),
                                    "give one of the two a free number"))
            continue
        seen_parts[part] = part_path
        seen_rooms = {}
        for room_name in sorted(os.listdir(os.path.join(src, part_name))):
            path = part_path + "/" + room_name
            match = ROOM_NAME.match(room_name)
            if not match or not os.path.isfile(os.path.join(src, part_name, room_name)):
                refusals.append(Refusal("name", path, 1, "this is not a room", "call it NN_name.c or move it out of src"))
                continue
            number = int(match.group(1))
            if number in seen_rooms:
                refusals.append(Refusal("number", path, 1, "room number %02d is taken by %s" % (number, seen_rooms[number]),
                                        "give one of the two a free number"))
                continue
            seen_rooms[number] = path
            with open(os.path.join(src, part_name, room_name), "rb") as f:
                rooms.append(Room(path, part, number, f.read()))
    return rooms, refusals


# ---- the rules ----------------------------------------------------------------------------------

def check_bytes(room):
    for n, line in enumerate(room.lines, start=1):
        if "\r" in line:
            yield Refusal("bytes", room.path, n, "a CR", "end lines with LF alone")
        elif "\t" in line:
            yield Refusal("bytes", room.path, n, "a tab in column %d" % (line.index("\t") + 1), "indent with 4 spaces")
        elif line != line.rstrip():
            yield Refusal("bytes", room.path, n, "trailing whitespace", "remove it")
        for column, c in enumerate(line, start=1):
            if c not in "\t\r" and not " " <= c <= "~":
                yield Refusal("bytes", room.path, n, "byte 0x%02x in column %d" % (ord(c), column),
                              "write it in printable ASCII")
                break
    if not room.text.endswith("\n"):
        yield Refusal("bytes", room.path, len(room.lines), "no newline at the end", "end the last line")
    elif not room.lines[-1]:
        yield Refusal("bytes", room.path, len(room.lines), "an empty line at the end", "remove it")


def check_banner(room, titles):
    fix = "open the room with a banner whose second line is ' * >>%s TITLE: what it is about'" % room.label()
    if len(room.lines) < 2 or not room.lines[0].startswith("/* ===="):
        yield Refusal("banner", room.path, 1, "no banner", fix)
        return
    match = BANNER.match(room.lines[1])
    if not match:
        yield Refusal("banner", room.path, 2, "the banner has another form", fix)
        return
    found = "%s.%s" % (match.group(1), match.group(2))
    if found != room.label():
        yield Refusal("banner", room.path, 2, "the banner says %s, the path says %s" % (found, room.label()),
                      "write >>%s" % room.label())
        return
    room.title = (match.group(3), match.group(4))
    room.banner_line = 1
    for n, line in enumerate(room.lines[2:], start=3):
        if BANNER.match(line):
            yield Refusal("banner", room.path, n, "a second banner", "move what follows to a room of its own")
    if room.title[0] in titles:
        yield Refusal("title", room.path, 2, "the title %s is taken by %s" % (room.title[0], titles[room.title[0]]),
                      "choose another title")
    else:
        titles[room.title[0]] = room.path


def check_includes(room):
    for n, line in enumerate(strip_comments(room.text).split("\n"), start=1):
        match = INCLUDE.match(line)
        if match and (not match.group(1).startswith("<") or "dend" in match.group(1)):
            yield Refusal("include", room.path, n, "include of %s" % match.group(1).strip(),
                          "remove it: rooms see all rooms above them, and of other files only system headers")


def check_words(room):
    """Words that Windows' headers define as macros."""
    for n, line in enumerate(strip_all(room.text).split("\n"), start=1):
        for m in re.finditer(r"(?<![\w#.])(near|far|small)\b", line):
            yield Refusal("word", room.path, n, "%s is a macro of Windows' headers" % m.group(1), "take another word")


def check_functions(rooms):
    """The rules prototype, definition and order. The front rooms only declare, so they are exempt."""
    first = {}  # function -> index of the first room that defines it
    for i, room in enumerate(rooms):
        if room.part == FRONT:
            continue
        read_c(room)
        for name, line in room.prototypes:
            yield Refusal("prototype", room.path, line, "%s is declared without a body" % name,
                          "define it above its first use, or move the caller below it")
        for name, line in room.definitions:
            if first.setdefault(name, i) != i and name.startswith("dendp_"):
                yield Refusal("definition", room.path, line, "%s is also defined in %s" % (name, rooms[first[name]].path),
                              "rename one of the two, or keep one definition")
    for i, room in enumerate(rooms):
        told = set()
        for name, line in room.calls:
            if first.get(name, i) > i and name not in told:
                told.add(name)
                yield Refusal("order", room.path, line, "%s is defined only later, in %s" % (name, rooms[first[name]].path),
                              "move one of the two, or call through a table of functions")


def read_switches(rooms):
    """The switches of the config room as (name, what it does), and refusals."""
    switches, refusals, seen = [], [], set()
    for room in rooms:
        for n, line in enumerate(room.lines, start=1):
            if room.part != FRONT or "/* switch:" not in line:
                continue
            match = SWITCH.match(line)
            if not match:
                refusals.append(Refusal("switch", room.path, n, "the switch line has another form",
                                        "write /* switch: DEND_NO_X  what it does */ on one line"))
            elif match.group(1) in seen:
                refusals.append(Refusal("switch", room.path, n, "%s is listed twice" % match.group(1), "remove one"))
            else:
                seen.add(match.group(1))
                switches.append(match.groups())
    return switches, refusals


def read_version(rooms):
    found = [(room, n, match.group(1)) for room in rooms if room.part == FRONT
             for n, line in enumerate(room.lines, start=1) for match in [VERSION.match(line)] if match]
    if len(found) == 1:
        return found[0][2], []
    if not found:
        return "", [Refusal("version", "src/00_front", 1, "no DEND_VERSION_STRING",
                            'write #define DEND_VERSION_STRING "x.y.z" in the config room')]
    return "", [Refusal("version", found[1][0].path, found[1][1], "a second DEND_VERSION_STRING", "remove one")]


def read_licence(root):
    fix = "put the licence text into LICENSE, in ASCII and without the end of a comment"
    try:
        with open(os.path.join(root, "LICENSE"), "rb") as f:
            text = f.read().decode("ascii")
    except (OSError, UnicodeDecodeError) as e:
        return "", [Refusal("licence", "LICENSE", 1, "cannot be read (%s)" % e, fix)]
    if "*/" in text or "\r" in text or not text.strip():
        return "", [Refusal("licence", "LICENSE", 1, "cannot stand inside a comment", fix)]
    return text, []


# ---- writing dendrite.h -------------------------------------------------------------------------

def source_hash(rooms):
    digest = hashlib.sha256()
    for room in rooms:
        digest.update(room.path.encode("ascii") + b"\0" + b"%d\0" % len(room.data) + room.data)
    return digest.hexdigest()[:16]


def contents_lines(rooms, switches, version, line_numbers):
    out = ["/* " + RULE,
           " * CONTENTS",
           " * " + RULE,
           " * version %s, source hash %s" % (version, source_hash(rooms)),
           " *",
           " * Generated by tools/amalgamate.py from the rooms in src/: edit those, then run make header.",
           " * Search for >>04.02 to jump to a room.",
           " *",
           " *    line  room"]
    part = None
    for room in rooms:
        if part is not None and room.part != part:
            out.append(" *")
        part = room.part
        out.append(" * %7d  %s %s: %s" % (line_numbers[room.path], room.label(), room.title[0], room.title[1]))
    if switches:
        width = max(len(name) for name, _ in switches)
        out += [" *", " * SWITCHES, to be defined before the implementation", " *"]
        out += [" *    %s  %s" % (name.ljust(width), what) for name, what in switches]
    return out + [" * " + RULE[:-2] + " */"]


def render(rooms, switches, version, licence):
    """The text of dendrite.h."""
    front = [room for room in rooms if room.part == FRONT]
    later = [room for room in rooms if room.part != FRONT]
    out = ["/* dendrite.h. SPDX-License-Identifier: MIT. The licence is at the end. */",
           "#ifndef DENDRITE_H",
           "#define DENDRITE_H",
           ""]
    line_numbers = {}

    def put(room):
        out.append("/* ==== begin %s ==== */" % room.path)
        line_numbers[room.path] = len(out) + room.banner_line + 1
        out.extend(room.lines)
        out.append("/* ==== end %s ==== */" % room.path)
        out.append("")

    put(front[0])
    contents_at = len(out)
    # The length of the contents does not depend on the numbers in it, so that they can be filled in last.
    out += contents_lines(rooms, switches, version, dict.fromkeys((r.path for r in rooms), 0)) + [""]
    contents_end = len(out) - 1
    for room in front[1:]:
        put(room)
    out += ["#endif /* DENDRITE_H */", ""]
    out += ["#ifdef DENDRITE_IMPLEMENTATION", "#ifndef DENDRITE_IMPLEMENTATION_ONCE",
            "#define DENDRITE_IMPLEMENTATION_ONCE", ""]
    for room in later:
        put(room)
    out += ["#endif /* DENDRITE_IMPLEMENTATION_ONCE */", "#endif /* DENDRITE_IMPLEMENTATION */", "", "/*"]
    out += [(" * " + line).rstrip() for line in licence.rstrip("\n").split("\n")]
    out.append(" */")
    out[contents_at:contents_end] = contents_lines(rooms, switches, version, line_numbers)
    return "\n".join(out) + "\n"


def amalgamate(root):
    """The text of dendrite.h and the rooms it was made of; or the refusals, and then no text."""
    if not os.path.isdir(os.path.join(root, "src")):
        return None, [], [Refusal("name", "src", 1, "there is no such folder", "run this inside a checkout")]
    rooms, refusals = load_rooms(root)
    titles = {}
    for room in rooms:
        refusals += list(check_bytes(room)) + list(check_banner(room, titles)) + list(check_includes(room))
        refusals += list(check_words(room))
    refusals += list(check_functions(rooms))
    switches, more = read_switches(rooms)
    version, even_more = read_version(rooms)
    licence, last = read_licence(root)
    refusals += more + even_more + last
    if refusals:
        return None, rooms, refusals
    return render(rooms, switches, version, licence), rooms, []


def dev_text(rooms, root, path):
    """A file that includes the rooms in order: editors and debuggers then know them by their own lines."""
    folder = os.path.dirname(os.path.abspath(path))
    out = ["/* Generated by tools/amalgamate.py --dev: the rooms in order, for editors and debuggers. */",
           "#define DENDRITE_IMPLEMENTATION"]
    for room in rooms:
        relative = os.path.relpath(os.path.join(root, room.path), folder).replace(os.sep, "/")
        out.append('#include "%s"' % relative)
    return "\n".join(out) + "\n"


def write_file(path, text):
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temp = path + ".tmp"
    with open(temp, "wb") as f:
        f.write(text.encode("ascii"))
    os.replace(temp, path)


def first_difference(committed, generated):
    """Where two texts part, in words; None where they do not."""
    if committed == generated:
        return None
    a, b = committed.split("\n"), generated.split("\n")
    for n in range(max(len(a), len(b))):
        left = a[n] if n < len(a) else "(end of file)"
        right = b[n] if n < len(b) else "(end of file)"
        if left != right:
            return "line %d\n  file:      %s\n  generated: %s" % (n + 1, left, right)
    return None


def main(argv=None):
    parser = argparse.ArgumentParser(description="Join the rooms of src/ into dendrite.h.")
    parser.add_argument("--check", action="store_true", help="compare with the output file, write nothing")
    parser.add_argument("--dev", metavar="FILE", help="write a file that includes the rooms, and nothing else")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: dendrite.h beside src/")
    parser.add_argument("--root", default=ROOT, help="the folder that holds src/ and LICENSE (default: this checkout)")
    args = parser.parse_args(argv)
    output = args.output if args.output else os.path.join(args.root, "dendrite.h")
    text, rooms, refusals = amalgamate(args.root)
    if refusals:
        for refusal in refusals:
            sys.stderr.write("%s\n" % refusal)
        sys.stderr.write("amalgamate: %d refused, nothing written\n" % len(refusals))
        return 1
    if args.dev:
        write_file(args.dev, dev_text(rooms, args.root, args.dev))
        return 0
    if args.check:
        try:
            with open(output, "rb") as f:
                committed = f.read().decode("latin-1")
        except OSError as e:
            sys.stderr.write("amalgamate: %s\n" % e)
            return 1
        difference = first_difference(committed, text)
        if difference:
            sys.stderr.write("amalgamate: %s is not what src/ gives (make header mends that); first difference: %s\n"
                             % (output, difference))
            return 1
        return 0
    write_file(output, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
