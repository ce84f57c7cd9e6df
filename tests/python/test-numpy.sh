#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python module with NumPy. NB_PYTHON is the interpreter, else the first python3, or Debian's, that has
# NumPy.
set -u
# shellcheck source=tests/python/python.sh
. "$(dirname "$0")/python.sh"
python=
for each in ${NB_PYTHON:-python3 /usr/bin/python3}; do
    [ "$python" ] || { "$each" -c 'import numpy' 2>/dev/null && python=$each; }
done
[ "$python" ] || { echo "SKIP: ${NB_PYTHON:-python3} has no NumPy"; exit 77; }
export OPENBLAS_NUM_THREADS=1
exec "$python" "$srcdir/tests/python/test_numpy.py"
