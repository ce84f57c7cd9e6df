#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dry.sh DIR BUILD: a tree for gpu-check.sh --dry. The programs that call the driver are the same ones over the model of the
# driver (tests/gpu/model.h), and the kernels' bytes are looked at on emulated threads: built in BUILD by `make check`. hazards, nccl,
# mps and training are the same scripts over a PyTorch that does nothing (dry/torch.py); ranks of the last three, which need
# results, are stand-ins (dry/standin.py), as are NVIDIA's tools, made here. It proves nothing about
# a GPU: it lets gpu-check, and the experiments, be checked on any machine.
set -eu
dir=$1
build=$2
mkdir -p "$dir/tests/gpu" "$dir/tools/gpu-check" "$dir/.libs"
[ ! -f "$build/.libs/libnccl-net-nibble.so" ] || ln -s "$build/.libs/libnccl-net-nibble.so" "$dir/.libs"

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

# NVIDIA's tools: a sanitizer that finds nothing, and the daemon of MPS, which is there until it is told to quit.
cat >"$dir/compute-sanitizer" <<'END'
#!/bin/sh
echo '========= ERROR SUMMARY: 0 errors'
END
cat >"$dir/nvidia-cuda-mps-control" <<'END'
#!/bin/sh
[ "${1-}" = -d ] && echo started >"$CUDA_MPS_PIPE_DIRECTORY/daemon" && exit 0
[ "$(cat)" = quit ] && rm "$CUDA_MPS_PIPE_DIRECTORY/daemon"
END
chmod +x "$dir/compute-sanitizer" "$dir/nvidia-cuda-mps-control"
