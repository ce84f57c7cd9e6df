#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# vm.sh [OPTION]... COMMAND [ARGUMENT]...: run a command in a virtual machine that has RDMA devices in
# software (Soft-RoCE), by QEMU without hardware support, so that it works wherever the packages are.
#
#   -n 2       two machines, joined by a wire. The command runs in both, with VM_HOST=0 and VM_HOST=1 and with
#              VM_SHARED, a file of memory that both can map (16 MiB, zero at first)
#   -t SECONDS limit for the whole run (120)
#   -m SIZE    memory of a machine (2G)
#   -e NAME    pass this variable on, if it is set. NB_* are always passed on
#   -k FILE    keep the kernel's messages there
#   -i         one processor, and a clock that counts its instructions: measured times depend on the work done,
#              instead of on this machine's load
#
# The virtual machine sees the outer machine's files. Its own writes go with it, except files in the folder
# $VM_OUT. Output of the command comes when it has ended, with "0| " and "1| " in front of the lines of two
# machines. Exit status: the command's, of the first machine that failed. 124 at the limit, 125 when a machine
# ended early. 99 when its kernel died: the first line of the console that says so follows "vm: the guest's
# kernel died: ". 77, with a reason, when machines cannot run here. The network of the machines leads nowhere.
# guest.sh describes its devices.
#
# NB_VM_CACHE is the folder of the kernel (70 MB, build/cache/vm of the source folder by default).
# VM_ACCEL=kvm uses the processor's support where QEMU can.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$PATH:/usr/sbin:/sbin
hosts=1
limit=120
memory=2G
names="PATH HOME LANG VM_OUT"
keep=
counted=
while getopts n:t:m:e:k:i option; do
    case $option in
    n) hosts=$OPTARG ;;
    t) limit=$OPTARG ;;
    m) memory=$OPTARG ;;
    e) names="$names $OPTARG" ;;
    k) keep=$OPTARG ;;
    i) counted=1 ;;
    *) exit 125 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '4,25s/^# \{0,1\}//p' "$0"; exit 125; }

for tool in qemu-system-x86_64 rdma ip chrt sysctl; do
    command -v $tool >/dev/null 2>&1 || { echo "SKIP: $tool is not installed"; exit 77; }
done
cache=${NB_VM_CACHE:-$here/../../build/cache/vm}
"$here/image.sh" "$cache" || exit $?

run=$(mktemp -d) || exit 125
pids=
# shellcheck disable=SC2086
trap '[ -z "$pids" ] || kill $pids 2>/dev/null; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM HUP
cp "$here/guest.sh" "$run/"
{
    for name in $names $(compgen -e | grep '^NB_'); do
        [ -z "${!name-}" ] || echo "export $name=${!name@Q}"
    done
    echo "vm_hosts=$hosts vm_folder=${PWD@Q} vm_command=(${*@Q})"
    if [ -n "${VM_OUT-}" ]; then
        echo "mkdir -p ${VM_OUT@Q}"
        echo "mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none out ${VM_OUT@Q}"
    fi
} >"$run/settings"
[ "$hosts" = 1 ] || truncate -s 16M "$run/shared"

cpus=$(($(nproc) / hosts))
[ $cpus -ge 1 ] || cpus=1
[ $cpus -le 4 ] || cpus=4
accel=${VM_ACCEL:-tcg,thread=multi,tb-size=256}
clock=()
if [ -n "$counted" ]; then
    cpus=1
    accel=tcg,thread=single,tb-size=256
    clock=(-icount shift=1)
fi
for ((h = 0; h < hosts; h++)); do
    extra=()
    share() # TAG FOLDER SUFFIX
    {
        extra+=(-virtfs "local,path=${2//,/,,},mount_tag=$1,security_model=none,multidevs=remap$3")
    }
    share root / ,readonly=on
    share run "$run" ""
    [ -z "${VM_OUT-}" ] || share out "$VM_OUT" ""
    if [ "$hosts" = 2 ]; then
        extra+=(-netdev "dgram,id=net,local.type=unix,local.path=$run/wire$h,remote.type=unix,remote.path=$run/wire$((1 - h))"
            -device "virtio-net-pci,netdev=net,host_mtu=4200,mac=52:54:00:4e:42:0$h"
            -object "memory-backend-file,id=shared,size=16M,share=on,mem-path=$run/shared"
            -device ivshmem-plain,memdev=shared)
    fi
    timeout --foreground -k 5 "$limit" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
        -machine q35 -accel "$accel" "${clock[@]}" -cpu max -smp $cpus -m "$memory" \
        -kernel "$cache/kernel" -initrd "$cache/initrd" -device virtio-rng-pci "${extra[@]}" \
        -serial "file:$run/console$h" \
        -append "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off nokaslr no_timer_check vm_host=$h" \
        </dev/null >"$run/qemu$h" 2>&1 &
    pids="$pids $!"
done

# With two machines, a single one has no work.
if [ "$hosts" = 2 ]; then
    dead=
    while [ -z "$dead" ]; do
        sleep 0.5
        h=0
        for pid in $pids; do
            kill -0 "$pid" 2>/dev/null || dead=$h
            h=$((h + 1))
        done
    done
    # shellcheck disable=SC2086
    [ -s "$run/status$dead" ] || kill $pids 2>/dev/null
fi

# cause_of_death HOST: print the line of its console that says that its kernel is dead, and fail without such
# a line. Messages that a kernel survives do not count: warnings, blocked tasks, locked processors.
cause_of_death()
{
    grep -am1 -oE '(Kernel panic|PANIC:|double fault:|Oops:|BUG: (unable to handle|kernel NULL pointer)|general protection fault,).*' \
        "$run/console$1"
}

# A death outweighs the status of its peer's command and the peer's forced end, since these follow from it.
result=0
died=
h=0
for pid in $pids; do
    wait "$pid"
    ended=$?
    if [ "$hosts" = 1 ]; then cat "$run/output$h"; else sed "s/^/$h| /" "$run/output$h"; fi 2>/dev/null
    if [ -s "$run/status$h" ]; then
        status=$(cat "$run/status$h")
    elif cause=$(cause_of_death "$h"); then
        echo "vm: the guest's kernel died: $cause"
        died=1
        status=99
    elif [ $ended = 124 ] || [ $ended = 137 ]; then
        echo "vm: over the limit of $limit s"
        status=124
    else
        echo "vm: the machine ended early"
        tail -n 20 "$run/qemu$h" "$run/console$h"
        status=125
    fi
    grep -aE -A40 'BUG:|WARNING:|Oops|double fault|Kernel panic|blocked for' "$run/console$h" | sed 's/^/vm: kernel: /'
    [ -z "$keep" ] || cat "$run/console$h" >>"$keep"
    [ $result != 0 ] || result=$status
    h=$((h + 1))
done
pids=
[ -z "$died" ] || result=99
exit $result
