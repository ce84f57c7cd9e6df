/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapters that reach the fake driver's GPU memory, played over the process's transport: messages in two
 * parts, the device's own address of GPU memory, which the CPU cannot use, and writes to GPU memory that
 * are seen only behind a flush. An access beyond the life of a registration ends the program.
 */
#ifndef NIBBLE_TESTS_HARNESS_GPU_NET_H
#define NIBBLE_TESTS_HARNESS_GPU_NET_H

#include <stdbool.h>

struct nb_context;

struct gpu_net {
    bool dmabuf;     /* it registers by DMA-BUF, not by address */
    bool falls_back; /* it registers by DMA-BUF as well as by address, but the third DMA-BUF fails */
    bool refuses;    /* registrations of GPU memory fail */
    bool copies;     /* it copies between GPU memory and host memory by itself */
};

/* Put the adapters in front of ctx->net, whose transport has its messages in one part and is not used yet.
 * One in a process, until ctx->net is closed. */
void gpu_net_wrap(struct nb_context *ctx, const struct gpu_net *how);
/* Return how many payloads went from GPU memory, how many flushes were made, and how many copies. */
unsigned long gpu_net_sent(void);
unsigned long gpu_net_flushed(void);
unsigned long gpu_net_copied(void);
/* Return how many registrations of GPU memory there are. */
int gpu_net_registered(void);

#endif
