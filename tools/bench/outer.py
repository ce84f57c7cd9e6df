#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DiLoCo with coded outer steps, in one process: loss, error of the outer update, bytes.

    PYTHONPATH=python NB_CODEC=build/.libs/libnibble-codec.so tools/bench/outer.py

Every node trains its copy of a small transformer with AdamW. After every --inner steps the nodes sum their
movements, one all-reduce for each parameter, through the emulated plugin, which knows of the sums only what
NIBBLE_GRAD says. The outer optimizer is SGD with Nesterov's momentum. Beside each coded run a second momentum
gets the exact mean of the same movements. 1 - cos comes from the angle between the two updates, as a mean
over the second half of the outer steps.
"""
import argparse
import signal
import sys
import time

import torch

from nibble_codec import Cluster
from nibble_codec.cluster import NOBODY
from nibble_codec.example import Transformer, batch_of, loss_of, text

LEAST = 1024  # values of a sum that is coded: matrices, and not the vectors of norms and biases
LINE = {"GRAD": f"all_reduce:float32:{LEAST}-1000000000000", "WARMUP_STEPS": 0, "MIN_BYTES": 0}
RUNS = {
    "exact": {"AR": "raw"},
    "coded, no feedback": {"AR": "int4", "EF": "off"},
    "coded, feedback": {"AR": "int4"},
}


class Outer:
    """SGD with Nesterov's momentum, as DiLoCo has it."""

    def __init__(self, values):
        self.momentum = [torch.zeros_like(v) for v in values]

    def update(self, means):
        for m, g in zip(self.momentum, means):
            m.mul_(0.9).add_(g)
        return [0.7 * (g + 0.9 * m) for m, g in zip(self.momentum, means)]


def run(options, data, seed, settings):
    torch.manual_seed(seed)
    model = Transformer(options.width, options.layers)
    inner = [torch.optim.AdamW(model.parameters(), lr=options.rate) for _ in range(options.nodes)]
    synced = [p.detach().clone() for p in model.parameters()]
    outer, exact = Outer(synced), Outer(synced)
    held_out = [batch_of(data, -1 - i, 0, 32, 64) for i in range(8)]
    angles, ratios = [], []
    with Cluster(options.nodes, {**LINE, **settings}) as cluster:
        for step in range(options.outer):
            moves = [[] for _ in synced]
            for node in range(options.nodes):
                with torch.no_grad():
                    for p, s in zip(model.parameters(), synced):
                        p.copy_(s)
                for k in range(options.inner):
                    number = (seed * options.outer + step) * options.inner + k
                    loss = loss_of(model, batch_of(data, number, node, options.batch, 64))
                    inner[node].zero_grad()
                    loss.backward()
                    inner[node].step()
                for m, p, s in zip(moves, model.parameters(), synced):
                    m.append(s - p.detach())
            sums = [cluster.all_reduce([m.reshape(-1) for m in move], buffer=NOBODY)[0] for move in moves]
            update = outer.update([a.view_as(s) / options.nodes for a, s in zip(sums, synced)])
            ideal = exact.update([(sum(m.double() for m in move) / options.nodes).float() for move in moves])
            a = torch.cat([u.reshape(-1) for u in update]).double()
            b = torch.cat([u.reshape(-1) for u in ideal]).double()
            if step >= options.outer // 2:
                angles.append(float(1 - torch.dot(a, b) / (a.norm() * b.norm())))
                ratios.append(float(a.norm() / b.norm()))
            for s, u in zip(synced, update):
                s.sub_(u)
        with torch.no_grad():
            for p, s in zip(model.parameters(), synced):
                p.copy_(s)
            loss = sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)
        figures = cluster.figures("all_reduce")
    return loss, sum(angles) / len(angles), sum(ratios) / len(ratios), figures


def main():
    parser = argparse.ArgumentParser(description="DiLoCo on a small model, exact and coded")
    defaults = {"nodes": 4, "outer": 30, "inner": 20, "width": 48, "layers": 2, "batch": 8, "seeds": 2}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    data = text()
    print(f"{options.nodes} nodes, {options.outer} outer steps of {options.inner}, "
          f"{sum(p.numel() for p in Transformer(options.width, options.layers).parameters())} parameters")
    print(f"{'seed':4}  {'run':20} {'loss':>8} {'1 - cos':>10} {'norm ratio':>10} {'bytes sent':>12} "
          f"{'of coded sums, fed':>18}")
    for seed in range(1, options.seeds + 1):
        for name, settings in RUNS.items():
            start = time.monotonic()
            loss, angle, ratio, f = run(options, data, seed, settings)
            fed = f"{100 * f.with_feedback / f.coded:.1f} %" if f.coded else "-"
            print(f"{seed:4}  {name:20} {loss:8.4f} {angle:10.2e} {ratio:10.4f} {f.wire_bytes:12} {fed:>18}",
                  flush=True)
            print(f"      {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end as other programs do when nobody reads on
    main()
