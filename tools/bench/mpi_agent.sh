#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Open MPI's remote shell over the hosts of links.sh: "mpi_agent.sh 10.77.0.N COMMAND..." runs it on host
# N - 1, with a host name of its own, so that Open MPI takes hosts for different machines.
last=${1##*.}
shift
exec ip netns exec n$((last - 1)) unshare --uts sh -c 'hostname node'"$last"' && eval "$0"' "$*"
