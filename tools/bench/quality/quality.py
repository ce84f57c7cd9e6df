#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How compression of gradients changes training: nibble beside published methods, in pairs from the same
seeds.

    quality.py                         # AdamW, 4 nodes, all arms; then the table and the plots
    quality.py --arms nibble,sdp4bit --seeds 4 --steps 300
    quality.py --optimizer adamw,muon,lion,sgd --nodes 2,4,8,16
    quality.py --gpu --limit 1500      # 41 million parameters on a GPU; again to add seeds
    quality.py --report                # table and plots of what is there

A run is one arm with some seeds, trained side by side. Its results are appended to OUT/results.jsonl when it
ends, and a later call skips what is there. docs/quality.md explains arms and figures. Needs PyTorch, and
gnuplot for plots.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from typing import Any, Dict, List, Set, Tuple

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "..", "python")]

import methods  # noqa: E402
import report  # noqa: E402
import text  # noqa: E402
from optimizers import OPTIMIZERS  # noqa: E402
from train import Config, Training  # noqa: E402

GPU = {
    "width": 512,
    "layers": 13,
    "context": 512,
    "batch": 16,
    "steps": 2400,
    "seeds": 3,
    "side": 1,
    "together": 1,
    "bf16": True,
    "device": "cuda",
    "arms": "exact,nibble,nibble-ar,sdp4bit,loco",
}


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="quality.py", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--out", default="quality-out", help="folder of results (quality-out)")
    p.add_argument("--report", action="store_true", help="train nothing")
    p.add_argument(
        "--gpu", action="store_true", help="a GPT of 41 million parameters on a GPU, five arms, three seeds"
    )
    p.add_argument("--arms", default="all", help="all, or names: " + ", ".join(methods.ARMS))
    p.add_argument("--optimizer", default="adamw", help="names: " + ", ".join(OPTIMIZERS))
    p.add_argument("--nodes", default="4", help="numbers of nodes (4)")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--seeds", type=int, default=8, help="seeds 1 to N (8)")
    p.add_argument("--side", type=int, default=8, help="seeds trained side by side (8)")
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=4, help="sequences a node and step (4)")
    p.add_argument("--rate", type=float, default=0.0, help="peak learning rate (the optimizer's usual one)")
    p.add_argument("--raw", type=int, default=50, help="first steps that no arm codes (50)")
    p.add_argument("--text", default="", help="folder of texts (those of Debian's perl-doc and python3-doc)")
    p.add_argument("--device", default="cpu")
    p.add_argument("--bf16", action="store_true", help="products in bfloat16")
    p.add_argument("--together", type=int, default=0, help="nodes in one batched product (all)")
    p.add_argument("--threads", type=int, default=1, help="threads of PyTorch (1)")
    p.add_argument(
        "--codec",
        choices=("library", "torch"),
        default="library",
        help="of nibble's arms on the CPU (library)",
    )
    p.add_argument(
        "--limit", type=float, default=math.inf, metavar="SECONDS", help="end before; the next call continues"
    )
    known = sys.argv[1:]
    if "--gpu" in known:
        p.set_defaults(**GPU)
    o = p.parse_args(known)
    o.arms = list(methods.ARMS) if o.arms == "all" else o.arms.split(",")
    o.optimizer, o.nodes = o.optimizer.split(","), [int(n) for n in o.nodes.split(",")]
    for given, allowed, what in ((o.arms, methods.ARMS, "--arms"), (o.optimizer, OPTIMIZERS, "--optimizer")):
        for name in given:
            if name not in allowed:
                p.error(f"{what} {name}: it must be one of {', '.join(allowed)}")
    if o.width % 32 or min(o.nodes) < 2 or min(o.steps, o.seeds, o.side, o.layers, o.batch) < 1:
        p.error("--width must be a multiple of 32, --nodes at least 2, and the other numbers at least 1")
    if "exact" in o.arms:
        o.arms.remove("exact")
    o.arms.insert(0, "exact")
    return o


def read(path: str) -> List[Dict[str, Any]]:
    """Return the records of earlier calls. The last line may be cut short by an interruption."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    if lines[-1]:
        with open(path, "w", encoding="utf-8") as f:
            f.write("".join(line + "\n" for line in lines[:-1]))
    return [json.loads(line) for line in lines[:-1]]


def key(record: Dict[str, Any]) -> Tuple[Any, ...]:
    return (*(record[name] for name in Config._fields), record["arm"], record["seed"])


def codec(o: argparse.Namespace) -> str:
    """Say what computes nibble's arms."""
    if o.codec == "torch" or o.device != "cpu":
        return "the codec on tensors"
    try:
        from nibble_codec import library_path, version
    except ImportError:
        return "the codec on tensors, since libnibble-codec.so was not found (NB_CODEC=FILE names it)"
    return f"the plugin's nodes, {library_path()} ({version()})"


def train(o: argparse.Namespace, path: str) -> None:
    data = text.read(o.text)
    print(
        f"text: {len(data.train) / 1e6:.1f} MB of {data.files} files, {len(data.held) / 1e6:.1f} MB of "
        f"{data.held_files} files held out",
        file=sys.stderr,
    )
    print(f"nibble's arms: {codec(o)}", file=sys.stderr)
    done: Set[Tuple[Any, ...]] = {key(record) for record in read(path)}
    device = torch.device(o.device)
    end = time.monotonic() + o.limit
    for optimizer in o.optimizer:
        for nodes in o.nodes:
            config = Config(
                optimizer,
                nodes,
                o.steps,
                o.width,
                o.layers,
                o.context,
                o.batch,
                o.rate or OPTIMIZERS[optimizer].rate,
                o.raw,
                o.bf16,
                data.digest,
            )  # type: ignore[attr-defined]
            # All arms of the first seeds come before the next seeds, so that an interruption leaves pairs.
            for first in range(1, o.seeds + 1, o.side):
                for arm in o.arms:
                    seeds = [
                        s
                        for s in range(first, min(first + o.side, o.seeds + 1))
                        if (*config, arm, s) not in done
                    ]
                    if not seeds:
                        continue
                    records = Training(config, arm, seeds, data, device, o.together).run(end)
                    if not records:
                        print("the limit has passed; the same command continues", file=sys.stderr)
                        return
                    with open(path, "a", encoding="utf-8") as f:
                        f.write("".join(json.dumps(record) + "\n" for record in records))


def main() -> int:
    o = parse()
    os.makedirs(o.out, exist_ok=True)
    path = os.path.join(o.out, "results.jsonl")
    torch.set_num_threads(o.threads)
    methods.Nibble.library = o.codec == "library"
    if not o.report:
        train(o, path)
    records = read(path)
    if not records:
        print(f"quality.py: {path} has no results", file=sys.stderr)
        return 1
    print(report.tables(records))
    print("written:", *report.write(records, o.out))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
    sys.exit(main())
