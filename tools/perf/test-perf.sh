#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-perf runs, writes the JSON it promises, and its numbers are possible ones.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
perf=$builddir/tools/nibble-perf

# need FILE OBJECTS KEYS...: so many objects, each with every key.
need() {
    file=$1
    objects=$2
    shift 2
    [ "$(grep -c '^  {' "$file")" = "$objects" ] || fail "$file has not $objects objects"
    for key; do
        [ "$(grep -c "\"$key\": " "$file")" = "$objects" ] || fail "$file: not every object has $key"
    done
    if command -v python3 >/dev/null 2>&1; then
        python3 -c 'import json, sys; assert isinstance(json.load(open(sys.argv[1])), list)' "$file" ||
            fail "$file is no JSON"
    fi
}

# number FILE OP KEY: of the first object of that op.
number() {
    sed -n "s/.*\"op\": \"$2\".*\"$3\": \([^,}]*\).*/\1/p" "$1" | head -n 1
}

# within VALUE LOW HIGH WHAT
within() {
    awk -v v="$1" -v l="$2" -v h="$3" \
        'BEGIN { exit !(v != "" && v != "null" && v + 0 >= l && v + 0 <= h) }' ||
        fail "$4 is $1, not in $2 .. $3"
}

"$perf" codec --variants portable --types bfloat16 --bytes 256K --seconds 0.01 --json "$tmp/codec" ||
    fail "codec"
need "$tmp/codec" 15 variant op type gbps memcpy_gbps
within "$(number "$tmp/codec" encode bits_per_value)" 4 4.6 "bits of an int4 value"
within "$(number "$tmp/codec" ulp_encode bits_per_value)" 1 2.6 "bits of a weight's difference"
within "$(number "$tmp/codec" delta4_encode bits_per_value)" 1 2.6 "bits of a weight's bounded difference"
"$perf" weights --values 65536 --steps 2 --ratios 0.01 --json "$tmp/weights" || fail "weights"
need "$tmp/weights" 1 type step exact_bits delta4_bits error error_of_runs worst_run inexact sign_changes lossy_runs
value() {
    sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p" "$tmp/weights"
}
within "$(value delta4_bits)" 3 4.44 "bits of a weight under delta4 in a hot phase"
within "$(value error_of_runs)" 0.01 0.3 "error of delta4 over that of bfloat16"
within "$(value worst_run)" 0.01 0.87 "error of delta4's worst run"
within "$(value sign_changes)" 0 0 "weights that change their sign"
"$perf" codec --variants portable --ops hash --bytes 256K --seconds 0.01 --json "$tmp/hash" ||
    fail "hash"
need "$tmp/hash" 1 variant op type gbps memcpy_gbps

if "$perf" codec --count --variants portable --ops hash --bytes 8K --json "$tmp/count" >"$tmp/text" 2>&1; then
    need "$tmp/count" 1 variant op type instructions
    within "$(number "$tmp/count" hash instructions)" 0.1 40 "instructions of four bytes' hash"
else
    grep -q "tracing is not allowed" "$tmp/text" || fail "count"
fi

"$perf" coll -b 256K -e 512K -f 2 -n 2 -w 2 --json "$tmp/coll" || fail "coll"
need "$tmp/coll" 6 op type nodes bytes channels chunk reps time_us min_us max_us algbw busbw wire_ratio nmse \
    cpu busy link_bytes
within "$(number "$tmp/coll" reduce_scatter cpu)" 0.01 64 "processors in use"
within "$(number "$tmp/coll" reduce_scatter wire_ratio)" 0.25 0.32 "bytes of a quantized reduce-scatter"
within "$(number "$tmp/coll" reduce_scatter nmse)" 1e-4 0.01 "error of a quantized reduce-scatter"
within "$(number "$tmp/coll" all_reduce wire_ratio)" 0.31 0.35 "bytes of an all-reduce of 4 and 6 bits"
within "$(number "$tmp/coll" all_gather nmse)" 0 0 "error of an all-gather"
# A gather that overtakes the confirmations of the one before is sent raw: leave it the time that a job would.
"$perf" coll --ops all_gather --types bfloat16 -b 256K -e 256K -n 1 --reps 20 --pause 5 -w 2 \
    --json "$tmp/gathers" || fail "gathers"
within "$(number "$tmp/gathers" all_gather wire_ratio)" 0.05 0.2 "bytes of gathered differences"
"$perf" coll --ops reduce_scatter --types float32 -b 256K -e 256K -n 2 -w 1 -N 3 --raw --json "$tmp/raw" ||
    fail "raw"
within "$(number "$tmp/raw" reduce_scatter wire_ratio)" 1 1.01 "bytes of a raw reduce-scatter"
within "$(number "$tmp/raw" reduce_scatter nmse)" 0 1e-12 "error of a raw reduce-scatter"

"$perf" p2p -b 1 -e 1M -f 1024 -n 3 -w 1 --bidirectional --json "$tmp/p2p" || fail "p2p"
need "$tmp/p2p" 3 op type nodes bytes time_us algbw busbw nmse
cpu=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
"$perf" p2p -b 1M -e 1M -n 3 -w 1 --cpus "$cpu,$cpu" --json "$tmp/p2p" >/dev/null || fail "p2p --cpus"
need "$tmp/p2p" 1 op cpu
# Values of which 3 % change are sent as deltas from the third transfer on.
"$perf" p2p -b 4M -e 4M -n 4 -w 2 --changed 3 --log >"$tmp/out" 2>&1 || fail "p2p --changed"
within "$(sed -n 's/.* as deltas, .*(\([0-9.]*\) times fewer.*/\1/p' "$tmp/out")" 10 100 "times fewer bytes"
"$perf" coll --changed 3 >/dev/null 2>&1 && fail "coll --changed is taken"
for cpus in , "$cpu," x 1023; do
    "$perf" p2p -b 1 -e 1 --cpus "$cpus" >"$tmp/out" 2>&1 && fail "--cpus $cpus is taken"
    grep -q -e "--cpus $cpus" "$tmp/out" || fail "nothing is said about --cpus $cpus"
