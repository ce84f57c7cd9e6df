#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# C files have the format of .clang-format ("make format"), without blanks at the end or tabs at the beginning
# of a line. The sources of kernels (.cu, .cuh) are laid out by hand. Lines have at most 110 bytes. The numbers
# of older, longer lines below may only go down.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
cd "$srcdir" || exit 1
files=$(find plugin kernels include tests tools docs -name '*.[ch]' | sort)

# shellcheck disable=SC2086
blank=$(grep -nE '[ 	]+$|^	' $files)
if [ -n "$blank" ]; then
    echo "$blank" | head -n 20
    fail "blanks at the end of a line, or tabs at its beginning"
fi

# long_lines MOST FILE...: fail where more lines of the files are too long.
long_lines()
{
    most=$1
    shift
    LC_ALL=C awk 'length($0) > 110 { print FILENAME ":" FNR }' "$@" >"$tmp/long"
    n=$(wc -l <"$tmp/long")
    if [ "$n" -gt "$most" ]; then
        cut -d: -f1 "$tmp/long" | sort | uniq -c | sort -rn | head -n 20
        fail "$n lines have more than 110 bytes, instead of at most $most"
    fi
    [ "$n" -ge "$most" ] || echo "only $n lines are too long: write this number instead of $most into $0"
}
# shellcheck disable=SC2086
long_lines 20 $files
# shellcheck disable=SC2046
long_lines 365 $(find tests tools packages docs build-aux -name '*.sh' | sort) quickstart
# shellcheck disable=SC2046
long_lines 281 $(find tests tools packages python docs -name '*.py' | sort)
# shellcheck disable=SC2046
long_lines 274 $(find plugin kernels tests tools -name '*.def' -o -name '*.inc' -o -name '*.cu' \
    -o -name '*.cuh' | sort)

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
