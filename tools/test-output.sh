#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No tool ends well when its output cannot be written: a full disk, by /dev/full, or a closed stdout. Colour, progress and
# messages about options.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
tools=$builddir/tools
[ -c /dev/full ] || { echo "SKIP: there is no /dev/full"; exit 77; }
mkdir "$tmp/d"

# full STATUS TOOL OPTION...: that status, and a line on stderr
full()
{
    want=$1
    name=$2
    shift 2
    timeout 60 "$tools/$name" "$@" >/dev/full 2>"$tmp/err"
    got=$?
    [ $got = "$want" ] && grep -q "^$name: the output could not be written" "$tmp/err" ||
        { echo "FAIL: $name $*: status $got, $(cat "$tmp/err")"; failed=1; }
    timeout 60 "$tools/$name" "$@" >&- 2>"$tmp/err"
    [ $? = "$want" ] || { echo "FAIL: $name $*, stdout closed: status $?, $(cat "$tmp/err")"; failed=1; }
}

for name in ${NB_TOOLS:?}; do
    case $name in
        *nibble-doctor | *nibble-hang) status=3 ;;
        *) status=1 ;;
    esac
    full $status "${name##*/}" --help
    full $status "${name##*/}" -h
    full $status "${name##*/}" --version
done
full 2 nibble-train --help
full 1 nibble-model
full 1 nibble-info --no-speed --python "" --nccl /no-such-file
full 1 nibble-perf codec --ops hash --bytes 64K --seconds 0.01
full 1 nibble-perf weights --values 4096 --steps 1 --ratios 0.01
full 3 nibble-doctor --no-speed --alone --python "" --nccl /no-such-file
full 3 nibble-hang "$tmp/d"

# A disk that fills up, here a limit of the file's size in blocks of 512 bytes: no half row.
if command -v python3 >/dev/null 2>&1; then
    (trap '' XFSZ; ulimit -f 3; exec "$tools/nibble-perf" coll --ops all_gather -b 4K -e 64K -f 2 -w 0 -n 1 \
        --json "$tmp/full") >/dev/null 2>"$tmp/err"
    [ $? = 1 ] && grep -q 'nibble-perf: cannot write .*full whole: File too large' "$tmp/err" &&
        python3 -c 'import json, sys; sys.exit(not 0 < len(json.load(open(sys.argv[1]))) < 5)' "$tmp/full" ||
        fail "a full disk: $(cat "$tmp/err" "$tmp/full")"
fi

# On a terminal: colour, unless NO_COLOR is set, and progress from three seconds on.
if command -v script >/dev/null 2>&1; then
    escape=$(printf '\033')
    TERM=xterm script -qec "$tools/nibble-info RS" /dev/null >"$tmp/out" 2>&1 </dev/null
    grep -q "$escape\[1msettings$escape\[0m" "$tmp/out" || fail "no colour on a terminal: $(cat -v "$tmp/out")"
    TERM=xterm NO_COLOR=1 script -qec "$tools/nibble-info RS" /dev/null >"$tmp/out" 2>&1 </dev/null
    grep -q "$escape" "$tmp/out" && fail "colour although NO_COLOR is set: $(cat -v "$tmp/out")"
    OMPI_COMM_WORLD_RANK=0 TERM=xterm \
        script -qec "$tools/nibble-info RS" /dev/null >"$tmp/out" 2>&1 </dev/null
    grep -q "$escape" "$tmp/out" && fail "colour on a terminal that Open MPI made: $(cat -v "$tmp/out")"
    TERM=xterm script -qec "$tools/nibble-perf coll --ops all_reduce -b 64K -e 64K -w 0 -n 1 --pause 1100 --reps 4" /dev/null \
        >"$tmp/out" 2>&1 </dev/null
    grep -q "all_reduce of .* values: repetition 4 of 4" "$tmp/out" || fail "no progress on a terminal: $(cat -v "$tmp/out")"
fi
"$tools/nibble-perf" coll --iters 0 >"$tmp/out" 2>&1
[ $? = 2 ] && grep -qx 'nibble-perf: --iters: "0": it must be a whole number from 1 to 10000' "$tmp/out" ||
    fail "a bad value: $(cat "$tmp/out")"
# says STATUS TEXT TOOL OPTION...: a wrong call ends with that status, and stderr has that line
says()
{
    want=$1
    line=$2
    shift 2
    timeout 60 "$tools/$@" >/dev/null 2>"$tmp/err" </dev/null
    got=$?
    [ $got = "$want" ] && grep -q "^$line" "$tmp/err" || fail "$*: status $got, $(cat "$tmp/err")"
}
says 2 'nibble-perf p2p: unrecognized option' nibble-perf p2p --none
says 2 'nibble-model: --codec-gbps: "0": it must be a number above 0' nibble-model --codec-gbps 0
says 2 'nibble-model: --tolerance: it judges the errors of --validate FILE' nibble-model --tolerance 5
says 1 "nibble-model: cannot read $tmp: Is a directory" nibble-model --codec "$tmp"
says 1 "nibble-model: cannot read $tmp: Is a directory" nibble-model --validate "$tmp"
says 3 "nibble-doctor: --hosts: cannot read $tmp/none: No such file" nibble-doctor --hosts "$tmp/none"
says 3 "nibble-doctor: --hosts: cannot read $tmp: Is a directory" nibble-doctor --hosts "$tmp"
says 3 'nibble-doctor: --rank 1: --nodes N must say' nibble-doctor --rank 1 --root here
says 3 'nibble-doctor: options: rank 5 of 4 nodes: ranks go from 0 to 3' \
    nibble-doctor --rank 5 --nodes 4 --root here
says 3 'nibble-doctor: --system: "/none": it must be a folder, with' \
    nibble-doctor --system /none --no-speed
says 1 'nibble-top: there is no process 1073741823' nibble-top 1073741823
[ $failed = 0 ] && echo "PASS: no tool says that all is well when its output could not be written"
exit $failed
