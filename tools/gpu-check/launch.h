/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the launching experiments' host side and kernels: flags in pinned host memory, which both poll.
 * One side alone writes each word, and counters only grow.
 */
#ifndef NIBBLE_TOOLS_GPU_CHECK_LAUNCH_H
#define NIBBLE_TOOLS_GPU_CHECK_LAUNCH_H

#include <stdint.h>

#define NB_LANES 4u   /* communicators */
#define NB_WINDOWS 8u /* windows of an operation */
#define NB_LATE 24u   /* kernels nb_late00 ... 07, 10 ... 17, 20 ... 27, which no earlier call has loaded */

/* One communicator: its operation asks for windows, and the host posts them to the resident kernel, which
 * answers. */
struct nb_lane {
    volatile uint32_t request; /* the operation's kernel: windows asked for */
    volatile uint32_t posted;  /* host: windows handed to the resident kernel */
    volatile uint32_t done;    /* resident kernel: windows served */
    volatile uint32_t acked;   /* host: windows after which the operation may go on */
    volatile uint32_t end;     /* host: launches that are complete */
    volatile uint32_t told;    /* host: kernels nb_codec, of the launched ones, that must end */
    volatile uint32_t pad[10];
};

struct nb_board {
    volatile uint32_t release; /* host: all kernels return, whatever they wait for */
    volatile uint32_t late;    /* kernels: one of them returned because its time was over */
    volatile uint32_t quiet;   /* host: kernels that fill the GPU return */
    volatile uint32_t flag;    /* host: the holding kernel waits for this */
    volatile uint32_t holds;   /* the holding kernel runs */
    volatile uint32_t marks;   /* a marking kernel ran */
    volatile uint32_t behind;  /* operations behind which the GPU has set this word */
    volatile uint32_t pad[9];
    struct nb_lane lane[NB_LANES];
};

#endif
