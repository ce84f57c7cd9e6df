/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragment: a profiler table with the users' calls and the launches of kernels, as in all versions since v5.
 * The file of each version defines VERSION and includes this. A version with another init or other
 * descriptions has its own functions, as profiler_v4.c does. Later
 * descriptions begin with those of v5.
 */
#if VERSION >= 7
#define SYMMETRIC(d) ((d)->type == ncclProfileColl && (d)->coll.isSymColl)
#define TAG(d) ((d)->type == ncclProfileCollApi ? (d)->collApi.userTag : 0)
#else
#define SYMMETRIC(d) false
#define TAG(d) 0
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TABLE JOIN(ncclProfiler_v, VERSION)
#define TABLE_T JOIN(TABLE, _t)
#define DESCRIPTION_T JOIN(JOIN(ncclProfilerEventDescr_v, VERSION), _t)

static ncclResult_t init(void **context, uint64_t comm_id, int *mask, const char *name, int nnodes,
                         int nranks, int rank, ncclDebugLogger_t logger)
{
    const struct nb_prof_setting setting = {.version = VERSION,
                                            .comm_id = comm_id,
                                            .name = name,
                                            .nnodes = nnodes,
                                            .nranks = nranks,
                                            .rank = rank,
                                            .logger = logger,
                                            .mask = mask};
    return nb_api_prof_init(context, &setting);
}

static ncclResult_t start(void *context, void **handle, DESCRIPTION_T *d)
{
    if (!d)
        return nb_api_prof_start(context, handle, NULL);
    const struct nb_api_event event = {.version = VERSION,
                                       .type = d->type,
                                       .parent = d->parentObj,
                                       .call = (const void *)&d->collApi,
                                       .coll = (const void *)&d->coll,
                                       .tag = TAG(d),
                                       .symmetric = SYMMETRIC(d),
                                       .stream = d->kernelLaunch.stream,
                                       .description = d};
    return nb_api_prof_start(context, handle, &event);
}

NB_EXPORT const TABLE_T TABLE = {
    .name = "nibble",
    .init = init,
    .startEvent = start,
    .stopEvent = nb_api_prof_stop,
    .recordEventState = nb_api_prof_state,
    .finalize = nb_api_prof_finalize,
};
