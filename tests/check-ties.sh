#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where other files must follow a change, the tree must not compile before they do:
#   - another word of an enumerated setting, in each file that treats every word of it
#   - another NB_GROUP, in each file of the codecs and kernels that is written for groups of 32 values
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
cc=${NB_CC:-cc}
mkdir "$tmp/base" "$tmp/nibble"
checked=0

# compiles FILE FLAGS...: compile with the changed headers of $tmp first.
compiles()
{
    file=$srcdir/$1
    shift
    # shellcheck disable=SC2086
    $cc -std=gnu11 -D_GNU_SOURCE -fsyntax-only -Werror=switch -I"$tmp" -I"$srcdir/plugin" -I"$srcdir/include" -I"$srcdir" -I"$builddir" \
        "$@" "$file" 2>"$tmp/errors"
}

# word TYPE PREFIX FILE: check that the error in FILE names the word, or its assertion, as missing.
word()
{
    sed "/^NB_PARAM_WORDS($1, $2,/,/))/s/))/) NB_WORD($2_ADDED, \"added\"))/" "$srcdir/plugin/base/params.def" >"$tmp/base/params.def"
    checked=$((checked + 1))
    grep -q "$2_ADDED" "$tmp/base/params.def" || { echo "FAIL: params.def has no words $1, $2"; failed=1; }
    if compiles "$3"; then
        echo "FAIL: $3 compiles with one more word of $1"
        failed=1
    elif ! grep -q "$2_ADDED\|static assertion" "$tmp/errors"; then
        echo "FAIL: $3 with one more word of $1:"
        cat "$tmp/errors"
        failed=1
    fi
}

word codec_variant NB_CODEC_VARIANT plugin/abi/settings.c
word sum NB_SUM plugin/policy/rules/decide.c
word ag NB_AG plugin/coll/report/summary.c
word ag_untyped NB_AG_UNTYPED plugin/policy/rules/decide.c
word feedback NB_FEEDBACK plugin/state/feedback.c
word schedule NB_SCHEDULE plugin/policy/reckon/reckon.c
word net NB_NET plugin/net/net.c
rm "$tmp/base/params.def"

sed 's/#define NB_GROUP 32u/#define NB_GROUP 64u/' "$srcdir/include/nibble/codec.h" >"$tmp/nibble/codec.h"
for unit in $(cd "$srcdir" && ls plugin/codec/*.c) tests/gpu/emulate.c; do
    compiles "$unit" -w
    cat "$tmp/errors"
done >"$tmp/all"
grep -rhow 'NB_GROUP_IS_32("[^"]*")' "$srcdir/plugin/codec" "$srcdir/kernels" | cut -d'"' -f2 | sort -u >"$tmp/ties"
while read -r tie; do
    checked=$((checked + 1))
    case $tie in *registers*) continue ;; esac # quant_neon.c, for other processors
    grep -qF "$tie" "$tmp/all" || { echo "FAIL: with another NB_GROUP it compiles: $tie"; failed=1; }
done <"$tmp/ties"
for file in careful encode places record reduce values; do
    grep -q NB_GROUP_IS_32 "$srcdir/kernels/$file.cuh" || { echo "FAIL: kernels/$file.cuh is not tied to NB_GROUP"; failed=1; }
done

[ $checked -gt 20 ] || { echo "FAIL: only $checked ties found"; failed=1; }
[ $failed = 0 ] && echo "PASS: $checked ties"
exit $failed
