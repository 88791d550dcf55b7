#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""What README.md says that dendrite runs is what the sources have and the tests load."""

import glob
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def sources():
    return "".join(read(os.path.relpath(p, ROOT)) for p in sorted(glob.glob(os.path.join(ROOT, "src", "*", "*.[ch]"))))


def table(name, text):
    """The names that stand first in the rows of a C table."""
    body = re.search(r"%s\[\] = \{(.*?)\n\};" % re.escape(name), text, re.S).group(1)
    return re.findall(r'^    \{(?:DENDP_TYPE_\w+, )?"([^"]+)"', body, re.M)


class Readme(unittest.TestCase):
    def setUp(self):
        self.readme = read("README.md")
        self.source = sources()

    def row(self, name):
        return re.search(r"^\| %s \| (.*) \|$" % re.escape(name), self.readme, re.M).group(1)

    def test_families(self):
        rows = re.findall(r"^\| (`[a-z0-9`, ]+`) \|", self.readme, re.M)
        named = set(re.findall(r"`([a-z0-9]+)`", " ".join(rows)))
        self.assertEqual(named, set(table("dendp_families", self.source)))

    def test_every_family_has_a_model_that_the_tests_run(self):
        for family in table("dendp_families", self.source):
            files = glob.glob(os.path.join(ROOT, "tests", "golden", "tiny_%s*.gguf" % family))
            self.assertTrue(files, family)
            for file in files:
                name = os.path.basename(file)[len("tiny_"):-len(".gguf")]
                self.assertTrue('golden_tiny_run("%s"' % name in read("tests", "test_engine_goldens.c"), file)
                self.assertLess(os.path.getsize(file), 300000, file)
            if family in ("llama", "mistral", "qwen2", "qwen3", "gemma3"):
                self.assertTrue(os.path.exists(os.path.join(ROOT, "tests", "golden", "hf_" + family)), family)

    def test_weights(self):
        self.assertEqual(set(self.row("weights").split()), set(table("dendp_types", self.source)))

    def test_chat(self):
        row = self.row("chat")
        for name in table("dendp_chat_styles", self.source):
            self.assertIn(name.split("-")[0], row)

    def test_kv_types(self):
        kinds = re.findall(r"DEND_KV_(F32|F16|Q8_0)", read("src", "00_front", "03_api.h"))
        self.assertEqual({k.lower() for k in kinds}, set(re.findall(r"\w+", self.row("KV cache"))) - {"default"})

    def test_limits(self):
        limits = re.search(r"^Limits: (.*?)\.\sSliding", self.readme, re.M | re.S).group(1).replace("\n", " ")
        said = [int(v.replace(",", "")) for v in re.findall(r"(?<!\^)\b(\d[\d,]*\d)\b(?!\^)", limits.replace("2^", "^"))]
        powers = [1 << int(v) for v in re.findall(r"2\^(\d+)", limits)]
        have = {}
        for name, value, shift in re.findall(r"#define DENDP_MAX_(\w+) \(?(\d+)u(?: << (\d+)\))?", self.source):
            have[name] = int(value) << int(shift or 0)
        self.assertEqual(said, [have[n] for n in ("LAYERS", "EMBD", "HEADS", "HEAD_DIM")])
        self.assertEqual(powers, [have[n] for n in ("FF", "VOCAB")])

    def test_switches(self):
        have = set(re.findall(r"/\* switch: (DEND_NO_\w+)", self.source))
        self.assertEqual(set(re.findall(r"`(DEND_NO_\w+)`", self.readme)), have)

    def test_documents_exist(self):
        for path in re.findall(r"`?((?:docs|examples|tools|bench)/[\w./-]+\.\w+)`?", self.readme):
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)


if __name__ == "__main__":
    unittest.main()
