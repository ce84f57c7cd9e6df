#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-doctor and nibble-perf under a real Slurm, as docs/recipes.md says: a controller and three hosts, which are network
# namespaces with a slurmd each. Skipped where Slurm is not installed (Debian: slurm-wlm).
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
PATH=$PATH:/usr/sbin:/sbin
for program in slurmctld slurmd srun sinfo munged; do
    command -v $program >/dev/null 2>&1 || { echo "SKIP: no $program"; exit 77; }
done
# shellcheck source=tools/bench/links.sh
. "$NB_SRCDIR/tools/bench/links.sh"
links_enter "$0" "$@"

interfaces==hx0
# shellcheck source=tools/doctor/report.sh
. "$NB_SRCDIR/tools/doctor/report.sh"
report=$tmp/out
links_up 3 0

# ---- Hosts have names; the mount namespace is ours, so /etc/hosts can be, too. It needs its three lines alone.
printf '127.0.0.1 localhost\n10.77.0.1 n0\n10.77.0.2 n1\n10.77.0.3 n2\n' >"$tmp/hosts"
mount --bind "$tmp/hosts" /etc/hosts || links_skip "/etc/hosts cannot be ours here"

# ---- Munge, with a key of its own
mkdir -m 755 "$tmp/munge" "$tmp/state" "$tmp/spool"
chmod 755 "$tmp"
head -c 1024 /dev/urandom >"$tmp/munge/key" && chmod 400 "$tmp/munge/key"
munged --force --key-file="$tmp/munge/key" --socket="$tmp/munge/socket" --pid-file="$tmp/munge/pid" \
    --log-file="$tmp/munge/log" --seed-file="$tmp/munge/seed" >"$tmp/munged" 2>&1 ||
    { echo "SKIP: munged does not start: $(head -n 1 "$tmp/munged")"; exit 77; }

cat >"$tmp/slurm.conf" <<END
ClusterName=three
SlurmctldHost=n0(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$tmp/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool/%n
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd.%n.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdLogFile=$tmp/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n0 NodeAddr=10.77.0.1 CPUs=2
NodeName=n1 NodeAddr=10.77.0.2 CPUs=2
NodeName=n2 NodeAddr=10.77.0.3 CPUs=2
PartitionName=all Nodes=n[0-2] Default=YES State=UP
END
echo "CgroupPlugin=cgroup/v1" >"$tmp/cgroup.conf" # never used, but looked for, and v2 wants a file system
export SLURM_CONF="$tmp/slurm.conf"
for node in 0 1 2; do
    on_named $node n$node sh -c "[ $node -gt 0 ] || slurmctld -c; exec slurmd -N n$node -c" >"$tmp/start$node" 2>&1 ||
        { echo "SKIP: Slurm does not start: $(tail -n 3 "$tmp/start$node" "$tmp"/slurm*.log)"; exit 77; }
done
srun_on() { on_named 0 n0 timeout 120 srun "$@"; }
for _ in $(seq 60); do
    [ "$(on 0 sinfo -h -t idle -o %D 2>/dev/null)" = 3 ] && break
    sleep 0.5
done
[ "$(on 0 sinfo -h -t idle -o %D 2>/dev/null)" = 3 ] || { echo "SKIP: Slurm's nodes are not idle: $(on 0 sinfo -h 2>&1; tail -n 3 "$tmp"/slurm*.log)"; exit 77; }

# ---- The recipe: a process a node, which find each other by Slurm's variables
doctor_finds_all_well Slurm srun_on --nodes=3 --ntasks-per-node=1 "$doctor" --no-speed --python "" --nccl "$tmp/none"

# ---- A host whose environment differs is named by its name
cat >"$tmp/n1" <<END
#!/bin/sh
[ "\$SLURM_NODEID" != 1 ] || export NIBBLE_RS=int8
exec $doctor --no-speed --python "" --nccl $tmp/none
END
chmod +x "$tmp/n1"
srun_on --nodes=3 --ntasks-per-node=1 "$tmp/n1" >"$report" 2>"$tmp/err"
[ $? = 2 ] || fail "no problem where a node has another setting: $(cat "$report" "$tmp/err")"
say problem 'node 1 (n1).*: compared settings: NIBBLE_RS=int8'

# ---- nibble-perf by the same way
perf_runs srun_on --nodes=3 --ntasks-per-node=1 "$builddir/tools/nibble-perf" coll -b 64K -e 128K

links_down
[ $failed = 0 ] && echo "PASS: nibble-doctor and nibble-perf under Slurm $(slurmd -V)"
exit $failed
