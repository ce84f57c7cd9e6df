#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmark of quality, tools/bench/quality. NB_PYTHON is the interpreter.
set -u
# shellcheck source=tests/python/python.sh
. "$(dirname "$0")/python.sh"
python=${NB_PYTHON:-python3}
"$python" -c 'import torch, numpy' 2>/dev/null ||
    { echo "SKIP: $python has no PyTorch, or no NumPy"; exit 77; }
export OMP_NUM_THREADS=1
exec "$python" -W ignore "$srcdir/tests/python/test_quality.py" "$srcdir/tools/bench/quality" "$@"
