#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Find the caller in real processes of PyTorch over gloo. NB_PYTHON is the interpreter.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/../..}" && pwd)
python=${NB_PYTHON:-python3}
NB_TORCH_GLOO=${NB_TORCH_GLOO:-$(pwd)/tests/policy/.libs/torch_gloo.so}
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer's functions are not in Python"
    exit 77
fi
"$python" -c 'import torch, sys; sys.exit(not torch.distributed.is_gloo_available())' 2>/dev/null ||
    { echo "SKIP: $python has no PyTorch with gloo"; exit 77; }
[ -f "$NB_TORCH_GLOO" ] || { echo "FAIL: $NB_TORCH_GLOO was not built"; exit 1; }
export NB_TORCH_GLOO TORCH_CPP_LOG_LEVEL=ERROR OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo PYTHONDONTWRITEBYTECODE=1 NIBBLE_MIN_BYTES=0
LD_PRELOAD="$NB_TORCH_GLOO" "$python" -W ignore "$srcdir/tests/policy/test_torch_caller.py" || exit 1
echo "PASS: DDP's buckets, and nothing else, are gradients by their caller"
