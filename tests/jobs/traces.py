#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real training, whose gradients and weights the plugin gets.

Trains a byte-level transformer in PyTorch on the CPU, data-parallel on four ranks of two nodes. Each step's gradients
and weights go to tests/jobs/traced, which plays the collectives of a framework with them to the whole plugin and
prints the plugin's decisions. By hand, from the build folder (`make tests/jobs/traced`), with PyTorch and NumPy from PyPI:

    traces.py matrix -o results.csv                  # every optimizer, rate, seed and start: hours on one core
    traces.py matrix -o results.csv --only adamw     # runs whose names begin so and that the file lacks
    traces.py run lion/usual/scratch/1 -p fsdp2      # one of them. -v prints the plugin's log
    traces.py run sampling/usual/checkpoint/1 -p fsdp2 --steps 300   # a sampler's latents and noise
    traces.py table results.csv                      # the table of results, for docs/results

Each rank of a node sees its own micro-batches. Their sum, which NCCL forms inside the node, equals the result of one
backward pass over both. Weights travel as BF16, and training computes with these BF16 values. The optimizers,
PyTorch's own except for Lion, move FP32 masters by the clipped mean. The text is the sources of Python's standard
library. Everything except rounding, which differs between machines, follows from the seed.
"""
import argparse
import csv
import functools
import glob
import math
import os
import statistics
import subprocess
import sys
import time

WIDTH, LAYERS, HEADS, CONTEXT = 64, 6, 4, 32  # 335 thousand parameters. See --width, --layers
NODES, RANKS, SEQUENCES = 2, 4, 2  # sequences of a rank
STEPS, RISE = 130, 20  # the learning rate rises over the first RISE steps
PRETRAIN = 250  # steps of the checkpoint
PIECE = 256  # units are padded to a multiple
LATER = 100  # feedback counts from here on, and by then all gradients must be recognised

RATES = {  # low, usual, high
    "adamw": (3e-5, 3e-4, 3e-3),
    "sgd": (0.01, 0.1, 0.3),
    "lion": (1e-5, 1e-4, 1e-3),
    "muon": (2e-3, 2e-2, 5e-2),
    "adafactor": (1e-4, 1e-3, 1e-2),
}
LOOPS = (20, 100, 1000)  # of a sampler: low, usual, high
NAMES = ("low", "usual", "high")
STARTS = ("scratch", "checkpoint")
SEEDS = (1, 2, 3)


def configurations(seeds):
    """Return the names of all runs, in the order in which a part of them says most."""
    rates = ("usual", "low", "high")
    return [f"{o}/{r}/{s}/{seed}" for seed in seeds for r in rates for s in STARTS for o in RATES]


# ---- training ---------------------------------------------------------------------------------------------------


@functools.lru_cache
def text():
    """Return the bytes to learn from."""
    import numpy as np
    import torch

    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    order = np.random.RandomState(0).permutation(len(files))
    data = bytearray()
    for i in order:
        with open(files[i], "rb") as f:
            data += f.read()
    return torch.from_numpy(np.frombuffer(bytes(data[:4_000_000]), dtype=np.uint8).copy()).long()


def build():
    """Return the model's class. Only training needs torch, so only this function does."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            for lin in (self.qkv, self.fc, self.proj, self.out):
                nn.init.zeros_(lin.bias)
            for lin in (self.qkv, self.fc):
                nn.init.normal_(lin.weight, 0, 0.02)
            for lin in (self.proj, self.out):
                nn.init.normal_(lin.weight, 0, 0.02 / math.sqrt(2 * LAYERS))

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).reshape(b, t, WIDTH))
            return x + self.out(F.gelu(self.fc(self.ln2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
            for w in (self.byte.weight, self.place.weight, self.head.weight):
                nn.init.normal_(w, 0, 0.02)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.residual = None  # the stream in the middle

        def forward(self, x):
            x = self.byte(x) + self.place.weight
            for i, block in enumerate(self.blocks):
                x = block(x)
                if i == LAYERS // 2:
                    self.residual = x.detach()
            return self.head(self.ln(x))

    torch.set_num_threads(1)
    return GPT()


class Unit:
    """An FSDP unit: FP32 masters, the weights as they travel, and gradients, as flat vectors that parameters view."""

    def __init__(self, params):
        import torch

        n = sum(p.numel() for p in params)
        self.n = -(-n // PIECE) * PIECE
        self.master, self.weight, self.grad = (torch.zeros(self.n) for _ in range(3))
        self.mean = torch.zeros(self.n)
        self.flat = torch.nn.Parameter(self.master)
        self.flat.grad = self.mean
        self.parts, at = [], 0
        for p in params:
            end = at + p.numel()
            self.master[at:end] = p.data.flatten()
            p.data = self.weight[at:end].view(p.shape)
            p.grad = self.grad[at:end].view(p.shape)
            part = torch.nn.Parameter(self.master[at:end].view(p.shape))
            part.grad = self.mean[at:end].view(p.shape)
            self.parts.append(part)
            at = end
        self.travel()

    def travel(self):
        self.weight.copy_(self.master.bfloat16())


def lion_class():
    """Chen et al., Symbolic Discovery of Optimization Algorithms, 2023."""
    import torch

    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr, weight_decay):
            super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(torch.sign(0.9 * m + 0.1 * p.grad), alpha=group["lr"])
                    m.lerp_(p.grad, 0.01)

    return Lion


def optimizers(name, rate, units):
    """Return the optimizers that move the masters. Optimizers of single values get flat vectors, as in FSDP."""
    import torch

    flat = [u.flat for u in units]
    parts = [p for u in units for p in u.parts]
    if name == "adamw":
        return [torch.optim.AdamW(flat, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)]
    if name == "sgd":
        return [torch.optim.SGD(flat, lr=rate, momentum=0.9, weight_decay=1e-4)]
    if name == "lion":
        return [lion_class()(flat, lr=rate, weight_decay=1.0)]
    if name == "adafactor":
        return [torch.optim.Adafactor(parts, lr=rate)]
    matrices = [p for u in units[1:] for p in u.parts if p.dim() == 2]
    known = {id(p) for p in matrices}
    rest = [p for p in parts if id(p) not in known]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=rate / 20, betas=(0.9, 0.95), weight_decay=0.1),
    ]


class Training:
    def __init__(self, optimizer, rate, seed, state=None):
        import torch

        torch.manual_seed(seed)
        self.model, self.data = build(), text()
        if state:
            self.model.load_state_dict(state)
        root = [p for n, p in self.model.named_parameters() if not n.startswith("blocks")]
        self.units = [Unit(root)] + [Unit(list(b.parameters())) for b in self.model.blocks]
        self.optimizers = optimizers(optimizer, rate, self.units)
        self.rates = [g["lr"] for o in self.optimizers for g in o.param_groups]
        self.random = torch.Generator().manual_seed(1000 * seed + (7 if state else 0))
        self.step = 0
        self.loss = []

    def batch(self):
        import torch

        n = RANKS // NODES * SEQUENCES
        at = torch.randint(0, len(self.data) - CONTEXT - 1, (n,), generator=self.random)
        x = torch.stack([self.data[i : i + CONTEXT + 1] for i in at.tolist()])
        return x[:, :-1], x[:, 1:]

    def gradients(self):
        """Return, for each node, the sum over its ranks of their means, unit by unit, and activations."""
        from torch.nn import functional as F

        nodes, residual, loss = [], [], 0.0
        for _ in range(NODES):
            for u in self.units:
                u.grad.zero_()
            x, y = self.batch()
            mean = F.cross_entropy(self.model(x).reshape(-1, 256), y.reshape(-1))
            (mean * (RANKS // NODES)).backward()
            loss += mean.item() / NODES
            nodes.append([u.grad.clone() for u in self.units])
            residual.append(self.model.residual.flatten())
        self.loss.append(loss)
        return nodes, residual

    def update(self, nodes):
        for i, u in enumerate(self.units):
            u.mean.copy_(sum(node[i] for node in nodes)).div_(RANKS)
        norm = math.sqrt(sum(float(u.mean.square().sum()) for u in self.units))
        for u in self.units:
            u.mean.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        self.step += 1
        groups = [g for o in self.optimizers for g in o.param_groups]
        for group, rate in zip(groups, self.rates):
            group["lr"] = rate * min(1.0, self.step / RISE)
        for o in self.optimizers:
            o.step()
        for u in self.units:
            u.travel()


class Sampling:
    """A diffusion sampler instead of a training, under tensor and sequence parallelism.

    The transformer learns to predict the noise in embedded text. Then latents stand for weights, which are
    gathered, and each node's part of the predicted noise for its gradients. No sum may be quantized.
    """

    class Latents:
        def __init__(self, x):
            self.n, self.weight = x.numel(), x.flatten().bfloat16().float()

    def __init__(self, loop, seed):
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self.model, self.data, self.loop, self.left = build(), text(), loop, loop
        self.times, self.last = nn.Embedding(1001, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shape = (RANKS // NODES * SEQUENCES, CONTEXT, WIDTH)
        self.random = torch.Generator().manual_seed(1000 * seed)
        self.loss = []
        self.learn()
        self.units = [self.Latents(torch.randn(self.shape, generator=self.random))]

    def hidden(self, x, time):
        x = x + self.times(time)[:, None] + self.model.place.weight
        for i, block in enumerate(self.model.blocks):
            x = block(x)
            if i == LAYERS // 2:
                self.model.residual = x.detach()
        return self.model.ln(x)

    @staticmethod
    def kept(time):
        """Return the share of the signal's power at a time from 0 to 1000 (Nichol and Dhariwal, 2021)."""
        return math.cos(time / 1000 * math.pi / 2 * 0.99) ** 2

    def learn(self):
        import torch

        params = [*self.model.parameters(), *self.times.parameters(), *self.last.parameters()]
        words, optimizer = torch.randn(256, WIDTH), torch.optim.AdamW(params, lr=1e-3)
        for _ in range(PRETRAIN):
            at = torch.randint(0, len(self.data) - CONTEXT, (self.shape[0],), generator=self.random)
            clean = words[torch.stack([self.data[i : i + CONTEXT] for i in at.tolist()])]
            noise = torch.randn(self.shape, generator=self.random)
            time = torch.randint(1, 1001, (self.shape[0],), generator=self.random)
            power = torch.tensor([self.kept(t) for t in time.tolist()])[:, None, None]
            noisy = power.sqrt() * clean + (1 - power).sqrt() * noise
            loss = (self.last(self.hidden(noisy, time)) - noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.loss.append(loss.item())

    def time(self):
        return round(1000 * self.left / self.loop)

    def gradients(self):
        """Return each node's part of the noise, by its columns of the last layer, and activations."""
        import torch

        x = self.units[0].weight.view(self.shape)
        with torch.no_grad():
            h = self.hidden(x, torch.full((self.shape[0],), self.time()))
            part = WIDTH // NODES
            columns = [slice(k * part, (k + 1) * part) for k in range(NODES)]
            nodes = [[(h[..., c] @ self.last.weight[:, c].T).flatten()] for c in columns]
            nodes[0][0] += self.last.bias.repeat(self.shape[0] * CONTEXT)
        return nodes, [self.model.residual.flatten()] * NODES

    def update(self, nodes):
        """Take a step of DDIM (Song, Meng and Ermon, 2021), or begin with other noise."""
        import torch

        x, noise, before = self.units[0].weight, sum(node[0] for node in nodes), self.kept(self.time())
        self.left -= 1
        after = self.kept(self.time())
        clean = (x - math.sqrt(1 - before) * noise) / math.sqrt(before)
        x = math.sqrt(after) * clean.clamp(-4, 4) + math.sqrt(1 - after) * noise
        if not self.left:
            self.left, x = self.loop, torch.randn(self.shape, generator=self.random)
        self.units[0] = self.Latents(x)


def checkpoint(path, seed=100):
    """Return the state of a model that has been trained for a while. The first call makes it from that seed."""
    import torch

    if not os.path.exists(path):
        t = Training("adamw", 2e-3, seed)
        for _ in range(PRETRAIN):
            nodes, _ = t.gradients()
            t.update(nodes)
        print(f"checkpoint: loss {t.loss[0]:.2f} -> {statistics.mean(t.loss[-20:]):.2f}", file=sys.stderr)
        torch.save({k: v.clone() for k, v in t.model.state_dict().items()}, path + ".new")
        os.replace(path + ".new", path)
    return torch.load(path)


def bf16(vector):
    """Return a vector's BF16 bit patterns."""
    import torch

    return vector.bfloat16().view(torch.int16).numpy().tobytes()


def trace(training, steps):
    """Yield the bytes that traced reads."""
    import numpy as np

    units = training.units
    activations = RANKS // NODES * SEQUENCES * CONTEXT * WIDTH
    yield b"NBTRACE1" + np.array([len(units), steps, activations, 0], np.uint32).tobytes()
    yield np.array([u.n for u in units], np.uint64).tobytes()
    for u in units:
        yield bf16(u.weight)
    for _ in range(steps):
        nodes, residual = training.gradients()
        for i in reversed(range(len(units))):
            for node in nodes:
                yield node[i].numpy().tobytes()
        for r in residual:
            yield r.numpy().tobytes()
        training.update(nodes)
        for u in training.units:
            yield bf16(u.weight)


# ---- runs -------------------------------------------------------------------------------------------------------


def run(name, players, args):
    """Train, play the training to one plugin for each player, and return a dictionary of figures for each."""
    optimizer, rate, start, seed = name.split("/")
    if optimizer == "sampling":
        value = LOOPS[NAMES.index(rate)]
        training = Sampling(value, int(seed))
    else:
        value = RATES[optimizer][NAMES.index(rate)]
        state = checkpoint(args.checkpoint, args.pretrain) if start == "checkpoint" else None
        training = Training(optimizer, value, int(seed), state)
    command = [args.traced] + (["-v"] if args.verbose else [])
    began = time.time()
    playing = [subprocess.Popen(command + [p], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for p in players]
    for piece in trace(training, args.steps):
        for p in playing:
            p.stdin.write(piece)
    results = []
    for p in playing:
        p.stdin.close()
        out = p.stdout.read().decode()
        if p.wait():
            raise SystemExit(f"{name}: traced failed")
        if args.verbose:
            print(out)
        figures = {}
        for line in out.splitlines():
            if line.startswith("framework="):
                figures.update(word.split("=") for word in line.split())
            elif line.startswith("# "):
                figures["note"] = (figures.get("note", "") + " " + line[2:]).strip()
        figures.update(name=name, rate=f"{value:g}", steps=args.steps)
        figures["loss"] = f"{training.loss[0]:.2f} {statistics.mean(training.loss[-10:]):.2f}"
        figures["seconds"] = f"{time.time() - began:.0f}"
        results.append(figures)
    return results


COLUMNS = (
    "name framework rate steps loss recognised last for_good coded fed quantized_wrongly fed_wrongly confused sums "
    "seconds node0 node1 reasons note"
).split()


def matrix(args):
    done = set()
    if os.path.exists(args.output):
        with open(args.output, newline="") as f:
            done = {(row["name"], row["framework"]) for row in csv.DictReader(f)}
    else:
        with open(args.output, "w", newline="") as f:
            csv.writer(f).writerow(COLUMNS)
    for name in configurations(args.seeds):
        players = [p for p in args.play.split(",") if (name, p) not in done]
        if not players or not any(name.startswith(o) for o in args.only.split(",")):
            continue
        for figures in run(name, players, args):
            figures["reasons"] = " ".join(
                f"{k}={v}" for k, v in figures.items() if k.startswith(("raw_", "unfed_"))
            )
            with open(args.output, "a", newline="") as f:
                csv.writer(f).writerow([figures.get(c, "") for c in COLUMNS])
            print(*(figures.get(c, "") for c in COLUMNS), flush=True)


def table(args):
    """Print one line for each optimizer, rate and start: the worst of its seeds."""
    with open(args.output, newline="") as f:
        rows = list(csv.DictReader(f))
    print("| framework | optimizer | rate | start | runs | recognised, median | last | for good | coded % | fed % "
          "| quantized wrongly | fed wrongly |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    groups = {}
    for row in rows:
        optimizer, rate, start, _ = row["name"].split("/")
        key = (list(RATES).index(optimizer), NAMES.index(rate), STARTS.index(start), row["framework"])
        groups.setdefault(key, []).append(row)
    for (o, r, s, framework), runs in sorted(groups.items(), key=lambda kv: (kv[0][3], kv[0][:3])):
        cells = [framework, list(RATES)[o], runs[0]["rate"], STARTS[s], len(runs)]
        cells.append(statistics.median(int(row["recognised"]) for row in runs))
        cells += [max(int(row[c]) for row in runs) for c in ("last", "for_good")]
        cells += [min(float(row[c]) for row in runs) for c in ("coded", "fed")]
        cells += [sum(int(row[c]) for row in runs) for c in ("quantized_wrongly", "fed_wrongly")]
        print("|", " | ".join(str(c) for c in cells), "|")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=("matrix", "run", "table", "list"))
    p.add_argument("name", nargs="?", help="of a run (see list), or the file for table")
    p.add_argument("-o", "--output", default="traces.csv")
    p.add_argument("-p", "--play", default="fsdp2,beside", help="what to play it as")
    p.add_argument("-v", "--verbose", action="store_true", help="print the plugin's log")
    p.add_argument("--only", default="", help="beginnings of names, separated by commas")
    p.add_argument("--seeds", default=SEEDS, type=lambda s: [int(n) for n in s.split(",")], help="1,2,3 otherwise")
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--traced", default="tests/jobs/traced", help="the program of the build folder")
    p.add_argument("--checkpoint", default="traces-checkpoint.pt", help="made when it is not there")
    p.add_argument("--pretrain", type=int, default=100, help="the seed that it is made from")
    p.add_argument("--width", type=int, default=WIDTH, help="of the transformer")
    p.add_argument("--layers", type=int, default=LAYERS, help="one is one FSDP unit")
    args = p.parse_args()
    globals().update(WIDTH=args.width, LAYERS=args.layers)
    if args.what == "matrix":
        matrix(args)
    elif args.what == "table":
        args.output = args.name or args.output
        table(args)
    elif args.what == "list":
        print("\n".join(configurations(args.seeds)))
    else:
        for figures in run(args.name, args.play.split(","), args):
            print(figures)


if __name__ == "__main__":
    main()
