#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Effect of changes of the 4-bit code on real gradients, before they are written.

Trains as traces.py does and encodes the contribution of every node with NumPy's arithmetic: groups of 32, signed
maximum, plain or after a Hadamard transform, carried error, as docs/wire-format.md has it except for escapes and wide
tiles. For each idea and class of tensors it prints the error of the sum (NMSE, without feedback's correction) and how
far AdamW's update is off (1 - cos), both as means over the last steps.

    ideas.py [-o adamw/usual/scratch/1] [--width 64] [--from 72]
"""
import argparse

import numpy as np
import traces

TILE = 128  # groups
HADAMARD = np.array([[1.0]], np.float32)
while len(HADAMARD) < 32:
    HADAMARD = np.block([[HADAMARD, HADAMARD], [HADAMARD, -HADAMARD]]).astype(np.float32)


def by_tile(x, over):
    """Return the sum of squares of each tile, for each of its groups."""
    s = np.square(x).sum(1)
    pad = -len(s) % TILE
    s = np.pad(s, (0, pad)).reshape(-1, TILE).sum(1)
    return np.repeat(s, TILE)[: len(x)] if over else s


def rounded(s, bits):
    """Return a scale with so many bits of mantissa. None: exact."""
    if bits is None:
        return s
    step = np.exp2(np.floor(np.log2(np.maximum(s, 1e-38))) - bits)
    return np.rint(s / step) * step


def quantize(d, q0, scale_bits, dither):
    """Quantize by the signed maximum in 2 * q0 levels, with q0 for each group."""
    i = np.abs(d).argmax(1)
    top = d[np.arange(len(d)), i]
    s = np.sign(top) * rounded(np.abs(top), scale_bits) / -q0
    s = np.where(s == 0, 1, s)[:, None]
    q0 = np.broadcast_to(q0, (len(d),))[:, None]
    return np.clip(np.rint(d / s + dither), -q0, q0 - 1) * s


def encode(g, state, random, node, o):
    """Return a contribution as it arrives, with the options of an idea."""
    x = g.reshape(-1, 32)
    e = state.get("e", np.zeros_like(x)) if o.get("feedback", 1) else np.zeros_like(x)
    if o.get("feedback", 1) and o.get("bound", 0.2):
        gg, ee, bound = by_tile(x, 1), by_tile(e, 1), o.get("bound", 0.2)
        if o.get("bound_by_group"):
            gg, ee = np.square(x).sum(1), np.square(e).sum(1)
        f = np.where(ee > bound * bound * gg, bound * np.sqrt(gg / np.maximum(ee, 1e-30)), 1)
        e = e * f[:, None]
    h = x + e
    y = h @ HADAMARD
    most, turned = np.abs(h).max(1), np.abs(y).max(1) / np.sqrt(32)
    transform = turned * np.sqrt(32) / 8 * np.sqrt(64 / np.maximum((np.abs(h) >= most[:, None] / 256).sum(1), 1)) < most
    d = np.where(transform[:, None], y, h)
    q0 = np.full(len(d), 8.0, np.float32)
    if o.get("moved"):  # a bit from the weakest groups of a tile to the strongest
        energy = np.square(h).sum(1)
        pad = -len(energy) % TILE
        tiles = np.pad(energy, (0, pad)).reshape(-1, TILE)
        order = tiles.argsort(1).argsort(1).reshape(-1)[: len(energy)]
        q0 = np.where(order < o["moved"], 4.0, np.where(order >= TILE - o["moved"], 16.0, 8.0)).astype(np.float32)
    dither = 0.0
    if o.get("correlated"):  # the same random shift on both nodes, of opposite sign
        dither = (random.random(d.shape, np.float32) - 0.5) * o["correlated"] * (1 if node == 0 else -1)
    if o.get("halves"):
        a = quantize(d[:, :16], q0, o["halves"], dither)
        r = np.concatenate([a, quantize(d[:, 16:], q0, o["halves"], dither)], 1)
    else:
        r = quantize(d, q0, o.get("scale_bits", 4), dither)
    out = np.where(transform[:, None], r @ HADAMARD / 32, r)
    if o.get("feedback", 1):
        e = h - out
        if o.get("error_bits", 8) == 8:
            unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(e).max(1, keepdims=True), 1e-30))) - 6)
            e = np.rint(np.clip(e / unit, -127, 127)) * unit
        state["e"] = e
    return out.reshape(-1)


IDEAS = {
    "no feedback": {"feedback": 0},
    "today": {},
    "bound 0.1": {"bound": 0.1},
    "bound 0.35": {"bound": 0.35},
    "bound 0.5": {"bound": 0.5},
    "no bound": {"bound": 0},
    "bound 0.5 of each group": {"bound": 0.5, "bound_by_group": 1},
    "error carried exactly": {"error_bits": 32},
    "exact scales": {"scale_bits": None},
    "a scale for 16 (+ 0.25 bit)": {"halves": 4},
    "16 of 128 groups 5 bits, 16 3": {"moved": 16},
    "32 of 128 groups 5 bits, 32 3": {"moved": 32},
    "correlated rounding, half": {"correlated": 0.5},
    "correlated rounding, whole": {"correlated": 1.0},
    "the same, no feedback": {"correlated": 1.0, "feedback": 0},
}


def classes(training):
    """Return the positions of each class, of all units one after the other."""
    names = {}
    at = 0
    for k, unit in enumerate(training.units):
        params = [p for n, p in training.model.named_parameters() if not n.startswith("blocks")] if k == 0 else list(
            training.model.blocks[k - 1].parameters())
        words = [n for n, p in training.model.named_parameters() if not n.startswith("blocks")] if k == 0 else [
            n for n, p in training.model.blocks[k - 1].named_parameters()]
        here = at
        for word, p in zip(words, params):
            if p.dim() == 2:
                name = "embeddings, head" if k == 0 else "qkv, fc" if word.startswith(("qkv", "fc")) else "proj, out"
            else:
                name = "LayerNorm" if word.startswith("ln") else "biases"
            names.setdefault(name, []).append(np.arange(here, here + p.numel()))
            here += p.numel()
        at += unit.n
    return {k: np.concatenate(v) for k, v in names.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-o", default="adamw/usual/scratch/1", help="a run of traces.py")
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--start", type=int, default=40, help="steps before it that are not coded")
    p.add_argument("--from", type=int, default=72, dest="first", help="step from which on it is judged")
    p.add_argument("--checkpoint", default="traces-checkpoint.pt")
    args = p.parse_args()
    traces.WIDTH = args.width
    optimizer, rate, start, seed = args.o.split("/")
    state = traces.checkpoint(args.checkpoint) if start == "checkpoint" else None
    training = traces.Training(optimizer, traces.RATES[optimizer][traces.NAMES.index(rate)], int(seed), state)
    where = classes(training)
    carried = {i: [{} for _ in range(traces.NODES)] for i in IDEAS}
    adam = {i: [0.0, 0.0] for i in ["exact", *IDEAS]}
    error = {i: {c: [] for c in where} for i in IDEAS}
    off = {i: {c: [] for c in where} for i in IDEAS}

    def update(of, g, t):
        m, v = adam[of]
        adam[of] = [0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g]
        return adam[of][0] / (1 - 0.9**t) / (np.sqrt(adam[of][1] / (1 - 0.95**t)) + 1e-8)

    for step in range(1, args.steps + 1):
        nodes, _ = training.gradients()
        flat = [np.concatenate([u.numpy() for u in node]) for node in nodes]
        exact = sum(flat)
        right = update("exact", exact, step)
        for name, options in IDEAS.items():
            got = exact
            if step > args.start:
                random = np.random.default_rng(step)
                draws = random.bit_generator.state
                parts = []
                for r, g in enumerate(flat):
                    random.bit_generator.state = draws
                    parts.append(encode(g, carried[name][r], random, r, options))
                got = sum(parts)
            u = update(name, got, step)
            if step >= args.first and step % 4 == 0:
                for c, at in where.items():
                    error[name][c].append(np.square(got[at] - exact[at]).sum() / np.square(exact[at]).sum())
                    a, b = right[at].astype(np.float64), u[at].astype(np.float64)
                    off[name][c].append(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        training.update(nodes)
    print(f"{args.o}, width {args.width}: NMSE of the sum / 1 - cos of AdamW's update")
    print("| | " + " | ".join(where) + " |")
    print("|---" * (len(where) + 1) + "|")
    for name in IDEAS:
        cells = (f"{np.mean(error[name][c]):.4f} / {np.mean(off[name][c]):.5f}" for c in where)
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
