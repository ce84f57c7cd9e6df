#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Test gpu-check.sh itself on any machine: its parts, skips with reasons, a part that fails, a part that
# hangs, JSON that parses.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
check=$srcdir/tools/gpu-check/gpu-check.sh
build=$builddir

# Use a Python without PyTorch, as most machines have: importing PyTorch would take too long for this test.
unset PYTHONPATH
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)
mkdir -p "$tmp/bin"
printf '#!/bin/sh\nexec %s -S -s "$@"\n' "${python:-python3}" >"$tmp/bin/python"
chmod +x "$tmp/bin/python"

# run STATUS OPTIONS...: require that gpu-check ends with STATUS. Its output is in $tmp/log.
run()
{
    want=$1
    shift
    status=0
    sh "$check" --build "$build" --out "$tmp/out" --python "$tmp/bin/python" "$@" >"$tmp/log" 2>&1 || status=$?
    [ $status = "$want" ] || { fail "gpu-check $*: status $status instead of $want"; cat "$tmp/log"; }
}

# has FILE TEXT
has() { grep -q -e "$2" "$tmp/out/$1" || { fail "$1 lacks: $2"; cat "$tmp/out/$1"; }; }

parses()
{
    [ -n "$python" ] || return 0
    "$python" -I -S -c 'import json, sys; json.load(open(sys.argv[1]))' "$tmp/out/results.json" || fail "results.json does not parse"
}

sh "$check" --list >"$tmp/list"
order=$(awk '{ print $1 }' "$tmp/list" | head -n 5 | tr '\n' ' ')
[ "$order" = 'ring experiments hazards kernels speed ' ] ||
    fail "the order of the first visit"
for part in experiments kernels sanitizer speed ring hazards nccl mps training; do
    grep -q "^$part " "$tmp/list" || fail "--list lacks $part"
done
for visit in first second; do
    [ "$(awk -v v=$visit '$4 == v { s += $2 } END { print s + 0 }' "$tmp/list")" -lt 540 ] || fail "$visit: limits of nine minutes or more"
    sh "$check" $visit --list | grep -qv " $visit " && fail "$visit --list names parts of the other visit"
done

# Run every part without a GPU, over the model of the driver. gpu-check reads rows from each. Few files, no
# folders.
dry_runs()
{
    for visit in first second; do
        run 0 $visit --dry --scale 2000 # the limits are for a GPU, and a sanitizer takes longer
        for part in $(awk -v v=$visit '$4 == v { print $1 }' "$tmp/list"); do
            has table.md "^| $part | passed | "
            # gpu_kernels has only its exit status.
            [ $part = kernels ] || has table.md "^| $part | [^|]* | [a-z]* | ..* | [a-z].* |$"
            grep "^| $part | .* | *|$" "$tmp/out/table.md" | grep -v "^| $part | [a-z]* | [0-9]* |" &&
                fail "$part: lines that settle nothing"
        done
        has table.md '^# gpu-check: none (a dry run'
        [ "$(find "$tmp/out" -type d | wc -l)" = 1 ] || fail "$visit makes folders"
        [ "$(find "$tmp/out" -type f | wc -l)" -le 8 ] || fail "$visit leaves more than eight files"
        if [ $visit = first ]; then
            has table.md 'encode bfloat16, 64 MiB | passed | [0-9.]* % of copying'
            has table.md 'encode, depth 48 | measured | [0-9.]* GB/s, [0-9.]* us each'
            has table.md 'experiments | passed | [0-9]* | launching: per batch'
            # The effect of another thread of the job between two launches: the model's answer, through the
            # experiment.
            for call in 'a kernel is loaded' cuMemFree cuMemHostAlloc; do
                has table.md "codec kernel behind NCCL's, $call between, default connections | measured | stops"
                has table.md "codec kernel before NCCL's, $call between, default connections | measured | goes through"
            done
            has table.md "^| experiments | codec kernel behind .* | whether NIBBLE_GPU_LAUNCH=behind is safe"
            has table.md "behind NCCL's launch stops, before it goes through: NIBBLE_GPU_LAUNCH=together"
            has hazards.json first_launches
            has table.md 'threads, codecs on the GPU, device pointers, behind, default connections | measured | loads [0-9]*, frees'
            has table.md 'abort, codecs on the GPU, device pointers, behind, default connections | measured | ms'
            has ring.json pinned
        else
            # gpu-check launches ranks with their settings and judges their files. It says that they are
            # stand-ins.
            for part in nccl mps training; do
                has table.md "^| $part | ranks | measured | stand-ins: no GPU"
            done
            has table.md '4 processes, device pointers, one connection, coded | passed | 4 results right.*reduce_scatter 12 of 12 coded'
            has table.md '2 processes, device pointers, default connections, recognised | passed'
            has table.md '2 processes, host buffers, default connections, raw | passed | .*reduce_scatter 0 of 6 coded'
            has table.md '^| mps | processes | measured | share the GPU through MPS'
            has table.md 'mps | fsdp2 on the GPU, gradients on the wire | passed'
            has table.md 'exact ddp, bits of plain NCCL | passed'
            has table.md 'post-local-sgd, training loss of the last 20 steps | measured'
            has logs.txt 'this was a stand-in'
            has curves.csv '"hsdp",139,'
            has mps.json '"way": "fsdp2 on the GPU"'
        fi
        parses
        rm -rf "$tmp/out"
    done
    # A rank that dies, and a run without time for any rank.
    NB_DRY_DIES='2 processes, device pointers, default connections, coded'
    export NB_DRY_DIES
    run 1 second --dry --scale 2000 --parts nccl
    has table.md 'nccl | 2 processes, device pointers, default connections, coded | failed | ranks ended with 0 3; rank 0 was at: done'
    has table.md 'nccl | 2 processes, device pointers, one connection, coded | passed'
    unset NB_DRY_DIES
    run 0 second --dry --scale 5 --parts nccl,training
    has table.md 'nccl | 4 processes, host buffers, default connections, raw | skipped | no time left'
    has table.md 'training | exact fsdp1 | skipped | no time left'
    rm -rf "$tmp/out"
}

