#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# commit.sh SOURCE-FOLDER HEADER: write the commit that is built into HEADER, if it has changed. A release tarball has no
# repository but a file "commit".
set -u
commit=
if [ -f "$1/commit" ]; then
    commit=$(cat "$1/commit")
elif [ -e "$1/.git" ]; then
    commit=$(git -C "$1" describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null)
fi
printf '/* Made by plugin/base/commit.sh. */\n#define NB_COMMIT "%s"\n' "${commit:-unknown}" >"$2.new"
if cmp -s "$2.new" "$2"; then
    rm -f "$2.new"
else
    mv "$2.new" "$2"
fi
