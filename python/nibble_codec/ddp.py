# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel that does to its buckets what the plugin would do to them between nodes.

    state = nibble_codec.ddp.State(settings={"WARMUP_STEPS": 50}, model=model)
    model.register_comm_hook(state, nibble_codec.ddp.hook)
"""
import torch

from ._group import Group, coded_type


class State:
    """comparison: a report.Comparison, filled in on the first rank, by the names that `model` (the DDP module, or what is in it) has
    for its parameters. ranks_per_node: so many ranks are a node, whose gradients are added before. The rest goes to Cluster."""

    def __init__(self, process_group=None, ranks_per_node=1, model=None, comparison=None, **arguments):
        self.group = Group(process_group, ranks_per_node, **arguments)
        self.comparison = comparison
        inner = getattr(model, "module", model)
        self.names = {id(p): name for name, p in inner.named_parameters()} if inner is not None else {}

    def close(self):
        self.group.close()

    def figures(self):
        """Of the first rank's cluster; None on the others."""
        return self.group.cluster.figures("all_reduce") if self.group.cluster else None

    def _see(self, bucket):
        def see(exact, delivered):
            at = 0
            for i, p in enumerate(bucket.parameters()):
                name = self.names.get(id(p), f"bucket {bucket.index()}, parameter {i}")
                self.comparison.add(name, exact[at:at + p.numel()], delivered[at:at + p.numel()])
                at += p.numel()
            if bucket.is_last():
                self.comparison.step(self.figures(), delivered.element_size())
        return see


def hook(state, bucket):
    """The mean of a bucket. Values are divided before they are added, as DDP does without a hook."""
    tensor = bucket.buffer()
    if not coded_type(tensor):
        raise TypeError(f"gradients of {tensor.dtype}: the plugin would leave them as they are")
    mean = tensor.mul(1.0 / state.group.world)
    state.group.all_reduce(mean, bucket.index(), state._see(bucket) if state.comparison else None)
    future = torch.futures.Future()
    future.set_result(mean)
    return future
