#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-hang: of reports made here, whom it names and why; what is no report; exit status.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
hang="$builddir/tools/nibble-hang"

# begin NODE [TIME] [STILL] [JOB]: the report of a process on that host, of pid 100 + NODE
begin()
{
    file="$tmp/d/nibble-host$1-10$1.report"
    echo "report format=1 pid=10$1 time=${2:-1000}.5 why=late host=\"host$1\" job=\"${4:-7}\" version=\"0.1.0 (abc)\"" >"$file"
    echo "engine steps=5 still=${3:-0}" >>"$file"
}
# comm ID NODE OF SUBMITTED BEGUN OLDEST NEXT [STATE]
comm()
{
    echo "comm id=0x$1 group=00000001 node=$2 of=$3 state=${8:-running} submitted=$4 finished=$6 begun=$5 oldest=$6" \
        "next_op=$7 name=\"a node=9 name\"" >>"$file"
}
window() # OP WAITED
{
    echo "window function=all_reduce op=$1 bytes=64 at=0 waited=$2 undelivered=64 unsent=1 working=0" >>"$file"
}
peer() # NODE MISSING SILENT
{
    echo "peer node=$1 missing=$2 gone=no silent=$3 contrib_out=1/1/1 contrib_in=1/0/0 name=\"node $1 (host$1, 10.0.0.$1<4>)\"" \
        >>"$file"
}
end()
{
    echo "end comms=1" >>"$file"
}
start()
{
    rm -rf "$tmp/d"
    mkdir "$tmp/d"
}
# run STATUS [OPTION]...
run()
{
    want=$1
    shift
    "$hang" "$@" "$tmp/d" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ $got = "$want" ] || { fail "status $got instead of $want"; cat "$tmp/out" "$tmp/err"; }
}
# names PATTERN: the first line under "all wait for" has it
names()
{
    sed -n '/^all wait for/{n;p;}' "$tmp/out" | grep -q -- "$1" || { fail "not named: $1"; cat "$tmp/out"; }
}
# alone: nobody else is named
alone()
{
    n=$(sed -n '/^all wait for/,/^who waits/p' "$tmp/out" | grep -c '^  ')
    [ "$n" = 1 ] || { fail "$n are named"; cat "$tmp/out"; }
}

# Node 2 has not posted operation 5; node 0 also misses what node 1 can only make with node 2.
three()
{
    start
    begin 0; comm a 0 3 6 6 5 6; window 5 62; peer 1 yes 0.4; peer 2 yes 0.3; end
    begin 1; comm a 1 3 6 6 5 6; window 5 61; peer 0 no 0.4; peer 2 yes 0.2; end
}
three
begin 2; comm a 2 3 5 5 5 5; peer 0 no 0.1; peer 1 no 0.1; end
run 1
names 'node 2 (host2, .*host=host2  pid=102  waiting=2  waited_s=62  because=it has not posted all_reduce 5 of comm 0xa '
alone

