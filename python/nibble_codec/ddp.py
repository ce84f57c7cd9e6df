# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel that treats its buckets as the plugin would between nodes.

    state = nibble_codec.ddp.State(settings={"WARMUP_STEPS": 50}, model=model)
    model.register_comm_hook(state, nibble_codec.ddp.hook)
"""
from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from ._group import Group, See, coded_type
from .cluster import Figures
from .report import Comparison


class State:
    """comparison: a report.Comparison, which the first rank fills in, with the parameter names of `model` (the DDP module, or the module
    inside). ranks_per_node: number of ranks of a node, whose gradients are added first. Other arguments go to Cluster."""

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None, ranks_per_node: int = 1,
                 model: Optional[torch.nn.Module] = None, comparison: Optional[Comparison] = None, **arguments: Any) -> None:
        self.group = Group(process_group, ranks_per_node, **arguments)
        self.comparison = comparison
        inner = getattr(model, "module", model)
        self.names = {id(p): name for name, p in inner.named_parameters()} if inner is not None else {}

    def close(self) -> None:
        self.group.close()

    def figures(self) -> Optional[Figures]:
        """Return the counters of the first rank's cluster, None on the other ranks."""
        return self.group.cluster.figures("all_reduce") if self.group.cluster else None

    def see(self, bucket: Any) -> Optional[See]:
        """Return what fills the comparison in for a GradBucket, None without one."""
        comparison = self.comparison
        if comparison is None:
            return None

        def see(exact: torch.Tensor, delivered: torch.Tensor) -> None:
            at = 0
            for i, p in enumerate(bucket.parameters()):
                name = self.names.get(id(p), f"bucket {bucket.index()}, parameter {i}")
                comparison.add(name, exact[at:at + p.numel()], delivered[at:at + p.numel()])
                at += p.numel()
            if bucket.is_last():
                comparison.step(self.figures(), delivered.element_size())
        return see


# Without annotations: register_comm_hook compares them with types, and they are text here.
def hook(state, bucket):  # type: ignore[no-untyped-def]
    """Return the mean of a bucket, a torch.distributed.GradBucket. Values are divided before they are added, as DDP does without a hook."""
    tensor = bucket.buffer()
    if not coded_type(tensor):
        raise TypeError(f"gradients of {tensor.dtype}: the plugin would leave them as they are")
    mean = tensor.mul(1.0 / state.group.world)
    state.group.all_reduce(mean, bucket.index(), state.see(bucket))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(mean)
    return future
