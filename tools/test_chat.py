#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Tests of examples/chat.c: the program that make built (build/chat) over pipes, with the small test model."""

import os
import select
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHAT = os.path.join(ROOT, "build/chat")
MODEL = os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf")
LIMIT = 120  # seconds


class ChatTest(unittest.TestCase):
    def setUp(self):
        for path in (CHAT, MODEL):
            if not os.path.exists(path):
                if os.environ.get("CI") == "true":
                    self.fail("%s is required under CI=true" % path)
                self.skipTest("%s is not there: make build/chat model" % path)

    def run_chat(self, lines, *options):
        """Greedy, all input at once. Returns (exit status, output, errors)."""
        p = subprocess.run([CHAT, "-m", MODEL, "-t", "0"] + list(options), input="".join(x + "\n" for x in lines),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT, universal_newlines=True, check=False)
        return p.returncode, p.stdout, p.stderr

    def test_usage(self):
        self.assertEqual(subprocess.run([CHAT, "-h"], stdout=subprocess.DEVNULL, timeout=LIMIT, check=False).returncode, 0)
        for bad in (["-x", "1"], ["-n"]):
            self.assertEqual(subprocess.run([CHAT] + bad, stderr=subprocess.DEVNULL, timeout=LIMIT, check=False).returncode, 2)

    def test_no_such_family_or_file(self):
        self.assertEqual(self.run_chat(["Hi"], "-f", "vicuna")[0], 1)
        self.assertEqual(self.run_chat(["Hi"], "--load", os.path.join(ROOT, "LICENSE"))[0], 1)
        self.assertEqual(self.run_chat([], "-m", os.path.join(ROOT, "LICENSE"))[0], 1)

    def test_conversation_goes_on_from_its_file(self):
        first, second = "My name is Ada.", "What is my name?"
        with tempfile.TemporaryDirectory(prefix="dendrite_test_") as folder:
            saved = os.path.join(folder, "talk")
            status, whole, _ = self.run_chat([first, second], "-n", "24", "-s", "Be brief.")
            self.assertEqual(status, 0)
            status, one, _ = self.run_chat([first], "-n", "24", "-s", "Be brief.", "--save", saved)
            self.assertEqual(status, 0)
            status, two, err = self.run_chat([second], "-n", "24", "--load", saved)
            self.assertEqual(status, 0)
            self.assertEqual(one + two, whole)
            self.assertTrue(two.strip())
            self.assertIn("[3 messages", err)
            with open(saved, "r+b") as f:
                f.truncate(os.path.getsize(saved) - 1)
            self.assertEqual(self.run_chat([second], "--load", saved)[0], 1)

    def test_full_context_forgets_the_oldest_turns(self):
        status, out, err = self.run_chat(["Tell me about the number %d, and of nothing else at all." % i for i in range(6)],
                                         "-c", "160", "-n", "20")
        self.assertEqual(status, 0, err)
        self.assertIn("the oldest turn is forgotten", err)
        self.assertEqual(err.count(" written, "), 6)
        self.assertGreaterEqual(len(out.strip().split("\n")), 6)

    def test_what_is_longer_than_the_context_is_not_sent(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "chat")
            status, _, err = self.run_chat(["Hello.", "word " * 400, "Goodbye."], "-c", "160", "-n", "8", "--save", saved)
            self.assertEqual(status, 0, err)
            self.assertIn("longer than the context", err)
            self.assertNotIn("forgotten", err)
            self.assertEqual(err.count(" written, "), 2)
            self.assertTrue(os.path.getsize(saved) > 0)

    def start(self, *options):
        p = subprocess.Popen([CHAT, "-m", MODEL, "-t", "0"] + list(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, bufsize=0)
        self.addCleanup(p.kill)
        return p

    def read_some(self, p, stream=None):
        stream = stream or p.stdout
        ready, _, _ = select.select([stream], [], [], LIMIT)
        self.assertTrue(ready, "no output in time")
        return os.read(stream.fileno(), 4096)

    def test_interrupts(self):
        p = self.start("-n", "100000")
        p.stdin.write(b"Write a very long story about a lighthouse.\n")
        out = self.read_some(p)
        p.send_signal(signal.SIGINT)
        err = b""
        while b"stopped]" not in err:
            part = self.read_some(p, p.stderr)
            self.assertTrue(part, "ended: %r" % err)
            err += part
        self.assertIsNone(p.poll())
        while not out.endswith(b"\n"):
            out += self.read_some(p)
        p.stdin.write(b"Now write a short one.\n")
        self.assertTrue(self.read_some(p))
        p.send_signal(signal.SIGINT)  # the second reply
        err = b""
        while b"stopped]" not in err:
            err += self.read_some(p, p.stderr)
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)  # at the prompt
        self.assertEqual(p.wait(LIMIT), 0)
        for stream in (p.stdin, p.stdout, p.stderr):
            stream.close()

    def test_whole_characters(self):
        p = self.start("-n", "60")
        p.stdin.write("Repeat this: \u65e5\u672c\u8a9e \U0001f600\U0001f600 \u00e9\u00e8 \u041f\u0440\u0438\u0432\u0435\u0442\n".encode())
        p.stdin.close()
        text = ""
        while True:
            part = self.read_some(p)
            if not part:
                break
            text += part.decode()  # fails where a character is cut
        self.assertTrue(any(ord(c) > 127 for c in text), text)
        self.assertEqual(p.wait(LIMIT), 0)
        p.stdout.close()
        p.stderr.close()


if __name__ == "__main__":
    unittest.main()
