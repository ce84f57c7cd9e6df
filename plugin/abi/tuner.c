/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner tables, ncclTunerPlugin_v4 to _v6. A context that has no opinion (no CollNet half of ours in this
 * process, bad settings, no memory) and a NULL one leave everything as NCCL has it; nothing here ever fails,
 * since an error would fail the user's operation.
 */
#include <stdlib.h>

#include "abi/instance.h"
#include "abi/properties.h"
#include "base/log.h"
#include "base/params.h"
#include "nibble/nccl_tuner.h"
#include "policy/record.h"
#include "policy/tuning.h"

static ncclResult_t tune_init(void **context, size_t nranks, size_t nnodes, ncclDebugLogger_t logger,
                              int records)
{
    struct nb_tuning *tuning;

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (logger)
        nb_log_set(logger);
    nb_note_tuner();
    /* Loaded by its name beside another network plugin, CollNet's entries speak of that one. */
    if (!nb_instance_has(NB_HALF_COLLNET) || nb_params_acquire())
        return ncclSuccess;
    tuning = malloc(sizeof(*tuning));
    if (!tuning) {
        nb_params_release();
        return ncclSuccess;
    }
    tuning->nranks = nranks;
    tuning->nnodes = nnodes;
    tuning->records = records;
    *context = tuning;
    if (nnodes > 1)
        NB_INFO(NCCL_INIT | NCCL_TUNING,
                "tuner: %zu ranks on %zu nodes: CollNet is preferred for reduce-scatter%s and "
                "all-gather that NIBBLE_*_MIN_BYTES allow, where NCCL can run it",
                nranks, nnodes, records ? ", all-reduce" : "");
    return ncclSuccess;
}

static ncclResult_t tune_init_v4(size_t nranks, size_t nnodes, ncclDebugLogger_t logger, void **context)
{
    return tune_init(context, nranks, nnodes, logger, 0);
}

static ncclResult_t tune_init_v5(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                                 ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                                 ncclTunerConstants_v5_t *constants)
{
    (void)comm_id;
    (void)domains;
    (void)constants;
    return tune_init(context, nranks, nnodes, logger, 1);
}

static ncclResult_t tune_info_v4(void *context, ncclFunc_t func, size_t bytes, int ops, float **table,
                                 int algos, int protos, int registered, int *channels)
{
    (void)ops;
    (void)registered;
    (void)channels; /* NCCL does not check it for CollNet: left alone */
    if (context && table)
        nb_tuning_costs(context, func, bytes, (float *)table, algos, protos);
    return ncclSuccess;
}

static ncclResult_t tune_chunk_v6(void *context, ncclFunc_t func, size_t bytes, int algo, int proto,
                                  int channels, size_t *chunk)
{
    (void)func;
    (void)bytes;
    (void)channels;
    if (context && chunk)
        *chunk = nb_tuning_chunk(context, algo, proto, *chunk);
    return ncclSuccess;
}

static ncclResult_t tune_finalize_v4(void *context)
{
    if (context) {
        free(context);
        nb_params_release();
    }
    return ncclSuccess;
}

NB_EXPORT const ncclTuner_v4_t ncclTunerPlugin_v4 = {
    .name = "nibble",
    .init = tune_init_v4,
    .getCollInfo = tune_info_v4,
    .destroy = tune_finalize_v4,
};

NB_EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {
    .name = "nibble",
    .init = tune_init_v5,
    .getCollInfo = tune_info_v4,
    .finalize = tune_finalize_v4,
};

NB_EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {
    .name = "nibble",
    .init = tune_init_v5,
    .getCollInfo = tune_info_v4,
    .finalize = tune_finalize_v4,
    .getChunkSize = tune_chunk_v6,
};
