#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT with one of PyTorch's ways of data parallelism. An ordinary script: started once a process with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does; it knows nothing of how bytes are exchanged.

Writes to --out, by each rank: loss.RANK.csv, digest.RANK.csv (hashes of weights as a forward pass sees them, and of all
weights at the end) and, with --audit-from, audit.json: how far the optimizer's update is from the one that exactly
averaged gradients would give. These are averaged over the CPU, beside the run.
"""
import argparse
import contextlib
import hashlib
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from gpt import Block, Gpt, Text

parser = argparse.ArgumentParser()
parser.add_argument("--parallel", required=True, choices=[
    "ddp", "fsdp1", "fsdp2", "hsdp", "zero", "distributed-optimizer", "pipeline", "local-sgd", "post-local-sgd"])
parser.add_argument("--backend", default="nccl")
parser.add_argument("--device", default="cuda")
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--context", type=int, default=128)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--experts", action="store_true", help="a mixture of experts, with activation checkpointing")
parser.add_argument("--odd", action="store_true", help="sizes that no number of ranks divides")
parser.add_argument("--deterministic", action="store_true")
parser.add_argument("--audit-from", type=int, default=-1, metavar="STEP")
parser.add_argument("--digest-every", type=int, default=20)
args = parser.parse_args()

if args.deterministic:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    for kind in ("flash", "mem_efficient", "cudnn"):  # attention in plain matrix products
        getattr(torch.backends.cuda, f"enable_{kind}_sdp", lambda on: None)(False)
cuda = args.device == "cuda"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group(args.backend)
cpu_group = dist.new_group(backend="gloo")
os.makedirs(args.out, exist_ok=True)
text = Text(args.context)


def build():
    torch.manual_seed(args.seed)
    odd = {"inner": 4 * args.width + 3, "vocabulary": 257} if args.odd else {}
    return Gpt(args.width, args.layers, args.heads, args.context, experts=args.experts, recompute=args.experts, **odd)


def batch(step):
    return text.batch(args.batch, 7 + 1000003 * args.seed + world * step + rank, device)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)


class Plain:
    """What the ways below have in common: a model whose parameters are whole on every rank."""

    autocast = True   # parameters in FP32, arithmetic in BF16
    audited = True

    def __init__(self):
        self.model = build().to(device)
        self.forward = self.model
        self.optimizer = adam(self.model.parameters())

    def loss(self, ids, targets):
        with torch.autocast(device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            return self.forward(ids, targets)

    def step(self, number):
        loss = self.loss(*batch(number))
        loss.backward()
        auditor.look(self)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def full(self):
        """Names and whole weights."""
        return [(n, p.detach()) for n, p in self.model.named_parameters()]

    def gradients(self, exact):
        """(name, this rank's part of the averaged gradient, the same part of `exact`, which has whole ones by name)."""
        return [(n, p.grad, exact[n]) for n, p in self.model.named_parameters()]


class Ddp(Plain):
    def __init__(self):
        super().__init__()
        self.forward = nn.parallel.DistributedDataParallel(self.model, device_ids=[device] if cuda else None)


class Zero(Ddp):
    """Optimizer state sharded over the ranks."""

    def __init__(self):
        super().__init__()
        from torch.distributed.optim import ZeroRedundancyOptimizer
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr,
                                                 betas=(0.9, 0.95), weight_decay=0.0)


class PostLocal(Plain):
    """All-reduces at first, later only averages of the weights now and then."""

    audited = False

    def __init__(self):
        super().__init__()
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer
        warm = args.steps // 2
        self.forward = nn.parallel.DistributedDataParallel(self.model, device_ids=[device] if cuda else None)
        state = PostLocalSGDState(process_group=None, subgroup=dist.new_subgroups(1)[0], start_localSGD_iter=warm,
                                  post_local_gradient_allreduce=False)
        self.forward.register_comm_hook(state, post_localSGD_hook)
        self.optimizer = PostLocalSGDOptimizer(adam(self.model.parameters()), PeriodicModelAverager(period=4, warmup_steps=warm))


