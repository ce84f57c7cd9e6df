#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compare the GPU kernels' instructions a value, counted from their machine code, with the budget.
set -eu
root=${NB_SRCDIR:-.}
build=${NB_BUILDDIR:-.}
if [ ! -f "$build/kernels/nibble.report" ]; then
    echo "skipped: built without nvcc (see configure --with-cuda)"
    exit 77
fi
NVCC=$(sed -n 's/^NVCC = //p' "$build/Makefile")
export NVCC
exec "$root/tools/sass-count/sass-count" --check "$root/kernels/budget.txt"
