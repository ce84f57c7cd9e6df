#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The reaction of vm.sh and test-vm.sh to a machine whose kernel dies, with a QEMU that only writes the output
# of such a machine. They must distinguish it from a command that fails and from a machine that hangs, try it
# once more, skip with its reason after two deaths, and never pass.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

mkdir "$tmp/bin" "$tmp/vm" "$tmp/build" "$tmp/cache"
# The nth start of a machine, of either host, does as the nth word of $NB_FAKE says.
cat >"$tmp/bin/qemu-system-x86_64" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in
    file:*) console=${1#file:} ;;
    *vm_host=*) host=${1##*vm_host=} ;;
    esac
    shift
done
run=$(dirname "$console")
exec 9>"$NB_FAKE_COUNT.lock"
flock 9
n=$(($(cat "$NB_FAKE_COUNT") + 1))
echo $n >"$NB_FAKE_COUNT"
flock -u 9
exec 9>&-
what=$(echo "$NB_FAKE" | cut -d' ' -f$n)
echo "[    0.000000] Linux version 6.12.0" >"$console"
echo "start $n: $what" >"$run/output$host"
case $what in
ok) echo 0 >"$run/status$host" ;;
bad) echo 1 >"$run/status$host" ;;
warned) # messages that a kernel survives
    printf '%s\n' "[   70.1] WARNING: CPU: 0 PID: 9 at kernel/x.c:1 f+0x1/0x2" \
        "[   71.2] watchdog: BUG: soft lockup - CPU#0 stuck for 23s!" "[   72.3] INFO: task a:1 blocked for more than 120 seconds." >>"$console"
    echo 1 >"$run/status$host" ;;
double)
    printf '%s\n' "[  310.5] traps: PANIC: double fault, error_code: 0x0" "[  310.6] Oops: double fault: 0000 [#1] PREEMPT SMP NOPTI" \
        "[  310.7] Workqueue: rxe_wq do_work [rdma_rxe]" "[  310.8] Kernel panic - not syncing: Fatal exception in interrupt" >>"$console" ;;
oops) echo "[  9.1] BUG: kernel NULL pointer dereference, address: 0000000000000008" >>"$console" ;;
early) echo "qemu: could not open something" >&2; exit 1 ;;
hangs) exec sleep 600 ;;
esac
END
for tool in rdma ip chrt sysctl; do printf '#!/bin/sh\n' >"$tmp/bin/$tool"; done
chmod +x "$tmp"/bin/*
cp "$here"/*.sh "$here/init" "$tmp/vm/"
# The kernel that image.sh would make.
cat "$tmp/vm/image.sh" "$tmp/vm/init" | cksum | cut -d' ' -f1 >"$tmp/cache/recipe"
PATH=$tmp/bin:$PATH
NB_VM_CACHE=$tmp/cache
NB_FAKE_COUNT=$tmp/count
export PATH NB_VM_CACHE NB_FAKE_COUNT
unset NB_VM_TESTS NB_VM_SECONDS NB_SANITIZE

# expect STATUS STARTS PATTERN "WHAT ..." COMMAND...: run machines that do WHAT. Then check the status, the
# number of machines that were started, and a line of the output.
expect()
{
    want=$1 starts=$2 pattern=$3
    export NB_FAKE=$4
    shift 4
    echo 0 >"$NB_FAKE_COUNT"
    "$@" >"$tmp/log" 2>&1
    status=$?
    if [ $status != "$want" ] || [ "$(cat "$NB_FAKE_COUNT")" != "$starts" ] || ! grep -qE "$pattern" "$tmp/log"; then
        echo "FAIL: $NB_FAKE, $*: status $status instead of $want, $(cat "$NB_FAKE_COUNT") machines instead of $starts, or no \"$pattern\""
        cat "$tmp/log"
        failed=1
    fi
}

vm=$tmp/vm/vm.sh
expect 0 1 'start 1: ok' "ok" "$vm" true
expect 1 1 'start 1: bad' "bad" "$vm" true
expect 1 1 'vm: kernel: .*soft lockup' "warned" "$vm" true
expect 99 1 "^vm: the guest's kernel died: PANIC: double fault" "double" "$vm" true
expect 99 1 "^vm: the guest's kernel died: BUG: kernel NULL" "oops" "$vm" true
expect 99 1 '^vm: kernel: .*rxe_wq do_work' "double" "$vm" true
expect 125 1 'ended early' "early" "$vm" true
expect 124 1 'over the limit of 2 s' "hangs" "$vm" -t 2 true
# With two machines vm.sh ends the other machine, which is not that machine's failure.
expect 0 2 '1\| start' "ok ok" "$vm" -n 2 true
expect 99 2 "kernel died: PANIC" "double hangs" "$vm" -n 2 true
expect 99 2 "kernel died: PANIC" "hangs double" "$vm" -n 2 true
expect 1 2 '' "ok bad" "$vm" -n 2 true

# The test around it, without its other reasons for a skip.
echo '#define NB_HAVE_VERBS 1' >"$tmp/build/config.h"
printf '#!/bin/sh\necho libibverbs.so.1\n' >"$tmp/bin/ldconfig"
chmod +x "$tmp/bin/ldconfig"
NB_BUILDDIR=$tmp/build
export NB_BUILDDIR
expect 0 1 '' "ok" "$tmp/vm/test-vm.sh"
expect 1 1 '' "bad" "$tmp/vm/test-vm.sh"
expect 0 2 "died \(try 1 of 2\): PANIC" "double ok" "$tmp/vm/test-vm.sh"
expect 1 2 "died \(try 1 of 2\): PANIC" "double bad" "$tmp/vm/test-vm.sh"
expect 77 2 "^SKIP: the guest's kernel died twice: BUG" "double oops" "$tmp/vm/test-vm.sh"
expect 1 1 'ended early' "early" "$tmp/vm/test-vm.sh"
# The long form goes on with its other parts, and a failure of one is a failure of all.
printf '#!/bin/sh\n' >"$tmp/bin/ib_write_bw"
chmod +x "$tmp/bin/ib_write_bw"
NB_VM_TESTS=long
export NB_VM_TESTS
expect 0 5 '' "ok ok ok ok ok" "$tmp/vm/test-vm.sh"
expect 77 6 "^SKIP: the guest's kernel died twice" "double double ok ok ok ok ok" "$tmp/vm/test-vm.sh"
expect 1 6 "died \(try 2 of 2\)" "double double bad ok ok ok" "$tmp/vm/test-vm.sh"
[ $failed = 0 ] && echo "PASS: dead guests are told apart"
exit $failed
