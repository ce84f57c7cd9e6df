#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# coverage.sh SOURCE-FOLDER, in a build tree whose tests have run with --enable-coverage: print the covered
# lines in each folder of the plugin, and its ten files with the most uncovered lines. It needs only gcov.
set -eu
srcdir=$(cd "$1" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
top=$(pwd)
find "$top/plugin" "$top/kernels" -name '*.gcda' | sort >"$tmp/counts"
[ -s "$tmp/counts" ] || { echo "coverage: nothing has run"; exit 1; }
(cd "$tmp" && xargs gcov --json-format --stdout <counts 2>/dev/null >all.json) || :
python3 - "$tmp/all.json" "$srcdir" <<'END'
import collections, json, os, sys
hit = collections.defaultdict(lambda: collections.defaultdict(int))
with open(sys.argv[1]) as f:
    for line in f:
        for source in json.loads(line)["files"]:
            name = os.path.relpath(os.path.realpath(source["file"]), os.path.realpath(sys.argv[2]))
            if name.startswith(("plugin/", "kernels/")):
                for l in source["lines"]:
                    hit[name][l["line_number"]] += l["count"]
folders = collections.defaultdict(lambda: [0, 0])
for name, lines in hit.items():
    for key in (os.path.dirname(name), "all"):
        folders[key][0] += sum(1 for c in lines.values() if c)
        folders[key][1] += len(lines)
print("| folder | lines | reached |\n|---|---|---|")
for key in sorted(folders, key=lambda k: (k == "all", k)):
    reached, lines = folders[key]
    print(f"| {key} | {lines} | {100 * reached / lines:.1f} % |")
missed = sorted(((sum(1 for c in l.values() if not c), n) for n, l in hit.items()), reverse=True)[:10]
print("\nmost lines not reached: " + ", ".join(f"{n} {m}" for m, n in missed))
END
