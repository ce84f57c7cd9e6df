#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark of quality, tools/bench/quality. NB_PYTHON is the interpreter.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/../..}" && pwd)
python=${NB_PYTHON:-python3}
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer's functions are not in Python"
    exit 77
fi
"$python" -c 'import torch, numpy' 2>/dev/null ||
    { echo "SKIP: $python has no PyTorch, or no NumPy"; exit 77; }
export PYTHONPATH="$srcdir/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export NB_CODEC="${NB_CODEC:-$(pwd)/.libs/libnibble-codec.so}"
exec "$python" -W ignore "$srcdir/tests/python/test_quality.py" "$srcdir/tools/bench/quality" "$@"
