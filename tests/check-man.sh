#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each installed tool prints its version. Its page in docs/man is the page that "make update-docs" would
# write, with its whole --help, and man accepts it.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
export LC_ALL=C.UTF-8 MANWIDTH=400

# Print the options that a text names.
options()
{
    grep -o -e '--*[a-z][a-z-]*' "$1" | sort -u
}

for tool in ${NB_TOOLS:?run me by make check}; do
    name=${tool##*/}
    page=$srcdir/docs/man/$name.1
    "$builddir/$tool" --version | grep -q "^$name [0-9]" || fail "$name --version"
    sh "$srcdir/docs/man.sh" "$builddir/$tool" >"$tmp/page" || fail "man.sh of $name"
    diff -u "$page" "$tmp/page" || fail "$page is out of date; run \"make update-docs\""
    command -v man >/dev/null 2>&1 || continue
    man --warnings -E UTF-8 -Tutf8 -l "$page" >"$tmp/shown" 2>"$tmp/warnings" || fail "man cannot show $page"
    [ -s "$tmp/warnings" ] && fail "$page: $(cat "$tmp/warnings")"
    [ -s "$tmp/shown" ] || { fail "$page is empty"; continue; }
    # man prints letters twice for boldface
    sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g; s/[‐−]/-/g' "$tmp/shown" >"$tmp/plain"
    "$builddir/$tool" --help >"$tmp/help"
    options "$tmp/help" >"$tmp/a"
    options "$tmp/plain" >"$tmp/b"
    missing=$(comm -23 "$tmp/a" "$tmp/b")
    [ -z "$missing" ] || fail "not in $page:" $missing
done
sh "$srcdir/docs/man.sh" "$builddir/docs/print-parameters" >"$tmp/page" || fail "man.sh of the settings"
diff -u "$srcdir/docs/man/nibble.7" "$tmp/page" || fail "docs/man/nibble.7 is out of date; run \"make update-docs\""
command -v man >/dev/null 2>&1 || echo "without man: pages were compared, not shown"
[ $failed = 0 ] && echo "PASS: $(echo "$NB_TOOLS" | wc -w) pages"
exit $failed
