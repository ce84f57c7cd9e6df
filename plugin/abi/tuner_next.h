/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner after nibble's (NIBBLE_TUNER_NEXT). nibble asks it first, with NCCL's offer, and changes its
 * answer only where an operation shall take CollNet. NCCL gets its results, errors included: all ranks have
 * to choose alike, and an error that nibble hides on one rank could make that rank choose otherwise.
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

/* The arguments of NCCL's init, as far as the table's version has them. */
struct nb_tuner_setting {
    int version;
    uint64_t comm_id;
    size_t nranks, nnodes;
    ncclDebugLogger_t logger;
    ncclNvlDomainInfo_v5_t *domains;
    ncclTunerConstants_v5_t *constants;
};

/* Find the next tuner and call its init. Return its result. next->of.table is NULL without one. */
ncclResult_t nb_tuner_next_init(struct nb_tuner_next *next, const struct nb_tuner_setting *setting);
ncclResult_t nb_tuner_next_info(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int ops,
                                float **table, int algos, int protos, int registered, int *channels);
ncclResult_t nb_tuner_next_chunk(const struct nb_tuner_next *next, ncclFunc_t func, size_t bytes, int algo,
                                 int proto, int channels, size_t *chunk);
ncclResult_t nb_tuner_next_finalize(const struct nb_tuner_next *next);

#endif
