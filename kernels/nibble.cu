/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's entry. Compile with -fmad=false: every rounding is the format's (docs/wire-format.md). */
#include "kernel.cuh"

extern "C" __global__ void __launch_bounds__(NB_GPU_THREADS, NB_GPU_BLOCKS_PER_SM) nb_gpu_work(const struct nb_gpu_launch launch)
{
    __shared__ struct nb_shared shared;
    nb_work(&launch, &shared);
}
