/* SPDX-License-Identifier: Apache-2.0 */
/* ncclProfiler_v5 (NCCL 2.28: the users' calls and the launches of kernels are reported). */
#include "abi/api.h"

static ncclResult_t init(void **context, uint64_t comm_id, int *mask, const char *name, int nnodes,
                         int nranks, int rank, ncclDebugLogger_t logger)
{
    const struct nb_prof_setting setting = {.version = 5,
                                            .comm_id = comm_id,
                                            .name = name,
                                            .nnodes = nnodes,
                                            .nranks = nranks,
                                            .rank = rank,
                                            .logger = logger,
                                            .mask = mask};
    return nb_api_prof_init(context, &setting);
}

static ncclResult_t start(void *context, void **handle, ncclProfilerEventDescr_v5_t *d)
{
    if (!d)
        return nb_api_prof_start(context, handle, NULL);
    const struct nb_api_event event = {.version = 5,
                                       .type = d->type,
                                       .parent = d->parentObj,
                                       .call = &d->collApi,
                                       .coll = &d->coll,
                                       .stream = d->kernelLaunch.stream,
                                       .description = d};
    return nb_api_prof_start(context, handle, &event);
}

NB_EXPORT const ncclProfiler_v5_t ncclProfiler_v5 = {
    .name = "nibble",
    .init = init,
    .startEvent = start,
    .stopEvent = nb_api_prof_stop,
    .recordEventState = nb_api_prof_state,
    .finalize = nb_api_prof_finalize,
};
