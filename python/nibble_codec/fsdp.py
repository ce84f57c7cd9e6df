# SPDX-License-Identifier: Apache-2.0
"""fully_shard (FSDP2) with the plugin's reduce-scatters of gradients and all-gathers of weights.

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    group = nibble_codec.fsdp.emulate(model, settings={"WARMUP_STEPS": 50})

A rank is a node. PyTorch 2.8 or later; host memory, or copies of the GPU's.
"""
from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from ._group import Group, See, coded_type
from .report import Comparison


class _Comm:
    def __init__(self, group: Group, buffer: int, see: Optional[See]) -> None:
        self.group, self.buffer, self.see = group, buffer, see

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class ReduceScatter(_Comm):
    """For set_custom_reduce_scatter: the gradients of one module, which are one buffer."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
                 async_op: bool = False) -> None:
        if not coded_type(input_tensor):
            raise TypeError(f"gradients of {input_tensor.dtype}: the plugin would leave them as they are")
        if op == dist.ReduceOp.AVG:  # NCCL multiplies floats before it adds
            input_tensor = input_tensor.mul(1.0 / self.group.world)
        elif op != dist.ReduceOp.SUM:
            raise NotImplementedError(f"reduction {op}: use set_gradient_divide_factor(None)")
        self.group.reduce_scatter(output_tensor, input_tensor, self.buffer, self.see)


class AllGather(_Comm):
    """For set_custom_all_gather. Types without a codec are gathered unchanged."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 async_op: bool = False) -> None:
        if coded_type(input_tensor):
            self.group.all_gather(output_tensor, input_tensor)
        else:
            dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)


def emulate(model: torch.nn.Module, process_group: Optional[dist.ProcessGroup] = None,
            comparison: Optional[Comparison] = None, weights: bool = True, group: Optional[Group] = None,
            **arguments: Any) -> Group:
    """Let every sharded module of `model` use it, or with weights=False only its gradients. Return the group, whose `cluster` on the
    first rank has the counters. Call close() on it in the end. A comparison has a line for each module, and a new step begins when a
    module's gradients come again. group: use this one instead
    of a new one from `process_group` and Cluster's `arguments`."""
    group = group or Group(process_group, **arguments)
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, FSDPModule)]
    if not modules:
        raise ValueError("no module of the model is sharded by fully_shard")
    for number, (name, module) in enumerate(modules):
        see = _see(comparison, group, name or "(root)") if comparison else None
        # The base classes that these methods name are private to PyTorch. What they call is here.
        module.set_custom_reduce_scatter(ReduceScatter(group, number, see))  # type: ignore[arg-type]
        if weights:
            module.set_custom_all_gather(AllGather(group, number, None))  # type: ignore[arg-type]
    return group


def _see(comparison: Comparison, group: Group, name: str) -> See:
    def see(exact: torch.Tensor, delivered: torch.Tensor) -> None:
        if group.cluster:
            comparison.add(name, exact, delivered, group.cluster.figures("reduce_scatter"), delivered.element_size())
    return see
