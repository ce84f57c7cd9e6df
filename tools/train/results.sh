#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Training quality in one command: every way to carry gradients and weights, over ten seeds, and what happens
# around spikes, overflow, checkpoints and restarts. Prints a page for docs/results; see docs/training.md for what
# the figures mean.
#
#   tools/train/results.sh [FOLDER]      in the build folder; FOLDER: runs done so far (nibble-results)
#
# About 45 minutes of processor time, at low priority, one run at a time. What is in FOLDER already is not run
# again, so that it may be interrupted. NB_SEEDS="1 2 3" takes other seeds, NB_STEPS=N other lengths. Exit status:
# 0 when all bars hold.
set -eu

train=${NB_BUILDDIR:-.}/tools/nibble-train
dir=${1:-nibble-results}
seeds=${NB_SEEDS:-1 2 3 4 5 6 7 8 9 10}
steps=${NB_STEPS:-1200}
model="--layers 3 --width 64 --heads 2 --context 64 --batch 3 -n 4"
runs=raw,nofeedback,feedback,delta4,ema,loco,sdp4bit-gradients,sdp4bit-weights,wrongslot
failed=0
mkdir -p "$dir"

# go NAME ARGUMENTS...: one call of the trainer; its verdicts are kept. 2: it could not measure.
go()
{
    name=$1
    shift
    status=0
    # shellcheck disable=SC2086
    nice -n 19 "$train" -q -o "$dir/out" $model "$@" >"$dir/$name.log" 2>&1 || status=$?
    [ $status != 2 ] || { tail -n 5 "$dir/$name.log" >&2; exit 2; }
}

for seed in $seeds; do
    go "seed-$seed" --exchange codec --steps "$steps" --seed "$seed" --runs $runs --record "$dir/runs.tsv"
done
for rate in 0.001 0.0003 0.0001 0.00003; do
    go "rate-$rate" --exchange codec --steps $((steps / 3)) --rate $rate --runs feedback,delta4 \
        --record "$dir/runs.tsv"
done

echo "Model and text: $(sed -n 's/^nibble-train: //p' "$dir/seed-${seeds%% *}.log" | tr -d '\n')"
sed -n 2,3p "$dir/seed-${seeds%% *}.log"
echo
"$train" --table "$dir/runs.tsv" || failed=1

# Events, over the codecs alone and through the plugin. FP16 gradients, as a loss scale and overflow want them.
events=overflow@60,spike30@90,eval@120,skip@135,checkpoint@160,restart@190,spike300@215
echo
echo "Events: \`--grad fp16 --steps 240 --event $events\`"
echo
for exchange in codec plugin; do
    for seed in 1 2 3; do
        NIBBLE_WARMUP_STEPS=10 NIBBLE_GRAD=all
        export NIBBLE_WARMUP_STEPS NIBBLE_GRAD
        go "events-$exchange-$seed" --exchange $exchange --seed $seed --steps 240 --grad fp16 --shadow \
            --runs raw,feedback --event $events --batch 8
        [ $status = 0 ] || failed=1
        sed -n "s/^\(ok\|FAIL\)  *4 bits, feedback, \([a-z0-9]*@.*\)/- \1, $exchange, seed $seed: \2/p" \
            "$dir/events-$exchange-$seed.log"
    done
done
exit $failed
