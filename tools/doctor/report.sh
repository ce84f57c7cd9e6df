# SPDX-License-Identifier: Apache-2.0
# What the tests of nibble-doctor begin with; to be sourced. An environment in which all is well over the interfaces that $interfaces
# names, and functions on what a report says: $report is its file.
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
doctor="$builddir/tools/nibble-doctor"
unset_settings
unset OMPI_COMM_WORLD_RANK PMI_RANK MASTER_ADDR
export HOME="$tmp" NCCL_SOCKET_IFNAME="$interfaces" NIBBLE_NET=tcp NCCL_NET_PLUGIN="$plugin" NCCL_COLLNET_ENABLE=1 NCCL_NET=nibble

# say STATUS PATTERN: a line of this status has the pattern; problems and warnings a remedy behind them.
say()
{
    grep -A 1 -- "^$1 .*$2" "$report" >"$tmp/line" || { fail "no $1 with \"$2\" in:"; cat "$report"; return; }
    [ "$1" = ok ] || grep -q -- '^ *-> .' "$tmp/line" || fail "no remedy: $(cat "$tmp/line")"
}

# silent PATTERN: no line has it.
silent()
{
    grep -q -- "$1" "$report" && { fail "\"$1\" in:"; cat "$report"; }
}

# doctor_finds_all_well LAUNCHER COMMAND...: it runs nibble-doctor on three nodes, which find each other by the launcher.
doctor_finds_all_well()
{
    launcher=$1
    shift
    "$@" >"$report" 2>"$tmp/err"
    status=$?
    [ $status -le 1 ] || fail "nibble-doctor by $launcher ends with $status: $(cat "$report" "$tmp/err")"
    head -n 1 "$report" | grep -q "3 nodes, by $launcher" || fail "not by $launcher: $(head -n 1 "$report")"
    say ok '3 pairs in both directions'
    silent '^problem'
}

# perf_runs COMMAND...: it runs nibble-perf on three nodes.
perf_runs()
{
    "$@" >"$tmp/out" 2>"$tmp/err" || fail "nibble-perf ends with $?: $(cat "$tmp/out" "$tmp/err")"
    grep -q '^# nodes 3 ' "$tmp/out" || fail "nibble-perf: $(cat "$tmp/out" "$tmp/err")"
}
