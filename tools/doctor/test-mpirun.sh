#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nibble-doctor and nibble-perf started by a real Open MPI on three hosts, which are network namespaces. Skipped where Open MPI is
# not installed (Debian: openmpi-bin).
set -u
NB_SRCDIR=${NB_SRCDIR:-$(dirname "$0")/../..}
command -v mpirun >/dev/null 2>&1 || { echo "SKIP: no mpirun"; exit 77; }
mpirun --version 2>/dev/null | grep -q 'Open MPI' || { echo "SKIP: mpirun is not Open MPI's"; exit 77; }
# shellcheck source=tools/bench/links.sh
. "$NB_SRCDIR/tools/bench/links.sh"
links_enter "$0" "$@"

interfaces==hx0
# shellcheck source=tools/doctor/report.sh
. "$NB_SRCDIR/tools/doctor/report.sh"
report=$tmp/out
links_up 3 0

# by_mpi COMMAND...: on each host once, started from host 0; -x hands on the variables that a job would need.
by_mpi()
{
    on_named 0 node1 env TMPDIR="$tmp" timeout 120 mpirun --allow-run-as-root \
        --mca plm_rsh_agent "$srcdir/tools/bench/mpi_agent.sh" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include hx0 \
        --bind-to none --host 10.77.0.1,10.77.0.2,10.77.0.3 --map-by ppr:1:node \
        -x NCCL_NET_PLUGIN -x NCCL_COLLNET_ENABLE -x NCCL_NET -x NCCL_SOCKET_IFNAME -x NIBBLE_NET "$@"
}

doctor_finds_all_well 'Open MPI' by_mpi "$doctor" --root 10.77.0.1 --no-speed --python "" --nccl "$tmp/none"

# Nobody says where rank 0 is: all end, and the question is asked.
by_mpi "$doctor" --no-speed --python "" --nccl "$tmp/none" >"$report" 2>&1 && fail "it runs, and nobody knows where node 0 is"
grep -q 'where is node 0? --root HOST' "$report" || fail "where node 0 is was not asked: $(cat "$report")"

perf_runs by_mpi "$builddir/tools/nibble-perf" coll --root 10.77.0.1 -b 64K -e 128K

links_down
[ $failed = 0 ] && echo "PASS: nibble-doctor and nibble-perf under $(mpirun --version | head -n 1)"
exit $failed
