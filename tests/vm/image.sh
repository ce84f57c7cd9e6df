#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# image.sh FOLDER: put into FOLDER the files that a virtual machine of tests/vm/vm.sh boots. `kernel` is
# Debian's newest for this architecture that has Soft-RoCE, from the package, which stays uninstalled.
# `initrd` has busybox, the modules and tests/vm/init. With both files present and this folder's files
# unchanged since, it has no work. Exit status: 0, or 77 with the reason why this machine cannot do it.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$PATH:/usr/sbin:/sbin

skip()
{
    echo "SKIP: $*"
    exit 77
}

folder=$1
# Modules that the guest needs before it has the root file system, and modules that tests use.
modules="virtio_pci virtio_net virtio_rng 9pnet_virtio 9p overlay crc32_generic crc32c_generic ib_core ib_uverbs
    rdma_rxe veth sch_netem"
recipe=$(cat "$0" "$here/init" | cksum | cut -d' ' -f1)
[ "$(cat "$folder/recipe" 2>/dev/null)" = "$recipe" ] && exit 0

[ "$(uname -m)" = x86_64 ] || skip "the virtual machine is made for x86_64, this is $(uname -m)"
for tool in apt-get apt-cache dpkg busybox depmod modprobe cpio zstd xz od; do
    command -v $tool >/dev/null 2>&1 || skip "$tool is not installed"
done
mkdir -p "$folder" || skip "cannot make $folder"
exec 9>"$folder/lock"
flock 9
[ "$(cat "$folder/recipe" 2>/dev/null)" = "$recipe" ] && exit 0
tmp=$(mktemp -d "$folder/new.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

# Flavours: "cloud" lacks Soft-RoCE, "rt" and unsigned kernels are useless here.
candidates=$(apt-cache search --names-only '^linux-image-[0-9].*-amd64$' | cut -d' ' -f1 |
    grep -vE 'cloud|-rt-|unsigned|dbg' | sort -rV | head -n 3)
[ -n "$candidates" ] || skip "apt-cache knows no kernel package (apt-get update?)"
release=
for package in $candidates; do
    rm -rf k ./*.deb
    if ! apt-get -qq -o APT::Sandbox::User=root download "$package" >log 2>&1; then
        echo "cannot download $package: $(tail -n 1 log)"
        continue
    fi
    dpkg -x ./*.deb k || continue
    release=$(ls k/lib/modules)
    find "k/lib/modules/$release" -name 'rdma_rxe.ko*' | grep -q . && break
    release=
done
[ -n "$release" ] || skip "no kernel package with Soft-RoCE could be had: $candidates"
depmod -b k "$release" || exit 1

# The bzImage holds the compressed ELF kernel. QEMU can start that directly (PVH), which saves a minute of
# emulated decompression. Offsets: the x86 boot protocol's setup header.
image=$(ls k/boot/vmlinuz-*)
field() # OFFSET BYTES
{
    od -An -v -t"u$2" -j"$1" -N"$2" "$image" | tr -d ' '
}
start=$((($(field $((0x1f1)) 1) + 1) * 512 + $(field $((0x248)) 4)))
length=$(field $((0x24c)) 4)
tail -c +$((start + 1)) "$image" | head -c "$length" >payload
# Its length stands behind it, and unpackers complain of that after the work is done. The unpacked bytes
# count.
{ xz -dc payload || zstd -dqc payload; } >kernel 2>/dev/null
[ "$(head -c 4 kernel | tail -c 3)" = ELF ] || cp "$image" kernel

mkdir -p root/bin root/modules root/proc root/sys root/dev root/host root/layer root/new
cp "$(command -v busybox)" root/bin/busybox
cp "$here/init" root/init
chmod 755 root/init
count=100
for module in $modules; do
    modprobe -d "$tmp/k" -S "$release" --show-depends "$module" 2>/dev/null
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    count=$((count + 1)) # they are loaded in this order
    name=$(basename "$file")
    case $file in
    *.xz) xz -dc "$file" >"root/modules/$count-${name%.xz}" ;;
    *.zst) zstd -dqc "$file" >"root/modules/$count-${name%.zst}" ;;
    *) cp "$file" "root/modules/$count-$name" ;;
    esac
done
ls root/modules/*rdma_rxe.ko >/dev/null || exit 1
(cd root && find . | cpio -o -H newc --quiet) | zstd -q -3 >initrd || exit 1
mv kernel initrd "$folder/" || exit 1
echo "$release" >"$folder/release"
echo "$recipe" >"$folder/recipe"