# Each experiment distinguishes an assumption of the model from its contrary.
# says NAME ANSWER [VARIABLE=1]
says()
{
    said=$tmp/beside-${3:-}-${CUDA_DEVICE_MAX_CONNECTIONS:-default}
    [ -f "$said" ] || env CUDA_MODULE_LOADING=LAZY ${3:+"$3"} "$build/tests/gpu/model_launches" --beside >"$said"
    grep -q -e "^result measured $1, [a-z]* connections*: $2" "$said" || { fail "$1 (${3:-as the model has it}): not $2"; cat "$said"; }
}

assumptions()
{
    says 'beside a load that waits, cuPointerGetAttribute' waits
    says 'beside a load that waits, cuPointerGetAttribute' returned NB_MODEL_UNLOCKED=1
    says "codec kernel behind NCCL's, a kernel is loaded between" 'goes through' NB_MODEL_UNLOCKED=1
    says 'beside a kernel that waits, cuMemFree' waits
    says 'beside a kernel that waits, cuMemFree' returned NB_MODEL_FREE=1
    says 'beside a kernel that waits, cuMemMap' returned
    says 'launches of several threads behind a load that waits' '[a-z ]*, 4 of 4 times'
    says 'launches of several threads behind a load that waits' '[a-z ]*, [0-3] of 4 times' NB_MODEL_UNFAIR=1
    says 'streams held up by the first, which waits' '4 of 39, [a-z ]*: 8 16 24 32$'
    CUDA_DEVICE_MAX_CONNECTIONS=1
    export CUDA_DEVICE_MAX_CONNECTIONS
    says 'a kernel of another stream, an event behind the one that waits' 'it started'
    says 'a kernel of another stream, an event behind the one that waits' 'it did not start' NB_MODEL_RECORDS_BLOCK=1
    says 'the same, an event with timing' 'it did not start'
    says 'streams held up by the first, which waits' '39 of 39'
    unset CUDA_DEVICE_MAX_CONNECTIONS
}

# The thread sanitizer cannot follow the model.
"$build/tests/gpu/model_launches" --beside >"$tmp/beside"
if [ $? != 77 ]; then
    dry_runs
    assumptions
fi

# Without a GPU gpu-check skips every part, each with its reason. On a machine with a GPU its own run tests
# that.
if ! nvidia-smi -L >/dev/null 2>&1; then
    run 77
    for part in experiments kernels sanitizer speed ring hazards nccl mps training; do
        has table.md "^| $part | skipped | [0-9]* | [a-zA-Z].*[a-z]"
    done
    grep -q "without a reason" "$tmp/out/table.md" && fail "a skip without a reason"
    parses
fi

# A part that fails, a part that hangs with a hanging child, a part that passes, a part whose exit status
# hides a failed check.
begun=$(date +%s)
run 1 --parts none \
    --with 'good:300:echo "result passed one: 1 \"and\" a back\\slash: fine"; echo "result measured two: 3	GB/s"' \
    --with 'bad:300:echo "result failed three: off by | one"; exit 3' \
    --with 'hung:1:echo before; sleep 900 & sleep 900' \
    --with 'sly:300:echo "result failed four: but"; exit 0' \
    --with 'away:300:echo "skipped: no such thing here"; exit 77'
