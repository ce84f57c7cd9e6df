#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# C files have the format of .clang-format ("make format"), without blanks at the end or tabs at the beginning
# of a line. The sources of kernels (.cu, .cuh) are laid out by hand.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
cd "$srcdir" || exit 1
files=$(find plugin kernels include tests tools docs -name '*.[ch]' | sort)

# shellcheck disable=SC2086
blank=$(grep -nE '[ 	]+$|^	' $files)
[ -z "$blank" ] || { echo "$blank" | head -n 20; fail "blanks at the end of a line, or tabs at its beginning"; }

# Other versions break lines elsewhere.
wanted=14
tool=$(command -v clang-format-$wanted || command -v clang-format) || tool=
if [ -z "$tool" ] || ! "$tool" --version | grep -q "version $wanted\."; then
    [ $failed = 0 ] || exit 1
    echo "SKIP: clang-format $wanted is not installed; blanks and tabs are right"
    exit 77
fi
# shellcheck disable=SC2086
"$tool" --dry-run -Werror $files 2>"$tmp/log"
grep -E 'warning|error' "$tmp/log" | cut -d: -f1 | sort | uniq -c >"$tmp/files"
if [ -s "$tmp/files" ]; then
    head -n 40 "$tmp/files"
    fail "not formatted; run \"make format\""
fi
[ $failed = 0 ] && echo "PASS: $(echo "$files" | wc -l) files"
exit $failed
