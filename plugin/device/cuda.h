/* SPDX-License-Identifier: Apache-2.0 */
/* The device of communicators whose codecs run on a GPU; cuda_gpu.h lists its parts. */
#ifndef NIBBLE_DEVICE_CUDA_H
#define NIBBLE_DEVICE_CUDA_H

#include "device/device.h"

/* Create a communicator's instance, which uses ctx until its table's `close`. 0 and *dev; -ENODEV or -ENOTSUP
 * when this process cannot use a GPU (`why`, of `cap` bytes, has the reason, and nothing is logged); other
 * errors after a WARN. On NCCL's thread, at connect. */
int nb_cuda_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev,
                        char *why, size_t cap);

/* 1 when NIBBLE_DEVICE and NIBBLE_GPU_POINTERS allow telling NCCL that device pointers are welcome, and all
 * that this needs is there; else 0, and the reason in `why`. `gpu`: ordinal, -1: not known yet. On NCCL's
 * thread. */
int nb_cuda_takes_pointers(struct nb_context *ctx, int gpu, char *why, size_t cap);

/* 1 when NCCL was told that it may hand over GPU memory (nb_device_pointers). Any thread. */
int nb_cuda_pointers_claimed(const struct nb_context *ctx);

#endif
