# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Trains the small model that dendrite carries, on worked solutions of countdown puzzles, and writes it as GGUF.

    python3 train.py --out countdown.gguf [--steps N]

A llama of 6 layers on 21 characters. Matrices are trained with Muon, the rest with AdamW, in float32, with a learning
rate that rises, stays, and falls to nothing over the last part. Every --check steps it solves tuning puzzles greedily.
The same seed, versions and processor kind give the same file. requirements.txt names the packages.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import countdown
import write_gguf

END = 0  # token 0 ends a text; the characters follow
TOKEN = {c: i + 1 for i, c in enumerate(countdown.CHARACTERS)}
POOL = 16  # batches that are sorted by length together


class Muon(torch.optim.Optimizer):
    """Momentum whose step is the nearest orthogonal matrix (K. Jordan et al., "Muon", 2024), in float32: the optimizer of
    that name in PyTorch 2.9 works in bfloat16, which takes longer than the model on processors without such products."""

    def __init__(self, matrices, lr, momentum=0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(mean, group["momentum"])
                x = x if x.shape[0] <= x.shape[1] else x.T
                x = x / (x.norm() + 1e-7)
                for _ in range(5):  # Newton-Schulz, with the quintic of the source
                    a = x @ x.T
                    x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
                x = x if p.shape[0] <= p.shape[1] else x.T
                p.add_(x, alpha=-group["lr"] * math.sqrt(max(1, p.shape[0] / p.shape[1])))


class Config:
    vocab = len(countdown.CHARACTERS) + 1
    layers = 6
    width = 128
    head = 32  # head width
    ff = 384
    context = 128
    norm_eps = 1e-5
    rope_base = 10000.0


def encode(text):
    return [TOKEN[c] for c in text]


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.attn_norm, self.ffn_norm = (nn.Parameter(torch.ones(c.width)) for _ in range(2))
        self.qkv = nn.Linear(c.width, 3 * c.width, bias=False)
        self.o = nn.Linear(c.width, c.width, bias=False)
        self.gate_up = nn.Linear(c.width, 2 * c.ff, bias=False)
        self.down = nn.Linear(c.ff, c.width, bias=False)

    def forward(self, x, cos, sin):
        c, (b, t, _) = self.c, x.shape
        h = F.rms_norm(x, (c.width,), self.attn_norm, c.norm_eps)
        q, k, v = self.qkv(h).view(b, t, 3, -1, c.head).permute(2, 0, 3, 1, 4)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, c.width))
        h = F.rms_norm(x, (c.width,), self.ffn_norm, c.norm_eps)
        gate, up = self.gate_up(h).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turn(x, cos, sin):
    """Rotary embedding of interleaved pairs, as GGUF's llama has it."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab, c.width) * 0.3)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.out_norm = nn.Parameter(torch.ones(c.width))
        angle = torch.outer(torch.arange(c.context), c.rope_base ** -(torch.arange(0, c.head, 2) / c.head))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2 and name != "embed":
                shrink = math.sqrt(2 * c.layers) if name.endswith(("o.weight", "down.weight")) else 1
                nn.init.normal_(p, std=1 / math.sqrt(p.shape[1]) / shrink)

    def forward(self, tokens):
        x = F.embedding(tokens, self.embed)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(F.rms_norm(x, (self.c.width,), self.out_norm, self.c.norm_eps), self.embed)


def batches(seed, size):
    """Endless (tokens [size][t], targets [size][t]); -100 where the loss does not count."""
    stream, order = countdown.Examples(seed), torch.Generator().manual_seed(seed)
    while True:
        pool = sorted((next(stream) for _ in range(POOL * size)), key=lambda e: len(e[0]))
        for i in torch.randperm(POOL, generator=order).tolist():
            part = pool[i * size : (i + 1) * size]
            longest = len(part[-1][0])
            tokens = torch.zeros(size, longest, dtype=torch.long)
            targets = torch.full((size, longest), -100)
            for row, (text, counts) in enumerate(part):
                ids = torch.tensor(encode(text))
                tokens[row, : len(ids)] = ids
                wanted = torch.cat((ids[1:], torch.tensor([END])))
                wanted[:-1][~torch.tensor(counts[1:])] = -100
                targets[row, : len(ids)] = wanted
            yield tokens, targets


def is_solved(text):
    """Whether a puzzle with its worked solution is right: every step legal, and the last number the target."""
    prompt, _, steps = text.partition(":")
    numbers, _, target = prompt.partition(">")
    state = tuple(sorted(map(int, numbers.split())))
    for clause in steps.split("."):
        step = clause.split(" ")[0]
        options = dict(countdown.moves(state))
        if step not in options or clause != " ".join([step, *map(str, options[step])] if len(state) > 2 else [step]):
            return False
        state = options[step]
    return state == (int(target),)


@torch.no_grad()
def greedy_share(model, puzzles):
    """Share of the puzzles that the model solves when it always takes the likeliest character."""
    by_length, solved = {}, 0
    for text in puzzles:
        by_length.setdefault(len(text), []).append(text)
    for group in by_length.values():
        tokens = torch.tensor([encode(text) for text in group])
        for _ in range(64):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
        for row in tokens.tolist():
            if END in row:
                solved += is_solved("".join(countdown.CHARACTERS[t - 1] for t in row[: row.index(END)]))
    return solved / len(puzzles)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True, help="the GGUF file")
    p.add_argument("--steps", type=int, default=4500)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.02, help="of the matrices")
    p.add_argument("--fall", type=float, default=0.4, help="share of the steps over which the learning rate falls")
    p.add_argument("--check", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()

    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    torch.set_flush_denormal(True)
    config = Config()
    model = Model(config)
    matrices = [q for n, q in model.named_parameters() if q.dim() == 2 and n != "embed"]
    others = [q for n, q in model.named_parameters() if q.dim() != 2 or n == "embed"]
    optimizers = [
        Muon(matrices, lr=a.lr),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    for o in optimizers:
        for g in o.param_groups:
            g["peak"] = g["lr"]
    tune = countdown.held_out_puzzles(200, 400)[0]
    print(f"{sum(q.numel() for q in model.parameters()):,} parameters", flush=True)

    start, seen, mean = time.time(), 0, 0.0
    for step, (tokens, targets) in enumerate(batches(a.seed, a.batch), 1):
        factor = min(1.0, step / 100, (a.steps - step + 1) / (a.fall * a.steps))
        for o in optimizers:
            for g in o.param_groups:
                g["lr"] = g["peak"] * factor
            o.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for o in optimizers:
            o.step()
        seen += tokens.numel()
        mean += (loss.item() - mean) / min(step, 50)
        if step % 50 == 0:
            rate = seen / (time.time() - start)
            print(f"step {step} loss {mean:.4f} {time.time() - start:.0f} s {rate:.0f} tokens/s", flush=True)
        if step % a.check == 0 or step == a.steps:
            print(f"step {step} greedy on tuning puzzles {100 * greedy_share(model, tune):.1f}%", flush=True)
            write_gguf.write(model, a.out)
        if step == a.steps:
            break


if __name__ == "__main__":
    main()
