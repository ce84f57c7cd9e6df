# SPDX-License-Identifier: Apache-2.0
"""A small transformer, trained three times from the same weights on the same text, for each of some seeds:
with exact means of the nodes' gradients, with the plugin's, and with the plugin's without error feedback. The
report compares each step's sums, and the losses, and judges the differences.

    python -m nibble_codec.example --nodes 4 --steps 300 --seeds 4 --out report

docs/own-model.md explains it. Copy it and insert your own model.
"""
from __future__ import annotations

import argparse
import glob
import os
import signal
import sys
from typing import Optional, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from . import Cluster, version
from .local import DataParallel
from .report import Comparison


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class Transformer(nn.Module):
    """Bytes to the next byte."""

    def __init__(self, width: int = 96, layers: int = 3, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def text(most: int = 4_000_000) -> torch.Tensor:
    """Return text that every machine with Python has: its library."""
    data = b""
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, "rb") as f:
            data += f.read()
        if len(data) > most:
            break
    return torch.frombuffer(bytearray(data[:most]), dtype=torch.uint8).long()


Batch = Tuple[torch.Tensor, torch.Tensor]


def batch_of(data: torch.Tensor, step: int, node: int, size: int, length: int) -> Batch:
    """Return the batch of a step and node, the same in every run."""
    draw = torch.Generator().manual_seed(1_000_003 * step + node)
    at = torch.randint(len(data) - length - 1, (size,), generator=draw)
    rows = torch.stack([data[i:i + length + 1] for i in at])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x).reshape(-1, 256), y.reshape(-1))


def train(options: argparse.Namespace, name: str, cluster: Optional[Cluster], comparison: Comparison, data: torch.Tensor,
          seed: int) -> float:
    """Train, and return the held-out loss. Batches depend on the seed, too. `comparison` gets losses and, of
    arms with a cluster, sums."""
    torch.manual_seed(seed)
    model = Transformer(options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    sums = None if cluster is None else comparison if name == "nibble" else comparison.arm(name)
    if sums:
        sums.begin_run()
    nodes = DataParallel(model, cluster, options.nodes, comparison=sums)
    held_out = [batch_of(data, -1 - i, 0, 32, 64) for i in range(4)]
    for step in range(options.steps):
        total = 0.0
        for node in range(options.nodes):
            loss = loss_of(model, batch_of(data, options.steps * (seed - 1) + step, node, options.batch, 64))
            loss.backward()  # type: ignore[no-untyped-call]
            nodes.collect(node)
            total += loss.item() / options.nodes
        nodes.reduce()
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / 20)
        optimizer.step()
        comparison.loss(name, step, total, seed)
        if step % 50 == 0 or step == options.steps - 1:
            print(f"{name}, seed {seed}: step {step}, loss {total:.4f}", file=sys.stderr, flush=True)
    with torch.no_grad():
        return sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nibble_codec.example", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4, help="nodes (default 4)")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (300)")
    parser.add_argument("--batch", type=int, default=8, help="sequences a node and step (8)")
    parser.add_argument("--width", type=int, default=96, help="of the model (96)")
    parser.add_argument("--layers", type=int, default=3, help="of the model (3)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (0.001)")
    parser.add_argument("--seed", type=int, default=1, help="the first one, of model and batches (1)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N",
                        help="pairs of runs from so many seeds: from two on the report judges the difference (1)")
    parser.add_argument("--warmup", type=int, default=50, help="steps that are sent raw: NIBBLE_WARMUP_STEPS (50)")
    parser.add_argument("--set", action="append", default=[], metavar="NIBBLE_X=VALUE", help="another setting of the plugin")
    parser.add_argument("--out", help="folder for the report")
    options = parser.parse_args(arguments)
    if options.width % 4:
        parser.error("--width: it must be a multiple of 4, the number of heads")

    if options.seeds < 1 or options.nodes < 2 or options.steps < 1:
        parser.error(f"--seeds {options.seeds}, --nodes {options.nodes}, --steps {options.steps}: they must be at least 1, 2 "
                     "and 1")

    data = text()
    comparison = Comparison(skip=min(options.warmup + 2, options.steps - 1))
    settings = [f"NIBBLE_WARMUP_STEPS={options.warmup}", *options.set]
    # Of two settings of a name the first one counts.
    arms = {"nibble": settings, "no feedback": ["NIBBLE_EF=off", *settings]}
    for seed in range(options.seed, options.seed + options.seeds):
        comparison.finish("exact", train(options, "exact", None, comparison, data, seed))
        for name, given in arms.items():
            with Cluster(options.nodes, given) as cluster:
                comparison.finish(name, train(options, name, cluster, comparison, data, seed))
    exact, coded, plain = (sum(values) / len(values) for values in comparison.final.values())
    print(f"nibble {version()}, {options.nodes} nodes, {options.steps} steps")
    print(comparison.table(most=12))
    print(f"held-out loss: {exact:.4f} exact, {coded:.4f} nibble, {plain:.4f} without feedback")
    if options.out:
        print("written:", *comparison.write(options.out))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
    sys.exit(main())
