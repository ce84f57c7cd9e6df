# SPDX-License-Identifier: Apache-2.0
"""The ranks of a torch.distributed group as nodes. The first rank has the cluster. The other ranks send it their values and receive
their results. Any backend that moves host memory works (gloo). Tensors on a GPU are copied."""
from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

from ._arrays import TYPES
from .cluster import Cluster
from .report import exact_sum

See = Callable[[torch.Tensor, torch.Tensor], None]  # gets a sum in double precision, and the delivered one


def coded_type(tensor: torch.Tensor) -> bool:
    """Whether the plugin has a codec for sums of this type."""
    return str(tensor.dtype).partition(".")[2] in TYPES


class Group:
    """`ranks_per_node` consecutive ranks are one node. Its sum is made here in the order of ranks, rounded to the type after each
    addition. (NCCL's own order inside a node depends on its algorithm.) `arguments` are Cluster's."""

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None, ranks_per_node: int = 1, **arguments: Any) -> None:
        self.group = process_group
        self.world, self.rank = dist.get_world_size(process_group), dist.get_rank(process_group)
        if self.world % ranks_per_node or self.world // ranks_per_node < 2:
            raise ValueError(f"{self.world} ranks are no 2 or more nodes of {ranks_per_node}")
        self.ranks_per_node, self.nodes = ranks_per_node, self.world // ranks_per_node
        self.root = dist.get_global_rank(process_group, 0) if process_group is not None else 0
        self.cluster = Cluster(self.nodes, **arguments) if self.rank == 0 else None

    def close(self) -> None:
        if self.cluster:
            self.cluster.close()

    def _gather(self, tensor: torch.Tensor) -> Optional[List[torch.Tensor]]:
        """Return the contributions of all ranks on the first, None on the others."""
        mine = tensor.detach().cpu().contiguous().view(-1)
        room = [torch.empty_like(mine) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(mine.view(torch.uint8), [r.view(torch.uint8) for r in room] if room else None, dst=self.root,
                    group=self.group)
        return room

    def _scatter(self, out: torch.Tensor, results: Optional[List[torch.Tensor]]) -> None:
        """Copy result r of the first rank into `out` of rank r."""
        mine = torch.empty(out.numel(), dtype=out.dtype)
        dist.scatter(mine.view(torch.uint8), [r.view(torch.uint8) for r in results] if results else None, src=self.root,
                     group=self.group)
        out.view(-1).copy_(mine)

    def all_reduce(self, tensor: torch.Tensor, buffer: int, see: Optional[See] = None) -> None:
        """Put the sum into `tensor`. see(exact, delivered), on the first rank, also gets the sum in double precision."""
        ranks = self._gather(tensor)
        results = None
        if ranks and self.cluster:
            nodes = []
            for first in range(0, self.world, self.ranks_per_node):
                total = ranks[first].clone()
                for r in ranks[first + 1:first + self.ranks_per_node]:
                    total += r
                nodes.append(total)
            delivered = self.cluster.all_reduce(nodes, buffer=buffer)
            if see:
                see(exact_sum(ranks), delivered[0])
            results = [delivered[r // self.ranks_per_node] for r in range(self.world)]
        self._scatter(tensor, results)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, buffer: int, see: Optional[See] = None) -> None:
        """Put the own block of the sum into `out`. A rank is a node."""
        ranks = self._gather(tensor)
        results = None
        if ranks and self.cluster:
            results = self.cluster.reduce_scatter(ranks, buffer=buffer)
            if see:
                see(exact_sum(ranks), torch.cat(results))
        self._scatter(out, results)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put all blocks into `out`. A node keeps its own block unchanged, as PyTorch's gathers in place do."""
        blocks = self._gather(tensor)
        results = None
        if blocks and self.cluster:
            count = blocks[0].numel()
            results = [torch.empty(self.world * count, dtype=tensor.dtype) for _ in blocks]
            own = [result[r * count:(r + 1) * count].copy_(blocks[r]) for r, result in enumerate(results)]
            self.cluster.all_gather(own, results)
        self._scatter(out, results)
