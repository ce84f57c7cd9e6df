/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v4 (NCCL 2.27): the users' calls are not reported, and no end of an event is of interest. */
#include "abi/api.h"

static ncclResult_t init(void **context, int *mask, const char *name, uint64_t comm_id, int nnodes,
                         int nranks, int rank, ncclDebugLogger_t logger)
{
    return nb_api_prof_init(context, mask, name, comm_id, nnodes, nranks, rank, logger, false);
}

static ncclResult_t start(void *context, void **handle, ncclProfilerEventDescr_v4_t *d)
{
    if (handle)
        *handle = NULL;
    if (!d || d->type != ncclProfileColl)
        return ncclSuccess;
    const struct nb_prof_coll_v5 coll = {.func = d->coll.func,
                                         .datatype = d->coll.datatype,
                                         .algo = d->coll.algo,
                                         .count = d->coll.count,
                                         .seqNumber = d->coll.seqNumber,
                                         .sendBuff = d->coll.sendBuff,
                                         .recvBuff = d->coll.recvBuff};
    const struct nb_api_event event = {.type = ncclProfileColl, .coll = &coll};
    return nb_api_prof_start(context, NULL, &event);
}

static ncclResult_t stop(void *handle)
{
    (void)handle;
    return ncclSuccess;
}

NB_EXPORT const ncclProfiler_v4_t ncclProfiler_v4 = {
    .name = "nibble",
    .init = init,
    .startEvent = start,
    .stopEvent = stop,
    .recordEventState = nb_api_prof_state,
    .finalize = nb_api_prof_finalize,
};
