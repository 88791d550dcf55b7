#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Tests of amalgamate.py: what it writes, and one test a rule that it refuses for."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import amalgamate  # noqa: E402

TITLE = "src/00_front/01_title.h"
CONFIG = "src/00_front/02_config.h"
API = "src/00_front/03_api.h"
BASE = "src/01_ground/01_base.c"
POOL = "src/04_cache/01_block_pool.c"
TABLE = "src/04_cache/02_block_table.c"


def banner(number, title):
    return "/* %s\n * >>%s %s: what it is about\n * %s */\n" % ("=" * 74, number, title, "=" * 72)


def good_tree():
    """A small book that breaks no rule: path -> text."""
    return {
        "LICENSE": "A licence\n\nwith an empty line\n",
        TITLE: banner("00.01", "DENDRITE"),
        CONFIG: banner("00.02", "CONFIG") +
        "/* switch: DEND_STATIC     every function static */\n"
        "/* switch: DEND_NO_THREADS  no thread pool */\n"
        '#define DEND_VERSION_STRING "1.2.3"\n'
        "#define DEND_API extern\n#define DEND_IMPL\n",
        API: banner("00.03", "API") + "DEND_API int dend_twice(int x);\nDEND_API int dend_thrice(int x);\n",
        BASE: banner("01.01", "BASE") +
        "#include <stddef.h>\n\n"
        "typedef int dendp_fn(int x);\n"
        "static int dendp_add(int a, int b)\n{\n    return a + b;\n}\n",
        POOL: banner("04.01", "BLOCK POOL") + "DEND_IMPL int dend_twice(int x)\n{\n    return dendp_add(x, x);\n}\n",
        TABLE: banner("04.02", "BLOCK TABLE") +
        "DEND_IMPL int dend_thrice(int x)\n{\n    return dendp_add(dend_twice(x), x);\n}\n",
    }


class TreeTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="dendrite_test_")
        self.addCleanup(shutil.rmtree, self.root)
        self.tree = good_tree()

    def write(self):
        for path, text in self.tree.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode("ascii"))

    def amalgamate(self):
        self.write()
        return amalgamate.amalgamate(self.root)

    def run_main(self, *args):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            code = amalgamate.main(["--root", self.root] + list(args))
        return code, err.getvalue()

    def refused(self, rule, path, line):
        """The tree must be refused for exactly one reason: this one."""
        text, _, refusals = self.amalgamate()
        self.assertIsNone(text)
        self.assertEqual([(r.rule, r.path, r.line) for r in refusals], [(rule, path, line)], list(map(str, refusals)))
        shown = str(refusals[0])
        self.assertTrue(shown.startswith("%s:%d: [%s] " % (path, line, rule)), shown)
        self.assertIn("Fix: ", shown)
        return refusals[0]

    def accepted(self):
        text, _, refusals = self.amalgamate()
        self.assertEqual(list(map(str, refusals)), [])
        return text


