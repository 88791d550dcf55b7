#!/usr/bin/env python3
# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
"""Measures dendrite beside llama.cpp and ik_llama.cpp, interleaved, and beside what the machine can do.

    python3 tools/bench.py [--peers DIR] [--rounds 5] [--threads 2] [--out file.json] [--only qwen05,smollm2_decode]

DIR holds builds of the peers: DIR/llama/bin/llama-bench and llama-batched-bench (tools/build_peers.sh makes it), and
where one has built it DIR/ik/bin with the same programs. Peers that are not there are left out.

Machines are shared and change speed within seconds, so engines are compared only when interleaved: one round measures
every engine once, in turn. A figure is the median over the rounds, a ratio the median of the rounds' ratios.

The floor of a row is the time that it must take: the bytes that it reads over the read bandwidth, or its
multiply-adds over the rate of byte products from registers, whichever is longer. Both probes run with the same
threads right before and after each measurement. "floor" below is that time in percent of the measured one, the
letter says which of the two it is (b, o). Bytes: weights as held in memory that a step reads (an embedding that is not
the head is only gathered from), and K and V of the context, of a shared prefix once.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

MODELS = {
    "smollm2": "models/SmolLM2-135M-Instruct.Q4_1.gguf",
    "smollm2_q8": "models/SmolLM2-135M-Instruct.Q8_0.gguf",
    "qwen05": "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "qwen15": "models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
    "gemma270m": "models/gemma-3-270m-Q4_K_M.gguf",
}

# dendrite's command, llama-bench's arguments (ik's where they differ) or llama-batched-bench's
WORKS = {
    "decode": ("decode 64", ["-p", "0", "-n", "64"], None, None),
    "prefill": ("prefill 512", ["-p", "512", "-n", "0"], None, None),
    "decode8k": ("deep 8192 16", ["-p", "0", "-n", "16", "-d", "8192"], ["-p", "0", "-n", "0", "-gp", "8192,16"], None),
    "branches8": ("branches 8 2048 32", None, None, ["-npp", "2048", "-ntg", "32", "-npl", "8", "-pps"]),
    "branches16": ("branches 16 2048 32", None, None, ["-npp", "2048", "-ntg", "32", "-npl", "16", "-pps"]),
}

ROWS = [
    ("smollm2", "decode"), ("smollm2", "prefill"), ("smollm2", "decode8k"),
    ("smollm2_q8", "decode"), ("smollm2_q8", "prefill"),
    ("qwen05", "decode"), ("qwen05", "prefill"), ("qwen05", "decode8k"), ("qwen05", "branches8"),
    ("qwen05", "branches16"),
    ("qwen15", "decode"), ("qwen15", "prefill"),
    ("gemma270m", "decode"), ("gemma270m", "prefill"),
]


class Dendrite:
    """A bench_engine process that stays loaded and answers commands."""

    def __init__(self, binary, model, threads):
        self.process = subprocess.Popen([binary, model, "-t", str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.hello = self.process.stdout.readline().strip()
        if not self.hello.startswith("ready"):
            raise SystemExit(f"{binary} cannot run {model}")
        words = self.hello.split()
        self.size = {key: float(words[words.index(key) + 1]) for key in ("bytes", "macs", "head_macs", "kv_bytes")}

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def floor(self, work, read_gbs, gmacs):
        """Tokens a second that the probes allow, and which of them is the limit."""
        z = self.size
        rows, context, logits = {"decode": (1, 32, 1), "prefill": (512, 256, 1 / 512), "decode8k": (1, 8192, 1),
                                 "branches8": (8, 2048, 1), "branches16": (16, 2048, 1)}[work]
        seconds_bytes = (z["bytes"] + context * z["kv_bytes"]) / (read_gbs * 1e9)
        seconds_macs = rows * (z["macs"] + logits * z["head_macs"]) / (gmacs * 1e9)
        return rows / max(seconds_bytes, seconds_macs), "b" if seconds_bytes > seconds_macs else "o"

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peer_bench(peer, folder, model, work, threads):
    """Tokens a second of one llama-bench or llama-batched-bench run, or None."""
    _, bench, ik_bench, batched = WORKS[work]
    repack = ["-rtr", "1"] if peer == "ik" else []  # its faster layout; llama.cpp repacks by itself
    if batched:
        command = [os.path.join(folder, "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "8192", *batched]
        command += ["-rtr"] if peer == "ik" else ["-kvu"]  # one cache that branches share
    else:
        arguments = ik_bench if peer == "ik" and ik_bench else bench
        command = [os.path.join(folder, "llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json",
                   *repack, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if not batched:
        try:
            return json.loads(result.stdout[result.stdout.index("["):])[-1]["avg_ts"]
        except (ValueError, KeyError, IndexError):
            return None
    for line in reversed((result.stdout + "\n" + result.stderr).splitlines()):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 8 and cells[0].isdigit():
            return float(cells[7])  # S_TG t/s: of all branches
    return None


def median(values):
    values = [v for v in values if v is not None and v > 0]
    return statistics.median(values) if values else None


def ratio(ours, theirs):
    return median([a / b for a, b in zip(ours, theirs) if a and b])


def requantise(peers):
    """The Q8_0 form of SmolLM2, made by llama.cpp's own tool."""
    tool = os.path.join(peers, "llama", "bin", "llama-quantize")
    if not os.path.exists(MODELS["smollm2_q8"]) and os.path.exists(tool) and os.path.exists(MODELS["smollm2"]):
        subprocess.run([tool, "--allow-requantize", MODELS["smollm2"], MODELS["smollm2_q8"], "Q8_0"],
                       capture_output=True, check=False)


