/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner that comes after nibble's (NIBBLE_TUNER_NEXT): it is asked first, about what NCCL offers, and
 * nibble changes what it leaves only where an operation is to take CollNet. What it answers to NCCL, errors
 * too, NCCL gets: all ranks have to choose alike, and an error that is hidden on one of them could make it
 * choose otherwise.
 */
#ifndef NIBBLE_ABI_TUNER_NEXT_H
#define NIBBLE_ABI_TUNER_NEXT_H

#include <stddef.h>
#include <stdint.h>

#include "abi/next.h"
#include "nibble/nccl_tuner.h"

struct nb_tuner_next {
    struct nb_next_table of;
    void *context; /* its own */
};

/* What NCCL gives to init, as far as the version of its table has it. */
struct nb_tuner_setting {
    int version;
    uint64_t comm_id;
    size_t nranks, nnodes;
    ncclDebugLogger_t logger;
    ncclNvlDomainInfo_v5_t *domains;
    ncclTunerConstants_v5_t *constants;
};

/* Find it, and begin: its result. next->of.table is NULL where there is none. */
ncclResult_t nb_tuner_next_init(struct nb_tuner_next *next, const struct nb_tuner_setting *setting);
ncclResult_t nb_tuner_next_info(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int ops,
                                float **table, int algos, int protos, int registered, int *channels);
ncclResult_t nb_tuner_next_chunk(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int algo,
                                 int proto, int channels, size_t *chunk);
ncclResult_t nb_tuner_next_finalize(const struct nb_tuner_next *next);

#endif
