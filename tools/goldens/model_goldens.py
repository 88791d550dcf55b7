#!/usr/bin/env python3
"""Probabilities, greedy continuations and a perplexity of a real model, from a float64 forward pass and from llama.cpp.

    python3 model_goldens.py MODEL.gguf OUT.bin

Layout, little-endian, without padding:
    "DMG1", u32 n_prompts, u8 sha256_of_model[32]
    n_prompts x {
        u32 n_tokens, i32 tokens[n_tokens]
        u32 n_pos (24), n_pos x { u32 pos, f32 tail_mass_log, 128 x { i32 id, f32 logprob } }
        f64 kl_llama
        i32 greedy[16], f32 gap[16]
    }
    u32 n, i32 tokens[n], f64 ppl_llama, f64 ppl_f32

pos: the entry is the distribution of the token after tokens[0..pos]. The 128 ids are the float64 run's most probable, by
falling probability (equal ones by id), and tail_mass_log is the log of the mass of all others. kl_llama is the mean over
the positions of KL(float64 run || llama.cpp) over those 128 and the rest as one bucket. greedy: llama.cpp's argmax
chain after the whole prompt, one token at a time, past end-of-text tokens too; gap: the highest logit less the second.
Perplexity: exp of the mean over i = 1..n-1 of -log p(tokens[i] | tokens[0..i-1]) in one context from position 0.
Tokens: prompts with special tokens parsed, the perplexity text without; a BOS in front where the file says so.
"""

import struct
import sys

import numpy as np

import golden_lib as lib

TOP = 128
N_POS = 24
N_GREEDY = 16

# The endings leave llama.cpp little doubt about the words to come, so that the greedy chain stands on clear gaps.
PROSE = ("There are seven days in a week. Their names are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and "
         "Sunday. There are twelve months in a year. Their names are")

CODE = '''#include <stddef.h>

/* Returns the index of the first element of a[0..n-1] that is not less than key, or n. */
static size_t lower_bound(const int *a, size_t n, int key)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (a[mid] < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Returns the index of the first element of a[0..n-1] that is greater than key, or n. */
static size_t upper_bound('''

CHAT = '''<|im_start|>system
You are a patient teacher. Answer in plain words, give one example, and keep to the point.<|im_end|>
<|im_start|>user
Why does the moon seem to change its shape during a month?<|im_end|>
<|im_start|>assistant
The moon itself does not change. It is a ball of rock, and the sun always lights one half of it. What changes is how \
much of that lit half we can see from where we stand. When the moon is between us and the sun, its lit half faces away \
from us, and we call it a new moon. About two weeks later it is on the other side of the earth, its lit half faces us, \
and we see a full moon. In between we see a part: a thin crescent, then a half, then almost all of it.

Example: put a lamp in a dark room, hold a ball at arm's length, and turn slowly on the spot. The lamp is the sun, the \
ball is the moon, and your head is the earth. You will see all the shapes one after another.<|im_end|>
<|im_start|>user
Thank you! Is that also why we sometimes have an eclipse? And how long does the whole cycle take, 28 days or 30?<|im_end|>
<|im_start|>assistant
Not quite. The phases come from our point of view, but an eclipse comes from a shadow. In a lunar eclipse the earth's \
shadow falls on the moon; in a solar eclipse the moon's shadow falls on the earth. As the moon's path is tilted by about \
5 degrees, the three bodies rarely stand in one line. A whole cycle of phases takes about 29.5 days.<|im_end|>
<|im_start|>user
Name the planets of the solar system, from the sun outwards, as a numbered list.<|im_end|>
<|im_start|>assistant
'''


