#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The .deb has the plugin, tools and pages, asks for the right C library, can be installed, and its tools run from there.
set -u
srcdir=${NB_SRCDIR:-$(dirname "$0")/..}
builddir=${NB_BUILDDIR:-.}
for program in dpkg dpkg-deb objdump strip; do
    command -v $program >/dev/null 2>&1 || { echo "SKIP: no $program"; exit 77; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

fail()
{
    echo "FAIL: $*"
    failed=1
}

export NB_URL=https://nibble.invalid NB_MAINTAINER="A Person <person@nibble.invalid>"
deb=$(sh "$srcdir/packages/deb.sh" --built "$builddir" "$tmp") || { echo "FAIL: deb.sh"; exit 1; }
dpkg-deb --contents "$deb" >"$tmp/contents"
[ "$(dpkg-deb -f "$deb" Homepage) $(dpkg-deb -f "$deb" Maintainer)" = "$NB_URL $NB_MAINTAINER" ] ||
    fail "the package does not say who publishes it"
for file in usr/lib/.*/libnccl-net-nibble.so usr/share/nibble/grafana/nibble.json usr/lib/.*/libnibble-codec.so.0.0.0 \
    usr/lib/.*/pkgconfig/nibble-codec.pc usr/include/nibble/codec.h usr/include/nibble/emulate.h \
    usr/share/nibble/python/nibble_codec/cluster.py usr/share/nibble/python/nibble_codec/py.typed \
    usr/share/doc/nibble-nccl/copyright usr/share/doc/nibble-nccl/README.md \
    usr/share/doc/nibble-nccl/docs/operators.md \
    usr/share/doc/nibble-nccl/docs/glossary.md \
    usr/share/man/man7/nibble.7.gz usr/share/bash-completion/completions/nibble-perf \
    $(for tool in ${NB_TOOLS:?run me by make check}; do echo "usr/bin/${tool##*/} usr/share/man/man1/${tool##*/}.1.gz"; done); do
    grep -q " root/root .* \./$file\$" "$tmp/contents" || fail "not in the package: $file"
done
grep -v '/$' "$tmp/contents" | grep -qvE ' \./usr/(bin/nibble-|lib/.*/libnccl-net-nibble\.so$|lib/.*/libnibble-codec\.so|lib/.*/nibble-codec\.pc$|include/nibble/|share/(nibble|man/man[17]|doc/nibble-nccl|bash-completion|zsh)/)' &&
    fail "more than what belongs there: $(cat "$tmp/contents")"

# Without a database of dpkg's own nothing is asked of the system's.
mkdir -p "$tmp/root/var/lib/dpkg/info" "$tmp/root/var/lib/dpkg/updates"
: >"$tmp/root/var/lib/dpkg/status"
if [ "$(id -u)" = 0 ]; then
    dpkg --root="$tmp/root" --force-depends --log="$tmp/log" -i "$deb" >"$tmp/dpkg" 2>&1 || fail "dpkg -i: $(cat "$tmp/dpkg")"
    dpkg --root="$tmp/root" -V nibble-nccl >"$tmp/dpkg" 2>&1 || fail "dpkg -V: $(cat "$tmp/dpkg")"
else
    dpkg-deb -x "$deb" "$tmp/root"
fi
NCCL_SOCKET_IFNAME=lo NIBBLE_NET=tcp "$tmp/root/usr/bin/nibble-info" --no-speed --python "" >"$tmp/out" 2>&1 ||
    fail "nibble-info from the package: $(cat "$tmp/out")"
grep -q '^  lo  transport=tcp' "$tmp/out" || fail "nibble-info from the package says: $(cat "$tmp/out")"
cmp -s "$tmp/root/usr/share/man/man1/nibble-info.1.gz" /dev/null && fail "an empty page"

# The library: by what pkg-config says of the package, and by the Python module where NumPy is.
if command -v pkg-config >/dev/null 2>&1; then
    PKG_CONFIG_PATH=$(dirname "$(find "$tmp/root/usr/lib" -name nibble-codec.pc)") pkg-config --print-errors --exists nibble-codec ||
        fail "pkg-config does not take nibble-codec.pc"
fi
if "${NB_PYTHON:-python3}" -c 'import numpy' 2>/dev/null; then
    (unset NB_CODEC
    LD_LIBRARY_PATH=$(dirname "$(find "$tmp/root/usr/lib" -name libnibble-codec.so.0)") PYTHONPATH="$tmp/root/usr/share/nibble/python" \
        "${NB_PYTHON:-python3}" -c 'import nibble_codec, numpy
assert len(nibble_codec.encode(numpy.ones(4096, dtype="f4"))) < 3000' >"$tmp/out" 2>&1) || fail "the Python module: $(cat "$tmp/out")"
fi

# The C library that the package asks for is the one that its files need, and not later than this machine's.
asked=$(dpkg-deb -f "$deb" Depends | sed -n 's/.*libc6 (>= \(.*\)).*/\1/p')
here=$(getconf GNU_LIBC_VERSION | sed 's/glibc //')
dpkg --compare-versions "$asked" le "$here" || fail "it asks for libc6 $asked, here is $here"
if grep -q '^#define NB_OLD_GLIBC 1' "$builddir/config.h"; then
    dpkg --compare-versions "$asked" le 2.28 || fail "it asks for libc6 $asked, and was configured for 2.28"
fi

# The spec file is one, where rpm is.
if command -v rpmspec >/dev/null 2>&1; then
    sed 's/@PACKAGE_VERSION@/1.2.3/' "$srcdir/packages/nibble.spec.in" >"$tmp/nibble.spec"
    [ "$(rpmspec -q --qf '%{name} %{version}' "$tmp/nibble.spec" 2>"$tmp/err")" = "nibble-nccl 1.2.3" ] ||
        fail "nibble.spec: $(cat "$tmp/err")"
else
    echo "without rpm: the spec file was not read"
fi
[ $failed = 0 ] && echo "PASS: $(basename "$deb"), libc6 >= $asked"
exit $failed