class LocalSgd(Plain):
    """Ranks train alone; every few steps an outer optimizer takes the average of how far they came."""

    audited = False
    period = 4

    def __init__(self):
        super().__init__()
        self.start = [p.detach().clone() for p in self.model.parameters()]
        self.flat = torch.empty(sum(p.numel() for p in self.start), device=device)
        self.outer = torch.optim.SGD(self.start, lr=0.7, momentum=0.9, nesterov=True)

    def step(self, number):
        loss = super().step(number)
        if (number + 1) % self.period == 0:
            torch.cat([(s - p.detach()).flatten() for s, p in zip(self.start, self.model.parameters())], out=self.flat)
            dist.all_reduce(self.flat)
            self.flat /= world
            at = 0
            for s, p in zip(self.start, self.model.parameters()):
                s.grad = self.flat[at:at + s.numel()].view_as(s)
                at += s.numel()
            self.outer.step()
            with torch.no_grad():
                for s, p in zip(self.start, self.model.parameters()):
                    p.copy_(s)
        return loss


class DistributedOptimizer(Plain):
    """BF16 weights and gradients in flat buffers, FP32 masters and Adam's state for a rank's own piece."""

    autocast = False

    def __init__(self):
        self.model = self.forward = build().to(device, torch.bfloat16)
        parameters = list(self.model.parameters())
        total = sum(p.numel() for p in parameters)
        self.piece = -(-total // world)
        self.weights = torch.zeros(self.piece * world, dtype=torch.bfloat16, device=device)
        self.grads = torch.zeros_like(self.weights)
        at = 0
        for p in parameters:
            self.weights[at:at + p.numel()] = p.detach().flatten()
            p.data = self.weights[at:at + p.numel()].view_as(p)
            p.grad = self.grads[at:at + p.numel()].view_as(p)
            at += p.numel()
        self.own = self.weights[rank * self.piece:(rank + 1) * self.piece]
        self.own_grad = torch.empty_like(self.own)
        self.master = self.own.float().requires_grad_()
        self.optimizer = adam([self.master])

    def step(self, number):
        loss = self.loss(*batch(number))
        loss.backward()
        dist.reduce_scatter_tensor(self.own_grad, self.grads, op=dist.ReduceOp.SUM)
        self.master.grad = self.own_grad.float() / world
        auditor.look(self)
        self.optimizer.step()
        self.own.copy_(self.master.detach())
        dist.all_gather_into_tensor(self.weights, self.own)
        self.grads.zero_()
        return loss.detach()

    def gradients(self, exact):
        flat = torch.zeros_like(self.grads, dtype=torch.float32)
        at, first, result = 0, rank * self.piece, []
        for name, p in self.model.named_parameters():
            flat[at:at + p.numel()] = exact[name].flatten()
            low, high = max(at, first), min(at + p.numel(), first + self.piece)
            if low < high:
                result.append((name, self.master.grad[low - first:high - first], flat[low:high]))
            at += p.numel()
        return result


class Fsdp1(Plain):
    autocast = False

    def __init__(self):
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        self.fsdp = FullyShardedDataParallel
        self.model = FullyShardedDataParallel(
            build().to(device), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device if cuda else None,
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        self.forward = self.model
        self.optimizer = adam(self.model.parameters())

    def full(self):
        with self.fsdp.summon_full_params(self.model, writeback=False):
            return [(n.replace("_fsdp_wrapped_module.", ""), p.detach().clone()) for n, p in self.model.named_parameters()
                    if "_flat_param" not in n]

    def gradients(self, exact):
        result = []
        for path, unit in self.model.named_modules():
            if not isinstance(unit, self.fsdp):
                continue
            flat_parameter = unit._handle.flat_param
            prefix = path.replace("_fsdp_wrapped_module", "").replace("..", ".").strip(".")
            names = [(prefix + "." if prefix else "") + n for n in flat_parameter._fqns]
            part = flat_parameter.grad.numel()
            at, first = 0, rank * part
            for name in names:
                whole = exact[name].flatten()
                low, high = max(at, first), min(at + whole.numel(), first + part)
                if low < high:
                    result.append((name, flat_parameter.grad[low - first:high - first], whole[low - at:high - at]))
                at += whole.numel()
        return result


class Fsdp2(Plain):
    autocast = False

    def __init__(self, mesh=None):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = mesh or init_device_mesh(args.device, (world,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        self.model = build().to(device)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.forward = self.model
        self.optimizer = adam(self.model.parameters())
        self.shards, self.shard = mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)

    def full(self):
        # The outermost unit stays gathered after an evaluation.
        for unit in [*self.model.blocks, self.model]:
            unit.reshard()
        return [(n, p.detach().full_tensor()) for n, p in self.model.named_parameters()]

    def gradients(self, exact):
        result = []
        for name, p in self.model.named_parameters():
            pieces = torch.chunk(exact[name], self.shards)
            if self.shard < len(pieces):
                result.append((name, p.grad.to_local(), pieces[self.shard]))
        return result


class Hsdp(Fsdp2):
    """Sharded over pairs of ranks, replicated over the pairs."""

    def __init__(self):
        from torch.distributed.device_mesh import init_device_mesh
        shape = (world // 2, 2)
        super().__init__(init_device_mesh(args.device, shape, mesh_dim_names=("replicate", "shard")))


class Pipeline(Plain):
    """A stage of the model a rank, activations and their gradients sent on, micro-batch after micro-batch."""

    audited = False
    pieces = 4

    def __init__(self):
        super().__init__()
        per = -(-args.layers // world)
        self.mine = self.model.blocks[rank * per:(rank + 1) * per]
        self.first, self.last = rank == 0, rank == world - 1
        self.shape = (args.batch, args.context, args.width)

    def stage(self, x, ids, targets):
        with torch.autocast(device.type, torch.bfloat16):
            if self.first:
                x = self.model.embed(ids)
            for block in self.mine:
                x = block(x)
            return self.model.loss(x, targets) if self.last else x.float()

    def step(self, number):
        total, kept = torch.zeros((), device=device), []
        for piece in range(self.pieces):
            # Every stage has the same text: the first reads it, the last compares with it.
            ids, targets = text.batch(args.batch, 7 + 1000003 * args.seed + self.pieces * number + piece, device)
            x = torch.empty(self.shape, device=device)
            if not self.first:
                dist.recv(x, rank - 1)
            x.requires_grad_(not self.first)
            y = self.stage(x, ids, targets)
            if self.last:
                total += y.detach() / self.pieces
            else:
                dist.send(y.detach().contiguous(), rank + 1)
            kept.append((x, y))
        for x, y in kept:
            if self.last:
                (y / self.pieces).backward()
            else:
                gradient = torch.empty(self.shape, device=device)
                dist.recv(gradient, rank + 1)
                y.backward(gradient)
            if not self.first:
                dist.send(x.grad.contiguous(), rank - 1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.broadcast(total, world - 1)
        return total


def kind(name):
    if name.startswith(("token", "place")):
        return "embedding"
    if name.startswith("head"):
        return "head"
    return "norm" if "norm" in name else "bias" if name.endswith("bias") else "matrix"


class Auditor:
    """Adam's moments from the gradients of the run and from exactly averaged ones, side by side."""

    def __init__(self, first):
        self.first, self.now, self.steps, self.moments, self.replica = first, -1, 0, {}, None

    def look(self, way):
        if self.first < 0 or self.now < self.first or not way.audited:
            return
        if self.replica is None:
            self.replica = build().to(device, torch.float32 if way.autocast else torch.bfloat16)
        named = dict(self.replica.named_parameters())
        with torch.no_grad():
            for name, weight in self.weights:
                named[name].copy_(weight)
        self.replica.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16) if way.autocast else contextlib.nullcontext():
            self.replica(*batch(self.now)).backward()
        exact = {}
        for name, p in named.items():
            mine = (torch.zeros_like(p) if p.grad is None else p.grad).float().cpu()
            dist.all_reduce(mine, group=cpu_group)
            exact[name] = (mine / world).to(device)
        try:
            parts = way.gradients(exact)
        except AttributeError as problem:  # where shards lie is told by no public interface everywhere
            print(f"no audit: {problem}", flush=True)
            self.first, self.steps = -1, 0
            return
        self.steps += 1
        for name, got, wanted in parts:
            m = self.moments.setdefault(name, [torch.zeros_like(wanted, dtype=torch.float32).flatten() for _ in range(4)])
            for k, g in ((0, got), (2, wanted)):
                g = g.detach().float().flatten()
                m[k].mul_(0.9).add_(g, alpha=0.1)
                m[k + 1].mul_(0.95).addcmul_(g, g, value=0.05)

    def before(self, way, step):
        """Weights as this step's forward pass will use them."""
        self.now = step
        if 0 <= self.first <= step and way.audited:
            self.weights = way.full()

    def report(self, way):
        if not self.steps:
            return
        kinds = ["matrix", "norm", "bias", "embedding", "head"]
        sums = torch.zeros(len(kinds), 3, dtype=torch.float64)
        for name, (m, v, me, ve) in self.moments.items():
            a, b = (x / ((y / (1 - 0.95 ** self.steps)).sqrt() * (1 - 0.9 ** self.steps) + 1e-8) for x, y in ((m, v), (me, ve)))
            a, b = a.double(), b.double()
            sums[kinds.index(kind(name))] += torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum()]).cpu()
        dist.all_reduce(sums, group=cpu_group)
        if rank == 0:
            with open(os.path.join(args.out, "audit.json"), "w") as f:
                there = [(k, s) for k, s in zip(kinds, sums) if s[1] > 0 and s[2] > 0]
                json.dump({"steps": self.steps,
                           "distance": {k: 1 - float(s[0] / (s[1] * s[2]).sqrt()) for k, s in there},
                           "norm": {k: float((s[1] / s[2]).sqrt()) for k, s in there}}, f)


def digest(tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().contiguous().view(torch.uint8).cpu().clone().numpy().tobytes())
    return h.hexdigest()[:24]


ways = {"ddp": Ddp, "zero": Zero, "post-local-sgd": PostLocal, "local-sgd": LocalSgd, "fsdp1": Fsdp1, "fsdp2": Fsdp2,
        "hsdp": Hsdp, "distributed-optimizer": DistributedOptimizer, "pipeline": Pipeline}
auditor = Auditor(args.audit_from)
way = ways[args.parallel]()
losses = open(os.path.join(args.out, f"loss.{rank}.csv"), "w", buffering=1)
digests = open(os.path.join(args.out, f"digest.{rank}.csv"), "w", buffering=1)

# Weights as the forward pass of one layer sees them: gathered, where they are sharded.
seen = {"on": False}


def look(module, inputs):
    if seen["on"]:
        seen["on"] = False
        print(f"{seen['step']},{digest([module.weight, module.bias])}", file=digests)


for name, module in way.model.named_modules():
    if name.endswith("attention.qkv") and "blocks.1." in name:
        module.register_forward_pre_hook(look)

if cuda:
    torch.cuda.synchronize()
for step in range(args.steps):
    seen["step"] = step
    seen["on"] = args.digest_every > 0 and step % args.digest_every == args.digest_every - 1 and args.parallel != "pipeline"
    auditor.before(way, step)
    loss = way.step(step)
    print(f"{step},{loss.item():.9g}", file=losses)

# Text that was not trained on, the same for all ranks and ways.
if args.parallel != "pipeline":
    with torch.no_grad():
        for k in range(16):
            value = way.loss(*text.batch(args.batch, 1000 + k, device, held_out=True))
            print(f"held{k},{value.item():.9g}", file=losses)
auditor.report(way)
if args.parallel != "pipeline":
    print(f"end,{digest([w for _, w in way.full()])}", file=digests)
else:
    print(f"end,{digest(way.mine.parameters())}", file=digests)
losses.close()
digests.close()
dist.barrier(group=cpu_group)
dist.destroy_process_group()