class Output(TreeTest):
    def test_order_guards_and_licence(self):
        text = self.accepted()
        marks = ["#ifndef DENDRITE_H\n", "begin " + TITLE, "end " + TITLE, " * CONTENTS\n", "begin " + CONFIG,
                 "begin " + API, "#endif /* DENDRITE_H */", "#ifdef DENDRITE_IMPLEMENTATION\n",
                 "#ifndef DENDRITE_IMPLEMENTATION_ONCE\n", "begin " + BASE, "begin " + POOL, "begin " + TABLE,
                 "end " + TABLE, "#endif /* DENDRITE_IMPLEMENTATION */", "A licence"]
        places = [text.find(mark) for mark in marks]
        self.assertNotIn(-1, places)
        self.assertEqual(places, sorted(places))
        self.assertIn("/* ==== begin %s ==== */\n" % TABLE, text)
        self.assertTrue(text.endswith(" * A licence\n *\n * with an empty line\n */\n"))

    def test_every_room_is_there_byte_for_byte(self):
        text = self.accepted()
        for path, room in self.tree.items():
            if path.startswith("src/"):
                self.assertIn("/* ==== begin %s ==== */\n%s/* ==== end %s ==== */\n" % (path, room, path), text)

    def test_contents_name_the_lines_of_the_banners(self):
        text = self.accepted()
        lines = text.split("\n")
        found = re.findall(r"^ \* +(\d+)  (\d\d\.\d\d) ([^:]+): what it is about$", text, re.MULTILINE)
        self.assertEqual([(number, title) for _, number, title in found],
                         [("00.01", "DENDRITE"), ("00.02", "CONFIG"), ("00.03", "API"), ("01.01", "BASE"),
                          ("04.01", "BLOCK POOL"), ("04.02", "BLOCK TABLE")])
        for line, number, title in found:
            self.assertEqual(lines[int(line) - 1], " * >>%s %s: what it is about" % (number, title))

    def test_switches_and_version(self):
        text = self.accepted()
        self.assertIn(" *    DEND_STATIC      every function static\n", text)
        self.assertIn(" *    DEND_NO_THREADS  no thread pool\n", text)
        self.assertRegex(text, r"\n \* version 1\.2\.3, source hash [0-9a-f]{16}\n")

    def test_hash_follows_the_sources_only(self):
        def hash_of(text):
            return re.search("source hash ([0-9a-f]{16})", text).group(1)
        first = self.accepted()
        self.tree["LICENSE"] = "Another licence\n"
        self.assertEqual(hash_of(self.accepted()), hash_of(first))
        self.tree[BASE] += "/* one more line */\n"
        self.assertNotEqual(hash_of(self.accepted()), hash_of(first))

    def test_equal_sources_give_equal_bytes(self):
        first = self.accepted()
        other = tempfile.mkdtemp(prefix="dendrite_test_other_")
        self.addCleanup(shutil.rmtree, other)
        self.root, old_root = other, self.root
        second = self.accepted()
        self.root = old_root
        self.assertEqual(first, second)
        self.assertNotIn(self.root, first)

    def test_main_writes_checks_and_reports_the_first_difference(self):
        self.write()
        out = os.path.join(self.root, "dendrite.h")
        self.assertEqual(self.run_main("--check")[0], 1)  # not there yet
        self.assertEqual(self.run_main(), (0, ""))
        self.assertEqual(self.run_main("--check"), (0, ""))
        with open(out, "r+b") as f:
            text = f.read().replace(b"return a + b;", b"return a - b;")
            f.seek(0)
            f.write(text)
        code, err = self.run_main("--check")
        line = text[:text.index(b"a - b")].count(b"\n") + 1
        self.assertEqual(code, 1)
        self.assertIn("line %d\n" % line, err)
        self.assertIn("a - b", err)
        self.assertIn("a + b", err)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), text)  # --check writes nothing

    def test_refusal_leaves_the_output_alone(self):
        self.write()
        self.assertEqual(self.run_main()[0], 0)
        out = os.path.join(self.root, "dendrite.h")
        with open(out, "rb") as f:
            before = f.read()
        self.tree[BASE] += "\tint x;\n"
        self.write()
        code, err = self.run_main()
        self.assertEqual(code, 1)
        self.assertIn("[bytes]", err)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), before)

    def test_dev_file_includes_the_rooms_in_order(self):
        self.write()
        dev = os.path.join(self.root, "build", "dendrite_dev.c")
        self.assertEqual(self.run_main("--dev", dev)[0], 0)
        with open(dev) as f:
            lines = f.read().split("\n")
        self.assertEqual(lines[1], "#define DENDRITE_IMPLEMENTATION")
        self.assertEqual(lines[2:-1], ['#include "../%s"' % p for p in (TITLE, CONFIG, API, BASE, POOL, TABLE)])
        self.assertFalse(os.path.exists(os.path.join(self.root, "dendrite.h")))

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_the_result_compiles_and_links_from_two_files(self):
        self.write()
        self.assertEqual(self.run_main()[0], 0)
        with open(os.path.join(self.root, "a.c"), "w") as f:
            f.write('#include "dendrite.h"\n#define DENDRITE_IMPLEMENTATION\n'
                    '#include "dendrite.h"\n#include "dendrite.h"\n')
        with open(os.path.join(self.root, "b.c"), "w") as f:
            f.write('#include "dendrite.h"\nint main(void) { return dend_thrice(7) - 21; }\n')
        program = os.path.join(self.root, "program")
        subprocess.check_call(["cc", "-std=c99", "-Wall", "-Werror", "-o", program,
                               os.path.join(self.root, "a.c"), os.path.join(self.root, "b.c")])
        subprocess.check_call([program])


