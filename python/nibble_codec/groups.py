# SPDX-License-Identifier: Apache-2.0
"""Process groups whose communicator's name tells the NCCL plugin what their sums hold.

    model = DistributedDataParallel(model, process_group=groups.gradients())
    fully_shard(model, mesh=DeviceMesh.from_group(groups.gradients(), "cuda"))
    counts = groups.exact()

They need PyTorch with NCCL 2.28 or later, and are for sums between nodes. Gathers of weights may travel on
them, too.
"""
from __future__ import annotations

from typing import Any, List, Optional, cast

import torch.distributed as dist

GRADIENTS = "nibble:gradients"  # names, and NCCL's userProfilerTag of a single call
EXACT = "nibble:exact"
TAG_GRADIENTS = 0x4E4942424C450001
TAG_EXACT = 0x4E4942424C450002


def _new(name: str, ranks: Optional[List[int]], arguments: Any) -> dist.ProcessGroup:
    options = arguments.pop("pg_options", None) or dist.ProcessGroupNCCL.Options()
    if not hasattr(options.config, "comm_name"):
        raise NotImplementedError(
            "this PyTorch cannot name NCCL's communicators: use NIBBLE_GRAD or NIBBLE_COMMS"
        )
    options.config.comm_name = name
    return cast(dist.ProcessGroup, dist.new_group(ranks, backend="nccl", pg_options=options, **arguments))


def gradients(ranks: Optional[List[int]] = None, **arguments: Any) -> dist.ProcessGroup:
    """Make a group, as torch.distributed.new_group does, whose sums of FP32, BF16 and FP16 are gradients."""
    return _new(GRADIENTS, ranks, arguments)


def exact(ranks: Optional[List[int]] = None, **arguments: Any) -> dist.ProcessGroup:
    """Make a group whose sums are never coded."""
    return _new(EXACT, ranks, arguments)
