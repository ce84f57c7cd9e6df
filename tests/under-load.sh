#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# under-load.sh [-n PROCESSES] COMMAND...: run a command beside PROCESSES (20) processes that only take
# processor time from it. No test may fail by that:  tests/under-load.sh make check
processes=20
if [ "${1-}" = -n ]; then
    processes=$2
    shift 2
fi
[ $# -gt 0 ] || { sed -n '3,4s/^# //p' "$0"; exit 2; }
busy=
trap '[ -z "$busy" ] || kill $busy 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP
while [ "$processes" -gt 0 ]; do
    # Each looks now and then whether the command still runs.
    sh -c 'while kill -0 "$1" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done' busy $$ &
    busy="$busy $!"
    processes=$((processes - 1))
done
"$@"
