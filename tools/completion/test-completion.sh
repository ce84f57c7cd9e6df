#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bash completes options, parts and settings of the tools, and zsh and bash know every installed tool.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
command -v bash >/dev/null 2>&1 || { echo "SKIP: no bash"; exit 77; }
unset_settings

# offers EXPECTED WORD...: with the last word begun, EXPECTED is among what bash offers.
offers()
{
    expected=$1
    shift
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nibble; printf "%s\n" "${COMPREPLY[@]}"' \
        "$srcdir/tools/completion/nibble.bash" "$@" >"$tmp/offered"
    grep -qx -e "$expected" "$tmp/offered" || fail "no $expected for \"$*\", but: $(tr '\n' ' ' <"$tmp/offered")"
}

for tool in ${NB_TOOLS:?run me by make check}; do
    offers --version "$builddir/$tool" --v
    for file in nibble.bash _nibble; do
        grep -q "\(complete\|compdef\).* ${tool##*/}\( \|\$\)" "$srcdir/tools/completion/$file" || fail "$file does not know $tool"
    done
done
offers coll "$builddir/tools/nibble-perf" c
offers --iters "$builddir/tools/nibble-perf" coll --it
offers NIBBLE_SECOND_HOP "$builddir/tools/nibble-info" NIBBLE_S
[ $failed = 0 ] && echo "PASS: completion"
exit $failed
