# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel that treats its buckets as the plugin would between nodes.

    state = nibble_codec.ddp.State(settings={"WARMUP_STEPS": 50}, model=model)
    model.register_comm_hook(state, nibble_codec.ddp.hook)
"""
import torch

from ._group import Group, coded_type


class State:
    """comparison: a report.Comparison, which the first rank fills in, with the parameter names of `model` (the DDP module, or the module
    inside). ranks_per_node: number of ranks of a node, whose gradients are added first. Other arguments go to Cluster."""

    def __init__(self, process_group=None, ranks_per_node=1, model=None, comparison=None, **arguments):
        self.group = Group(process_group, ranks_per_node, **arguments)
        self.comparison = comparison
        inner = getattr(model, "module", model)
        self.names = {id(p): name for name, p in inner.named_parameters()} if inner is not None else {}

    def close(self):
        self.group.close()

    def figures(self):
        """Return the counters of the first rank's cluster, None on the other ranks."""
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
    """Return the mean of a bucket. Values are divided before they are added, as DDP does without a hook."""
    tensor = bucket.buffer()
    if not coded_type(tensor):
        raise TypeError(f"gradients of {tensor.dtype}: the plugin would leave them as they are")
    mean = tensor.mul(1.0 / state.group.world)
    state.group.all_reduce(mean, bucket.index(), state._see(bucket) if state.comparison else None)
    future = torch.futures.Future()
    future.set_result(mean)
    return future
