# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Countdown puzzles: rules, solver, worked solutions, and which puzzles are held out.

A puzzle is four numbers of 1..13 and a target of 10..100 (24 is the card game). A step takes two of the numbers and puts
a + b, a - b, a * b or a / b in their place; results are whole and at least 1. A puzzle is solved when the one number left
is the target. Written out, one step a clause, with the numbers that are left behind each:

    8 11 4 11>24:8/4=2 2 11 11.11+11=22 2 22.22+2=24

The text begins with the puzzle in any order; operands have the larger first, what is left ascends. "." after a step says
that the target can still be reached; "!" says that it cannot, and ends the text.

    python3 countdown.py FOLDER      writes FOLDER/countdown_tune.txt and FOLDER/countdown_test.txt
"""

import argparse
import functools
import itertools
import random
from pathlib import Path

SEED = 20261
NUMBERS = range(1, 14)
TARGETS = range(10, 101)
HELD_OUT = 0.2  # share of the 1,820 multisets that no training example uses, whatever the target
CHARACTERS = "0123456789 +-*/=.!>:"


@functools.lru_cache(maxsize=None)
def moves(state):
    """All steps from a state (an ascending tuple): pairs (text, state after it)."""
    found = {}
    for i, j in itertools.combinations(range(len(state)), 2):
        b, a = state[i], state[j]
        rest = state[:i] + state[i + 1 : j] + state[j + 1 :]
        results = [("+", a + b), ("*", a * b)]
        if a > b:
            results.append(("-", a - b))
        if a % b == 0:
            results.append(("/", a // b))
        for op, value in results:
            found[f"{a}{op}{b}={value}"] = tuple(sorted(rest + (value,)))
    return tuple(found.items())


@functools.lru_cache(maxsize=None)
def reachable(state):
    """The targets that a state can still reach."""
    if len(state) == 1:
        return frozenset(state)
    return frozenset().union(*(reachable(after) for _, after in moves(state))) & frozenset(TARGETS)


def multisets():
    """(training, held out): all multisets of four numbers, divided by a fixed draw."""
    every = list(itertools.combinations_with_replacement(NUMBERS, 4))
    random.Random(SEED).shuffle(every)
    n = round(HELD_OUT * len(every))
    return every[n:], every[:n]


def left(state):
    return " ".join(map(str, state))


def puzzle(state, target, rng):
    """The puzzle's text, its numbers in random order."""
    shuffled = list(state)
    rng.shuffle(shuffled)
    return f"{left(shuffled)}>{target}:"


class Examples:
    """An endless stream of training texts: pairs (text, where the loss counts as a list of bool)."""

    def __init__(self, seed, share_of_24=0.1, share_dead=0.3):
        self.rng = random.Random(seed)
        self.states = [s for s in multisets()[0] if reachable(s)]
        self.targets = {s: sorted(reachable(s)) for s in self.states}
        self.share_of_24, self.share_dead = share_of_24, share_dead

    def __next__(self):
        rng = self.rng
        while True:
            state = rng.choice(self.states)
            target = 24 if rng.random() < self.share_of_24 else rng.choice(self.targets[state])
            if target in reachable(state):
                break
        text = puzzle(state, target, rng)
        counts = [False] * len(text)
        dead_at = rng.choice((3, 2)) if rng.random() < self.share_dead else 0  # numbers left after the wrong step
        while True:
            good = [m for m in moves(state) if target in reachable(m[1])]
            bad = [m for m in moves(state) if target not in reachable(m[1])] if len(state) - 1 == dead_at else []
            step, state = rng.choice(bad or good)
            text += step
            # A wrong choice is nothing to learn from; its result, what is left, and that it is dead, are.
            counts += [not bad] * (step.index("=") + 1) + [True] * (len(step) - step.index("=") - 1)
            if len(state) == 1:
                return text, counts
            tail = f" {left(state)}{'!' if bad else '.'}"
            text += tail
            counts += [True] * len(tail)
            if bad:
                return text, counts


def held_out_puzzles(n_tune, n_test):
    """Two lists of (numbers, target) with no multiset in common, all solvable, one in four of them a 24."""
    rng = random.Random(SEED + 1)
    states = [s for s in multisets()[1] if reachable(s)]
    rng.shuffle(states)
    cut = round(len(states) * n_tune / (n_tune + n_test))
    lists = []
    for part, n in ((states[:cut], n_tune), (states[cut:], n_test)):
        chosen = {}
        while len(chosen) < n:
            state = rng.choice(part)
            target = 24 if rng.random() < 0.25 else rng.choice(sorted(reachable(state)))
            if target in reachable(state) and (state, target) not in chosen:
                chosen[state, target] = puzzle(state, target, rng)
        lists.append(list(chosen.values()))
    return lists


def main():
    p = argparse.ArgumentParser(description="Writes the held-out puzzles.")
    p.add_argument("folder", type=Path)
    folder = p.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(("tune", "test"), held_out_puzzles(200, 400)):
        (folder / f"countdown_{name}.txt").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
