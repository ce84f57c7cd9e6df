/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner, without table versions; see api.h. A context that has no opinion (no CollNet half of ours in
 * this process, bad settings, no memory) and a NULL one leave everything as NCCL, or the tuner that comes
 * after ours (tuner_next.h), has it; nothing of ours fails, since an error would fail the user's
 * operation. The exception is a communicator whose one-sided operations have failed: an error of the tuner is
 * the only one that NCCL passes on then (rma.c).
 */
#include <stdlib.h>
#include <string.h>

#include "abi/api.h"
#include "abi/process.h"
#include "abi/tuner_next.h"
#include "base/context.h"
#include "base/log.h"
#include "nibble/nccl_tuner.h"
#include "policy/reckon/reckon.h"
#include "policy/records/records.h"

#define CALLS_REPORTED \
    5 /* from this version on NCCL's profiler reports the users' calls: all-reduces can be coded */

struct tuner { /* of a communicator */
    uint64_t comm_id;
    struct nb_tuning tuning; /* params are NULL: no opinion */
    struct nb_queue *queue;  /* learns of NCCL's choices. NULL: no opinion, or no memory */
    struct nb_tuner_next next;
};

/* What nibble thinks of it; false: nothing. */
static bool form(struct nb_tuning *tuning, size_t nranks, size_t nnodes, bool records)
{
    struct nb_context *ctx = nb_process_context();

    if (!ctx)
        return false;
    nb_note_tuner(ctx);
    /* Loaded by its name beside another network plugin, CollNet's entries speak of that one. */
    *tuning = (struct nb_tuning){
        .params = nb_process_share_settings(), .nranks = nranks, .nnodes = nnodes, .records = records};
    if (tuning->params && nnodes > 1)
        NB_INFO(NCCL_INIT | NCCL_TUNING,
                "tuner: %zu ranks on %zu nodes: CollNet is preferred for reduce-scatter%s and "
                "all-gather that NIBBLE_MIN_BYTES allow, where NCCL can run it",
                nranks, nnodes, records ? ", all-reduce" : "");
    return tuning->params != NULL;
}

ncclResult_t nb_api_tuner_init(void **context, uint64_t comm_id, size_t nranks, size_t nnodes,
                               ncclDebugLogger_t logger, ncclNvlDomainInfo_v5_t *domains,
                               ncclTunerConstants_v5_t *constants, int version)
{
    const struct nb_tuner_setting setting = {.version = version,
                                             .comm_id = comm_id,
                                             .nranks = nranks,
                                             .nnodes = nnodes,
                                             .logger = logger,
                                             .domains = domains,
                                             .constants = constants};
    struct tuner *t;
    ncclResult_t result;
    bool thinks;

    if (!context)
        return ncclSuccess;
    *context = NULL;
    if (logger)
        nb_log_set(logger);
    t = calloc(1, sizeof(*t));
    if (!t)
        return ncclSuccess;
    t->comm_id = comm_id;
    thinks = form(&t->tuning, nranks, nnodes, version >= CALLS_REPORTED);
    if (thinks)
        t->queue = nb_queue_get(nb_process_context(), comm_id, nb_current_gpu(nb_process_context()));
    result = nb_tuner_next_init(&t->next, &setting);
    if (result == ncclSuccess && (thinks || t->next.of.table)) {
        *context = t;
        return ncclSuccess;
    }
    if (t->queue)
        nb_queue_put(t->queue);
    if (thinks)
        nb_process_release_settings();
    free(t);
    return result;
}

/* The next tuner rules an entry out by -1. NCCL up to 2.30 skips -1. From 2.31 on NCCL takes the least entry
 * that it can run, and -1 is less than every time. A cost of years is always the largest. */
#define NEVER 1e15f /* microseconds */
#define ENTRIES 128 /* NCCL has 21 */

static void rule_out(float *cost, const float *offered, int entries)
{
    for (int i = 0; i < entries; i++)
        if (offered[i] >= 0 && cost[i] < 0)
            cost[i] = NEVER;
}

ncclResult_t nb_api_tuner_info(void *context, ncclFunc_t func, size_t bytes, int ops, float **table,
                               int algos, int protos, int registered, int *channels)
{
    const struct tuner *t = context;
    const int offered_channels = channels ? *channels : 0;
    float offered[ENTRIES], *cost = (float *)table;
    ncclResult_t result;
    int entries = 0;

    if (!t)
        return ncclSuccess;
    if (nb_process_has_failed(t->comm_id))
        return ncclRemoteError;
    if (cost && t->next.of.table && algos > 0 && protos > 0 && algos <= ENTRIES / protos)
        entries = algos * protos;
    if (entries)
        memcpy(offered, cost, (size_t)entries * sizeof(*cost));
    result = nb_tuner_next_info(&t->next, func, bytes, ops, table, algos, protos, registered, channels);
    /* A number of channels was meant for the choice that is changed; NCCL does not check it for CollNet. */
    if (result == ncclSuccess && t->tuning.params && cost &&
        nb_tuning_costs(&t->tuning, func, bytes, cost, algos, protos) && channels)
        *channels = offered_channels;
    rule_out(cost, offered, entries);
    if (result == ncclSuccess && t->queue && cost && algos > 0 && protos > 0 &&
        (func == ncclFuncAllReduce || func == ncclFuncReduceScatter || func == ncclFuncAllGather))
        nb_queue_chosen(t->queue, nb_tuning_reaches(cost, algos, protos));
    return result;
}

ncclResult_t nb_api_tuner_chunk(void *context, ncclFunc_t func, size_t bytes, int algo, int proto,
                                int channels, size_t *chunk)
{
    const struct tuner *t = context;
    ncclResult_t result = ncclSuccess;

    if (t)
        result = nb_tuner_next_chunk(&t->next, func, bytes, algo, proto, channels, chunk);
    if (t && result == ncclSuccess && t->tuning.params && chunk)
        *chunk = nb_tuning_chunk(&t->tuning, bytes, algo, proto, channels, *chunk);
    return result;
}

ncclResult_t nb_api_tuner_finalize(void *context)
{
    struct tuner *t = context;
    ncclResult_t result = ncclSuccess;

    if (t) {
        result = nb_tuner_next_finalize(&t->next);
        if (t->queue)
            nb_queue_put(t->queue);
        if (t->tuning.params)
            nb_process_release_settings();
        free(t);
    }
    return result;
}
