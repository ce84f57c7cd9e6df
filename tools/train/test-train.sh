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

# With sanitizers less text and fewer steps, too few for the plugin to recognise a gradient: it is told.
quick="--quick"
if [ -n "${NB_SANITIZE-}" ]; then
    set -- --context 32 --batch 1 "$@"
    quick="--quick --steps 12"
    NIBBLE_GRAD=all
    NIBBLE_WARMUP_STEPS=2
    export NIBBLE_GRAD NIBBLE_WARMUP_STEPS
fi

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

echo "bounded differences of weights: the same bits on all receivers, the owner's own exact"
run 0 delta4 --quick -n 3 --steps 30 --runs delta4 "$@"
says "ok *4 bits, feedback, delta4: weights equal on all receivers"
says "ok *4 bits, feedback, delta4: gathered weights off by 0.[0-9]*[1-9]"
run 1 weight --quick -n 3 --steps 30 --runs delta4 --fault weight --exchange codec "$@"
says "FAIL 4 bits, feedback, delta4: weights differ"

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

    echo "events: no gradient carries what is left of a spike, no update is worse than without feedback"
    # shellcheck disable=SC2086
    run 0 events $small --batch 8 --steps 200 --grad fp16 --shadow --runs raw,feedback "$@" \
        --event overflow@60,spike30@80,eval@110,skip@125,checkpoint@140,restart@160,spike300@180
    says "ok *4 bits, feedback, overflow@60: the step was skipped"
    says "ok *4 bits, feedback, spike300@180: gradient norm of the next step"
    says "ok *4 bits, feedback, checkpoint@140: updates of the next 20 steps"
    # The shadow sees it: errors of another block at every step.
    # shellcheck disable=SC2086
    run 1 shadow $small --runs feedback --shadow --event eval@60 --fault slot "$@"
    says "FAIL 4 bits, feedback, eval@60: updates of the next"

    echo "many runs in one table, none of them twice; the bars on it"
    for seed in 1 2 2; do
        run 0 many --quick --steps 8 --exchange codec --runs raw,loco,sdp4bit-gradients,sdp4bit-weights \
            --seed $seed --record "$dir/records" "$@"
    done
    [ "$(wc -l <"$dir/records")" = 9 ] || fail "not 2 seeds x 4 runs and a line of names"
    run 0 table --table "$dir/records"
    says "^| uncompressed | 2 |"
    says "ok: uncompressed"
    awk 'BEGIN { OFS = FS = "\t" } $1 == "raw" { $7 = 0.5 } { print }' "$dir/records" >"$dir/bad"
    run 1 table --table "$dir/bad"
    says "FAILED: uncompressed"
    sed 's/\t/ /3' "$dir/records" | cut -c1-40 >"$dir/torn"
    run 2 table --table "$dir/torn"
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
run 2 refusal --table "$dir/nothing"
run 2 refusal --runs loco
says "needs --exchange codec"
run 2 refusal --event lunch@5
run 2 refusal --quick --event overflow@5
says "needs --grad fp16"
run 2 refusal --quick --event eval@80
says "too late"
echo small >"$dir/small"
run 2 refusal --text "$dir/small"
echo "ok"
