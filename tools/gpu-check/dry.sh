#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dry.sh DIR BUILD: a tree for gpu-check.sh --dry. The programs that call the driver are the same ones over the model of the
# driver (tests/gpu/model.h), and the kernels' bytes are looked at on emulated threads: built in BUILD by `make check`. hazards runs
# over a PyTorch that does nothing (dry/torch.py). What needs results of PyTorch's, or NVIDIA's tools, is replaced by scripts that
# print lines of the form that the real ones print. It proves nothing about
# a GPU: it lets gpu-check, and the experiments, be checked on any machine.
set -eu
dir=$1
build=$2
mkdir -p "$dir/tests/gpu" "$dir/tools/gpu-check"

# over PATH PROGRAM ARGUMENTS...: PATH of the tree is PROGRAM of BUILD, called with these arguments alone.
over()
{
    path=$1
    program=$2
    shift 2
    [ -x "$build/$program" ] || {
        echo "gpu-check: --dry needs $program in $build, which make check builds" >&2
        exit 2
    }
    printf '#!/bin/sh\nexec "%s" %s\n' "$build/$program" "$*" >"$dir/$path"
    chmod +x "$dir/$path"
}

over tools/gpu-check/launches tests/gpu/model_launches
over tests/gpu/gpu_kernels tests/kernels/test_kernels 1
over tests/gpu/kernel_speed tests/gpu/model_kernel_speed --json --most 64
over tests/gpu/ring_speed tests/gpu/model_ring_speed --json --seconds 0.0001

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

stand_in compute-sanitizer <<'END'
========= ERROR SUMMARY: 0 errors
END
stand_in nccl <<'END'
result passed 2 processes, host buffers, default connections, coded: 320 results right, worst error of coded sums 0.0110, 9 s
--
mkdir -p "$NB_WORK/logs/nccl-2-processes"
echo 'NCCL INFO a log of a rank' >"$NB_WORK/logs/nccl-2-processes/rank0.log"
echo '{"configurations": []}' >"$NB_WORK/nccl.json"
END
stand_in mps <<'END'
result measured processes: share the GPU through MPS
result passed fsdp2 on the GPU, finite losses: 72 steps
END
stand_in training <<'END'
result passed ddp, finite losses: 72 steps
result measured ddp, on the wire: reduce_scatter 9.0 MB as 2.4, 40 of 72 coded
--
echo '{"runs": []}' >"$NB_WORK/training.json"
echo 'way,step,plain,nibble' >"$NB_WORK/curves.csv"
END
