# SPDX-License-Identifier: Apache-2.0
"""nibble's codecs and collectives for NumPy arrays and PyTorch tensors, by libnibble-codec.so. On one machine they treat
gradients and weights as the NCCL plugin would between N nodes.

    encode, decode       values to coded bytes and back
    Cluster              N nodes in this process: all-reduce, reduce-scatter, all-gather of their arrays
    ddp.State, ddp.hook  a communication hook for PyTorch's DistributedDataParallel
    fsdp.emulate         the same for modules of fully_shard (FSDP2)
    groups.gradients     a process group whose sums the plugin codes as gradients, without recognition
    local.DataParallel   N nodes' data parallelism with one model in one process
    report.Comparison    delivered gradients against exact ones, as a table and plots

`python -m nibble_codec` shows whether it works here. This file imports only Cluster and the codec, so that NumPy users do not need PyTorch. docs/own-model.md shows how to judge a
model with it.
"""
from ._codec import decode, encode, encode_bound
from ._library import Error, library_path, version
from .cluster import Cluster, Figures

__version__ = version().partition(" ")[0]  # of the library, which is released together with this module

__all__ = ["Cluster", "Error", "Figures", "__version__", "decode", "encode", "encode_bound", "library_path", "version"]
