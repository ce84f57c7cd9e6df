# SPDX-License-Identifier: Apache-2.0
"""Training of one arm: some seeds at once, N nodes in one process."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Dict, List, NamedTuple

import torch

import text
from methods import ARMS
from model import Layout, losses
from optimizers import OPTIMIZERS

Tensor = torch.Tensor
EVERY = 10  # steps between two measures of the update
HELD = 20  # held-out losses along a run
HELD_OUT = 32  # sequences of each, eight times as many at the end


class Config(NamedTuple):
    """What two runs must share to be compared."""

    optimizer: str
    nodes: int
    steps: int
    width: int
    layers: int
    context: int
    batch: int  # sequences a node and step
    rate: float
    raw: int  # first steps without coding
    bf16: bool
    text: str  # digest


class Distance:
    """1 - cos and the ratio of norms of updates, by class of tensors, as means over steps: [seeds]."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.steps = layout, 0
        self.cos: Dict[str, Tensor] = {}
        self.norm: Dict[str, Tensor] = {}

    def add(self, exact: Tensor, coded: Tensor) -> None:
        sums: Dict[str, Tensor] = {}
        for p in self.layout.parts:
            a, b = (x[:, p.first : p.first + p.count].double() for x in (exact, coded))
            three = torch.stack(((a * a).sum(1), (b * b).sum(1), (a - b).square().sum(1)))
            for kind in (p.kind, "all"):
                sums[kind] = sums[kind] + three if kind in sums else three
        for kind, (aa, bb, dd) in sums.items():
            a, b = aa.sqrt(), bb.sqrt()
            self.cos[kind] = self.cos.get(kind, 0) + (dd - (a - b) ** 2) / (2 * a * b)
            self.norm[kind] = self.norm.get(kind, 0) + b / a
        self.steps += 1

    def of(self, seed: int) -> Dict[str, Dict[str, float]]:
        return {
            name: {k: float(v[seed] / self.steps) for k, v in values.items()}
            for name, values in (("cos", self.cos), ("norm", self.norm))
        }


def clipped(g: Tensor) -> Tensor:
    return g * (1.0 / g.norm(dim=1, keepdim=True).clamp(min=1.0))