class Names(TreeTest):
    def test_part_with_another_name(self):
        self.tree["src/extra/01_more.c"] = banner("01.01", "MORE")
        self.refused("name", "src/extra", 1)

    def test_file_beside_the_parts(self):
        self.tree["src/dev.c"] = "int x;\n"
        self.refused("name", "src/dev.c", 1)

    def test_room_with_another_name(self):
        self.tree["src/04_cache/notes.txt"] = "x\n"
        self.refused("name", "src/04_cache/notes.txt", 1)

    def test_two_parts_of_one_number(self):
        self.tree["src/04_other/01_more.c"] = banner("04.01", "MORE")
        self.refused("number", "src/04_other", 1)

    def test_two_rooms_of_one_number(self):
        self.tree["src/04_cache/02_second.c"] = banner("04.02", "SECOND")
        self.refused("number", "src/04_cache/02_second.c", 1)


class Banners(TreeTest):
    def test_missing(self):
        self.tree[TABLE] = "static int dendp_x;\n"
        self.refused("banner", TABLE, 1)

    def test_empty_room(self):
        self.tree[TABLE] = ""
        self.amalgamate()
        self.assertIn("banner", [r.rule for r in amalgamate.amalgamate(self.root)[2]])

    def test_other_form(self):
        self.tree[TABLE] = self.tree[TABLE].replace("BLOCK TABLE: what", "BLOCK TABLE, what")
        self.refused("banner", TABLE, 2)

    def test_other_number(self):
        self.tree[TABLE] = self.tree[TABLE].replace(">>04.02", ">>04.03")
        self.assertIn("04.03", self.refused("banner", TABLE, 2).text)

    def test_second_banner(self):
        self.tree[TABLE] += banner("04.03", "INTRUDER")
        self.refused("banner", TABLE, self.tree[TABLE].count("\n") - 1)

    def test_one_title_twice(self):
        self.tree[TABLE] = self.tree[TABLE].replace("BLOCK TABLE", "BLOCK POOL")
        self.refused("title", TABLE, 2)


class Bytes(TreeTest):
    def add(self, raw):
        self.tree[BASE] = self.tree[BASE].encode("ascii") + raw
        return self.tree[BASE].count(b"\n")

    def test_tab(self):
        self.refused("bytes", BASE, self.add(b"/*\tx */\n"))

    def test_crlf(self):
        self.refused("bytes", BASE, self.add(b"/* x */\r\n"))

    def test_not_ascii(self):
        self.refused("bytes", BASE, self.add("/* \u00e9 */\n".encode("utf-8")))

    def test_nul(self):
        self.refused("bytes", BASE, self.add(b"/* \0 */\n"))

    def test_trailing_space(self):
        self.refused("bytes", BASE, self.add(b"/* x */ \n"))

    def test_no_newline_at_the_end(self):
        self.refused("bytes", BASE, self.add(b"/* x */") + 1)

    def test_empty_line_at_the_end(self):
        self.refused("bytes", BASE, self.add(b"\n"))


