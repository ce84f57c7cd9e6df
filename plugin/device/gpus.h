/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context knows of GPUs (nb_context.gpus): the communicators that run codecs on one, and whether NCCL
 * reports its kernel launches and may hand over GPU memory. Private to plugin/device; device.h has
 * nb_gpus_open and nb_gpus_close.
 */
#ifndef NIBBLE_DEVICE_GPUS_H
#define NIBBLE_DEVICE_GPUS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/context.h"

#define NB_GPUS_MAX 64 /* ordinals of which reports are counted */

struct nb_gpu;

struct nb_gpus {
    pthread_mutex_t lock;              /* covers `list`, `serials`, and each entry's life */
    struct nb_gpu *list;               /* one for each communicator on a GPU, in no order */
    uint16_t serials;                  /* number of the next entry */
    atomic_int pointers;               /* NCCL was told that GPU memory is welcome */
    atomic_int reporting[NB_GPUS_MAX]; /* communicators on a GPU whose kernel launches NCCL reports */
};

/* Add an entry and give it a number that no entry beside it has; take it out. Any thread. */
void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *gpu);
void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *gpu);

/* The entry of communicator `comm_id` (0: not known) on the GPU with this ordinal; else, for a child
 * communicator that shares its parent's resources, the only one of as many nodes on this GPU. NULL: none. The
 * entry stays until nb_gpus_unfind, which must follow on the same thread unless NULL. Any thread. */
struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id, int nnodes);
/* The same by number. */
struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial);
void nb_gpus_unfind(struct nb_gpus *gpus);

#endif
