#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The part of a virtual machine of tests/vm/vm.sh that runs once it has a root file system: devices,
# addresses, Soft-RoCE, the command, and power off. /run/vm is a folder of the outer machine.
#
# One machine: the two ends of a virtual cable, `va` (10.78.0.1) with rxe0 and `vb` (10.78.0.2) with rxe1.
# Both addresses are local, and the kernel would not send between them over the cable. So the rule that
# prefers local addresses comes after two rules that send this machine's packets for either address out by the
# other end. Two machines: `eth0` (10.78.0.1 and 10.78.0.2) with rxe0 in each. GID index 1 is RoCE v2 over the
# IPv4 address. The RDMA MTU is 4096.
source /run/vm/settings # vm_hosts, vm_command, the caller's variables
vm_host=$(sed -n 's/.*vm_host=\([0-9]\).*/\1/p' /proc/cmdline)
export VM_HOST=$vm_host VM_HOSTS=$vm_hosts
exec </dev/null >"/run/vm/output$vm_host" 2>&1
ln -sf /proc/self/fd /dev/fd
for name in 0:stdin 1:stdout 2:stderr; do
    ln -sf "fd/${name%:*}" "/dev/${name#*:}"
done
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
ip link set lo up

if [ "$vm_hosts" = 1 ]; then
    sysctl -qw net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
        net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.default.arp_ignore=1
    ip link add va mtu 4200 type veth peer name vb mtu 4200
    ip addr add 10.78.0.1/24 dev va
    ip addr add 10.78.0.2/24 dev vb
    ip link set va up
    ip link set vb up
    ip rule add pref 200 lookup local
    ip rule del pref 0
    ip rule add pref 20 iif lo to 10.78.0.2 lookup 20
    ip rule add pref 30 iif lo to 10.78.0.1 lookup 30
    ip route add 10.78.0.2 dev va src 10.78.0.1 table 20
    ip route add 10.78.0.1 dev vb src 10.78.0.2 table 30
    rdma link add rxe0 type rxe netdev va
    rdma link add rxe1 type rxe netdev vb
else
    ip addr add "10.78.0.$((vm_host + 1))/24" dev eth0
    ip link set eth0 mtu 4200 up
    rdma link add rxe0 type rxe netdev eth0
    # Memory that both machines have (ivshmem), as a file that can be mapped.
    for device in /sys/bus/pci/devices/*; do
        if [ "$(cat "$device/vendor" "$device/device" | tr -d '\n')" = 0x1af40x1110 ]; then
            echo 1 >"$device/enable"
            export VM_SHARED=$device/resource2
        fi
    done
    touch "/run/vm/up$vm_host"
    until [ -e "/run/vm/up$((1 - vm_host))" ]; do sleep 0.1; done
fi

# Soft-RoCE works in kernel threads: programs that poll without sleeping must leave them processor time.
cd "$vm_folder" && chrt -i 0 "${vm_command[@]}"
echo $? >"/run/vm/status$vm_host"
sync
echo o >/proc/sysrq-trigger
sleep 60