def prompt_record(tokens, states, head, llama):
    n = len(tokens)
    at = np.unique(np.round(np.linspace(0, n - 1, N_POS)).astype(int))
    assert len(at) == N_POS and at[-1] == n - 1
    truth = lib.log_softmax(states[at] @ head.T)
    llama.reset()
    rows = llama.decode(tokens)
    other = lib.log_softmax(rows[at].astype(np.float64))
    data = [struct.pack("<I", n), np.array(tokens, "<i4").tobytes(), struct.pack("<I", N_POS)]
    kls = []
    for pos, p, q in zip(at, truth, other):
        order = np.argsort(-p, kind="stable")
        ids, rest = order[:TOP], order[TOP:]
        p_rest, q_rest = np.logaddexp.reduce(p[rest]), np.logaddexp.reduce(q[rest])
        kls.append((np.exp(p[ids]) * (p[ids] - q[ids])).sum() + np.exp(p_rest) * (p_rest - q_rest))
        pairs = np.empty(TOP, [("id", "<i4"), ("logprob", "<f4")])
        pairs["id"], pairs["logprob"] = ids, p[ids]
        data += [struct.pack("<If", pos, p_rest), pairs.tobytes()]
    data.append(struct.pack("<d", np.mean(kls)))
    greedy, gaps, row = [], [], rows[-1]
    for i in range(N_GREEDY):
        second, first = np.partition(row, -2)[-2:]
        greedy.append(int(row.argmax()))
        gaps.append(float(first - second))
        if i + 1 < N_GREEDY:
            row = llama.decode([greedy[-1]], past=n + i)[-1]
    data += [np.array(greedy, "<i4").tobytes(), np.array(gaps, "<f4").tobytes()]
    same = (truth.argmax(-1) == other.argmax(-1)).sum()
    print(f"prompt of {n} tokens: KL mean {np.mean(kls):.3e}, greatest {np.max(kls):.3e}; the same first token at "
          f"{same} of {N_POS}; least greedy gap {min(gaps):.3f}")
    print("    " + repr(b"".join(llama.piece(t) for t in greedy).decode("utf-8", "replace")))
    return b"".join(data)


def perplexity(rows_of, tokens, step=128):
    """rows_of(a, b) gives the logits of positions a..b-1 as float64."""
    total, last = 0.0, len(tokens) - 1
    for a in range(0, last, step):
        b = min(a + step, last)
        logp = lib.log_softmax(rows_of(a, b))
        total += logp[np.arange(b - a), tokens[a + 1:b + 1]].sum()
    return float(np.exp(-total / last))


def main():
    path, out = sys.argv[1:3]
    llama = lib.Llama(path)
    prompts = [llama.tokenize(t.encode(), True, True) for t in (PROSE, CODE, CHAT)]
    text = (lib.GOLDEN / "ppl_text.txt").read_bytes()
    ppl_tokens = np.array(llama.tokenize(text, False, True))
    assert len(ppl_tokens) <= 2048
    model = lib.Forward(path)
    *states, ppl_states = model.hidden([np.array(p) for p in prompts] + [ppl_tokens])
    head = model.head()
    data = [b"DMG1", struct.pack("<I", len(prompts)), lib.sha256_of(path)]
    data += [prompt_record(p, s, head, llama) for p, s in zip(prompts, states)]
    ppl_f32 = perplexity(lambda a, b: ppl_states[a:b] @ head.T, ppl_tokens)
    llama.reset()
    rows = llama.decode(ppl_tokens)
    ppl_llama = perplexity(lambda a, b: rows[a:b].astype(np.float64), ppl_tokens)
    print(f"perplexity over {len(ppl_tokens)} tokens: llama.cpp {ppl_llama:.5f}, float64 {ppl_f32:.5f}")
    data += [struct.pack("<I", len(ppl_tokens)), ppl_tokens.astype("<i4").tobytes(),
             struct.pack("<2d", ppl_llama, ppl_f32)]
    with open(out, "wb") as f:
        f.write(b"".join(data))
    print(f"{out.rsplit('/', 1)[-1]}: {sum(map(len, data))} bytes; {lib.versions()}")


if __name__ == "__main__":
    main()
