/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profiler and a tuner that log their calls, for tests of the calls that nibble passes on. Modules
 * next_plugin_v4.c to _v7.c have the tables of one version each. dlsym finds them as `nb_next_plugin`.
 */
#ifndef NIBBLE_TESTS_ABI_NEXT_PLUGIN_H
#define NIBBLE_TESTS_ABI_NEXT_PLUGIN_H

#include <stddef.h>

#include "nibble/nccl_profiler.h"
#include "nibble/nccl_tuner.h"

struct next_plugin {
    char *log; /* a line for each call, with handles numbered in order */
    size_t cap, used;
    int mask;             /* mask that the profiler requests */
    int *mask_of_nccl;    /* pointer to NCCL's mask, from init */
    ncclResult_t refuses; /* result of the profiler's init and of getCollInfo */
    int handles, contexts;
    int prefers;  /* algorithm to which the tuner gives the cost `writes`, with 7 channels, -1: none */
    float writes; /* ... 0.5 makes it the cheapest */
};

#endif
