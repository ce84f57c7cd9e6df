#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ordinary PyTorch training (scripts/train.py) over plain NCCL sockets and over nibble, same seeds, each process a node.

For every way of parallelism: losses and held-out losses in pairs, the wire's bytes as the plugin's summary tells them,
weights that every rank sees alike, the update's distance from that of exactly averaged gradients; and runs of two nodes
whose gradients nibble sends raw, which must give plain NCCL's losses and weights bit for bit.

    training_check.py --plugin FILE --out DIR [--limit SECONDS] [--ways A,B] [--seeds N] [--device cpu]

With --device cpu everything runs over gloo, without the plugin: that tries the scripts and the arithmetic, nothing else.
"""
import argparse
import csv
import glob
import json
import math
import os
import random
import socket
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
try:
    import torch
    import torch.distributed  # noqa: F401  imported before processes are forked
except ImportError as problem:
    print(f"skipped: no PyTorch ({problem})")
    sys.exit(77)

import ranks

HERE = os.path.dirname(os.path.abspath(__file__))
DISTANCE = 0.003  # 1 - cos of the update against that of exact averages
RATIO = 3.5       # bytes of coded gradients, of their own type, over those on the wire
STEPS = 140
AUDIT_FROM = 80   # after the plugin's raw first steps, and after it has learnt to tell equal layers apart

# name: processes, script's options, whether all ranks hold the same weights in a forward pass and at the end,
# whether gradients must be seen coded, whether the plugin's gradients are raw so that all bits must be plain NCCL's
WAYS = {
    "ddp": (4, ["--parallel", "ddp"], True, True, False),
    "fsdp2": (4, ["--parallel", "fsdp2"], True, True, False),
    "fsdp2 on the GPU": (4, ["--parallel", "fsdp2"], True, True, False),
    "ddp on the GPU": (4, ["--parallel", "ddp"], True, True, False),
    "fsdp1": (4, ["--parallel", "fsdp1"], True, True, False),
    "distributed-optimizer": (4, ["--parallel", "distributed-optimizer"], True, True, False),
    "exact fsdp2": (2, ["--parallel", "fsdp2", "--deterministic"], True, False, True),
    "exact distributed-optimizer": (2, ["--parallel", "distributed-optimizer", "--deterministic"], True, False, True),
    "experts, recomputed activations": (4, ["--parallel", "fsdp2", "--experts"], True, True, False),
    "hsdp": (4, ["--parallel", "hsdp"], True, True, False),
    "zero": (4, ["--parallel", "zero"], True, True, False),
    "odd sizes, deterministic": (3, ["--parallel", "fsdp2", "--odd", "--deterministic"], True, True, False),
    "local-sgd": (4, ["--parallel", "local-sgd"], False, False, False),
    "post-local-sgd": (4, ["--parallel", "post-local-sgd"], False, False, False),
    "pipeline": (4, ["--parallel", "pipeline", "--deterministic"], False, False, True),
    "exact ddp": (2, ["--parallel", "ddp", "--deterministic"], True, False, True),
    "exact fsdp1": (2, ["--parallel", "fsdp1", "--deterministic"], True, False, True),
}

# Ways "... on the GPU": codecs run there, on pinned buffers, since sends and receives over TCP take no device pointers
# and these jobs need them, too. All others as over TCP by default.
GPU = {"NIBBLE_GPU_POINTERS": "0", "NIBBLE_DEVICE": "cuda"}

# Two-sided 95 % points of Student's t by degrees of freedom.
T95 = [0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def interval(values):
    """Mean and half-width of its 95 % confidence interval; no half-width from one value."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, math.inf
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, (T95[n - 1] if n <= len(T95) else 1.98) * sd / math.sqrt(n)


def free_port():
    """A port below those that the system gives to connections, which could take it before the job listens."""
    for port in random.sample(range(15000, 30000), 200):
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                continue
    raise OSError("no free port")


def train(options):
    """What a rank does: the script, as if it had been started by itself."""
    import runpy
    sys.argv = ["train.py"] + options
    sys.path.insert(0, os.path.join(HERE, "scripts"))
    runpy.run_path(os.path.join(HERE, "scripts", "train.py"), run_name="__main__")
    return 0


