#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python module with NumPy. NB_PYTHON is the interpreter, else the first python3, or Debian's, that has
# NumPy.
set -u
srcdir=$(cd "${NB_SRCDIR:-$(dirname "$0")/../..}" && pwd)
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer's functions are not in Python"
    exit 77
fi
python=
for each in ${NB_PYTHON:-python3 /usr/bin/python3}; do
    [ "$python" ] || { "$each" -c 'import numpy' 2>/dev/null && python=$each; }
done
[ "$python" ] || { echo "SKIP: ${NB_PYTHON:-python3} has no NumPy"; exit 77; }
export PYTHONPATH="$srcdir/python" PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
export NB_CODEC="${NB_CODEC:-$(pwd)/.libs/libnibble-codec.so}"
exec "$python" "$srcdir/tests/python/test_numpy.py"
