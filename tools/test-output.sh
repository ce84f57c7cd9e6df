#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No tool ends well when its output cannot be written: a full disk, by /dev/full, or a closed stdout.
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
    full $status "${name##*/}" --version
done
full 2 nibble-train --help
full 1 nibble-model
full 1 nibble-info --no-speed --python "" --nccl /no-such-file
full 1 nibble-perf codec --ops hash --bytes 64K --seconds 0.01
full 1 nibble-perf weights --values 4096 --steps 1 --ratios 0.01
full 3 nibble-doctor --no-speed --alone --python "" --nccl /no-such-file
full 3 nibble-hang "$tmp/d"
[ $failed = 0 ] && echo "PASS: no tool says that all is well when its output could not be written"
exit $failed