class Training:
    def __init__(
        self,
        config: Config,
        arm: str,
        seeds: List[int],
        data: text.Text,
        device: torch.device,
        together: int = 0,
    ) -> None:
        self.config, self.arm, self.seeds, self.data, self.device = config, arm, seeds, data, device
        self.together = together or config.nodes
        self.layout = Layout(config.width, config.layers, config.context, 2048 * config.nodes)
        self.weights = torch.stack([self.layout.initial(seed) for seed in seeds]).to(device)
        self.model = self.weights.clone()
        self.method = ARMS[arm](self.layout, config.nodes, len(seeds), device)
        self.optimizer = OPTIMIZERS[config.optimizer](self.layout, self.weights)
        self.twin = OPTIMIZERS[config.optimizer](self.layout, self.weights) if arm != "exact" else None
        self.decay = torch.zeros(self.layout.size, device=device)
        for p in self.layout.parts:
            if len(p.shape) == 2:
                self.decay[p.first : p.first + p.count] = getattr(self.optimizer, "weight_decay")
        self.distance, self.nmse, self.measured = (
            Distance(self.layout),
            torch.zeros(len(seeds), device=device),
            0,
        )

    def draw(self, seed: int, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(1_000_003 * seed + step)

    def loss_of(self, parameters: Dict[str, Tensor], tokens: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
            return losses(self.layout, parameters, tokens.to(self.device))

    def gradients(self, step: int) -> "tuple[Tensor, Tensor]":
        """Return each node's gradient over N, [seeds, nodes, values], and the mean loss of each seed."""
        c, s = self.config, len(self.seeds)
        tokens = torch.stack(
            [
                text.batch(self.data.train, self.draw(seed, step), (c.nodes, c.batch), c.context)
                for seed in self.seeds
            ]
        )
        out = torch.empty(s, c.nodes, self.layout.size, device=self.device)
        loss = torch.zeros(s, device=self.device)
        for first in range(0, c.nodes, self.together):
            n = min(self.together, c.nodes - first)
            # A leaf for each parameter: the gradient of a slice of one leaf would be as long as the leaf.
            leaves = {
                name: v.repeat_interleave(n, 0).requires_grad_()
                for name, v in self.layout.views(self.model).items()
            }
            each = self.loss_of(leaves, tokens[:, first : first + n].flatten(0, 1))
            grads = torch.autograd.grad(each.sum() / c.nodes, list(leaves.values()))
            for p, grad in zip(self.layout.parts, grads):
                out[:, first : first + n, p.first : p.first + p.count] = grad.reshape(s, n, -1)
            out[:, first : first + n, self.layout.values :] = 0
            loss += each.detach().view(s, n).sum(1) / c.nodes
        return out, loss

    def held_out(self, sequences: int) -> Tensor:
        """Return the held-out loss of each seed, on the same text in every run."""
        parameters = self.layout.views(self.model)
        tokens = text.batch(
            self.data.held, torch.Generator().manual_seed(7), (sequences,), self.config.context
        )
        total = torch.zeros(len(self.seeds), device=self.device)
        size = max(1, min(16, sequences))
        with torch.no_grad():
            for part in tokens.split(size):
                total += self.loss_of(parameters, part.expand(len(self.seeds), -1, -1)) * len(part)
        return total / sequences

    def step(self, number: int) -> Tensor:
        c = self.config
        g, loss = self.gradients(number)
        coding = number >= c.raw
        exact = g.sum(1) if self.twin or not coding else g[:, 0]
        got = self.method.sum(g) if coding else exact
        update = self.optimizer.update(clipped(got))
        if self.twin:
            right = self.twin.update(clipped(exact))
            if coding and number >= 0.4 * c.steps and number % EVERY == 0:
                self.distance.add(right, update)
                self.nmse += (got - exact).square().sum(1) / exact.square().sum(1)
                self.measured += 1
        at = (number + 1) / c.steps
        warm = max(1, min(100, c.steps // 10))
        rate = c.rate * min(1.0, (number + 1) / warm) * (0.1 + 0.45 * (1 + math.cos(math.pi * at)))
        self.weights -= rate * (update + self.decay * self.weights)
        self.model = self.method.weights(self.weights, self.model) if coding else self.weights.clone()
        return loss

    def run(self, deadline: float = math.inf) -> List[Dict[str, Any]]:
        """Train. Return a record for each seed, or none if the deadline of time.monotonic() passed."""
        c, start, told = self.config, time.monotonic(), time.monotonic()
        train: List[Any] = []
        held: List[Any] = []
        recent = torch.zeros(len(self.seeds), device=self.device)
        gap = max(1, c.steps // HELD)
        for number in range(c.steps):
            recent += self.step(number)
            last = number + 1 == c.steps
            if (number + 1) % gap == 0 or last:
                train.append((number + 1, (recent / ((number % gap) + 1)).tolist()))
                recent.zero_()
                held.append((number + 1, self.held_out(HELD_OUT * (8 if last else 1)).tolist()))
            now = time.monotonic()
            if now > deadline:
                self.method.close()
                return []
            if now - told > 15 or last:
                told = now
                left = (now - start) / (number + 1) * (c.steps - number - 1)
                at = f"held-out loss {sum(held[-1][1]) / len(held[-1][1]):.4f}" if held else ""
                print(
                    f"{c.optimizer}, {c.nodes} nodes, {self.arm}, "
                    f"seeds {self.seeds[0]} to {self.seeds[-1]}: step {number + 1} of {c.steps}, "
                    f"{left:.0f} s left, {at}",
                    file=sys.stderr,
                    flush=True,
                )
        seconds = time.monotonic() - start
        records = []
        for i, seed in enumerate(self.seeds):
            record = {
                **c._asdict(),
                "arm": self.arm,
                "seed": seed,
                "held": [(s, round(v[i], 6)) for s, v in held],
                "train": [(s, round(v[i], 6)) for s, v in train],
                "bits": round(self.method.bits, 3),
                "weight_bits": self.method.weight_bits,
                "seconds": round(seconds / len(self.seeds), 1),
            }
            if self.measured:
                record.update(self.distance.of(i), nmse=float(self.nmse[i] / self.measured))
            records.append(record)
        self.method.close()
        return records