[ $(($(date +%s) - begun)) -lt 600 ] || fail "the hanging part was not ended"
has table.md '^| good | passed | '
has table.md '^| bad | failed | [0-9]* | status 3'
has table.md '^| hung | failed | [0-9]* | not done within its 1 s'
has table.md '^| sly | failed | [0-9]* | 1 of its checks failed'
has table.md '^| away | skipped | [0-9]* | no such thing here'
has table.md '^| good | one | passed | 1 "and" a back'
has table.md '^| bad | three | failed | off by / one'
has results.json '"part": "good", "status": "measured", "name": "two"'
has table.md '^| hung | .* it said last: before'
has logs.txt '^==== bad.log'
parses

# Kill gpu-check while a part runs: its results so far are there, and it names each part that it did not
# reach, with the reason.
rm -rf "$tmp/out"
sh "$check" --build "$build" --out "$tmp/out" --python "$tmp/bin/python" --parts none --with 'one:300:echo "result measured a: 1"' \
    --with 'two:300:echo $PPID >"'"$tmp"'/timeout"; echo "result measured b: 2"; exec sleep 900' --with 'three:300:true' >"$tmp/log" 2>&1 &
checking=$!
waited=0
until grep -q '| two | b |' "$tmp/out/table.md" 2>/dev/null || [ $waited = 300 ]; do
    sleep 0.2
    waited=$((waited + 1))
done
kill -9 $checking
wait $checking 2>/dev/null
[ ! -s "$tmp/timeout" ] || kill "$(cat "$tmp/timeout")"
has table.md '^| one | passed | '
has table.md '^| two | under way | [0-9]* | not done when this was written; its limit is 300 s'
has table.md '^| three | not reached | 0 | two was under way'
has table.md '^| one | a | measured | 1'
has table.md '^| two | b | measured | 2'
has results.json '"part": "three", "status": "not reached"'
parses

# All parts pass: 0.
run 0 --parts none --with 'good:300:echo "result passed one: yes"'
has results.json '"part": "good", "status": "passed"'

# The Python of the last two parts parses, reads the plugin's summaries, and ends groups of processes at their
# limit.
if [ -n "$python" ]; then
    "$python" - "$(dirname "$check")" "$tmp" <<'END' || fail "the Python of gpu-check"
import glob, os, sys, time
folder, tmp = sys.argv[1:]
for name in glob.glob(folder + "/*.py") + glob.glob(folder + "/scripts/*.py"):
    with open(name) as f:
        compile(f.read(), name, "exec")
sys.path.insert(0, folder)
sys.dont_write_bytecode = True
import ranks
log = """h:1:2 [0] NCCL INFO NET/nibble : summary comm 0x1f node 0/2: reduce_scatter ops=7 coded=5 two_hop=0 windows=9 bytes=800 wire=200 ratio=4.00 all_gather ops=3 coded=3 two_hop=1 windows=3 bytes=90 wire=30 ratio=3.00
h:1:2 [0] NCCL INFO NET/nibble : summary comm 0x2f node 1/2: reduce_scatter ops=1 coded=0 two_hop=0 windows=1 bytes=10 wire=10 ratio=1.00
h:1:2 [0] NCCL INFO NET/nibble : summary comm 0x1f node 0/2: signature reduce_scatter:float32:600@2: ops=7 coded=5 feedback=4 nmse=0.00610 carried=0.100 bytes=700 wire=100 ratio=7.00; raw 2: no record
h:1:2 [0] NCCL WARN NET/nibble : comm 0x1f: peer 1 is gone"""
totals = ranks.summaries(log)
assert totals["reduce_scatter"] == {"ops": 8, "coded": 5, "bytes": 810, "wire": 210}, totals
assert totals["all_gather"] == {"ops": 3, "coded": 3, "bytes": 90, "wire": 30}, totals
(one,) = ranks.signatures(log)
assert one["what"] == "reduce_scatter:float32:600@2" and one["ratio"] == 7 and one["coded"] == 5, one
assert len(ranks.trouble(log)) == 1
begun = time.monotonic()
group = ranks.Group(2, lambda r: time.sleep(900 * r), lambda r: {"NB_X": "1"}, lambda r: f"{tmp}/rank{r}", 1)
assert not group.wait() and group.late and group.status == [0, -9], group.status
assert time.monotonic() - begun < 600
group = ranks.Group(2, lambda r: print("fine", r, os.environ["NB_X"]), lambda r: {"NB_X": "1"}, lambda r: f"{tmp}/rank{r}", 300)
assert group.wait() and ranks.last_line(f"{tmp}/rank1") == "fine 1 1"
END
fi

run 2 --parts nonsense
run 2 --scale none
run 2 --stray
exit $failed
