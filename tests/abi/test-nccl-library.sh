#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Check that NCCL's own library looks up the tables that nibble-info lists for it, that nibble has these
# tables, and that the library contains CollNet. The test reads the files in NB_NCCL_LIBRARIES (words), or
# those of the package nvidia-nccl-* that NB_PYTHON (python3) finds. It exits with 77 without such a file.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
export LC_ALL=C

files=${NB_NCCL_LIBRARIES:-$("${NB_PYTHON:-python3}" -c 'import importlib.util as u, os
try: s = u.find_spec("nvidia.nccl")
except ModuleNotFoundError: s = None
for d in list(s.submodule_search_locations or []) if s else []:
    f = os.path.join(d, "lib", "libnccl.so.2")
    if os.path.exists(f): print(f)' 2>/dev/null)}
[ "$files" ] || { echo "SKIP: no NCCL library: NB_NCCL_LIBRARIES names none, and Python finds no nvidia-nccl-*"; exit 77; }

# newest STEM FILE: print the highest version that the file looks up.
newest()
{
    sed -n "s/^$1_v\([0-9]*\)\$/\1/p" "$2" | sort -n | tail -n 1
}

readelf -W --dyn-syms "$plugin" | sed -n 's/.* \(nccl[A-Za-z]*_v[0-9]*\)$/\1/p' | sort -u >"$tmp/ours"
[ -s "$tmp/ours" ] || { echo "SKIP: no readelf, or no tables in $plugin"; exit 77; }
for file in $files; do
    grep -a -o -E 'nccl(NetPlugin|CollNetPlugin|TunerPlugin|Profiler)_v[0-9]+' "$file" | sort -u >"$tmp/asked"
    grep -q -a 'COLLNET_DIRECT' "$file" || fail "$file has no CollNet-direct"
    "$builddir/tools/nibble-info" --no-speed --python "" --nccl "$file" >"$tmp/info" 2>&1
    line=$(grep ' version=.*net_table=' "$tmp/info") || { fail "$file: nibble-info says: $(cat "$tmp/info")"; continue; }
    for pair in net:NetPlugin net:CollNetPlugin tuner:TunerPlugin profiler:Profiler; do
        version=$(echo "$line" | sed -n "s/.* ${pair%:*}_table=\([0-9]*\).*/\1/p")
        stem=nccl${pair#*:}
        [ "$version" != 0 ] || continue
        grep -qx "${stem}_v$version" "$tmp/asked" || fail "$file does not look up ${stem}_v$version"
        grep -qx "${stem}_v$version" "$tmp/ours" || fail "the plugin has no ${stem}_v$version"
        # The table that NCCL would take instead, if nibble had it.
        latest=$(newest "$stem" "$tmp/asked")
        [ "$latest" = "$version" ] || echo "${stem}: v$version is used, $file would take v$latest first"
    done
    echo "$line" | sed 's/.* \(version=[^ ]*\) .*\(net_table=[^ ]*\) *\(tuner_table=[^ ]*\) *\(profiler_table=[^ ]*\).*/\1 \2 \3 \4/'
done
[ $failed = 0 ] && echo "PASS: NCCL's libraries look up what nibble has"
exit $failed
