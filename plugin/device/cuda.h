/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of communicators whose codecs run on a GPU: see cuda_gpu.h for its parts, and docs/architecture.md.
 */
#ifndef NIBBLE_DEVICE_CUDA_H
#define NIBBLE_DEVICE_CUDA_H

#include "device/device.h"

/* Make an instance. 0; -ENODEV or -ENOTSUP when this process cannot use a GPU (`why` says so, nothing is logged); other
 * errors after a WARN. */
int nb_cuda_device_open(const struct nb_device_wish *wish, struct nb_device **dev, char *why, size_t cap);

/* 1 when NIBBLE_DEVICE and NIBBLE_GPU_POINTERS allow to tell NCCL that device pointers are welcome, and everything that
 * this needs is there; else 0 and `why`. On NCCL's thread, with its GPU current. */
int nb_cuda_takes_pointers(int gpu, char *why, size_t cap);

#endif
