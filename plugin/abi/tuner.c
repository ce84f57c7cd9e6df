/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner, without table versions; see api.h. A context that has no opinion (no CollNet half of ours in
 * this process, bad settings, no memory) and a NULL one leave everything as NCCL has it; nothing here ever
 * fails, since an error would fail the user's operation.
 */
#include <stdlib.h>

#include "abi/api.h"
#include "abi/process.h"
#include "base/log.h"
#include "nibble/nccl_tuner.h"
#include "policy/queue.h"
#include "policy/tuning.h"

ncclResult_t nb_api_tuner_init_with(void **context, size_t nranks, size_t nnodes, ncclDebugLogger_t logger,
                                    bool records)
{
    const struct nb_params *params;
    struct nb_tuning *tuning;

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (logger)
        nb_log_set(logger);
    struct nb_context *ctx = nb_process_context();
    if (!ctx)
        return ncclSuccess;
    nb_note_tuner(ctx);
    /* Loaded by its name beside another network plugin, CollNet's entries speak of that one. */
    params = nb_process_share_settings();
    if (!params)
        return ncclSuccess;
    tuning = malloc(sizeof(*tuning));
    if (!tuning) {
        nb_process_release_settings();
        return ncclSuccess;
    }
    tuning->params = params;
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

ncclResult_t nb_api_tuner_init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                               ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                               ncclTunerConstants_v5_t *constants)
{
    (void)comm_id;
    (void)domains;
    (void)constants;
    return nb_api_tuner_init_with(context, nranks, nnodes, logger, true);
}

ncclResult_t nb_api_tuner_info(void *context, ncclFunc_t func, size_t bytes, int ops, float **table,
                               int algos, int protos, int registered, int *channels)
{
    (void)ops;
    (void)registered;
    (void)channels; /* NCCL does not check it for CollNet: left alone */
    if (context && table)
        nb_tuning_costs(context, func, bytes, (float *)table, algos, protos);
    return ncclSuccess;
}

ncclResult_t nb_api_tuner_chunk(void *context, ncclFunc_t func, size_t bytes, int algo, int proto,
                                int channels, size_t *chunk)
{
    (void)func;
    (void)bytes;
    (void)channels;
    if (context && chunk)
        *chunk = nb_tuning_chunk(context, algo, proto, *chunk);
    return ncclSuccess;
}

ncclResult_t nb_api_tuner_finalize(void *context)
{
    if (context) {
        free(context);
        nb_process_release_settings();
    }
    return ncclSuccess;
}
