#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, with gcc and with clang. Headers of include/ compile as C++, too. A file
# without an include guard is a fragment for the middle of other files and is left out.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
warn="-Wall -Wextra -Wshadow -Wstrict-prototypes -Werror"
checked=0

# try HEADER LANGUAGE FLAGS... COMPILER
try()
{
    printf '#include "%s"\nint nb_alone;\n' "$1" >"$tmp/alone.$2"
    # shellcheck disable=SC2086
    if ! $3 $4 -D_GNU_SOURCE -I"$srcdir/include" -I"$srcdir/plugin" -I"$srcdir" -fsyntax-only "$tmp/alone.$2" 2>"$tmp/errors"; then
        echo "FAIL: $1 with $3"
        cat "$tmp/errors"
        failed=1
    fi
    checked=$((checked + 1))
}

compilers=
for cc in gcc clang; do
    command -v $cc >/dev/null 2>&1 && compilers="$compilers $cc"
done
[ -n "$compilers" ] || { echo "SKIP: neither gcc nor clang is installed"; exit 77; }

cd "$srcdir" || exit 1
for header in $(grep -rl --include='*.h' '^#ifndef NIBBLE_.*_H$' include plugin | sort); do
    for cc in $compilers; do
        flags="-std=c11 $warn"
        case $header in *avx2*) flags="$flags -mavx2 -mf16c -mbmi2" ;; esac
        case $header in *avx512*)
            flags="$flags -mavx2 -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi" ;;
        esac
        try "${header#*/}" c $cc "$flags"
    done
done
for header in $(find include -name '*.h' | sort); do
    for cc in $compilers; do
        command -v "$(echo $cc | sed 's/gcc/g++/;s/clang/clang++/')" >/dev/null 2>&1 || continue
        try "${header#*/}" cc $cc "-x c++ -std=c++14 -Wall -Wextra -Werror"
    done
done
[ $failed = 0 ] && echo "PASS: $checked compilations with$compilers"
exit $failed
