# SPDX-License-Identifier: Apache-2.0
"""Find the caller in processes of PyTorch: DDP and HSDP over gloo. The preloaded torch_gloo.c reports their all-reduces to
the plugin's profiler, as NCCL would. tests/policy/torch-caller.sh runs this file."""
import ctypes
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

UNKNOWN, BUCKET, HOOK = range(3)  # enum nb_caller
NAMES = "unknown", "bucket", "hook", "backward", "outside"


def callers():
    """Return the callers of the all-reduces since the last call."""
    room = (ctypes.c_int * 4096)()
    library = ctypes.CDLL(os.environ["NB_TORCH_GLOO"])
    return [room[i] for i in range(library.torch_gloo_callers(room, len(room)))]


def check(found, expected, what):
    """Require that `found` is not empty and all of it is `expected`."""
    if not found or set(found) != set(expected):
        raise SystemExit(f"FAIL: {what}: {[NAMES[f] for f in found]}, not {[NAMES[e] for e in expected]}")
    if dist.get_rank() == 0:
        print(f"  {what}: {len(found)} of {', '.join(NAMES[e] for e in expected)}", flush=True)


def model():
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))


def backward(m):
    m(torch.ones(2, 64)).square().mean().backward()


def steps(m, what, first, second=None):
    """Run two steps: DDP makes its buckets anew after the first."""
    for expected in (first, second or first):
        callers()
        backward(m)
        check(callers(), expected, what)


def ddp(**settings):
    return nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01, **settings)


def python_hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def sum_in_backward(gradient):
    dist.all_reduce(torch.ones(64))
    return gradient


def run_ddp():
    steps(ddp(), "DDP", [BUCKET])
    # and the bitmap of used parameters: in the first step, in all
    steps(ddp(static_graph=True), "DDP, static graph", [BUCKET, UNKNOWN], [BUCKET])
    steps(ddp(find_unused_parameters=True), "DDP that looks for unused parameters", [BUCKET, UNKNOWN])
    m = ddp()
    m._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    steps(m, "DDP with its hook in C++", [BUCKET])
    m = ddp()
    m.register_comm_hook(None, python_hook)
    steps(m, "DDP with a hook in Python", [HOOK])


def run_others():
    callers()
    dist.all_reduce(torch.ones(1 << 16))
    check(callers(), [UNKNOWN], "a script")
    m = model()
    m[2].weight.register_hook(sum_in_backward)
    steps(m, "a script in a backward pass", [UNKNOWN])
    m = nn.parallel.DistributedDataParallel(model())
    callers()
    m(torch.ones(2, 64))
    dist.all_reduce(torch.ones(1 << 16))
    check(callers(), [UNKNOWN], "a script between DDP's forward and backward pass")
    work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
    work.wait()
    check(callers(), [UNKNOWN], "a script, asynchronously")


def run_hsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    m = model()
    for layer in m:
        fully_shard(layer, mesh=mesh)
    fully_shard(m, mesh=mesh)
    steps(m, "FSDP2 with replicas", [UNKNOWN])


def main_of(rank, file, run, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    run()
    dist.barrier()
    dist.destroy_process_group()


def main():
    for run, ranks in ((run_ddp, 2), (run_others, 2), (run_hsdp, 4)):
        with tempfile.TemporaryDirectory() as folder:
            # Fork, because PyTorch takes seconds to begin. This process has not computed yet.
            mp.start_processes(main_of, (os.path.join(folder, "meet"), run, ranks), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
