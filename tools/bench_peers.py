#!/usr/bin/env python3
"""Measures dendrite beside llama.cpp (and ik_llama.cpp), interleaved, and prints medians and ratios.

    python3 tools/bench_peers.py --dendrite build/bench_engine [--peers DIR] [--rounds 5] [--out file.json]
                                 [--only smollm2_decode,...]

DIR holds builds of the peers: DIR/llama/bin/llama-bench and llama-batched-bench (tools/build_peers.sh makes it), and
where one has built it DIR/ik/bin with the same programs. Peers that are not there are left out.

Machines are shared and change speed within seconds, so engines are compared only when interleaved: one round measures
every engine once, in turn, and the read bandwidth of all threads before and after dendrite. The figures are medians over
the rounds; a ratio is the median of the rounds' ratios.
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
}

# name, dendrite's command, llama-bench arguments or llama-batched-bench arguments
WORKS = {
    "decode": ("decode 64", ["-p", "0", "-n", "64"], None),
    "prefill": ("prefill 512", ["-p", "512", "-n", "0"], None),
    "decode8k": ("deep 8192 16", ["-p", "0", "-n", "16", "-d", "8192"], None),
    "branches8": ("branches 8 2048 32", None, ["-npp", "2048", "-ntg", "32", "-npl", "8", "-pps"]),
    "branches16": ("branches 16 2048 32", None, ["-npp", "2048", "-ntg", "32", "-npl", "16", "-pps"]),
}

ROWS = [
    ("smollm2", "decode"), ("smollm2", "prefill"), ("smollm2", "decode8k"),
    ("smollm2_q8", "decode"), ("smollm2_q8", "prefill"),
    ("qwen05", "decode"), ("qwen05", "prefill"), ("qwen05", "decode8k"), ("qwen05", "branches8"),
    ("qwen05", "branches16"),
    ("qwen15", "decode"), ("qwen15", "prefill"),
]


class Dendrite:
    """A bench_engine process that stays loaded and answers commands."""

    def __init__(self, binary, model, threads):
        self.process = subprocess.Popen([binary, model, "-t", str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.hello = self.process.stdout.readline().strip()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peer_bench(folder, model, arguments, threads):
    """Tokens a second of one llama-bench run, or None."""
    command = [os.path.join(folder, "llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(result.stdout[result.stdout.index("["):])[-1]["avg_ts"]
    except (ValueError, KeyError, IndexError):
        return None


def peer_batched(folder, model, arguments, threads):
    """Tokens a second, all branches together, of one llama-batched-bench run, or None."""
    command = [os.path.join(folder, "llama-batched-bench"), "-m", model, "-t", str(threads), "-c", "8192", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    for line in reversed(result.stdout.splitlines()):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 8 and cells[0].isdigit():
            return float(cells[7])  # S_TG t/s
    return None


def median(values):
    values = [v for v in values if v is not None and v > 0]
    return statistics.median(values) if values else None


def ratio(ours, theirs):
    return median([a / b for a, b in zip(ours, theirs) if a and b])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dendrite", default="build/bench_engine")
    parser.add_argument("--peers", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="")
    parser.add_argument("--only", default="", help="comma-separated model_work names, or models")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    peers = [name for name in ("llama", "ik")
             if os.path.exists(os.path.join(options.peers, name, "bin", "llama-bench"))] if options.peers else []
    figures = {}
    print(f"peers: {', '.join(peers) or 'none'}; {options.rounds} rounds, {options.threads} threads")
    print(f"{'':22}{'dendrite':>10}" + "".join(f"{p:>10}{'ratio':>8}" for p in peers) + f"{'probe GB/s':>12}{'% of it':>9}")
    for model in MODELS:
        works = [w for m, w in ROWS if m == model and (not only or model in only or f"{m}_{w}" in only)]
        if not works:
            continue
        if not os.path.exists(MODELS[model]):
            print(f"{model}: {MODELS[model]} is not here, left out")
            continue
        engine = Dendrite(options.dendrite, MODELS[model], options.threads)
        weights_gb = float(engine.hello.split("weights")[1].split()[0]) / 1000
        engine.ask("probe")
        for work in works:
            command, bench, batched = WORKS[work]
            ours, probes, theirs = [], [], {p: [] for p in peers}
            engine.ask(command)  # warm-up, and the deep context
            for _ in range(options.rounds):
                before = engine.ask("probe")
                ours.append(engine.ask(command))
                probes.append(statistics.median([before, engine.ask("probe")]))
                for p in peers:
                    folder = os.path.join(options.peers, p, "bin")
                    if p == "ik" and model == "smollm2":
                        theirs[p].append(None)  # it computes wrong values on this file's Q4_1
                    elif bench:
                        theirs[p].append(peer_bench(folder, MODELS[model], bench, options.threads))
                    else:
                        theirs[p].append(peer_batched(folder, MODELS[model], batched, options.threads))
            name = f"{model}_{work}"
            figures[name + "_tps"] = median(ours)
            line = f"{name:22}{median(ours) or 0:10.1f}"
            for p in peers:
                r = ratio(ours, theirs[p])
                line += f"{median(theirs[p]) or 0:10.1f}{r or 0:8.2f}"
                if r:
                    figures[f"{name}_vs_{p}"] = r
            if work == "decode":
                share = median([100 * weights_gb * a / b for a, b in zip(ours, probes)])
                figures[name + "_probe_pct"] = share
                line += f"{median(probes):12.1f}{share:9.0f}"
            print(line, flush=True)
        one, eight = [], []
        for _ in range(options.rounds):
            one.append(engine.ask("rows 1 16"))
            eight.append(engine.ask("rows 8 16"))
        figures[f"f8_over_f1_{model}"] = ratio(eight, one)
        print(f"{model + ' f(8)/f(1)':22}{ratio(eight, one) or 0:10.2f}   ({median(one):.2f} and {median(eight):.2f} ms)")
        figures["read_gbs"] = median([engine.ask("probe") for _ in range(9)])
        engine.close()
    figures["state_near"] = int(figures.get("read_gbs", 0) < 45)
    if options.out:
        with open(options.out, "w") as f:
            json.dump({k: v for k, v in figures.items() if v is not None}, f, indent=1)
            f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
