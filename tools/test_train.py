# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Tests of tools/train/countdown.py: the rules, the split, the training texts, and the committed puzzles."""

import itertools
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "train"))

import countdown  # noqa: E402


def numbers_of(text):
    return tuple(sorted(map(int, text.split(">")[0].split())))


def by_force(state):
    """All numbers that can be left of a state, without memory or pruning."""
    if len(state) == 1:
        return set(state)
    found = set()
    for i, j in itertools.permutations(range(len(state)), 2):
        a, b = state[i], state[j]
        rest = [v for k, v in enumerate(state) if k not in (i, j)]
        for v in (a + b, a - b, a * b, a // b if a % b == 0 else 0):
            if v >= 1:
                found |= by_force(tuple(rest + [v]))
    return found


class CountdownTest(unittest.TestCase):
    def test_reachable_is_what_force_finds(self):
        for state in [(1, 1, 1), (2, 3, 7), (1, 5, 5, 5), (4, 7, 8, 8), (3, 3, 8, 8), (13, 13, 13, 13)]:
            self.assertEqual(countdown.reachable(state), by_force(state) & set(countdown.TARGETS), state)

    def test_moves_are_legal_and_differ(self):
        for state in [(1, 1), (2, 4), (3, 7, 7), (1, 2, 3, 4)]:
            texts = [text for text, _ in countdown.moves(state)]
            self.assertEqual(len(texts), len(set(texts)))
            for text, after in countdown.moves(state):
                left, result = text.split("=")
                self.assertEqual(eval(left.replace("/", "//")), int(result))  # our own text: digits and one sign
                self.assertEqual(len(after), len(state) - 1)

    def test_held_out_numbers_are_in_no_training_text(self):
        training, held_out = map(set, countdown.multisets())
        self.assertEqual(len(training) + len(held_out), 1820)
        self.assertFalse(training & held_out)
        examples = countdown.Examples(5)
        for _ in range(2000):
            text, counts = next(examples)
            self.assertEqual(len(text), len(counts))
            self.assertNotIn(numbers_of(text), held_out)
            self.assertFalse(any(counts[: text.index(":") + 1]))

    def test_training_texts_are_right(self):
        examples = countdown.Examples(6)
        n_dead = 0
        for _ in range(1000):
            text, _ = next(examples)
            prompt, steps = text.split(":")
            target = int(prompt.split(">")[1])
            state = numbers_of(text)
            n_dead += steps.endswith("!")
            for clause in steps.rstrip("!").split("."):
                step = clause.split(" ")[0]
                state = dict(countdown.moves(state))[step]
            self.assertEqual(target in countdown.reachable(state), not steps.endswith("!"), text)
        self.assertGreater(n_dead, 200)

    def test_committed_puzzles(self):
        held_out = set(countdown.multisets()[1])
        lists = []
        for name, lines in zip(("tune", "test"), countdown.held_out_puzzles(200, 400)):
            path = ROOT / "examples" / "models" / f"countdown_{name}.txt"
            self.assertEqual(path.read_text().splitlines(), lines, "make train writes it anew")
            lists.append({numbers_of(line) for line in lines})
            for line in lines:
                self.assertIn(numbers_of(line), held_out)
                self.assertIn(int(line.split(">")[1].rstrip(":")), countdown.reachable(numbers_of(line)))
        self.assertFalse(lists[0] & lists[1])


if __name__ == "__main__":
    unittest.main()
