/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's entry. Compile with -fmad=false: every rounding is the format's (docs/wire-format.md). */
#include "kernel.cuh"

NB_STATIC_ASSERT(sizeof(struct nb_shared) <= NB_GPU_TEAM_SHARED, "a team's shared memory");
NB_STATIC_ASSERT(NB_GPU_TEAM_SHARED % 128 == 0, "each team's shared memory begins at a multiple of 128 bytes");

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define NB_TEAMS 3
#else
#define NB_TEAMS NB_GPU_TEAMS
#endif

extern "C" __global__ void __launch_bounds__(NB_GPU_THREADS * NB_TEAMS, 1) nb_gpu_work(const struct nb_gpu_launch launch)
{
    extern __shared__ nb_quad memory[];
    nb_work(&launch, (struct nb_shared *)((char *)memory + NB_GPU_TEAM_SHARED * threadIdx.y));
}
