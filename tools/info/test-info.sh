#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-info: text and JSON say what is there, bad settings are problems, NCCL's release decides what works.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
info="$builddir/tools/nibble-info"
export NCCL_SOCKET_IFNAME=lo NIBBLE_NET=tcp
unset NCCL_DEBUG

# say PATTERN ARGUMENTS...: status 0 and a line with it.
say()
{
    pattern=$1
    shift
    "$info" --no-speed --python "" "$@" >"$tmp/out" 2>"$tmp/err" || fail "status $? of: $*: $(cat "$tmp/err")"
    grep -q -- "$pattern" "$tmp/out" || { fail "no \"$pattern\" in:"; cat "$tmp/out"; }
    [ -s "$tmp/err" ] && fail "on stderr: $(cat "$tmp/err")"
}

say '^  lo  transport=tcp'
NIBBLE_CODEC_VARIANT=portable say 'portable  available=yes  in_force=yes'
NIBBLE_HOST_THREADS=5 say '^  5  by=NIBBLE_HOST_THREADS  share='
LOCAL_WORLD_SIZE=4096 say '^  0  by=this rank.s share of the cores  share=1 .*ranks=4096  ranks_by=LOCAL_WORLD_SIZE'
NIBBLE_CREDITS=7 say 'NIBBLE_CREDITS  value=7  default=48'
NIBBLE_TUNER=0 NIBBLE_TUNER_CHUNK_BYTES=65536 say 'no_effect=NIBBLE_TUNER=0'
NIBBLE_HOME=/x say 'NIBBLE_HOME is not a setting'
say '^  8  connects=yes'
NIBBLE_LINK_MBPS=400000 say '^  8  connects=no  why=no gain on links of 400 Gbit/s with codec'
NIBBLE_LINK_MBPS=400000 NIBBLE_RS=int4 say '^  8  connects=yes'
say 'NIBBLE_RS  value=auto  compared_by_nodes=yes  meaning=' --all

# Bad settings are told, and the status says so.
NIBBLE_CREDITS=many NIBBLE_RSS=int4 NIBBLE_REQUIRE=what "$info" --no-speed --python "" >"$tmp/out" 2>/dev/null
[ $? = 1 ] || fail "bad settings: status $?"
for part in "NIBBLE_CREDITS=many: it must be" "did you mean NIBBLE_RS?" 'NIBBLE_REQUIRE: "what"'; do
    grep -q -F -- "$part" "$tmp/out" || fail "not told: $part"
done
"$info" --nonsense >"$tmp/out" 2>&1
[ $? = 2 ] || fail "a wrong option: status $?"
# Names: with or without NIBBLE_, in any case; a part of a name; an unknown one.
NIBBLE_RS=int8 "$info" rs >"$tmp/out" || fail "rs: status $?"
[ "$(grep -c NIBBLE "$tmp/out")" = 1 ] && grep -q '^  NIBBLE_RS  value=int8  default=auto .*allowed=raw, int4, int8 or auto  meaning=codec of' "$tmp/out" ||
    fail "rs: $(cat "$tmp/out")"
NIBBLE_RS=int5 "$info" rs >"$tmp/out" 2>&1
[ $? = 1 ] && grep -q 'bad setting NIBBLE_RS=int5: it must be raw' "$tmp/out" ||
    fail "a bad value: $(cat "$tmp/out")"
NIBBLE_RS=int5 "$info" --json rs >"$tmp/out" 2>&1
[ $? = 1 ] && grep -q '"text": "NET/nibble : bad setting NIBBLE_RS=int5' "$tmp/out" ||
    fail "a bad value, JSON: $(cat "$tmp/out")"
[ "$("$info" NIBBLE_REF CREDITS | grep -c '^  NIBBLE_')" -ge 2 ] || fail "parts of names"
"$info" NIBBLE_NOTHING >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] && grep -q 'no setting has "NIBBLE_NOTHING" in its name' "$tmp/err" || fail "an unknown name: $(cat "$tmp/err")"
"$info" --version | grep -q '^nibble-info [0-9]' || fail "--version"

# Releases of NCCL, as libraries that only tell their version.
release()
{
    echo "int ncclGetVersion(int *v) { *v = $1; return 0; }" >"$tmp/nccl.c"
    ${NB_CC:-cc} -shared -fPIC -o "$tmp/nccl-$1.so" "$tmp/nccl.c" || { echo "SKIP: no compiler for releases"; return 1; }
    say "$2" --nccl "$tmp/nccl-$1.so"
}
release 22304 'version=2.23.4  net_table=8  tuner_table=0  profiler_table=0 .*all_reduce=raw' &&
    release 22703 'version=2.27.3  net_table=10  tuner_table=4  profiler_table=4 .*all_reduce=raw' &&
    release 22809 'version=2.28.9  net_table=11  tuner_table=5  profiler_table=5 .*all_reduce=quantized' &&
    release 23004 'version=2.30.4  net_table=12' &&
    release 23300 'later than the releases' &&
    release 21900 'problem=older than 2.20'
say 'problem=.*no-such-file' --nccl /no-such-file

# JSON is JSON, with all sections.
if command -v python3 >/dev/null 2>&1; then
    NIBBLE_CREDITS=7 "$info" --json >"$tmp/json" || fail "status $? of --json"
    python3 - "$tmp/json" <<'END' || fail "the JSON"
import json, sys
facts = json.load(open(sys.argv[1]))
for key in "version settings devices codecs codec_speed codec_threads gpu nccl problems".split():
    assert isinstance(facts[key], list), key
settings = {s["name"]: (s["value"], s["default"]) for s in facts["settings"]}
assert settings == {"NIBBLE_CREDITS": ("7", "48"), "NIBBLE_NET": ("tcp", "auto")}, settings
assert any(c["in_force"] for c in facts["codecs"])
assert facts["codec_speed"][0]["encode_with_feedback"] > 0
END
fi
[ $failed = 0 ] && echo "PASS: nibble-info"
exit $failed
