#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Check the compiler's report about the kernel: for every generation it must show no spills, no stack, and
# registers that let a block of NB_GPU_TEAMS teams (three on sm_100) of NB_GPU_THREADS threads have a
# multiprocessor's 65536.
set -eu
report=${NB_BUILDDIR:-.}/kernels/nibble.report
header=${NB_SRCDIR:-.}/kernels/kernels.h
if [ ! -f "$report" ]; then
    echo "skipped: built without nvcc (see configure --with-cuda)"
    exit 77
fi
threads=$(sed -n 's/^#define NB_GPU_THREADS \([0-9]*\).*/\1/p' "$header")
teams=$(sed -n 's/^#define NB_GPU_TEAMS \([0-9]*\).*/\1/p' "$header")
awk -v threads="$threads" -v teams="$teams" '
    /Compiling entry function/ { target = $0; sub(/.*for ./, "", target); sub(/.$/, "", target); gsub(/[^a-z0-9_]/, "", target) }
    /bytes stack frame/ {
        frame = $1; for (i = 2; i <= NF; i++) if ($i == "spill") spill += $(i - 2)
        if (frame || spill) { print target ": " $0; bad = 1 }
        spill = 0
    }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) if ($i == "Used") used = $(i + 1)
        most = int(65536 / threads / (target == "sm_100" ? teams - 1 : teams) / 8) * 8
        print target ": " used " registers of " most
        if (used > most) bad = 1
        seen++
    }
    END { if (seen < 4) { print "only " seen + 0 " targets in the report"; bad = 1 } exit bad }' "$report"
