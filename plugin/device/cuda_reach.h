/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose memory an address is: the ranges that a communicator's device was given or has made, so that nobody has to
 * ask the driver while a kernel runs.
 *
 * Threads: any.
 */
#ifndef NIBBLE_DEVICE_CUDA_REACH_H
#define NIBBLE_DEVICE_CUDA_REACH_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum nb_reach {
    NB_REACH_UNKNOWN = 0,
    NB_REACH_NONE, /* the GPU does not see it */
    NB_REACH_CPU,  /* both see it, at the same address */
    NB_REACH_GPU,  /* the GPU alone */
};

struct nb_reach_range {
    uintptr_t base;
    size_t bytes;
    enum nb_reach reach;
};

struct nb_ranges {
    pthread_mutex_t lock;
    struct nb_reach_range *range; /* by address; they do not overlap */
    unsigned n, cap;
};

void nb_ranges_init(struct nb_ranges *ranges);
void nb_ranges_free(struct nb_ranges *ranges);
/* Add a range, or note again what one with this base is: 0, or -ENOMEM (nothing is logged). Remove the one with
 * this base, if there is one. */
int nb_ranges_add(struct nb_ranges *ranges, const void *base, size_t bytes, enum nb_reach reach);
void nb_ranges_remove(struct nb_ranges *ranges, const void *base);
enum nb_reach nb_ranges_find(struct nb_ranges *ranges, const void *address);

#endif
