# SPDX-License-Identifier: Apache-2.0
"""The hooks: DDP and FSDP2 over gloo must get, to the bit, the sums that a Cluster makes of the ranks' gradients. Ranks
are processes of this program. tests/python/test-torch.sh runs it."""
import os
import sys
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import nibble_codec as nc
from nibble_codec import ddp, groups, local
from nibble_codec._group import Group
from nibble_codec.report import Comparison

SETTINGS = {"WARMUP_STEPS": 1, "MIN_BYTES": 0}
STEPS = 4
RANKS = 3


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4))


def loss(m, step, rank):
    x = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + rank))
    return m(x).square().mean()


def check(what, text):
    if not what:
        raise SystemExit(f"FAIL: {text}")


def flat(m):
    return torch.cat([p.detach().reshape(-1) for p in m.parameters()])


def run_ddp(rank):
    """Each rank has its own cluster, which gets all ranks' contributions to a bucket."""
    comparison, names = Comparison(skip=1), []
    m = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    state = ddp.State(model=m, comparison=comparison, settings=SETTINGS)
    cluster = nc.Cluster(RANKS, SETTINGS)

    def hook(state, bucket):
        mean = bucket.buffer() * (1.0 / RANKS)
        brought = [torch.empty_like(mean) for _ in range(RANKS)]
        dist.all_gather(brought, mean)
        expected = cluster.all_reduce(brought, buffer=bucket.index())
        future = ddp.hook(state, bucket)
        check(torch.equal(future.value(), expected[rank]), f"DDP, rank {rank}: not what a cluster makes of it")
        names.append([state.names[id(p)] for p in bucket.parameters()])
        return future

    m.register_comm_hook(state, hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(m, step, rank).backward()
        optimizer.step()
    weights = [torch.empty_like(flat(m)) for _ in range(RANKS)]
    dist.all_gather(weights, flat(m))
    check(all(torch.equal(w, weights[0]) for w in weights), "DDP: ranks have different weights")
    figures = cluster.figures()
    check(figures.coded > 0 and figures.with_feedback == figures.coded, "DDP: nothing was coded with feedback")
    # The stand-in for DDP in one process orders values alike. Otherwise the groups would differ.
    ids = {id(p): name for name, p in m.module.named_parameters()}
    made = [[ids[id(p)] for p in bucket] for bucket in local.buckets(m.module.parameters())]
    check(names[-len(made):] == made, f"local.buckets makes {made}, DDP {names[-len(made):]}")
    if rank == 0:
        check(len(comparison.rows()) == len(ids), "DDP: the comparison has not every parameter")
        check(0 < comparison.summary()["1 - cos"] < 0.1, f"DDP: {comparison.summary()}")
    cluster.close()
    state.close()


def run_nodes(rank):
    """Two ranks are a node: their sum is the node's contribution."""
    group = Group(ranks_per_node=2, settings=SETTINGS)
    brought = [torch.randn(30000, generator=torch.Generator().manual_seed(r)).bfloat16() for r in range(4)]
    with nc.Cluster(2, SETTINGS) as cluster:
        for step in range(3):
            mine = brought[rank].clone()
            group.all_reduce(mine, 7)
            expected = cluster.all_reduce([brought[0] + brought[1], brought[2] + brought[3]], buffer=7)
            check(torch.equal(mine, expected[rank // 2]), f"rank {rank}, step {step}: not what two nodes get")
        check(cluster.figures().coded > 0, "nothing was coded")
    group.close()


class Mirrored(Group):
    """Beside FSDP each rank has its own cluster, which gets all ranks' contributions, in the same order."""

    def brought(self, tensor):
        room = [torch.empty_like(tensor) for _ in range(RANKS)]
        dist.all_gather(room, tensor.contiguous())
        return room

    def reduce_scatter(self, out, tensor, buffer, see=None):
        expected = self.mirror.reduce_scatter(self.brought(tensor), buffer=buffer)[self.rank]
        super().reduce_scatter(out, tensor, buffer, see)
        check(torch.equal(out, expected), f"FSDP2, rank {self.rank}: a sum that is not what a cluster makes of it")

    def all_gather(self, out, tensor):
        blocks, n = self.brought(tensor), tensor.numel()
        whole = [torch.empty(RANKS * n) for _ in range(RANKS)]
        own = [whole[r][r * n:r * n + n].copy_(blocks[r]) for r in range(RANKS)]
        self.mirror.all_gather(own, whole)
        super().all_gather(out, tensor)
        check(torch.equal(out, whole[self.rank]), f"FSDP2, rank {self.rank}: other weights than by a cluster")


def run_fsdp(rank):
    from torch.distributed.fsdp import fully_shard
    from nibble_codec import fsdp
    m, exact, settings = model(), model(), {**SETTINGS, "WARMUP_STEPS": 0}
    fully_shard(m[2])
    fully_shard(m)
    comparison = Comparison(skip=1)
    group = Mirrored(settings=settings)
    group.mirror = nc.Cluster(RANKS, settings)
    check(fsdp.emulate(m, comparison=comparison, group=group) is group, "emulate takes another group")
    optimizers = [torch.optim.SGD(x.parameters(), lr=0.05) for x in (m, exact)]
    for step in range(STEPS):
        loss(m, step, rank).backward()
        (sum(loss(exact, step, r) for r in range(RANKS)) / RANKS).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, p), q, start in zip(m.named_parameters(), exact.parameters(), model().parameters()):
        moved, off = (q - start).norm(), (p.full_tensor() - q).norm()
        check(off < 0.3 * moved, f"FSDP2, {name}: it moved by {moved}, and is {off} from where it should be")
    sums, gathers = (group.mirror.figures(f) for f in ("reduce_scatter", "all_gather"))
    check(sums.coded == 2 * RANKS * STEPS == sums.operations, f"FSDP2: of {sums.operations} sums {sums.coded} were coded")
    check(gathers.operations >= 2 * RANKS * STEPS, f"FSDP2: {gathers.operations} gathers of weights")
    if rank == 0:
        check(len(comparison.rows()) == 2, "FSDP2: the comparison has not two modules")
        check(len(comparison.all_steps()) == STEPS, f"FSDP2: the comparison has {len(comparison.all_steps())} steps")
        check(0 < comparison.summary()["bits"] < 20, f"FSDP2: {comparison.summary()}")
    group.mirror.close()
    group.close()


def check_groups():
    """The names reach the options of NCCL, which may be missing here, and are those that the plugin reads."""
    made = []
    dist.new_group = lambda ranks, **arguments: made.append((ranks, arguments))
    for make, name in ((groups.gradients, "nibble:gradients"), (groups.exact, "nibble:exact")):
        options = SimpleNamespace(config=SimpleNamespace(comm_name=None))
        make([0, 1], pg_options=options, timeout=None)
        wanted = {"backend": "nccl", "pg_options": options, "timeout": None}
        check(made.pop() == ([0, 1], wanted), "arguments of a group")
        check(options.config.comm_name == name, "a name of a group")
    with open(os.path.join(os.path.dirname(__file__), "../../plugin/policy/job/job.h")) as f:
        text = f.read().lower()
    tags = [f"({tag:#x})" for tag in (groups.TAG_GRADIENTS, groups.TAG_EXACT)]
    for word in [f'"{groups.GRADIENTS}"', f'"{groups.EXACT}"'] + tags:
        check(word in text, f"the plugin does not know {word}")


def main_of(rank, file, run, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    run(rank)
    dist.barrier()
    dist.destroy_process_group()


def main():
    new_group = dist.new_group
    check_groups()
    dist.new_group = new_group
    runs = {"ddp": (run_ddp, RANKS), "fsdp": (run_fsdp, RANKS), "nodes": (run_nodes, 4)}
    for name in sys.argv[1:] or runs:
        with tempfile.TemporaryDirectory() as folder:
            # Forked, since PyTorch takes seconds to begin. This process has not computed before.
            run, ranks = runs[name]
            mp.start_processes(main_of, (os.path.join(folder, "meet"), run, ranks), nprocs=ranks, start_method="fork")
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