# The same without its report: alive, or silent.
three
run 1
names 'node 2 (host2.*waiting=2 .*it is alive, but has not contributed to all_reduce 5'
alone
grep -q 'reports of 2 of its 3 nodes' "$tmp/out" || fail "a missing report is not told"
sed -i '/^peer node=2/s/silent=0.[23]/silent=40.0/' "$tmp"/d/*
run 1
names 'node 2 .*it was last heard of 40 s ago and has written no report: stopped'

# Its report is from before it fell silent: what it says does not count.
begin 2 900; comm a 2 3 5 5 4 5; window 4 30; peer 0 yes 0.1; end
run 1
names 'node 2 .*pid=102 .*was last heard of 40 s ago and has written nothing since'
alone

# Through another communicator: node 2 waits in b for node 3, whose engine hangs.
three
begin 2; comm a 2 3 5 5 5 5; peer 0 no 0.1; comm b 0 2 9 9 8 9; window 8 70; peer 1 yes 0.5; end
begin 3 1000 77; comm b 1 2 3 0 0 0 locked; end
run 1
names 'host=host3  pid=103  waiting=3 .*its engine has made no step for 77 s'
alone

# A device that is not ready; reports that do not belong together.
three
begin 2; comm a 2 3 6 5 5 5; peer 0 no 0.1; end
run 1
names 'has not begun with 1 windows'
three
begin 2; comm a 2 3 6 6 6 6; peer 0 no 0.1; end
run 1
names 'too far apart'

# Two nodes that do not hear each other; two that wait for each other.
start
begin 0; comm a 0 2 6 6 5 6; window 5 62; peer 1 yes 20; end
begin 1; comm a 1 2 6 6 5 6; window 5 61; peer 0 yes 20; end
run 1
names 'do not hear each other'
sed -i 's/silent=20/silent=0.2/' "$tmp"/d/*
run 1
names 'waits for others that wait for it'

# Nobody waits, or not for long enough.
start
begin 0; comm a 0 2 6 6 6 6; peer 1 no 0.2; end
begin 1; comm a 1 2 6 6 6 6; peer 0 no 0.2; end
run 0
three
run 0 --least 100
# Of another job, or much older.
three
begin 2 1000 0 8; comm a 2 3 5 5 5 5; end
run 1 --job 7
names 'node 2 .*no report of it'
grep -q '1 older reports, or of other jobs' "$tmp/out" || fail "what is left out is not told"
three
begin 2 100; comm a 2 3 5 5 5 5; end
run 1 --within 300
names 'node 2 .*no report of it'

# What is no report, or not whole.
start
run 2
three
head -n 3 "$tmp/d/nibble-host1-101.report" >"$tmp/part" && cp "$tmp/part" "$tmp/d/nibble-host1-101.report"
run 2
grep -q 'host1-101.report: not complete' "$tmp/out" || fail "a part of a report is not told"
for junk in 'printf ""' 'echo hello' 'printf "report format=2\nend\n"' 'printf "report format=1\npeer node=1\nend \n"' \
    'head -c 3000 /dev/urandom'; do
    three
    sh -c "$junk" >"$tmp/d/nibble-host1-101.report"
    run 2
done
three
rm "$tmp/d/nibble-host1-101.report"
mkfifo "$tmp/d/nibble-host1-101.report"
run 2
grep -q 'host1-101.report: not a hang report' "$tmp/out" || fail "a pipe is not told"
"$hang" >"$tmp/out" 2>&1
[ $? = 3 ] || fail "no folder is no wrong call"
"$hang" --least x "$tmp" >"$tmp/out" 2>&1
[ $? = 3 ] || fail "--least x is no wrong call"
"$hang" /no-such-folder >"$tmp/out" 2>&1
[ $? = 2 ] || fail "a missing folder"
mkdir "$tmp/empty"
"$hang" "$tmp/empty" >"$tmp/out" 2>&1
[ $? = 2 ] && grep -q "empty: no report in it" "$tmp/out" && ! grep -q 'all wait for' "$tmp/out" ||
    fail "an empty folder: $(cat "$tmp/out")"
three
"$hang" "$tmp/d" "$tmp/empty" >"$tmp/out" 2>&1
[ $? = 1 ] && grep -q "empty: no report in it" "$tmp/out" || fail "an empty folder beside another: $(cat "$tmp/out")"
"$hang" --version | grep -q '^nibble-hang [0-9]' || fail "--version"
"$hang" --help | grep -q '^usage: nibble-hang' || fail "--help"

# Many: each of 600 waits for the next, the last for the first, some in circles; but node 300 waits for nobody.
start
awk -v d="$tmp/d" 'BEGIN {
    for (n = 0; n < 600; n++) {
        f = d "/nibble-host" n "-1.report"
        print "report format=1 pid=1 time=1000.5 why=late host=\"host" n "\" job=\"7\" version=\"x\"\nengine steps=5 still=0" >f
        print "comm id=0xa group=00000001 node=" n " of=600 state=running submitted=6 finished=5 begun=6 oldest=5 next_op=" (n == 300 ? 5 : 6) " name=\"a\"" >f
        if (n != 300) {
            print "window function=all_reduce op=5 bytes=64 at=0 waited=" n + 1 " undelivered=64 unsent=1 working=0" >f
            m[0] = (n + 1) % 600
            m[1] = n - 10
            for (k = 0; k <= (n % 100 == 50); k++)
                print "peer node=" m[k] " missing=yes gone=no silent=0.3 name=\"node " m[k] " (host" m[k] ")\"" >f
        }
        print "end comms=1" >f
        close(f)
    }
}'
run 1
names 'node 300 (host300)  host=host300  pid=1  waiting=599  waited_s=600 '
alone
grep -q '^  \.\.\. and 505 more (--all)$' "$tmp/out" && grep -q '^  \.\.\. and 500 more (--all)$' "$tmp/out" ||
    fail "the rest is not counted: $(grep more "$tmp/out")"
run 1 --all
[ "$(grep -c '^  host[0-9]*  pid=1  own_node=' "$tmp/out")" = 605 ] || fail "--all does not show all waits"

if command -v python3 >/dev/null 2>&1; then
    three
    run 1 --json
    python3 - "$tmp/out" <<'END' || fail "the JSON"
import json, sys
facts = json.load(open(sys.argv[1]))
assert [c["node"][:6] for c in facts["culprits"]] == ["node 2"], facts
assert len(facts["waits"]) == 3 and len(facts["reports"]) == 2 and len(facts["problems"]) == 1, facts
END
fi
[ $failed = 0 ] && echo "PASS: nibble-hang"
exit $failed
