/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the launching experiments. Each returns when the host releases it or its own time is over, so
 * that every experiment ends.
 */
#include "launch.h"

static __device__ uint64_t now(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Return whether to stop waiting. */
static __device__ bool over(struct nb_board *board, uint64_t deadline)
{
    if (board->release)
        return true;
    if (now() < deadline)
        return false;
    board->late = 1;
    __threadfence_system();
    return true;
}

/* Play an operation in progress: wait for the host's flag. */
extern "C" __global__ void nb_hold(struct nb_board *board, uint64_t limit_ns)
{
    uint64_t deadline = now() + limit_ns;
    board->holds = 1;
    __threadfence_system();
    while (!board->flag && !over(board, deadline))
        ;
}

/* Play a kernel launched meanwhile. */
extern "C" __global__ void nb_mark(struct nb_board *board)
{
    board->marks = 1;
    __threadfence_system();
}

/* Play other work: every block takes its place for a while. */
extern "C" __global__ void __launch_bounds__(512) nb_fill(struct nb_board *board, uint64_t ns)
{
    uint64_t deadline = now() + ns;
    while (!board->quiet && !board->release && now() < deadline)
        ;
}

/* Play an operation of NCCL: send window after window and wait for each. seq counts windows. */
extern "C" __global__ void nb_operation(struct nb_board *board, unsigned which, uint32_t *seq,
                                        uint64_t limit_ns)
{
    struct nb_lane *lane = &board->lane[which];
    uint64_t deadline = now() + limit_ns;
    uint32_t first = *seq;

    if (threadIdx.x)
        return;
    for (uint32_t w = 1; w <= NB_WINDOWS; w++) {
        __threadfence_system();
        lane->request = first + w;
        while ((int32_t)(lane->acked - (first + w)) < 0)
            if (over(board, deadline))
                return;
    }
    *seq = first + NB_WINDOWS;
}

/* Play the codec beside it, one of several in a row: serve windows until the kernel of this number must
 * end. */
extern "C" __global__ void nb_codec(struct nb_board *board, unsigned which, unsigned number, uint64_t limit_ns)
{
    struct nb_lane *lane = &board->lane[which];
    uint64_t deadline = now() + limit_ns;

    if (threadIdx.x)
        return;
    while (lane->told <= number && !over(board, deadline)) {
        uint32_t posted = lane->posted;
        if (posted == lane->done)
            continue;
        __threadfence_system();
        lane->done = posted;
        __threadfence_system();
    }
}

/* Kernels for loading at their launch. */
#define LATE(n) \
    extern "C" __global__ void nb_late##n(struct nb_board *board) \
    { \
        board->marks = 1 + n % 10; \
    }
#define LATE8(t) LATE(t##0) LATE(t##1) LATE(t##2) LATE(t##3) LATE(t##4) LATE(t##5) LATE(t##6) LATE(t##7)
LATE8(0) LATE8(1) LATE8(2)

/* Play the codec beside it, as branches of graphs run it: serve windows until the host reports this launch
 * complete. life counts launches. */
extern "C" __global__ void nb_resident(struct nb_board *board, unsigned which, uint32_t *life,
                                       uint64_t limit_ns)
{
    struct nb_lane *lane = &board->lane[which];
    uint64_t deadline = now() + limit_ns;
    uint32_t launch = *life, served = launch * NB_WINDOWS;

    if (threadIdx.x)
        return;
    while ((int32_t)(lane->end - launch) <= 0) {
        uint32_t posted = lane->posted;
        if ((int32_t)(posted - served) > 0) {
            __threadfence_system();
            served = posted;
            lane->done = served;
            __threadfence_system();
        } else if (over(board, deadline)) {
            return;
        }
    }
    *life = launch + 1;
}