done

# Raw and coded in turns, in one run: bytes as above, both times, and their ratio.
"$perf" coll --compare --ops reduce_scatter,all_gather -b 256K -e 256K -n 2 -w 1 --reps 2 --json "$tmp/compare" >"$tmp/out" ||
    fail "coll --compare"
need "$tmp/compare" 2 op time_us raw_us faster wire_ratio
grep -q 'raw(us)  faster$' "$tmp/out" || fail "--compare: $(cat "$tmp/out")"
within "$(number "$tmp/compare" reduce_scatter wire_ratio)" 0.25 0.29 "bytes of the coded turns"
within "$(number "$tmp/compare" reduce_scatter nmse)" 0.0005 0.05 "error of the coded turns"
within "$(echo "$(number "$tmp/compare" all_gather raw_us) $(number "$tmp/compare" all_gather time_us) \
    $(number "$tmp/compare" all_gather faster)" | awk '{ print $1 / $2 / $3 }')" 0.999 1.001 "the ratio of both times"
for option in --raw "--threads 0"; do
    # shellcheck disable=SC2086
    "$perf" coll --compare $option >/dev/null 2>&1 && fail "--compare $option is taken"
done
"$perf" coll --log --ops all_gather -b 64K -e 64K -n 1 -w 0 >/dev/null 2>"$tmp/out" || fail "coll --log"
grep -q '^node 1: NET/nibble : version ' "$tmp/out" && grep -q '^node 0: NET/nibble : summary ' "$tmp/out" || fail "--log: $(cat "$tmp/out")"

"$perf" coll --threads 0,2 --ops reduce_scatter -b 256K -e 256K -n 2 -w 1 --reps 2 --json "$tmp/threads" >/dev/null ||
    fail "coll --threads"
need "$tmp/threads" 2 op type nodes bytes threads time_us min_us max_us faster engine_us codec_us allows
within "$(number "$tmp/threads" reduce_scatter faster)" 1 1 "the first number of threads beside itself"
"$perf" coll --threads 0,many >/dev/null 2>&1 && fail "many threads are taken"
# A twentieth of a processor for the engine's thread: it is not busy for more of the time; or the system does not allow it.
if "$perf" coll --threads 0 --share 5 --ops reduce_scatter -b 1M -e 1M -n 4 -w 1 --json "$tmp/share" >/dev/null 2>"$tmp/out"; then
    part=$(echo "$(number "$tmp/share" reduce_scatter engine_us) $(number "$tmp/share" reduce_scatter time_us)" |
        awk '{ print $1 / $2 }')
    within "$part" 0.001 0.1 "the engine's thread's share of a processor"
else
    grep -q -e "--share 5: Operation not permitted" -e "--share 5: Device or resource busy" "$tmp/out" ||
        fail "--share: $(cat "$tmp/out")"
fi
for share in -1 101 x; do
    "$perf" coll --share $share >/dev/null 2>&1 && fail "--share $share is taken"
done
"$perf" p2p --share 5 >/dev/null 2>&1 && fail "p2p --share is taken"
# A plugin that does not start: its own reason, in one line with the node, whatever else the plugin warns of.
for part in coll p2p; do
    NIBBLE_SPIN_US=8 NCCL_SOCKET_IFNAME=nowhere0 "$perf" $part -b 4K -e 4K -n 1 -w 0 >/dev/null 2>"$tmp/err"
    [ $? = 1 ] && grep -q '^nibble-perf: nodes* 0 .*: tcp: NCCL_SOCKET_IFNAME=nowhere0 matches' "$tmp/err" ||
        fail "$part without an interface: $(cat "$tmp/err")"
    grep -q '^harness: ' "$tmp/err" && fail "$part says its reason twice: $(cat "$tmp/err")"
done

# Nothing measured is no success: a word that a list does not have is an error, with the option and the word.
while read -r part option value wrong; do
    "$perf" $part "$option" "$value" >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] || fail "$part $option $value is taken"
    grep -q -e "$option: \"$wrong\" is no" "$tmp/err" || fail "$part $option $value: $(cat "$tmp/err")"
    [ -s "$tmp/out" ] && fail "$part $option $value: a table"
done <<END
coll --ops reduce_scater reduce_scater
coll --ops all_reduce,,all_gather
coll --types bf16 bf16
coll --types bfloat16,float float
coll --threads 1,two 1,two
codec --ops encoder encoder
codec --types bfloat16,fp16 fp16
codec --variants portable,avx3 avx3
weights --types half half
weights --ratios 0.01,x 0.01,x
weights --ratios 0.01,,0.02 0.01,,0.02
END
"$perf" coll --hosts a,b --rsh false --ops reduce_scater >/dev/null 2>"$tmp/err"
[ $? = 2 ] && grep -q -e '--ops: "reduce_scater" is none of reduce_scatter, all_gather, all_reduce' "$tmp/err" ||
    fail "--hosts: an unknown operation: $(cat "$tmp/err")"
"$perf" coll --nonsense >/dev/null 2>&1 && fail "an unknown option is taken"
"$perf" coll -N 99 >/dev/null 2>&1 && fail "99 nodes are taken"
"$perf" >/dev/null 2>&1 && fail "no part at all is taken"
exit $failed
