# SPDX-License-Identifier: Apache-2.0
"""nibble's codecs and collectives for NumPy arrays and PyTorch tensors, by libnibble-codec.so: what the NCCL plugin would do to
gradients and weights between N nodes, on one machine.

    encode, decode       values to coded bytes and back
    Cluster              N nodes in this process: all-reduce, reduce-scatter, all-gather of their arrays
    ddp.State, ddp.hook  a communication hook for PyTorch's DistributedDataParallel
    fsdp.emulate         the same for modules of fully_shard (FSDP2)
    local.DataParallel   N nodes' data parallelism with one model in one process
    report.Comparison    what became of the gradients, as a table and plots

Only Cluster and the codec are imported here, so that PyTorch is needed by nobody who does not use it. docs/own-model.md tells how
to judge a model with it.
"""
from ._codec import decode, encode, encode_bound
from ._library import Error, library_path, version
from .cluster import Cluster, Figures

__all__ = ["Cluster", "Error", "Figures", "decode", "encode", "encode_bound", "library_path", "version"]
