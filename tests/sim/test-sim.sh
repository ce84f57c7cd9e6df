#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cluster in one process: seeds that are always the same (NB_SIM_SEEDS), and a few fresh seeds (from
# NB_SIM_BASE on). For more fresh seeds: make soak.
set -u
unset $(env | sed -n 's/^\(NIBBLE_[A-Z0-9_]*\)=.*/\1/p')
builddir=${NB_BUILDDIR:-.}
sim=$builddir/tests/nibble-sim
n=${NB_SIM_SEEDS:-$([ "${NB_TEST_QUICK:-0}" = 0 ] && [ -z "${NB_SANITIZE:-}" ] && echo 100 || echo 10)}
base=${NB_SIM_BASE:-$(od -An -N5 -tu8 /dev/urandom | tr -d ' ')}

fail() { echo "FAIL: $*"; exit 1; }

echo "seeds 1 to $n, each twice"
"$sim" --again --seeds "1-$n" || fail "a seed that used to pass"
echo "seeds that have failed once (of all versions of plans)"
for seed in 551 1288 1486 1688 100057 100371 101929 102246 102744; do
    "$sim" --plan 1 --seeds "$seed-$seed" >/dev/null || fail "seed $seed"
done
for seed in 403257 413186 521917 732076; do
    "$sim" --plan 2 --seeds "$seed-$seed" >/dev/null || fail "seed $seed (of the second version)"
done
for seed in 2164275 6000768 60401547 2191881941 73200017743 8121180078 9100057346 9100170162 9100216020 9400001255; do
    "$sim" --plan 3 --seeds "$seed-$seed" >/dev/null || fail "seed $seed (of the third version)"
done
for seed in 421 1239 1496; do
    "$sim" --plan 4 --seeds "$seed-$seed" >/dev/null || fail "seed $seed (of the fourth version)"
done
echo "seeds whose results have once been others than without lateness"
for seed in 101900 200676; do
    "$sim" --plan 1 --compare --seeds "$seed-$seed" >/dev/null || fail "seed $seed"
done
echo "seeds 1 to $((n / 5)), with a damaged header each"
"$sim" --headers --again --seeds "1-$((n / 5))" || fail "a seed of damaged headers"
echo "new seeds from $base on (NB_SIM_BASE=$base runs them again)"
"$sim" --seeds "$base-$((base + n / 50))" || fail "a new seed"
