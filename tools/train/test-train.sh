#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Test nibble-train as a whole: short runs through the plugin, the same bits every time and through shared
# memory, refusals, and deliberate mistakes, which it must find.
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

# run STATUS NAME ARGUMENTS...: require that the trainer ends with STATUS. Its output is in log, its files in
# NAME.
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

# Little more text than the trainer asks for: validation reads a share of it, and took most of the time. One
# run below takes the trainer's own text, the licenses. Use the sources where the machine has none.
licenses=/usr/share/common-licenses
[ -d $licenses ] && default= || { licenses=${NB_SRCDIR:-.}/plugin && default="--text $licenses"; }
find $licenses -type f | sort | xargs cat 2>/dev/null | head -c 66000 >"$dir/text"
set -- --text "$dir/text"

# With sanitizers use less text and fewer steps. These are too few for the plugin to recognize a gradient, so
# a setting tells it.
quick="--quick"
steps=30
if [ -n "${NB_SANITIZE-}" ]; then
    set -- --context 32 --batch 1 "$@"
    quick="--quick --steps 6"
    steps=6
    NIBBLE_GRAD=all
    NIBBLE_WARMUP_STEPS=2
    export NIBBLE_GRAD NIBBLE_WARMUP_STEPS
fi

echo "through the plugin: bytes, weights, equal bits in every run"
# shellcheck disable=SC2086
run 0 first $quick "$@"
says "ok *4 bits, feedback: weights equal"
if [ -z "${NB_SANITIZE-}" ]; then # a second run has the code of the first
    # The uncompressed run's bits are compared with another exchange's below.
    # shellcheck disable=SC2086
    run 0 again $quick --runs nofeedback,feedback "$@"
    for kind in nofeedback feedback; do
        cmp "$dir/first/loss-$kind.csv" "$dir/again/loss-$kind.csv" || fail "$kind: two runs differ"
    done
    says "ok *4 bits, no feedback: quantized reduce-scatters send"
    says "ok *4 bits, feedback: quantized reduce-scatters send"
    says "reduce_scatter:bfloat16:[0-9]*@2: a gradient (step [0-9]*): the gathered weights follow its sums"
    cmp -s "$dir/first/loss-raw.csv" "$dir/first/loss-nofeedback.csv" && fail "4 bits change nothing"
    cmp -s "$dir/first/loss-feedback.csv" "$dir/first/loss-nofeedback.csv" && fail "feedback changes nothing"
fi

echo "uncompressed: the same bits as through shared memory"
# shellcheck disable=SC2086
run 0 shm $quick --exchange shm --runs raw "$@"
cmp "$dir/first/loss-raw.csv" "$dir/shm/loss-raw.csv" ||
    fail "the plugin's sums differ from FP32 sums in rank order"

echo "three nodes, FP32 gradients"
NIBBLE_GRAD=all
NIBBLE_WARMUP_STEPS=2
export NIBBLE_GRAD NIBBLE_WARMUP_STEPS
run 0 fp32 --quick -n 3 --grad fp32 --steps 6 "$@"
says "ok *4 bits, feedback: quantized reduce-scatters send 7"

if [ -z "${NB_SANITIZE-}" ]; then # the other paths run with sanitizers
    echo "all-reduces, whose results have 6 or 4 bits"
    run 0 ddp --quick -n 3 --steps 30 --runs all-reduce,all-reduce4 "$@"
    says "ok *all-reduce: quantized all-reduces send [23]"
    says "ok *all-reduce, results with 4 bits: quantized all-reduces send 3"
fi

echo "bounded differences of weights: the same bits on all receivers, the owner's own exact"
run 0 delta4 --quick -n 3 --steps $steps --runs delta4 "$@"
says "ok *4 bits, feedback, delta4: weights equal on all receivers"
says "ok *4 bits, feedback, delta4: gathered weights off by 0.[0-9]*[1-9]"
run 1 weight --quick -n 3 --steps $steps --runs delta4 --fault weight "$@"
says "FAIL 4 bits, feedback, delta4: weights differ"

echo "a weight that arrives wrong is found"
# shellcheck disable=SC2086
run 1 weight --quick --steps 6 --runs raw --fault weight $default
says "FAIL uncompressed: weights differ"
says "failed (1) at 'step [0-9]*': step [0-9]*: gathered weight"

echo "refusals"
echo small >"$dir/small"
run 2 refusal --text /nonexistent
run 2 refusal --steps many
run 2 refusal --runs most
run 2 refusal --heads 5
run 2 refusal stray
run 2 small/below "$@"
says "no results can be written to .*/small/below: Not a directory"
grep -q "steps" "$dir/log" && fail "it trains before it looks for the folder of results"
run 0 refusal --version
says "^nibble-train [0-9]"
run 2 refusal --runs ""
run 2 refusal --quick --plugin "$dir/small" "$@"
says "not one step ran"
NIBBLE_NET=nothing
export NIBBLE_NET
run 2 refusal --quick -n 4 --runs raw "$@"
unset NIBBLE_NET
says "not one step ran: nodes 0 to 3 failed .* cannot be connected: bad setting NIBBLE_NET=nothing"
says "failed (1) at .bring-up failed in connect"
grep -q '^harness: ' "$dir/log" && fail "the reason, twice"
run 2 refusal --quick --plugin "$dir/nothing.so" "$@"
says "plugin: cannot read .*/nothing.so: No such file"
run 2 refusal --text "$dir/small"
echo "ok"
