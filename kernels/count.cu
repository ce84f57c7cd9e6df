/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel for one operation alone, for tools/sass-count. The descriptor's operation is known at compile
 * time (NB_COUNT_OP, NB_COUNT_TYPE, NB_COUNT_MODE, NB_COUNT_CODEC, NB_COUNT_ALONE: one source). Events of the profiler mark
 * the usual path: they need no registers and keep their place in the code. Not part of the library.
 */
#define NB_OP(d) NB_COUNT_OP
#define NB_TYPE(d) NB_COUNT_TYPE
#define NB_MODE(d) NB_COUNT_MODE
#define NB_CODEC(d) NB_COUNT_CODEC
#define NB_ALONE(d) NB_COUNT_ALONE
#define NB_MARK(n) asm volatile("pmevent " #n ";")
#define NB_RARE NB_MARK(0)        /* seldom runs */
#define NB_EACH_TICKET NB_MARK(1) /* in the loop whose passes are counted */
#define NB_ONE_WARP NB_MARK(2)    /* one warp of the block does this */
#define NB_EACH_SOURCE NB_MARK(3) /* once for each source of a sum */
#define NB_EACH_FURTHER NB_MARK(10) /* once for each source but the first */
#define NB_TIMES(n) NB_MARK_TIMES(NB_TIMES_##n) /* in a loop that is passed n times */
#define NB_MARK_TIMES(n) NB_MARK(n)
#define NB_TIMES_2 5
#define NB_TIMES_16 8
#define NB_TIMES_32 9
#include "kernel.cuh"

extern "C" __global__ void __launch_bounds__(NB_GPU_THREADS, NB_GPU_TEAMS) nb_gpu_work(const struct nb_gpu_launch launch)
{
    extern __shared__ nb_quad memory[];
    nb_work(&launch, (struct nb_shared *)memory);
}