def bench_row(engine, model, work, options, peers, figures):
    command = WORKS[work][0]
    ours, floors, reads, limit, theirs = [], [], [], "", {p: [] for p in peers}
    engine.ask(command)  # warm-up, and the deep context
    for _ in range(options.rounds):
        read, peak = engine.ask("probe"), engine.ask("peak")
        ours.append(engine.ask(command))
        read, peak = (read + engine.ask("probe")) / 2, (peak + engine.ask("peak")) / 2
        floor, limit = engine.floor(work, read, peak)
        floors.append(100 * ours[-1] / floor)
        reads.append(read)
        for p in peers:
            wrong = p == "ik" and model == "smollm2"  # it computes wrong values on this file's Q4_1
            theirs[p].append(None if wrong else peer_bench(p, os.path.join(options.peers, p, "bin"), MODELS[model],
                                                           work, options.threads))
    name = f"{model}_{work}"
    figures[name + "_tps"] = median(ours)
    figures[name + "_probe_pct"] = median(floors)
    line = f"{name:20}{median(ours) or 0:10.1f}"
    for p in peers:
        r = ratio(ours, theirs[p])
        line += f"{median(theirs[p]) or 0:10.1f}{r or 0:8.2f}"
        if r:
            figures[f"{name}_vs_{p}"] = r
    print(line + f"{median(reads):12.1f}{median(floors):8.0f}% {limit}", flush=True)


def bench_rows_8(engine, model, options, figures):
    """A step of 8 rows beside a step of 1 row."""
    one, eight, peaks = [], [], []
    for _ in range(2 * options.rounds):
        peak = engine.ask("peak")
        one.append(engine.ask("rows 1 8"))
        eight.append(engine.ask("rows 8 8"))
        peak = (peak + engine.ask("peak")) / 2
        macs = 8 * (engine.size["macs"] + engine.size["head_macs"])
        peaks.append(100 * macs / (eight[-1] * 1e-3) / (peak * 1e9))
    figures[f"f8_over_f1_{model}"] = ratio(eight, one)
    figures[f"f8_peak_pct_{model}"] = median(peaks)
    print(f"{model} f(8)/f(1): {ratio(eight, one) or 0:.2f} ({median(eight):.2f} and {median(one):.2f} ms), "
          f"{median(peaks):.0f}% of the byte products that registers allow", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dendrite", default="build/bench_engine")
    parser.add_argument("--attention", default="build/bench_attention")
    parser.add_argument("--peers", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="")
    parser.add_argument("--only", default="", help="comma-separated model_work names, or models")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    peers = [name for name in ("llama", "ik")
             if os.path.exists(os.path.join(options.peers, name, "bin", "llama-bench"))] if options.peers else []
    requantise(options.peers)
    figures, reads, peaks, regions = {}, [], [], []
    print(f"peers: {', '.join(peers) or 'none'}; {options.rounds} rounds, {options.threads} threads; tokens a second")
    print(f"{'':20}{'dendrite':>10}" + "".join(f"{p:>10}{'ratio':>8}" for p in peers) + f"{'read GB/s':>12}{'floor':>9}")
    for model in MODELS:
        works = [w for m, w in ROWS if m == model and (not only or model in only or f"{m}_{w}" in only)]
        if not works:
            continue
        if not os.path.exists(MODELS[model]):
            print(f"{model}: {MODELS[model]} is not here, left out")
            continue
        engine = Dendrite(options.dendrite, MODELS[model], options.threads)
        engine.ask("probe")
        for work in works:
            bench_row(engine, model, work, options, peers, figures)
        bench_rows_8(engine, model, options, figures)
        reads += [engine.ask("probe") for _ in range(5)]
        peaks += [engine.ask("peak") for _ in range(5)]
        regions += [engine.ask("region 2000") for _ in range(5)]
        engine.close()
    if reads:
        figures["read_gbs"] = median(reads)
        figures["int8_gmacs"] = median(peaks)
        figures["region_us"] = median(regions)
        figures["state_near"] = int(figures["read_gbs"] < 45)
        print(f"read {figures['read_gbs']:.1f} GB/s, byte products {figures['int8_gmacs']:.0f} GMAC/s, "
              f"parallel region {figures['region_us']:.2f} us")
    if not only:
        table = subprocess.run([options.attention, "31", "64", "build/attention.json"], capture_output=True, text=True)
        print(table.stdout, end="")
        with open("build/attention.json", encoding="ascii") as f:
            figures.update(json.load(f))
    if options.out:
        with open(options.out, "w", encoding="ascii") as f:
            json.dump({k: v for k, v in figures.items() if v is not None}, f, indent=1)
            f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
