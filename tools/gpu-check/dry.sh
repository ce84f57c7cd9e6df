#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dry.sh DIR: a built tree for gpu-check.sh --dry, in which each program is a script that prints lines of the form that the
# real one prints. It proves nothing about a GPU: it lets gpu-check's own reading of them be checked on any machine.
set -eu
dir=$1
mkdir -p "$dir/tests/gpu" "$dir/tools/gpu-check"

# stand_in PATH: a program that prints the standard input, then goes on with it as shell commands behind a line "--".
stand_in()
{
    {
        echo '#!/bin/sh'
        awk '
            /^--$/ { code = 1; next }
            code { print; next }
            { gsub(/'\''/, "'\''\\'\'''\''"); print "echo '\''" $0 "'\''" }'
    } >"$dir/$1"
    chmod +x "$dir/$1"
}

stand_in tools/gpu-check/launches <<'END'
a device, 132 multiprocessors, priorities 0 to -5, one connection
result measured beside a waiting operation, one connection: it did not start until the operation had ended (waited 2.0 s)
result measured beside a waiting operation, default connections: it started, after 0.02 ms
verdict launching: per batch no with one connection and yes by default
END
stand_in tests/gpu/gpu_kernels <<'END'
golden vectors: 42 alike
END
stand_in tests/gpu/kernel_speed <<'END'
{"device": "a device", "multiprocessors": 132, "results": [
  {"kernel": "encode BF16", "mib": 64, "bytes": 84000000, "gb_per_s": 3900.0, "of_copy": 0.907},
  {"kernel": "decode and sum BF16, 3 peers", "mib": 64, "bytes": 84000000, "gb_per_s": 4000.0, "of_copy": 0.930},
  {"kernel": "ulp encode BF16", "mib": 64, "bytes": 84000000, "gb_per_s": 430.0, "of_copy": 0.100}
]}
END
stand_in tests/gpu/ring_speed <<'END'
{"device": "a device", "multiprocessors": 132, "results": [
  {"what": "encode BF16", "memory": "device", "kib": 128, "blocks": 33, "depth": 32, "gb_per_s": 200.00, "us": 9.10},
  {"what": "encode BF16", "memory": "pinned", "kib": 128, "blocks": 33, "depth": 32, "gb_per_s": 40.00, "us": 19.10}
]}
END
stand_in compute-sanitizer <<'END'
========= ERROR SUMMARY: 0 errors
END
stand_in hazards <<'END'
result measured first_launches, plain NCCL, default connections: ms 4.1
result skipped abort, plain NCCL, default connections: no time left
--
echo '[{"name": "first_launches"}]' >"$NB_WORK/hazards.json"
END
stand_in nccl <<'END'
result passed 2 processes, host buffers, default connections, coded: 320 results right, worst error of coded sums 0.0110, 9 s
--
mkdir -p "$NB_WORK/logs/nccl-2-processes"
echo 'NCCL INFO a log of a rank' >"$NB_WORK/logs/nccl-2-processes/rank0.log"
echo '{"configurations": []}' >"$NB_WORK/nccl.json"
END
stand_in training <<'END'
result passed ddp, finite losses: 72 steps
result measured ddp, on the wire: reduce_scatter 9.0 MB as 2.4, 40 of 72 coded
--
echo '{"runs": []}' >"$NB_WORK/training.json"
echo 'way,step,plain,nibble' >"$NB_WORK/curves.csv"
END
