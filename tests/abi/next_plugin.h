/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profiler and a tuner that write down what they are asked, for tests of what nibble passes on to others:
 * modules next_plugin_v4.c to _v6.c have the tables of one version each. They are found with dlsym as
 * `nb_next_plugin`.
 */
#ifndef NIBBLE_TESTS_ABI_NEXT_PLUGIN_H
#define NIBBLE_TESTS_ABI_NEXT_PLUGIN_H

#include <stddef.h>

#include "nibble/nccl_profiler.h"
#include "nibble/nccl_tuner.h"

struct next_plugin {
    char *log; /* a line for each call; handles are numbered as they are given out */
    size_t cap, used;
    int mask;             /* that the profiler asks for */
    int *mask_of_nccl;    /* as it was told */
    ncclResult_t refuses; /* what init of the profiler and getCollInfo give, if not success */
    int handles, contexts;
    int prefers; /* the algorithm that the tuner makes cheapest, with 7 channels; -1: none */
};

#endif