class Code(TreeTest):
    def add(self, path, text):
        """Append to a room; returns the number of the first line added."""
        line = self.tree[path].count("\n") + 1
        self.tree[path] += text
        return line

    def test_include_of_a_project_file(self):
        self.refused("include", BASE, self.add(BASE, '#include "helper.h"\n'))

    def test_include_of_the_header_itself(self):
        self.refused("include", BASE, self.add(BASE, "#  include <dendrite.h>\n"))

    def test_words_that_windows_defines(self):
        for word in ("near", "far", "small"):
            self.setUp()
            self.refused("word", BASE, self.add(BASE, "static int %s;\n" % word))

    def test_such_words_in_comments_literals_and_longer_names_are_fine(self):
        self.add(BASE, '/* near, far, small */\nstatic const char nearer[] = "far"; /* small */\n')
        self.accepted()

    def test_include_inside_a_comment_is_fine(self):
        self.add(BASE, '/*\n#include "dendrite.h"\n*/\n#include <string.h> /* memcpy */\n')
        self.accepted()

    def test_prototype(self):
        self.refused("prototype", BASE, self.add(BASE, "static int dendp_late(int x);\n"))

    def test_prototype_over_several_lines(self):
        line = self.add(BASE, "/* text */\nstatic const char *\ndendp_late(int x,\n           int (*f)(int));\n")
        self.refused("prototype", BASE, line + 2)

    def test_prototype_after_a_conditional_brace(self):
        line = self.add(BASE, "#if A\nstatic int dendp_m(void) {\n#else\nstatic int dendp_n(void) {\n#endif\n"
                              "    return 0;\n}\nstatic int dendp_late(int x);\n")
        self.refused("prototype", BASE, line + 7)

    def test_prototype_of_a_function_that_returns_a_function(self):
        self.refused("prototype", BASE, self.add(BASE, "static int (*dendp_pick(int n))(float *);\n"))

    def test_what_only_looks_like_a_prototype(self):
        self.add(BASE, "typedef int (*dendp_fn_ptr)(int x);\n"
                       "static int (*dendp_hook)(int x);\n"
                       "static dendp_fn *const dendp_table[] = {dendp_add};\n"
                       "static const int dendp_size = (int)sizeof(dendp_fn *);\n"
                       "struct dendp_vt {\n    int (*run)(int x);\n    dendp_fn *(*pick)(int x);\n};\n"
                       "/* static int dendp_late(int x); */\n"
                       'static const char *const dendp_text = "static int dendp_late(int x);";\n'
                       "#define DENDP_LATE static int dendp_late(int x);\n"
                       "static int dendp_user(int x)\n{\n    int y = dendp_add(x, x);\n    return y;\n}\n")
        self.accepted()

    def test_private_function_in_two_rooms(self):
        line = self.add(TABLE, "static int dendp_add(int a, int b)\n{\n    return b + a;\n}\n")
        self.refused("definition", TABLE, line)

    def test_two_variants_in_one_room_are_fine(self):
        self.add(BASE, "#ifdef A\nstatic int dendp_v(void)\n{\n    return 1;\n}\n#else\n"
                       "static int dendp_v(void)\n{\n    return 2;\n}\n#endif\n")
        self.accepted()

    def test_call_of_a_private_function_below(self):
        self.add(TABLE, "static int dendp_low(int a)\n{\n    return a;\n}\n")
        line = self.add(POOL, "static int dendp_up(int a)\n{\n    return\n        dendp_low (a);\n}\n")
        self.assertIn(TABLE, self.refused("order", POOL, line + 3).text)

    def test_call_of_a_public_function_below(self):
        line = self.add(BASE, "static int dendp_up(int a)\n{\n    return dend_thrice(a);\n}\n")
        self.refused("order", BASE, line + 2)

    def test_call_inside_an_extern_c_block(self):
        self.add(TABLE, 'extern "C" {\nstatic int dendp_low(int a)\n{\n    return a;\n}\n}\n')
        line = self.add(BASE, "static int dendp_up(int a)\n{\n    return dendp_low(a);\n}\n")
        self.refused("order", BASE, line + 2)

    def test_what_only_looks_like_a_call(self):
        self.add(BASE, "/* dend_thrice(x) is below */\n"
                       "// dend_thrice(x) too\n"
                       'static const char *const dendp_text = "dend_thrice(\\"x\\")"; /* \'"\' */\n'
                       "#define DENDP_THRICE(x) \\\n    dend_thrice(x)\n"
                       "static const char dendp_quote = '\"';\n"
                       "static int dendp_unknown(int a)\n{\n    return puts(\"dend_thrice(\") + dend_other(a);\n}\n")
        self.accepted()

    def test_address_of_a_public_function_below_is_fine(self):
        self.add(BASE, "static dendp_fn *const dendp_table[] = {dend_thrice};\n")
        self.accepted()


class Front(TreeTest):
    def test_switch_in_another_form(self):
        self.tree[CONFIG] += "/* switch: DEND_NO_X, which does something */\n"
        self.refused("switch", CONFIG, self.tree[CONFIG].count("\n"))

    def test_switch_twice(self):
        self.tree[CONFIG] += "/* switch: DEND_STATIC  again */\n"
        self.refused("switch", CONFIG, self.tree[CONFIG].count("\n"))

    def test_no_version(self):
        self.tree[CONFIG] = self.tree[CONFIG].replace("DEND_VERSION_STRING", "DEND_VERSION_WORD")
        self.refused("version", "src/00_front", 1)

    def test_two_versions(self):
        self.tree[API] += '#define DEND_VERSION_STRING "1.2.4"\n'
        self.refused("version", API, self.tree[API].count("\n"))

    def test_no_licence(self):
        del self.tree["LICENSE"]
        self.refused("licence", "LICENSE", 1)

    def test_licence_that_ends_the_comment(self):
        self.tree["LICENSE"] = "free */ for all\n"
        self.refused("licence", "LICENSE", 1)


if __name__ == "__main__":
    unittest.main()
