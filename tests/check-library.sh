#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The codec library exports the declarations of its headers and no other name, all with a version. Its soname
# is that of -version-info, and it needs only the C library's parts. A program built only with pkg-config's
# answers, in C and in C++, must build with the files that "make install" has put into a separate folder, and
# run from there.
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/..}
# shellcheck source=tests/suite.sh
. "$NB_SRCDIR/tests/suite.sh"
export LC_ALL=C
library=${NB_CODEC:-./.libs/libnibble-codec.so}

for tool in nm readelf pkg-config make; do
    command -v $tool >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
[ -f "$library" ] || { echo "FAIL: $library was not built"; exit 1; }
if [ -n "${NB_SANITIZE:-}" ]; then
    echo "SKIP: a sanitizer adds names and libraries of its own"
    exit 77
fi

nm -D --defined-only "$library" | awk '$2 != "A" { print $NF }' | sort >"$tmp/exported"
sed 's/@.*//' "$tmp/exported" >"$tmp/names"
# Functions that the headers declare: a name in front of a parenthesis, at the beginning of a declaration.
for header in $(sed -n 's|^nibbleinclude_HEADERS = ||p' "$srcdir/plugin/emulate/Makefile.inc"); do
    sed -n 's/^[a-z].*[ *]\(nb_[a-z0-9_]*\)(.*/\1/p' "$srcdir/$header"
done | sort -u >"$tmp/declared"
[ -s "$tmp/declared" ] || fail "the headers declare no function"
cmp -s "$tmp/names" "$tmp/declared" ||
    fail "exported and declared names differ: $(diff "$tmp/names" "$tmp/declared" | grep '^[<>]' | tr '\n' ' ')"
grep -v '@@NIBBLE_CODEC_[0-9.]*$' "$tmp/exported" && fail "names without a version"

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
info=$(sed -n 's/.*-version-info \([0-9]*\):[0-9]*:\([0-9]*\).*/\1 \2/p' "$srcdir/plugin/emulate/Makefile.inc")
[ "$soname" = "libnibble-codec.so.$((${info% *} - ${info#* }))" ] || fail "its soname is $soname, its version-info $info"
for needed in $(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $needed in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | ld-linux*) ;;
        *) fail "it needs $needed" ;;
    esac
done
readelf -d "$library" | grep -q TEXTREL && fail "it has text relocations"

# The install folder differs from the configured one, so pkg-config must be told.
MAKEFLAGS='' make -C "$builddir" -s install-libLTLIBRARIES install-nibbleincludeHEADERS install-nodist_pkgconfigDATA \
    DESTDIR="$tmp/root" libdir=/opt/it/lib includedir=/opt/it/include >"$tmp/log" 2>&1 ||
    fail "make install: $(tail -n 5 "$tmp/log")"
cat >"$tmp/try.c" <<'END'
#include <nibble/codec.h>
#include <stdio.h>

int main(void)
{
    static float in[5000], out[5000];
    static char coded[40000];
    double noise = 0, energy = 0;
    long len;

    for (int i = 0; i < 5000; i++)
        in[i] = (float)(i % 17 - 8) * (float)(i % 5 + 1);
    len = (long)nb_encode(NB_CODEC_INT4, NB_F32, in, 5000, 0, NULL, coded, sizeof(coded), NULL);
    if (len <= 0 || nb_decode(NB_CODEC_INT4, NB_F32, coded, (size_t)len, 5000, 0, out))
        return 1;
    for (int i = 0; i < 5000; i++) {
        noise += (in[i] - out[i]) * (in[i] - out[i]);
        energy += in[i] * in[i];
    }
    printf("%ld\n", len);
    return len > 3000 || !(noise < 0.02 * energy);
}
END
export PKG_CONFIG_PATH="$tmp/root/opt/it/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$tmp/root"
sed -i "s|^prefix=.*|prefix=/opt/it|; s|^libdir=.*|libdir=/opt/it/lib|; s|^includedir=.*|includedir=/opt/it/include|" \
    "$tmp/root/opt/it/lib/pkgconfig/nibble-codec.pc" || fail "nibble-codec.pc was not installed"
version=$(sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' "$builddir/config.h")
[ "$(pkg-config --modversion nibble-codec)" = "$version" ] || fail "pkg-config does not say that it is version $version"
grep -q "^version = \"$version\"$" "$srcdir/python/pyproject.toml" || fail "python/pyproject.toml is not of version $version"
# shellcheck disable=SC2046,SC2086
${NB_CC:-cc} -std=c11 -Wall -Werror -o "$tmp/try" "$tmp/try.c" $(pkg-config --cflags --libs nibble-codec) ||
    fail "a program cannot be built with it"
LD_LIBRARY_PATH="$tmp/root/opt/it/lib" "$tmp/try" >"$tmp/out" || fail "the program says: $(cat "$tmp/out")"
if command -v g++ >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    g++ -x c++ -Wall -Werror -o "$tmp/try++" "$tmp/try.c" $(pkg-config --cflags --libs nibble-codec) &&
        LD_LIBRARY_PATH="$tmp/root/opt/it/lib" "$tmp/try++" >/dev/null || fail "not in C++"
fi
[ $failed = 0 ] && echo "PASS: $(wc -l <"$tmp/names") names, $soname"
exit $failed
