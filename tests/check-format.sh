#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# C files have the format of .clang-format ("make format"), without blanks at the end or tabs at the beginning
# of a line. The sources of kernels (.cu, .cuh) are laid out by hand.
set -u
cd "${NB_SRCDIR:-$(dirname "$0")/..}" || exit 1
failed=0
files=$(find plugin kernels include tests tools docs -name '*.[ch]' | sort)

fail()
{
    echo "FAIL: $1"
    failed=1
}

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
"$tool" --dry-run -Werror $files 2>"${TMPDIR:-/tmp}/nb-format.$$"
grep -E 'warning|error' "${TMPDIR:-/tmp}/nb-format.$$" | cut -d: -f1 | sort | uniq -c >"${TMPDIR:-/tmp}/nb-files.$$"
if [ -s "${TMPDIR:-/tmp}/nb-files.$$" ]; then
    head -n 40 "${TMPDIR:-/tmp}/nb-files.$$"
    fail "not formatted; run \"make format\""
fi
rm -f "${TMPDIR:-/tmp}/nb-format.$$" "${TMPDIR:-/tmp}/nb-files.$$"
[ $failed = 0 ] && echo "PASS: $(echo "$files" | wc -l) files"
exit $failed
