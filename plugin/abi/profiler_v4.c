/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v4 (NCCL 2.27): the users' calls are not reported. */
#include "abi/api.h"

static ncclResult_t init(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                         int nranks, int rank, ncclDebugLogger_t logger)
{
    const struct nb_prof_setting setting = {.version = 4,
                                            .comm_id = comm_id,
                                            .name = name,
                                            .nnodes = nnodes,
                                            .nranks = nranks,
                                            .rank = rank,
                                            .logger = logger,
                                            .mask = mask};
    return nb_api_prof_init(context, &setting);
}

static ncclResult_t start(void *context, void **handle, ncclProfilerEventDescr_v4_t *d)
{
    if (!d)
        return nb_api_prof_start(context, handle, NULL);
    const struct nb_prof_coll_v5 coll = {.func = d->coll.func,
                                         .datatype = d->coll.datatype,
                                         .algo = d->coll.algo,
                                         .count = d->coll.count,
                                         .seqNumber = d->coll.seqNumber,
                                         .sendBuff = d->coll.sendBuff,
                                         .recvBuff = d->coll.recvBuff};
    const struct nb_api_event event = {.version = 4, .type = d->type, .coll = &coll, .description = d};
    return nb_api_prof_start(context, handle, &event);
}

NB_EXPORT const ncclProfiler_v4_t ncclProfiler_v4 = {
    .name = "nibble",
    .init = init,
    .startEvent = start,
    .stopEvent = nb_api_prof_stop,
    .recordEventState = nb_api_prof_state,
    .finalize = nb_api_prof_finalize,
};
