#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a .deb for this distribution, from a release:      packages/deb.sh nibble-VERSION.tar.xz [FOLDER]
# or from a built tree:                                   packages/deb.sh --built BUILD-FOLDER [FOLDER]
# Writes it to FOLDER (default: here), and its name to stdout. NB_CONFIGURE has more arguments for the first form's
# configure (default --without-cuda), NB_MAINTAINER the name and address, and NB_URL the home page, of who
# publishes it. Needs gcc, make, binutils, dpkg.
set -eu

say()
{
    echo "deb.sh: $*" >&2
    exit 1
}

case ${1:-} in
--built) build=${2:?which build folder?} source= out=${3:-.} ;;
*.tar.xz) build= source=$1 out=${2:-.} ;;
*) say "which release? deb.sh nibble-VERSION.tar.xz [FOLDER]" ;;
esac
out=$(cd "$out" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
lib=/usr/lib/$(${CC:-gcc} -print-multiarch 2>/dev/null)

if [ "$source" ]; then
    mkdir "$tmp/source" "$tmp/build"
    tar -xf "$source" -C "$tmp/source" --strip-components=1
    build=$tmp/build
    # shellcheck disable=SC2086
    (cd "$build" && "$tmp/source/configure" --prefix=/usr --libdir="$lib" ${NB_CONFIGURE---without-cuda} &&
        make -j"$(nproc)") >"$tmp/log" 2>&1 || { tail -n 20 "$tmp/log" >&2; say "the build failed"; }
fi
root=$tmp/root
make -C "$build" install-strip DESTDIR="$root" prefix=/usr libdir="$lib" docdir=/usr/share/doc/nibble-nccl \
    >"$tmp/log" 2>&1 ||
    { tail -n 20 "$tmp/log" >&2; say "make install failed"; }
mv "$root/usr/share/doc/nibble-nccl/LICENSE" "$root/usr/share/doc/nibble-nccl/copyright"
gzip -9 -n "$root"/usr/share/man/man?/*
# A built tree may be configured for other folders.
sed -i "s|^prefix=.*|prefix=/usr|; s|^libdir=.*|libdir=$lib|; s|^includedir=.*|includedir=/usr/include|" "$root$lib/pkgconfig/nibble-codec.pc"

# The oldest C library that has all symbols with the versions that the linker took.
glibc=$(find "$root/usr/bin" "$root$lib" -type f ! -name '*.pc' -exec objdump -T {} + | sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' |
    sort -V | tail -n 1)
[ "$glibc" ] || say "objdump shows no version of the C library"
version=$(sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' "$build/config.h")
[ "$version" ] || say "$build/config.h has no version"
arch=$(dpkg --print-architecture)
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: nibble-nccl
Version: $version
Architecture: $arch
Maintainer: ${NB_MAINTAINER:-nibble developers <nibble@package.invalid>}
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: libc6 (>= $glibc)
Recommends: libibverbs1
Section: net
Priority: optional${NB_URL:+
Homepage: $NB_URL}
Description: NCCL plugin that sends gradients at 4 bits between nodes
 A network plugin for NCCL. Between nodes it sends reduce-scatters and
 all-reduces of gradients at about 4 bits a value with error feedback, and
 all-gathers of weights as exact deltas. NCCL_NET_PLUGIN=nibble and
 NCCL_COLLNET_ENABLE=1 switch it on. nibble-doctor finds missing parts.
END
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
find "$root" -type d -exec chmod 755 {} +
deb=$out/nibble-nccl_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$deb" >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; say "dpkg-deb failed"; }
echo "$deb"
