#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# nibble-train as a whole: short runs through the plugin, the same bits every time and through shared memory,
# refusals, and mistakes made on purpose, which must be found.
set -eu

train=${NB_BUILDDIR:-.}/tools/nibble-train
dir=$(mktemp -d "${TMPDIR:-/tmp}/nibble-train-test.XXXXXX")
trap 'rm -rf "$dir"' EXIT

fail()
{
    echo "FAILED: $*" >&2
    [ -f "$dir/log" ] && cat "$dir/log" >&2
    exit 1
}

# run STATUS NAME ARGUMENTS...: the trainer ends with STATUS; its output is in log, its files in NAME.
run()
{
    want=$1
    name=$2
    shift 2
    status=0
    "$train" -q -o "$dir/$name" "$@" >"$dir/log" 2>&1 || status=$?
    [ $status = "$want" ] || fail "$name ($*): status $status instead of $want"
}

says()
{
    grep -q -e "$1" "$dir/log" || fail "$name does not say: $1"
}

# Text of our own where the machine has no licenses: the sources will do.
[ -d /usr/share/common-licenses ] || set -- --text "${NB_SRCDIR:-.}/plugin"

# With sanitizers fewer steps: they are slow, and a step is like another.
quick="--quick"
[ -z "${NB_SANITIZE-}" ] || quick="--quick --steps 12"

echo "through the plugin: bytes, weights, equal bits in every run"
# shellcheck disable=SC2086
run 0 first $quick "$@"
says "ok *4 bits, feedback: weights equal"
# shellcheck disable=SC2086
run 0 again $quick "$@"
for kind in raw nofeedback feedback; do
    cmp "$dir/first/loss-$kind.csv" "$dir/again/loss-$kind.csv" || fail "$kind: two runs differ"
done
if [ -z "${NB_SANITIZE-}" ]; then
    says "ok *4 bits, no feedback: quantized reduce-scatters send"
    says "ok *4 bits, feedback: quantized reduce-scatters send"
    cmp -s "$dir/first/loss-raw.csv" "$dir/first/loss-nofeedback.csv" && fail "4 bits change nothing"
    cmp -s "$dir/first/loss-feedback.csv" "$dir/first/loss-nofeedback.csv" && fail "feedback changes nothing"
fi

echo "uncompressed: the same bits as through shared memory"
# shellcheck disable=SC2086
run 0 shm $quick --exchange shm --runs raw "$@"
cmp "$dir/first/loss-raw.csv" "$dir/shm/loss-raw.csv" ||
    fail "the plugin's sums differ from FP32 sums in rank order"

echo "three nodes, FP32 gradients"
run 0 fp32 --quick -n 3 --grad fp32 --steps 6 "$@"

# Hundreds of steps in shared memory: a matter of numbers, not of memory or threads, and minutes with a
# sanitizer.
if [ -z "${NB_SANITIZE:-}" ]; then
    echo "fidelity: feedback keeps the update's direction, error of the wrong block is found"
    small="--layers 2 --width 64 --heads 2 --context 64 --batch 4 --steps 120 -n 4 --exchange codec"
    # shellcheck disable=SC2086
    run 0 right $small "$@"
    says "ok *feedback: matrices"
    # shellcheck disable=SC2086
    run 1 wrong $small --runs feedback --fault slot "$@"
    says "FAIL 4 bits, feedback, matrix"
fi

echo "a weight that arrives wrong is found"
run 1 weight --quick --steps 6 --runs raw --fault weight "$@"
says "FAIL uncompressed: weights differ"

echo "gradients dumped, codecs measured on them"
run 0 dump --quick --steps 12 --exchange shm --runs raw --dump-grads "$dir/grads" --dump-every 4 "$@"
run 0 report --codec-report "$dir/grads"
says "int4 *bf16\|int4 *bfloat16"
[ "$(ls "$dir/grads" | grep -c bf16)" = 6 ] || fail "not 3 steps x 2 nodes of dumps"

echo "refusals"
run 2 refusal --text /nonexistent
run 2 refusal --steps many
run 2 refusal --runs most
run 2 refusal --heads 5
run 2 refusal stray
run 2 refusal --quick --plugin "$dir/nothing.so" "$@"
says "not one step ran"
run 2 refusal --codec-report "$dir/nothing"
echo small >"$dir/small"
run 2 refusal --text "$dir/small"
echo "ok"