class Run:
    """One job: its processes, and what they leave in its folder."""

    def __init__(self, rank_of, folder, count, options, plugin, device, exact, gpu, seconds):
        os.makedirs(folder, exist_ok=True)
        for old in glob.glob(os.path.join(folder, "*")):
            os.remove(old)
        self.folder, self.count = folder, count
        port = str(free_port())
        options = options + ["--out", folder, "--device", device, "--backend", "gloo" if device == "cpu" else "nccl"]

        def environment(rank):
            env = ranks.node_environment(rank, plugin, os.path.join(folder, f"nccl.{rank}"))
            env.update({"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port})
            env.update(ranks.older_nccl(plugin))
            if plugin and exact:
                # Raw, but through the engine: with NIBBLE_RS=raw the tuner would leave sums to NCCL's own algorithms.
                env["NIBBLE_WARMUP_STEPS"] = "1000000"
            elif plugin:
                # What is checked is the codec, whatever link the machine has.
                env.update({"NIBBLE_RS": "int4", "NIBBLE_AR": "int4"})
            if plugin and gpu:
                env.update(GPU)
            return env

        self.group = ranks.Group(count, lambda r: rank_of(options), environment,
                                 lambda r: os.path.join(folder, f"rank{r}.log"), seconds)

    def read(self):
        """Losses by step (mean over ranks), held-out losses, digests of each rank, the plugin's log."""
        self.losses, self.held, self.digests = {}, {}, []
        for rank in range(self.count):
            with open(os.path.join(self.folder, f"loss.{rank}.csv")) as f:
                for step, value in csv.reader(f):
                    into = self.held if step.startswith("held") else self.losses
                    key = step if step.startswith("held") else int(step)
                    into[key] = into.get(key, 0.0) + float(value) / self.count
            with open(os.path.join(self.folder, f"digest.{rank}.csv")) as f:
                self.digests.append(dict(csv.reader(f)))
        self.audit = None
        path = os.path.join(self.folder, "audit.json")
        if os.path.exists(path):
            with open(path) as f:
                self.audit = json.load(f)
        self.log = ""
        for name in glob.glob(os.path.join(self.folder, "nccl.*")):
            with open(name, errors="replace") as f:
                self.log += f.read()

    def alike(self):
        """Digests on which ranks differ."""
        return [k for k in self.digests[0] if any(d.get(k) != self.digests[0][k] for d in self.digests)]

    def failure(self):
        if self.group.passed():
            return None
        first = next((r for r, s in enumerate(self.group.status) if s not in (0, -9)), 0)
        return f"{self.group.why()}; rank {first} said last: {ranks.last_line(os.path.join(self.folder, f'rank{first}.log'))}"


def judge(report, name, way, plain, coded, with_plugin):
    """Rows of one pair; the figures that the whole is made of."""
    _, _, same, must_code, exact = way
    last = sorted(plain.losses)[-20:]
    difference = sum(coded.losses[s] - plain.losses[s] for s in last) / len(last)
    level = sum(plain.losses[s] for s in last) / len(last)
    figures = {"loss": level, "difference": difference, "relative": difference / level, "steps": len(plain.losses)}
    bad = [s for s in coded.losses if not math.isfinite(coded.losses[s])]
    report.check(not bad, f"{name}, finite losses", f"not finite at step {bad[0]}" if bad else f"{len(coded.losses)} steps")
    if plain.held:
        mean, half = interval([coded.held[k] - plain.held[k] for k in plain.held])
        figures.update({"held_out": sum(plain.held.values()) / len(plain.held), "held_out_difference": mean, "half": half})
        report.row("measured", f"{name}, held-out loss",
                   f"{figures['held_out']:.4f} plain, difference {mean:+.4f} +- {half:.4f} (95 %, over batches of this pair)")
    if not exact:
        report.row("measured", f"{name}, training loss of the last 20 steps", f"{level:.4f} plain, difference {difference:+.4f}")
    if same:
        different = coded.alike()
        report.check(not different and coded.digests[0], f"{name}, weights alike on all ranks",
                     f"differ at {', '.join(different)}" if different else f"{len(coded.digests[0])} hashes on {coded.count} ranks")
    if exact:
        where = [k for k in plain.losses if plain.losses[k] != coded.losses[k]]
        where += [f"weights at {k}" for a, b in zip(plain.digests, coded.digests) for k in a if a[k] != b.get(k)]
        report.check(not where, f"{name}, bits of plain NCCL",
                     f"first difference: {where[0]}" if where else
                     f"{len(plain.losses)} losses and {len(plain.digests[0])} hashes of weights a rank")
    if coded.audit:
        figures["distance"], figures["norm"] = coded.audit["distance"], coded.audit["norm"]
        figures["distance_plain"] = plain.audit["distance"] if plain.audit else None
        for what, distance in coded.audit["distance"].items():
            # The rows of rare bytes change in few steps, and no code with memory does well on those; told, not judged.
            ok = "measured" if what in ("embedding", "head") else "passed" if distance <= DISTANCE else "failed"
            report.row(ok, f"{name}, update of {what}",
                       f"1 - cos {distance:.5f}, norm ratio {coded.audit['norm'][what]:.4f}, plain "
                       f"{(plain.audit or coded.audit)['distance'].get(what, 0):.5f}")
    if not with_plugin:
        return figures
    figures["wire"] = ranks.summaries(coded.log)
    figures["signatures"] = ranks.signatures(coded.log)
    words = []
    for func, t in sorted(figures["wire"].items()):
        words.append(f"{func} {t['bytes'] / 1e6:.1f} MB as {t['wire'] / 1e6:.1f}, {t['coded']} of {t['ops']} coded")
    report.row("measured", f"{name}, on the wire", "; ".join(words) or "nothing went through CollNet")
    if must_code and name.split(",")[0] in ("ddp", "ddp on the GPU", "zero") and (ranks.nccl_version() or (0,)) < (2, 28):
        report.row("skipped", f"{name}, gradients on the wire", "before 2.28 NCCL does not tell how long an all-reduce is")
    elif must_code:
        ratios = [s["ratio"] for s in figures["signatures"]
                  if s.get("coded") and "ratio" in s and not s["what"].startswith("all_gather")]
        report.check(ratios and min(ratios) >= RATIO, f"{name}, gradients on the wire",
                     f"{min(ratios):.2f} times fewer bytes at least, {RATIO} wanted" if ratios else
                     "no gradient was coded; the log tells why")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=float, default=180)
    parser.add_argument("--ways", default=",".join(w for w in WAYS if "," not in w), help="a list; default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--options", default="", help="more options of the script")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.limit - 8
    plugin = arguments.plugin if arguments.device == "cuda" else None
    if plugin and not os.path.exists(plugin):
        print(f"skipped: {plugin} is not built")
        return 77
    why = ranks.no_gpu() if plugin else None
    if why:
        print(f"skipped: {why}")
        return 77
    ways = list(WAYS) if arguments.ways == parser.get_default("ways") else arguments.ways.split(",")
    unknown = [w for w in ways if not any(k == w or k.startswith(w + ",") for k in WAYS)]
    if unknown:
        parser.error(f"no way {unknown[0]}; there are: {'; '.join(WAYS)}")
    ways = [k for w in ways for k in WAYS if k == w or k.startswith(w + ",")]
    report = ranks.Report()
    results, curves = [], []
    rank_of = ranks.stand_in("training", report) or train
    for seed in range(1, arguments.seeds + 1):
        for name in ways:
            label = name if arguments.seeds == 1 else f"{name}, seed {seed}"
            count, options, _, _, exact = WAYS[name]
            gpu = name.endswith("on the GPU")
            if gpu and (not plugin or not ranks.knows_gpus(plugin)):
                report.row("skipped", label, "this plugin has no NIBBLE_DEVICE" if plugin else "without a GPU")
                continue
            left = end - time.monotonic()
            if left < 15:
                report.row("skipped", label, "no time left; run this part alone with --parts training --scale 300")
                continue
            steps = arguments.steps if not exact else max(24, arguments.steps // 3 // 4 * 4)
            options = options + ["--seed", str(seed), "--steps", str(steps)] + arguments.options.split()
            if not exact and name not in ("local-sgd", "post-local-sgd"):
                options += ["--audit-from", str(min(AUDIT_FROM, steps // 2))]
            folder = os.path.join(arguments.out, "logs", "training-" + label.replace(",", "").replace(" ", "-"))
            pair = [Run(rank_of, f"{folder}-{kind}", count, options, p, arguments.device, exact, gpu, min(60, left - 2))
                    for kind, p in (("plain", None), ("nibble", plugin))]
            while not all([r.group.poll() for r in pair]):
                time.sleep(0.05)
            failure = next((f"{kind}: {r.failure()}" for kind, r in zip(("plain NCCL", "nibble"), pair) if r.failure()), None)
            if failure:
                report.row("failed", label, failure)
                continue
            for r in pair:
                r.read()
            figures = judge(report, label, WAYS[name], *pair, bool(plugin))
            figures.update({"way": name, "seed": seed, "processes": count, "seconds": [round(r.group.took, 1) for r in pair]})
            results.append(figures)
            curves += [(label, s, pair[0].losses[s], pair[1].losses[s]) for s in sorted(pair[0].losses)]
    compared = [r["relative"] for r in results if not WAYS[r["way"]][4]]
    if compared:
        mean, half = interval(compared)
        report.row("measured", "losses in pairs", f"{len(compared)} pairs: {100 * mean:+.2f} % +- {100 * half:.2f} % (95 %) of plain's"
                   if math.isfinite(half) else f"one pair: {100 * mean:+.2f} % of plain's, no interval")
    with open(os.path.join(arguments.out, "training.json"), "w") as f:
        # JSON knows no infinity.
        json.dump(json.loads(json.dumps({"torch": torch.__version__, "nccl": ranks.nccl_version(), "device": arguments.device,
                                         "runs": results}), parse_constant=lambda c: None), f, indent=1)
    with open(os.path.join(arguments.out, "curves.csv"), "w") as f:
        print("way,step,plain,nibble", file=f)
        for label, step, a, b in curves:
            print(f"\"{label}\",{step},{a:.7g},{b:.7g}", file=f)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
