#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs/parameters.md is the page that "make update-docs" would write, and documents and the image set the variables of
# packages/variables.
set -u
srcdir=${NB_SRCDIR:-$(dirname "$0")/..}
builddir=${NB_BUILDDIR:-.}
tmp=$(mktemp) || exit 1
trap 'rm -f "$tmp"' EXIT
"$builddir/docs/print-parameters" >"$tmp" || { echo "FAIL: docs/print-parameters does not run"; exit 1; }
if ! diff -u "$srcdir/docs/parameters.md" "$tmp"; then
    echo "FAIL: docs/parameters.md is out of date; run \"make update-docs\""
    exit 1
fi
python3 "$srcdir/packages/variables.py" "$srcdir" || { echo "FAIL: variables of a job"; exit 1; }
echo "PASS: $(grep -c '^| .NIBBLE_' "$tmp") settings"
