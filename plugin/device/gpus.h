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
    pthread_mutex_t lock;              /* covers what follows, and each entry's `users` and `shared` */
    struct nb_gpu *list;               /* one for each communicator on a GPU, in no order */
    uint16_t serials;                  /* number of the next entry */
    atomic_int pointers;               /* NCCL was told that GPU memory is welcome */
    atomic_int reporting[NB_GPUS_MAX]; /* communicators on a GPU whose kernel launches NCCL reports */
    unsigned rings[NB_GPUS_MAX];       /* communicators that run codecs on it */
    unsigned blocks
        [NB_GPUS_MAX]; /* of their kernels that were launched and not captured, and have not been told to end */
};

/* Add an entry and give it a number that no entry beside it has; take it out: no more of it is found, and
 * nb_gpus_used says whether some thread still has it. Any thread. */
void nb_gpus_add(struct nb_gpus *gpus, struct nb_gpu *gpu);
void nb_gpus_remove(struct nb_gpus *gpus, struct nb_gpu *gpu);
int nb_gpus_used(struct nb_gpus *gpus, const struct nb_gpu *gpu);

/* The entry of communicator `comm_id` (0: not known) on the GPU with this ordinal: its own, or that of the parent
 * whose connections it is known to share (nb_gpus_share). NULL: none. The entry stays until nb_gpus_unfind; no lock is
 * held meanwhile, so what is done with it may wait. Any thread. */
struct nb_gpu *nb_gpus_find(struct nb_gpus *gpus, int ordinal, uint64_t comm_id);
/* The same by number. */
struct nb_gpu *nb_gpus_find_serial(struct nb_gpus *gpus, uint16_t serial);
void nb_gpus_unfind(struct nb_gpus *gpus, struct nb_gpu *gpu);

/* Operations of communicator `comm_id` have come to this one: its launches get kernels of this one's from now on. */
void nb_gpus_share(struct nb_gpus *gpus, struct nb_gpu *gpu, uint64_t comm_id);

/* How many blocks a launch of the codec kernel gets: so many that all communicators of a GPU together have at most
 * `budget`, and each at least NB_GPUS_LEAST (so more than the budget where there are many). Given back by the same number; a
 * captured launch (which may run at any time) gets an equal share, which is not counted. Any thread. */
#define NB_GPUS_LEAST 2u
unsigned nb_gpus_take_blocks(struct nb_gpus *gpus, int ordinal, unsigned budget, int captured);
void nb_gpus_give_blocks(struct nb_gpus *gpus, int ordinal, unsigned blocks);

#endif
