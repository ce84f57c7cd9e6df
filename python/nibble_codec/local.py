# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of N nodes with one model in one process. Each node's gradient is computed in turn, and the nodes of a Cluster
sum them, in buckets like DDP's.

    nodes = local.DataParallel(model, cluster)
    for batches in loader:                  # one for each node
        for node, batch in enumerate(batches):
            loss(model, batch).backward()
            nodes.collect(node)
        nodes.reduce()                      # puts the delivered mean into .grad
        optimizer.step()
"""
from __future__ import annotations

from typing import Iterable, List, Optional

import torch

from .cluster import Cluster
from .report import Comparison, exact_sum


def buckets(parameters: Iterable[torch.nn.Parameter], bucket_mb: float = 25.0,
            first_mb: float = 1.0) -> List[List[torch.nn.Parameter]]:
    """Return buckets like DDP's: parameters from the last to the first, of one type, a small bucket first."""
    made: List[List[torch.nn.Parameter]] = []
    bytes_left = 0.0
    for p in reversed(list(parameters)):
        size = p.numel() * p.element_size()
        if not made or size > bytes_left or made[-1][0].dtype != p.dtype:
            bytes_left = (bucket_mb if made else first_mb) * 2**20
            made.append([])
        made[-1].append(p)
        bytes_left -= size
    return made


class DataParallel:
    """cluster: a Cluster, or None for the mean in double precision, rounded once, as a baseline."""

    def __init__(self, model: torch.nn.Module, cluster: Optional[Cluster], nodes: Optional[int] = None,
                 bucket_mb: float = 25.0, comparison: Optional[Comparison] = None) -> None:
        if cluster is None and nodes is None:
            raise ValueError("without a cluster, nodes has to say how many there are")
        self.cluster, self.comparison = cluster, comparison
        self.nodes: int = cluster.nodes if cluster else nodes or 0
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.buckets = buckets((p for p in model.parameters() if p.requires_grad), bucket_mb)
        self.sent = [[torch.zeros(sum(p.numel() for p in bucket), dtype=bucket[0].dtype) for _ in range(self.nodes)]
                     for bucket in self.buckets]

    def collect(self, node: int) -> None:
        """Take the gradients of `node` from .grad, and set that to None."""
        for bucket, sent in zip(self.buckets, self.sent):
            at = 0
            for p in bucket:
                part = sent[node][at:at + p.numel()]
                if p.grad is None:
                    part.zero_()
                else:
                    torch.mul(p.grad.detach().reshape(-1).cpu(), 1.0 / self.nodes, out=part)
                p.grad = None
                at += p.numel()

    def reduce(self) -> None:
        """Sum the collected gradients, and put the delivered mean into .grad."""
        for number, (bucket, sent) in enumerate(zip(self.buckets, self.sent)):
            exact = exact_sum(sent) if self.comparison or not self.cluster else sent[0]
            mean = self.cluster.all_reduce(sent, buffer=number)[0] if self.cluster else exact.to(sent[0].dtype)
            at = 0
            for p in bucket:
                part = mean[at:at + p.numel()]
                p.grad = part.view_as(p).clone().to(p.device)
                if self.comparison:
                    self.comparison.add(self.names[id(p)], exact[at:at + p.numel()], part)
                at += p.numel()
        if self.comparison:
            self.comparison.step(self.cluster.figures("all_reduce") if self.cluster else None,
                                 self.sent[0][0].element_size())
